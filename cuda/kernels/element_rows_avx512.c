/*
 * element_rows_avx512.c - conversion to int8 with AVX-512, which computes 16 elements at once. Everything else is that
 * of AVX2.
 *
 * A division takes longer than all other instructions for 16 codes, so fp16 and bf16 are multiplied with the reciprocal
 * of the scale, and the remainder corrects the product, as in quantise.cu. With 11 bits of a value and 8 bits of a
 * scale, a quotient that is not halfway between two codes differs from the middle by more than 2^-17 of its value, and
 * the corrected product equals each quotient that is.
 *
 * A scale is rounded up, so that no quotient reaches 127.5, and codes need no limit.
 */
#include "cuda/kernels/element_rows.h"

#ifdef __x86_64__

#include <immintrin.h>
#include <stdatomic.h>

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define INLINE AVX512 static inline __attribute__((always_inline))

enum { LANES = 16 };

/* Return the mask of the first `count` lanes, at most all. */
INLINE __mmask16 lanes_of(uint64_t count)
{
	return (__mmask16)(count < LANES ? (1u << count) - 1 : 0xffff);
}

INLINE __m512 values_get(uint32_t element, const void *from, uint64_t index, __mmask16 lanes)
{
	__m256i bits;

	if (element == ELEMENT_F32)
		return _mm512_maskz_loadu_ps(lanes, (const float *)from + index);
	bits = _mm256_maskz_loadu_epi16(lanes, (const uint16_t *)from + index);
	return element == ELEMENT_F16 ? _mm512_cvtph_ps(bits)
				      : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

/* ---- quantise ---- */

/* Return the largest magnitude of 16-bit elements, as bits. Magnitudes are ordered like their bits. */
INLINE uint32_t largest_half(const uint16_t *values, uint64_t count)
{
	const __m512i magnitude = _mm512_set1_epi16(0x7fff);
	__m512i all = _mm512_setzero_si512();
	__m256i half;
	__m128i last;

	for (uint64_t i = 0; i < count; i += 2 * LANES) {
		const __mmask32 lanes = count - i < 2 * LANES ? (1u << (count - i)) - 1 : 0xffffffff;

		all = _mm512_max_epu16(all, _mm512_and_si512(_mm512_maskz_loadu_epi16(lanes, values + i), magnitude));
	}
	half = _mm256_max_epu16(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64(all, 1));
	last = _mm_max_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
	/* There is an instruction for the smallest of the lanes. */
	last = _mm_minpos_epu16(_mm_xor_si128(last, _mm_set1_epi16(-1)));
	return (uint16_t)~_mm_cvtsi128_si32(last);
}

/* Return the largest magnitude of a group; infinities and NaNs are above all numbers. */
INLINE float largest_of(uint32_t element, const void *values, uint64_t count)
{
	__m512i all = _mm512_setzero_si512();

	if (element == ELEMENT_F16)
		return float_of_f16((uint16_t)largest_half(values, count));
	if (element == ELEMENT_BF16)
		return float_of_bf16((uint16_t)largest_half(values, count));
	for (uint64_t i = 0; i < count; i += LANES) {
		const __m512 some = values_get(element, values, i, lanes_of(count - i));

		all = _mm512_max_epu32(all, _mm512_and_si512(_mm512_castps_si512(some), _mm512_set1_epi32(0x7fffffff)));
	}
	return float_of_bits(_mm512_reduce_max_epu32(all));
}

/* The errors of some elements of a group, as multiples of its scale, so that squares are exact enough in fp32. */
struct sums {
	__m512 error_squares, squares;
};

/* The errors of a launch. */
struct totals {
	__m512d error_squares, squares;
	__m512 most;
};

INLINE __m512d total_add(__m512d total, __m512 lanes, __m512d square)
{
	const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(lanes), _mm512_extractf32x8_ps(lanes, 1));

	return _mm512_fmadd_pd(_mm512_cvtps_pd(half), square, total);
}

INLINE void totals_add(struct totals *totals, const struct sums *sums, float scale)
{
	const __m512d square = _mm512_set1_pd((double)scale * scale);

	totals->error_squares = total_add(totals->error_squares, sums->error_squares, square);
	totals->squares = total_add(totals->squares, sums->squares, square);
}

/* Return the codes of 16 elements. */
INLINE __m128i codes_of(uint32_t element, __m512 value, float scale, struct sums *sums, struct totals *totals)
{
	const __m512 scales = _mm512_set1_ps(scale), inverse = _mm512_set1_ps(1 / scale);
	__m512i codes;
	__m512 quotient;

	if (element == ELEMENT_F32) {
		quotient = _mm512_div_ps(value, scales);
	} else {
		quotient = _mm512_mul_ps(value, inverse);
		quotient = _mm512_fmadd_ps(_mm512_fnmadd_ps(quotient, scales, value), inverse, quotient);
	}
	codes = _mm512_cvtps_epi32(quotient);
	if (totals) {
		/* The product of a code and a scale is exact. */
		const __m512 error = _mm512_abs_ps(_mm512_fnmadd_ps(_mm512_cvtepi32_ps(codes), scales, value));
		const __m512 steps = _mm512_mul_ps(error, inverse);

		totals->most = _mm512_max_ps(totals->most, error);
		sums->error_squares = _mm512_fmadd_ps(steps, steps, sums->error_squares);
		sums->squares = _mm512_fmadd_ps(quotient, quotient, sums->squares);
	}
	return _mm512_cvtepi32_epi8(codes);
}

