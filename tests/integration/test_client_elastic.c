/*
 * test_client_elastic.c - ranges whose pages are committed one by one.
 *
 * Goal: a commit costs one request and one access call for each run, and no call if the memory was not taken. Committed
 * pages keep their content when other calls fail, sessions sleep or processes die. Decommitted pages become available
 * to other sessions, but not before their fence. No page is unmapped under queued work, and captured addresses keep
 * their memory.
 *
 * Method: each test starts a gpoold with a pool of 64 pages. Contents identify their page, driver calls are counted and
 * made to fail, and workers are killed. Threads compare their own part of a range with a model.
 *
 * Requirements: M10.
 */
#include "tests/integration/elastic_view.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

/* ---- commit and decommit ---- */

static void test_addresses_first(void **state)
{
	struct gpool_range *range;
	struct gpool *pool;
	uint64_t address;

	(void)state;
	start(plain);
	pool = open_worker();
	range = reserved(pool);
	assert_int_equal(free_pages(), PAGES);
	assert_int_equal(gpool_range_address(range, &address), 0);
	assert_int_equal(info_of(range).page_count, SPARSE);
	assert_int_equal(info_of(range).committed_pages, 0);
	assert_int_equal(info_of(range).handle_pages, 1);
	assert_int_equal(page_of(range, SPARSE - 1).state, GPOOL_PAGE_HOLE);
	assert_int_equal(page_of(range, SPARSE - 1).page, UINT32_MAX);
	assert_int_equal(page_of(range, 3).address, address + 3 * PAGE_BYTES);
	assert_int_equal(commit(range, 1000, 3), 0);
	assert_int_equal(commit(range, SPARSE - 1, 1), 0);
	fill(range, 1000, 3, 1);
	fill(range, SPARSE - 1, 1, 1);
	assert_int_equal(free_pages(), PAGES - 4);
	assert_int_equal(info_of(range).committed_pages, 4);
	assert_int_equal(in_state(range, 998, 8, GPOOL_PAGE_COMMITTED), 3);
	assert_int_equal(atomic_load(&block_entry(pool, page_of(range, 1000).page)->owner_id), 4711);
	assert_int_equal(page_word_generation(atomic_load(&pool->pages[page_of(range, 1001).page])),
		page_of(range, 1001).generation);
	assert_int_equal(harness_check(&harness), 0);
	/* The request exceeds the pool: no page is committed. */
	assert_int_equal(commit(range, 0, PAGES), -ENOSPC);
	assert_int_equal(info_of(range).committed_pages, 4);
	assert_int_equal(commit(range, 0, PAGES - 4), 0);
	fill(range, 0, PAGES - 4, 2);
	assert_int_equal(wrong(range, 1000, 3, 1) + wrong(range, SPARSE - 1, 1, 1) + wrong(range, 0, PAGES - 4, 2), 0);
	assert_int_equal(free_pages(), 0);
	assert_int_equal(gpool_range_destroy(range), 0);
	assert_int_equal(free_pages() + lease_idle_count(pool), PAGES);
	gpool_close(pool);
	AWAIT(free_pages() == PAGES);
}

/* Use a range far larger than the pool, and too large for work proportional to its pages. */
static void test_vast(void **state)
{
#if defined(__SANITIZE_THREAD__)
	enum { VAST = 1 << 20 }; /* surrounded by unrelated memory */
#else
	enum { VAST = 1 << 24 }; /* 8 TiB */
#endif
	struct gpool_range *range;
	struct gpool *pool;

	(void)state;
	start(plain);
	pool = open_worker();
	range = reserved_as(pool, VAST, GPOOL_OBJECT_EPHEMERAL);
	assert_int_equal(commit(range, 0, VAST), -ENOSPC);
	assert_int_equal(commit(range, VAST - 5, 5), 0);
	assert_int_equal(commit(range, 77, 1), 0);
	fill(range, VAST - 5, 5, 1);
	fill(range, 77, 1, 1);
	assert_int_equal(gpool_range_capture(range, 0, VAST, 1), -EINVAL);
	assert_int_equal(gpool_range_capture(range, VAST - 1, 1, 1), 0);
	assert_int_equal(decommit(range, 0, VAST), 0);
	assert_int_equal(info_of(range).committed_pages, 0);
	assert_int_equal(info_of(range).reclaimable_pages, 5);
	assert_int_equal(gpool_range_capture(range, 0, VAST, 0), 0);
	assert_int_equal(info_of(range).reclaimable_pages, 6);
	assert_int_equal(commit(range, VAST - 5, 5), 0);
	assert_int_equal(wrong(range, VAST - 5, 5, 1), 0);
	assert_int_equal(gpool_sleep(pool, 0), 0);
	assert_int_equal(gpool_wake(pool, 0), 0);
	assert_int_equal(info_of(range).committed_pages, 5);
	gpool_close(pool);
}

/*
 * A commit makes one request, one mapping for each page and one access call for each run. Pages that were not taken
 * need no call.
 */
