/*
 * element_rows.h - conversions of many elements with this CPU's vector instructions: to another type, transposed, to
 * int8 and back. The plain C implementation runs on every CPU, and the others are tested against it. Results are
 * bit-identical, except for the payload of a NaN.
 */
#ifndef CUDA_KERNELS_ELEMENT_ROWS_H
#define CUDA_KERNELS_ELEMENT_ROWS_H

#include "cuda/kernels/element.h"

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
	/* quantise() - quantise rows of ELEMENT_ROW elements, fp16 or bf16; each row is one group (quantise.h). */
	void (*quantise)(uint32_t element, const void *values, uint64_t rows, int8_t *codes, uint16_t *scales);
	/* dequantise() - convert codes and scales back to elements. */
	void (*dequantise)(uint32_t element, const int8_t *codes, const uint16_t *scales, uint64_t rows, void *values);
};

extern const struct element_rows element_rows_plain;
#ifdef __x86_64__
extern const struct element_rows element_rows_avx2;
#endif

/* element_rows() - return the fastest implementation for this CPU. */
const struct element_rows *element_rows(void);

#endif
