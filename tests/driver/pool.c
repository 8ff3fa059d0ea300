/* pool.c - "Stream Ordered Memory Allocator". */
#include "tests/driver/driver.h"

#include <stdlib.h>

struct block {
	struct block *next;
	CUdeviceptr at;
	uint64_t bytes;
	bool used, freeing; /* freeing: cuMemFreeAsync() has been called */
};

struct pool {
	struct pool *next;
	int device;
	bool alive;
	uint64_t threshold, reserved, used;
	struct block *blocks;
};

static struct pool *pools; /* never freed */

static struct pool *pool_of(CUmemoryPool handle)
{
	for (struct pool *pool = pools; pool; pool = pool->next)
		if ((CUmemoryPool)(void *)pool == handle && pool->alive)
			return pool;
	return NULL;
}

/* "Stream Ordered Memory Allocator", cuMemPoolCreate: pinned memory of a device. */
CUresult cuMemPoolCreate(CUmemoryPool *handle, const CUmemPoolProps *properties)
{
	CUresult result = call_enter(__func__, 0);
	struct pool *pool;

	if (result != CUDA_SUCCESS)
		return result;
	if (!handle || !properties || properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
		properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE || properties->location.id < 0 ||
		(unsigned)properties->location.id >= settings.devices || properties->handleTypes)
		return call_leave(CUDA_ERROR_INVALID_VALUE);
	if (!settings.pools)
		return call_leave(CUDA_ERROR_NOT_SUPPORTED);
	pool = calloc(1, sizeof(*pool));
	if (!pool)
		return call_leave(CUDA_ERROR_OUT_OF_MEMORY);
	pool->device = properties->location.id;
	pool->alive = true;
	pool->next = pools;
	pools = pool;
	*handle = (CUmemoryPool)(void *)pool;
	return call_leave(CUDA_SUCCESS);
}

/* pool_shrink() - give freed memory back until at most `keep` bytes are reserved. */
static void pool_shrink(struct pool *pool, uint64_t keep)
{
	struct block **link = &pool->blocks, *block;

	while ((block = *link)) {
		if (block->used || pool->reserved <= keep) {
			link = &block->next;
			continue;
		}
		*link = block->next;
		pool->reserved -= block->bytes;
		memory_block_free(block->at);
		free(block);
	}
}

/* "Stream Ordered Memory Allocator", cuMemPoolDestroy: memory that is still allocated remains until it is freed. */
CUresult cuMemPoolDestroy(CUmemoryPool handle)
{
	CUresult result = call_enter(__func__, CALL_AFTER_FAULT);
	struct pool *pool;

	if (result != CUDA_SUCCESS)
		return result;
	pool = pool_of(handle);
	if (!pool)
		return call_leave(CUDA_ERROR_INVALID_VALUE);
	pool->alive = false;
	pool->threshold = 0;
	pool_shrink(pool, 0);
	return call_leave(CUDA_SUCCESS);
}

/* "Stream Ordered Memory Allocator", cuMemPoolSetAttribute: the threshold is the one attribute here, by choice. */
CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
	CUresult result = call_enter(__func__, 0);
	struct pool *pool;

	if (result != CUDA_SUCCESS)
		return result;
	pool = pool_of(handle);
	if (!pool || !value || attribute != CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
		return call_leave(CUDA_ERROR_INVALID_VALUE);
	pool->threshold = *(const cuuint64_t *)value;
	return call_leave(CUDA_SUCCESS);
}

/* "Stream Ordered Memory Allocator", cuMemPoolGetAttribute: three of its attributes. */
CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
	CUresult result = call_enter(__func__, 0);
	cuuint64_t *number = value;
	struct pool *pool;

	if (result != CUDA_SUCCESS)
		return result;
	pool = pool_of(handle);
	if (!pool || !value)
		return call_leave(CUDA_ERROR_INVALID_VALUE);
	switch ((int)attribute) {
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: *number = pool->threshold; break;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: *number = pool->reserved; break;
	case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: *number = pool->used; break;
	default: return call_leave(CUDA_ERROR_INVALID_VALUE);
	}
	return call_leave(CUDA_SUCCESS);
}

static struct block *block_take(struct pool *pool, uint64_t bytes)
{
	struct block *block;

	for (block = pool->blocks; block; block = block->next)
		if (!block->used && block->bytes == bytes)
			return block;
	block = calloc(1, sizeof(*block));
	if (block && memory_block_make(pool->device, bytes, &block->at) != CUDA_SUCCESS) {
		pool_shrink(pool, 0);
		if (memory_block_make(pool->device, bytes, &block->at) != CUDA_SUCCESS) {
			free(block);
			block = NULL;
		}
	}
	if (!block)
		return NULL;
	block->bytes = bytes;
	block->next = pool->blocks;
	pool->blocks = block;
	pool->reserved += bytes;
	return block;
}

/*
 * "Stream Ordered Memory Allocator", cuMemAllocFromPoolAsync: the address is known at once, the memory may be used
 * after this point of the stream. In a capture it becomes a node; that is not modeled, and refused.
 */
CUresult cuMemAllocFromPoolAsync(CUdeviceptr *at, size_t bytes, CUmemoryPool handle, CUstream stream_handle)
{
	CUresult result = call_enter(__func__, CALL_CONTEXT);
	struct stream *stream;
	struct block *block;
	struct pool *pool;

	if (result != CUDA_SUCCESS)
		return result;
	pool = pool_of(handle);
	if (!at || !bytes || !pool)
		return call_leave(CUDA_ERROR_INVALID_VALUE);
	result = stream_of(stream_handle, &stream);
	if (result == CUDA_SUCCESS && stream->capture)
		result = capture_break(stream, CUDA_ERROR_NOT_SUPPORTED);
	if (result != CUDA_SUCCESS)
		return call_leave(result);
	block = block_take(pool, (bytes + settings.granularity - 1) / settings.granularity * settings.granularity);
	if (!block)
		return call_leave(CUDA_ERROR_OUT_OF_MEMORY);
	block->used = true;
	block->freeing = false;
	pool->used += block->bytes;
	*at = block->at;
	return call_leave(CUDA_SUCCESS);
}

static struct block *block_of(CUdeviceptr at, struct pool **pool)
{
	for (*pool = pools; *pool; *pool = (*pool)->next)
		for (struct block *block = (*pool)->blocks; block; block = block->next)
			if (block->at == at && block->used)
				return block;
	return NULL;
}

void pool_freed(struct pool *pool, CUdeviceptr at)
{
	for (struct block *block = pool->blocks; block; block = block->next)
		if (block->at == at) {
			block->used = false;
			pool->used -= block->bytes;
		}
	if (pool->reserved > pool->threshold)
		pool_shrink(pool, pool->threshold);
}

/* "Stream Ordered Memory Allocator", cuMemFreeAsync: an address of a pool that has not been freed. */
CUresult cuMemFreeAsync(CUdeviceptr at, CUstream handle)
{
	CUresult result = call_enter(__func__, CALL_CONTEXT);
	struct operation operation = {.kind = OP_FREE, .to = at};
	struct stream *stream;
	struct block *block;

	if (result != CUDA_SUCCESS)
		return result;
	block = block_of(at, &operation.pool);
	if (!block || block->freeing)
		return call_leave(CUDA_ERROR_INVALID_VALUE);
	result = stream_of(handle, &stream);
	if (result == CUDA_SUCCESS)
		result = stream_issue(stream, &operation);
	if (result == CUDA_SUCCESS)
		block->freeing = true;
	return call_leave(result);
}

void pools_forget(void)
{
	pools = NULL;
}
