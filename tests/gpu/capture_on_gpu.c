/*
 * capture_on_gpu.c - test streams from which the program captures a graph.
 *
 * Goal: a call that would put a write of a timeline word, or a wait for one, into the graph returns -EBUSY and leaves
 * the capture valid, so that no launch of the graph moves a word backwards. Memory that is freed or unpinned in the
 * stream during a capture is kept until the capture has ended.
 * Method: a real gpoold. The program captures with the driver's own functions, which it looks up at run time. The
 * back end `host` has no captures.
 *
 * Exit status: 0: passed; 1: failed; 77: no GPU (the reason is printed).
 */
#include "client/core/pool.h"
#include "cuda/gpu.h"
#include "shm/timeline.h"
#include "tests/lib/await.h"
#include "tests/lib/harness.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { PAGES = 64, PAGE_BYTES = 2 << 20, CAPTURE_GLOBAL = 0 };

/* The functions of the driver, without its headers: each returns 0 on success. */
static struct {
	int (*cuDevicePrimaryCtxRetain)(void **context, int device);
	int (*cuCtxSetCurrent)(void *context);
	int (*cuStreamBeginCapture_v2)(void *stream, int mode);
	int (*cuStreamEndCapture)(void *stream, void **graph);
	int (*cuGraphInstantiateWithFlags)(void **exec, void *graph, unsigned long long flags);
	int (*cuGraphLaunch)(void *exec, void *stream);
} driver;

static struct harness harness;
static struct gpool *pool;
static uint32_t stream, other, gate;
static void *native;

static void driver_find(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW), *context;

	assert_non_null(library);
#define FIND(name) \
	*(void **)&driver.name = dlsym(library, #name); \
	assert_non_null(driver.name);
	FIND(cuDevicePrimaryCtxRetain)
	FIND(cuCtxSetCurrent)
	FIND(cuStreamBeginCapture_v2)
	FIND(cuStreamEndCapture)
	FIND(cuGraphInstantiateWithFlags)
	FIND(cuGraphLaunch)
#undef FIND
	assert_int_equal(driver.cuDevicePrimaryCtxRetain(&context, 0), 0);
	assert_int_equal(driver.cuCtxSetCurrent(context), 0);
}

static int attach(void **state)
{
	char text[160];
	const char *const arguments[] = {"--pool", text, NULL};

	(void)state;
	snprintf(text, sizeof(text), "name=p0,backend=cuda,size=%d pages,page_size=2MB,reserved=0", PAGES);
	harness_start(&harness, arguments);
	pool = harness_open(&harness);
	driver_find();
	assert_int_equal(gpool_stream_open(pool, NULL, 0, &stream), 0);
	assert_int_equal(gpool_stream_open(pool, NULL, 0, &other), 0);
	assert_int_equal(gpool_stream_open(pool, NULL, GPOOL_STREAM_HOST_SIGNALED, &gate), 0);
	assert_int_equal(gpool_stream_native(pool, stream, &native), 0);
	return 0;
}

static int detach(void **state)
{
	(void)state;
	gpool_close(pool);
	return harness_stop(&harness);
}

static struct gpool_fence record(uint32_t of)
{
	struct gpool_fence fence;

	assert_int_equal(gpool_fence_record(pool, of, &fence), 0);
	return fence;
}

static void finish(uint32_t of)
{
	assert_int_equal(gpool_fence_wait(pool, record(of), AWAIT_MS), 0);
}

static void capture_begin(void)
{
	assert_int_equal(driver.cuStreamBeginCapture_v2(native, CAPTURE_GLOBAL), 0);
}

/* End the capture, which must be valid. */
static void *capture_end(void)
{
	void *graph, *exec;

	assert_int_equal(driver.cuStreamEndCapture(native, &graph), 0);
	assert_non_null(graph);
	assert_int_equal(driver.cuGraphInstantiateWithFlags(&exec, graph, 0), 0);
	return exec;
}

