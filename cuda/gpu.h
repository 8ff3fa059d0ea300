/*
 * gpu.h - the table of a back end: all GPU functions that gpool uses.
 *
 * Two back ends fill it: `cuda` (the driver API, loaded at run time) and `host` (memfd, mmap and threads, with the
 * driver's rules). A back end is selected by name, never as a silent fallback. Callers use the gpu_*() functions below
 * instead of the table, except for its name and for queries of devices that are not open. These functions count the
 * calls of each kind (enum gpu_call), and can inject a failure into the n-th one.
 *
 * Errors: functions return 0 or a negative errno. A failed call changes nothing. gpu_errno() in the cuda back end maps
 * CUresult: out of memory, or of clients of MPS, is -ENOMEM, unsupported -EOPNOTSUPP, a lost device, context or MPS
 * server -ENODEV, a launch that is too large -EINVAL, any other error, such as a faulting access or kernel, -EIO. Both
 * back ends return -EINVAL for invalid arguments. gpu_error_text() returns the driver's description of this thread's
 * last failure.
 *
 * Device failure (`cuda`, and `host` with GPOOL_HOST_FAULTS=sticky): queued work that accesses an address without a
 * mapping, or another serious error, ends the context of the process. Work that is queued, also on other streams, is
 * then never executed, so timeline words no longer change, and almost all calls return an error. Only
 * gpu_stream_query() distinguishes this from the failure of one call.
 *
 * Threads: any thread may use a struct gpu; a stream is used by one thread at a time. A struct gpu cannot be used after
 * fork(); the child must open the device itself.
 */
#ifndef GPOOL_CUDA_GPU_H
#define GPOOL_CUDA_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gpu;        /* an open device */
struct gpu_stream; /* a queue of GPU work, asynchronous to the host */
struct gpu_event;  /* a point in a stream */

enum {
	GPU_UUID_MAX = 48,  /* "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx" and a NUL */
	GPU_IPC_BYTES = 64, /* an exported event, as CUDA's CUipcEventHandle */
	GPU_PEERS_MAX = 15, /* of a device: a machine has up to 16 GPUs */
	GPU_BACKENDS_MAX = 2,
};

/* The kinds of calls, for counts and fault injection. */
enum gpu_call {
	GPU_CALL_OPEN,
	GPU_CALL_GRANULARITY,
	GPU_CALL_CREATE,
	GPU_CALL_RELEASE,
	GPU_CALL_EXPORT,
	GPU_CALL_IMPORT,
	GPU_CALL_RESERVE,
	GPU_CALL_UNRESERVE,
	GPU_CALL_MAP,
	GPU_CALL_UNMAP,
	GPU_CALL_ACCESS,
	GPU_CALL_STREAM_CREATE,
	GPU_CALL_STREAM_ADOPT,
	GPU_CALL_STREAM_SYNC,
	GPU_CALL_STREAM_QUERY,
	GPU_CALL_COPY,
	GPU_CALL_FILL,
	GPU_CALL_LAUNCH,
	GPU_CALL_EVENT_CREATE,
	GPU_CALL_EVENT_RECORD,
	GPU_CALL_EVENT_QUERY,
	GPU_CALL_EVENT_WAIT,
	GPU_CALL_EVENT_EXPORT,
	GPU_CALL_EVENT_IMPORT,
	GPU_CALL_HOST_REGISTER,
	GPU_CALL_HOST_UNREGISTER,
	GPU_CALL_TIMELINE_WRITE,
	GPU_CALL_TIMELINE_WAIT,
	GPU_CALL_MEMORY_INFO,
	GPU_CALL_POOL_ALLOC,
	GPU_CALL_POOL_FREE,
	GPU_CALL_KINDS
};

/* The kernels of gpool; the arguments of each are described in its header in cuda/kernels/. */
enum gpu_kernel {
#define KERNEL(id, name, file, args) GPU_KERNEL_##id,
#include "cuda/kernels/kernels.def"
	GPU_KERNEL_KINDS
};

/*
 * The size of a launch: the number of threads, and the shared memory per block in addition to the memory that the
 * kernel declares. `host` ignores it.
 */
struct gpu_shape {
	uint32_t grid[3]; /* blocks */
	uint32_t block;   /* threads per block */
	uint32_t shared_bytes;
	/*
	 * The kernel may start before the end of the kernel that was queued directly before it, which permits this, and
	 * waits for its end itself (cuda/kernels/overlap.h).
	 */
	bool early;
};

