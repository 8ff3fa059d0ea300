/*
 * session.h - one attached process: its connection (the lease), its pidfd (the proof of death), its segment.
 *
 *   LIVE -> (detach request) pages FREE at once
 *        -> (pidfd fires)    pages FREE at once
 *        -> (connection closed, process lives) CLOSED: pages QUARANTINED until the pidfd fires
 * Nothing is ever taken back on a timeout.
 */
#ifndef GPOOL_AGENT_SESSION_H
#define GPOOL_AGENT_SESSION_H

#include "agent/pages/pool.h"
#include "proto/attach.h"
#include "proto/codec.h"
#include "shm/session_segment.h"

#include <sys/queue.h>

enum session_role { SESSION_WORKER, SESSION_OBSERVER, SESSION_ADMIN };
enum session_state { SESSION_LIVE, SESSION_CLOSING, SESSION_CLOSED, SESSION_DEAD };

struct session {
	struct pool *pool;
	uint32_t id; /* also the owner number of its pages */
	enum session_state state;
	enum session_role role;
	bool privileged; /* may use the reserved pages */
	struct event_source socket, pidfd, doorbell;
	struct session_segment segment;
	int segment_fd;
	int timeline_fd; /* of the page that it shows to others; -1: none */
	pid_t pid;
	uid_t uid;
	char name[64];
	struct tenant *tenant;
	uint32_t domain;  /* trust domain, that of the tenant at the attach */
	bool silent;      /* has not let go of pages that are wanted for another trust domain */
	uint64_t died_ms; /* its process is dead, and its pages are kept for trust.death_grace */
	uint8_t token[16];
	uint64_t attached_ms;
	uint64_t closing_ms;
	uint32_t leased;
	uint32_t limit;          /* 0: the tenant's */
	uint32_t quota;          /* what it asked for itself: the limit, until poolctl says otherwise */
	uint64_t at_limit_ms;    /* when one of its waiters at a limit was last tried */
	uint64_t quota_event_ms; /* when its last refusal at a limit was announced */
	uint32_t batch;          /* pages per refill; grows with demand */
	uint64_t last_refill_ms;
	uint64_t refills, refusals, evicted_pages, reclaimed_pages, damage;
	uint32_t objects_open; /* named objects that it reads */
	uint64_t walk_scan;    /* the scan for eviction that walk_budget belongs to */
	uint32_t walk_budget;  /* pages of its blocks that this scan may still look at: honest blocks do not overlap */
	LIST_HEAD(, spill_block) spilled; /* and those on their way there or back */
	uint32_t spilled_pages;           /* of them, those that lie outside of the pool */
	uint32_t saving;                  /* leased pages on their way to be spilled */
	uint64_t spill_requests;          /* slots of requests about spilled blocks that are under way */
	uint32_t doubts;                  /* pages of which it is open whether they are this session's; see recover.c */
	uint8_t *leaks;                   /* by page, enum leak; made at the first suspicion */
	struct session *next_dead;
};

/* session_admit() - an attach request that arrived; answers it on `socket`, which the session keeps on success. */
int session_admit(
	struct agent *agent, int socket, const struct attach_peer *peer, const struct msg_attach_request *request);

/*
 * session_restore() - a session that an agent before this one has admitted, with so many pages; it hears nothing of it
 * until session_resume(). 0, or -ENOMEM.
 */
int session_restore(struct pool *pool, uint32_t id, const struct held *held, uint32_t leased);
/* session_resume() - once all of the pool is restored: what it waits for is served. May end it. */
void session_resume(struct session *session);

enum session_end { SESSION_END_DETACH, SESSION_END_DEATH, SESSION_END_STOP };
void session_end(struct session *session, enum session_end how);
/*
 * session_disconnect() - a field that cannot be, or a leaked pin: the session ends, its pages wait for the process's
 * death.
 */
void session_disconnect(struct session *session, int error, const char *why);
/* session_damage() - note one; many of them end the session. */
void session_damage(struct session *session, const char *what);
/* session_tick() - a closed connection whose process still lives. */
void session_tick(struct session *session);

/* session_add_totals() - what it has done so far. */
void session_add_totals(const struct session *session, struct session_totals *totals);

struct session *session_by_token(struct agent *agent, const uint8_t token[16]);
const char *session_role_name(uint32_t role);
/* session_is_operator() - root, or the agent's own user: may do everything. */
bool session_is_operator(uid_t uid);

/* sessions_free_dead() - at the end of a pass of the event loop, when no pending event can name them. */
void sessions_free_dead(struct agent *agent);

#endif
