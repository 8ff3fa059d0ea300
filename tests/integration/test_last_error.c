/*
 * test_last_error.c - error texts of calls with wrong arguments.
 *
 * Goal: each call names the refused value and its limit. A text belongs to one failure of one thread, and is returned
 * once. Method: make each call once with each wrong value, with a real agent.
 */
#include "tests/lib/harness.h"
#include "client/core/last_error.h"
#include "client/core/pool.h"
#include "cuda/gpu.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/integration/last_error.h"
#include "tests/lib/temporary.h"

enum { PAGES = 512, PAGE_BYTES = 512 * 1024 };

static struct harness harness;
static struct gpool *pool;
static char long_name[200];
static uint32_t work_stream;

static void test_opening(void **state)
{
	struct gpool_options options = harness_options(&harness);
	struct gpool *none;

	(void)state;
	options.flags = 8 | GPOOL_OPEN_ADMIN;
	SAYS(gpool_open(&options, &none), -EINVAL, "flags are 0xa, of which 0x8 are unknown");
	options.flags = GPOOL_OPEN_ADMIN | GPOOL_OPEN_OBSERVER;
	SAYS(gpool_open(&options, &none), -EINVAL, "both GPOOL_OPEN_OBSERVER and GPOOL_OPEN_ADMIN");
	options.flags = 0;
	options.timeout_ms = -2;
	SAYS(gpool_open(&options, &none), -EINVAL, "timeout_ms is -2; the minimum is -1");
	options.timeout_ms = 0;
	options.magazine = 10000;
	SAYS(gpool_open(&options, &none), -EINVAL, "magazine is 10000; the maximum is ");
	options.magazine = 0;
	options.pool = long_name;
	SAYS(gpool_open(&options, &none), -EINVAL, "the name of the pool has 199 bytes; the maximum is 63");
	options.pool = "nope";
	SAYS(gpool_open(&options, &none), -ENXIO, "no pool 'nope'");
	options.pool = NULL;
	options.tenant = "nope";
	SAYS(gpool_open(&options, &none), -ENXIO, "nope");
	options.tenant = NULL;
	options.directory = long_name;
	SAYS(gpool_open(&options, &none), -EINVAL, "the path of the directory has 199 bytes; the maximum is 100");
	options.directory = "/nowhere";
	SAYS(gpool_open(&options, &none), -ENOENT,
		"cannot connect to '/nowhere/attach': No such file or directory; start gpoold, or set GPOOL_DIR or "
		"`directory` to its directory");
	options.timeout_ms = 1;
	SAYS(gpool_open(&options, &none), -ENOENT,
		"cannot connect to '/nowhere/attach': no agent was listening in time; start gpoold, or set GPOOL_DIR "
		"or `directory` to its directory");
	options.size = 2;
	SAYS(gpool_open(&options, &none), -EINVAL, "size is 2 bytes");
}

static void test_too_many_pools(void **state)
{
	struct gpool_options options = harness_options(&harness);
	struct gpool *pools[16], *none;
	uint32_t count = 1; /* `pool` */

	(void)state;
	options.flags = GPOOL_OPEN_OBSERVER;
	while (count < 16)
		assert_int_equal(gpool_open(&options, &pools[count++]), 0);
	SAYS(gpool_open(&options, &none), -EMFILE, "this process has 16 open pools, the limit; close one");
	while (count > 1)
		gpool_close(pools[--count]);
}

static void test_blocks(void **state)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_block block, all, wrong;
	uint64_t address, reservation;

	(void)state;
	SAYS(gpool_alloc(pool, 2048, NULL, &block), -EINVAL,
		"page_count is 2048; it must be 1 to 512, the pages of the pool");
	SAYS(gpool_alloc(pool, 0, NULL, &block), -EINVAL,
		"page_count is 0; it must be 1 to 512, the pages of the pool");
	options.flags = 1 << 20;
	SAYS(gpool_alloc(pool, 1, &options, &block), -EINVAL, "flags are 0x100000, of which 0x100000 are unknown");
	options.flags = GPOOL_ALLOC_SPILL;
	SAYS(gpool_alloc(pool, 1, &options, &block), -EOPNOTSUPP, "this pool cannot save spilled content");
	options.flags = 0;
	options.usage = 99;
	SAYS(gpool_alloc(pool, 1, &options, &block), -EINVAL, "usage is 99; the maximum is 4");
	options.usage = 0;
	options.priority = 7;
	SAYS(gpool_alloc(pool, 1, &options, &block), -EINVAL, "priority is 7; the maximum is 3");
	options.priority = 0;
	options.timeout_ms = -5;
	SAYS(gpool_alloc(pool, 1, &options, &block), -EINVAL, "timeout_ms is -5; the minimum is -1");
	options.timeout_ms = 0;
	options.stream = 77;
	SAYS(gpool_alloc(pool, 1, &options, &block), -EINVAL, "stream 77 is not open");
	SAYS(gpool_reservation_create(pool, 513, 0, 0, &reservation), -EINVAL,
		"page_count is 513; it must be 1 to 512, the pages of the pool");
	SAYS(gpool_reservation_create(pool, 1, -5, 0, &reservation), -EINVAL, "timeout_ms is -5; the minimum is -1");
	assert_int_equal(gpool_reservation_use(pool, 0x77), 0);
	SAYS(gpool_alloc(pool, 500, NULL, &all), -ENOENT,
		"reservation 0x77 has ended, or has fewer than 500 pages left");
	assert_int_equal(gpool_reservation_use(pool, 0), 0);
	assert_int_equal(gpool_alloc(pool, 500, NULL, &all), 0);
	SAYS(gpool_alloc(pool, 20, NULL, &block), -ENOSPC, "20 needed, 12 free, 500 pinned, 500 of them by session ");
	SAYS(gpool_alloc(pool, 20, NULL, &block), -ENOSPC, "; the pool has 512 pages (pools.size), 0 of them reserved");
	assert_int_equal(gpool_free(pool, &all), 0);
	assert_int_equal(gpool_alloc(pool, 1, NULL, &block), 0);
	wrong = block;
	wrong.page = PAGES;
	SAYS(gpool_pin(pool, &wrong), -EINVAL, "its page is 512, but the pool has 512 pages");
	SAYS(gpool_unpin(pool, &wrong), -EINVAL, "its page is 512");
	SAYS(gpool_free(pool, &wrong), -EINVAL, "its page is 512");
	SAYS(gpool_touch(pool, &wrong), -EINVAL, "its page is 512");
	SAYS(gpool_address(pool, &wrong, &address), -EINVAL, "its page is 512");
	wrong = block;
	wrong.tag = 5;
	SAYS(gpool_pin(pool, &wrong), -EINVAL, "not the handle of a block: no allocation has the tag 0000000000000005");
	assert_int_equal(gpool_unpin(pool, &block), 0);
	SAYS(gpool_unpin(pool, &block), -EINVAL, "is not pinned");
	SAYS(gpool_free(pool, &block), -EINVAL, "is not pinned");
	assert_int_equal(gpool_discard(pool, &block), 0);
}

static void test_spans(void **state)
{
	struct gpool_span span, wrong;

	(void)state;
	SAYS(gpool_span_alloc(pool, PAGE_BYTES, 0, &span), -EINVAL,
		"bytes is 524288; a span must have 1 to 262144 bytes, half a page");
	SAYS(gpool_span_alloc(pool, 0, 0, &span), -EINVAL, "bytes is 0; a span must have 1 to 262144 bytes");
	SAYS(gpool_span_alloc(pool, 1, 50, &span), -EINVAL, "usage is 50; the maximum is 4");
	assert_int_equal(gpool_span_alloc(pool, 300, 0, &span), 0);
	wrong = span;
	wrong.offset = 1;
	SAYS(gpool_span_free(pool, &wrong), -EINVAL,
		"not the handle of a span: it has 512 bytes at offset 1, in a page with spans of 512 bytes");
	assert_int_equal(gpool_span_free(pool, &span), 0);
}

