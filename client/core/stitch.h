/*
 * stitch.h - blocks whose pages do not lie in a row: mapped a second time, side by side, in a range of their own.
 * Internal to libgpool.
 *
 * The head's entry has BLOCK_SCATTERED and `next`, each further extent's BLOCK_EXTENT; the head's pin and fence stand
 * for all. When the agent evicts such a block, this process learns nothing of it: the range stays until it is cleaned,
 * which happens when a block is scattered at the same page or when the ranges have doubled in number since they were
 * last looked through.
 */
#ifndef GPOOL_CLIENT_STITCH_H
#define GPOOL_CLIENT_STITCH_H

#include "client/core/alloc.h"

int stitch_open(struct gpool *pool);
void stitch_close(struct gpool *pool);

/*
 * stitch_create() - the chain of runs that was handed over becomes one block. On failure (-ENOMEM, -ESTALE) all is
 * idle.
 */
int stitch_create(struct gpool *pool, struct thread_cache *cache, uint32_t first, uint32_t page_count,
	const struct alloc_request *request, struct gpool_block *block);

/*
 * chain_stand() - a chain of runs that is the caller's, in transit, becomes one block, pinned once: 0, -ESTALE (not
 * ours any more). Where it is mapped is the caller's matter. chain_end() - the other way; the pin stays.
 */
int chain_stand(struct gpool *pool, struct thread_cache *cache, uint32_t first, uint32_t page_count,
	const struct block_attributes *attributes, struct gpool_block *block);
void chain_end(struct gpool *pool, uint32_t first);
/* chain_stand_as() - as chain_stand(), with the sequence of a block that has moved. */
int chain_stand_as(struct gpool *pool, uint64_t sequence, uint32_t first, uint32_t page_count,
	const struct block_attributes *attributes, struct gpool_block *block);

/* stitch_map() - map a pinned scattered block that is mapped nowhere. Return: 0, -ENOMEM. */
int stitch_map(struct gpool *pool, const struct gpool_block *block);

/* stitch_finish() - end a scattered block, as a deferred_finish does. */
int stitch_finish(struct gpool *pool, const struct gpool_block *block);

/*
 * stitch_take() - the block ends, and its range of addresses becomes the caller's: its pages are in transit, and its
 * runs still stand in the entries. The caller holds a pin, which stays. 0, -ESTALE. stitch_give() - the other way: 0,
 * -ENOMEM.
 */
int stitch_take(struct gpool *pool, const struct gpool_block *block, uint64_t *address);
int stitch_give(struct gpool *pool, const struct gpool_block *block, uint64_t address);
/*
 * stitch_forget() - pass the address range of a block to the caller; the block remains, as after chain_stand(). Return:
 * 0, -ESTALE.
 */
int stitch_forget(struct gpool *pool, const struct gpool_block *block, uint64_t *address);

/* stitch_address() - 0, -ESTALE. */
int stitch_address(const struct gpool *pool, const struct gpool_block *block, uint64_t *address);

#endif
