/*
 * gpu_cuda_memory.c - physical memory and address ranges, with the driver's virtual memory API.
 *
 * The driver checks some of its rules (offset 0, whole mappings, access after mapping). The caller must observe the
 * others, such as that no range is unmapped while work uses it.
 */
#if __has_include(<cuda.h>) && !defined(GPOOL_WITHOUT_CUDA)
#include <cuda.h>

#include "cuda/gpu_cuda.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned long long ull; /* printed by %llu */

static CUmemAllocationProp memory_properties(const struct gpu_cuda *cuda)
{
	CUmemAllocationProp properties = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	};

	properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	properties.location.id = (int)cuda->device;
	/* Without this flag, transports silently copy through host memory. */
	properties.allocFlags.gpuDirectRDMACapable = cuda->rdma;
	return properties;
}

/* memory_add() - return a new handle for a driver handle; 0: out of memory. */
static uint64_t memory_add(struct gpu_cuda *cuda, CUmemGenericAllocationHandle handle, uint64_t bytes)
{
	struct cuda_memory *memory = NULL, *grown;
	uint32_t capacity, slot;
	uint64_t ours = 0;

	pthread_mutex_lock(&cuda->lock);
	if (cuda->memory_free) {
		memory = &cuda->memories[cuda->memory_free - 1];
		cuda->memory_free = memory->next_free;
	} else {
		if (cuda->memory_count == cuda->memory_capacity) {
			capacity = cuda->memory_capacity ? cuda->memory_capacity * 2 : 64;
			grown = capacity ? realloc(cuda->memories, capacity * sizeof(*grown)) : NULL;
			if (!grown)
				goto unlock;
			cuda->memories = grown;
			cuda->memory_capacity = capacity;
		}
		memory = &cuda->memories[cuda->memory_count++];
		memory->generation = 0;
	}
	memory->handle = handle;
	memory->bytes = bytes;
	memory->generation++;
	slot = (uint32_t)(memory - cuda->memories) + 1;
	ours = (uint64_t)memory->generation << 32 | slot;
unlock:
	pthread_mutex_unlock(&cuda->lock);
	return ours;
}

/* memory_find() - look up a handle; with `take`, also remove it from the table. */
static int memory_find(
	struct gpu_cuda *cuda, uint64_t ours, bool take, CUmemGenericAllocationHandle *handle, uint64_t *bytes)
{
	uint32_t slot = (uint32_t)ours;
	struct cuda_memory *memory;
	int rc = -EINVAL;

	pthread_mutex_lock(&cuda->lock);
	if (slot != 0 && slot <= cuda->memory_count) {
		memory = &cuda->memories[slot - 1];
		if (memory->bytes && memory->generation == ours >> 32) {
			*handle = memory->handle;
			*bytes = memory->bytes;
			rc = 0;
		}
		if (rc == 0 && take) {
			memory->bytes = 0;
			memory->next_free = cuda->memory_free;
			cuda->memory_free = slot;
		}
	}
	pthread_mutex_unlock(&cuda->lock);
	return rc == 0 ? 0 : gpu_fail(rc, "handle 0x%llx does not exist", (ull)ours);
}

void cuda_memory_fini(struct gpu_cuda *cuda)
{
	free(cuda->memories);
}