static void test_driver_calls(void **state)
{
	struct gpool_range *range;
	struct gpool *pool;
	uint64_t calls, asked;

	(void)state;
	start(plain);
	pool = open_worker();
	range = reserved(pool);
	asked = requests(pool);
	assert_int_equal(commit(range, 10, 20), 0);
	assert_int_equal(requests(pool), asked + 1);
	assert_int_equal(gpu_calls(pool->gpu, GPU_CALL_MAP), 20);
	assert_int_equal(gpu_calls(pool->gpu, GPU_CALL_ACCESS), 1);
	fill(range, 10, 20, 1);
	/* The missing pages are on both sides of the committed pages, so there are two runs. */
	assert_int_equal(commit(range, 5, 30), 0);
	assert_int_equal(requests(pool), asked + 2);
	assert_int_equal(gpu_calls(pool->gpu, GPU_CALL_MAP), 30);
	assert_int_equal(gpu_calls(pool->gpu, GPU_CALL_ACCESS), 3);
	assert_int_equal(wrong(range, 10, 20, 1), 0);
	calls = gpu_thread_calls_total();
	for (int round = 0; round < 5; round++) {
		assert_int_equal(decommit(range, 0, 12), 0);
		assert_int_equal(decommit(range, 20, 10), 0);
		assert_int_equal(info_of(range).committed_pages, 13);
		assert_int_equal(info_of(range).reclaimable_pages, 17);
		assert_int_equal(in_state(range, 5, 7, GPOOL_PAGE_RECLAIMABLE), 7);
		assert_int_equal(harness_check(&harness), 0);
		assert_int_equal(commit(range, 5, 30), 0);
		assert_int_equal(wrong(range, 10, 20, 1), 0);
	}
	assert_int_equal(gpu_thread_calls_total(), calls);
	assert_int_equal(requests(pool), asked + 2);
	assert_int_equal(gpu_calls(pool->gpu, GPU_CALL_RESERVE), 2); /* including the window */
	assert_int_equal(gpu_calls(pool->gpu, GPU_CALL_UNMAP), 0);
	/* Idle pages that are not mapped need no request either. */
	assert_int_equal(gpool_range_destroy(range), 0);
	range = reserved(pool);
	assert_int_equal(commit(range, 0, 30), 0);
	assert_int_equal(requests(pool), asked + 2);
	gpool_close(pool);
}

/*
 * Reclaimable pages are available to all sessions. A taken page is replaced by another page; the others stay the same.
 */
static void test_reclaimable_pages_are_taken_by_others(void **state)
{
	struct gpool_block blocks[PAGES];
	struct gpool_range *range;
	struct gpool *pool, *other;
	uint32_t count, gone;
	uint64_t maps;

	(void)state;
	start(plain);
	pool = open_worker();
	other = open_worker();
	range = reserved(pool);
	assert_int_equal(commit(range, 0, 40), 0);
	fill(range, 0, 40, 1);
	assert_int_equal(decommit(range, 10, 20), 0);
	count = squat(other, blocks, PAGES - 40 + 12);
	assert_int_equal(count, PAGES - 40 + 12);
	gone = 20 - in_state(range, 10, 20, GPOOL_PAGE_RECLAIMABLE);
	assert_int_equal(gone, 12);
	assert_int_equal(in_state(range, 10, 20, GPOOL_PAGE_HOLE), 12);
	assert_int_equal(commit(range, 10, 20), -ENOSPC);
	assert_int_equal(in_state(range, 10, 20, GPOOL_PAGE_RECLAIMABLE), 8);
	assert_int_equal(info_of(range).committed_pages, 20);
	assert_int_equal(harness_check(&harness), 0);
	leave(other, blocks, count);
	maps = gpu_calls(pool->gpu, GPU_CALL_MAP);
	assert_int_equal(commit(range, 10, 20), 0);
	assert_int_equal(gpu_calls(pool->gpu, GPU_CALL_MAP), maps + gone);
	assert_int_equal(wrong(range, 0, 10, 1) + wrong(range, 30, 10, 1), 0);
	assert_int_equal(wrong(range, 10, 20, 1), gone);
	fill(range, 10, 20, 2);
	assert_int_equal(wrong(range, 10, 20, 2), 0);
	/* Blocks of the same session take them too. */
	assert_int_equal(decommit(range, 0, 40), 0);
	count = squat(pool, blocks, PAGES);
	assert_int_equal(count, PAGES);
	assert_int_equal(in_state(range, 0, 40, GPOOL_PAGE_HOLE), 40);
	leave(pool, blocks, count);
	assert_int_equal(commit(range, 0, 40), 0);
	gpool_close(pool);
	gpool_close(other);
}

/* A handle with several pages is kept as long as one of its pages is committed. */
static void test_handles_of_several_pages(void **state)
{
	struct gpool_block blocks[PAGES];
	struct gpool_range *range;
	struct gpool *pool, *other;
	uint32_t count = 0, kept = 0;

	(void)state;
	start(fours);
	pool = open_worker();
	other = open_worker();
	range = reserved_as(pool, 203, GPOOL_OBJECT_EPHEMERAL);
	assert_int_equal(info_of(range).handle_pages, 4);
	assert_int_equal(commit(range, 3, 2), 0); /* the last page of one handle and the first page of the next */
	fill(range, 3, 2, 1);
	assert_int_equal(info_of(range).committed_pages, 2);
	assert_int_equal(gpu_calls(pool->gpu, GPU_CALL_MAP), 2);
	assert_int_equal(gpu_calls(pool->gpu, GPU_CALL_ACCESS), 1);
	assert_int_equal(free_pages() + lease_idle_count(pool), PAGES - 8);
	assert_int_equal(page_of(range, 2).state, GPOOL_PAGE_RECLAIMABLE);
	assert_int_equal(page_of(range, 8).state, GPOOL_PAGE_HOLE);
	assert_int_equal(commit(range, 0, 5), 0);
	assert_int_equal(gpu_calls(pool->gpu, GPU_CALL_MAP), 2);
	assert_int_equal(decommit(range, 3, 2), 0);
	assert_int_equal(info_of(range).reclaimable_pages, 4);
	assert_int_equal(page_of(range, 3).state, GPOOL_PAGE_RECLAIMABLE); /* its handle is in use */
	assert_int_equal(wrong(range, 3, 1, 1), 0);
	assert_int_equal(harness_check(&harness), 0);
	/* The last page of the range belongs to a handle that extends beyond the range. */
	assert_int_equal(commit(range, 202, 1), 0);
	fill(range, 202, 1, 3);
	assert_int_equal(commit(range, 202, 2), -EINVAL);
	/* One page of every three is in use, so no two adjacent handles are free, and handles are leased one by one. */
	assert_int_equal(decommit(range, 0, 203), 0);
	while (count < PAGES && gpool_alloc(other, 1, NULL, &blocks[count]) == 0)
		count++;
	assert_int_equal(count, PAGES);
	for (uint32_t i = 0; i < count; i++) {
		if (blocks[i].page / 4 % 3 == 0 && blocks[i].page % 4 == 1)
			blocks[kept++] = blocks[i];
		else
			assert_int_equal(gpool_free(other, &blocks[i]), 0);
	}
	thread_cache_flush(thread_cache_of(other));
	assert_int_equal(commit(range, 40, 4 * 10), 0);
	fill(range, 40, 40, 4);
	assert_int_equal(wrong(range, 40, 40, 4), 0);
	assert_int_equal(commit(range, 80, 4), -ENOSPC);
	assert_int_equal(harness_check(&harness), 0);
	leave(other, blocks, kept);
	assert_int_equal(commit(range, 80, 4), 0);
	gpool_close(pool);
	gpool_close(other);
}

