/*
 * pool_on_gpu.c - test all of gpool on a real GPU: gpoold owns the memory, and workers share it.
 *
 * Goal: the behavior that the integration tests show on `host` is the same on `cuda`. Pages created by a process
 * without a context are mapped by others, block by block and scattered. The GPU reads back the contents that it wrote.
 * Fences are signaled when the GPU is done. The pages of a killed worker are freed. When gpoold ends, no memory remains
 * allocated on the device. Method: a real gpoold, this process as one worker and a child (this program, executed again)
 * as another. Data is written by fills and read by copies to registered host memory, so the CPU accesses no page.
 * `pool_on_gpu --backend host` runs the same on the host back end, to test the test.
 *
 * Exit status: 0: passed; 1: failed; 77: no GPU (the reason is printed).
 *
 * Requirements: C1.
 */
#include "client/core/pool.h"
#include "cuda/gpu.h"
#include "tests/lib/harness.h"

#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { PAGES = 64, PAGE_BYTES = 2 << 20, WAIT_MS = 600000 };

static const char *backend = "cuda";
static const char *program;
static const char *pool_options = "";
static struct harness harness;
static struct gpool *pool;
static uint32_t stream;
static uint32_t *mirror; /* one page of the pool, in registered host memory */

static int attach(void **state)
{
	char text[160];
	const char *const arguments[] = {"--pool", text, NULL};

	(void)state;
	snprintf(text, sizeof(text), "name=p0,backend=%s,size=%d pages,page_size=2MB,reserved=0%s", backend, PAGES,
		pool_options);
	harness_start(&harness, arguments);
	pool = harness_open(&harness);
	assert_int_equal(gpool_stream_open(pool, NULL, 0, &stream), 0);
	mirror = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(mirror != MAP_FAILED);
	assert_int_equal(gpu_host_register(pool->gpu, mirror, PAGE_BYTES), 0);
	return 0;
}

/* Return true if device 1 can access the memory of device 0. */
static bool has_peer(void)
{
	const int peer = 1;
	struct gpu *gpu;
	bool can;

	assert_int_equal(gpu_open(gpu_backend(backend), 0, GPU_OPEN_OWNER, &gpu), 0);
	can = gpu_peers_set(gpu, &peer, 1) == 0;
	gpu_close(gpu);
	return can;
}

static int attach_with_peer(void **state)
{
	pool_options = has_peer() ? ",peers=1" : "";
	return attach(state);
}

static int detach(void **state)
{
	(void)state;
	gpu_host_unregister(pool->gpu, mirror);
	munmap(mirror, PAGE_BYTES);
	gpool_close(pool);
	pool_options = "";
	return harness_stop(&harness);
}

static struct gpool_block alloc(uint32_t pages)
{
	struct gpool_block block;
	int error = gpool_alloc(pool, pages, NULL, &block);

	if (error)
		fail_msg("gpool_alloc(%u): %s; %s", pages, gpool_strerror(error), gpu_error_text());
	return block;
}

static uint64_t address_of(const struct gpool_block *block)
{
	uint64_t address = 0;

	assert_int_equal(gpool_address(pool, block, &address), 0);
	return address;
}

static uint64_t range_address(const struct gpool_range *range)
{
	uint64_t address = 0;

	assert_int_equal(gpool_range_address(range, &address), 0);
	return address;
}

static void finish(void)
{
	struct gpool_fence fence;

	assert_int_equal(gpool_fence_record(pool, stream, &fence), 0);
	assert_int_equal(gpool_fence_wait(pool, fence, WAIT_MS), 0);
}

/* Fill each page with a different value. */
static void fill_at(uint64_t address, uint32_t pages, uint32_t seed)
{
	for (uint32_t i = 0; i < pages; i++)
		assert_int_equal(gpool_fill(pool, stream, address + (uint64_t)i * PAGE_BYTES, seed + i, PAGE_BYTES), 0);
}

static void verify_at(uint64_t address, uint32_t pages, uint32_t seed)
{
	for (uint32_t i = 0; i < pages; i++) {
		memset(mirror, 0xff, PAGE_BYTES);
		assert_int_equal(gpool_copy(pool, stream, (uint64_t)(uintptr_t)mirror,
					 address + (uint64_t)i * PAGE_BYTES, PAGE_BYTES),
			0);
		finish();
		for (uint32_t word = 0; word < PAGE_BYTES / sizeof(*mirror); word++)
			if (mirror[word] != seed + i)
				fail_msg("page %u, word %u: %u instead of %u", i, word, mirror[word], seed + i);
	}
}