int cuda_memory_init(struct gpu_cuda *cuda)
{
	CUmemAllocationProp properties = memory_properties(cuda);
	CUresult result;
	size_t granularity;

	result = cuda->driver->cuMemGetAllocationGranularity(
		&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
	if (result != CUDA_SUCCESS)
		return cuda_fail(cuda->driver, result, "cuMemGetAllocationGranularity on device %d", (int)cuda->device);
	cuda->granularity = granularity;
	return 0;
}

int cuda_granularity(struct gpu *gpu, uint64_t *bytes)
{
	*bytes = cuda_of(gpu)->granularity;
	return 0;
}

int cuda_memory_info(struct gpu *gpu, uint64_t *free_bytes, uint64_t *total_bytes)
{
	struct gpu_cuda *cuda = cuda_of(gpu);
	size_t free_now, total;
	CUresult result;
	int rc;

	if (!cuda->context) /* the driver's call uses the current context */
		return cuda_nvml_memory_info(cuda->uuid, free_bytes, total_bytes);
	rc = cuda_context_push(cuda);
	if (rc < 0)
		return rc;
	result = cuda->driver->cuMemGetInfo(&free_now, &total);
	cuda_context_pop(cuda);
	if (result != CUDA_SUCCESS)
		return cuda_fail(cuda->driver, result, "cuMemGetInfo on device %d", (int)cuda->device);
	*free_bytes = free_now;
	*total_bytes = total;
	return 0;
}

/* handle_give() - return a handle for a new driver handle; on failure, release the driver handle. */
static int handle_give(struct gpu_cuda *cuda, CUmemGenericAllocationHandle given, uint64_t bytes, uint64_t *handle)
{
	uint64_t ours = memory_add(cuda, given, bytes);

	if (!ours) {
		cuda->driver->cuMemRelease(given);
		return gpu_fail(-ENOMEM, "out of memory for the handle of %llu bytes", (ull)bytes);
	}
	*handle = ours;
	return 0;
}

int cuda_create(struct gpu *gpu, uint64_t bytes, uint64_t *handle)
{
	struct gpu_cuda *cuda = cuda_of(gpu);
	CUmemAllocationProp properties = memory_properties(cuda);
	CUmemGenericAllocationHandle created;
	CUresult result;
	int rc = cuda_context_push(cuda);

	if (rc < 0)
		return rc;
	result = cuda->driver->cuMemCreate(&created, bytes, &properties, 0);
	cuda_context_pop(cuda);
	if (result != CUDA_SUCCESS)
		return cuda_fail(
			cuda->driver, result, "cuMemCreate of %llu bytes on device %d", (ull)bytes, (int)cuda->device);
	return handle_give(cuda, created, bytes, handle);
}

void cuda_release(struct gpu *gpu, uint64_t handle)
{
	struct gpu_cuda *cuda = cuda_of(gpu);
	CUmemGenericAllocationHandle given;
	CUresult result;
	uint64_t bytes;

	if (cuda_context_push(cuda) < 0)
		return;
	if (memory_find(cuda, handle, true, &given, &bytes) < 0) {
		cuda_context_pop(cuda);
		return;
	}
	result = cuda->driver->cuMemRelease(given);
	cuda_context_pop(cuda);
	if (result != CUDA_SUCCESS)
		cuda_fail(cuda->driver, result, "cuMemRelease of %llu bytes, handle 0x%llx", (ull)bytes, (ull)handle);
}

int cuda_export(struct gpu *gpu, uint64_t handle, struct gpu_export *out)
{
	struct gpu_cuda *cuda = cuda_of(gpu);
	CUmemGenericAllocationHandle given;
	CUresult result;
	uint64_t bytes;
	int fd = -1, rc = memory_find(cuda, handle, false, &given, &bytes);

	if (rc == 0)
		rc = cuda_context_push(cuda);
	if (rc < 0)
		return rc;
	result = cuda->driver->cuMemExportToShareableHandle(&fd, given, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	cuda_context_pop(cuda);
	if (result != CUDA_SUCCESS)
		return cuda_fail(cuda->driver, result, "cuMemExportToShareableHandle of %llu bytes, handle 0x%llx",
			(ull)bytes, (ull)handle);
	/* otherwise a program that this process executes would inherit the descriptor and keep the memory allocated */
	if (fcntl(fd, F_SETFD, FD_CLOEXEC) < 0) {
		rc = -errno;
		close(fd);
		return gpu_fail(rc, "cannot set FD_CLOEXEC on an exported descriptor: %s", strerror(-rc));
	}
	*out = (struct gpu_export){.fd = fd, .length = bytes};
	return 0;
}

int cuda_import(struct gpu *gpu, const struct gpu_export *from, uint64_t *handle)
{
	struct gpu_cuda *cuda = cuda_of(gpu);
	CUmemGenericAllocationHandle imported;
	CUresult result;
	int rc;

	if (from->offset)
		return gpu_fail(-EINVAL,
			"cannot import at offset %llu: a descriptor of the driver contains one handle, at offset 0",
			(ull)from->offset);
	rc = cuda_context_push(cuda);
	if (rc < 0)
		return rc;
	result = cuda->driver->cuMemImportFromShareableHandle(
		&imported, (void *)(uintptr_t)from->fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	cuda_context_pop(cuda);
	if (result != CUDA_SUCCESS)
		return cuda_fail(cuda->driver, result, "cuMemImportFromShareableHandle of descriptor %d, %llu bytes",
			from->fd, (ull)from->length);
	return handle_give(cuda, imported, from->length, handle);
}

int cuda_reserve(struct gpu *gpu, uint64_t bytes, uint64_t align, uint64_t *va)
{
	struct gpu_cuda *cuda = cuda_of(gpu);
	CUdeviceptr reserved;
	CUresult result;
	int rc = cuda_context_push(cuda);

	if (rc < 0)
		return rc;
	/* The documentation does not define the default alignment, but the range must be suitable for mappings. */
	if (align < cuda->granularity)
		align = cuda->granularity;
	result = cuda->driver->cuMemAddressReserve(&reserved, bytes, align, 0, 0);
	cuda_context_pop(cuda);
	if (result != CUDA_SUCCESS)
		return cuda_fail(cuda->driver, result, "cuMemAddressReserve of %llu bytes, alignment %llu", (ull)bytes,
			(ull)align);
	*va = reserved;
	return 0;
}

int cuda_unreserve(struct gpu *gpu, uint64_t va, uint64_t bytes)
{
	struct gpu_cuda *cuda = cuda_of(gpu);
	CUresult result;
	int rc = cuda_context_push(cuda);

	if (rc < 0)
		return rc;
	result = cuda->driver->cuMemAddressFree(va, bytes);
	cuda_context_pop(cuda);
	if (result != CUDA_SUCCESS)
		return cuda_fail(cuda->driver, result, "cuMemAddressFree of %llu bytes at 0x%llx", (ull)bytes, (ull)va);
	return 0;
}

static int map_one(struct gpu_cuda *cuda, uint64_t va, uint64_t bytes, uint64_t handle)
{
	CUmemGenericAllocationHandle given;
	CUresult result;
	uint64_t handle_bytes;
	int rc = memory_find(cuda, handle, false, &given, &handle_bytes);

	if (rc < 0)
		return rc;
	result = cuda->driver->cuMemMap(va, bytes, 0, given, 0);
	if (result != CUDA_SUCCESS)
		return cuda_fail(cuda->driver, result, "cuMemMap of %llu bytes at 0x%llx of a handle of %llu bytes",
			(ull)bytes, (ull)va, (ull)handle_bytes);
	return 0;
}

int cuda_map(struct gpu *gpu, uint64_t va, uint64_t bytes, const uint64_t *handles, uint32_t count, uint32_t *mapped)
{
	struct gpu_cuda *cuda = cuda_of(gpu);
	int rc = cuda_context_push(cuda);

	if (rc < 0)
		return rc;
	for (uint32_t i = 0; i < count && rc == 0; i++) {
		rc = map_one(cuda, va + i * bytes, bytes, handles[i]);
		*mapped += rc == 0;
	}
	cuda_context_pop(cuda);
	return rc;
}

int cuda_unmap(struct gpu *gpu, uint64_t va, uint64_t bytes)
{
	struct gpu_cuda *cuda = cuda_of(gpu);
	CUresult result;
	int rc = cuda_context_push(cuda);

	if (rc < 0)
		return rc;
	result = cuda->driver->cuMemUnmap(va, bytes);
	cuda_context_pop(cuda);
	if (result != CUDA_SUCCESS)
		return cuda_fail(cuda->driver, result, "cuMemUnmap of %llu bytes at 0x%llx", (ull)bytes, (ull)va);
	return 0;
}

int cuda_access(struct gpu *gpu, uint64_t va, uint64_t bytes, enum gpu_access access)
{
	static const CUmemAccess_flags flags[] = {
		[GPU_ACCESS_NONE] = CU_MEM_ACCESS_FLAGS_PROT_NONE,
		[GPU_ACCESS_READ] = CU_MEM_ACCESS_FLAGS_PROT_READ,
		[GPU_ACCESS_READ_WRITE] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	};
	struct gpu_cuda *cuda = cuda_of(gpu);
	CUmemAccessDesc descriptors[1 + GPU_PEERS_MAX] = {0};
	CUresult result;
	int rc = cuda_context_push(cuda);

	if (rc < 0)
		return rc;
	for (uint32_t i = 0; i <= cuda->peer_count; i++) {
		descriptors[i].location.type = CU_MEM_LOCATION_TYPE_DEVICE;
		descriptors[i].location.id = (int)(i ? cuda->peers[i - 1] : cuda->device);
		descriptors[i].flags = flags[access];
	}
	result = cuda->driver->cuMemSetAccess(va, bytes, descriptors, 1 + cuda->peer_count);
	cuda_context_pop(cuda);
	if (result != CUDA_SUCCESS)
		return cuda_fail(cuda->driver, result, "cuMemSetAccess of %llu bytes at 0x%llx to %d", (ull)bytes,
			(ull)va, (int)access);
	return 0;
}

#endif
