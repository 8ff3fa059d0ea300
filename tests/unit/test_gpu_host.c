/*
 * test_gpu_host.c - memory and address ranges of the back end `host` obey the rules of a GPU's driver.
 *
 * Goal: code that passes on `host` makes no call that CUDA would refuse. Each test states one rule of cuda/gpu.h, makes
 * calls that obey it and calls that violate it, and checks that a refusal changed nothing.
 *
 * Method: the actual state is read from the kernel. Access is tested with system calls that return EFAULT instead of
 * raising a signal, memory through the blocks of the arena, and mappings and descriptors through /proc.
 * test_gpu_host_stream.c tests streams and events.
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
#include <dirent.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "cuda/gpu.h"

enum { RANGE_GRANULES = 16 };

struct fixture {
	struct gpu *gpu;
	uint64_t granularity;
	uint64_t va; /* a reservation of RANGE_GRANULES */
};

static void settings_default(void)
{
	setenv("GPOOL_HOST_DEVICES", "2", 1);
	setenv("GPOOL_HOST_GRANULARITY", "64KiB", 1);
	setenv("GPOOL_HOST_MEMORY", "4GiB", 1);
	unsetenv("GPOOL_HOST_LACKS");
	unsetenv("GPOOL_HOST_FAULTS");
}

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	settings_default();
	assert_non_null(f);
	assert_int_equal(gpu_open(&gpu_host_ops, 0, 0, &f->gpu), 0);
	assert_int_equal(gpu_granularity(f->gpu, &f->granularity), 0);
	assert_int_equal(gpu_reserve(f->gpu, RANGE_GRANULES * f->granularity, 0, &f->va), 0);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	gpu_close(f->gpu);
	free(f);
	settings_default();
	return 0;
}

static uint64_t create(struct fixture *f, uint64_t granules)
{
	uint64_t handle = 0;

	assert_int_equal(gpu_create(f->gpu, granules * f->granularity, &handle), 0);
	assert_true(handle != 0);
	return handle;
}

/* Map a new handle of some granules at a granule of the reservation. */
static uint64_t put(struct fixture *f, uint64_t at, uint64_t granules)
{
	uint64_t handle = create(f, granules);

	assert_int_equal(gpu_map(f->gpu, f->va + at * f->granularity, granules * f->granularity, handle), 0);
	return handle;
}

static int set_access(struct fixture *f, uint64_t at, uint64_t granules, enum gpu_access access)
{
	return gpu_access(f->gpu, f->va + at * f->granularity, granules * f->granularity, access);
}

static int unmap(struct fixture *f, uint64_t at, uint64_t granules)
{
	return gpu_unmap(f->gpu, f->va + at * f->granularity, granules * f->granularity);
}

static volatile uint32_t *word_at(struct fixture *f, uint64_t at)
{
	return (volatile uint32_t *)(f->va + at * f->granularity);
}

/* Ask the kernel whether this address is accessible, without an access. */
static bool can_read(uint64_t va)
{
	int ends[2];
	bool can;

	assert_int_equal(pipe(ends), 0);
	can = write(ends[1], (const void *)va, 1) == 1;
	close(ends[0]);
	close(ends[1]);
	return can;
}

static bool can_write(uint64_t va)
{
	int ends[2];
	bool can;

	assert_int_equal(pipe(ends), 0);
	assert_int_equal(write(ends[1], "x", 1), 1);
	can = read(ends[0], (void *)va, 1) == 1;
	close(ends[0]);
	close(ends[1]);
	return can;
}

/* Return the memory of the file of an exported handle, in 512-byte blocks. */
static int64_t file_blocks(int fd)
{
	struct stat status;

	assert_int_equal(fstat(fd, &status), 0);
	return status.st_blocks;
}

static int open_descriptors(void)
{
	DIR *directory = opendir("/proc/self/fd");
	int count = 0;

	assert_non_null(directory);
	while (readdir(directory))
		count++;
	closedir(directory);
	return count;
}

/* Return the number of mappings in [va, va + bytes). */
static int mappings_in(uint64_t va, uint64_t bytes)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	unsigned long long begin, end;
	char line[512];
	int count = 0;

	assert_non_null(maps);
	while (fgets(line, sizeof(line), maps))
		if (sscanf(line, "%llx-%llx", &begin, &end) == 2 && begin < va + bytes && end > va)
			count++;
	fclose(maps);
	return count;
}

static uint64_t free_memory(struct gpu *gpu)
{
	uint64_t free_bytes = 0, total = 0;

	assert_int_equal(gpu_memory_info(gpu, &free_bytes, &total), 0);
	assert_true(free_bytes <= total);
	return free_bytes;
}

/* ---- back ends and devices ---- */

static void test_backends_are_found_by_name(void **state)
{
	(void)state;
	assert_ptr_equal(gpu_backend("host"), &gpu_host_ops);
	assert_ptr_equal(gpu_backend("cuda"), &gpu_cuda_ops);
	assert_null(gpu_backend("Host"));
	assert_null(gpu_backend(""));
	assert_null(gpu_backend(NULL));
}

static void test_no_operation_of_a_backend_is_null(void **state)
{
	static const struct gpu_ops *const backends[] = {&gpu_host_ops, &gpu_cuda_ops};

	(void)state;
	for (size_t b = 0; b < 2; b++) {
		const unsigned char *table = (const unsigned char *)backends[b];

		for (size_t at = 0; at < sizeof(struct gpu_ops); at += sizeof(void *)) {
			void *member;

			memcpy(&member, table + at, sizeof(member));
			assert_non_null(member);
		}
	}
}

static void test_devices_are_found_by_index_and_uuid(void **state)
{
	struct gpu_device_info first, second;

	(void)state;
	assert_int_equal(gpu_host_ops.device_count(), 2);
	assert_int_equal(gpu_host_ops.device_info(0, &first), 0);
	assert_int_equal(gpu_host_ops.device_info(1, &second), 0);
	assert_string_not_equal(first.uuid, second.uuid);
	assert_true(first.memory_bytes == 4ull << 30);
	assert_true(first.capabilities & GPU_CAP_EXPORT_OFFSET);
	assert_int_equal(gpu_device_find(&gpu_host_ops, "1"), 1);
	assert_int_equal(gpu_device_find(&gpu_host_ops, second.uuid), 1);
	second.uuid[0] = 'h';
	assert_int_equal(gpu_device_find(&gpu_host_ops, second.uuid), 1);
	assert_int_equal(gpu_device_find(&gpu_host_ops, "2"), -ENODEV);
	assert_int_equal(gpu_device_find(&gpu_host_ops, ""), -ENODEV);
	assert_int_equal(gpu_device_find(&gpu_host_ops, "1x"), -ENODEV);
	assert_int_equal(gpu_device_find(&gpu_host_ops, "99999999999999999999"), -ENODEV);
	assert_int_equal(gpu_device_find(&gpu_host_ops, NULL), -EINVAL);
	assert_int_equal(gpu_host_ops.device_info(2, &first), -ENODEV);
}

