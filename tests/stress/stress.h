/*
 * stress.h - shared by the stress tests: random numbers, clocks, run lengths, contents that identify their owner, and
 * the agent's own check.
 *
 * Every test prints its seed and accepts it as an argument. It runs for the given time, which GPOOL_TEST_SCALE shortens
 * for sanitizers. It waits for events with a limit, and never just for time to pass.
 */
#ifndef GPOOL_TESTS_STRESS_H
#define GPOOL_TESTS_STRESS_H

#include "tests/lib/await.h"
#include "tests/lib/scale.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* ---- random numbers and time ---- */

/* splitmix64: any state is valid, including 0. */
static inline uint64_t chance(uint64_t *state)
{
	uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return z ^ z >> 31;
}

/* Return a random number from 0 to below - 1. */
static inline uint32_t chance_below(uint64_t *state, uint32_t below)
{
	return (uint32_t)((chance(state) >> 32) * below >> 32);
}

static inline uint64_t clock_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

struct stress_arguments {
	double seconds; /* scaled; 0: run until the count is reached */
	uint64_t count; /* scaled; 0: run until the time is over */
	uint64_t seed;
	uint32_t workers;
	bool broken;       /* run with the planted bug; the test succeeds if the bug is detected */
	const char *usage; /* the arguments of the program, for --help and wrong arguments */
};

/*
 * On a busy machine, a run is extended up to this multiple of its length, until each event that it must include has
 * happened.
 */
enum { STRESS_LONGEST = 12 };

/*
 * stress_arguments_read() - read [SECONDS [SEED]] and options into *arguments, which contains the defaults, and print
 * the seed. Given SECONDS replace a default count. --help prints the usage and exits. Return: false on wrong usage.
 */
static inline bool stress_arguments_read(int argc, char **argv, struct stress_arguments *arguments)
{
	uint64_t requests = 0;
	int position = 0;

	arguments->seed = clock_ns();
	for (int i = 1; i < argc; i++) {
		char *end = argv[i];

		if (!__builtin_strcmp(argv[i], "--help")) {
			printf("usage: %s %s\n", argv[0], arguments->usage);
			exit(0);
		}
		if (!__builtin_strcmp(argv[i], "--broken")) {
			arguments->broken = true;
			continue;
		}
		if (!__builtin_strcmp(argv[i], "--workers") && i + 1 < argc) {
			end = argv[++i];
			arguments->workers = (uint32_t)strtoul(argv[i], &end, 10);
			if (!arguments->workers)
				end = argv[i];
		} else if (!__builtin_strcmp(argv[i], "--requests") && i + 1 < argc) {
			end = argv[++i];
			requests = strtoull(argv[i], &end, 10);
		} else if (position == 0) {
			arguments->seconds = strtod(argv[i], &end);
			arguments->count = 0;
			position++;
		} else if (position == 1) {
			arguments->seed = strtoull(argv[i], &end, 0);
			position++;
		}
		if (end == argv[i] || *end) {
			fprintf(stderr, "usage: %s %s\n", argv[0], arguments->usage);
			return false;
		}
	}
	if (requests)
		arguments->count = requests;
	arguments->seconds *= test_scale();
	arguments->count = (uint64_t)((double)arguments->count * test_scale());
	printf("seed %llu\n", (unsigned long long)arguments->seed);
	fflush(stdout);
	return true;
}

/* ---- contents ---- */

/*
 * Number of words written to each page: enough to detect an overwrite of any 32 KiB, and few enough that memory
 * bandwidth does not limit the test.
 */
enum { CONTENT_WORDS = 16 };

static inline _Atomic uint64_t *content_word(
	uint64_t address, uint64_t page_bytes, uint32_t page, uint32_t word, uint64_t key)
{
	uint64_t part = page_bytes / CONTENT_WORDS, offset = (key >> 8) % (part / 8) * 8;

	return (_Atomic uint64_t *)(uintptr_t)(address + page * page_bytes + word * part + offset);
}

static inline uint64_t content_value(uint64_t key, uint32_t page, uint32_t word)
{
	uint64_t state = key + ((uint64_t)page * CONTENT_WORDS + word) * UINT64_C(0xd1342543de82ef95);

	return chance(&state);
}

/*
 * content_write() - fill a block with values derived from their positions and from `key`, which is unique to the block.
 */
static inline void content_write(uint64_t address, uint64_t page_bytes, uint32_t pages, uint64_t key)
{
	for (uint32_t page = 0; page < pages; page++)
		for (uint32_t word = 0; word < CONTENT_WORDS; word++)
			atomic_store_explicit(content_word(address, page_bytes, page, word, key),
				content_value(key, page, word), memory_order_relaxed);
}

/* content_check() - return -1 if all content is unchanged, otherwise the first wrong page. */
static inline int64_t content_check(uint64_t address, uint64_t page_bytes, uint32_t pages, uint64_t key)
{
	for (uint32_t page = 0; page < pages; page++)
		for (uint32_t word = 0; word < CONTENT_WORDS; word++)
			if (atomic_load_explicit(content_word(address, page_bytes, page, word, key),
				    memory_order_relaxed) != content_value(key, page, word))
				return page;
	return -1;
}

#endif
