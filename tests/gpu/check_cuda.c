/*
 * check_cuda.c - check that the back end `cuda`, with its driver, satisfies the contract of cuda/gpu.h.
 *
 * Goal: the rules that tests/unit/test_gpu_host*.c check on `host` also apply to a real GPU, so that results on `host`
 * are valid for it. Only rules that the driver does not enforce (no unmap while work is running) are excluded. Method:
 * as in those tests. A timeline wait holds streams back, so that "not done yet" is certain. Other processes are this
 * program, executed again. `check_cuda --backend host` runs the same checks on the host back end, to test the checks.
 *
 * Exit status: 0: passed; 1: failed; 77: no GPU (the reason is printed).
 *
 * Requirements: D1.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "cuda/gpu.h"
#include "cuda/kernels/block_copy.h"
#include "tests/gpu/peer.h"

enum {
	EXIT_SKIP = 77,
	HANDLES = 4,
	WORDS_BYTES = 65536, /* a multiple of the page size on every machine with a GPU */
	HANG_LIMIT_S = 240,  /* a stream that is never released must not block a test run; all checks take seconds */
};

static const struct gpu_ops *ops;
static const char *backend = "cuda";
static const char *program;

struct fixture {
	struct gpu *gpu;
	uint64_t size; /* size of a handle: the granularity, about 2 MB */
	uint64_t va;   /* address range for twice the handles; the first HANDLES are mapped with access */
	uint64_t handles[HANDLES];
	struct gpu_stream *stream;
	uint64_t *words; /* registered memory in a memfd */
	int words_fd;
	uint32_t capabilities;
};

/* A message between this process and a peer. */
struct parcel {
	struct gpu_export memory;
	uint8_t ipc[GPU_IPC_BYTES];
	int32_t rc;
	char text[256];
};

static int words_open(struct fixture *f)
{
	f->words = mmap(NULL, WORDS_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, f->words_fd, 0);
	if (f->words == MAP_FAILED)
		return -errno;
	return gpu_host_register(f->gpu, f->words, WORDS_BYTES);
}

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));
	struct gpu_device_info info;

	assert_non_null(f);
	assert_int_equal(ops->device_info(0, &info), 0);
	f->capabilities = info.capabilities;
	assert_int_equal(gpu_open(ops, 0, 0, &f->gpu), 0);
	assert_int_equal(gpu_granularity(f->gpu, &f->size), 0);
	assert_int_equal(gpu_reserve(f->gpu, 2 * HANDLES * f->size, 0, &f->va), 0);
	for (uint64_t i = 0; i < HANDLES; i++) {
		assert_int_equal(gpu_create(f->gpu, f->size, &f->handles[i]), 0);
		assert_int_equal(gpu_map(f->gpu, f->va + i * f->size, f->size, f->handles[i]), 0);
	}
	assert_int_equal(gpu_access(f->gpu, f->va, HANDLES * f->size, GPU_ACCESS_READ_WRITE), 0);
	f->words_fd = memfd_create("check-words", MFD_CLOEXEC);
	assert_true(f->words_fd >= 0);
	assert_int_equal(ftruncate(f->words_fd, WORDS_BYTES), 0);
	assert_int_equal(words_open(f), 0);
	assert_int_equal(gpu_stream_create(f->gpu, &f->stream), 0);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	/* Release streams that a failed test has left waiting. */
	for (size_t i = 0; i < WORDS_BYTES / sizeof(*f->words); i++)
		__atomic_store_n(&f->words[i], UINT64_MAX / 2, __ATOMIC_RELEASE);
	gpu_stream_destroy(f->gpu, f->stream);
	for (uint64_t i = 0; i < 2 * HANDLES; i++)
		gpu_unmap(f->gpu, f->va + i * f->size, f->size); /* fails for handles that are not mapped */
	gpu_unreserve(f->gpu, f->va, 2 * HANDLES * f->size);
	for (int i = 0; i < HANDLES; i++)
		gpu_release(f->gpu, f->handles[i]);
	gpu_host_unregister(f->gpu, f->words);
	gpu_close(f->gpu);
	munmap(f->words, WORDS_BYTES);
	close(f->words_fd);
	free(f);
	return 0;
}

static uint64_t at(const struct fixture *f, uint64_t index)
{
	return f->va + index * f->size;
}

static void write_value(struct fixture *f, uint64_t va, uint32_t value)
{
	assert_int_equal(gpu_fill(f->gpu, va, value, 4096, f->stream), 0);
	assert_int_equal(gpu_stream_sync(f->gpu, f->stream), 0);
}

/* read_value() - read through the last registered word, since the CPU cannot access device memory. */
static uint32_t read_value(struct fixture *f, uint64_t va)
{
	uint32_t *word = (uint32_t *)((uint8_t *)f->words + WORDS_BYTES - 64);

	assert_int_equal(gpu_copy(f->gpu, (uintptr_t)word, va, sizeof(*word), f->stream), 0);
	assert_int_equal(gpu_stream_sync(f->gpu, f->stream), 0);
	return *word;
}

static void needs(struct fixture *f, uint32_t capability)
{
	if (!(f->capabilities & capability)) {
		print_message("the device lacks capability 0x%x\n", capability);
		skip();
	}
}

/* Block the stream on the first word until open_gate(). */
static void close_gate(struct fixture *f)
{
	needs(f, GPU_CAP_TIMELINE);
	assert_int_equal(gpu_timeline_wait(f->gpu, f->stream, &f->words[0], 1), 0);
}

static void open_gate(struct fixture *f)
{
	__atomic_store_n(&f->words[0], 1, __ATOMIC_RELEASE);
}

/* ---- one process ---- */

