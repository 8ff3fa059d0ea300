/*
 * test_element_rows.c - conversions of rows of elements, with each implementation that this CPU supports.
 *
 * Goal: for every element and scale, each implementation writes exactly the bits that element.h and quantise.h define.
 * Only the payload of a NaN is undefined.
 *
 * Method: all 16-bit elements, all codes with all scales, and all quotients of an element and a scale. fp32 numbers are
 * random, or at and next to each place where rounding changes. Lengths are not multiples of the vector sizes.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cuda/kernels/element_rows.h"
#include "cuda/kernels/quantise.h"

enum { ALL = 1 << 16, ROW = ELEMENT_ROW };

static const struct element_rows *const codes[] = {
	&element_rows_plain,
#ifdef __x86_64__
	&element_rows_avx2,
	&element_rows_avx512,
#endif
};
enum { CODES = sizeof(codes) / sizeof(*codes) };

/* Iterate over the implementations that can run on this machine. */
static const struct element_rows *code_next(size_t *index)
{
	while (*index < CODES) {
		const struct element_rows *code = codes[(*index)++];

		if (code->is_usable())
			return code;
		print_message("this CPU has no %s\n", code->name);
	}
	return NULL;
}

static uint32_t random_bits(void)
{
	static uint64_t state = 88172645463325252u;

	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (uint32_t)(state >> 16);
}

static void *room(uint64_t bytes)
{
	void *memory = malloc(bytes);

	assert_non_null(memory);
	return memory;
}

static float float_of(uint32_t element, uint16_t bits)
{
	return element == ELEMENT_F16 ? float_of_f16(bits) : float_of_bf16(bits);
}

static float value_of(uint32_t element, const void *from, uint64_t index)
{
	const char *at = (const char *)from + index * element_bytes(element);
	uint16_t bits;
	float value;

	if (element == ELEMENT_F32) {
		memcpy(&value, at, sizeof(value));
		return value;
	}
	memcpy(&bits, at, sizeof(bits));
	return float_of(element, bits);
}

static uint16_t bits_of(uint32_t element, float value)
{
	return element == ELEMENT_F16 ? f16_of_float(value) : bf16_of_float(value);
}

static void same_bits(uint32_t element, uint16_t wanted, uint16_t found, const char *name, uint64_t index)
{
	if (wanted == found || (isnan(float_of(element, wanted)) && isnan(float_of(element, found))))
		return;
	fail_msg("%s: element %u, number %llu is %04x, should be %04x", name, element, (unsigned long long)index, found,
		wanted);
}

/* ---- conversions between element types ---- */

/* Convert `count` elements at a time, from an unaligned address, and check the reported error. */
static void converts(const struct element_rows *code, uint32_t from_element, const void *from, uint32_t to_element,
	uint64_t total, uint64_t count)
{
	const uint32_t bytes = element_bytes(from_element);
	char *source = room(count * bytes + 1);
	uint16_t *to = room((count + 1) * sizeof(*to));

	for (uint64_t i = 0; i < total; i += count) {
		uint64_t some = total - i < count ? total - i : count;
		bool finite = true;

		memcpy(source + 1, (const char *)from + i * bytes, some * bytes);
		to[some] = 0x1234;
		for (uint64_t k = 0; k < some; k++) {
			uint16_t bits = bits_of(to_element, value_of(from_element, from, i + k));

			finite &= isfinite(float_of(to_element, bits)) != 0;
		}
		assert_int_equal(code->convert(from_element, source + 1, to_element, to, some), finite);
		assert_int_equal(to[some], 0x1234);
		for (uint64_t k = 0; k < some; k++)
			same_bits(to_element, bits_of(to_element, value_of(from_element, from, i + k)), to[k],
				code->name, i + k);
	}
	free(source);
	free(to);
}

static void test_all_of_16_bits_become_others(void **state)
{
	static const uint64_t counts[] = {1, 7, 16, 100, 128, 300};
	uint16_t *all = room(ALL * sizeof(*all));
	size_t index = 0;

	(void)state;
	for (uint32_t i = 0; i < ALL; i++)
		all[i] = (uint16_t)i;
	for (const struct element_rows *code; (code = code_next(&index));)
		for (uint32_t from = 0; from < ELEMENT_F32; from++)
			for (uint32_t to = 0; to < ELEMENT_F32; to++)
				for (size_t i = 0; i < sizeof(counts) / sizeof(*counts); i++)
					converts(code, from, all, to, ALL, counts[i]);
	free(all);
}

