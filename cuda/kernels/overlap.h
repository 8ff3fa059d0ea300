/*
 * overlap.h - two kernels of a stream that overlap (PTX ISA, "griddepcontrol", from sm_90 on). For older architectures,
 * these functions do nothing.
 *
 * The first kernel calls kernel_release(). The second one is queued directly after it, with `early` in its struct
 * gpu_shape. Its thread blocks can then start when each thread block of the first one has called kernel_release() or
 * ended. Each of its threads calls kernel_wait(), also if it has no work, and accesses nothing before that the first
 * kernel writes.
 */
#ifndef CUDA_KERNELS_OVERLAP_H
#define CUDA_KERNELS_OVERLAP_H

#ifdef __CUDACC__
static __device__ __forceinline__ void kernel_release(void)
{
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/* kernel_wait() - wait until the first kernel has ended and what it has written is visible. */
static __device__ __forceinline__ void kernel_wait(void)
{
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
#endif /* a test that runs kernels without a GPU defines its own */

#endif