static void test_devices_are_found_by_index_and_uuid(void **state)
{
	struct gpu_device_info info;

	(void)state;
	assert_int_equal(ops->device_info(0, &info), 0);
	print_message("%s, %s, %.1f GB, capabilities 0x%x\n", info.name, info.uuid, (double)info.memory_bytes / 1e9,
		info.capabilities);
	assert_true(info.name[0] && info.memory_bytes > 0);
	assert_int_equal(strlen(info.uuid), backend[0] == 'c' ? 40 : 41);
	assert_int_equal(gpu_device_find(ops, info.uuid), 0);
	/* nvidia-smi shows a slice of a GPU with this prefix. */
	if (!strncmp(info.uuid, "GPU-", 4)) {
		memcpy(info.uuid, "MIG", 3);
		assert_int_equal(gpu_device_find(ops, info.uuid), 0);
	}
	assert_int_equal(gpu_device_find(ops, "0"), 0);
	assert_int_equal(gpu_device_find(ops, "GPU-no-such-device"), -ENODEV);
	assert_true(ops->device_info(ops->device_count(), &info) < 0);
}

static void test_streams_of_others_are_not_adopted(void **state)
{
	struct fixture *f = *state;
	struct gpu_stream *stream, *of_other;
	struct gpu *other;

	assert_int_equal(gpu_stream_adopt(f->gpu, f->stream, &stream), 0);
	assert_ptr_equal(stream, f->stream);
	/* The back end `host` has no default streams. */
	assert_int_equal(gpu_stream_adopt(f->gpu, GPU_STREAM_PER_THREAD, &stream), backend[0] == 'c' ? 0 : -EOPNOTSUPP);
	assert_int_equal(gpu_stream_adopt(f->gpu, GPU_STREAM_LEGACY, &stream), backend[0] == 'c' ? 0 : -EINVAL);
	if (ops->device_count() < 2)
		return;
	assert_int_equal(gpu_open(ops, 1, 0, &other), 0);
	assert_int_equal(gpu_stream_create(other, &of_other), 0);
	assert_int_equal(gpu_stream_adopt(f->gpu, of_other, &stream), -EINVAL);
	gpu_stream_destroy(other, of_other);
	gpu_close(other);
}

static void test_memory_info_is_sound(void **state)
{
	struct fixture *f = *state;
	uint64_t free_bytes, total;

	assert_int_equal(gpu_memory_info(f->gpu, &free_bytes, &total), 0);
	assert_true(free_bytes <= total && total > 0);
}

static void test_create_takes_multiples_of_the_granularity(void **state)
{
	struct fixture *f = *state;
	uint64_t handle = 7, free_bytes, total;

	assert_true(f->size >= 4096 && (f->size & (f->size - 1)) == 0);
	assert_int_equal(gpu_create(f->gpu, f->size / 2, &handle), -EINVAL);
	assert_int_equal(gpu_create(f->gpu, f->size + 1, &handle), -EINVAL);
	assert_int_equal(gpu_memory_info(f->gpu, &free_bytes, &total), 0);
	assert_int_equal(gpu_create(f->gpu, (total / f->size + 1) * f->size, &handle), -ENOMEM);
	assert_true(gpu_error_text()[0] != '\0');
	assert_true(handle == 7);
}

static void test_a_stale_handle_is_refused(void **state)
{
	struct fixture *f = *state;
	struct gpu_export exported;
	uint64_t old, new;

	assert_int_equal(gpu_create(f->gpu, f->size, &old), 0);
	gpu_release(f->gpu, old);
	assert_int_equal(gpu_create(f->gpu, f->size, &new), 0);
	assert_int_equal(gpu_map(f->gpu, at(f, HANDLES), f->size, old), -EINVAL);
	assert_int_equal(gpu_export(f->gpu, old, &exported), -EINVAL);
	gpu_release(f->gpu, old);
	assert_int_equal(gpu_map(f->gpu, at(f, HANDLES), f->size, new), 0);
	gpu_release(f->gpu, new);
}

static void test_map_refuses_all_but_whole_handles_in_free_places(void **state)
{
	struct fixture *f = *state;
	uint64_t big, g = f->size, end = at(f, 2 * HANDLES);

	assert_int_equal(gpu_create(f->gpu, 2 * g, &big), 0);
	assert_int_equal(gpu_map(f->gpu, at(f, HANDLES), 3 * g, big), -EINVAL);
	assert_int_equal(gpu_map(f->gpu, at(f, HANDLES) + g / 2, 2 * g, big), -EINVAL);
	assert_int_equal(gpu_map(f->gpu, end - g, 2 * g, big), -EINVAL);
	assert_int_equal(gpu_map(f->gpu, at(f, HANDLES - 1), 2 * g, big), -EINVAL); /* the addresses are in use */
	assert_int_equal(gpu_map(f->gpu, at(f, HANDLES), 2 * g, big), 0);
	assert_int_equal(gpu_unmap(f->gpu, at(f, HANDLES), 2 * g), 0);
	gpu_release(f->gpu, big);
}

static void test_a_run_maps_each_handle_and_ends_at_an_error(void **state)
{
	struct fixture *f = *state;
	uint64_t run[] = {f->handles[2], f->handles[1], f->handles[0]};
	uint32_t mapped;

	write_value(f, at(f, 0), 20);
	write_value(f, at(f, 2), 22);
	assert_int_equal(gpu_map_run(f->gpu, at(f, HANDLES), f->size, run, 3, &mapped), 0);
	assert_int_equal(mapped, 3);
	assert_int_equal(gpu_access(f->gpu, at(f, HANDLES), 3 * f->size, GPU_ACCESS_READ_WRITE), 0);
	assert_true(read_value(f, at(f, HANDLES)) == 22);
	assert_true(read_value(f, at(f, HANDLES + 2)) == 20);
	assert_int_equal(gpu_unmap(f->gpu, at(f, HANDLES), 2 * f->size), 0);
	assert_int_equal(gpu_map_run(f->gpu, at(f, HANDLES), f->size, run, 3, &mapped), -EINVAL);
	assert_int_equal(mapped, 2); /* the third place is in use */
}

