/*
 * element_rows_avx512.c - conversion to int8 with AVX-512, which computes 16 elements at once. The other operations are
 * those of AVX2.
 *
 * The scales of up to 16 groups are computed at once, because the largest magnitude of a group, two divisions and the
 * first code depend on each other and would take longer than all codes of a short group.
 *
 * A division takes longer than all other instructions for 16 codes, so fp16 and bf16 are multiplied with the reciprocal
 * of the scale, as the sum of two numbers. A value has 11 bits and a scale 8. A quotient that is not halfway between
 * two codes therefore differs from the halfway point by more than 2^-17 of its value, and is rounded to the same code
 * as by a division. A quotient that is halfway is computed exactly, because the second number compensates the rounding
 * of the first one.
 *
 * A scale is rounded up, so that no quotient reaches 127.5, and codes need no limit.
 */
#include "cuda/kernels/element_rows.h"

#ifdef __x86_64__

#include <immintrin.h>
#include <stdatomic.h>

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define INLINE AVX512 static inline __attribute__((always_inline))

enum {
	LANES = 16,
	VECTORS = 4,
	STEP = VECTORS * LANES, /* elements that are converted at once */
	FLUSH = 16,             /* steps; longer sums in fp32 would lose precision */
	CACHE_LINE = 64,
	TILE_BYTES = 8192, /* of values whose scales are computed before their codes; they fit into the cache */
};

/* ---- scales ---- */

/* Some groups. 1 / scale is the sum of `inverse` and `rest`. */
struct groups {
	float largest[LANES], scale[LANES], inverse[LANES], rest[LANES];
	__mmask16 usual; /* the groups that step_quantise() can convert */
};

/* Return the mask of the elements of a step, of which `count` remain. */
INLINE uint64_t step_mask(uint64_t count)
{
	return count < STEP ? (UINT64_C(1) << count) - 1 : UINT64_MAX;
}

/* Return the largest magnitude of 16-bit elements, as bits. Magnitudes are ordered like their bits. */
INLINE uint16_t largest_half(const uint16_t *values, uint64_t count)
{
	const __m512i magnitude = _mm512_set1_epi16(0x7fff);
	__m512i all = _mm512_setzero_si512();
	__m256i half;
	__m128i last;

	for (uint64_t i = 0; i < count; i += STEP) {
		const uint64_t mask = step_mask(count - i);
		const __m512i low = _mm512_maskz_loadu_epi16((__mmask32)mask, values + i),
			      high = _mm512_maskz_loadu_epi16((__mmask32)(mask >> 32), values + i + STEP / 2);

		all = _mm512_max_epu16(all, _mm512_and_si512(low, magnitude));
		all = _mm512_max_epu16(all, _mm512_and_si512(high, magnitude));
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
		return float_of_f16(largest_half(values, count));
	if (element == ELEMENT_BF16)
		return float_of_bf16(largest_half(values, count));
	for (uint64_t i = 0; i < count; i += LANES) {
		const __m512i some =
			_mm512_maskz_loadu_epi32((__mmask16)step_mask(count - i), (const uint32_t *)values + i);

		all = _mm512_max_epu32(all, _mm512_and_si512(some, _mm512_set1_epi32(0x7fffffff)));
	}
	return float_of_bits(_mm512_reduce_max_epu32(all));
}

/* Apply quantise_scale() to the largest magnitudes of `count` groups. */
INLINE void scales_compute(uint32_t element, struct groups *groups, uint32_t count, uint16_t *scales)
{
	const __mmask16 lanes = (__mmask16)step_mask(count);
	const __m512 largest = _mm512_maskz_loadu_ps(lanes, groups->largest), one = _mm512_set1_ps(1);
	const __m512i quotient = _mm512_castps_si512(_mm512_div_ps(largest, _mm512_set1_ps(127)));
	const __m512i bits = _mm512_srli_epi32(_mm512_add_epi32(quotient, _mm512_set1_epi32(0xffff)), 16);
	/* The codes of a group of zeros are 0 with any scale. */
	const __mmask16 zero = _mm512_cmp_ps_mask(largest, _mm512_setzero_ps(), _CMP_EQ_OQ);
	const __m512 scale = _mm512_mask_mov_ps(_mm512_castsi512_ps(_mm512_slli_epi32(bits, 16)), zero, one);
	const __m512 inverse = _mm512_div_ps(one, scale);
	const float most = element == ELEMENT_F16 ? element_most(element) / 127 : 0x1p40f;

	/*
	 * The other groups have no int8 form, numbers whose squares are not exact enough in fp32, or numbers so large
	 * that the values of codes must be limited.
	 */
	groups->usual = _mm512_cmp_ps_mask(scale, _mm512_set1_ps(0x1p-40f), _CMP_GE_OQ) &
		_mm512_cmp_ps_mask(scale, _mm512_set1_ps(most), _CMP_LE_OQ);
	_mm512_storeu_ps(groups->scale, scale);
	_mm512_storeu_ps(groups->inverse, inverse);
	_mm512_storeu_ps(groups->rest, _mm512_mul_ps(_mm512_fnmadd_ps(inverse, scale, one), inverse));
	_mm512_mask_cvtepi32_storeu_epi16(scales, lanes, bits);
}

/* ---- codes ---- */

/* The errors of the last `steps` steps in fp32, and of all steps before them. */
struct sums {
	__m512 error_squares, squares, most;
	__m512d all_error_squares, all_squares;
	uint32_t steps;
};

INLINE __m512d sum_add(__m512d all, __m512 lanes)
{
	const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(lanes), _mm512_extractf32x8_ps(lanes, 1));

	return _mm512_add_pd(all, _mm512_cvtps_pd(half));
}