/* Test every 16-bit number, the midpoint to the next one, and the fp32 numbers on both sides of the midpoint. */
static void test_fp32_is_rounded_to_nearest_even(void **state)
{
	enum { BESIDE = 3, AROUND = 2 * BESIDE };
	uint32_t *bits = room((uint64_t)ALL * AROUND * sizeof(*bits));
	size_t index = 0;

	(void)state;
	for (const struct element_rows *code; (code = code_next(&index));)
		for (uint32_t to = 0; to < ELEMENT_F32; to++) {
			for (uint32_t i = 0; i < ALL; i++) {
				float value = float_of(to, (uint16_t)i),
				      middle = value / 2 + float_of(to, (uint16_t)(i + 1)) / 2;

				for (uint32_t k = 0; k < BESIDE; k++) {
					bits[i * AROUND + k] = float_bits(value) + k - 1;
					bits[i * AROUND + BESIDE + k] = float_bits(middle) + k - 1;
				}
			}
			converts(code, ELEMENT_F32, bits, to, (uint64_t)ALL * AROUND, 1000);
		}
	free(bits);
}

static void test_fp32_is_converted_to_each_type(void **state)
{
	enum { MANY = 1 << 20 };
	uint32_t *bits = room((uint64_t)MANY * sizeof(*bits));
	size_t index = 0;

	(void)state;
	for (uint32_t i = 0; i < MANY; i++)
		bits[i] = random_bits();
	for (const struct element_rows *code; (code = code_next(&index));)
		for (uint32_t to = 0; to < ELEMENT_F32; to++)
			converts(code, ELEMENT_F32, bits, to, MANY, 777);
	free(bits);
}

static void test_rows_become_fp32(void **state)
{
	uint16_t row[ROW];
	float values[ROW];
	size_t index = 0;

	(void)state;
	for (const struct element_rows *code; (code = code_next(&index));)
		for (uint32_t element = 0; element < ELEMENT_F32; element++)
			for (uint32_t i = 0; i < ALL; i += ROW) {
				for (uint32_t k = 0; k < ROW; k++)
					row[k] = (uint16_t)(i + k);
				code->get(element, row, values);
				for (uint32_t k = 0; k < ROW; k++) {
					float wanted = value_of(element, row, k);

					assert_true(float_bits(wanted) == float_bits(values[k]) ||
						(isnan(wanted) && isnan(values[k])));
				}
			}
}

/* ---- transposed rows ---- */

static void turns(const struct element_rows *code, uint32_t rows, uint32_t columns)
{
	uint16_t *from = room((uint64_t)rows * columns * sizeof(*from)),
		 *to = room((uint64_t)columns * ROW * sizeof(*to));

	for (uint32_t i = 0; i < rows * columns; i++)
		from[i] = (uint16_t)random_bits();
	memset(to, 0x12, (uint64_t)columns * ROW * sizeof(*to));
	code->turn(from, rows, columns, to);
	for (uint32_t column = 0; column < columns; column++)
		for (uint32_t row = 0; row < ROW; row++)
			assert_int_equal(to[column * ROW + row], row < rows ? from[row * columns + column] : 0x1212);
	free(from);
	free(to);
}

static void test_transposed_rows(void **state)
{
	size_t index = 0;

	(void)state;
	for (const struct element_rows *code; (code = code_next(&index));)
		for (uint32_t columns = 1; columns <= 128; columns++)
			for (uint32_t rows = 1; rows <= ROW; rows += rows < 20 ? 1 : 12)
				turns(code, rows, columns);
}

/* ---- int8 ---- */

/* Use two rows for each scale: a code is -127 to 127, and -128, which is never written, may occur in a file. */
static void test_each_code_times_each_scale(void **state)
{
	int8_t all[2 * ROW];
	uint16_t values[2 * ROW], scales[2];
	size_t index = 0;

	(void)state;
	for (int i = 0; i < 2 * ROW; i++)
		all[i] = (int8_t)(i - 128);
	for (const struct element_rows *code; (code = code_next(&index));)
		for (uint32_t element = 0; element < ELEMENT_F32; element++)
			for (uint32_t scale = 0; scale < ALL; scale++) {
				scales[0] = scales[1] = (uint16_t)scale;
				for (int group = 0; group < 2; group++)
					code->group_dequantise(
						element, all + group * ROW, ROW, scales[group], values + group * ROW);
				for (uint32_t i = 0; i < 2 * ROW; i++)
					same_bits(element,
						bits_of(element,
							quantise_value(
								all[i], float_of_bf16((uint16_t)scale), element)),
						values[i], code->name, i);
			}
}

static void put(uint32_t element, void *values, uint32_t index, float value)
{
	if (element == ELEMENT_F32)
		((float *)values)[index] = value;
	else
		((uint16_t *)values)[index] = bits_of(element, value);
}

/*
 * Fill a group with numbers of all sizes. Some groups have an infinity, a NaN or the largest number, and some are zero.
 */
static void group_fill(uint32_t element, uint32_t kind, uint32_t count, void *group)
{
	static const float strange[] = {
		INFINITY, -INFINITY, NAN, 65504.0f, 0x1.fep127f, -65504.0f, 0x1p-24f, 0x1p-133f, -0.0f};
	float size = ldexpf(1, (int)(random_bits() % 60) - 45);

	for (uint32_t i = 0; i < count; i++)
		put(element, group, i, kind % 7 == 0 ? 0 : ((float)(random_bits() >> 8) / 8388608.0f - 1) * size);
	if (kind % 3 == 0)
		put(element, group, random_bits() % count, strange[kind / 3 % (sizeof(strange) / sizeof(*strange))]);
}

