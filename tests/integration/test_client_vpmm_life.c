/*
 * test_client_vpmm_life.c - the stream-ordered allocator together with other sessions: options, memory that other
 * sessions may take, small buffers, reports.
 *
 * The second process is a second session of this process, which the agent does not treat differently. The test does not
 * wait for fixed times; it polls until effects of background work occur.
 */
#include "tests/integration/vpmm.h"

#include "cuda/gpu_private.h"
#include "shm/region_table.h"

#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static struct gpool *other;

static int attach_two(void **state)
{
	attach(state);
	other = harness_open(&harness);
	return 0;
}

static int detach_two(void **state)
{
	gpool_close(other);
	other = NULL;
	return detach(state);
}

static struct gpool_block other_takes(uint32_t pages, int timeout_ms)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_block block = {0};

	options.timeout_ms = timeout_ms;
	assert_int_equal(gpool_alloc(other, pages, &options, &block), 0);
	return block;
}

/* ---- options ---- */

/* Requirements: M2. */
static void test_options(void **state)
{
	struct gpool_vm_options options = vm_options(0), wrong;
	struct {
		struct gpool_vm_options known;
		uint64_t future;
	} longer = {.known = vm_options(0)};
	uint64_t address;

	(void)state;
	assert_int_equal(totals().page_bytes, 0);
	assert_int_equal(gpool_vm_dump(pool, dump_line, NULL), 0);
	assert_int_equal(gpool_trim_to(pool, 0), 0);
	assert_int_equal(gpool_vm_capture(pool, 4096, 1), -EINVAL);
#define WRONG(field, value) \
	wrong = options; \
	wrong.field = value; \
	assert_int_equal(gpool_vm_configure(pool, &wrong), -EINVAL)
	WRONG(flags, 1);
	WRONG(page_bytes, PAGE_BYTES + 4096);
	WRONG(small, 3);
	WRONG(usage, GPOOL_USAGE_COUNT);
	WRONG(timeout_ms, -2);
	WRONG(trace, 4);
	WRONG(idle_ms, -2);
	WRONG(slack_percent, -2);
	WRONG(slack_percent, GPOOL_VM_SLACK_MAX + 1);
	WRONG(initial_percent, 101);
	WRONG(reserved, 1);
	options.initial_bytes = PAGE_BYTES;
	WRONG(initial_percent, 10);
	options.initial_bytes = 0;
	WRONG(size, 3);
	longer.known.size = sizeof(longer);
	longer.future = 1;
	assert_int_equal(gpool_vm_configure(pool, &longer.known), -E2BIG);
	longer.future = 0;
	longer.known.page_bytes = 2 * PAGE_BYTES;
	longer.known.initial_bytes = 8 * PAGE_BYTES;
	assert_int_equal(gpool_vm_configure(pool, &longer.known), 0);
	assert_int_equal(gpool_malloc_async(pool, 3 * PAGE_BYTES, streams[0], &address), 0);
	assert_string_equal(dump(), "[+2][-2]");
	assert_int_equal(totals().page_bytes, 2 * PAGE_BYTES);
	assert_int_equal(gpool_vm_configure(pool, &options), -EALREADY);
}

/* A failed start leaves no state behind, and the next call starts again. */
static void test_start_fails(void **state)
{
	struct gpool_vm_options options = vm_options(PAGES + 1);
	uint64_t address;

	(void)state;
	assert_int_equal(gpool_vm_configure(pool, &options), 0);
	assert_int_equal(gpool_malloc_async(pool, PAGE_BYTES, streams[0], &address), -ENOSPC);
	assert_int_equal(gpool_malloc_async(pool, PAGE_BYTES, 99, &address), -EINVAL);
	options = vm_options(4);
	options.record_path = "/nowhere/at all";
	assert_int_equal(gpool_vm_configure(pool, &options), 0);
	assert_int_equal(gpool_malloc_async(pool, PAGE_BYTES, streams[0], &address), -EIO);
	configure(4);
	for (int i = 0; i < 2; i++) {
		gpu_fault_set(pool->gpu, i ? GPU_CALL_ACCESS : GPU_CALL_RESERVE, 1, -ENOMEM);
		assert_int_equal(gpool_malloc_async(pool, PAGE_BYTES, streams[0], &address), -ENOMEM);
		assert_int_equal(totals().page_bytes, 0);
	}
	take(1, streams[0]);
	assert_string_equal(dump(), "[+1][-3]");
}