enum {
	GPU_GRID_MAX = 65535, /* grid[1] and grid[2]; grid[0] may have 31 bits */
	GPU_BLOCK_MAX = 1024,
	GPU_SHARED_MAX = 48 << 10, /* the limit if the kernel does not request more from the driver */
};

enum gpu_access { GPU_ACCESS_NONE, GPU_ACCESS_READ, GPU_ACCESS_READ_WRITE };

/* Flags of gpu_open(). */
enum {
	/* used by the agent: only create, export and release, without a context, streams or mappings */
	GPU_OPEN_OWNER = 1u << 0,
	/* each handle has its own descriptor, which gives access only to this handle; always the case on `cuda` */
	GPU_OPEN_SEPARATE = 1u << 1,
	/*
	 * a thread sleeps while it waits for a stream; otherwise the driver may poll. On `cuda`, this applies to the
	 * whole process, because all devices that it opens for one GPU use the same context. No effect with
	 * GPU_OPEN_OWNER
	 */
	GPU_OPEN_BLOCKING = 1u << 2,
};

/* Flags of gpu_event_create(). */
enum { GPU_EVENT_INTERPROCESS = 1u << 0 };

/* Capability bits of a back end or device. */
enum {
	GPU_CAP_IPC_EVENT = 1u << 0,
	GPU_CAP_TIMELINE = 1u << 1, /* gpu_timeline_write()/wait() on registered host memory */
	/*
	 * one exported descriptor may contain several handles, at different offsets (`host` without GPU_OPEN_SEPARATE)
	 */
	GPU_CAP_EXPORT_OFFSET = 1u << 2,
	GPU_CAP_HOST_POINTER = 1u << 3, /* the CPU can read and write a device address (host) */
	/* gpu_create() returns zeroed memory (host); otherwise it may contain data of other processes */
	GPU_CAP_ZEROED = 1u << 4,
	/* the driver has a stream-ordered pool: gpu_pool_alloc() */
	GPU_CAP_POOL = 1u << 5,
	/* gpu_launch(). On `cuda`: gpool was built with nvcc; only gpu_capabilities() also checks the driver */
	GPU_CAP_KERNELS = 1u << 6,
};

struct gpu_device_info {
	char uuid[GPU_UUID_MAX];
	char name[64];
	uint64_t memory_bytes;
	uint32_t capabilities;
};

/* An exported handle: `length` bytes at `offset` in a file. On CUDA the offset is 0. */
struct gpu_export {
	int fd; /* owned by the caller, which closes it */
	uint64_t offset;
	uint64_t length;
};

/*
 * The table of a back end. Each member is described at the gpu_*() function of the same name. A back end sets every
 * member; a function that a device does not support returns -EOPNOTSUPP. Each back end's struct begins with struct gpu.
 */
