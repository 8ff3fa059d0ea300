/*
 * gpu_cuda.h - declarations shared by the files of the CUDA back end: the driver's entry points, the device, the
 * mapping of errors.
 *
 * Include it after <cuda.h>, and only in cuda/gpu_cuda*.c. The toolkit's headers define types and constants. The
 * library itself is opened at run time, so every program starts on a machine without a GPU.
 */
#ifndef CUDA_GPU_CUDA_H
#define CUDA_GPU_CUDA_H

#include "cuda/gpu_private.h"
#include "cuda/kernels/kernel.h"

#include <pthread.h>

/*
 * The driver calls that gpool uses. Macros of cuda.h rename many of them (cuMemGetInfo is cuMemGetInfo_v2). These
 * macros also apply to the members and to the names that are looked up, so that each symbol matches the type with which
 * it is compiled.
 *
 * Calls in the second list may be missing in an older driver; functions that need one then return -EOPNOTSUPP.
 */
#define CUDA_CALLS(X) \
	X(cuInit) \
	X(cuGetErrorName) \
	X(cuDeviceGetCount) \
	X(cuDeviceGet) \
	X(cuDeviceGetName) \
	X(cuDeviceGetUuid) \
	X(cuDeviceGetAttribute) \
	X(cuDeviceTotalMem) \
	X(cuDeviceCanAccessPeer) \
	X(cuDevicePrimaryCtxRetain) \
	X(cuDevicePrimaryCtxSetFlags) \
	X(cuDevicePrimaryCtxRelease) \
	X(cuCtxPushCurrent) \
	X(cuCtxPopCurrent) \
	X(cuMemGetInfo) \
	X(cuMemGetAllocationGranularity) \
	X(cuMemCreate) \
	X(cuMemRelease) \
	X(cuMemExportToShareableHandle) \
	X(cuMemImportFromShareableHandle) \
	X(cuMemAddressReserve) \
	X(cuMemAddressFree) \
	X(cuMemMap) \
	X(cuMemUnmap) \
	X(cuMemSetAccess) \
	X(cuStreamCreate) \
	X(cuStreamDestroy) \
	X(cuStreamSynchronize) \
	X(cuStreamQuery) \
	X(cuStreamIsCapturing) \
	X(cuThreadExchangeStreamCaptureMode) \
	X(cuStreamGetCtx) \
	X(cuStreamWaitEvent) \
	X(cuMemcpyAsync) \
	X(cuMemsetD32Async) \
	X(cuModuleLoadData) \
	X(cuModuleUnload) \
	X(cuModuleGetFunction) \
	X(cuLaunchKernel) \
	X(cuEventCreate) \
	X(cuEventDestroy) \
	X(cuEventRecord) \
	X(cuEventQuery) \
	X(cuIpcGetEventHandle) \
	X(cuIpcOpenEventHandle) \
	X(cuMemHostRegister) \
	X(cuMemHostUnregister) \
	X(cuMemHostGetDevicePointer)

#define CUDA_OPTIONAL_CALLS(X) \
	X(cuStreamWriteValue64) \
	X(cuStreamWaitValue64) \
	X(cuDriverGetVersion) \
	X(cuFuncGetAttribute) \
	X(cuLaunchKernelEx) \
	X(cuMemPoolCreate) \
	X(cuMemPoolDestroy) \
	X(cuMemPoolSetAttribute) \
	X(cuMemPoolGetAttribute) \
	X(cuMemAllocFromPoolAsync) \
	X(cuMemFreeAsync)

struct cuda_driver {
#define CUDA_MEMBER(call) __typeof__(call) *call;
	CUDA_CALLS(CUDA_MEMBER)
	CUDA_OPTIONAL_CALLS(CUDA_MEMBER)
#undef CUDA_MEMBER
};

/*
 * A handle of this back end, and the driver's handle that it represents. An export needs the size, which the driver
 * does not report. Handles are (generation << 32 | slot + 1), so that stale handles are rejected; the driver reuses the
 * values of released handles.
 */