/* negligible: squares of errors that are only rounding errors of fp32 */
static bool is_near(double is, double wanted, double negligible)
{
	return fabs(is - wanted) <= 1e-6 * wanted + negligible;
}

static void groups_check(
	const struct element_rows *code, uint32_t element, uint64_t groups, uint32_t count, const void *values)
{
	const uint64_t all = groups * count, bytes = all * element_bytes(element), group_bytes = bytes / groups;
	int8_t *wanted = room(all), *forms = room(all), *unmeasured = room(all);
	uint16_t *wanted_scales = room(groups * 2), *scales = room(groups * 2), *unmeasured_scales = room(groups * 2);
	struct quantise_error wanted_error = {0}, error = {0};
	char *wanted_back = room(bytes), *back = room(bytes);

	element_rows_plain.quantise(element, values, groups, count, wanted, wanted_scales, &wanted_error);
	code->quantise(element, values, groups, count, forms, scales, &error);
	code->quantise(element, values, groups, count, unmeasured, unmeasured_scales, NULL);
	assert_memory_equal(forms, wanted, all);
	assert_memory_equal(unmeasured, wanted, all);
	assert_memory_equal(scales, wanted_scales, groups * 2);
	assert_memory_equal(unmeasured_scales, wanted_scales, groups * 2);
	assert_true(error.max_error == wanted_error.max_error);
	assert_true(is_near(error.squares, wanted_error.squares, 0));
	assert_true(is_near(error.error_squares, wanted_error.error_squares, 1e-14 * error.squares));
	for (uint64_t i = 0; i < groups; i++) {
		dequantise_group_plain(element, wanted + i * count, count, scales[i], wanted_back + i * group_bytes);
		code->group_dequantise(element, wanted + i * count, count, scales[i], back + i * group_bytes);
	}
	assert_memory_equal(back, wanted_back, bytes);
	free(wanted);
	free(forms);
	free(unmeasured);
	free(wanted_scales);
	free(scales);
	free(unmeasured_scales);
	free(wanted_back);
	free(back);
}

static void test_groups_are_those_of_the_reference(void **state)
{
	static const uint32_t counts[] = {1, 15, 16, 17, 63, 64, 65, 100, ROW, 1030, 5000};
	size_t index = 0;

	(void)state;
	for (const struct element_rows *code; (code = code_next(&index));)
		for (uint32_t element = 0; element < ELEMENTS; element++)
			for (size_t n = 0; n < sizeof(counts) / sizeof(*counts); n++)
				for (uint32_t kind = 0, groups; kind < 200; kind += groups) {
					uint64_t bytes = (uint64_t)counts[n] * element_bytes(element);
					char *values = room((groups = 1 + random_bits() % 40) * bytes);

					for (uint32_t i = 0; i < groups; i++)
						group_fill(element, kind + i, counts[n], values + i * bytes);
					groups_check(code, element, groups, counts[n], values);
					free(values);
				}
}

/*
 * With each scale that differs by more than a power of two, convert all numbers whose codes are not 0, with both signs.
 * Many of them are halfway between two codes.
 */
static void test_each_quotient_is_rounded(void **state)
{
	enum { DOUBLINGS = 9 };
	size_t index = 0;

	(void)state;
	for (const struct element_rows *code; (code = code_next(&index));)
		for (uint32_t element = 0; element < ELEMENT_F32; element++) {
			const uint32_t one = bits_of(element, 1), doubling = bits_of(element, 2) - one;
			const uint32_t count = DOUBLINGS * doubling;
			uint16_t *values = room(2 * count * sizeof(*values)), last = 0, scale;

			for (uint32_t largest = one + doubling - 1; largest >= one; largest--, last = scale) {
				scale = quantise_scale(float_of(element, (uint16_t)largest));
				if (scale == last)
					continue;
				for (uint32_t i = 0; i < count; i++) {
					values[i] = (uint16_t)(largest - i);
					values[count + i] = (uint16_t)(0x8000 | values[i]);
				}
				groups_check(code, element, 2, count, values);
			}
			free(values);
		}
}

static void test_this_cpu_has_the_instructions(void **state)
{
	(void)state;
	assert_true(element_rows()->is_usable());
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_all_of_16_bits_become_others),
		cmocka_unit_test(test_fp32_is_rounded_to_nearest_even),
		cmocka_unit_test(test_fp32_is_converted_to_each_type),
		cmocka_unit_test(test_rows_become_fp32),
		cmocka_unit_test(test_transposed_rows),
		cmocka_unit_test(test_each_code_times_each_scale),
		cmocka_unit_test(test_groups_are_those_of_the_reference),
		cmocka_unit_test(test_each_quotient_is_rounded),
		cmocka_unit_test(test_this_cpu_has_the_instructions),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
