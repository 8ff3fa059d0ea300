/*
 * element_rows_avx2.c - rows of elements with AVX2 and F16C, which most x86 CPUs since 2013 have. Each step performs
 * one step of the plain C code on eight elements, with the same rounding; products and sums are never fused.
 */
#include "cuda/kernels/element_rows.h"

#ifdef __x86_64__
#include "cuda/kernels/quantise.h"

#include <cpuid.h>
#include <immintrin.h>
#include <math.h>
#include <stdatomic.h>

#define AVX2 __attribute__((target("avx2,f16c")))

enum { STEP = 16 };

/* The elements of one step: two vectors, or one vector of 16-bit elements. */
struct pair {
	__m256 low, high;
};

AVX2 static inline __m256 bf16_get(__m128i bits)
{
	return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

AVX2 static inline struct pair pair_get(uint32_t element, const void *from, uint64_t index)
{
	const uint16_t *at = (const uint16_t *)from + index;
	__m128i low, high;

	if (element == ELEMENT_F32)
		return (struct pair){
			_mm256_loadu_ps((const float *)from + index), _mm256_loadu_ps((const float *)from + index + 8)};
	low = _mm_loadu_si128((const __m128i *)at);
	high = _mm_loadu_si128((const __m128i *)(at + 8));
	if (element == ELEMENT_F16)
		return (struct pair){_mm256_cvtph_ps(low), _mm256_cvtph_ps(high)};
	return (struct pair){bf16_get(low), bf16_get(high)};
}

AVX2 static inline __m256i f16_put(struct pair pair)
{
	return _mm256_set_m128i(_mm256_cvtps_ph(pair.high, _MM_FROUND_TO_NEAREST_INT),
		_mm256_cvtps_ph(pair.low, _MM_FROUND_TO_NEAREST_INT));
}

/* Apply bf16_of_float() to numbers that are not NaN; the results are in the low halves. */
AVX2 static inline __m256i bf16_round(__m256 value)
{
	const __m256i bits = _mm256_castps_si256(value),
		      odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));

	return _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
}

/* Keep NaNs, which rounding could change to other values. */
AVX2 static inline __m256i bf16_put(__m256 value)
{
	const __m256i nan = _mm256_or_si256(_mm256_srli_epi32(_mm256_castps_si256(value), 16), _mm256_set1_epi32(0x40));

	return _mm256_blendv_epi8(
		bf16_round(value), nan, _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q)));
}

AVX2 static inline __m256i halves_join(__m256i low, __m256i high)
{
	return _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
}

/* ---- conversion ---- */

AVX2 static inline __m256i step_convert(uint32_t from_element, const void *from, uint32_t to_element, uint64_t index)
{
	struct pair pair;

	if (from_element == to_element)
		return _mm256_loadu_si256((const __m256i *)((const uint16_t *)from + index));
	pair = pair_get(from_element, from, index);
	return to_element == ELEMENT_F16 ? f16_put(pair) : halves_join(bf16_put(pair.low), bf16_put(pair.high));
}

/* Return all ones for infinities and NaNs. */
AVX2 static inline __m256i not_finite(uint32_t element, __m256i bits)
{
	const __m256i exponent = _mm256_set1_epi16(element == ELEMENT_F16 ? 0x7c00 : 0x7f80);

	return _mm256_cmpeq_epi16(_mm256_and_si256(bits, exponent), exponent);
}

