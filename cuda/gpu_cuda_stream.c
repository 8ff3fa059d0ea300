/*
 * gpu_cuda_stream.c - streams, events, registered host memory and timelines of the driver.
 *
 * A pointer to struct gpu_stream or gpu_event is the driver's handle, so no memory is allocated for it.
 */
#if __has_include(<cuda.h>) && !defined(GPOOL_WITHOUT_CUDA)
#include <cuda.h>

#include "cuda/gpu_cuda.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long ull; /* printed by %llu */

_Static_assert(sizeof(CUipcEventHandle) == GPU_IPC_BYTES, "an exported event is the driver's handle");

static CUstream stream_of(struct gpu_stream *stream)
{
	return (CUstream)(void *)stream;
}

static CUevent event_of(struct gpu_event *event)
{
	return (CUevent)(void *)event;
}

/*
 * A captured operation is not executed now, but by each launch of the graph. A query of the stream or a wait for it
 * makes the capture invalid.
 */
int cuda_capture_check(struct gpu_cuda *cuda, struct gpu_stream *stream, const char *what)
{
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	CUresult result = cuda->driver->cuStreamIsCapturing(stream_of(stream), &status);

	/* The legacy default stream waits for the streams that are captured. */
	if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
		status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
	else if (result != CUDA_SUCCESS)
		return cuda_fail(cuda->driver, result, "cuStreamIsCapturing");
	return status == CU_STREAM_CAPTURE_STATUS_NONE
		? 0
		: gpu_fail(-EBUSY,
			  "%s: a graph is being captured from the stream; make the call when the capture has ended",
			  what);
}

/*
 * Another thread may have begun a capture since the check, so that the graph contains the operation. A query makes this
 * capture invalid. Return: 0, -EBUSY.
 */
static int capture_recheck(struct gpu_cuda *cuda, struct gpu_stream *stream, const char *what)
{
	if (cuda_capture_check(cuda, stream, what) != -EBUSY)
		return 0;
	cuda->driver->cuStreamQuery(stream_of(stream));
	return -EBUSY;
}

int cuda_stream_create(struct gpu *gpu, struct gpu_stream **stream)
{
	struct gpu_cuda *cuda = cuda_of(gpu);
	CUstream created;
	CUresult result;
	int rc = cuda_context_push(cuda);

	if (rc < 0)
		return rc;
	result = cuda->driver->cuStreamCreate(&created, CU_STREAM_NON_BLOCKING);
	cuda_context_pop(cuda);
	if (result != CUDA_SUCCESS)
		return cuda_fail(cuda->driver, result, "cuStreamCreate");
	*stream = (struct gpu_stream *)(void *)created;
	return 0;
}

/* A stream is the driver's own handle, so no wrapper is needed. */
int cuda_stream_adopt(struct gpu *gpu, void *native, struct gpu_stream **stream)
{
	struct gpu_cuda *cuda = cuda_of(gpu);
	CUcontext context;
	CUresult result;
	int rc;

	rc = cuda_context_push(cuda);
	if (rc < 0)
		return rc;
	result = cuda->driver->cuStreamGetCtx(native, &context);
	cuda_context_pop(cuda);
	if (result != CUDA_SUCCESS)
		return cuda_fail(cuda->driver, result, "cuStreamGetCtx of stream %p", native);
	if (context != cuda->context)
		return gpu_fail(-EINVAL, "cannot adopt %p: it is a stream of another device or context", native);
	*stream = native;
	return 0;
}

void cuda_stream_destroy(struct gpu *gpu, struct gpu_stream *stream)
{
	struct gpu_cuda *cuda = cuda_of(gpu);
	CUresult result;

	if (cuda_context_push(cuda) < 0)
		return;
	/* A stream from which a graph is being captured is not destroyed: a wait would make the capture invalid. */
	if (cuda_capture_check(cuda, stream, "cuStreamDestroy") == -EBUSY) {
		cuda_context_pop(cuda);
		return;
	}
	/* The driver's function does not wait for queued work, but gpu_stream_destroy() does. */
	result = cuda->driver->cuStreamSynchronize(stream_of(stream));
	cuda->driver->cuStreamDestroy(stream_of(stream));
	cuda_context_pop(cuda);
	if (result != CUDA_SUCCESS)
		cuda_fail(cuda->driver, result, "cuStreamSynchronize before cuStreamDestroy");
}

