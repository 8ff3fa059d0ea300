/*
 * test_torch.c - the functions of PyTorch's pluggable allocator, called as PyTorch does: by name, from the shared
 * library.
 *
 * Goal: memory is allocated from the pool and freed to it, in the order of the program's streams. After a failure the
 * result is NULL, and stderr has one line.
 *
 * Method: load the library with dlopen() and use it with a real gpoold. The streams are gpool's own, passed like the
 * CUstreams of a program. client/examples/torch_mempool.py tests PyTorch on a GPU.
 */
#include "client/torch/gpool_torch.h"
#include "tests/lib/harness.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { PAGE = 512 * 1024, STREAMS = 3 };

/* The library keeps its pools until the process ends, in memory that the leak sanitizer does not scan. */
__attribute__((visibility("default"))) int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
	return 1;
}

static struct harness harness;

/*
 * Functions of the library, and of the libgpool with which it is linked. That libgpool is not the one of this program.
 */
static struct {
	void *(*malloc)(ssize_t size, int device, void *stream);
	void (*free)(void *address, ssize_t size, int device, void *stream);
	struct gpool *(*pool)(int device);
	__typeof__(&gpool_stream_open) stream_open;
	__typeof__(&gpool_stream_native) stream_native;
	__typeof__(&gpool_fill) fill;
	__typeof__(&gpool_fence_record) fence_record;
	__typeof__(&gpool_fence_wait) fence_wait;
	__typeof__(&gpool_fence_signal) fence_signal;
	__typeof__(&gpool_stream_wait) stream_wait;
	__typeof__(&gpool_vm_stats) totals;
	__typeof__(&gpool_trim_to) trim;
} torch;

static void *symbol(void *library, const char *name)
{
	void *found = dlsym(library, name);

	if (!found)
		fail_msg("%s", dlerror());
	return found;
}

static int start(void **state)
{
	const char *arguments[] = {"--pool", HARNESS_POOL, NULL};
	char path[512];
	ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 32);
	void *library;

	(void)state;
	assert_true(length > 0);
	path[length] = '\0';
	*strrchr(path, '/') = '\0';
	strcpy(strrchr(path, '/'), "/libgpool_torch.so");
	harness_start(&harness, arguments);
	setenv("GPOOL_DIR", harness.directory, 1);
	unsetenv("GPOOL_TORCH_POOLS");
	library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!library)
		fail_msg("%s", dlerror());
	*(void **)&torch.malloc = symbol(library, "gpool_torch_malloc");
	*(void **)&torch.free = symbol(library, "gpool_torch_free");
	*(void **)&torch.pool = symbol(library, "gpool_torch_pool");
	*(void **)&torch.stream_open = symbol(library, "gpool_stream_open");
	*(void **)&torch.stream_native = symbol(library, "gpool_stream_native");
	*(void **)&torch.fill = symbol(library, "gpool_fill");
	*(void **)&torch.fence_record = symbol(library, "gpool_fence_record");
	*(void **)&torch.fence_wait = symbol(library, "gpool_fence_wait");
	*(void **)&torch.fence_signal = symbol(library, "gpool_fence_signal");
	*(void **)&torch.stream_wait = symbol(library, "gpool_stream_wait");
	*(void **)&torch.totals = symbol(library, "gpool_vm_stats");
	*(void **)&torch.trim = symbol(library, "gpool_trim_to");
	return 0;
}

static int stop(void **state)
{
	(void)state;
	return harness_stop(&harness);
}

static struct gpool_vm_stats totals(void)
{
	struct gpool_vm_stats totals = {.size = sizeof(totals)};

	assert_int_equal(torch.totals(torch.pool(0), &totals), 0);
	return totals;
}

