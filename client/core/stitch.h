/*
 * stitch.h - blocks whose pages are not adjacent: they are mapped a second time, side by side, in a separate range.
 * Internal to libgpool.
 *
 * The head's entry has BLOCK_SCATTERED and `next`, each further extent's BLOCK_EXTENT; the head's pin and fence apply
 * to all. This process is not notified when the agent evicts such a block: the range stays until a sweep, which runs
 * when a block is scattered at the same page, or when the number of ranges has doubled since the last sweep.
 */
#ifndef GPOOL_CLIENT_STITCH_H
#define GPOOL_CLIENT_STITCH_H

#include "client/core/alloc.h"

int stitch_open(struct gpool *pool);
void stitch_close(struct gpool *pool);

/* stitch_create() - make one block of the granted chain of runs. On failure (-ENOMEM, -ESTALE) all pages are idle. */
int stitch_create(struct gpool *pool, struct thread_cache *cache, uint32_t first, uint32_t page_count,
	const struct alloc_request *request, struct gpool_block *block);

/*
 * chain_stand() - make one block, pinned once, of the caller's chain of runs in transit: 0, -ESTALE (the pages belong
 * to another session). The caller maps it. chain_end() - the reverse; the pin stays.
 */
int chain_stand(struct gpool *pool, struct thread_cache *cache, uint32_t first, uint32_t page_count,
	const struct block_attributes *attributes, struct gpool_block *block);
void chain_end(struct gpool *pool, uint32_t first);
/* chain_stand_as() - chain_stand() with the sequence of a block that has moved. */
int chain_stand_as(struct gpool *pool, uint64_t sequence, uint32_t first, uint32_t page_count,
	const struct block_attributes *attributes, struct gpool_block *block);

/* stitch_map() - map a pinned scattered block that has no mapping. Return: 0, -ENOMEM. */
int stitch_map(struct gpool *pool, const struct gpool_block *block);

/* stitch_finish() - end a scattered block; see deferred_finish. */
int stitch_finish(struct gpool *pool, const struct gpool_block *block);

/*
 * stitch_take() - end the block and pass its address range to the caller: its pages are in transit, and its runs stay
 * in the entries. The caller's pin stays. Return: 0, -ESTALE. stitch_give() - the reverse: 0, -ENOMEM.
 */
int stitch_take(struct gpool *pool, const struct gpool_block *block, uint64_t *address);
int stitch_give(struct gpool *pool, const struct gpool_block *block, uint64_t address);
/*
 * stitch_forget() - pass the address range of a block to the caller; the block remains, as after chain_stand(). Return:
 * 0, -ESTALE.
 */
int stitch_forget(struct gpool *pool, const struct gpool_block *block, uint64_t *address);

/* stitch_address() - return the address of a scattered block: 0, -ESTALE. */
int stitch_address(const struct gpool *pool, const struct gpool_block *block, uint64_t *address);

#endif
