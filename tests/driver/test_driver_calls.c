/*
 * test_driver_calls.c - the calls of the driver that blocks, streams, ranges, the stream-ordered allocator, objects and
 * roles make; see calls.h.
 *
 * Goal: each public call makes exactly the calls of the driver in docs/driver_calls.md. Method: each test produces the
 * situations of one part. A handle is a page of 512 KiB, and leases grow by single pages.
 *
 * Requirements: D5.
 */
#include "client/vm/background.h"
#include "tests/driver/calls.h"
#include "tests/lib/temporary.h"

#include <sys/resource.h>

static const struct gpool_fence none;

static int calls_stop(void **state)
{
	gate_forget();
	return kv_stop(state);
}

/* ---- the pool ---- */

static int never_interrupted(void *argument)
{
	(void)argument;
	return 0;
}

/* Requirements: C1. */
static void test_pool(void **state)
{
	struct gpool_options options;
	struct gpool_stats stats = {.size = sizeof(stats)};
	struct gpool_device_info device = {.size = sizeof(device)};
	struct gpool_event event = GPOOL_EVENT_INIT;
	struct gpool *pool;

	(void)state;
	start(steady);
	options = harness_options(&harness);
	CALLS(gpool_open(&options, &pool), "first call of the process",
		"cuDeviceGet 3, cuDeviceGetAttribute 12, cuDeviceGetCount, cuDeviceGetName 2, cuDeviceGetUuid 3, "
		"cuDevicePrimaryCtxRetain, cuDeviceTotalMem 2, cuInit, cuMemAddressReserve, "
		"cuMemGetAllocationGranularity, 1 frame");
	CALLS_VOID(
		gpool_close(pool), "steady: nothing was used", "cuDevicePrimaryCtxRelease, cuMemAddressFree, 2 frames");
	CALLS(gpool_open(&options, &worker), "steady",
		"cuDeviceGet 3, cuDeviceGetAttribute 12, cuDeviceGetCount, cuDeviceGetName 2, cuDeviceGetUuid 3, "
		"cuDevicePrimaryCtxRetain, cuDeviceTotalMem 2, cuMemAddressReserve, cuMemGetAllocationGranularity, 1 "
		"frame");
	NEVER(gpool_version());
	NEVER(gpool_strerror(-EINVAL));
	NEVER(gpool_last_error(-EINVAL));
	NEVER(gpool_wait_check(never_interrupted, NULL));
	gpool_wait_check(NULL, NULL);
	NEVER(gpool_page_bytes(worker));
	NEVER(gpool_page_count(worker));
	NEVER(gpool_session(worker));
	NEVER(gpool_pressure(worker));
	NEVER(gpool_device_info(worker, &device));
	NEVER(gpool_stats(worker, &stats));
	NEVER(gpool_event_next(admin, 0, &event));
}

static void test_close(void **state)
{
	struct gpool_block block;
	uint32_t second;

	(void)state;
	worker_open(steady);
	assert_int_equal(gpool_stream_open(worker, NULL, 0, &second), 0);
	block = alloc(worker, 2);
	(void)block;
	CALLS_VOID(gpool_close(worker), "two streams are open, and two pages are mapped",
		"cuDevicePrimaryCtxRelease, cuMemAddressFree, cuMemHostUnregister, cuMemRelease 2, cuMemUnmap, "
		"cuStreamDestroy 2, cuStreamIsCapturing 4, cuStreamSynchronize 4, 10 frames");
	worker = NULL;
}

/* ---- blocks ---- */

