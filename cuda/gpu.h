/*
 * gpu.h - the back-end table: everything gpool asks of a GPU, and nothing else.
 *
 * Two back ends fill it: `cuda` (the driver API, loaded at run time) and `host` (memfd, mmap and threads, with the
 * driver's rules). A back end is picked by name, never as a silent fallback. Callers use the gpu_*() functions below,
 * which count every call and can make the n-th call of a kind fail, and never the table itself.
 *
 * Errors: 0 or negative errno. gpu_errno() in the cuda back end alone maps CUresult: out of memory -ENOMEM, unsupported
 * -EOPNOTSUPP, device lost -ENODEV, a faulting access -EFAULT, rest -EIO; wrong arguments are -EINVAL in both back
 * ends. Any failure leaves everything as it was. gpu_error_text() says more about this thread's last failure, in the
 * driver's words.
 * Threads: a struct gpu may be used by any thread; one stream by one thread at a time. Not after fork(): open in the
 * child.
 */
#ifndef GPOOL_CUDA_GPU_H
#define GPOOL_CUDA_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gpu;        /* one opened device */
struct gpu_stream; /* work in order, asynchronous to the host */
struct gpu_event;  /* a point in a stream */

enum {
	GPU_UUID_MAX = 48,  /* "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx" and its NUL */
	GPU_IPC_BYTES = 64, /* an exported event, as CUDA's CUipcEventHandle */
	GPU_BACKENDS_MAX = 2,
};

/* One kind of call, for counts and fault injection. */
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
 * As how many threads a kernel runs, and the memory that those of a block share beside what it declares; `host` ignores
 * it.
 */
struct gpu_shape {
	uint32_t grid[3]; /* blocks */
	uint32_t block;   /* threads of one */
	uint32_t shared_bytes;
};

enum {
	GPU_GRID_MAX = 65535, /* grid[1] and grid[2]; grid[0] has 31 bits */
	GPU_BLOCK_MAX = 1024,
	GPU_SHARED_MAX = 48 << 10, /* without asking the driver for more */
};

enum gpu_access { GPU_ACCESS_NONE, GPU_ACCESS_READ, GPU_ACCESS_READ_WRITE };

/* Flags of gpu_open(). */
enum {
	/* create, export and release only: no context, no streams, no mapping; what the agent asks for */
	GPU_OPEN_OWNER = 1u << 0,
	/* every handle has a descriptor of its own, which gives nothing but that handle; so it always is on `cuda` */
	GPU_OPEN_SEPARATE = 1u << 1,
};

/* Flags of gpu_event_create(). */
enum { GPU_EVENT_INTERPROCESS = 1u << 0 };

/* Capability bits of a back end or device. */
enum {
	GPU_CAP_IPC_EVENT = 1u << 0,
	GPU_CAP_TIMELINE = 1u << 1,      /* gpu_timeline_write()/wait() on registered host memory */
	GPU_CAP_EXPORT_OFFSET = 1u << 2, /* one exported FD may carry several handles, distinguished by offset (host,
	                                      unless they were made with GPU_OPEN_SEPARATE) */
	GPU_CAP_HOST_POINTER = 1u << 3,  /* a device address may be read and written by the CPU (host) */
	/* gpu_create() gives zeros (host); without it, what somebody else may have left */
	GPU_CAP_ZEROED = 1u << 4,
	/* the driver has a pool of its own, in the order of streams: gpu_pool_alloc() */
	GPU_CAP_POOL = 1u << 5,
	GPU_CAP_KERNELS = 1u << 6, /* gpu_launch(); on `cuda` only when gpool was built with nvcc */
};

struct gpu_device_info {
	char uuid[GPU_UUID_MAX];
	char name[64];
	uint64_t memory_bytes;
	uint32_t capabilities;
};

/* Where an exported handle lives: length bytes at offset behind a file descriptor. On CUDA offset is 0. */
struct gpu_export {
	int fd; /* owned by the caller; close it */
	uint64_t offset;
	uint64_t length;
};

/*
 * The table. Contracts stand at the gpu_*() function of the same name; a back end fills every member (a null op is a
 * bug) and answers -EOPNOTSUPP where a device cannot. Each back end's struct begins with struct gpu.
 */
