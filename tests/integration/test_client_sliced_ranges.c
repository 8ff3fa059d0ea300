/*
 * test_client_sliced_ranges.c - sliced ranges: equal slices that grow and shrink together.
 *
 * Goal: block i is committed in every slice or in none. Growth within the read-ahead makes no driver call and no
 * request, and read-ahead takes no memory from other sessions. Contents stay, and a failure leaves the range at its
 * size.
 *
 * Method: each test starts a gpoold with a pool of 64 pages. A task keeps the library's background thread busy, so that
 * the calls of a function itself can be counted.
 */
#include "tests/integration/spill_view.h"

#include "client/core/thread_cache.h"
#include "client/vm/background.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

enum { PAGE_BYTES = TEST_PAGE_BYTES, SLICES = 4, BLOCKS = 100 };

#define CALM QUIET, "--set", "lease.initial_pages=0", "--set", "lease.batch_pages=1", "--set", "lease.batch_most=1"

static const char *const plain[] = {"--pool", POOL, CALM, NULL};
static const char *const fours[] = {"--pool", POOL ",handle_size=" TEST_SIZE_4_PAGES, CALM, NULL};
static const char *const spilling[] = {"--pool", POOL ",spill_memory=" TEST_SIZE_64_PAGES, CALM, NULL};

static const struct gpool_fence done_fence = {0};

/* ---- sliced ranges with content ---- */

static struct gpool_sliced_range *made(struct gpool *pool, uint32_t block_pages, uint32_t read_ahead)
{
	struct gpool_sliced_range_options options = GPOOL_SLICED_RANGE_OPTIONS_INIT;
	struct gpool_sliced_range *sliced = NULL;

	options.memory_class = GPOOL_OBJECT_MUTABLE;
	options.read_ahead = read_ahead;
	assert_int_equal(gpool_sliced_range_create(pool, SLICES, BLOCKS, block_pages, &options, &sliced), 0);
	return sliced;
}

static struct gpool_sliced_range_info info_of(struct gpool_sliced_range *sliced)
{
	struct gpool_sliced_range_info info = {.size = sizeof(info)};

	assert_int_equal(gpool_sliced_range_info(sliced, &info), 0);
	return info;
}

static volatile uint64_t *block_at(const struct gpool_sliced_range_info *info, uint32_t slice, uint32_t block)
{
	return (volatile uint64_t *)(uintptr_t)(info->address + slice * info->slice_bytes + block * info->block_bytes);
}

static void fill(struct gpool_sliced_range *sliced, uint32_t from, uint32_t to, uint64_t content)
{
	struct gpool_sliced_range_info info = info_of(sliced);

	for (uint32_t slice = 0; slice < info.slices; slice++)
		for (uint32_t block = from; block < to; block++)
			for (uint64_t word = 0; word < info.block_bytes / 8; word += PAGE_BYTES / 16)
				block_at(&info, slice, block)[word] = content << 32 | slice << 16 | block;
}

static uint32_t wrong(struct gpool_sliced_range *sliced, uint32_t from, uint32_t to, uint64_t content)
{
	struct gpool_sliced_range_info info = info_of(sliced);
	uint32_t found = 0;

	for (uint32_t slice = 0; slice < info.slices; slice++)
		for (uint32_t block = from; block < to; block++)
			for (uint64_t word = 0; word < info.block_bytes / 8; word += PAGE_BYTES / 16)
				found += block_at(&info, slice, block)[word] != (content << 32 | slice << 16 | block);
	return found;
}

static uint32_t free_pages(void)
{
	return atomic_load(&pool_view(admin)->header->state_pages[PAGE_FREE]);
}

static uint32_t squat(struct gpool *pool, struct gpool_block *blocks, uint32_t most)
{
	uint32_t count = 0;

	while (count < most && gpool_alloc(pool, 1, NULL, &blocks[count]) == 0)
		count++;
	return count;
}

static void leave(struct gpool *pool, struct gpool_block *blocks, uint32_t count)
{
	while (count)
		assert_int_equal(gpool_free(pool, &blocks[--count]), 0);
	thread_cache_flush(thread_cache_of(pool));
}

static uint64_t refills(struct gpool *pool)
{
	struct gpool_stats statistics = {.size = sizeof(statistics)};

	assert_int_equal(gpool_stats(pool, &statistics), 0);
	return statistics.refills;
}

/* ---- keeping the background thread busy ---- */

