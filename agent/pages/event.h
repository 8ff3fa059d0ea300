/*
 * event.h - what the agent tells everybody who listens, through the front. Lost when nobody does; never waits.
 */
#ifndef GPOOL_AGENT_EVENT_H
#define GPOOL_AGENT_EVENT_H

#include <stdint.h>

struct agent;
struct pool;

/* As in proto/messages.def (event.kind) and enum gpool_event_kind. */
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
	EVENT_RETIRED = 18, /* pages are out of use: a process of another trust domain may still map them */
	EVENT_SPILL_ERROR = 20,
	EVENT_MOVER, /* a pool is without a mover, or has one again */
	EVENT_DRAIN, /* a pool is out of service, or in service again */
};

/* `pool` NULL: all pools; session 0: nobody in particular. */
void event_publish(struct agent *agent, enum event_kind kind, const struct pool *pool, uint32_t session, uint64_t value,
	const char *format, ...) __attribute__((format(printf, 6, 7)));

/* Tells the front that a token is good, or no longer: 0, or -EAGAIN when it does not keep up. */
int event_token(struct agent *agent, const uint8_t token[16], int valid);

/* A packet to the front: `id` 0 for events and tokens. -EAGAIN: the front does not keep up, and it is dropped. */
int front_send(struct agent *agent, uint64_t id, const uint8_t *message, uint32_t length);

#endif
