/*
 * lease.h - leasing pages: grants, and taking back idle pages. A grant is atomic: one thread makes the decision and
 * accounts for it, so there is no check-then-allocate between engines.
 */
#ifndef GPOOL_AGENT_LEASE_H
#define GPOOL_AGENT_LEASE_H

#include "agent/pages/session_state.h"

/* A request of a worker, whose form was checked; see struct lease_request. */
struct lease_want {
	uint32_t need, extra, flags;
	uint32_t slot, word; /* of the request: by which the next agent finds whether it was answered */
};

/* The granted pages: the runs of `need` are in pool->runs[run_count]; the answer also contains the extra run. */
struct lease_grant {
	uint32_t run_count;
	uint32_t extra_first, extra_count;
};

/*
 * lease_grant() - make a grant: room within the limits, then free pages, then one run if possible, each with the least
 * effect on other sessions. Afterwards the journal contains LEDGER_GRANT, until the caller has sent the answer and
 * ended the step.
 *
 * Return: 0, -EPERM, -EDQUOT, -ENOSPC.
 */
int lease_grant(struct session *session, const struct lease_want *want, struct lease_grant *grant);
/* lease_grant_undo() - take back a grant whose request the worker has cancelled meanwhile. */
void lease_grant_undo(struct session *session, const struct lease_grant *grant);

/* lease_idle() - return the number of idle pages by the session's own free bits, for statistics only. */
uint32_t lease_idle(const struct session *session);

/* lease_initial() - make the first lease at attach, as free bits: the worker has not seen the segment yet. */
void lease_initial(struct session *session, uint32_t pages);

/*
 * lease_reclaim() - take back at most `most` idle pages of one session, without cooperation of the worker. Return:
 * their number.
 */
uint32_t lease_reclaim(struct session *session, uint32_t most);

/*
 * lease_reclaim_guaranteed() - take back the idle pages that tenants with a guaranteed minimum lease above it. The
 * pages of such a tenant above its minimum then have content, and may be evicted.
 */
void lease_reclaim_guaranteed(struct pool *pool);

/* lease_reclaim_range() - take back the idle pages in [first, first + count). */
uint32_t lease_reclaim_range(struct session *session, uint32_t first, uint32_t count);

/* lease_shrink_idle() - take back idle pages of a session that has not requested pages for some time. */
void lease_shrink_idle(struct session *session, uint64_t now_ms);

#endif