struct cuda_memory {
	CUmemGenericAllocationHandle handle;
	uint64_t bytes; /* 0: the slot is free */
	uint32_t generation;
	uint32_t next_free;
};

/* Host memory that is registered with this device. */
struct cuda_registration {
	struct cuda_registration *next;
	uint64_t va;
	uint64_t bytes;
	CUdeviceptr device;
};

struct gpu_cuda {
	struct gpu gpu;
	const struct cuda_driver *driver;
	CUdevice device;
	CUcontext context; /* the primary context, retained; NULL with GPU_OPEN_OWNER */
	char uuid[GPU_UUID_MAX];
	uint32_t capabilities;
	uint64_t granularity;          /* of handles and address ranges */
	bool rdma;                     /* handles are created for GPUDirect RDMA */
	CUdevice peers[GPU_PEERS_MAX]; /* devices that get the same access as this one */
	uint32_t peer_count;
	pthread_mutex_t lock; /* protects the following fields; never held during a driver call */
	struct cuda_memory *memories;
	uint32_t memory_count;
	uint32_t memory_capacity;
	uint32_t memory_free;                    /* slot + 1, a list through next_free */
	struct cuda_registration *registrations; /* a list, because there are few */
	CUmemoryPool pool;                       /* the driver's pool, created on first use; NULL: not yet */
	CUmodule modules[KERNEL_IMAGES];         /* loaded on first use; NULL: not yet */
	CUfunction functions[GPU_KERNEL_KINDS];  /* looked up on first use; NULL: not yet */
	bool early[GPU_KERNEL_KINDS];            /* the function can wait for the kernel before it */
};

static inline struct gpu_cuda *cuda_of(struct gpu *gpu)
{
	return (struct gpu_cuda *)gpu; /* struct gpu is its first member */
}

/*
 * gpu_cuda_driver.c. cuda_driver_load() - open the library and call cuInit(), once per process. Return: 0; -ENODEV (no
 * library), -EOPNOTSUPP (too old), or the error of cuInit(); -ENODEV if the driver was loaded before this process was
 * forked.
 */
int cuda_driver_load(const struct cuda_driver **driver);
/* gpu_errno() - convert a CUresult to a negative errno. */
int gpu_errno(CUresult result);
/*
 * cuda_fail() - store the error text of a failed call, with the driver's name of the error. Return: its negative errno.
 */
__attribute__((format(printf, 3, 4))) int cuda_fail(
	const struct cuda_driver *driver, CUresult result, const char *format, ...);
/*
 * cuda_context_push() - make the device's context, if it has one, current in this thread. Also permit calls that would
 * otherwise fail and make captures invalid while a graph is captured from any stream. Must not be nested.
 * cuda_context_pop() - undo this.
 */
int cuda_context_push(struct gpu_cuda *cuda);
void cuda_context_pop(struct gpu_cuda *cuda);

/* gpu_cuda_nvml.c. cuda_nvml_memory_info() - return the free and total memory of device `uuid`; needs no context. */
int cuda_nvml_memory_info(const char *uuid, uint64_t *free_bytes, uint64_t *total_bytes);

/*
 * gpu_cuda_memory.c. cuda_memory_init() - query the granularity. cuda_memory_fini() - discard the handles; the driver
 * frees the remaining memory when the process ends.
 */
int cuda_memory_init(struct gpu_cuda *cuda);
void cuda_memory_fini(struct gpu_cuda *cuda);
int cuda_granularity(struct gpu *gpu, uint64_t *bytes);
int cuda_memory_info(struct gpu *gpu, uint64_t *free_bytes, uint64_t *total_bytes);
int cuda_create(struct gpu *gpu, uint64_t bytes, uint64_t *handle);
void cuda_release(struct gpu *gpu, uint64_t handle);
int cuda_export(struct gpu *gpu, uint64_t handle, struct gpu_export *out);
int cuda_import(struct gpu *gpu, const struct gpu_export *from, uint64_t *handle);
int cuda_reserve(struct gpu *gpu, uint64_t bytes, uint64_t align, uint64_t *va);
int cuda_unreserve(struct gpu *gpu, uint64_t va, uint64_t bytes);
int cuda_map(struct gpu *gpu, uint64_t va, uint64_t bytes, const uint64_t *handles, uint32_t count, uint32_t *mapped);
int cuda_unmap(struct gpu *gpu, uint64_t va, uint64_t bytes);
int cuda_access(struct gpu *gpu, uint64_t va, uint64_t bytes, enum gpu_access access);

