/*
 * runtime.c - a double of NVIDIA's runtime library, for programs that allocate through it. Each call makes the calls of
 * the driver that "CUDA Runtime API" documents for it, so the driver's double counts them.
 *
 * NVIDIA's own library cannot run on the driver's double: it looks up every function of the driver, and requires the
 * tables of cuGetExportTable(), which are not documented. This library contains only what allocators call. Its symbols
 * have the version of NVIDIA's library, and it is loaded before that library, which remains the definition of all other
 * functions; those return an error.
 *
 * The documentation states that both libraries use the same error codes, handles of streams and events, and primary
 * contexts ("Interactions with the CUDA Driver API").
 */
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <pthread.h>
#include <stdint.h>

/* The functions of cuda_runtime_api.h with these names are macros for the versions below. */
#undef cudaGetDeviceProperties
#undef cudaGetDriverEntryPointByVersion
#undef cudaStreamGetCaptureInfo

#define API __attribute__((visibility("default")))

enum { DEVICES_MAX = 16 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CUcontext contexts[DEVICES_MAX];
static _Thread_local int thread_device;
static _Thread_local cudaError_t last;

static cudaError_t result(CUresult error)
{
	if (error != CUDA_SUCCESS)
		last = (cudaError_t)error;
	return (cudaError_t)error;
}

/* The first call of a thread initializes the driver and makes the primary context of its device current. */
static CUresult enter(void)
{
	CUresult error;
	CUcontext context;

	pthread_mutex_lock(&lock);
	error = contexts[thread_device] ? CUDA_SUCCESS : cuInit(0);
	if (error == CUDA_SUCCESS && !contexts[thread_device])
		error = cuDevicePrimaryCtxRetain(&contexts[thread_device], thread_device);
	context = contexts[thread_device];
	pthread_mutex_unlock(&lock);
	return error == CUDA_SUCCESS ? cuCtxSetCurrent(context) : error;
}

static _Thread_local int entered = -1;

static CUresult begin(void)
{
	CUresult error;

	if (entered == thread_device)
		return CUDA_SUCCESS;
	error = enter();
	if (error == CUDA_SUCCESS)
		entered = thread_device;
	return error;
}

/* Make `call` in the current context and return its result. */
#define CALL(call) \
	do { \
		CUresult error_ = begin(); \
\
		return result(error_ == CUDA_SUCCESS ? (call) : error_); \
	} while (0)

/* ---- devices ---- */

API cudaError_t cudaGetDeviceCount(int *count)
{
	CUresult error = cuInit(0);

	return result(error == CUDA_SUCCESS ? cuDeviceGetCount(count) : error);
}

API cudaError_t cudaGetDevice(int *device)
{
	*device = thread_device;
	return cudaSuccess;
}

API cudaError_t cudaSetDevice(int device)
{
	int count;
	cudaError_t error = cudaGetDeviceCount(&count);

	if (error != cudaSuccess)
		return error;
	/* "Device Management", cudaSetDevice: the number of a device that exists. */
	if (device < 0 || device >= count || device >= DEVICES_MAX)
		return result(CUDA_ERROR_INVALID_DEVICE);
	thread_device = device;
	return result(begin());
}

API cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
	CALL(cuDeviceGetAttribute(value, (CUdevice_attribute)attribute, device));
}

API cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device)
{
	CUresult error = begin();

	if (error != CUDA_SUCCESS)
		return result(error);
	*properties = (struct cudaDeviceProp){
		.major = 9, .multiProcessorCount = 132, .warpSize = 32, .maxThreadsPerBlock = 1024, .pciBusID = device};
	error = cuDeviceGetName(properties->name, sizeof(properties->name), device);
	return result(error == CUDA_SUCCESS ? cuDeviceTotalMem(&properties->totalGlobalMem, device) : error);
}

API cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
	CALL(cuDeviceCanAccessPeer(can, device, peer));
}

API cudaError_t cudaDeviceSynchronize(void)
{
	CALL(cuCtxSynchronize());
}

API cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
	*least = 0;
	*greatest = 0;
	return cudaSuccess;
}

API cudaError_t cudaDriverGetVersion(int *version)
{
	return result(cuDriverGetVersion(version));
}