static void test_blocks(void **state)
{
	struct gpool_block block, moved, single[6];
	struct gpool_oom_info shortage = {.size = sizeof(shortage)};
	struct gpool_oom_object object = {.size = sizeof(object)};
	uint64_t address, entry, reservation = 0;

	(void)state;
	worker_open(steady);
	CALLS(gpool_alloc(worker, 2, NULL, &block), "two adjacent pages that the process has not mapped yet",
		"cuMemImportFromShareableHandle 2, cuMemMap 2, cuMemSetAccess, 4 frames");
	NEVER(gpool_address(worker, &block, &address));
	CALLS(gpool_free(worker, &block), "steady", "");
	CALLS(gpool_alloc(worker, 2, NULL, &block), "steady", "");
	CALLS(gpool_unpin(worker, &block), "steady", "");
	CALLS(gpool_pin(worker, &block), "steady", "");
	NEVER(gpool_touch(worker, &block));
	moved = block;
	NEVER(gpool_refresh(worker, &moved));
	assert_int_equal(gpool_unpin(worker, &block), 0);
	CALLS(gpool_discard(worker, &block), "steady", "");
	CALLS(gpool_release_unused(worker), "steady", "");
	NEVER(gpool_oom_info(worker, &shortage));
	NEVER(gpool_oom_object(worker, &object));

	NEVER(gpool_reservation_create(worker, 1, 0, 0, &reservation));
	NEVER(gpool_reservation_use(worker, reservation));
	NEVER(gpool_reservation_release(worker, reservation));
	assert_int_equal(gpool_reservation_use(worker, 0), 0);

	CALLS(gpool_prepare(worker, 2, NULL, &block), "steady", "");
	NEVER(gpool_commit(worker, &block, &entry));
	assert_int_equal(gpool_free(worker, &block), 0);
	assert_int_equal(gpool_prepare(worker, 2, NULL, &block), 0);
	CALLS(gpool_rollback(worker, &block), "steady", "");
	CALLS(gpool_prepare(worker, 3, NULL, &block), "three adjacent pages that the process has not mapped yet",
		"cuMemImportFromShareableHandle 3, cuMemMap 3, cuMemSetAccess, 5 frames");
	assert_int_equal(gpool_rollback(worker, &block), 0);

	/* Every second of six mapped pages is free, and no other page. */
	moved = alloc(worker, PAGES - 6);
	for (int i = 0; i < 6; i++)
		single[i] = alloc(worker, 1);
	for (int i = 0; i < 6; i += 2)
		assert_int_equal(gpool_free(worker, &single[i]), 0);
	CALLS(gpool_alloc(worker, 3, NULL, &block), "three scattered pages",
		"cuMemAddressReserve, cuMemMap 3, cuMemSetAccess, 5 frames");
	CALLS(gpool_free(worker, &block), "three scattered pages", "cuMemAddressFree, cuMemUnmap, 2 frames");
	CALLS(gpool_prepare(worker, 3, NULL, &block), "three scattered pages",
		"cuMemAddressReserve, cuMemMap 3, cuMemSetAccess, 5 frames");
	CALLS(gpool_rollback(worker, &block), "three scattered pages", "cuMemAddressFree, cuMemUnmap, 2 frames");
	assert_int_equal(gpool_alloc(worker, 3, NULL, &block), 0);
	assert_int_equal(gpool_unpin(worker, &block), 0);
	CALLS(gpool_discard(worker, &block), "three scattered pages", "cuMemAddressFree, cuMemUnmap, 2 frames");
	assert_int_equal(gpool_free(worker, &moved), 0);
	for (int i = 1; i < 6; i += 2)
		assert_int_equal(gpool_free(worker, &single[i]), 0);
}

static void test_deferred_blocks(void **state)
{
	struct gpool_scope scope = GPOOL_SCOPE_INIT;
	struct gpool_block block, moved, single[6];
	struct gpool_fence fence;
	struct gpool_span span;

	(void)state;
	worker_open(steady);
	CALLS(gpool_span_alloc(worker, 300, 0, &span), "a page that the process has not mapped yet",
		"cuMemImportFromShareableHandle, cuMemMap, cuMemSetAccess, 3 frames");
	CALLS(gpool_span_free(worker, &span), "steady", "");
	CALLS(gpool_span_alloc(worker, 300, 0, &span), "steady", "");
	assert_int_equal(gpool_span_free(worker, &span), 0);

	block = alloc(worker, 1);
	gate_close(stream);
	assert_int_equal(gpool_fence_record(worker, stream, &fence), 0);
	CALLS(gpool_unpin_after(worker, &block, fence), "steady", "");
	assert_int_equal(gpool_pin(worker, &block), 0);
	CALLS(gpool_free_after(worker, &block, fence), "steady", "");
	gate_open(stream);

	NEVER(gpool_scope_begin(worker, GPOOL_USAGE_TEMP_BUFFER, GPOOL_SCOPE_FREE, &scope));
	assert_int_equal(gpool_scope_alloc(&scope, 1, NULL, &block), 0);
	assert_int_equal(gpool_scope_end(&scope, none), 0);
	assert_int_equal(gpool_scope_begin(worker, GPOOL_USAGE_TEMP_BUFFER, GPOOL_SCOPE_FREE, &scope), 0);
	CALLS(gpool_scope_alloc(&scope, 1, NULL, &block), "steady", "");
	CALLS(gpool_scope_end(&scope, none), "steady", "");
	assert_int_equal(gpool_scope_begin(worker, GPOOL_USAGE_TEMP_BUFFER, GPOOL_SCOPE_FREE, &scope), 0);
	assert_int_equal(gpool_scope_alloc(&scope, 1, NULL, &block), 0);
	CALLS_VOID(gpool_scope_cleanup(&scope), "steady", "");

	moved = alloc(worker, PAGES - 6);
	for (int i = 0; i < 6; i++)
		single[i] = alloc(worker, 1);
	for (int i = 0; i < 6; i += 2)
		assert_int_equal(gpool_free(worker, &single[i]), 0);
	assert_int_equal(gpool_scope_begin(worker, GPOOL_USAGE_TEMP_BUFFER, GPOOL_SCOPE_FREE, &scope), 0);
	CALLS(gpool_scope_alloc(&scope, 3, NULL, &block), "three scattered pages",
		"cuMemAddressReserve, cuMemMap 3, cuMemSetAccess, 5 frames");
	CALLS(gpool_scope_end(&scope, none), "three scattered pages", "cuMemAddressFree, cuMemUnmap, 2 frames");
	assert_int_equal(gpool_scope_begin(worker, GPOOL_USAGE_TEMP_BUFFER, GPOOL_SCOPE_FREE, &scope), 0);
	assert_int_equal(gpool_scope_alloc(&scope, 3, NULL, &block), 0);
	CALLS_VOID(gpool_scope_cleanup(&scope), "three scattered pages", "cuMemAddressFree, cuMemUnmap, 2 frames");
	assert_int_equal(gpool_alloc(worker, 3, NULL, &block), 0);
	CALLS(gpool_free_after(worker, &block, none), "three scattered pages, and the fence is signaled",
		"cuMemAddressFree, cuMemUnmap, 2 frames");
	assert_int_equal(gpool_free(worker, &moved), 0);
	for (int i = 1; i < 6; i += 2)
		assert_int_equal(gpool_free(worker, &single[i]), 0);
}

