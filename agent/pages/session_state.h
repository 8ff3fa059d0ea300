/*
 * session_state.h - the state of a session, shared by all parts of the agent. For the functions that begin and end a
 * session see agent/session/session.h.
 */
#ifndef GPOOL_AGENT_SESSION_STATE_H
#define GPOOL_AGENT_SESSION_STATE_H

#include "agent/pages/pool.h"
#include "shm/session_segment.h"

#include <stddef.h>
#include <sys/queue.h>
#include <unistd.h>

struct msg_envelope;

enum session_kind { SESSION_WORKER, SESSION_OBSERVER, SESSION_ADMIN };
enum session_state { SESSION_LIVE, SESSION_CLOSING, SESSION_CLOSED, SESSION_DEAD };

/*
 * The request with which the session continues a list that did not fit into one reply; see agent/control/page_facts.h.
 * All fields are 0 if there is none.
 */
struct listing {
	uint32_t pool; /* index of the pool plus 1 */
	uint32_t type; /* of the request */
	uint32_t first, first_session;
};

struct session {
	struct pool *pool;
	uint32_t id; /* also the owner in its page words */
	enum session_state state;
	enum session_kind kind;
	bool privileged; /* may use reserved pages */
	struct event_source socket, pidfd, doorbell;
	struct session_segment segment;
	int segment_fd;
	int timeline_fd; /* memfd of its timeline page; -1: none */
	pid_t pid;
	uid_t uid;
	char name[64];
	struct tenant *tenant;
	uint32_t domain;  /* trust domain of the tenant at attach */
	bool silent;      /* has not released pages that are wanted for another trust domain */
	uint64_t died_ms; /* time at which the process died; its pages are kept for trust.death_grace */
	uint8_t token[16];
	uint64_t attached_ms;
	uint64_t closing_ms;
	uint32_t leased;
	uint32_t limit;          /* 0: only the tenant's limit applies */
	uint32_t quota;          /* limit requested at attach, unless poolctl has changed it */
	uint64_t at_limit_ms;    /* time of the last attempt to serve one of its requests at a limit */
	uint64_t quota_event_ms; /* time of the last event about a refusal at a limit */
	uint32_t batch;          /* pages per refill; grows with demand */
	uint64_t last_refill_ms;
	uint64_t refills, refusals, evicted_pages, reclaimed_pages, damage;
	uint32_t objects_open;
	uint64_t walk_scan;               /* number of the scan to which walk_budget belongs */
	uint32_t walk_budget;             /* number of pages of its blocks that this scan may still visit */
	LIST_HEAD(, spill_block) spilled; /* includes blocks being spilled or restored */
	uint32_t spilled_pages;           /* pages of these blocks that are outside of the pool */
	uint32_t saving;                  /* leased pages that are being spilled */
	/* bit set of the slots with a request about spilled blocks in progress */
	uint64_t spill_requests;
	/* number of pages whose owner is doubtful after a restart of the agent; see recover.c */
	uint32_t doubts;
	struct listing listing;
	uint8_t *leaks; /* [page_count] enum leak; allocated when a leaked pin is first suspected */
	struct session *next_dead;
};

/* session_is_operator() - return true for root and for the agent's own user, which have all rights. */
static inline bool session_is_operator(uid_t uid)
{
	return uid == 0 || uid == geteuid();
}

/*
 * The functions of another part of the agent for a session. pool_create() registers them in pool->session_parts, in the
 * order in which they are called. Each function may be NULL.
 */
struct session_part {
	/* Return true if request() serves messages of this type from the attach socket. */
	bool (*serves)(uint32_t type);
	/*
	 * Serve such a message and take over the descriptor that came with it (-1: none). Return NULL, or the
	 * description of a malformed field, which the caller counts as damage.
	 */
	const char *(*request)(struct session *session, const struct msg_envelope *envelope, const uint8_t *packet,
		size_t length, int fd);
	/* The session is ending. Called before its pages are returned to the pool. */
	void (*ending)(struct session *session);
	/* Called after the pages were returned, while the session is still in pool->sessions. */
	void (*returned)(struct session *session);
};

#endif