static void test_ranges(void **state)
{
	struct gpool_range_options options = GPOOL_RANGE_OPTIONS_INIT;
	struct gpool_range_page page = {.size = sizeof(page)};
	struct gpool_range_info info = {.size = 1};
	struct gpool_fence none = {0};
	struct gpool_range *range;

	(void)state;
	options.memory_class = GPOOL_OBJECT_MUTABLE;
	SAYS(gpool_range_create(pool, 513, &options, &range), -EINVAL,
		"page_count is 513; it must be 1 to 512, the pages of the pool");
	options.memory_class = 9;
	SAYS(gpool_range_create(pool, 1, &options, &range), -EINVAL, "memory_class is 9; the maximum is ");
	options.memory_class = GPOOL_OBJECT_IMMUTABLE;
	SAYS(gpool_range_create(pool, 1, &options, &range), -EINVAL, "a range of the class IMMUTABLE must have a name");
	options.name = "kv/abc";
	SAYS(gpool_range_create(pool, 1, &options, &range), -EPERM, "object 'kv/abc': names that begin with lora/");
	options.memory_class = GPOOL_OBJECT_MUTABLE;
	options.name = "r";
	SAYS(gpool_range_create(pool, 1, &options, &range), -EINVAL,
		"only a range of the class IMMUTABLE can have a name");
	options.name = NULL;
	options.usage = 8;
	SAYS(gpool_range_create(pool, 1, &options, &range), -EINVAL, "usage is 8; the maximum is 4");
	SAYS(gpool_range_reserve(pool, 1, &options, &range), -EINVAL, "usage is 8; the maximum is 4");
	SAYS(gpool_range_reserve(pool, 0, NULL, &range), -EINVAL, "page_count is 0");
	assert_int_equal(gpool_range_reserve(pool, 8, NULL, &range), 0);
	SAYS(gpool_range_commit(range, 7, 2, 0), -EINVAL, "first is 7 and count is 2; the range has 8 pages");
	SAYS(gpool_range_commit(range, 0, 0, 0), -EINVAL,
		"first is 0 and count is 0; the range has 8 pages, and count must be at least 1");
	SAYS(gpool_range_commit(range, 0, 1, -2), -EINVAL, "timeout_ms is -2");
	SAYS(gpool_range_decommit(range, 0, 9, none), -EINVAL, "first is 0 and count is 9; the range has 8 pages");
	SAYS(gpool_range_resolve(range, 8, &page), -EINVAL, "first is 8 and count is 1; the range has 8 pages");
	SAYS(gpool_range_info(range, &info), -EINVAL, "size is 1 byte,");
	assert_int_equal(gpool_range_destroy(range), 0);
	assert_int_equal(gpool_range_reserve(pool, PAGES + 1, NULL, &range), 0);
	SAYS(gpool_range_commit(range, 0, PAGES + 1, 0), -ENOSPC,
		"513 pages are needed; the pool has 512 pages (pools.size)");
	assert_int_equal(gpool_range_destroy(range), 0);
}

static void test_offered_ranges(void **state)
{
	struct gpool_fence none = {0}, wrong = {UINT64_MAX};
	struct gpool_range *range;

	(void)state;
	assert_int_equal(gpool_range_reserve(pool, 8, NULL, &range), 0);
	assert_int_equal(gpool_range_commit(range, 0, 4, 0), 0);
	SAYS(gpool_range_offer(range, 0, 9, none), -EINVAL, "first is 0 and count is 9; the range has 8 pages");
	SAYS(gpool_range_offer(range, 2, 4, none), -EINVAL, "page 4 is not committed");
	SAYS(gpool_range_offer(range, 0, 1, wrong), -EINVAL,
		"fence 0xffffffffffffffff was not recorded by this session");
	SAYS(gpool_range_reclaim(range, 8, 1, NULL), -EINVAL, "first is 8 and count is 1; the range has 8 pages");
	SAYS(gpool_range_capture(range, 3, 2, 1), -EINVAL, "page 4 is not committed");
	assert_int_equal(gpool_range_capture(range, 1, 1, 1), 0);
	SAYS(gpool_range_offer(range, 0, 4, none), -EINVAL, "page 1 is captured");
	assert_int_equal(gpool_range_offer(range, 2, 2, none), 0);
	SAYS(gpool_range_capture(range, 0, 4, 1), -EINVAL, "page 2 is offered");
	assert_int_equal(gpool_range_destroy(range), 0);
	assert_int_equal(gpool_range_create(pool, 1, NULL, &range), 0);
	SAYS(gpool_range_offer(range, 0, 1, none), -EINVAL, "the range is not elastic");
	SAYS(gpool_range_reclaim(range, 0, 1, NULL), -EINVAL, "the range is not elastic");
	assert_int_equal(gpool_range_destroy(range), 0);
}

static void test_shortages(void **state)
{
	struct gpool_oom_info shortage = {.size = 2};
	struct gpool_oom_object object = {.size = 3};
	struct gpool_stats statistics = {.size = 3};
	struct gpool_device_info device = {.size = 3};

	(void)state;
	SAYS(gpool_oom_info(pool, &shortage), -EINVAL, "size is 2 bytes");
	SAYS(gpool_oom_object(pool, &object), -EINVAL, "size is 3 bytes");
	SAYS(gpool_stats(pool, &statistics), -EINVAL, "size is 3 bytes");
	SAYS(gpool_device_info(pool, &device), -EINVAL, "size is 3 bytes");
}

static void test_objects(void **state)
{
	struct gpool_object_options options = GPOOL_OBJECT_OPTIONS_INIT;
	struct gpool_object_open_options open = GPOOL_OBJECT_OPEN_OPTIONS_INIT;
	struct gpool_object_info info = {.size = 1};
	struct gpool_object *object, *reader;
	struct gpool_fence none = {0};
	struct gpool_range *range;
	const char *key;
	const void *value;
	size_t bytes;
	uint64_t version, address;
	uint32_t index;

	(void)state;
	SAYS(gpool_object_create(pool, "", NULL, &object), -EINVAL, "the name of the object is empty");
	SAYS(gpool_object_create(pool, long_name, NULL, &object), -EINVAL,
		"the name of the object has 199 bytes; the maximum is 127");
	SAYS(gpool_object_create(pool, "lora/abc", NULL, &object), -EPERM,
		"object 'lora/abc': names that begin with lora/, warm/, kv-prefix/ or kv/ are reserved");
	SAYS(gpool_object_create(pool, "a\n", NULL, &object), -EINVAL,
		"the name of the object has bytes that are not printable UTF-8");
	options.memory_class = 12;
	SAYS(gpool_object_create(pool, "o", &options, &object), -EINVAL, "memory_class is 12; the maximum is 3");
	assert_int_equal(gpool_object_create(pool, "o", NULL, &object), 0);
	SAYS(gpool_object_publish(object, &version), -EINVAL,
		"object 'o' has no allocation; add one with gpool_object_alloc() first");
	SAYS(gpool_object_set(object, "", "x", 1), -EINVAL, "the key has 0 bytes; it must have 1 to 1023");
	SAYS(gpool_object_get(object, "k", &value, &bytes), -EINVAL, "object 'o' is not published");
	SAYS(gpool_object_alloc(object, 600, NULL, &index), -EINVAL,
		"page_count is 600; it must be 1 to 512, the pages of the pool");
	assert_int_equal(gpool_object_alloc(object, 1, NULL, &index), 0);
	SAYS(gpool_object_address(object, 3, &address, &address), -EINVAL,
		"no allocation 3: object 'o' has 1 allocation");
	SAYS(gpool_object_pin(object), -EINVAL, "object 'o' is not published with the class PINNABLE or");
	assert_int_equal(gpool_object_set(object, "a", "x", 1), 0);
	assert_int_equal(gpool_object_publish(object, &version), 0);
	SAYS(gpool_object_set(object, "k", "x", 1), -EINVAL, "object 'o' is already published");
	SAYS(gpool_object_get(object, "k", &value, &bytes), -ENOENT, "object 'o' has no key 'k'");
	SAYS(gpool_object_entry(object, 3, &key, &value, &bytes), -ENOENT, "no entry 3: object 'o' has 1 entry");
	SAYS(gpool_object_info(object, &info), -EINVAL, "size is 1 byte,");
	SAYS(gpool_object_next(pool, &index, &info), -EINVAL, "size is 1 byte,");
	SAYS(gpool_object_unpin(object), -EINVAL, "object 'o' is not published with the class PINNABLE or");
	SAYS(gpool_object_unpin_after(object, none), -EINVAL, "object 'o' is not published with the class PINNABLE or");
	SAYS(gpool_range_open(pool, "none", NULL, &range), -ENOENT, "object 'none': no such object");
	SAYS(gpool_object_find(pool, (const char *const[]){NULL}, 1), -EINVAL, "name 0 is NULL");
	assert_int_equal(gpool_range_reserve(pool, 8, NULL, &range), 0);
	SAYS(gpool_range_publish(range, 1, 2, "p", NULL, &reader), -EINVAL, "page 1 is not committed");
	SAYS(gpool_range_map(range, 0, "none", NULL, &reader), -ENOENT, "object 'none': no such object");
	SAYS(gpool_range_unmap(range, object), -EINVAL, "object 'o' is not mapped in this range");
	assert_int_equal(gpool_range_destroy(range), 0);
	open.layout_hash = 0x1234;
	SAYS(gpool_object_open(pool, "o", &open, &reader), -EPROTO, ", but the expected one is 0000000000001234");
	open.layout_hash = 0;
	open.version = version + 7;
	SAYS(gpool_object_open(pool, "o", &open, &reader), -ENOENT, "does not exist; the current version is ");
	SAYS(gpool_object_delete(pool, "p", 0), -ENOENT, "object 'p': ");
	assert_int_equal(gpool_object_delete(pool, "o", 0), 0);
	assert_int_equal(gpool_object_close(object), 0);
}

