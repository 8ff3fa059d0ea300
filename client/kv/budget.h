/*
 * budget.h - so many bytes per second, and no more than a second's worth at once: a bucket that fills with time.
 * Internal to libgpool; the caller has the clock and a lock.
 */
#ifndef GPOOL_CLIENT_KV_BUDGET_H
#define GPOOL_CLIENT_KV_BUDGET_H

#include <stdint.h>

struct budget {
	uint64_t bytes_per_s; /* 0: there is no bound */
	uint64_t filled_ns;   /* until when it was filled */
	/* what the bucket has and can hold, in billionths of a byte: nothing is lost to rounding */
	unsigned __int128 level, most;
};

/*
 * budget_init() - full. It holds `least` bytes at least, so that a piece of that size is possible at all, however slow
 * it is to be.
 */
void budget_init(struct budget *budget, uint64_t bytes_per_s, uint64_t least, uint64_t now_ns);

/* budget_room() - what may be spent now; UINT64_MAX: there is no bound. A clock that goes back adds nothing. */
uint64_t budget_room(struct budget *budget, uint64_t now_ns);

/* budget_spend() - no more than there is room for. */
void budget_spend(struct budget *budget, uint64_t bytes);

#endif