struct gpu_ops {
	const char *name;
	int (*device_count)(void);
	int (*device_info)(int index, struct gpu_device_info *info);
	int (*open)(int index, uint32_t flags, struct gpu **gpu);
	void (*close)(struct gpu *gpu);
	int (*granularity)(struct gpu *gpu, uint64_t *bytes);
	int (*memory_info)(struct gpu *gpu, uint64_t *free_bytes, uint64_t *total_bytes);
	int (*create)(struct gpu *gpu, uint64_t bytes, uint64_t *handle);
	void (*release)(struct gpu *gpu, uint64_t handle);
	int (*export)(struct gpu *gpu, uint64_t handle, struct gpu_export *out);
	int (*import)(struct gpu *gpu, const struct gpu_export *from, uint64_t *handle);
	int (*reserve)(struct gpu *gpu, uint64_t bytes, uint64_t align, uint64_t *va);
	int (*unreserve)(struct gpu *gpu, uint64_t va, uint64_t bytes);
	int (*map)(struct gpu *gpu, uint64_t va, uint64_t bytes, uint64_t offset, uint64_t handle);
	int (*unmap)(struct gpu *gpu, uint64_t va, uint64_t bytes);
	int (*access)(struct gpu *gpu, uint64_t va, uint64_t bytes, enum gpu_access access);
	int (*stream_create)(struct gpu *gpu, struct gpu_stream **stream);
	int (*stream_adopt)(struct gpu *gpu, void *native, struct gpu_stream **stream);
	void (*stream_destroy)(struct gpu *gpu, struct gpu_stream *stream);
	int (*stream_sync)(struct gpu *gpu, struct gpu_stream *stream);
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
	int (*timeline_write)(struct gpu *gpu, struct gpu_stream *stream, uint64_t *word, uint64_t value);
	int (*timeline_wait)(struct gpu *gpu, struct gpu_stream *stream, const uint64_t *word, uint64_t value);
	int (*pool_alloc)(struct gpu *gpu, uint64_t bytes, struct gpu_stream *stream, uint64_t *va);
	int (*pool_free)(struct gpu *gpu, uint64_t va, struct gpu_stream *stream);
	int (*pool_info)(struct gpu *gpu, uint64_t *held_bytes, uint64_t *used_bytes);
};

extern const struct gpu_ops gpu_host_ops;
extern const struct gpu_ops gpu_cuda_ops;

/* gpu_backend() - the table named `name` ("host", "cuda"), or NULL. No call to the driver. */
const struct gpu_ops *gpu_backend(const char *name);

/* gpu_device_find() - index of the device whose index or UUID is written in `text`; -ENODEV when there is none. */
int gpu_device_find(const struct gpu_ops *ops, const char *text);

/*
 * gpu_open() - open device `index`.
 * GPU_OPEN_OWNER asks for no context: only granularity, memory_info, create, export and release may then be used,
 * everything else is -EPERM. Return: 0, -ENODEV (no driver or device), -EINVAL (also a wrong setting of `host`),
 * -EPERM, -ENOMEM, -EIO, -EOPNOTSUPP (a device without virtual memory management).
 *
 * gpu_close() - `host` cancels queued work and gives back all that is left. The driver of `cuda` frees what is left
 * only when the process ends, so a caller that goes on gives everything back first.
 */
int gpu_open(const struct gpu_ops *ops, int index, uint32_t flags, struct gpu **gpu);
void gpu_close(struct gpu *gpu);
const struct gpu_ops *gpu_ops_of(const struct gpu *gpu);

/* gpu_granularity() - smallest size and alignment of a handle, bytes. 2 MB on A100 and H100; ask, never assume. */
int gpu_granularity(struct gpu *gpu, uint64_t *bytes);
/*
 * gpu_memory_info() - return free and total memory of the device, for all processes; `host` knows only allocations of
 * this process. An owner on `cuda` asks the management library: -EOPNOTSUPP where it is missing.
 */
int gpu_memory_info(struct gpu *gpu, uint64_t *free_bytes, uint64_t *total_bytes);