static void fill(const struct gpool_block *block, uint32_t seed)
{
	fill_at(address_of(block), block->page_count, seed);
}

static void verify(const struct gpool_block *block, uint32_t seed)
{
	verify_at(address_of(block), block->page_count, seed);
}

static void test_contents_stay(void **state)
{
	struct gpool_block one = alloc(1), many = alloc(20);

	(void)state;
	fill(&one, 100);
	fill(&many, 200);
	finish();
	verify(&one, 100);
	verify(&many, 200);
	assert_int_equal(gpool_free(pool, &one), 0);
	assert_int_equal(gpool_free(pool, &many), 0);
}

static void test_a_scattered_block_is_contiguous(void **state)
{
	struct gpool_block pages[PAGES], scattered;
	struct gpool_stats statistics = {.size = sizeof(statistics)};

	(void)state;
	for (int i = 0; i < PAGES; i++)
		pages[i] = alloc(1);
	for (int i = 0; i < PAGES; i += 2)
		assert_int_equal(gpool_free(pool, &pages[i]), 0);
	scattered = alloc(PAGES / 2);
	assert_int_equal(gpool_stats(pool, &statistics), 0);
	assert_int_equal(statistics.scattered, 1);
	for (int i = 1; i < PAGES; i += 2)
		fill(&pages[i], 1000 + (uint32_t)i);
	fill(&scattered, 5000);
	finish();
	verify(&scattered, 5000);
	for (int i = 1; i < PAGES; i += 2)
		verify(&pages[i], 1000 + (uint32_t)i);
	assert_int_equal(gpool_free(pool, &scattered), 0);
	for (int i = 1; i < PAGES; i += 2)
		assert_int_equal(gpool_free(pool, &pages[i]), 0);
}

static void test_a_fence_holds_a_block(void **state)
{
	struct gpool_block block = alloc(8);
	struct gpool_fence fence;
	uint32_t gate;
	struct gpool_fence hold;

	(void)state;
	assert_int_equal(gpool_stream_open(pool, NULL, GPOOL_STREAM_HOST_SIGNALED, &gate), 0);
	assert_int_equal(gpool_fence_record(pool, gate, &hold), 0);
	assert_int_equal(gpool_stream_wait(pool, stream, hold), 0);
	fill(&block, 1);
	assert_int_equal(gpool_fence_record(pool, stream, &fence), 0);
	assert_int_equal(gpool_unpin_after(pool, &block, fence), 0);
	assert_int_equal(gpool_fence_done(pool, fence), 0);
	assert_int_equal(harness_evict(&harness, gpool_session(pool), 8), 0); /* the GPU is still using it */
	assert_int_equal(gpool_fence_signal(pool, hold), 0);
	assert_int_equal(gpool_fence_wait(pool, fence, WAIT_MS), 0);
	assert_int_equal(harness_evict(&harness, gpool_session(pool), 8), 8);
	assert_int_equal(gpool_pin(pool, &block), -ESTALE);
	gpool_stream_close(pool, gate);
}

/*
 * Work of two streams is ordered by a fence, also on a device that executes work in any order that the driver permits.
 * In a wrong order, one stream would wait forever, and so would the call that closes it; the program then ends.
 */
static void test_streams_wait_for_each_other(void **state)
{
	struct gpool_block block = alloc(1);
	struct gpool_fence hold, filled, copied;
	uint32_t other, gate;

	(void)state;
	assert_int_equal(gpool_stream_open(pool, NULL, 0, &other), 0);
	assert_int_equal(gpool_stream_open(pool, NULL, GPOOL_STREAM_HOST_SIGNALED, &gate), 0);
	assert_int_equal(gpool_fence_record(pool, gate, &hold), 0);
	assert_int_equal(gpool_stream_wait(pool, stream, hold), 0);
	fill(&block, 5);
	assert_int_equal(gpool_fence_record(pool, stream, &filled), 0);
	assert_int_equal(gpool_stream_wait(pool, other, filled), 0);
	assert_int_equal(gpool_copy(pool, other, (uint64_t)(uintptr_t)mirror, address_of(&block), sizeof(*mirror)), 0);
	assert_int_equal(gpool_fence_record(pool, other, &copied), 0);
	*mirror = 0;
	assert_int_equal(gpool_fence_signal(pool, hold), 0);
	if (gpool_fence_wait(pool, copied, WAIT_MS)) {
		fprintf(stderr, "a stream waits without an end for a fence of another stream\n");
		_exit(1);
	}
	assert_int_equal(*mirror, 5);
	gpool_stream_close(pool, gate);
	gpool_stream_close(pool, other);
	assert_int_equal(gpool_free(pool, &block), 0);
}

