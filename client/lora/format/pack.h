/*
 * pack.h - assign the matrices of an adapter to pages: its layout (shm/adapter_layout.h).
 *
 * Tiles are packed layer by layer, without padding of ranks. Within a layer, the matrices with the largest tiles come
 * first. If the end of a page is too short for the next tile, it is used for a matrix with smaller tiles of the same or
 * a later layer. The tiles of a page therefore have no gaps between them. The layout depends only on adapter, page size
 * and element.
 */
#ifndef GPOOL_CLIENT_LORA_PACK_H
#define GPOOL_CLIENT_LORA_PACK_H

#include "client/lora/format/peft.h"
#include "shm/adapter_layout.h"

/*
 * pack_element() - return the default element: fp16 if all weights are F16, otherwise bf16. F32 becomes bf16, whose
 * range is almost the same. Most models use bf16, and the kernels need weights of the model's type.
 */
enum adapter_element pack_element(const struct peft *peft);

/*
 * pack_make() - make a layout, which pack_free() frees. page_bytes: a power of two, 512 KiB to 4 MiB.
 * Return: 0; -EINVAL, with a reason: the number of pages or the layout exceeds a limit; -ENOMEM.
 */
int pack_make(const struct peft *peft, uint32_t page_bytes, enum adapter_element element, struct adapter_layout *layout,
	struct reason *reason);
void pack_free(struct adapter_layout *layout);

/* How the bytes of an adapter's pages are used. The sum is pages * page_bytes. */
struct pack_use {
	uint64_t weights; /* elements of matrices */
	uint64_t columns; /* zeros in the last tiles of matrices whose columns are not a multiple of 128 */
	uint64_t ends;    /* ends of pages, except the last, that are too short for the next tile */
	uint64_t last;    /* the rest of the last page, after its last tile */
};
struct pack_use pack_use_of(const struct adapter_layout *layout);

#endif
