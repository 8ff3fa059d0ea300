/*
 * test_sleep.c - ranges that release their pages and get them back at the same addresses.
 *
 * Goal: after a wake, addresses and contents are the same, even if other sessions used the pages in the meantime. A
 * failure leaves the worker awake or asleep, as it was. Two processes that sleep and wake at the same time make
 * progress. Deaths of worker, agent and mover affect no other process.
 *
 * Method: each test starts a gpoold with a pool of 64 pages. Content identifies its page. The back end and the tiers
 * fail, and processes are killed at random times.
 *
 * Requirements: S6.
 */
#include "tests/integration/spill_view.h"

#include "client/vm/range.h"

#include <errno.h>
#include <pthread.h>

enum { PAGE_BYTES = 512 << 10, STEP = 61 };

#define CALM QUIET, "--set", "lease.initial_pages=0", "--set", "lease.batch_pages=1", "--set", "lease.batch_most=1"

static const char *const in_memory[] = {"--pool", POOL ",spill_memory=32MiB", CALM, NULL};
static const char *const no_tier[] = {"--pool", POOL ",spill_memory=0MiB", CALM, NULL};

/* ---- ranges and their contents ---- */

static struct gpool_range *made(struct gpool *pool, uint32_t pages, uint32_t memory_class, const char *name)
{
	struct gpool_range_options options = GPOOL_RANGE_OPTIONS_INIT;
	struct gpool_range *range = NULL;

	options.memory_class = memory_class;
	options.name = name;
	options.owner_id = 815;
	options.timeout_ms = ANSWER_MS;
	assert_int_equal(gpool_range_create(pool, pages, &options, &range), 0);
	return range;
}

static uint64_t address_of(const struct gpool_range *range)
{
	uint64_t address = 0;

	assert_int_equal(gpool_range_address(range, &address), 0);
	return address;
}

static struct gpool_range_info info_of(struct gpool_range *range)
{
	struct gpool_range_info info = {.size = sizeof(info)};

	assert_int_equal(gpool_range_info(range, &info), 0);
	return info;
}

static uint64_t words_of(struct gpool_range *range)
{
	return info_of(range).bytes / 8;
}

static void fill(struct gpool_range *range, uint64_t content)
{
	volatile uint64_t *words = (volatile uint64_t *)(uintptr_t)address_of(range);
	uint64_t count = words_of(range);

	for (uint64_t i = 0; i < count; i += STEP)
		words[i] = content << 32 | i;
}

static uint64_t wrong_words(struct gpool_range *range, uint64_t content)
{
	const volatile uint64_t *words = (const volatile uint64_t *)(uintptr_t)address_of(range);
	uint64_t count = words_of(range), wrong = 0;

	for (uint64_t i = 0; i < count; i += STEP)
		wrong += words[i] != (content << 32 | i);
	return wrong;
}

static uint32_t free_pages(void)
{
	return atomic_load(&pool_view(admin)->header->state_pages[PAGE_FREE]);
}

static uint32_t pinned_blocks_of(const struct gpool *pool)
{
	uint32_t heads = 0;

	for (uint32_t page = 0; page < PAGES; page++)
		heads += atomic_load(&pool->session.pins[page]) != 0;
	return heads;
}

/* Allocate every second page at the pool's beginning, so that no two free pages are adjacent. */
static uint32_t scatter(struct gpool *pool, struct gpool_block *kept)
{
	struct gpool_block all[PAGES];
	uint32_t count = 0, left = 0;

	while (count < PAGES && gpool_alloc(pool, 1, NULL, &all[count]) == 0)
		count++;
	for (uint32_t i = 0; i < count; i++) {
		if (all[i].page % 2 && all[i].page < 24)
			kept[left++] = all[i];
		else
			assert_int_equal(gpool_free(pool, &all[i]), 0);
	}
	thread_cache_flush(thread_cache_of(pool));
	return left;
}

/* Allocate all available pages, in blocks of one page. */
static uint32_t squat(struct gpool *pool, struct gpool_block *blocks, uint32_t most)
{
	uint32_t count = 0;

	while (count < most && gpool_alloc(pool, 1, NULL, &blocks[count]) == 0) {
		uint64_t address;

		assert_int_equal(gpool_address(pool, &blocks[count], &address), 0);
		memset((void *)(uintptr_t)address, 0xee, PAGE_BYTES);
		count++;
	}
	return count;
}

static void leave(struct gpool *pool, struct gpool_block *blocks, uint32_t count)
{
	while (count)
		assert_int_equal(gpool_free(pool, &blocks[--count]), 0);
	thread_cache_flush(thread_cache_of(pool));
}

/* ---- sleep and wake ---- */