/* Requirements: M2. */
static void test_environment(void **state)
{
	static const char *const wrong_slack[] = {
		"1001", "-1", "20%", " 20", "2.5", "0x10", "twenty", "99999999999999999999"};
	static const char *const wrong[] = {
		"", "2M2", "-1", "MB", "2mb", "12 MB", "99999999999999999999", "20000000TB", "1Ki"};
	struct gpool_vm_options options = vm_options(0);
	uint64_t address;

	(void)state;
	options.address_bytes = 0;
	options.slack_percent = 0;
	assert_int_equal(gpool_vm_configure(pool, &options), 0);
	for (size_t i = 1; i < sizeof(wrong) / sizeof(*wrong); i++) {
		setenv("GPOOL_VM_PAGE_SIZE", wrong[i], 1);
		assert_int_equal(gpool_malloc_async(pool, PAGE_BYTES, streams[0], &address), -EINVAL);
	}
	setenv("GPOOL_VM_PAGE_SIZE", "786432", 1); /* one and a half handles */
	assert_int_equal(gpool_malloc_async(pool, PAGE_BYTES, streams[0], &address), -EINVAL);
	setenv("GPOOL_VM_PAGE_SIZE", TEST_SIZE_2_PAGES, 1);
	for (size_t i = 0; i < sizeof(wrong_slack) / sizeof(*wrong_slack); i++) {
		setenv("GPOOL_VM_SLACK", wrong_slack[i], 1);
		assert_int_equal(gpool_malloc_async(pool, PAGE_BYTES, streams[0], &address), -EINVAL);
		assert_non_null(strstr(gpool_last_error(-EINVAL), "which is not a number of percent from 0 to 1000"));
	}
	setenv("GPOOL_VM_SLACK", "1000", 1);
	setenv("GPOOL_VM_PAGES", "5", 1);
	setenv("GPOOL_VM_VA_SIZE", "64MiB", 1);
	assert_int_equal(gpool_malloc_async(pool, 2 * PAGE_BYTES, streams[0], &address), 0);
	unsetenv("GPOOL_VM_PAGE_SIZE");
	unsetenv("GPOOL_VM_PAGES");
	unsetenv("GPOOL_VM_VA_SIZE");
	unsetenv("GPOOL_VM_SLACK");
	assert_int_equal(totals().slack_percent, 1000);
	assert_string_equal(dump(), "[+1][-4]");
	assert_int_equal(totals().page_bytes, 2 * PAGE_BYTES);
	assert_int_equal(totals().reserved_bytes, 64 << 20);
}

/*
 * Without an option and an environment variable, 8 TB of addresses are reserved, or half of it if the process cannot
 * reserve as much. ThreadSanitizer leaves less than 8 TB of addresses.
 * Requirements: M2.
 */
#ifndef __SANITIZE_THREAD__
static void test_default_reservation(void **state)
{
	struct gpool_vm_options options = vm_options(0);

	(void)state;
	options.address_bytes = 0;
	for (int half = 0; half < 2; half++) {
		attach_anew(0);
		assert_int_equal(gpool_vm_configure(pool, &options), 0);
		if (half)
			gpu_fault_set(pool->gpu, GPU_CALL_RESERVE, 1, -ENOMEM);
		take(1, streams[0]);
		assert_int_equal(totals().reserved_bytes, UINT64_C(8) << (half ? 39 : 40));
	}
}
#endif

/* ---- callers without rights ---- */

static void test_fork_and_observers(void **state)
{
	struct gpool_vm_stats filled = {.size = sizeof(filled)};
	struct gpool_options options = harness_options(&harness);
	uint64_t address = take(2, streams[0]), never;
	struct gpool *observer;
	int status;
	pid_t child;

	(void)state;
	child = fork();
	if (child == 0) {
		int bad = gpool_malloc_async(pool, PAGE_BYTES, 0, &never) != -ECHILD ||
			gpool_free_async(pool, address, 0) != -ECHILD || gpool_trim_to(pool, 0) != -ECHILD ||
			gpool_vm_capture(pool, address, 1) != -ECHILD || gpool_vm_stats(pool, &filled) != -ECHILD ||
			gpool_vm_dump(pool, dump_line, NULL) != -ECHILD || gpool_vm_configure(pool, NULL) != -ECHILD;

		gpool_close(pool);
		_exit(bad);
	}
	assert_true(child > 0 && waitpid(child, &status, 0) == child);
	assert_int_equal(status, 0);
	give(address, streams[0]);
	dump();
	options.flags = GPOOL_OPEN_OBSERVER;
	assert_int_equal(gpool_open(&options, &observer), 0);
	assert_int_equal(gpool_malloc_async(observer, PAGE_BYTES, 0, &never), -EPERM);
	assert_int_equal(gpool_free_async(observer, address, 0), -EPERM);
	assert_int_equal(gpool_trim_to(observer, 0), -EPERM);
	assert_int_equal(gpool_vm_stats(observer, &filled), -EPERM);
	assert_int_equal(gpool_vm_dump(observer, dump_line, NULL), -EPERM);
	gpool_close(observer);
}

/* ---- memory that other sessions may take ---- */

static void test_reclaimable_and_adopted(void **state)
{
	uint64_t a, b, calls;
	uint32_t s = streams[0];

	(void)state;
	configure(0);
	a = take(10, s);
	b = take(6, s);
	fill(s, a, 10, 1);
	give(a, s);
	/* The first pass records a fence, and a later pass finds it signaled. */
	finish(s);
	calls = gpu_thread_calls(GPU_CALL_UNMAP) + gpu_thread_calls(GPU_CALL_MAP) + gpu_thread_calls(GPU_CALL_ACCESS);
	AWAIT(gpool_trim_to(pool, 0) == 10 * PAGE_BYTES);
	assert_int_equal(totals().reclaimable_bytes, 10 * PAGE_BYTES);
	assert_int_equal(totals().reusable_bytes, 10 * PAGE_BYTES);
	assert_string_equal(dump(), "[-10][6]");
	assert_int_equal(take(4, s), a);
	assert_int_equal(totals().reclaimable_bytes, 6 * PAGE_BYTES);
	expect_content(a, 4, 1);
	assert_int_equal(calls,
		gpu_thread_calls(GPU_CALL_UNMAP) + gpu_thread_calls(GPU_CALL_MAP) + gpu_thread_calls(GPU_CALL_ACCESS));
	/* A part of the memory stays. */
	give(a, 0);
	give(b, 0);
	assert_int_equal(gpool_trim_to(pool, 4 * PAGE_BYTES), 6 * PAGE_BYTES);
	assert_int_equal(totals().reclaimable_bytes, 12 * PAGE_BYTES);
	assert_int_equal(gpool_trim_to(pool, 1), 3 * PAGE_BYTES);
	dump();
}

