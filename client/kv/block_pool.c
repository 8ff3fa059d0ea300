#include "client/kv/block_pool.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

int block_pool_init(struct block_pool *pool, uint32_t chunks, uint32_t chunk_blocks)
{
	struct bitmap *const sets[] = {
		&pool->holes, &pool->empty, &pool->unused, &pool->offered, &pool->spent, &pool->room};
	int error;

	memset(pool, 0, sizeof(*pool));
	pool->chunks = chunks;
	pool->chunk_blocks = chunk_blocks;
	pool->blocks = chunks * chunk_blocks;
	pool->refs = calloc(pool->blocks, sizeof(*pool->refs));
	pool->kept = calloc(chunks, sizeof(*pool->kept));
	pool->used = calloc(chunks, sizeof(*pool->used));
	error = !pool->refs || !pool->kept || !pool->used || bitmap_init(&pool->free, pool->blocks) ||
		bitmap_init(&pool->offered_free, pool->blocks);
	for (size_t i = 0; i < sizeof(sets) / sizeof(*sets) && !error; i++)
		error = bitmap_init(sets[i], chunks);
	if (error) {
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
	bitmap_fini(&pool->offered_free);
	bitmap_fini(&pool->holes);
	bitmap_fini(&pool->empty);
	bitmap_fini(&pool->unused);
	bitmap_fini(&pool->offered);
	bitmap_fini(&pool->spent);
	bitmap_fini(&pool->room);
	free(pool->refs);
	free(pool->kept);
	free(pool->used);
	pool->refs = pool->kept = pool->used = NULL;
}

/* ---- sets of chunks ---- */

static void set_put(struct bitmap *set, uint32_t chunk, bool in)
{
	if (in == bitmap_has(set, chunk))
		return;
	if (in)
		bitmap_add(set, chunk);
	else
		bitmap_remove(set, chunk);
}

/* Insert a chunk with memory into the sets that its counts and its state require. */
static void chunk_settle(struct block_pool *pool, uint32_t chunk)
{
	bool offered = bitmap_has(&pool->offered, chunk);
	uint32_t kept = pool->kept[chunk];

	set_put(&pool->empty, chunk, !offered && !kept);
	set_put(&pool->unused, chunk, !offered && kept && !pool->used[chunk]);
	set_put(&pool->spent, chunk, offered && !kept);
	set_put(&pool->room, chunk, offered && kept && kept < pool->chunk_blocks);
}

uint32_t block_pool_short(const struct block_pool *pool, uint32_t blocks)
{
	return blocks <= pool->free.count ? 0 : (blocks - pool->free.count - 1) / pool->chunk_blocks + 1;
}

void block_pool_fill(struct block_pool *pool, uint32_t chunk)
{
	bitmap_remove(&pool->holes, chunk);
	for (uint32_t i = 0; i < pool->chunk_blocks; i++)
		bitmap_add(&pool->free, chunk * pool->chunk_blocks + i);
	chunk_settle(pool, chunk);
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

/* ---- offered chunks ---- */

static void free_move(const struct block_pool *pool, uint32_t chunk, struct bitmap *from, struct bitmap *to)
{
	uint32_t end = (chunk + 1) * pool->chunk_blocks;

	/* BITMAP_NONE is beyond `end` too, so it ends the loop. */
	for (uint32_t block = bitmap_next(from, end - pool->chunk_blocks); block < end;
		block = bitmap_next(from, block + 1)) {
		bitmap_remove(from, block);
		bitmap_add(to, block);
	}
}

void block_pool_offer(struct block_pool *pool, uint32_t chunk)
{
	assert(bitmap_has(&pool->unused, chunk));
	free_move(pool, chunk, &pool->free, &pool->offered_free);
	bitmap_add(&pool->offered, chunk);
	chunk_settle(pool, chunk);
}

void block_pool_reclaim(struct block_pool *pool, uint32_t chunk)
{
	free_move(pool, chunk, &pool->offered_free, &pool->free);
	bitmap_remove(&pool->offered, chunk);
	chunk_settle(pool, chunk);
}

void block_pool_lose(struct block_pool *pool, uint32_t chunk)
{
	assert(bitmap_has(&pool->spent, chunk));
	block_pool_reclaim(pool, chunk);
	block_pool_drain(pool, chunk);
}

/* ---- blocks ---- */

/* Take `count` free blocks of a held chunk into use, beginning with `first`. */
static void take(struct block_pool *pool, uint32_t chunk, uint32_t first, uint32_t count)
{
	for (uint32_t block = first; block < first + count; block++) {
		bitmap_remove(&pool->free, block);
		pool->refs[block] = 1;
	}
	pool->kept[chunk] += count;
	pool->used[chunk] += count;
	pool->used_blocks += count;
	/* The chunk is held, so its sets change only when its first blocks are taken into use. */
	if (pool->used[chunk] == count)
		chunk_settle(pool, chunk);
}

uint32_t block_pool_take(struct block_pool *pool, uint32_t most, uint32_t *count)
{
	uint32_t first = bitmap_lowest(&pool->free), chunk = first / pool->chunk_blocks;
	uint32_t end = (chunk + 1) * pool->chunk_blocks, next = first + 1;

	assert(pool->free.count);
	if (end - first > most)
		end = first + most;
	while (next < end && bitmap_has(&pool->free, next))
		next++;
	*count = next - first;
	take(pool, chunk, first, *count);
	return first;
}

uint32_t block_pool_take_chunk(struct block_pool *pool)
{
	uint32_t chunk = bitmap_lowest(&pool->empty), first = chunk * pool->chunk_blocks;

	assert(pool->empty.count);
	take(pool, chunk, first, pool->chunk_blocks);
	return first;
}

void block_pool_use_cached(struct block_pool *pool, uint32_t block)
{
	uint32_t chunk = block / pool->chunk_blocks;

	assert(!bitmap_has(&pool->offered, chunk));
	pool->refs[block] = 1;
	pool->used_blocks++;
	pool->cached_blocks--;
	if (pool->used[chunk]++ == 0)
		chunk_settle(pool, chunk);
}

static void block_free(struct block_pool *pool, uint32_t block)
{
	uint32_t chunk = block / pool->chunk_blocks;
	bool offered = bitmap_has(&pool->offered, chunk);

	bitmap_add(offered ? &pool->offered_free : &pool->free, block);
	pool->kept[chunk]--;
	if (offered || !pool->used[chunk])
		chunk_settle(pool, chunk);
}

bool block_pool_unref(struct block_pool *pool, uint32_t block, bool keep)
{
	uint32_t chunk;

	assert(pool->refs[block]);
	if (--pool->refs[block]) {
		pool->shared_blocks -= pool->refs[block] == 1;
		return false;
	}
	chunk = block / pool->chunk_blocks;
	pool->used_blocks--;
	pool->used[chunk]--;
	if (keep) {
		pool->cached_blocks++;
	} else {
		/* A chunk with a block in use is not offered. */
		bitmap_add(&pool->free, block);
		pool->kept[chunk]--;
	}
	if (!pool->used[chunk])
		chunk_settle(pool, chunk);
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
	uint32_t chunk = block / pool->chunk_blocks;

	assert(pool->kept[chunk]);
	bitmap_remove(&pool->free, block);
	pool->kept[chunk]++;
	chunk_settle(pool, chunk);
}

void block_pool_unreserve(struct block_pool *pool, uint32_t block)
{
	block_free(pool, block);
}

void block_pool_move(struct block_pool *pool, uint32_t from, uint32_t to)
{
	uint32_t used = pool->refs[from] != 0;

	pool->refs[to] = pool->refs[from];
	pool->refs[from] = 0;
	pool->used[to / pool->chunk_blocks] += used;
	chunk_settle(pool, to / pool->chunk_blocks);
	pool->used[from / pool->chunk_blocks] -= used;
	block_free(pool, from);
}