/* Capture the library's output on stderr while `call` runs. */
static void said(char *text, size_t bytes, void (*call)(void))
{
	FILE *file = tmpfile();
	int keep = dup(STDERR_FILENO);
	size_t length;

	assert_non_null(file);
	fflush(stderr);
	dup2(fileno(file), STDERR_FILENO);
	call();
	fflush(stderr);
	dup2(keep, STDERR_FILENO);
	close(keep);
	rewind(file);
	length = fread(text, 1, bytes - 1, file);
	text[length] = '\0';
	fclose(file);
}

static void test_memory_of_several_streams(void **state)
{
	void *native[STREAMS], *address[STREAMS], *again;
	uint32_t stream[STREAMS];

	(void)state;
	assert_non_null(torch.pool(0));
	for (uint32_t i = 0; i < STREAMS; i++) {
		assert_int_equal(torch.stream_open(torch.pool(0), NULL, 0, &stream[i]), 0);
		assert_int_equal(torch.stream_native(torch.pool(0), stream[i], &native[i]), 0);
		address[i] = torch.malloc(4 * PAGE, 0, native[i]);
		assert_non_null(address[i]);
		assert_int_equal(
			torch.fill(torch.pool(0), stream[i], (uint64_t)(uintptr_t)address[i], 0x5eed + i, 4 * PAGE), 0);
	}
	assert_int_equal(totals().live_bytes, STREAMS * 4 * PAGE);
	for (uint32_t i = 0; i < STREAMS; i++) {
		struct gpool_fence fence;

		assert_int_equal(torch.fence_record(torch.pool(0), stream[i], &fence), 0);
		assert_int_equal(torch.fence_wait(torch.pool(0), fence, -1), 0);
		for (size_t word = 0; word < 4 * PAGE / sizeof(uint32_t); word += 1024)
			assert_int_equal(((const uint32_t *)address[i])[word], 0x5eed + i);
	}
	/* A stream can reuse memory that it has freed itself immediately and in place. */
	torch.free(address[1], 4 * PAGE, 0, native[1]);
	again = torch.malloc(4 * PAGE, 0, native[1]);
	assert_ptr_equal(again, address[1]);
	for (uint32_t i = 0; i < STREAMS; i++)
		torch.free(address[i], 4 * PAGE, 0, native[i]);
	assert_int_equal(totals().live_bytes, 0);
}

static void test_the_default_stream_and_small_tensors(void **state)
{
	void *small[64], *large;

	(void)state;
	for (size_t i = 0; i < 64; i++) {
		small[i] = torch.malloc((ssize_t)(512 * (i + 1)), 0, NULL);
		assert_non_null(small[i]);
		memset(small[i], (int)i, 512 * (i + 1));
	}
	large = torch.malloc(3 * PAGE + 1, 0, NULL);
	assert_non_null(large);
	memset(large, 77, 3 * PAGE + 1);
	for (size_t i = 0; i < 64; i++) {
		assert_int_equal(((const uint8_t *)small[i])[0], i);
		assert_int_equal(((const uint8_t *)small[i])[512 * (i + 1) - 1], i);
		torch.free(small[i], (ssize_t)(512 * (i + 1)), 0, NULL);
	}
	torch.free(large, 3 * PAGE + 1, 0, NULL);
	torch.free(NULL, 0, 0, NULL);
	assert_int_equal(totals().live_bytes, 0);
	assert_null(torch.malloc(0, 0, NULL));
	assert_null(torch.malloc(-1, 0, NULL));
}

#define PER_THREAD_STREAM ((void *)2) /* CU_STREAM_PER_THREAD */

static void *allocates(void *address)
{
	*(void **)address = torch.malloc(4 * PAGE, 0, PER_THREAD_STREAM);
	return NULL;
}