/* ---- streams and fences ---- */

static void test_streams(void **state)
{
	struct gpool_fence fence, other, imported;
	struct gpool_fence_handle handle;
	struct gpool_block block;
	struct gpool *reader;
	uint32_t second, third, adopted;
	uint64_t address;
	void *native;

	(void)state;
	start(steady);
	worker = open_worker();
	reader = open_worker();
	CALLS(gpool_stream_open(worker, NULL, 0, &stream), "first call of the session",
		"cuMemHostGetDevicePointer, cuMemHostRegister, cuStreamCreate, 2 frames");
	block = alloc(worker, 2);
	assert_int_equal(gpool_address(worker, &block, &address), 0);
	CALLS(gpool_copy(worker, stream, address, address + PAGE_BYTES, 4096), "steady", "cuMemcpyAsync, 1 frame");
	CALLS(gpool_fill(worker, stream, address, 7, 4096), "steady", "cuMemsetD32Async, 1 frame");
	CALLS(gpool_fence_record(worker, stream, &fence), "steady",
		"cuStreamIsCapturing 2, cuStreamWriteValue64, 1 frame");
	CALLS(gpool_fence_wait(worker, fence, -1), "steady", "");
	CALLS(gpool_fence_done(worker, fence), "steady", "");
	CALLS(gpool_stream_open(worker, NULL, 0, &second), "steady", "cuStreamCreate, 1 frame");
	NEVER(gpool_stream_native(worker, second, &native));
	CALLS(gpool_stream_open(worker, native, 0, &adopted), "a stream of the program is adopted",
		"cuStreamGetCtx, 1 frame");
	gpool_stream_close(worker, adopted);
	CALLS(gpool_fence_record(worker, stream, &fence), "another stream is open, first four calls",
		"cuEventCreate, cuEventRecord, cuStreamIsCapturing 4, cuStreamWriteValue64, 3 frames");
	for (int i = 0; i < 4; i++)
		assert_int_equal(gpool_fence_record(worker, stream, &fence), 0);
	CALLS(gpool_fence_record(worker, stream, &fence), "another stream is open",
		"cuEventRecord, cuStreamIsCapturing 4, cuStreamWriteValue64, 2 frames");
	assert_int_equal(gpool_fence_wait(worker, fence, -1), 0);
	CALLS(gpool_stream_wait(worker, second, fence), "steady", "");

	gate_close(stream);
	assert_int_equal(gpool_fence_record(worker, stream, &fence), 0);
	CALLS_MOST(gpool_fence_done(worker, fence), "the fence is not signaled, at most once per millisecond",
		"cuStreamIsCapturing, cuStreamQuery, 1 frame");
	CALLS_ERROR(gpool_fence_wait(worker, fence, 1), -ETIMEDOUT, "the fence is not signaled", "");
	CALLS(gpool_stream_wait(worker, second, fence), "the fence is not signaled",
		"cuStreamIsCapturing 2, cuStreamWaitEvent, cuStreamWaitValue64, 2 frames");
	CALLS(gpool_fence_export(worker, fence, 0, &handle), "first call of the session",
		"cuMemHostGetDevicePointer, cuMemHostRegister, cuStreamIsCapturing 2, cuStreamWriteValue64, 2 frames");
	assert_int_equal(gpool_fence_record(worker, stream, &other), 0);
	CALLS(gpool_fence_export(worker, other, 0, &handle), "steady",
		"cuStreamIsCapturing 2, cuStreamWriteValue64, 1 frame");
	CALLS(gpool_fence_import(reader, &handle, &imported), "first call of the session",
		"cuMemHostGetDevicePointer, cuMemHostRegister, 1 frame");
	CALLS(gpool_fence_close(reader, imported), "steady", "");
	CALLS(gpool_fence_import(reader, &handle, &imported), "steady", "");
	assert_int_equal(gpool_stream_open(reader, NULL, 0, &third), 0);
	CALLS(gpool_stream_wait(reader, third, imported), "an imported fence",
		"cuStreamIsCapturing, cuStreamWaitValue64, 1 frame");
	CALLS(gpool_fence_export(worker, other, GPOOL_FENCE_EXPORT_EVENT, &handle), "as an event",
		"cuEventCreate, cuEventRecord, cuIpcGetEventHandle, cuStreamIsCapturing 2, 3 frames");
	CALLS(gpool_fence_signal(worker, gate), "steady", "");
	assert_int_equal(gpool_fence_wait(worker, other, -1), 0);
	assert_int_equal(gpool_fence_wait(reader, imported, -1), 0);
	assert_int_equal(gpool_fence_close(reader, imported), 0);
	CALLS_VOID(gpool_stream_close(worker, second), "steady",
		"cuStreamDestroy, cuStreamIsCapturing 2, cuStreamSynchronize 2, 2 frames");
	CALLS_VOID(gpool_stream_close(worker, stream), "fences were recorded while another stream was open",
		"cuEventDestroy 4, cuStreamDestroy, cuStreamIsCapturing 2, cuStreamSynchronize 2, 6 frames");
	assert_int_equal(gpool_free(worker, &block), 0);
	gpool_close(reader);
}