struct gpu_ops {
	const char *name;
	int (*device_count)(void);
	int (*device_info)(int index, struct gpu_device_info *info);
	int (*open)(int index, uint32_t flags, struct gpu **gpu);
	void (*close)(struct gpu *gpu);
	uint32_t (*capabilities)(struct gpu *gpu);
	int (*peers_set)(struct gpu *gpu, const int *devices, uint32_t count);
	int (*granularity)(struct gpu *gpu, uint64_t *bytes);
	int (*memory_info)(struct gpu *gpu, uint64_t *free_bytes, uint64_t *total_bytes);
	int (*create)(struct gpu *gpu, uint64_t bytes, uint64_t *handle);
	void (*release)(struct gpu *gpu, uint64_t handle);
	int (*export)(struct gpu *gpu, uint64_t handle, struct gpu_export *out);
	int (*import)(struct gpu *gpu, const struct gpu_export *from, uint64_t *handle);
	int (*reserve)(struct gpu *gpu, uint64_t bytes, uint64_t align, uint64_t *va);
	int (*unreserve)(struct gpu *gpu, uint64_t va, uint64_t bytes);
	int (*map)(struct gpu *gpu, uint64_t va, uint64_t bytes, const uint64_t *handles, uint32_t count,
		uint32_t *mapped);
	int (*unmap)(struct gpu *gpu, uint64_t va, uint64_t bytes);
	int (*access)(struct gpu *gpu, uint64_t va, uint64_t bytes, enum gpu_access access);
	int (*stream_create)(struct gpu *gpu, struct gpu_stream **stream);
	int (*stream_adopt)(struct gpu *gpu, void *native, struct gpu_stream **stream);
	void (*stream_destroy)(struct gpu *gpu, struct gpu_stream *stream);
	int (*stream_sync)(struct gpu *gpu, struct gpu_stream *stream);
	int (*stream_query)(struct gpu *gpu, struct gpu_stream *stream);
	int (*copy)(struct gpu *gpu, uint64_t to, uint64_t from, uint64_t bytes, struct gpu_stream *stream);
	int (*fill)(struct gpu *gpu, uint64_t to, uint32_t value, uint64_t bytes, struct gpu_stream *stream);
	int (*launch)(struct gpu *gpu, enum gpu_kernel kernel, const struct gpu_shape *shape, const void *args,
		struct gpu_stream *stream);
	int (*event_create)(struct gpu *gpu, uint32_t flags, struct gpu_event **event);
	void (*event_destroy)(struct gpu *gpu, struct gpu_event *event);
	int (*event_record)(struct gpu *gpu, struct gpu_event *event, struct gpu_stream *stream);
	int (*event_query)(struct gpu *gpu, struct gpu_event *event);
	int (*event_wait)(struct gpu *gpu, struct gpu_stream *stream, struct gpu_event *event);
	int (*event_export)(struct gpu *gpu, struct gpu_event *event, uint8_t ipc[GPU_IPC_BYTES]);
	int (*event_import)(struct gpu *gpu, const uint8_t ipc[GPU_IPC_BYTES], struct gpu_event **event);
	int (*host_register)(struct gpu *gpu, void *memory, uint64_t bytes);
	int (*host_unregister)(struct gpu *gpu, void *memory);
	int (*host_address)(struct gpu *gpu, const void *memory, uint64_t *va);
	int (*timeline_write)(struct gpu *gpu, struct gpu_stream *stream, uint64_t *word, uint64_t value);
	int (*timeline_wait)(struct gpu *gpu, struct gpu_stream *stream, const uint64_t *word, uint64_t value);
	int (*pool_alloc)(struct gpu *gpu, uint64_t bytes, struct gpu_stream *stream, uint64_t *va);
	int (*pool_free)(struct gpu *gpu, uint64_t va, struct gpu_stream *stream);
	int (*pool_info)(struct gpu *gpu, uint64_t *held_bytes, uint64_t *used_bytes);
};

extern const struct gpu_ops gpu_host_ops;
extern const struct gpu_ops gpu_cuda_ops;

/* gpu_backend() - return the table named `name` ("host", "cuda"), or NULL. The driver is not called. */
const struct gpu_ops *gpu_backend(const char *name);

/*
 * gpu_device_find() - return the index of the device whose index or UUID is `text`; -ENODEV: no such device. A UUID
 * begins with GPU-, or with MIG- for a slice of a GPU; the driver reports the same UUID for both.
 */
int gpu_device_find(const struct gpu_ops *ops, const char *text);

/*
 * gpu_open() - open device `index`.
 *
 * With GPU_OPEN_OWNER, the device has no context: only granularity, memory_info, create, export and release are
 * permitted; other calls return -EPERM.
 * Return: 0, -ENODEV (no driver or device), -EINVAL (also an invalid setting of `host`), -EPERM, -ENOMEM, -EIO,
 * -EOPNOTSUPP (a device without virtual memory management).
 *
 * gpu_close() - close a device. `host` cancels queued work and frees all remaining memory. On `cuda`, the driver frees
 * remaining memory only when the process ends, so free all memory before closing the device.
 */
int gpu_open(const struct gpu_ops *ops, int index, uint32_t flags, struct gpu **gpu);
void gpu_close(struct gpu *gpu);
const struct gpu_ops *gpu_ops_of(const struct gpu *gpu);

/*
 * gpu_capabilities() - return the capabilities of an open device. On `cuda`, this loads the kernels: without
 * GPU_CAP_KERNELS, gpu_error_text() describes why the driver cannot load them. This takes time and device memory until
 * gpu_close(). With GPU_OPEN_OWNER, the kernels are not loaded. The call is not counted.
 */
