/*
 * test_driver_calls_worst.c - the calls of the driver that blocks, streams, ranges, the stream-ordered allocator and
 * objects make in the worst case; see calls.h.
 *
 * Goal: as test_driver_calls.c. Method: each test produces one kind of situation with several values of n: scattered
 * pages that the process has not imported, frees that can be completed, handles that another trust domain needs, events
 * of another process, and driver calls that fail.
 *
 * Requirements: D5.
 */
#include "client/vm/background.h"
#include "client/vm/vpmm.h"
#include "tests/driver/calls.h"
#include "tests/integration/spill_view.h"
#include "tests/lib/temporary.h"

#include <pthread.h>
#include <sys/socket.h>

static const struct gpool_fence none;

/* ---- scattered pages ---- */

static struct gpool *other;
static struct gpool_block others[PAGES]; /* [page] */

/* Let another session hold all pages of the pool, except n that are not adjacent and that `worker` has not imported. */
static void scatter(uint32_t n)
{
	struct gpool_block block;

	other = open_worker();
	memset(others, 0, sizeof(others));
	while (!gpool_alloc(other, 1, NULL, &block))
		others[block.page] = block;
	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(gpool_free(other, &others[PAGES - 1 - 2 * i]), 0);
}

static int worst_stop(void **state)
{
	if (other)
		gpool_close(other);
	other = NULL;
	return kv_stop(state);
}

static void worker_close(void)
{
	gpool_close(worker);
	worker = NULL;
}

static void test_scattered_pages(void **state)
{
	struct gpool_block block;

	(void)state;
	start(steady);
	for (uint32_t n = 2; n <= 5; n++) {
		worker = open_worker();
		scatter(n);
		CALLS_N(n, gpool_alloc(worker, n, NULL, &block),
			"n scattered pages that the process has not imported yet",
			"cuMemAddressReserve, cuMemImportFromShareableHandle n, cuMemMap n, cuMemSetAccess, "
			"2n + 2 frames");
		assert_true(block.tag & BLOCK_SCATTERED);
		worker_close();
		gpool_close(other);
		other = NULL;
	}
}

static void test_restored_blocks(void **state)
{
	static const char *const spilling[] = {"--pool", POOL ",spill_memory=32MiB", CALM, "--set", "lease.idle=1h",
		"--set", "lease.keep_pages=64", NULL};
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_block block;

	(void)state;
	start(spilling);
	options.flags = GPOOL_ALLOC_SPILL;
	for (uint32_t n = 2; n <= 5; n++) {
		worker = open_worker();
		assert_int_equal(gpool_alloc(worker, n, &options, &block), 0);
		assert_int_equal(gpool_unpin(worker, &block), 0);
		assert_int_equal(spill_now(worker, &block), 0);
		scatter(n);
		CALLS_N(n, gpool_pin(worker, &block),
			"a spilled block is restored to n scattered pages that the process has not imported yet",
			"cuMemAddressReserve, cuMemImportFromShareableHandle n, cuMemMap n, cuMemSetAccess, "
			"2n + 2 frames");
		worker_close();
		gpool_close(other);
		other = NULL;
	}
}

/* ---- frees that are completed ---- */

static uint32_t hold_stream;

/* Allocate all pages, and free every second one, so that each block of several pages is scattered. */
static void fragment(struct gpool_block single[PAGES])
{
	for (int i = 0; i < PAGES; i++)
		single[i] = alloc(worker, 1);
	for (int i = 0; i < PAGES; i += 2)
		assert_int_equal(gpool_free(worker, &single[i]), 0);
}

/* Defer the frees of n scattered blocks until the fence `gate`. */
static void frees_defer(uint32_t n)
{
	struct gpool_block block;

	assert_int_equal(gpool_fence_record(worker, gate_stream, &gate), 0);
	for (uint32_t i = 0; i < n; i++) {
		block = alloc(worker, 2);
		assert_true(block.tag & BLOCK_SCATTERED);
		assert_int_equal(gpool_free_after(worker, &block, gate), 0);
	}
}

