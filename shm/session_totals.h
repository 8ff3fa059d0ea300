/*
 * session_totals.h - what the threads of a session have counted, added up.
 *
 * A session's counters are what its worker says. A thread cannot count faster than once a nanosecond, so that what is
 * more than the session's age allows is no count: it adds nothing. With that a worker that lies can bend the sums, but
 * neither wrap nor stop them.
 */
#ifndef GPOOL_SHM_SESSION_TOTALS_H
#define GPOOL_SHM_SESSION_TOTALS_H

#include "shm/session_segment.h"

/*
 * session_totals_add() - add what a session of that age has counted so far. One thread at a time adds to the same
 * totals; others may read them. Cost: 2 KiB that are read, and 128 bytes more for each thread that the session has had.
 */
void session_totals_add(struct session_totals *totals, const struct session_stats *stats, uint64_t age_ns);

/* session_totals_copy() - totals that another process goes on adding to. */
void session_totals_copy(struct session_totals *to, const struct session_totals *from);

#endif