uint32_t gpu_capabilities(struct gpu *gpu);

/*
 * gpu_peers_set() - let other devices access the memory that is mapped here: gpu_access() then sets the access of this
 * device and of all peers. Call it before other threads use the device; it does not change existing mappings. It is not
 * counted, because it calls no function that changes the device.
 *
 * @devices: [count] indexes, at most GPU_PEERS_MAX; none twice, and not this device
 *
 * Return: 0, -EINVAL, -ENODEV (no such device), -EOPNOTSUPP (a device cannot access the memory of this one; `host`
 * accepts all of its devices).
 */
int gpu_peers_set(struct gpu *gpu, const int *devices, uint32_t count);

/* gpu_granularity() - return the smallest size and the alignment of a handle, in bytes: 2 MiB on A100 and H100. */
int gpu_granularity(struct gpu *gpu, uint64_t *bytes);
/*
 * gpu_memory_info() - return the free and total memory of the device. `cuda` counts all processes, `host` only this
 * process. A `cuda` device opened with GPU_OPEN_OWNER queries the management library, and returns -EOPNOTSUPP if it is
 * missing.
 */
int gpu_memory_info(struct gpu *gpu, uint64_t *free_bytes, uint64_t *total_bytes);

/*
 * gpu_create() - create exportable physical memory of `bytes` bytes, a multiple of the granularity. It is zeroed only
 * with GPU_CAP_ZEROED.
 */
int gpu_create(struct gpu *gpu, uint64_t bytes, uint64_t *handle);
/*
 * gpu_release() - release a created or imported handle. The memory remains allocated while it is mapped or any process
 * has a descriptor of it open. An injected fault leaves the handle unchanged.
 */
void gpu_release(struct gpu *gpu, uint64_t handle);

/*
 * gpu_export() - return a file descriptor for the handle. Call it once for each handle, and use dup() for further
 * descriptors.
 * gpu_import() - return a handle for a descriptor, which the caller owns and may close at once. `from` may come from an
 * untrusted process. `host` rejects a range outside of the file with -EINVAL, and a file that could shrink or is not
 * writable with -EPERM. `cuda` rejects an offset other than 0 with -EINVAL, but cannot check the length, because the
 * driver does not report the size of a handle: gpu_map() then returns -EINVAL.
 */
int gpu_export(struct gpu *gpu, uint64_t handle, struct gpu_export *out);
int gpu_import(struct gpu *gpu, const struct gpu_export *from, uint64_t *handle);

/*
 * gpu_reserve() - reserve an address range that is aligned to the granularity and to `align`, 0 or a power of two.
 * gpu_unreserve() - free a whole reservation, which must have no mappings (-EINVAL). On `host`, it returns -EBUSY while
 * queued work uses the reservation.
 */
int gpu_reserve(struct gpu *gpu, uint64_t bytes, uint64_t align, uint64_t *va);
int gpu_unreserve(struct gpu *gpu, uint64_t va, uint64_t bytes);

/*
 * gpu_map() - map a whole handle at `va` in a reservation. `bytes` must be the size of the handle, and the range
 * unmapped. A new mapping permits no access.
 * gpu_map_run() - map handles[count] of `bytes` bytes each, side by side, as calls of gpu_map() would: after an error,
 * the first *mapped handles are mapped. Each handle counts as a call. `host` needs one system call for handles that are
 * adjacent in their file.
 * gpu_unmap() - unmap one or several adjacent whole mappings at once. While queued work uses the range, `host` returns
 * -EBUSY; CUDA would fault.
 * gpu_access() - set the access of this device and its peers to one or several adjacent whole mappings. `host` returns
 * -EBUSY if the call would remove access that queued work needs.
 */
int gpu_map(struct gpu *gpu, uint64_t va, uint64_t bytes, uint64_t handle);
int gpu_map_run(
	struct gpu *gpu, uint64_t va, uint64_t bytes, const uint64_t *handles, uint32_t count, uint32_t *mapped);
int gpu_unmap(struct gpu *gpu, uint64_t va, uint64_t bytes);
int gpu_access(struct gpu *gpu, uint64_t va, uint64_t bytes, enum gpu_access access);