/*
 * The same with a signaled fence. The frees stay deferred: signaling a fence completes none while another fence that
 * the program must signal is open.
 */
static void frees_due(uint32_t n)
{
	struct gpool_fence hold;

	frees_defer(n);
	assert_int_equal(gpool_fence_record(worker, hold_stream, &hold), 0);
	assert_int_equal(gpool_fence_signal(worker, gate), 0);
	assert_int_equal(atomic_load(&worker->deferred_count), n);
}

static void test_frees(void **state)
{
	struct gpool_block single[PAGES], block;
	struct gpool_span span;

	(void)state;
	worker_open(steady);
	assert_int_equal(gpool_stream_open(worker, NULL, GPOOL_STREAM_HOST_SIGNALED, &gate_stream), 0);
	assert_int_equal(gpool_stream_open(worker, NULL, GPOOL_STREAM_HOST_SIGNALED, &hold_stream), 0);
	assert_int_equal(gpool_span_alloc(worker, 300, 0, &span), 0);
	assert_int_equal(gpool_span_free(worker, &span), 0);
	fragment(single);
	for (uint32_t n = 1; n <= 3; n++) {
		block = alloc(worker, 1);
		frees_due(n);
		CALLS_N(n, gpool_free(worker, &block),
			"n frees whose fences are signaled, of scattered blocks, are completed",
			"cuMemAddressFree n, cuMemUnmap n, 2n frames");
		assert_int_equal(gpool_span_alloc(worker, 300, 0, &span), 0);
		frees_due(n);
		CALLS_N(n, gpool_span_free(worker, &span),
			"n frees whose fences are signaled, of scattered blocks, are completed",
			"cuMemAddressFree n, cuMemUnmap n, 2n frames");
		/* Without unsignaled fences of the program, this completes the frees. */
		gpool_stream_close(worker, hold_stream);
		frees_defer(n);
		CALLS_N(n, gpool_fence_signal(worker, gate), "n frees of scattered blocks are completed",
			"cuMemAddressFree n, cuMemUnmap n, 2n frames");
		assert_int_equal(gpool_stream_open(worker, NULL, GPOOL_STREAM_HOST_SIGNALED, &hold_stream), 0);
	}
	/* A freed block ends with its last pin. */
	block = alloc(worker, 3);
	assert_int_equal(gpool_pin(worker, &block), 0);
	assert_int_equal(gpool_free(worker, &block), 0);
	CALLS(gpool_unpin(worker, &block), "the last pin of a freed block of scattered pages",
		"cuMemAddressFree, cuMemUnmap, 2 frames");
	block = alloc(worker, 3);
	assert_int_equal(gpool_pin(worker, &block), 0);
	assert_int_equal(gpool_free(worker, &block), 0);
	CALLS(gpool_unpin_after(worker, &block, none), "the last pin of a freed block of scattered pages",
		"cuMemAddressFree, cuMemUnmap, 2 frames");
}

static void test_aborted_objects(void **state)
{
	struct gpool_block single[PAGES];
	struct gpool_object *object;
	uint32_t index;

	(void)state;
	worker_open(steady);
	fragment(single);
	for (uint32_t n = 1; n <= 3; n++) {
		assert_int_equal(gpool_object_create(worker, "o", NULL, &object), 0);
		for (uint32_t i = 0; i < n; i++)
			assert_int_equal(gpool_object_alloc(object, 2, NULL, &index), 0);
		CALLS_N_VOID(n, gpool_object_abort(object), "n allocations of scattered pages",
			"cuMemAddressFree n, cuMemUnmap n, 2n frames");
	}
}

/* ---- handles that another trust domain needs ---- */

static struct waiter {
	pthread_t thread;
	struct gpool *pool;
	uint32_t pages;
	struct gpool_block block;
	int error;
} blue;

static void *waiter_run(void *argument)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	struct waiter *waiter = argument;

	options.timeout_ms = ANSWER_MS;
	waiter->error = gpool_alloc(waiter->pool, waiter->pages, &options, &waiter->block);
	return NULL;
}

