/*
 * test_client_defaults.c - settings of gpoold.conf that the library applies: thread_cache_size, allocation_strategy and
 * alignment.
 *
 * Method: a gpoold whose settings differ from the defaults, and one session. test_client_blocks.c and
 * test_client_spans.c test the defaults.
 *
 * Requirements: U20.
 */
#include "client/core/thread_cache.h"
#include "tests/integration/calm_pool.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

enum { KEPT = 5, ALIGNMENT = 4096 };

/* A worker that sets the option magazine is not affected; test_client_blocks.c tests the option. */
static void test_threads_keep_as_many_as_configured(void **state)
{
	struct gpool_stats before = {.size = sizeof(before)}, after = before;
	struct gpool_block blocks[20];

	(void)state;
	for (int i = 0; i < 20; i++)
		assert_int_equal(gpool_alloc(pool, 1, NULL, &blocks[i]), 0);
	/* Return the rest of the last batch, so that the magazine is empty. */
	thread_cache_flush(thread_cache_of(pool));
	assert_int_equal(gpool_stats(pool, &before), 0);
	for (int i = 0; i < 20; i++)
		assert_int_equal(gpool_free(pool, &blocks[i]), 0);
	assert_int_equal(gpool_stats(pool, &after), 0);
	assert_int_equal(after.idle_pages - before.idle_pages, 20 - KEPT);
}

/* A hole of 8 pages is below a hole of 4 pages. Without an option, the lower hole is used. */
static void test_lowest_run_first(void **state)
{
	struct gpool_block blocks[8], first;

	(void)state;
	for (int i = 0; i < 8; i++) {
		assert_int_equal(gpool_alloc(pool, 4, NULL, &blocks[i]), 0);
		assert_true(i == 0 || blocks[i].page == blocks[i - 1].page + 4);
	}
	assert_int_equal(gpool_free(pool, &blocks[1]), 0);
	assert_int_equal(gpool_free(pool, &blocks[2]), 0);
	assert_int_equal(gpool_free(pool, &blocks[5]), 0);
	thread_cache_flush(thread_cache_of(pool));
	assert_int_equal(gpool_alloc(pool, 4, NULL, &first), 0);
	assert_int_equal(first.page, blocks[1].page);
}

static void test_small_allocations_are_aligned(void **state)
{
	struct gpool_span spans[32];
	uint64_t addresses[32];

	(void)state;
	for (uint32_t i = 0; i < 32; i++) {
		uint64_t bytes = 1 + i * 1500;

		assert_int_equal(gpool_span_alloc(pool, bytes, 0, &spans[i]), 0);
		assert_int_equal(spans[i].address % ALIGNMENT, 0);
		assert_int_equal(spans[i].bytes % ALIGNMENT, 0);
		assert_true(spans[i].bytes >= bytes);
		assert_int_equal(gpool_malloc_async(pool, bytes, 0, &addresses[i]), 0);
		assert_int_equal(addresses[i] % ALIGNMENT, 0);
	}
	for (int i = 0; i < 32; i++) {
		assert_int_equal(gpool_span_free(pool, &spans[i]), 0);
		assert_int_equal(gpool_free_async(pool, addresses[i], 0), 0);
	}
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, attach, detach)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_threads_keep_as_many_as_configured),
		TEST(test_lowest_run_first),
		TEST(test_small_allocations_are_aligned),
	};
	int failed;

	harness_start(&harness,
		(const char *const[]){"--pool", HARNESS_POOL ",alignment=4KiB", "--set", "lease.thread_cache_size=5",
			"--set", "lease.allocation_strategy=first_fit", NULL});
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	return harness_stop(&harness) || failed;
}
