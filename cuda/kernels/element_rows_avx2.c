/*
 * element_rows_avx2.c - rows of elements with AVX2 and F16C, which most x86 CPUs since 2013 have. Each step performs
 * one step of the plain C code on eight elements, with the same rounding; products and sums are never fused.
 */
#include "cuda/kernels/element_rows.h"

#ifdef __x86_64__

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

/* The last elements of a group, padded to a step with zeros. */
struct last {
	uint32_t elements[STEP];
	int8_t codes[STEP];
};

/* Return the largest of the lanes, compared as unsigned integers. */
AVX2 static inline float largest_lane(__m256i lanes)
{
	__m128i half = _mm_max_epu32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256(lanes, 1));

	half = _mm_max_epu32(half, _mm_shuffle_epi32(half, 0x4e));
	half = _mm_max_epu32(half, _mm_shuffle_epi32(half, 0xb1));
	return float_of_bits((uint32_t)_mm_cvtsi128_si32(half));
}

/* Return the largest magnitude of a group; infinities and NaNs are above all numbers. */
AVX2 static inline float largest_of(uint32_t element, const void *values, uint64_t whole, const struct last *last)
{
	struct pair pair = pair_get(element, last->elements, 0);
	__m256i all = _mm256_max_epu32(magnitude_of(pair.low), magnitude_of(pair.high));

	for (uint64_t i = 0; i < whole; i += STEP) {
		pair = pair_get(element, values, i);
		all = _mm256_max_epu32(all, _mm256_max_epu32(magnitude_of(pair.low), magnitude_of(pair.high)));
	}
	return largest_lane(all);
}

AVX2 static inline __m256 value_limit(__m256 value, __m256 most)
{
	return _mm256_max_ps(_mm256_min_ps(value, most), _mm256_sub_ps(_mm256_setzero_ps(), most));
}

struct scale {
	__m256 scale, inverse;
};

/* The errors of a group, as multiples of its scale, so that squares are exact enough in fp32. */
struct sums {
	__m256 error_squares, squares, most;
};

/* Return codes as integers. All quotients are finite, and the conversion rounds as rintf(3) does. */
AVX2 static inline __m256i codes_of(__m256 value, struct scale scale, __m256 most, struct sums *sums)
{
	const __m256 quotient = _mm256_div_ps(value, scale.scale);
	const __m256i codes = _mm256_cvtps_epi32(value_limit(quotient, _mm256_set1_ps(127)));

	if (sums) {
		const __m256 back = value_limit(_mm256_mul_ps(_mm256_cvtepi32_ps(codes), scale.scale), most);
		const __m256 error = _mm256_castsi256_ps(magnitude_of(_mm256_sub_ps(value, back)));
		const __m256 steps = _mm256_mul_ps(error, scale.inverse);

		sums->most = _mm256_max_ps(sums->most, error);
		sums->error_squares = _mm256_add_ps(sums->error_squares, _mm256_mul_ps(steps, steps));
		sums->squares = _mm256_add_ps(sums->squares, _mm256_mul_ps(quotient, quotient));
	}
	return codes;
}