INLINE void sums_flush(struct sums *sums)
{
	sums->all_error_squares = sum_add(sums->all_error_squares, sums->error_squares);
	sums->all_squares = sum_add(sums->all_squares, sums->squares);
	sums->error_squares = sums->squares = _mm512_setzero_ps();
	sums->steps = 0;
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

/* Return the last byte of each number of a step. */
INLINE __m512i bytes_join(const __m512i numbers[VECTORS])
{
	const __m512i even = _mm512_set_epi16(62, 60, 58, 56, 54, 52, 50, 48, 46, 44, 42, 40, 38, 36, 34, 32, 30, 28,
		26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
	const __m512i low = _mm512_permutex2var_epi16(numbers[0], even, numbers[1]),
		      high = _mm512_permutex2var_epi16(numbers[2], even, numbers[3]);

	return _mm512_permutexvar_epi64(_mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0), _mm512_packs_epi16(low, high));
}

/* Convert the elements of a step that are in `mask`. */
INLINE void step_quantise(uint32_t element, const void *values, uint64_t index, uint64_t mask,
	const struct groups *groups, uint32_t group, int8_t *codes, struct sums *sums)
{
	const __m512 scale = _mm512_set1_ps(groups->scale[group]), inverse = _mm512_set1_ps(groups->inverse[group]),
		     rest = _mm512_set1_ps(groups->rest[group]);
	/* Adding this number rounds to an integer, whose last byte is then that of the sum. */
	const __m512 round = _mm512_set1_ps(12582912.0f);
	__m512 value[VECTORS], error[VECTORS];
	__m512i numbers[VECTORS];

	/* Fetch the next groups, whose largest magnitudes are found faster than memory delivers them. */
	for (uint32_t i = 0; i < STEP * element_bytes(element); i += CACHE_LINE)
		_mm_prefetch((const char *)values + index * element_bytes(element) + i + TILE_BYTES, _MM_HINT_T0);
	for (int i = 0; i < VECTORS; i++) {
		__m512 rounded;

		value[i] = values_get(element, values, index + (uint64_t)i * LANES, (__mmask16)(mask >> i * LANES));
		if (element == ELEMENT_F32)
			rounded = _mm512_add_ps(_mm512_div_ps(value[i], scale), round);
		else
			rounded =
				_mm512_add_ps(_mm512_fmadd_ps(value[i], rest, _mm512_mul_ps(value[i], inverse)), round);
		numbers[i] = _mm512_castps_si512(rounded);
		/* The product of a code and a scale is exact. */
		error[i] = _mm512_fnmadd_ps(_mm512_sub_ps(rounded, round), scale, value[i]);
	}
	_mm512_mask_storeu_epi8(codes + index, mask, bytes_join(numbers));
	if (sums) {
		enum { LARGER_MAGNITUDE = 11 };
		__m512 error_squares = _mm512_mul_ps(error[0], error[0]), squares = _mm512_mul_ps(value[0], value[0]);

		sums->most = _mm512_range_ps(sums->most, error[0], LARGER_MAGNITUDE);
		for (int i = 1; i < VECTORS; i++) {
			sums->most = _mm512_range_ps(sums->most, error[i], LARGER_MAGNITUDE);
			error_squares = _mm512_fmadd_ps(error[i], error[i], error_squares);
			squares = _mm512_fmadd_ps(value[i], value[i], squares);
		}
		sums->error_squares = _mm512_add_ps(sums->error_squares, error_squares);
		sums->squares = _mm512_add_ps(sums->squares, squares);
		if (++sums->steps == FLUSH)
			sums_flush(sums);
	}
}

/* The element, and whether sums are wanted, are constants in each copy of this function. */
INLINE void groups_quantise(uint32_t element, const char *values, uint64_t all, uint64_t count, int8_t *codes,
	uint16_t *scales, struct sums *sums, struct quantise_error *error)
{
	const uint64_t bytes = count * element_bytes(element), whole = count / STEP * STEP;
	const uint64_t fit = bytes < TILE_BYTES ? TILE_BYTES / bytes : 1, most = fit < LANES ? fit : LANES;
	struct groups groups;
	uint32_t some;

	for (uint64_t done = 0; done < all; done += some, scales += some) {
		some = (uint32_t)(all - done < most ? all - done : most);
		for (uint32_t group = 0; group < some; group++)
			groups.largest[group] = largest_of(element, values + group * bytes, count);
		scales_compute(element, &groups, some, scales);
		for (uint32_t group = 0; group < some; group++, values += bytes, codes += count) {
			if (!(groups.usual >> group & 1)) {
				element_rows_avx2.quantise(element, values, 1, count, codes, &scales[group], error);
				continue;
			}
			for (uint64_t i = 0; i < whole; i += STEP)
				step_quantise(element, values, i, UINT64_MAX, &groups, group, codes, sums);
			if (whole < count)
				step_quantise(
					element, values, whole, step_mask(count - whole), &groups, group, codes, sums);
		}
	}
}

AVX512 static void avx512_quantise(uint32_t element, const void *values, uint64_t groups, uint64_t count, int8_t *codes,
	uint16_t *scales, struct quantise_error *error)
{
	const __m512 zero = _mm512_setzero_ps();
	const __m512d none = _mm512_setzero_pd();
	struct sums sums = {zero, zero, zero, none, none, 0};

	if (element == ELEMENT_F16)
		error ? groups_quantise(ELEMENT_F16, values, groups, count, codes, scales, &sums, error)
		      : groups_quantise(ELEMENT_F16, values, groups, count, codes, scales, NULL, NULL);
	else if (element == ELEMENT_BF16)
		error ? groups_quantise(ELEMENT_BF16, values, groups, count, codes, scales, &sums, error)
		      : groups_quantise(ELEMENT_BF16, values, groups, count, codes, scales, NULL, NULL);
	else
		groups_quantise(ELEMENT_F32, values, groups, count, codes, scales, error ? &sums : NULL, error);
	if (!error)
		return;
	sums_flush(&sums);
	quantise_error_add(error,
		&(struct quantise_error){.error_squares = _mm512_reduce_add_pd(sums.all_error_squares),
			.squares = _mm512_reduce_add_pd(sums.all_squares),
			.max_error = _mm512_reduce_max_ps(sums.most)});
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
