/*
 * block_pool.h - the states of a cache's blocks and chunks: which blocks are in use, cached or free, and which chunks
 * have memory. memory.c provides the memory, and prefix.c decides which blocks stay cached. Internal to libgpool.
 *
 * A chunk consists of chunk_blocks adjacent blocks. Invariants:
 *
 * - A block is in use (refs > 0), cached (kept without a reference), reserved as the target of a move, free in a held
 *   chunk (`free`), free in an offered chunk (`offered_free`), or in a chunk without memory (`holes`).
 * - A chunk is held, offered or without memory. A chunk with a block in use is held. Between block_pool_withhold() and
 *   block_pool_return(), a chunk is in no set.
 * - A held chunk without a block in use is in `empty` if none of its blocks is cached, so that its memory can be freed;
 *   otherwise in `unused`, so that it can be offered.
 * - An offered chunk is in `offered`. It is also in `spent` if none of its blocks is still cached, or in `room` if
 *   some of its blocks are cached and some are free.
 * - kept[chunk] is the number of its blocks that are in use, cached or reserved; used[chunk] is the number of its
 *   blocks in use.
 */
#ifndef GPOOL_CLIENT_KV_BLOCK_POOL_H
#define GPOOL_CLIENT_KV_BLOCK_POOL_H

#include "shm/policy/bitmap.h"

struct block_pool {
	struct bitmap free, offered_free; /* sets of blocks; all other sets are sets of chunks */
	struct bitmap holes;
	struct bitmap empty, unused;
	struct bitmap offered, spent, room;
	uint32_t *refs; /* [blocks] */
	uint32_t *kept; /* [chunks] */
	uint32_t *used; /* [chunks] */
	uint32_t blocks, chunks, chunk_blocks;
	uint32_t used_blocks, shared_blocks; /* shared_blocks: blocks with more than one reference */
	uint32_t cached_blocks;
};

/*
 * block_pool_init() - create a pool in which all chunks are holes. chunks * chunk_blocks must be at most
 * BITMAP_BITS_MAX. Return: 0, -ENOMEM.
 * block_pool_fini() - free it; accepts a zeroed struct.
 */
int block_pool_init(struct block_pool *pool, uint32_t chunks, uint32_t chunk_blocks);
void block_pool_fini(struct block_pool *pool);

/* block_pool_short() - return the number of holes that must get memory so that `blocks` blocks are free. */
uint32_t block_pool_short(const struct block_pool *pool, uint32_t blocks);

/*
 * block_pool_fill() - record that a hole got memory.
 * block_pool_drain() - record that an empty chunk lost its memory; it becomes a hole.
 */
void block_pool_fill(struct block_pool *pool, uint32_t chunk);
void block_pool_drain(struct block_pool *pool, uint32_t chunk);
/*
 * block_pool_withhold() - like block_pool_drain(), but the chunk becomes a hole only when block_pool_return() is
 * called, because queued GPU work may still use its addresses.
 */
void block_pool_withhold(struct block_pool *pool, uint32_t chunk);
void block_pool_return(struct block_pool *pool, uint32_t chunk);

/*
 * block_pool_offer() - record that an unused chunk was offered.
 * block_pool_reclaim() - record that an offered chunk is held again.
 * block_pool_lose() - record that the agent has taken an offered chunk without cached blocks; it becomes a hole.
 */
void block_pool_offer(struct block_pool *pool, uint32_t chunk);
void block_pool_reclaim(struct block_pool *pool, uint32_t chunk);
void block_pool_lose(struct block_pool *pool, uint32_t chunk);

/*
 * block_pool_take() - take the lowest free block and the free blocks that directly follow it in its chunk, at most
 * `most` blocks in all. A free block must exist. Each block gets one reference. Return the first block, and set *count
 * to the number of blocks.
 */
uint32_t block_pool_take(struct block_pool *pool, uint32_t most, uint32_t *count);
/* block_pool_take_chunk() - take all blocks of the lowest empty chunk, which must exist. Return the first block. */
uint32_t block_pool_take_chunk(struct block_pool *pool);

/* block_pool_use_cached() - add the first reference to a cached block of a held chunk. */
void block_pool_use_cached(struct block_pool *pool, uint32_t block);

/*
 * block_pool_ref() - add a reference to a block that is in use or cached, in a held chunk. Return true if it was
 * cached.
 */
static inline bool block_pool_ref(struct block_pool *pool, uint32_t block)
{
	if (pool->refs[block] == 0) {
		block_pool_use_cached(pool, block);
		return true;
	}
	pool->shared_blocks += pool->refs[block]++ == 1;
	return false;
}

/*
 * block_pool_unref() - remove a reference. Return true if it was the last one; the block is then cached if `keep` is
 * set, otherwise free.
 */
bool block_pool_unref(struct block_pool *pool, uint32_t block, bool keep);
/* block_pool_drop() - free a cached block. */
void block_pool_drop(struct block_pool *pool, uint32_t block);

/*
 * block_pool_reserve() - reserve a free block of a held chunk that is not empty, as the target of a move.
 * block_pool_unreserve() - free the reserved block.
 * block_pool_move() - move the references of block `from` to the reserved block. If `from` is cached, the reserved
 * block becomes cached instead. Both chunks are held.
 */
void block_pool_reserve(struct block_pool *pool, uint32_t block);
void block_pool_unreserve(struct block_pool *pool, uint32_t block);
void block_pool_move(struct block_pool *pool, uint32_t from, uint32_t to);

#endif