/* ---- ranges ---- */

static struct gpool_range *reserved_range(void)
{
	struct gpool_range_options options = GPOOL_RANGE_OPTIONS_INIT;
	struct gpool_range *range;

	options.memory_class = GPOOL_OBJECT_MUTABLE;
	assert_int_equal(gpool_range_reserve(worker, 1000, &options, &range), 0);
	return range;
}

static void test_ranges(void **state)
{
	struct gpool_range_options options = GPOOL_RANGE_OPTIONS_INIT;
	struct gpool_range_info info = {.size = sizeof(info)};
	struct gpool_range_page page = {.size = sizeof(page)};
	struct gpool_range *range, *zeroed;
	struct gpool_block all;
	uint64_t address;
	uint8_t kept[4];

	(void)state;
	worker_open(steady);
	options.memory_class = GPOOL_OBJECT_MUTABLE;
	CALLS(gpool_range_create(worker, 4, &options, &range), "always: four pages",
		"cuMemAddressReserve, cuMemImportFromShareableHandle 4, cuMemMap 4, cuMemSetAccess, 7 frames");
	CALLS(gpool_range_destroy(range), "steady: four pages",
		"cuMemAddressFree, cuMemUnmap, cuStreamIsCapturing, cuStreamSynchronize, 3 frames");
	CALLS(gpool_range_reserve(worker, 1000, &options, &range), "steady", "cuMemAddressReserve, 1 frame");
	NEVER(gpool_range_address(range, &address));
	NEVER(gpool_range_info(range, &info));
	NEVER(gpool_range_resolve(range, 0, &page));
	CALLS(gpool_range_commit(range, 0, 4, -1), "four pages that the process has not mapped here yet",
		"cuMemMap 4, cuMemSetAccess, 2 frames");
	CALLS(gpool_range_decommit(range, 0, 4, none), "steady", "");
	CALLS(gpool_range_commit(range, 0, 4, -1), "steady", "");
	NEVER(gpool_range_capture(range, 0, 1, 1));
	assert_int_equal(gpool_range_capture(range, 0, 1, 0), 0);
	CALLS(gpool_range_offer(range, 0, 4, none), "steady", "");
	NEVER(gpool_range_reclaim(range, 0, 4, kept));
	CALLS(gpool_sleep(worker, 0), "always: one stream, a range with four pages",
		"cuMemUnmap, cuStreamIsCapturing, cuStreamSynchronize, 2 frames");
	NEVER(gpool_asleep(worker));
	CALLS(gpool_wake(worker, -1), "always: a range with four pages", "cuMemMap 4, cuMemSetAccess, 2 frames");

	CALLS(gpool_alloc(worker, PAGES - 4, NULL, &all), "60 adjacent pages that the process has not mapped yet",
		"cuMemImportFromShareableHandle 60, cuMemMap 60, cuMemSetAccess, 62 frames");
	assert_int_equal(gpool_free(worker, &all), 0);
	options.flags = GPOOL_RANGE_ZERO;
	CALLS(gpool_range_reserve(worker, 1000, &options, &zeroed), "GPOOL_RANGE_ZERO",
		"cuMemAddressReserve, cuStreamCreate, 2 frames");
	CALLS(gpool_range_commit(zeroed, 0, 4, -1), "GPOOL_RANGE_ZERO, four pages not mapped here yet",
		"cuMemMap 4, cuMemSetAccess, cuMemsetD32Async 4, cuStreamIsCapturing, cuStreamSynchronize, 7 frames");
	CALLS(gpool_range_destroy(zeroed), "four committed pages",
		"cuMemAddressFree, cuMemUnmap, cuStreamDestroy, cuStreamIsCapturing 2, cuStreamSynchronize 2, 4 "
		"frames");
	assert_int_equal(gpool_range_destroy(range), 0);
}