/* Let a session of another trust domain wait for the handles of a block that this session frees. */
static void handles_needed(const struct gpool_block *block)
{
	assert_int_equal(gpool_free(worker, block), 0);
	blue.pages = block->page_count;
	assert_int_equal(pthread_create(&blue.thread, NULL, waiter_run, &blue), 0);
	AWAIT(atomic_load(&pool_view(admin)->header->state_pages[PAGE_QUARANTINED]) == block->page_count &&
		pool_release_due(worker) && atomic_load(&worker->header->waiters));
}

static void handles_given(void)
{
	assert_int_equal(pthread_join(blue.thread, NULL), 0);
	assert_int_equal(blue.error, 0);
}

static char config_path[64];

static int domains_stop(void **state)
{
	int result;

	gpool_close(blue.pool);
	result = kv_stop(state);
	unlink(config_path);
	return result;
}

static void domains_start(void)
{
	const char *arguments[] = {"--config", config_path, NULL};

	snprintf(config_path, sizeof(config_path), "%s/gpool-calls-%d.conf", temporary_folder(), (int)getpid());
	harness_config_write(config_path,
		"pools = ( { name = \"p0\"; backend = \"host\"; size = \"32MiB\"; page_size = \"512KB\"; "
		"reserved = \"0 pages\"; } );\n"
		"eviction: { start = 100; stop = 99; };\nlease: { initial_pages = 0; batch_pages = 1; };\n"
		"tenants = ( { name = \"red\"; users = [ \"1\" ]; domain = \"red\"; },\n"
		"            { name = \"blue\"; users = [ \"2\" ]; domain = \"blue\"; } );\n");
	start(arguments);
	worker = open_as(0, NULL, "red");
	blue.pool = open_as(0, NULL, "blue");
	assert_int_equal(gpool_stream_open(worker, NULL, 0, &stream), 0);
}

/* Each call is made while another domain needs the n handles of one of these blocks. */
enum { DOMAIN_CALLS = 7, DOMAIN_MOST = 2 };

