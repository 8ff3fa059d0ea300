/*
 * test_client_offer.c - offer and reclaim pages of elastic ranges.
 *
 * Goal: pages that are reclaimed as kept have their content. Pages that another worker needed are reported as lost and
 * are holes. The agent does not take an offered page before its fence; after the fence it needs no call of the owner.
 * No driver call happens while the content is kept.
 *
 * Method: as in test_client_elastic.c, with a second worker that takes pages, and random steps that are compared with a
 * model.
 *
 * Requirements: U16.
 */
#include "tests/integration/elastic_view.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static struct gpool *pool, *other;
static struct gpool_block blocks[PAGES];

static struct gpool_range *begin(const char *const *options)
{
	start(options);
	pool = open_worker();
	other = open_worker();
	return reserved(pool);
}

static void end(void)
{
	gpool_close(pool);
	gpool_close(other);
	AWAIT(free_pages() == PAGES);
	assert_int_equal(harness_check(&harness), 0);
}

static int offer(struct gpool_range *range, uint32_t first, uint32_t count)
{
	return gpool_range_offer(range, first, count, done_fence);
}

static void test_kept(void **state)
{
	struct gpool_range *range = begin(plain);
	uint8_t kept[PAGES];
	uint64_t calls;

	(void)state;
	assert_int_equal(commit(range, 0, 32), 0);
	fill(range, 0, 32, 1);
	calls = gpu_thread_calls_total();
	for (int i = 0; i < 3; i++) {
		memset(kept, 2, sizeof(kept));
		assert_int_equal(offer(range, 0, 32), 0);
		assert_int_equal(info_of(range).offered_pages, 32);
		assert_int_equal(info_of(range).committed_pages, 32);
		assert_int_equal(page_of(range, 3).state, GPOOL_PAGE_COMMITTED);
		assert_int_equal(page_of(range, 3).flags, GPOOL_PAGE_OFFERED);
		assert_int_equal(harness_check(&harness), 0);
		assert_int_equal(gpool_range_reclaim(range, 0, 40, kept), 8);
		for (uint32_t page = 0; page < PAGES; page++)
			assert_int_equal(kept[page], page < 32 ? 1 : page < 40 ? 0 : 2);
		assert_int_equal(info_of(range).offered_pages, 0);
	}
	assert_int_equal(gpu_thread_calls_total(), calls);
	assert_int_equal(wrong(range, 0, 32, 1), 0);
	end();
}

/*
 * The other worker takes more pages than are free. The missing ones are taken from the offered pages, and only from
 * these.
 */
static void test_lost(void **state)
{
	struct gpool_range *range = begin(plain);
	uint8_t kept[PAGES];
	uint32_t taken, lost;

	(void)state;
	assert_int_equal(commit(range, 0, 48), 0);
	fill(range, 0, 48, 1);
	assert_int_equal(offer(range, 8, 32), 0);
	taken = squat(other, blocks, PAGES - 48 + 10);
	assert_int_equal(taken, PAGES - 48 + 10);
	lost = (uint32_t)gpool_range_reclaim(range, 0, 48, kept);
	assert_in_range(lost, 10, 12);
	for (uint32_t page = 0; page < 48; page++) {
		if (kept[page])
			assert_int_equal(wrong(range, page, 1, 1), 0);
		else
			assert_in_range(page, 8, 39);
		assert_int_equal(page_of(range, page).state == GPOOL_PAGE_COMMITTED, kept[page]);
	}
	assert_int_equal(info_of(range).committed_pages, 48 - lost);
	leave(other, blocks, taken);
	/* Other pages of the pool replace the lost ones. */
	assert_int_equal(commit(range, 0, 48), 0);
	for (uint32_t page = 0; page < 48; page++)
		if (!kept[page])
			fill(range, page, 1, 1);
	assert_int_equal(wrong(range, 0, 48, 1), 0);
	/* All pages may be taken; then none is kept. */
	assert_int_equal(offer(range, 0, 48), 0);
	assert_int_equal(squat(other, blocks, PAGES), PAGES);
	assert_int_equal(gpool_range_reclaim(range, 0, 48, kept), 48);
	assert_int_equal(info_of(range).committed_pages, 0);
	assert_int_equal(commit(range, 0, 1), -ENOSPC);
	leave(other, blocks, PAGES);
	end();
}

