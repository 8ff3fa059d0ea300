/*
 * worth.h - what it is worth to keep something that can be had again: the uses to be expected of it, times what each
 * would wait for it, for its bytes. Whoever is worth least goes first.
 *
 * Uses are learned: each counts one, and half is forgotten in half_life_us. Who had promote_uses of them within
 * window_us counts as if that had always been so, so that what becomes popular stays at once. All of it is told as a
 * logarithm to which the time is added, in half-lives: so worths that were taken at different times compare, and none
 * changes as time goes by.
 *
 * No clock: times are microseconds on any that does not run backwards. Threads: none, and no lock.
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
	double heat;             /* binary logarithm of its uses as far as remembered, plus the time in half-lives */
	uint64_t window_us;      /* where its window began */
	uint32_t uses, uses_ago; /* in this window, and in the one before */
};

/* worth_begin() - of what nobody has used yet. */
void worth_begin(const struct worth_terms *terms, struct worth *worth, uint64_t now_us);
void worth_count(const struct worth_terms *terms, struct worth *worth, uint32_t uses, uint64_t now_us);
/* worth_uses() - as far as remembered. */
double worth_uses(const struct worth_terms *terms, const struct worth *worth, uint64_t now_us);
/* worth_recent() - within the last window_us, as if those of the window before were spread evenly. */
double worth_recent(const struct worth_terms *terms, struct worth *worth, uint64_t now_us);

/* worth_of() - in doublings, of each byte of something that it takes `us` to have again. */
double worth_of(const struct worth *worth, double us, double bytes);
/* worth_key() - worths in the same order, in 63 bits. */
uint64_t worth_key(double worth);

#endif
