/*
 * pack.h - assign the matrices of an adapter to pages: its layout (shm/adapter_layout.h).
 *
 * Tiles are packed layer by layer, without padding of ranks. Within a layer, matrices with the largest tiles come
 * first. If the end of a page is too short for the next tile, it is used for a matrix with smaller tiles of the same or
 * a later layer. So the tiles of a page have no gaps between them. The layout depends on adapter, page size and element
 * alone.
 */
#ifndef GPOOL_CLIENT_LORA_PACK_H
#define GPOOL_CLIENT_LORA_PACK_H

#include "client/lora/format/peft.h"
#include "shm/adapter_layout.h"

/*
 * pack_element() - Return the default element: fp16 if all weights are F16, else bf16. F32 becomes bf16, which has the
 * same range, so no weight can overflow. Most models are bf16, and the kernels need weights of the model's type.
 */
enum adapter_element pack_element(const struct peft *peft);

/*
 * pack_make() - Make a layout, one allocation that pack_free() frees. page_bytes: a power of two, 512 KiB to 4 MiB.
 * Return: 0; -EINVAL, with a reason: the number of pages or the layout exceeds a limit; -ENOMEM.
 */
int pack_make(const struct peft *peft, uint32_t page_bytes, enum adapter_element element, struct adapter_layout *layout,
	struct reason *reason);
void pack_free(struct adapter_layout *layout);

/* The use of the bytes of an adapter's pages; the sum is pages * page_bytes. */
struct pack_use {
	uint64_t weights; /* elements of matrices */
	uint64_t columns; /* zeros in last tiles, behind matrices whose columns are no multiple of 128 */
	uint64_t ends;    /* of pages before the last, too short for the next tile */
	uint64_t last;    /* behind the last tile of the last page */
};
struct pack_use pack_use_of(const struct adapter_layout *layout);

#endif
