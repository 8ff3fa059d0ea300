/* offer.c - offer and reclaim chunks that no sequence uses, and detect lost ones. See offer.h. */
#include "client/kv/offer.h"

#include "client/kv/extent.h"
#include "client/kv/pooled.h"
#include "client/vm/elastic.h"

#include <stdlib.h>
#include <string.h>

enum mark { MARK_NONE, MARK_STAYS, MARK_GOES };

int offer_open(struct gpool_kv *kv)
{
	if (!kv->prefixes.entries)
		return 0;
	kv->marks = calloc(kv_block_count(kv), sizeof(*kv->marks));
	return kv->marks && !bitmap_init(&kv->lost, kv_block_count(kv) / kv->blocks.chunk_blocks) ? 0 : -ENOMEM;
}

void offer_close(struct gpool_kv *kv)
{
	free(kv->marks);
	bitmap_fini(&kv->lost);
}

static struct elastic_pages chunk_pages(const struct gpool_kv *kv, uint32_t chunk)
{
	return (struct elastic_pages){.first = chunk * kv->chunk_pages, .count = kv->chunk_pages, .times = 1};
}

/* ---- the agent's view of a chunk ---- */

/* Return the chunk's first block with a key, which identifies the content. The chunk must have such a block. */
static uint32_t first_keyed(const struct gpool_kv *kv, uint32_t chunk)
{
	uint32_t block = chunk * kv->blocks.chunk_blocks;

	while (!prefix_table_has(&kv->prefixes, block))
		block++;
	return block;
}

/*
 * Return the current time, minus one millisecond for each chunk of the text before the block. Of chunks used at the
 * same time, those at the end of a text are therefore evicted first, since only the beginning is useful alone.
 */
static uint32_t use_time(const struct gpool_kv *kv, uint32_t block)
{
	return pool_clock(kv->pool) - kv->prefixes.entries[block].depth / kv->blocks.chunk_blocks;
}

/* Return the first page of the handle with this index in a held chunk. */
static uint32_t handle_page(const struct gpool_kv *kv, uint32_t chunk, uint32_t index)
{
	const struct elastic *elastic = kv->range->elastic;

	return elastic->space.pages[elastic_slot_of(elastic, chunk * kv->chunk_pages) + index] - 1;
}

static uint32_t chunk_handles(const struct gpool_kv *kv)
{
	return kv->chunk_pages / handle_pages(kv->pool);
}

/* Set the time of the chunk's last use for the agent's eviction policy. */
static void chunk_touch(const struct gpool_kv *kv, uint32_t chunk, uint32_t time)
{
	for (uint32_t i = 0; i < chunk_handles(kv); i++)
		atomic_store_explicit(&kv->pool->session.touch[handle_page(kv, chunk, i)], time, memory_order_relaxed);
}

/* ---- offer ---- */

/*
 * Offer a chunk. The owner id of its handles is the same in all engines that have the same text in the chunk. With
 * GPOOL_KV_ADAPTIVE, only lookups count as uses. The offer therefore keeps the time of the chunk's last lookup, unless
 * its content has changed.
 */
static int chunk_offer(struct gpool_kv *kv, uint32_t chunk, struct gpool_fence fence)
{
	const struct elastic_pages pages = chunk_pages(kv, chunk);
	uint32_t block = first_keyed(kv, chunk), page = handle_page(kv, chunk, 0), time = use_time(kv, block);
	uint64_t name = kv->prefixes.entries[block].key.low;
	int error;

	if (kv->order.eviction &&
		atomic_load_explicit(&block_entry(kv->pool, page)->owner_id, memory_order_relaxed) == name)
		time = atomic_load_explicit(&kv->pool->session.touch[page], memory_order_relaxed);
	error = elastic_offer(kv->range->elastic, &pages, fence.value, name);
	if (!error)
		chunk_touch(kv, chunk, time);
	return error;
}