/*
 * Commit the first `count` pages of a range, one by one. Return the number of handles that were imported; *requests:
 * the number of commits that imported any.
 */
static uint64_t commit_each(struct gpool_range *range, uint32_t count, uint32_t *requests)
{
	uint64_t sum = 0, imports;

	*requests = 0;
	for (uint32_t page = 0; page < count; page++) {
		calls_begin(false);
		assert_int_equal(gpool_range_commit(range, page, 1, -1), 0);
		imports = calls_of(calls_before, "cuMemImportFromShareableHandle");
		sum += imports;
		*requests += imports != 0;
	}
	return sum;
}

static int lowest_free(void)
{
	int fd = dup(0);

	close(fd);
	return fd;
}

#define LARGE_POOL "name=p0,backend=host,size=256 pages,page_size=512KB,reserved=0"

/* The pages of a lease are imported in requests of 1, 1, 2, 4, 8, 16 and then 32 handles. */
static void test_imports_ahead(void **state)
{
	static const char *const ample[] = {"--pool", LARGE_POOL, QUIET, "--set", "lease.initial_pages=0", NULL};
	struct gpool_range_options options = GPOOL_RANGE_OPTIONS_INIT;
	struct rlimit limit, few;
	struct gpool_range *range;
	uint32_t requests;

	(void)state;
	worker_open(ample);
	options.memory_class = GPOOL_OBJECT_MUTABLE;
	assert_int_equal(gpool_range_reserve(worker, 64, &options, &range), 0);
	assert_int_equal(commit_each(range, 32, &requests), 32);
	assert_int_equal(requests, 6);
	driver_fail("cuMemImportFromShareableHandle", 2, 999);
	assert_int_equal(gpool_range_commit(range, 32, 1, -1), 0); /* only the next page is not imported */
	/* The process has no room for 31 descriptors, but for that of the page. */
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	few = limit;
	few.rlim_cur = (rlim_t)lowest_free() + 8;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
	assert_int_equal(gpool_range_commit(range, 33, 1, -1), 0);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	CALLS(gpool_range_commit(range, 34, 1, -1),
		"a page, and 29 more pages of the lease, which the process has not imported yet",
		"cuMemImportFromShareableHandle 30, cuMemMap, cuMemSetAccess, 32 frames");
	CALLS(gpool_range_commit(range, 35, 29, -1), "29 adjacent pages that the process has imported and not mapped",
		"cuMemMap 29, cuMemSetAccess, 2 frames");
}

