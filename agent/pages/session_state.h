/*
 * session_state.h - the state of a session, which is shared by all rooms. agent/session/session.h has the functions for
 * its start and end.
 */
#ifndef GPOOL_AGENT_SESSION_STATE_H
#define GPOOL_AGENT_SESSION_STATE_H

#include "agent/pages/pool.h"
#include "shm/session_segment.h"

#include <stddef.h>
#include <sys/queue.h>

struct msg_envelope;

enum session_kind { SESSION_WORKER, SESSION_OBSERVER, SESSION_ADMIN };
enum session_state { SESSION_LIVE, SESSION_CLOSING, SESSION_CLOSED, SESSION_DEAD };

struct session {
	struct pool *pool;
	uint32_t id; /* also the owner number of its pages */
	enum session_state state;
	enum session_kind kind;
	bool privileged; /* may use the reserved pages */
	struct event_source socket, pidfd, doorbell;
	struct session_segment segment;
	int segment_fd;
	int timeline_fd; /* of its timeline page; -1: none */
	pid_t pid;
	uid_t uid;
	char name[64];
	struct tenant *tenant;
	uint32_t domain;  /* trust domain of the tenant at the attach */
	bool silent;      /* it has not released pages that are wanted for another trust domain */
	uint64_t died_ms; /* time at which its process died, while its pages are kept for trust.death_grace */
	uint8_t token[16];
	uint64_t attached_ms;
	uint64_t closing_ms;
	uint32_t leased;
	uint32_t limit;          /* 0: the tenant's */
	uint32_t quota;          /* the limit that it requested at its attach, unless poolctl has changed it */
	uint64_t at_limit_ms;    /* time of the last attempt for one of its requests at a limit */
	uint64_t quota_event_ms; /* time of the last event about a refusal at a limit */
	uint32_t batch;          /* pages per refill; grows with demand */
	uint64_t last_refill_ms;
	uint64_t refills, refusals, evicted_pages, reclaimed_pages, damage;
	uint32_t objects_open; /* number of named objects that it has open */
	uint64_t walk_scan;    /* number of the scan for which walk_budget is valid */
	uint32_t walk_budget;  /* pages of its blocks that this scan may still visit: valid blocks do not overlap */
	LIST_HEAD(, spill_block) spilled; /* including blocks being spilled or restored */
	uint32_t spilled_pages;           /* pages of them that are outside of the pool */
	uint32_t saving;                  /* leased pages that are being spilled */
	/* slots of requests about spilled blocks in progress, as bits */
	uint64_t spill_requests;
	/* pages for which it is unknown whether they are this session's; see recover.c */
	uint32_t doubts;
	uint8_t *leaks; /* by page, enum leak; allocated at the first suspicion */
	struct session *next_dead;
};

/*
 * What a room does for a session beside agent/session. pool_create() registers the parts of all rooms in
 * pool->session_parts, in the order in which their functions are called. Each function may be NULL.
 */
struct session_part {
	/* Return whether request() serves messages of this type from the attach socket. */
	bool (*serves)(uint32_t type);
	/*
	 * Serve such a message and take over the descriptor that came with it, or -1. Return NULL, or the description
	 * of a malformed field, which the caller counts as damage.
	 */
	const char *(*request)(struct session *session, const struct msg_envelope *envelope, const uint8_t *packet,
		size_t length, int fd);
	/* The session ends: called before its pages are returned to the pool. */
	void (*ending)(struct session *session);
	/* Called after its pages were returned, while it is still in pool->sessions. */
	void (*returned)(struct session *session);
};

#endif