static void test_roles_events_streams(void **state)
{
	struct gpool_role role = GPOOL_ROLE_INIT;
	struct gpool_fence fence = {UINT64_MAX};
	struct gpool_event event = GPOOL_EVENT_INIT;
	uint32_t stream;
	void *native;

	(void)state;
	SAYS(gpool_role_acquire(pool, "", 0, &role), -EINVAL, "the name of the role is empty");
	SAYS(gpool_role_acquire(pool, long_name, 0, &role), -EINVAL,
		"the name of the role has 199 bytes; the maximum is 63");
	SAYS(gpool_role_acquire(pool, "r", -2, &role), -EINVAL, "timeout_ms is -2");
	SAYS(gpool_role_check(pool, &role), -EINVAL, "the role was not returned by gpool_role_acquire()");
	SAYS(gpool_role_release(pool, &role), -ESTALE, "the session does not hold a role with index ");
	SAYS(gpool_role_info(pool, "never", NULL, NULL), -ENOENT, "role 'never' was never acquired");
	SAYS(gpool_event_next(pool, -3, &event), -EINVAL, "timeout_ms is -3");
	SAYS(gpool_stream_open(pool, NULL, 6, &stream), -EINVAL,
		"flags are 0x6; the only known flag is GPOOL_STREAM_HOST_SIGNALED");
	SAYS(gpool_copy(pool, 900, 0, 0, 0), -EINVAL, "stream 900 is not open");
	SAYS(gpool_fence_wait(pool, fence, 0), -EINVAL, "fence 0xffffffffffffffff was not recorded by this session");
	if (!strcmp(harness_backend(), "host")) /* the driver checks the streams of others */
		SAYS(gpool_stream_open(pool, (void *)0x50, 0, &stream), -EINVAL,
			"0x50 is not a stream of the back end 'host'");
	assert_int_equal(gpool_stream_open(pool, NULL, GPOOL_STREAM_HOST_SIGNALED, &stream), 0);
	SAYS(gpool_stream_native(pool, stream, &native), -EINVAL, "is host-signaled");
	SAYS(gpool_fill(pool, stream, 0, 0, 5), -EINVAL, "bytes is 5, which is not a multiple of 4");
	gpool_stream_close(pool, stream);
}

static void test_copies(void **state)
{
	struct gpool_block block;
	uint64_t address;

	(void)state;
	assert_int_equal(gpool_alloc(pool, 1, NULL, &block), 0);
	assert_int_equal(gpool_address(pool, &block, &address), 0);
	SAYS(gpool_fill(pool, work_stream, address + 2, 0, 4), -EINVAL, ", which is not a multiple of 4");
	SAYS(gpool_fill(pool, work_stream, 0, 0, 4), -EINVAL, "cannot fill 4 bytes at 0x0: the address is 0");
	SAYS(gpool_fill(pool, work_stream, UINT64_MAX - 7, 0, 16), -EINVAL,
		"cannot fill 16 bytes at 0xfffffffffffffff8: the address is 0, or the end exceeds 2^64");
	SAYS(gpool_copy(pool, work_stream, address, 0, 4), -EINVAL, "cannot copy 4 bytes from 0x0 to 0x");
	SAYS(gpool_copy(pool, work_stream, address, UINT64_MAX, 4), -EINVAL, "from 0xffffffffffffffff to 0x");
	if (!strcmp(harness_backend(), "host")) { /* the driver accepts the call, and the work fails */
		SAYS(gpool_fill(pool, work_stream, 4096, 0, 4), -EINVAL,
			"0x1000 is the address of neither GPU memory nor registered host memory");
		SAYS(gpool_copy(pool, work_stream, address, 4096, 4), -EINVAL, "0x1000 is the address of neither");
		SAYS(gpool_fill(pool, work_stream, address, 0, UINT64_C(1) << 40), -EINVAL,
			" exceed the memory there, which ends after ");
		SAYS(gpool_copy(pool, work_stream, address, address, UINT64_C(1) << 40), -EINVAL,
			"1099511627776 bytes at 0x");
	}
	assert_int_equal(gpool_free(pool, &block), 0);
}

/* -EIO has several causes. After a failure of the driver, the text is that of the driver, and is reported once. */
static void test_driver_failures(void **state)
{
	struct gpool_block block;
	uint64_t address;
	uint32_t stream;

	(void)state;
	assert_int_equal(gpool_stream_open(pool, NULL, 0, &stream), 0);
	assert_int_equal(gpool_alloc(pool, 1, NULL, &block), 0);
	assert_int_equal(gpool_address(pool, &block, &address), 0);
	gpu_fault_set(pool->gpu, GPU_CALL_FILL, 1, -EIO);
	SAYS(gpool_fill(pool, stream, address, 0, 4096), -EIO, "the GPU driver failed: injected fault: fill, call ");
	assert_string_equal(gpool_last_error(EIO), gpool_strerror(EIO));
	assert_int_equal(gpool_free(pool, &block), 0);
	gpool_stream_close(pool, stream);
}

static void test_fences(void **state)
{
	struct gpool_fence fence = {UINT64_MAX}, none = {0}, imported;
	struct gpool_fence_handle handle = {0};
	struct gpool_block block;

	(void)state;
	SAYS(gpool_fence_record(pool, 900, &fence), -EINVAL, "stream 900 is not open");
	SAYS(gpool_fence_done(pool, fence), -EINVAL, "fence 0xffffffffffffffff was not recorded by this session");
	SAYS(gpool_stream_wait(pool, 900, none), -EINVAL, "stream 900 is not open");
	SAYS(gpool_fence_signal(pool, none), -EINVAL, "fence 0 does not belong to a stream");
	SAYS(gpool_fence_export(pool, fence, 0, &handle), -EINVAL, "fence 0xffffffffffffffff was not recorded");
	SAYS(gpool_fence_export(pool, none, 8, &handle), -EINVAL,
		"flags are 0x8; the only known flag is GPOOL_FENCE_EXPORT_EVENT");
	SAYS(gpool_fence_import(pool, &handle, &imported), -EINVAL,
		"the handle was not created by gpool_fence_export()");
	SAYS(gpool_fence_close(pool, fence), -EINVAL, "was not imported by this session, or is already closed");
	assert_int_equal(gpool_alloc(pool, 1, NULL, &block), 0);
	SAYS(gpool_unpin_after(pool, &block, fence), -EINVAL, "fence 0xffffffffffffffff was not recorded");
	SAYS(gpool_free_after(pool, &block, fence), -EINVAL, "fence 0xffffffffffffffff was not recorded");
	assert_int_equal(gpool_free(pool, &block), 0);
	block.page = PAGES;
	SAYS(gpool_discard(pool, &block), -EINVAL, "its page is 512");
	SAYS(gpool_refresh(pool, &block), -EINVAL, "its page is 512");
}

/* Requirements: U3. */
static void test_scopes_and_commits(void **state)
{
	struct gpool_fence wrong = {UINT64_MAX};
	struct gpool_block block;
	struct gpool_scope scope = GPOOL_SCOPE_INIT;
	uint64_t entry;

	(void)state;
	SAYS(gpool_scope_begin(pool, 70, 0, &scope), -EINVAL, "usage is 70 and flags are 0x0; the maximum usage is 4");
	assert_int_equal(gpool_scope_begin(pool, 0, 0, &scope), 0);
	SAYS(gpool_scope_alloc(&scope, 0, NULL, &block), -EINVAL, "page_count is 0");
	assert_int_equal(gpool_scope_alloc(&scope, 1, NULL, &block), 0);
	SAYS(gpool_scope_end(&scope, wrong), -EINVAL, "fence 0xffffffffffffffff was not recorded");
	gpool_scope_cleanup(&scope);
	SAYS(gpool_prepare(pool, 9999, NULL, &block), -EINVAL,
		"page_count is 9999; it must be 1 to 512, the pages of the pool");
	block = (struct gpool_block){.page = PAGES};
	SAYS(gpool_commit(pool, &block, &entry), -EINVAL, "its page is 512");
	SAYS(gpool_rollback(pool, &block), -EINVAL, "its page is 512");
}