AVX2 static inline void step_quantise(
	uint32_t element, const void *values, uint64_t index, struct scale scale, int8_t *codes, struct sums *sums)
{
	const __m256 most = _mm256_set1_ps(element_most(element));
	struct pair pair = pair_get(element, values, index);
	__m256i words =
		_mm256_packs_epi32(codes_of(pair.low, scale, most, sums), codes_of(pair.high, scale, most, sums));

	words = _mm256_permute4x64_epi64(words, 0xd8);
	_mm_storeu_si128(
		(__m128i *)codes, _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}

AVX2 static inline double sum_of(__m256 lanes)
{
	const __m256d sums = _mm256_add_pd(
		_mm256_cvtps_pd(_mm256_castps256_ps128(lanes)), _mm256_cvtps_pd(_mm256_extractf128_ps(lanes, 1)));
	const __m128d pair = _mm_add_pd(_mm256_castpd256_pd128(sums), _mm256_extractf128_pd(sums, 1));

	return _mm_cvtsd_f64(pair) + _mm_cvtsd_f64(_mm_unpackhi_pd(pair, pair));
}

AVX2 static inline void sums_add(struct quantise_error *error, const struct sums *sums, float scale)
{
	const double square = (double)scale * scale;
	const float most = largest_lane(_mm256_castps_si256(sums->most));

	error->error_squares += sum_of(sums->error_squares) * square;
	error->squares += sum_of(sums->squares) * square;
	error->max_error = most > error->max_error ? most : error->max_error;
}

/* The element and `error` are constants in each copy of this function, so that the loop does not test them. */
AVX2 static inline __attribute__((always_inline)) void group_quantise(uint32_t element, const void *values,
	uint64_t whole, uint64_t rest, int8_t *codes, float scale, struct last *last, struct quantise_error *error)
{
	enum { FLUSH = 64 * STEP }; /* longer sums in fp32 would lose precision */
	const struct scale scales = {_mm256_set1_ps(scale), _mm256_set1_ps(1 / scale)};
	const __m256 zero = _mm256_setzero_ps();
	const struct sums none = {zero, zero, zero};
	struct sums sums = none;
	uint64_t i = 0;

	if (rest)
		step_quantise(element, last->elements, 0, scales, last->codes, error ? &sums : NULL);
	while (i < whole) {
		uint64_t end = whole - i < FLUSH ? whole : i + FLUSH;

		for (; i < end; i += STEP)
			step_quantise(element, values, i, scales, codes + i, error ? &sums : NULL);
		if (error && i < whole) {
			sums_add(error, &sums, scale);
			sums = none;
		}
	}
	if (error)
		sums_add(error, &sums, scale);
}

AVX2 static inline void avx2_group_quantise(uint32_t element, const void *values, uint64_t count, int8_t *codes,
	uint16_t *scale_bits, struct quantise_error *error)
{
	const uint64_t whole = count / STEP * STEP, rest = count - whole;
	const uint32_t bytes = element_bytes(element);
	struct last last = {{0}, {0}};
	float scale;

	memcpy(last.elements, (const char *)values + whole * bytes, rest * bytes);
	*scale_bits = quantise_scale(largest_of(element, values, whole, &last));
	scale = float_of_bf16(*scale_bits);
	/* Zeros, groups without an int8 form, and numbers so small that errors could be 0 by rounding. */
	if (scale < 0x1p-100f) {
		quantise_group_plain(element, values, count, codes, scale_bits, error);
		return;
	}
	if (element == ELEMENT_F16)
		error ? group_quantise(ELEMENT_F16, values, whole, rest, codes, scale, &last, error)
		      : group_quantise(ELEMENT_F16, values, whole, rest, codes, scale, &last, NULL);
	else if (element == ELEMENT_BF16)
		error ? group_quantise(ELEMENT_BF16, values, whole, rest, codes, scale, &last, error)
		      : group_quantise(ELEMENT_BF16, values, whole, rest, codes, scale, &last, NULL);
	else
		group_quantise(ELEMENT_F32, values, whole, rest, codes, scale, &last, error);
	memcpy(codes + whole, last.codes, rest);
}

AVX2 static void avx2_quantise(uint32_t element, const void *values, uint64_t groups, uint64_t count, int8_t *codes,
	uint16_t *scales, struct quantise_error *error)
{
	const uint64_t bytes = count * element_bytes(element);

	for (uint64_t i = 0; i < groups; i++)
		avx2_group_quantise(
			element, (const char *)values + i * bytes, count, codes + i * count, &scales[i], error);
}

AVX2 static inline __m256 value_of(__m128i codes, __m256 scale, __m256 most)
{
	return value_limit(_mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes)), scale), most);
}

AVX2 static inline void step_dequantise(uint32_t element, const int8_t *codes, __m256 scale, void *values)
{
	const __m256 most = _mm256_set1_ps(element_most(element));
	__m128i code = _mm_loadu_si128((const __m128i *)codes);
	struct pair pair = {value_of(code, scale, most), value_of(_mm_srli_si128(code, 8), scale, most)};

	if (element == ELEMENT_F32) {
		_mm256_storeu_ps(values, pair.low);
		_mm256_storeu_ps((float *)values + 8, pair.high);
	} else {
		_mm256_storeu_si256(values,
			element == ELEMENT_F16 ? f16_put(pair)
					       : halves_join(bf16_round(pair.low), bf16_round(pair.high)));
	}
}

AVX2 static void avx2_group_dequantise(
	uint32_t element, const int8_t *codes, uint64_t count, uint16_t scale_bits, void *values)
{
	const uint64_t whole = count / STEP * STEP, rest = count - whole;
	const uint32_t bytes = element_bytes(element);
	const float scale = float_of_bf16(scale_bits);
	struct last last = {{0}, {0}};

	if (!isfinite(scale)) { /* no writer produces this form; the plain code handles it in the same way */
		dequantise_group_plain(element, codes, count, scale_bits, values);
		return;
	}
	for (uint64_t i = 0; i < whole; i += STEP)
		step_dequantise(element, codes + i, _mm256_set1_ps(scale), (char *)values + i * bytes);
	if (rest) {
		memcpy(last.codes, codes + whole, rest);
		step_dequantise(element, last.codes, _mm256_set1_ps(scale), last.elements);
		memcpy((char *)values + whole * bytes, last.elements, rest * bytes);
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
	.group_dequantise = avx2_group_dequantise,
};
#endif
