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
		cmocka_unit_test(test_a_check_is_of_its_thread),
	};

	return cmocka_run_group_tests(tests, begin, end);
}
