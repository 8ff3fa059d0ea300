/*
 * pack.c - blocks out of chunks that are nearly empty, into holes of others, so that pages go back to the pool.
 *
 * One chunk at a time, and only whole: a chunk that keeps one block keeps all its pages. Copies are queued on the
 * cache's stream, so work that was queued before finds the blocks where its tables say, and what is queued later where
 * the new ones say; a chunk that is empty goes back behind a fence, as always. How much is moved over time the cache's
 * owner bounds (budget.h): copies take bandwidth from the engine's work.
 */
#include "client/kv/kv.h"

#include "client/kv/offer.h"
#include "client/kv/prefix.h"
#include "client/vm/range.h"

#include <stdlib.h>

/*
 * The chunk to be emptied: the one with the fewest blocks, of those the last. pool->chunks: there is none, or no room
 * for it.
 */
static uint32_t chunk_to_empty(const struct block_pool *pool, uint32_t most)
{
	uint32_t best = pool->chunks;

	/*
	 * Filling chunks that are empty would gain nothing: so there must be a chunk's worth of holes in those that are
	 * not.
	 */
	if (pool->free.count - pool->empty.count * pool->chunk_blocks < pool->chunk_blocks)
		return best;
	for (uint32_t chunk = 0; chunk < pool->chunks; chunk++)
		if (pool->kept[chunk] && !bitmap_has(&pool->offered, chunk) && pool->kept[chunk] <= most &&
			(best == pool->chunks || pool->kept[chunk] <= pool->kept[best]))
			best = chunk;
	return best;
}

/* The lowest free block of another chunk that has some in use. */
static uint32_t place_for(const struct block_pool *pool, uint32_t chunk)
{
	uint32_t block = bitmap_lowest(&pool->free);

	while (block / pool->chunk_blocks == chunk || !pool->kept[block / pool->chunk_blocks])
		block = bitmap_next(&pool->free, (block / pool->chunk_blocks + 1) * pool->chunk_blocks);
	return block;
}

/* Where each block of the chunk goes: BITMAP_NONE, nobody has it. Copies are queued, and nothing else has changed. */
static int copies_queue(struct gpool_kv *kv, uint32_t chunk, uint32_t *to)
{
	struct block_pool *pool = &kv->blocks;
	uint32_t first = chunk * pool->chunk_blocks;
	int error = 0;

	for (uint32_t i = 0; i < pool->chunk_blocks; i++) {
		to[i] = BITMAP_NONE;
		if (error || (!pool->refs[first + i] && !prefix_table_has(&kv->prefixes, first + i)))
			continue;
		to[i] = place_for(pool, chunk);
		block_pool_reserve(pool, to[i]);
		error = gpool_copy(kv->pool, kv->stream, memory_address(kv, to[i]), memory_address(kv, first + i),
			kv->block_bytes);
	}
	for (uint32_t i = 0; error && i < pool->chunk_blocks; i++)
		if (to[i] != BITMAP_NONE)
			block_pool_unreserve(pool, to[i]);
	return error;
}

/* Sequences find them there. Who appends without the lock is stopped meanwhile. */
static void sequences_follow(struct gpool_kv *kv, uint32_t first, const uint32_t *to)
{
	struct kv_sequence *sequence;

	RB_FOREACH(sequence, kv_order, &kv->running)
	{
		uint32_t tokens = cursor_stop(sequence);

		for (uint32_t i = 0; i < sequence->blocks; i++) {
			uint32_t block = kv_entry(kv, sequence, i);

			if (block >= first && block - first < kv->blocks.chunk_blocks)
				kv_set_entry(kv, sequence, i, to[block - first]);
		}
		cursor_go(kv, sequence, tokens);
	}
}

/* How many blocks have moved, or a negative errno. */
static int chunk_empty(struct gpool_kv *kv, uint32_t chunk, uint32_t *to)
{
	uint32_t first = chunk * kv->blocks.chunk_blocks, moved = 0;
	int error = copies_queue(kv, chunk, to);

	if (error)
		return error;
	for (uint32_t i = 0; i < kv->blocks.chunk_blocks; i++) {
		if (to[i] == BITMAP_NONE)
			continue;
		if (prefix_table_has(&kv->prefixes, first + i)) {
			block_order_move(&kv->order, first + i, to[i], !kv->blocks.refs[first + i]);
			prefix_table_move(&kv->prefixes, first + i, to[i], PREFIX_NONE);
		}
		block_pool_move(&kv->blocks, first + i, to[i]);
		moved++;
	}
	sequences_follow(kv, first, to);
	return (int)moved;
}

/* Offered chunks with free blocks are held meanwhile, if there are enough holes to empty a chunk. */
static void room_reclaim(struct gpool_kv *kv)
{
	struct block_pool *pool = &kv->blocks;
	uint32_t free = pool->free.count - pool->empty.count * pool->chunk_blocks + pool->offered_free.count;

	offer_look(kv);
	for (uint32_t chunk = bitmap_lowest(&pool->room); free >= pool->chunk_blocks && chunk != BITMAP_NONE;
		chunk = bitmap_next(&pool->room, chunk + 1))
		offer_reclaim(kv, chunk);
}

static int pack(struct gpool_kv *kv, uint32_t blocks)
{
	uint64_t room = budget_room(&kv->packing, monotonic_ns()) / kv->block_bytes;
	uint32_t *to = calloc(kv->blocks.chunk_blocks, sizeof(*to)), moved = 0;
	int result = to ? 0 : -ENOMEM;

	if (blocks > room)
		blocks = (uint32_t)room;
	room_reclaim(kv);
	while (result >= 0) {
		uint32_t chunk = chunk_to_empty(&kv->blocks, blocks - moved);

		if (chunk == kv->blocks.chunks)
			break;
		result = chunk_empty(kv, chunk, to);
		moved += result > 0 ? (uint32_t)result : 0;
	}
	free(to);
	memory_park(kv);
	kv->block_copies += moved;
	budget_spend(&kv->packing, moved * kv->block_bytes);
	return result < 0 && !moved ? result : (int)moved;
}

int gpool_kv_compact(struct gpool_kv *kv, uint32_t blocks)
{
	int result;

	if (!kv->pool->alive)
		return -ECHILD;
	pthread_mutex_lock(&kv->lock);
	result = ranges_enter(kv->pool->ranges);
	if (!result) {
		result = pack(kv, blocks);
		ranges_leave(kv->pool->ranges);
	}
	pthread_mutex_unlock(&kv->lock);
	return result;
}
