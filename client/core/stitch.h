/*
 * stitch.h - scattered blocks: their pages are not adjacent, and are mapped a second time, side by side, in a separate
 * address range. Internal to libgpool.
 *
 * The entry of the head has BLOCK_SCATTERED and `next`; the entry of each further extent has BLOCK_EXTENT. The pin and
 * the fence of the head apply to all extents. The agent does not notify this process when it evicts such a block. Its
 * range remains mapped until another block is scattered at the same page, or until a sweep: when the number of ranges
 * has doubled since the last sweep, and before handles are unmapped for another trust domain or for sleep.
 */
#ifndef GPOOL_CLIENT_STITCH_H
#define GPOOL_CLIENT_STITCH_H

#include "client/core/alloc.h"

/* The addresses of a scattered block. If handles have several pages, its first page may begin behind va. */
struct stitch_range {
	uint64_t va, bytes;
};

int stitch_open(struct gpool *pool);
void stitch_close(struct gpool *pool);

/*
 * stitch_create() - convert the granted chain of runs to one block. If this fails (-ENOMEM, -ESTALE), all pages are
 * idle.
 */
int stitch_create(struct gpool *pool, struct thread_cache *cache, uint32_t first, uint32_t page_count,
	const struct alloc_request *request, struct gpool_block *block);

/*
 * chain_stand() - convert the caller's chain of runs, which are in transit, to one block, pinned once. The caller maps
 * it. Return: 0, -ESTALE (the pages belong to another session).
 * chain_end() - convert the block to a chain in transit, without releasing the pin.
 */
int chain_stand(struct gpool *pool, struct thread_cache *cache, uint32_t first, uint32_t page_count,
	const struct block_attributes *attributes, struct gpool_block *block);
void chain_end(struct gpool *pool, uint32_t first);
/* chain_put() - make the runs of a chain idle, from `run` to the last. */
void chain_put(const struct gpool *pool, uint32_t run);
/* chain_stand_as() - chain_stand() with the sequence of a block that has moved. */
int chain_stand_as(struct gpool *pool, uint64_t sequence, uint32_t first, uint32_t page_count,
	const struct block_attributes *attributes, struct gpool_block *block);

/* stitch_map() - map a pinned scattered block that has no mapping. Return: 0, -ENOMEM. */
int stitch_map(struct gpool *pool, const struct gpool_block *block);

/* stitch_finish() - end a scattered block; see deferred_finish. */
int stitch_finish(struct gpool *pool, const struct gpool_block *block);

/*
 * stitch_take() - end the block and pass its address range to the caller. The pages are then in transit, and the
 * entries still contain the runs. The caller's pin is not released. Return: 0, -ESTALE.
 * stitch_give() - undo this: make a block of the runs and the address range. Return: 0, -ENOMEM.
 */
int stitch_take(struct gpool *pool, const struct gpool_block *block, struct stitch_range *range);
int stitch_give(struct gpool *pool, const struct gpool_block *block, const struct stitch_range *range);
/*
 * stitch_forget() - pass the address range of a block to the caller. The block remains valid but unmapped, as after
 * chain_stand(). Return: 0, -ESTALE.
 */
int stitch_forget(struct gpool *pool, const struct gpool_block *block, struct stitch_range *range);

/* stitch_find() - get the address range of a scattered block; stitch_address() - its address. Return: 0, -ESTALE. */
int stitch_find(const struct gpool *pool, const struct gpool_block *block, struct stitch_range *range);
int stitch_address(const struct gpool *pool, const struct gpool_block *block, uint64_t *address);

#endif