struct stop_gap {
	struct background_task task;
	sem_t runs, go;
};

static void stop_gap_run(struct background_task *task)
{
	struct stop_gap *held = (struct stop_gap *)task;

	sem_post(&held->runs);
	while (sem_wait(&held->go))
		;
}

static struct stop_gap gap; /* released by the teardown if the test fails */

static void background_hold(struct gpool *pool)
{
	gap = (struct stop_gap){.task.run = stop_gap_run};
	sem_init(&gap.runs, 0, 0);
	sem_init(&gap.go, 0, 0);
	assert_int_equal(background_add(pool, &gap.task), 0);
	background_wake(pool, &gap.task);
	while (sem_wait(&gap.runs))
		;
}

static void background_go_on(struct gpool *pool)
{
	sem_post(&gap.go);
	background_remove(pool, &gap.task);
}

/* ---- tests ---- */

static void grows_and_shrinks(const char *const *arguments, uint32_t block_pages)
{
	struct gpool_sliced_range *sliced;
	struct gpool_sliced_range_info info;
	struct gpool *pool;

	start(arguments);
	pool = open_worker();
	sliced = made(pool, block_pages, 0);
	info = info_of(sliced);
	assert_int_equal(info.slices, SLICES);
	assert_int_equal(info.block_bytes, block_pages * PAGE_BYTES);
	assert_true(info.slice_bytes >= BLOCKS * info.block_bytes);
	assert_int_equal(info.committed, 0);
	assert_int_equal(free_pages(), PAGES);
	assert_int_equal(gpool_sliced_range_grow(sliced, 1, 0), 0);
	fill(sliced, 0, 1, 1);
	assert_int_equal(gpool_sliced_range_grow(sliced, 3, 0), 0);
	fill(sliced, 1, 3, 1);
	assert_int_equal(gpool_sliced_range_grow(sliced, 2, 0), 0);
	assert_int_equal(info_of(sliced).committed, 3);
	assert_int_equal(wrong(sliced, 0, 3, 1), 0);
	/* Either all slices grow or none. */
	assert_int_equal(gpool_sliced_range_grow(sliced, PAGES / SLICES / block_pages + 1, 0), -ENOSPC);
	assert_int_equal(info_of(sliced).committed, 3);
	assert_int_equal(wrong(sliced, 0, 3, 1), 0);
	assert_int_equal(gpool_sliced_range_grow(sliced, PAGES / SLICES / block_pages, 0), 0);
	fill(sliced, 3, PAGES / SLICES / block_pages, 1);
	assert_int_equal(wrong(sliced, 0, PAGES / SLICES / block_pages, 1), 0);
	assert_int_equal(gpool_sliced_range_shrink(sliced, 2, done_fence), 0);
	assert_int_equal(gpool_sliced_range_shrink(sliced, 5, done_fence), 0);
	assert_int_equal(info_of(sliced).committed, 2);
	assert_int_equal(wrong(sliced, 0, 2, 1), 0);
	assert_int_equal(harness_check(&harness), 0);
	assert_int_equal(gpool_sliced_range_grow(sliced, BLOCKS + 1, 0), -EINVAL);
	assert_int_equal(gpool_sliced_range_grow(sliced, 2, -2), -EINVAL);
	assert_int_equal(gpool_sliced_range_shrink(sliced, 0, (struct gpool_fence){1}), -EINVAL);
	assert_int_equal(gpool_sliced_range_shrink(sliced, 0, done_fence), 0);
	assert_int_equal(gpool_sliced_range_destroy(sliced), 0);
	assert_int_equal(gpool_sliced_range_destroy(NULL), 0);
	made(pool, block_pages, 3); /* a range that is destroyed with the session */
	gpool_close(pool);
	AWAIT(free_pages() == PAGES);
}

static void test_grows_and_shrinks(void **state)
{
	(void)state;
	grows_and_shrinks(plain, 1);
}

static void test_blocks_of_pages(void **state)
{
	(void)state;
	grows_and_shrinks(plain, 2);
}

static void test_large_handles(void **state)
{
	(void)state;
	grows_and_shrinks(fours, 4);
}