static void test_calls_during_a_capture(void **state)
{
	struct gpool_fence held = record(gate), before, fence;
	struct gpool_fence_handle handle;
	struct gpool_block block;
	uint64_t address;

	(void)state;
	assert_int_equal(gpool_alloc(pool, 1, NULL, &block), 0);
	assert_int_equal(gpool_address(pool, &block, &address), 0);
	assert_int_equal(gpool_stream_wait(pool, stream, held), 0);
	before = record(stream);
	capture_begin();
	assert_int_equal(gpool_fence_record(pool, stream, &fence), -EBUSY);
	assert_non_null(strstr(gpool_last_error(-EBUSY), "captured"));
	assert_int_equal(gpool_stream_wait(pool, stream, held), -EBUSY);
	assert_non_null(strstr(gpool_last_error(-EBUSY), "captured"));
	assert_int_equal(gpool_fence_export(pool, before, 0, &handle), -EBUSY);
	assert_int_equal(gpool_fence_export(pool, before, GPOOL_FENCE_EXPORT_EVENT, &handle), -EBUSY);
	assert_int_equal(gpool_sleep(pool, 0), -EBUSY);
	/* Queries and waits do not affect the capture. */
	assert_int_equal(gpool_fence_done(pool, before), 0);
	assert_int_equal(gpool_fence_wait(pool, before, 10), -ETIMEDOUT);
	assert_int_equal(gpool_fill(pool, stream, address, 1, PAGE_BYTES), 0);
	assert_int_equal(gpool_fence_signal(pool, held), 0);
	assert_int_equal(gpool_fence_wait(pool, before, AWAIT_MS), 0);
	capture_end();
	finish(stream);
	assert_int_equal(gpool_free(pool, &block), 0);
}

/* A program may ignore the error: launches of the graph do not change the words all the same. */
static void test_words_do_not_move_backwards(void **state)
{
	struct gpool_fence fences[4];
	struct gpool_block block;
	uint64_t address;
	void *exec;

	(void)state;
	assert_int_equal(gpool_alloc(pool, 1, NULL, &block), 0);
	assert_int_equal(gpool_address(pool, &block, &address), 0);
	fences[0] = record(stream);
	capture_begin();
	assert_int_equal(gpool_fill(pool, stream, address, 1, PAGE_BYTES), 0);
	gpool_fence_record(pool, stream, &fences[0]);
	exec = capture_end();
	for (int i = 1; i < 4; i++) {
		assert_int_equal(driver.cuGraphLaunch(exec, native), 0);
		fences[i] = record(stream);
		assert_int_equal(gpool_fence_wait(pool, fences[i], AWAIT_MS), 0);
		assert_int_equal(driver.cuGraphLaunch(exec, native), 0);
		assert_int_equal(gpool_stream_wait(pool, other, fences[i]), 0);
		finish(other);
		for (int past = 0; past <= i; past++)
			assert_int_equal(gpool_fence_done(pool, fences[past]), 1);
	}
	finish(stream);
	assert_int_equal(gpool_free(pool, &block), 0);
}

static void test_frees_are_kept(void **state)
{
	uint64_t elsewhere, freed, again, small;
	struct gpool_fence fence;
	void *exec;

	(void)state;
	/* Two streams are in use, so a free records a fence. */
	assert_int_equal(gpool_malloc_async(pool, PAGE_BYTES, other, &elsewhere), 0);
	assert_int_equal(gpool_malloc_async(pool, 8 * PAGE_BYTES, stream, &freed), 0);
	assert_int_equal(gpool_malloc_async(pool, 4096, stream, &small), 0);
	finish(stream);
	capture_begin();
	assert_int_equal(gpool_fill(pool, stream, freed, 1, PAGE_BYTES), 0);
	assert_int_equal(gpool_free_async(pool, freed, stream), 0);
	assert_int_equal(gpool_free_async(pool, small, stream), 0);
	assert_int_equal(gpool_trim_to(pool, 0), 0);
	/* No stream can use the 8 pages elsewhere. This stream can use them in place, next to further pages. */
	assert_int_equal(gpool_malloc_async(pool, (PAGES - 8) * (uint64_t)PAGE_BYTES, other, &again), -ENOSPC);
	assert_int_equal(gpool_malloc_async(pool, (PAGES - 8) * (uint64_t)PAGE_BYTES, stream, &again), 0);
	assert_true(again <= freed && freed + 8 * PAGE_BYTES <= again + (PAGES - 8) * (uint64_t)PAGE_BYTES);
	assert_int_equal(gpool_free_async(pool, again, stream), 0);
	assert_int_equal(gpool_malloc_async(pool, 16 * PAGE_BYTES, stream, &again), 0);
	assert_int_equal(gpool_free_async(pool, again, stream), 0);
	exec = capture_end();
	for (int i = 0; i < 3; i++) {
		assert_int_equal(driver.cuGraphLaunch(exec, native), 0);
		fence = record(stream);
		assert_int_equal(gpool_fence_wait(pool, fence, AWAIT_MS), 0);
		assert_int_equal(driver.cuGraphLaunch(exec, native), 0);
		finish(stream);
		assert_int_equal(gpool_fence_done(pool, fence), 1);
	}
	assert_int_equal(gpool_malloc_async(pool, (PAGES - 8) * (uint64_t)PAGE_BYTES, other, &again), 0);
	assert_int_equal(gpool_free_async(pool, again, other), 0);
	assert_int_equal(gpool_free_async(pool, elsewhere, other), 0);
	assert_int_equal(harness_check(&harness), 0);
}

