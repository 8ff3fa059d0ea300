/*
 * session_totals.h - sums of the counters of a session's threads.
 *
 * The counters of a session are reported by its worker, which is not trusted. A thread cannot count faster than once
 * per nanosecond, so a counter above the session's age is invalid and is not added. A worker with false counters can
 * distort the sums, but cannot make them overflow.
 */
#ifndef GPOOL_SHM_SESSION_TOTALS_H
#define GPOOL_SHM_SESSION_TOTALS_H

#include "shm/session_segment.h"

/*
 * session_totals_add() - add the counters of a session of this age. Only one thread at a time may add to the same
 * totals; other threads may read them.
 * Cost: about 1,000 loads from 9 KiB.
 */
void session_totals_add(struct session_totals *totals, const struct session_stats *stats, uint64_t age_ns);

/* session_totals_copy() - copy totals that another process may change at the same time. */
void session_totals_copy(struct session_totals *to, const struct session_totals *from);

#endif