/* All slices together need one request, and each slice one access call. */
static void test_driver_calls(void **state)
{
	struct gpool_sliced_range *sliced;
	struct gpool *pool;
	uint64_t asked;

	(void)state;
	start(plain);
	pool = open_worker();
	sliced = made(pool, 2, 0);
	asked = refills(pool);
	assert_int_equal(gpool_sliced_range_grow(sliced, 3, 0), 0);
	assert_int_equal(refills(pool), asked + 1);
	assert_int_equal(gpu_calls(pool->gpu, GPU_CALL_MAP), 3 * 2 * SLICES);
	assert_int_equal(gpu_calls(pool->gpu, GPU_CALL_ACCESS), SLICES);
	gpool_close(pool);
}

/* Read-ahead pages are used without a driver call or a request. Until then they are available to all sessions. */
static void read_ahead(const char *const *arguments, uint32_t block_pages)
{
	struct gpool_block blocks[PAGES];
	struct gpool_sliced_range *sliced;
	struct gpool *pool, *other;
	uint32_t count, most = PAGES / SLICES / block_pages;
	uint64_t calls, asked;

	start(arguments);
	pool = open_worker();
	other = open_worker();
	sliced = made(pool, block_pages, 2);
	AWAIT(info_of(sliced).ready == 2);
	assert_int_equal(info_of(sliced).committed, 0);
	assert_int_equal(gpool_sliced_range_grow(sliced, 1, 0), 0);
	fill(sliced, 0, 1, 1);
	AWAIT(info_of(sliced).ready == 3);
	assert_int_equal(harness_check(&harness), 0);
	background_hold(pool);
	calls = gpu_thread_calls_total();
	asked = refills(pool);
	assert_int_equal(gpool_sliced_range_grow(sliced, 2, 0), 0);
	fill(sliced, 1, 2, 1);
	assert_int_equal(gpool_sliced_range_grow(sliced, 3, 0), 0);
	fill(sliced, 2, 3, 1);
	assert_int_equal(gpu_thread_calls_total(), calls);
	assert_int_equal(refills(pool), asked);
	background_go_on(pool);
	AWAIT(info_of(sliced).ready == (most < 5 ? most : 5));
	/* Another session needs all pages. Read-ahead pages are taken; committed ones stay. */
	background_hold(pool);
	count = squat(other, blocks, PAGES);
	assert_int_equal(count, PAGES - 3 * SLICES * block_pages);
	assert_int_equal(harness_check(&harness), 0);
	assert_int_equal(wrong(sliced, 0, 3, 1), 0);
	assert_int_equal(gpool_sliced_range_grow(sliced, 4, 0), -ENOSPC);
	assert_int_equal(info_of(sliced).committed, 3);
	background_go_on(pool);
	gpool_close(other);
	assert_int_equal(gpool_sliced_range_grow(sliced, 4, ANSWER_MS), 0);
	fill(sliced, 3, 4, 1);
	assert_int_equal(wrong(sliced, 0, 4, 1), 0);
	AWAIT(info_of(sliced).ready == (most < 6 ? most : 6));
	/* Shrink and grow again: pages beyond the end are released, and the next ones are ready. */
	assert_int_equal(gpool_sliced_range_shrink(sliced, 1, done_fence), 0);
	AWAIT(info_of(sliced).ready == 3);
	background_hold(pool);
	calls = gpu_thread_calls_total();
	assert_int_equal(gpool_sliced_range_grow(sliced, 3, 0), 0);
	assert_int_equal(gpu_thread_calls_total(), calls);
	assert_int_equal(wrong(sliced, 0, 1, 1), 0);
	background_go_on(pool);
	assert_int_equal(harness_check(&harness), 0);
	assert_int_equal(gpool_sliced_range_destroy(sliced), 0);
	count = squat(pool, blocks, PAGES);
	assert_int_equal(count, PAGES);
	leave(pool, blocks, count);
	gpool_close(pool);
	AWAIT(free_pages() == PAGES);
}

static void test_read_ahead(void **state)
{
	(void)state;
	read_ahead(plain, 2);
}

static void test_read_ahead_large_handles(void **state)
{
	(void)state;
	read_ahead(fours, 4);
}

/* Read-ahead evicts no block, and takes no page while a request waits. */
static void test_read_ahead_evicts_nothing(void **state)
{
	struct gpool_block blocks[PAGES];
	struct gpool_sliced_range *sliced;
	struct gpool *pool, *other;

	(void)state;
	start(plain);
	pool = open_worker();
	other = open_worker();
	alloc_unpinned(other, blocks, PAGES - 24);
	sliced = made(pool, 1, 8);
	/* background_hold() returns after the thread's current work, so the read-ahead is complete. */
	background_hold(pool);
	assert_in_range(info_of(sliced).ready, 1, 24 / SLICES);
	assert_int_equal(count_there(other, blocks, PAGES - 24), PAGES - 24);
	background_go_on(pool);
	/* A call that needs more pages gets them. */
	assert_int_equal(gpool_sliced_range_grow(sliced, 8, 0), 0);
	assert_int_equal(count_there(other, blocks, PAGES - 24), PAGES - 32);
	gpool_close(pool);
	gpool_close(other);
}