API cudaError_t cudaRuntimeGetVersion(int *version)
{
	*version = CUDART_VERSION;
	return cudaSuccess;
}

/* ---- memory ---- */

API cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
	CALL(cuMemGetInfo(free_bytes, total));
}

API cudaError_t cudaMalloc(void **at, size_t bytes)
{
	CALL(cuMemAlloc((CUdeviceptr *)at, bytes));
}

API cudaError_t cudaFree(void *at)
{
	CALL(at ? cuMemFree((CUdeviceptr)at) : CUDA_SUCCESS); /* cudaFree(NULL) initializes the runtime */
}

/* "Unified Addressing", cudaPointerGetAttributes. Only memory mapped at a reserved address is found. */
API cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *at)
{
	CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = thread_device};
	unsigned long long flags;
	CUresult error = begin();

	if (error != CUDA_SUCCESS)
		return result(error);
	*attributes = (struct cudaPointerAttributes){.type = cudaMemoryTypeUnregistered, .hostPointer = (void *)at};
	if (cuMemGetAccess(&flags, &location, (CUdeviceptr)at) == CUDA_SUCCESS)
		*attributes = (struct cudaPointerAttributes){
			.type = cudaMemoryTypeDevice, .device = thread_device, .devicePointer = (void *)at};
	return cudaSuccess;
}

/* ---- streams and events ---- */

API cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
	CALL(cuStreamCreate(stream, flags));
}

API cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
	CALL(cuStreamCreateWithPriority(stream, flags, priority));
}

API cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
	CALL(cuStreamDestroy(stream));
}

API cudaError_t cudaStreamQuery(cudaStream_t stream)
{
	CALL(cuStreamQuery(stream));
}

API cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
	CALL(cuStreamSynchronize(stream));
}

API cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
	CALL(cuStreamWaitEvent(stream, event, flags));
}

API cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
	CALL(cuStreamIsCapturing(stream, (CUstreamCaptureStatus *)status));
}

/* "Stream Management", cudaStreamGetId: unique in the program. The driver's double has no such call. */
API cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long *id)
{
	*id = (unsigned long long)(uintptr_t)stream;
	return cudaSuccess;
}

/* Without the identity and the nodes of a graph: no program here captures a stream. */
API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
	unsigned long long *id, cudaGraph_t *graph, const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges,
	size_t *count)
{
	(void)graph;
	(void)nodes;
	(void)edges;
	if (id)
		*id = 0;
	if (count)
		*count = 0;
	return cudaStreamIsCapturing(stream, status);
}

API cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
	CALL(cuThreadExchangeStreamCaptureMode((CUstreamCaptureMode *)mode));
}

API cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
	CALL(cuEventCreate(event, flags));
}

API cudaError_t cudaEventDestroy(cudaEvent_t event)
{
	CALL(cuEventDestroy(event));
}

API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
	CALL(cuEventRecord(event, stream));
}

API cudaError_t cudaEventQuery(cudaEvent_t event)
{
	CALL(cuEventQuery(event));
}

API cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
	CALL(cuEventSynchronize(event));
}

/* ---- errors and the driver's functions ---- */

API cudaError_t cudaGetLastError(void)
{
	cudaError_t error = last;

	last = cudaSuccess;
	return error;
}

API cudaError_t cudaPeekAtLastError(void)
{
	return last;
}

API const char *cudaGetErrorName(cudaError_t error)
{
	const char *name = NULL;

	cuGetErrorName((CUresult)error, &name);
	return name ? name : "unrecognized error code";
}

API const char *cudaGetErrorString(cudaError_t error)
{
	return cudaGetErrorName(error);
}

/* Replaces the functions of the driver that its double does not have. */
static CUresult unsupported(void)
{
	/* "Data types used by CUDA driver", CUDA_ERROR_NOT_SUPPORTED. */
	return CUDA_ERROR_NOT_SUPPORTED;
}

API cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
	unsigned long long flags, enum cudaDriverEntryPointQueryResult *found)
{
	CUresult error = cuGetProcAddress(symbol, function, (int)version, flags, NULL);

	/* "Driver Entry Point Access": callers test the function, not the result. */
	if (error == CUDA_SUCCESS && !*function)
		*function = (void *)unsupported;
	if (found)
		*found = cudaDriverEntryPointSuccess;
	return cudaSuccess;
}
