/*
 * mma.h - the tensor operation of the LoRA kernels: D[16][8] += A[16][16] B[16][8], of fp16 or bf16, summed in fp32, by
 * a warp.
 *
 * With g = lane / 4 and c = lane % 4 (PTX ISA, "Matrix Fragments for mma.m16n8k16"), a lane holds pairs of adjacent k,
 * low half first:
 *
 *   a[0]: A[g][2c, 2c+1]   a[1]: A[g+8][2c, 2c+1]   a[2]: A[g][2c+8, 2c+9]   a[3]: A[g+8][2c+8, 2c+9]
 *   b0: B[2c, 2c+1][g]     b1: B[2c+8, 2c+9][g]
 *   d[0], d[1]: D[g][2c, 2c+1]   d[2], d[3]: D[g+8][2c, 2c+1]
 *
 * Any order of k is permitted if A and B have the same order, so a lane may load 8 adjacent elements for two
 * operations. All lanes of the warp must call it together.
 */
#ifndef CUDA_KERNELS_MMA_H
#define CUDA_KERNELS_MMA_H

#include "cuda/kernels/element.h"

#ifdef __CUDACC__
template <uint32_t element>
static __device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
	if (element == ELEMENT_F16)
		asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
			     "{%0,%1,%2,%3};"
			     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
			     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
	else
		asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
			     "{%8,%9}, {%0,%1,%2,%3};"
			     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
			     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#endif /* a test that runs kernels without a GPU defines its own */

#endif