static void test_same_addresses_and_contents(void **state)
{
	struct gpool_block kept[PAGES], squatters[PAGES];
	struct gpool_range *mutable[2], *ephemeral, *immutable, *opened;
	uint64_t addresses[5];
	struct gpool *pool, *other;
	uint32_t kept_count, count;

	(void)state;
	start(in_memory);
	other = open_worker();
	kept_count = scatter(other, kept);
	assert_int_equal(kept_count, 12);
	pool = open_worker();
	mutable[0] = made(pool, 10, GPOOL_OBJECT_MUTABLE, NULL);
	ephemeral = made(pool, 6, GPOOL_OBJECT_EPHEMERAL, NULL);
	immutable = made(pool, 5, GPOOL_OBJECT_IMMUTABLE, "weights");
	mutable[1] = made(pool, 24, GPOOL_OBJECT_MUTABLE, NULL);
	assert_true(mutable[0] -> pages.count > 1 || mutable[1] -> pages.count > 1);
	assert_int_equal(pinned_blocks_of(pool), 4);
	fill(mutable[0], 1);
	fill(ephemeral, 2);
	fill(immutable, 3);
	fill(mutable[1], 4);
	assert_int_equal(gpool_asleep(pool), 0);
	assert_int_equal(info_of(immutable).version, 0);
	assert_int_equal(gpool_sleep(pool, 0), 0);
	assert_int_equal(gpool_asleep(pool), 1);
	assert_int_equal(gpool_sleep(pool, 0), 0);
	assert_int_equal(spilled(), 34);
	assert_int_equal(kept_bytes(), 34 * PAGE_BYTES);
	assert_int_equal(pinned_blocks_of(pool), 0);
	assert_int_equal(info_of(mutable[0]).state, GPOOL_RANGE_ASLEEP);
	assert_int_equal(info_of(immutable).version, 1);
	assert_string_equal(info_of(immutable).name, "weights");
	/* Another engine reads the kept object, and then allocates all free pages. */
	assert_int_equal(gpool_range_open(other, "weights", NULL, &opened), 0);
	assert_int_equal(wrong_words(opened, 3), 0);
	addresses[4] = address_of(opened);
	count = squat(other, squatters, PAGES);
	assert_int_equal(count, PAGES - 12 - 5);
	leave(other, squatters, count);
	count = squat(other, squatters, 5);
	for (int i = 0; i < 2; i++)
		addresses[i] = address_of(mutable[i]);
	addresses[2] = address_of(ephemeral);
	addresses[3] = address_of(immutable);
	assert_int_equal(gpool_wake(pool, ANSWER_MS), 0);
	assert_int_equal(gpool_wake(pool, 0), 0);
	assert_int_equal(gpool_asleep(pool), 0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(addresses[i], address_of(mutable[i]));
	assert_int_equal(addresses[2], address_of(ephemeral));
	assert_int_equal(addresses[3], address_of(immutable));
	assert_int_equal(wrong_words(mutable[0], 1), 0);
	assert_int_equal(wrong_words(mutable[1], 4), 0);
	assert_int_equal(wrong_words(immutable, 3), 0);
	assert_int_equal(kept_bytes(), 0);
	assert_int_equal(pinned_blocks_of(pool), 3);
	/* All ranges except the kept one can be written again. */
	fill(ephemeral, 5);
	fill(mutable[0], 6);
	assert_int_equal(wrong_words(ephemeral, 5), 0);
	assert_int_equal(harness_check(&harness), 0);
	/*
	 * During sleep, a range that was made from an object closes the object. The pages then belong to the object
	 * alone.
	 */
	assert_int_equal(gpool_sleep(other, 0), 0);
	assert_int_equal(gpool_sleep(pool, 0), 0);
	assert_int_equal(gpool_wake(other, ANSWER_MS), 0);
	assert_int_equal(addresses[4], address_of(opened));
	assert_int_equal(wrong_words(opened, 3), 0);
	assert_int_equal(gpool_wake(pool, ANSWER_MS), 0);
	assert_int_equal(wrong_words(mutable[0], 6), 0);
	assert_int_equal(wrong_words(mutable[1], 4), 0);
	assert_int_equal(info_of(immutable).version, 1);
	leave(other, squatters, count);
	leave(other, kept, kept_count);
	for (int i = 0; i < 2; i++)
		assert_int_equal(gpool_range_destroy(mutable[i]), 0);
	assert_int_equal(gpool_range_destroy(ephemeral), 0);
	assert_int_equal(gpool_range_destroy(immutable), 0);
	assert_int_equal(gpool_range_destroy(opened), 0);
	assert_int_equal(gpool_object_delete(other, "weights", 0), 0);
	gpool_close(pool);
	gpool_close(other);
	AWAIT(free_pages() == PAGES);
}

/* Each range needs one access call and one unmap, and each page one map. No other calls are made. */
static void test_driver_calls(void **state)
{
	struct gpool_block kept[PAGES];
	struct gpool *pool, *other;
	uint64_t calls;

	(void)state;
	start(in_memory);
	other = open_worker();
	scatter(other, kept);
	pool = open_worker();
	made(pool, 20, GPOOL_OBJECT_MUTABLE, NULL);
	made(pool, 12, GPOOL_OBJECT_EPHEMERAL, NULL);
	assert_int_equal(gpu_calls(pool->gpu, GPU_CALL_ACCESS), 2);
	assert_int_equal(gpu_calls(pool->gpu, GPU_CALL_MAP), 32);
	calls = gpu_calls_total(pool->gpu);
	assert_int_equal(gpool_sleep(pool, 0), 0);
	assert_int_equal(gpu_calls_total(pool->gpu), calls + 2);
	assert_int_equal(gpool_wake(pool, ANSWER_MS), 0);
	assert_int_equal(gpu_calls(pool->gpu, GPU_CALL_ACCESS), 4);
	assert_int_equal(gpu_calls(pool->gpu, GPU_CALL_MAP), 64);
	assert_int_equal(gpu_calls(pool->gpu, GPU_CALL_RESERVE), 3); /* including the window */
	/* Only handles of pages that the process never had are imported. */
	assert_int_equal(gpu_calls_total(pool->gpu) - gpu_calls(pool->gpu, GPU_CALL_IMPORT), calls - 32 + 2 + 32 + 2);
	gpool_close(pool);
	gpool_close(other);
}

/* If handles hold several pages, ranges begin at the start of a handle, even after a wake. */
static void test_handles_of_several_pages(void **state)
{
	struct gpool_range *mutable, *ephemeral, *immutable;
	struct gpool *pool, *other;
	uint64_t addresses[3];
	struct gpool_block one;

	(void)state;
	start((const char *const[]){"--pool", POOL ",handle_size=2MiB,spill_memory=32MiB", CALM, NULL});
	other = open_worker();
	one = alloc(other, 1);
	pool = open_worker();
	mutable = made(pool, 5, GPOOL_OBJECT_MUTABLE, NULL);
	ephemeral = made(pool, 6, GPOOL_OBJECT_EPHEMERAL, NULL);
	immutable = made(pool, 7, GPOOL_OBJECT_IMMUTABLE, "seven");
	fill(mutable, 1);
	fill(ephemeral, 2);
	fill(immutable, 3);
	addresses[0] = address_of(mutable);
	addresses[1] = address_of(ephemeral);
	addresses[2] = address_of(immutable);
	for (int round = 0; round < 3; round++) {
		assert_int_equal(gpool_sleep(pool, 0), 0);
		assert_int_equal(gpool_wake(pool, ANSWER_MS), 0);
		assert_int_equal(addresses[0], address_of(mutable));
		assert_int_equal(addresses[1], address_of(ephemeral));
		assert_int_equal(addresses[2], address_of(immutable));
		assert_int_equal(wrong_words(mutable, 1), 0);
		assert_int_equal(wrong_words(immutable, 3), 0);
		fill(ephemeral, 2);
		assert_int_equal(wrong_words(mutable, 1), 0);
		assert_int_equal(mutable->pages.spans[0].first % 4, 0);
		assert_int_equal(harness_check(&harness), 0);
	}
	assert_int_equal(gpool_free(other, &one), 0);
	gpool_close(pool);
	gpool_close(other);
	AWAIT(free_pages() == PAGES - 7);
}

/* ---- refusals that leave the process unchanged ---- */

static void test_nothing_to_spill_to(void **state)
{
	struct gpool_range *mutable, *ephemeral;
	struct gpool *pool;

	(void)state;
	start(no_tier);
	pool = open_worker();
	mutable = made(pool, 4, GPOOL_OBJECT_MUTABLE, NULL);
	ephemeral = made(pool, 4, GPOOL_OBJECT_EPHEMERAL, NULL);
	fill(mutable, 1);
	fill(ephemeral, 2);
	assert_int_equal(gpool_sleep(pool, 0), -EOPNOTSUPP);
	assert_int_equal(gpool_asleep(pool), 0);
	assert_int_equal(wrong_words(mutable, 1), 0);
	assert_int_equal(wrong_words(ephemeral, 2), 0);
	assert_int_equal(gpool_range_destroy(mutable), 0);
	assert_int_equal(gpool_sleep(pool, 0), 0);
	assert_int_equal(gpool_wake(pool, 0), 0);
	fill(ephemeral, 3);
	assert_int_equal(wrong_words(ephemeral, 3), 0);
	gpool_close(pool);
}

static void test_no_room_to_spill(void **state)
{
	struct gpool_range *mutable[3], *ephemeral, *immutable;
	struct gpool *pool;

	(void)state;
	start((const char *const[]){"--pool", POOL ",spill_memory=4MiB", CALM, NULL});
	pool = open_worker();
	for (uint32_t i = 0; i < 3; i++)
		fill(mutable[i] = made(pool, 4, GPOOL_OBJECT_MUTABLE, NULL), i);
	fill(ephemeral = made(pool, 2, GPOOL_OBJECT_EPHEMERAL, NULL), 8);
	fill(immutable = made(pool, 2, GPOOL_OBJECT_IMMUTABLE, "kept"), 9);
	for (int tries = 0; tries < 3; tries++) {
		assert_int_equal(gpool_sleep(pool, 0), -ENOSPC);
		assert_int_equal(gpool_asleep(pool), 0);
		for (uint32_t i = 0; i < 3; i++)
			assert_int_equal(wrong_words(mutable[i], i), 0);
		assert_int_equal(wrong_words(ephemeral, 8), 0);
		assert_int_equal(wrong_words(immutable, 9), 0);
		assert_int_equal(kept_bytes(), 0);
		assert_int_equal(pinned_blocks_of(pool), 4);
		assert_int_equal(harness_check(&harness), 0);
	}
	assert_int_equal(info_of(immutable).version, 1);
	/* Without that range, enough pages are free. */
	assert_int_equal(gpool_range_destroy(mutable[1]), 0);
	assert_int_equal(gpool_sleep(pool, 0), 0);
	assert_int_equal(gpool_wake(pool, ANSWER_MS), 0);
	assert_int_equal(wrong_words(mutable[0], 0), 0);
	assert_int_equal(wrong_words(mutable[2], 2), 0);
	gpool_close(pool);
}

static void *wakes(void *pool)
{
	return (void *)(intptr_t)gpool_wake(pool, ANSWER_MS);
}

static void test_wake_without_pages(void **state)
{
	struct gpool_range *mutable, *ephemeral, *immutable;
	struct gpool_block squatters[PAGES];
	struct gpool_oom_info shortage = {.size = sizeof(shortage)};
	struct gpool *pool, *other;
	pthread_t thread;
	uint32_t count;
	void *result;

	(void)state;
	start(in_memory);
	pool = open_worker();
	other = open_worker();
	fill(mutable = made(pool, 10, GPOOL_OBJECT_MUTABLE, NULL), 1);
	ephemeral = made(pool, 10, GPOOL_OBJECT_EPHEMERAL, NULL);
	fill(immutable = made(pool, 10, GPOOL_OBJECT_IMMUTABLE, "i"), 2);
	assert_int_equal(gpool_sleep(pool, 0), 0);
	count = squat(other, squatters, PAGES - 10 - 19);
	for (int tries = 0; tries < 3; tries++) {
		assert_int_equal(gpool_wake(pool, tries * 20), -ENOSPC);
		gpool_oom_info(pool, &shortage);
		assert_int_equal(shortage.needed, 20);
		assert_int_equal(shortage.free, 19);
		assert_int_equal(gpool_asleep(pool), 1);
		assert_int_equal(kept_bytes(), 10 * PAGE_BYTES);
		assert_int_equal(free_pages(), 19);
		assert_int_equal(info_of(ephemeral).state, GPOOL_RANGE_ASLEEP);
	}
	/* A waiting process holds no pages during the wait, and gets them when they are freed. */
	assert_int_equal(pthread_create(&thread, NULL, wakes, pool), 0);
	AWAIT(atomic_load(&pool_view(admin)->header->waiters) == 1);
	assert_int_equal(free_pages(), 19);
	leave(other, squatters, count);
	assert_int_equal(pthread_join(thread, &result), 0);
	assert_null(result);
	assert_int_equal(wrong_words(mutable, 1), 0);
	assert_int_equal(wrong_words(immutable, 2), 0);
	fill(ephemeral, 3);
	gpool_close(pool);
	gpool_close(other);
}

static void test_object_gone(void **state)
{
	struct gpool_range *mutable, *immutable;
	struct gpool *pool;

	(void)state;
	start(in_memory);
	pool = open_worker();
	fill(mutable = made(pool, 3, GPOOL_OBJECT_MUTABLE, NULL), 1);
	fill(immutable = made(pool, 3, GPOOL_OBJECT_IMMUTABLE, "gone"), 2);
	assert_int_equal(gpool_sleep(pool, 0), 0);
	assert_int_equal(gpool_object_delete(admin, "gone", 0), 0);
	AWAIT(free_pages() == PAGES);
	for (int tries = 0; tries < 2; tries++) {
		assert_int_equal(gpool_wake(pool, 0), -ESTALE);
		assert_int_equal(gpool_asleep(pool), 1);
		assert_int_equal(kept_bytes(), 3 * PAGE_BYTES);
	}
	assert_int_equal(gpool_range_destroy(immutable), 0);
	assert_int_equal(gpool_wake(pool, 0), 0);
	assert_int_equal(wrong_words(mutable, 1), 0);
	gpool_close(pool);
}

static void test_damaged_content(void **state)
{
	struct gpool_range *mutable, *ephemeral;
	uint8_t was, is;
	struct gpool *pool;
	int tier;

	(void)state;
	start(in_memory);
	pool = open_worker();
	fill(mutable = made(pool, 6, GPOOL_OBJECT_MUTABLE, NULL), 1);
	ephemeral = made(pool, 6, GPOOL_OBJECT_EPHEMERAL, NULL);
	assert_int_equal(gpool_sleep(pool, 0), 0);
	tier = tier_open("spill", 64 * PAGE_BYTES);
	assert_true(tier >= 0);
	/* One wrong byte of one page is sufficient. */
	assert_int_equal(pread(tier, &was, 1, 8 * STEP), 1);
	is = (uint8_t)~was;
	assert_int_equal(pwrite(tier, &is, 1, 8 * STEP), 1);
	for (int tries = 0; tries < 3; tries++) {
		assert_int_equal(gpool_wake(pool, 0), -EIO);
		assert_int_equal(gpool_asleep(pool), 1);
		assert_int_equal(kept_bytes(), 6 * PAGE_BYTES);
		assert_int_equal(info_of(ephemeral).state, GPOOL_RANGE_ASLEEP);
		thread_cache_flush(thread_cache_of(pool));
		assert_int_equal(harness_check(&harness), 0);
	}
	assert_int_equal(pwrite(tier, &was, 1, 8 * STEP), 1);
	close(tier);
	assert_int_equal(gpool_wake(pool, 0), 0);
	assert_int_equal(wrong_words(mutable, 1), 0);
	assert_int_equal(kept_bytes(), 0);
	gpool_close(pool);
}

/* Make the n-th driver call of each kind fail, during sleep and wake. */
static void test_driver_faults(void **state)
{
	static const enum gpu_call kinds[] = {GPU_CALL_UNMAP, GPU_CALL_ACCESS, GPU_CALL_MAP, GPU_CALL_STREAM_SYNC};
	struct gpool_range *mutable, *ephemeral, *immutable;
	struct gpool *pool;
	uint32_t stream;

	(void)state;
	start(in_memory);
	pool = open_worker();
	assert_int_equal(gpool_stream_open(pool, NULL, 0, &stream), 0);
	fill(mutable = made(pool, 4, GPOOL_OBJECT_MUTABLE, NULL), 1);
	ephemeral = made(pool, 4, GPOOL_OBJECT_EPHEMERAL, NULL);
	fill(immutable = made(pool, 4, GPOOL_OBJECT_IMMUTABLE, "i"), 2);
	for (uint32_t kind = 0; kind < sizeof(kinds) / sizeof(*kinds); kind++)
		for (uint64_t n = 1; n < 14; n++) {
			int error;

			gpu_fault_set(pool->gpu, kinds[kind], n, -EIO);
			error = gpool_sleep(pool, 0);
			assert_int_equal(gpool_asleep(pool), !error);
			if (error) {
				assert_int_equal(wrong_words(mutable, 1), 0);
				assert_int_equal(wrong_words(immutable, 2), 0);
				fill(ephemeral, 3);
				assert_int_equal(gpool_sleep(pool, 0), 0);
			}
			error = gpool_wake(pool, 0);
			assert_int_equal(gpool_asleep(pool), !!error);
			if (error) {
				assert_int_equal(error, -ENOMEM);
				assert_int_equal(kept_bytes(), 4 * PAGE_BYTES);
				assert_int_equal(gpool_wake(pool, 0), 0);
			}
			gpu_fault_set(pool->gpu, kinds[kind], 0, 0);
			assert_int_equal(wrong_words(mutable, 1), 0);
			assert_int_equal(wrong_words(immutable, 2), 0);
			fill(ephemeral, 3);
			assert_int_equal(pinned_blocks_of(pool), 2);
		}
	assert_int_equal(harness_check(&harness), 0);
	gpool_close(pool);
}

/* Work that the program queued without this library is detected if the back end can detect it. */
static void test_busy(void **state)
{
	struct gpool_range *first, *second;
	struct gpool_fence fence;
	struct gpu_stream *native;
	uint32_t manual, stream;
	struct gpool *pool;

	(void)state;
	start(in_memory);
	pool = open_worker();
	fill(first = made(pool, 4, GPOOL_OBJECT_MUTABLE, NULL), 1);
	fill(second = made(pool, 4, GPOOL_OBJECT_MUTABLE, NULL), 2);
	assert_int_equal(gpool_stream_open(pool, NULL, 0, &stream), 0);
	assert_int_equal(gpool_stream_open(pool, NULL, GPOOL_STREAM_HOST_SIGNALED, &manual), 0);
	assert_int_equal(gpool_fence_record(pool, manual, &fence), 0);
	assert_int_equal(gpu_stream_create(pool->gpu, &native), 0);
	assert_int_equal(
		gpu_timeline_wait(pool->gpu, native, (const uint64_t *)&pool->session.timeline[manual & 255], 1), 0);
	assert_int_equal(gpu_fill(pool->gpu, address_of(second), 7, PAGE_BYTES, native), 0);
	assert_int_equal(gpool_sleep(pool, 0), -EBUSY);
	assert_int_equal(gpool_range_destroy(second), -EBUSY);
	assert_int_equal(gpool_asleep(pool), 0);
	assert_int_equal(wrong_words(first, 1), 0);
	assert_int_equal(wrong_words(second, 2), 0);
	assert_int_equal(gpool_fence_signal(pool, fence), 0);
	assert_int_equal(gpu_stream_sync(pool->gpu, native), 0);
	gpu_stream_destroy(pool->gpu, native);
	/* Sleep waits for work on the library's own streams. */
	assert_int_equal(gpool_fill(pool, stream, address_of(second), 0x55, 4 * PAGE_BYTES), 0);
	assert_int_equal(gpool_sleep(pool, 0), 0);
	assert_int_equal(gpool_wake(pool, 0), 0);
	assert_int_equal(wrong_words(first, 1), 0);
	for (uint32_t i = 0; i < PAGE_BYTES; i += STEP)
		assert_int_equal(((const uint32_t *)(uintptr_t)address_of(second))[i], 0x55);
	gpool_close(pool);
}

static void test_wrong_arguments(void **state)
{
	struct gpool_range_options options = GPOOL_RANGE_OPTIONS_INIT;
	struct gpool_range_info info = {.size = 3};
	struct gpool_range *range = NULL, *never = NULL;
	struct gpool *pool;
	int exit_status;
	uint64_t address;
	pid_t child;

	(void)state;
	start(in_memory);
	pool = open_worker();
	assert_int_equal(gpool_range_create(pool, 0, NULL, &never), -EINVAL);
	assert_int_equal(gpool_range_create(pool, PAGES + 1, NULL, &never), -EINVAL);
	assert_int_equal(gpool_range_create(pool, 1, &options, &never), -EINVAL); /* immutable, and no name */
	options.memory_class = GPOOL_OBJECT_MUTABLE;
	options.name = "name";
	assert_int_equal(gpool_range_create(pool, 1, &options, &never), -EINVAL);
	options.name = NULL;
	options.memory_class = 3;
	assert_int_equal(gpool_range_create(pool, 1, &options, &never), -EINVAL);
	options.memory_class = GPOOL_OBJECT_MUTABLE;
	options.flags = 1;
	assert_int_equal(gpool_range_create(pool, 1, &options, &never), -EINVAL);
	options.flags = 0;
	options.usage = GPOOL_USAGE_COUNT;
	assert_int_equal(gpool_range_create(pool, 1, &options, &never), -EINVAL);
	assert_int_equal(gpool_range_open(pool, "nothing", NULL, &never), -ENOENT);
	assert_int_equal(gpool_range_create(admin, 1, NULL, &never), -EPERM);
	assert_int_equal(gpool_sleep(admin, 0), -EPERM);
	assert_int_equal(gpool_wake(admin, 0), -EPERM);
	assert_int_equal(gpool_asleep(admin), 0);
	assert_int_equal(gpool_sleep(pool, 1), -EINVAL);
	assert_int_equal(gpool_wake(pool, -2), -EINVAL);
	assert_null(never);
	assert_int_equal(gpool_range_create(pool, 2, NULL, &range), 0);
	assert_int_equal(gpool_range_info(range, &info), -EINVAL);
	child = fork();
	if (child == 0) {
		bool right = gpool_sleep(pool, 0) == -ECHILD && gpool_wake(pool, 0) == -ECHILD &&
			gpool_asleep(pool) == -ECHILD && gpool_range_destroy(range) == -ECHILD &&
			gpool_range_address(range, &address) == -ECHILD &&
			gpool_range_create(pool, 1, NULL, &never) == -ECHILD &&
			gpool_range_open(pool, "x", NULL, &never) == -ECHILD;

		_exit(right ? 0 : 1);
	}
	exit_status = status_of(child);
	assert_true(WIFEXITED(exit_status));
	assert_int_equal(WEXITSTATUS(exit_status), 0);
	assert_int_equal(gpool_sleep(pool, 0), 0);
	assert_int_equal(gpool_range_create(pool, 2, NULL, &never), -EHOSTDOWN);
	assert_int_equal(gpool_range_destroy(range), 0);
	assert_int_equal(gpool_range_destroy(NULL), 0);
	assert_int_equal(gpool_wake(pool, 0), 0);
	gpool_close(pool);
}

/* ---- ends of ranges and sessions ---- */

static void test_destroyed_asleep(void **state)
{
	struct gpool_range *mutable[3], *ephemeral;
	struct gpool *pool;

	(void)state;
	start(in_memory);
	pool = open_worker();
	for (uint32_t i = 0; i < 3; i++)
		fill(mutable[i] = made(pool, 3 + i, GPOOL_OBJECT_MUTABLE, NULL), i);
	ephemeral = made(pool, 3, GPOOL_OBJECT_EPHEMERAL, NULL);
	assert_int_equal(gpool_sleep(pool, 0), 0);
	/* The range is restored with the others, and then destroyed. */
	assert_int_equal(gpool_range_destroy(mutable[1]), 0);
	assert_int_equal(kept_bytes(), 12 * PAGE_BYTES);
	assert_int_equal(gpool_range_destroy(ephemeral), 0);
	assert_int_equal(gpool_wake(pool, 0), 0);
	assert_int_equal(wrong_words(mutable[0], 0), 0);
	assert_int_equal(wrong_words(mutable[2], 2), 0);
	assert_int_equal(kept_bytes(), 0);
	assert_int_equal(harness_check(&harness), 0);
	assert_int_equal(pinned_blocks_of(pool), 2);
	/* The kept content is freed with the last range. */
	assert_int_equal(gpool_sleep(pool, 0), 0);
	assert_int_equal(gpool_range_destroy(mutable[0]), 0);
	assert_int_equal(kept_bytes(), 8 * PAGE_BYTES);
	assert_int_equal(gpool_range_destroy(mutable[2]), 0);
	assert_int_equal(kept_bytes(), 0);
	assert_int_equal(gpool_wake(pool, 0), 0);
	fill(mutable[0] = made(pool, 3, GPOOL_OBJECT_MUTABLE, NULL), 7);
	assert_int_equal(gpool_sleep(pool, 0), 0);
	assert_int_equal(gpool_wake(pool, 0), 0);
	assert_int_equal(wrong_words(mutable[0], 7), 0);
	/* Close the session during sleep: no content is kept. */
	assert_int_equal(gpool_sleep(pool, 0), 0);
	gpool_close(pool);
	AWAIT(kept_bytes() == 0);
	AWAIT(free_pages() == PAGES);
}

static void test_killed_asleep(void **state)
{
	struct gpool_object_info info = {.size = sizeof(info)};
	struct gpool_range *opened;
	struct gpool *pool;
	uint32_t cursor = 0;
	int ready[2];
	char byte;
	pid_t child;

	(void)state;
	start(in_memory);
	assert_int_equal(pipe(ready), 0);
	child = fork();
	if (child == 0) {
		struct gpool *sleeper = open_worker();

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		fill(made(sleeper, 20, GPOOL_OBJECT_MUTABLE, NULL), 1);
		fill(made(sleeper, 10, GPOOL_OBJECT_EPHEMERAL, NULL), 1);
		fill(made(sleeper, 10, GPOOL_OBJECT_IMMUTABLE, "legacy"), 5);
		if (!gpool_sleep(sleeper, 0) && write(ready[1], "", 1) == 1)
			for (;;)
				pause();
		_exit(1);
	}
	assert_int_equal(read(ready[0], &byte, 1), 1);
	close(ready[0]);
	close(ready[1]);
	assert_int_equal(kept_bytes(), 20 * PAGE_BYTES);
	kill(child, SIGKILL);
	assert_true(WIFSIGNALED(status_of(child)));
	AWAIT(kept_bytes() == 0);
	AWAIT(free_pages() == PAGES - 10);
	assert_int_equal(gpool_object_next(admin, &cursor, &info), 0);
	assert_string_equal(info.name, "legacy");
	pool = open_worker();
	assert_int_equal(gpool_range_open(pool, "legacy", NULL, &opened), 0);
	assert_int_equal(wrong_words(opened, 5), 0);
	assert_int_equal(info_of(opened).page_count, 10);
	gpool_close(pool);
}

/*
 * A range is pinned as long as it is awake. Its pin never counts as leaked, unlike that of a block that is not touched.
 */
static void test_never_leaked(void **state)
{
	struct gpool_range *range;
	struct gpool_block block;
	struct gpool *pool;

	(void)state;
	start((const char *const[]){
		"--pool", POOL, CALM, "--set", "pins.max_duration=100ms", "--set", "pins.leaked=unpin", NULL});
	pool = open_worker();
	fill(range = made(pool, 4, GPOOL_OBJECT_EPHEMERAL, NULL), 1);
	block = alloc(pool, 1);
	AWAIT(counter(POOL_COUNT_LEAKED_PINS) == 1);
	AWAIT(atomic_load(&pool->session.pins[block.page]) == 0);
	harness_evict(&harness, gpool_session(pool), PAGES);
	assert_int_equal(gpool_pin(pool, &block), -ESTALE);
	assert_int_equal(counter(POOL_COUNT_LEAKED_PINS), 1);
	assert_int_equal(wrong_words(range, 1), 0);
	assert_int_equal(gpool_range_destroy(range), 0);
	gpool_close(pool);
}

/* ---- several processes ---- */

struct engine {
	pthread_t thread;
	struct gpool *pool;
	uint32_t rounds, seed;
	uint64_t wrong;
	int error;
	_Atomic bool done;
};

/* The ranges have more than half of the pool, so only one of the two engines can be awake. */
static void *engine_main(void *argument)
{
	struct engine *engine = argument;
	struct gpool_range_options options = GPOOL_RANGE_OPTIONS_INIT;
	struct gpool_range *large, *small, *ephemeral;

	options.memory_class = GPOOL_OBJECT_MUTABLE;
	options.timeout_ms = -1;
	/* The engine sleeps before it holds a part and waits for more, as engines are required to do. */
	engine->error = gpool_range_create(engine->pool, 25, &options, &large);
	if (!engine->error)
		engine->error = gpool_sleep(engine->pool, 0);
	if (!engine->error)
		engine->error = gpool_wake(engine->pool, -1);
	if (!engine->error)
		engine->error = gpool_range_create(engine->pool, 3, &options, &small);
	options.memory_class = GPOOL_OBJECT_EPHEMERAL;
	if (!engine->error)
		engine->error = gpool_range_create(engine->pool, 4, &options, &ephemeral);
	for (uint32_t round = 0; round < engine->rounds && !engine->error; round++) {
		fill(large, engine->seed + round);
		fill(small, engine->seed + round + 1000);
		fill(ephemeral, engine->seed);
		engine->error = gpool_sleep(engine->pool, 0);
		if (!engine->error)
			engine->error = gpool_wake(engine->pool, -1);
		if (!engine->error)
			engine->wrong += wrong_words(large, engine->seed + round) +
				wrong_words(small, engine->seed + round + 1000);
	}
	/* The other process needs the pages. */
	if (!engine->error)
		engine->error = gpool_sleep(engine->pool, 0);
	atomic_store(&engine->done, true);
	return NULL;
}

/* `victim` is the process of gpoold that is killed repeatedly during the run, or NULL. */
static void engines_run(uint32_t count, uint32_t rounds, const char *victim, int kills)
{
	struct engine engines[3] = {{0}};

	for (uint32_t i = 0; i < count; i++) {
		engines[i] = (struct engine){.pool = open_worker(), .rounds = rounds, .seed = 100 * (i + 1)};
		assert_int_equal(pthread_create(&engines[i].thread, NULL, engine_main, &engines[i]), 0);
	}
	for (uint32_t i = 0; i < count; i++)
		for (; kills > 0 && !atomic_load(&engines[i].done); kills--) {
			uint64_t before = counter(POOL_COUNT_GRANTS) + moving() + spilled();
			pid_t pid;

			AWAIT((pid = process_of(victim)) > 0);
			kill(pid, SIGKILL);
			AWAIT(atomic_load(&engines[i].done) ||
				counter(POOL_COUNT_GRANTS) + moving() + spilled() != before);
		}
	for (uint32_t i = 0; i < count; i++) {
		assert_int_equal(pthread_join(engines[i].thread, NULL), 0);
		assert_int_equal(engines[i].error, 0);
		assert_int_equal(engines[i].wrong, 0);
	}
	assert_int_equal(harness_check(&harness), 0);
	for (uint32_t i = 0; i < count; i++)
		gpool_close(engines[i].pool);
	AWAIT(kept_bytes() == 0);
	AWAIT(free_pages() == PAGES);
}

static void test_engines_take_turns(void **state)
{
	(void)state;
	start((const char *const[]){"--pool", POOL ",spill_memory=64MiB", CALM, NULL});
	engines_run(3, 25, NULL, 0);
}

static void test_agent_killed(void **state)
{
	(void)state;
	start((const char *const[]){"--pool", POOL ",spill_memory=64MiB", CALM, NULL});
	engines_run(2, 40, "gpoold-agent", 30);
}

static void test_mover_killed(void **state)
{
	(void)state;
	/*
	 * The patience is long because the keeper delays the restart of a mover that dies often, and without a mover a
	 * wake is refused.
	 */
	start((const char *const[]){"--pool", POOL ",spill_memory=64MiB", CALM, "--set", "mover.patience=60s", NULL});
	engines_run(2, 40, "gpoold-mover", 30);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_same_addresses_and_contents, stop),
		cmocka_unit_test_teardown(test_driver_calls, stop),
		cmocka_unit_test_teardown(test_handles_of_several_pages, stop),
		cmocka_unit_test_teardown(test_nothing_to_spill_to, stop),
		cmocka_unit_test_teardown(test_no_room_to_spill, stop),
		cmocka_unit_test_teardown(test_wake_without_pages, stop),
		cmocka_unit_test_teardown(test_object_gone, stop),
		cmocka_unit_test_teardown(test_damaged_content, stop),
		cmocka_unit_test_teardown(test_driver_faults, stop),
		cmocka_unit_test_teardown(test_busy, stop),
		cmocka_unit_test_teardown(test_wrong_arguments, stop),
		cmocka_unit_test_teardown(test_destroyed_asleep, stop),
		cmocka_unit_test_teardown(test_killed_asleep, stop),
		cmocka_unit_test_teardown(test_never_leaked, stop),
		cmocka_unit_test_teardown(test_engines_take_turns, stop),
		cmocka_unit_test_teardown(test_agent_killed, stop),
		cmocka_unit_test_teardown(test_mover_killed, stop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
