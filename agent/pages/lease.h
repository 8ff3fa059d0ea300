/*
 * lease.h - lending pages: grants, hand-overs, taking idle pages back.
 *
 * A grant is atomic: one thread decides and books it, so there is no check-then-allocate between engines.
 */
#ifndef GPOOL_AGENT_LEASE_H
#define GPOOL_AGENT_LEASE_H

#include "agent/pages/session_state.h"

/* What a worker asks for, checked for its form; see struct lease_request. */
struct lease_want {
	uint32_t need, extra, flags;
	uint32_t slot, word; /* of the request: what the journal needs to tell whether it was answered */
};

/* What it got: the runs of the need stand in pool->runs[run_count]; the extra run is the answer's too. */
struct lease_grant {
	uint32_t run_count;
	uint32_t extra_first, extra_count;
};

/*
 * lease_grant() - decide and book: room within the limits, then free pages, then one run if it can be had, each by what
 * costs others least. The journal stands at LEDGER_GRANT afterwards, until the caller has answered and ended it.
 * Return: 0, -EPERM, -EDQUOT, -ENOSPC.
 */
int lease_grant(struct session *session, const struct lease_want *want, struct lease_grant *grant);
/* lease_grant_undo() - the worker gave up waiting while this was decided: all of it comes back. */
void lease_grant_undo(struct session *session, const struct lease_grant *grant);

/* lease_idle() - pages that are idle by the session's own free bits: believed for statistics only. */
uint32_t lease_idle(const struct session *session);

/* lease_initial() - the first lease at attach, as free bits: its worker has not seen the segment yet. */
void lease_initial(struct session *session, uint32_t pages);

/*
 * lease_reclaim() - take back idle pages of one session, at most `most`; no answer of the worker is needed. Returns
 * pages.
 */
uint32_t lease_reclaim(struct session *session, uint32_t most);

/*
 * lease_reclaim_guaranteed() - take back the idle pages that tenants with a guaranteed minimum lease above it. The
 * pages of such a tenant above its minimum then have content, and may be evicted.
 */
void lease_reclaim_guaranteed(struct pool *pool);

/* lease_reclaim_range() - the idle ones of pages [first, first + count). */
uint32_t lease_reclaim_range(struct session *session, uint32_t first, uint32_t count);

/* lease_shrink_idle() - housekeeping: idle pages that nobody asked for go back. */
void lease_shrink_idle(struct session *session, uint64_t now_ms);

#endif
