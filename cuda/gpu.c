/*
 * gpu.c - the gpu_*() functions: count calls, reject invalid ones, inject faults, and call the back end.
 *
 * The steps of a call are, in this order: count, permission, arguments, device failure, fault, back end. Rejected calls
 * are counted too, so that a test of the number of driver calls sees all of them. A fault affects only calls that would
 * have reached the back end.
 */
#include "cuda/gpu_private.h"
#include "cuda/kernels/kernel.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

static const char *const call_names[GPU_CALL_KINDS] = {
	[GPU_CALL_OPEN] = "open",
	[GPU_CALL_GRANULARITY] = "granularity",
	[GPU_CALL_CREATE] = "create",
	[GPU_CALL_RELEASE] = "release",
	[GPU_CALL_EXPORT] = "export",
	[GPU_CALL_IMPORT] = "import",
	[GPU_CALL_RESERVE] = "reserve",
	[GPU_CALL_UNRESERVE] = "unreserve",
	[GPU_CALL_MAP] = "map",
	[GPU_CALL_UNMAP] = "unmap",
	[GPU_CALL_ACCESS] = "access",
	[GPU_CALL_STREAM_CREATE] = "stream_create",
	[GPU_CALL_STREAM_ADOPT] = "stream_adopt",
	[GPU_CALL_STREAM_SYNC] = "stream_sync",
	[GPU_CALL_STREAM_QUERY] = "stream_query",
	[GPU_CALL_COPY] = "copy",
	[GPU_CALL_FILL] = "fill",
	[GPU_CALL_LAUNCH] = "launch",
	[GPU_CALL_EVENT_CREATE] = "event_create",
	[GPU_CALL_EVENT_RECORD] = "event_record",
	[GPU_CALL_EVENT_QUERY] = "event_query",
	[GPU_CALL_EVENT_WAIT] = "event_wait",
	[GPU_CALL_EVENT_EXPORT] = "event_export",
	[GPU_CALL_EVENT_IMPORT] = "event_import",
	[GPU_CALL_HOST_REGISTER] = "host_register",
	[GPU_CALL_HOST_UNREGISTER] = "host_unregister",
	[GPU_CALL_TIMELINE_WRITE] = "timeline_write",
	[GPU_CALL_TIMELINE_WAIT] = "timeline_wait",
	[GPU_CALL_MEMORY_INFO] = "memory_info",
	[GPU_CALL_POOL_ALLOC] = "pool_alloc",
	[GPU_CALL_POOL_FREE] = "pool_free",
};

/* Calls permitted on a device opened with GPU_OPEN_OWNER: those that need no context. */
static const bool owner_may[GPU_CALL_KINDS] = {
	[GPU_CALL_OPEN] = true,
	[GPU_CALL_GRANULARITY] = true,
	[GPU_CALL_CREATE] = true,
	[GPU_CALL_RELEASE] = true,
	[GPU_CALL_EXPORT] = true,
	[GPU_CALL_MEMORY_INFO] = true,
};

/* Calls that still work after a device failure. The driver may permit other calls too. */
static const bool works_after_failure[GPU_CALL_KINDS] = {
	[GPU_CALL_GRANULARITY] = true,
	[GPU_CALL_RELEASE] = true,
	[GPU_CALL_UNRESERVE] = true,
	[GPU_CALL_UNMAP] = true,
};

/* Faults for the next device to be opened. Calls of GPU_CALL_OPEN are counted here, because they have no device yet. */
static struct {
	pthread_mutex_t lock;
	uint64_t opens;
	uint64_t open_fault_at;
	int open_fault_error;
	uint64_t n[GPU_CALL_KINDS];
	int error[GPU_CALL_KINDS];
} next_device = {.lock = PTHREAD_MUTEX_INITIALIZER};

static _Thread_local char error_text[320];
static _Thread_local int error_untaken; /* error code of this text, until gpu_error_take() */

int gpu_fail(int error, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(error_text, sizeof(error_text), format, arguments);
	va_end(arguments);
	error_untaken = error < 0 ? error : -EIO; /* never 0, even if errno was 0 */
	return error_untaken;
}

const char *gpu_error_text(void)
{
	return error_text;
}

const char *gpu_error_take(int error)
{
	if (!error || error != error_untaken)
		return NULL;
	error_untaken = 0;
	return error_text;
}

