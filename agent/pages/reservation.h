/*
 * reservation.h - reservations: pages that one session, the maker, leases for other sessions of its tenant.
 *
 * The pages are leased to the maker, so limits, trust domains and the death of the maker apply to them as to other
 * leased pages. The maker's library does not use them: they have no free bit and no block, so that they are neither
 * reclaimed nor evicted. The ledger records the reservation of each page; the number of pages left is not stored. Each
 * page passes from the maker to the session that takes it over, without becoming free in between.
 *
 *   free --reservation_make()--> leased to the maker --reservation_take()--> leased to the session
 *        <--reservation_release(), reservations_tick(), end of the maker--
 *
 * If handles have several pages, the library reserves whole handles (LEASE_ALIGNED), so that ranges, which consist of
 * whole handles, can take over all of them. Blocks take over parts of handles; the parts that are left may then be too
 * scattered for another block (handle_runs.h).
 */
#ifndef GPOOL_AGENT_RESERVATION_H
#define GPOOL_AGENT_RESERVATION_H

#include "agent/pages/lease.h"

/*
 * reservation_make() - lease pages to the session as a new reservation. Afterwards the journal contains LEDGER_GRANT;
 * the caller sends the answer and ends the step.
 * reservation_unmake() - undo this.
 * Return: 0, -EINVAL (not a new number of this session), -EUSERS (no record is left for the tenant or the user, see
 * share.h), or as lease_grant().
 */
int reservation_make(struct session *session, const struct lease_want *want, struct lease_grant *grant);
void reservation_unmake(struct session *session, const struct lease_want *want, const struct lease_grant *grant);

/*
 * reservation_take() - pass pages of a reservation to the session. Afterwards the journal contains LEDGER_PASS; the
 * caller sends the answer, calls reservation_taken() and ends the step.
 * reservation_untake() - undo it instead, in this agent or the next one.
 * Return: 0, -ENOENT (it has ended, or the pages that are left are too few or cannot be mapped side by side), -EPERM
 * (of another tenant), -EDQUOT.
 * Cost: a pass over the pages.
 */
int reservation_take(struct session *session, const struct lease_want *want, struct lease_grant *grant);
void reservation_taken(struct pool *pool);
void reservation_untake(struct session *session);

/*
 * reservation_release() - end a reservation. *pages: number of freed pages; 0 also if there is no such reservation.
 * Return: 0, -EPERM (of another tenant).
 */
int reservation_release(struct session *session, uint64_t id, uint32_t *pages);

/* reservation_has() - return true if the page is left in a reservation. */
bool reservation_has(const struct pool *pool, uint32_t page);
/*
 * reservation_pages() - count the pages that are left in the reservations of each session, indexed by session; [0] is
 * the sum. With `continues`, the numbers may be those of the last call for this pool. The array is valid until the next
 * call. Cost: a pass over the pages if there is a reservation and the pages are counted.
 */
const uint32_t *reservation_pages(const struct pool *pool, bool continues);
/* reservations_tick() - end the reservations whose deadline has passed. */
void reservations_tick(struct pool *pool);
/* reservations_recover() - remove the records without a maker or pages. Call it after the journal was settled. */
void reservations_recover(struct pool *pool);

extern const struct session_part reservation_session_part;

#endif
