/*
 * test_wait_check.c - waits that the program's check ends.
 *
 * Goal: each call that waits without a limit ends with -EINTR when the thread's check requests it, and leaves no state
 * behind. A check that continues the wait changes nothing. The check of another thread is not called. Method: a real
 * agent, and checks that count their calls.
 */
#include "client/core/interrupt.h"
#include "tests/lib/harness.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { PAGES = 512, ASKS = 3 };

static struct harness harness;
static struct gpool *pool;
static int asked;

/* End the wait at the third call. */
static int check(void *argument)
{
	assert_ptr_equal(argument, &harness);
	return ++asked == ASKS;
}

static void interrupted(int result)
{
	assert_int_equal(result, -EINTR);
	assert_int_equal(asked, ASKS);
	asked = 0;
}

static void test_every_wait_ends(void **state)
{
	struct gpool_alloc_options forever = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_options options = harness_options(&harness);
	struct gpool *other = harness_open(&harness), *none;
	struct gpool_block all, one;
	struct gpool_fence fence;
	struct gpool_event event = GPOOL_EVENT_INIT;
	struct gpool_role role = GPOOL_ROLE_INIT;
	uint32_t stream;

	(void)state;
	assert_int_equal(gpool_alloc(pool, PAGES, NULL, &all), 0);
	assert_int_equal(gpool_role_acquire(other, "r", 0, &role), 0);
	assert_int_equal(gpool_stream_open(pool, NULL, GPOOL_STREAM_HOST_SIGNALED, &stream), 0);
	assert_int_equal(gpool_fence_record(pool, stream, &fence), 0);
	gpool_wait_check(check, &harness);
	forever.timeout_ms = -1;
	interrupted(gpool_alloc(pool, 1, &forever, &one));
	interrupted(gpool_role_acquire(pool, "r", -1, &role));
	interrupted(gpool_fence_wait(pool, fence, -1));
	interrupted(gpool_event_next(pool, -1, &event));
	options.directory = "/nowhere";
	options.timeout_ms = -1;
	interrupted(gpool_open(&options, &none));
	/* This check continues the wait. */
	asked = ASKS;
	assert_int_equal(gpool_fence_wait(pool, fence, 200), -ETIMEDOUT);
	assert_int_equal(gpool_role_acquire(pool, "r", 200, &role), -ETIMEDOUT);
	assert_true(asked > ASKS);
	/* A pause prevents all calls. */
	asked = 0;
	wait_pause(true);
	wait_pause(true);
	wait_pause(false);
	assert_int_equal(gpool_fence_wait(pool, fence, 200), -ETIMEDOUT);
	assert_int_equal(asked, 0);
	wait_pause(false);
	interrupted(gpool_fence_wait(pool, fence, -1));
	gpool_wait_check(NULL, NULL);
	asked = 0;
	assert_int_equal(gpool_role_acquire(pool, "r", 60, &role), -ETIMEDOUT);
	assert_int_equal(asked, 0);
	gpool_close(other);
	assert_int_equal(gpool_role_acquire(pool, "r", -1, &role), 0);
	assert_int_equal(gpool_role_release(pool, &role), 0);
	assert_int_equal(gpool_fence_signal(pool, fence), 0);
	gpool_stream_close(pool, stream);
	assert_int_equal(gpool_free(pool, &all), 0);
	/* The withdrawn request has taken no pages. */
	assert_int_equal(gpool_alloc(pool, PAGES, &forever, &all), 0);
	assert_int_equal(gpool_free(pool, &all), 0);
	assert_int_equal(harness_check(&harness), 0);
}

/* Open a stream that waits for a fence of a host-signaled timeline. */
static uint32_t stream_behind(uint32_t timeline, struct gpool_fence *fence)
{
	uint32_t stream;

	assert_int_equal(gpool_fence_record(pool, timeline, fence), 0);
	assert_int_equal(gpool_stream_open(pool, NULL, 0, &stream), 0);
	assert_int_equal(gpool_stream_wait(pool, stream, *fence), 0);
	return stream;
}

