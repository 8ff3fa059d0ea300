/*
 * worth.h - the worth of keeping an item that can be loaded again: expected uses x reload time / size. The item with
 * the lowest worth is evicted first.
 *
 * Uses are counted, and half of the count is forgotten in half_life_us. An item with promote_uses uses within window_us
 * counts as if this rate had always held, so that an item that becomes popular is kept. Worth is stored as a logarithm
 * plus the time in half-lives, so values that were computed at different times are comparable and need no update.
 *
 * Clock: times are in microseconds of any clock that does not run backwards.
 * Threads: the caller provides locking.
 */
#ifndef GPOOL_POLICY_WORTH_H
#define GPOOL_POLICY_WORTH_H

#include <stdint.h>

struct worth_terms {
	uint64_t half_life_us, window_us;
	uint32_t promote_uses;
};

/* The window and the number of uses are requirements for adapters. The half-life was chosen with gpool-replay lora. */
#define WORTH_TERMS_INIT \
	{ \
		.half_life_us = 1800000000, .window_us = 60000000, .promote_uses = 10 \
	}

struct worth {
	double heat;             /* binary logarithm of the remembered uses, plus the time in half-lives */
	uint64_t window_us;      /* start of the current window */
	uint32_t uses, uses_ago; /* in the current window, and in the previous one */
};

/* worth_begin() - initialize the worth of an item that has not been used yet. */
void worth_begin(const struct worth_terms *terms, struct worth *worth, uint64_t now_us);
void worth_count(const struct worth_terms *terms, struct worth *worth, uint32_t uses, uint64_t now_us);
/* worth_uses() - return the number of uses that are still remembered. */
double worth_uses(const struct worth_terms *terms, const struct worth *worth, uint64_t now_us);
/*
 * worth_recent() - return the uses within the last window_us, assuming that those of the previous window were spread
 * evenly.
 */
double worth_recent(const struct worth_terms *terms, struct worth *worth, uint64_t now_us);

/* worth_of() - return the worth per byte of an item whose reload takes `us`, as a binary logarithm. */
double worth_of(const struct worth *worth, double us, double bytes);
/* worth_key() - return a worth as an integer of 63 bits. Keys have the same order as the values. */
uint64_t worth_key(double worth);

#endif
