/*
 * test_best_fit.c - the caching allocator with which gpool_malloc_async() is compared. The comparison is valid only if
 * that allocator is good.
 *
 * Goal: the allocator takes the smallest piece that fits, joins free pieces, and never returns memory that another
 * stream may still use. It records nothing while only one stream is in use, and returns idle segments before it fails.
 * Allocations do not overlap.
 *
 * Method: a pool of 512 pages of a real agent. Host-signaled timelines determine when work is done. On the back end
 * `host` an address refers to host memory, so contents can be compared.
 */
#include "cuda/gpu.h"
#include "tests/lib/harness.h"
#include "tools/lib/allocator.h"
#include "tools/lib/malloc_make.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define MIB (UINT64_C(1) << 20)
enum { PIECE_MIB = 12 }; /* a request of 10 MiB or more gets its own segment */

static struct harness harness;
static struct gpool *pages;
static struct allocator *allocator;

static uint64_t take(uint64_t bytes, uint32_t stream)
{
	uint64_t address;

	assert_int_equal(allocator->ops->malloc(allocator, bytes, stream, &address), 0);
	return address;
}

static void give(uint64_t address, uint32_t stream)
{
	assert_int_equal(allocator->ops->free(allocator, address, stream), 0);
}

static struct allocator_totals totals(void)
{
	struct allocator_totals now;

	allocator->ops->totals(allocator, &now);
	return now;
}

static uint32_t manual_stream(void)
{
	uint32_t stream;

	assert_int_equal(gpool_stream_open(pages, NULL, GPOOL_STREAM_HOST_SIGNALED, &stream), 0);
	return stream;
}

/* Signal everything that was freed so far on a host-signaled timeline. */
static void reach(uint32_t stream)
{
	struct gpool_fence fence;

	assert_int_equal(gpool_fence_record(pages, stream, &fence), 0);
	assert_int_equal(gpool_fence_signal(pages, fence), 0);
}

/* ---- placement ---- */

static void test_smallest_that_fits_and_joins(void **state)
{
	uint64_t at[6], spare;

	(void)state;
	/* Divide one segment of 20 MiB into pieces of 2, 3, 2, 4, 2 and 7 MiB. */
	at[0] = take(2 * MIB, 0);
	at[1] = take(3 * MIB, 0);
	at[2] = take(2 * MIB, 0);
	at[3] = take(4 * MIB, 0);
	at[4] = take(2 * MIB, 0);
	at[5] = take(7 * MIB, 0);
	for (int i = 1; i < 6; i++)
		assert_true(at[i] > at[i - 1]);
	assert_int_equal(totals().mapped, 20 * MIB);
	assert_int_equal(totals().free, 0);
	give(at[3], 0);
	give(at[1], 0);
	/* The request of 2 MiB gets the piece of 3 MiB, which is not split. */
	spare = take(2 * MIB, 0);
	assert_int_equal(spare, at[1]);
	assert_int_equal(totals().live, 16 * MIB); /* a rest of 1 MiB is not split off */
	give(spare, 0);
	spare = take(MIB * 3 / 2, 0);
	assert_int_equal(totals().largest_free, 4 * MIB);
	give(spare, 0);
	assert_int_equal(totals().largest_free, 4 * MIB);
	/* Join a piece with its left neighbor, its right neighbor, and both. */
	give(at[2], 0);
	assert_int_equal(totals().largest_free, 9 * MIB);
	give(at[0], 0);
	assert_int_equal(totals().largest_free, 11 * MIB);
	give(at[5], 0);
	give(at[4], 0);
	assert_int_equal(totals().largest_free, 20 * MIB);
	assert_int_equal(totals().live, 0);
	assert_int_equal(take(9 * MIB, 0), at[0]);
}

