/*
 * test_free_runs.c - the agent's index of free pages.
 *
 * Goal: the index joins neighbors, finds the best and the first fit, and loses no page. Method: small hand-written
 * cases, then many random steps compared with a plain array: each choice and every total.
 */
#include "agent/pages/free_runs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void test_neighbors_join(void **state)
{
	struct free_runs runs;
	uint32_t first;

	(void)state;
	assert_int_equal(free_runs_init(&runs, 1000, 100), 0);
	free_runs_put(&runs, 1010, 10);
	free_runs_put(&runs, 1030, 10);
	assert_int_equal(free_runs_longest(&runs), 10);
	free_runs_put(&runs, 1020, 10); /* joins both neighbors */
	assert_int_equal(free_runs_longest(&runs), 30);
	assert_int_equal(runs.total, 30);
	assert_true(free_runs_take(&runs, 30, false, &first));
	assert_int_equal(first, 1010);
	assert_int_equal(runs.total, 0);
	free_runs_fini(&runs);
}

static void test_ends_of_the_range(void **state)
{
	struct free_runs runs;
	uint32_t first;

	(void)state;
	assert_int_equal(free_runs_init(&runs, 0, 64), 0);
	free_runs_put(&runs, 0, 1);
	free_runs_put(&runs, 63, 1);
	free_runs_put(&runs, 1, 62);
	assert_true(free_runs_take(&runs, 64, true, &first));
	assert_int_equal(first, 0);
	assert_false(free_runs_take(&runs, 1, false, &first));
	free_runs_fini(&runs);
}

static void test_an_empty_range_holds_nothing(void **state)
{
	struct free_runs runs;
	uint32_t first;

	(void)state;
	assert_int_equal(free_runs_init(&runs, 10, 0), 0);
	assert_false(free_runs_take(&runs, 1, false, &first));
	assert_int_equal(free_runs_take_longest(&runs, 5, &first), 0);
	assert_int_equal(free_runs_longest(&runs), 0);
	free_runs_fini(&runs);
}

static void test_longest_is_cut_to_most(void **state)
{
	struct free_runs runs;
	uint32_t first;

	(void)state;
	assert_int_equal(free_runs_init(&runs, 0, 2000), 0);
	free_runs_put(&runs, 0, 5);
	free_runs_put(&runs, 100, 500);
	free_runs_put(&runs, 700, 490); /* same class as 500 */
	assert_int_equal(free_runs_take_longest(&runs, 600, &first), 500);
	assert_int_equal(first, 100);
	assert_int_equal(free_runs_take_longest(&runs, 7, &first), 7);
	assert_int_equal(first, 700);
	assert_int_equal(runs.total, 488);
	free_runs_fini(&runs);
}

enum { PAGES = 3000 };
static bool model[PAGES];

static void shortest_and_lowest(uint32_t count, uint32_t *shortest, uint32_t *lowest, uint32_t *longest)
{
	uint32_t run = 0;

	*shortest = *lowest = UINT32_MAX;
	*longest = 0;
	for (uint32_t page = 0; page <= PAGES; page++) {
		if (page < PAGES && model[page]) {
			run++;
			continue;
		}
		if (run > *longest)
			*longest = run;
		if (run >= count) {
			if (run < *shortest)
				*shortest = run;
			if (*lowest == UINT32_MAX)
				*lowest = page - run;
		}
		run = 0;
	}
}

/* Remove each place and length from one run, alone and next to other runs. */
static void test_remove_out_of_the_middle(void **state)
{
	struct free_runs runs;
	uint32_t first;

	(void)state;
	for (uint32_t at = 0; at < 130; at++)
		for (uint32_t count = 1; at + count <= 130; count += 1 + count / 3) {
			assert_int_equal(free_runs_init(&runs, 10, 200), 0);
			free_runs_put(&runs, 10, 3);
			free_runs_put(&runs, 20, 130);
			free_runs_put(&runs, 200, 7);
			free_runs_remove(&runs, 20 + at, count);
			assert_int_equal(runs.total, 140 - count);
			/* The remaining pages join to the same run again. */
			free_runs_put(&runs, 20 + at, count);
			assert_int_equal(free_runs_longest(&runs), 130);
			assert_true(free_runs_take(&runs, 130, false, &first));
			assert_int_equal(first, 20);
			assert_int_equal(runs.total, 10);
			free_runs_fini(&runs);
		}
}

static void test_random_walk_against_an_array(void **state)
{
	static uint32_t firsts[PAGES], counts[PAGES];
	struct free_runs runs;
	uint32_t held = 0, total = PAGES;

	(void)state;
	srandom(11);
	memset(model, 1, sizeof(model));
	assert_int_equal(free_runs_init(&runs, 0, PAGES), 0);
	free_runs_put(&runs, 0, PAGES);
	for (int step = 0; step < 30000; step++) {
		uint32_t count = random() % 10 ? (uint32_t)random() % 100 + 1 : (uint32_t)random() % 700 + 1;
		uint32_t shortest, lowest, longest, first = 0, run = 0;
		bool first_fit = random() % 4 == 0;

		if (random() % 2 && held) {
			uint32_t at = (uint32_t)random() % held;

			free_runs_put(&runs, firsts[at], counts[at]);
			memset(model + firsts[at], 1, counts[at]);
			total += counts[at];
			held--;
			firsts[at] = firsts[held];
			counts[at] = counts[held];
			continue;
		}
		shortest_and_lowest(count, &shortest, &lowest, &longest);
		assert_int_equal(free_runs_longest(&runs), longest);
		assert_int_equal(free_runs_take(&runs, count, first_fit, &first), shortest != UINT32_MAX);
		if (shortest == UINT32_MAX)
			continue;
		for (uint32_t page = first; page < PAGES && model[page]; page++)
			run++;
		if (first_fit)
			assert_int_equal(first, lowest);
		else
			assert_int_equal(run, shortest);
		memset(model + first, 0, count);
		total -= count;
		assert_int_equal(runs.total, total);
		firsts[held] = first;
		counts[held++] = count;
	}
	free_runs_fini(&runs);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_neighbors_join),
		cmocka_unit_test(test_ends_of_the_range),
		cmocka_unit_test(test_an_empty_range_holds_nothing),
		cmocka_unit_test(test_longest_is_cut_to_most),
		cmocka_unit_test(test_remove_out_of_the_middle),
		cmocka_unit_test(test_random_walk_against_an_array),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
