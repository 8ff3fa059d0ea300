/*
 * free.c - end blocks.
 *
 * A free first claims the entry: a compare-and-swap adds BLOCK_DYING to the tag. If two threads free a block, only one
 * of them succeeds; after that, no pin succeeds. The free reads the pins only after the claim, because otherwise it
 * would miss a pin that is added between the read and the claim. If the caller's pin is the only one, no other thread
 * can use the block, and the block ends. Otherwise the block keeps the caller's pin until the other pins are dropped.
 */
#include "client/core/alloc.h"
#include "shm/plural.h"

#include "client/core/deferred.h"
#include "client/core/flight.h"
#include "client/core/interrupt.h"
#include "client/core/last_error.h"
#include "client/core/spill.h"
#include "client/core/stitch.h"
#include "client/core/stream.h"
#include "shm/lease_bitmap.h"
#include "shm/timeline.h"

/*
 * Make a run idle again. The pin is dropped after the tag is cleared and before the free bits are set, so that no
 * observer finds a page in two states.
 */
static void run_to_bits(struct gpool *pool, uint32_t page, uint32_t page_count)
{
	struct thread_stats *transit = transit_begin(pool);

	atomic_store_explicit(&block_entry(pool, page)->tag, 0, memory_order_release);
	pin_drop(&pool->session, page);
	pool_put(pool, page, page_count);
	transit_end(pool, transit);
	pool_wake_waiters(pool);
}

/*
 * A deferred_finish function. It removes the record of a moved block only at the end of the free, because threads that
 * still have the block pinned find it through that record.
 */
static int block_finish(struct gpool *pool, const struct gpool_block *block, bool taken)
{
	if (block->tag & BLOCK_SPILL)
		spill_forget(pool, block->tag);
	if (taken)
		return 0;
	if (block->tag & BLOCK_SCATTERED)
		return stitch_finish(pool, block);
	run_to_bits(pool, block->page, block->page_count);
	return 0;
}

static COLD void free_later(struct gpool *pool, const struct gpool_block *block, uint64_t fence)
{
	/* Pins that fail because of the claimed tag are dropped within a few instructions, so wait briefly. */
	for (int tries = 0; tries < 64 && pin_count(&pool->session, block->page) > 1; tries++)
		cpu_relax();
	deferred_free(pool, block, fence, block_finish);
}

/*
 * Free a block whose last pin was dropped between the check and the claim: the caller did not own a pin. The agent may
 * take the dying block, since it has no pin, or may have taken it just before.
 */
static COLD int free_unpinned(struct gpool *pool, const struct gpool_block *block)
{
	for (int tries = 0; tries < 1000; tries++) {
		uint64_t word = pin_raise(&pool->session, pool->pages, block->page);

		if (word == block->generation) {
			deferred_free(pool, block, 0, block_finish);
			return 0;
		}
		pin_drop(&pool->session, block->page);
		if (!block_word_same(word, block->generation))
			break;
		word_settle(pool, block->page);
	}
	return -ESTALE;
}

static inline __attribute__((always_inline)) int free_in(
	struct gpool *pool, const struct gpool_block *block, uint64_t fence)
{
	uint32_t page = block->page, pins;
	struct block_entry *entry = block_entry(pool, page);
	uint64_t tag = block->tag, left, now = atomic_load_explicit(&pool->pages[page], memory_order_relaxed);
	struct thread_cache *cache;