static void test_sliced_ranges(void **state)
{
	struct gpool_sliced_range_info info = {.size = 1};
	struct gpool_fence wrong = {UINT64_MAX};
	struct gpool_sliced_range *sliced;

	(void)state;
	SAYS(gpool_sliced_range_create(pool, 0, 2, 1, NULL, &sliced), -EINVAL,
		"slices is 0, blocks is 2 and block_pages is 1; their product must be 1 to ");
	assert_int_equal(gpool_sliced_range_create(pool, 2, 4, 1, NULL, &sliced), 0);
	SAYS(gpool_sliced_range_grow(sliced, 5, 0), -EINVAL, "blocks is 5; the sliced range can have at most 4");
	SAYS(gpool_sliced_range_grow(sliced, 1, -7), -EINVAL, "timeout_ms is -7");
	SAYS(gpool_sliced_range_shrink(sliced, 0, wrong), -EINVAL, "fence 0xffffffffffffffff was not recorded");
	SAYS(gpool_sliced_range_shrink(sliced, 5, GPOOL_FENCE_NONE), -EINVAL,
		"blocks is 5; the sliced range can have at most 4");
	SAYS(gpool_sliced_range_info(sliced, &info), -EINVAL, "size is 1 byte,");
	assert_int_equal(gpool_sliced_range_destroy(sliced), 0);
	assert_int_equal(gpool_sliced_range_create(pool, 4, 200, 1, NULL, &sliced), 0);
	SAYS(gpool_sliced_range_grow(sliced, 129, 0), -ENOSPC,
		"516 pages are needed; the pool has 512 pages (pools.size)");
	assert_int_equal(gpool_sliced_range_destroy(sliced), 0);
}

/* ---- caches ---- */

static struct gpool_kv *make_cache(uint32_t flags)
{
	struct gpool_kv_options options = GPOOL_KV_OPTIONS_INIT;
	struct gpool_kv *kv;

	options.shape = (struct gpool_kv_shape){2, 2, 16, 2, 16};
	options.stream = work_stream;
	options.flags = flags;
	options.max_blocks = 256;
	options.max_sequences = 2;
	options.max_sequence_tokens = 64;
	options.watermark_blocks = GPOOL_KV_NO_WATERMARK;
	assert_int_equal(gpool_kv_create(pool, &options, &kv), 0);
	return kv;
}

static uint64_t make_sequence(struct gpool_kv *kv, uint32_t tokens)
{
	struct gpool_kv_request request = GPOOL_KV_REQUEST_INIT;
	uint64_t sequence;

	request.tokens = tokens;
	assert_int_equal(gpool_kv_allocate(kv, &request, &sequence), 0);
	return sequence;
}

static void test_making_caches(void **state)
{
	struct gpool_kv_options options = GPOOL_KV_OPTIONS_INIT;
	char text[64];
	struct gpool_kv *kv;

	(void)state;
	options.stream = work_stream;
	options.shape = (struct gpool_kv_shape){2, 2, 16, 2, 24};
	SAYS(gpool_kv_create(pool, &options, &kv), -EINVAL, "block_tokens is 24; it must be a power of two up to 1024");
	options.shape = (struct gpool_kv_shape){2, 2, 16, 3, 16};
	SAYS(gpool_kv_create(pool, &options, &kv), -EINVAL, "dtype_bytes is 3; it must be 1, 2, 4 or 8");
	options.shape = (struct gpool_kv_shape){2, 0, 16, 2, 16};
	SAYS(gpool_kv_create(pool, &options, &kv), -EINVAL, "2 layers, 0 heads of 16 elements of 2 bytes");
	options.shape.kv_heads = 2;
	options.pool_blocks = 4;
	SAYS(gpool_kv_create(pool, &options, &kv), -EINVAL, "pool_blocks requires GPOOL_KV_PREFIXES");
	options.pool_blocks = 0;
	options.max_sequences = 1 << 20;
	SAYS(gpool_kv_create(pool, &options, &kv), -EINVAL, "max_sequences is 1048576; the maximum is 65536");
	options.max_sequences = 0;
	options.flags = GPOOL_KV_INT8 | GPOOL_KV_BF16;
	SAYS(gpool_kv_create(pool, &options, &kv), -EINVAL, "GPOOL_KV_BF16 is for elements of 2 bytes");
	options.flags = GPOOL_KV_INT8;
	SAYS(gpool_kv_create(pool, &options, &kv), -EINVAL, "dtype_bytes is 2; with GPOOL_KV_INT8 it must be 1");
	options.shape = (struct gpool_kv_shape){2, 2, 264, 1, 16};
	SAYS(gpool_kv_create(pool, &options, &kv), -EINVAL,
		"head_size is 264; with GPOOL_KV_INT8 it must be a multiple of 16 up to 256");
	options.shape = (struct gpool_kv_shape){2, 70000, 64, 1, 16};
	SAYS(gpool_kv_create(pool, &options, &kv), -EINVAL,
		"kv_heads is 70000; with GPOOL_KV_INT8 the maximum is 65535");
	options.shape = (struct gpool_kv_shape){2, 2, 64, 1, 4};
	SAYS(gpool_kv_create(pool, &options, &kv), -EINVAL, "block_tokens is 4; with GPOOL_KV_INT8 the minimum is 8");
	options.shape.block_tokens = 16;
	options.stream = 999;
	SAYS(gpool_kv_create(pool, &options, &kv), -EINVAL, "stream 999 is not open");
	assert_int_equal(gpool_stream_open(pool, NULL, GPOOL_STREAM_HOST_SIGNALED, &options.stream), 0);
	snprintf(text, sizeof(text), "stream %u is host-signaled and cannot execute work", options.stream);
	SAYS(gpool_kv_create(pool, &options, &kv), -EINVAL, text);
	gpool_stream_close(pool, options.stream);
}

static void test_sequences(void **state)
{
	struct gpool_kv_request request = GPOOL_KV_REQUEST_INIT;
	struct gpool_kv_need need = {.size = 1};
	struct gpool_kv_batch limits = {.size = 1};
	struct gpool_kv_growth growth = GPOOL_KV_GROWTH_INIT;
	struct gpool_kv_layout layout = {.size = 1};
	struct gpool_kv_sequence_info info = {.size = 1};
	struct gpool_kv_stats statistics = {.size = 1};
	struct gpool_kv *kv = make_cache(0);
	uint64_t address, number, ended = make_sequence(kv, 1), first;
	const int32_t *table;
	uint32_t blocks, tokens = 1;

	(void)state;
	assert_int_equal(gpool_kv_free(kv, ended), 0);
	first = make_sequence(kv, 20);
	SAYS(gpool_kv_append(kv, first, 0, NULL), -EINVAL, "tokens is 0");
	SAYS(gpool_kv_append(kv, first, 100, NULL), -EFBIG,
		"8 blocks needed; a sequence can have at most 4 blocks (max_sequence_tokens)");
	SAYS(gpool_kv_append(kv, 7, 1, NULL), -EINVAL, "0x7 is not a sequence of this cache");
	SAYS(gpool_kv_free(kv, ended), -ESTALE, "has ended");
	SAYS(gpool_kv_table(kv, ended, &table, &blocks), -ESTALE, "has ended");
	SAYS(gpool_kv_sequence_info(kv, ended, &info), -ESTALE, "has ended");
	SAYS(gpool_kv_prefetch(kv, ended), -ESTALE, "has ended");
	request.flags = 64;
	SAYS(gpool_kv_allocate(kv, &request, &number), -EINVAL,
		"flags are 0x40 and reserved is 0; the only known flag is GPOOL_KV_CONTINUES");
	request.flags = 0;
	request.tokens = 500;
	SAYS(gpool_kv_allocate(kv, &request, &number), -EFBIG,
		"32 blocks needed; a sequence can have at most 4 blocks");
	request.tokens = 1;
	assert_int_equal(gpool_kv_fork(kv, first, &number), 0);
	SAYS(gpool_kv_allocate(kv, &request, &number), -EUSERS, "the cache has 2 sequences, the limit (max_sequences)");
	SAYS(gpool_kv_fork(kv, first, &number), -EUSERS, "the cache has 2 sequences, the limit");
	SAYS(gpool_kv_waiting(kv, &number), -ENOENT, "no sequence of the cache is preempted");
	SAYS(gpool_kv_resume(kv, first), -EALREADY, "is running");
	SAYS(gpool_kv_preempt(kv, 9, &number), -EINVAL, "0x9 is not a sequence of this cache");
	assert_true(gpool_kv_preempt(kv, first, &number) >= 0);
	SAYS(gpool_kv_append(kv, first, 1, NULL), -EAGAIN, "is preempted");
	SAYS(gpool_kv_prefix_tree(kv, NULL, 0, NULL), -EOPNOTSUPP, "the cache was created without GPOOL_KV_PREFIXES");
	SAYS(gpool_kv_grow(kv, first, 1, &growth, NULL, &number), -EINVAL,
		"victims is set, but most, its number of elements, is 0");
	growth.flags = 2;
	SAYS(gpool_kv_grow(kv, first, 1, &growth, NULL, NULL), -EINVAL,
		"flags are 0x2; the only known flag is GPOOL_KV_GROW_OFFLOAD");
	SAYS(gpool_kv_can_allocate(kv, 1, &need), -EINVAL, "size is 1 byte,");
	SAYS(gpool_kv_can_batch(kv, &tokens, 1, &limits, NULL), -EINVAL, "size is 1 byte,");
	SAYS(gpool_kv_oom_info(kv, &need), -EINVAL, "size is 1 byte,");
	SAYS(gpool_kv_layout(kv, &layout), -EINVAL, "size is 1 byte,");
	SAYS(gpool_kv_stats(kv, &statistics), -EINVAL, "size is 1 byte,");
	SAYS(gpool_kv_address(kv, 100000, &address), -EINVAL, "block is 100000; the cache has ");
	assert_int_equal(gpool_kv_destroy(kv), 0);
}

