/* block_copy.cu - batched copies: in the grid, x is the item and y the part of the item. */
#include "cuda/kernels/block_copy.h"

extern "C" __global__ void __launch_bounds__(256) block_copy(const struct block_copy_args args)
{
	const struct block_copy_item item = ((const struct block_copy_item *)args.items)[blockIdx.x];
	const uint64_t thread = (uint64_t)blockIdx.y * blockDim.x + threadIdx.x;
	const uint64_t threads = (uint64_t)gridDim.y * blockDim.x;
	uint64_t wide = 0; /* bytes that are copied 16 at a time */

	if ((item.to | item.from) % 16 == 0) {
		const uint4 *__restrict__ from = (const uint4 *)item.from;
		uint4 *__restrict__ to = (uint4 *)item.to;

		wide = item.bytes / 16 * 16;
#pragma unroll 4
		for (uint64_t i = thread; i < wide / 16; i += threads)
			to[i] = from[i];
	}
	for (uint64_t i = wide + thread; i < item.bytes; i += threads)
		((uint8_t *)item.to)[i] = ((const uint8_t *)item.from)[i];
}