static void test_loans_are_kept(void **state)
{
	struct gpool_loan *loan = calloc(1, sizeof(*loan) + 1);
	struct gpool_block block;

	(void)state;
	assert_non_null(loan);
	assert_int_equal(gpool_alloc(pool, 8, NULL, &block), 0);
	*loan = (struct gpool_loan){pool, NULL, block, stream, 0, 0, sizeof(*loan)};
	capture_begin();
	gpool_loan_end(loan + 1);
	assert_int_equal(loan->ended, 1);
	assert_int_equal(harness_evict(&harness, gpool_session(pool), PAGES), 0);
	capture_end();
	/* The library records the fence without a further call. */
	AWAIT(harness_evict(&harness, gpool_session(pool), PAGES) == 8);
	free(loan);
}

/* Work of a stream that is closed during a capture is not known to end, so its memory stays allocated. */
static void test_closing_during_a_capture(void **state)
{
	struct gpool_fence held = record(gate), before, fence;
	struct gpool_block block;
	uint32_t again;

	(void)state;
	assert_int_equal(gpool_alloc(pool, 8, NULL, &block), 0);
	assert_int_equal(gpool_stream_wait(pool, stream, held), 0);
	before = record(stream);
	assert_int_equal(gpool_unpin_after(pool, &block, before), 0);
	capture_begin();
	gpool_stream_close(pool, stream);
	capture_end();
	assert_int_equal(gpool_fence_done(pool, before), 0);
	assert_int_equal(gpool_fence_record(pool, stream, &fence), -EBUSY);
	assert_int_equal(gpool_stream_open(pool, NULL, GPOOL_STREAM_HOST_SIGNALED, &again), 0);
	assert_true(fence_slot(record(again).value) != fence_slot(before.value));
	assert_int_equal(harness_evict(&harness, gpool_session(pool), PAGES), 0);
	assert_int_equal(gpool_fence_signal(pool, held), 0);
	assert_int_equal(gpool_fence_wait(pool, before, AWAIT_MS), 0);
	assert_int_equal(harness_evict(&harness, gpool_session(pool), PAGES), 8);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_calls_during_a_capture, attach, detach),
		cmocka_unit_test_setup_teardown(test_words_do_not_move_backwards, attach, detach),
		cmocka_unit_test_setup_teardown(test_frees_are_kept, attach, detach),
		cmocka_unit_test_setup_teardown(test_loans_are_kept, attach, detach),
		cmocka_unit_test_setup_teardown(test_closing_during_a_capture, attach, detach),
	};
	const struct gpu_ops *ops = gpu_backend("cuda");

	if (argc == 3 && !strcmp(argv[1], "--backend") && !strcmp(argv[2], "host")) {
		printf("the back end host has no captures\n");
		return 77;
	}
	if (ops->device_count() < 1) {
		printf("no device of back end 'cuda': %s\n", gpu_error_text());
		return 77;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
