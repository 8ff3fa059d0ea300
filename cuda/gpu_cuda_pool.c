/*
 * gpu_cuda_pool.c - the driver's stream-ordered allocator. It uses a separate pool, so the program's default pool is
 * unchanged.
 */
#if __has_include(<cuda.h>) && !defined(GPOOL_WITHOUT_CUDA)
#include <cuda.h>

#include "cuda/gpu_cuda.h"

#include <errno.h>

bool cuda_pool_has(const struct cuda_driver *driver)
{
	return driver->cuMemPoolCreate && driver->cuMemPoolDestroy && driver->cuMemPoolSetAttribute &&
		driver->cuMemPoolGetAttribute && driver->cuMemAllocFromPoolAsync && driver->cuMemFreeAsync;
}

/* Create the pool. It keeps freed memory, which by default would be returned to the system at each synchronization. */
static int pool_create(struct gpu_cuda *cuda, CUmemoryPool *pool)
{
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED};
	cuuint64_t threshold = UINT64_MAX;
	CUresult result;

	props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	props.location.id = cuda->device;
	result = cuda->driver->cuMemPoolCreate(pool, &props);
	if (result != CUDA_SUCCESS)
		return cuda_fail(cuda->driver, result, "cuMemPoolCreate");
	result = cuda->driver->cuMemPoolSetAttribute(*pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold);
	if (result == CUDA_SUCCESS)
		return 0;
	cuda->driver->cuMemPoolDestroy(*pool);
	return cuda_fail(cuda->driver, result, "cuMemPoolSetAttribute of the release threshold");
}

/*
 * Return the pool. The lock is not held during driver calls: if two threads create the pool concurrently, one pool is
 * discarded.
 */
static int pool_get(struct gpu_cuda *cuda, CUmemoryPool *pool)
{
	CUmemoryPool made = NULL;
	int rc;

	if (!(cuda->capabilities & GPU_CAP_POOL))
		return gpu_fail(-EOPNOTSUPP, "this device or its driver does not support stream-ordered memory pools");
	pthread_mutex_lock(&cuda->lock);
	*pool = cuda->pool;
	pthread_mutex_unlock(&cuda->lock);
	if (*pool)
		return 0;
	rc = pool_create(cuda, &made);
	if (rc < 0)
		return rc;
	pthread_mutex_lock(&cuda->lock);
	if (!cuda->pool) {
		cuda->pool = made;
		made = NULL;
	}
	*pool = cuda->pool;
	pthread_mutex_unlock(&cuda->lock);
	if (made)
		cuda->driver->cuMemPoolDestroy(made);
	return 0;
}

void cuda_pool_fini(struct gpu_cuda *cuda)
{
	if (!cuda->pool || cuda_context_push(cuda) < 0)
		return;
	cuda->driver->cuMemPoolDestroy(cuda->pool);
	cuda_context_pop(cuda);
}

int cuda_pool_alloc(struct gpu *gpu, uint64_t bytes, struct gpu_stream *stream, uint64_t *va)
{
	struct gpu_cuda *cuda = cuda_of(gpu);
	CUmemoryPool pool;
	CUdeviceptr at;
	CUresult result = CUDA_SUCCESS;
	int rc = cuda_context_push(cuda);

	if (rc < 0)
		return rc;
	rc = cuda_capture_check(cuda, stream, "cuMemAllocFromPoolAsync");
	if (rc == 0)
		rc = pool_get(cuda, &pool);
	if (rc == 0) {
		result = cuda->driver->cuMemAllocFromPoolAsync(&at, bytes, pool, (CUstream)(void *)stream);
		if (result != CUDA_SUCCESS)
			rc = cuda_fail(cuda->driver, result, "cuMemAllocFromPoolAsync of %llu bytes",
				(unsigned long long)bytes);
	}
	cuda_context_pop(cuda);
	if (rc == 0)
		*va = at;
	return rc;
}

int cuda_pool_free(struct gpu *gpu, uint64_t va, struct gpu_stream *stream)
{
	struct gpu_cuda *cuda = cuda_of(gpu);
	CUresult result = CUDA_SUCCESS;
	int rc;

	if (!(cuda->capabilities & GPU_CAP_POOL))
		return gpu_fail(-EOPNOTSUPP, "this device or its driver does not support stream-ordered memory pools");
	rc = cuda_context_push(cuda);
	if (rc < 0)
		return rc;
	rc = cuda_capture_check(cuda, stream, "cuMemFreeAsync");
	if (rc == 0)
		result = cuda->driver->cuMemFreeAsync(va, (CUstream)(void *)stream);
	cuda_context_pop(cuda);
	return result == CUDA_SUCCESS
		? rc
		: cuda_fail(cuda->driver, result, "cuMemFreeAsync of 0x%llx", (unsigned long long)va);
}

int cuda_pool_info(struct gpu *gpu, uint64_t *held_bytes, uint64_t *used_bytes)
{
	struct gpu_cuda *cuda = cuda_of(gpu);
	CUmemoryPool pool;
	cuuint64_t held = 0, used = 0;
	CUresult result;
	int rc = cuda_context_push(cuda);

	if (rc < 0)
		return rc;
	rc = pool_get(cuda, &pool);
	if (rc == 0) {
		result = cuda->driver->cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &held);
		if (result == CUDA_SUCCESS)
			result = cuda->driver->cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used);
		if (result != CUDA_SUCCESS)
			rc = cuda_fail(cuda->driver, result, "cuMemPoolGetAttribute");
	}
	cuda_context_pop(cuda);
	if (rc < 0)
		return rc;
	*held_bytes = held;
	*used_bytes = used;
	return 0;
}

#endif