AVX2 static bool avx2_convert(uint32_t from_element, const void *from, uint32_t to_element, void *to, uint64_t count)
{
	const uint32_t bytes = element_bytes(from_element);
	const uint64_t whole = count / STEP * STEP, rest = count - whole;
	uint32_t last[STEP] = {0};
	uint16_t *at = to;
	__m256i bits, bad = _mm256_setzero_si256();

	for (uint64_t i = 0; i < whole; i += STEP) {
		bits = step_convert(from_element, from, to_element, i);
		bad = _mm256_or_si256(bad, not_finite(to_element, bits));
		_mm256_storeu_si256((__m256i *)(at + i), bits);
	}
	if (rest) {
		memcpy(last, (const char *)from + whole * bytes, rest * bytes);
		bits = step_convert(from_element, last, to_element, 0);
		bad = _mm256_or_si256(bad, not_finite(to_element, bits));
		_mm256_storeu_si256((__m256i *)last, bits);
		memcpy(at + whole, last, rest * sizeof(*at));
	}
	return _mm256_testz_si256(bad, bad);
}

AVX2 static void avx2_get(uint32_t element, const void *from, float to[ELEMENT_ROW])
{
	for (int i = 0; i < ELEMENT_ROW; i += STEP) {
		struct pair pair = pair_get(element, from, (uint64_t)i);

		_mm256_storeu_ps(to + i, pair.low);
		_mm256_storeu_ps(to + i + 8, pair.high);
	}
}

/* ---- transposition ---- */

enum { SQUARE = 8 };

/* Perform one of three steps of a transposition: interleave the elements of two vectors. */
AVX2 static inline void square_mix(const __m128i from[SQUARE], __m128i to[SQUARE])
{
	for (int i = 0; i < SQUARE / 2; i++) {
		to[2 * i] = _mm_unpacklo_epi16(from[i], from[i + SQUARE / 2]);
		to[2 * i + 1] = _mm_unpackhi_epi16(from[i], from[i + SQUARE / 2]);
	}
}

AVX2 static inline void square_turn(const uint16_t *from, uint32_t columns, uint16_t *to)
{
	__m128i one[SQUARE], other[SQUARE];

	for (uint32_t row = 0; row < SQUARE; row++)
		one[row] = _mm_loadu_si128((const __m128i *)(from + row * columns));
	square_mix(one, other);
	square_mix(other, one);
	square_mix(one, other);
	for (uint32_t column = 0; column < SQUARE; column++)
		_mm_storeu_si128((__m128i *)(to + column * ELEMENT_ROW), other[column]);
}

AVX2 static void avx2_turn(const uint16_t *from, uint32_t rows, uint32_t columns, uint16_t *to)
{
	if (rows % SQUARE || columns % SQUARE) {
		element_rows_plain.turn(from, rows, columns, to);
		return;
	}
	for (uint32_t row = 0; row < rows; row += SQUARE)
		for (uint32_t column = 0; column < columns; column += SQUARE)
			square_turn(from + row * columns + column, columns, to + column * ELEMENT_ROW + row);
}

/* ---- int8 ---- */

AVX2 static inline __m256i magnitude_of(__m256 value)
{
	return _mm256_and_si256(_mm256_castps_si256(value), _mm256_set1_epi32(0x7fffffff));
}

AVX2 static inline float largest_of(uint32_t element, const uint16_t *values)
{
	__m256i all = _mm256_setzero_si256();
	__m128i half;

	for (int i = 0; i < ELEMENT_ROW; i += STEP) {
		struct pair pair = pair_get(element, values, (uint64_t)i);

		all = _mm256_max_epu32(all, _mm256_max_epu32(magnitude_of(pair.low), magnitude_of(pair.high)));
	}
	half = _mm_max_epu32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
	half = _mm_max_epu32(half, _mm_shuffle_epi32(half, 0x4e));
	half = _mm_max_epu32(half, _mm_shuffle_epi32(half, 0xb1));
	return float_of_bits((uint32_t)_mm_cvtsi128_si32(half));
}

/* Return codes as integers. All quotients are finite, and the conversion rounds as rintf(3) does. */
AVX2 static inline __m256i codes_of(__m256 value, __m256 scale)
{
	const __m256 code = _mm256_div_ps(value, scale);

	return _mm256_cvtps_epi32(_mm256_max_ps(_mm256_min_ps(code, _mm256_set1_ps(127)), _mm256_set1_ps(-127)));
}