int gpu_stream_create(struct gpu *gpu, struct gpu_stream **stream);
/*
 * gpu_stream_adopt() - use a stream that the program created, for queued work and timelines. The program remains its
 * owner, so it must not be passed to gpu_stream_destroy(). native: on `cuda`, a CUstream of the device's primary
 * context; on `host`, a stream that gpu_stream_create() created on this struct gpu. Return: 0, -EINVAL (a stream of
 * another device or context), -EOPNOTSUPP (on `host`: GPU_STREAM_PER_THREAD).
 *
 * Each call with GPU_STREAM_PER_THREAD uses the default stream of the thread that makes the call. GPU_STREAM_LEGACY
 * waits for the earlier work of all of these streams, and they wait for its work.
 */
#define GPU_STREAM_LEGACY ((void *)1)     /* CU_STREAM_LEGACY */
#define GPU_STREAM_PER_THREAD ((void *)2) /* CU_STREAM_PER_THREAD */
int gpu_stream_adopt(struct gpu *gpu, void *native, struct gpu_stream **stream);
/* gpu_stream_destroy() - wait until all queued work has finished, and destroy the stream. */
void gpu_stream_destroy(struct gpu *gpu, struct gpu_stream *stream);
/*
 * gpu_stream_sync() - wait until all queued work has finished. Return: the first error of work since the last sync.
 *
 * Captures. While a program captures a graph from a stream (`cuda` only), these functions return -EBUSY for it and
 * change nothing: gpu_stream_sync(), gpu_stream_query(), gpu_event_record(), gpu_event_wait(), gpu_timeline_write(),
 * gpu_timeline_wait(), gpu_pool_alloc() and gpu_pool_free(). Otherwise each launch of the graph would repeat a timeline
 * write with its old value. Copies, fills and launches become a part of the graph. gpu_stream_destroy() has no effect
 * for such a stream. If another thread begins a capture during gpu_timeline_write(), the capture becomes invalid.
 */
int gpu_stream_sync(struct gpu *gpu, struct gpu_stream *stream);
/*
 * gpu_stream_query() - check whether all queued work has finished, and whether the device has failed. Return: 0;
 * -EAGAIN (not finished); -EIO (a device failure: see above; later queries return the same); other errors provide no
 * information about the device.
 */
int gpu_stream_query(struct gpu *gpu, struct gpu_stream *stream);

/*
 * gpu_copy(), gpu_fill() - queue a copy or a fill. Addresses must be device addresses, or those of registered host
 * memory: for a fill, by gpu_host_address(); for a copy, also the address in the process (-EINVAL; `cuda` leaves this
 * check to the driver). If an address is not mapped with access when the operation is executed, the next sync returns
 * -EIO, and a device failure may follow (see above). gpu_fill() writes the 32-bit `value`; its address and size are
 * multiples of 4. A size of 0 queues nothing.
 */
int gpu_copy(struct gpu *gpu, uint64_t to, uint64_t from, uint64_t bytes, struct gpu_stream *stream);
int gpu_fill(struct gpu *gpu, uint64_t to, uint32_t value, uint64_t bytes, struct gpu_stream *stream);

/*
 * gpu_launch() - queue a kernel. `args` points to the kernel's struct, which is copied; `args_bytes` must be its size
 * (-EINVAL). Addresses in the struct refer to device memory, or to registered memory by gpu_host_address(), and are not
 * checked. On `host`, the kernel's C reference runs in stream order. The memory that it uses is not marked as used, and
 * an invalid address ends the process, as it would end the context on `cuda`. Each kernel has a function that checks
 * its arguments, computes the shape and calls gpu_launch().
 *
 * On `cuda`, the first launch from an image loads the image, so launch the kernel once before a graph is captured.
 * Returns -EOPNOTSUPP without GPU_CAP_KERNELS, or if the driver is too old for the images that nvcc compiled.
 */
int gpu_launch(struct gpu *gpu, enum gpu_kernel kernel, const struct gpu_shape *shape, const void *args,
	size_t args_bytes, struct gpu_stream *stream);

/*
 * Events. gpu_event_query() returns 0 if the event is finished or was never recorded, otherwise -EAGAIN.
 * gpu_event_wait() waits for the last record before the call. An imported event must come from another process
 * (-EINVAL) that is alive (-ESRCH, -ENODEV) and that, on `host`, this process may trace (-EPERM). Without
 * GPU_CAP_IPC_EVENT, export and import return -EOPNOTSUPP. On `host`, an event may have 128 unfinished records
 * (-EBUSY).
 */
