/*
 * gpu_cuda.c - the CUDA back end: its table, the devices, open and close.
 *
 *   gpu_cuda_driver.c  the library, its errors, contexts
 *   gpu_cuda_memory.c  physical memory and address ranges
 *   gpu_cuda_stream.c  streams, events, registered host memory, timelines
 *   gpu_cuda_kernel.c  kernels: loading their images, launching
 *   gpu_cuda_pool.c    the driver's stream-ordered pool
 *   gpu_cuda_nvml.c    free memory, without a context
 *   gpu_cuda_none.c    replaces all of these if the toolkit's headers were missing at build time
 *
 * A device opened with GPU_OPEN_OWNER has no context: it uses only cuInit() and the virtual memory calls, which need no
 * context. Other devices retain the primary context, which they share with the program's own use of CUDA. Each call
 * pushes and pops this context, so the caller's current context does not change.
 */
#if __has_include(<cuda.h>) && !defined(GPOOL_WITHOUT_CUDA)
#include <cuda.h>

#include "cuda/gpu_cuda.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int cuda_device_count(void)
{
	const struct cuda_driver *driver;
	CUresult result;
	int count, rc = cuda_driver_load(&driver);

	if (rc < 0)
		return rc;
	result = driver->cuDeviceGetCount(&count);
	return result == CUDA_SUCCESS ? count : cuda_fail(driver, result, "cuDeviceGetCount");
}

static int device_get(int index, const struct cuda_driver **driver, CUdevice *device)
{
	CUresult result;
	int rc = cuda_driver_load(driver);

	if (rc < 0)
		return rc;
	result = (*driver)->cuDeviceGet(device, index);
	if (result != CUDA_SUCCESS) {
		cuda_fail(*driver, result, "cuDeviceGet of device %d", index);
		return -ENODEV; /* the driver reports an index out of range as an invalid value or device */
	}
	return 0;
}

/* device_has() - return a boolean attribute, or false if the driver does not support it. */
static bool device_has(const struct cuda_driver *driver, CUdevice device, CUdevice_attribute attribute)
{
	int value = 0;

	return driver->cuDeviceGetAttribute(&value, attribute, device) == CUDA_SUCCESS && value;
}

static uint32_t device_capabilities(const struct cuda_driver *driver, CUdevice device)
{
	uint32_t capabilities = 0;

	if (device_has(driver, device, CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED))
		capabilities |= GPU_CAP_IPC_EVENT;
	if (driver->cuStreamWriteValue64 && driver->cuStreamWaitValue64 &&
		device_has(driver, device, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS))
		capabilities |= GPU_CAP_TIMELINE;
	if (cuda_pool_has(driver) && device_has(driver, device, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED))
		capabilities |= GPU_CAP_POOL;
	if (cuda_kernels_built())
		capabilities |= GPU_CAP_KERNELS;
	return capabilities;
}