static void test_wrong_settings_are_named(void **state)
{
	static const struct {
		const char *name, *value;
	} wrong[] = {
		{"GPOOL_HOST_DEVICES", "0"},
		{"GPOOL_HOST_DEVICES", "65"},
		{"GPOOL_HOST_DEVICES", "two"},
		{"GPOOL_HOST_GRANULARITY", ""},
		{"GPOOL_HOST_GRANULARITY", "100000"},
		{"GPOOL_HOST_GRANULARITY", "2"},
		{"GPOOL_HOST_GRANULARITY", "2GiB"},
		{"GPOOL_HOST_GRANULARITY", "64KB"},
		{"GPOOL_HOST_MEMORY", "-1"},
		{"GPOOL_HOST_MEMORY", "99999999999T"},
		{"GPOOL_HOST_MEMORY", "1GiBs"},
		{"GPOOL_HOST_MEMORY", "99999999999999999999"},
		{"GPOOL_HOST_LACKS", "zero"},
		{"GPOOL_HOST_LACKS", "zeros,,events"},
		{"GPOOL_HOST_FAULTS", "often"},
	};
	struct gpu *gpu = NULL;

	(void)state;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		settings_default();
		setenv(wrong[i].name, wrong[i].value, 1);
		assert_int_equal(gpu_open(&gpu_host_ops, 0, 0, &gpu), -EINVAL);
		assert_non_null(strstr(gpu_error_text(), wrong[i].name));
		assert_null(gpu);
	}
}

static void test_missing_capabilities_of_a_device(void **state)
{
	uint64_t handle, va, bytes = 128 << 10;
	uint8_t ipc[GPU_IPC_BYTES] = {0};
	struct gpu_device_info info;
	struct gpu_event *event;
	struct gpu *gpu;

	(void)state;
	settings_default();
	assert_int_equal(gpu_host_ops.device_info(0, &info), 0);
	assert_true(info.capabilities & GPU_CAP_ZEROED);
	setenv("GPOOL_HOST_LACKS", "events,zeros", 1);
	assert_int_equal(gpu_host_ops.device_info(0, &info), 0);
	assert_false(info.capabilities & (GPU_CAP_ZEROED | GPU_CAP_IPC_EVENT));
	for (uint32_t flags = 0; flags <= GPU_OPEN_SEPARATE; flags += GPU_OPEN_SEPARATE) {
		assert_int_equal(gpu_open(&gpu_host_ops, 0, flags, &gpu), 0);
		assert_int_equal(gpu_create(gpu, bytes, &handle), 0);
		assert_int_equal(gpu_reserve(gpu, bytes, 0, &va), 0);
		assert_int_equal(gpu_map(gpu, va, bytes, handle), 0);
		assert_int_equal(gpu_access(gpu, va, bytes, GPU_ACCESS_READ), 0);
		assert_int_not_equal(*(const uint8_t *)(uintptr_t)va, 0);
		assert_memory_equal((const void *)(uintptr_t)va, (const uint8_t *)(uintptr_t)va + 1, bytes - 1);
		assert_int_equal(gpu_event_create(gpu, GPU_EVENT_INTERPROCESS, &event), 0);
		assert_int_equal(gpu_event_export(gpu, event, ipc), -EOPNOTSUPP);
		assert_int_equal(gpu_event_import(gpu, ipc, &event), -EOPNOTSUPP);
		gpu_close(gpu);
	}
	settings_default();
}

static void test_defaults_hold_without_settings(void **state)
{
	struct gpu_device_info info;
	uint64_t granularity;
	struct gpu *gpu;

	(void)state;
	unsetenv("GPOOL_HOST_DEVICES");
	unsetenv("GPOOL_HOST_GRANULARITY");
	unsetenv("GPOOL_HOST_MEMORY");
	assert_int_equal(gpu_host_ops.device_count(), 8);
	assert_int_equal(gpu_host_ops.device_info(7, &info), 0);
	assert_true(info.memory_bytes == (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE));
	assert_int_equal(gpu_open(&gpu_host_ops, 7, 0, &gpu), 0);
	assert_int_equal(gpu_granularity(gpu, &granularity), 0);
	assert_true(granularity == 512u << 10);
	gpu_close(gpu);
}

static void test_open_refuses_a_nonexistent_device(void **state)
{
	struct gpu *gpu = NULL;

	(void)state;
	assert_int_equal(gpu_open(&gpu_host_ops, 2, 0, &gpu), -ENODEV);
	assert_int_equal(gpu_open(&gpu_host_ops, -1, 0, &gpu), -EINVAL);
	assert_int_equal(gpu_open(&gpu_host_ops, 0, 1u << 31, &gpu), -EINVAL);
	assert_int_equal(gpu_open(NULL, 0, 0, &gpu), -EINVAL);
	assert_int_equal(gpu_open(&gpu_host_ops, 0, 0, NULL), -EINVAL);
	assert_null(gpu);
	gpu_close(NULL);
	assert_null(gpu_ops_of(NULL));
}