/* Requirements: M9. */
static void test_reclaimable_pages_are_taken(void **state)
{
	struct gpool_block block;
	uint32_t s = streams[0];
	uint64_t a;

	(void)state;
	configure(0);
	a = take(20, s);
	give(a, 0);
	assert_int_equal(gpool_trim_to(pool, 0), 20 * PAGE_BYTES);
	block = other_takes(PAGES - 8, SOON_MS);
	assert_string_equal(dump(), "[-20]"); /* not examined yet */
	/* Eight pages remain, at any addresses. The others are pending unmaps, and soon holes. */
	assert_int_equal(gpool_malloc_async(pool, 9 * PAGE_BYTES, s, &a), -ENOSPC);
	a = take(8, s);
	fill(s, a, 8, 7);
	assert_int_equal(pool_pages(), 8);
	finish(s);
	expect_content(a, 8, 7);
	assert_int_equal(gpool_free(other, &block), 0);
	a = take(20, s);
	fill(s, a, 20, 8);
	finish(s);
	expect_content(a, 20, 8);
	dump();
}

/* With pages of several handles, a page that has lost a handle is lost, and its other handles are idle. */
static void test_reclaimable_pages_of_two_handles(void **state)
{
	struct gpool_vm_options options = vm_options(0);
	struct gpool_block block;
	uint64_t a;

	(void)state;
	options.page_bytes = 2 * PAGE_BYTES;
	assert_int_equal(gpool_vm_configure(pool, &options), 0);
	a = take(20, streams[0]);
	give(a, 0);
	assert_int_equal(gpool_trim_to(pool, 0), 20 * PAGE_BYTES);
	block = other_takes(PAGES - 7, SOON_MS);
	a = take(2, streams[0]);
	fill(streams[0], a, 2, 9);
	finish(streams[0]);
	expect_content(a, 2, 9);
	dump();
	assert_int_equal(gpool_free(other, &block), 0);
	take(20, streams[0]);
	dump();
}

/* Regions that are unused for some time, or needed by other sessions, are offered in the background. */
/* Requirements: M9. */
static void test_idle_pages_are_reclaimable(void **state)
{
	struct gpool_vm_options options = vm_options(0);
	uint32_t s = streams[0];
	uint64_t a;

	(void)state;
	options.idle_ms = 1;
	assert_int_equal(gpool_vm_configure(pool, &options), 0);
	a = take(20, s);
	take(2, s);
	give(a, s);
	AWAIT(totals().reclaimable_bytes == 20 * PAGE_BYTES);
	assert_int_equal(take(20, s), a);
	give(a, s);
	/* The old addresses of a remapping are offered as well. */
	take(21, s);
	AWAIT(totals().pending_unmap_bytes == 0);
	dump();
}

/* Requirements: M9. */
static void test_pressure_frees(void **state)
{
	struct gpool_block block;
	uint32_t s = streams[0];
	uint64_t a, b;

	(void)state;
	/*
	 * Idle time does not matter here. Free memory is offered at the next tick; before that, pressure makes it
	 * reclaimable.
	 */
	configure(0);
	a = take(300, s);
	b = take(100, s);
	give(a, s);
	block = other_takes(400, SOON_MS);
	assert_int_equal(block.page_count, 400);
	assert_int_equal(gpool_free(other, &block), 0);
	give(b, s);
}

/* The pressure is medium, so free memory beyond the peak is returned, and free pages are remapped before new ones. */
/* Requirements: M14. */
static void test_slack_shrinks_under_pressure(void **state)
{
	struct gpool_vm_options options = vm_options(0);
	struct gpool_block block;
	uint32_t s = streams[0];
	uint64_t a;

	(void)state;
	options.slack_percent = 100;
	assert_int_equal(gpool_vm_configure(pool, &options), 0);
	a = take(20, s);
	take(1, s);
	give(a, s);
	give(take(21, s), s);
	assert_int_equal(pool_pages(), 42);
	assert_int_equal(totals().slack_percent, 100);
	block = other_takes(390, SOON_MS);
	AWAIT(totals().slack_percent == 0);
	/* 22 pages were live at the same time. */
	AWAIT(totals().reclaimable_bytes == 20 * PAGE_BYTES);
	assert_int_equal(totals().live_peak_bytes, 22 * PAGE_BYTES);
	assert_int_equal(gpool_free(other, &block), 0);
	AWAIT(totals().slack_percent == 100);
}

static void *free_later(void *block)
{
	assert_int_equal(gpool_free(other, block), 0);
	return NULL;
}

