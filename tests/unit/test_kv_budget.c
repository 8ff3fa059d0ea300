/*
 * test_kv_budget.c - the limit of bytes per second.
 *
 * Goal: over any period, no more bytes are spent than the bucket's initial content and the bytes added since. No bytes
 * are lost to rounding, for any number of checks. At low rates a whole piece can be spent eventually.
 *
 * Method: a clock that the test sets, and random steps compared with exact numbers.
 */
#include "client/kv/budget.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define SECOND UINT64_C(1000000000)

static void test_no_bound(void **state)
{
	struct budget budget;

	(void)state;
	budget_init(&budget, 0, 100, 5);
	budget_spend(&budget, UINT64_MAX);
	assert_true(budget_room(&budget, 5) == UINT64_MAX);
}

static void test_a_second_at_most(void **state)
{
	struct budget budget;

	(void)state;
	budget_init(&budget, 1000, 10, SECOND);
	assert_int_equal(budget_room(&budget, SECOND), 1000);
	budget_spend(&budget, 1000);
	assert_int_equal(budget_room(&budget, SECOND), 0);
	assert_int_equal(budget_room(&budget, SECOND + SECOND / 4), 250);
	budget_spend(&budget, 200);
	assert_int_equal(budget_room(&budget, SECOND + SECOND / 2), 300);
	/* After a long pause the budget is at most one second's worth. */
	assert_int_equal(budget_room(&budget, 1000 * SECOND), 1000);
	/* The clock is set back: no bytes are added, and none are lost. */
	assert_int_equal(budget_room(&budget, 1), 1000);
	budget_spend(&budget, 1000);
	assert_int_equal(budget_room(&budget, 999 * SECOND), 0);
	assert_int_equal(budget_room(&budget, 1000 * SECOND + SECOND / 10), 100);
}

static void test_slower_than_a_piece(void **state)
{
	struct budget budget;

	(void)state;
	budget_init(&budget, 10, 1000, 0);
	assert_int_equal(budget_room(&budget, 0), 1000);
	budget_spend(&budget, 1000);
	/* The budget is checked each millisecond, which adds a hundredth of a byte. */
	for (uint64_t ms = 1; ms < 100000; ms++)
		assert_int_equal(budget_room(&budget, ms * (SECOND / 1000)), ms / 100);
	assert_int_equal(budget_room(&budget, 100 * SECOND), 1000);
}

static void test_at_the_edges(void **state)
{
	struct budget budget;

	(void)state;
	budget_init(&budget, UINT64_MAX, 1, 0);
	budget_spend(&budget, UINT64_MAX);
	assert_int_equal(budget_room(&budget, 0), 0);
	assert_true(budget_room(&budget, UINT64_MAX) == UINT64_MAX);
	budget_init(&budget, 1, UINT64_MAX, 0);
	budget_spend(&budget, UINT64_MAX);
	assert_true(budget_room(&budget, UINT64_MAX) == UINT64_MAX / SECOND);
}

static void test_by_chance(void **state)
{
	const char *given = getenv("GPOOL_TEST_SEED");
	uint64_t seed = given ? strtoull(given, NULL, 0) : (uint64_t)(uintptr_t)&given ^ 0x9e3779b97f4a7c15, now = 0,
		 spent;
	const uint64_t rate = 1 + seed % 100000000, most = rate > 4096 ? rate : 4096;
	struct budget budget;

	(void)state;
	printf("seed %llu\n", (unsigned long long)seed);
	budget_init(&budget, rate, 4096, 0);
	spent = budget_room(&budget, 0);
	budget_spend(&budget, spent);
	for (int i = 0; i < 200000; i++) {
		uint64_t room;

		seed ^= seed << 13;
		seed ^= seed >> 7;
		seed ^= seed << 17;
		now += seed % 3000000;
		room = budget_room(&budget, now);
		assert_true(room <= most);
		assert_true(spent + room <= most + (uint64_t)((unsigned __int128)now * rate / SECOND));
		budget_spend(&budget, room);
		spent += room;
	}
	/* The bucket is not full after the first check, so no bytes were lost. */
	assert_true(spent == most + (uint64_t)((unsigned __int128)now * rate / SECOND));
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_no_bound),
		cmocka_unit_test(test_a_second_at_most),
		cmocka_unit_test(test_slower_than_a_piece),
		cmocka_unit_test(test_at_the_edges),
		cmocka_unit_test(test_by_chance),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