static void test_an_owner_may_only_create_export_and_release(void **state)
{
	struct gpu_stream *stream = (struct gpu_stream *)state; /* never used */
	struct gpu_event *event = (struct gpu_event *)state;
	struct gpu_export exported;
	uint8_t ipc[GPU_IPC_BYTES] = {0};
	uint64_t granularity, handle, va, word = 0;
	struct gpu *gpu;

	assert_int_equal(gpu_open(&gpu_host_ops, 0, GPU_OPEN_OWNER, &gpu), 0);
	assert_int_equal(gpu_granularity(gpu, &granularity), 0);
	assert_true(free_memory(gpu) > 0);
	assert_int_equal(gpu_create(gpu, granularity, &handle), 0);
	assert_int_equal(gpu_export(gpu, handle, &exported), 0);
	assert_int_equal(gpu_import(gpu, &exported, &handle), -EPERM);
	assert_int_equal(gpu_reserve(gpu, granularity, 0, &va), -EPERM);
	assert_int_equal(gpu_unreserve(gpu, granularity, granularity), -EPERM);
	assert_int_equal(gpu_map(gpu, granularity, granularity, handle), -EPERM);
	assert_int_equal(gpu_unmap(gpu, granularity, granularity), -EPERM);
	assert_int_equal(gpu_access(gpu, granularity, granularity, GPU_ACCESS_READ), -EPERM);
	assert_int_equal(gpu_stream_create(gpu, &stream), -EPERM);
	assert_int_equal(gpu_stream_sync(gpu, stream), -EPERM);
	assert_int_equal(gpu_copy(gpu, granularity, granularity, 4, stream), -EPERM);
	assert_int_equal(gpu_fill(gpu, granularity, 0, 4, stream), -EPERM);
	assert_int_equal(gpu_event_create(gpu, 0, &event), -EPERM);
	assert_int_equal(gpu_event_record(gpu, event, stream), -EPERM);
	assert_int_equal(gpu_event_query(gpu, event), -EPERM);
	assert_int_equal(gpu_event_wait(gpu, stream, event), -EPERM);
	assert_int_equal(gpu_event_export(gpu, event, ipc), -EPERM);
	assert_int_equal(gpu_event_import(gpu, ipc, &event), -EPERM);
	assert_int_equal(gpu_host_register(gpu, (void *)granularity, granularity), -EPERM);
	assert_int_equal(gpu_host_unregister(gpu, (void *)granularity), -EPERM);
	assert_int_equal(gpu_timeline_write(gpu, stream, &word, 1), -EPERM);
	assert_int_equal(gpu_timeline_wait(gpu, stream, &word, 1), -EPERM);
	gpu_release(gpu, handle);
	close(exported.fd);
	gpu_close(gpu);
}

/* ---- physical memory ---- */

static void test_create_takes_multiples_of_the_granularity(void **state)
{
	struct fixture *f = *state;
	uint64_t handle = 7;

	assert_int_equal(gpu_create(f->gpu, 0, &handle), -EINVAL);
	assert_int_equal(gpu_create(f->gpu, f->granularity / 2, &handle), -EINVAL);
	assert_int_equal(gpu_create(f->gpu, f->granularity + 1, &handle), -EINVAL);
	assert_int_equal(gpu_create(f->gpu, f->granularity, NULL), -EINVAL);
	assert_int_equal(gpu_create(NULL, f->granularity, &handle), -EINVAL);
	assert_true(handle == 7);
}

static void test_memory_is_exhausted_and_freed(void **state)
{
	struct fixture *f = *state;
	uint64_t before = free_memory(f->gpu), handle, more = 0;

	assert_int_equal(gpu_create(f->gpu, before + f->granularity, &more), -ENOMEM);
	assert_int_equal(gpu_create(f->gpu, 1ull << 62, &more), -ENOMEM);
	assert_int_equal(gpu_create(f->gpu, before, &handle), 0);
	assert_true(free_memory(f->gpu) == 0);
	assert_int_equal(gpu_create(f->gpu, f->granularity, &more), -ENOMEM);
	assert_true(more == 0);
	gpu_release(f->gpu, handle);
	assert_true(free_memory(f->gpu) == before);
}

static void test_released_memory_leaves_the_arena(void **state)
{
	struct fixture *f = *state;
	uint64_t witness = create(f, 1), handle = put(f, 0, 1);
	struct gpu_export arena;
	int64_t with;

	assert_int_equal(gpu_export(f->gpu, witness, &arena), 0);
	assert_int_equal(set_access(f, 0, 1, GPU_ACCESS_READ_WRITE), 0);
	memset((void *)word_at(f, 0), 0xa5, f->granularity);
	with = file_blocks(arena.fd);
	assert_true(with >= (int64_t)(f->granularity / 512));

	/* the mapping keeps the memory and its contents after the release of the handle */
	gpu_release(f->gpu, handle);
	assert_true(file_blocks(arena.fd) == with);
	assert_true(*word_at(f, 0) == 0xa5a5a5a5);
	/* the removal of the mapping frees the memory */
	assert_int_equal(unmap(f, 0, 1), 0);
	assert_true(file_blocks(arena.fd) == with - (int64_t)(f->granularity / 512));
	close(arena.fd);
}

static void test_separate_handles_share_no_file(void **state)
{
	struct gpu_export exports[3];
	uint64_t handles[3], bytes;
	struct stat files[3];
	struct gpu *gpu;

	(void)state;
	assert_int_equal(gpu_open(&gpu_host_ops, 0, GPU_OPEN_OWNER | GPU_OPEN_SEPARATE, &gpu), 0);
	assert_int_equal(gpu_granularity(gpu, &bytes), 0);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(gpu_create(gpu, bytes, &handles[i]), 0);
		assert_int_equal(gpu_export(gpu, handles[i], &exports[i]), 0);
		assert_int_equal(exports[i].offset, 0);
		assert_int_equal(fstat(exports[i].fd, &files[i]), 0);
		assert_int_equal(files[i].st_size, bytes);
		for (int j = 0; j < i; j++)
			assert_int_not_equal(files[i].st_ino, files[j].st_ino);
	}
	for (int i = 0; i < 3; i++) {
		gpu_release(gpu, handles[i]);
		close(exports[i].fd);
	}
	gpu_close(gpu);
}

static void test_exported_memory_is_kept_for_others(void **state)
{
	struct fixture *f = *state;
	uint64_t before = free_memory(f->gpu), handle = put(f, 0, 1), imported;
	struct gpu_export exported;

	assert_int_equal(gpu_export(f->gpu, handle, &exported), 0);
	assert_int_equal(set_access(f, 0, 1, GPU_ACCESS_READ_WRITE), 0);
	*word_at(f, 0) = 42;
	gpu_release(f->gpu, handle);
	assert_int_equal(unmap(f, 0, 1), 0);
	assert_true(free_memory(f->gpu) == before - f->granularity);

	assert_int_equal(gpu_import(f->gpu, &exported, &imported), 0);
	assert_int_equal(gpu_map(f->gpu, f->va, f->granularity, imported), 0);
	assert_int_equal(set_access(f, 0, 1, GPU_ACCESS_READ), 0);
	assert_true(*word_at(f, 0) == 42);
	close(exported.fd);
}

static void test_closing_frees_all_memory(void **state)
{
	struct fixture *f = *state;
	uint64_t before = free_memory(f->gpu), handle;
	struct gpu_export exported;
	struct gpu *gpu;

	assert_int_equal(gpu_open(&gpu_host_ops, 0, 0, &gpu), 0);
	assert_int_equal(gpu_create(gpu, 4 * f->granularity, &handle), 0);
	assert_int_equal(gpu_export(gpu, handle, &exported), 0);
	assert_int_equal(gpu_create(gpu, 4 * f->granularity, &handle), 0);
	assert_true(free_memory(f->gpu) == before - 8 * f->granularity);
	gpu_close(gpu);
	assert_true(free_memory(f->gpu) == before);
	close(exported.fd);
}

