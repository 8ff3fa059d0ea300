/*
 * compact.c - compact a cache: move blocks out of the chunks with the fewest blocks into free blocks of other chunks,
 * so that pages return to the pool.
 *
 * Chunks are emptied one after the other, because a chunk keeps all its pages as long as it has a single block. The
 * copies are queued on the cache's stream. Work that was queued earlier therefore reads the old entries of the tables,
 * which refer to the old places of the blocks; work that is queued later reads the new entries. The pages of an empty
 * chunk are returned when a fence recorded after the copies is signaled. The cache's options limit the rate (budget.h),
 * because the copies compete with the engine's work for bandwidth.
 */
#include "client/kv/kv.h"

#include "client/kv/copies.h"
#include "client/kv/offer.h"
#include "client/kv/prefix.h"
#include "client/vm/range.h"

#include <stdlib.h>

/*
 * Return the chunk to empty: the held chunk with the fewest blocks in use or cached; of several, the last. Return
 * pool->chunks if all chunks have more than `most` such blocks, or if there are too few free blocks.
 */
static uint32_t chunk_to_empty(const struct block_pool *pool, uint32_t most)
{
	uint32_t best = pool->chunks;

	/*
	 * Blocks must not move into empty chunks. If the chunks that are not empty have chunk_blocks free blocks in
	 * all, each of them can be emptied into the others.
	 */
	if (pool->free.count - pool->empty.count * pool->chunk_blocks < pool->chunk_blocks)
		return best;
	for (uint32_t chunk = 0; chunk < pool->chunks; chunk++)
		if (pool->kept[chunk] && !bitmap_has(&pool->offered, chunk) && pool->kept[chunk] <= most &&
			(best == pool->chunks || pool->kept[chunk] <= pool->kept[best]))
			best = chunk;
	return best;
}

/* Return the lowest free block in another chunk that is not empty. */
static uint32_t place_for(const struct block_pool *pool, uint32_t chunk)
{
	uint32_t block = bitmap_lowest(&pool->free);

	while (block / pool->chunk_blocks == chunk || !pool->kept[block / pool->chunk_blocks])
		block = bitmap_next(&pool->free, (block / pool->chunk_blocks + 1) * pool->chunk_blocks);
	return block;
}

/* Reserve a target for each block of the chunk and queue the copies. to[i] is BITMAP_NONE if block i is free. */
static int copies_queue(struct gpool_kv *kv, uint32_t chunk, uint32_t *to)
{
	struct block_pool *pool = &kv->blocks;
	uint32_t first = chunk * pool->chunk_blocks;
	struct copies copies;
	int error = 0;

	copies_begin(&copies, kv);
	for (uint32_t i = 0; i < pool->chunk_blocks; i++) {
		to[i] = BITMAP_NONE;
		if (error || (!pool->refs[first + i] && !prefix_table_has(&kv->prefixes, first + i)))
			continue;
		to[i] = place_for(pool, chunk);
		block_pool_reserve(pool, to[i]);
		error = copies_add(&copies, to[i], first + i);
	}
	if (!error)
		error = copies_end(&copies);
	for (uint32_t i = 0; error && i < pool->chunk_blocks; i++)
		if (to[i] != BITMAP_NONE)
			block_pool_unreserve(pool, to[i]);
	return error;
}

/* Replace the moved blocks in the tables of sequences, while appends without the lock are stopped. */
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

/* Empty a chunk. Return the number of moved blocks, or a negative errno. */
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

/*
 * Reclaim the offered chunks that have free blocks, if a chunk can be emptied with their help. memory_park() offers
 * them again.
 */
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