/* ---- fences ---- */

/* Pages become idle only after the fence. Before it, the range can commit them again at once. */
static void decommit_behind_fences(const char *const *arguments)
{
	struct gpool_block blocks[PAGES];
	uint32_t manual, second, count;
	struct gpool_range *range;
	struct gpool *pool, *other;
	struct gpool_fence fence, later;

	start(arguments);
	pool = open_worker();
	other = open_worker();
	range = reserved(pool);
	assert_int_equal(gpool_stream_open(pool, NULL, GPOOL_STREAM_HOST_SIGNALED, &manual), 0);
	assert_int_equal(gpool_stream_open(pool, NULL, GPOOL_STREAM_HOST_SIGNALED, &second), 0);
	assert_int_equal(commit(range, 0, 32), 0);
	fill(range, 0, 32, 1);
	assert_int_equal(gpool_fence_record(pool, manual, &fence), 0);
	assert_int_equal(gpool_range_decommit(range, 0, 16, fence), 0);
	assert_int_equal(info_of(range).committed_pages, 16);
	assert_int_equal(info_of(range).reclaimable_pages, 0);
	count = squat(other, blocks, PAGES);
	assert_int_equal(count, PAGES - 32);
	assert_int_equal(wrong(range, 0, 32, 1), 0);
	/*
	 * Some pages are committed, and decommitted again after the work of another stream: they wait for both fences.
	 */
	assert_int_equal(commit(range, 0, 8), 0);
	assert_int_equal(gpool_fence_record(pool, second, &later), 0);
	assert_int_equal(gpool_range_decommit(range, 0, 8, later), 0);
	assert_int_equal(gpool_fence_signal(pool, later), 0);
	assert_int_equal(info_of(range).reclaimable_pages, 0);
	assert_int_equal(gpool_alloc(other, 1, NULL, &blocks[count]), -ENOSPC);
	assert_int_equal(gpool_sleep(pool, 0), -EBUSY);
	assert_int_equal(gpool_range_destroy(range), -EBUSY);
	assert_int_equal(wrong(range, 0, 32, 1), 0);
	assert_int_equal(gpool_fence_signal(pool, fence), 0);
	assert_int_equal(info_of(range).reclaimable_pages, 16);
	count += squat(other, blocks + count, PAGES);
	assert_int_equal(count, PAGES - 16);
	assert_int_equal(wrong(range, 16, 16, 1), 0);
	/* Closing the session does not wait for a fence that is never signaled. */
	assert_int_equal(gpool_fence_record(pool, manual, &fence), 0);
	assert_int_equal(gpool_range_decommit(range, 16, 4, fence), 0);
	fence.value += 1;
	assert_int_equal(gpool_range_decommit(range, 20, 4, fence), -EINVAL);
	leave(other, blocks, count);
	gpool_close(pool);
	gpool_close(other);
	AWAIT(free_pages() == PAGES);
}

static void test_decommit_behind_fences(void **state)
{
	(void)state;
	decommit_behind_fences(plain);
}

static void test_decommit_behind_fences_large_handles(void **state)
{
	(void)state;
	decommit_behind_fences(fours);
}

/*
 * The back end refuses to unmap under queued work. Pages that were decommitted without the fence of that work cannot be
 * committed again before the work is done.
 */
static void test_queued_work(void **state)
{
	struct gpool_block blocks[PAGES];
	uint32_t manual, stream, count;
	struct gpool_range *range;
	struct gpool *pool, *other;
	struct gpool_fence gate, fence;

	(void)state;
	start(plain);
	pool = open_worker();
	other = open_worker();
	range = reserved(pool);
	assert_int_equal(gpool_stream_open(pool, NULL, 0, &stream), 0);
	assert_int_equal(gpool_stream_open(pool, NULL, GPOOL_STREAM_HOST_SIGNALED, &manual), 0);
	assert_int_equal(commit(range, 0, 8), 0);
	fill(range, 0, 8, 1);
	assert_int_equal(gpool_fence_record(pool, manual, &gate), 0);
	assert_int_equal(gpool_stream_wait(pool, stream, gate), 0);
	assert_int_equal(gpool_fill(pool, stream, (uint64_t)(uintptr_t)words_at(range, 2), 0x77, PAGE_BYTES), 0);
	assert_int_equal(gpool_fence_record(pool, stream, &fence), 0);
	assert_int_equal(gpool_range_decommit(range, 4, 4, fence), 0);
	assert_int_equal(decommit(range, 0, 4), 0); /* the given fence is wrong */
	count = squat(other, blocks, PAGES);
	assert_int_equal(count, PAGES - 4);
	leave(other, blocks, count);
	assert_int_equal(commit(range, 0, 4), -EBUSY);
	assert_int_equal(info_of(range).committed_pages, 0);
	assert_int_equal(commit(range, 4, 4), 0);
	assert_int_equal(wrong(range, 4, 4, 1), 0);
	assert_int_equal(harness_check(&harness), 0);
	assert_int_equal(gpool_fence_signal(pool, gate), 0);
	assert_int_equal(gpool_fence_wait(pool, fence, ANSWER_MS), 0);
	assert_int_equal(commit(range, 0, 4), 0);
	fill(range, 0, 8, 2);
	assert_int_equal(wrong(range, 0, 8, 2), 0);
	gpool_close(pool);
	gpool_close(other);
}

