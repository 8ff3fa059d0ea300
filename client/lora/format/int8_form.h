/*
 * int8_form.h - half as much for colder tiers: rows of pages in int8, and what that costs an adapter in accuracy.
 *
 * The form of n rows of a page (n * 256 bytes: of tiles, and of zeros between and behind them) is
 *
 *   codes int8[n][128] | scales bf16[n]
 *
 * so a row of a tile, 128 columns of one rank, is a group with a scale of its own (cuda/kernels/quantise.h), and all
 * rows of a page are one call of quantise or dequantise, on a GPU too. A code times a scale is exact in fp32 and
 * rounded once (quantise_value()), so the same form gives the same page bit by bit, wherever it is expanded.
 */
#ifndef GPOOL_CLIENT_LORA_INT8_FORM_H
#define GPOOL_CLIENT_LORA_INT8_FORM_H

#include "client/lora/format/convert.h"

/* int8_form_bytes() - 130 for a row of 256: 1.6 % more than half. */
static inline uint64_t int8_form_bytes(uint32_t rows)
{
	return (uint64_t)rows * (ADAPTER_TILE_COLUMNS + 2);
}

/*
 * int8_form_make() - image: [rows * 256] bytes of a page; form: receives int8_form_bytes(rows). Both are aligned to 2.
 */
void int8_form_make(const void *image, uint32_t rows, enum adapter_element element, void *form);
/* int8_form_expand() - the way back: image receives rows * 256 bytes. */
void int8_form_expand(const void *form, uint32_t rows, enum adapter_element element, void *image);
/* int8_form_expand_some() - `count` rows of that from row `first` on; image is that of the first row of all. */
void int8_form_expand_some(
	const void *form, uint32_t rows, uint32_t first, uint32_t count, enum adapter_element element, void *image);

/* Above this an adapter keeps its two bytes. Measured on weights that are about normal: 0.95 %. */
#define INT8_LOSS_MAX 0.015

/* What the module that loses most loses. */
struct int8_loss {
	uint32_t module;
	/* ||y' - y|| / ||y|| of y = B (A x), y' from the int8 forms, over some random x that are the same for each
	 * adapter; infinite where fp32 cannot hold y. */
	float output;
	/* ||B'A' - BA|| is at most this times ||B|| ||A|| (all of Frobenius): from the weights alone, for any x. */
	float bound;
};

/* int8_loss_measure() - reads and converts each weight once. Return: 0; -ENOMEM, or what convert_tiles() says. */
int int8_loss_measure(const struct convert *convert, struct int8_loss *loss, struct reason *reason);

#endif
