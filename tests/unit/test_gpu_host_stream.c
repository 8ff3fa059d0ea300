/*
 * test_gpu_host_stream.c - queued work on the back end `host` is asynchronous, ordered, checked, and visible to other
 * processes.
 *
 * Goal: queued work behaves as on a GPU. The caller continues, the order of a stream is kept, and memory in use cannot
 * be removed. Errors are reported at the next sync. Events and timelines work between processes.
 *
 * Method: a stream is blocked by a timeline wait on a word that only the test writes, so the test knows without timing
 * that work is not done yet. Other processes are forked before any thread exists, and communicate with the test through
 * pipes.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "cuda/gpu.h"
#include "cuda/kernels/block_copy.h"

enum { RANGE_GRANULES = 8, EVENT_RECORDS_MAX = 128 };

struct fixture {
	struct gpu *gpu;
	uint64_t granularity;
	uint64_t va; /* RANGE_GRANULES, of which the first 4 are mapped with access */
	struct gpu_stream *stream;
	uint64_t *words; /* a registered page, all 0 */
	uint64_t page;
};

static void *page_new(uint64_t page)
{
	void *memory = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	assert_true(memory != MAP_FAILED);
	return memory;
}

/* Open a device and reserve a range, without a stream. A test that forks must do so before threads exist. */
static void device_open(struct fixture *f)
{
	f->page = (uint64_t)sysconf(_SC_PAGESIZE);
	assert_int_equal(gpu_open(&gpu_host_ops, 0, 0, &f->gpu), 0);
	assert_int_equal(gpu_granularity(f->gpu, &f->granularity), 0);
	assert_int_equal(gpu_reserve(f->gpu, RANGE_GRANULES * f->granularity, 0, &f->va), 0);
}

static void map_at(struct fixture *f, uint64_t at)
{
	uint64_t handle;

	assert_int_equal(gpu_create(f->gpu, f->granularity, &handle), 0);
	assert_int_equal(gpu_map(f->gpu, f->va + at * f->granularity, f->granularity, handle), 0);
}

static int setup_device(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	assert_non_null(f);
	setenv("GPOOL_HOST_DEVICES", "2", 1);
	setenv("GPOOL_HOST_GRANULARITY", "64KiB", 1);
	setenv("GPOOL_HOST_MEMORY", "1GiB", 1);
	device_open(f);
	f->words = page_new(f->page);
	*state = f;
	return 0;
}

static int setup(void **state)
{
	struct fixture *f;

	setup_device(state);
	f = *state;
	for (uint64_t i = 0; i < 4; i++)
		map_at(f, i);
	assert_int_equal(gpu_access(f->gpu, f->va, 4 * f->granularity, GPU_ACCESS_READ_WRITE), 0);
	assert_int_equal(gpu_host_register(f->gpu, f->words, f->page), 0);
	assert_int_equal(gpu_stream_create(f->gpu, &f->stream), 0);
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	gpu_close(f->gpu);
	munmap(f->words, f->page);
	free(f);
	return 0;
}

/* Block the stream on the first word until open_gate(). */
static void close_gate(struct fixture *f)
{
	assert_int_equal(gpu_timeline_wait(f->gpu, f->stream, &f->words[0], 1), 0);
}

static void open_gate(struct fixture *f)
{
	__atomic_store_n(&f->words[0], 1, __ATOMIC_RELEASE);
}

static uint64_t at(const struct fixture *f, uint64_t granule)
{
	return f->va + granule * f->granularity;
}

static uint32_t value_at(const struct fixture *f, uint64_t granule)
{
	return *(volatile uint32_t *)at(f, granule);
}

static int finish(struct fixture *f)
{
	return gpu_stream_sync(f->gpu, f->stream);
}

/* ---- copies, fills and the memory that they may access ---- */

static void test_fill_and_copy_move_the_bytes(void **state)
{
	struct fixture *f = *state;
	const uint32_t *end = (const uint32_t *)(at(f, 2));

	assert_int_equal(gpu_fill(f->gpu, at(f, 0), 0xdeadbeef, 2 * f->granularity, f->stream), 0);
	assert_int_equal(gpu_fill(f->gpu, at(f, 0) + 4, 7, 8, f->stream), 0);
	assert_int_equal(gpu_copy(f->gpu, at(f, 2), at(f, 0), 12, f->stream), 0);
	assert_int_equal(gpu_copy(f->gpu, (uintptr_t)&f->words[4], at(f, 0), 16, f->stream), 0); /* device to host */
	assert_int_equal(gpu_copy(f->gpu, at(f, 3), (uintptr_t)&f->words[4], 16, f->stream), 0); /* host to device */
	assert_int_equal(finish(f), 0);
	assert_true(end[-1] == 0xdeadbeef);
	assert_true(end[0] == 0xdeadbeef && end[1] == 7 && end[2] == 7 && end[3] == 0);
	assert_memory_equal(&f->words[4], (void *)at(f, 0), 16);
	assert_memory_equal((void *)at(f, 3), (void *)at(f, 0), 16);
}

/* Return the number of pages of the kernel that a granule uses. */
static uint64_t pages_used(const struct fixture *f, uint64_t granule)
{
	uint64_t count = f->granularity / f->page, used = 0;
	unsigned char *states = calloc(count, 1);

	assert_non_null(states);
	assert_int_equal(mincore((void *)at(f, granule), f->granularity, states), 0);
	for (uint64_t i = 0; i < count; i++)
		used += states[i] & 1;
	free(states);
	return used;
}

/* Work that writes whole granules prepares their memory in advance, but no more memory than it writes. */
static void test_work_uses_only_the_memory_that_it_writes(void **state)
{
	struct fixture *f = *state;
	uint64_t pages = f->granularity / f->page;

	assert_int_equal(gpu_fill(f->gpu, at(f, 1) - f->page, 3, f->granularity + 2 * f->page, f->stream), 0);
	assert_int_equal(finish(f), 0);
	assert_int_equal(pages_used(f, 0), 1);
	assert_int_equal(pages_used(f, 1), pages);
	assert_int_equal(pages_used(f, 2), 1);
	assert_int_equal(gpu_copy(f->gpu, at(f, 3), at(f, 0), f->granularity, f->stream), 0);
	assert_int_equal(finish(f), 0);
	assert_int_equal(pages_used(f, 3), pages);
	assert_int_equal(value_at(f, 3), 0);
	assert_int_equal(*(uint32_t *)(at(f, 4) - f->page), 3);
}