static void test_captured(void **state)
{
	struct gpool_block blocks[PAGES];
	struct gpool_range *range;
	struct gpool *pool, *other;
	uint32_t count;

	(void)state;
	start(spilling);
	pool = open_worker();
	other = open_worker();
	range = reserved(pool);
	assert_int_equal(gpool_range_capture(range, 0, 4, 1), -EINVAL);
	assert_int_equal(commit(range, 0, 16), 0);
	fill(range, 0, 16, 1);
	assert_int_equal(gpool_range_capture(range, 4, 4, 1), 0);
	assert_int_equal(gpool_range_capture(range, 6, 4, 1), 0);
	assert_int_equal(info_of(range).captured_pages, 6);
	assert_int_equal(decommit(range, 0, 16), 0);
	assert_int_equal(info_of(range).committed_pages, 0);
	assert_int_equal(page_of(range, 5).state, GPOOL_PAGE_RECLAIMABLE);
	assert_int_equal(page_of(range, 5).flags, GPOOL_PAGE_CAPTURED);
	count = squat(other, blocks, PAGES);
	assert_int_equal(count, PAGES - 6);
	/* A graph may read and write these pages, and reads the earlier content. */
	assert_int_equal(wrong(range, 4, 6, 1), 0);
	fill(range, 4, 6, 2);
	assert_int_equal(gpool_range_capture(range, 4, 2, 0), 0);
	count += squat(other, blocks + count, PAGES);
	assert_int_equal(count, PAGES - 4);
	assert_int_equal(gpool_range_capture(range, 0, 16, 0), 0);
	assert_int_equal(info_of(range).captured_pages, 0);
	count += squat(other, blocks + count, PAGES);
	assert_int_equal(count, PAGES);
	leave(other, blocks, count);
	/* During sleep no page is mapped. After wake, the graph's addresses are mapped again with their content. */
	assert_int_equal(commit(range, 0, 4), 0);
	fill(range, 0, 4, 3);
	assert_int_equal(gpool_range_capture(range, 0, 4, 1), 0);
	assert_int_equal(decommit(range, 0, 4), 0);
	assert_int_equal(gpool_sleep(pool, 0), 0);
	count = squat(other, blocks, PAGES);
	assert_int_equal(count, PAGES);
	leave(other, blocks, count);
	assert_int_equal(gpool_wake(pool, ANSWER_MS), 0);
	assert_int_equal(wrong(range, 0, 4, 3), 0);
	assert_int_equal(info_of(range).committed_pages, 0);
	assert_int_equal(gpool_range_capture(range, 0, 4, 0), 0);
	gpool_close(pool);
	gpool_close(other);
}

/* ---- faults ---- */

/* Make the n-th call of each kind fail while some pages are committed, reclaimable, taken or unused. */
static void test_driver_faults(void **state)
{
	static const enum gpu_call kinds[] = {GPU_CALL_MAP, GPU_CALL_ACCESS, GPU_CALL_UNMAP, GPU_CALL_IMPORT};
	struct gpool_block blocks[PAGES];
	struct gpool *pool, *other;
	uint32_t failures = 0;

	(void)state;
	start(plain);
	other = open_worker();
	for (uint32_t kind = 0; kind < sizeof(kinds) / sizeof(*kinds); kind++)
		for (uint64_t n = 1; n < 20; n++) {
			struct gpool_range *range;
			uint32_t count;
			int error;

			pool = open_worker(); /* a new process has imported no memory */
			range = reserved(pool);
			assert_int_equal(commit(range, 2, 12), 0);
			fill(range, 2, 12, n);
			assert_int_equal(decommit(range, 4, 6), 0);
			count = squat(other, blocks, PAGES - 12 + 3);
			leave(other, blocks, count);
			assert_int_equal(in_state(range, 4, 6, GPOOL_PAGE_RECLAIMABLE), 3);
			gpu_fault_set(pool->gpu, kinds[kind], n, -EIO);
			error = commit(range, 0, 18);
			gpu_fault_set(pool->gpu, kinds[kind], 0, 0);
			failures += error != 0;
			if (error) {
				assert_int_equal(error, -ENOMEM);
				assert_int_equal(info_of(range).committed_pages, 6);
				assert_int_equal(in_state(range, 0, 18, GPOOL_PAGE_COMMITTED), 6);
			}
			assert_int_equal(wrong(range, 2, 2, n) + wrong(range, 10, 4, n), 0);
			assert_int_equal(harness_check(&harness), 0);
			/* Other sessions hold the pages that this session did not get. */
			count = squat(other, blocks, PAGES);
			assert_int_equal(count, error ? PAGES - 6 : PAGES - 18);
			leave(other, blocks, count);
			assert_int_equal(commit(range, 0, 18), 0);
			fill(range, 0, 18, 100 + n);
			assert_int_equal(wrong(range, 0, 18, 100 + n), 0);
			gpool_close(pool);
			AWAIT(free_pages() + lease_idle_count(other) == PAGES);
		}
	assert_in_range(failures, 15, 60);
	gpool_close(other);
}

/* A commit can neither give access to its pages nor unmap them. The next one gives access, even to the same pages. */
static void test_undo_fails(void **state)
{
	struct gpool_range *range;
	struct gpool *pool;

	(void)state;
	start(plain);
	pool = open_worker();
	range = reserved(pool);
	gpu_fault_set(pool->gpu, GPU_CALL_ACCESS, 1, -EIO);
	gpu_fault_set(pool->gpu, GPU_CALL_UNMAP, 1, -EIO);
	assert_int_equal(commit(range, 0, 6), -ENOMEM);
	gpu_fault_set(pool->gpu, GPU_CALL_ACCESS, 0, 0);
	gpu_fault_set(pool->gpu, GPU_CALL_UNMAP, 0, 0);
	assert_int_equal(commit(range, 0, 6), 0);
	fill(range, 0, 6, 1);
	assert_int_equal(wrong(range, 0, 6, 1), 0);
	gpool_close(pool);
	AWAIT(free_pages() == PAGES);
}

