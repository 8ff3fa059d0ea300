/*
 * budget.h - limit a rate in bytes per second, with bursts of at most one second (token bucket). Internal to libgpool.
 * The caller provides the clock and the lock.
 */
#ifndef GPOOL_CLIENT_KV_BUDGET_H
#define GPOOL_CLIENT_KV_BUDGET_H

#include <stdint.h>

struct budget {
	uint64_t bytes_per_s; /* 0: unlimited */
	uint64_t filled_ns;   /* time of the last refill */
	/* content and capacity of the bucket, in billionths of a byte, so that rounding loses nothing */
	unsigned __int128 level, most;
};

/*
 * budget_init() - start with a full bucket. Its capacity is at least `least` bytes, so that this many bytes can be
 * spent at once even at a low rate.
 */
void budget_init(struct budget *budget, uint64_t bytes_per_s, uint64_t least, uint64_t now_ns);

/*
 * budget_room() - return the number of bytes that may be spent now; UINT64_MAX: unlimited. If the clock has run
 * backwards, no bytes are added.
 */
uint64_t budget_room(struct budget *budget, uint64_t now_ns);

/* budget_spend() - spend at most the number of bytes that budget_room() returned. */
void budget_spend(struct budget *budget, uint64_t bytes);

#endif
