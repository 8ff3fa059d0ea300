/* request.c - the session's own control channel and event channel, opened on first use. */
#include "client/core/request.h"

#include "client/core/control.h"
#include "client/core/events.h"
#include "client/core/last_error.h"
#include "client/core/pool.h"
#include "proto/codec.h"

#include <string.h>

const struct pool_segment *pool_view(const struct gpool *pool)
{
	return &pool->segment;
}

const struct gpu *pool_gpu(const struct gpool *pool)
{
	return pool->gpu;
}

/* Return the error in an error_reply. The caller handles all other replies. */
static int reply_error(const uint8_t *reply, size_t length, char *error_text)
{
	struct msg_envelope envelope;
	struct msg_error_reply error;

	if (msg_envelope_read(&envelope, reply, length))
		return -EBADMSG;
	if (envelope.type != MSG_TYPE_error_reply)
		return 0;
	if (msg_decode_error_reply(&error, reply, length))
		return -EBADMSG;
	static_assert(sizeof(error.text) == 512, "as request.h promises");
	if (error_text)
		strcpy(error_text, error.text);
	return error.error < 0 ? error.error : -EBADMSG;
}

int pool_request(struct gpool *pool, uint8_t *request, size_t request_bytes, uint8_t *reply, size_t capacity,
	int timeout_ms, char *error_text)
{
	int length = 0;

	if (!pool->alive)
		return -ECHILD;
	if (error_text)
		*error_text = '\0';
	if (pool_gone(pool))
		return fail_gone(pool);
	pthread_mutex_lock(&pool->control_lock);
	if (!pool->control)
		length = control_open(pool->control_url, &pool->control);
	if (length >= 0)
		length = control_call(pool->control, pool->token, request, request_bytes, reply, capacity, timeout_ms);
	pthread_mutex_unlock(&pool->control_lock);
	if (length == -ETIMEDOUT && pool_gone(pool))
		return fail_gone(pool);
	if (length >= 0) {
		int error = reply_error(reply, (size_t)length, error_text);

		if (error)
			return error;
	}
	return length;
}

int gpool_event_next(struct gpool *pool, int timeout_ms, struct gpool_event *event)
{
	struct gpool_event filled;
	struct msg_event message;
	uint32_t size = event->size;
	int error = 0;

	if (!pool->alive)
		return -ECHILD;
	if (size < sizeof(size))
		return fail_size(size);
	if (timeout_ms < -1)
		return fail_timeout(timeout_ms);
	pthread_mutex_lock(&pool->events_lock);
	if (!pool->events)
		error = events_open(pool->events_url, &pool->events);
	if (!error)
		error = events_receive(pool->events, timeout_ms, &message);
	pthread_mutex_unlock(&pool->events_lock);
	idle_run(pool, IDLE_WAIT);
	if (error)
		return error == -ETIMEDOUT ? fail(error, "no event within %d ms", timeout_ms) : error;
	filled = (struct gpool_event){
		.size = size,
		.kind = message.kind,
		.session = message.session,
		.time_ms = message.time_ms,
		.value = message.value,
	};
	static_assert(sizeof(filled.pool) == sizeof(message.pool) && sizeof(filled.text) == sizeof(message.text),
		"same text");
	memcpy(filled.pool, message.pool, sizeof(filled.pool));
	memcpy(filled.text, message.text, sizeof(filled.text));
	struct_answer(event, size, &filled, sizeof(filled));
	return 0;
}
