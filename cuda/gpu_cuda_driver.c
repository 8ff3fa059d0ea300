/*
 * gpu_cuda_driver.c - loading the driver, its contexts, and the mapping of its errors.
 *
 * The driver is loaded when the first device is listed or opened. It does not survive fork(): a program that uses the
 * GPU in both processes must open devices only after the fork.
 */
#if __has_include(<cuda.h>) && !defined(GPOOL_WITHOUT_CUDA)
#include <cuda.h>

#include "cuda/gpu_cuda.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define NAME_OF(call) #call
#define EXPANDED_NAME_OF(call) NAME_OF(call)

static struct {
	pthread_once_t once;
	struct cuda_driver calls;
	pid_t pid; /* the process that loaded it */
	int error;
	char error_text[256];
} loaded = {.once = PTHREAD_ONCE_INIT};

int gpu_errno(CUresult result)
{
	switch (result) {
	case CUDA_SUCCESS: return 0;
	case CUDA_ERROR_OUT_OF_MEMORY:
	case CUDA_ERROR_MPS_MAX_CLIENTS_REACHED:
	case CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED: return -ENOMEM;
	case CUDA_ERROR_NOT_READY: return -EAGAIN;
	case CUDA_ERROR_NOT_PERMITTED: return -EPERM;
	case CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: return -EINVAL;
	case CUDA_ERROR_INVALID_VALUE:
	case CUDA_ERROR_INVALID_HANDLE:
	case CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED:
	case CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED: return -EINVAL;
	case CUDA_ERROR_NOT_SUPPORTED:
	case CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER:
	case CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE:
	case CUDA_ERROR_NO_BINARY_FOR_GPU:
	case CUDA_ERROR_INVALID_IMAGE:
	case CUDA_ERROR_INVALID_PTX:
	case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
	case CUDA_ERROR_JIT_COMPILER_NOT_FOUND:
	case CUDA_ERROR_JIT_COMPILATION_DISABLED: return -EOPNOTSUPP;
	case CUDA_ERROR_NO_DEVICE:
	case CUDA_ERROR_INVALID_DEVICE:
	case CUDA_ERROR_DEVICE_UNAVAILABLE:
	case CUDA_ERROR_DEVICE_NOT_LICENSED:
	case CUDA_ERROR_STUB_LIBRARY:
	case CUDA_ERROR_DEINITIALIZED:
	case CUDA_ERROR_ECC_UNCORRECTABLE:
	case CUDA_ERROR_NVLINK_UNCORRECTABLE:
	case CUDA_ERROR_CONTEXT_IS_DESTROYED:
	case CUDA_ERROR_MPS_CONNECTION_FAILED:
	case CUDA_ERROR_MPS_RPC_FAILURE:
	case CUDA_ERROR_MPS_SERVER_NOT_READY:
	case CUDA_ERROR_MPS_CLIENT_TERMINATED:
	case CUDA_ERROR_SYSTEM_NOT_READY: return -ENODEV;
	case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH: /* the library does not fit the kernel module: a broken driver */
	default: return -EIO;
	}
}

int cuda_fail(const struct cuda_driver *driver, CUresult result, const char *format, ...)
{
	const char *name = NULL;
	char what[200];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(what, sizeof(what), format, arguments);
	va_end(arguments);
	driver->cuGetErrorName(result, &name);
	if (name)
		return gpu_fail(gpu_errno(result), "%s: %s", what, name);
	return gpu_fail(gpu_errno(result), "%s: CUDA error %d", what, (int)result);
}

/* symbols_find() - fill loaded.calls from the library. Return: the first missing call, or NULL. */
static const char *symbols_find(void *library)
{
	struct cuda_driver *calls = &loaded.calls;

	/* Convert through void **, as in dlsym(3): ISO C cannot convert an object pointer to a function pointer. */
#define CUDA_FIND(call) \
	*(void **)&calls->call = dlsym(library, EXPANDED_NAME_OF(call)); \
	if (!calls->call) \
		return EXPANDED_NAME_OF(call);
	CUDA_CALLS(CUDA_FIND)
#undef CUDA_FIND
#define CUDA_FIND(call) *(void **)&calls->call = dlsym(library, EXPANDED_NAME_OF(call));
	CUDA_OPTIONAL_CALLS(CUDA_FIND)
#undef CUDA_FIND
	return NULL;
}

static void driver_load_once(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	const char *missing, *name = NULL;
	CUresult result;

	loaded.pid = getpid();
	if (!library) {
		loaded.error = -ENODEV;
		snprintf(loaded.error_text, sizeof(loaded.error_text), "no CUDA driver: %s", dlerror());
		return;
	}
	missing = symbols_find(library);
	if (missing) {
		loaded.error = -EOPNOTSUPP;
		snprintf(loaded.error_text, sizeof(loaded.error_text),
			"the CUDA driver is too old: it does not have the function %s", missing);
		dlclose(library);
		return;
	}
	result = loaded.calls.cuInit(0);
	if (result != CUDA_SUCCESS) {
		loaded.calls.cuGetErrorName(result, &name);
		loaded.error = gpu_errno(result);
		snprintf(loaded.error_text, sizeof(loaded.error_text), "cuInit: %s", name ? name : "unknown error");
	}
	/* The library is never closed, because the driver cannot be unloaded. */
}

int cuda_driver_load(const struct cuda_driver **driver)
{
	pthread_once(&loaded.once, driver_load_once);
	if (loaded.error)
		return gpu_fail(loaded.error, "%s", loaded.error_text);
	if (loaded.pid != getpid())
		return gpu_fail(-ENODEV,
			"the CUDA driver was initialized by process %d and cannot be used in a forked child",
			(int)loaded.pid);
	*driver = &loaded.calls;
	return 0;
}

void gpu_driver_forget(void)
{
	static const pthread_once_t once = PTHREAD_ONCE_INIT;

	loaded.once = once;
	loaded.error = 0;
}

/* The thread's capture mode, between cuda_context_push() and cuda_context_pop(). */
static _Thread_local CUstreamCaptureMode capture_mode;

int cuda_context_push(struct gpu_cuda *cuda)
{
	CUresult result;

	if (!cuda->context)
		return 0;
	result = cuda->driver->cuCtxPushCurrent(cuda->context);
	if (result != CUDA_SUCCESS)
		return cuda_fail(cuda->driver, result, "cuCtxPushCurrent on device %d", (int)cuda->device);
	capture_mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	cuda->driver->cuThreadExchangeStreamCaptureMode(&capture_mode);
	return 0;
}

void cuda_context_pop(struct gpu_cuda *cuda)
{
	CUcontext popped;

	if (!cuda->context)
		return;
	cuda->driver->cuThreadExchangeStreamCaptureMode(&capture_mode);
	cuda->driver->cuCtxPopCurrent(&popped);
}

#endif
