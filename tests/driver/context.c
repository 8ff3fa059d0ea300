/* context.c - devices and contexts: "Device Management", "Primary Context Management", "Context Management". */
#include "tests/driver/driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STACK_MAX = 32 };

/* "Context Management", cuCtxPushCurrent: each thread has a stack of contexts; its top is the current one. */
static _Thread_local struct {
	CUcontext stack[STACK_MAX];
	int depth;
} thread;

/* A handle names a device and a generation, so that the handle of a destroyed context is recognized. */
CUcontext context_handle(const struct context *context)
{
	return (CUcontext)(uintptr_t)(0xc0de000000000000ull | (uint64_t)context->generation << 16 |
		(uint64_t)(context->device + 1) << 4);
}

struct context *context_of(CUcontext handle)
{
	unsigned device = (unsigned)((uintptr_t)handle >> 4 & 0xfff);
	struct context *context;

	if (device == 0 || device > settings.devices)
		return NULL;
	context = &driver.contexts[device - 1];
	return context->active && context_handle(context) == handle ? context : NULL;
}

struct context *context_current(void)
{
	return thread.depth ? context_of(thread.stack[thread.depth - 1]) : NULL;
}

static bool device_is(CUdevice device)
{
	return device >= 0 && (unsigned)device < settings.devices;
}

/* "Device Management", cuDeviceGetCount: the number of devices, which may be 0. */
CUresult cuDeviceGetCount(int *count)
{
	CUresult result = call_enter(__func__, CALL_AFTER_FAULT);

	if (result != CUDA_SUCCESS)
		return result;
	if (!count)
		return call_leave(CUDA_ERROR_INVALID_VALUE);
	*count = (int)settings.devices;
	return call_leave(CUDA_SUCCESS);
}

/* "Device Management", cuDeviceGet: ordinals from 0 to cuDeviceGetCount() - 1. */
CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	CUresult result = call_enter(__func__, CALL_AFTER_FAULT);

	if (result != CUDA_SUCCESS)
		return result;
	if (!device)
		return call_leave(CUDA_ERROR_INVALID_VALUE);
	if (!device_is(ordinal))
		return call_leave(CUDA_ERROR_INVALID_DEVICE);
	*device = ordinal;
	return call_leave(CUDA_SUCCESS);
}

/* "Device Management", cuDeviceGetName: at most `length` bytes with the terminator; no such device is an error. */
CUresult cuDeviceGetName(char *name, int length, CUdevice device)
{
	CUresult result = call_enter(__func__, CALL_AFTER_FAULT);

	if (result != CUDA_SUCCESS)
		return result;
	if (!name || length < 1)
		return call_leave(CUDA_ERROR_INVALID_VALUE);
	if (!device_is(device))
		return call_leave(CUDA_ERROR_INVALID_DEVICE);
	snprintf(name, (size_t)length, "driver double %d", device);
	return call_leave(CUDA_SUCCESS);
}

/* "Device Management", cuDeviceGetUuid: 16 bytes; no such device is an error. */
CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
	CUresult result = call_enter(__func__, CALL_AFTER_FAULT);

	if (result != CUDA_SUCCESS)
		return result;
	if (!uuid)
		return call_leave(CUDA_ERROR_INVALID_VALUE);
	if (!device_is(device))
		return call_leave(CUDA_ERROR_INVALID_DEVICE);
	memset(uuid, 0xd0, sizeof(*uuid)); /* nvml.c prints the same */
	uuid->bytes[15] = (char)device;
	return call_leave(CUDA_SUCCESS);
}

/* "Device Management", cuDeviceTotalMem: the bytes of the device; no such device is an error. */
CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device)
{
	CUresult result = call_enter(__func__, CALL_AFTER_FAULT);

	if (result != CUDA_SUCCESS)
		return result;
	if (!bytes)
		return call_leave(CUDA_ERROR_INVALID_VALUE);
	if (!device_is(device))
		return call_leave(CUDA_ERROR_INVALID_DEVICE);
	*bytes = settings.memory_bytes;
	return call_leave(CUDA_SUCCESS);
}