int cuda_stream_sync(struct gpu *gpu, struct gpu_stream *stream)
{
	struct gpu_cuda *cuda = cuda_of(gpu);
	CUresult result = CUDA_SUCCESS;
	int rc = cuda_context_push(cuda);

	if (rc < 0)
		return rc;
	rc = cuda_capture_check(cuda, stream, "cuStreamSynchronize");
	if (rc == 0)
		result = cuda->driver->cuStreamSynchronize(stream_of(stream));
	cuda_context_pop(cuda);
	return result == CUDA_SUCCESS ? rc : cuda_fail(cuda->driver, result, "cuStreamSynchronize");
}

int cuda_stream_query(struct gpu *gpu, struct gpu_stream *stream)
{
	struct gpu_cuda *cuda = cuda_of(gpu);
	CUresult result = CUDA_SUCCESS;
	int rc = cuda_context_push(cuda);

	if (rc < 0)
		return rc;
	rc = cuda_capture_check(cuda, stream, "cuStreamQuery");
	if (rc == 0)
		result = cuda->driver->cuStreamQuery(stream_of(stream));
	cuda_context_pop(cuda);
	if (result == CUDA_ERROR_NOT_READY)
		return -EAGAIN; /* not a failure: keep the error text */
	return result == CUDA_SUCCESS ? rc : cuda_fail(cuda->driver, result, "cuStreamQuery");
}

int cuda_copy(struct gpu *gpu, uint64_t to, uint64_t from, uint64_t bytes, struct gpu_stream *stream)
{
	struct gpu_cuda *cuda = cuda_of(gpu);
	CUresult result;
	int rc = cuda_context_push(cuda);

	if (rc < 0)
		return rc;
	result = cuda->driver->cuMemcpyAsync(to, from, bytes, stream_of(stream));
	cuda_context_pop(cuda);
	if (result != CUDA_SUCCESS)
		return cuda_fail(cuda->driver, result, "cuMemcpyAsync of %llu bytes from 0x%llx to 0x%llx", (ull)bytes,
			(ull)from, (ull)to);
	return 0;
}

int cuda_fill(struct gpu *gpu, uint64_t to, uint32_t value, uint64_t bytes, struct gpu_stream *stream)
{
	struct gpu_cuda *cuda = cuda_of(gpu);
	CUresult result;
	int rc = cuda_context_push(cuda);

	if (rc < 0)
		return rc;
	result = cuda->driver->cuMemsetD32Async(to, value, bytes / sizeof(value), stream_of(stream));
	cuda_context_pop(cuda);
	if (result != CUDA_SUCCESS)
		return cuda_fail(cuda->driver, result, "cuMemsetD32Async of %llu bytes at 0x%llx", (ull)bytes, (ull)to);
	return 0;
}

int cuda_event_create(struct gpu *gpu, uint32_t flags, struct gpu_event **event)
{
	struct gpu_cuda *cuda = cuda_of(gpu);
	unsigned cuda_flags = CU_EVENT_DISABLE_TIMING;
	CUevent created;
	CUresult result;
	int rc = cuda_context_push(cuda);

	if (rc < 0)
		return rc;
	if (flags & GPU_EVENT_INTERPROCESS)
		cuda_flags |= CU_EVENT_INTERPROCESS;
	result = cuda->driver->cuEventCreate(&created, cuda_flags);
	cuda_context_pop(cuda);
	if (result != CUDA_SUCCESS)
		return cuda_fail(cuda->driver, result, "cuEventCreate with flags 0x%x", cuda_flags);
	*event = (struct gpu_event *)(void *)created;
	return 0;
}