/* Read-ahead that the full pool refused is done when pages are free, without another call. */
static void test_read_ahead_later(void **state)
{
	struct gpool_block blocks[PAGES];
	struct gpool_sliced_range *sliced;
	struct gpool *pool, *other;

	(void)state;
	start(plain);
	pool = open_worker();
	other = open_worker();
	assert_int_equal(squat(other, blocks, PAGES), PAGES);
	sliced = made(pool, 1, 2);
	/* background_hold() returns after the task's first run. */
	background_hold(pool);
	assert_int_equal(info_of(sliced).ready, 0);
	background_go_on(pool);
	gpool_close(other);
	AWAIT(info_of(sliced).ready == 2);
	gpool_close(pool);
}

/* Make the n-th call of each kind fail, in the call or in the background. */
static void test_driver_faults(void **state)
{
	static const enum gpu_call kinds[] = {GPU_CALL_MAP, GPU_CALL_ACCESS, GPU_CALL_UNMAP, GPU_CALL_IMPORT};
	struct gpool *pool;

	(void)state;
	start(plain);
	pool = open_worker();
	for (uint32_t kind = 0; kind < sizeof(kinds) / sizeof(*kinds); kind++)
		for (uint64_t n = 1; n < 16; n++) {
			struct gpool_sliced_range *sliced = made(pool, 1, n % 3);
			int error;

			gpu_fault_set(pool->gpu, kinds[kind], n, -EIO);
			for (uint32_t blocks = 2; blocks <= 8; blocks += 2) {
				error = gpool_sliced_range_grow(sliced, blocks, 0);
				if (error) {
					assert_int_equal(error, -ENOMEM);
					assert_int_equal(info_of(sliced).committed, blocks - 2);
					assert_int_equal(gpool_sliced_range_grow(sliced, blocks, 0), 0);
				}
				fill(sliced, blocks - 2, blocks, n);
			}
			assert_int_equal(wrong(sliced, 0, 8, n), 0);
			assert_int_equal(gpool_sliced_range_shrink(sliced, 3, done_fence), 0);
			assert_int_equal(wrong(sliced, 0, 3, n), 0);
			if (gpool_sliced_range_destroy(sliced)) {
				assert_int_equal(wrong(sliced, 0, 3, n), 0);
				assert_int_equal(gpool_sliced_range_destroy(sliced), 0);
			}
			gpu_fault_set(pool->gpu, kinds[kind], 0, 0);
			assert_int_equal(harness_check(&harness), 0);
		}
	gpool_close(pool);
	AWAIT(free_pages() == PAGES);
}

/* A sliced range sleeps and wakes with the other ranges, also during its read-ahead. */
static void test_sleeps(void **state)
{
	struct gpool_sliced_range *sliced;
	struct gpool *pool;

	(void)state;
	start(spilling);
	pool = open_worker();
	sliced = made(pool, 1, 4);
	for (uint32_t round = 1; round <= 8; round++) {
		assert_int_equal(gpool_sliced_range_grow(sliced, round, 0), 0);
		fill(sliced, round - 1, round, 5);
		assert_int_equal(gpool_sleep(pool, 0), 0);
		assert_int_equal(gpool_sliced_range_grow(sliced, round + 1, 0), -EHOSTDOWN);
		assert_int_equal(gpool_sliced_range_shrink(sliced, 0, done_fence), -EHOSTDOWN);
		assert_int_equal(gpool_wake(pool, ANSWER_MS), 0);
		assert_int_equal(info_of(sliced).committed, round);
		assert_int_equal(wrong(sliced, 0, round, 5), 0);
	}
	assert_int_equal(harness_check(&harness), 0);
	gpool_close(pool);
}