static void test_blocks_of_caches(void **state)
{
	const struct gpool_kv_shape shape = {2, 2, 16, 2, 16}, other = {3, 2, 16, 2, 16};
	const struct gpool_kv_pair same = {1, 1};
	struct gpool_kv_attention attention = GPOOL_KV_ATTENTION_INIT;
	struct gpool_kv_offload_info offloaded = {.size = 1};
	struct gpool_kv_quant_error loss = {.size = sizeof(loss)};
	struct gpool_kv *kv = make_cache(0);
	uint64_t sequence = make_sequence(kv, 20), another = make_sequence(kv, 1);
	const int32_t *table;
	uint64_t bytes;
	uint32_t blocks;

	(void)state;
	assert_int_equal(gpool_kv_table(kv, another, &table, &blocks), 0);
	SAYS(gpool_kv_validate(kv, sequence, -1, &shape), -EINVAL, "block is -1; the cache has ");
	SAYS(gpool_kv_validate(kv, sequence, 0, &other), -EPROTO,
		"the shape differs from that of the cache: 2 layers, 2 heads of 16 elements of 2 bytes, blocks of 16 "
		"tokens");
	SAYS(gpool_kv_validate(kv, sequence, table[0], &shape), -EACCES, "does not belong to sequence ");
	SAYS(gpool_kv_copy_blocks(kv, &same, 1), -EINVAL, "pair 0, from block 1 to 1: ");
	attention.flags = 64;
	SAYS(gpool_kv_attention(kv, &attention), -EINVAL, "flags are 0x40; the known flags are ");
	attention.flags = 0;
	attention.head_size = 24;
	SAYS(gpool_kv_attention_workspace(kv, &attention, &bytes), -EINVAL, "the head size is 24; it must be ");
	SAYS(gpool_kv_offload(kv, sequence, 0, NULL), -EOPNOTSUPP,
		"the cache has no host memory; call gpool_kv_host_reserve()");
	SAYS(gpool_kv_offload(kv, sequence, 32, NULL), -EINVAL, "flags are 0x20; the known flags are ");
	SAYS(gpool_kv_host_reserve(kv, 1), -EINVAL, "bytes is 1; it must be at least ");
	SAYS(gpool_kv_offload_info(kv, &offloaded), -EINVAL, "size is 1 byte,");
	SAYS(gpool_kv_quant_error(kv, 5, &loss), -EINVAL, "0x5 is not a sequence");
	assert_int_equal(gpool_kv_destroy(kv), 0);
}

static void test_pairs_of_blocks(void **state)
{
	static const uint32_t ids[16];
	struct gpool_kv *kv = make_cache(GPOOL_KV_PREFIXES);
	struct gpool_kv_layout layout = {.size = sizeof(layout)};
	struct gpool_kv_prefix prefix = GPOOL_KV_PREFIX_INIT;
	uint64_t sequence = make_sequence(kv, 20), child;
	struct gpool_kv_pair pairs[2];
	char text[128], range[64];
	const int32_t *table;
	uint32_t blocks;
	int32_t most;

	(void)state;
	assert_int_equal(gpool_kv_layout(kv, &layout), 0);
	assert_int_equal(gpool_kv_table(kv, sequence, &table, &blocks), 0);
	assert_int_equal(blocks, 2);
	most = (int32_t)layout.max_blocks - 1; /* free */
	snprintf(range, sizeof(range), "must be 0 to %d, a block of the cache", most);
	pairs[0] = (struct gpool_kv_pair){table[0], table[1]};
	pairs[1] = (struct gpool_kv_pair){table[0], most + 1};
	snprintf(text, sizeof(text), "pair 1, from block %d to %d: the target %s", table[0], most + 1, range);
	SAYS(gpool_kv_copy_blocks(kv, pairs, 2), -EINVAL, text);
	pairs[1] = (struct gpool_kv_pair){-1, table[0]};
	snprintf(text, sizeof(text), "pair 1, from block -1 to %d: the source %s", table[0], range);
	SAYS(gpool_kv_copy_blocks(kv, pairs, 2), -EINVAL, text);
	snprintf(text, sizeof(text), ": block %d is not in use; both blocks must belong to a sequence", most);
	pairs[1] = (struct gpool_kv_pair){most, table[0]};
	SAYS(gpool_kv_copy_blocks(kv, pairs, 2), -EINVAL, text);
	pairs[1] = (struct gpool_kv_pair){table[0], most};
	SAYS(gpool_kv_copy_blocks(kv, pairs, 2), -EINVAL, text);
	pairs[1] = (struct gpool_kv_pair){table[0], table[0]};
	SAYS(gpool_kv_copy_blocks(kv, pairs, 2), -EINVAL, ": the blocks must differ");
	assert_int_equal(gpool_kv_fork(kv, sequence, &child), 0);
	SAYS(gpool_kv_copy_blocks(kv, pairs, 1), -EINVAL, ": 2 sequences share the target; it must belong to one only");
	assert_int_equal(gpool_kv_free(kv, child), 0);
	prefix.ids = ids;
	prefix.count = 16;
	assert_int_equal(gpool_kv_prefix_publish(kv, sequence, &prefix), 1);
	pairs[0] = (struct gpool_kv_pair){table[1], table[0]};
	SAYS(gpool_kv_copy_blocks(kv, pairs, 1), -EINVAL, ": the target is published, so its content must not change");
	assert_int_equal(gpool_kv_destroy(kv), 0);
}

static void test_prefixes(void **state)
{
	static const uint32_t ids[64];
	struct gpool_kv_prefix prefix = GPOOL_KV_PREFIX_INIT;
	struct gpool_kv_prefix_found found = {.size = sizeof(found)};
	struct gpool_kv_request request = GPOOL_KV_REQUEST_INIT;
	struct gpool_kv *plain = make_cache(0), *kv = make_cache(GPOOL_KV_PREFIXES);
	uint64_t sequence = make_sequence(kv, 20), other;
	uint32_t tokens;

	(void)state;
	SAYS(gpool_kv_prefix_find(plain, &prefix, &found), -EOPNOTSUPP,
		"the cache was created without GPOOL_KV_PREFIXES");
	SAYS(gpool_kv_prefix_evict(plain, 1), -EOPNOTSUPP, "the cache was created without GPOOL_KV_PREFIXES");
	SAYS(gpool_kv_prefix_share(kv, sequence, 0), -EOPNOTSUPP, "the cache was created without pool_blocks");
	prefix.count = 64;
	SAYS(gpool_kv_prefix_allocate(kv, &request, &prefix, &other, &tokens), -EINVAL, "ids is NULL; ");
	prefix.ids = ids;
	SAYS(gpool_kv_prefix_publish(kv, sequence, &prefix), -EINVAL,
		"count is 64; it must not exceed 20, the tokens of the sequence");
	prefix.count = 16;
	assert_int_equal(gpool_kv_prefix_publish(kv, sequence, &prefix), 1);
	prefix.salt[0] = 1;
	SAYS(gpool_kv_prefix_publish(kv, sequence, &prefix), -EINVAL, "for another adapter or with another salt");
	assert_int_equal(gpool_kv_destroy(kv), 0);
	assert_int_equal(gpool_kv_destroy(plain), 0);
}

