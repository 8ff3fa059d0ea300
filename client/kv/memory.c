/*
 * memory.c - the memory of a cache's blocks: chunks of one elastic range.
 *
 * The number of handles in a chunk is chosen so that little memory is unused after its blocks. The pages of a chunk are
 * committed when its first block is taken into use, and decommitted, with a fence, when its last block is free.
 * Decommitted pages are reclaimable: if the agent has not taken them when the chunk is needed again, they are adopted
 * without a driver call. Chunks that have only cached blocks are offered (offer.h).
 */
#include "client/kv/kv.h"
#include "shm/plural.h"

#include "client/kv/offer.h"
#include "client/kv/pooled.h"
#include "client/kv/prefix.h"
#include "client/kv/resident.h"
#include "client/core/last_error.h"
#include "client/vm/elastic.h"

enum {
	/* chosen: 32 MB with handles of 2 MB; shapes of current models rarely need more than two handles */
	CHUNK_HANDLES_MAX = 16,
	WASTE_SHARE = 50, /* at most a fiftieth, or 2 %, may be unused */
};

#define BLOCK_BYTES_MAX (UINT64_C(1) << 40)

/*
 * Return 2 * layers * kv_heads * head_size * dtype_bytes * block_tokens, with the scales of int8, or 0 if a factor is 0
 * or the product exceeds BLOCK_BYTES_MAX.
 */
static uint64_t block_bytes_of(const struct gpool_kv *kv)
{
	const struct gpool_kv_shape *shape = &kv->shape;
	const uint32_t factors[] = {shape->layers, shape->kv_heads,
		kv->int8 ? shape->head_size + RESIDENT_SCALE_BYTES : shape->head_size, shape->dtype_bytes,
		shape->block_tokens};
	uint64_t bytes = 2;

	for (uint32_t i = 0; i < sizeof(factors) / sizeof(*factors); i++) {
		if (!factors[i] || bytes > BLOCK_BYTES_MAX / factors[i])
			return 0;
		bytes *= factors[i];
	}
	return bytes;
}

int memory_shape(struct gpool_kv *kv, uint32_t *chunk_blocks)
{
	uint64_t handle_bytes = kv->pool->page_bytes * handle_pages(kv->pool), best_bytes = 0, best_waste = 0, handles;

	kv->block_bytes = block_bytes_of(kv);
	if (!kv->block_bytes)
		return fail(-EINVAL,
			"the shape contains 0, or a block has more than 2^40 bytes: %u layer%s, %u head%s of %u "
			"element%s of %u byte%s",
			kv->shape.layers, plural(kv->shape.layers), kv->shape.kv_heads, plural(kv->shape.kv_heads),
			kv->shape.head_size, plural(kv->shape.head_size), kv->shape.dtype_bytes,
			plural(kv->shape.dtype_bytes));
	handles = (kv->block_bytes + handle_bytes - 1) / handle_bytes;
	for (uint64_t first = handles; handles == first || handles <= CHUNK_HANDLES_MAX; handles++) {
		uint64_t bytes = handles * handle_bytes, waste = bytes % kv->block_bytes;

		if (!best_bytes || waste * (best_bytes / handle_bytes) < best_waste * handles) {
			best_bytes = bytes;
			best_waste = waste;
		}
		if (best_waste * WASTE_SHARE <= best_bytes)
			break;
	}
	if (best_bytes / kv->pool->page_bytes > UINT32_MAX || best_bytes / kv->block_bytes > BITMAP_BITS_MAX)
		return fail(-EINVAL,
			"a block has %llu byte%s; it must have fewer than 2^32 pages, and a chunk at most %d blocks",
			(unsigned long long)kv->block_bytes, plural(kv->block_bytes), BITMAP_BITS_MAX);
	kv->chunk_bytes = best_bytes;
	kv->chunk_pages = (uint32_t)(best_bytes / kv->pool->page_bytes);
	*chunk_blocks = (uint32_t)(best_bytes / kv->block_bytes);
	return 0;
}

/* ---- commit and decommit ---- */

