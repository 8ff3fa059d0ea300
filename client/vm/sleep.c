/*
 * sleep.c - release the pages of all ranges. Depending on the class of a range, its content is kept as an object,
 * spilled or discarded.
 *
 * The steps are ordered so that each step that may fail can be undone, or need not be:
 *   1 wait for the library's streams; a thread with a check function first waits without a lock
 *   2 publish the ranges to keep; they may stay published, since only their write access has changed
 *   3 unmap; to undo this, map the same pages again
 *   4 spill all mutable ranges as one block: the agent saves either all of it or nothing
 *   5 release the other pages, which cannot fail
 *   6 unmap unused pages, which other trust domains can get only after this
 */
#include "client/vm/range.h"
#include "shm/plural.h"

#include "client/core/alloc.h"
#include "client/core/interrupt.h"
#include "client/core/last_error.h"
#include "client/core/refill.h"
#include "client/core/stitch.h"
#include "client/core/stream.h"
#include "client/core/window.h"

#include <stdlib.h>

/* The first wait with the lock held; chosen: as long as a delay that users do not notice. */
enum { LOCKED_MS = 50 };

static bool is_mutable(const struct gpool_range *range)
{
	return range->memory_class == GPOOL_OBJECT_MUTABLE;
}

/* ---- ranges to keep ---- */

static int range_keep(struct gpool_range *range)
{
	struct gpool *pool = range->pool;
	int error = object_keep(
		pool, range->name, &range->block, &(struct stitch_range){range->va, range->bytes}, &range->object);

	if (error) {
		pool_log(pool, POOL_LOG_ERROR,
			"cannot publish a range of %u page%s as object '%s': %s; this process stays awake",
			range->page_count, plural(range->page_count), range->name, gpool_strerror(error));
		return error;
	}
	range->block = (struct gpool_block){0};
	range->version = range->object->version;
	range->layout_hash = range->object->manifest.header->layout_hash;
	/* The published pages are read-only from now on, even if the process stays awake. */
	gpu_access(pool->gpu, range->va, range->bytes, GPU_ACCESS_READ);
	return 0;
}

static int ranges_keep(struct ranges *ranges)
{
	int error = 0;

	for (struct gpool_range *range = ranges->all; range && !error; range = range->next)
		if (range->memory_class == GPOOL_OBJECT_IMMUTABLE && !range->version)
			error = range_keep(range);
	return error;
}

/* ---- unmap, and map again ---- */

static void ranges_map_again(struct ranges *ranges, const struct gpool_range *end)
{
	for (struct gpool_range *range = ranges->all; range != end; range = range->next)
		if (!range->mapped && range_map(range)) {
			/* The range keeps its pages. A wake tries to map them again. */
			ranges->asleep = true;
			pool_log(range->pool, POOL_LOG_ERROR,
				"cannot map a range of %u page%s again after a failed sleep; the session is asleep "
				"until gpool_wake() succeeds",
				range->page_count, plural(range->page_count));
		}
}

static int ranges_unmap(struct ranges *ranges)
{
	for (struct gpool_range *range = ranges->all; range; range = range->next) {
		int error = range_unmap(range);

		if (error) {
			ranges_map_again(ranges, range->next);
			return error;
		}
	}
	return 0;
}

/* ---- mutable ranges ---- */

/*
 * Join the pages of all mutable ranges, which are in transit, to one chain. Return their number. *first: the first run.
 */
static uint32_t mutable_join(struct ranges *ranges, uint32_t *first)
{
	uint32_t pages = 0, next = 0;

	/*
	 * A list can only be linked to a following one, so each range is inserted before the earlier ones: the chain is
	 * in reverse order.
	 */
	for (struct gpool_range *range = ranges->all; range; range = range->next) {
		if (!is_mutable(range))
			continue;
		range_fall(range);
		if (!range->pages.count)
			continue; /* an elastic range without committed pages */
		page_list_chain(range->pool, &range->pages, next);
		*first = range->pages.spans[0].first;
		next = *first + 1;
		pages += range_held(range);
	}
	return pages;
}

static int mutable_part(struct ranges *ranges)
{
	int error = 0;

	for (struct gpool_range *range = ranges->all; range; range = range->next)
		if (is_mutable(range) && range_stand(range))
			error = -EPIPE;
	return error;
}

/*
 * Pin the block again after the agent has reported that it was not spilled. If an eviction has saved the block since,
 * the requested state is reached. Return 0 if it is saved, else `error`, with the block pinned.
 */
static int saved_after_all(struct gpool *pool, const struct gpool_block *block, int error)
{
	struct lease_request ask = {
		.kind = LEASE_QUERY, .need = block->page_count, .tag = block->tag & ~(uint64_t)BLOCK_SCATTERED};
	uint64_t word;

	while (error != -EPIPE) {
		if (!run_pin(pool, block->page, &word)) {
			if (atomic_load_explicit(&block_entry(pool, block->page)->tag, memory_order_acquire) ==
				block->tag)
				return error;
			pin_drop(&pool->session, block->page);
		}
		/* -EBUSY: the block is being moved, and may be restored into the pool. */
		switch (lease_ask(pool, &ask)) {
		case 0:
		case -EIO: return 0;
		case -EBUSY: continue;
		default: return -EPIPE;
		}
	}
	return error;
}