	if (unlikely(now != block->generation) && !block_word_same(now, block->generation))
		return -ESTALE;
	if (unlikely(atomic_load_explicit(&entry->tag, memory_order_acquire) != tag))
		return -ESTALE;
	if (unlikely(!(tag & BLOCK_SCATTERED) &&
		    atomic_load_explicit(&entry->page_count, memory_order_relaxed) != block->page_count))
		return fail(-EINVAL,
			"not the handle of a block: it has %u page%s at page %u, but the block there has another "
			"length",
			block->page_count, plural(block->page_count), page);
	if (unlikely(pin_count(&pool->session, page) == 0))
		return fail_unpinned(block);
	cache = thread_cache_of(pool);
	if (unlikely(!atomic_compare_exchange_strong_explicit(
		    &entry->tag, &tag, tag | BLOCK_DYING, memory_order_seq_cst, memory_order_relaxed)))
		return -ESTALE;
	pins = pin_count(&pool->session, page);
	if (unlikely(pins == 0))
		return free_unpinned(pool, block);
	if (likely(cache))
		stat_add(cache, &cache->stats->frees);
	if (unlikely(flight_may_tell(tag)))
		flight_tell_block(pool, FLIGHT_FREE, block, 0);
	/* The entry's fence covers other streams after whose work the block was unpinned earlier. */
	left = atomic_load_explicit(&entry->fence, memory_order_relaxed);
	if (unlikely(pins > 1 || tag & (BLOCK_SCATTERED | BLOCK_SPILL) ||
		    (fence && !fence_signaled(&pool->session, fence)) ||
		    (left && !fence_signaled(&pool->session, left)))) {
		free_later(pool, block, fence);
		return 0;
	}
	if (unlikely(!cache || !thread_cache_has_room(cache, block->page_count) ||
		    page + block->page_count > pool->unreserved || pool_is_short(pool))) {
		run_to_bits(pool, page, block->page_count);
	} else {
		atomic_store_explicit(&entry->tag, BLOCK_TAG_CACHED, memory_order_release);
		pin_drop(&pool->session, page);
		thread_cache_push(cache, page, block->page_count, block->generation);
	}
	pool_sweep(pool);
	return 0;
}

/*
 * Free a block that is no longer at the handle's page. It may have moved, or it may be spilled; spilled content is
 * discarded.
 */
static COLD int free_moved(struct gpool *pool, const struct gpool_block *block, uint64_t fence)
{
	struct gpool_block place;
	int error = -ESTALE;

	if (!spill_where(pool, block, &place))
		error = free_in(pool, &place, fence);
	if (error != -ESTALE || block->tag & BLOCK_UNUSABLE)
		return error;
	wait_pause(true); /* only gpool_discard() returns -EINTR */
	error = spill_drop(pool, block);
	wait_pause(false);
	return error;
}

static COLD int free_failed(struct gpool *pool, const struct gpool_block *block, uint64_t fence, int error)
{
	if (error == -ESTALE && block->tag & BLOCK_SPILL)
		error = free_moved(pool, block, fence);
	return error == -ESTALE ? fail_stale(pool, block) : error;
}

int block_free(struct gpool *pool, const struct gpool_block *block, uint64_t fence)
{
	int error = free_in(pool, block, fence);

	return unlikely(error) ? free_failed(pool, block, fence, error) : 0;
}

int gpool_free(struct gpool *pool, const struct gpool_block *block)
{
	int error;

	if (unlikely(!pool->alive))
		return -ECHILD;
	if (unlikely(block_handle_bad(pool, block)))
		return fail_handle(pool, block);
	error = free_in(pool, block, 0);
	return unlikely(error) ? free_failed(pool, block, 0, error) : 0;
}

int gpool_free_after(struct gpool *pool, const struct gpool_block *block, struct gpool_fence fence)
{
	if (unlikely(!pool->alive))
		return -ECHILD;
	if (block_handle_bad(pool, block))
		return fail_handle(pool, block);
	if (fence_check(pool, fence))
		return -EINVAL;
	return block_free(pool, block, fence_pending(pool, fence) ? fence.value : 0);
}

int gpool_discard(struct gpool *pool, const struct gpool_block *block)
{
	int error;

	if (pool->alive && !block_handle_bad(pool, block) && block->tag & BLOCK_SPILL) {
		error = spill_drop(pool, block);
		return error == -ESTALE ? fail_stale(pool, block) : error;
	}
	error = gpool_pin(pool, block);
	if (error)
		return error;
	error = free_in(pool, block, 0);
	/* Another thread has freed the block first. Drop the pin of this thread. */
	if (error)
		gpool_unpin(pool, block);
	return error == -ESTALE ? fail_stale(pool, block) : error;
}
