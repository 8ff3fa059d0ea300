#include "client/core/attach_call.h"

#include "client/core/interrupt.h"
#include "client/core/last_error.h"
#include "client/core/patience.h"
#include "proto/attach.h"
#include "proto/codec.h"

#include <poll.h>
#include <time.h>
#include <unistd.h>

enum {
	AGAIN_MS = 200, /* chosen: longer than a restart of the agent; repeating a request is cheap */
	ROOM_MS = 1,    /* interval for retries while the socket's queue is full; no notification exists for this */
};

static void send_question(struct gpool *pool, const struct attach_call *call, struct patience *patience)
{
	int error;

	while ((error = attach_send(pool->socket, call->request, (size_t)call->length, &call->fd, call->fd >= 0)) ==
			-EAGAIN ||
		error == -ETOOMANYREFS) {
		struct pollfd look = {pool->socket, error == -EAGAIN ? POLLOUT : 0, 0};

		poll(&look, 1, patience_ms(patience, error == -EAGAIN ? AGAIN_MS : ROOM_MS));
		if (pool_gone(pool) || !patience_ms(patience, AGAIN_MS))
			return;
	}
}

/* Receive one packet. Return the length of the reply, or 0 if it was a late reply to another request. */
static int take_answer(struct gpool *pool, struct attach_call *call, uint64_t sequence, int wait_ms)
{
	struct msg_envelope envelope;
	size_t fd_count = 0;
	int length = attach_receive(
		pool->socket, call->answer, call->capacity, call->fds, call->fd_capacity, &fd_count, wait_ms);

	if (length < 0)
		return length == -EMSGSIZE ? 0 : length;
	if (!msg_envelope_read(&envelope, call->answer, (size_t)length) && envelope.sequence == sequence) {
		call->fd_count = fd_count;
		return length;
	}
	for (size_t i = 0; i < fd_count; i++)
		close(call->fds[i]);
	return 0;
}

/* Wait for the turn to send a request; only one request is sent at a time. Return: 0, -ETIMEDOUT. */
static int turn_take(struct gpool *pool, struct patience *patience)
{
	bool taken;
	int wait_ms;

	pthread_mutex_lock(&pool->attach_lock);
	while (pool->attach_busy && (wait_ms = patience_ms(patience, AGAIN_MS))) {
		uint64_t end_ns = monotonic_ns() + (uint64_t)wait_ms * 1000000;
		const struct timespec until = {
			.tv_sec = (time_t)(end_ns / 1000000000), .tv_nsec = (long)(end_ns % 1000000000)};

		pthread_cond_timedwait(&pool->attach_free, &pool->attach_lock, &until);
	}
	/* If the turn was freed just as the time expired, take it: this thread may be the only one that was woken. */
	taken = !pool->attach_busy;
	pool->attach_busy = true;
	pthread_mutex_unlock(&pool->attach_lock);
	return taken ? 0 : -ETIMEDOUT;
}

static void turn_end(struct gpool *pool)
{
	pthread_mutex_lock(&pool->attach_lock);
	pool->attach_busy = false;
	pthread_cond_signal(&pool->attach_free);
	pthread_mutex_unlock(&pool->attach_lock);
}

static bool no_answer(int length)
{
	return length == 0 || length == -ETIMEDOUT || length == -EAGAIN;
}

int attach_call(struct gpool *pool, struct attach_call *call)
{
	struct patience patience = patience_of(call->timeout_ms);
	uint64_t incarnation, sequence;
	int length = -EPIPE, error;

	if (call->length < 0)
		return call->length;
	call->fd_count = 0;
	error = turn_take(pool, &patience);
	if (error)
		return error;
	sequence = ++pool->attach_sequence;
	msg_envelope_stamp(call->request, sequence, pool->token);
	do {
		uint64_t again_ns = monotonic_ns() + AGAIN_MS * UINT64_C(1000000);

		incarnation = atomic_load_explicit(&pool->header->incarnation, memory_order_relaxed);
		send_question(pool, call, &patience);
		do {
			length = take_answer(pool, call, sequence, patience_ms(&patience, wait_slice_ms(AGAIN_MS)));
			if (no_answer(length) && call->may_interrupt && wait_interrupted())
				length = -EINTR;
		} while (no_answer(length) && monotonic_ns() < again_ns && patience_ms(&patience, AGAIN_MS) &&
			incarnation == atomic_load_explicit(&pool->header->incarnation, memory_order_relaxed));
		if (length > 0 || (length < 0 && length != -ETIMEDOUT && length != -EAGAIN))
			break;
		length = pool_gone(pool) ? -EPIPE : -ETIMEDOUT;
	} while (length == -ETIMEDOUT && patience_ms(&patience, AGAIN_MS));
	turn_end(pool);
	if (length == -ECONNRESET || length == -EPIPE)
		return fail_gone(pool);
	return length == -ETIMEDOUT ? fail(length, "the agent has not answered within %d ms", call->timeout_ms)
				    : length;
}