/* The element, and whether totals are wanted, are constants in each copy of this function. */
INLINE void group_quantise(
	uint32_t element, const void *values, uint64_t count, int8_t *codes, float scale, struct totals *totals)
{
	enum { FLUSH = 64 * LANES }; /* longer sums in fp32 would lose precision */
	const uint64_t whole = count / LANES * LANES;
	uint64_t i = 0;

	while (i < count) {
		struct sums sums = {_mm512_setzero_ps(), _mm512_setzero_ps()};
		const uint64_t end = whole - i < FLUSH ? whole : i + FLUSH;

		for (; i < end; i += LANES)
			_mm_storeu_si128((__m128i *)(codes + i),
				codes_of(element, values_get(element, values, i, 0xffff), scale, &sums, totals));
		if (i == whole && i < count) {
			const __mmask16 lanes = lanes_of(count - i);

			_mm_mask_storeu_epi8(codes + i, lanes,
				codes_of(element, values_get(element, values, i, lanes), scale, &sums, totals));
			i = count;
		}
		if (totals)
			totals_add(totals, &sums, scale);
	}
}

INLINE void groups_quantise(uint32_t element, const char *values, uint64_t groups, uint64_t count, int8_t *codes,
	uint16_t *scales, struct totals *totals, struct quantise_error *error)
{
	const float most = element_most(element) / 127;

	for (uint64_t i = 0; i < groups; i++, values += count * element_bytes(element), codes += count) {
		const uint16_t bits = quantise_scale(largest_of(element, values, count));
		const float scale = float_of_bf16(bits);

		/*
		 * Zeros, groups without an int8 form, numbers so small that errors could be 0 by rounding, and so large
		 * that values of codes must be limited.
		 */
		if (scale < 0x1p-100f || scale > most) {
			quantise_group_plain(element, values, count, codes, &scales[i], error);
			continue;
		}
		scales[i] = bits;
		group_quantise(element, values, count, codes, scale, totals);
	}
}

AVX512 static void avx512_quantise(uint32_t element, const void *values, uint64_t groups, uint64_t count, int8_t *codes,
	uint16_t *scales, struct quantise_error *error)
{
	struct totals totals = {_mm512_setzero_pd(), _mm512_setzero_pd(), _mm512_setzero_ps()};

	if (element == ELEMENT_F16)
		error ? groups_quantise(ELEMENT_F16, values, groups, count, codes, scales, &totals, error)
		      : groups_quantise(ELEMENT_F16, values, groups, count, codes, scales, NULL, NULL);
	else if (element == ELEMENT_BF16)
		error ? groups_quantise(ELEMENT_BF16, values, groups, count, codes, scales, &totals, error)
		      : groups_quantise(ELEMENT_BF16, values, groups, count, codes, scales, NULL, NULL);
	else
		groups_quantise(ELEMENT_F32, values, groups, count, codes, scales, error ? &totals : NULL, error);
	if (error)
		quantise_error_add(error,
			&(struct quantise_error){.error_squares = _mm512_reduce_add_pd(totals.error_squares),
				.squares = _mm512_reduce_add_pd(totals.squares),
				.max_error = _mm512_reduce_max_ps(totals.most)});
}

/* ---- the choice of this implementation ---- */

static bool avx512_convert(uint32_t from_element, const void *from, uint32_t to_element, void *to, uint64_t count)
{
	return element_rows_avx2.convert(from_element, from, to_element, to, count);
}

static void avx512_get(uint32_t element, const void *from, float to[ELEMENT_ROW])
{
	element_rows_avx2.get(element, from, to);
}

static void avx512_turn(const uint16_t *from, uint32_t rows, uint32_t columns, uint16_t *to)
{
	element_rows_avx2.turn(from, rows, columns, to);
}

static void avx512_group_dequantise(uint32_t element, const int8_t *codes, uint64_t count, uint16_t scale, void *values)
{
	element_rows_avx2.group_dequantise(element, codes, count, scale, values);
}

/* As avx2_is_usable(), with the result cached in the same way. */
static bool avx512_is_usable(void)
{
	enum { UNKNOWN, NO, YES };
	static _Atomic int usable;
	int found = atomic_load_explicit(&usable, memory_order_relaxed);

	if (found == UNKNOWN) {
		found = element_rows_avx2.is_usable() && __builtin_cpu_supports("avx512bw") &&
				__builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")
			? YES
			: NO;
		atomic_store_explicit(&usable, found, memory_order_relaxed);
	}
	return found == YES;
}

const struct element_rows element_rows_avx512 = {
	.name = "avx512",
	.is_usable = avx512_is_usable,
	.convert = avx512_convert,
	.get = avx512_get,
	.turn = avx512_turn,
	.quantise = avx512_quantise,
	.group_dequantise = avx512_group_dequantise,
};
#endif
