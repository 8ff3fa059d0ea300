/* block_copy.cu - batched copies: in the grid, x is the item and y the part of the item. */
#include "cuda/kernels/block_copy.h"

/* The threads of an item, and this one's number. */
struct threads {
	uint64_t index, count;
};

/* words_copy() - copy words, four per thread at a time, all of which are loaded before the first one is stored. */
template <typename word>
static __device__ void words_copy(word *to, const word *from, uint64_t words, const struct threads &threads)
{
	enum { AT_ONCE = 4 };

	for (uint64_t i = threads.index; i < words; i += AT_ONCE * threads.count) {
		word part[AT_ONCE];

#pragma unroll
		for (int n = 0; n < AT_ONCE; n++)
			if (i + n * threads.count < words)
				part[n] = from[i + n * threads.count];
#pragma unroll
		for (int n = 0; n < AT_ONCE; n++)
			if (i + n * threads.count < words)
				to[i + n * threads.count] = part[n];
	}
}

/* item_copy() - copy in words, which are aligned in both places, and the bytes before and after them. */
template <typename word>
static __device__ void item_copy(const struct block_copy_item &item, const struct threads &threads)
{
	const uint64_t gap = -item.to % sizeof(word), before = gap < item.bytes ? gap : item.bytes,
		       words = (item.bytes - before) / sizeof(word), after = before + words * sizeof(word);
	uint8_t *to = (uint8_t *)item.to;
	const uint8_t *from = (const uint8_t *)item.from;

	words_copy((word *)(to + before), (const word *)(from + before), words, threads);
	if (sizeof(word) > 1) {
		words_copy(to, from, before, threads);
		words_copy(to + after, from + after, item.bytes - after, threads);
	}
}

extern "C" __global__ void __launch_bounds__(256) block_copy(const __grid_constant__ struct block_copy_args args)
{
	const struct block_copy_item item = args.items[blockIdx.x];
	const struct threads threads = {
		(uint64_t)blockIdx.y * blockDim.x + threadIdx.x, (uint64_t)gridDim.y * blockDim.x};
	const uint64_t offset = item.to - item.from;

	if (offset % 16 == 0)
		item_copy<uint4>(item, threads);
	else if (offset % 4 == 0)
		item_copy<uint32_t>(item, threads);
	else
		item_copy<uint8_t>(item, threads);
}