/* The other worker: allocate as much as possible, fill it, report that, and wait to be killed. */
static int other_worker(const char *directory)
{
	struct gpool_options options = GPOOL_OPTIONS_INIT;
	struct gpool_block block;
	uint64_t address;
	uint32_t work;
	struct gpool *mine;

	options.directory = directory;
	options.timeout_ms = WAIT_MS;
	if (gpool_open(&options, &mine) || gpool_alloc(mine, PAGES / 2, NULL, &block) ||
		gpool_address(mine, &block, &address) || gpool_stream_open(mine, NULL, 0, &work))
		return 1;
	for (;;) {
		if (gpool_fill(mine, work, address, 0xdead, (uint64_t)PAGES / 2 * PAGE_BYTES))
			return 1;
		if (write(STDOUT_FILENO, ".", 1) != 1)
			return 1;
	}
}

static void test_pages_of_a_killed_worker_are_freed(void **state)
{
	int ends[2], status;
	char byte;
	pid_t child;
	struct gpool_block all;

	(void)state;
	assert_int_equal(pipe(ends), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		dup2(ends[1], STDOUT_FILENO);
		execl(program, program, "--worker", harness.directory, (char *)NULL);
		_exit(127);
	}
	close(ends[1]);
	assert_int_equal(read(ends[0], &byte, 1), 1); /* its GPU work has begun */
	assert_int_equal(kill(child, SIGKILL), 0);
	assert_int_equal(waitpid(child, &status, 0), child);
	close(ends[0]);
	{
		struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
		int error;

		options.timeout_ms = WAIT_MS;
		error = gpool_alloc(pool, PAGES, &options, &all);
		if (error)
			fail_msg("all pages after the death: %s", gpool_strerror(error));
	}
	fill(&all, 7);
	finish();
	verify(&all, 7);
	assert_int_equal(gpool_free(pool, &all), 0);
	assert_int_equal(harness_check(&harness), 0);
}

/*
 * A worker with a freed scattered block whose fence is signaled, while other work waits for a host-signaled fence. The
 * end of the free unmaps the block, so none of these calls may make it. SIGALRM ends a worker that hangs.
 */
static int holding_worker(const char *directory)
{
	struct gpool_options options = GPOOL_OPTIONS_INIT;
	struct gpool_block pages[PAGES], scattered;
	struct gpool_fence first, second, done;
	uint32_t work, held, gate;
	uint64_t unmaps;
	struct gpool *mine;

	alarm(WAIT_MS / 1000);
	options.directory = directory;
	options.timeout_ms = WAIT_MS;
	if (gpool_open(&options, &mine) || gpool_stream_open(mine, NULL, 0, &work) ||
		gpool_stream_open(mine, NULL, 0, &held) ||
		gpool_stream_open(mine, NULL, GPOOL_STREAM_HOST_SIGNALED, &gate))
		return 1;
	for (int i = 0; i < PAGES; i++)
		if (gpool_alloc(mine, 1, NULL, &pages[i]))
			return 2;
	for (int i = 0; i < PAGES; i += 2)
		if (gpool_free(mine, &pages[i]))
			return 3;
	if (gpool_alloc(mine, PAGES / 2, NULL, &scattered) || gpool_fence_record(mine, gate, &first) ||
		gpool_fence_record(mine, gate, &second) || gpool_stream_wait(mine, work, first) ||
		gpool_stream_wait(mine, held, second) || gpool_fence_record(mine, work, &done) ||
		gpool_free_after(mine, &scattered, done))
		return 4;
	unmaps = gpu_calls(mine->gpu, GPU_CALL_UNMAP);
	if (gpool_fence_signal(mine, first) || gpool_fence_wait(mine, done, -1) || gpool_fence_done(mine, done) != 1 ||
		gpool_fence_done(mine, second) || gpu_calls(mine->gpu, GPU_CALL_UNMAP) != unmaps)
		return 5;
	/* The last signal completes the free, or a later call if another thread of the library holds its lock. */
	if (gpool_fence_signal(mine, second))
		return 6;
	while (gpu_calls(mine->gpu, GPU_CALL_UNMAP) == unmaps)
		if (gpool_fence_done(mine, second) != 1)
			return 6;
	if (gpu_calls(mine->gpu, GPU_CALL_UNMAP) != unmaps + 1)
		return 6;
	gpool_close(mine);
	return 0;
}

