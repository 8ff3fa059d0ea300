/*
 * test_client_space.c - handles and address spaces, on which the virtual memory allocators are based.
 *
 * Goal: a taken handle is held. A released handle can be adopted again until another session takes it. A mapping costs
 * one access call. A failure changes nothing.
 *
 * Method: each test starts a gpoold with a pool of 64 pages. Handles have one page or four. The back end fails at each
 * call. A second worker takes idle pages, and there are two trust domains.
 */
#include "tests/integration/spill_view.h"

#include "client/vm/space.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>

enum { PAGE_BYTES = TEST_PAGE_BYTES };

#define CALM QUIET, "--set", "lease.initial_pages=0", "--set", "lease.batch_pages=1", "--set", "lease.batch_most=1"

static const char *const ones[] = {"--pool", POOL, CALM, NULL};
static const char *const fours[] = {"--pool", POOL ",handle_size=" TEST_SIZE_4_PAGES, CALM, NULL};

static uint32_t free_pages(void)
{
	return atomic_load(&pool_view(admin)->header->state_pages[PAGE_FREE]);
}

static void mark(const struct vm_space *space, uint32_t slot, uint32_t count, uint64_t content)
{
	for (uint32_t i = slot; i < slot + count; i++) {
		volatile uint64_t *words = (volatile uint64_t *)(uintptr_t)vm_address(space, i);

		words[0] = content + i;
		words[space->slot_bytes / 8 - 1] = content + i;
	}
}

static uint32_t wrong(const struct vm_space *space, uint32_t slot, uint32_t count, uint64_t content)
{
	uint32_t found = 0;

	for (uint32_t i = slot; i < slot + count; i++) {
		const volatile uint64_t *words = (const volatile uint64_t *)(uintptr_t)vm_address(space, i);

		found += words[0] != content + i || words[space->slot_bytes / 8 - 1] != content + i;
	}
	return found;
}

/* A taken handle is held. While it is reclaimable it is idle, and adopting it yields the same memory. */
static void park_and_adopt(const char *const *arguments, uint32_t per_handle)
{
	uint32_t pages[16], gone[16], handles = 48 / per_handle / 2;
	struct vm_take_options options = {.usage = GPOOL_USAGE_KV_CACHE, .owner_id = 7};
	struct vm_space space = {.let_go = NULL};
	struct gpool *pool, *other;
	struct gpool_block block;
	uint64_t calls;

	start(arguments);
	if (handles > 16)
		handles = 16;
	pool = open_worker();
	assert_int_equal(handle_pages(pool), per_handle);
	assert_int_equal(vm_space_open(pool, UINT64_C(1) << 40, &space), 0);
	assert_int_equal(vm_take(pool, handles, &options, pages), 0);
	assert_int_equal(free_pages(), PAGES - handles * per_handle);
	for (uint32_t i = 0; i < handles; i++) {
		assert_int_equal(pages[i] % per_handle, 0);
		assert_int_equal(atomic_load(&pool->session.pins[pages[i]]), 1);
	}
	calls = gpu_calls(pool->gpu, GPU_CALL_ACCESS);
	assert_int_equal(vm_map(&space, 5, pages, handles), 0);
	assert_int_equal(gpu_calls(pool->gpu, GPU_CALL_ACCESS), calls + 1);
	assert_int_equal(gpu_calls(pool->gpu, GPU_CALL_MAP), handles);
	mark(&space, 5, handles, 100);
	assert_int_equal(harness_check(&harness), 0);
	calls = gpu_thread_calls_total();
	vm_park(&space, 5, handles);
	assert_int_equal(harness_check(&harness), 0);
	assert_int_equal(vm_adopt_run(&space, 5, handles, &options, gone), 0);
	assert_int_equal(wrong(&space, 5, handles, 100), 0);
	assert_int_equal(harness_check(&harness), 0);
	vm_park(&space, 5, handles);
	/* One of the handles was taken in the meantime: first by this process, then by another one. */
	assert_true(lease_take(pool->session.free_bits, pages[2], per_handle));
	assert_int_equal(vm_adopt_run(&space, 5, handles, NULL, gone), 1);
	assert_int_equal(gone[0], 7);
	pool_put(pool, pages[2], per_handle);
	vm_park(&space, 5, handles);
	assert_int_equal(gpu_thread_calls_total(), calls);
	other = open_worker();
	assert_int_equal(gpool_alloc(other, PAGES - 2 * per_handle, NULL, &block), 0);
	assert_true(vm_adopt_run(&space, 5, handles, NULL, gone) >= handles - 2);
	assert_int_equal(gpool_free(other, &block), 0);
	calls = gpu_thread_calls_total();
	assert_int_equal(vm_unmap(&space, 0, space.slot_count < 64 ? space.slot_count : 64), 0);
	assert_int_equal(gpu_thread_calls_total(), calls + 1);
	vm_space_close(&space);
	gpool_close(pool);
	gpool_close(other);
	AWAIT(free_pages() == PAGES);
}

