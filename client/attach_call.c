#include "client/attach_call.h"

#include "proto/attach.h"
#include "proto/codec.h"

#include <unistd.h>

enum {
	ANSWER_MS = 10000, /* far above a restart of the agent */
	LOOK_MS = 50,      /* between two looks whether the agent is another one */
};

/* Whether what was received answers `sequence`; its descriptors are closed if not. */
static bool answers(const uint8_t *reply, int length, uint64_t sequence, const int *fds, size_t fd_count)
{
	struct msg_envelope envelope;

	if (!msg_envelope_read(&envelope, reply, (size_t)length) && envelope.sequence == sequence)
		return true;
	for (size_t i = 0; i < fd_count; i++)
		close(fds[i]);
	return false;
}

/* Caller holds attach_lock. */
static int call_locked(struct gpool *pool, uint64_t sequence, const uint8_t *request, size_t request_bytes, uint8_t *reply,
	size_t capacity, int *fds, size_t fd_capacity, size_t *fd_count)
{
	uint64_t end = monotonic_ns() + ANSWER_MS * UINT64_C(1000000), asked = 0, now;
	bool sent = false;
	int length;

	do {
		uint64_t incarnation = atomic_load_explicit(&pool->header->incarnation, memory_order_acquire);
		size_t count = 0;

		if (!sent || incarnation != asked) {
			int error = attach_send(pool->socket, request, request_bytes, NULL, 0);

			/* -EAGAIN: there are questions enough that nobody has read. */
			if (error && error != -EAGAIN)
				return -EPIPE;
			sent = !error;
			asked = incarnation;
		}
		length = attach_receive(pool->socket, reply, capacity, fds, fd_capacity, fd_capacity ? &count : NULL, LOOK_MS);
		if (length >= 0 && answers(reply, length, sequence, fds, count)) {
			if (fd_count)
				*fd_count = count;
			return length;
		}
		if (length == -EMFILE)
			return length;
		/* What is too long for us answers somebody else's question of before. */
		if (length < 0 && length != -ETIMEDOUT && length != -EMSGSIZE)
			return -EPIPE;
		now = monotonic_ns();
	} while (now < end && !atomic_load_explicit(&pool->session.header->closed, memory_order_acquire));
	return -EPIPE;
}

int attach_call(struct gpool *pool, uint8_t *request, size_t request_bytes, uint8_t *reply, size_t capacity, int *fds,
	size_t fd_capacity, size_t *fd_count)
{
	uint64_t sequence;
	int length;

	pthread_mutex_lock(&pool->attach_lock);
	sequence = ++pool->attach_sequence;
	msg_envelope_stamp(request, sequence, pool->token);
	length = call_locked(pool, sequence, request, request_bytes, reply, capacity, fds, fd_capacity, fd_count);
	pthread_mutex_unlock(&pool->attach_lock);
	return length;
}