const struct gpu_ops *gpu_backend(const char *name)
{
	static const struct gpu_ops *const backends[GPU_BACKENDS_MAX] = {&gpu_host_ops, &gpu_cuda_ops};

	for (size_t i = 0; name && i < GPU_BACKENDS_MAX; i++)
		if (strcmp(backends[i]->name, name) == 0)
			return backends[i];
	return NULL;
}

/* device_index() - return the decimal number in `text`, or -1 if it is not a number. */
static int device_index(const char *text)
{
	int index = 0;

	if (!*text)
		return -1;
	for (; *text; text++) {
		if (*text < '0' || *text > '9' || index > 99999)
			return -1;
		index = index * 10 + (*text - '0');
	}
	return index;
}

/* Return the UUID without the prefix, by which tools distinguish slices from whole GPUs and the driver does not. */
static const char *without_prefix(const char *uuid)
{
	return !strncasecmp(uuid, "GPU-", 4) || !strncasecmp(uuid, "MIG-", 4) ? uuid + 4 : uuid;
}

int gpu_device_find(const struct gpu_ops *ops, const char *text)
{
	struct gpu_device_info info;
	int count, index, rc;

	if (!ops || !text)
		return gpu_fail(-EINVAL, "cannot find a device: the back end or the name is missing");
	count = ops->device_count();
	if (count < 0)
		return count;
	index = device_index(text);
	if (index >= 0 && index < count)
		return index;
	for (int i = 0; index < 0 && i < count; i++) {
		rc = ops->device_info(i, &info);
		if (rc < 0)
			return rc;
		if (strcasecmp(without_prefix(info.uuid), without_prefix(text)) == 0)
			return i;
	}
	return gpu_fail(
		-ENODEV, "no device '%s'; the number of devices of back end '%s' is %d", text, ops->name, count);
}

/* open_begin() - count a call of gpu_open(). Return: 0, or the injected fault. */
static int open_begin(void)
{
	int error = 0;

	pthread_mutex_lock(&next_device.lock);
	if (++next_device.opens == next_device.open_fault_at)
		error = next_device.open_fault_error;
	pthread_mutex_unlock(&next_device.lock);
	return error ? gpu_fail(error, "injected fault: open") : 0;
}

/* take_faults() - move the faults that were set without a device to this device. */
static void take_faults(struct gpu *gpu)
{
	pthread_mutex_lock(&next_device.lock);
	for (int call = 0; call < GPU_CALL_KINDS; call++) {
		atomic_store_explicit(&gpu->fault_error[call], next_device.error[call], memory_order_relaxed);
		atomic_store_explicit(&gpu->fault_at[call], next_device.n[call], memory_order_relaxed);
		next_device.n[call] = 0;
	}
	pthread_mutex_unlock(&next_device.lock);
}

int gpu_open(const struct gpu_ops *ops, int index, uint32_t flags, struct gpu **gpu)
{
	const uint32_t known = GPU_OPEN_OWNER | GPU_OPEN_SEPARATE | GPU_OPEN_BLOCKING;
	struct gpu *opened;
	int rc;

	rc = open_begin();
	if (rc < 0)
		return rc;
	if (!ops || !gpu || index < 0 || (flags & ~known))
		return gpu_fail(-EINVAL, "cannot open device %d: invalid argument", index);
	rc = ops->open(index, flags, &opened);
	if (rc < 0)
		return rc;
	opened->ops = ops;
	opened->flags = flags;
	opened->index = index;
	take_faults(opened);
	atomic_store_explicit(&opened->calls[GPU_CALL_OPEN], 1, memory_order_relaxed);
	*gpu = opened;
	return 0;
}

void gpu_close(struct gpu *gpu)
{
	if (gpu)
		gpu->ops->close(gpu);
}

const struct gpu_ops *gpu_ops_of(const struct gpu *gpu)
{
	return gpu ? gpu->ops : NULL;
}

uint32_t gpu_capabilities(struct gpu *gpu)
{
	return gpu ? gpu->ops->capabilities(gpu) : 0;
}

