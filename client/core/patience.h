/*
 * patience.h - time limits of waits for another process. Internal to libgpool.
 *
 * The time between two polls for the answer counts as at most PATIENCE_LOOK_MS. A longer interval means that this
 * thread did not run: the machine or the container was paused, or overloaded. The other process might not have run
 * either, so this time is not deducted from the limit.
 */
#ifndef GPOOL_CLIENT_PATIENCE_H
#define GPOOL_CLIENT_PATIENCE_H

#include "shm/monotonic.h"

enum { PATIENCE_LOOK_MS = 250 }; /* longer than each sleep between two polls */

struct patience {
	uint64_t looked_ns; /* time of the last poll */
	uint64_t left_ns;   /* UINT64_MAX: no limit */
};

/* patience_of() - return the limit of a wait that begins now. timeout_ms: negative: no limit. */
static inline struct patience patience_of(int64_t timeout_ms)
{
	return (struct patience){monotonic_ns(), timeout_ms < 0 ? UINT64_MAX : (uint64_t)timeout_ms * 1000000};
}

/*
 * patience_ms() - deduct the time since the last call. Return the milliseconds until the next poll: at most `most`;
 * 0: the limit is reached.
 */
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