static void test_domains(void **state)
{
	struct gpool_object_options pinnable = GPOOL_OBJECT_OPTIONS_INIT;
	struct gpool_alloc_options contiguous = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_block blocks[DOMAIN_MOST + 1][DOMAIN_CALLS], block, rest;
	struct gpool_sliced_range *sliced;
	struct gpool_object *object;
	struct gpool_range *range;
	struct gpool_fence fence;
	uint64_t version;
	uint32_t index;

	(void)state;
	domains_start();
	assert_int_equal(gpool_fence_record(worker, stream, &fence), 0);
	assert_int_equal(gpool_fence_wait(worker, fence, ANSWER_MS), 0);
	assert_int_equal(gpool_range_reserve(worker, 64, NULL, &range), 0);
	assert_int_equal(gpool_range_commit(range, 0, 2 * DOMAIN_MOST, -1), 0);
	assert_int_equal(gpool_sliced_range_create(worker, 1, 4, 1, NULL, &sliced), 0);
	assert_int_equal(gpool_sliced_range_grow(sliced, DOMAIN_MOST, -1), 0);
	pinnable.memory_class = GPOOL_OBJECT_PINNABLE;
	assert_int_equal(gpool_object_create(worker, "o", &pinnable, &object), 0);
	assert_int_equal(gpool_object_alloc(object, 1, NULL, &index), 0);
	assert_int_equal(gpool_object_publish(object, &version), 0);
	assert_int_equal(gpool_object_pin(object), 0); /* otherwise it would be evicted */
	contiguous.flags = GPOOL_ALLOC_CONTIGUOUS;
	for (uint32_t n = 1; n <= DOMAIN_MOST; n++)
		for (int i = 0; i < DOMAIN_CALLS; i++)
			assert_int_equal(gpool_alloc(worker, n, &contiguous, &blocks[n][i]), 0);
	block = alloc(worker, 1);
	while (!gpool_alloc(worker, 1, NULL, &rest))
		;
	for (uint32_t n = 1; n <= DOMAIN_MOST; n++) {
		const struct gpool_block *next = blocks[n];

		handles_needed(next++);
		CALLS_N(n, gpool_release_unused(worker), "another trust domain needs n handles",
			"cuMemRelease n, cuMemUnmap n, 2n frames");
		handles_given();
		assert_int_equal(gpool_pin(worker, &block), 0);
		handles_needed(next++);
		CALLS_N(n, gpool_unpin(worker, &block), "another trust domain needs n handles",
			"cuMemRelease n, cuMemUnmap n, 2n frames");
		handles_given();
		assert_int_equal(gpool_pin(worker, &block), 0);
		handles_needed(next++);
		CALLS_N(n, gpool_unpin_after(worker, &block, none), "another trust domain needs n handles",
			"cuMemRelease n, cuMemUnmap n, 2n frames");
		handles_given();
		handles_needed(next++);
		CALLS_N(n, gpool_range_decommit(range, n - 1, 1, fence), "another trust domain needs n handles",
			"cuMemRelease n, cuMemUnmap n, 2n frames");
		handles_given();
		handles_needed(next++);
		CALLS_N(n, gpool_range_offer(range, DOMAIN_MOST + n - 1, 1, none),
			"another trust domain needs n handles", "cuMemRelease n, cuMemUnmap n, 2n frames");
		handles_given();
		handles_needed(next++);
		CALLS_N(n, gpool_sliced_range_shrink(sliced, DOMAIN_MOST - n, fence),
			"another trust domain needs n handles", "cuMemRelease n, cuMemUnmap n, 2n frames");
		handles_given();
		assert_int_equal(gpool_object_pin(object), 0);
		handles_needed(next++);
		CALLS_N(n, gpool_object_unpin_after(object, none), "another trust domain needs n handles",
			"cuMemRelease n, cuMemUnmap n, 2n frames");
		handles_given();
	}
	assert_int_equal(gpool_object_unpin(object), 0);
	assert_int_equal(gpool_object_close(object), 0);
}

/* ---- events of another process ---- */

enum { EVENTS = 257 }; /* one more than a process keeps open */

/*
 * argv: program, "exporter", directory, channel. Export events of unsignaled fences, signal the last one on receipt of
 * a byte, and end when the channel is closed.
 */
static int exporter_main(char **arguments)
{
	struct gpool_options options = GPOOL_OPTIONS_INIT;
	static struct gpool_fence_handle handles[EVENTS];
	int channel = atoi(arguments[3]);
	struct gpool_fence unsignaled, fence;
	uint32_t host, work;
	char byte;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	options.directory = arguments[2];
	options.timeout_ms = ANSWER_MS;
	for (int i = 0; i < EVENTS; i++) {
		/* A session has 256 events. */
		if (i % 256 == 0 &&
			(gpool_open(&options, &worker) ||
				gpool_stream_open(worker, NULL, GPOOL_STREAM_HOST_SIGNALED, &host) ||
				gpool_stream_open(worker, NULL, 0, &work) ||
				gpool_fence_record(worker, host, &unsignaled) ||
				gpool_stream_wait(worker, work, unsignaled)))
			return 1;
		if (gpool_fence_record(worker, work, &fence) ||
			gpool_fence_export(worker, fence, GPOOL_FENCE_EXPORT_EVENT, &handles[i]))
			return 1;
	}
	if (write(channel, handles, sizeof(handles)) != sizeof(handles))
		return 1;
	return read(channel, &byte, 1) != 1 || gpool_fence_signal(worker, unsignaled) || read(channel, &byte, 1) != 0;
}

static void handles_read(int channel, struct gpool_fence_handle handles[EVENTS])
{
	for (size_t got = 0; got < EVENTS * sizeof(*handles);) {
		ssize_t part = read(channel, (char *)handles + got, EVENTS * sizeof(*handles) - got);

		assert_true(part > 0);
		got += (size_t)part;
	}
}

