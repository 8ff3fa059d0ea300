/* lease.h - grant leases, and take back idle pages. Grants are atomic, because the agent has a single thread. */
#ifndef GPOOL_AGENT_LEASE_H
#define GPOOL_AGENT_LEASE_H

#include "agent/pages/session_state.h"

/* A request of a worker, after a check of its form; see struct lease_request. */
struct lease_want {
	uint32_t need, extra, flags;
	uint32_t slot, word;  /* slot and state of the request, by which the next agent knows whether it was answered */
	uint64_t reservation; /* LEASE_RESERVE, LEASE_TAKE_OVER */
	uint32_t duration_ms; /* LEASE_RESERVE; 0: no limit */
};

/*
 * The granted pages. pool->runs[run_count] contains the runs of the `need` pages; the additional run is only in the
 * answer.
 */
struct lease_grant {
	uint32_t run_count;
	uint32_t extra_first, extra_count;
};

/*
 * lease_grant() - make a grant: make room within the limits, make pages available, and form one run if possible, each
 * with the least effect on other sessions. Afterwards the journal contains LEDGER_GRANT; the caller sends the answer
 * and ends the step.
 * Return: 0, -EPERM, -EDQUOT, -ENOSPC.
 */
int lease_grant(struct session *session, const struct lease_want *want, struct lease_grant *grant);
/*
 * lease_note_refusal() - store the limit that caused the refusal of a request (-EDQUOT or -ENOSPC) in the session's
 * segment, for the text of the worker's error.
 */
void lease_note_refusal(struct session *session, uint32_t need, int error);
/* lease_chain() - write the first run_count of pool->runs, in order, into the entries that the worker reads. */
void lease_chain(const struct session *session, uint32_t run_count);
/* lease_grant_undo() - take back a grant whose request the worker has cancelled. */
void lease_grant_undo(struct session *session, const struct lease_grant *grant);

/* lease_idle() - return the number of idle pages according to the session's free bits, which are untrusted. */
uint32_t lease_idle(const struct session *session);

/*
 * lease_initial() - grant the first lease of a session, before its worker receives the segment. The pages become idle.
 */
void lease_initial(struct session *session, uint32_t pages);

/*
 * lease_reclaim() - take back at most `most` idle pages of a session, without an action of the worker. Return the
 * number of pages; 0 unless the session is LIVE.
 */
uint32_t lease_reclaim(struct session *session, uint32_t most);

/*
 * lease_reclaim_guaranteed() - take back the idle pages that tenants with a guaranteed minimum lease above it.
 * Afterwards, such a tenant leases no idle pages above its minimum.
 */
void lease_reclaim_guaranteed(struct pool *pool);

/* lease_reclaim_range() - take back the idle pages of a session in [first, first + count). */
uint32_t lease_reclaim_range(struct session *session, uint32_t first, uint32_t count);

/* lease_shrink_idle() - take back idle pages of a session that has not requested pages for some time. */
void lease_shrink_idle(struct session *session, uint64_t now_ms);

#endif