static int device_uuid(const struct cuda_driver *driver, CUdevice device, char text[GPU_UUID_MAX])
{
	const unsigned char *byte;
	CUuuid uuid;
	CUresult result = driver->cuDeviceGetUuid(&uuid, device);
	int length;

	if (result != CUDA_SUCCESS)
		return cuda_fail(driver, result, "cuDeviceGetUuid of device %d", (int)device);
	byte = (const unsigned char *)uuid.bytes;
	length = snprintf(text, GPU_UUID_MAX, "GPU-");
	for (int i = 0; i < 16; i++)
		length += snprintf(text + length, GPU_UUID_MAX - (size_t)length, "%s%02x",
			i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", byte[i]);
	return 0;
}

static int cuda_device_info(int index, struct gpu_device_info *info)
{
	struct gpu_device_info filled = {0};
	const struct cuda_driver *driver;
	CUdevice device;
	CUresult result;
	size_t bytes;
	int rc = device_get(index, &driver, &device);

	if (rc == 0)
		rc = device_uuid(driver, device, filled.uuid);
	if (rc < 0)
		return rc;
	result = driver->cuDeviceGetName(filled.name, sizeof(filled.name), device);
	if (result != CUDA_SUCCESS)
		return cuda_fail(driver, result, "cuDeviceGetName of device %d", index);
	result = driver->cuDeviceTotalMem(&bytes, device);
	if (result != CUDA_SUCCESS)
		return cuda_fail(driver, result, "cuDeviceTotalMem of device %d", index);
	filled.memory_bytes = bytes;
	filled.capabilities = device_capabilities(driver, device);
	*info = filled;
	return 0;
}

/* device_check() - check that the device's memory can be mapped page by page and exported to other processes. */
static int device_check(const struct cuda_driver *driver, CUdevice device)
{
	if (!device_has(driver, device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED))
		return gpu_fail(-EOPNOTSUPP, "device %d does not support virtual memory management", (int)device);
	if (!device_has(driver, device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED))
		return gpu_fail(-EOPNOTSUPP, "device %d cannot export memory as file descriptors", (int)device);
	return 0;
}

static int context_retain(struct gpu_cuda *cuda, bool blocking)
{
	const struct cuda_driver *driver = cuda->driver;
	CUresult result;

	if (blocking) {
		result = driver->cuDevicePrimaryCtxSetFlags(cuda->device, CU_CTX_SCHED_BLOCKING_SYNC);
		if (result != CUDA_SUCCESS)
			return cuda_fail(driver, result, "cuDevicePrimaryCtxSetFlags of device %d", (int)cuda->device);
	}
	result = driver->cuDevicePrimaryCtxRetain(&cuda->context, cuda->device);
	if (result != CUDA_SUCCESS)
		return cuda_fail(driver, result, "cuDevicePrimaryCtxRetain of device %d", (int)cuda->device);
	return 0;
}

static int cuda_open(int index, uint32_t flags, struct gpu **gpu)
{
	const struct cuda_driver *driver;
	struct gpu_cuda *cuda;
	CUdevice device;
	int rc = device_get(index, &driver, &device);

	if (rc == 0)
		rc = device_check(driver, device);
	if (rc < 0)
		return rc;
	cuda = calloc(1, sizeof(*cuda));
	if (!cuda)
		return gpu_fail(-ENOMEM, "cannot open device %d: out of memory", index);
	cuda->driver = driver;
	cuda->device = device;
	cuda->capabilities = device_capabilities(driver, device);
	cuda->rdma = device_has(driver, device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
	rc = device_uuid(driver, device, cuda->uuid);
	if (rc == 0)
		rc = cuda_memory_init(cuda);
	if (rc == 0 && !(flags & GPU_OPEN_OWNER))
		rc = context_retain(cuda, flags & GPU_OPEN_BLOCKING);
	if (rc < 0)
		goto free_cuda;
	pthread_mutex_init(&cuda->lock, NULL);
	*gpu = &cuda->gpu;
	return 0;

free_cuda:
	free(cuda);
	return rc;
}

static uint32_t cuda_capabilities(struct gpu *gpu)
{
	struct gpu_cuda *cuda = cuda_of(gpu);
	int rc = cuda->context && cuda->capabilities & GPU_CAP_KERNELS ? cuda_kernels_load(cuda) : 0;

	/* A later launch may find enough memory. */
	return rc == 0 || rc == -ENOMEM ? cuda->capabilities : cuda->capabilities & ~(uint32_t)GPU_CAP_KERNELS;
}

static int cuda_peers_set(struct gpu *gpu, const int *devices, uint32_t count)
{
	struct gpu_cuda *cuda = cuda_of(gpu);
	const struct cuda_driver *driver;
	CUdevice peers[GPU_PEERS_MAX];
	CUresult result;
	int can = 0, rc;

	for (uint32_t i = 0; i < count; i++) {
		rc = device_get(devices[i], &driver, &peers[i]);
		if (rc < 0)
			return rc;
		result = driver->cuDeviceCanAccessPeer(&can, peers[i], cuda->device);
		if (result != CUDA_SUCCESS)
			return cuda_fail(driver, result, "cuDeviceCanAccessPeer of device %d", devices[i]);
		if (!can)
			return gpu_fail(-EOPNOTSUPP, "device %d cannot access the memory of device %d", devices[i],
				(int)cuda->device);
	}
	memcpy(cuda->peers, peers, count * sizeof(*peers));
	cuda->peer_count = count;
	return 0;
}

static void cuda_close(struct gpu *gpu)
{
	struct gpu_cuda *cuda = cuda_of(gpu);

	cuda_registrations_fini(cuda);
	cuda_kernels_fini(cuda);
	cuda_pool_fini(cuda);
	cuda_memory_fini(cuda);
	if (cuda->context)
		cuda->driver->cuDevicePrimaryCtxRelease(cuda->device);
	pthread_mutex_destroy(&cuda->lock);
	free(cuda);
}

const struct gpu_ops gpu_cuda_ops = {
	.name = "cuda",
	.device_count = cuda_device_count,
	.device_info = cuda_device_info,
	.open = cuda_open,
	.close = cuda_close,
	.capabilities = cuda_capabilities,
	.peers_set = cuda_peers_set,
	.granularity = cuda_granularity,
	.memory_info = cuda_memory_info,
	.create = cuda_create,
	.release = cuda_release,
	.export = cuda_export,
	.import = cuda_import,
	.reserve = cuda_reserve,
	.unreserve = cuda_unreserve,
	.map = cuda_map,
	.unmap = cuda_unmap,
	.access = cuda_access,
	.stream_create = cuda_stream_create,
	.stream_adopt = cuda_stream_adopt,
	.stream_destroy = cuda_stream_destroy,
	.stream_sync = cuda_stream_sync,
	.stream_query = cuda_stream_query,
	.copy = cuda_copy,
	.fill = cuda_fill,
	.launch = cuda_launch,
	.event_create = cuda_event_create,
	.event_destroy = cuda_event_destroy,
	.event_record = cuda_event_record,
	.event_query = cuda_event_query,
	.event_wait = cuda_event_wait,
	.event_export = cuda_event_export,
	.event_import = cuda_event_import,
	.host_register = cuda_host_register,
	.host_unregister = cuda_host_unregister,
	.host_address = cuda_host_address,
	.timeline_write = cuda_timeline_write,
	.timeline_wait = cuda_timeline_wait,
	.pool_alloc = cuda_pool_alloc,
	.pool_free = cuda_pool_free,
	.pool_info = cuda_pool_info,
};

#endif
