/*
 * element.h - elements of tensors and their conversion from and to fp32, for the C references and for the kernels. Both
 * round to nearest, ties to even; fp32 -> fp16 overflows to infinity, as in the hardware's conversion.
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

/* element_most() - return the largest finite value. */
ON_BOTH float element_most(uint32_t element)
{
	return element == ELEMENT_F16 ? 65504.0f : element == ELEMENT_BF16 ? 0x1.fep127f : 0x1.fffffep127f;
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
		return (uint16_t)(bits >> 16 | 0x40); /* a NaN stays a NaN */
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
#endif
}

/* Multiply to increase the exponent's bias by 112; this also normalizes subnormal numbers. */
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
	if (bits >= 0x477ff000) /* 65520, the midpoint between 65504 and the next value */
		return (uint16_t)(sign | 0x7c00);
	/*
	 * Below 2^-14, the last bit of 0.5f has the weight of the last bit of a subnormal fp16, so the addition rounds.
	 */
	if (bits < 0x38800000)
		return (uint16_t)(sign | (float_bits(float_of_bits(bits) + 0.5f) - 0x3f000000));
	bits += 0xfff + (bits >> 13 & 1);
	return (uint16_t)(sign | (bits - 0x38000000) >> 13);
#endif
}

#ifndef __CUDACC__
enum { ELEMENT_ROW = 128 }; /* elements per step of the C references, whose loops of constant length are vectorized */

/*
 * element_row_get() - convert `count` elements, at most ELEMENT_ROW, to fp32, and fill the rest of the row with zeros.
 */
static inline void element_row_get(uint32_t element, const void *from, uint32_t count, float to[ELEMENT_ROW])
{
	uint16_t bits[ELEMENT_ROW];

	if (element == ELEMENT_F32) {
		memcpy(to, from, count * sizeof(*to));
		memset(to + count, 0, (ELEMENT_ROW - count) * sizeof(*to));
		return;
	}
	memcpy(bits, from, count * sizeof(*bits));
	memset(bits + count, 0, (ELEMENT_ROW - count) * sizeof(*bits));
	if (element == ELEMENT_F16)
		for (int i = 0; i < ELEMENT_ROW; i++)
			to[i] = float_of_f16(bits[i]);
	else
		for (int i = 0; i < ELEMENT_ROW; i++)
			to[i] = float_of_bf16(bits[i]);
}

/* element_row_put() - convert the first `count` values to elements. */
static inline void element_row_put(uint32_t element, const float from[ELEMENT_ROW], uint32_t count, void *to)
{
	uint16_t bits[ELEMENT_ROW];

	if (element == ELEMENT_F32) {
		memcpy(to, from, count * sizeof(*from));
		return;
	}
	if (element == ELEMENT_F16)
		for (int i = 0; i < ELEMENT_ROW; i++)
			bits[i] = f16_of_float(from[i]);
	else
		for (int i = 0; i < ELEMENT_ROW; i++)
			bits[i] = bf16_of_float(from[i]);
	memcpy(to, bits, count * sizeof(*bits));
}
#endif

#endif