void cuda_event_destroy(struct gpu *gpu, struct gpu_event *event)
{
	struct gpu_cuda *cuda = cuda_of(gpu);
	CUresult result;

	if (cuda_context_push(cuda) < 0)
		return;
	result = cuda->driver->cuEventDestroy(event_of(event));
	cuda_context_pop(cuda);
	if (result != CUDA_SUCCESS)
		cuda_fail(cuda->driver, result, "cuEventDestroy");
}

int cuda_event_record(struct gpu *gpu, struct gpu_event *event, struct gpu_stream *stream)
{
	struct gpu_cuda *cuda = cuda_of(gpu);
	CUresult result = CUDA_SUCCESS;
	int rc = cuda_context_push(cuda);

	if (rc < 0)
		return rc;
	rc = cuda_capture_check(cuda, stream, "cuEventRecord");
	if (rc == 0)
		result = cuda->driver->cuEventRecord(event_of(event), stream_of(stream));
	if (rc == 0 && result == CUDA_SUCCESS)
		rc = capture_recheck(cuda, stream, "cuEventRecord");
	cuda_context_pop(cuda);
	return result == CUDA_SUCCESS ? rc : cuda_fail(cuda->driver, result, "cuEventRecord");
}

int cuda_event_query(struct gpu *gpu, struct gpu_event *event)
{
	struct gpu_cuda *cuda = cuda_of(gpu);
	CUresult result;
	int rc = cuda_context_push(cuda);

	if (rc < 0)
		return rc;
	result = cuda->driver->cuEventQuery(event_of(event));
	cuda_context_pop(cuda);
	if (result == CUDA_ERROR_NOT_READY)
		return -EAGAIN; /* not a failure: keep the error text */
	return result == CUDA_SUCCESS ? 0 : cuda_fail(cuda->driver, result, "cuEventQuery");
}

int cuda_event_wait(struct gpu *gpu, struct gpu_stream *stream, struct gpu_event *event)
{
	struct gpu_cuda *cuda = cuda_of(gpu);
	CUresult result = CUDA_SUCCESS;
	int rc = cuda_context_push(cuda);

	if (rc < 0)
		return rc;
	rc = cuda_capture_check(cuda, stream, "cuStreamWaitEvent");
	if (rc == 0)
		result = cuda->driver->cuStreamWaitEvent(stream_of(stream), event_of(event), 0);
	cuda_context_pop(cuda);
	return result == CUDA_SUCCESS ? rc : cuda_fail(cuda->driver, result, "cuStreamWaitEvent");
}

int cuda_event_export(struct gpu *gpu, struct gpu_event *event, uint8_t ipc[GPU_IPC_BYTES])
{
	struct gpu_cuda *cuda = cuda_of(gpu);
	CUipcEventHandle handle;
	CUresult result;
	int rc;

	if (!(cuda->capabilities & GPU_CAP_IPC_EVENT))
		return gpu_fail(-EOPNOTSUPP, "device %d does not support events between processes", (int)cuda->device);
	rc = cuda_context_push(cuda);
	if (rc < 0)
		return rc;
	result = cuda->driver->cuIpcGetEventHandle(&handle, event_of(event));
	cuda_context_pop(cuda);
	if (result != CUDA_SUCCESS)
		return cuda_fail(cuda->driver, result, "cuIpcGetEventHandle");
	memcpy(ipc, &handle, sizeof(handle));
	return 0;
}

