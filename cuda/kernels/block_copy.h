/*
 * block_copy.h - many copies by one launch: blocks of a KV cache that move or split, tiles that come together from
 * scattered pages.
 */
#ifndef CUDA_KERNELS_BLOCK_COPY_H
#define CUDA_KERNELS_BLOCK_COPY_H

#include <assert.h>
#include <stdint.h>

struct gpu;
struct gpu_stream;

struct block_copy_item {
	uint64_t to, from; /* device addresses or registered host memory */
	uint64_t bytes;    /* 0: nothing, so a captured graph may have places to spare */
};

struct block_copy_args {
	uint64_t items;     /* struct block_copy_item[count], where the kernel can read it until it is done */
	uint64_t bytes_max; /* about the largest; how many threads share a copy follows from it */
	uint32_t count;
	uint32_t reserved; /* 0 */
};

static_assert(sizeof(struct block_copy_args) == 24 && sizeof(struct block_copy_item) == 24,
	"both compilers must have the same");

/*
 * block_copy_queue() - queue the copies, in no order: none may write what another reads or writes. Fastest where all
 * three are multiples of 16. Return: 0 (also for no items), -EINVAL (no list, or one that is not aligned to 8 bytes),
 * or what gpu_launch() says.
 */
int block_copy_queue(struct gpu *gpu, const struct block_copy_args *args, struct gpu_stream *stream);

/* The reference: the same work at once, on memory of the process. */
void block_copy_host(const struct block_copy_args *args);

#endif
