/*
 * pack.h - the plan by which an adapter's matrices lie in pages, as a layout (shm/adapter_layout.h).
 *
 * Layer by layer, tiles one after the other, no rank padded. Within a layer those with the largest tiles come first;
 * the end of a page that is too short for the next tile is kept in mind for a matrix with smaller ones, of this layer
 * or of a later one. So in each page tiles follow each other from its beginning on, without holes. The plan is the same
 * for the same adapter, page size and element.
 */
#ifndef GPOOL_CLIENT_LORA_PACK_H
#define GPOOL_CLIENT_LORA_PACK_H

#include "client/lora/format/peft.h"
#include "shm/adapter_layout.h"

/*
 * pack_element() - what is taken where nobody asks for another one: fp16 where the file has nothing but F16, else bf16.
 * F32 becomes bf16, whose range it has, so that nothing can overflow; most models that are served are bf16, and the
 * kernels want weights of the model's type.
 */
enum adapter_element pack_element(const struct peft *peft);

/*
 * pack_make() - *layout receives the layout, one allocation that pack_free() frees. page_bytes: a power of two, 512 KiB
 * to 4 MiB.
 * Return: 0; -EINVAL, with a reason: its pages or its layout are larger than the limits; -ENOMEM.
 */
int pack_make(const struct peft *peft, uint32_t page_bytes, enum adapter_element element, struct adapter_layout *layout,
	struct reason *reason);
void pack_free(struct adapter_layout *layout);

/* Where the bytes of an adapter's pages go; they add up to pages * page_bytes. */
struct pack_use {
	uint64_t weights; /* elements of matrices */
	uint64_t columns; /* zeros in last tiles, behind matrices whose columns are no multiple of 128 */
	uint64_t ends;    /* of pages before the last, too short for the next tile */
	uint64_t last;    /* behind the last tile: the page is the adapter's, and nobody else can use it */
};
struct pack_use pack_use_of(const struct adapter_layout *layout);

#endif