static void test_waits_for_pages(void **state)
{
	struct gpool_vm_options options = vm_options(0);
	struct gpool_block block;
	uint32_t s = streams[0];
	pthread_t thread;
	uint64_t a, b;

	(void)state;
	options.timeout_ms = SOON_MS;
	assert_int_equal(gpool_vm_configure(pool, &options), 0);
	a = take(20, s);
	b = take(5, s);
	give(a, s);
	block = other_takes(PAGES - 30, 0);
	assert_int_equal(pthread_create(&thread, NULL, free_later, &block), 0);
	a = take(100, s);
	pthread_join(thread, NULL);
	fill(s, a, 100, 4);
	finish(s);
	expect_content(a, 100, 4);
	give(b, s);
	dump();
}

/* ---- small buffers ---- */

static uint64_t take_bytes(uint64_t bytes, uint32_t stream)
{
	uint64_t address = 0;

	assert_int_equal(gpool_malloc_async(pool, bytes, stream, &address), 0);
	assert_int_equal(address % 256, 0);
	return address;
}

/* Requirements: M1. */
static void test_small(void **state)
{
	uint32_t s = streams[0], t = streams[1], manual = manual_stream();
	struct gpool_fence fence;
	uint64_t a, b, c, calls, at[40];

	(void)state;
	configure(0);
	a = take_bytes(1000, s);
	b = take_bytes(1000, s);
	assert_int_not_equal(a, b);
	assert_int_equal(totals().live_regions, 0);
	assert_int_equal(totals().small_bytes, 2048);
	/* The stream that freed the buffer can reuse it at once, without any call. */
	calls = driver_calls();
	for (int i = 0; i < 10; i++) {
		give(a, s);
		assert_int_equal(gpool_free_async(pool, a, s), -ESTALE);
		assert_int_equal(take_bytes(900 + (uint64_t)i, s), a);
	}
	assert_int_equal(driver_calls(), calls);
	assert_int_equal(gpool_free_async(pool, a + 256, s), -ESTALE);
	assert_int_equal(gpool_free_async(pool, a + 1, s), -ESTALE);
	assert_int_equal(gpool_vm_capture(pool, a, 1), -EINVAL);
	/* Another stream can reuse it only when the work is done. */
	c = take_bytes(1000, manual);
	give(c, manual);
	fence = record(manual);
	for (int i = 0; i < 40; i++)
		assert_int_not_equal(at[i] = take_bytes(1000, t), c);
	signal_fence(fence);
	for (int i = 0; i < 40; i++)
		give(at[i], t);
	finish(t);
	a = take_bytes(1024, 0);
	give(a, 0);
	assert_int_equal(take_bytes(1024, 0), a);
	/* The limit for small buffers is half a page. */
	take_bytes(PAGE_BYTES / 2, s);
	assert_int_equal(totals().live_regions, 0);
	a = take_bytes(PAGE_BYTES / 2 + 1, s);
	assert_int_equal(totals().live_regions, 1);
	give(a, s);
	give(b, s);
	gpool_stream_close(pool, manual);
}

/* A stream may reuse its memory before the GPU is done with it. Other streams may not, whichever thread frees it. */
static void test_small_guards(void **state)
{
	uint32_t s = streams[0], t = streams[1], manual = manual_stream();
	uint64_t a, b, at[200];
	struct gpool_fence gate;

	(void)state;
	configure(0);
	b = take_bytes(5000, t);
	a = take_bytes(5000, manual);
	give(a, manual);
	gate = record(manual);
	/*
	 * If the buffer is freed without a stream, the host-signaled stream may reuse it. If it is freed in another
	 * stream, no stream may reuse it yet.
	 */
	assert_int_equal(take_bytes(5000, manual), a);
	give(a, 0);
	assert_int_equal(take_bytes(5000, manual), a);
	give(a, t);
	assert_int_not_equal(take_bytes(5000, manual), a);
	for (int i = 0; i < 200; i++)
		assert_int_not_equal(at[i] = take_bytes(5000, i % 2 ? s : t), a);
	for (int i = 0; i < 200; i++)
		give(at[i], i % 2 ? s : t);
	signal_fence(gate);
	finish(t);
	give(b, t);
	/* The guard of the buffer has ended, and the buffer waits in the list of stream t. */
	AWAIT((vpmm_small_return(pool->vpmm, true), finish(t), !vpmm_small_waits(pool->vpmm)));
	assert_int_equal(gpool_free_async(pool, a, t), -ESTALE);
	gpool_stream_close(pool, manual);
}

/* Waiting buffers return to their pages, and the pages to the pool. */
static void test_small_buffers_are_freed(void **state)
{
	uint32_t s = streams[0], t = streams[1];
	uint64_t at[100];

	(void)state;
	configure(0);
	for (int i = 0; i < 100; i++)
		at[i] = take_bytes(PAGE_BYTES / 4, s);
	for (int i = 0; i < 100; i++)
		give(at[i], s);
	assert_int_equal(totals().small_bytes, 0);
	gpool_trim_to(pool, 0);
	finish(s);
	gpool_trim_to(pool, 0);
	give(take(PAGES, t), t);
	give(take_bytes(100, s), s);
	dump();
}

