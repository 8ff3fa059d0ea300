#include "client/core/stitch.h"

#include "client/core/window.h"
#include "shm/lease_bitmap.h"
#include "shm/plural.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct stitch {
	struct stitch *next, **link; /* in the list stitches->all */
	uint64_t word;               /* page word of the head */
	uint64_t sequence;           /* sequence of the tag; a commit changes the tag's attributes, not its sequence */
	struct stitch_range range;
	uint32_t page;
	uint32_t page_count;
};

struct stitches {
	pthread_mutex_t lock;
	struct stitch *all;
	uint32_t count, count_swept;
	struct stitch **at; /* [page_count], by first page; the kernel allocates the memory on first use */
	size_t bytes;
};

/* Unmap the range. Return -EBUSY if queued GPU work still uses it. */
static int stitch_unmap(struct gpool *pool, const struct stitch *stitch)
{
	int error = gpu_unmap(pool->gpu, stitch->range.va, stitch->range.bytes);

	if (error == -EBUSY)
		return error;
	if (!error)
		error = gpu_unreserve(pool->gpu, stitch->range.va, stitch->range.bytes);
	if (error)
		pool_log(pool, POOL_LOG_ERROR,
			"cannot unmap a scattered block of %u page%s: %s; its addresses are lost", stitch->page_count,
			plural(stitch->page_count), gpu_error_text());
	return 0;
}

/* ---- address ranges; the caller holds the lock ---- */

static int stitch_destroy(struct gpool *pool, struct stitch *stitch)
{
	struct stitches *stitches = pool->stitches;
	int error = stitch_unmap(pool, stitch);

	if (error)
		return error;
	*stitch->link = stitch->next;
	if (stitch->next)
		stitch->next->link = stitch->link;
	stitches->count--;
	if (stitches->at[stitch->page] == stitch)
		stitches->at[stitch->page] = NULL;
	free(stitch);
	return 0;
}

/* Unmap the ranges of blocks that the agent has evicted. Return false if queued work still uses one of them. */
static bool stitches_sweep(struct gpool *pool)
{
	struct stitches *stitches = pool->stitches;
	struct stitch *next;
	bool all = true;

	for (struct stitch *stitch = stitches->all; stitch; stitch = next) {
		uint64_t word = atomic_load_explicit(&pool->pages[stitch->page], memory_order_acquire);
		uint64_t tag = atomic_load_explicit(&block_entry(pool, stitch->page)->tag, memory_order_acquire);

		next = stitch->next;
		if (!block_word_same(word, stitch->word) || tag >> BLOCK_SEQUENCE_SHIFT != stitch->sequence)
			all &= !stitch_destroy(pool, stitch);
	}
	stitches->count_swept = stitches->count;
	return all;
}

static bool stitch_sweep(struct gpool *pool)
{
	bool all;

	if (!pool->stitches)
		return true;
	pthread_mutex_lock(&pool->stitches->lock);
	all = stitches_sweep(pool);
	pthread_mutex_unlock(&pool->stitches->lock);
	return all;
}

static const struct window_user user = {.sweep = stitch_sweep, .sweeps_locked = true};

