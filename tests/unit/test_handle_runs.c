/*
 * test_handle_runs.c - runs of pages that can be mapped side by side, if handles have several pages.
 *
 * Goal: a choice is found whenever one exists, it can be mapped side by side, and it takes only available pages.
 * Method: all sets of available pages of a small pool, and random sets of a larger one, with all requests. A search
 * over all places of the first and the last run determines whether a choice exists.
 *
 * Requirements: U10.
 */
#include "agent/pages/free_runs.h"
#include "agent/pages/handle_runs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SMALL = 12, LARGE = 60, LOW = 24 };

/* The pages begin at LOW, which is the start of a handle of 1, 2, 3 or 4 pages. */
static bool available[LARGE];
static uint32_t page_count;

static bool index_next(const void *context, uint32_t from, struct page_run *run)
{
	return free_runs_next(context, from, &run->first, &run->count);
}

static bool all_available(uint32_t first, uint32_t count)
{
	for (uint32_t page = first; page < first + count; page++)
		if (!available[page])
			return false;
	return true;
}

/* Return true if `handles` whole handles are available beside the runs `tail` and `front`. */
static bool handles_left(
	const struct run_want *want, const struct page_run *tail, const struct page_run *front, uint32_t handles)
{
	uint32_t left = 0;

	for (uint32_t page = 0; page + want->per_handle <= page_count; page += want->per_handle)
		left += all_available(page, want->per_handle) &&
			!(tail->count && tail->first / want->per_handle == page / want->per_handle) &&
			!(front->count && front->first / want->per_handle == page / want->per_handle);
	return left >= handles;
}

static bool overlap(const struct page_run *left, const struct page_run *right)
{
	return left->count && right->count && left->first < right->first + right->count &&
		right->first < left->first + left->count;
}

static bool exists(const struct run_want *want)
{
	struct page_run tail, front;

	for (uint32_t first = 0; first + want->need <= page_count; first++)
		if (all_available(first, want->need) && !(want->aligned && first % want->per_handle))
			return true;
	if (want->contiguous)
		return false;
	/* The tail is [first, end of the handle), without pages if `first` is the start of the next one. */
	for (uint32_t first = want->aligned ? page_count : 0; first <= page_count; first++) {
		tail = (struct page_run){first, (want->per_handle - first % want->per_handle) % want->per_handle};
		if (!all_available(first, tail.count) || tail.count > want->need)
			continue;
		for (uint32_t end = 0; end <= page_count; end++) {
			front = (struct page_run){end / want->per_handle * want->per_handle, end % want->per_handle};
			if (all_available(front.first, front.count) && !overlap(&tail, &front) &&
				tail.count + front.count <= want->need &&
				(want->need - tail.count - front.count) % want->per_handle == 0 &&
				handles_left(want, &tail, &front,
					(want->need - tail.count - front.count) / want->per_handle))
				return true;
		}
	}
	return false;
}

static void check(const struct run_want *want, const struct page_run *runs, uint32_t count)
{
	bool taken[LARGE] = {false};
	uint32_t total = 0;

	assert_true(!want->contiguous || count == 1);
	assert_true(!want->aligned || runs[0].first % want->per_handle == 0);
	for (uint32_t i = 0; i < count; i++) {
		assert_true(runs[i].count && (i == 0 || runs[i].first % want->per_handle == 0));
		assert_true(i + 1 == count || (runs[i].first + runs[i].count) % want->per_handle == 0);
		for (uint32_t page = runs[i].first - LOW; page < runs[i].first - LOW + runs[i].count; page++) {
			assert_true(page < page_count && available[page] && !taken[page]);
			taken[page] = true;
		}
		total += runs[i].count;
	}
	assert_int_equal(total, want->need);
}

static void check_all(uint32_t per_handle)
{
	struct free_runs index;
	const struct run_source source = {index_next, &index};
	struct page_run runs[LARGE];

	assert_int_equal(free_runs_init(&index, LOW, page_count), 0);
	for (uint32_t page = 0; page < page_count; page++)
		if (available[page])
			free_runs_put(&index, LOW + page, 1);
	for (uint32_t need = 1; need <= page_count; need++)
		for (uint32_t flags = 0; flags < 4; flags++) {
			struct run_want want = {per_handle, need, flags & 1, flags & 2};
			uint32_t count = handle_runs_choose(&source, &want, runs);

			assert_int_equal(count > 0, exists(&want));
			if (count)
				check(&want, runs, count);
		}
	free_runs_fini(&index);
}

static void test_all_sets_of_a_small_pool(void **state)
{
	(void)state;
	page_count = SMALL;
	for (uint32_t set = 0; set < 1u << SMALL; set++) {
		for (uint32_t page = 0; page < SMALL; page++)
			available[page] = set >> page & 1;
		check_all(4);
		if (set % 32 == 0)
			for (uint32_t per_handle = 1; per_handle < 4; per_handle++)
				check_all(per_handle);
	}
}

static void test_random_sets(void **state)
{
	(void)state;
	page_count = LARGE;
	srandom(5);
	for (int step = 0; step < 40; step++) {
		int share = (int)(random() % 10);

		for (uint32_t page = 0; page < LARGE; page++)
			available[page] = random() % 10 < share;
		for (uint32_t per_handle = 1; per_handle <= 4; per_handle++)
			check_all(per_handle);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_all_sets_of_a_small_pool),
		cmocka_unit_test(test_random_sets),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