static void test_writing_int8(void **state)
{
	struct gpool_kv_options options = GPOOL_KV_OPTIONS_INIT;
	struct gpool_kv_attention attention = GPOOL_KV_ATTENTION_INIT;
	struct gpool_kv_write write = GPOOL_KV_WRITE_INIT;
	struct gpool_kv *kv = make_cache(0);

	(void)state;
	SAYS(gpool_kv_write(kv, &write), -EOPNOTSUPP, "the cache was created without GPOOL_KV_INT8");
	assert_int_equal(gpool_kv_destroy(kv), 0);
	options.stream = work_stream;
	options.flags = GPOOL_KV_INT8;
	options.shape = (struct gpool_kv_shape){2, 2, 64, 1, 16};
	assert_int_equal(gpool_kv_create(pool, &options, &kv), 0);
	write.flags = 4;
	SAYS(gpool_kv_write(kv, &write), -EINVAL, "flags are 0x4; the only known flag is GPOOL_KV_WRITE_BF16");
	write.flags = 0;
	write.layer = 2;
	SAYS(gpool_kv_write(kv, &write), -EINVAL, "layer is 2; the cache has 2 layers");
	write.layer = 1;
	write.tokens = 2000000;
	SAYS(gpool_kv_write(kv, &write), -EINVAL, "tokens is 2000000; the maximum is 1048576");
	write.tokens = 1;
	SAYS(gpool_kv_write(kv, &write), -EINVAL, "keys is 0; it must be the address of [tokens][key_stride] elements");
	write.keys = 0x1008;
	SAYS(gpool_kv_write(kv, &write), -EINVAL, "keys is 0x1008; it must be a multiple of 16 bytes");
	write.keys = 0x1000;
	SAYS(gpool_kv_write(kv, &write), -EINVAL, "values is 0; it must be the address of [tokens][value_stride]");
	write.values = 0x1001;
	SAYS(gpool_kv_write(kv, &write), -EINVAL, "values is 0x1001; it must be a multiple of 16 bytes");
	write.values = 0x1000;
	SAYS(gpool_kv_write(kv, &write), -EINVAL, "slots is 0; it must be the address of uint64_t[tokens]");
	write.slots = 0x1004;
	SAYS(gpool_kv_write(kv, &write), -EINVAL, "slots is 0x1004; it must be a multiple of 8 bytes");
	write.slots = 0x1008;
	write.error = 4;
	SAYS(gpool_kv_write(kv, &write), -EINVAL, "error is 0x4; it must be a multiple of 8 bytes");
	write.error = 0;
	write.key_stride = 64;
	SAYS(gpool_kv_write(kv, &write), -EINVAL,
		"key_stride is 64 elements; it must be 0 or a multiple of 8 that is at least 128 (kv_heads * "
		"head_size)");
	write.key_stride = 0;
	write.value_stride = 132;
	SAYS(gpool_kv_write(kv, &write), -EINVAL, "value_stride is 132 elements; it must be 0 or a multiple of 8");
	write.value_stride = 1;
	SAYS(gpool_kv_write(kv, &write), -EINVAL, "value_stride is 1 element; it must be 0 or a multiple of 8");
	SAYS(gpool_kv_attention(kv, &attention), -EINVAL,
		"the cache has GPOOL_KV_INT8, so GPOOL_KV_ATTENTION_INT8 is required");
	assert_int_equal(gpool_kv_destroy(kv), 0);
}

static void test_groups_of_caches(void **state)
{
	struct gpool_kv_request request = GPOOL_KV_REQUEST_INIT;
	struct gpool_kv *caches[] = {make_cache(0), make_cache(0)}, *twice[] = {caches[0], caches[0]};
	struct gpool_kv_need need = {.size = 1};
	struct gpool_kv_member member = {.size = sizeof(member)};
	struct gpool_kv_growth growth = GPOOL_KV_GROWTH_INIT;
	struct gpool_kv_order order = {.size = 0};
	struct gpool_kv_group *group;
	struct gpool_kv_span span;
	uint64_t sequence, child;

	(void)state;
	SAYS(gpool_kv_group_create_members(&member, 1, 16, &group), -EINVAL, "cache 0 is NULL");
	SAYS(gpool_kv_execute(caches[0], &order), -EPROTO,
		"the order has 0 bytes; this version of the library has orders of ");
	SAYS(gpool_kv_group_create(caches, 0, 16, &group), -EINVAL, "count is 0; a group must have 1 to ");
	SAYS(gpool_kv_group_create(caches, 2, 10, &group), -EINVAL, "range_tokens is 10; it must be a multiple of 16");
	SAYS(gpool_kv_group_create(caches, 2, 640, &group), -EINVAL,
		"range_tokens is 640; a sequence of cache 0 can have at most 64 tokens");
	SAYS(gpool_kv_group_create(twice, 2, 32, &group), -EINVAL, "caches 0 and 1 are the same");
	assert_int_equal(gpool_kv_group_create(caches, 2, 32, &group), 0);
	request.tokens = 10;
	assert_int_equal(gpool_kv_group_allocate(group, &request, &sequence), 0);
	SAYS(gpool_kv_group_append(group, sequence, 0, NULL, NULL), -EINVAL, "tokens is 0");
	SAYS(gpool_kv_group_append(group, 3, 1, NULL, NULL), -EINVAL, "0x3 is not a sequence of this group");
	SAYS(gpool_kv_group_grow(group, 3, 1, NULL, NULL, NULL, NULL), -EINVAL, "0x3 is not a sequence of this group");
	growth.flags = GPOOL_KV_GROW_OFFLOAD;
	SAYS(gpool_kv_group_grow(group, sequence, 1, &growth, NULL, NULL, NULL), -EOPNOTSUPP,
		"a group discards the content of preempted sequences");
	SAYS(gpool_kv_group_fork(group, 3, &child), -EINVAL, "0x3 is not a sequence of this group");
	SAYS(gpool_kv_group_preempt(group, 3, NULL), -EINVAL, "0x3 is not a sequence of this group");
	SAYS(gpool_kv_group_resume(group, 3), -EINVAL, "0x3 is not a sequence of this group");
	SAYS(gpool_kv_group_span(group, sequence, 2, &span), -EINVAL, "member is 2; the group has 2 caches");
	SAYS(gpool_kv_group_can_allocate(group, 1, NULL, &need), -EINVAL, "size is 1 byte,");
	SAYS(gpool_kv_group_oom_info(group, NULL, &need), -EINVAL, "size is 1 byte,");
	assert_int_equal(gpool_kv_group_free(group, sequence), 0);
	SAYS(gpool_kv_group_free(group, sequence), -ESTALE, "of the group has ended");
	request.flags = 64;
	SAYS(gpool_kv_group_allocate(group, &request, &sequence), -EINVAL, "flags are 0x40");
	gpool_kv_group_destroy(group);
	assert_int_equal(gpool_kv_destroy(caches[0]), 0);
	assert_int_equal(gpool_kv_destroy(caches[1]), 0);
}

/* ---- adapters ---- */

static struct gpool_lora *open_adapters(void)
{
	struct gpool_lora *lora;

	assert_int_equal(gpool_lora_create(pool, NULL, &lora), 0);
	return lora;
}

static void test_adapters(void **state)
{
	struct gpool_lora_options options = GPOOL_LORA_OPTIONS_INIT;
	struct gpool_lora_info info = {.size = 1};
	struct gpool_lora_stats stats = {.size = 1};
	struct gpool_lora_weights part;
	char why[GPOOL_LORA_REASON_BYTES], target[GPOOL_LORA_TARGET_BYTES];
	const char *const other = "other";
	struct gpool_lora *lora;
	uint32_t id;

	(void)state;
	options.load_threads = 1000;
	SAYS(gpool_lora_create(pool, &options, &lora), -EINVAL, "load_threads is 1000; the maximum is ");
	options.load_threads = 0;
	options.flags = GPOOL_LORA_INT8;
	SAYS(gpool_lora_create(pool, &options, &lora), -EINVAL, "GPOOL_LORA_INT8 requires cache_dir or warm");
	options.flags = 0;
	options.cache_dir = "/nowhere";
	SAYS(gpool_lora_create(pool, &options, &lora), -ENOENT,
		"cannot open cache_dir '/nowhere': No such file or directory");
	options.cache_dir = "/proc/self/exe";
	SAYS(gpool_lora_create(pool, &options, &lora), -ENOTDIR,
		"cannot open cache_dir '/proc/self/exe': Not a directory");
	lora = open_adapters();
	SAYS(gpool_lora_register(lora, "", "/tmp", &id, why), -EINVAL, "the name of the adapter is empty");
	SAYS(gpool_lora_register(lora, "a", "/nowhere", &id, NULL), -ENOENT, "/nowhere/adapter_config.json");
	SAYS(gpool_lora_register_buffer(lora, "a", "{}", "abc", 3, &id, NULL), -EINVAL, "3 bytes are too few");
	SAYS(gpool_lora_register_arrays(lora, "a", "{}", NULL, 1, &id, NULL), -EINVAL, "arrays is NULL");
	SAYS(gpool_lora_find(lora, "b", &id), -ENOENT, "no adapter 'b' is registered");
	SAYS(gpool_lora_acquire(lora, 4, 0), -ENOENT, "no adapter 4 is registered");
	SAYS(gpool_lora_acquire_async(lora, 4, 0), -ENOENT, "no adapter 4 is registered");
	SAYS(gpool_lora_prefetch(lora, 4), -ENOENT, "no adapter 4 is registered");
	SAYS(gpool_lora_unload(lora, 4), -ENOENT, "no adapter 4 is registered");
	SAYS(gpool_lora_unregister(lora, 4), -ENOENT, "no adapter 4 is registered");
	SAYS(gpool_lora_last_error(lora, 4, why), -ENOENT, "no adapter 4 is registered");
	assert_int_equal(gpool_lora_register(lora, "plain", "tests/fixtures/adapters/plain", &id, NULL), 0);
	SAYS(gpool_lora_register(lora, "plain", "tests/fixtures/adapters/plain", &id, why), -EEXIST,
		"adapter 'plain' is already registered");
	assert_non_null(strstr(why, "adapter 'plain' is already registered"));
	SAYS(gpool_lora_wait_layer(lora, id, 0, 0), -EINVAL, "adapter 'plain' is not acquired");
	SAYS(gpool_lora_wait_layer(lora, id, -2, 0), -EINVAL, "layer is -2; the minimum is -1");
	SAYS(gpool_lora_wait_layer(lora, id, 0, -2), -EINVAL, "timeout_ms is -2; the minimum is -1");
	SAYS(gpool_lora_acquire(lora, id, -2), -EINVAL, "timeout_ms is -2; the minimum is -1");
	SAYS(gpool_lora_acquire_async(lora, id, -2), -EINVAL, "timeout_ms is -2; the minimum is -1");
	SAYS(gpool_lora_release(lora, id, GPOOL_FENCE_NONE), -EINVAL, "adapter 'plain' is not acquired");
	SAYS(gpool_lora_weights(lora, id, 0, "q_proj", &part), -EINVAL, "adapter 'plain' is not acquired");
	SAYS(gpool_lora_info(lora, id, &info), -EINVAL, "size is 1 byte,");
	SAYS(gpool_lora_target_name(lora, id, 7, target), -ENOENT, "adapter 'plain' has 2 targets, and no target 7");
	SAYS(gpool_lora_stats(lora, &stats), -EINVAL, "size is 1 byte,");
	SAYS(gpool_lora_restrict(lora, id, &other, 1), -EPERM,
		"the tenant of this session, 'default', is not among the tenants");
	assert_int_equal(gpool_lora_acquire(lora, id, -1), 0);
	SAYS(gpool_lora_weights(lora, id, 0, "nothing", &part), -ENOENT,
		"adapter 'plain' has no part for 'nothing' of layer 0");
	assert_int_equal(gpool_lora_acquire(lora, id, -1), 0);
	SAYS(gpool_lora_unload(lora, id), -EBUSY,
		"adapter 'plain' is acquired (2 times, by calls, batches and requests)");
	assert_int_equal(gpool_lora_release(lora, id, GPOOL_FENCE_NONE), 0);
	SAYS(gpool_lora_unregister(lora, id), -EBUSY, "adapter 'plain' is acquired (1 time, ");
	SAYS(gpool_lora_destroy(lora), -EBUSY, "adapter 'plain' is acquired (1 time, ");
	assert_int_equal(gpool_lora_release(lora, id, GPOOL_FENCE_NONE), 0);
	assert_int_equal(gpool_lora_destroy(lora), 0);
}