/*
 * gpu_create() - `bytes` (a multiple of the granularity) of physical memory that can be exported; its content:
 * GPU_CAP_ZEROED.
 */
int gpu_create(struct gpu *gpu, uint64_t bytes, uint64_t *handle);
/* gpu_release() - drop a created or imported handle; the memory lives on while it is mapped or an FD is open anywhere.
 * An injected fault leaves the handle as it was. */
void gpu_release(struct gpu *gpu, uint64_t handle);

/*
 * gpu_export() - a file descriptor for the handle; one call per handle, then dup(). gpu_import() - a handle for it; the
 * FD stays the caller's and may be closed at once. `from` may come from a stranger: what does not fit the file is
 * -EINVAL, and on `host` a file that could shrink or cannot be written -EPERM.
 */
int gpu_export(struct gpu *gpu, uint64_t handle, struct gpu_export *out);
int gpu_import(struct gpu *gpu, const struct gpu_export *from, uint64_t *handle);

/* gpu_reserve() - an address range; `align` 0 or a power of two. gpu_unreserve() - whole reservations only, nothing
 * mapped (-EINVAL); on `host` -EBUSY while queued work uses it. */
int gpu_reserve(struct gpu *gpu, uint64_t bytes, uint64_t align, uint64_t *va);
int gpu_unreserve(struct gpu *gpu, uint64_t va, uint64_t bytes);

/*
 * gpu_map() - put a whole handle at `va` inside a reservation: offset must be 0, bytes the handle's size, the place
 * empty. A fresh mapping has no access. gpu_unmap() - whole mappings, one or several in a row; acts at once, so -EBUSY
 * on `host` while queued work uses the range (CUDA would fault). gpu_access() - a fully mapped contiguous range, of any
 * number of mappings; on `host` -EBUSY when it takes access away from queued work.
 */
int gpu_map(struct gpu *gpu, uint64_t va, uint64_t bytes, uint64_t offset, uint64_t handle);
int gpu_unmap(struct gpu *gpu, uint64_t va, uint64_t bytes);
int gpu_access(struct gpu *gpu, uint64_t va, uint64_t bytes, enum gpu_access access);

int gpu_stream_create(struct gpu *gpu, struct gpu_stream **stream);
/*
 * gpu_stream_adopt() - use a stream that the program created, for queued work and timelines. The program keeps owning
 * it; it must never be passed to gpu_stream_destroy(). native: a CUstream of the device's primary context (`cuda`), or
 * a stream that gpu_stream_create() created on this struct gpu (`host`; any other value is rejected with -EINVAL).
 */
int gpu_stream_adopt(struct gpu *gpu, void *native, struct gpu_stream **stream);
/* gpu_stream_destroy() - lets queued work finish first. */
void gpu_stream_destroy(struct gpu *gpu, struct gpu_stream *stream);
/*
 * gpu_stream_sync() - wait until all that was queued is done; returns the first error of queued work since the last
 * sync.
 */
int gpu_stream_sync(struct gpu *gpu, struct gpu_stream *stream);

/*
 * gpu_copy(), gpu_fill() - queue; addresses are device addresses or registered host memory, anything else is -EINVAL
 * (`cuda` leaves that to the driver). An address that turns out not to be mapped with access when its turn comes is
 * -EFAULT at the next sync; on `cuda` that ends the context. fill writes 32-bit `value`; its address and bytes are
 * multiples of 4. 0 bytes are 0 work.
 */
int gpu_copy(struct gpu *gpu, uint64_t to, uint64_t from, uint64_t bytes, struct gpu_stream *stream);
int gpu_fill(struct gpu *gpu, uint64_t to, uint32_t value, uint64_t bytes, struct gpu_stream *stream);

/*
 * gpu_launch() - queue a kernel. `args` is its struct, copied at the call; `args_bytes`, its size, must be the size
 * that the kernel expects (-EINVAL). The addresses in it are device addresses or registered memory, and are not
 * checked: gpu_launch() rejects only what the kernel's own function rejects (each kernel has such a function, which
 * also computes its shape). On `host` the kernel's reference in C runs in stream order; memory that it uses is not
 * marked as used, and an invalid address ends the process as it would end the context of `cuda`.
 *
 * On `cuda` the first launch from an image loads it: launch once before capturing a graph. -EOPNOTSUPP without
 * GPU_CAP_KERNELS, and if the driver is too old for the images that nvcc compiled.
 */
