/*
 * block_pool.h - which blocks of a cache are in use, and which chunks have memory. Numbers only: memory.c brings the
 * memory, and prefix.c says what is worth keeping. Internal to libgpool.
 *
 * Invariants, where a chunk is chunk_blocks blocks in a row:
 *   a block is in use (refs > 0), cached (kept without a reference), free in a chunk that is held (`free`), free in a
 *   chunk that is offered (`offered_free`), or in a chunk without memory (`holes`)
 *   a chunk is held, offered or without memory; a chunk with a block in use is held
 *   a held chunk without a block in use is in `empty` if no block of it is cached: its memory can be freed; else in
 *   `unused`: it can be offered an offered chunk is in `offered`; also in `spent` if no block of it is cached any more,
 *   or in `room` if some blocks are cached and some free kept[chunk] counts its blocks in use or cached, used[chunk]
 *   those in use
 */
#ifndef GPOOL_CLIENT_KV_BLOCK_POOL_H
#define GPOOL_CLIENT_KV_BLOCK_POOL_H

#include "shm/policy/bitmap.h"

struct block_pool {
	struct bitmap free, offered_free; /* blocks; the other sets are of chunks */
	struct bitmap holes;
	struct bitmap empty, unused;
	struct bitmap offered, spent, room;
	uint32_t *refs; /* [blocks] */
	uint32_t *kept; /* [chunks] */
	uint32_t *used; /* [chunks] */
	uint32_t blocks, chunks, chunk_blocks;
	uint32_t used_blocks, shared_blocks; /* shared: with more than one reference */
	uint32_t cached_blocks;
};

/*
 * block_pool_init() - all chunks are holes: 0, -ENOMEM. chunks * chunk_blocks is at most BITMAP_BITS_MAX. _fini() -
 * takes all zero, too.
 */
int block_pool_init(struct block_pool *pool, uint32_t chunks, uint32_t chunk_blocks);
void block_pool_fini(struct block_pool *pool);

/* block_pool_short() - how many chunks more must have memory for `blocks` blocks. */
uint32_t block_pool_short(const struct block_pool *pool, uint32_t blocks);

/* block_pool_fill() - a hole has memory now; block_pool_drain() - an empty one has none any more. */
void block_pool_fill(struct block_pool *pool, uint32_t chunk);
void block_pool_drain(struct block_pool *pool, uint32_t chunk);
/*
 * block_pool_withhold() - as drain, but it is no hole before block_pool_return(): something may still look at its
 * addresses.
 */
void block_pool_withhold(struct block_pool *pool, uint32_t chunk);
void block_pool_return(struct block_pool *pool, uint32_t chunk);

/*
 * block_pool_offer() - an unused chunk is offered. block_pool_reclaim() - an offered one is held again.
 * block_pool_lose() - the memory of an offered chunk is gone: it is a hole. None of its blocks is cached any more.
 */
void block_pool_offer(struct block_pool *pool, uint32_t chunk);
void block_pool_reclaim(struct block_pool *pool, uint32_t chunk);
void block_pool_lose(struct block_pool *pool, uint32_t chunk);

/*
 * block_pool_take() - take the lowest free block and the free blocks of its chunk that follow it without a gap, `most`
 * in all, with one reference each. Return: the first; *count is their number. There must be a free block
 * (block_pool_short() is 0).
 */
uint32_t block_pool_take(struct block_pool *pool, uint32_t most, uint32_t *count);
/* block_pool_take_chunk() - all blocks of the lowest empty chunk likewise; returns the first. There is one. */
uint32_t block_pool_take_chunk(struct block_pool *pool);

/* block_pool_use_cached() - give a cached block of a held chunk its first reference. */
void block_pool_use_cached(struct block_pool *pool, uint32_t block);

/* block_pool_ref() - add a reference to a block in use or cached, in a held chunk. Return: true if it was cached. */
static inline bool block_pool_ref(struct block_pool *pool, uint32_t block)
{
	if (pool->refs[block] == 0) {
		block_pool_use_cached(pool, block);
		return true;
	}
	pool->shared_blocks += pool->refs[block]++ == 1;
	return false;
}

/* block_pool_unref() - true: it was the last one, and the block is free, or cached, as `keep` says. */
bool block_pool_unref(struct block_pool *pool, uint32_t block, bool keep);
/* block_pool_drop() - a cached one is free. */
void block_pool_drop(struct block_pool *pool, uint32_t block);

/*
 * block_pool_reserve() - a free block of a held chunk that is not empty is neither free nor in use, until
 * block_pool_unreserve(), or until block_pool_move() gives it all references of another one, or makes it cached in its
 * place. Both chunks are held.
 */
void block_pool_reserve(struct block_pool *pool, uint32_t block);
void block_pool_unreserve(struct block_pool *pool, uint32_t block);
void block_pool_move(struct block_pool *pool, uint32_t from, uint32_t to);

#endif
