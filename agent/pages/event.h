/*
 * event.h - publish events through the front. The agent never waits for subscribers: they miss events while it has no
 * front or the front's socket is full. The flight recorder contains all events.
 */
#ifndef GPOOL_AGENT_EVENT_H
#define GPOOL_AGENT_EVENT_H

#include <stdint.h>

struct agent;
struct pool;

/* The values of proto/messages.def (event.kind) and enum gpool_event_kind. */
enum event_kind {
	EVENT_PRESSURE = 1,
	EVENT_EVICTION,
	EVENT_RECLAIM,
	EVENT_TENANT_LIMIT,
	EVENT_AGENT_START,
	EVENT_SESSION_START,
	EVENT_SESSION_END,
	EVENT_LEAKED_PIN,
	EVENT_RELOAD,
	EVENT_FRONT_RESTART,
	EVENT_DAMAGE,
	EVENT_OBJECT_PUBLISHED,
	EVENT_OBJECT_DELETED,
	EVENT_OBJECT_EVICTED,
	EVENT_ROLE_GRANTED,
	EVENT_ROLE_FREED,
	EVENT_TAKEOVER,
	EVENT_RETIRED = 18, /* pages are out of use: a process of another trust domain may still have them mapped */
	EVENT_SPILL_ERROR = 20,
	EVENT_MOVER, /* a pool has no mover, or has one again */
	EVENT_DRAIN, /* a pool is being drained, or is in service again */
};

/*
 * event_publish() - publish an event. pool NULL: it concerns all pools. session 0: it concerns no particular session.
 */
void event_publish(struct agent *agent, enum event_kind kind, const struct pool *pool, uint32_t session, uint64_t value,
	const char *format, ...) __attribute__((format(printf, 6, 7)));

/*
 * event_token() - report to the front that a token has become valid or invalid. Return: 0, -EAGAIN (the front's socket
 * is full).
 */
int event_token(struct agent *agent, const uint8_t token[16], int valid);

/*
 * front_send() - send a packet to the front. id: 0 for events and tokens. Return: 0, -EAGAIN (the front's socket is
 * full, and the packet was dropped).
 */
int front_send(struct agent *agent, uint64_t id, const uint8_t *message, uint32_t length);

#endif
