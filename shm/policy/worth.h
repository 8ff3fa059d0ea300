/*
 * worth.h - the worth of keeping something that can be loaded again: expected uses times the reload time that each
 * would wait, divided by the size. The item with the least worth is evicted first.
 *
 * Uses are learned: each counts one, and half is forgotten in half_life_us. An item with promote_uses of them within
 * window_us counts as if this rate had always held, so that an item that becomes popular stays at once. Worth is stored
 * as a logarithm plus the time in half-lives, so values that were computed at different times are comparable and none
 * changes with time.
 *
 * Clock: times are microseconds of any clock that does not run backwards. Threads: none, and no lock.
 */
#ifndef GPOOL_POLICY_WORTH_H
#define GPOOL_POLICY_WORTH_H

#include <stdint.h>

struct worth_terms {
	uint64_t half_life_us, window_us;
	uint32_t promote_uses;
};

/* Window and uses as specified for adapters; the half-life chosen, tried with gpool-replay lora. */
#define WORTH_TERMS_INIT \
	{ \
		.half_life_us = 1800000000, .window_us = 60000000, .promote_uses = 10 \
	}

struct worth {
	double heat;             /* binary logarithm of its remembered uses, plus the time in half-lives */
	uint64_t window_us;      /* start of its window */
	uint32_t uses, uses_ago; /* in this window, and in the one before */
};

/* worth_begin() - initialize the worth of an item that has not been used yet. */
void worth_begin(const struct worth_terms *terms, struct worth *worth, uint64_t now_us);
void worth_count(const struct worth_terms *terms, struct worth *worth, uint32_t uses, uint64_t now_us);
/* worth_uses() - return the remembered uses. */
double worth_uses(const struct worth_terms *terms, const struct worth *worth, uint64_t now_us);
/* worth_recent() - return the uses within the last window_us, as if those of the window before were spread evenly. */
double worth_recent(const struct worth_terms *terms, struct worth *worth, uint64_t now_us);

/* worth_of() - return the worth of each byte of an item whose reload takes `us`, in doublings. */
double worth_of(const struct worth *worth, double us, double bytes);
/* worth_key() - return a worth as an integer of 63 bits with the same order. */
uint64_t worth_key(double worth);

#endif