/*
 * The background thread sleeps while no buffer waits. The free of a small allocation must wake it, or its page would be
 * kept until the next call.
 */
static void test_small_free_wakes_the_background(void **state)
{
	uint32_t s = streams[0];
	uint64_t at;

	(void)state;
	configure(0);
	at = take_bytes(1000, s);
	AWAIT(atomic_load(&pool->vpmm->asleep));
	give(at, s);
	AWAIT(!vpmm_small_waits(pool->vpmm));
}

static void test_small_buffers_need_free_pages(void **state)
{
	uint32_t s = streams[0];
	uint64_t a;

	(void)state;
	configure(0);
	a = take(PAGES, s);
	give(a, 0);
	/* All pages are leased and free, and the small allocation needs one of them. */
	take_bytes(100, s);
	take(PAGES - 1, s);
	assert_int_equal(gpool_malloc_async(pool, 4096, s, &a), -ENOSPC);
	dump();
}

/* All pages are free in a stream whose work is not done. A whole page is used, and its stream waits on the GPU. */
static void test_small_buffer_behind_a_wait(void **state)
{
	uint32_t s = streams[0], t = streams[1], manual = manual_stream();
	struct gpool_fence gate, later;
	uint64_t a;

	(void)state;
	configure(0);
	a = take(PAGES, t);
	gate = record(manual);
	assert_int_equal(gpool_stream_wait(pool, t, gate), 0);
	fill(t, a, PAGES, 1);
	give(a, t);
	a = take_bytes(100, s);
	assert_int_equal(totals().live_regions, 1);
	fill(s, a, 1, 2);
	later = record(s);
	assert_int_equal(gpool_fence_wait(pool, later, 10), -ETIMEDOUT);
	signal_fence(gate);
	assert_int_equal(gpool_fence_wait(pool, later, SOON_MS), 0);
	expect_content(a, 1, 2);
	give(a, s);
	gpool_stream_close(pool, manual);
}

/* Requirements: M1. */
static void test_small_as_pages(void **state)
{
	struct gpool_vm_options options = vm_options(3);

	(void)state;
	options.small = GPOOL_VM_SMALL_PAGES;
	assert_int_equal(gpool_vm_configure(pool, &options), 0);
	take_bytes(1, streams[0]);
	assert_string_equal(dump(), "[+1][-2]");
}

/* Provide a driver's pool for this test, because the back end `host` has none. */
static struct gpu_ops with_pool;
static const struct gpu_ops *without_pool;
static uint32_t pool_allocs, pool_frees;
static _Alignas(256) char pool_memory[16][256];

static int fake_pool_alloc(struct gpu *gpu, uint64_t bytes, struct gpu_stream *stream, uint64_t *va)
{
	(void)gpu;
	assert_true(stream && bytes < PAGE_BYTES);
	*va = (uintptr_t)pool_memory[pool_allocs++ % 16];
	return 0;
}

static int fake_pool_free(struct gpu *gpu, uint64_t va, struct gpu_stream *stream)
{
	(void)gpu;
	assert_true(stream && va >= (uintptr_t)pool_memory && va < (uintptr_t)(pool_memory + 16));
	pool_frees++;
	return 0;
}

/* Small means smaller than a VPMM page, whatever the size of the pool's pages. Requirements: M14. */
static void test_small_is_less_than_a_page(void **state)
{
	struct gpool_vm_options options = vm_options(0);
	uint32_t s = streams[0], manual = manual_stream();
	uint64_t a, b, calls, most = 200 * PAGE_BYTES;
	const struct block_entry *entry;

	(void)state;
	options.page_bytes = most;
	assert_int_equal(gpool_vm_configure(pool, &options), 0);
	a = take_bytes(3 * PAGE_BYTES - 1, s);
	assert_int_equal(totals().small_bytes, 3 * PAGE_BYTES);
	/* Its pin is not a leaked one, however long the program keeps it. */
	entry = &pool->session.blocks[(a - pool->window_base) / PAGE_BYTES];
	assert_true(atomic_load(&entry->tag) & BLOCK_RANGE);
	b = take_bytes(most - 1, s);
	assert_int_equal(totals().small_bytes, 203 * PAGE_BYTES);
	assert_int_equal(totals().live_regions, 0);
	fill(s, a, 3, 0x111);
	fill(s, b, 200, 0x222);
	/* The same stream can use it again at once, for the same number of pages. */
	calls = driver_calls();
	give(a, s);
	assert_int_equal(take_bytes(2 * PAGE_BYTES + 1, s), a);
	give(b, s);
	assert_int_equal(take_bytes(199 * PAGE_BYTES + 1, s), b);
	assert_int_equal(driver_calls(), calls);
	finish(s);
	expect_content(a, 3, 0x111);
	expect_content(b, 200, 0x222);
	give(b, s);
	b = take_bytes(190 * PAGE_BYTES, s);
	give(b, s);
	/* Another stream cannot, as long as the work is not done. */
	give(a, manual);
	b = take_bytes(3 * PAGE_BYTES, s);
	assert_int_not_equal(a, b);
	give(b, s);
	gpool_stream_close(pool, manual);
	finish(s);
	take_bytes(most, s);
	assert_int_equal(totals().live_regions, 1);
	assert_int_equal(totals().small_bytes, 0);
}