void offer_chunks(struct gpool_kv *kv, struct gpool_fence fence)
{
	struct block_pool *pool = &kv->blocks;

	for (uint32_t chunk = bitmap_lowest(&pool->unused); chunk != BITMAP_NONE;
		chunk = bitmap_next(&pool->unused, chunk + 1)) {
		const struct elastic_pages pages = chunk_pages(kv, chunk);

		if (range_enter(kv->range, &pages))
			return;
		if (!chunk_offer(kv, chunk, fence))
			block_pool_offer(pool, chunk);
		ranges_leave(kv->pool->ranges);
	}
}

/* ---- lost chunks ---- */

/* Mark the blocks in lost chunks. Return how many blocks outside of lost chunks directly follow a marked block. */
static uint32_t lost_mark(struct gpool_kv *kv)
{
	const struct prefix_entry *entries = kv->prefixes.entries;
	uint32_t count = kv->blocks.chunk_blocks, followers = 0;

	for (uint32_t chunk = bitmap_lowest(&kv->lost); chunk != BITMAP_NONE; chunk = bitmap_next(&kv->lost, chunk + 1))
		for (uint32_t block = chunk * count; block < (chunk + 1) * count; block++) {
			uint32_t parent = entries[block].parent;

			if (!prefix_table_has(&kv->prefixes, block))
				continue;
			kv->marks[block] = MARK_GOES;
			followers += entries[block].children;
			followers -= parent != PREFIX_NONE && bitmap_has(&kv->lost, parent / count);
		}
	return followers;
}

/*
 * Mark each block like its parent. Each chain is walked twice: to find the nearest ancestor with a mark, and to mark
 * the blocks on the way.
 */
static void followers_mark(struct gpool_kv *kv)
{
	const struct prefix_entry *entries = kv->prefixes.entries;

	for (uint32_t block = 0; block < kv_block_count(kv); block++) {
		uint32_t known = block;
		uint8_t mark;

		if (!prefix_table_has(&kv->prefixes, block))
			continue;
		while (known != PREFIX_NONE && !kv->marks[known])
			known = entries[known].parent;
		mark = known == PREFIX_NONE ? MARK_STAYS : kv->marks[known];
		for (uint32_t at = block; at != known; at = entries[at].parent)
			kv->marks[at] = mark;
	}
}

/* Remove the block's key. Return its parent. */
static uint32_t drop(struct gpool_kv *kv, uint32_t block)
{
	uint32_t before = kv->prefixes.entries[block].parent;

	if (!is_pooled(kv, block))
		block_order_evict(&kv->order, block);
	prefix_table_remove(&kv->prefixes, block);
	if (!is_pooled(kv, block))
		block_pool_drop(&kv->blocks, block);
	kv->marks[block] = MARK_NONE;
	kv->prefix_lost++;
	return before;
}

/* Remove marked blocks, children first. */
static void marked_drop(struct gpool_kv *kv, uint32_t first, uint32_t end)
{
	for (uint32_t i = first; i < end; i++)
		for (uint32_t block = i;
			block != PREFIX_NONE && kv->marks[block] == MARK_GOES && !kv->prefixes.entries[block].children;)
			block = drop(kv, block);
}

void offer_drop_lost(struct gpool_kv *kv)
{
	uint32_t count = kv->blocks.chunk_blocks;

	if (lost_mark(kv)) {
		followers_mark(kv);
		marked_drop(kv, 0, kv_block_count(kv));
		memset(kv->marks, 0, kv_block_count(kv) * sizeof(*kv->marks));
	}
	for (uint32_t chunk = bitmap_lowest(&kv->lost); chunk != BITMAP_NONE; chunk = bitmap_next(&kv->lost, chunk + 1))
		marked_drop(kv, chunk * count, (chunk + 1) * count);
	while (kv->lost.count) {
		uint32_t chunk = bitmap_lowest(&kv->lost);

		bitmap_remove(&kv->lost, chunk);
		if (chunk < kv->blocks.chunks)
			block_pool_lose(&kv->blocks, chunk);
	}
	pooled_settle(kv);
}