int cuda_event_import(struct gpu *gpu, const uint8_t ipc[GPU_IPC_BYTES], struct gpu_event **event)
{
	struct gpu_cuda *cuda = cuda_of(gpu);
	CUipcEventHandle handle;
	CUevent opened;
	CUresult result;
	int rc;

	if (!(cuda->capabilities & GPU_CAP_IPC_EVENT))
		return gpu_fail(-EOPNOTSUPP, "device %d does not support events between processes", (int)cuda->device);
	rc = cuda_context_push(cuda);
	if (rc < 0)
		return rc;
	memcpy(&handle, ipc, sizeof(handle));
	result = cuda->driver->cuIpcOpenEventHandle(&opened, handle);
	cuda_context_pop(cuda);
	if (result == CUDA_ERROR_MAP_FAILED)
		return gpu_fail(
			-ESRCH, "cuIpcOpenEventHandle: CUDA_ERROR_MAP_FAILED; has the exporting process ended?");
	/* The context is valid, so it is the context of the exporter. */
	if (result == CUDA_ERROR_INVALID_CONTEXT)
		return gpu_fail(-EINVAL, "an event cannot be imported by the process that exported it");
	if (result != CUDA_SUCCESS)
		return cuda_fail(cuda->driver, result, "cuIpcOpenEventHandle");
	*event = (struct gpu_event *)(void *)opened;
	return 0;
}