/*
 * With a VPMM page that is larger than the pool, allocations come from the driver's pool, or else are pages.
 * Requirements: M12.
 */
static void test_page_larger_than_the_pool(void **state)
{
	struct gpool_vm_options options = vm_options(0);
	uint32_t s = streams[0], t = streams[1];
	bool driver = pool->capabilities & GPU_CAP_POOL;
	uint64_t a, b, c, calls = gpu_calls(pool->gpu, GPU_CALL_POOL_ALLOC);

	(void)state;
	options.page_bytes = (PAGES + 1) * (uint64_t)PAGE_BYTES;
	options.initial_percent = 80; /* ignored */
	options.small = GPOOL_VM_SMALL_PAGES;
	assert_int_equal(gpool_vm_configure(pool, &options), 0);
	a = take_bytes(10 * PAGE_BYTES, s);
	b = take_bytes(100, s);
	assert_int_equal(gpu_calls(pool->gpu, GPU_CALL_POOL_ALLOC), calls + 2 * driver);
	c = take_bytes(3 * PAGE_BYTES, 0); /* a wait on the GPU is not possible: pages of the pool */
	assert_int_equal(gpu_calls(pool->gpu, GPU_CALL_POOL_ALLOC), calls + 2 * driver);
	assert_int_equal(totals().small_bytes, 13 * PAGE_BYTES + (driver ? 100 : 256));
	assert_int_equal(totals().page_bytes, options.page_bytes);
	assert_int_equal(totals().reserved_bytes, 0);
	assert_string_equal(dump(), "");
	fill(s, a, 10, 0xaaaa);
	fill(t, c, 3, 0xcccc);
	give(a, s);
	a = take_bytes(10 * PAGE_BYTES, s);
	finish(t);
	expect_content(c, 3, 0xcccc);
	give(a, s);
	give(b, s);
	give(c, t);
	assert_int_equal(gpool_free_async(pool, c, t), -ESTALE);
	assert_int_equal(totals().small_bytes, 0);
	/* Everything in one piece, as soon as the work is done; and not more than there is. */
	finish(s);
	finish(t);
	if (!driver) {
		a = take_bytes(PAGES * (uint64_t)PAGE_BYTES, s);
		assert_int_equal(gpool_malloc_async(pool, PAGE_BYTES, t, &b), -ENOSPC);
		give(a, s);
		assert_int_equal(gpool_malloc_async(pool, options.page_bytes, t, &b), -ENOSPC);
	}
}

/* Requirements: M12. */
static void test_share_of_the_pool(void **state)
{
	struct gpool_vm_options options = vm_options(0);
	static const char *const wrong[] = {"%", "101%", "-1%", "5 %", "2.5%", "x%", "5%%"};
	uint64_t address;

	(void)state;
	options.initial_percent = 50;
	assert_int_equal(gpool_vm_configure(pool, &options), 0);
	take(1, streams[0]);
	assert_string_equal(dump(), "[+1][-255]");
	detach(state);
	attach(state);
	options.initial_percent = 0;
	assert_int_equal(gpool_vm_configure(pool, &options), 0);
	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		setenv("GPOOL_VM_PAGES", wrong[i], 1);
		assert_int_equal(gpool_malloc_async(pool, PAGE_BYTES, streams[0], &address), -EINVAL);
	}
	setenv("GPOOL_VM_PAGES", "80%", 1);
	take(1, streams[0]);
	unsetenv("GPOOL_VM_PAGES");
	assert_string_equal(dump(), "[+1][-408]");
}

/* Requirements: M1. */
static void test_small_of_the_driver(void **state)
{
	struct gpool_vm_options options = vm_options(0);
	uint32_t s = streams[0], manual = manual_stream();
	uint64_t a, b, c, d;

	(void)state;
	options.small = GPOOL_VM_SMALL_DRIVER;
	assert_int_equal(gpool_vm_configure(pool, &options), 0);
	if (!(pool->capabilities & GPU_CAP_POOL))
		assert_int_equal(gpool_malloc_async(pool, 100, s, &a), -EOPNOTSUPP);
	without_pool = pool->gpu->ops;
	with_pool = *without_pool;
	with_pool.pool_alloc = fake_pool_alloc;
	with_pool.pool_free = fake_pool_free;
	pool->gpu->ops = &with_pool;
	pool->capabilities |= GPU_CAP_POOL;
	pool_allocs = pool_frees = 0;
	a = take_bytes(100, s);
	assert_int_equal(a, (uintptr_t)pool_memory[0]);
	b = take_bytes(PAGE_BYTES - 1, s);
	c = take(1, s);
	d = take_bytes(100, 0); /* no stream for a wait on the GPU: a part of a page */
	assert_int_equal(pool_allocs, 2);
	assert_int_equal(totals().small_bytes, 100 + PAGE_BYTES - 1 + 256);
	give(a, s);
	assert_int_equal(pool_frees, 1);
	assert_int_equal(gpool_free_async(pool, a, s), -EINVAL);
	give(b, manual);
	give(c, s);
	give(d, 0);
	assert_int_equal(pool_frees, 2);
	gpool_stream_close(pool, manual);
	/* The remaining memory is freed with the pool. */
	take_bytes(1, s);
	detach(state);
	assert_int_equal(pool_frees, 3);
	attach(state);
}