static void test_park_and_adopt(void **state)
{
	(void)state;
	park_and_adopt(ones, 1);
}

static void test_park_and_adopt_large_handles(void **state)
{
	(void)state;
	park_and_adopt(fours, 4);
}

/* ---- faults ---- */

/* Make the n-th call of a kind fail. If `undo` is set, its reversal fails as well. */
static void fault(struct vm_space *space, const uint32_t *pages, enum gpu_call kind, uint64_t n, bool undo)
{
	struct gpu *gpu = space->pool->gpu;
	int error;

	gpu_fault_set(gpu, kind, n, -EIO);
	if (undo)
		gpu_fault_set(gpu, GPU_CALL_UNMAP, 1, -EIO);
	error = vm_map(space, 0, pages, 6);
	gpu_fault_set(gpu, kind, 0, 0);
	gpu_fault_set(gpu, GPU_CALL_UNMAP, 0, 0);
	if (error) {
		assert_int_equal(error, -ENOMEM);
		/* Only mappings that could not be reversed remain, and they are recorded. */
		for (uint32_t slot = 0; slot < 6; slot++)
			assert_int_equal(space->pages[slot],
				undo && slot + 1 < (kind == GPU_CALL_MAP ? n : 7) ? (pages[slot] + 1) | VM_UNFINISHED
										  : 0);
		assert_int_equal(vm_map(space, 0, pages, 6), 0);
	}
	mark(space, 0, 6, n);
	assert_int_equal(wrong(space, 0, 6, n), 0);
	for (uint32_t i = 0; i < 6; i++)
		assert_true(vm_maps(space->pool, pages[i]));
	gpu_fault_set(gpu, GPU_CALL_UNMAP, 1, -EIO);
	assert_int_equal(vm_unmap(space, 0, 6), -EIO);
	assert_int_equal(wrong(space, 0, 6, n), 0);
	assert_int_equal(vm_unmap(space, 0, 6), 0);
	for (uint32_t i = 0; i < 6; i++)
		assert_false(vm_maps(space->pool, pages[i]));
}

static void test_driver_faults(void **state)
{
	struct vm_space space = {.let_go = NULL};
	struct gpool *pool;
	uint32_t pages[6];

	(void)state;
	start(ones);
	pool = open_worker();
	assert_int_equal(vm_space_open(pool, 8 * PAGE_BYTES, &space), 0);
	assert_int_equal(vm_take(pool, 6, NULL, pages), 0);
	for (int undo = 0; undo < 2; undo++) {
		for (uint64_t n = 1; n <= 7; n++)
			fault(&space, pages, GPU_CALL_MAP, n, undo);
		fault(&space, pages, GPU_CALL_ACCESS, 1, undo);
	}
	vm_put(pool, pages, 6);
	vm_space_close(&space);
	gpu_fault_set(pool->gpu, GPU_CALL_RESERVE, 1, -ENOMEM);
	assert_int_equal(vm_space_open(pool, 8 * PAGE_BYTES, &space), -ENOMEM);
	assert_int_equal(vm_space_open(pool, 0, &space), -ENOMEM);
	assert_int_equal(vm_space_open(pool, UINT64_MAX, &space), -ENOMEM);
	gpool_close(pool);
}

/* ---- ownership of handles ---- */

/* Let the other session take every second page of the pool. */
static uint32_t scatter(struct gpool *other, struct gpool_block *kept)
{
	struct gpool_block all[PAGES];
	uint32_t count = 0;

	for (uint32_t i = 0; i < PAGES; i++)
		all[i] = alloc(other, 1);
	for (uint32_t i = 0; i < PAGES; i++) {
		if (all[i].page % 2)
			kept[count++] = all[i];
		else
			assert_int_equal(gpool_free(other, &all[i]), 0);
	}
	thread_cache_flush(thread_cache_of(other));
	return count;
}