/*
 * Replace adapter_model.safetensors in the folder: by a file of the given size with the beginning of the fixture's
 * weights, or by a directory (-1) or a FIFO (-2).
 */
static void replace_weights(const char *folder, int bytes)
{
	static uint8_t weights[16384];
	char path[256];
	FILE *file;

	snprintf(path, sizeof(path), "%s/adapter_model.safetensors", folder);
	remove(path);
	if (bytes < 0) {
		assert_int_equal(bytes == -1 ? mkdir(path, 0700) : mkfifo(path, 0600), 0);
		return;
	}
	file = fopen("tests/fixtures/adapters/plain/adapter_model.safetensors", "re");
	assert_non_null(file);
	assert_true(fread(weights, 1, sizeof(weights), file) > (size_t)bytes);
	fclose(file);
	file = fopen(path, "we");
	assert_non_null(file);
	assert_int_equal(fwrite(weights, 1, (size_t)bytes, file), bytes);
	fclose(file);
}

static void test_files_that_are_no_weights(void **state)
{
	static const struct {
		int bytes;
		const char *why;
	} cases[] = {
		{0, "is empty"},
		{5, "5 bytes are too few for a header"},
		{300, "header"},
		{11000, "of the file"},
		{-1, "is a directory, not a regular file"},
		{-2, "is a pipe, not a regular file"},
	};
	char folder[TEMPORARY_PATH_BYTES], config[96], source[PATH_MAX], why[GPOOL_LORA_REASON_BYTES];
	struct gpool_lora *lora = open_adapters();
	uint32_t id;

	(void)state;
	assert_non_null(mkdtemp(temporary_path(folder, "gpool-test-XXXXXX")));
	snprintf(config, sizeof(config), "%s/adapter_config.json", folder);
	assert_non_null(realpath("tests/fixtures/adapters/plain/adapter_config.json", source));
	assert_int_equal(symlink(source, config), 0);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		replace_weights(folder, cases[i].bytes);
		SAYS(gpool_lora_register(lora, "bad", folder, &id, why), -EINVAL, cases[i].why);
		assert_non_null(strstr(why, cases[i].why));
		snprintf(source, sizeof(source), "%s/adapter_model.safetensors", folder);
		assert_ptr_equal(strstr(why, source), why);
	}
	assert_int_equal(gpool_lora_destroy(lora), 0);
	snprintf(source, sizeof(source), "%s/adapter_model.safetensors", folder);
	assert_int_equal(remove(source), 0);
	assert_int_equal(unlink(config), 0);
	assert_int_equal(rmdir(folder), 0);
}

static void test_batches(void **state)
{
	const struct gpool_lora_target twice[] = {
		{.name = "a.*.q", .in = 16, .out = 16}, {.name = "a.*.q", .in = 16, .out = 16}};
	struct gpool_lora_batch_options options = GPOOL_LORA_BATCH_OPTIONS_INIT;
	const uint32_t unknown[] = {77};
	struct gpool_lora *lora = open_adapters();
	struct gpool_lora_batch *batch;
	uint32_t timeline;
	char text[64];

	(void)state;
	options.stream = work_stream;
	SAYS(gpool_lora_batch_create(lora, &options, &batch), -EINVAL, "tokens_max is 0; it must be 1 to 1048576");
	options.tokens_max = 8;
	options.rank_max = 500;
	SAYS(gpool_lora_batch_create(lora, &options, &batch), -EINVAL, "rank_max is 500; it must be 0 to 128");
	options.rank_max = 0;
	options.element = GPOOL_LORA_F16;
	options.target_count = 2;
	SAYS(gpool_lora_batch_create(lora, &options, &batch), -EINVAL, "targets is NULL");
	options.targets = twice;
	SAYS(gpool_lora_batch_create(lora, &options, &batch), -EINVAL, "target 'a.*.q' is in layers, but layers is 0");
	options.layers = 2;
	SAYS(gpool_lora_batch_create(lora, &options, &batch), -EINVAL, "duplicate target 'a.*.q'");
	options.target_count = 1;
	assert_int_equal(gpool_lora_batch_create(lora, &options, &batch), 0);
	SAYS(gpool_lora_batch_set(batch, unknown, 1, NULL), -ENOENT, "token 0: no adapter 77 is registered");
	SAYS(gpool_lora_batch_set(batch, unknown, 9, NULL), -EINVAL,
		"there are 9 tokens; the batch can have at most 8 (tokens_max)");
	SAYS(gpool_lora_batch_apply(batch, 0, 1, 0, 0, 0, 0, work_stream), -EINVAL,
		"target is 1; the batch has 1 target");
	SAYS(gpool_lora_batch_apply(batch, 2, 0, 0, 0, 0, 0, work_stream), -EINVAL,
		"layer is 2; the batch has 2 layers");
	SAYS(gpool_lora_batch_apply(batch, 0, 0, 0, 0, 0, 0, 999), -EINVAL, "stream 999 is not open");
	assert_int_equal(gpool_stream_open(pool, NULL, GPOOL_STREAM_HOST_SIGNALED, &timeline), 0);
	snprintf(text, sizeof(text), "stream %u is host-signaled and cannot execute work", timeline);
	SAYS(gpool_lora_batch_apply(batch, 0, 0, 0, 0, 0, 0, timeline), -EINVAL, text);
	gpool_stream_close(pool, timeline);
	SAYS(gpool_lora_destroy(lora), -EBUSY, "the adapters have 1 user; destroy");
	assert_int_equal(gpool_lora_batch_destroy(batch), 0);
	assert_int_equal(gpool_lora_destroy(lora), 0);
}