/* The attributes that gpool and its tests ask for; others are 0. */
static int attribute_value(CUdevice_attribute attribute)
{
	switch ((int)attribute) {
	case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: return settings.vmm;
	case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED: return settings.descriptors;
	case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
	case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
	case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED: return 1;
	case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM: return !settings.host_alias;
	case CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED: return settings.ipc_event;
	case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS: return settings.timeline;
	case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED: return settings.pools;
	case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED: return settings.rdma;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: return 9;
	case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: return 132;
	case CU_DEVICE_ATTRIBUTE_WARP_SIZE: return 32;
	case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: return 1024;
	default: return 0;
	}
}

/*
 * "Device Management", cuDeviceGetAttribute: an attribute outside of the enumeration is CUDA_ERROR_INVALID_VALUE, a
 * device that does not exist CUDA_ERROR_INVALID_DEVICE.
 */
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
	CUresult result = call_enter(__func__, CALL_AFTER_FAULT);

	if (result != CUDA_SUCCESS)
		return result;
	if (!value || (int)attribute < 1 || attribute >= CU_DEVICE_ATTRIBUTE_MAX)
		return call_leave(CUDA_ERROR_INVALID_VALUE);
	if (!device_is(device))
		return call_leave(CUDA_ERROR_INVALID_DEVICE);
	*value = attribute_value(attribute);
	return call_leave(CUDA_SUCCESS);
}

/* "Peer Context Memory Access", cuDeviceCanAccessPeer: a device is no peer of itself. */
CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
	CUresult result = call_enter(__func__, CALL_AFTER_FAULT);

	if (result != CUDA_SUCCESS)
		return result;
	if (!can)
		return call_leave(CUDA_ERROR_INVALID_VALUE);
	if (!device_is(device) || !device_is(peer))
		return call_leave(CUDA_ERROR_INVALID_DEVICE);
	*can = settings.peers && device != peer;
	return call_leave(CUDA_SUCCESS);
}

/*
 * "Primary Context Management", cuDevicePrimaryCtxRetain: creates the primary context on first use; it is not pushed,
 * and each retain must be released.
 */
CUresult cuDevicePrimaryCtxRetain(CUcontext *handle, CUdevice device)
{
	CUresult result = call_enter(__func__, 0);
	struct context *context;

	if (result != CUDA_SUCCESS)
		return result;
	if (!handle)
		return call_leave(CUDA_ERROR_INVALID_VALUE);
	if (!device_is(device))
		return call_leave(CUDA_ERROR_INVALID_DEVICE);
	context = &driver.contexts[device];
	if (!context->active) {
		context->device = device;
		result = machine_take(device, settings.context_bytes, &context->memory_fd, context->memory_name);
		if (result != CUDA_SUCCESS)
			return call_leave(result);
		context->generation++;
		context->active = true;
	}
	context->retained++;
	*handle = context_handle(context);
	return call_leave(CUDA_SUCCESS);
}

static void context_end(struct context *context)
{
	streams_end(context);
	events_end(context);
	context->legacy = NULL;
	context->active = false;
	close(context->memory_fd);
	machine_give(context->device, settings.context_bytes, context->memory_name);
}

/*
 * "Primary Context Management", cuDevicePrimaryCtxRelease: the last release destroys the context; a release without a
 * retain is CUDA_ERROR_INVALID_CONTEXT.
 */
CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
	CUresult result = call_enter(__func__, CALL_AFTER_FAULT);
	struct context *context;

	if (result != CUDA_SUCCESS)
		return result;
	if (!device_is(device))
		return call_leave(CUDA_ERROR_INVALID_DEVICE);
	context = &driver.contexts[device];
	if (!context->retained)
		return call_leave(CUDA_ERROR_INVALID_CONTEXT);
	if (--context->retained == 0)
		context_end(context);
	return call_leave(CUDA_SUCCESS);
}

/* "Primary Context Management", cuDevicePrimaryCtxSetFlags: only one scheduling flag, none that is unknown. */
CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags)
{
	CUresult result = call_enter(__func__, CALL_AFTER_FAULT);
	unsigned scheduling = flags & CU_CTX_SCHED_MASK;

	if (result != CUDA_SUCCESS)
		return result;
	if (!device_is(device))
		return call_leave(CUDA_ERROR_INVALID_DEVICE);
	if (flags & ~(unsigned)CU_CTX_FLAGS_MASK || scheduling & (scheduling - 1))
		return call_leave(CUDA_ERROR_INVALID_VALUE);
	driver.contexts[device].flags = flags;
	return call_leave(CUDA_SUCCESS);
}