static void test_bad_arguments_are_refused_when_queued(void **state)
{
	struct fixture *f = *state;
	uint64_t g = f->granularity, unregistered[2] = {0};

	assert_int_equal(gpu_copy(f->gpu, at(f, 0), (uintptr_t)unregistered, 8, f->stream), -EINVAL);
	assert_int_equal(gpu_copy(f->gpu, (uintptr_t)unregistered, at(f, 0), 8, f->stream), -EINVAL);
	assert_int_equal(gpu_copy(f->gpu, at(f, RANGE_GRANULES) - 4, at(f, 0), 8, f->stream), -EINVAL);
	assert_int_equal(gpu_copy(f->gpu, at(f, 0), (uintptr_t)f->words + f->page - 4, 8, f->stream), -EINVAL);
	assert_int_equal(gpu_copy(f->gpu, UINT64_MAX - 3, at(f, 0), 8, f->stream), -EINVAL);
	assert_int_equal(gpu_copy(f->gpu, at(f, 0), at(f, 1), 8, NULL), -EINVAL);
	assert_int_equal(gpu_copy(f->gpu, at(f, 0), at(f, 1), 0, f->stream), 0);
	assert_int_equal(gpu_fill(f->gpu, at(f, 0) + 2, 0, 8, f->stream), -EINVAL);
	assert_int_equal(gpu_fill(f->gpu, at(f, 0), 0, 6, f->stream), -EINVAL);
	assert_int_equal(gpu_fill(f->gpu, (uintptr_t)unregistered, 0, 8, f->stream), -EINVAL);
	/* none of the refused calls left the memory marked as used */
	assert_int_equal(gpu_unmap(f->gpu, at(f, 0), 4 * g), 0);
	assert_int_equal(gpu_host_unregister(f->gpu, f->words), 0);
	assert_int_equal(finish(f), 0);
}

static void test_the_host_continues_while_work_is_queued(void **state)
{
	struct fixture *f = *state;
	struct gpu_event *event;

	assert_int_equal(gpu_event_create(f->gpu, 0, &event), 0);
	close_gate(f);
	assert_int_equal(gpu_fill(f->gpu, at(f, 0), 5, 4, f->stream), 0);
	assert_int_equal(gpu_timeline_write(f->gpu, f->stream, &f->words[1], 9), 0);
	assert_int_equal(gpu_event_record(f->gpu, event, f->stream), 0);
	assert_int_equal(gpu_event_query(f->gpu, event), -EAGAIN);
	assert_true(value_at(f, 0) == 0);
	assert_true(__atomic_load_n(&f->words[1], __ATOMIC_ACQUIRE) == 0);
	open_gate(f);
	assert_int_equal(finish(f), 0);
	assert_true(value_at(f, 0) == 5);
	assert_true(f->words[1] == 9);
	assert_int_equal(gpu_event_query(f->gpu, event), 0);
}

static void test_memory_in_use_cannot_be_taken_away(void **state)
{
	struct fixture *f = *state;
	uint64_t g = f->granularity, va;

	assert_int_equal(gpu_reserve(f->gpu, g, 0, &va), 0);
	close_gate(f);
	assert_int_equal(gpu_copy(f->gpu, at(f, 1) - 4, at(f, 2), 8, f->stream), 0); /* beyond the end of one mapping */
	assert_int_equal(gpu_fill(f->gpu, va, 0, 4, f->stream), 0);
	assert_int_equal(gpu_unmap(f->gpu, at(f, 0), g), -EBUSY);
	assert_int_equal(gpu_unmap(f->gpu, at(f, 1), g), -EBUSY);
	assert_int_equal(gpu_unmap(f->gpu, at(f, 2), g), -EBUSY);
	assert_int_equal(gpu_unmap(f->gpu, at(f, 0), 4 * g), -EBUSY);
	assert_int_equal(gpu_access(f->gpu, at(f, 1), g, GPU_ACCESS_READ), -EBUSY);
	assert_int_equal(gpu_access(f->gpu, at(f, 2), g, GPU_ACCESS_NONE), -EBUSY);
	assert_int_equal(gpu_unreserve(f->gpu, va, g), -EBUSY);
	assert_int_equal(gpu_host_unregister(f->gpu, f->words), -EBUSY); /* the gate's word */

	/* memory that queued work does not use can be removed */
	assert_int_equal(gpu_access(f->gpu, at(f, 3), g, GPU_ACCESS_NONE), 0);
	assert_int_equal(gpu_unmap(f->gpu, at(f, 3), g), 0);

	open_gate(f);
	assert_int_equal(finish(f), -EIO); /* va was never mapped */
	assert_int_equal(gpu_unmap(f->gpu, at(f, 0), 3 * g), 0);
	assert_int_equal(gpu_unreserve(f->gpu, va, g), 0);
	assert_int_equal(gpu_host_unregister(f->gpu, f->words), 0);
}

static void test_a_bad_access_is_an_error_at_the_next_sync(void **state)
{
	struct fixture *f = *state;
	uint64_t g = f->granularity;

	assert_int_equal(gpu_access(f->gpu, at(f, 1), g, GPU_ACCESS_READ), 0);
	assert_int_equal(gpu_access(f->gpu, at(f, 2), g, GPU_ACCESS_NONE), 0);
	assert_int_equal(gpu_fill(f->gpu, at(f, 1), 1, 4, f->stream), 0); /* writes to a read-only mapping */
	assert_int_equal(finish(f), -EIO);
	assert_non_null(strstr(gpu_error_text(), "fill"));
	assert_int_equal(finish(f), 0); /* reported once */
	assert_int_equal(gpu_copy(f->gpu, at(f, 0), at(f, 1), 4, f->stream), 0);
	assert_int_equal(finish(f), 0);
	assert_int_equal(gpu_copy(f->gpu, at(f, 0), at(f, 2), 4, f->stream), 0);
	assert_int_equal(gpu_fill(f->gpu, at(f, 2), 3, 4, f->stream), 0);
	assert_int_equal(gpu_fill(f->gpu, at(f, 0), 3, 4, f->stream), 0);
	assert_int_equal(finish(f), -EIO); /* the first of two errors, although the last operation was valid */
	assert_non_null(strstr(gpu_error_text(), "copy"));
	assert_true(value_at(f, 0) == 3);                                     /* the last operation was executed */
	assert_int_equal(gpu_fill(f->gpu, at(f, 3), 1, 2 * g, f->stream), 0); /* its second half is not mapped */
	assert_int_equal(finish(f), -EIO);
	assert_true(value_at(f, 3) == 0);
}

