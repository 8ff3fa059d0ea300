/*
 * lease.h - lending pages: grants, hand-overs, taking idle pages back, requests that wait.
 *
 * A grant is atomic: one thread decides and books it, so there is no check-then-allocate between engines.
 */
#ifndef GPOOL_AGENT_LEASE_H
#define GPOOL_AGENT_LEASE_H

#include "agent/session.h"

struct waiter {
	TAILQ_ENTRY(waiter) link;
	struct session *session;
	uint32_t slot;
	uint32_t need, extra, flags;
	bool at_limit; /* waits for its own tenant or session, not for the pool */
	uint64_t deadline_ms;
	uint64_t started_ns;
};

/* lease_doorbell() - serve what the session's request ring holds. */
void lease_doorbell(struct session *session);

/* lease_idle() - pages that are idle by the session's own free bits: believed for statistics only. */
uint32_t lease_idle(const struct session *session);

/* lease_initial() - the first lease at attach: free bits. */
void lease_initial(struct session *session, uint32_t pages);

/* lease_reclaim() - take back idle pages of one session, at most `most`; no answer of the worker is needed. Returns pages. */
uint32_t lease_reclaim(struct session *session, uint32_t most);

/* lease_reclaim_range() - the idle ones of pages [first, first + count). */
uint32_t lease_reclaim_range(struct session *session, uint32_t first, uint32_t count);

/* lease_serve_waiters() - pages may have come free, or time is up. */
void lease_serve_waiters(struct pool *pool);
/* lease_forget() - a session ends: its waiters go. */
void lease_forget(struct session *session);

/* lease_shrink_idle() - housekeeping: idle pages that nobody asked for go back. */
void lease_shrink_idle(struct session *session, uint64_t now_ms);

#endif