/* Sleep, wake and destroy an elastic range while the n-th call fails. */
static void test_driver_faults_asleep(void **state)
{
	static const enum gpu_call kinds[] = {GPU_CALL_UNMAP, GPU_CALL_ACCESS, GPU_CALL_MAP};
	struct gpool_range *range, *whole;
	struct gpool_range_options options = GPOOL_RANGE_OPTIONS_INIT;
	struct gpool *pool;

	(void)state;
	start(spilling);
	pool = open_worker();
	range = reserved(pool);
	options.memory_class = GPOOL_OBJECT_MUTABLE;
	assert_int_equal(gpool_range_create(pool, 3, &options, &whole), 0);
	for (uint32_t i = 0; i < 12; i += 4)
		assert_int_equal(commit(range, i, 3), 0); /* three runs */
	for (uint32_t kind = 0; kind < sizeof(kinds) / sizeof(*kinds); kind++)
		for (uint64_t n = 1; n < 14; n++) {
			int error;

			for (uint32_t i = 0; i < 12; i += 4)
				fill(range, i, 3, n);
			fill(whole, 0, 3, n);
			gpu_fault_set(pool->gpu, kinds[kind], n, -EIO);
			error = gpool_sleep(pool, 0);
			assert_int_equal(gpool_asleep(pool), !error);
			if (error) {
				for (uint32_t i = 0; i < 12; i += 4)
					assert_int_equal(wrong(range, i, 3, n), 0);
				assert_int_equal(info_of(range).committed_pages, 9);
				assert_int_equal(gpool_sleep(pool, 0), 0);
			}
			assert_int_equal(commit(range, 0, 1), -EHOSTDOWN);
			error = gpool_wake(pool, 0);
			assert_int_equal(gpool_asleep(pool), !!error);
			if (error)
				assert_int_equal(gpool_wake(pool, 0), 0);
			gpu_fault_set(pool->gpu, kinds[kind], 0, 0);
			for (uint32_t i = 0; i < 12; i += 4)
				assert_int_equal(wrong(range, i, 3, n), 0);
			assert_int_equal(wrong(whole, 0, 3, n), 0);
			assert_int_equal(harness_check(&harness), 0);
		}
	gpu_fault_set(pool->gpu, GPU_CALL_UNMAP, 2, -EIO);
	assert_int_equal(gpool_range_destroy(range), -EIO);
	gpu_fault_set(pool->gpu, GPU_CALL_UNMAP, 0, 0);
	for (uint32_t i = 0; i < 12; i += 4)
		assert_int_equal(wrong(range, i, 3, 13), 0);
	assert_int_equal(gpool_range_destroy(range), 0);
	assert_int_equal(gpool_range_destroy(whole), 0);
	assert_int_equal(free_pages() + lease_idle_count(pool), PAGES);
	gpool_close(pool);
}

/* ---- sleep ---- */

static void sleeps(const char *const *arguments)
{
	struct gpool_range *mutable, *ephemeral, *empty, *doomed;
	struct gpool_block blocks[PAGES];
	struct gpool *pool, *other;
	uint32_t count;

	start(arguments);
	pool = open_worker();
	other = open_worker();
	mutable = reserved(pool);
	ephemeral = reserved_as(pool, 100, GPOOL_OBJECT_EPHEMERAL);
	empty = reserved(pool);
	doomed = reserved(pool);
	assert_int_equal(commit(mutable, 4, 4), 0);
	assert_int_equal(commit(mutable, 60, 8), 0);
	assert_int_equal(commit(mutable, 100, 4), 0);
	assert_int_equal(commit(ephemeral, 8, 4), 0);
	assert_int_equal(commit(doomed, 0, 4), 0);
	assert_int_equal(commit(empty, 0, 4), 0);
	fill(mutable, 4, 4, 1);
	fill(mutable, 60, 8, 1);
	assert_int_equal(decommit(mutable, 100, 4), 0);
	assert_int_equal(decommit(empty, 0, 4), 0);
	for (int round = 0; round < 3; round++) {
		assert_int_equal(gpool_sleep(pool, 0), 0);
		assert_int_equal(info_of(mutable).state, GPOOL_RANGE_ASLEEP);
		assert_int_equal(commit(mutable, 0, 1), -EHOSTDOWN);
		assert_int_equal(decommit(mutable, 4, 1), -EHOSTDOWN);
		assert_int_equal(gpool_range_capture(mutable, 4, 1, 1), -EHOSTDOWN);
		assert_int_equal(info_of(mutable).committed_pages, 12);
		count = squat(other, blocks, PAGES);
		assert_int_equal(count, PAGES);
		leave(other, blocks, count);
		if (round == 1)
			assert_int_equal(gpool_range_destroy(doomed), 0);
		assert_int_equal(gpool_wake(pool, ANSWER_MS), 0);
		assert_int_equal(wrong(mutable, 4, 4, 1) + wrong(mutable, 60, 8, 1), 0);
		assert_int_equal(info_of(mutable).committed_pages, 12);
		assert_int_equal(in_state(mutable, 100, 4, GPOOL_PAGE_HOLE), 4);
		assert_int_equal(in_state(ephemeral, 8, 4, GPOOL_PAGE_COMMITTED), 4);
		fill(ephemeral, 8, 4, 3);
		assert_int_equal(wrong(ephemeral, 8, 4, 3), 0);
		assert_int_equal(harness_check(&harness), 0);
	}
	assert_int_equal(commit(mutable, 0, 24), 0);
	assert_int_equal(wrong(mutable, 4, 4, 1), 0);
	assert_int_equal(decommit(mutable, 0, 1000), 0);
	/* Without committed pages, no content is spilled. */
	assert_int_equal(decommit(ephemeral, 0, 100), 0);
	assert_int_equal(gpool_sleep(pool, 0), 0);
	assert_int_equal(kept_bytes(), 0);
	assert_int_equal(gpool_wake(pool, 0), 0);
	assert_int_equal(commit(mutable, 0, 1), 0);
	/* Destroy a range and close a session during sleep. */
	assert_int_equal(gpool_sleep(pool, 0), 0);
	assert_int_equal(gpool_range_destroy(mutable), 0);
	assert_int_equal(kept_bytes(), 0);
	gpool_close(pool);
	gpool_close(other);
	AWAIT(free_pages() == PAGES);
}