static int ranges_spill(struct gpool *pool, uint32_t pages)
{
	const struct block_attributes attributes = {.flags = BLOCK_SPILL | BLOCK_RANGE};
	struct lease_request ask = {.kind = LEASE_SPILL};
	struct thread_cache *cache = thread_cache_of(pool);
	struct ranges *ranges = pool->ranges;
	struct thread_stats *transit;
	struct gpool_block block;
	int error;

	if (!cache)
		return -ENOMEM;
	transit = transit_begin(pool);
	mutable_join(ranges, &block.page);
	error = chain_stand(pool, cache, block.page, pages, &attributes, &block);
	transit_end(pool, transit);
	if (error)
		return -EPIPE;
	ask.tag = block.tag;
	ask.first_page = block.page;
	pin_drop(&pool->session, block.page);
	error = lease_ask(pool, &ask);
	if (error)
		error = saved_after_all(pool, &block, error);
	if (!error) {
		ranges->spilled_tag = block.tag;
		ranges->spilled_pages = pages;
		return 0;
	}
	if (error == -EPIPE)
		return error;
	transit = transit_begin(pool);
	chain_end(pool, block.page);
	pin_drop(&pool->session, block.page);
	if (mutable_part(ranges))
		error = -EPIPE;
	transit_end(pool, transit);
	if (error == -EIO)
		return fail(-EIO,
			"the content of %u page%s cannot be spilled: a disk failed, or no mover serves the pool; the "
			"log of the agent contains the cause",
			pages, plural(pages));
	if (error == -ENOSPC)
		return fail(error,
			"the content of %u page%s cannot be spilled: spill_memory and spill_file of the pool have too "
			"little "
			"room",
			pages, plural(pages));
	/* The block exists, so -ESTALE means that the agent has no means to save it. */
	return error == -ESTALE ? -EOPNOTSUPP : error;
}

/* ---- release ---- */

static void range_let_go(struct gpool_range *range)
{
	struct gpool *pool = range->pool;
	struct thread_stats *transit;

	if (range->object) {
		/* If the close fails, the object is closed when the session ends. */
		gpool_object_close(range->object);
		range->object = NULL;
		page_list_reset(&range->pages);
	} else if (is_mutable(range)) {
		range->spilled_pages = range_held(range);
		range->spilled = range->spilled_pages != 0;
		page_list_reset(&range->pages);
	} else {
		atomic_fetch_add_explicit(&range->losses, 1, memory_order_release);
		transit = transit_begin(pool);
		range_fall(range);
		page_list_put(pool, &range->pages);
		transit_end(pool, transit);
	}
}

/* Wait with the lock held, for at most most_ms (-1: no limit). Return: -EINPROGRESS: it was not sufficient. */
static int streams_wait(struct gpool *pool, int most_ms)
{
	int error;

	if (most_ms < 0)
		return stream_sync_all(pool);
	wait_pause(true);
	error = stream_await_all(pool, most_ms);
	wait_pause(false);
	return error == -ETIMEDOUT ? -EINPROGRESS : error;
}

static int sleep_all(struct gpool *pool, int most_ms)
{
	struct ranges *ranges = pool->ranges;
	int error = streams_wait(pool, most_ms);
	uint32_t pages = 0;

	for (struct gpool_range *range = ranges->all; range && !error; range = range->next) {
		error = range_settle(range);
		pages += is_mutable(range) ? range_held(range) : 0;
	}
	if (!error && pages && !atomic_load_explicit(&pool->header->spill_slots, memory_order_relaxed))
		error = fail(-EOPNOTSUPP,
			"%llu page%s of MUTABLE ranges cannot be spilled: gpoold is configured without spill_memory "
			"and spill_directory",
			(unsigned long long)pages, plural(pages));
	if (!error)
		error = ranges_keep(ranges);
	if (!error)
		error = ranges_unmap(ranges);
	if (error)
		return error;
	error = pages ? ranges_spill(pool, pages) : 0;
	if (error) {
		ranges_map_again(ranges, NULL);
		return error;
	}
	for (struct gpool_range *range = ranges->all; range; range = range->next)
		range_let_go(range);
	ranges->asleep = true;
	return 0;
}

static int sleep_locked(struct gpool *pool, int most_ms)
{
	int error = 0;

	pthread_mutex_lock(&pool->ranges->lock);
	if (!pool->ranges->asleep) {
		error = gate_close(pool->ranges) ? sleep_all(pool, most_ms)
						 : fail(-EBUSY, "another thread executes a call that uses a range");
		if (!pool->ranges->asleep)
			gate_open(pool->ranges);
	}
	pthread_mutex_unlock(&pool->ranges->lock);
	return error;
}

/*
 * Let the check function of this thread end the wait for the streams, during which no lock is held. Other threads may
 * queue work before the lock is acquired. The time for which this work is awaited with the lock held grows with each
 * try, so that a thread that always queues work delays the sleep, but does not prevent it.
 */
static int sleep_checked(struct gpool *pool)
{
	for (int most_ms = LOCKED_MS;; most_ms *= 2) {
		int error = gpool_asleep(pool) ? 0 : stream_await_all(pool, -1);

		if (!error)
			error = sleep_locked(pool, most_ms);
		if (error != -EINPROGRESS)
			return error;
	}
}

int gpool_sleep(struct gpool *pool, uint32_t flags)
{
	struct thread_cache *cache;
	int error;

	if (!pool->alive)
		return -ECHILD;
	if (flags)
		return fail(-EINVAL, "flags are 0x%x; they must be 0", flags);
	if (pool->session_kind)
		return fail_kind(pool);
	error = wait_checked() ? sleep_checked(pool) : sleep_locked(pool, -1);
	if (error)
		return error;
	/* Make cached pages idle: the agent reclaims idle pages when they are needed, or after a time. */
	pool_sweep(pool);
	cache = thread_cache_of(pool);
	if (cache)
		thread_cache_flush(cache);
	/* This process might not check for needed handles for a long time, so unmap all unused ones now. */
	window_let_go_unused(pool);
	pool_wake_waiters(pool);
	return 0;
}