/* Use fences of two streams on some pages, and of one stream on others. */
static void test_behind_fences(void **state)
{
	struct gpool_range *range = begin(plain);
	struct gpool_fence one, two;
	uint32_t first, second;
	uint8_t kept[PAGES];

	(void)state;
	assert_int_equal(gpool_stream_open(pool, NULL, GPOOL_STREAM_HOST_SIGNALED, &first), 0);
	assert_int_equal(gpool_stream_open(pool, NULL, GPOOL_STREAM_HOST_SIGNALED, &second), 0);
	assert_int_equal(gpool_fence_record(pool, first, &one), 0);
	assert_int_equal(gpool_fence_record(pool, second, &two), 0);
	assert_int_equal(commit(range, 0, PAGES), 0);
	fill(range, 0, PAGES, 1);
	assert_int_equal(gpool_range_offer(range, 0, 32, one), 0);
	assert_int_equal(gpool_range_offer(range, 16, 32, two), 0);
	assert_int_equal(squat(other, blocks, 1), 0);
	assert_int_equal(gpool_fence_signal(pool, two), 0);
	/* Pages 32 to 47 wait for the second stream only. */
	assert_int_equal(squat(other, blocks, PAGES), 16);
	assert_int_equal(gpool_range_reclaim(range, 0, PAGES, kept), 16);
	for (uint32_t page = 0; page < PAGES; page++)
		assert_int_equal(kept[page], page < 32 || page >= 48);
	assert_int_equal(wrong(range, 0, 32, 1), 0);
	/* The fences remain valid for pages that are held in between. */
	assert_int_equal(offer(range, 0, 32), 0);
	assert_int_equal(squat(other, blocks + 16, 1), 0);
	assert_int_equal(gpool_sleep(pool, 0), -EBUSY);
	assert_int_equal(gpool_fence_signal(pool, one), 0);
	assert_int_equal(squat(other, blocks + 16, PAGES), 32);
	assert_int_equal(gpool_range_reclaim(range, 0, PAGES, NULL), 48);
	assert_int_equal(wrong(range, 48, 16, 1), 0);
	leave(other, blocks, 48);
	end();
}

/* Wait for steps of the agent's clock, at which it would evict by its watermarks. */
static void await_ticks(uint32_t ticks)
{
	const _Atomic uint32_t *clock = &pool_view(admin)->header->clock_ms;

	for (uint32_t tick = 0; tick < ticks; tick++) {
		uint32_t before = atomic_load(clock);

		AWAIT(atomic_load(clock) != before);
	}
}

/*
 * With the watermarks of the default configuration, offered pages do not count as utilization, and are not evicted
 * before a request needs them.
 */
static void test_watermarks(void **state)
{
	static const char *const options[] = {"--pool", POOL, "--set", "lease.initial_pages=0", NULL};
	struct gpool_range *range = begin(options);
	const _Atomic uint32_t *pressure = &pool_view(admin)->header->pressure;

	(void)state;
	assert_int_equal(commit(range, 0, PAGES), 0);
	fill(range, 0, PAGES, 1);
	AWAIT(atomic_load(pressure) == POOL_PRESSURE_CRITICAL);
	assert_int_equal(offer(range, 0, PAGES), 0);
	AWAIT(atomic_load(pressure) == POOL_PRESSURE_LOW);
	await_ticks(5);
	assert_int_equal(gpool_range_reclaim(range, 0, PAGES, NULL), 0);
	assert_int_equal(wrong(range, 0, PAGES, 1), 0);
	AWAIT(atomic_load(pressure) == POOL_PRESSURE_CRITICAL);
	/* A taken page counts for its new owner, even before the old owner notices. */
	assert_int_equal(offer(range, 0, PAGES), 0);
	assert_int_equal(squat(other, blocks, PAGES), PAGES);
	AWAIT(atomic_load(pressure) == POOL_PRESSURE_CRITICAL);
	assert_int_equal(gpool_range_reclaim(range, 0, PAGES, NULL), PAGES);
	leave(other, blocks, PAGES);
	end();
}