static void test_sleeps(void **state)
{
	(void)state;
	sleeps(spilling);
}

static void test_sleeps_large_handles(void **state)
{
	(void)state;
	sleeps(fours_spilling);
}

/* ---- deaths ---- */

static void __attribute__((noreturn)) child_run(unsigned seed, int ready)
{
	struct gpool *pool;
	struct gpool_range *range;
	uint32_t manual;
	struct gpool_fence fence;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	pool = open_worker();
	range = reserved_as(pool, 64, GPOOL_OBJECT_EPHEMERAL);
	if (gpool_stream_open(pool, NULL, GPOOL_STREAM_HOST_SIGNALED, &manual) || write(ready, "", 1) != 1)
		_exit(1);
	for (;;) {
		uint32_t first = (uint32_t)rand_r(&seed) % 56, count = (uint32_t)rand_r(&seed) % 8 + 1;

		if (rand_r(&seed) % 2) {
			if (!commit(range, first, count))
				fill(range, first, count, 1);
		} else if (rand_r(&seed) % 2) {
			decommit(range, first, count);
		} else if (!gpool_fence_record(pool, manual, &fence)) {
			gpool_range_decommit(range, first, count, fence);
			gpool_fence_signal(pool, fence);
		}
	}
}

/* A worker that is killed at any instruction leaves no pages behind, and other sessions lose none. Requirements: S1. */
static void test_killed(void **state)
{
	struct gpool_range *range;
	struct gpool *pool;

	(void)state;
	start(plain);
	pool = open_worker();
	range = reserved(pool);
	assert_int_equal(commit(range, 0, 16), 0);
	fill(range, 0, 16, 9);
	for (unsigned round = 0; round < 25; round++) {
		int ready[2];
		pid_t child;
		char byte;

		assert_int_equal(pipe(ready), 0);
		child = fork();
		if (child == 0)
			child_run(round, ready[1]);
		assert_int_equal(read(ready[0], &byte, 1), 1);
		close(ready[0]);
		close(ready[1]);
		/* The number of steps depends on the worker's speed. */
		for (unsigned i = 0; i < round * 10; i++) {
			assert_int_equal(decommit(range, 12, 4), 0);
			assert_int_equal(gpool_range_commit(range, 12, 4, ANSWER_MS), 0);
		}
		kill(child, SIGKILL);
		assert_true(WIFSIGNALED(status_of(child)));
		AWAIT(free_pages() + lease_idle_count(pool) == PAGES - 16);
		assert_int_equal(harness_check(&harness), 0);
		assert_int_equal(wrong(range, 0, 12, 9), 0);
	}
	gpool_close(pool);
}

/* The agent ends and restarts while calls continue. Committed pages are kept. */
static void test_agent_killed(void **state)
{
	struct gpool_range *range;
	struct gpool *pool;
	unsigned seed = 5;

	(void)state;
	start(plain);
	pool = open_worker();
	range = reserved(pool);
	assert_int_equal(commit(range, 0, 8), 0);
	fill(range, 0, 8, 1);
	for (int kills = 0; kills < 8; kills++) {
		pid_t agent = process_of("gpoold-agent");
		int ended;

		assert_true(agent > 0);
		ended = pidfd_of(agent);
		kill(agent, SIGKILL);
		for (int i = 0; i < 40; i++) {
			uint32_t first = 8 + (uint32_t)rand_r(&seed) % 40, count = (uint32_t)rand_r(&seed) % 12 + 1;

			assert_int_equal(gpool_range_commit(range, first, count, ANSWER_MS), 0);
			fill(range, first, count, 2);
			assert_int_equal(wrong(range, first, count, 2), 0);
			assert_int_equal(decommit(range, first, count), 0);
			assert_int_equal(wrong(range, 0, 8, 1), 0);
		}
		await_end(ended);
		AWAIT(process_of("gpoold-agent") > 0);
		AWAIT(harness_check(&harness) == 0);
	}
	gpool_close(pool);
}

/* ---- concurrency ---- */

struct part {
	struct gpool *pool;
	struct gpool_range *range;
	uint32_t first, count, stream, rounds;
	unsigned seed;
	uint32_t wrong;
	int error;
	pthread_t thread;
};

/*
 * Use a thread's own part of a range that other threads use too. Each page must match the thread's model: committed or
 * not, with the content written last.
 */
static void *part_run(void *argument)
{
	struct part *part = argument;
	uint64_t content[32] = {0};

	for (uint32_t round = 1; round <= part->rounds && !part->error; round++) {
		uint32_t first = (uint32_t)rand_r(&part->seed) % part->count,
			 count = (uint32_t)rand_r(&part->seed) % (part->count - first) + 1;
		struct gpool_fence fence;
		int error;

		if (rand_r(&part->seed) % 2) {
			error = gpool_range_commit(part->range, part->first + first, count, 0);
			for (uint32_t i = first; !error && i < first + count; i++) {
				if (!content[i])
					fill(part->range, part->first + i, 1,
						content[i] = (uint64_t)part->first << 16 | round);
			}
			if (error != -ENOSPC)
				part->error = error;
		} else {
			error = gpool_fence_record(part->pool, part->stream, &fence);
			if (!error)
				error = gpool_range_decommit(part->range, part->first + first, count, fence);
			memset(content + first, 0, count * sizeof(*content));
			part->error = error;
		}
		for (uint32_t i = 0; i < part->count; i++)
			if (content[i])
				part->wrong += wrong(part->range, part->first + i, 1, content[i]);
	}
	return NULL;
}