static int setup_sticky(void **state)
{
	setenv("GPOOL_HOST_FAULTS", "sticky", 1);
	setup(state);
	unsetenv("GPOOL_HOST_FAULTS");
	return 0;
}

/* A fault drops the work that is queued on all streams of the device. Other devices of the process are not affected. */
static void test_a_sticky_fault_ends_all_work(void **state)
{
	struct fixture *f = *state;
	struct gpu_stream *second, *elsewhere;
	struct gpu *other;

	assert_int_equal(gpu_open(&gpu_host_ops, 1, 0, &other), 0);
	assert_int_equal(gpu_stream_create(other, &elsewhere), 0);
	assert_int_equal(gpu_stream_create(f->gpu, &second), 0);
	assert_int_equal(gpu_stream_query(f->gpu, f->stream), 0);
	close_gate(f);
	assert_int_equal(gpu_fill(f->gpu, at(f, 5), 1, 4096, f->stream), 0); /* nothing is mapped there */
	assert_int_equal(gpu_timeline_write(f->gpu, f->stream, &f->words[1], 1), 0);
	assert_int_equal(gpu_timeline_wait(f->gpu, second, &f->words[1], 1), 0);
	assert_int_equal(gpu_timeline_write(f->gpu, second, &f->words[2], 1), 0);
	assert_int_equal(gpu_stream_query(f->gpu, f->stream), -EAGAIN);
	open_gate(f);
	assert_int_equal(gpu_stream_sync(f->gpu, second), -EIO);
	assert_int_equal(gpu_stream_query(f->gpu, f->stream), -EIO);
	assert_int_equal(gpu_stream_query(f->gpu, second), -EIO);
	assert_int_equal(finish(f), -EIO);
	assert_int_equal(gpu_fill(f->gpu, at(f, 0), 1, 4096, f->stream), -EIO);
	assert_int_equal(f->words[1], 0);
	assert_int_equal(f->words[2], 0);
	assert_int_equal(gpu_unmap(f->gpu, at(f, 0), f->granularity), 0);
	assert_int_equal(gpu_stream_query(other, elsewhere), 0);
	gpu_close(other);
}

static void test_mapping_before_queued_work_runs_is_in_time(void **state)
{
	struct fixture *f = *state;

	close_gate(f);
	assert_int_equal(gpu_fill(f->gpu, at(f, 6), 11, 4, f->stream), 0);
	map_at(f, 6);
	assert_int_equal(gpu_access(f->gpu, at(f, 6), f->granularity, GPU_ACCESS_READ_WRITE), 0);
	open_gate(f);
	assert_int_equal(finish(f), 0);
	assert_true(value_at(f, 6) == 11);
}

static void test_destroy_lets_queued_work_finish(void **state)
{
	struct fixture *f = *state;

	for (uint32_t i = 1; i <= 1000; i++)
		assert_int_equal(gpu_fill(f->gpu, at(f, 0), i, 64, f->stream), 0);
	gpu_stream_destroy(f->gpu, f->stream);
	assert_true(value_at(f, 0) == 1000);
	gpu_stream_destroy(f->gpu, NULL);
}

static void test_close_ends_a_wait_without_end(void **state)
{
	struct fixture *f = *state;
	struct gpu_stream *first, *second, *third;
	struct gpu_event *event;
	uint32_t *shared = page_new(f->page);

	/*
	 * The start of a wait cannot be observed. A round trip through a third stream makes it nearly certain, and
	 * repetitions make it certain.
	 */
	for (int i = 0; i < 10; i++) {
		gpu_close(f->gpu);
		device_open(f);
		assert_int_equal(gpu_host_register(f->gpu, shared, f->page), 0);
		assert_int_equal(gpu_host_register(f->gpu, f->words, f->page), 0);
		assert_int_equal(gpu_stream_create(f->gpu, &first), 0);
		assert_int_equal(gpu_stream_create(f->gpu, &second), 0);
		assert_int_equal(gpu_event_create(f->gpu, 0, &event), 0);
		assert_int_equal(gpu_timeline_wait(f->gpu, first, &f->words[0], 1), 0);
		assert_int_equal(gpu_event_record(f->gpu, event, first), 0);
		assert_int_equal(gpu_event_wait(f->gpu, second, event), 0);
		assert_int_equal(gpu_fill(f->gpu, (uintptr_t)shared, 99, 4, second), 0);
		assert_int_equal(gpu_stream_create(f->gpu, &third), 0);
		assert_int_equal(gpu_timeline_write(f->gpu, third, &f->words[1], 1), 0);
		assert_int_equal(gpu_stream_sync(f->gpu, third), 0);
	}
	gpu_close(f->gpu);
	assert_true(*shared == 0); /* canceled, not executed */
	munmap(shared, f->page);
	device_open(f); /* for the teardown */
}

enum { SYNC_THREADS = 4, SYNC_STEPS = 300 };

struct sync_thread {
	struct fixture *f;
	pthread_mutex_t *order; /* held while the next value is queued */
	uint64_t *next;
	uint32_t wrong;
};

/* Write the next value to a word by the stream, then copy it to another word, and wait for both. */
static void *sync_main(void *context)
{
	struct sync_thread *thread = context;
	struct fixture *f = thread->f;

	for (int step = 0; step < SYNC_STEPS; step++) {
		uint64_t mine;
		int error;

		pthread_mutex_lock(thread->order);
		mine = ++*thread->next;
		error = gpu_timeline_write(f->gpu, f->stream, &f->words[2], mine);
		error |= gpu_copy(f->gpu, (uintptr_t)&f->words[4], (uintptr_t)&f->words[2], 8, f->stream);
		pthread_mutex_unlock(thread->order);
		thread->wrong += error || finish(f) || __atomic_load_n(&f->words[2], __ATOMIC_ACQUIRE) < mine;
	}
	return NULL;
}