/* "Primary Context Management", cuDevicePrimaryCtxGetState: the flags, and 1 while it is retained. */
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
	CUresult result = call_enter(__func__, CALL_AFTER_FAULT);

	if (result != CUDA_SUCCESS)
		return result;
	if (!device_is(device))
		return call_leave(CUDA_ERROR_INVALID_DEVICE);
	if (!flags || !active)
		return call_leave(CUDA_ERROR_INVALID_VALUE);
	*flags = driver.contexts[device].flags;
	*active = driver.contexts[device].active;
	return call_leave(CUDA_SUCCESS);
}

/* "Context Management", cuCtxPushCurrent: a destroyed context is CUDA_ERROR_INVALID_CONTEXT. */
CUresult cuCtxPushCurrent(CUcontext handle)
{
	CUresult result = call_enter(__func__, CALL_AFTER_FAULT);

	if (result != CUDA_SUCCESS)
		return result;
	if (!context_of(handle))
		return call_leave(CUDA_ERROR_INVALID_CONTEXT);
	if (thread.depth == STACK_MAX)
		driver_undefined("a thread has pushed %d contexts", STACK_MAX);
	thread.stack[thread.depth++] = handle;
	return call_leave(CUDA_SUCCESS);
}

/* "Context Management", cuCtxPopCurrent: an error if the thread's stack is empty. */
CUresult cuCtxPopCurrent(CUcontext *handle)
{
	CUresult result = call_enter(__func__, CALL_AFTER_FAULT);

	if (result != CUDA_SUCCESS)
		return result;
	if (!thread.depth)
		return call_leave(CUDA_ERROR_INVALID_CONTEXT);
	thread.depth--;
	if (handle)
		*handle = thread.stack[thread.depth];
	return call_leave(CUDA_SUCCESS);
}

/* "Context Management", cuCtxSetCurrent: replaces the top of the stack; NULL pops it. */
CUresult cuCtxSetCurrent(CUcontext handle)
{
	CUresult result = call_enter(__func__, CALL_AFTER_FAULT);

	if (result != CUDA_SUCCESS)
		return result;
	if (!handle) {
		thread.depth -= thread.depth > 0;
		return call_leave(CUDA_SUCCESS);
	}
	if (!context_of(handle))
		return call_leave(CUDA_ERROR_INVALID_CONTEXT);
	thread.depth += thread.depth == 0;
	thread.stack[thread.depth - 1] = handle;
	return call_leave(CUDA_SUCCESS);
}

/* "Context Management", cuCtxGetCurrent: NULL and success if there is none. */
CUresult cuCtxGetCurrent(CUcontext *handle)
{
	CUresult result = call_enter(__func__, CALL_AFTER_FAULT);

	if (result != CUDA_SUCCESS)
		return result;
	if (!handle)
		return call_leave(CUDA_ERROR_INVALID_VALUE);
	*handle = thread.depth ? thread.stack[thread.depth - 1] : NULL;
	return call_leave(CUDA_SUCCESS);
}

/* "Context Management", cuCtxGetDevice: the device of the current context, which must exist. */
CUresult cuCtxGetDevice(CUdevice *device)
{
	CUresult result = call_enter(__func__, CALL_CONTEXT | CALL_AFTER_FAULT);

	if (result != CUDA_SUCCESS)
		return result;
	if (!device)
		return call_leave(CUDA_ERROR_INVALID_VALUE);
	*device = context_current()->device;
	return call_leave(CUDA_SUCCESS);
}

/* "Context Management", cuCtxSynchronize: waits for all work of the context, and returns the error of that work. */
CUresult cuCtxSynchronize(void)
{
	CUresult result = call_enter(__func__, CALL_CONTEXT | CALL_UNSAFE);

	return result != CUDA_SUCCESS ? result : call_leave(context_wait(context_current()));
}