static void parts_run(const char *const *arguments)
{
	struct part parts[4] = {{0}};
	struct gpool_range *range;
	struct gpool *pool;

	start(arguments);
	pool = open_worker();
	range = reserved(pool);
	for (uint32_t i = 0; i < 4; i++) {
		parts[i] = (struct part){
			.pool = pool, .range = range, .first = 32 * i, .count = 24, .rounds = 300, .seed = i};
		assert_int_equal(gpool_stream_open(pool, NULL, 0, &parts[i].stream), 0);
		assert_int_equal(pthread_create(&parts[i].thread, NULL, part_run, &parts[i]), 0);
	}
	for (uint32_t i = 0; i < 4; i++) {
		pthread_join(parts[i].thread, NULL);
		assert_int_equal(parts[i].error, 0);
		assert_int_equal(parts[i].wrong, 0);
	}
	assert_int_equal(harness_check(&harness), 0);
	assert_int_equal(decommit(range, 0, SPARSE), 0);
	assert_int_equal(gpool_range_destroy(range), 0);
	assert_int_equal(free_pages() + lease_idle_count(pool), PAGES);
	gpool_close(pool);
}

static void test_threads(void **state)
{
	(void)state;
	parts_run(plain);
}

static void test_threads_large_handles(void **state)
{
	(void)state;
	parts_run(fours);
}

static void *commits(void *argument)
{
	return (void *)(intptr_t)gpool_range_commit(argument, 0, 16, ANSWER_MS);
}

/*
 * A call that waits for pages does not prevent other calls from committing or decommitting, holds no pages while it
 * waits, and prevents sleep.
 */
static void test_waits_for_nothing_else(void **state)
{
	struct gpool_range *range, *second;
	pthread_t thread;
	struct gpool *pool;
	void *result;

	(void)state;
	start(plain);
	pool = open_worker();
	range = reserved(pool);
	second = reserved(pool);
	assert_int_equal(commit(range, 100, 30), 0);
	assert_int_equal(commit(second, 0, 30), 0);
	assert_int_equal(pthread_create(&thread, NULL, commits, range), 0);
	AWAIT(atomic_load(&pool_view(admin)->header->waiters) == 1);
	assert_int_equal(free_pages(), 4);
	assert_int_equal(gpool_range_commit(range, 8, 4, 0), 0);
	assert_int_equal(decommit(range, 8, 4), 0);
	assert_int_equal(gpool_sleep(pool, 0), -EBUSY);
	assert_int_equal(decommit(range, 100, 4), 0);
	assert_int_equal(decommit(second, 0, 10), 0);
	assert_int_equal(pthread_join(thread, &result), 0);
	assert_null(result);
	assert_int_equal(info_of(range).committed_pages, 26 + 16);
	gpool_close(pool);
}

struct rival {
	struct gpool *pool;
	pthread_t thread;
	uint32_t rounds, wrong;
	int error;
};

static void *rival_run(void *argument)
{
	struct rival *rival = argument;
	struct gpool_range *range = reserved(rival->pool);

	for (uint32_t round = 1; round <= rival->rounds && !rival->error; round++) {
		rival->error = gpool_range_commit(range, 0, 40, -1);
		if (rival->error)
			break;
		fill(range, 0, 40, round);
		sched_yield();
		rival->wrong += wrong(range, 0, 40, round);
		rival->error = decommit(range, 0, 40);
	}
	if (!rival->error)
		rival->error = gpool_range_destroy(range);
	return NULL;
}

/*
 * Only one of the threads can have all its pages at a time. Each has some reclaimable pages, and both must make
 * progress.
 */
static void rivals(bool one_process, const char *const *arguments)
{
	struct rival rivals[3] = {{0}};

	start(arguments);
	for (uint32_t i = 0; i < 3; i++) {
		rivals[i].rounds = 120;
		rivals[i].pool = one_process && i ? rivals[0].pool : open_worker();
		assert_int_equal(pthread_create(&rivals[i].thread, NULL, rival_run, &rivals[i]), 0);
	}
	for (uint32_t i = 0; i < 3; i++) {
		pthread_join(rivals[i].thread, NULL);
		assert_int_equal(rivals[i].error, 0);
		assert_int_equal(rivals[i].wrong, 0);
	}
	assert_int_equal(harness_check(&harness), 0);
	for (uint32_t i = 0; i < (one_process ? 1 : 3); i++)
		gpool_close(rivals[i].pool);
	AWAIT(free_pages() == PAGES);
}

static void test_rivals(void **state)
{
	(void)state;
	rivals(false, plain);
}

static void test_rivals_in_one_process(void **state)
{
	(void)state;
	rivals(true, plain);
}

static void test_rivals_with_large_handles(void **state)
{
	(void)state;
	rivals(false, fours);
}

/* ---- arguments ---- */

