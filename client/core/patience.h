/*
 * patience.h - how long a thread waits for the answer of another process. Internal to libgpool.
 *
 * Only time in which the thread looks for the answer counts: between two looks, at most PATIENCE_LOOK_MS. While a
 * machine or a container is paused, or the CPU time is not sufficient for all processes, the other process cannot
 * answer either, and must have its time afterwards.
 */
#ifndef GPOOL_CLIENT_PATIENCE_H
#define GPOOL_CLIENT_PATIENCE_H

#include "shm/monotonic.h"

enum { PATIENCE_LOOK_MS = 250 }; /* longer than each sleep between two looks */

struct patience {
	uint64_t looked_ns; /* time of the last look */
	uint64_t left_ns;   /* UINT64_MAX: no limit */
};

/* patience_of() - begin to wait. timeout_ms: below 0: no limit. */
static inline struct patience patience_of(int64_t timeout_ms)
{
	return (struct patience){monotonic_ns(), timeout_ms < 0 ? UINT64_MAX : (uint64_t)timeout_ms * 1000000};
}

/* patience_ms() - look, and return the milliseconds for which the thread may sleep, at most `most`. 0: give up. */
static inline int patience_ms(struct patience *patience, int most)
{
	const uint64_t look_ns = PATIENCE_LOOK_MS * UINT64_C(1000000);
	uint64_t now = monotonic_ns(), spent = now - patience->looked_ns;

	patience->looked_ns = now;
	if (patience->left_ns == UINT64_MAX)
		return most;
	spent = spent < look_ns ? spent : look_ns;
	patience->left_ns -= spent < patience->left_ns ? spent : patience->left_ns;
	if (!patience->left_ns)
		return 0;
	return patience->left_ns / 1000000 < (uint64_t)most ? (int)(patience->left_ns / 1000000 + 1) : most;
}

#endif
