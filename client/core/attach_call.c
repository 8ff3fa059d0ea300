#include "client/core/attach_call.h"

#include "client/core/interrupt.h"
#include "proto/attach.h"
#include "proto/codec.h"

#include <poll.h>
#include <time.h>
#include <unistd.h>

enum {
	AGAIN_MS = 200, /* chosen: longer than a restart of the agent; repeating a request is cheap */
	ROOM_MS = 1,    /* interval for retries while the socket's queue is full; no notification exists for this */
};

/* Return the time until end_ns in milliseconds, at most `most`. */
static int time_left(uint64_t end_ns, int most)
{
	uint64_t now = monotonic_ns();

	if (!end_ns)
		return most;
	if (now >= end_ns)
		return 0;
	return (end_ns - now) / 1000000 + 1 < (uint64_t)most ? (int)((end_ns - now) / 1000000 + 1) : most;
}

static void send_question(struct gpool *pool, const struct attach_call *call, uint64_t end_ns)
{
	int error;

	while ((error = attach_send(pool->socket, call->request, (size_t)call->length, &call->fd, call->fd >= 0)) ==
			-EAGAIN ||
		error == -ETOOMANYREFS) {
		struct pollfd look = {pool->socket, error == -EAGAIN ? POLLOUT : 0, 0};

		poll(&look, 1, time_left(end_ns, error == -EAGAIN ? AGAIN_MS : ROOM_MS));
		if (pool_gone(pool) || !time_left(end_ns, AGAIN_MS))
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

/*
 * Wait for the turn to send a request; only one request is sent at a time. The wait ends at the caller's own deadline.
 * Return: 0, -ETIMEDOUT.
 */
static int turn_take(struct gpool *pool, uint64_t end_ns)
{
	const struct timespec until = {.tv_sec = (time_t)(end_ns / 1000000000), .tv_nsec = (long)(end_ns % 1000000000)};
	int error = 0;

	pthread_mutex_lock(&pool->attach_lock);
	while (pool->attach_busy && !error)
		error = end_ns ? pthread_cond_timedwait(&pool->attach_free, &pool->attach_lock, &until)
			       : pthread_cond_wait(&pool->attach_free, &pool->attach_lock);
	/* If the turn was freed just as the time expired, take it: this thread may be the only one that was woken. */
	if (!pool->attach_busy)
		error = 0;
	if (!error)
		pool->attach_busy = true;
	pthread_mutex_unlock(&pool->attach_lock);
	return -error;
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
	uint64_t end_ns = call->timeout_ms < 0 ? 0 : monotonic_ns() + (uint64_t)call->timeout_ms * 1000000, incarnation,
		 sequence;
	int length = -EPIPE, error;

	if (call->length < 0)
		return call->length;
	call->fd_count = 0;
	error = turn_take(pool, end_ns);
	if (error)
		return error;
	sequence = ++pool->attach_sequence;
	msg_envelope_stamp(call->request, sequence, pool->token);
	do {
		uint64_t again_ns = monotonic_ns() + AGAIN_MS * UINT64_C(1000000);

		incarnation = atomic_load_explicit(&pool->header->incarnation, memory_order_relaxed);
		send_question(pool, call, end_ns);
		do {
			length = take_answer(pool, call, sequence, time_left(end_ns, wait_slice_ms(AGAIN_MS)));
			if (no_answer(length) && call->may_interrupt && wait_interrupted())
				length = -EINTR;
		} while (no_answer(length) && monotonic_ns() < again_ns && time_left(end_ns, AGAIN_MS) &&
			incarnation == atomic_load_explicit(&pool->header->incarnation, memory_order_relaxed));
		if (length > 0 || (length < 0 && length != -ETIMEDOUT && length != -EAGAIN))
			break;
		length = pool_gone(pool) ? -EPIPE : -ETIMEDOUT;
	} while (length == -ETIMEDOUT && time_left(end_ns, AGAIN_MS));
	turn_end(pool);
	return length == -ECONNRESET ? -EPIPE : length;
}