static void test_access_covers_runs_but_no_holes(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(gpu_access(f->gpu, f->va, (HANDLES + 1) * f->size, GPU_ACCESS_READ), -EINVAL);
	assert_int_equal(gpu_access(f->gpu, at(f, HANDLES), f->size, GPU_ACCESS_READ), -EINVAL);
	assert_int_equal(gpu_access(f->gpu, f->va, HANDLES * f->size, GPU_ACCESS_READ), 0);
	assert_int_equal(gpu_access(f->gpu, f->va, HANDLES * f->size, GPU_ACCESS_READ_WRITE), 0);
	write_value(f, at(f, 1), 6);
	assert_true(read_value(f, at(f, 1)) == 6);
}

static void test_peers_are_other_devices_and_once(void **state)
{
	const int self[] = {0}, twice[] = {1, 1}, none[] = {ops->device_count()};
	struct fixture *f = *state;

	assert_int_equal(gpu_peers_set(f->gpu, NULL, 1), -EINVAL);
	assert_int_equal(gpu_peers_set(f->gpu, self, GPU_PEERS_MAX + 1), -EINVAL);
	assert_int_equal(gpu_peers_set(f->gpu, self, 1), -EINVAL);
	assert_int_equal(gpu_peers_set(f->gpu, twice, 2), -EINVAL);
	assert_int_equal(gpu_peers_set(f->gpu, none, 1), -ENODEV);
	assert_int_equal(gpu_peers_set(f->gpu, NULL, 0), 0);
}

static void test_unmap_takes_whole_mappings_in_a_row(void **state)
{
	struct fixture *f = *state;
	uint64_t big, g = f->size;

	assert_int_equal(gpu_create(f->gpu, 2 * g, &big), 0);
	assert_int_equal(gpu_map(f->gpu, at(f, HANDLES), 2 * g, big), 0);
	assert_int_equal(gpu_unmap(f->gpu, at(f, HANDLES), g), -EINVAL);
	assert_int_equal(gpu_unmap(f->gpu, at(f, 0), (HANDLES + 1) * g), -EINVAL);
	assert_int_equal(gpu_unmap(f->gpu, at(f, HANDLES + 2), g), -EINVAL);
	assert_int_equal(gpu_unreserve(f->gpu, f->va, 2 * HANDLES * g), -EINVAL);
	assert_int_equal(gpu_unmap(f->gpu, f->va, (HANDLES + 2) * g), 0);
	assert_int_equal(gpu_map(f->gpu, at(f, 1), g, f->handles[0]), 0);
	gpu_release(f->gpu, big);
}

static void test_memory_outlives_its_handle_while_mapped(void **state)
{
	struct fixture *f = *state;
	uint64_t handle;

	assert_int_equal(gpu_create(f->gpu, f->size, &handle), 0);
	assert_int_equal(gpu_map(f->gpu, at(f, HANDLES), f->size, handle), 0);
	assert_int_equal(gpu_access(f->gpu, at(f, HANDLES), f->size, GPU_ACCESS_READ_WRITE), 0);
	gpu_release(f->gpu, handle);
	write_value(f, at(f, HANDLES), 17);
	assert_true(read_value(f, at(f, HANDLES)) == 17);
}

static void test_two_mappings_show_the_same_memory(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(gpu_map(f->gpu, at(f, HANDLES), f->size, f->handles[2]), 0);
	assert_int_equal(gpu_access(f->gpu, at(f, HANDLES), f->size, GPU_ACCESS_READ_WRITE), 0);
	write_value(f, at(f, 2), 18);
	assert_true(read_value(f, at(f, HANDLES)) == 18);
}

static void test_memory_moves_between_addresses(void **state)
{
	struct fixture *f = *state;

	write_value(f, at(f, 3), 19);
	assert_int_equal(gpu_unmap(f->gpu, at(f, 3), f->size), 0);
	assert_int_equal(gpu_map(f->gpu, at(f, HANDLES + 1), f->size, f->handles[3]), 0);
	assert_int_equal(gpu_access(f->gpu, at(f, HANDLES + 1), f->size, GPU_ACCESS_READ), 0);
	assert_true(read_value(f, at(f, HANDLES + 1)) == 19);
}

static void test_fill_and_copy_move_the_bytes(void **state)
{
	struct fixture *f = *state;
	uint32_t *words = (uint32_t *)f->words;

	assert_int_equal(gpu_fill(f->gpu, at(f, 0), 0xdeadbeef, 2 * f->size, f->stream), 0);
	assert_int_equal(gpu_fill(f->gpu, at(f, 0) + 4, 7, 8, f->stream), 0);
	assert_int_equal(gpu_copy(f->gpu, at(f, 2), at(f, 0), f->size, f->stream), 0);
	assert_int_equal(gpu_copy(f->gpu, (uintptr_t)&words[256], at(f, 2), 16, f->stream), 0);
	assert_int_equal(gpu_stream_sync(f->gpu, f->stream), 0);
	assert_true(words[256] == 0xdeadbeef && words[257] == 7 && words[258] == 7 && words[259] == 0xdeadbeef);
	words[256] = 1234;
	assert_int_equal(gpu_copy(f->gpu, at(f, 3), (uintptr_t)&words[256], 4, f->stream), 0);
	assert_true(read_value(f, at(f, 3)) == 1234);
	assert_true(read_value(f, at(f, 2) - 4) == 0xdeadbeef);
}