/* Return how many chunks, beginning with `chunk`, are in the set; at most `most`. */
static uint32_t run_of(const struct bitmap *bitmap, uint32_t chunk, uint32_t chunks, uint32_t most)
{
	uint32_t run = 1;

	while (run < most && chunk + run < chunks && bitmap_has(bitmap, chunk + run))
		run++;
	return run;
}

/* Decommit empty chunks. If the process sleeps or host memory is short, the chunks stay empty until a later call. */
static void empty_drain(struct gpool_kv *kv, struct gpool_fence fence)
{
	struct block_pool *blocks = &kv->blocks;

	for (uint32_t chunk = bitmap_lowest(&blocks->empty); chunk != BITMAP_NONE;) {
		uint32_t run = run_of(&blocks->empty, chunk, blocks->chunks, UINT32_MAX);

		if (gpool_range_decommit(kv->range, chunk * kv->chunk_pages, run * kv->chunk_pages, fence))
			return;
		for (uint32_t i = 0; i < run; i++)
			block_pool_drain(blocks, chunk + i);
		chunk = bitmap_next(&blocks->empty, chunk + run);
	}
}

void memory_park(struct gpool_kv *kv)
{
	struct gpool_fence fence = {0};
	int error;

	pooled_park(kv);
	offer_settle(kv);
	if (!kv->blocks.empty.count && !kv->blocks.unused.count)
		return;
	error = gpool_fence_record(kv->pool, kv->stream, &fence);
	/* -EINVAL: the stream was closed, so its work is done. */
	if (error && error != -EINVAL)
		return;
	empty_drain(kv, fence);
	offer_chunks(kv, fence);
}

void memory_settle(struct gpool_kv *kv)
{
	if (kv->blocks.unused.count || kv->blocks.spent.count)
		memory_park(kv);
}

/*
 * Commit `missing` holes. If the cache has cached blocks, which can be evicted instead, commit as many as the pool has
 * memory for before returning the error.
 */
static int holes_fill(struct gpool_kv *kv, uint32_t missing)
{
	struct block_pool *pool = &kv->blocks;
	uint32_t most = missing;

	while (missing && pool->holes.count) {
		uint32_t chunk = bitmap_lowest(&pool->holes);
		uint32_t run = run_of(&pool->holes, chunk, pool->chunks, missing < most ? missing : most);
		int error = gpool_range_commit(kv->range, chunk * kv->chunk_pages, run * kv->chunk_pages, 0);

		if (error && (run == 1 || !is_shortage(error) || !pool->cached_blocks))
			return error;
		if (error) {
			most = run / 2;
			continue;
		}
		for (uint32_t i = 0; i < run; i++)
			block_pool_fill(pool, chunk + i);
		missing -= run;
	}
	return missing ? -ENOSPC : 0;
}

bool memory_get_chunk(struct gpool_kv *kv)
{
	return kv->blocks.empty.count || holes_fill(kv, 1) == 0;
}

/* Reclaim as many offered chunks as possible; lost chunks are skipped. */
static void offered_reclaim(struct gpool_kv *kv)
{
	const struct bitmap *offered = &kv->blocks.offered;

	for (uint32_t chunk = bitmap_lowest(offered); chunk != BITMAP_NONE; chunk = bitmap_next(offered, chunk + 1))
		offer_reclaim(kv, chunk);
}

/*
 * Reclaim offered chunks with free blocks until `blocks` blocks are free. Return: 0, or any error except the loss of a
 * chunk.
 */
static int room_reclaim(struct gpool_kv *kv, uint32_t blocks)
{
	const struct block_pool *pool = &kv->blocks;
	int error = 0;

	while ((!error || error == -ENODATA) && blocks > pool->free.count && pool->room.count)
		error = offer_reclaim(kv, bitmap_lowest(&pool->room));
	return error == -ENODATA ? 0 : error;
}

/*
 * Evict cached blocks in order until `blocks` blocks are free. Return: 0, -ENOSPC (too many cached blocks were lost in
 * the meantime), or as offer_reclaim().
 */