/* Several threads that synchronize execute the operations one at a time and in order. */
static void test_threads_that_synchronize_keep_the_order(void **state)
{
	pthread_mutex_t order = PTHREAD_MUTEX_INITIALIZER;
	struct sync_thread threads[SYNC_THREADS];
	pthread_t handles[SYNC_THREADS];
	struct fixture *f = *state;
	uint64_t next = 0;

	for (int i = 0; i < SYNC_THREADS; i++) {
		threads[i] = (struct sync_thread){.f = f, .order = &order, .next = &next};
		assert_int_equal(pthread_create(&handles[i], NULL, sync_main, &threads[i]), 0);
	}
	for (int i = 0; i < SYNC_THREADS; i++) {
		assert_int_equal(pthread_join(handles[i], NULL), 0);
		assert_int_equal(threads[i].wrong, 0);
	}
	/* The last operation is the last copy. */
	assert_int_equal(f->words[2], SYNC_THREADS * SYNC_STEPS);
	assert_int_equal(f->words[4], SYNC_THREADS * SYNC_STEPS);
}

static void test_a_device_keeps_to_its_own(void **state)
{
	struct fixture *f = *state;
	struct gpu_stream *foreign;
	struct gpu_event *event;
	struct gpu *other;

	assert_int_equal(gpu_open(&gpu_host_ops, 1, 0, &other), 0);
	assert_int_equal(gpu_stream_create(other, &foreign), 0);
	assert_int_equal(gpu_event_create(other, 0, &event), 0);
	assert_int_equal(gpu_fill(f->gpu, at(f, 0), 0, 4, foreign), -EINVAL);
	assert_int_equal(gpu_fill(other, at(f, 0), 0, 4, foreign), -EINVAL);
	assert_int_equal(gpu_stream_sync(f->gpu, foreign), -EINVAL);
	assert_int_equal(gpu_timeline_write(f->gpu, foreign, &f->words[1], 1), -EINVAL);
	assert_int_equal(gpu_event_record(f->gpu, event, f->stream), -EINVAL);
	assert_int_equal(gpu_event_record(other, event, f->stream), -EINVAL);
	assert_int_equal(gpu_event_query(f->gpu, event), -EINVAL);
	gpu_close(other);
}

/* ---- registered memory and timelines ---- */

