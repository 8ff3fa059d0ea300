/*
 * element.h - elements of tensors, and what they are as fp32: for the references in C and for the kernels alike.
 *
 * Rounding is to nearest, ties to even, on both; fp32 -> fp16 overflows to infinity, as the hardware's conversion does.
 */
#ifndef CUDA_KERNELS_ELEMENT_H
#define CUDA_KERNELS_ELEMENT_H

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define ON_BOTH static __host__ __device__ inline
#else
#define ON_BOTH static inline
#endif

enum element { ELEMENT_F16, ELEMENT_BF16, ELEMENT_F32, ELEMENTS };

ON_BOTH uint32_t element_bytes(uint32_t element)
{
	return element == ELEMENT_F32 ? 4 : 2;
}

ON_BOTH uint32_t float_bits(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return bits;
}

ON_BOTH float float_of_bits(uint32_t bits)
{
	float value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

ON_BOTH float float_of_bf16(uint16_t bits)
{
	return float_of_bits((uint32_t)bits << 16);
}

ON_BOTH uint16_t bf16_of_float(float value)
{
#ifdef __CUDA_ARCH__
	return __bfloat16_as_ushort(__float2bfloat16_rn(value));
#else
	uint32_t bits = float_bits(value);

	if ((bits & 0x7fffffff) > 0x7f800000)
		return (uint16_t)(bits >> 16 | 0x40); /* a NaN stays one */
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
#endif
}

/* The exponent's bias grows by 112, by a multiplication, which makes normal numbers of subnormal ones too. */
ON_BOTH float float_of_f16(uint16_t bits)
{
#ifdef __CUDA_ARCH__
	return __half2float(__ushort_as_half(bits));
#else
	uint32_t magnitude = float_bits(float_of_bits((uint32_t)(bits & 0x7fff) << 13) * 0x1p112f);

	magnitude |= (bits & 0x7c00) == 0x7c00 ? 0x7f800000 : 0;
	return float_of_bits((uint32_t)(bits & 0x8000) << 16 | magnitude);
#endif
}

ON_BOTH uint16_t f16_of_float(float value)
{
#ifdef __CUDA_ARCH__
	return __half_as_ushort(__float2half_rn(value));
#else
	uint32_t bits = float_bits(value), sign = bits >> 16 & 0x8000;

	bits &= 0x7fffffff;
	if (bits > 0x7f800000)
		return (uint16_t)(sign | 0x7e00);
	if (bits >= 0x477ff000) /* 65520, which is as near to 65504 as to what would be next */
		return (uint16_t)(sign | 0x7c00);
	if (bits < 0x38800000) /* below 2^-14; the last digit of 0.5f is worth as much as that of a subnormal fp16, so the addition rounds */
		return (uint16_t)(sign | (float_bits(float_of_bits(bits) + 0.5f) - 0x3f000000));
	bits += 0xfff + (bits >> 13 & 1);
	return (uint16_t)(sign | (bits - 0x38000000) >> 13);
#endif
}

#endif
