/*
 * test_client_idle.c - a thread that waits for pages does pending work of other parts of the library.
 *
 * Goal: while a thread waits in gpool_alloc(), each registered idle callback runs repeatedly and deferred frees are
 * completed, even if no other thread of the process calls the library.
 *
 * Method: all pages of a small pool are in pinned blocks, so the thread waits until the test frees some. The fence of a
 * deferred free is signaled by a store into the timeline, as by a GPU.
 */
#include "client/core/idle.h"
#include "client/core/pool.h"
#include "shm/timeline.h"
#include "tests/lib/await.h"
#include "tests/lib/harness.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>

#include <cmocka.h>

enum { PAGES = 32 };

static struct harness harness;
static struct gpool *pool;
static struct gpool_block blocks[PAGES];
static _Atomic uint32_t runs;

static bool count_run(struct gpool *of)
{
	assert_ptr_equal(of, pool);
	atomic_fetch_add(&runs, 1);
	return true;
}

static int attach(void **state)
{
	(void)state;
	pool = harness_open_calm(&harness);
	atomic_store(&runs, 0);
	for (uint32_t i = 0; i < PAGES; i++)
		assert_int_equal(gpool_alloc(pool, 1, NULL, &blocks[i]), 0);
	return 0;
}

static int detach(void **state)
{
	(void)state;
	return harness_detach(&harness, &pool, PAGES);
}

/* ---- a thread that waits for pages ---- */

struct waiter {
	pthread_t thread;
	uint32_t page_count;
	int error;
	struct gpool_block block;
};

static void *waiter_run(void *argument)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	struct waiter *waiter = argument;

	options.timeout_ms = AWAIT_MS;
	waiter->error = gpool_alloc(pool, waiter->page_count, &options, &waiter->block);
	return NULL;
}

static void waiter_begin(struct waiter *waiter, uint32_t page_count)
{
	waiter->page_count = page_count;
	assert_int_equal(pthread_create(&waiter->thread, NULL, waiter_run, waiter), 0);
	AWAIT(atomic_load(&pool->header->waiters) == 1);
}

static void waiter_end(struct waiter *waiter)
{
	assert_int_equal(pthread_join(waiter->thread, NULL), 0);
	assert_int_equal(waiter->error, 0);
	assert_int_equal(waiter->block.page_count, waiter->page_count);
}

/* ---- tests ---- */

static void test_a_waiting_thread_runs_callbacks(void **state)
{
	struct waiter waiter;
	uint32_t before;

	(void)state;
	idle_register(pool, IDLE_WAIT, count_run);
	waiter_begin(&waiter, 1);
	before = atomic_load(&runs);
	AWAIT(atomic_load(&runs) > before + 1);
	assert_int_equal(gpool_free(pool, &blocks[0]), 0);
	waiter_end(&waiter);
	/* Once no thread waits and no free is deferred, library calls do not run the callbacks. */
	before = atomic_load(&runs);
	assert_int_equal(gpool_unpin(pool, &waiter.block), 0);
	assert_int_equal(gpool_pin(pool, &waiter.block), 0);
	assert_int_equal(gpool_free(pool, &waiter.block), 0);
	assert_int_equal(atomic_load(&runs), before);
}

static void test_freed_pages_run_callbacks(void **state)
{
	struct waiter waiter;

	(void)state;
	idle_register(pool, IDLE_FREED, count_run);
	waiter_begin(&waiter, 1);
	assert_int_equal(atomic_load(&runs), 0);
	assert_int_equal(gpool_free(pool, &blocks[0]), 0);
	assert_int_equal(atomic_load(&runs), 1);
	waiter_end(&waiter);
}

static uint64_t deferred_blocks(void)
{
	struct gpool_stats stats = {.size = sizeof(stats)};

	assert_int_equal(gpool_stats(pool, &stats), 0);
	return stats.deferred_blocks;
}

static void test_a_waiting_thread_ends_deferred_frees(void **state)
{
	struct gpool_fence fence;
	struct waiter waiter;
	uint32_t stream;

	(void)state;
	assert_int_equal(gpool_stream_open(pool, NULL, GPOOL_STREAM_HOST_SIGNALED, &stream), 0);
	assert_int_equal(gpool_fence_record(pool, stream, &fence), 0);
	assert_int_equal(gpool_free_after(pool, &blocks[0], fence), 0);
	assert_int_equal(deferred_blocks(), 1);
	/* Request two pages: the single deferred page does not end the wait. */
	waiter_begin(&waiter, 2);
	assert_int_equal(deferred_blocks(), 1);
	atomic_store(&pool->session.timeline[fence_slot(fence.value)], fence.value & FENCE_VALUE_MASK);
	AWAIT(deferred_blocks() == 0);
	assert_int_equal(gpool_free(pool, &blocks[1]), 0);
	waiter_end(&waiter);
	gpool_stream_close(pool, stream);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_a_waiting_thread_runs_callbacks, attach, detach),
		cmocka_unit_test_setup_teardown(test_freed_pages_run_callbacks, attach, detach),
		cmocka_unit_test_setup_teardown(test_a_waiting_thread_ends_deferred_frees, attach, detach),
	};
	const char *arguments[] = {"--pool", "name=p0,backend=host,size=16MiB,page_size=512KB,reserved=0", NULL};
	int failed;

	harness_start(&harness, arguments);
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	return harness_stop(&harness) || failed ? 1 : 0;
}