static void test_other_calls(void **state)
{
	struct gpool_range *range = begin(spilling);
	uint8_t kept[8];

	(void)state;
	assert_int_equal(commit(range, 0, 8), 0);
	fill(range, 0, 8, 1);
	assert_int_equal(gpool_range_capture(range, 7, 1, 1), 0);
	assert_int_equal(offer(range, 0, 8), -EINVAL);
	assert_int_equal(offer(range, 7, 1), -EINVAL);
	assert_int_equal(info_of(range).offered_pages, 0);
	assert_int_equal(gpool_range_capture(range, 7, 1, 0), 0);
	assert_int_equal(offer(range, 0, 9), -EINVAL);
	assert_int_equal(offer(range, SPARSE, 1), -EINVAL);
	assert_int_equal(gpool_range_offer(range, 0, 8, (struct gpool_fence){1}), -EINVAL);
	assert_int_equal(gpool_range_reclaim(range, SPARSE, 1, kept), -EINVAL);
	assert_int_equal(offer(range, 0, 8), 0);
	assert_int_equal(offer(range, 0, 8), 0);
	assert_int_equal(gpool_range_capture(range, 0, 1, 1), -EINVAL);
	/* The commit of an offered page reclaims it. */
	assert_int_equal(commit(range, 0, 2), 0);
	assert_int_equal(info_of(range).offered_pages, 6);
	assert_int_equal(decommit(range, 2, 2), 0);
	assert_int_equal(info_of(range).offered_pages, 4);
	assert_int_equal(info_of(range).committed_pages, 6);
	/* Sleep drops offered content, and keeps all other content. */
	assert_int_equal(gpool_sleep(pool, 0), 0);
	assert_int_equal(gpool_range_reclaim(range, 0, 8, kept), -EHOSTDOWN);
	assert_int_equal(gpool_wake(pool, 0), 0);
	assert_int_equal(gpool_range_reclaim(range, 0, 8, kept), 6);
	assert_int_equal(wrong(range, 0, 2, 1), 0);
	assert_int_equal(info_of(range).committed_pages, 2);
	assert_int_equal(gpool_range_destroy(range), 0);
	end();
}

/* Handles of four pages are offered and taken as a whole. */
static void test_large_handles(void **state)
{
	struct gpool_range *range = begin(fours);
	uint8_t kept[PAGES];

	(void)state;
	assert_int_equal(commit(range, 0, 14), 0);
	fill(range, 0, 14, 1);
	assert_int_equal(offer(range, 0, 3), -EINVAL);
	assert_non_null(strstr(gpool_last_error(EINVAL),
		"first is 0 and count is 3; both must be multiples of 4, the pages of a handle"));
	assert_int_equal(offer(range, 2, 4), -EINVAL);
	assert_int_equal(offer(range, 12, 4), -EINVAL);
	assert_non_null(strstr(gpool_last_error(EINVAL), "page 14 is not committed"));
	assert_int_equal(offer(range, 4, 8), 0);
	assert_int_equal(info_of(range).offered_pages, 8);
	assert_int_equal(squat(other, blocks, PAGES), PAGES - 8);
	assert_int_equal(gpool_range_reclaim(range, 0, 14, kept), 8);
	for (uint32_t page = 0; page < 14; page++)
		assert_int_equal(kept[page], page < 4 || page >= 12);
	assert_int_equal(wrong(range, 0, 4, 1) + wrong(range, 12, 2, 1), 0);
	leave(other, blocks, PAGES - 8);
	end();
}

/* ---- sleep and wake in another thread ---- */

static _Atomic bool over;

static void *offers(void *argument)
{
	struct gpool_range *range = argument;
	uint64_t wrong_answers = 0;

	while (!atomic_load(&over))
		for (uint32_t page = 0; page < 32; page += 4) {
			int offered = offer(range, page, 4), reclaimed = gpool_range_reclaim(range, page, 4, NULL);

			/* The result is -EINVAL if the pages were lost during sleep, and -EHOSTDOWN during sleep. */
			wrong_answers += (offered && offered != -EINVAL && offered != -EHOSTDOWN) ||
				(reclaimed < 0 && reclaimed != -EHOSTDOWN);
			if (reclaimed > 0)
				commit(range, page, 4);
		}
	return (void *)(uintptr_t)wrong_answers;
}

static void test_while_it_sleeps_and_wakes(void **state)
{
	struct gpool_range *range = begin(spilling);
	void *wrong_answers;
	pthread_t thread;

	(void)state;
	atomic_store(&over, false);
	assert_int_equal(commit(range, 0, 32), 0);
	assert_int_equal(pthread_create(&thread, NULL, offers, range), 0);
	for (uint32_t i = 0; i < 100; i++) {
		int error = gpool_sleep(pool, 0);

		assert_true(!error || error == -EHOSTDOWN);
		if (!error)
			AWAIT(gpool_wake(pool, 0) == 0);
	}
	atomic_store(&over, true);
	assert_int_equal(pthread_join(thread, &wrong_answers), 0);
	assert_null(wrong_answers);
	assert_int_equal(gpool_range_destroy(range), 0);
	end();
}

