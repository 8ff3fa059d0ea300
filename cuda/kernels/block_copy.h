/*
 * block_copy.h - many copies in one launch, such as KV cache blocks that are moved or split, or tiles gathered from
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
	uint64_t bytes;    /* 0: no copy, so that a captured graph can have spare items */
};

struct block_copy_args {
	uint64_t items;     /* struct block_copy_item[count], readable by the kernel until it has finished */
	uint64_t bytes_max; /* approximate size of the largest item; it determines the number of threads per copy */
	uint32_t count;
	uint32_t reserved; /* 0 */
};

static_assert(sizeof(struct block_copy_args) == 24 && sizeof(struct block_copy_item) == 24,
	"both compilers must have the same");

/*
 * block_copy_queue() - queue the copies. Their order is undefined, so no copy may write to memory that another one
 * reads or writes. Copies are fastest if the distance of the two addresses is a multiple of 16.
 * Return: 0 (also without items), -EINVAL (no list, or a list that is not aligned to 8 bytes), or an error of
 * gpu_launch().
 */
int block_copy_queue(struct gpu *gpu, const struct block_copy_args *args, struct gpu_stream *stream);

/* block_copy_host() - the C reference: perform the copies synchronously, on memory of the process. */
void block_copy_host(const struct block_copy_args *args);

#endif