static void test_a_signaling_thread_does_not_unmap(void **state)
{
	int status;
	pid_t child = fork();

	(void)state;
	assert_true(child >= 0);
	if (child == 0) {
		execl(program, program, "--holding", harness.directory, (char *)NULL);
		_exit(127);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	if (status)
		fail_msg("the worker ended with status 0x%x (0xe: it hung)", (unsigned)status);
}

/* A range larger than the pool: pages change under fixed addresses, but only when the GPU is done with them. */
static void test_an_elastic_range(void **state)
{
	struct gpool_range *range;
	struct gpool_fence fence;
	struct gpool_block block;
	uint64_t at, calls;

	(void)state;
	assert_int_equal(gpool_range_reserve(pool, 4 * PAGES, NULL, &range), 0);
	at = range_address(range);
	assert_int_equal(gpool_range_commit(range, 0, 8, 0), 0);
	assert_int_equal(gpool_range_commit(range, 3 * PAGES, 8, 0), 0);
	fill_at(at, 8, 10);
	fill_at(at + 3 * PAGES * (uint64_t)PAGE_BYTES, 8, 50);
	assert_int_equal(gpool_fence_record(pool, stream, &fence), 0);
	assert_int_equal(gpool_range_decommit(range, 0, 8, fence), 0);
	calls = gpu_calls_total(pool->gpu);
	assert_int_equal(gpool_range_commit(range, 0, 8, 0), 0);
	assert_int_equal(gpu_calls_total(pool->gpu), calls);
	verify_at(at, 8, 10);
	/*
	 * Pages are decommitted and taken by another session. Committed pages stay; others are mapped at the same
	 * addresses.
	 */
	assert_int_equal(gpool_range_decommit(range, 0, 8, GPOOL_FENCE_NONE), 0);
	block = alloc(PAGES - 8);
	fill(&block, 1000);
	finish();
	verify_at(at + 3 * PAGES * (uint64_t)PAGE_BYTES, 8, 50);
	verify(&block, 1000);
	assert_int_equal(gpool_free(pool, &block), 0);
	assert_int_equal(gpool_range_commit(range, 0, 8, 0), 0);
	fill_at(at, 8, 70);
	verify_at(at, 8, 70);
	assert_int_equal(gpool_range_destroy(range), 0);
	assert_int_equal(harness_check(&harness), 0);
}

/* The slices grow together while GPU work uses the others. */
static void test_an_elastic_tensor(void **state)
{
	struct gpool_sliced_range_options options = GPOOL_SLICED_RANGE_OPTIONS_INIT;
	struct gpool_sliced_range_info info = {.size = sizeof(info)};
	struct gpool_sliced_range *tensor;
	struct gpool_fence fence;

	(void)state;
	options.memory_class = GPOOL_OBJECT_EPHEMERAL;
	options.read_ahead = 2;
	assert_int_equal(gpool_sliced_range_create(pool, 4, 100, 1, &options, &tensor), 0);
	for (uint32_t blocks = 1; blocks <= 8; blocks++) {
		assert_int_equal(gpool_sliced_range_grow(tensor, blocks, WAIT_MS), 0);
		assert_int_equal(gpool_sliced_range_info(tensor, &info), 0);
		for (uint32_t slice = 0; slice < 4; slice++)
			fill_at(info.address + slice * info.slice_bytes + (blocks - 1) * info.block_bytes, 1,
				100 * slice + blocks);
	}
	for (uint32_t slice = 0; slice < 4; slice++)
		verify_at(info.address + slice * info.slice_bytes, 8, 100 * slice + 1);
	assert_int_equal(gpool_fence_record(pool, stream, &fence), 0);
	assert_int_equal(gpool_sliced_range_shrink(tensor, 3, fence), 0);
	for (uint32_t slice = 0; slice < 4; slice++)
		verify_at(info.address + slice * info.slice_bytes, 3, 100 * slice + 1);
	assert_int_equal(gpool_sliced_range_destroy(tensor), 0);
	assert_int_equal(harness_check(&harness), 0);
}

/* Work of another GPU can use the pages of a pool that lists this GPU as a peer. Requirements: C7. */
static void test_a_peer_uses_the_pages(void **state)
{
	struct gpool_block block = alloc(2);
	struct gpu_stream *theirs;
	struct gpu *peer;

	(void)state;
	if (strcmp(backend, "cuda") || !has_peer()) {
		print_message("no second device that can access the memory of the first\n");
		assert_int_equal(gpool_free(pool, &block), 0);
		return;
	}
	assert_int_equal(gpu_open(gpu_backend(backend), 1, 0, &peer), 0);
	assert_int_equal(gpu_stream_create(peer, &theirs), 0);
	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(
			gpu_fill(peer, address_of(&block) + (uint64_t)i * PAGE_BYTES, 60 + i, PAGE_BYTES, theirs), 0);
	assert_int_equal(gpu_stream_sync(peer, theirs), 0);
	verify(&block, 60);
	gpu_stream_destroy(peer, theirs);
	gpu_close(peer);
	assert_int_equal(gpool_free(pool, &block), 0);
}

static void test_nothing_is_left_on_the_device(void **state)
{
	const struct gpu_ops *ops = gpu_backend(backend);
	uint64_t before = 0, after = 0, total;
	struct gpu *gpu;
	int tries;

	(void)state;
	assert_int_equal(gpu_open(ops, 0, 0, &gpu), 0);
	assert_int_equal(gpu_memory_info(gpu, &before, &total), 0);
	attach(NULL);
	{
		struct gpool_block block = alloc(4);

		fill(&block, 3);
		finish();
		assert_int_equal(gpool_free(pool, &block), 0);
	}
	assert_int_equal(detach(NULL), 0);
	for (tries = 0; tries < 200; tries++) {
		assert_int_equal(gpu_memory_info(gpu, &after, &total), 0);
		if (after + PAGES / 2 * (uint64_t)PAGE_BYTES > before || strcmp(backend, "cuda"))
			break;
		poll(NULL, 0, 20);
	}
	if (tries == 200)
		fail_msg("%llu bytes were free before and %llu after", (unsigned long long)before,
			(unsigned long long)after);
	gpu_close(gpu);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_contents_stay, attach, detach),
		cmocka_unit_test_setup_teardown(test_a_scattered_block_is_contiguous, attach, detach),
		cmocka_unit_test_setup_teardown(test_a_fence_holds_a_block, attach, detach),
		cmocka_unit_test_setup_teardown(test_streams_wait_for_each_other, attach, detach),
		cmocka_unit_test_setup_teardown(test_pages_of_a_killed_worker_are_freed, attach, detach),
		cmocka_unit_test_setup_teardown(test_a_signaling_thread_does_not_unmap, attach, detach),
		cmocka_unit_test_setup_teardown(test_an_elastic_range, attach, detach),
		cmocka_unit_test_setup_teardown(test_an_elastic_tensor, attach, detach),
		cmocka_unit_test_setup_teardown(test_a_peer_uses_the_pages, attach_with_peer, detach),
		cmocka_unit_test(test_nothing_is_left_on_the_device),
	};
	const struct gpu_ops *ops;

	program = argv[0];
	if (argc == 3 && !strcmp(argv[1], "--worker"))
		return other_worker(argv[2]);
	if (argc == 3 && !strcmp(argv[1], "--holding"))
		return holding_worker(argv[2]);
	if (argc == 3 && !strcmp(argv[1], "--backend")) {
		backend = argv[2];
	} else if (argc > 1) {
		fprintf(stderr, "usage: pool_on_gpu [--backend cuda|host]\n");
		return 2;
	}
	ops = gpu_backend(backend);
	if (!ops) {
		fprintf(stderr, "pool_on_gpu: no back end '%s'\n", backend);
		return 2;
	}
	if (ops->device_count() < 1) {
		printf("no device of back end '%s': %s\n", backend, gpu_error_text());
		return 77;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