int gpu_event_create(struct gpu *gpu, uint32_t flags, struct gpu_event **event);
void gpu_event_destroy(struct gpu *gpu, struct gpu_event *event);
int gpu_event_record(struct gpu *gpu, struct gpu_event *event, struct gpu_stream *stream);
int gpu_event_query(struct gpu *gpu, struct gpu_event *event);
int gpu_event_wait(struct gpu *gpu, struct gpu_stream *stream, struct gpu_event *event);
int gpu_event_export(struct gpu *gpu, struct gpu_event *event, uint8_t ipc[GPU_IPC_BYTES]);
int gpu_event_import(struct gpu *gpu, const uint8_t ipc[GPU_IPC_BYTES], struct gpu_event **event);

/*
 * gpu_host_register() - page-lock host memory (whole pages, writable) for use by streams; -EINVAL if a part is already
 * registered in this process, with any device. gpu_host_unregister() - unregister memory by its first address. `host`
 * returns -EBUSY while queued work uses it. gpu_host_address() - return the address of memory that is registered with
 * this device, for kernels and fills. It may differ from the address in the process. Return: 0; -EINVAL: not
 * registered. The call is not counted, because it is not a GPU operation.
 */
int gpu_host_register(struct gpu *gpu, void *memory, uint64_t bytes);
int gpu_host_unregister(struct gpu *gpu, void *memory);
int gpu_host_address(struct gpu *gpu, const void *memory, uint64_t *va);

/*
 * gpu_timeline_write() - store `value` to *word with release order when all work queued before has finished. `word` is
 * in registered memory; other processes may share it and read it with a plain acquire load.
 * gpu_timeline_wait() - queue a wait until *word >= value. The values of a word only increase, by less than 2^63 in
 * total.
 */
int gpu_timeline_write(struct gpu *gpu, struct gpu_stream *stream, uint64_t *word, uint64_t value);
int gpu_timeline_wait(struct gpu *gpu, struct gpu_stream *stream, const uint64_t *word, uint64_t value);

/*
 * The driver's stream-ordered pool, whose memory is unknown to the agent; -EOPNOTSUPP without GPU_CAP_POOL.
 * gpu_pool_alloc() - allocate memory for work that is queued on `stream` later. gpu_pool_free() - free memory after the
 * work that is queued on `stream`. The pool keeps freed memory until gpu_close(). gpu_pool_info() - return the size of
 * the pool and of its allocations. The call is not counted, because it is not a GPU operation.
 */
int gpu_pool_alloc(struct gpu *gpu, uint64_t bytes, struct gpu_stream *stream, uint64_t *va);
int gpu_pool_free(struct gpu *gpu, uint64_t va, struct gpu_stream *stream);
int gpu_pool_info(struct gpu *gpu, uint64_t *held_bytes, uint64_t *used_bytes);

/* gpu_calls() - return the number of calls of a kind since the device was opened. */
uint64_t gpu_calls(const struct gpu *gpu, enum gpu_call call);
uint64_t gpu_calls_total(const struct gpu *gpu);
/* gpu_thread_calls() - return the number of calls of a kind that the calling thread has made, on all devices. */
uint64_t gpu_thread_calls(enum gpu_call call);
uint64_t gpu_thread_calls_total(void);
const char *gpu_call_name(enum gpu_call call);
/* gpu_error_text() - return a description of this thread's last failure; "": none. */
const char *gpu_error_text(void);
/*
 * gpu_error_take() - return this text if the last failure had this code (negative errno), otherwise NULL. The text is
 * returned only once.
 */
const char *gpu_error_take(int error);

/*
 * gpu_fault_set() - for tests: make the n-th later call of this kind fail with `error` (negative errno), before it
 * reaches the back end. n = 0 clears the fault. If gpu is NULL, the fault concerns the next device that is opened, or
 * its opening.
 */
void gpu_fault_set(struct gpu *gpu, enum gpu_call call, uint64_t n, int error);

/*
 * gpu_driver_forget() - for tests, in a child of fork(): forget that the parent has loaded the driver. The child can
 * then open devices, if the driver permits this; NVIDIA's driver does not.
 */
void gpu_driver_forget(void);

#endif