AVX2 static void avx2_quantise(uint32_t element, const void *values, uint64_t rows, int8_t *codes, uint16_t *scales)
{
	const uint16_t *from = values;

	for (uint64_t row = 0; row < rows; row++, from += ELEMENT_ROW, codes += ELEMENT_ROW) {
		__m256 scale;

		scales[row] = quantise_scale(largest_of(element, from));
		if (!scales[row]) {
			memset(codes, 0, ELEMENT_ROW);
			continue;
		}
		scale = _mm256_set1_ps(float_of_bf16(scales[row]));
		for (int i = 0; i < ELEMENT_ROW; i += STEP) {
			struct pair pair = pair_get(element, from, (uint64_t)i);
			__m256i words = _mm256_packs_epi32(codes_of(pair.low, scale), codes_of(pair.high, scale));

			words = _mm256_permute4x64_epi64(words, 0xd8);
			_mm_storeu_si128((__m128i *)(codes + i),
				_mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
		}
	}
}

AVX2 static inline __m256 value_of(__m128i codes, __m256 scale)
{
	return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes)), scale);
}

AVX2 static inline __m256 value_limit(__m256 value, __m256 most)
{
	return _mm256_max_ps(_mm256_min_ps(value, most), _mm256_sub_ps(_mm256_setzero_ps(), most));
}

/* limit: limit the values to the range of the element, which some codes may exceed. */
AVX2 static inline void row_dequantise(uint32_t element, const int8_t *codes, __m256 scale, bool limit, uint16_t *to)
{
	const __m256 most = _mm256_set1_ps(element_most(element));

	for (int i = 0; i < ELEMENT_ROW; i += STEP) {
		__m128i code = _mm_loadu_si128((const __m128i *)(codes + i));
		struct pair pair = {value_of(code, scale), value_of(_mm_srli_si128(code, 8), scale)};
		__m256i bits;

		if (limit)
			pair = (struct pair){value_limit(pair.low, most), value_limit(pair.high, most)};
		bits = element == ELEMENT_F16 ? f16_put(pair)
					      : halves_join(bf16_round(pair.low), bf16_round(pair.high));
		_mm256_storeu_si256((__m256i *)(to + i), bits);
	}
}

AVX2 static void avx2_dequantise(
	uint32_t element, const int8_t *codes, const uint16_t *scales, uint64_t rows, void *values)
{
	uint16_t *to = values;

	for (uint64_t row = 0; row < rows; row++, to += ELEMENT_ROW, codes += ELEMENT_ROW) {
		const float scale = float_of_bf16(scales[row]);

		if (isfinite(scale))
			row_dequantise(
				element, codes, _mm256_set1_ps(scale), fabsf(scale) > element_most(element) / 128, to);
		else /* no writer produces this form; the plain code handles it in the same way */
			element_rows_plain.dequantise(element, codes, &scales[row], 1, to);
	}
}

/*
 * Return true if the CPU has AVX2 and F16C. The result is cached, because CPUID in a virtual machine may take as long
 * as the conversion of several pages. F16C is checked by CPUID, because clang's builtin does not support it.
 */
static bool avx2_is_usable(void)
{
	enum { UNKNOWN, NO, YES };
	static _Atomic int usable;
	int found = atomic_load_explicit(&usable, memory_order_relaxed);
	unsigned a, b, c, d;

	if (found == UNKNOWN) {
		found = __builtin_cpu_supports("avx2") && __get_cpuid(1, &a, &b, &c, &d) && c & bit_F16C ? YES : NO;
		atomic_store_explicit(&usable, found, memory_order_relaxed);
	}
	return found == YES;
}

const struct element_rows element_rows_avx2 = {
	.name = "avx2",
	.is_usable = avx2_is_usable,
	.convert = avx2_convert,
	.get = avx2_get,
	.turn = avx2_turn,
	.quantise = avx2_quantise,
	.dequantise = avx2_dequantise,
};
#endif
