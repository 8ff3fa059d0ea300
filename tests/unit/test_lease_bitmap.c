/*
 * test_lease_bitmap.c - lease bitmaps.
 *
 * Goal: pages in a lease bitmap are never lost or claimed twice, and best fit and first fit find existing runs. Method:
 * each call is compared with a plain array of booleans, at word boundaries and at random. Then threads claim and put
 * runs at the same time and stamp their pages, so that a page with two owners is detected.
 */
#include "shm/lease_bitmap.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { PAGES = 300, WORDS = (PAGES + 63) / 64 };

static _Atomic uint64_t bits[WORDS];

static void clear(void)
{
	for (int word = 0; word < WORDS; word++)
		bits[word] = 0;
}

static bool is_set(uint32_t page)
{
	return bits[page / 64] >> (page % 64) & 1;
}

static uint32_t count_set(void)
{
	uint32_t count = 0;

	for (uint32_t page = 0; page < WORDS * 64; page++)
		count += is_set(page);
	return count;
}

static void test_mask_covers_exactly_the_run(void **state)
{
	(void)state;
	for (uint32_t first = 0; first < 130; first++)
		for (uint32_t count = 1; count <= 140; count++)
			for (uint32_t word = first / 64; word <= (first + count - 1) / 64; word++)
				for (uint32_t at = 0; at < 64; at++) {
					uint32_t page = word * 64 + at;

					assert_int_equal(lease_mask(word, first, count) >> at & 1,
						page >= first && page < first + count);
				}
}

static void test_put_and_take_cross_words(void **state)
{
	(void)state;
	clear();
	lease_put(bits, 60, 140);
	assert_int_equal(count_set(), 140);
	assert_true(lease_take(bits, 60, 140));
	assert_int_equal(count_set(), 0);
}

static void test_take_of_a_broken_run_changes_nothing(void **state)
{
	(void)state;
	clear();
	lease_put(bits, 10, 100);
	lease_put(bits, 111, 50); /* page 110 is missing */
	assert_false(lease_take(bits, 10, 120));
	assert_int_equal(count_set(), 150);
	assert_false(is_set(110));
}

static void test_best_fit_takes_the_shortest_run(void **state)
{
	uint32_t first;

	(void)state;
	clear();
	lease_put(bits, 0, 20);
	lease_put(bits, 62, 6); /* crosses a word boundary */
	lease_put(bits, 128, 64);
	lease_put(bits, 200, 5);
	assert_true(lease_take_run(bits, NULL, PAGES, 6, false, &first));
	assert_int_equal(first, 62);
	assert_true(lease_take_run(bits, NULL, PAGES, 4, false, &first));
	assert_int_equal(first, 200);
	assert_true(lease_take_run(bits, NULL, PAGES, 21, false, &first));
	assert_int_equal(first, 128);
}

static void test_first_fit_takes_the_lowest_run(void **state)
{
	uint32_t first;

	(void)state;
	clear();
	lease_put(bits, 5, 2);
	lease_put(bits, 30, 50);
	lease_put(bits, 100, 10);
	assert_true(lease_take_run(bits, NULL, PAGES, 10, true, &first));
	assert_int_equal(first, 30);
}

static void test_no_run_long_enough(void **state)
{
	uint32_t first = 77;

	(void)state;
	clear();
	for (uint32_t page = 0; page < PAGES; page += 2)
		lease_put(bits, page, 1);
	assert_false(lease_take_run(bits, NULL, PAGES, 2, false, &first));
	assert_int_equal(first, 77);
	assert_int_equal(count_set(), PAGES / 2);
}

static void test_run_to_the_last_page(void **state)
{
	uint32_t first;

	(void)state;
	clear();
	lease_put(bits, 0, PAGES);
	assert_true(lease_take_run(bits, NULL, PAGES, PAGES, false, &first));
	assert_int_equal(first, 0);
	assert_int_equal(count_set(), 0);
}

static void test_take_some_stops_at_most(void **state)
{
	uint32_t pages[64], hint = 4, got;

	(void)state;
	clear();
	lease_put(bits, 3, 10);
	lease_put(bits, 290, 5);
	got = lease_take_some(bits, PAGES, &hint, pages, 7);
	assert_int_equal(got, 7);
	assert_int_equal(count_set(), 8);
	got = lease_take_some(bits, PAGES, &hint, pages, 64);
	assert_int_equal(got, 8);
	assert_int_equal(count_set(), 0);
}