static void test_waits_for_streams_end(void **state)
{
	struct gpool_kv_options options = GPOOL_KV_OPTIONS_INIT;
	struct gpool_range *elastic;
	struct gpool_sliced_range *sliced;
	struct gpool_kv *kv[2];
	uint32_t timeline, stream;
	struct gpool_fence fence;
	struct gpool_block all;

	(void)state;
	assert_int_equal(gpool_stream_open(pool, NULL, GPOOL_STREAM_HOST_SIGNALED, &timeline), 0);
	stream = stream_behind(timeline, &fence);
	assert_int_equal(gpool_range_reserve(pool, 4, NULL, &elastic), 0);
	assert_int_equal(gpool_sliced_range_create(pool, 2, 4, 1, NULL, &sliced), 0);
	options.shape = (struct gpool_kv_shape){.layers = 1, .kv_heads = 1, .head_size = 64, .dtype_bytes = 2};
	options.stream = stream;
	options.max_blocks = 64;
	assert_int_equal(gpool_kv_create(pool, &options, &kv[0]), 0);
	options.flags = GPOOL_KV_PREFIXES;
	options.pool_blocks = 64;
	assert_int_equal(gpool_kv_create(pool, &options, &kv[1]), 0);
	assert_int_equal(gpool_range_commit(elastic, 0, 2, 0), 0);
	gpool_wait_check(check, &harness);
	interrupted(gpool_range_destroy(elastic));
	interrupted(gpool_sliced_range_destroy(sliced));
	interrupted(gpool_kv_destroy(kv[0]));
	interrupted(gpool_kv_destroy(kv[1]));
	interrupted(gpool_sleep(pool, 0));
	assert_int_equal(gpool_asleep(pool), 0);
	/* All of them can be used. */
	assert_int_equal(gpool_range_commit(elastic, 2, 1, 0), 0);
	assert_int_equal(gpool_sliced_range_grow(sliced, 1, 0), 0);
	assert_int_equal(gpool_fence_signal(pool, fence), 0);
	assert_int_equal(gpool_sleep(pool, 0), 0);
	assert_int_equal(gpool_wake(pool, 0), 0);
	assert_int_equal(gpool_range_destroy(elastic), 0);
	assert_int_equal(gpool_sliced_range_destroy(sliced), 0);
	assert_int_equal(gpool_kv_destroy(kv[0]), 0);
	assert_int_equal(gpool_kv_destroy(kv[1]), 0);
	gpool_wait_check(NULL, NULL);
	asked = 0;
	gpool_stream_close(pool, stream);
	gpool_stream_close(pool, timeline);
	assert_int_equal(gpool_alloc(pool, PAGES, NULL, &all), 0);
	assert_int_equal(gpool_free(pool, &all), 0);
	assert_int_equal(harness_check(&harness), 0);
}

/* ---- work that is queued during the wait ---- */

static struct {
	uint32_t timeline, stream, later;
	struct gpool_fence first, second;
	struct gpool_range *range;
	int asked;
} queued;

/*
 * At the first call, queue work that does not end and let the earlier work end, as another thread could. At the second
 * call, end the wait, which can only be for the later work. gpool_range_info() shows that the lock is not held.
 */
static int queue_more(void *argument)
{
	struct gpool_range_info info = {.size = sizeof(info)};

	assert_null(argument);
	assert_int_equal(gpool_range_info(queued.range, &info), 0);
	if (queued.asked++)
		return 1;
	assert_int_equal(gpool_stream_wait(pool, queued.later, queued.second), 0);
	assert_int_equal(gpool_fence_signal(pool, queued.first), 0);
	return 0;
}

