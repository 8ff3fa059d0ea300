/*
 * element_rows.h - conversions of many elements with this CPU's vector instructions: to another type, transposed, to
 * int8 and back. The plain C implementation runs on every CPU, and the others are tested against it. Results are
 * bit-identical, except for the payload of a NaN.
 */
#ifndef CUDA_KERNELS_ELEMENT_ROWS_H
#define CUDA_KERNELS_ELEMENT_ROWS_H

#include "cuda/kernels/quantise.h"

#include <stdbool.h>

struct element_rows {
	const char *name;
	bool (*is_usable)(void); /* by this CPU */
	/*
	 * convert() - convert `count` elements of any type to fp16 or bf16. `from` may have any alignment; the arrays
	 * must not overlap. Return: true if all results are finite.
	 */
	bool (*convert)(uint32_t from_element, const void *from, uint32_t to_element, void *to, uint64_t count);
	/* get() - convert one row to fp32. */
	void (*get)(uint32_t element, const void *from, float to[ELEMENT_ROW]);
	/*
	 * turn() - transpose `from`, [rows][columns], into `to`, [columns][ELEMENT_ROW]; the first `rows` elements of
	 * each row of `to` are written. rows: at most ELEMENT_ROW.
	 */
	void (*turn)(const uint16_t *from, uint32_t rows, uint32_t columns, uint16_t *to);
	/*
	 * quantise() - convert adjacent groups of `count` elements of any type each to codes and scales (quantise.h).
	 * The errors are added to `error`, unless it is NULL; their sums are not bit-identical.
	 */
	void (*quantise)(uint32_t element, const void *values, uint64_t groups, uint64_t count, int8_t *codes,
		uint16_t *scales, struct quantise_error *error);
	/* group_dequantise() - convert the codes of a group back to elements. */
	void (*group_dequantise)(uint32_t element, const int8_t *codes, uint64_t count, uint16_t scale, void *values);
};

extern const struct element_rows element_rows_plain;
#ifdef __x86_64__
extern const struct element_rows element_rows_avx2, element_rows_avx512;
#endif

/* element_rows() - return the fastest implementation for this CPU. */
const struct element_rows *element_rows(void);

/* element_rows_quantise() - convert rows of ELEMENT_ROW elements, fp16 or bf16; each row is one group. */
static inline void element_rows_quantise(
	uint32_t element, const uint16_t *values, uint64_t rows, int8_t *codes, uint16_t *scales)
{
	element_rows()->quantise(element, values, rows, ELEMENT_ROW, codes, scales, NULL);
}

/* element_rows_dequantise() - convert codes and scales back to rows. */
static inline void element_rows_dequantise(
	uint32_t element, const int8_t *codes, const uint16_t *scales, uint64_t rows, uint16_t *values)
{
	const struct element_rows *code = element_rows();

	for (uint64_t row = 0; row < rows; row++)
		code->group_dequantise(
			element, codes + row * ELEMENT_ROW, ELEMENT_ROW, scales[row], values + row * ELEMENT_ROW);
}

#endif