static void test_registration_takes_whole_writable_pages_once(void **state)
{
	struct fixture *f = *state;
	uint8_t *pages = mmap(NULL, 4 * f->page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	void *reader = mmap(NULL, f->page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_true(pages != MAP_FAILED && reader != MAP_FAILED);
	assert_int_equal(gpu_host_register(f->gpu, NULL, f->page), -EINVAL);
	assert_int_equal(gpu_host_register(f->gpu, pages, 0), -EINVAL);
	assert_int_equal(gpu_host_register(f->gpu, pages + 8, f->page), -EINVAL);
	assert_int_equal(gpu_host_register(f->gpu, pages, f->page - 8), -EINVAL);
	assert_int_equal(gpu_host_register(f->gpu, reader, f->page), -EINVAL);
	assert_int_equal(munmap(reader, f->page), 0);
	assert_int_equal(gpu_host_register(f->gpu, (void *)at(f, 0), f->granularity), -EINVAL); /* device memory */

	assert_int_equal(gpu_host_register(f->gpu, pages + f->page, 2 * f->page), 0);
	assert_int_equal(gpu_host_register(f->gpu, pages, 2 * f->page), -EINVAL);
	assert_int_equal(gpu_host_register(f->gpu, pages + 2 * f->page, 2 * f->page), -EINVAL);
	assert_int_equal(gpu_host_register(f->gpu, pages, 4 * f->page), -EINVAL);
	assert_int_equal(gpu_host_register(f->gpu, pages, f->page), 0);
	/* not the beginning of the registration */
	assert_int_equal(gpu_host_unregister(f->gpu, pages + 2 * f->page), -EINVAL);
	assert_int_equal(gpu_host_unregister(f->gpu, pages + f->page), 0);
	assert_int_equal(gpu_host_unregister(f->gpu, pages + f->page), -EINVAL);
	assert_int_equal(gpu_host_unregister(f->gpu, pages), 0);
	munmap(pages, 4 * f->page);
}

static void test_timeline_words_are_aligned_and_registered(void **state)
{
	struct fixture *f = *state;
	uint64_t unregistered = 0, *askew = (uint64_t *)((uint8_t *)f->words + 4), *past = f->words + f->page / 8;

	assert_int_equal(gpu_timeline_write(f->gpu, f->stream, &unregistered, 1), -EINVAL);
	assert_int_equal(gpu_timeline_wait(f->gpu, f->stream, &unregistered, 0), -EINVAL);
	assert_int_equal(gpu_timeline_write(f->gpu, f->stream, askew, 1), -EINVAL);
	assert_int_equal(gpu_timeline_wait(f->gpu, f->stream, askew, 0), -EINVAL);
	assert_int_equal(gpu_timeline_write(f->gpu, f->stream, past, 1), -EINVAL);
	assert_int_equal(gpu_timeline_write(f->gpu, f->stream, (uint64_t *)at(f, 0), 1), -EINVAL);
	assert_int_equal(gpu_timeline_write(f->gpu, f->stream, &f->words[1], 3), 0);
	assert_int_equal(finish(f), 0);
	assert_true(f->words[1] == 3 && unregistered == 0);
}

static void test_a_timeline_joins_two_streams(void **state)
{
	struct fixture *f = *state;
	struct gpu_stream *second;

	assert_int_equal(gpu_stream_create(f->gpu, &second), 0);
	assert_int_equal(gpu_timeline_wait(f->gpu, second, &f->words[1], 2), 0);
	assert_int_equal(gpu_copy(f->gpu, at(f, 1), at(f, 0), 4, second), 0);
	assert_int_equal(gpu_timeline_write(f->gpu, f->stream, &f->words[1], 1), 0); /* not sufficient */
	assert_int_equal(gpu_fill(f->gpu, at(f, 0), 21, 4, f->stream), 0);
	assert_int_equal(gpu_timeline_write(f->gpu, f->stream, &f->words[1], 3), 0); /* more than sufficient */
	assert_int_equal(gpu_stream_sync(f->gpu, second), 0);
	assert_true(value_at(f, 1) == 21);
}

/* ---- events in one process ---- */

static void test_an_event_never_recorded_is_done(void **state)
{
	struct fixture *f = *state;
	struct gpu_event *event = NULL;

	assert_int_equal(gpu_event_create(f->gpu, 1u << 7, &event), -EINVAL);
	assert_null(event);
	assert_int_equal(gpu_event_create(f->gpu, 0, &event), 0);
	assert_int_equal(gpu_event_query(f->gpu, event), 0);
	assert_int_equal(gpu_event_wait(f->gpu, f->stream, event), 0);
	assert_int_equal(finish(f), 0);
	gpu_event_destroy(f->gpu, event);
	gpu_event_destroy(f->gpu, NULL);
}

static void test_a_wait_is_for_the_record_before_it(void **state)
{
	struct fixture *f = *state;
	struct gpu_stream *second, *third;
	struct gpu_event *event;

	assert_int_equal(gpu_event_create(f->gpu, 0, &event), 0);
	assert_int_equal(gpu_stream_create(f->gpu, &second), 0);
	assert_int_equal(gpu_stream_create(f->gpu, &third), 0);
	close_gate(f);
	assert_int_equal(gpu_fill(f->gpu, at(f, 0), 31, 4, f->stream), 0);
	assert_int_equal(gpu_event_record(f->gpu, event, f->stream), 0);
	assert_int_equal(gpu_event_wait(f->gpu, second, event), 0);
	assert_int_equal(gpu_timeline_write(f->gpu, second, &f->words[1], 1), 0);

	/* recorded again on an idle stream, the event is done; the earlier wait is still for the first record */
	assert_int_equal(gpu_event_record(f->gpu, event, third), 0);
	assert_int_equal(gpu_stream_sync(f->gpu, third), 0);
	assert_int_equal(gpu_event_query(f->gpu, event), 0);
	assert_true(__atomic_load_n(&f->words[1], __ATOMIC_ACQUIRE) == 0);
	gpu_event_destroy(f->gpu, event); /* the queued work keeps it */
	open_gate(f);
	assert_int_equal(gpu_stream_sync(f->gpu, second), 0);
	assert_true(f->words[1] == 1 && value_at(f, 0) == 31);
}

static void test_too_many_unfinished_records_are_refused(void **state)
{
	struct fixture *f = *state;
	struct gpu_event *event;

	assert_int_equal(gpu_event_create(f->gpu, 0, &event), 0);
	close_gate(f);
	for (int i = 0; i < EVENT_RECORDS_MAX; i++)
		assert_int_equal(gpu_event_record(f->gpu, event, f->stream), 0);
	assert_int_equal(gpu_event_record(f->gpu, event, f->stream), -EBUSY);
	open_gate(f);
	assert_int_equal(finish(f), 0);
	assert_int_equal(gpu_event_record(f->gpu, event, f->stream), 0);
	assert_int_equal(finish(f), 0);
	assert_int_equal(gpu_event_query(f->gpu, event), 0);
}

static void test_event_bytes_that_are_none_are_refused(void **state)
{
	struct fixture *f = *state;
	uint8_t ipc[GPU_IPC_BYTES] = {0};
	struct gpu_event *local, *shared, *imported = NULL;

	assert_int_equal(gpu_event_create(f->gpu, 0, &local), 0);
	assert_int_equal(gpu_event_create(f->gpu, GPU_EVENT_INTERPROCESS, &shared), 0);
	assert_int_equal(gpu_event_export(f->gpu, local, ipc), -EINVAL);
	assert_int_equal(gpu_event_import(f->gpu, ipc, &imported), -EINVAL); /* zeros */
	memset(ipc, 0xff, sizeof(ipc));
	assert_int_equal(gpu_event_import(f->gpu, ipc, &imported), -EINVAL);
	assert_int_equal(gpu_event_export(f->gpu, shared, ipc), 0);
	assert_int_equal(gpu_event_import(f->gpu, ipc, &imported), -EINVAL); /* imported by its creator */
	ipc[0] ^= 1;
	assert_int_equal(gpu_event_import(f->gpu, ipc, &imported), -EINVAL);
	assert_null(imported);
}

/* ---- two processes ---- */

/* Fork a process that runs `body` with one end of a socket pair. Its exit status is the return value of `body`. */
static pid_t peer_start(struct fixture *f, int (*body)(struct fixture *f, int socket), int *socket)
{
	int ends[2];
	pid_t pid;

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		close(ends[0]);
		_exit(body(f, ends[1]));
	}
	close(ends[1]);
	*socket = ends[0];
	return pid;
}

static void tell(int socket)
{
	assert_int_equal(send(socket, "!", 1, MSG_NOSIGNAL), 1);
}

static void hear(int socket)
{
	char byte;

	assert_int_equal(read(socket, &byte, 1), 1);
}

static void peer_ended_well(pid_t pid)
{
	int status;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0); /* otherwise the line of the peer's failed check, modulo 251 */
}

#define PEER_CHECK(condition) \
	do { \
		if (!(condition)) \
			return 1 + __LINE__ % 251; \
	} while (0)

static int peer_timeline(struct fixture *f, int socket)
{
	struct gpu_stream *stream;
	struct gpu *gpu;

	(void)socket;
	PEER_CHECK(gpu_open(&gpu_host_ops, 0, 0, &gpu) == 0);
	PEER_CHECK(gpu_host_register(gpu, f->words, f->page) == 0);
	PEER_CHECK(gpu_stream_create(gpu, &stream) == 0);
	PEER_CHECK(gpu_timeline_wait(gpu, stream, &f->words[1], 1) == 0);
	PEER_CHECK(gpu_timeline_write(gpu, stream, &f->words[2], 1) == 0);
	PEER_CHECK(gpu_stream_sync(gpu, stream) == 0);
	gpu_close(gpu);
	return 0;
}

static void test_a_timeline_crosses_processes(void **state)
{
	struct fixture *f = *state;
	int socket;
	pid_t peer = peer_start(f, peer_timeline, &socket);

	assert_int_equal(gpu_host_register(f->gpu, f->words, f->page), 0);
	assert_int_equal(gpu_stream_create(f->gpu, &f->stream), 0);
	assert_int_equal(gpu_timeline_write(f->gpu, f->stream, &f->words[1], 1), 0);
	assert_int_equal(gpu_timeline_wait(f->gpu, f->stream, &f->words[2], 1), 0);
	assert_int_equal(finish(f), 0);
	assert_true(f->words[2] == 1);
	peer_ended_well(peer);
	close(socket);
}