/* The driver's stream-ordered pool, which keeps freed memory. */
static void test_the_pool_of_the_driver(void **state)
{
	struct fixture *f = *state;
	uint64_t va = 0, again, held = 1, used = 1;

	if (!(f->capabilities & GPU_CAP_POOL)) {
		assert_int_equal(gpu_pool_alloc(f->gpu, 4096, f->stream, &va), -EOPNOTSUPP);
		assert_int_equal(gpu_pool_free(f->gpu, at(f, 0), f->stream), -EOPNOTSUPP);
		assert_int_equal(gpu_pool_info(f->gpu, &held, &used), -EOPNOTSUPP);
		assert_true(va == 0 && held == 1 && used == 1);
		return;
	}
	assert_int_equal(gpu_pool_alloc(f->gpu, 0, f->stream, &va), -EINVAL);
	assert_int_equal(gpu_pool_alloc(f->gpu, 3 << 20, f->stream, &va), 0);
	assert_int_equal(gpu_fill(f->gpu, va, 0xfeedface, 3 << 20, f->stream), 0);
	assert_int_equal(gpu_copy(f->gpu, at(f, 0), va + (2 << 20), 4096, f->stream), 0);
	assert_int_equal(gpu_stream_sync(f->gpu, f->stream), 0);
	assert_int_equal(read_value(f, at(f, 0)), 0xfeedface);
	assert_int_equal(gpu_pool_info(f->gpu, &held, &used), 0);
	assert_true(used >= 3 << 20 && held >= used);
	/* Memory that was freed on a stream is reused by the same stream and is not returned to the device. */
	assert_int_equal(gpu_pool_free(f->gpu, va, f->stream), 0);
	assert_int_equal(gpu_pool_alloc(f->gpu, 3 << 20, f->stream, &again), 0);
	assert_int_equal(gpu_stream_sync(f->gpu, f->stream), 0);
	assert_int_equal(gpu_pool_free(f->gpu, again, f->stream), 0);
	assert_int_equal(gpu_stream_sync(f->gpu, f->stream), 0);
	assert_int_equal(gpu_pool_info(f->gpu, &held, &used), 0);
	assert_true(used == 0 && held >= 3 << 20);
}

static void test_the_host_continues_while_work_is_queued(void **state)
{
	struct fixture *f = *state;
	struct gpu_event *event;

	assert_int_equal(gpu_event_create(f->gpu, 0, &event), 0);
	assert_int_equal(gpu_event_query(f->gpu, event), 0); /* never recorded */
	close_gate(f);
	assert_int_equal(gpu_timeline_write(f->gpu, f->stream, &f->words[8], 9), 0);
	assert_int_equal(gpu_event_record(f->gpu, event, f->stream), 0);
	assert_int_equal(gpu_event_query(f->gpu, event), -EAGAIN);
	assert_true(__atomic_load_n(&f->words[8], __ATOMIC_ACQUIRE) == 0);
	open_gate(f);
	assert_int_equal(gpu_stream_sync(f->gpu, f->stream), 0);
	assert_true(f->words[8] == 9);
	assert_int_equal(gpu_event_query(f->gpu, event), 0);
	gpu_event_destroy(f->gpu, event);
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
	assert_int_equal(gpu_event_record(f->gpu, event, f->stream), 0);
	assert_int_equal(gpu_event_wait(f->gpu, second, event), 0);
	assert_int_equal(gpu_timeline_write(f->gpu, second, &f->words[8], 1), 0);
	assert_int_equal(gpu_event_record(f->gpu, event, third), 0);
	assert_int_equal(gpu_stream_sync(f->gpu, third), 0);
	assert_true(__atomic_load_n(&f->words[8], __ATOMIC_ACQUIRE) == 0);
	open_gate(f);
	assert_int_equal(gpu_stream_sync(f->gpu, second), 0);
	assert_true(f->words[8] == 1);
	gpu_event_destroy(f->gpu, event);
	gpu_stream_destroy(f->gpu, second);
	gpu_stream_destroy(f->gpu, third);
}

static void test_registration_is_whole_pages_and_once(void **state)
{
	struct fixture *f = *state;
	uint64_t unregistered = 0;

	assert_int_equal(gpu_host_register(f->gpu, f->words, WORDS_BYTES), -EINVAL);
	assert_int_equal(gpu_host_register(f->gpu, (uint8_t *)f->words + 8, 4096), -EINVAL);
	assert_int_equal(gpu_host_unregister(f->gpu, &unregistered), -EINVAL);
	needs(f, GPU_CAP_TIMELINE);
	assert_int_equal(gpu_timeline_write(f->gpu, f->stream, &unregistered, 1), -EINVAL);
	assert_int_equal(gpu_timeline_write(f->gpu, f->stream, f->words + WORDS_BYTES / 8, 1), -EINVAL);
	assert_int_equal(gpu_timeline_write(f->gpu, f->stream, f->words + WORDS_BYTES / 8 - 1, 4), 0);
	assert_int_equal(gpu_stream_sync(f->gpu, f->stream), 0);
	assert_true(f->words[WORDS_BYTES / 8 - 1] == 4);
}

/* Kernels and fills use registered memory by the address that gpu_host_address() returns. */
static void test_kernels_and_fills_use_registered_memory(void **state)
{
	struct block_copy_args args = {.bytes_max = 8, .count = 1};
	struct fixture *f = *state;
	uint64_t unregistered = 0, va, word;

	assert_int_equal(gpu_host_address(f->gpu, &unregistered, &va), -EINVAL);
	assert_int_equal(gpu_host_address(f->gpu, f->words + WORDS_BYTES / 8, &va), -EINVAL);
	assert_int_equal(gpu_host_address(f->gpu, f->words, &va), 0);
	assert_int_equal(gpu_host_address(f->gpu, f->words + 3, &word), 0);
	assert_true(word == va + 24);
	write_value(f, va, 0x1234);
	assert_true(f->words[0] == 0x123400001234 && f->words[3] == 0x123400001234);
	needs(f, GPU_CAP_KERNELS);
	f->words[1] = 7;
	args.items[0] = (struct block_copy_item){.to = at(f, 1), .from = va + 8, .bytes = 8};
	assert_int_equal(block_copy_queue(f->gpu, &args, f->stream), 0);
	args.items[0] = (struct block_copy_item){.to = word, .from = at(f, 1), .bytes = 8};
	assert_int_equal(block_copy_queue(f->gpu, &args, f->stream), 0);
	assert_int_equal(gpu_stream_sync(f->gpu, f->stream), 0);
	assert_true(f->words[3] == 7);
}