/* gpu_cuda_pool.c. cuda_pool_fini() - destroy the pool; its allocations exist until the context ends. */
void cuda_pool_fini(struct gpu_cuda *cuda);
bool cuda_pool_has(const struct cuda_driver *driver);
int cuda_pool_alloc(struct gpu *gpu, uint64_t bytes, struct gpu_stream *stream, uint64_t *va);
int cuda_pool_free(struct gpu *gpu, uint64_t va, struct gpu_stream *stream);
int cuda_pool_info(struct gpu *gpu, uint64_t *held_bytes, uint64_t *used_bytes);

/*
 * gpu_cuda_kernel.c. cuda_kernels_built() - return true if gpool was built with nvcc. cuda_kernels_load() - load all
 * images now, instead of at the first launch.
 */
bool cuda_kernels_built(void);
int cuda_kernels_load(struct gpu_cuda *cuda);
void cuda_kernels_fini(struct gpu_cuda *cuda);
int cuda_launch(struct gpu *gpu, enum gpu_kernel kernel, const struct gpu_shape *shape, const void *args,
	struct gpu_stream *stream);

/*
 * gpu_cuda_stream.c. cuda_capture_check() - return -EBUSY if a graph is being captured from the stream, or would be
 * affected by a call for it. The context is current. what: the call, for the error text.
 */
int cuda_capture_check(struct gpu_cuda *cuda, struct gpu_stream *stream, const char *what);
int cuda_stream_create(struct gpu *gpu, struct gpu_stream **stream);
int cuda_stream_adopt(struct gpu *gpu, void *native, struct gpu_stream **stream);
void cuda_stream_destroy(struct gpu *gpu, struct gpu_stream *stream);
int cuda_stream_sync(struct gpu *gpu, struct gpu_stream *stream);
int cuda_stream_query(struct gpu *gpu, struct gpu_stream *stream);
int cuda_copy(struct gpu *gpu, uint64_t to, uint64_t from, uint64_t bytes, struct gpu_stream *stream);
int cuda_fill(struct gpu *gpu, uint64_t to, uint32_t value, uint64_t bytes, struct gpu_stream *stream);
int cuda_event_create(struct gpu *gpu, uint32_t flags, struct gpu_event **event);
void cuda_event_destroy(struct gpu *gpu, struct gpu_event *event);
int cuda_event_record(struct gpu *gpu, struct gpu_event *event, struct gpu_stream *stream);
int cuda_event_query(struct gpu *gpu, struct gpu_event *event);
int cuda_event_wait(struct gpu *gpu, struct gpu_stream *stream, struct gpu_event *event);
int cuda_event_export(struct gpu *gpu, struct gpu_event *event, uint8_t ipc[GPU_IPC_BYTES]);
int cuda_event_import(struct gpu *gpu, const uint8_t ipc[GPU_IPC_BYTES], struct gpu_event **event);
int cuda_host_register(struct gpu *gpu, void *memory, uint64_t bytes);
int cuda_host_unregister(struct gpu *gpu, void *memory);
int cuda_host_address(struct gpu *gpu, const void *memory, uint64_t *va);
int cuda_timeline_write(struct gpu *gpu, struct gpu_stream *stream, uint64_t *word, uint64_t value);
int cuda_timeline_wait(struct gpu *gpu, struct gpu_stream *stream, const uint64_t *word, uint64_t value);
void cuda_registrations_fini(struct gpu_cuda *cuda);

#endif