int gpu_peers_set(struct gpu *gpu, const int *devices, uint32_t count)
{
	if (!gpu || (count && !devices) || count > GPU_PEERS_MAX)
		return gpu_fail(-EINVAL, "cannot set %u peers: the maximum is %d", count, GPU_PEERS_MAX);
	for (uint32_t i = 0; i < count; i++) {
		if (devices[i] == gpu->index)
			return gpu_fail(-EINVAL, "device %d cannot be its own peer", devices[i]);
		for (uint32_t k = 0; k < i; k++)
			if (devices[k] == devices[i])
				return gpu_fail(-EINVAL, "device %d is listed twice as a peer", devices[i]);
	}
	return gpu->ops->peers_set(gpu, devices, count);
}

/* Calls of this thread, on all devices. Unlike those of a device, they exclude the calls of background threads. */
static _Thread_local uint64_t thread_calls[GPU_CALL_KINDS];

/* call_begin() - count a call, and check the device, the permission, the arguments and the injected fault. */
static int call_begin(struct gpu *gpu, enum gpu_call call, bool sound)
{
	uint64_t number;
	int error;

	if (!gpu)
		return gpu_fail(-EINVAL, "%s: no device is open", call_names[call]);
	number = atomic_fetch_add_explicit(&gpu->calls[call], 1, memory_order_relaxed) + 1;
	thread_calls[call]++;
	if ((gpu->flags & GPU_OPEN_OWNER) && !owner_may[call])
		return gpu_fail(-EPERM, "%s: device %d was opened by the owner of its memory, without a context",
			call_names[call], gpu->index);
	if (!sound)
		return gpu_fail(-EINVAL, "%s: invalid argument", call_names[call]);
	error = atomic_load_explicit(&gpu->failed, memory_order_acquire);
	if (error && !works_after_failure[call])
		return gpu_fail(error, "%s: device %d has failed", call_names[call], gpu->index);
	if (atomic_load_explicit(&gpu->fault_at[call], memory_order_relaxed) != number)
		return 0;
	error = atomic_load_explicit(&gpu->fault_error[call], memory_order_relaxed);
	return gpu_fail(error, "injected fault: %s, call %llu", call_names[call], (unsigned long long)number);
}

/* range_is_sound() - return true if the range is not empty, does not begin at 0, and is within the address space. */
static bool range_is_sound(uint64_t va, uint64_t bytes)
{
	return va && bytes && va <= UINT64_MAX - bytes;
}

int gpu_granularity(struct gpu *gpu, uint64_t *bytes)
{
	int rc = call_begin(gpu, GPU_CALL_GRANULARITY, bytes);

	return rc < 0 ? rc : gpu->ops->granularity(gpu, bytes);
}

int gpu_memory_info(struct gpu *gpu, uint64_t *free_bytes, uint64_t *total_bytes)
{
	int rc = call_begin(gpu, GPU_CALL_MEMORY_INFO, free_bytes && total_bytes);

	return rc < 0 ? rc : gpu->ops->memory_info(gpu, free_bytes, total_bytes);
}

int gpu_create(struct gpu *gpu, uint64_t bytes, uint64_t *handle)
{
	int rc = call_begin(gpu, GPU_CALL_CREATE, bytes && handle);

	return rc < 0 ? rc : gpu->ops->create(gpu, bytes, handle);
}

void gpu_release(struct gpu *gpu, uint64_t handle)
{
	if (gpu && call_begin(gpu, GPU_CALL_RELEASE, true) == 0)
		gpu->ops->release(gpu, handle);
}

int gpu_export(struct gpu *gpu, uint64_t handle, struct gpu_export *out)
{
	int rc = call_begin(gpu, GPU_CALL_EXPORT, out);

	return rc < 0 ? rc : gpu->ops->export(gpu, handle, out);
}

int gpu_import(struct gpu *gpu, const struct gpu_export *from, uint64_t *handle)
{
	int rc = call_begin(gpu, GPU_CALL_IMPORT, from && from->fd >= 0 && from->length && handle);

	return rc < 0 ? rc : gpu->ops->import(gpu, from, handle);
}

int gpu_reserve(struct gpu *gpu, uint64_t bytes, uint64_t align, uint64_t *va)
{
	int rc = call_begin(gpu, GPU_CALL_RESERVE, bytes && (align & (align - 1)) == 0 && va);

	return rc < 0 ? rc : gpu->ops->reserve(gpu, bytes, align, va);
}