static void test_later_work_does_not_prevent_the_end(void **state)
{
	(void)state;
	assert_int_equal(gpool_stream_open(pool, NULL, GPOOL_STREAM_HOST_SIGNALED, &queued.timeline), 0);
	assert_int_equal(gpool_stream_open(pool, NULL, 0, &queued.later), 0);
	assert_int_equal(gpool_range_reserve(pool, 4, NULL, &queued.range), 0);
	queued.stream = stream_behind(queued.timeline, &queued.first);
	assert_int_equal(gpool_fence_record(pool, queued.timeline, &queued.second), 0);
	gpool_wait_check(queue_more, NULL);
	assert_int_equal(gpool_sleep(pool, 0), -EINTR);
	assert_int_equal(queued.asked, 2);
	assert_int_equal(gpool_asleep(pool), 0);
	/* A range that ends is not used by later work. */
	assert_int_equal(gpool_fence_signal(pool, queued.second), 0);
	assert_int_equal(gpool_fence_record(pool, queued.timeline, &queued.first), 0);
	assert_int_equal(gpool_stream_wait(pool, queued.stream, queued.first), 0);
	assert_int_equal(gpool_fence_record(pool, queued.timeline, &queued.second), 0);
	queued.asked = 0;
	assert_int_equal(gpool_range_destroy(queued.range), 0);
	assert_int_equal(queued.asked, 1);
	gpool_wait_check(NULL, NULL);
	assert_int_equal(gpool_fence_signal(pool, queued.second), 0);
	gpool_stream_close(pool, queued.stream);
	gpool_stream_close(pool, queued.later);
	gpool_stream_close(pool, queued.timeline);
	assert_int_equal(harness_check(&harness), 0);
}

static void *wait_on_its_stream(void *fence)
{
	uint32_t stream;

	assert_int_equal(gpool_stream_open(pool, (void *)2, 0, &stream), 0); /* CU_STREAM_PER_THREAD */
	assert_int_equal(gpool_stream_wait(pool, stream, *(struct gpool_fence *)fence), 0);
	return NULL;
}

static void test_the_stream_of_a_thread_that_has_ended(void **state)
{
	struct gpool_fence fence;
	uint32_t timeline, stream;
	pthread_t thread;

	(void)state;
	assert_int_equal(gpool_stream_open(pool, NULL, GPOOL_STREAM_HOST_SIGNALED, &timeline), 0);
	assert_int_equal(gpool_fence_record(pool, timeline, &fence), 0);
	assert_int_equal(pthread_create(&thread, NULL, wait_on_its_stream, &fence), 0);
	pthread_join(thread, NULL);
	gpool_wait_check(check, &harness);
	interrupted(gpool_stream_open(pool, NULL, 0, &stream));
	gpool_wait_check(NULL, NULL);
	assert_int_equal(gpool_fence_signal(pool, fence), 0);
	assert_int_equal(gpool_stream_open(pool, NULL, 0, &stream), 0);
	gpool_stream_close(pool, stream);
	gpool_stream_close(pool, timeline);
}

static void *wait_elsewhere(void *fence)
{
	assert_int_equal(gpool_fence_wait(pool, *(struct gpool_fence *)fence, 200), -ETIMEDOUT);
	return NULL;
}

static void test_a_check_is_of_its_thread(void **state)
{
	struct gpool_fence fence;
	uint32_t stream;
	pthread_t other;

	(void)state;
	assert_int_equal(gpool_stream_open(pool, NULL, GPOOL_STREAM_HOST_SIGNALED, &stream), 0);
	assert_int_equal(gpool_fence_record(pool, stream, &fence), 0);
	gpool_wait_check(check, &harness);
	assert_int_equal(pthread_create(&other, NULL, wait_elsewhere, &fence), 0);
	pthread_join(other, NULL);
	gpool_wait_check(NULL, NULL);
	assert_int_equal(asked, 0);
	gpool_stream_close(pool, stream);
}

static int begin(void **state)
{
	static const char *const arguments[] = {"--pool", HARNESS_POOL, NULL};

	(void)state;
	harness_start(&harness, arguments);
	pool = harness_open(&harness);
	return 0;
}

static int end(void **state)
{
	(void)state;
	gpool_close(pool);
	return harness_stop(&harness);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_wait_ends),
		cmocka_unit_test(test_waits_for_streams_end),
		cmocka_unit_test(test_later_work_does_not_prevent_the_end),
		cmocka_unit_test(test_the_stream_of_a_thread_that_has_ended),
		cmocka_unit_test(test_a_check_is_of_its_thread),
	};

	return cmocka_run_group_tests(tests, begin, end);
}
