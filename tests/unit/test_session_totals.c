/*
 * test_session_totals.c - sums of the counters of sessions.
 *
 * Goal: the sums include each counter of each thread at its place, and no worker can make them wrap or stop. Method:
 * counters that are all different, then impossible counts.
 */
#include "shm/session_totals.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct session_stats *stats;

static int setup(void **state)
{
	(void)state;
	stats = aligned_alloc(128, sizeof(*stats));
	assert_non_null(stats);
	memset(stats, 0, sizeof(*stats));
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	free(stats);
	return 0;
}

static void test_all_threads_and_counters(void **state)
{
	struct session_totals totals = {.pins = 1000};
	uint64_t wanted = 0;

	(void)state;
	for (int i = 0; i < SESSION_STAT_SLOTS; i++) {
		uint64_t value = (uint64_t)i * 100;

#define COUNTER(name) stats->threads[i].name = ++value;
		SESSION_COUNTERS(COUNTER)
#undef COUNTER
		wanted += (uint64_t)i * 100;
	}
	for (int i = 0; i < SESSION_HISTOGRAM; i++) {
		stats->allocation_ns[0][i] = (uint64_t)i;
		stats->allocation_ns[BLOCK_USAGES - 1][i] = 5;
		stats->refill_ns[i] = (uint64_t)i + 7;
	}
	session_totals_add(&totals, stats, 1000000);
	totals.pins -= 1000;
#define COUNTER(name) \
	wanted += SESSION_STAT_SLOTS; \
	assert_int_equal(totals.name, wanted);
	SESSION_COUNTERS(COUNTER)
#undef COUNTER
	for (int i = 0; i < SESSION_HISTOGRAM; i++) {
		assert_int_equal(totals.allocation_ns[i], i + 5);
		assert_int_equal(totals.refill_ns[i], i + 7);
	}
}

static void test_counts_that_cannot_be(void **state)
{
	struct session_totals totals = {.allocations = 5}, copy;

	(void)state;
	stats->threads[0].allocations = UINT64_MAX;
	stats->threads[1].allocations = 1001;
	stats->threads[2].allocations = 1000;
	stats->allocation_ns[1][3] = 1000 * SESSION_STAT_SLOTS + 1;
	stats->allocation_ns[1][4] = 1000 * SESSION_STAT_SLOTS;
	session_totals_add(&totals, stats, 1000);
	session_totals_copy(&copy, &totals);
	assert_int_equal(copy.allocations, 1005);
	assert_int_equal(copy.allocation_ns[3], 0);
	assert_int_equal(copy.allocation_ns[4], 1000 * SESSION_STAT_SLOTS);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_all_threads_and_counters, setup, teardown),
		cmocka_unit_test_setup_teardown(test_counts_that_cannot_be, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
