/* seed.h - random numbers that depend only on the seed of the test. */
#ifndef GPOOL_TESTS_SEED_H
#define GPOOL_TESTS_SEED_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static uint64_t seed = 1; /* state of the generator (xorshift64); not 0 */

/* Set the seed to GPOOL_TEST_SEED or, by default, to a new one for each run, and print it. */
static inline void seed_begin(void)
{
	const char *given = getenv("GPOOL_TEST_SEED");

	seed = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL) * 0x9e3779b97f4a7c15 | 1;
	printf("seed %llu\n", (unsigned long long)seed);
}

/* Return a random number from 0 to below - 1. */
static inline uint32_t any(uint32_t below)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return (uint32_t)(seed >> 16) % below;
}

#endif
