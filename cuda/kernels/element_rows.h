/*
 * element_rows.h - many elements at once by the vector code of this CPU: to another type or order, to int8 and back.
 *
 * One code is in plain C: any CPU has it, and others are compared with it. What they write is the same to the bit, but
 * for what else a NaN holds.
 */
#ifndef CUDA_KERNELS_ELEMENT_ROWS_H
#define CUDA_KERNELS_ELEMENT_ROWS_H

#include "cuda/kernels/element.h"

#include <stdbool.h>

struct element_rows {
	const char *name;
	bool (*is_usable)(void); /* by this CPU */
	/*
	 * convert() - `count` elements of any type to fp16 or bf16. from has any alignment; they do not overlap.
	 * Return: whether all are finite as they are written.
	 */
	bool (*convert)(uint32_t from_element, const void *from, uint32_t to_element, void *to, uint64_t count);
	/* get() - one row as fp32. */
	void (*get)(uint32_t element, const void *from, float to[ELEMENT_ROW]);
	/*
	 * turn() - from: [rows][columns], to: [columns][ELEMENT_ROW], of which the first `rows` of each row are
	 * written. rows: at most ELEMENT_ROW.
	 */
	void (*turn)(const uint16_t *from, uint32_t rows, uint32_t columns, uint16_t *to);
	/* quantise() - rows of ELEMENT_ROW elements, fp16 or bf16, each of them a group (quantise.h). */
	void (*quantise)(uint32_t element, const void *values, uint64_t rows, int8_t *codes, uint16_t *scales);
	/* dequantise() - the way back. */
	void (*dequantise)(uint32_t element, const int8_t *codes, const uint16_t *scales, uint64_t rows, void *values);
};

extern const struct element_rows element_rows_plain;
#ifdef __x86_64__
extern const struct element_rows element_rows_avx2;
#endif

/* element_rows() - the fastest that this CPU has. */
const struct element_rows *element_rows(void);

#endif