static void test_destroyed_under_fences(void **state)
{
	struct gpool_sliced_range *sliced;
	struct gpool_fence fence;
	struct gpool *pool;
	uint32_t manual;

	(void)state;
	start(plain);
	pool = open_worker();
	sliced = made(pool, 1, 2);
	assert_int_equal(gpool_stream_open(pool, NULL, GPOOL_STREAM_HOST_SIGNALED, &manual), 0);
	assert_int_equal(gpool_sliced_range_grow(sliced, 8, 0), 0);
	fill(sliced, 0, 8, 3);
	assert_int_equal(gpool_fence_record(pool, manual, &fence), 0);
	assert_int_equal(gpool_sliced_range_shrink(sliced, 4, fence), 0);
	assert_int_equal(gpool_sliced_range_destroy(sliced), -EBUSY);
	/* The background thread continues, and the waiting request is unchanged. */
	assert_int_equal(gpool_sliced_range_grow(sliced, 6, 0), 0);
	assert_int_equal(wrong(sliced, 0, 6, 3), 0);
	AWAIT(info_of(sliced).ready == 8);
	assert_int_equal(gpool_fence_signal(pool, fence), 0);
	assert_int_equal(gpool_sliced_range_destroy(sliced), 0);
	gpool_close(pool);
}

/* ---- threads and processes ---- */

struct user {
	struct gpool *pool;
	uint32_t rounds, wrong, most;
	unsigned seed;
	int error;
	pthread_t thread;
};

static void *user_run(void *argument)
{
	struct user *user = argument;
	struct gpool_sliced_range *sliced = made(user->pool, 1, 2);
	uint32_t committed = 0;
	struct gpool_fence fence;
	uint32_t stream;

	user->error = gpool_stream_open(user->pool, NULL, 0, &stream);
	for (uint32_t round = 0; round < user->rounds && !user->error; round++) {
		uint32_t blocks = (uint32_t)rand_r(&user->seed) % (user->most + 1);

		if (blocks > committed) {
			user->error = gpool_sliced_range_grow(sliced, blocks, ANSWER_MS);
			fill(sliced, committed, user->error ? committed : blocks, user->seed);
			/* All blocks get the same content again. */
			fill(sliced, 0, user->error ? 0 : committed, user->seed);
		} else {
			user->error = gpool_fence_record(user->pool, stream, &fence);
			if (!user->error)
				user->error = gpool_sliced_range_shrink(sliced, blocks, fence);
			fill(sliced, 0, user->error ? 0 : blocks, user->seed);
		}
		committed = user->error ? committed : blocks;
		user->wrong += wrong(sliced, 0, committed, user->seed);
	}
	if (!user->error)
		user->error = gpool_sliced_range_destroy(sliced);
	return NULL;
}

/* Four sliced ranges of one process and four of another grow, each within its share of the pool. */
static void test_threads(void **state)
{
	struct user users[4] = {{0}};
	struct gpool *pools[2];

	(void)state;
	start(plain);
	for (uint32_t i = 0; i < 2; i++)
		pools[i] = open_worker();
	for (uint32_t i = 0; i < 4; i++) {
		users[i] =
			(struct user){.pool = pools[i % 2], .rounds = 150, .most = PAGES / SLICES / 4, .seed = 77 + i};
		assert_int_equal(pthread_create(&users[i].thread, NULL, user_run, &users[i]), 0);
	}
	for (uint32_t i = 0; i < 4; i++) {
		pthread_join(users[i].thread, NULL);
		assert_int_equal(users[i].error, 0);
		assert_int_equal(users[i].wrong, 0);
	}
	assert_int_equal(harness_check(&harness), 0);
	for (uint32_t i = 0; i < 2; i++)
		gpool_close(pools[i]);
	AWAIT(free_pages() == PAGES);
}

/* ThreadSanitizer cannot follow a child that starts a thread. */
#if !defined(__SANITIZE_THREAD__)
static void test_killed(void **state)
{
	(void)state;
	start(plain);
	for (unsigned round = 0; round < 15; round++) {
		int ready[2];
		pid_t child;
		char byte;

		assert_int_equal(pipe(ready), 0);
		child = fork();
		if (child == 0) {
			struct gpool_sliced_range *sliced;
			unsigned seed = round;

			prctl(PR_SET_PDEATHSIG, SIGKILL);
			sliced = made(open_worker(), 1, 3);
			if (write(ready[1], "", 1) != 1)
				_exit(1);
			for (;;) {
				gpool_sliced_range_grow(sliced, (uint32_t)rand_r(&seed) % 10, 0);
				gpool_sliced_range_shrink(sliced, (uint32_t)rand_r(&seed) % 10, done_fence);
			}
		}
		assert_int_equal(read(ready[0], &byte, 1), 1);
		close(ready[0]);
		close(ready[1]);
		for (unsigned i = 0; i < round * 3; i++)
			status();
		kill(child, SIGKILL);
		assert_true(WIFSIGNALED(status_of(child)));
		AWAIT(free_pages() == PAGES);
		assert_int_equal(harness_check(&harness), 0);
	}
}
#endif

