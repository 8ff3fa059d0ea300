/* block_copy.c - batched copies: checks, the shape of the launch, and the reference in C. */
#include "cuda/kernels/block_copy.h"

#include "cuda/gpu_private.h"

#include <errno.h>
#include <string.h>

/* each thread has four loads of 16 bytes in flight */
enum { BLOCK_THREADS = 256, BLOCK_BYTES = BLOCK_THREADS * 16 * 4 };
static const uint64_t blocks_per_item_max = 64;

int block_copy_queue(struct gpu *gpu, const struct block_copy_args *args, struct gpu_stream *stream)
{
	struct gpu_shape shape = {.grid = {1, 1, 1}, .block = BLOCK_THREADS};
	uint64_t blocks;

	if (!args || args->reserved || args->count > INT32_MAX || (args->count && (!args->items || args->items % 8)))
		return gpu_fail(-EINVAL,
			"block copy: the list must not be NULL, must be aligned to 8 bytes, and must have at most 2^31 "
			"- 1 items");
	if (!args->count)
		return 0;
	blocks = args->bytes_max / BLOCK_BYTES + 1;
	shape.grid[0] = args->count;
	shape.grid[1] = (uint32_t)(blocks < blocks_per_item_max ? blocks : blocks_per_item_max);
	return gpu_launch(gpu, GPU_KERNEL_BLOCK_COPY, &shape, args, sizeof(*args), stream);
}

void block_copy_host(const struct block_copy_args *args)
{
	const struct block_copy_item *items = (const struct block_copy_item *)(uintptr_t)args->items;

	for (uint32_t i = 0; i < args->count; i++)
		if (items[i].bytes)
			memcpy((void *)(uintptr_t)items[i].to, (const void *)(uintptr_t)items[i].from, items[i].bytes);
}