/* If tenants are in several trust domains, a process imports only what it maps. */
static void test_imports_of_domains(void **state)
{
	static const char text[] = "pools = ( { name = \"p0\"; backend = \"host\"; size = \"256 pages\"; "
				   "page_size = \"512KB\"; reserved = \"0 pages\"; } );\n"
				   "tenants = ( { name = \"red\"; users = [ \"0\" ]; domain = \"red\"; }, "
				   "{ name = \"blue\"; users = [ \"2\" ]; domain = \"blue\"; } );\n";
	char path[TEMPORARY_PATH_BYTES];
	const char *arguments[] = {"--config", path, QUIET, "--set", "lease.initial_pages=0", NULL};
	struct gpool_range_options options = GPOOL_RANGE_OPTIONS_INIT;
	int fd = mkstemp(temporary_path(path, "gpool-calls-XXXXXX"));
	struct gpool_range *range;
	uint32_t requests;

	(void)state;
	assert_int_equal(write(fd, text, sizeof(text) - 1), sizeof(text) - 1);
	close(fd);
	start(arguments);
	unlink(path);
	options.memory_class = GPOOL_OBJECT_MUTABLE;
	/* The second process gets the pages of the first, which need not be cleared, so its lease has further pages. */
	for (int i = 0; i < 2; i++) {
		worker = open_as(0, NULL, "red");
		assert_int_equal(gpool_range_reserve(worker, 64, &options, &range), 0);
		assert_int_equal(commit_each(range, 64, &requests), 64);
		assert_int_equal(requests, 64);
		gpool_close(worker);
	}
	worker = NULL;
}

static void test_objects_in_ranges(void **state)
{
	struct gpool_object *object, *mapped;
	struct gpool_range *range, *opened, *theirs;
	struct gpool_range_options options = GPOOL_RANGE_OPTIONS_INIT;
	struct gpool *reader;
	uint64_t version;
	uint32_t index;

	(void)state;
	worker_open(steady);
	reader = open_worker();
	options.memory_class = GPOOL_OBJECT_MUTABLE;
	range = reserved_range();
	assert_int_equal(gpool_range_commit(range, 0, 4, -1), 0);
	CALLS(gpool_range_publish(range, 0, 4, "pages", NULL, &object), "steady: four pages",
		"cuMemSetAccess, 1 frame");
	CALLS(gpool_range_map(range, 10, "pages", NULL, &mapped), "steady: four pages",
		"cuMemMap 4, cuMemSetAccess, 2 frames");
	CALLS(gpool_range_unmap(range, mapped), "always", "cuMemUnmap, 1 frame");
	assert_int_equal(gpool_range_reserve(reader, 1000, &options, &theirs), 0);
	CALLS(gpool_range_map(theirs, 0, "pages", NULL, &mapped), "four pages that the process has not imported yet",
		"cuMemImportFromShareableHandle 4, cuMemMap 4, cuMemSetAccess, 6 frames");
	assert_int_equal(gpool_range_unmap(theirs, mapped), 0);
	assert_int_equal(gpool_range_destroy(theirs), 0);
	CALLS_ERROR(gpool_range_publish(range, 10, 1, "other", NULL, &mapped), -EINVAL,
		"refused: a page is not committed", "");
	assert_int_equal(gpool_range_unmap(range, object), 0);
	assert_int_equal(gpool_range_destroy(range), 0);
	assert_int_equal(gpool_object_delete(worker, "pages", 0), 0);
	assert_int_equal(gpool_object_create(worker, "o", NULL, &object), 0);
	assert_int_equal(gpool_object_alloc(object, 2, NULL, &index), 0);
	assert_int_equal(gpool_object_publish(object, &version), 0);
	CALLS(gpool_range_open(worker, "o", NULL, &opened), "steady: two pages",
		"cuMemAddressReserve, cuMemMap 2, cuMemSetAccess, 3 frames");
	CALLS(gpool_range_destroy(opened), "an opened object",
		"cuMemAddressFree, cuMemUnmap, cuStreamIsCapturing, cuStreamSynchronize, 3 frames");
	gpool_close(reader);
	reader = open_worker();
	CALLS(gpool_object_open(reader, "o", NULL, &mapped), "two pages that the process has not imported yet",
		"cuMemAddressReserve, cuMemImportFromShareableHandle 2, cuMemMap 2, cuMemSetAccess, 5 frames");
	assert_int_equal(gpool_object_close(mapped), 0);
	gpool_close(reader);
	reader = open_worker();
	CALLS(gpool_range_open(reader, "o", NULL, &opened), "two pages that the process has not imported yet",
		"cuMemAddressReserve, cuMemImportFromShareableHandle 2, cuMemMap 2, cuMemSetAccess, 5 frames");
	assert_int_equal(gpool_range_destroy(opened), 0);
	gpool_close(reader);
	assert_int_equal(gpool_object_close(object), 0);
	assert_int_equal(gpool_object_delete(worker, "o", 0), 0);
}

