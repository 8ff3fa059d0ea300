/*
 * int8_form.h - rows of pages in int8, which need half the space, and the loss of accuracy of an adapter in int8.
 *
 * A row of a page has 256 bytes, which belong to a tile or are zeros between or after tiles. The form of n rows is:
 *
 *   codes int8[n][128] | scales bf16[n]
 *
 * Each row of a tile, which is 128 columns of one rank, is therefore a group with its own scale
 * (cuda/kernels/quantise.h). One call of quantise or dequantise handles all rows of a page, also on a GPU. A code times
 * a scale is exact in fp32 and rounded once (quantise_value()), so a form expands to the same bits on every device.
 */
#ifndef GPOOL_CLIENT_LORA_INT8_FORM_H
#define GPOOL_CLIENT_LORA_INT8_FORM_H

#include "client/lora/format/convert.h"

/* int8_form_bytes() - return the size of a form: 130 bytes for each row of 256 bytes. */
static inline uint64_t int8_form_bytes(uint32_t rows)
{
	return (uint64_t)rows * (ADAPTER_TILE_COLUMNS + 2);
}

/*
 * int8_form_make() - make a form. image: [rows * 256] bytes of a page; form: receives int8_form_bytes(rows) bytes. Both
 * are aligned to 2.
 */
void int8_form_make(const void *image, uint32_t rows, enum adapter_element element, void *form);
/* int8_form_expand() - expand a form. image: receives rows * 256 bytes. */
void int8_form_expand(const void *form, uint32_t rows, enum adapter_element element, void *image);
/* int8_form_expand_some() - expand `count` rows, beginning with row `first`. image: the address of row 0. */
void int8_form_expand_some(
	const void *form, uint32_t rows, uint32_t first, uint32_t count, enum adapter_element element, void *image);

/*
 * An adapter with a larger loss is not stored in int8. For normally distributed weights, the loss is 0.9 %
 * (test_adapter_int8).
 */
#define INT8_LOSS_MAX 0.015

/* The loss of the module for which it is largest. */
struct int8_loss {
	uint32_t module;
	/*
	 * ||y' - y|| / ||y||, where y = B (A x), and y' is computed from the int8 forms, for some random x that are the
	 * same for each adapter; infinite if y overflows in fp32.
	 */
	float output;
	/*
	 * ||B'A' - BA|| is at most this times ||B|| ||A|| (Frobenius norms); computed from the weights alone, and valid
	 * for any x.
	 */
	float bound;
};

/*
 * int8_loss_measure() - measure the loss. Return: 0; -ENOMEM, or as convert_tiles(). Cost: converts each weight once.
 */
int int8_loss_measure(const struct convert *convert, struct int8_loss *loss, struct reason *reason);

#endif