static int peer_memory(struct fixture *f, int socket)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control;
	struct gpu_export from;
	struct iovec data = {&from, sizeof(from)};
	struct msghdr message = {
		.msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	uint64_t handle, va;
	struct gpu *gpu;

	PEER_CHECK(recvmsg(socket, &message, MSG_CMSG_CLOEXEC) == sizeof(from));
	PEER_CHECK(CMSG_FIRSTHDR(&message));
	memcpy(&from.fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(from.fd));
	PEER_CHECK(gpu_open(&gpu_host_ops, 0, 0, &gpu) == 0);
	PEER_CHECK(gpu_import(gpu, &from, &handle) == 0);
	close(from.fd);
	PEER_CHECK(gpu_reserve(gpu, from.length, 0, &va) == 0);
	PEER_CHECK(gpu_map(gpu, va, from.length, handle) == 0);
	PEER_CHECK(gpu_access(gpu, va, from.length, GPU_ACCESS_READ_WRITE) == 0);
	PEER_CHECK(*(volatile uint32_t *)va == 51);
	*(volatile uint32_t *)va = 52;
	gpu_close(gpu);
	(void)f;
	return 0;
}

static void test_memory_crosses_processes(void **state)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control = {{0}};
	struct fixture *f = *state;
	struct gpu_export exported;
	struct iovec data = {&exported, sizeof(exported)};
	struct msghdr message = {
		.msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	uint64_t handle;
	int socket;
	pid_t peer = peer_start(f, peer_memory, &socket);

	map_at(f, 0); /* so that the slice does not begin at 0 */
	assert_int_equal(gpu_create(f->gpu, f->granularity, &handle), 0);
	assert_int_equal(gpu_map(f->gpu, at(f, 1), f->granularity, handle), 0);
	assert_int_equal(gpu_access(f->gpu, at(f, 1), f->granularity, GPU_ACCESS_READ_WRITE), 0);
	*(volatile uint32_t *)at(f, 1) = 51;
	assert_int_equal(gpu_export(f->gpu, handle, &exported), 0);
	assert_true(exported.offset != 0);
	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(header), &exported.fd, sizeof(int));
	assert_int_equal(sendmsg(socket, &message, MSG_NOSIGNAL), sizeof(exported));
	close(exported.fd);
	peer_ended_well(peer);
	assert_true(value_at(f, 1) == 52);
	close(socket);
}

/* Import the event, report its state, let a stream wait for it and then write a word. */
static int peer_event(struct fixture *f, int socket)
{
	uint8_t ipc[GPU_IPC_BYTES];
	struct gpu_stream *stream;
	struct gpu_event *event;
	struct gpu *gpu;

	PEER_CHECK(read(socket, ipc, sizeof(ipc)) == sizeof(ipc));
	PEER_CHECK(gpu_open(&gpu_host_ops, 0, 0, &gpu) == 0);
	PEER_CHECK(gpu_host_register(gpu, f->words, f->page) == 0);
	PEER_CHECK(gpu_stream_create(gpu, &stream) == 0);
	PEER_CHECK(gpu_event_import(gpu, ipc, &event) == 0);
	PEER_CHECK(gpu_event_query(gpu, event) == -EAGAIN);
	PEER_CHECK(gpu_event_export(gpu, event, ipc) == -EINVAL);
	PEER_CHECK(gpu_event_wait(gpu, stream, event) == 0);
	PEER_CHECK(gpu_timeline_write(gpu, stream, &f->words[2], 1) == 0);
	PEER_CHECK(__atomic_load_n(&f->words[2], __ATOMIC_ACQUIRE) == 0);
	PEER_CHECK(write(socket, "!", 1) == 1);
	PEER_CHECK(gpu_stream_sync(gpu, stream) == 0);
	PEER_CHECK(gpu_event_query(gpu, event) == 0);

	/* the importer may record it too */
	PEER_CHECK(gpu_event_record(gpu, event, stream) == 0);
	PEER_CHECK(gpu_stream_sync(gpu, stream) == 0);
	gpu_close(gpu);
	return 0;
}

static void test_an_event_crosses_processes(void **state)
{
	struct fixture *f = *state;
	uint8_t ipc[GPU_IPC_BYTES];
	struct gpu_event *event;
	int socket;
	pid_t peer = peer_start(f, peer_event, &socket);

	assert_int_equal(gpu_host_register(f->gpu, f->words, f->page), 0);
	assert_int_equal(gpu_stream_create(f->gpu, &f->stream), 0);
	assert_int_equal(gpu_event_create(f->gpu, GPU_EVENT_INTERPROCESS, &event), 0);
	close_gate(f);
	assert_int_equal(gpu_event_record(f->gpu, event, f->stream), 0);
	assert_int_equal(gpu_event_export(f->gpu, event, ipc), 0);
	assert_int_equal(write(socket, ipc, sizeof(ipc)), sizeof(ipc));
	hear(socket); /* the peer's stream waits now */
	assert_int_equal(gpu_event_query(f->gpu, event), -EAGAIN);
	open_gate(f);
	peer_ended_well(peer);
	assert_true(f->words[2] == 1);
	assert_int_equal(gpu_event_query(f->gpu, event), 0);
	close(socket);
}

/* Export an event that is never done and another that is destroyed, and run until the parent ends this process. */
static int peer_exporter(struct fixture *f, int socket)
{
	uint8_t ipc[3][GPU_IPC_BYTES];
	struct gpu_event *pending, *gone;
	struct gpu_stream *stream;
	struct gpu *gpu;
	int32_t number;
	char byte;

	PEER_CHECK(gpu_open(&gpu_host_ops, 0, 0, &gpu) == 0);
	PEER_CHECK(gpu_host_register(gpu, f->words, f->page) == 0);
	PEER_CHECK(gpu_stream_create(gpu, &stream) == 0);
	PEER_CHECK(gpu_event_create(gpu, GPU_EVENT_INTERPROCESS, &pending) == 0);
	PEER_CHECK(gpu_event_create(gpu, GPU_EVENT_INTERPROCESS, &gone) == 0);
	PEER_CHECK(gpu_timeline_wait(gpu, stream, &f->words[3], 1) == 0);
	PEER_CHECK(gpu_event_record(gpu, pending, stream) == 0);
	PEER_CHECK(gpu_event_export(gpu, pending, ipc[0]) == 0);
	PEER_CHECK(gpu_event_export(gpu, gone, ipc[1]) == 0);
	gpu_event_destroy(gpu, gone);
	memcpy(ipc[2], ipc[0], sizeof(ipc[2])); /* forged: it names this socket, which is not an event */
	number = socket;
	memcpy(ipc[2] + 8, &number, sizeof(number));
	PEER_CHECK(write(socket, ipc, sizeof(ipc)) == sizeof(ipc));
	PEER_CHECK(read(socket, &byte, 1) == 1);
	return 0;
}

