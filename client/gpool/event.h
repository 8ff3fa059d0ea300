/* event.h - events of the agent. */
#ifndef GPOOL_EVENT_H
#define GPOOL_EVENT_H

#include "pool.h"

#ifdef __cplusplus
extern "C" {
#endif

enum gpool_event_kind {
	GPOOL_EVENT_PRESSURE = 1,
	GPOOL_EVENT_EVICTION = 2,
	GPOOL_EVENT_RECLAIM = 3,
	GPOOL_EVENT_TENANT_LIMIT = 4,
	GPOOL_EVENT_AGENT_START = 5,
	GPOOL_EVENT_SESSION_START = 6,
	GPOOL_EVENT_SESSION_END = 7,
	GPOOL_EVENT_LEAKED_PIN = 8,
	GPOOL_EVENT_RELOAD = 9,
	GPOOL_EVENT_FRONT_RESTART = 10,
	GPOOL_EVENT_DAMAGE = 11,
	GPOOL_EVENT_OBJECT_PUBLISHED = 12, /* value: version */
	GPOOL_EVENT_OBJECT_DELETED = 13,
	GPOOL_EVENT_OBJECT_EVICTED = 14,
	GPOOL_EVENT_ROLE_GRANTED = 15, /* value: token */
	GPOOL_EVENT_ROLE_FREED = 16,   /* value: token */
	GPOOL_EVENT_TAKEOVER = 17,     /* a standby has the role of a dead session; value: token */
	/* pages are out of use: a session of another trust domain may still map them; value: its pid */
	GPOOL_EVENT_RETIRED = 18,
	GPOOL_EVENT_SPILL_ERROR = 20, /* content could not be spilled, and stayed, or not be read back, and is lost */
	/* nothing can be spilled, brought back or cleared (value 0), or again it can (1) */
	GPOOL_EVENT_MOVER = 21,
	/* the pool is out of service: end soon, a new session is refused (value 1), or in service again (0) */
	GPOOL_EVENT_DRAIN = 22
};

struct gpool_event {
	uint32_t size;    /* sizeof(struct gpool_event), set by the caller; GPOOL_EVENT_INIT sets it */
	uint32_t kind;    /* enum gpool_event_kind */
	uint32_t session; /* session that the event concerns; 0: all */
	uint32_t reserved;
	uint64_t time_ms; /* wall clock */
	uint64_t value;   /* level, pages or number, as the kind says */
	char pool[64];
	char text[192];
};
GPOOL_ASSERT_SIZE(gpool_event, 288);
#define GPOOL_EVENT_INIT \
	{ \
		sizeof(struct gpool_event), 0, 0, 0, 0, 0, {0}, \
		{ \
			0 \
		} \
	}

/*
 * gpool_event_next() - the agent's next event: 0, -ETIMEDOUT. The first call subscribes; earlier events are not seen.
 * One thread.
 */
GPOOL_API int gpool_event_next(struct gpool *pool, int timeout_ms, struct gpool_event *event);

#ifdef __cplusplus
}
#endif

#endif