int stitch_open(struct gpool *pool)
{
	struct stitches *stitches = calloc(1, sizeof(*stitches));

	if (!stitches)
		return -ENOMEM;
	stitches->bytes = pool->page_count * sizeof(*stitches->at);
	stitches->at =
		mmap(NULL, stitches->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (stitches->at == MAP_FAILED) {
		free(stitches);
		return -ENOMEM;
	}
	pthread_mutex_init(&stitches->lock, NULL);
	pool->stitches = stitches;
	window_register(pool, &user);
	return 0;
}

void stitch_close(struct gpool *pool)
{
	struct stitches *stitches = pool->stitches;

	if (!stitches)
		return;
	while (stitches->all) {
		/*
		 * All streams of the session are closed. Work that the program queued on its own streams must not block
		 * the detach.
		 */
		if (stitch_destroy(pool, stitches->all) == -EBUSY) {
			struct stitch *stitch = stitches->all;

			stitches->all = stitch->next;
			free(stitch);
		}
	}
	munmap(stitches->at, stitches->bytes);
	pthread_mutex_destroy(&stitches->lock);
	free(stitches);
	pool->stitches = NULL;
}

/* Return the size of the handles of a chain: the first and the last run may have parts of handles. */
static uint64_t chain_bytes(const struct gpool *pool, uint32_t first)
{
	uint32_t per_handle = pool->header->pages_per_handle, run = first, handles = 0;

	for (;;) {
		uint32_t count = atomic_load_explicit(&block_entry(pool, run)->page_count, memory_order_relaxed);
		uint32_t next = atomic_load_explicit(&block_entry(pool, run)->next, memory_order_relaxed);

		handles += (run + count - 1) / per_handle - run / per_handle + 1;
		if (!next)
			return handles * per_handle * pool->page_bytes;
		run = next - 1;
	}
}

/* Map the runs of the chain side by side. */
static int chain_map(struct gpool *pool, uint32_t first, const struct stitch_range *range)
{
	uint64_t at = range->va;
	uint32_t run = first;
	int error = 0;

	for (;;) {
		uint32_t count = atomic_load_explicit(&block_entry(pool, run)->page_count, memory_order_relaxed);
		uint32_t next = atomic_load_explicit(&block_entry(pool, run)->next, memory_order_relaxed);

		error = window_map_at(pool, run, count, &at);
		if (error || !next)
			break;
		run = next - 1;
	}
	if (!error)
		error = gpu_access(pool->gpu, range->va, range->bytes, GPU_ACCESS_READ_WRITE);
	if (error && at > range->va)
		gpu_unmap(pool->gpu, range->va, at - range->va);
	return error;
}

/* Create a mapped range, which other threads cannot find yet. */
static struct stitch *stitch_make(struct gpool *pool, uint32_t first, uint32_t page_count)
{
	struct stitches *stitches = pool->stitches;
	struct stitch *stitch = calloc(1, sizeof(*stitch)), *old;

	if (!stitch)
		return NULL;
	pthread_mutex_lock(&stitches->lock);
	if (stitches->count >= 16 && stitches->count >= 2 * stitches->count_swept)
		stitches_sweep(pool);
	old = stitches->at[first];
	if (old)
		stitch_destroy(pool, old);
	pthread_mutex_unlock(&stitches->lock);
	stitch->page = first;
	stitch->page_count = page_count;
	stitch->range.bytes = chain_bytes(pool, first);
	if (gpu_reserve(pool->gpu, stitch->range.bytes, 0, &stitch->range.va))
		goto free_stitch;
	if (chain_map(pool, first, &stitch->range))
		goto unreserve;
	window_keep_from_child(pool, stitch->range.va, stitch->range.bytes);
	return stitch;
unreserve:
	gpu_unreserve(pool->gpu, stitch->range.va, stitch->range.bytes);
free_stitch:
	pool_log(pool, POOL_LOG_ERROR, "cannot map %u page%s at contiguous addresses: %s", page_count,
		plural(page_count), gpu_error_text());
	free(stitch);
	return NULL;
}

/* Make the range visible to lookups and sweeps. Its block must therefore exist. */
static void stitch_publish(struct gpool *pool, struct stitch *stitch, const struct gpool_block *block)
{
	struct stitches *stitches = pool->stitches;

	stitch->word = block->generation;
	stitch->sequence = block->tag >> BLOCK_SEQUENCE_SHIFT;
	pthread_mutex_lock(&stitches->lock);
	stitch->next = stitches->all;
	stitch->link = &stitches->all;
	if (stitch->next)
		stitch->next->link = &stitch->next;
	stitches->all = stitch;
	stitches->count++;
	stitches->at[stitch->page] = stitch;
	pthread_mutex_unlock(&stitches->lock);
}

/* ---- chains of runs ---- */

/* Each entry is read before its free bits are set, because other threads may then reuse it. */
void chain_put(const struct gpool *pool, uint32_t run)
{
	for (;;) {
		uint32_t count = atomic_load_explicit(&block_entry(pool, run)->page_count, memory_order_relaxed);
		uint32_t next = atomic_load_explicit(&block_entry(pool, run)->next, memory_order_relaxed);

		pool_put(pool, run, count);
		if (!next)
			return;
		run = next - 1;
	}
}

/* Set the tag of all extents after the head. */
static void extents_tag(const struct gpool *pool, uint32_t head, uint64_t tag, uint64_t owner_id)
{
	uint32_t next = atomic_load_explicit(&block_entry(pool, head)->next, memory_order_relaxed);

	while (next) {
		struct block_entry *entry = block_entry(pool, next - 1);

		if (tag) {
			atomic_store_explicit(&entry->owner_id, owner_id, memory_order_relaxed);
			atomic_store_explicit(&entry->fence, 0, memory_order_relaxed);
		}
		atomic_store_explicit(&entry->tag, tag, memory_order_release);
		next = atomic_load_explicit(&entry->next, memory_order_relaxed);
	}
}

int chain_stand_as(struct gpool *pool, uint64_t sequence, uint32_t first, uint32_t page_count,
	const struct block_attributes *attributes, struct gpool_block *block)
{
	struct block_entry *head = block_entry(pool, first);
	uint64_t word;

	if (run_pin(pool, first, &word))
		return -ESTALE;
	extents_tag(pool, first,
		block_tag_make(sequence, BLOCK_EXTENT | (attributes->flags & (BLOCK_TYPE_MASK | BLOCK_PRIORITY_MASK))),
		attributes->owner_id);
	atomic_store_explicit(&head->owner_id, attributes->owner_id, memory_order_relaxed);
	atomic_store_explicit(&head->fence, 0, memory_order_relaxed);
	atomic_store_explicit(&pool->session.touch[first], pool_clock(pool), memory_order_relaxed);
	*block = (struct gpool_block){
		.generation = word,
		.tag = block_tag_make(sequence, attributes->flags | BLOCK_SCATTERED),
		.page = first,
		.page_count = page_count,
	};
	atomic_store_explicit(&head->tag, block->tag, memory_order_release);
	return 0;
}

int chain_stand(struct gpool *pool, struct thread_cache *cache, uint32_t first, uint32_t page_count,
	const struct block_attributes *attributes, struct gpool_block *block)
{
	return chain_stand_as(pool, sequence_next(cache), first, page_count, attributes, block);
}

void chain_end(struct gpool *pool, uint32_t first)
{
	/*
	 * Clear the head's tag first: a check accepts extents without a head, but not a head whose extents have other
	 * tags.
	 */
	atomic_store_explicit(&block_entry(pool, first)->tag, 0, memory_order_release);
	extents_tag(pool, first, 0, 0);
}

int stitch_create(struct gpool *pool, struct thread_cache *cache, uint32_t first, uint32_t page_count,
	const struct alloc_request *request, struct gpool_block *block)
{
	struct stitch *stitch = stitch_make(pool, first, page_count);

	if (!stitch) {
		chain_put(pool, first);
		return -ENOMEM;
	}
	if (chain_stand(pool, cache, first, page_count, &request->attributes, block)) {
		stitch_unmap(pool, stitch);
		free(stitch);
		chain_put(pool, first);
		return -ESTALE;
	}
	stitch_publish(pool, stitch, block);
	stat_add(cache, &cache->stats->allocations);
	stat_add(cache, &cache->stats->scattered);
	return 0;
}

int stitch_map(struct gpool *pool, const struct gpool_block *block)
{
	struct stitch *stitch = stitch_make(pool, block->page, block->page_count);

	if (!stitch)
		return -ENOMEM;
	stitch_publish(pool, stitch, block);
	return 0;
}

int stitch_finish(struct gpool *pool, const struct gpool_block *block)
{
	struct stitches *stitches = pool->stitches;
	struct thread_stats *transit;
	struct stitch *stitch;
	int error = 0;

	pthread_mutex_lock(&stitches->lock);
	stitch = stitches->at[block->page];
	if (stitch)
		error = stitch_destroy(pool, stitch);
	pthread_mutex_unlock(&stitches->lock);
	if (error)
		return error;
	transit = transit_begin(pool);
	chain_end(pool, block->page);
	pin_drop(&pool->session, block->page);
	chain_put(pool, block->page);
	transit_end(pool, transit);
	pool_wake_waiters(pool);
	return 0;
}

int stitch_find(const struct gpool *pool, const struct gpool_block *block, struct stitch_range *range)
{
	struct stitches *stitches = pool->stitches;
	const struct stitch *stitch;
	int error = -ESTALE;

	/* Take the lock, so that a caller without a pin gets a stale address at worst. */
	pthread_mutex_lock(&stitches->lock);
	stitch = stitches->at[block->page];
	if (stitch && stitch->sequence == block->tag >> BLOCK_SEQUENCE_SHIFT &&
		stitch->page_count == block->page_count) {
		*range = stitch->range;
		error = 0;
	}
	pthread_mutex_unlock(&stitches->lock);
	return error;
}

int stitch_address(const struct gpool *pool, const struct gpool_block *block, uint64_t *address)
{
	struct stitch_range range;
	int error = stitch_find(pool, block, &range);

	if (!error)
		*address = range.va + block->page % pool->header->pages_per_handle * pool->page_bytes;
	return error;
}

int stitch_forget(struct gpool *pool, const struct gpool_block *block, struct stitch_range *range)
{
	struct stitches *stitches = pool->stitches;
	struct stitch *stitch;

	pthread_mutex_lock(&stitches->lock);
	stitch = stitches->at[block->page];
	if (!stitch || stitch->sequence != block->tag >> BLOCK_SEQUENCE_SHIFT) {
		pthread_mutex_unlock(&stitches->lock);
		return -ESTALE;
	}
	*stitch->link = stitch->next;
	if (stitch->next)
		stitch->next->link = stitch->link;
	stitches->count--;
	stitches->at[stitch->page] = NULL;
	pthread_mutex_unlock(&stitches->lock);
	*range = stitch->range;
	free(stitch);
	return 0;
}

int stitch_take(struct gpool *pool, const struct gpool_block *block, struct stitch_range *range)
{
	int error = stitch_forget(pool, block, range);

	if (!error)
		chain_end(pool, block->page);
	return error;
}

int stitch_give(struct gpool *pool, const struct gpool_block *block, const struct stitch_range *range)
{
	struct stitch *stitch = calloc(1, sizeof(*stitch));

	if (!stitch)
		return -ENOMEM;
	*stitch = (struct stitch){.range = *range, .page = block->page, .page_count = block->page_count};
	extents_tag(pool, block->page,
		block_tag_make(block->tag >> BLOCK_SEQUENCE_SHIFT,
			BLOCK_EXTENT | ((uint32_t)block->tag & (BLOCK_TYPE_MASK | BLOCK_PRIORITY_MASK))),
		0);
	atomic_store_explicit(&block_entry(pool, block->page)->tag, block->tag, memory_order_release);
	stitch_publish(pool, stitch, block);
	return 0;
}