int gpu_launch(struct gpu *gpu, enum gpu_kernel kernel, const struct gpu_shape *shape, const void *args,
	size_t args_bytes, struct gpu_stream *stream);

/*
 * Events. query: 0 done or never recorded, -EAGAIN not yet. wait: for the last record before it, whatever is recorded
 * later. An imported event must come from another process (-EINVAL), which must still live (-ESRCH, -ENODEV) and on
 * `host` be one that this process may trace (-EPERM). Without GPU_CAP_IPC_EVENT both are -EOPNOTSUPP. One event may
 * have 128 records pending on `host`, then -EBUSY.
 */
int gpu_event_create(struct gpu *gpu, uint32_t flags, struct gpu_event **event);
void gpu_event_destroy(struct gpu *gpu, struct gpu_event *event);
int gpu_event_record(struct gpu *gpu, struct gpu_event *event, struct gpu_stream *stream);
int gpu_event_query(struct gpu *gpu, struct gpu_event *event);
int gpu_event_wait(struct gpu *gpu, struct gpu_stream *stream, struct gpu_event *event);
int gpu_event_export(struct gpu *gpu, struct gpu_event *event, uint8_t ipc[GPU_IPC_BYTES]);
int gpu_event_import(struct gpu *gpu, const uint8_t ipc[GPU_IPC_BYTES], struct gpu_event **event);

/* gpu_host_register() - page-locks host memory (whole pages, writable) so that streams may use it; -EINVAL when any of
 * it is registered already. gpu_host_unregister() - by its first address; on `host` -EBUSY while queued work uses it.
 */
int gpu_host_register(struct gpu *gpu, void *memory, uint64_t bytes);
int gpu_host_unregister(struct gpu *gpu, void *memory);

/*
 * gpu_timeline_write() - when all work queued before is done, store `value` to *word with release order. `word` is in
 * registered memory and may be shared with other processes, which read it with a plain acquire load.
 * gpu_timeline_wait() - queue a wait until *word >= value. Values of one word only grow, by less than 2^63 in all.
 */
int gpu_timeline_write(struct gpu *gpu, struct gpu_stream *stream, uint64_t *word, uint64_t value);
int gpu_timeline_wait(struct gpu *gpu, struct gpu_stream *stream, const uint64_t *word, uint64_t value);

/*
 * Memory of the driver's own, which the agent knows nothing of; -EOPNOTSUPP without GPU_CAP_POOL. gpu_pool_alloc() -
 * for work that is queued on `stream` from now on. gpu_pool_free() - behind what is queued on it. What is freed is kept
 * for later until gpu_close(). gpu_pool_info() - what it holds, and what of that is allocated; not counted, as it asks
 * nothing of the GPU.
 */
int gpu_pool_alloc(struct gpu *gpu, uint64_t bytes, struct gpu_stream *stream, uint64_t *va);
int gpu_pool_free(struct gpu *gpu, uint64_t va, struct gpu_stream *stream);
int gpu_pool_info(struct gpu *gpu, uint64_t *held_bytes, uint64_t *used_bytes);

/* What happened: gpu_calls() - how often each kind was called since open. */
uint64_t gpu_calls(const struct gpu *gpu, enum gpu_call call);
uint64_t gpu_calls_total(const struct gpu *gpu);
const char *gpu_call_name(enum gpu_call call);
/* gpu_error_text() - this thread's last failure in words; "" when there was none. */
const char *gpu_error_text(void);

/*
 * gpu_fault_set() - make the n-th (1-based) call of `call` from now on fail with `error` (negative errno), once, before
 * it reaches the back end. For tests. gpu may be NULL: the next device opened (GPU_CALL_OPEN fails that way). n = 0
 * clears.
 */
void gpu_fault_set(struct gpu *gpu, enum gpu_call call, uint64_t n, int error);

#endif