static void test_events(void **state)
{
	static struct gpool_fence_handle handles[EVENTS];
	struct gpool_fence fence;
	char channel[16];
	int ends[2];
	pid_t pid;

	(void)state;
	worker_open(steady);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
	fflush(stdout);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		snprintf(channel, sizeof(channel), "%d", ends[1]);
		fcntl(ends[1], F_SETFD, 0);
		execl("/proc/self/exe", "exporter", "exporter", harness.directory, channel, NULL);
		_exit(127);
	}
	close(ends[1]);
	handles_read(ends[0], handles);
	CALLS(gpool_fence_import(worker, &handles[0], &fence), "an event of another process",
		"cuEventQuery, cuIpcOpenEventHandle, 2 frames");
	CALLS(gpool_fence_done(worker, fence), "an event of another process is not signaled",
		"cuEventQuery 2, 2 frames");
	assert_int_equal(gpool_fence_close(worker, fence), 0);
	for (int i = 1; i < EVENTS - 1; i++) {
		assert_int_equal(gpool_fence_import(worker, &handles[i], &fence), 0);
		assert_int_equal(gpool_fence_close(worker, fence), 0);
	}
	CALLS(gpool_fence_import(worker, &handles[EVENTS - 1], &fence),
		"an event of another process, and 256 events are open",
		"cuEventDestroy, cuEventQuery, cuIpcOpenEventHandle, 3 frames");
	CALLS(gpool_stream_wait(worker, stream, fence), "an event of another process is not signaled",
		"cuEventQuery, cuStreamIsCapturing, cuStreamWaitEvent, 2 frames");
	assert_int_equal(write(ends[0], "", 1), 1);
	settle();
	assert_int_equal(gpool_fence_import(worker, &handles[EVENTS - 2], &fence), 0);
	close(ends[0]);
	assert_int_equal(status_of(pid), 0);
	AWAIT(gpool_fence_done(worker, fence) == -ESRCH);
	/* The end of the process may have been reported before the event was queried. */
	CALLS_MOST(gpool_fence_close(worker, fence), "an event of a process that has ended", "cuEventDestroy, 1 frame");
}

/* ---- calls that fail ---- */

static void test_failures(void **state)
{
	struct {
		struct gpool_loan loan;
		uint8_t tensor[64];
	} lent;
	struct gpool_sliced_range *sliced;
	struct gpool_block block;
	uint64_t address;
	uint32_t more;

	(void)state;
	worker_open(steady);
	block = alloc(worker, 2);
	assert_int_equal(gpool_address(worker, &block, &address), 0);
	call_fails("cuMemcpyAsync");
	CALLS_ERROR(gpool_copy(worker, stream, address, address + PAGE_BYTES, 4096), -EIO, "the call fails",
		"cuMemcpyAsync, cuStreamIsCapturing, cuStreamQuery, 2 frames");
	call_fails("cuMemsetD32Async");
	CALLS_ERROR(gpool_fill(worker, stream, address, 7, 4096), -EIO, "the call fails",
		"cuMemsetD32Async, cuStreamIsCapturing, cuStreamQuery, 2 frames");
	call_fails("cuMemAddressReserve");
	CALLS_ERROR(gpool_sliced_range_create(worker, 4, 16, 1, NULL, &sliced), -ENOMEM, "addresses are not available",
		"cuMemAddressReserve, 1 frame");
	for (uint32_t n = 1; n <= 3; n++) {
		lent.loan = (struct gpool_loan){.size = sizeof(lent.loan), .pool = worker, .stream = stream};
		lent.loan.block = alloc(worker, 1);
		call_fails("cuStreamWriteValue64");
		CALLS_N_VOID(n, gpool_loan_end(lent.tensor), "the fence cannot be recorded, and n streams are open",
			"cuStreamIsCapturing n + 2, cuStreamQuery, cuStreamSynchronize n, cuStreamWriteValue64, "
			"n + 2 frames");
		assert_int_equal(gpool_stream_open(worker, NULL, 0, &more), 0);
	}
}

/* ---- ranges ---- */