static void test_registration_is_per_process(void **state)
{
	const uint64_t bytes = WORDS_BYTES;
	struct fixture *f = *state;
	struct gpu *other;
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_true(memory != MAP_FAILED);
	assert_int_equal(gpu_open(ops, ops->device_count() - 1, 0, &other), 0);
	assert_int_equal(gpu_host_register(f->gpu, memory, bytes), 0);
	assert_int_equal(gpu_host_register(other, memory, bytes), -EINVAL);
	assert_int_equal(gpu_host_unregister(other, memory), -EINVAL);
	assert_int_equal(gpu_host_unregister(f->gpu, memory), 0);
	assert_int_equal(gpu_host_register(other, memory, bytes), 0);
	gpu_close(other); /* unregisters it */
	assert_int_equal(gpu_host_register(f->gpu, memory, bytes), 0);
	assert_int_equal(gpu_host_unregister(f->gpu, memory), 0);
	munmap(memory, bytes);
}

static void test_waits_block_if_asked_for(void **state)
{
	enum { SCHED_MASK = 7, SCHED_BLOCKING_SYNC = 4 }; /* CU_CTX_SCHED_MASK, CU_CTX_SCHED_BLOCKING_SYNC */
	struct fixture *f = *state;
	int (*flags_get)(int device, unsigned *flags, int *active);
	unsigned flags;
	struct gpu *gpu;
	void *library;
	int active;

	assert_int_equal(gpu_open(ops, 0, GPU_OPEN_BLOCKING, &gpu), 0);
	gpu_close(gpu);
	if (backend[0] != 'c')
		return;
	library = dlopen("libcuda.so.1", RTLD_NOW);
	assert_non_null(library);
	*(void **)&flags_get = dlsym(library, "cuDevicePrimaryCtxGetState");
	assert_non_null(flags_get);
	assert_int_equal(flags_get(0, &flags, &active), 0);
	assert_int_equal(flags & SCHED_MASK, SCHED_BLOCKING_SYNC);
	assert_true(f->gpu && active);
	dlclose(library);
}

static int peer_errors(struct fixture *f)
{
	struct gpu_event *event;
	int rc = gpu_open(ops, 0, 0, &f->gpu);

	if (rc == 0)
		rc = gpu_stream_create(f->gpu, &f->stream);
	if (rc == 0)
		rc = gpu_stream_sync(f->gpu, f->stream);
	if (rc == 0)
		rc = gpu_event_import(f->gpu, (const uint8_t[GPU_IPC_BYTES]){0}, &event);
	return -rc;
}