static int cached_evict(struct gpool_kv *kv, uint32_t blocks)
{
	const struct block_pool *pool = &kv->blocks;
	int error = 0;

	while ((!error || error == -ENODATA) && blocks > pool->free.count) {
		uint32_t block = block_order_next(&kv->order), chunk = block / pool->chunk_blocks;

		if (block == BLOCK_ORDER_NONE)
			return -ENOSPC;
		error = 0;
		if (bitmap_has(&pool->offered, chunk))
			error = offer_reclaim(kv, chunk);
		else
			prefix_evict(kv, 1);
	}
	return error == -ENODATA ? 0 : error;
}

/*
 * Provide more blocks. The first request gets free and idle pages, and pages whose content is evicted before this
 * cache's (LEASE_OWN_LAST). If these are too few, evict cached blocks one by one, without a driver call. If the cached
 * blocks would not suffice, hold the offered chunks and repeat the request, which evicts other content.
 */
static int memory_get_more(struct gpool_kv *kv, uint32_t blocks)
{
	struct block_pool *pool = &kv->blocks;
	uint32_t missing;
	int error = room_reclaim(kv, blocks);

	if (!error)
		error = holes_fill(kv, block_pool_short(pool, blocks));
	missing = blocks > pool->free.count ? blocks - pool->free.count : 0;
	if (is_shortage(error) && missing > pool->cached_blocks && pool->offered.count) {
		/* Hold the offered chunks first: the agent might evict them to grant their memory to this session. */
		offered_reclaim(kv);
		error = holes_fill(kv, block_pool_short(pool, blocks));
		missing = blocks > pool->free.count ? blocks - pool->free.count : 0;
	}
	return is_shortage(error) && missing <= pool->cached_blocks ? cached_evict(kv, blocks) : error;
}

int memory_try(struct gpool_kv *kv, uint32_t blocks)
{
	if (blocks > kv->blocks.blocks - kv->blocks.used_blocks)
		return -ENOSPC;
	if (blocks <= kv->blocks.free.count)
		return 0;
	offer_look(kv);
	return memory_get_more(kv, blocks);
}

int memory_get(struct gpool_kv *kv, uint32_t blocks)
{
	int error = memory_try(kv, blocks);

	if (error)
		memory_park(kv);
	return error;
}

/* ---- sizes ---- */

/*
 * Return the number of pages that are free in the pool or idle in this session. Some of the idle pages can be adopted;
 * the others can be exchanged with the agent without an eviction.
 */
static uint32_t pages_to_be_had(const struct gpool_kv *kv)
{
	const struct gpool *pool = kv->pool;
	uint32_t pages = atomic_load_explicit(&pool->header->state_pages[PAGE_FREE], memory_order_relaxed);
	uint32_t reserved = pool->page_count - pool->unreserved;

	/* Complete the decommits whose fences are signaled. */
	elastic_settle_all(kv->range->elastic);
	pages -= pages < reserved ? pages : reserved;
	for (uint32_t word = 0; word < (pool->page_count + 63) / 64; word++)
		pages += (uint32_t)__builtin_popcountll(
			atomic_load_explicit(&pool->session.free_bits[word], memory_order_relaxed));
	return pages;
}

uint32_t memory_blocks(const struct gpool_kv *kv)
{
	uint32_t chunks = pages_to_be_had(kv) / kv->chunk_pages;

	if (chunks > kv->blocks.holes.count)
		chunks = kv->blocks.holes.count;
	return kv->blocks.free.count + kv->blocks.offered_free.count + kv->blocks.cached_blocks +
		chunks * kv->blocks.chunk_blocks;
}

uint64_t memory_spare_pages(const struct gpool_kv *kv, uint32_t blocks)
{
	uint32_t offered = kv->blocks.offered_free.count;
	uint64_t pages = pages_to_be_had(kv), needed;

	needed = (uint64_t)block_pool_short(&kv->blocks, blocks > offered ? blocks - offered : 0) * kv->chunk_pages;
	return pages > needed ? pages - needed : 0;
}

uint32_t memory_limit(const struct gpool_kv *kv)
{
	uint32_t chunks = kv->pool->unreserved / kv->chunk_pages;

	return chunks < kv->blocks.chunks ? chunks * kv->blocks.chunk_blocks : kv->blocks.blocks;
}