static void test_wrong_arguments(void **state)
{
	struct gpool_range_options options = GPOOL_RANGE_OPTIONS_INIT;
	struct gpool_range_page page = {.size = 3};
	struct gpool_range *range, *whole, *never = NULL;
	struct gpool *pool;
	int exit_status;
	pid_t child;

	(void)state;
	start(plain);
	pool = open_worker();
	assert_int_equal(gpool_range_reserve(pool, 0, NULL, &never), -EINVAL);
	assert_int_equal(gpool_range_reserve(pool, 1, &options, &never), -EINVAL); /* immutable */
	options.memory_class = GPOOL_OBJECT_EPHEMERAL;
	options.timeout_ms = 1;
	assert_int_equal(gpool_range_reserve(pool, 1, &options, &never), -EINVAL);
	options.timeout_ms = 0;
	options.name = "n";
	assert_int_equal(gpool_range_reserve(pool, 1, &options, &never), -EINVAL);
	options.name = NULL;
	options.usage = GPOOL_USAGE_COUNT;
	assert_int_equal(gpool_range_reserve(pool, 1, &options, &never), -EINVAL);
	assert_int_equal(gpool_range_reserve(admin, 1, NULL, &never), -EPERM);
	assert_int_equal(gpool_range_reserve(pool, UINT32_MAX, NULL, &never), -ENOMEM);
	assert_null(never);
	assert_int_equal(gpool_range_reserve(pool, 10, NULL, &range), 0);
	assert_int_equal(gpool_range_create(pool, 2, NULL, &whole), 0);
	assert_int_equal(info_of(whole).committed_pages, 2);
	assert_int_equal(commit(whole, 0, 1), -EINVAL);
	assert_int_equal(decommit(whole, 0, 1), -EINVAL);
	assert_int_equal(gpool_range_resolve(whole, 0, &page), -EINVAL);
	assert_int_equal(commit(range, 0, 0), -EINVAL);
	assert_int_equal(commit(range, 10, 1), -EINVAL);
	assert_int_equal(commit(range, 1, 10), -EINVAL);
	assert_int_equal(commit(range, UINT32_MAX, UINT32_MAX), -EINVAL);
	assert_int_equal(gpool_range_commit(range, 0, 1, -2), -EINVAL);
	assert_int_equal(decommit(range, 5, 6), -EINVAL);
	assert_int_equal(gpool_range_decommit(range, 0, 1, (struct gpool_fence){1}), -EINVAL);
	assert_int_equal(gpool_range_capture(range, 0, 1, 2), -EINVAL);
	assert_int_equal(gpool_range_resolve(range, 0, &page), -EINVAL);
	assert_int_equal(commit(range, 0, 10), 0);
	/* A child process cannot use the range. */
	child = fork();
	if (child == 0) {
		page.size = sizeof(page);
		_exit(commit(range, 0, 1) == -ECHILD && decommit(range, 0, 1) == -ECHILD &&
					gpool_range_capture(range, 0, 1, 1) == -ECHILD &&
					gpool_range_resolve(range, 0, &page) == -ECHILD &&
					gpool_range_reserve(pool, 1, NULL, &never) == -ECHILD
				? 0
				: 1);
	}
	exit_status = status_of(child);
	assert_true(WIFEXITED(exit_status));
	assert_int_equal(WEXITSTATUS(exit_status), 0);
	gpool_close(pool);
}

/* With GPOOL_RANGE_ZERO a page has its own content of before, or zeros, and never that of another worker. */
static void test_zeroed(void **state)
{
	struct gpool_range_options options = GPOOL_RANGE_OPTIONS_INIT;
	struct gpool_block blocks[PAGES];
	struct gpool *other, *pool;
	struct gpool_range *range;
	uint32_t own = 0, zero = 0;

	(void)state;
	start(plain);
	pool = open_worker();
	other = open_worker();
	options.memory_class = GPOOL_OBJECT_MUTABLE;
	options.flags = 1u << 1;
	assert_int_equal(gpool_range_reserve(pool, SPARSE, &options, &range), -EINVAL);
	options.flags = GPOOL_RANGE_ZERO;
	assert_int_equal(gpool_range_reserve(pool, SPARSE, &options, &range), 0);
	assert_int_equal(squat(other, blocks, PAGES), PAGES);
	leave(other, blocks, PAGES);
	gpool_release_unused(other);
	assert_int_equal(commit(range, 0, PAGES), 0);
	for (uint32_t page = 0; page < PAGES; page++)
		for (uint32_t word = 0; word < PAGE_BYTES / 8; word++)
			zero += words_at(range, page)[word] == 0;
	assert_int_equal(zero, PAGES * (PAGE_BYTES / 8));
	fill(range, 0, PAGES, 1);
	assert_int_equal(decommit(range, 0, PAGES), 0);
	assert_int_equal(squat(other, blocks, 16), 16);
	leave(other, blocks, 16);
	gpool_release_unused(other);
	assert_int_equal(commit(range, 0, PAGES), 0);
	zero = 0;
	for (uint32_t page = 0; page < PAGES; page++) {
		own += !wrong(range, page, 1, 1);
		zero += words_at(range, page)[0] == 0 && words_at(range, page)[PAGE_BYTES / 8 - 1] == 0;
	}
	assert_int_equal(own + zero, PAGES);
	assert_in_range(zero, 16, 20);
	gpool_close(pool);
	gpool_close(other);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_addresses_first, stop),
		cmocka_unit_test_teardown(test_vast, stop),
		cmocka_unit_test_teardown(test_driver_calls, stop),
		cmocka_unit_test_teardown(test_reclaimable_pages_are_taken_by_others, stop),
		cmocka_unit_test_teardown(test_handles_of_several_pages, stop),
		cmocka_unit_test_teardown(test_decommit_behind_fences, stop),
		cmocka_unit_test_teardown(test_decommit_behind_fences_large_handles, stop),
		cmocka_unit_test_teardown(test_queued_work, stop),
		cmocka_unit_test_teardown(test_zeroed, stop),
		cmocka_unit_test_teardown(test_captured, stop),
		cmocka_unit_test_teardown(test_driver_faults, stop),
		cmocka_unit_test_teardown(test_undo_fails, stop),
		cmocka_unit_test_teardown(test_driver_faults_asleep, stop),
		cmocka_unit_test_teardown(test_sleeps, stop),
		cmocka_unit_test_teardown(test_sleeps_large_handles, stop),
		cmocka_unit_test_teardown(test_killed, stop),
		cmocka_unit_test_teardown(test_agent_killed, stop),
		cmocka_unit_test_teardown(test_threads, stop),
		cmocka_unit_test_teardown(test_threads_large_handles, stop),
		cmocka_unit_test_teardown(test_waits_for_nothing_else, stop),
		cmocka_unit_test_teardown(test_rivals, stop),
		cmocka_unit_test_teardown(test_rivals_in_one_process, stop),
		cmocka_unit_test_teardown(test_rivals_with_large_handles, stop),
		cmocka_unit_test_teardown(test_wrong_arguments, stop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