/* ---- reclaim; between range_enter() and ranges_leave() ---- */

/*
 * Hold the handles of an offered chunk again. Return: 0; -ENODATA: the agent has taken a handle, and the others were
 * decommitted; -EHOSTDOWN: the range sleeps.
 */
static int handles_reclaim(struct gpool_kv *kv, uint32_t chunk)
{
	const struct elastic_pages pages = chunk_pages(kv, chunk);
	int lost = elastic_reclaim(kv->range->elastic, &pages, NULL);

	if (lost <= 0)
		return lost;
	/* If host memory is short, the decommit fails, and the handles stay committed until the chunk is used again. */
	elastic_decommit(kv->range->elastic, &pages, offload_behind(kv).value);
	return -ENODATA;
}

static int reclaim(struct gpool_kv *kv, uint32_t chunk)
{
	int error = handles_reclaim(kv, chunk);

	if (!error) {
		block_pool_reclaim(&kv->blocks, chunk);
	} else if (error == -ENODATA) {
		bitmap_add(&kv->lost, chunk);
		offer_drop_lost(kv);
	}
	return error;
}

int offer_reclaim(struct gpool_kv *kv, uint32_t chunk)
{
	const struct elastic_pages pages = chunk_pages(kv, chunk);
	int error = range_enter(kv->range, &pages);

	if (error)
		return error;
	error = reclaim(kv, chunk);
	ranges_leave(kv->pool->ranges);
	return error;
}

int offer_use(struct gpool_kv *kv, uint32_t chunk)
{
	const struct elastic_pages pages = chunk_pages(kv, chunk);
	int error = range_enter(kv->range, &pages);

	if (error)
		return error;
	if (bitmap_has(&kv->blocks.offered, chunk))
		error = reclaim(kv, chunk);
	if (!error)
		chunk_touch(kv, chunk, use_time(kv, first_keyed(kv, chunk)));
	ranges_leave(kv->pool->ranges);
	return error;
}

void offer_settle(struct gpool_kv *kv)
{
	while (kv->blocks.spent.count) {
		int error = offer_reclaim(kv, bitmap_lowest(&kv->blocks.spent));

		if (error && error != -ENODATA)
			return;
	}
}

/* ---- detect lost chunks ---- */

static bool is_lost(const struct gpool_kv *kv, uint32_t chunk)
{
	const struct elastic_pages pages = chunk_pages(kv, chunk);

	return !elastic_is_here(kv->range->elastic, &pages);
}

/* Return the number of handles that the agent or gpool_sleep() has taken. */
static uint64_t times_taken(const struct gpool_kv *kv)
{
	return atomic_load_explicit(&kv->pool->session.header->evictions, memory_order_acquire) +
		atomic_load_explicit(&kv->range->elastic->discarded, memory_order_acquire);
}

/*
 * Find the lost chunks in the cache's own memory. The counter is read first, so that the next call detects handles that
 * are taken during this call.
 */
static void own_lost(struct gpool_kv *kv)
{
	const struct elastic_pages all = {.first = 0, .count = 1, .times = 1};
	const struct bitmap *offered = &kv->blocks.offered;
	uint64_t taken;

	if (likely(!offered->count || (taken = times_taken(kv)) == kv->taken_known) || range_enter(kv->range, &all))
		return;
	kv->taken_known = taken;
	for (uint32_t chunk = bitmap_lowest(offered); chunk != BITMAP_NONE; chunk = bitmap_next(offered, chunk + 1))
		if (is_lost(kv, chunk) && handles_reclaim(kv, chunk) == -ENODATA)
			bitmap_add(&kv->lost, chunk);
	ranges_leave(kv->pool->ranges);
}

void offer_look(struct gpool_kv *kv)
{
	if (!kv->prefixes.entries)
		return;
	own_lost(kv);
	pooled_lost(kv);
	if (unlikely(kv->lost.count)) {
		offer_drop_lost(kv);
		memory_park(kv);
	}
}