static void test_sliced_ranges(void **state)
{
	struct gpool_sliced_range_options options = GPOOL_SLICED_RANGE_OPTIONS_INIT;
	struct gpool_sliced_range_info info = {.size = sizeof(info)};
	struct gpool_sliced_range *range;

	(void)state;
	worker_open(steady);
	options.memory_class = GPOOL_OBJECT_MUTABLE;
	CALLS(gpool_sliced_range_create(worker, 4, 16, 1, &options, &range), "steady", "cuMemAddressReserve, 1 frame");
	NEVER(gpool_sliced_range_info(range, &info));
	CALLS(gpool_sliced_range_grow(range, 2, -1), "two blocks of four pages that are not mapped here yet",
		"cuMemImportFromShareableHandle 8, cuMemMap 8, cuMemSetAccess 4, 16 frames");
	CALLS(gpool_sliced_range_shrink(range, 0, none), "steady", "");
	CALLS(gpool_sliced_range_grow(range, 2, -1), "steady", "");
	CALLS(gpool_sliced_range_destroy(range), "always: four slices with mapped pages",
		"cuMemAddressFree, cuMemUnmap 4, cuStreamIsCapturing, cuStreamSynchronize, 6 frames");
}

/* ---- the stream-ordered allocator ---- */

static void no_line(void *context, const char *text)
{
	(void)context;
	(void)text;
}

static void test_malloc_async(void **state)
{
	struct gpool_vm_options options = GPOOL_VM_OPTIONS_INIT;
	struct gpool_vm_stats stats = {.size = sizeof(stats)};
	uint64_t first, small;
	uint32_t second;

	(void)state;
	worker_open(steady);
	options.idle_ms = -1;
	options.slack_percent = -1;
	options.address_bytes = 1000 * PAGE_BYTES;
	NEVER(gpool_vm_configure(worker, &options));
	CALLS(gpool_malloc_async(worker, 4 * PAGE_BYTES, stream, &first),
		"first call of the session, four pages that are not mapped",
		"cuMemAddressReserve, cuMemImportFromShareableHandle 4, cuMemMap 4, cuMemSetAccess, 7 frames");
	background_stop(worker);
	CALLS(gpool_free_async(worker, first, stream), "steady", "");
	CALLS(gpool_malloc_async(worker, 4 * PAGE_BYTES, stream, &first), "steady", "");
	NEVER(gpool_vm_capture(worker, first, 1));
	assert_int_equal(gpool_vm_capture(worker, first, 0), 0);
	CALLS(gpool_malloc_async(worker, 300, stream, &small), "300 bytes, the first allocation in a page",
		"cuMemImportFromShareableHandle, cuMemMap, cuMemSetAccess, 3 frames");
	CALLS(gpool_free_async(worker, small, stream), "300 bytes", "");
	CALLS(gpool_malloc_async(worker, 300, stream, &small), "300 bytes", "");
	assert_int_equal(gpool_free_async(worker, small, stream), 0);
	assert_int_equal(gpool_free_async(worker, first, stream), 0);
	settle();
	NEVER(gpool_vm_stats(worker, &stats));
	NEVER(gpool_vm_dump(worker, no_line, NULL));
	CALLS_MOST(gpool_trim_to(worker, 0), "memory was freed since the last work of the stream",
		"cuStreamIsCapturing 4, cuStreamWriteValue64 2, 2 frames");
	settle();
	CALLS(gpool_trim_to(worker, 0), "steady", "");
	assert_int_equal(gpool_stream_open(worker, NULL, 0, &second), 0);
	assert_int_equal(gpool_malloc_async(worker, (PAGES - 4) * PAGE_BYTES, stream, &first), 0);
	gate_close(stream);
	CALLS(gpool_free_async(worker, first, stream), "two streams are open, and work is queued", "");
	CALLS(gpool_malloc_async(worker, (PAGES - 4) * PAGE_BYTES, second, &first),
		"pages that another stream has freed, whose work is queued",
		"cuEventCreate, cuEventRecord, cuMemMap 60, cuMemSetAccess, cuStreamIsCapturing 6, cuStreamWaitEvent, "
		"cuStreamWaitValue64, cuStreamWriteValue64, 8 frames");
	gate_open(stream);
	assert_int_equal(gpool_free_async(worker, first, second), 0);
}

/* ---- objects and roles ---- */

