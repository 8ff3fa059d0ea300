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
	uint64_t to, from; /* device addresses, also those of registered host memory */
	uint64_t bytes;    /* 0: no copy */
};

enum { BLOCK_COPY_ITEMS_MAX = 168 };

/* The list is in the arguments of the launch, so it needs no memory that must stay until the kernel has finished. */
struct block_copy_args {
	uint64_t bytes_max; /* approximate size of the largest item; it determines the number of threads per copy */
	uint32_t count;
	uint32_t reserved; /* 0 */
	struct block_copy_item items[BLOCK_COPY_ITEMS_MAX];
};

static_assert(sizeof(struct block_copy_item) == 24 && sizeof(struct block_copy_args) == 4048,
	"both compilers must have the same; the arguments of a kernel have at most 4 KiB");

/*
 * block_copy_queue() - queue the copies. Their order is undefined, so no copy may write to memory that another one
 * reads or writes. Copies are fastest if the distance of the two addresses is a multiple of 16.
 * Return: 0 (even without items), -EINVAL (too many items), or an error of gpu_launch().
 */
int block_copy_queue(struct gpu *gpu, const struct block_copy_args *args, struct gpu_stream *stream);

/* block_copy_host() - the C reference: perform the copies synchronously, on memory of the process. */
void block_copy_host(const struct block_copy_args *args);

#endif
