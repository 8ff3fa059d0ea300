/*
 * int8_form.h - rows of pages in int8, which need half the space, and the loss of accuracy of an adapter in int8.
 *
 * The form of n rows of a page (n * 256 bytes: of tiles, and of zeros between and behind them) is
 *
 *   codes int8[n][128] | scales bf16[n]
 *
 * so a row of a tile, 128 columns of one rank, is a group with its own scale (cuda/kernels/quantise.h), and all rows of
 * a page are one call of quantise or dequantise, also on a GPU. A code times a scale is exact in fp32 and rounded once
 * (quantise_value()), so a form expands to the same bits everywhere.
 */
#ifndef GPOOL_CLIENT_LORA_INT8_FORM_H
#define GPOOL_CLIENT_LORA_INT8_FORM_H

#include "client/lora/format/convert.h"

/* int8_form_bytes() - Return the bytes of a form: 130 for a row of 256. */
static inline uint64_t int8_form_bytes(uint32_t rows)
{
	return (uint64_t)rows * (ADAPTER_TILE_COLUMNS + 2);
}

/*
 * int8_form_make() - Make a form. image: [rows * 256] bytes of a page; form: receives int8_form_bytes(rows). Both are
 * aligned to 2.
 */
void int8_form_make(const void *image, uint32_t rows, enum adapter_element element, void *form);
/* int8_form_expand() - Expand a form. image: receives rows * 256 bytes. */
void int8_form_expand(const void *form, uint32_t rows, enum adapter_element element, void *image);
/* int8_form_expand_some() - Expand `count` rows from row `first` on. image: the address of row 0. */
void int8_form_expand_some(
	const void *form, uint32_t rows, uint32_t first, uint32_t count, enum adapter_element element, void *image);

/* An adapter with a larger loss is not stored in int8. Measured for weights in normal distribution: 0.95 %. */
#define INT8_LOSS_MAX 0.015

/* The loss of the module with the largest loss. */
struct int8_loss {
	uint32_t module;
	/* ||y' - y|| / ||y|| of y = B (A x), y' from the int8 forms, over some random x that are the same for each
	 * adapter; infinite where fp32 cannot hold y. */
	float output;
	/* ||B'A' - BA|| is at most this times ||B|| ||A|| (all of Frobenius): from the weights alone, for any x. */
	float bound;
};

/* int8_loss_measure() - Measure the loss; converts each weight once. Return: 0; -ENOMEM, or as convert_tiles(). */
int int8_loss_measure(const struct convert *convert, struct int8_loss *loss, struct reason *reason);

#endif