int gpu_unreserve(struct gpu *gpu, uint64_t va, uint64_t bytes)
{
	int rc = call_begin(gpu, GPU_CALL_UNRESERVE, range_is_sound(va, bytes));

	return rc < 0 ? rc : gpu->ops->unreserve(gpu, va, bytes);
}

int gpu_map(struct gpu *gpu, uint64_t va, uint64_t bytes, uint64_t handle)
{
	uint32_t mapped;

	return gpu_map_run(gpu, va, bytes, &handle, 1, &mapped);
}

int gpu_map_run(struct gpu *gpu, uint64_t va, uint64_t bytes, const uint64_t *handles, uint32_t count, uint32_t *mapped)
{
	bool sound = handles && count && bytes <= UINT64_MAX / count && range_is_sound(va, bytes * count);
	uint32_t may = 0;
	int rc = 0, fault = 0;

	*mapped = 0;
	while (may < (sound ? count : 1) && !fault) {
		fault = call_begin(gpu, GPU_CALL_MAP, sound);
		may += !fault;
	}
	if (may)
		rc = gpu->ops->map(gpu, va, bytes, handles, may, mapped);
	return rc < 0 ? rc : fault;
}

int gpu_unmap(struct gpu *gpu, uint64_t va, uint64_t bytes)
{
	int rc = call_begin(gpu, GPU_CALL_UNMAP, range_is_sound(va, bytes));

	return rc < 0 ? rc : gpu->ops->unmap(gpu, va, bytes);
}

int gpu_access(struct gpu *gpu, uint64_t va, uint64_t bytes, enum gpu_access access)
{
	bool known = access == GPU_ACCESS_NONE || access == GPU_ACCESS_READ || access == GPU_ACCESS_READ_WRITE;
	int rc = call_begin(gpu, GPU_CALL_ACCESS, range_is_sound(va, bytes) && known);

	return rc < 0 ? rc : gpu->ops->access(gpu, va, bytes, access);
}

int gpu_stream_create(struct gpu *gpu, struct gpu_stream **stream)
{
	int rc = call_begin(gpu, GPU_CALL_STREAM_CREATE, stream);

	return rc < 0 ? rc : gpu->ops->stream_create(gpu, stream);
}

int gpu_stream_adopt(struct gpu *gpu, void *native, struct gpu_stream **stream)
{
	int rc = call_begin(gpu, GPU_CALL_STREAM_ADOPT, native && stream);

	return rc < 0 ? rc : gpu->ops->stream_adopt(gpu, native, stream);
}

void gpu_stream_destroy(struct gpu *gpu, struct gpu_stream *stream)
{
	if (gpu && stream)
		gpu->ops->stream_destroy(gpu, stream);
}

int gpu_stream_sync(struct gpu *gpu, struct gpu_stream *stream)
{
	int rc = call_begin(gpu, GPU_CALL_STREAM_SYNC, stream);

	return rc < 0 ? rc : gpu->ops->stream_sync(gpu, stream);
}

int gpu_stream_query(struct gpu *gpu, struct gpu_stream *stream)
{
	int rc = call_begin(gpu, GPU_CALL_STREAM_QUERY, stream);

	if (rc == 0)
		rc = gpu->ops->stream_query(gpu, stream);
	/* A query reports it only for earlier work. The text keeps the cause. */
	if (rc == -ENODEV)
		rc = error_untaken = -EIO;
	return rc;
}

int gpu_copy(struct gpu *gpu, uint64_t to, uint64_t from, uint64_t bytes, struct gpu_stream *stream)
{
	bool sound = stream && (bytes == 0 || (range_is_sound(to, bytes) && range_is_sound(from, bytes)));
	int rc = call_begin(gpu, GPU_CALL_COPY, sound);

	if (rc == -EINVAL && stream && !sound)
		return gpu_fail(rc,
			"cannot copy %llu bytes from 0x%llx to 0x%llx: an address is 0, or the end exceeds 2^64",
			(unsigned long long)bytes, (unsigned long long)from, (unsigned long long)to);
	return rc < 0 || bytes == 0 ? rc : gpu->ops->copy(gpu, to, from, bytes, stream);
}