static void test_wrong_arguments(void **state)
{
	struct gpool_sliced_range_options options = GPOOL_SLICED_RANGE_OPTIONS_INIT;
	struct gpool_sliced_range_info info = {.size = 3};
	struct gpool_sliced_range *sliced, *never = NULL;
	struct gpool *pool;
	int exit_status;
	pid_t child;

	(void)state;
	start(plain);
	pool = open_worker();
	assert_int_equal(gpool_sliced_range_create(pool, 0, 1, 1, NULL, &never), -EINVAL);
	assert_int_equal(gpool_sliced_range_create(pool, 1, 0, 1, NULL, &never), -EINVAL);
	assert_int_equal(gpool_sliced_range_create(pool, 1, 1, 0, NULL, &never), -EINVAL);
	assert_int_equal(gpool_sliced_range_create(pool, 1 << 16, 1 << 8, 1 << 8, NULL, &never), -EINVAL);
	assert_int_equal(gpool_sliced_range_create(pool, 2, UINT32_MAX, UINT32_MAX, NULL, &never), -EINVAL);
	assert_int_equal(gpool_sliced_range_create(pool, 1, 1, 1, &options, &never), -EINVAL); /* immutable */
	options.memory_class = GPOOL_OBJECT_EPHEMERAL;
	options.flags = 1;
	assert_int_equal(gpool_sliced_range_create(pool, 1, 1, 1, &options, &never), -EINVAL);
	options.flags = 0;
	options.reserved = 1;
	assert_int_equal(gpool_sliced_range_create(pool, 1, 1, 1, &options, &never), -EINVAL);
	options.reserved = 0;
	options.usage = GPOOL_USAGE_COUNT;
	assert_int_equal(gpool_sliced_range_create(pool, 1, 1, 1, &options, &never), -EINVAL);
	assert_int_equal(gpool_sliced_range_create(admin, 1, 1, 1, NULL, &never), -EPERM);
	assert_null(never);
	sliced = made(pool, 1, 2);
	assert_int_equal(gpool_sliced_range_info(sliced, &info), -EINVAL);
	assert_int_equal(gpool_sliced_range_grow(sliced, 2, 0), 0);
	child = fork();
	if (child == 0) {
		info.size = sizeof(info);
		bool right = gpool_sliced_range_grow(sliced, 3, 0) == -ECHILD &&
			gpool_sliced_range_shrink(sliced, 0, done_fence) == -ECHILD &&
			gpool_sliced_range_info(sliced, &info) == -ECHILD &&
			gpool_sliced_range_destroy(sliced) == -ECHILD &&
			gpool_sliced_range_create(pool, 1, 1, 1, NULL, &never) == -ECHILD;

		gpool_close(pool); /* does not wait for threads of the parent */
		_exit(right ? 0 : 1);
	}
	exit_status = status_of(child);
	assert_true(WIFEXITED(exit_status));
	assert_int_equal(WEXITSTATUS(exit_status), 0);
	assert_int_equal(gpool_sliced_range_grow(sliced, 3, 0), 0);
	gpool_close(pool);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_grows_and_shrinks, stop),
		cmocka_unit_test_teardown(test_blocks_of_pages, stop),
		cmocka_unit_test_teardown(test_large_handles, stop),
		cmocka_unit_test_teardown(test_driver_calls, stop),
		cmocka_unit_test_teardown(test_read_ahead, stop),
		cmocka_unit_test_teardown(test_read_ahead_large_handles, stop),
		cmocka_unit_test_teardown(test_read_ahead_evicts_nothing, stop),
		cmocka_unit_test_teardown(test_read_ahead_later, stop),
		cmocka_unit_test_teardown(test_driver_faults, stop),
		cmocka_unit_test_teardown(test_sleeps, stop),
		cmocka_unit_test_teardown(test_destroyed_under_fences, stop),
		cmocka_unit_test_teardown(test_threads, stop),
#if !defined(__SANITIZE_THREAD__)
		cmocka_unit_test_teardown(test_killed, stop),
#endif
		cmocka_unit_test_teardown(test_wrong_arguments, stop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