static uint32_t still_here(struct vm_space *space, uint32_t count)
{
	uint32_t gone[PAGES], lost = vm_adopt_run(space, 0, count, NULL, gone), next = 0;

	for (uint32_t slot = 0; slot < count; slot++) {
		if (next < lost && gone[next] == slot)
			next++;
		else
			vm_park(space, slot, 1);
	}
	return count - lost;
}

static uint64_t refills(struct gpool *pool)
{
	struct gpool_stats statistics = {.size = sizeof(statistics)};

	assert_int_equal(gpool_stats(pool, &statistics), 0);
	return statistics.refills;
}

/* In a pool without two adjacent free pages, a request does not take the reclaimable pages of its own session. */
static void test_reclaimable_while_asking(void **state)
{
	struct vm_space space = {.let_go = NULL};
	struct gpool_block kept[PAGES], block;
	struct gpool *pool, *other;
	uint32_t pages[16], more[8];
	uint64_t asked;

	(void)state;
	start(ones);
	other = open_worker();
	pool = open_worker();
	assert_int_equal(scatter(other, kept), PAGES / 2);
	assert_int_equal(vm_space_open(pool, PAGES * PAGE_BYTES, &space), 0);
	assert_int_equal(vm_take(pool, 16, NULL, pages), 0);
	assert_int_equal(vm_map(&space, 0, pages, 16), 0);
	vm_park(&space, 0, 16);
	assert_int_equal(vm_take(pool, 8, NULL, more), 0);
	assert_int_equal(still_here(&space, 16), 16);
	/* Idle pages that are not mapped are used first, without a request. */
	vm_put(pool, more, 8);
	asked = refills(pool);
	assert_int_equal(vm_take(pool, 8, NULL, more), 0);
	assert_int_equal(still_here(&space, 16), 16);
	assert_int_equal(refills(pool), asked);
	/* A request for a contiguous block needs the reclaimable pages. */
	assert_int_equal(gpool_alloc(pool, 4, NULL, &block), 0);
	assert_int_equal(gpool_free(pool, &block), 0);
	vm_space_close(&space);
	gpool_close(pool);
	gpool_close(other);
}

/* A session at its quota returns as many of its reclaimable pages as the request needs. */
static void test_at_the_quota(void **state)
{
	struct gpool_options options;
	struct vm_space space = {.let_go = NULL};
	uint32_t pages[24], more[16];
	struct gpool *pool;

	(void)state;
	start(ones);
	options = harness_options(&harness);
	options.quota_bytes = 32 * (uint64_t)PAGE_BYTES;
	assert_int_equal(gpool_open(&options, &pool), 0);
	assert_int_equal(vm_space_open(pool, PAGES * PAGE_BYTES, &space), 0);
	assert_int_equal(vm_take(pool, 24, NULL, pages), 0);
	assert_int_equal(vm_map(&space, 0, pages, 24), 0);
	vm_park(&space, 0, 24);
	assert_int_equal(vm_take(pool, 8, NULL, more), 0);
	assert_int_equal(still_here(&space, 24), 24);
	assert_int_equal(vm_take(pool, 5, NULL, more + 8), 0);
	assert_int_equal(still_here(&space, 24), 19);
	assert_int_equal(vm_take(pool, 20, NULL, pages), -EDQUOT);
	assert_int_equal(vm_take(pool, PAGES + 1, NULL, pages), -ENOSPC);
	vm_space_close(&space);
	gpool_close(pool);
}

static bool is_idle(struct gpool *pool, uint32_t page)
{
	return atomic_load(&pool->session.free_bits[page / 64]) >> (page % 64) & 1;
}

