/*
 * vpmm.h - a pool of 512 pages of 512 KB, sizes in pages, and regions in a short text form; shared by the tests of the
 * stream-ordered allocator.
 */
#ifndef GPOOL_TESTS_VPMM_H
#define GPOOL_TESTS_VPMM_H

#include "client/vm/vpmm.h"
#include "tests/lib/await.h"
#include "tests/lib/harness.h"

#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { PAGES = 512, PAGE_BYTES = TEST_PAGE_BYTES, ADDRESS_PAGES = 10000, STREAMS = 4, SOON_MS = AWAIT_MS };

static struct harness harness;
static struct gpool *pool;
static uint32_t streams[STREAMS]; /* streams of the back end */

static inline int attach(void **state)
{
	(void)state;
	pool = harness_open_calm(&harness);
	for (int i = 0; i < STREAMS; i++)
		assert_int_equal(gpool_stream_open(pool, NULL, 0, &streams[i]), 0);
	return 0;
}

/* Attach again with a quota of `pages` pages. At the quota, an allocation can only wait for memory of other streams. */
static inline void attach_anew(uint32_t pages)
{
	struct gpool_options options = harness_options(&harness);

	gpool_close(pool);
	options.quota_bytes = (uint64_t)pages * PAGE_BYTES;
	assert_int_equal(gpool_open(&options, &pool), 0);
	for (int i = 0; i < STREAMS; i++)
		assert_int_equal(gpool_stream_open(pool, NULL, 0, &streams[i]), 0);
}

/* Check that the sets are consistent, that the strict back end has refused no unmap, and that all pages are freed. */
static inline int detach(void **state)
{
	uint32_t findings = harness_check(&harness);
	char text[256] = "";

	(void)state;
	if (atomic_load(&pool->vpmm->started) && vpmm_check(pool, text, sizeof(text)))
		print_error("%s\n", text);
	if (pool->vpmm->unmaps_refused)
		print_error("%d pending unmaps could not be unmapped\n", (int)pool->vpmm->unmaps_refused);
	findings += *text || pool->vpmm->unmaps_refused;
	gpool_close(pool);
	pool = NULL;
	return findings || harness_free_pages(&harness) != PAGES ? -1 : 0;
}

static inline struct gpool_vm_options vm_options(uint64_t initial_pages)
{
	struct gpool_vm_options options = GPOOL_VM_OPTIONS_INIT;

	options.initial_bytes = initial_pages * PAGE_BYTES;
	options.address_bytes = (uint64_t)ADDRESS_PAGES * PAGE_BYTES;
	options.idle_ms = -1;
	options.slack_percent = -1;
	return options;
}

static inline void configure(uint64_t initial_pages)
{
	struct gpool_vm_options options = vm_options(initial_pages);

	assert_int_equal(gpool_vm_configure(pool, &options), 0);
}

/* ---- reading the state ---- */

static char dump_text[1 << 16];
static bool dump_ends_in_hole;

static inline void dump_line(void *context, const char *text)
{
	(void)context;
	if (*text != '[') {
		if (!strncmp(text, "0x", 2))
			dump_ends_in_hole = strstr(text, " hole") && !strstr(text, " moving");
		return;
	}
	if (*dump_text)
		strcat(dump_text, " ");
	strncat(dump_text, text, sizeof(dump_text) - strlen(dump_text) - 2);
}

/* Return the short form of all regions. The hole at the end, which is most of the space, is omitted. */
static inline const char *dump(void)
{
	char text[256] = "", *end;

	if (vpmm_check(pool, text, sizeof(text)))
		fail_msg("%s", text);
	*dump_text = '\0';
	dump_ends_in_hole = false;
	assert_true(gpool_vm_dump(pool, dump_line, NULL) >= 0);
	printf("    %s\n", dump_text);
	end = strrchr(dump_text, '[');
	if (end && dump_ends_in_hole)
		*end = '\0';
	return dump_text;
}

static inline struct gpool_vm_stats totals(void)
{
	struct gpool_vm_stats filled = {.size = sizeof(filled)};

	assert_int_equal(gpool_vm_stats(pool, &filled), 0);
	assert_int_equal(filled.mapped_bytes, filled.live_bytes + filled.reusable_bytes + filled.pending_unmap_bytes);
	assert_int_equal(filled.reserved_bytes, filled.mapped_bytes + filled.hole_bytes);
	return filled;
}

/* Return the number of pages that the allocator holds. */
static inline uint32_t pool_pages(void)
{
	struct gpool_vm_stats now = totals();

	return (uint32_t)((now.live_bytes + now.reusable_bytes) / PAGE_BYTES);
}

static inline uint64_t driver_calls(void)
{
	return gpu_thread_calls_total();
}

/* ---- GPU work ---- */

static inline uint64_t take(uint32_t pages, uint32_t stream)
{
	uint64_t address = 0;

	assert_int_equal(gpool_malloc_async(pool, (uint64_t)pages * PAGE_BYTES, stream, &address), 0);
	assert_int_equal(address % (PAGE_BYTES < 2 << 20 ? PAGE_BYTES : 2 << 20), 0); /* the driver's smallest page */
	return address;
}

static inline void give(uint64_t address, uint32_t stream)
{
	assert_int_equal(gpool_free_async(pool, address, stream), 0);
}

static inline uint32_t manual_stream(void)
{
	uint32_t stream = 0;

	assert_int_equal(gpool_stream_open(pool, NULL, GPOOL_STREAM_HOST_SIGNALED, &stream), 0);
	return stream;
}

static inline struct gpool_fence record(uint32_t stream)
{
	struct gpool_fence fence = {0};

	assert_int_equal(gpool_fence_record(pool, stream, &fence), 0);
	return fence;
}

static inline void signal_fence(struct gpool_fence fence)
{
	assert_int_equal(gpool_fence_signal(pool, fence), 0);
}

/* Wait until all work that is queued on a stream of the back end is done. */
static inline void finish(uint32_t stream)
{
	assert_int_equal(gpool_fence_wait(pool, record(stream), SOON_MS), 0);
}

/* Write each page's first and last word. */
static inline void fill(uint32_t stream, uint64_t address, uint32_t pages, uint32_t value)
{
	for (uint32_t i = 0; i < pages; i++) {
		assert_int_equal(gpool_fill(pool, stream, address + (uint64_t)i * PAGE_BYTES, value, 4), 0);
		assert_int_equal(gpool_fill(pool, stream, address + (uint64_t)(i + 1) * PAGE_BYTES - 4, value, 4), 0);
	}
}

static inline void expect_content(uint64_t address, uint32_t pages, uint32_t value)
{
	for (uint32_t i = 0; i < pages; i++) {
		const volatile uint32_t *words =
			(const volatile uint32_t *)(uintptr_t)(address + (uint64_t)i * PAGE_BYTES);

		assert_int_equal(words[0], value);
		assert_int_equal(words[PAGE_BYTES / 4 - 1], value);
	}
}

static inline int run_vpmm_tests(const struct CMUnitTest *tests, size_t count)
{
	static const char *const arguments[] = {"--pool", HARNESS_POOL, "--set", "lease.initial_pages=0", NULL};
	int failed;

	harness_start(&harness, arguments);
	failed = _cmocka_run_group_tests("vpmm", tests, count, NULL, NULL);
	return harness_stop(&harness) || failed;
}

#endif