/* errno_of() - return the error that a peer process gets for an error of the double; `fault` is "CALL:N:ERROR". */
static int errno_of(const char *fault)
{
	char settings[256];
	int status;
	pid_t child;

	snprintf(settings, sizeof(settings), "%s fail=%s", getenv("GPU_DOUBLE") ? getenv("GPU_DOUBLE") : "", fault);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		setenv("GPU_DOUBLE", settings, 1);
		execl("/proc/self/exe", program, "--peer", "errors", (char *)NULL);
		_exit(255);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static void test_errors_of_the_driver_have_their_errno(void **state)
{
	static const struct {
		const char *fault;
		int expected;
	} cases[] = {
		{"cuStreamSynchronize:1:700", EIO},         /* CUDA_ERROR_ILLEGAL_ADDRESS */
		{"cuStreamSynchronize:1:716", EIO},         /* CUDA_ERROR_MISALIGNED_ADDRESS */
		{"cuStreamSynchronize:1:717", EIO},         /* CUDA_ERROR_INVALID_ADDRESS_SPACE */
		{"cuStreamSynchronize:1:719", EIO},         /* CUDA_ERROR_LAUNCH_FAILED */
		{"cuStreamSynchronize:1:701", EINVAL},      /* CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES */
		{"cuStreamSynchronize:1:702", EIO},         /* CUDA_ERROR_LAUNCH_TIMEOUT */
		{"cuStreamSynchronize:1:709", ENODEV},      /* CUDA_ERROR_CONTEXT_IS_DESTROYED */
		{"cuStreamSynchronize:1:806", ENODEV},      /* CUDA_ERROR_MPS_RPC_FAILURE */
		{"cuStreamSynchronize:1:810", ENODEV},      /* CUDA_ERROR_MPS_CLIENT_TERMINATED */
		{"cuIpcOpenEventHandle:1:205", ESRCH},      /* CUDA_ERROR_MAP_FAILED */
		{"cuDevicePrimaryCtxRetain:1:805", ENODEV}, /* CUDA_ERROR_MPS_CONNECTION_FAILED */
		{"cuDevicePrimaryCtxRetain:1:807", ENODEV}, /* CUDA_ERROR_MPS_SERVER_NOT_READY */
		{"cuDevicePrimaryCtxRetain:1:808", ENOMEM}, /* CUDA_ERROR_MPS_MAX_CLIENTS_REACHED */
		{"cuDevicePrimaryCtxRetain:1:809", ENOMEM}, /* CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED */
	};

	(void)state;
	if (backend[0] != 'c' || !getenv("GPU_DOUBLE_DIR"))
		return; /* only the double can be made to fail */
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
		if (errno_of(cases[i].fault) != cases[i].expected)
			fail_msg("%s: not errno %d", cases[i].fault, cases[i].expected);
}

static void test_an_owner_may_only_create_export_and_release(void **state)
{
	struct gpu_export exported;
	struct gpu_stream *stream;
	uint64_t granularity, handle, va;
	struct gpu *gpu;

	(void)state;
	assert_int_equal(gpu_open(ops, 0, GPU_OPEN_OWNER, &gpu), 0);
	assert_int_equal(gpu_granularity(gpu, &granularity), 0);
	assert_int_equal(gpu_create(gpu, granularity, &handle), 0);
	assert_int_equal(gpu_export(gpu, handle, &exported), 0);
	assert_int_equal(gpu_reserve(gpu, granularity, 0, &va), -EPERM);
	assert_int_equal(gpu_stream_create(gpu, &stream), -EPERM);
	gpu_release(gpu, handle);
	close(exported.fd);
	gpu_close(gpu);
}

static void test_counts_and_faults(void **state)
{
	struct fixture *f = *state;
	uint64_t handle, before = gpu_calls(f->gpu, GPU_CALL_CREATE);

	gpu_fault_set(f->gpu, GPU_CALL_CREATE, 2, -EIO);
	assert_int_equal(gpu_create(f->gpu, f->size, &handle), 0);
	gpu_release(f->gpu, handle);
	assert_int_equal(gpu_create(f->gpu, f->size, &handle), -EIO);
	assert_true(gpu_calls(f->gpu, GPU_CALL_CREATE) == before + 2);
}

/*
 * The following tests use a second process, the peer. It sends a parcel with an rc of 0, or with the line of its failed
 * check and the error text.
 */

#define PEER_CHECK(condition) \
	do { \
		if (!(condition)) { \
			peer_report(__LINE__); \
			return EXIT_FAILURE; \
		} \
	} while (0)

static void peer_report(int rc)
{
	struct parcel parcel = {.rc = rc};

	snprintf(parcel.text, sizeof(parcel.text), "%s", gpu_error_text());
	peer_send(PEER_SOCKET, &parcel, sizeof(parcel), -1);
}

static pid_t role_start(const char *role, int *socket)
{
	char *arguments[] = {(char *)program, "--backend", (char *)backend, "--peer", (char *)role, NULL};
	pid_t pid = peer_start(arguments, socket);

	assert_true(pid > 0);
	return pid;
}

static void receive_report(int socket, struct parcel *parcel)
{
	int fd;

	assert_int_equal(peer_receive(socket, parcel, sizeof(*parcel), &fd), 0);
	if (parcel->rc)
		print_error("the peer failed at line %d: %s\n", parcel->rc, parcel->text);
	assert_int_equal(parcel->rc, 0);
}

static void role_ended_well(pid_t pid, int socket)
{
	int status;

	close(socket);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* peer_memory() - import memory, check that it contains 51, and write 52. */
static int peer_memory(struct fixture *f)
{
	struct parcel parcel;
	uint64_t handle, va;
	int fd;

	PEER_CHECK(gpu_open(ops, 0, 0, &f->gpu) == 0);
	PEER_CHECK(peer_receive(PEER_SOCKET, &parcel, sizeof(parcel), &f->words_fd) == 0 && words_open(f) == 0);
	PEER_CHECK(gpu_stream_create(f->gpu, &f->stream) == 0);
	PEER_CHECK(peer_receive(PEER_SOCKET, &parcel, sizeof(parcel), &fd) == 0);
	parcel.memory.fd = fd;
	PEER_CHECK(gpu_import(f->gpu, &parcel.memory, &handle) == 0);
	close(fd);
	PEER_CHECK(gpu_reserve(f->gpu, parcel.memory.length, 0, &va) == 0);
	PEER_CHECK(gpu_map(f->gpu, va, parcel.memory.length, handle) == 0);
	PEER_CHECK(gpu_access(f->gpu, va, parcel.memory.length, GPU_ACCESS_READ_WRITE) == 0);
	PEER_CHECK(gpu_copy(f->gpu, (uintptr_t)&f->words[9], va, 4, f->stream) == 0);
	PEER_CHECK(gpu_stream_sync(f->gpu, f->stream) == 0);
	PEER_CHECK((uint32_t)f->words[9] == 51);
	PEER_CHECK(gpu_fill(f->gpu, va, 52, 4096, f->stream) == 0);
	PEER_CHECK(gpu_stream_sync(f->gpu, f->stream) == 0);
	peer_report(0);
	return EXIT_SUCCESS;
}

static void test_memory_crosses_processes(void **state)
{
	struct fixture *f = *state;
	struct parcel parcel = {0};
	int socket;
	pid_t peer = role_start("memory", &socket);

	write_value(f, at(f, 1), 51);
	assert_int_equal(peer_send(socket, &parcel, sizeof(parcel), f->words_fd), 0);
	assert_int_equal(gpu_export(f->gpu, f->handles[1], &parcel.memory), 0);
	assert_int_equal(fcntl(parcel.memory.fd, F_GETFD), FD_CLOEXEC);
	assert_true(parcel.memory.length == f->size);
	assert_int_equal(peer_send(socket, &parcel, sizeof(parcel), parcel.memory.fd), 0);
	close(parcel.memory.fd);
	receive_report(socket, &parcel);
	role_ended_well(peer, socket);
	assert_true(read_value(f, at(f, 1)) == 52);
}

static int peer_timeline(struct fixture *f)
{
	struct parcel parcel;

	PEER_CHECK(gpu_open(ops, 0, 0, &f->gpu) == 0);
	PEER_CHECK(peer_receive(PEER_SOCKET, &parcel, sizeof(parcel), &f->words_fd) == 0 && words_open(f) == 0);
	PEER_CHECK(gpu_stream_create(f->gpu, &f->stream) == 0);
	PEER_CHECK(gpu_timeline_wait(f->gpu, f->stream, &f->words[8], 1) == 0);
	PEER_CHECK(gpu_timeline_write(f->gpu, f->stream, &f->words[16], 1) == 0);
	PEER_CHECK(gpu_stream_sync(f->gpu, f->stream) == 0);
	peer_report(0);
	return EXIT_SUCCESS;
}

static void test_a_timeline_crosses_processes(void **state)
{
	struct fixture *f = *state;
	struct parcel parcel = {0};
	pid_t peer;
	int socket;

	needs(f, GPU_CAP_TIMELINE);
	peer = role_start("timeline", &socket);
	assert_int_equal(peer_send(socket, &parcel, sizeof(parcel), f->words_fd), 0);
	assert_int_equal(gpu_timeline_write(f->gpu, f->stream, &f->words[8], 1), 0);
	assert_int_equal(gpu_timeline_wait(f->gpu, f->stream, &f->words[16], 1), 0);
	assert_int_equal(gpu_stream_sync(f->gpu, f->stream), 0);
	assert_true(f->words[16] == 1);
	receive_report(socket, &parcel);
	role_ended_well(peer, socket);
}

static int peer_event(struct fixture *f)
{
	struct parcel parcel;
	struct gpu_event *event;
	int fd;

	PEER_CHECK(gpu_open(ops, 0, 0, &f->gpu) == 0);
	PEER_CHECK(gpu_stream_create(f->gpu, &f->stream) == 0);
	PEER_CHECK(peer_receive(PEER_SOCKET, &parcel, sizeof(parcel), &fd) == 0);
	PEER_CHECK(gpu_event_import(f->gpu, parcel.ipc, &event) == 0);
	PEER_CHECK(gpu_event_query(f->gpu, event) == -EAGAIN);
	PEER_CHECK(gpu_event_wait(f->gpu, f->stream, event) == 0);
	peer_report(0);
	PEER_CHECK(gpu_stream_sync(f->gpu, f->stream) == 0);
	PEER_CHECK(gpu_event_query(f->gpu, event) == 0);
	gpu_event_destroy(f->gpu, event);
	peer_report(0);
	return EXIT_SUCCESS;
}

static void test_an_event_crosses_processes(void **state)
{
	struct fixture *f = *state;
	struct gpu_event *event, *own;
	struct parcel parcel = {0};
	pid_t peer;
	int socket;

	needs(f, GPU_CAP_IPC_EVENT);
	assert_int_equal(gpu_event_create(f->gpu, GPU_EVENT_INTERPROCESS, &event), 0);
	close_gate(f);
	assert_int_equal(gpu_event_record(f->gpu, event, f->stream), 0);
	assert_int_equal(gpu_event_export(f->gpu, event, parcel.ipc), 0);
	assert_int_equal(gpu_event_import(f->gpu, parcel.ipc, &own), -EINVAL); /* by the process that created it */
	peer = role_start("event", &socket);
	assert_int_equal(peer_send(socket, &parcel, sizeof(parcel), -1), 0);
	receive_report(socket, &parcel); /* the peer has seen that the event is pending, and waits */
	open_gate(f);
	receive_report(socket, &parcel);
	role_ended_well(peer, socket);
	gpu_event_destroy(f->gpu, event);
}

/* peer_owner() - create and export memory without a context, and exit. */
static int peer_owner(struct fixture *f)
{
	struct parcel parcel = {0};
	uint64_t handle;

	PEER_CHECK(gpu_open(ops, 0, GPU_OPEN_OWNER, &f->gpu) == 0);
	PEER_CHECK(gpu_granularity(f->gpu, &f->size) == 0);
	PEER_CHECK(gpu_create(f->gpu, f->size, &handle) == 0);
	PEER_CHECK(gpu_export(f->gpu, handle, &parcel.memory) == 0);
	return peer_send(PEER_SOCKET, &parcel, sizeof(parcel), parcel.memory.fd) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

static void test_memory_outlives_its_owner(void **state)
{
	struct fixture *f = *state;
	struct parcel parcel;
	uint64_t handle;
	int socket, fd;
	pid_t peer = role_start("owner", &socket);

	assert_int_equal(peer_receive(socket, &parcel, sizeof(parcel), &fd), 0);
	role_ended_well(peer, socket);
	assert_int_equal(parcel.rc, 0);
	assert_true(fd >= 0);
	parcel.memory.fd = fd;
	assert_int_equal(gpu_import(f->gpu, &parcel.memory, &handle), 0);
	close(fd);
	assert_int_equal(gpu_map(f->gpu, at(f, HANDLES), f->size, handle), 0);
	assert_int_equal(gpu_access(f->gpu, at(f, HANDLES), f->size, GPU_ACCESS_READ_WRITE), 0);
	write_value(f, at(f, HANDLES), 61);
	assert_true(read_value(f, at(f, HANDLES)) == 61);
	gpu_release(f->gpu, handle);
}

static void test_a_wrong_length_is_not_mapped(void **state)
{
	struct fixture *f = *state;
	struct gpu_export parcel;
	uint64_t handle;
	int rc;

	assert_int_equal(gpu_export(f->gpu, f->handles[0], &parcel), 0);
	parcel.length = HANDLES * f->size * 1024; /* the file of `host` contains more than one handle */
	rc = gpu_import(f->gpu, &parcel, &handle);
	close(parcel.fd);
	assert_int_equal(rc, backend[0] == 'c' ? 0 : -EINVAL);
	if (rc)
		return;
	assert_int_equal(gpu_map(f->gpu, at(f, HANDLES), 2 * f->size, handle), -EINVAL);
	gpu_release(f->gpu, handle);
}

/* peer_device() - check that a device exists. This runs in a peer, since the check loads the driver. */
static int peer_device(struct fixture *f)
{
	int rc = gpu_open(ops, 0, 0, &f->gpu);

	peer_report(rc);
	return rc < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* device_missing() - return 0 if a device exists, otherwise print the reason and return the exit status. */
static int device_missing(void)
{
	char *arguments[] = {(char *)program, "--backend", (char *)backend, "--peer", "device", NULL};
	struct parcel parcel = {0};
	int socket = -1, fd, rc;
	pid_t peer = peer_start(arguments, &socket);

	rc = peer < 0 ? peer : peer_receive(socket, &parcel, sizeof(parcel), &fd);
	if (peer > 0) {
		close(socket);
		waitpid(peer, NULL, 0);
	}
	if (rc < 0) {
		fprintf(stderr, "check_cuda: cannot ask for a device: %s\n", strerror(-rc));
		return EXIT_FAILURE;
	}
	if (parcel.rc == 0)
		return 0;
	printf("check_cuda: skipped: %s\n", parcel.text);
	return parcel.rc == -ENODEV || parcel.rc == -EOPNOTSUPP ? EXIT_SKIP : EXIT_FAILURE;
}

static int role_run(const char *role)
{
	static const struct {
		const char *name;
		int (*run)(struct fixture *f);
	} roles[] = {
		{"memory", peer_memory},
		{"timeline", peer_timeline},
		{"event", peer_event},
		{"owner", peer_owner},
		{"device", peer_device},
		{"errors", peer_errors},
	};
	struct fixture f = {.words_fd = -1};

	for (size_t i = 0; i < sizeof(roles) / sizeof(*roles); i++)
		if (strcmp(roles[i].name, role) == 0)
			return roles[i].run(&f);
	return EXIT_FAILURE;
}

static int check_all(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_devices_are_found_by_index_and_uuid, setup, teardown),
		cmocka_unit_test_setup_teardown(test_streams_of_others_are_not_adopted, setup, teardown),
		cmocka_unit_test_setup_teardown(test_memory_info_is_sound, setup, teardown),
		cmocka_unit_test_setup_teardown(test_create_takes_multiples_of_the_granularity, setup, teardown),
		cmocka_unit_test_setup_teardown(test_a_stale_handle_is_refused, setup, teardown),
		cmocka_unit_test_setup_teardown(test_map_refuses_all_but_whole_handles_in_free_places, setup, teardown),
		cmocka_unit_test_setup_teardown(test_a_run_maps_each_handle_and_ends_at_an_error, setup, teardown),
		cmocka_unit_test_setup_teardown(test_access_covers_runs_but_no_holes, setup, teardown),
		cmocka_unit_test_setup_teardown(test_peers_are_other_devices_and_once, setup, teardown),
		cmocka_unit_test_setup_teardown(test_unmap_takes_whole_mappings_in_a_row, setup, teardown),
		cmocka_unit_test_setup_teardown(test_memory_outlives_its_handle_while_mapped, setup, teardown),
		cmocka_unit_test_setup_teardown(test_two_mappings_show_the_same_memory, setup, teardown),
		cmocka_unit_test_setup_teardown(test_memory_moves_between_addresses, setup, teardown),
		cmocka_unit_test_setup_teardown(test_fill_and_copy_move_the_bytes, setup, teardown),
		cmocka_unit_test_setup_teardown(test_the_pool_of_the_driver, setup, teardown),
		cmocka_unit_test_setup_teardown(test_the_host_continues_while_work_is_queued, setup, teardown),
		cmocka_unit_test_setup_teardown(test_a_wait_is_for_the_record_before_it, setup, teardown),
		cmocka_unit_test_setup_teardown(test_registration_is_whole_pages_and_once, setup, teardown),
		cmocka_unit_test_setup_teardown(test_kernels_and_fills_use_registered_memory, setup, teardown),
		cmocka_unit_test_setup_teardown(test_registration_is_per_process, setup, teardown),
		cmocka_unit_test_setup_teardown(test_an_owner_may_only_create_export_and_release, setup, teardown),
		cmocka_unit_test_setup_teardown(test_waits_block_if_asked_for, setup, teardown),
		cmocka_unit_test(test_errors_of_the_driver_have_their_errno),
		cmocka_unit_test_setup_teardown(test_counts_and_faults, setup, teardown),
		cmocka_unit_test_setup_teardown(test_memory_crosses_processes, setup, teardown),
		cmocka_unit_test_setup_teardown(test_a_timeline_crosses_processes, setup, teardown),
		cmocka_unit_test_setup_teardown(test_an_event_crosses_processes, setup, teardown),
		cmocka_unit_test_setup_teardown(test_memory_outlives_its_owner, setup, teardown),
		cmocka_unit_test_setup_teardown(test_a_wrong_length_is_not_mapped, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL) ? EXIT_FAILURE : EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
	const char *role = NULL;
	int missing;

	program = argv[0];
	for (int i = 1; i < argc; i += 2) {
		if (i + 1 < argc && strcmp(argv[i], "--backend") == 0) {
			backend = argv[i + 1];
		} else if (i + 1 < argc && strcmp(argv[i], "--peer") == 0) {
			role = argv[i + 1];
		} else {
			fprintf(stderr, "usage: check_cuda [--backend cuda|host]\n");
			return EXIT_FAILURE;
		}
	}
	ops = gpu_backend(backend);
	if (!ops) {
		fprintf(stderr, "check_cuda: no back end '%s'\n", backend);
		return EXIT_FAILURE;
	}
	alarm(HANG_LIMIT_S);
	if (role)
		return role_run(role);
	missing = device_missing();
	return missing ? missing : check_all();
}