static void test_an_imported_event_dies_with_its_process(void **state)
{
	struct fixture *f = *state;
	uint8_t ipc[3][GPU_IPC_BYTES], forged[GPU_IPC_BYTES];
	struct gpu_event *event, *none = NULL;
	int socket;
	pid_t peer = peer_start(f, peer_exporter, &socket);

	assert_int_equal(recv(socket, ipc, sizeof(ipc), MSG_WAITALL), sizeof(ipc));
	assert_int_equal(gpu_stream_create(f->gpu, &f->stream), 0);
	assert_int_equal(gpu_event_import(f->gpu, ipc[0], &event), 0);
	assert_int_equal(gpu_event_query(f->gpu, event), -EAGAIN);
	assert_int_equal(gpu_event_wait(f->gpu, f->stream, event), 0);

	assert_int_equal(gpu_event_import(f->gpu, ipc[1], &none), -ENODEV); /* destroyed: the descriptor is closed */
	assert_int_equal(gpu_event_import(f->gpu, ipc[2], &none), -ENODEV); /* a socket */
	memcpy(forged, ipc[0], sizeof(forged));
	forged[16] ^= 1; /* the cookie */
	assert_int_equal(gpu_event_import(f->gpu, forged, &none), -ENODEV);

	tell(socket);
	peer_ended_well(peer);
	assert_int_equal(finish(f), -ENODEV); /* the queued wait will never be satisfied */
	assert_int_equal(gpu_event_query(f->gpu, event), -ENODEV);
	assert_int_equal(gpu_event_wait(f->gpu, f->stream, event), -ENODEV);
	assert_int_equal(gpu_event_record(f->gpu, event, f->stream), -ENODEV);
	assert_int_equal(gpu_event_import(f->gpu, ipc[0], &none), -ESRCH);
	assert_null(none);
	gpu_event_destroy(f->gpu, event);
	close(socket);
}

/* Make each kind of call fail and then succeed, which shows that the failure has changed nothing. */

struct fault_case {
	struct fixture *f;
	struct gpu_event *event, *shared;
	struct gpu_export exported;
	uint64_t *memory;
	uint64_t va;
	uint8_t ipc[GPU_IPC_BYTES];
};

static int call_once(struct fault_case *c, enum gpu_call call)
{
	struct fixture *f = c->f;
	uint64_t one, two, handle;
	struct gpu_export exported;
	struct gpu_stream *stream;
	struct gpu_event *event;
	int rc;

	switch (call) {
	case GPU_CALL_GRANULARITY: return gpu_granularity(f->gpu, &one);
	case GPU_CALL_MEMORY_INFO: return gpu_memory_info(f->gpu, &one, &two);
	case GPU_CALL_CREATE: return gpu_create(f->gpu, f->granularity, &handle);
	case GPU_CALL_EXPORT:
		rc = gpu_create(f->gpu, f->granularity, &handle);
		assert_int_equal(rc, 0);
		rc = gpu_export(f->gpu, handle, &exported);
		if (rc == 0)
			close(exported.fd);
		return rc;
	case GPU_CALL_IMPORT: return gpu_import(f->gpu, &c->exported, &handle);
	case GPU_CALL_RESERVE: return gpu_reserve(f->gpu, f->granularity, 0, &c->va);
	case GPU_CALL_UNRESERVE: return gpu_unreserve(f->gpu, c->va, f->granularity);
	case GPU_CALL_MAP:
		assert_int_equal(gpu_create(f->gpu, f->granularity, &handle), 0);
		return gpu_map(f->gpu, at(f, 7), f->granularity, handle);
	case GPU_CALL_ACCESS: return gpu_access(f->gpu, at(f, 7), f->granularity, GPU_ACCESS_READ);
	case GPU_CALL_UNMAP: return gpu_unmap(f->gpu, at(f, 7), f->granularity);
	case GPU_CALL_STREAM_CREATE: return gpu_stream_create(f->gpu, &stream);
	case GPU_CALL_STREAM_ADOPT: return gpu_stream_adopt(f->gpu, f->stream, &stream);
	case GPU_CALL_STREAM_SYNC: return finish(f);
	case GPU_CALL_STREAM_QUERY: return gpu_stream_query(f->gpu, f->stream);
	case GPU_CALL_COPY: return gpu_copy(f->gpu, at(f, 0), at(f, 1), 4, f->stream);
	case GPU_CALL_FILL: return gpu_fill(f->gpu, at(f, 0), 1, 4, f->stream);
	case GPU_CALL_LAUNCH:
		/* zeros: no items */
		return block_copy_queue(f->gpu, &(struct block_copy_args){.count = 1}, f->stream);
	case GPU_CALL_EVENT_CREATE: return gpu_event_create(f->gpu, 0, &event);
	case GPU_CALL_EVENT_RECORD: return gpu_event_record(f->gpu, c->event, f->stream);
	case GPU_CALL_EVENT_QUERY: return gpu_event_query(f->gpu, c->event);
	case GPU_CALL_EVENT_WAIT: return gpu_event_wait(f->gpu, f->stream, c->event);
	case GPU_CALL_EVENT_EXPORT: return gpu_event_export(f->gpu, c->shared, c->ipc);
	/* -EINVAL: an event of this process */
	case GPU_CALL_EVENT_IMPORT: return gpu_event_import(f->gpu, c->ipc, &event);
	case GPU_CALL_HOST_REGISTER: return gpu_host_register(f->gpu, c->memory, f->page);
	case GPU_CALL_HOST_UNREGISTER: return gpu_host_unregister(f->gpu, c->memory);
	case GPU_CALL_TIMELINE_WRITE: return gpu_timeline_write(f->gpu, f->stream, &f->words[5], 1);
	case GPU_CALL_TIMELINE_WAIT: return gpu_timeline_wait(f->gpu, f->stream, &f->words[5], 0);
	case GPU_CALL_POOL_ALLOC: return gpu_pool_alloc(f->gpu, 4, f->stream, &one); /* -EOPNOTSUPP: without a driver */
	case GPU_CALL_POOL_FREE: return gpu_pool_free(f->gpu, at(f, 0), f->stream);
	case GPU_CALL_OPEN:
	case GPU_CALL_RELEASE:
	case GPU_CALL_KINDS: break;
	}
	fail();
	return 0;
}