static void test_random_against_an_array(void **state)
{
	static bool model[PAGES];
	static uint32_t held_first[PAGES], held_count[PAGES];
	uint32_t held = 0;

	(void)state;
	srandom(7);
	clear();
	memset(model, 1, sizeof(model));
	lease_put(bits, 0, PAGES);
	for (int step = 0; step < 200000; step++) {
		uint32_t count = (uint32_t)random() % 40 + 1, first = 0, best = UINT32_MAX, run = 0;

		if (random() % 2 && held) {
			uint32_t at = (uint32_t)random() % held;

			lease_put(bits, held_first[at], held_count[at]);
			memset(model + held_first[at], 1, held_count[at]);
			held--;
			held_first[at] = held_first[held];
			held_count[at] = held_count[held];
			continue;
		}
		for (uint32_t page = 0; page <= PAGES; page++) {
			if (page < PAGES && model[page]) {
				run++;
				continue;
			}
			if (run >= count && run < best)
				best = run;
			run = 0;
		}
		assert_int_equal(lease_take_run(bits, NULL, PAGES, count, false, &first), best != UINT32_MAX);
		if (best == UINT32_MAX)
			continue;
		/* it used a run of the shortest sufficient length */
		run = 0;
		for (uint32_t page = first; page < PAGES && model[page]; page++)
			run++;
		assert_int_equal(run, best);
		for (uint32_t page = first; page < first + count; page++) {
			assert_true(model[page]);
			model[page] = false;
		}
		held_first[held] = first;
		held_count[held++] = count;
	}
	for (uint32_t page = 0; page < PAGES; page++)
		assert_int_equal(is_set(page), model[page]);
}

/* With a summary, the search has the same result and skips words that it has found empty. */
static void test_summary_never_hides_a_page(void **state)
{
	enum { MANY = 20000 };
	static _Atomic uint64_t large[(MANY + 63) / 64], summary[(MANY + 4095) / 4096];
	uint32_t first, skipped = 0;

	(void)state;
	srandom(3);
	lease_summary_all(summary, MANY);
	assert_false(lease_take_run(large, summary, MANY, 1, false, &first));
	for (uint32_t i = 0; i < lease_summary_words(MANY); i++)
		skipped += 64 - (uint32_t)__builtin_popcountll(summary[i]);
	assert_true(skipped >= MANY / 64);
	for (int step = 0; step < 20000; step++) {
		uint32_t count = (uint32_t)random() % 200 + 1, at = (uint32_t)random() % (MANY - 200);

		lease_put_summed(large, summary, at, count);
		if (random() % 2) {
			/* put a second, longer run; the words between the two runs are known to be empty */
			uint32_t other = (at + MANY / 2) % (MANY - 200);

			lease_put_summed(large, summary, other, count + 1 > 200 ? 200 : count + 1);
			assert_true(lease_take_run(large, summary, MANY, count, false, &first));
			assert_true(first == at || (count == 200 && first == other));
			assert_true(lease_take_run(large, summary, MANY, count, true, &first));
			for (uint32_t word = 0; word < (MANY + 63) / 64; word++)
				large[word] = 0;
			continue;
		}
		assert_true(lease_take_run(large, summary, MANY, count, random() % 2, &first));
		assert_int_equal(first, at);
		assert_false(lease_take_run(large, summary, MANY, 1, false, &first));
	}
}

static _Atomic uint64_t shared_summary[(PAGES + 4095) / 4096];
static _Atomic uint32_t stamps[PAGES];
static _Atomic uint32_t clashes;

static void *claimer(void *argument)
{
	uint32_t me = (uint32_t)(uintptr_t)argument, seed = me, first;

	for (int step = 0; step < 40000; step++) {
		uint32_t count = (uint32_t)rand_r(&seed) % 9 + 1;

		if (!lease_take_run(bits, shared_summary, PAGES, count, rand_r(&seed) % 2, &first))
			continue;
		for (uint32_t page = first; page < first + count; page++)
			if (atomic_exchange(&stamps[page], me))
				atomic_fetch_add(&clashes, 1);
		for (uint32_t page = first; page < first + count; page++)
			if (atomic_exchange(&stamps[page], 0) != me)
				atomic_fetch_add(&clashes, 1);
		lease_put_summed(bits, shared_summary, first, count);
	}
	return NULL;
}

/* Requirements: U5. */
static void test_threads_never_share_a_page(void **state)
{
	pthread_t threads[4];

	(void)state;
	clear();
	lease_summary_all(shared_summary, PAGES);
	lease_put(bits, 0, PAGES);
	for (uintptr_t i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, claimer, (void *)(i + 1)), 0);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(clashes, 0);
	assert_int_equal(count_set(), PAGES);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_mask_covers_exactly_the_run),
		cmocka_unit_test(test_put_and_take_cross_words),
		cmocka_unit_test(test_take_of_a_broken_run_changes_nothing),
		cmocka_unit_test(test_best_fit_takes_the_shortest_run),
		cmocka_unit_test(test_first_fit_takes_the_lowest_run),
		cmocka_unit_test(test_no_run_long_enough),
		cmocka_unit_test(test_run_to_the_last_page),
		cmocka_unit_test(test_take_some_stops_at_most),
		cmocka_unit_test(test_random_against_an_array),
		cmocka_unit_test(test_summary_never_hides_a_page),
		cmocka_unit_test(test_threads_never_share_a_page),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