/* ---- random steps ---- */

enum { STEPS = 20000, MODEL = 48 };
enum model { NOT_BACKED, HELD, OFFERED };

struct random_test {
	struct gpool_range *range;
	uint64_t content[MODEL];
	enum model model[MODEL];
	uint64_t contents, lost, kept;
	uint32_t squatted;
	uint64_t seed;
};

static uint32_t choose(struct random_test *test, uint32_t below)
{
	test->seed = test->seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)(test->seed >> 33) % below;
}

static void step_reclaim(struct random_test *test, uint32_t first, uint32_t count)
{
	uint8_t kept[MODEL];
	uint32_t lost = 0;
	int result = gpool_range_reclaim(test->range, first, count, kept);

	for (uint32_t page = first; page < first + count; page++) {
		bool is_kept = kept[page - first];

		lost += !is_kept;
		assert_false(test->model[page] == HELD && !is_kept);
		assert_false(test->model[page] == NOT_BACKED && is_kept);
		if (is_kept)
			assert_int_equal(wrong(test->range, page, 1, test->content[page]), 0);
		test->lost += test->model[page] == OFFERED && !is_kept;
		test->kept += test->model[page] == OFFERED && is_kept;
		test->model[page] = is_kept ? HELD : NOT_BACKED;
	}
	assert_int_equal(result, lost);
}

static void step_back(struct random_test *test, uint32_t first, uint32_t count)
{
	if (commit(test->range, first, count))
		return;
	for (uint32_t page = first; page < first + count; page++) {
		/* An offered page may have kept its content, or have been taken. */
		if (test->model[page] == HELD)
			assert_int_equal(wrong(test->range, page, 1, test->content[page]), 0);
		test->model[page] = HELD;
		test->content[page] = ++test->contents;
		fill(test->range, page, 1, test->content[page]);
	}
}

static void step_offer(struct random_test *test, uint32_t first, uint32_t count)
{
	bool all = true;

	for (uint32_t page = first; page < first + count; page++)
		all &= test->model[page] == HELD;
	if (!all)
		return;
	assert_int_equal(offer(test->range, first, count), 0);
	for (uint32_t page = first; page < first + count; page++)
		test->model[page] = OFFERED;
}

static void step_decommit(struct random_test *test, uint32_t first, uint32_t count)
{
	assert_int_equal(decommit(test->range, first, count), 0);
	for (uint32_t page = first; page < first + count; page++)
		test->model[page] = NOT_BACKED;
}

static void test_random(void **state)
{
	struct random_test test = {.range = begin(plain), .seed = 20261122};

	(void)state;
	for (uint32_t step = 0; step < STEPS; step++) {
		uint32_t first = choose(&test, MODEL), count = 1 + choose(&test, MODEL - first < 8 ? MODEL - first : 8);

		switch (choose(&test, 8)) {
		case 0:
		case 1: step_back(&test, first, count); break;
		case 2: step_decommit(&test, first, count); break;
		case 3:
		case 4: step_offer(&test, first, count); break;
		case 5: step_reclaim(&test, first, count); break;
		case 6:
			test.squatted += squat(other, blocks + test.squatted, choose(&test, PAGES - test.squatted + 1));
			break;
		default:
			count = choose(&test, test.squatted + 1);
			test.squatted -= count;
			leave(other, blocks + test.squatted, count);
			break;
		}
	}
	step_reclaim(&test, 0, MODEL);
	assert_true(test.kept > 100);
	assert_true(test.lost > 100);
	leave(other, blocks, test.squatted);
	end();
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_kept, stop),
		cmocka_unit_test_teardown(test_lost, stop),
		cmocka_unit_test_teardown(test_behind_fences, stop),
		cmocka_unit_test_teardown(test_watermarks, stop),
		cmocka_unit_test_teardown(test_other_calls, stop),
		cmocka_unit_test_teardown(test_large_handles, stop),
		cmocka_unit_test_teardown(test_while_it_sleeps_and_wakes, stop),
		cmocka_unit_test_teardown(test_random, stop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