/* Released handles do not age, and are available to other sessions. */
static void test_released(void **state)
{
	static const char *const clocked[] = {
		"--pool", POOL, CALM, "--set", "lease.idle=10ms", "--set", "lease.keep_pages=0", NULL};
	struct vm_take_options free_only = {.flags = LEASE_FREE};
	struct gpool *pool, *other;
	struct gpool_block block;
	uint64_t tags[16];
	uint32_t pages[16], one, kept = 0;

	(void)state;
	start(clocked);
	pool = open_worker();
	other = open_worker();
	assert_int_equal(vm_take(pool, 16, NULL, pages), 0);
	for (uint32_t i = 0; i < 16; i++)
		tags[i] = handle_release(pool, pages[i]);
	assert_int_equal(harness_check(&harness), 0);
	/* Idle pages are released by age. */
	assert_int_equal(vm_take(pool, 1, NULL, &one), 0);
	vm_put(pool, &one, 1);
	AWAIT(!is_idle(pool, one));
	for (uint32_t i = 0; i < 16; i++) {
		assert_true(handle_claim(pool, pages[i], tags[i], NULL));
		assert_false(handle_claim(pool, pages[i], tags[i], NULL));
		tags[i] = handle_release(pool, pages[i]);
	}
	/* Take only unowned handles, neither idle in other sessions nor released. */
	block = alloc(other, 40);
	assert_int_equal(vm_take(pool, 9, &free_only, &one), -ENOSPC);
	assert_int_equal(gpool_free(other, &block), 0);
	block = alloc(other, 48 + 6);
	for (uint32_t i = 0; i < 16; i++)
		kept += handle_claim(pool, pages[i], tags[i], NULL);
	assert_int_equal(kept, 10);
	assert_int_equal(harness_check(&harness), 0);
	gpool_close(pool);
	gpool_close(other);
}

/* ---- threads ---- */

struct lane {
	struct vm_space *space;
	uint32_t slot, rounds, seed;
	uint32_t wrong, adopted;
	int error;
	pthread_t thread;
};

static void *lane_run(void *argument)
{
	struct lane *lane = argument;
	struct gpool *pool = lane->space->pool;
	uint32_t pages[10], gone[10];

	for (uint32_t round = 1; round <= lane->rounds && !lane->error; round++) {
		uint32_t lost = 10;

		if (round > 1)
			lost = vm_adopt_run(lane->space, lane->slot, 10, NULL, gone);
		else
			for (uint32_t i = 0; i < 10; i++)
				gone[i] = lane->slot + i;
		lane->adopted += 10 - lost;
		if (lost)
			lane->error = vm_take(pool, lost, &(struct vm_take_options){.timeout_ms = ANSWER_MS}, pages);
		for (uint32_t i = 0; i < lost && !lane->error; i++)
			lane->error = vm_map(lane->space, gone[i], &pages[i], 1);
		if (lane->error)
			break;
		mark(lane->space, lane->slot, 10, (uint64_t)round << 32 | (uint64_t)lane->seed << 48);
		sched_yield();
		lane->wrong += wrong(lane->space, lane->slot, 10, (uint64_t)round << 32 | (uint64_t)lane->seed << 48);
		vm_park(lane->space, lane->slot, 10);
	}
	return NULL;
}

/* Threads of two sessions release and adopt handles, and take reclaimable ones from each other. */
static void test_threads(void **state)
{
	struct vm_space spaces[2] = {{.let_go = NULL}, {.let_go = NULL}};
	struct lane lanes[6] = {{0}};
	struct gpool *pools[2];

	(void)state;
	start(ones);
	for (uint32_t i = 0; i < 2; i++) {
		pools[i] = open_worker();
		assert_int_equal(vm_space_open(pools[i], PAGES * PAGE_BYTES, &spaces[i]), 0);
	}
	for (uint32_t i = 0; i < 6; i++) {
		lanes[i] = (struct lane){.space = &spaces[i % 2], .slot = 10 * (i / 2), .rounds = 400, .seed = i + 1};
		assert_int_equal(pthread_create(&lanes[i].thread, NULL, lane_run, &lanes[i]), 0);
	}
	for (uint32_t i = 0; i < 6; i++) {
		pthread_join(lanes[i].thread, NULL);
		assert_int_equal(lanes[i].error, 0);
		assert_int_equal(lanes[i].wrong, 0);
		assert_true(lanes[i].adopted > 0);
	}
	assert_int_equal(harness_check(&harness), 0);
	for (uint32_t i = 0; i < 2; i++) {
		vm_space_close(&spaces[i]);
		gpool_close(pools[i]);
	}
	AWAIT(free_pages() == PAGES);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_park_and_adopt, stop),
		cmocka_unit_test_teardown(test_park_and_adopt_large_handles, stop),
		cmocka_unit_test_teardown(test_driver_faults, stop),
		cmocka_unit_test_teardown(test_reclaimable_while_asking, stop),
		cmocka_unit_test_teardown(test_at_the_quota, stop),
		cmocka_unit_test_teardown(test_released, stop),
		cmocka_unit_test_teardown(test_threads, stop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
