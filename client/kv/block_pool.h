/*
 * block_pool.h - which blocks of a cache are in use, and which chunks have memory. Numbers only: memory.c brings the memory, and prefix.c
 * says what is worth keeping. Internal to libgpool.
 *
 * Invariants, where a chunk is chunk_blocks blocks in a row:
 *   a block is in use (refs > 0), cached (kept without a reference), free in a chunk that has memory (`free`), or in a chunk without (`holes`)
 *   a chunk that has memory and no block in use or cached is in `empty`: its memory can go
 *   kept[chunk] counts its blocks in use or cached
 */
#ifndef GPOOL_CLIENT_KV_BLOCK_POOL_H
#define GPOOL_CLIENT_KV_BLOCK_POOL_H

#include "policy/bitmap.h"

struct block_pool {
	struct bitmap free;  /* blocks */
	struct bitmap holes; /* chunks */
	struct bitmap empty; /* chunks */
	uint32_t *refs;      /* [blocks] */
	uint32_t *kept;      /* [chunks] */
	uint32_t blocks, chunks, chunk_blocks;
	uint32_t used_blocks, shared_blocks; /* shared: with more than one reference */
	uint32_t cached_blocks;
};

/* block_pool_init() - all chunks are holes: 0, -ENOMEM. chunks * chunk_blocks is at most BITMAP_BITS_MAX. _fini() - takes all zero, too. */
int block_pool_init(struct block_pool *pool, uint32_t chunks, uint32_t chunk_blocks);
void block_pool_fini(struct block_pool *pool);

/* block_pool_short() - how many chunks more must have memory for `blocks` blocks. */
uint32_t block_pool_short(const struct block_pool *pool, uint32_t blocks);

/* block_pool_fill() - a hole has memory now; block_pool_drain() - an empty one has none any more. */
void block_pool_fill(struct block_pool *pool, uint32_t chunk);
void block_pool_drain(struct block_pool *pool, uint32_t chunk);
/* block_pool_withhold() - as drain, but it is no hole before block_pool_return(): something may still look at its addresses. */
void block_pool_withhold(struct block_pool *pool, uint32_t chunk);
void block_pool_return(struct block_pool *pool, uint32_t chunk);

/* block_pool_take() - the lowest free one, with one reference. There is one: block_pool_short() said 0. */
uint32_t block_pool_take(struct block_pool *pool);
/* block_pool_take_chunk() - all blocks of the lowest empty chunk likewise; returns the first. There is one. */
uint32_t block_pool_take_chunk(struct block_pool *pool);

/* block_pool_ref() - of a block in use or cached; true: it was cached. */
bool block_pool_ref(struct block_pool *pool, uint32_t block);
/* block_pool_unref() - true: it was the last one, and the block is free, or cached, as `keep` says. */
bool block_pool_unref(struct block_pool *pool, uint32_t block, bool keep);
/* block_pool_drop() - a cached one is free. */
void block_pool_drop(struct block_pool *pool, uint32_t block);

/*
 * block_pool_reserve() - a free block of a chunk in use is neither free nor in use, until block_pool_unreserve(), or until block_pool_move()
 * gives it all references of another one, or makes it cached in its place.
 */
void block_pool_reserve(struct block_pool *pool, uint32_t block);
void block_pool_unreserve(struct block_pool *pool, uint32_t block);
void block_pool_move(struct block_pool *pool, uint32_t from, uint32_t to);

#endif
