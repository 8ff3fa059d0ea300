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

/*
 * Counters by the usage of the content (BLOCK_TYPE_MASK). Hits and misses are those of adapters, for LORA_WEIGHT, and
 * of prefixes, for KV_CACHE.
 */
struct usage_totals {
	uint64_t allocation_ns[BLOCK_USAGES][SESSION_HISTOGRAM];
	uint64_t hits[BLOCK_USAGES], misses[BLOCK_USAGES];
};

/* usage_totals_of() - return the counters of a session of this age. Cost: about 400 loads. */
struct usage_totals usage_totals_of(const struct session_stats *stats, uint64_t age_ns);

/* usage_totals_add(), usage_totals_subtract() - add or subtract all counters. A difference may be negative. */
void usage_totals_add(struct usage_totals *totals, const struct usage_totals *more);
void usage_totals_subtract(struct usage_totals *totals, const struct usage_totals *less);

/* session_totals_copy() - copy totals that another process may change at the same time. */
void session_totals_copy(struct session_totals *to, const struct session_totals *from);

#endif