static void test_objects(void **state)
{
	struct gpool_object *object, *built;
	struct gpool_object_options options = GPOOL_OBJECT_OPTIONS_INIT;
	struct gpool_object_info info = {.size = sizeof(info)};
	const char *const names[] = {"o"}, *key;
	uint64_t version, address, bytes;
	const void *value;
	uint32_t index, cursor = 0;
	size_t value_bytes;

	(void)state;
	worker_open(steady);
	NEVER(gpool_object_create(worker, "o", NULL, &object));
	CALLS(gpool_object_alloc(object, 2, NULL, &index), "two pages that the process has not mapped yet",
		"cuMemImportFromShareableHandle 2, cuMemMap 2, cuMemSetAccess, 4 frames");
	NEVER(gpool_object_set(object, "key", "value", 5));
	CALLS(gpool_object_publish(object, &version), "always: one allocation", "cuMemSetAccess, 1 frame");
	NEVER(gpool_object_address(object, 0, &address, &bytes));
	NEVER(gpool_object_get(object, "key", &value, &value_bytes));
	NEVER(gpool_object_entry(object, 0, &key, &value, &value_bytes));
	NEVER(gpool_object_info(object, &info));
	NEVER(gpool_object_next(worker, &cursor, &info));
	NEVER(gpool_object_find(worker, names, 1));
	CALLS(gpool_object_close(object), "steady: the builder", "");
	CALLS(gpool_object_open(worker, "o", NULL, &object), "steady: two pages",
		"cuMemAddressReserve, cuMemMap 2, cuMemSetAccess, 3 frames");
	CALLS(gpool_object_close(object), "a reader, two mapped pages", "cuMemAddressFree, cuMemUnmap, 2 frames");
	CALLS(gpool_object_delete(worker, "o", 0), "always", "");
	assert_int_equal(gpool_object_create(worker, "a", NULL, &built), 0);
	CALLS(gpool_object_alloc(built, 2, NULL, &index), "steady", "cuMemSetAccess, 1 frame");
	CALLS_VOID(gpool_object_abort(built), "steady", "");

	options.memory_class = GPOOL_OBJECT_PINNABLE;
	assert_int_equal(gpool_object_create(worker, "p", &options, &object), 0);
	assert_int_equal(gpool_object_alloc(object, 2, NULL, &index), 0);
	assert_int_equal(gpool_object_publish(object, &version), 0);
	assert_int_equal(gpool_object_close(object), 0);
	assert_int_equal(gpool_object_open(worker, "p", NULL, &object), 0);
	NEVER(gpool_object_pin(object));
	NEVER(gpool_object_unpin(object));
	assert_int_equal(gpool_object_pin(object), 0);
	CALLS(gpool_object_unpin_after(object, none), "steady", "");
	assert_int_equal(gpool_object_close(object), 0);
	assert_int_equal(gpool_object_delete(worker, "p", 0), 0);
}

static void test_loans(void **state)
{
	struct {
		struct gpool_loan loan;
		uint8_t tensor[64];
	} lent = {.loan = {.size = sizeof(struct gpool_loan)}};

	(void)state;
	worker_open(steady);
	lent.loan.pool = worker;
	lent.loan.block = alloc(worker, 1);
	lent.loan.stream = stream;
	CALLS_VOID(gpool_loan_end(lent.tensor), "steady", "cuStreamIsCapturing 2, cuStreamWriteValue64, 1 frame");
}

static void test_roles(void **state)
{
	struct gpool_role role = GPOOL_ROLE_INIT;
	uint32_t session;
	uint64_t token;

	(void)state;
	worker_open(steady);
	NEVER(gpool_role_acquire(worker, "leader", -1, &role));
	NEVER(gpool_role_check(worker, &role));
	NEVER(gpool_role_info(worker, "leader", &session, &token));
	NEVER(gpool_role_release(worker, &role));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_pool, calls_stop),
		cmocka_unit_test_teardown(test_close, calls_stop),
		cmocka_unit_test_teardown(test_blocks, calls_stop),
		cmocka_unit_test_teardown(test_deferred_blocks, calls_stop),
		cmocka_unit_test_teardown(test_streams, calls_stop),
		cmocka_unit_test_teardown(test_ranges, calls_stop),
		cmocka_unit_test_teardown(test_imports_ahead, calls_stop),
		cmocka_unit_test_teardown(test_imports_of_domains, calls_stop),
		cmocka_unit_test_teardown(test_objects_in_ranges, calls_stop),
		cmocka_unit_test_teardown(test_sliced_ranges, calls_stop),
		cmocka_unit_test_teardown(test_malloc_async, calls_stop),
		cmocka_unit_test_teardown(test_objects, calls_stop),
		cmocka_unit_test_teardown(test_loans, calls_stop),
		cmocka_unit_test_teardown(test_roles, calls_stop),
	};

	return calls_result(cmocka_run_group_tests(tests, NULL, NULL));
}