int gpu_fill(struct gpu *gpu, uint64_t to, uint32_t value, uint64_t bytes, struct gpu_stream *stream)
{
	bool sound = stream && to % 4 == 0 && bytes % 4 == 0 && (bytes == 0 || range_is_sound(to, bytes));
	int rc = call_begin(gpu, GPU_CALL_FILL, sound);

	if (rc == -EINVAL && stream && !sound)
		return gpu_fail(rc, "cannot fill %llu bytes at 0x%llx: %s", (unsigned long long)bytes,
			(unsigned long long)to,
			to % 4 || bytes % 4 ? "both numbers must be multiples of 4"
					    : "the address is 0, or the end exceeds 2^64");
	return rc < 0 || bytes == 0 ? rc : gpu->ops->fill(gpu, to, value, bytes, stream);
}

/* shape_is_sound() - return true if every device accepts the shape, so that an invalid shape fails on all back ends. */
static bool shape_is_sound(const struct gpu_shape *shape)
{
	return shape && shape->grid[0] && shape->grid[0] <= INT32_MAX && shape->grid[1] &&
		shape->grid[1] <= GPU_GRID_MAX && shape->grid[2] && shape->grid[2] <= GPU_GRID_MAX && shape->block &&
		shape->block <= GPU_BLOCK_MAX && shape->shared_bytes <= GPU_SHARED_MAX;
}

int gpu_launch(struct gpu *gpu, enum gpu_kernel kernel, const struct gpu_shape *shape, const void *args,
	size_t args_bytes, struct gpu_stream *stream)
{
	bool known = (unsigned)kernel < GPU_KERNEL_KINDS;
	bool sound = known && args && args_bytes == gpu_kernels[kernel].args_bytes && shape_is_sound(shape) && stream;
	int rc = call_begin(gpu, GPU_CALL_LAUNCH, sound);

	return rc < 0 ? rc : gpu->ops->launch(gpu, kernel, shape, args, stream);
}

int gpu_event_create(struct gpu *gpu, uint32_t flags, struct gpu_event **event)
{
	int rc = call_begin(gpu, GPU_CALL_EVENT_CREATE, event && !(flags & ~(uint32_t)GPU_EVENT_INTERPROCESS));

	return rc < 0 ? rc : gpu->ops->event_create(gpu, flags, event);
}

void gpu_event_destroy(struct gpu *gpu, struct gpu_event *event)
{
	if (gpu && event)
		gpu->ops->event_destroy(gpu, event);
}

int gpu_event_record(struct gpu *gpu, struct gpu_event *event, struct gpu_stream *stream)
{
	int rc = call_begin(gpu, GPU_CALL_EVENT_RECORD, event && stream);

	return rc < 0 ? rc : gpu->ops->event_record(gpu, event, stream);
}

int gpu_event_query(struct gpu *gpu, struct gpu_event *event)
{
	int rc = call_begin(gpu, GPU_CALL_EVENT_QUERY, event);

	return rc < 0 ? rc : gpu->ops->event_query(gpu, event);
}

int gpu_event_wait(struct gpu *gpu, struct gpu_stream *stream, struct gpu_event *event)
{
	int rc = call_begin(gpu, GPU_CALL_EVENT_WAIT, event && stream);

	return rc < 0 ? rc : gpu->ops->event_wait(gpu, stream, event);
}

int gpu_event_export(struct gpu *gpu, struct gpu_event *event, uint8_t ipc[GPU_IPC_BYTES])
{
	int rc = call_begin(gpu, GPU_CALL_EVENT_EXPORT, event && ipc);

	return rc < 0 ? rc : gpu->ops->event_export(gpu, event, ipc);
}

int gpu_event_import(struct gpu *gpu, const uint8_t ipc[GPU_IPC_BYTES], struct gpu_event **event)
{
	int rc = call_begin(gpu, GPU_CALL_EVENT_IMPORT, ipc && event);

	return rc < 0 ? rc : gpu->ops->event_import(gpu, ipc, event);
}

int gpu_host_register(struct gpu *gpu, void *memory, uint64_t bytes)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	bool sound = range_is_sound((uintptr_t)memory, bytes) && (uintptr_t)memory % page == 0 && bytes % page == 0;
	int rc = call_begin(gpu, GPU_CALL_HOST_REGISTER, sound);

	return rc < 0 ? rc : gpu->ops->host_register(gpu, memory, bytes);
}

