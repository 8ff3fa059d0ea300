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

	if (!args || args->reserved || args->count > BLOCK_COPY_ITEMS_MAX)
		return gpu_fail(-EINVAL, "block copy: a launch can have at most %d items", BLOCK_COPY_ITEMS_MAX);
	if (!args->count)
		return 0;
	blocks = args->bytes_max / BLOCK_BYTES + 1;
	shape.grid[0] = args->count;
	shape.grid[1] = (uint32_t)(blocks < blocks_per_item_max ? blocks : blocks_per_item_max);
	return gpu_launch(gpu, GPU_KERNEL_BLOCK_COPY, &shape, args, sizeof(*args), stream);
}

void block_copy_host(const struct block_copy_args *args)
{
	for (uint32_t i = 0; i < args->count; i++) {
		const struct block_copy_item *item = &args->items[i];

		if (item->bytes)
			memcpy((void *)(uintptr_t)item->to, (const void *)(uintptr_t)item->from, item->bytes);
	}
}
