/*
 * async_copy.h - copies of 16 bytes from device memory to shared memory that a thread does not wait for, and that need
 * no registers (PTX ISA, "cp.async").
 *
 * Each thread waits for its own copies only, in the order of their groups. A thread that reads what only it has copied
 * needs no barrier.
 *
 * Also loads from device memory to the second-level cache, for which no thread waits.
 */
#ifndef CUDA_KERNELS_ASYNC_COPY_H
#define CUDA_KERNELS_ASYNC_COPY_H

#include <stdint.h>

#ifdef __CUDACC__
/* async_copy() - begin to copy `bytes`, 0 to 16, and to fill up to 16 with zeros. Both places are aligned to 16. */
static __device__ __forceinline__ void async_copy(uint4 *to, const void *from, uint32_t bytes)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
		     :
		     : "r"((uint32_t)__cvta_generic_to_shared(to)), "l"(__cvta_generic_to_global(from)), "r"(bytes)
		     : "memory");
}

/* async_copies_end() - end a group: the copies since the last group, even if there are none. */
static __device__ __forceinline__ void async_copies_end(void)
{
	asm volatile("cp.async.commit_group;" ::: "memory");
}

/* async_copies_wait() - wait for all groups but the last `left` ones. */
template <int left> static __device__ __forceinline__ void async_copies_wait(void)
{
	asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
}

/*
 * cache_ahead() - begin to load `bytes` to the second-level cache, by a whole warp. Both numbers are multiples of 16.
 * It is a hint: the load may be omitted (PTX ISA, "cp.async.bulk.prefetch", from sm_90 on, and "prefetch", which loads
 * one line of the cache).
 */
static __device__ __forceinline__ void cache_ahead(uint64_t from, uint32_t bytes, uint32_t lane)
{
#if __CUDA_ARCH__ >= 900
	if (lane == 0)
		asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(
				     __cvta_generic_to_global((const void *)from)),
			     "r"(bytes)
			     : "memory");
#else
	enum { LINE = 128 };

	for (uint32_t at = lane * LINE; at < bytes; at += 32 * LINE)
		asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global((const char *)from + at))
			     : "memory");
#endif
}
#endif /* a test that runs kernels without a GPU defines its own */

#endif