/* ---- reports ---- */

static char log_text[1 << 16];

static void log_line(void *context, int level, const char *text)
{
	(void)context;
	(void)level;
	if (strlen(log_text) + strlen(text) + 2 < sizeof(log_text))
		strcat(strcat(log_text, text), "\n");
}

static struct gpool *open_logged(void)
{
	struct gpool_options options = harness_options(&harness);
	struct gpool *opened;

	options.log = log_line;
	*log_text = '\0';
	assert_int_equal(gpool_open(&options, &opened), 0);
	return opened;
}

static void test_trace(void **state)
{
	struct gpool_vm_options options = vm_options(8);
	char freed[64];
	uint64_t a, b;

	(void)state;
	gpool_close(pool);
	pool = open_logged();
	assert_int_equal(gpool_stream_open(pool, NULL, 0, &streams[0]), 0);
	options.trace = 3;
	assert_int_equal(gpool_vm_configure(pool, &options), 0);
	a = take(4, streams[0]);
	assert_non_null(strstr(log_text, "1: 4 pages in its stream"));
	assert_non_null(strstr(log_text, "0 driver calls"));
	assert_non_null(strstr(log_text, "[+4][-4]"));
	b = take(2, streams[0]);
	give(a, streams[0]);
	snprintf(freed, sizeof(freed), "mfree of %d bytes", 4 * PAGE_BYTES);
	assert_non_null(strstr(log_text, freed));
	*log_text = '\0';
	take(7, streams[0]);
	assert_non_null(strstr(log_text, "2: 2 pages are mapped there"));
	assert_non_null(strstr(log_text, "2: harvest 4 pages"));
	assert_non_null(strstr(log_text, "2: 1 page to ask the agent for"));
	assert_non_null(strstr(log_text, "2: mapped 7 pages"));
	assert_non_null(strstr(log_text, "[*4][2][+7]"));
	finish(streams[0]);
	*log_text = '\0';
	give(take(1, streams[0]), streams[0]);
	assert_non_null(strstr(log_text, "0: pending unmap of 4 pages"));
	*log_text = '\0';
	assert_int_equal(gpool_malloc_async(pool, (uint64_t)PAGES * PAGE_BYTES, streams[0], &a), -ENOSPC);
	assert_non_null(strstr(log_text, gpool_strerror(ENOSPC)));
	give(b, streams[0]);
}

static char record_path[128];

static void record_to_file(void)
{
	struct gpool_vm_options options = vm_options(0);

	snprintf(record_path, sizeof(record_path), "%s/record.csv", harness.base);
	options.record_path = record_path;
	assert_int_equal(gpool_vm_configure(pool, &options), 0);
}

static void test_record(void **state)
{
	static const char *const ops[] = {"malloc", "malloc", "free", "malloc", "free", "free"};
	static const uint32_t which[] = {0, 1, 0, 2, 2, 1};
	unsigned long long time_ns, last_ns = 0, bytes, id, ids[3] = {0};
	uint32_t thread, stream;
	char op[8], line[256];
	uint64_t a, b, c;
	FILE *file;

	(void)state;
	gpool_close(pool);
	pool = open_logged();
	record_to_file();
	assert_int_equal(gpool_stream_open(pool, NULL, 0, &streams[0]), 0);
	a = take(3, streams[0]);
	b = take_bytes(1000, 0);
	give(a, streams[0]);
	assert_int_equal(gpool_free_async(pool, a, streams[0]), -ESTALE); /* a replay could not repeat this call */
	c = take_bytes(PAGE_BYTES + 5, streams[0]);
	give(c, streams[0]);
	give(b, 0);
	assert_int_equal(totals().records_lost, 0);
	gpool_close(pool);
	file = fopen(record_path, "re");
	assert_non_null(file);
	assert_non_null(fgets(line, sizeof(line), file));
	assert_string_equal(line, "time_ns,thread,stream,op,size,id\n");
	for (int i = 0; i < 6; i++) {
		static const uint64_t sizes[] = {3 * PAGE_BYTES, 1000, PAGE_BYTES + 5};

		assert_non_null(fgets(line, sizeof(line), file));
		assert_int_equal(
			sscanf(line, "%llu,%u,%u,%7[a-z],%llu,%llu\n", &time_ns, &thread, &stream, op, &bytes, &id), 6);
		assert_true(time_ns >= last_ns);
		last_ns = time_ns;
		assert_int_equal(thread, gettid());
		assert_int_equal(stream, which[i] == 1 ? 0 : streams[0]);
		assert_string_equal(op, ops[i]);
		assert_int_equal(bytes, sizes[which[i]]);
		if (!ids[which[i]])
			ids[which[i]] = id;
		assert_int_equal(id, ids[which[i]]);
	}
	assert_null(fgets(line, sizeof(line), file));
	assert_true(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2]);
	fclose(file);
	unlink(record_path);
	pool = harness_open(&harness);
}

