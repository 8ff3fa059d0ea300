/*
 * session_totals.h - sums of the counters of a session's threads.
 *
 * A session's counters are reported by its worker. A thread cannot count faster than once a nanosecond, so a counter
 * above the session's age is invalid and adds nothing. A worker with false counters can therefore distort the sums, but
 * neither wrap nor stop them.
 */
#ifndef GPOOL_SHM_SESSION_TOTALS_H
#define GPOOL_SHM_SESSION_TOTALS_H

#include "shm/session_segment.h"

/*
 * session_totals_add() - add the counters of a session of that age. One thread at a time adds to the same totals;
 * others may read them. Cost: reading 2 KiB, and 128 bytes more for each thread that the session has had.
 */
void session_totals_add(struct session_totals *totals, const struct session_stats *stats, uint64_t age_ns);

/* session_totals_copy() - copy totals that another process may be changing. */
void session_totals_copy(struct session_totals *to, const struct session_totals *from);

#endif
