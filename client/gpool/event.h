/* event.h - events of the agent. */
#ifndef GPOOL_EVENT_H
#define GPOOL_EVENT_H

#include "pool.h"

#ifdef __cplusplus
extern "C" {
#endif

enum gpool_event_kind {
	GPOOL_EVENT_PRESSURE = 1, /* the pressure has changed; value: enum gpool_pressure */
	GPOOL_EVENT_EVICTION = 2, /* content was evicted; value: pages */
	GPOOL_EVENT_RECLAIM = 3,  /* idle pages were taken from a session; value: pages */
	/* session 0: a limit of a tenant has changed; otherwise a session requested more than its limit; in pages */
	GPOOL_EVENT_TENANT_LIMIT = 4,
	GPOOL_EVENT_AGENT_START = 5,    /* the agent has started */
	GPOOL_EVENT_SESSION_START = 6,  /* a session has attached; value: its process ID */
	GPOOL_EVENT_SESSION_END = 7,    /* a session has ended; value: pages that it returned */
	GPOOL_EVENT_LEAKED_PIN = 8,     /* a pin was not refreshed for pins.max_duration; value: its page */
	GPOOL_EVENT_RELOAD = 9,         /* the configuration was reloaded */
	GPOOL_EVENT_FRONT_RESTART = 10, /* the front process was restarted; events may be missing */
	/* the agent has ended a session whose segment has invalid values, or that leaked a pin; value: errno value */
	GPOOL_EVENT_DAMAGE = 11,
	GPOOL_EVENT_OBJECT_PUBLISHED = 12, /* value: version */
	GPOOL_EVENT_OBJECT_DELETED = 13,
	GPOOL_EVENT_OBJECT_EVICTED = 14,
	GPOOL_EVENT_ROLE_GRANTED = 15, /* value: token */
	GPOOL_EVENT_ROLE_FREED = 16,   /* value: token */
	GPOOL_EVENT_TAKEOVER = 17,     /* a standby was granted the role of a session that died; value: token */
	/* pages were retired because a session of another trust domain may still map them; value: its process ID */
	GPOOL_EVENT_RETIRED = 18,
	/*
	 * session 0: content could not be spilled and remains in the pool, value: errno value; otherwise content of the
	 * session could not be restored, value: pages; the text states whether it is kept or lost
	 */
	GPOOL_EVENT_SPILL_ERROR = 20,
	/* value 0: no mover serves the pool, so no content is spilled, restored or cleared; 1: a mover serves again */
	GPOOL_EVENT_MOVER = 21,
	/* value 1: the pool is out of service, sessions should end and new ones are refused; 0: it is in service */
	GPOOL_EVENT_DRAIN = 22
};

struct gpool_event {
	uint32_t size;    /* sizeof(struct gpool_event), set by the caller; GPOOL_EVENT_INIT sets it */
	uint32_t kind;    /* enum gpool_event_kind; a newer agent may send others */
	uint32_t session; /* session that the event concerns; 0: all */
	uint32_t reserved;
	uint64_t time_ms; /* wall clock, milliseconds since 1970 */
	uint64_t value;   /* depends on the kind */
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
 * gpool_event_next() - wait for the next event of the agent.
 *
 * @timeout_ms: longest wait, milliseconds; 0: do not wait, -1: no limit
 * @event:      receives the event; the caller sets its size
 *
 * The first call subscribes to later events of all pools of the agent. Events are lost if the caller does not read them
 * fast enough, and while the agent is restarted. Therefore read the state after each event instead of deriving the
 * state from events.
 *
 * Return: 0, or
 *   -ETIMEDOUT  no event in time
 *   -EINVAL     size, or timeout_ms below -1
 *   -EINTR      gpool_wait_check() ended the wait
 *   -EMFILE, -ENOMEM  limits of this process
 *   -ECHILD     after fork()
 *
 * Threads: one at a time; the call of another thread first waits for the current call. Cost: a receive from a nanomsg
 * socket, which the first call opens.
 */
GPOOL_API int gpool_event_next(struct gpool *pool, int timeout_ms, struct gpool_event *event);

#ifdef __cplusplus
}
#endif

#endif