static void test_a_stale_handle_is_refused(void **state)
{
	struct fixture *f = *state;
	uint64_t old = create(f, 1), new;
	struct gpu_export exported;

	gpu_release(f->gpu, old);
	new = create(f, 1); /* reuses the old handle's entry in the table of the process */
	assert_true(new != old);
	gpu_release(f->gpu, old);
	assert_int_equal(gpu_map(f->gpu, f->va, f->granularity, old), -EINVAL);
	assert_int_equal(gpu_export(f->gpu, old, &exported), -EINVAL);
	assert_int_equal(gpu_map(f->gpu, f->va, f->granularity, 0), -EINVAL);
	assert_int_equal(gpu_map(f->gpu, f->va, f->granularity, UINT64_MAX), -EINVAL);
	assert_int_equal(gpu_map(f->gpu, f->va, f->granularity, new), 0);
}

/* Requirements: C2. */
static void test_an_exported_file_cannot_be_misused(void **state)
{
	struct fixture *f = *state;
	uint64_t first = create(f, 2), second = create(f, 1);
	struct gpu_export a, b;
	struct stat status;

	assert_int_equal(gpu_export(f->gpu, first, &a), 0);
	assert_int_equal(gpu_export(f->gpu, second, &b), 0);
	assert_true(a.length == 2 * f->granularity && b.length == f->granularity);
	assert_true(b.offset == a.offset + a.length); /* consecutive handles are consecutive in the file */
	assert_int_equal(fcntl(a.fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
	assert_int_equal(fstat(a.fd, &status), 0);
	assert_int_equal(status.st_mode & 07777, 0600);
	assert_int_equal(ftruncate(a.fd, 0), -1);
	assert_int_equal(errno, EPERM);
	assert_int_equal(ftruncate(a.fd, status.st_size + 1), -1);
	assert_int_equal(errno, EPERM);
	assert_int_equal(fallocate(a.fd, 0, status.st_size, 4096), -1);
	assert_int_equal(errno, EPERM);
	/* the seal would prevent the owner from mapping */
	assert_int_equal(fcntl(a.fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE), -1);
	assert_int_equal(errno, EPERM);
	close(a.fd);
	close(b.fd);
}

static void test_an_exported_file_takes_no_more_handles(void **state)
{
	struct fixture *f = *state;
	uint64_t first = create(f, 1), second;
	struct gpu_export a, b;
	struct stat of_a, of_b;

	assert_int_equal(gpu_export(f->gpu, first, &a), 0);
	second = create(f, 1);
	assert_int_equal(gpu_export(f->gpu, second, &b), 0);
	assert_true(a.offset == 0 && b.offset == 0);
	assert_int_equal(fstat(a.fd, &of_a), 0);
	assert_int_equal(fstat(b.fd, &of_b), 0);
	assert_true(of_a.st_ino != of_b.st_ino);
	assert_true((uint64_t)of_a.st_size == f->granularity && (uint64_t)of_b.st_size == f->granularity);
	close(a.fd);
	close(b.fd);
	gpu_release(f->gpu, first);
	gpu_release(f->gpu, second);
}

static void test_import_checks_offset_and_length(void **state)
{
	struct fixture *f = *state;
	uint64_t handle = create(f, 4), imported = 9;
	struct gpu_export exported, wrong;

	assert_int_equal(gpu_export(f->gpu, handle, &exported), 0);
	const struct {
		uint64_t offset, length;
	} bad[] = {
		{1, f->granularity},
		{f->granularity / 2 + 1, f->granularity},
		{0, 0},
		{0, 1},
		{0, f->granularity + 1},
		{0, 5 * f->granularity},
		{4 * f->granularity, f->granularity},
		{UINT64_MAX - f->granularity + 1, f->granularity},
		{f->granularity, UINT64_MAX - f->granularity + 1},
	};
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		wrong = (struct gpu_export){exported.fd, bad[i].offset, bad[i].length};
		assert_int_equal(gpu_import(f->gpu, &wrong, &imported), -EINVAL);
	}
	assert_true(imported == 9);
	close(exported.fd);
	assert_int_equal(gpu_import(f->gpu, &exported, &imported), -EINVAL); /* the descriptor is closed */
	exported.fd = -1;
	assert_int_equal(gpu_import(f->gpu, &exported, &imported), -EINVAL);
	assert_int_equal(gpu_import(f->gpu, NULL, &imported), -EINVAL);
}

static int memfd_with(uint64_t bytes, int seals)
{
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

static void import_is(struct fixture *f, int fd, int expected)
{
	struct gpu_export from = {fd, 0, f->granularity};
	uint64_t handle = 0;
	int before = open_descriptors();

	assert_int_equal(gpu_import(f->gpu, &from, &handle), expected);
	if (expected < 0)
		assert_int_equal(open_descriptors(), before);
}

static void test_import_takes_only_files_that_cannot_shrink(void **state)
{
	struct fixture *f = *state;
	char path[64];
	FILE *plain = tmpfile();
	int fd, reader, ends[2];

	fd = memfd_with(f->granularity, F_SEAL_GROW);
	import_is(f, fd, -EPERM);
	close(fd);
	fd = memfd_with(f->granularity, F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE);
	import_is(f, fd, -EPERM);
	close(fd);
	fd = memfd_with(f->granularity, F_SEAL_SHRINK);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	reader = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(reader >= 0);
	import_is(f, reader, -EPERM);
	close(reader);
	import_is(f, fd, 0);
	close(fd);

	assert_non_null(plain);
	assert_int_equal(ftruncate(fileno(plain), (off_t)f->granularity), 0);
	fd = fileno(plain);
	assert_true(fd >= 0);
	{
		struct gpu_export from = {fd, 0, f->granularity};
		uint64_t handle;

		assert_true(gpu_import(f->gpu, &from, &handle) < 0); /* -EINVAL, or -EPERM where /tmp is a tmpfs */
	}
	fclose(plain);
	assert_int_equal(pipe(ends), 0);
	import_is(f, ends[0], -EINVAL);
	close(ends[0]);
	close(ends[1]);
}

static void test_imports_of_one_file_share_one_descriptor(void **state)
{
	struct fixture *f = *state;
	enum { HANDLES = 500 };
	uint64_t handles[HANDLES], handle = create(f, 1);
	struct gpu_export exported;
	struct gpu *other;
	int before;

	assert_int_equal(gpu_open(&gpu_host_ops, 1, 0, &other), 0);
	assert_int_equal(gpu_export(f->gpu, handle, &exported), 0);
	before = open_descriptors();
	for (int i = 0; i < HANDLES; i++)
		assert_int_equal(gpu_import(other, &exported, &handles[i]), 0);
	assert_int_equal(open_descriptors(), before + 1);
	for (int i = 0; i < HANDLES; i++)
		gpu_release(other, handles[i]);
	assert_int_equal(open_descriptors(), before);
	gpu_close(other);
	close(exported.fd);
}

/* ---- address ranges ---- */

static void test_reserve_aligns_and_unreserve_takes_the_whole(void **state)
{
	struct fixture *f = *state;
	uint64_t va = 5, bytes = 4 * f->granularity;

	assert_int_equal(gpu_reserve(f->gpu, 0, 0, &va), -EINVAL);
	assert_int_equal(gpu_reserve(f->gpu, f->granularity + 1, 0, &va), -EINVAL);
	assert_int_equal(gpu_reserve(f->gpu, bytes, 3, &va), -EINVAL);
	assert_int_equal(gpu_reserve(f->gpu, bytes, 1ull << 63, &va), -ENOMEM);
	assert_int_equal(gpu_reserve(f->gpu, UINT64_MAX - f->granularity + 1, 0, &va), -ENOMEM);
	assert_true(va == 5);
	assert_int_equal(gpu_reserve(f->gpu, bytes, 1u << 30, &va), 0);
	assert_true(va % (1u << 30) == 0);
	assert_false(can_read(va));

	assert_int_equal(gpu_unreserve(f->gpu, va, bytes - f->granularity), -EINVAL);
	assert_int_equal(gpu_unreserve(f->gpu, va + f->granularity, bytes - f->granularity), -EINVAL);
	assert_int_equal(gpu_unreserve(f->gpu, va, bytes + f->granularity), -EINVAL);
	assert_int_equal(gpu_unreserve(f->gpu, va, bytes), 0);
	assert_int_equal(gpu_unreserve(f->gpu, va, bytes), -EINVAL);
}

static void test_a_mapped_reservation_stays(void **state)
{
	struct fixture *f = *state;

	put(f, 3, 1);
	assert_int_equal(gpu_unreserve(f->gpu, f->va, RANGE_GRANULES * f->granularity), -EINVAL);
	assert_int_equal(unmap(f, 3, 1), 0);
	assert_int_equal(gpu_unreserve(f->gpu, f->va, RANGE_GRANULES * f->granularity), 0);
}

static void test_terabytes_can_be_reserved(void **state)
{
	struct fixture *f = *state;
	uint64_t va, bytes = 1ull << 40, handle = create(f, 1);

	assert_int_equal(gpu_reserve(f->gpu, bytes, 0, &va), 0);
	assert_int_equal(gpu_map(f->gpu, va + bytes - f->granularity, f->granularity, handle), 0);
	assert_int_equal(gpu_unmap(f->gpu, va + bytes - f->granularity, f->granularity), 0);
	assert_int_equal(gpu_unreserve(f->gpu, va, bytes), 0);
	/* together the reservations exceed the address space, so each must be unreserved completely */
	for (int i = 0; i < 200; i++) {
		assert_int_equal(gpu_reserve(f->gpu, bytes, 1ull << 30, &va), 0);
		assert_int_equal(gpu_unreserve(f->gpu, va, bytes), 0);
	}
}

static void test_map_refuses_all_but_whole_handles_in_free_places(void **state)
{
	struct fixture *f = *state;
	uint64_t g = f->granularity, two = create(f, 2), end = f->va + RANGE_GRANULES * g;

	assert_int_equal(gpu_map(f->gpu, f->va, g, two), -EINVAL);     /* a part of the handle */
	assert_int_equal(gpu_map(f->gpu, f->va, 3 * g, two), -EINVAL); /* larger than the handle */
	assert_int_equal(gpu_map(f->gpu, f->va + g / 2, 2 * g, two), -EINVAL);
	assert_int_equal(gpu_map(f->gpu, end, 2 * g, two), -EINVAL);     /* outside the reservation */
	assert_int_equal(gpu_map(f->gpu, end - g, 2 * g, two), -EINVAL); /* beyond the end */
	assert_int_equal(gpu_map(f->gpu, f->va - g, 2 * g, two), -EINVAL);
	assert_int_equal(gpu_map(f->gpu, UINT64_MAX - g + 1, 2 * g, two), -EINVAL);
	assert_int_equal(gpu_map(f->gpu, 0, 2 * g, two), -EINVAL);

	put(f, 4, 1);
	/* overlaps the first granule of the other mapping */
	assert_int_equal(gpu_map(f->gpu, f->va + 3 * g, 2 * g, two), -EINVAL);
	assert_int_equal(gpu_map(f->gpu, f->va + 4 * g, 2 * g, two), -EINVAL);
	assert_int_equal(gpu_map(f->gpu, f->va + 2 * g, 2 * g, two), 0);
	/* a second mapping of the handle is permitted */
	assert_int_equal(gpu_map(f->gpu, f->va + 5 * g, 2 * g, two), 0);
}

/*
 * Map handles of which some are adjacent in their file and some are not, as one run. Each is mapped at its place, is
 * counted, and can be unmapped alone.
 */
static void test_a_run_maps_each_handle_at_its_place(void **state)
{
	enum { HANDLES = 6 };
	static const int order[HANDLES] = {0, 1, 2, 5, 4, 3};
	struct fixture *f = *state;
	uint64_t handles[HANDLES], run[HANDLES], calls = gpu_calls(f->gpu, GPU_CALL_MAP);
	uint32_t mapped;

	for (int i = 0; i < HANDLES; i++)
		handles[i] = put(f, HANDLES + (uint64_t)i, 1);
	assert_int_equal(set_access(f, HANDLES, HANDLES, GPU_ACCESS_READ_WRITE), 0);
	for (uint32_t i = 0; i < HANDLES; i++) {
		*word_at(f, HANDLES + i) = 100 + i;
		run[i] = handles[order[i]];
	}
	calls = gpu_calls(f->gpu, GPU_CALL_MAP);
	assert_int_equal(gpu_map_run(f->gpu, f->va, f->granularity, run, HANDLES, &mapped), 0);
	assert_int_equal(mapped, HANDLES);
	assert_int_equal(gpu_calls(f->gpu, GPU_CALL_MAP), calls + HANDLES);
	assert_false(can_read(f->va));
	assert_int_equal(set_access(f, 0, HANDLES, GPU_ACCESS_READ), 0);
	for (uint32_t i = 0; i < HANDLES; i++)
		assert_int_equal(*word_at(f, i), 100 + order[i]);
	assert_int_equal(unmap(f, 1, 1), 0);
	assert_false(can_read(f->va + f->granularity));
	assert_int_equal(*word_at(f, 2), 102);
	assert_int_equal(unmap(f, 2, HANDLES - 2), 0);
	assert_int_equal(unmap(f, 0, 1), 0);
}

/* After an error the handles before it are mapped, and no others. */
static void test_a_run_ends_at_an_error(void **state)
{
	struct fixture *f = *state;
	uint64_t g = f->granularity, handles[] = {create(f, 1), create(f, 1), create(f, 1), create(f, 1)};
	uint32_t mapped = 9;

	put(f, 2, 1);
	assert_int_equal(gpu_map_run(f->gpu, f->va, g, handles, 4, &mapped), -EINVAL);
	assert_int_equal(mapped, 2);
	assert_int_equal(unmap(f, 0, 3), 0);
	gpu_fault_set(f->gpu, GPU_CALL_MAP, 4, -EIO);
	assert_int_equal(gpu_map_run(f->gpu, f->va, g, handles, 4, &mapped), -EIO);
	assert_int_equal(mapped, 3);
	assert_int_equal(unmap(f, 0, 3), 0);
	gpu_release(f->gpu, handles[1]);
	assert_int_equal(gpu_map_run(f->gpu, f->va, g, handles, 4, &mapped), -EINVAL);
	assert_int_equal(mapped, 1);
	assert_int_equal(unmap(f, 0, 1), 0);
	assert_int_equal(gpu_map_run(f->gpu, f->va, g, handles, 0, &mapped), -EINVAL);
	assert_int_equal(gpu_map_run(f->gpu, f->va, UINT64_MAX / 2, handles, 4, &mapped), -EINVAL);
	assert_int_equal(mapped, 0);
	/* The last handle is beyond the reservation. */
	assert_int_equal(gpu_map_run(f->gpu, f->va + (RANGE_GRANULES - 1) * g, g, &handles[2], 2, &mapped), -EINVAL);
	assert_int_equal(mapped, 1);
}

static void test_a_fresh_mapping_has_no_access(void **state)
{
	struct fixture *f = *state;

	put(f, 0, 1);
	assert_false(can_read(f->va));
	assert_int_equal(set_access(f, 0, 1, GPU_ACCESS_READ), 0);
	assert_true(can_read(f->va));
	assert_false(can_write(f->va));
	assert_int_equal(set_access(f, 0, 1, GPU_ACCESS_READ_WRITE), 0);
	assert_true(can_write(f->va));
	assert_int_equal(set_access(f, 0, 1, GPU_ACCESS_NONE), 0);
	assert_false(can_read(f->va));

	/* mapped again, it has no access at first */
	assert_int_equal(set_access(f, 0, 1, GPU_ACCESS_READ_WRITE), 0);
	assert_int_equal(unmap(f, 0, 1), 0);
	assert_false(can_read(f->va));
	put(f, 0, 1);
	assert_false(can_read(f->va));
}

static void test_access_covers_whole_mappings_without_holes(void **state)
{
	struct fixture *f = *state;

	put(f, 0, 1);
	put(f, 1, 2);
	put(f, 4, 1);
	assert_int_equal(set_access(f, 0, 5, GPU_ACCESS_READ), -EINVAL); /* no mapping at 3 */
	assert_false(can_read(f->va));
	assert_int_equal(set_access(f, 0, 3, GPU_ACCESS_READ), 0);
	assert_true(can_read(f->va + 2 * f->granularity));
	assert_false(can_read(f->va + 4 * f->granularity));
	assert_int_equal(set_access(f, 0, 2, GPU_ACCESS_NONE), -EINVAL); /* the first half of a mapping */
	assert_int_equal(set_access(f, 2, 1, GPU_ACCESS_NONE), -EINVAL); /* the second half */
	assert_true(can_read(f->va) && can_read(f->va + 2 * f->granularity));
	assert_int_equal(set_access(f, 3, 1, GPU_ACCESS_READ), -EINVAL);
	assert_int_equal(set_access(f, 0, RANGE_GRANULES + 1, GPU_ACCESS_READ), -EINVAL);
	assert_int_equal(gpu_access(f->gpu, f->va, f->granularity, (enum gpu_access)3), -EINVAL);
	assert_int_equal(gpu_access(f->gpu, f->va + 1, f->granularity, GPU_ACCESS_READ), -EINVAL);
	assert_int_equal(gpu_access(f->gpu, f->va, f->granularity - 1, GPU_ACCESS_READ), -EINVAL);
}

static void test_unmap_takes_whole_mappings_in_a_row(void **state)
{
	struct fixture *f = *state;

	put(f, 0, 1);
	put(f, 1, 3);
	put(f, 4, 1);
	put(f, 6, 1);
	assert_int_equal(unmap(f, 1, 1), -EINVAL);                 /* the beginning of a mapping */
	assert_int_equal(unmap(f, 2, 2), -EINVAL);                 /* the end of a mapping */
	assert_int_equal(unmap(f, 0, 3), -EINVAL);                 /* one and a half mappings */
	assert_int_equal(unmap(f, 4, 3), -EINVAL);                 /* a hole inside */
	assert_int_equal(unmap(f, 5, 1), -EINVAL);                 /* only a hole */
	assert_int_equal(unmap(f, 4, 2), -EINVAL);                 /* a hole at the end */
	assert_int_equal(set_access(f, 0, 5, GPU_ACCESS_READ), 0); /* all mappings still exist */
	assert_int_equal(unmap(f, 0, 5), 0);
	assert_int_equal(unmap(f, 0, 5), -EINVAL);
	put(f, 1, 4);
	assert_int_equal(unmap(f, 6, 1), 0);
}

static void test_two_mappings_show_the_same_memory(void **state)
{
	struct fixture *f = *state;
	uint64_t handle = put(f, 0, 1);

	assert_int_equal(gpu_map(f->gpu, f->va + f->granularity, f->granularity, handle), 0);
	assert_int_equal(set_access(f, 0, 2, GPU_ACCESS_READ_WRITE), 0);
	*word_at(f, 0) = 77;
	assert_true(*word_at(f, 1) == 77);
	assert_int_equal(unmap(f, 0, 1), 0);
	gpu_release(f->gpu, handle);
	assert_true(*word_at(f, 1) == 77);
}

static void test_memory_starts_zeroed_and_devices_share_by_export(void **state)
{
	struct fixture *f = *state;
	uint64_t handle = put(f, 0, 1), imported, va;
	struct gpu_export exported;
	struct gpu *other;

	assert_int_equal(set_access(f, 0, 1, GPU_ACCESS_READ_WRITE), 0);
	assert_true(*word_at(f, 0) == 0);
	assert_int_equal(gpu_export(f->gpu, handle, &exported), 0);
	assert_int_equal(gpu_open(&gpu_host_ops, 1, 0, &other), 0);
	assert_int_equal(gpu_import(other, &exported, &imported), 0);
	close(exported.fd);
	assert_int_equal(gpu_reserve(other, f->granularity, 0, &va), 0);
	assert_int_equal(gpu_map(other, va, f->granularity, imported), 0);
	assert_int_equal(gpu_access(other, va, f->granularity, GPU_ACCESS_READ_WRITE), 0);
	*word_at(f, 0) = 1234;
	assert_true(*(volatile uint32_t *)va == 1234);

	/* an imported handle can be exported again */
	assert_int_equal(gpu_export(other, imported, &exported), 0);
	close(exported.fd);
	gpu_close(other);
	assert_true(*word_at(f, 0) == 1234);
}

static void test_a_large_pool_is_a_few_mappings(void **state)
{
	struct fixture *f = *state;
	enum { PAGES = 40960 };
	uint64_t *handles = calloc(PAGES, sizeof(*handles)), va, bytes = PAGES * f->granularity, first = create(f, 1);
	struct gpu_export exported;
	struct gpu *worker;

	assert_non_null(handles);
	for (int i = 1; i < PAGES; i++)
		create(f, 1);
	assert_int_equal(gpu_export(f->gpu, first, &exported), 0);
	assert_int_equal(gpu_open(&gpu_host_ops, 0, 0, &worker), 0);
	assert_int_equal(gpu_reserve(worker, bytes, 0, &va), 0);
	for (int i = 0; i < PAGES; i++) {
		assert_int_equal(gpu_import(worker, &exported, &handles[i]), 0);
		assert_int_equal(gpu_map(worker, va + (uint64_t)i * f->granularity, f->granularity, handles[i]), 0);
		exported.offset += f->granularity;
	}
	assert_int_equal(gpu_access(worker, va, bytes, GPU_ACCESS_READ_WRITE), 0);
	assert_int_equal(mappings_in(va, bytes), 1);
	*(volatile uint32_t *)(va + bytes - f->granularity) = 5;
	assert_int_equal(gpu_unmap(worker, va + bytes / 4, bytes / 2), 0);
	assert_int_equal(mappings_in(va, bytes), 3);
	close(exported.fd);
	gpu_close(worker);
	free(handles);
}

/* ---- counters and faults ---- */

static void test_every_call_is_counted(void **state)
{
	struct fixture *f = *state;
	uint64_t total = gpu_calls_total(f->gpu), handle;

	assert_true(gpu_calls(f->gpu, GPU_CALL_OPEN) == 1);
	assert_true(gpu_calls(f->gpu, GPU_CALL_RESERVE) == 1);
	handle = put(f, 0, 1);
	put(f, 1, 1);
	assert_int_equal(set_access(f, 0, 2, GPU_ACCESS_READ), 0);
	assert_int_equal(unmap(f, 5, 1), -EINVAL); /* refused, and counted */
	gpu_release(f->gpu, handle);
	assert_true(gpu_calls(f->gpu, GPU_CALL_CREATE) == 2);
	assert_true(gpu_calls(f->gpu, GPU_CALL_MAP) == 2);
	assert_true(gpu_calls(f->gpu, GPU_CALL_ACCESS) == 1);
	assert_true(gpu_calls(f->gpu, GPU_CALL_UNMAP) == 1);
	assert_true(gpu_calls(f->gpu, GPU_CALL_RELEASE) == 1);
	assert_true(gpu_calls(f->gpu, GPU_CALL_COPY) == 0);
	assert_true(gpu_calls_total(f->gpu) == total + 7);
	assert_true(gpu_calls(NULL, GPU_CALL_MAP) == 0);
	assert_true(gpu_calls(f->gpu, GPU_CALL_KINDS) == 0);
	assert_string_equal(gpu_call_name(GPU_CALL_TIMELINE_WAIT), "timeline_wait");
	assert_string_equal(gpu_call_name(GPU_CALL_KINDS), "unknown");
	for (int call = 0; call < GPU_CALL_KINDS; call++)
		assert_non_null(gpu_call_name((enum gpu_call)call));
}

static void test_a_fault_hits_the_nth_call_once(void **state)
{
	struct fixture *f = *state;
	uint64_t handle;

	gpu_fault_set(f->gpu, GPU_CALL_CREATE, 3, -EIO);
	create(f, 1);
	create(f, 1);
	assert_int_equal(gpu_create(f->gpu, f->granularity, &handle), -EIO);
	assert_non_null(strstr(gpu_error_text(), "create"));
	create(f, 1);

	gpu_fault_set(f->gpu, GPU_CALL_CREATE, 1, -ENOMEM);
	gpu_fault_set(f->gpu, GPU_CALL_CREATE, 0, 0);
	create(f, 1);
}

static void test_faults_wait_for_the_next_device(void **state)
{
	struct fixture *f = *state;
	uint64_t handle = 0;
	struct gpu *gpu = NULL;

	gpu_fault_set(NULL, GPU_CALL_OPEN, 2, -ENOMEM);
	gpu_fault_set(NULL, GPU_CALL_CREATE, 1, -EIO);
	assert_int_equal(gpu_open(&gpu_host_ops, 1, 0, &gpu), 0);
	create(f, 1); /* an older device is not affected */
	assert_int_equal(gpu_create(gpu, f->granularity, &handle), -EIO);
	assert_int_equal(gpu_create(gpu, f->granularity, &handle), 0);
	gpu_close(gpu);
	gpu = NULL;
	assert_int_equal(gpu_open(&gpu_host_ops, 1, 0, &gpu), -ENOMEM);
	assert_null(gpu);
	assert_int_equal(gpu_open(&gpu_host_ops, 1, 0, &gpu), 0);
	assert_int_equal(gpu_create(gpu, f->granularity, &handle), 0); /* another device has consumed the fault */
	gpu_close(gpu);
}

static void test_a_release_that_fails_leaves_the_handle(void **state)
{
	struct fixture *f = *state;
	uint64_t handle = create(f, 1), before = free_memory(f->gpu);

	gpu_fault_set(f->gpu, GPU_CALL_RELEASE, 1, -EIO);
	gpu_release(f->gpu, handle);
	assert_true(free_memory(f->gpu) == before);
	gpu_release(f->gpu, handle);
	assert_true(free_memory(f->gpu) == before + f->granularity);
}

/* ---- threads ---- */

struct mapper {
	struct fixture *f;
	uint64_t at;
	int failed;
};

/* Map and unmap a thread's own granule of a range that other threads use at the same time. */
static void *map_and_unmap(void *argument)
{
	struct mapper *m = argument;
	struct gpu *gpu = m->f->gpu;
	uint64_t g = m->f->granularity, va = m->f->va + m->at * g, handle;

	for (int i = 0; i < 300; i++) {
		if (gpu_create(gpu, g, &handle) || gpu_map(gpu, va, g, handle) ||
			gpu_access(gpu, va, g, GPU_ACCESS_READ_WRITE))
			m->failed++;
		else
			*(volatile uint32_t *)va = (uint32_t)i;
		gpu_release(gpu, handle);
		if (gpu_unmap(gpu, va, g))
			m->failed++;
	}
	return NULL;
}

static void test_threads_share_a_device(void **state)
{
	enum { THREADS = 4 };
	struct mapper mappers[THREADS];
	pthread_t threads[THREADS];
	uint64_t before = free_memory(((struct fixture *)*state)->gpu);

	for (int i = 0; i < THREADS; i++) {
		mappers[i] = (struct mapper){*state, (uint64_t)i, 0};
		assert_int_equal(pthread_create(&threads[i], NULL, map_and_unmap, &mappers[i]), 0);
	}
	for (int i = 0; i < THREADS; i++) {
		pthread_join(threads[i], NULL);
		assert_int_equal(mappers[i].failed, 0);
	}
	assert_true(free_memory(mappers[0].f->gpu) == before);
	assert_true(gpu_calls(mappers[0].f->gpu, GPU_CALL_MAP) == THREADS * 300);
}

static void *error_text_elsewhere(void *argument)
{
	(void)argument;
	return (void *)(uintptr_t)(gpu_error_text()[0] == '\0');
}

static void test_error_text_belongs_to_its_thread(void **state)
{
	struct fixture *f = *state;
	pthread_t thread;
	void *empty;

	assert_int_equal(unmap(f, 0, 1), -EINVAL);
	assert_non_null(strstr(gpu_error_text(), "unmap"));
	assert_int_equal(pthread_create(&thread, NULL, error_text_elsewhere, NULL), 0);
	pthread_join(thread, &empty);
	assert_non_null(empty);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_backends_are_found_by_name, setup, teardown),
		cmocka_unit_test_setup_teardown(test_separate_handles_share_no_file, setup, teardown),
		cmocka_unit_test_setup_teardown(test_no_operation_of_a_backend_is_null, setup, teardown),
		cmocka_unit_test_setup_teardown(test_devices_are_found_by_index_and_uuid, setup, teardown),
		cmocka_unit_test_setup_teardown(test_wrong_settings_are_named, setup, teardown),
		cmocka_unit_test_setup_teardown(test_missing_capabilities_of_a_device, setup, teardown),
		cmocka_unit_test_setup_teardown(test_defaults_hold_without_settings, setup, teardown),
		cmocka_unit_test_setup_teardown(test_open_refuses_a_nonexistent_device, setup, teardown),
		cmocka_unit_test_setup_teardown(test_an_owner_may_only_create_export_and_release, setup, teardown),
		cmocka_unit_test_setup_teardown(test_create_takes_multiples_of_the_granularity, setup, teardown),
		cmocka_unit_test_setup_teardown(test_memory_is_exhausted_and_freed, setup, teardown),
		cmocka_unit_test_setup_teardown(test_released_memory_leaves_the_arena, setup, teardown),
		cmocka_unit_test_setup_teardown(test_exported_memory_is_kept_for_others, setup, teardown),
		cmocka_unit_test_setup_teardown(test_closing_frees_all_memory, setup, teardown),
		cmocka_unit_test_setup_teardown(test_a_stale_handle_is_refused, setup, teardown),
		cmocka_unit_test_setup_teardown(test_an_exported_file_cannot_be_misused, setup, teardown),
		cmocka_unit_test_setup_teardown(test_an_exported_file_takes_no_more_handles, setup, teardown),
		cmocka_unit_test_setup_teardown(test_import_checks_offset_and_length, setup, teardown),
		cmocka_unit_test_setup_teardown(test_import_takes_only_files_that_cannot_shrink, setup, teardown),
		cmocka_unit_test_setup_teardown(test_imports_of_one_file_share_one_descriptor, setup, teardown),
		cmocka_unit_test_setup_teardown(test_reserve_aligns_and_unreserve_takes_the_whole, setup, teardown),
		cmocka_unit_test_setup_teardown(test_a_mapped_reservation_stays, setup, teardown),
		cmocka_unit_test_setup_teardown(test_terabytes_can_be_reserved, setup, teardown),
		cmocka_unit_test_setup_teardown(test_map_refuses_all_but_whole_handles_in_free_places, setup, teardown),
		cmocka_unit_test_setup_teardown(test_a_run_maps_each_handle_at_its_place, setup, teardown),
		cmocka_unit_test_setup_teardown(test_a_run_ends_at_an_error, setup, teardown),
		cmocka_unit_test_setup_teardown(test_a_fresh_mapping_has_no_access, setup, teardown),
		cmocka_unit_test_setup_teardown(test_access_covers_whole_mappings_without_holes, setup, teardown),
		cmocka_unit_test_setup_teardown(test_unmap_takes_whole_mappings_in_a_row, setup, teardown),
		cmocka_unit_test_setup_teardown(test_two_mappings_show_the_same_memory, setup, teardown),
		cmocka_unit_test_setup_teardown(test_memory_starts_zeroed_and_devices_share_by_export, setup, teardown),
		cmocka_unit_test_setup_teardown(test_a_large_pool_is_a_few_mappings, setup, teardown),
		cmocka_unit_test_setup_teardown(test_every_call_is_counted, setup, teardown),
		cmocka_unit_test_setup_teardown(test_a_fault_hits_the_nth_call_once, setup, teardown),
		cmocka_unit_test_setup_teardown(test_faults_wait_for_the_next_device, setup, teardown),
		cmocka_unit_test_setup_teardown(test_a_release_that_fails_leaves_the_handle, setup, teardown),
		cmocka_unit_test_setup_teardown(test_threads_share_a_device, setup, teardown),
		cmocka_unit_test_setup_teardown(test_error_text_belongs_to_its_thread, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