static void test_sizes_and_classes(void **state)
{
	uint64_t address;

	(void)state;
	take(1, 0);
	assert_int_equal(totals().live, 512);
	assert_int_equal(totals().mapped, 2 * MIB);
	take(MIB, 0); /* from the same segment */
	assert_int_equal(totals().mapped, 2 * MIB);
	take(MIB + 1, 0); /* no longer a small request, and no other segment has room for it */
	assert_int_equal(totals().mapped, 22 * MIB);
	take(PIECE_MIB * MIB + 1, 0); /* the segment has room for it */
	assert_int_equal(totals().mapped, 22 * MIB);
	take(24 * MIB + 1, 0); /* gets its own segment, in steps of 2 MiB */
	assert_int_equal(totals().mapped, (22 + 26) * MIB);
	assert_int_equal(allocator->ops->malloc(allocator, 0, 0, &address), -EINVAL);
	assert_int_equal(allocator->ops->malloc(allocator, UINT64_MAX, 0, &address), -ENOSPC);
	assert_int_equal(allocator->ops->malloc(allocator, UINT64_C(1) << 40, 0, &address), -ENOSPC);
	assert_int_equal(allocator->ops->free(allocator, 0x1000, 0), -EINVAL);
	assert_int_equal(allocator->ops->mapped(allocator), totals().mapped);
}

/* ---- streams ---- */

static void test_a_stream_waits_for_another(void **state)
{
	uint32_t a = manual_stream(), b = manual_stream();
	uint64_t first, second;

	(void)state;
	first = take(PIECE_MIB * MIB, a);
	second = take(PIECE_MIB * MIB, b);
	give(first, a);
	assert_int_equal(take(PIECE_MIB * MIB, a), first); /* available to its own stream at once */
	give(first, a);
	assert_int_not_equal(take(PIECE_MIB * MIB, b), first);
	assert_int_not_equal(take(PIECE_MIB * MIB, 0), first);
	reach(a);
	assert_int_equal(take(PIECE_MIB * MIB, b), first);
	/* Memory freed without a stream is available to all streams. */
	give(second, 0);
	assert_int_equal(take(PIECE_MIB * MIB, a), second);
	gpool_stream_close(pages, a);
	gpool_stream_close(pages, b);
}

static void test_no_join_across_streams(void **state)
{
	uint32_t a = manual_stream(), b = manual_stream();
	uint64_t at[4];

	(void)state;
	for (int i = 0; i < 4; i++)
		at[i] = take(5 * MIB, a);
	for (int i = 0; i < 4; i++)
		give(at[i], i % 2 ? b : a);
	assert_int_equal(totals().free, 20 * MIB);
	assert_int_equal(totals().largest_free, 5 * MIB);
	reach(a);
	reach(b);
	/* The larger allocation finds that the work of the pieces is done, and joins them. */
	assert_int_equal(take(9 * MIB, a), at[0]);
	gpool_stream_close(pages, a);
	gpool_stream_close(pages, b);
}

/* The memory is freed without an event while only one stream exists. Then a second stream is used. */
static void test_memory_freed_before_a_second_stream(void **state)
{
	uint32_t a = manual_stream(), b;
	uint64_t first = take(PIECE_MIB * MIB, a);

	(void)state;
	give(first, a);
	b = manual_stream();
	assert_int_not_equal(take(PIECE_MIB * MIB, b), first);
	reach(a);
	assert_int_equal(take(PIECE_MIB * MIB, b), first);
	give(first, b);
	/* Closing a stream waits for its work. */
	first = take(3 * PIECE_MIB * MIB, a);
	gpool_stream_close(pages, a);
	give(first, a);
	assert_int_equal(take(3 * PIECE_MIB * MIB, b), first);
	gpool_stream_close(pages, b);
}

static void test_one_stream_makes_no_driver_calls(void **state)
{
	uint32_t stream, other;
	uint64_t before, at[3];

	(void)state;
	assert_int_equal(gpool_stream_open(pages, NULL, 0, &stream), 0);
	assert_int_equal(gpool_stream_open(pages, NULL, 0, &other), 0);
	for (int i = 0; i < 3; i++)
		at[i] = take((uint64_t)(i + 2) * MIB, stream);
	before = gpu_thread_calls_total();
	for (int round = 0; round < 100; round++)
		for (int i = 0; i < 3; i++) {
			give(at[i], stream);
			at[i] = take((uint64_t)(i + 2) * MIB, stream);
		}
	assert_int_equal(gpu_thread_calls_total(), before);
	give(take(MIB * 2, other), other);
	assert_true(gpu_thread_calls_total() > before);
	gpool_stream_close(pages, stream);
	gpool_stream_close(pages, other);
}

/* ---- a full pool ---- */