static void test_every_kind_of_call_can_be_made_to_fail(void **state)
{
	/* in an order in which each call finds the state that it needs */
	static const enum gpu_call calls[] = {
		GPU_CALL_GRANULARITY,
		GPU_CALL_MEMORY_INFO,
		GPU_CALL_CREATE,
		GPU_CALL_EXPORT,
		GPU_CALL_IMPORT,
		GPU_CALL_RESERVE,
		GPU_CALL_UNRESERVE,
		GPU_CALL_MAP,
		GPU_CALL_ACCESS,
		GPU_CALL_UNMAP,
		GPU_CALL_STREAM_CREATE,
		GPU_CALL_STREAM_ADOPT,
		GPU_CALL_COPY,
		GPU_CALL_FILL,
		GPU_CALL_LAUNCH,
		GPU_CALL_TIMELINE_WRITE,
		GPU_CALL_TIMELINE_WAIT,
		GPU_CALL_EVENT_CREATE,
		GPU_CALL_EVENT_RECORD,
		GPU_CALL_EVENT_WAIT,
		GPU_CALL_STREAM_SYNC,
		GPU_CALL_STREAM_QUERY,
		GPU_CALL_EVENT_QUERY,
		GPU_CALL_EVENT_EXPORT,
		GPU_CALL_EVENT_IMPORT,
		GPU_CALL_HOST_REGISTER,
		GPU_CALL_HOST_UNREGISTER,
		GPU_CALL_POOL_ALLOC,
		GPU_CALL_POOL_FREE,
	};
	struct fixture *f = *state;
	struct fault_case c = {.f = f, .memory = page_new(f->page)};
	uint64_t handle, before;

	/* all kinds except these, and OPEN and RELEASE, which test_gpu_host.c tests */
	assert_int_equal(sizeof(calls) / sizeof(*calls), GPU_CALL_KINDS - 2);
	assert_int_equal(gpu_create(f->gpu, f->granularity, &handle), 0);
	assert_int_equal(gpu_export(f->gpu, handle, &c.exported), 0);
	assert_int_equal(gpu_event_create(f->gpu, 0, &c.event), 0);
	assert_int_equal(gpu_event_create(f->gpu, GPU_EVENT_INTERPROCESS, &c.shared), 0);
	for (size_t i = 0; i < sizeof(calls) / sizeof(*calls); i++) {
		enum gpu_call call = calls[i];

		before = gpu_calls(f->gpu, call);
		gpu_fault_set(f->gpu, call, 1, -EILSEQ);
		assert_int_equal(call_once(&c, call), -EILSEQ);
		assert_non_null(strstr(gpu_error_text(), gpu_call_name(call)));
		assert_int_equal(call_once(&c, call),
			call == GPU_CALL_EVENT_IMPORT                                       ? -EINVAL
				: call == GPU_CALL_POOL_ALLOC || call == GPU_CALL_POOL_FREE ? -EOPNOTSUPP
											    : 0);
		assert_true(gpu_calls(f->gpu, call) == before + 2);
	}
	assert_int_equal(finish(f), 0);
	close(c.exported.fd);
	munmap(c.memory, f->page);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_a_timeline_crosses_processes, setup_device, teardown),
		cmocka_unit_test_setup_teardown(test_memory_crosses_processes, setup_device, teardown),
		cmocka_unit_test_setup_teardown(test_an_event_crosses_processes, setup_device, teardown),
		cmocka_unit_test_setup_teardown(test_an_imported_event_dies_with_its_process, setup_device, teardown),
		cmocka_unit_test_setup_teardown(test_fill_and_copy_move_the_bytes, setup, teardown),
		cmocka_unit_test_setup_teardown(test_work_uses_only_the_memory_that_it_writes, setup, teardown),
		cmocka_unit_test_setup_teardown(test_bad_arguments_are_refused_when_queued, setup, teardown),
		cmocka_unit_test_setup_teardown(test_the_host_continues_while_work_is_queued, setup, teardown),
		cmocka_unit_test_setup_teardown(test_memory_in_use_cannot_be_taken_away, setup, teardown),
		cmocka_unit_test_setup_teardown(test_a_bad_access_is_an_error_at_the_next_sync, setup, teardown),
		cmocka_unit_test_setup_teardown(test_a_sticky_fault_ends_all_work, setup_sticky, teardown),
		cmocka_unit_test_setup_teardown(test_mapping_before_queued_work_runs_is_in_time, setup, teardown),
		cmocka_unit_test_setup_teardown(test_destroy_lets_queued_work_finish, setup, teardown),
		cmocka_unit_test_setup_teardown(test_close_ends_a_wait_without_end, setup, teardown),
		cmocka_unit_test_setup_teardown(test_threads_that_synchronize_keep_the_order, setup, teardown),
		cmocka_unit_test_setup_teardown(test_a_device_keeps_to_its_own, setup, teardown),
		cmocka_unit_test_setup_teardown(test_registration_takes_whole_writable_pages_once, setup, teardown),
		cmocka_unit_test_setup_teardown(test_timeline_words_are_aligned_and_registered, setup, teardown),
		cmocka_unit_test_setup_teardown(test_a_timeline_joins_two_streams, setup, teardown),
		cmocka_unit_test_setup_teardown(test_an_event_never_recorded_is_done, setup, teardown),
		cmocka_unit_test_setup_teardown(test_a_wait_is_for_the_record_before_it, setup, teardown),
		cmocka_unit_test_setup_teardown(test_too_many_unfinished_records_are_refused, setup, teardown),
		cmocka_unit_test_setup_teardown(test_event_bytes_that_are_none_are_refused, setup, teardown),
		cmocka_unit_test_setup_teardown(test_every_kind_of_call_can_be_made_to_fail, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
