#include "agent/pages/event.h"

#include "agent/base/crash_point.h"
#include "agent/base/log.h"
#include "agent/pages/pool.h"
#include "proto/codec.h"
#include "shm/plural.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

int front_send(struct agent *agent, uint64_t id, const uint8_t *message, uint32_t length)
{
	struct iovec parts[] = {{&id, sizeof(id)}, {(void *)(uintptr_t)message, length}};
	struct msghdr packet = {.msg_iov = parts, .msg_iovlen = 2};

	if (agent->front.fd < 0 || sendmsg(agent->front.fd, &packet, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
		return 0;
	if (errno == EPIPE || errno == ECONNRESET)
		return 0; /* the front has ended; the next front receives all tokens */
	log_debug("cannot send a packet of %u byte%s to the front: %s", length, plural(length), strerror(errno));
	return -EAGAIN;
}

/* Record an event. Events that concern all pools are recorded in the ring of the first pool. */
static void record(const struct agent *agent, const struct pool *pool, const struct msg_event *event, uint64_t now_ns)
{
	const struct pool *where = pool ? pool : agent->pools[0];
	const struct flight_entry entry = {
		.time_ns = now_ns,
		.kind = event->kind,
		.session = (uint16_t)event->session,
		.everywhere = !pool,
		.value = event->value,
	};

	static_assert(sizeof(event->text) == FLIGHT_TEXT_BYTES, "nothing is cut");
	static_assert((int)EVENT_DRAIN < (int)FLIGHT_KINDS_FIRST, "kinds of one row");
	if (where)
		flight_write(&where->segment.events, &entry, event->text);
	crash_point();
}

void event_publish(struct agent *agent, enum event_kind kind, const struct pool *pool, uint32_t session, uint64_t value,
	const char *format, ...)
{
	uint64_t now_ns = flight_now();
	struct msg_event event = {.kind = kind, .time_ms = now_ns / 1000000, .value = value, .session = session};
	uint8_t buffer[1024];
	va_list arguments;
	int length;

	if (pool)
		snprintf(event.pool, sizeof(event.pool), "%s", pool->segment.header->name);
	va_start(arguments, format);
	vsnprintf(event.text, sizeof(event.text), format, arguments);
	va_end(arguments);
	log_debug("event: %s", event.text);
	record(agent, pool, &event, now_ns);
	length = msg_encode_event(&event, 0, NULL, buffer, sizeof(buffer));
	if (length > 0)
		front_send(agent, 0, buffer, (uint32_t)length);
}

int event_token(struct agent *agent, const uint8_t token[16], int valid)
{
	struct msg_front_token message = {.valid = (uint8_t)valid};
	uint8_t buffer[128];
	int length;

	memcpy(message.token, token, sizeof(message.token));
	length = msg_encode_front_token(&message, 0, NULL, buffer, sizeof(buffer));
	return length > 0 ? front_send(agent, 0, buffer, (uint32_t)length) : length;
}
