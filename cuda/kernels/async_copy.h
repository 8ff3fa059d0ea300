/*
 * async_copy.h - copies of 16 bytes from device memory to shared memory that a thread does not wait for, and that need
 * no registers (PTX ISA, "cp.async").
 *
 * Each thread waits for its own copies only, in the order of their groups. A thread that reads what only it has copied
 * needs no barrier.
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
#endif /* a test that runs kernels without a GPU defines its own */

#endif