/* A full disk does not stop the process. Lost records are counted and logged. */
static void test_record_on_a_full_disk(void **state)
{
	struct rlimit before, limit = {200, RLIM_INFINITY};

	(void)state;
	gpool_close(pool);
	pool = open_logged();
	record_to_file();
	signal(SIGXFSZ, SIG_IGN);
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
	limit.rlim_max = before.rlim_max;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
	for (int i = 0; i < 100; i++)
		give(take(1, 0), 0);
	AWAIT(totals().records_lost > 0);
	give(take(1, 0), 0);
	gpool_close(pool);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
	assert_non_null(strstr(log_text, "cannot write the record of calls"));
	assert_non_null(strstr(log_text, "the record of calls lacks"));
	unlink(record_path);
	pool = harness_open(&harness);
}

/* The view of tools equals the dump. Requirements: M7. */
static void test_shown_regions(void **state)
{
	const struct region_table *table = pool->session.regions;
	struct gpool_vm_stats now;
	uint32_t s = streams[0], rows = 0;
	uint64_t a, pages[REGION_ROW_STATES] = {0};
	struct region_look look;
	struct region_row row;

	(void)state;
	configure(20);
	a = take(7, s);
	take(3, s);
	give(a, s);
	take(12, s);
	give(take(1, s), s);
	assert_int_equal(gpool_trim_to(pool, 0) >= 0, 1);
	now = totals();
	dump();
	region_table_look(table, &look);
	assert_false(look.damaged || look.totals_changing || look.changes & 1);
	assert_int_equal(look.page_bytes, PAGE_BYTES);
	for (uint32_t i = 0; i < look.used; i++) {
		enum region_read read = region_table_read(table, &look, i, &row);

		assert_true(read == REGION_READ_NONE || read == REGION_READ_WHOLE);
		if (read == REGION_READ_NONE)
			continue;
		rows++;
		pages[row.state] += row.pages;
		assert_int_equal(row.flags & REGION_ROW_MOVING, 0);
	}
	assert_int_equal(rows, now.live_regions + now.reusable_regions + now.hole_regions + now.pending_unmap_regions);
	assert_int_equal(pages[REGION_ROW_ALLOCATED] * PAGE_BYTES, now.live_bytes);
	assert_int_equal(pages[REGION_ROW_FREE] * PAGE_BYTES, now.reusable_bytes);
	assert_int_equal(pages[REGION_ROW_HOLE] * PAGE_BYTES, now.hole_bytes);
	assert_int_equal(pages[REGION_ROW_PENDING_UNMAP] * PAGE_BYTES, now.pending_unmap_bytes);
	assert_int_equal(look.totals.live, now.live_bytes);
	assert_int_equal(look.totals.reusable, now.reusable_bytes);
	assert_int_equal(look.totals.reclaimable, now.reclaimable_bytes);
	assert_int_equal(look.totals.pending_unmap, now.pending_unmap_bytes);
	assert_int_equal(look.totals.reserved, now.reserved_bytes);
	assert_true(region_table_stands(table, &look));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_options, attach, detach),
		cmocka_unit_test_setup_teardown(test_start_fails, attach, detach),
		cmocka_unit_test_setup_teardown(test_environment, attach, detach),
#ifndef __SANITIZE_THREAD__
		cmocka_unit_test_setup_teardown(test_default_reservation, attach, detach),
#endif
		cmocka_unit_test_setup_teardown(test_fork_and_observers, attach, detach),
		cmocka_unit_test_setup_teardown(test_reclaimable_and_adopted, attach, detach),
		cmocka_unit_test_setup_teardown(test_reclaimable_pages_are_taken, attach_two, detach_two),
		cmocka_unit_test_setup_teardown(test_reclaimable_pages_of_two_handles, attach_two, detach_two),
		cmocka_unit_test_setup_teardown(test_idle_pages_are_reclaimable, attach, detach),
		cmocka_unit_test_setup_teardown(test_pressure_frees, attach_two, detach_two),
		cmocka_unit_test_setup_teardown(test_slack_shrinks_under_pressure, attach_two, detach_two),
		cmocka_unit_test_setup_teardown(test_waits_for_pages, attach_two, detach_two),
		cmocka_unit_test_setup_teardown(test_small, attach, detach),
		cmocka_unit_test_setup_teardown(test_small_guards, attach, detach),
		cmocka_unit_test_setup_teardown(test_small_buffers_are_freed, attach, detach),
		cmocka_unit_test_setup_teardown(test_small_free_wakes_the_background, attach, detach),
		cmocka_unit_test_setup_teardown(test_small_buffers_need_free_pages, attach, detach),
		cmocka_unit_test_setup_teardown(test_small_buffer_behind_a_wait, attach, detach),
		cmocka_unit_test_setup_teardown(test_small_as_pages, attach, detach),
		cmocka_unit_test_setup_teardown(test_small_of_the_driver, attach, detach),
		cmocka_unit_test_setup_teardown(test_small_is_less_than_a_page, attach, detach),
		cmocka_unit_test_setup_teardown(test_page_larger_than_the_pool, attach, detach),
		cmocka_unit_test_setup_teardown(test_share_of_the_pool, attach, detach),
		cmocka_unit_test_setup_teardown(test_trace, attach, detach),
		cmocka_unit_test_setup_teardown(test_record, attach, detach),
		cmocka_unit_test_setup_teardown(test_record_on_a_full_disk, attach, detach),
		cmocka_unit_test_setup_teardown(test_shown_regions, attach, detach),
	};

	return run_vpmm_tests(tests, sizeof(tests) / sizeof(*tests));
}