static void test_schedulers(void **state)
{
	struct gpool_lora_scheduler_options options = GPOOL_LORA_SCHEDULER_OPTIONS_INIT;
	struct gpool_lora_scheduler_stats statistics = {.size = 1};
	struct gpool_lora_schedule schedule = {.size = 1};
	struct gpool_lora *lora = open_adapters();
	struct gpool_lora_scheduler *scheduler;
	uint32_t request;

	(void)state;
	options.batch_requests = 1000;
	SAYS(gpool_lora_scheduler_create(lora, &options, &scheduler), -EINVAL,
		"batch_requests is 1000; the maximum is 256");
	options.batch_requests = 0;
	options.look_ahead = 65;
	SAYS(gpool_lora_scheduler_create(lora, &options, &scheduler), -EINVAL, "look_ahead is 65; the maximum is 64");
	options.look_ahead = 0;
	options.requests = 1;
	assert_int_equal(gpool_lora_scheduler_create(lora, &options, &scheduler), 0);
	SAYS(gpool_lora_scheduler_add(scheduler, 3, 1, &request), -ENOENT, "no adapter 3 is registered");
	SAYS(gpool_lora_scheduler_remove(scheduler, 0), -ENOENT, "request 0 is not waiting");
	assert_int_equal(gpool_lora_scheduler_add(scheduler, GPOOL_LORA_NONE, 1, &request), 0);
	SAYS(gpool_lora_scheduler_add(scheduler, GPOOL_LORA_NONE, 1, &request), -ENOSPC,
		"the scheduler has 1 request, the limit (option requests); finish or remove one");
	SAYS(gpool_lora_scheduler_finish(scheduler, request, GPOOL_FENCE_NONE), -ENOENT, "request 0 is not running");
	SAYS(gpool_lora_scheduler_schedule(scheduler, -2, &schedule), -EINVAL, "timeout_ms is -2");
	SAYS(gpool_lora_scheduler_schedule(scheduler, 0, &schedule), -EINVAL, "size is 1 byte,");
	SAYS(gpool_lora_scheduler_stats(scheduler, &statistics), -EINVAL, "size is 1 byte,");
	assert_int_equal(gpool_lora_scheduler_destroy(scheduler), 0);
	assert_int_equal(gpool_lora_destroy(lora), 0);
}

/* ---- the stream-ordered allocator ---- */

static void test_allocator(void **state)
{
	struct gpool_vm_options options = {.size = sizeof(options)};
	struct gpool_vm_stats totals = {.size = 1};
	uint64_t address;

	(void)state;
	SAYS(gpool_free_async(pool, 4096, 0), -EINVAL, "0x1000 is not the address of an allocation");
	options.page_bytes = 1000;
	SAYS(gpool_vm_configure(pool, &options), -EINVAL, "page_bytes is 1000; it must be a multiple of 524288");
	options.page_bytes = 0;
	options.trace = 9;
	SAYS(gpool_vm_configure(pool, &options), -EINVAL, "trace is 9; the maximum is 3");
	options.trace = 0;
	options.slack_percent = 1001;
	SAYS(gpool_vm_configure(pool, &options), -EINVAL, "slack_percent is 1001; it must be from -1 (none) to 1000");
	options.slack_percent = 0;
	SAYS(gpool_malloc_async(pool, 0, 0, &address), -EINVAL, "bytes is 0");
	SAYS(gpool_malloc_async(pool, 1000, 999, &address), -EINVAL, "stream 999 is not open");
	SAYS(gpool_malloc_async(pool, UINT64_C(1) << 40, 0, &address), -ENOSPC,
		"2097152 pages are needed; this pool has 512");
	assert_int_equal(gpool_malloc_async(pool, 3 * PAGE_BYTES, 0, &address), 0);
	SAYS(gpool_vm_configure(pool, &options), -EALREADY, "the allocator has started");
	SAYS(gpool_free_async(pool, address + 1, 0), -EINVAL, "is not the address of an allocation");
	SAYS(gpool_vm_capture(pool, address, 2), -EINVAL, "captured is 2; it must be 0 or 1");
	SAYS(gpool_vm_capture(pool, address + 1, 1), -EINVAL, "is not the address of an allocation");
	SAYS(gpool_vm_stats(pool, &totals), -EINVAL, "size is 1 byte,");
	assert_int_equal(gpool_free_async(pool, address, 0), 0);
}

/* ---- observers and sleeping sessions ---- */

static void test_observers(void **state)
{
	struct gpool_options options = harness_options(&harness);
	struct gpool_fence_handle handle;
	struct gpool_fence fence = {0};
	struct gpool_block block;
	struct gpool *observer;
	uint32_t stream;

	(void)state;
	options.flags = GPOOL_OPEN_OBSERVER;
	assert_int_equal(gpool_open(&options, &observer), 0);
	SAYS(gpool_alloc(observer, 1, NULL, &block), -EPERM,
		"not permitted in a session that was opened with GPOOL_OPEN_OBSERVER");
	SAYS(gpool_reservation_release(observer, 1), -EPERM, "GPOOL_OPEN_OBSERVER");
	SAYS(gpool_trim_to(observer, 0), -EPERM, "GPOOL_OPEN_OBSERVER");
	SAYS(gpool_vm_dump(observer, NULL, NULL), -EPERM, "GPOOL_OPEN_OBSERVER");
	SAYS(gpool_wake(observer, 0), -EPERM, "GPOOL_OPEN_OBSERVER");
	SAYS(gpool_fence_export(observer, fence, 0, &handle), -EPERM, "GPOOL_OPEN_OBSERVER");
	SAYS(gpool_stream_open(observer, NULL, 0, &stream), -EOPNOTSUPP,
		"a session of an observer or admin has no device");
	gpool_close(observer);
}

static void test_sleeping(void **state)
{
	struct gpool *sleeper = harness_open(&harness);
	struct gpool_range *range, *second;

	(void)state;
	assert_int_equal(gpool_range_reserve(sleeper, 4, NULL, &range), 0);
	SAYS(gpool_sleep(sleeper, 5), -EINVAL, "flags are 0x5; they must be 0");
	SAYS(gpool_wake(sleeper, -2), -EINVAL, "timeout_ms is -2");
	assert_int_equal(gpool_sleep(sleeper, 0), 0);
	SAYS(gpool_range_commit(range, 0, 1, 0), -EHOSTDOWN, "the session is asleep; call gpool_wake()");
	SAYS(gpool_range_reserve(sleeper, 1, NULL, &second), -EHOSTDOWN, "the session is asleep");
	assert_int_equal(gpool_wake(sleeper, 0), 0);
	assert_int_equal(gpool_range_create(sleeper, 1, NULL, &second), 0);
	SAYS(gpool_sleep(sleeper, 0), -EOPNOTSUPP, "1 page of MUTABLE ranges cannot be spilled");
	gpool_close(sleeper);
}

/* ---- the thread and the failure to which a text belongs ---- */

static void *fail_elsewhere(void *unused)
{
	struct gpool_block block;

	assert_int_equal(gpool_alloc(pool, 5000, NULL, &block), -EINVAL);
	return unused;
}

static void test_a_text_is_of_this_thread_and_code(void **state)
{
	struct gpool_block block;
	pthread_t other;

	(void)state;
	assert_int_equal(gpool_alloc(pool, 3000, NULL, &block), -EINVAL);
	assert_int_equal(pthread_create(&other, NULL, fail_elsewhere, NULL), 0);
	pthread_join(other, NULL);
	assert_string_equal(gpool_last_error(-ENOSPC), gpool_strerror(ENOSPC));
	assert_string_equal(gpool_last_error(0), gpool_strerror(0));
	assert_non_null(strstr(gpool_last_error(EINVAL), "page_count is 3000;"));
	assert_string_equal(gpool_last_error(EINVAL), gpool_strerror(EINVAL));
}

static int begin(void **state)
{
	static const char *const arguments[] = {"--pool", HARNESS_POOL ",spill_memory=0B", NULL};

	(void)state;
	memset(long_name, 'x', sizeof(long_name) - 1);
	harness_start(&harness, arguments);
	pool = harness_open(&harness);
	return gpool_stream_open(pool, NULL, 0, &work_stream);
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
		cmocka_unit_test(test_opening),
		cmocka_unit_test(test_too_many_pools),
		cmocka_unit_test(test_blocks),
		cmocka_unit_test(test_spans),
		cmocka_unit_test(test_ranges),
		cmocka_unit_test(test_offered_ranges),
		cmocka_unit_test(test_shortages),
		cmocka_unit_test(test_objects),
		cmocka_unit_test(test_roles_events_streams),
		cmocka_unit_test(test_copies),
		cmocka_unit_test(test_driver_failures),
		cmocka_unit_test(test_fences),
		cmocka_unit_test(test_scopes_and_commits),
		cmocka_unit_test(test_sliced_ranges),
		cmocka_unit_test(test_making_caches),
		cmocka_unit_test(test_sequences),
		cmocka_unit_test(test_blocks_of_caches),
		cmocka_unit_test(test_pairs_of_blocks),
		cmocka_unit_test(test_prefixes),
		cmocka_unit_test(test_writing_int8),
		cmocka_unit_test(test_groups_of_caches),
		cmocka_unit_test(test_adapters),
		cmocka_unit_test(test_files_that_are_no_weights),
		cmocka_unit_test(test_batches),
		cmocka_unit_test(test_schedulers),
		cmocka_unit_test(test_allocator),
		cmocka_unit_test(test_observers),
		cmocka_unit_test(test_sleeping),
		cmocka_unit_test(test_a_text_is_of_this_thread_and_code),
	};

	return cmocka_run_group_tests(tests, begin, end);
}