static void test_idle_segments_are_returned_before_it_fails(void **state)
{
	uint32_t a = manual_stream(), b = manual_stream();
	uint64_t at[9], address;

	(void)state;
	/* Allocate 234 of 256 MiB in nine segments. */
	for (int i = 0; i < 9; i++)
		at[i] = take(25 * MIB, i < 5 ? a : b);
	assert_int_equal(allocator->ops->malloc(allocator, 25 * MIB, a, &address), -ENOSPC);
	/* The segments are not adjacent. Each is free as a whole, and is returned. */
	give(at[2], a);
	give(at[7], b);
	reach(a);
	reach(b);
	assert_int_equal(totals().mapped, 9 * 26 * MIB);
	take(50 * MIB, a);
	assert_int_equal(totals().live, 7 * 26 * MIB + 50 * MIB); /* the rest of 1 MiB belongs to the piece */
	gpool_stream_close(pages, a);
	gpool_stream_close(pages, b);
}

/* A segment is idle even if one part belongs to a stream and another part to all streams. */
static void test_idle_segments_of_several_return(void **state)
{
	uint32_t a = manual_stream(), b = manual_stream();
	uint64_t at[12], halves[12];

	(void)state;
	/*
	 * Allocate 240 of 256 MiB. In each segment one stream frees the first half and another stream the second half.
	 */
	for (int i = 0; i < 12; i++) {
		at[i] = take(9 * MIB, a);
		halves[i] = take(9 * MIB, a);
	}
	for (int i = 0; i < 12; i++) {
		give(at[i], a);
		give(halves[i], i % 2 ? b : 0);
	}
	reach(a);
	reach(b);
	assert_int_equal(totals().mapped, 240 * MIB);
	take(250 * MIB, b);
	assert_int_equal(totals().mapped, 250 * MIB);
	gpool_stream_close(pages, a);
	gpool_stream_close(pages, b);
}

/* The rest of a segment belongs to its stream, and is joined with the pieces that the stream frees. */
static void test_rest_of_a_segment_joins(void **state)
{
	uint32_t a = manual_stream();
	uint64_t first = take(5 * MIB, a);

	(void)state;
	give(first, a);
	assert_int_equal(totals().largest_free, 20 * MIB);
	gpool_stream_close(pages, a);
}

/*
 * The unused rest of a segment allocated for one stream is available to all streams at the next search, regardless of
 * the work that its stream has queued.
 */
static void test_rest_of_a_segment_is_available_to_others(void **state)
{
	uint32_t a = manual_stream(), b = manual_stream();
	uint64_t first;

	(void)state;
	take(PIECE_MIB * MIB, b);
	first = take(5 * MIB, a);
	assert_int_equal(take(9 * MIB, b), first + 5 * MIB);
	gpool_stream_close(pages, a);
	gpool_stream_close(pages, b);
}

/* The requests of this test fail with the caching allocator and succeed with gpool_malloc_async(). */
static void test_pieces_apart_cannot_be_put_together(void **state)
{
	uint64_t at[48], address;
	int count = 0;

	(void)state;
	while (count < 48 && allocator->ops->malloc(allocator, 5 * MIB, 0, &at[count]) == 0)
		count++;
	assert_int_equal(count, 48); /* 12 segments of 20 MiB */
	for (int i = 0; i < count; i += 2)
		give(at[i], 0);
	assert_int_equal(totals().free, 120 * MIB);
	assert_int_equal(totals().largest_free, 5 * MIB);
	assert_int_equal(allocator->ops->malloc(allocator, 40 * MIB, 0, &address), -ENOSPC);
}

/* ---- random ---- */

struct visited {
	uint64_t live, free;
};

static void visit_region(void *context, uint64_t address, uint64_t bytes, enum region_kind kind)
{
	struct visited *visited = context;

	assert_true(address != 0 && bytes != 0);
	*(kind == REGION_ALLOCATED ? &visited->live : &visited->free) += bytes;
}

struct player_thread {
	uint32_t number;
	uint32_t streams[3];
	int errors;
};