int gpu_host_unregister(struct gpu *gpu, void *memory)
{
	int rc = call_begin(gpu, GPU_CALL_HOST_UNREGISTER, memory);

	return rc < 0 ? rc : gpu->ops->host_unregister(gpu, memory);
}

int gpu_host_address(struct gpu *gpu, const void *memory, uint64_t *va)
{
	return gpu->ops->host_address(gpu, memory, va);
}

int gpu_timeline_write(struct gpu *gpu, struct gpu_stream *stream, uint64_t *word, uint64_t value)
{
	int rc = call_begin(gpu, GPU_CALL_TIMELINE_WRITE, stream && word && (uintptr_t)word % sizeof(*word) == 0);

	return rc < 0 ? rc : gpu->ops->timeline_write(gpu, stream, word, value);
}

int gpu_timeline_wait(struct gpu *gpu, struct gpu_stream *stream, const uint64_t *word, uint64_t value)
{
	int rc = call_begin(gpu, GPU_CALL_TIMELINE_WAIT, stream && word && (uintptr_t)word % sizeof(*word) == 0);

	return rc < 0 ? rc : gpu->ops->timeline_wait(gpu, stream, word, value);
}

int gpu_pool_alloc(struct gpu *gpu, uint64_t bytes, struct gpu_stream *stream, uint64_t *va)
{
	int rc = call_begin(gpu, GPU_CALL_POOL_ALLOC, bytes && stream && va);

	return rc < 0 ? rc : gpu->ops->pool_alloc(gpu, bytes, stream, va);
}

int gpu_pool_free(struct gpu *gpu, uint64_t va, struct gpu_stream *stream)
{
	int rc = call_begin(gpu, GPU_CALL_POOL_FREE, va && stream);

	return rc < 0 ? rc : gpu->ops->pool_free(gpu, va, stream);
}

int gpu_pool_info(struct gpu *gpu, uint64_t *held_bytes, uint64_t *used_bytes)
{
	return gpu && held_bytes && used_bytes ? gpu->ops->pool_info(gpu, held_bytes, used_bytes) : -EINVAL;
}

uint64_t gpu_calls(const struct gpu *gpu, enum gpu_call call)
{
	if (!gpu || (unsigned)call >= GPU_CALL_KINDS)
		return 0;
	return atomic_load_explicit(&gpu->calls[call], memory_order_relaxed);
}

uint64_t gpu_calls_total(const struct gpu *gpu)
{
	uint64_t total = 0;

	for (int call = 0; call < GPU_CALL_KINDS; call++)
		total += gpu_calls(gpu, call);
	return total;
}

uint64_t gpu_thread_calls(enum gpu_call call)
{
	return (unsigned)call < GPU_CALL_KINDS ? thread_calls[call] : 0;
}

uint64_t gpu_thread_calls_total(void)
{
	uint64_t total = 0;

	for (int call = 0; call < GPU_CALL_KINDS; call++)
		total += thread_calls[call];
	return total;
}

const char *gpu_call_name(enum gpu_call call)
{
	return (unsigned)call < GPU_CALL_KINDS ? call_names[call] : "unknown";
}

/* next_device_fault_set() - set a fault for the next device to be opened, or for its opening. */
static void next_device_fault_set(enum gpu_call call, uint64_t n, int error)
{
	pthread_mutex_lock(&next_device.lock);
	if (call == GPU_CALL_OPEN) {
		next_device.open_fault_at = n ? next_device.opens + n : 0;
		next_device.open_fault_error = error;
	} else {
		next_device.n[call] = n;
		next_device.error[call] = error;
	}
	pthread_mutex_unlock(&next_device.lock);
}

void gpu_fault_set(struct gpu *gpu, enum gpu_call call, uint64_t n, int error)
{
	assert((unsigned)call < GPU_CALL_KINDS);
	assert(n == 0 || error < 0);
	if (!gpu) {
		next_device_fault_set(call, n, error);
		return;
	}
	atomic_store_explicit(&gpu->fault_error[call], error, memory_order_relaxed);
	atomic_store_explicit(&gpu->fault_at[call], n ? gpu_calls(gpu, call) + n : 0, memory_order_relaxed);
}