/* Each thread has its own default stream, although the program passes the same handle. */
static void test_default_streams_of_two_threads(void **state)
{
	struct gpool *of = torch.pool(0);
	uint32_t gate, stream;
	struct gpool_fence hold;
	void *mine, *others = NULL;
	pthread_t thread;

	(void)state;
	mine = torch.malloc(4 * PAGE, 0, PER_THREAD_STREAM);
	assert_non_null(mine);
	assert_int_equal(torch.stream_open(of, PER_THREAD_STREAM, 0, &stream), 0);
	assert_int_equal(torch.stream_open(of, NULL, GPOOL_STREAM_HOST_SIGNALED, &gate), 0);
	assert_int_equal(torch.fence_record(of, gate, &hold), 0);
	assert_int_equal(torch.stream_wait(of, stream, hold), 0);
	/* The memory is freed after work that has not been done yet. */
	torch.free(mine, 4 * PAGE, 0, PER_THREAD_STREAM);
	assert_int_equal(pthread_create(&thread, NULL, allocates, &others), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_non_null(others);
	assert_ptr_not_equal(others, mine);
	assert_ptr_equal(torch.malloc(4 * PAGE, 0, PER_THREAD_STREAM), mine);
	torch.free(mine, 4 * PAGE, 0, PER_THREAD_STREAM);
	assert_int_equal(torch.fence_signal(of, hold), 0);
	torch.free(others, 4 * PAGE, 0, PER_THREAD_STREAM);
	assert_int_equal(totals().live_bytes, 0);
}

static void too_much(void)
{
	for (int i = 0; i < 3; i++)
		assert_null(torch.malloc((ssize_t)1 << 40, 0, NULL));
}

static void wrong_frees(void)
{
	int here;

	torch.free(&here, PAGE, 0, NULL);
	torch.free(&here, PAGE, 0, NULL);
}

static void wrong_devices(void)
{
	assert_null(torch.malloc(PAGE, 1, NULL));
	assert_null(torch.malloc(PAGE, 1, NULL));
	assert_null(torch.malloc(PAGE, 99, NULL));
	assert_null(torch.malloc(PAGE, -1, NULL));
	torch.free(&harness, PAGE, 99, NULL);
}

static uint32_t lines_of(const char *text)
{
	uint32_t lines = 0;

	for (; *text; text++)
		lines += *text == '\n';
	return lines;
}

static void test_failures_are_reported_once(void **state)
{
	char text[2048];
	void *after;

	(void)state;
	said(text, sizeof(text), too_much);
	assert_non_null(strstr(text, "cannot allocate 1099511627776 bytes on device 0"));
	assert_non_null(strstr(text, "poolctl"));
	assert_int_equal(lines_of(text), 1);
	said(text, sizeof(text), wrong_frees);
	assert_non_null(strstr(text, "cannot free"));
	assert_int_equal(lines_of(text), 1);
	said(text, sizeof(text), wrong_devices);
	assert_non_null(strstr(text, "GPOOL_TORCH_POOLS"));
	assert_non_null(strstr(text, "device 99 cannot have a pool"));
	assert_int_equal(lines_of(text), 2);
	after = torch.malloc(PAGE, 0, NULL);
	assert_non_null(after);
	torch.free(after, PAGE, 0, NULL);
}

static void test_a_forked_child_gets_nothing(void **state)
{
	int status;
	pid_t child;

	(void)state;
	assert_non_null(torch.pool(0));
	child = fork();
	if (!child) {
		dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);
		_exit(torch.malloc(PAGE, 0, NULL) ? 1 : 0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
}

static void test_idle_memory_is_returned(void **state)
{
	void *address = torch.malloc(100 * PAGE, 0, NULL);

	(void)state;
	assert_non_null(address);
	torch.free(address, 100 * PAGE, 0, NULL);
	assert_true(torch.trim(torch.pool(0), 0) >= 0);
	assert_int_equal(totals().live_bytes, 0);
	assert_int_equal(harness_check(&harness), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_memory_of_several_streams),
		cmocka_unit_test(test_the_default_stream_and_small_tensors),
		cmocka_unit_test(test_default_streams_of_two_threads),
		cmocka_unit_test(test_failures_are_reported_once),
		cmocka_unit_test(test_a_forked_child_gets_nothing),
		cmocka_unit_test(test_idle_memory_is_returned),
	};

	return cmocka_run_group_tests(tests, start, stop);
}