static void test_range_objects(void **state)
{
	struct gpool_object *object, *refused;
	struct gpool_range *range;

	(void)state;
	worker_open(steady);
	assert_int_equal(gpool_range_reserve(worker, 64, NULL, &range), 0);
	assert_int_equal(gpool_range_commit(range, 0, 64, -1), 0);
	assert_int_equal(gpool_range_publish(range, 0, 1, "pages", NULL, &object), 0);
	for (uint32_t n = 1; n <= 3; n++)
		CALLS_N_ERROR(n, gpool_range_publish(range, 10 * n, n, "pages", NULL, &refused), -ESTALE,
			"n pages, and the name exists", "cuMemMap n, cuMemSetAccess 3, 4 frames");
	assert_int_equal(gpool_range_unmap(range, object), 0);
	assert_int_equal(gpool_range_destroy(range), 0);
}

static void test_evicted_pages(void **state)
{
	struct gpool_range *range;
	uint8_t kept[2];

	(void)state;
	worker_open(steady);
	assert_int_equal(gpool_range_reserve(worker, 64, NULL, &range), 0);
	assert_int_equal(gpool_range_commit(range, 0, 2, -1), 0);
	assert_int_equal(gpool_range_offer(range, 0, 2, none), 0);
	scatter(0);
	NEVER(gpool_range_reclaim(range, 0, 2, kept));
	assert_int_equal(kept[0] + kept[1], 0);
	assert_int_equal(gpool_range_destroy(range), 0);
}

/* ---- the stream-ordered allocator ---- */

/* Every second page is free, so a larger allocation maps them at another place. */
static void test_remaps(void **state)
{
	struct gpool_vm_options options = GPOOL_VM_OPTIONS_INIT;
	uint64_t pages[PAGES], moved, small;

	(void)state;
	worker_open(steady);
	options.idle_ms = -1;
	options.slack_percent = -1;
	options.address_bytes = 1000 * PAGE_BYTES;
	assert_int_equal(gpool_vm_configure(worker, &options), 0);
	for (int i = 0; i < PAGES; i++)
		assert_int_equal(gpool_malloc_async(worker, PAGE_BYTES, stream, &pages[i]), 0);
	background_stop(worker);
	for (uint32_t n = 2, next = 0; n <= 5; n++) {
		for (uint32_t i = 0; i < n; i++, next += 2)
			assert_int_equal(gpool_free_async(worker, pages[next], stream), 0);
		settle();
		CALLS_N(n, gpool_malloc_async(worker, n * PAGE_BYTES, stream, &moved),
			"n free pages that are not adjacent are mapped elsewhere",
			"cuMemMap n, cuMemSetAccess, cuStreamIsCapturing 2, cuStreamWriteValue64, n + 2 frames");
		settle();
		/* The former places of the pages are unmapped by the next call. */
		assert_int_equal(gpool_free_async(worker, moved, stream), 0);
		settle();
		CALLS_N(n, gpool_malloc_async(worker, n * PAGE_BYTES, stream, &small),
			"n places are no longer used, because their pages were mapped elsewhere",
			"cuMemUnmap n, n frames");
	}
}

int main(int count, char **arguments)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_scattered_pages, worst_stop),
		cmocka_unit_test_teardown(test_restored_blocks, worst_stop),
		cmocka_unit_test_teardown(test_frees, worst_stop),
		cmocka_unit_test_teardown(test_aborted_objects, worst_stop),
		cmocka_unit_test_teardown(test_domains, domains_stop),
		cmocka_unit_test_teardown(test_events, worst_stop),
		cmocka_unit_test_teardown(test_failures, worst_stop),
		cmocka_unit_test_teardown(test_range_objects, worst_stop),
		cmocka_unit_test_teardown(test_evicted_pages, worst_stop),
		cmocka_unit_test_teardown(test_remaps, worst_stop),
	};

	if (count > 1 && !strcmp(arguments[1], "exporter"))
		return exporter_main(arguments);
	return calls_result(cmocka_run_group_tests(tests, NULL, NULL));
}
