/* element_rows.c - rows of elements in plain C, and the choice of an implementation. */
#include "cuda/kernels/element_rows.h"

/* Return true if all elements are finite: no exponent is all ones. */
static bool row_is_finite(uint32_t element, const uint16_t *bits, uint32_t count)
{
	const uint16_t exponent = element == ELEMENT_F16 ? 0x7c00 : 0x7f80;
	uint16_t bad = 0;

	for (uint32_t i = 0; i < count; i++)
		bad |= (bits[i] & exponent) == exponent;
	return !bad;
}

static bool plain_convert(uint32_t from_element, const void *from, uint32_t to_element, void *to, uint64_t count)
{
	const uint32_t bytes = element_bytes(from_element);
	uint16_t bits[ELEMENT_ROW];
	float row[ELEMENT_ROW];
	bool finite = true;

	for (uint64_t i = 0; i < count; i += ELEMENT_ROW) {
		uint32_t some = count - i < ELEMENT_ROW ? (uint32_t)(count - i) : ELEMENT_ROW;

		if (from_element == to_element) {
			memcpy(bits, (const char *)from + i * bytes, some * sizeof(*bits));
		} else {
			element_row_get(from_element, (const char *)from + i * bytes, some, row);
			element_row_put(to_element, row, some, bits);
		}
		finite &= row_is_finite(to_element, bits, some);
		memcpy((uint16_t *)to + i, bits, some * sizeof(*bits));
	}
	return finite;
}

static void plain_get(uint32_t element, const void *from, float to[ELEMENT_ROW])
{
	element_row_get(element, from, ELEMENT_ROW, to);
}

static void plain_turn(const uint16_t *from, uint32_t rows, uint32_t columns, uint16_t *to)
{
	for (uint32_t column = 0; column < columns; column++, to += ELEMENT_ROW)
		for (uint32_t row = 0; row < rows; row++)
			to[row] = from[row * columns + column];
}

static void plain_quantise(uint32_t element, const void *values, uint64_t groups, uint64_t count, int8_t *codes,
	uint16_t *scales, struct quantise_error *error)
{
	const uint64_t bytes = count * element_bytes(element);

	for (uint64_t i = 0; i < groups; i++)
		quantise_group_plain(
			element, (const char *)values + i * bytes, count, codes + i * count, &scales[i], error);
}

static bool plain_is_usable(void)
{
	return true;
}

const struct element_rows element_rows_plain = {
	.name = "plain",
	.is_usable = plain_is_usable,
	.convert = plain_convert,
	.get = plain_get,
	.turn = plain_turn,
	.quantise = plain_quantise,
	.group_dequantise = dequantise_group_plain,
};

const struct element_rows *element_rows(void)
{
#ifdef __x86_64__
	if (element_rows_avx512.is_usable())
		return &element_rows_avx512;
	if (element_rows_avx2.is_usable())
		return &element_rows_avx2;
#endif
	return &element_rows_plain;
}