int cuda_host_register(struct gpu *gpu, void *memory, uint64_t bytes)
{
	struct gpu_cuda *cuda = cuda_of(gpu);
	struct cuda_registration *registration = calloc(1, sizeof(*registration));
	CUresult result;
	int rc;

	if (!registration)
		return gpu_fail(-ENOMEM, "cannot register %llu bytes at %p: out of memory", (ull)bytes, memory);
	registration->va = (uintptr_t)memory;
	registration->bytes = bytes;
	rc = cuda_context_push(cuda);
	if (rc < 0)
		goto free_registration;
	result = cuda->driver->cuMemHostRegister(
		memory, bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
	if (result != CUDA_SUCCESS) {
		rc = cuda_fail(cuda->driver, result, "cuMemHostRegister of %llu bytes at %p", (ull)bytes, memory);
		goto pop;
	}
	result = cuda->driver->cuMemHostGetDevicePointer(&registration->device, memory, 0);
	if (result != CUDA_SUCCESS) {
		rc = cuda_fail(
			cuda->driver, result, "cuMemHostGetDevicePointer of %llu bytes at %p", (ull)bytes, memory);
		cuda->driver->cuMemHostUnregister(memory);
		goto pop;
	}
	cuda_context_pop(cuda);
	pthread_mutex_lock(&cuda->lock);
	registration->next = cuda->registrations;
	cuda->registrations = registration;
	pthread_mutex_unlock(&cuda->lock);
	return 0;

pop:
	cuda_context_pop(cuda);
free_registration:
	free(registration);
	return rc;
}

/* registration_remove() - unlink and return the registration that begins at `memory`; NULL: none. */
static struct cuda_registration *registration_remove(struct gpu_cuda *cuda, const void *memory)
{
	struct cuda_registration *found, **link = &cuda->registrations;

	pthread_mutex_lock(&cuda->lock);
	while (*link && (*link)->va != (uintptr_t)memory)
		link = &(*link)->next;
	found = *link;
	if (found)
		*link = found->next;
	pthread_mutex_unlock(&cuda->lock);
	return found;
}

int cuda_host_unregister(struct gpu *gpu, void *memory)
{
	struct gpu_cuda *cuda = cuda_of(gpu);
	struct cuda_registration *registration;
	CUresult result;
	int rc = cuda_context_push(cuda);

	if (rc < 0)
		return rc;
	registration = registration_remove(cuda, memory);
	if (!registration) {
		cuda_context_pop(cuda);
		return gpu_fail(-EINVAL, "cannot unregister %p: it is not registered", memory);
	}
	result = cuda->driver->cuMemHostUnregister(memory);
	cuda_context_pop(cuda);
	if (result != CUDA_SUCCESS) {
		rc = cuda_fail(cuda->driver, result, "cuMemHostUnregister of %llu bytes at %p",
			(ull)registration->bytes, memory);
		pthread_mutex_lock(&cuda->lock);
		registration->next = cuda->registrations;
		cuda->registrations = registration;
		pthread_mutex_unlock(&cuda->lock);
		return rc;
	}
	free(registration);
	return 0;
}

void cuda_registrations_fini(struct gpu_cuda *cuda)
{
	struct cuda_registration *registration;

	if (!cuda->registrations || cuda_context_push(cuda) < 0)
		return;
	while ((registration = cuda->registrations)) {
		cuda->registrations = registration->next;
		cuda->driver->cuMemHostUnregister((void *)registration->va);
		free(registration);
	}
	cuda_context_pop(cuda);
}

/* registered_find() - return true, and the device's address, if `bytes` bytes at `memory` are registered. */
static bool registered_find(struct gpu_cuda *cuda, const void *memory, uint64_t bytes, CUdeviceptr *device)
{
	uint64_t va = (uintptr_t)memory;
	struct cuda_registration *registration;

	pthread_mutex_lock(&cuda->lock);
	for (registration = cuda->registrations; registration; registration = registration->next)
		if (va >= registration->va && va - registration->va <= registration->bytes - bytes) {
			*device = registration->device + (va - registration->va);
			break;
		}
	pthread_mutex_unlock(&cuda->lock);
	return registration;
}

int cuda_host_address(struct gpu *gpu, const void *memory, uint64_t *va)
{
	CUdeviceptr device;

	if (!registered_find(cuda_of(gpu), memory, 1, &device))
		return gpu_fail(-EINVAL, "%p is not registered host memory", memory);
	*va = device;
	return 0;
}

static int word_device(struct gpu_cuda *cuda, const uint64_t *word, CUdeviceptr *device)
{
	if (!(cuda->capabilities & GPU_CAP_TIMELINE))
		return gpu_fail(-EOPNOTSUPP, "device %d does not support 64-bit writes and waits in streams",
			(int)cuda->device);
	return registered_find(cuda, word, sizeof(*word), device)
		? 0
		: gpu_fail(-EINVAL, "word %p is not registered host memory", (const void *)word);
}

int cuda_timeline_write(struct gpu *gpu, struct gpu_stream *stream, uint64_t *word, uint64_t value)
{
	struct gpu_cuda *cuda = cuda_of(gpu);
	CUdeviceptr device;
	CUresult result = CUDA_SUCCESS;
	int rc = word_device(cuda, word, &device);

	if (rc == 0)
		rc = cuda_context_push(cuda);
	if (rc < 0)
		return rc;
	rc = cuda_capture_check(cuda, stream, "cuStreamWriteValue64");
	/* With the default flags, a memory barrier precedes the write, so readers see all earlier work. */
	if (rc == 0)
		result = cuda->driver->cuStreamWriteValue64(
			stream_of(stream), device, value, CU_STREAM_WRITE_VALUE_DEFAULT);
	if (rc == 0 && result == CUDA_SUCCESS)
		rc = capture_recheck(cuda, stream, "cuStreamWriteValue64");
	cuda_context_pop(cuda);
	if (result != CUDA_SUCCESS)
		return cuda_fail(cuda->driver, result, "cuStreamWriteValue64 of 8 bytes at %p", (void *)word);
	return rc;
}

int cuda_timeline_wait(struct gpu *gpu, struct gpu_stream *stream, const uint64_t *word, uint64_t value)
{
	struct gpu_cuda *cuda = cuda_of(gpu);
	CUdeviceptr device;
	CUresult result = CUDA_SUCCESS;
	int rc = word_device(cuda, word, &device);

	if (rc == 0)
		rc = cuda_context_push(cuda);
	if (rc < 0)
		return rc;
	rc = cuda_capture_check(cuda, stream, "cuStreamWaitValue64");
	if (rc == 0)
		result = cuda->driver->cuStreamWaitValue64(stream_of(stream), device, value, CU_STREAM_WAIT_VALUE_GEQ);
	cuda_context_pop(cuda);
	if (result != CUDA_SUCCESS)
		return cuda_fail(cuda->driver, result, "cuStreamWaitValue64 of 8 bytes at %p", (const void *)word);
	return rc;
}

#endif
