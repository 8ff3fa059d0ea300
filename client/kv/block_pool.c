/* block_pool.c - see block_pool.h. */
#include "client/kv/block_pool.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

int block_pool_init(struct block_pool *pool, uint32_t chunks, uint32_t chunk_blocks)
{
	memset(pool, 0, sizeof(*pool));
	pool->chunks = chunks;
	pool->chunk_blocks = chunk_blocks;
	pool->blocks = chunks * chunk_blocks;
	pool->refs = calloc(pool->blocks, sizeof(*pool->refs));
	pool->kept = calloc(chunks, sizeof(*pool->kept));
	if (!pool->refs || !pool->kept || bitmap_init(&pool->free, pool->blocks) || bitmap_init(&pool->holes, chunks) ||
		bitmap_init(&pool->empty, chunks)) {
		block_pool_fini(pool);
		return -ENOMEM;
	}
	for (uint32_t chunk = 0; chunk < chunks; chunk++)
		bitmap_add(&pool->holes, chunk);
	return 0;
}

void block_pool_fini(struct block_pool *pool)
{
	bitmap_fini(&pool->free);
	bitmap_fini(&pool->holes);
	bitmap_fini(&pool->empty);
	free(pool->refs);
	free(pool->kept);
	pool->refs = pool->kept = NULL;
}

uint32_t block_pool_short(const struct block_pool *pool, uint32_t blocks)
{
	return blocks <= pool->free.count ? 0 : (blocks - pool->free.count - 1) / pool->chunk_blocks + 1;
}

void block_pool_fill(struct block_pool *pool, uint32_t chunk)
{
	bitmap_remove(&pool->holes, chunk);
	bitmap_add(&pool->empty, chunk);
	for (uint32_t i = 0; i < pool->chunk_blocks; i++)
		bitmap_add(&pool->free, chunk * pool->chunk_blocks + i);
}

void block_pool_withhold(struct block_pool *pool, uint32_t chunk)
{
	for (uint32_t i = 0; i < pool->chunk_blocks; i++)
		bitmap_remove(&pool->free, chunk * pool->chunk_blocks + i);
	bitmap_remove(&pool->empty, chunk);
}

void block_pool_return(struct block_pool *pool, uint32_t chunk)
{
	bitmap_add(&pool->holes, chunk);
}

void block_pool_drain(struct block_pool *pool, uint32_t chunk)
{
	block_pool_withhold(pool, chunk);
	block_pool_return(pool, chunk);
}

static uint32_t take(struct block_pool *pool, uint32_t block)
{
	uint32_t chunk = block / pool->chunk_blocks;

	bitmap_remove(&pool->free, block);
	if (pool->kept[chunk]++ == 0)
		bitmap_remove(&pool->empty, chunk);
	pool->refs[block] = 1;
	pool->used_blocks++;
	return block;
}

uint32_t block_pool_take(struct block_pool *pool)
{
	assert(pool->free.count);
	return take(pool, bitmap_lowest(&pool->free));
}

uint32_t block_pool_take_chunk(struct block_pool *pool)
{
	uint32_t first = bitmap_lowest(&pool->empty) * pool->chunk_blocks;

	assert(pool->empty.count);
	for (uint32_t i = 0; i < pool->chunk_blocks; i++)
		take(pool, first + i);
	return first;
}

bool block_pool_ref(struct block_pool *pool, uint32_t block)
{
	bool cached = pool->refs[block] == 0;

	if (cached) {
		pool->used_blocks++;
		pool->cached_blocks--;
	}
	pool->shared_blocks += pool->refs[block]++ == 1;
	return cached;
}

static void block_free(struct block_pool *pool, uint32_t block)
{
	uint32_t chunk = block / pool->chunk_blocks;

	bitmap_add(&pool->free, block);
	if (--pool->kept[chunk] == 0)
		bitmap_add(&pool->empty, chunk);
}

bool block_pool_unref(struct block_pool *pool, uint32_t block, bool keep)
{
	assert(pool->refs[block]);
	if (--pool->refs[block]) {
		pool->shared_blocks -= pool->refs[block] == 1;
		return false;
	}
	pool->used_blocks--;
	if (keep)
		pool->cached_blocks++;
	else
		block_free(pool, block);
	return true;
}

void block_pool_drop(struct block_pool *pool, uint32_t block)
{
	assert(!pool->refs[block] && pool->cached_blocks);
	pool->cached_blocks--;
	block_free(pool, block);
}

void block_pool_reserve(struct block_pool *pool, uint32_t block)
{
	assert(pool->kept[block / pool->chunk_blocks]);
	bitmap_remove(&pool->free, block);
	pool->kept[block / pool->chunk_blocks]++;
}

void block_pool_unreserve(struct block_pool *pool, uint32_t block)
{
	block_free(pool, block);
}

void block_pool_move(struct block_pool *pool, uint32_t from, uint32_t to)
{
	pool->refs[to] = pool->refs[from];
	pool->refs[from] = 0;
	block_free(pool, from);
}