/* Each allocation contains its number at both ends until it is freed. */
static void *play_by_chance(void *context)
{
	struct player_thread *thread = context;
	uint64_t random = thread->number, *live[64] = {0}, sizes[64];

	for (uint64_t step = 1; step < 20000; step++) {
		uint32_t place = random_step(&random) % 64, stream = thread->streams[random_step(&random) % 3];
		uint64_t tag = (uint64_t)thread->number << 32 | step, address;

		if (live[place]) {
			uint64_t *last = live[place] + sizes[place] / 8 - 1;

			thread->errors += live[place][0] != *last || live[place][0] >> 32 != thread->number;
			thread->errors +=
				allocator->ops->free(allocator, (uint64_t)(uintptr_t)live[place], stream) != 0;
			live[place] = NULL;
			continue;
		}
		sizes[place] = (1 + random_step(&random) % (1u << (8 + random_step(&random) % 14))) * 8;
		if (allocator->ops->malloc(allocator, sizes[place], stream, &address))
			continue; /* the pool may be full */
		live[place] = (uint64_t *)(uintptr_t)address;
		live[place][0] = live[place][sizes[place] / 8 - 1] = tag;
	}
	for (int place = 0; place < 64; place++)
		if (live[place])
			thread->errors += allocator->ops->free(allocator, (uint64_t)(uintptr_t)live[place], 0) != 0;
	return NULL;
}

static void test_nothing_overlaps(void **state)
{
	struct player_thread threads[4] = {{0}};
	pthread_t handles[4];
	uint32_t streams[3] = {0};
	struct visited visited = {0};

	(void)state;
	/* Use real streams without queued work: memory freed on one stream is soon available to all. */
	for (int i = 1; i < 3; i++)
		assert_int_equal(gpool_stream_open(pages, NULL, 0, &streams[i]), 0);
	for (uint32_t i = 0; i < 4; i++) {
		threads[i].number = i + 1;
		memcpy(threads[i].streams, streams, sizeof(streams));
		assert_int_equal(pthread_create(&handles[i], NULL, play_by_chance, &threads[i]), 0);
	}
	for (int i = 0; i < 4; i++) {
		pthread_join(handles[i], NULL);
		assert_int_equal(threads[i].errors, 0);
	}
	assert_int_equal(allocator->ops->visit(allocator, visit_region, &visited), 0);
	assert_int_equal(visited.live, 0);
	assert_int_equal(visited.free, totals().mapped);
	assert_int_equal(totals().free, totals().mapped);
	for (int i = 1; i < 3; i++)
		gpool_stream_close(pages, streams[i]);
}

/* ---- set-up and teardown ---- */

static int start(void **state)
{
	const char *const arguments[] = {"--pool", HARNESS_POOL, NULL};

	(void)state;
	harness_start(&harness, arguments);
	return 0;
}

static int stop(void **state)
{
	(void)state;
	return harness_stop(&harness);
}

static int open_session(void **state)
{
	(void)state;
	pages = harness_open_calm(&harness);
	return best_fit_ops.open(pages, &allocator);
}

/* All pages must be free again, whatever the test has left allocated. */
static int close_session(void **state)
{
	(void)state;
	best_fit_ops.close(allocator);
	gpool_close(pages);
	return harness_check(&harness) != 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_smallest_that_fits_and_joins, open_session, close_session),
		cmocka_unit_test_setup_teardown(test_sizes_and_classes, open_session, close_session),
		cmocka_unit_test_setup_teardown(test_a_stream_waits_for_another, open_session, close_session),
		cmocka_unit_test_setup_teardown(test_no_join_across_streams, open_session, close_session),
		cmocka_unit_test_setup_teardown(test_memory_freed_before_a_second_stream, open_session, close_session),
		cmocka_unit_test_setup_teardown(test_one_stream_makes_no_driver_calls, open_session, close_session),
		cmocka_unit_test_setup_teardown(
			test_idle_segments_are_returned_before_it_fails, open_session, close_session),
		cmocka_unit_test_setup_teardown(test_idle_segments_of_several_return, open_session, close_session),
		cmocka_unit_test_setup_teardown(test_rest_of_a_segment_joins, open_session, close_session),
		cmocka_unit_test_setup_teardown(
			test_rest_of_a_segment_is_available_to_others, open_session, close_session),
		cmocka_unit_test_setup_teardown(test_pieces_apart_cannot_be_put_together, open_session, close_session),
		cmocka_unit_test_setup_teardown(test_nothing_overlaps, open_session, close_session),
	};

	best_fit_ops.close(NULL);
	return cmocka_run_group_tests(tests, start, stop);
}
