/*
 * wake.c - restore the addresses, pages and contents of all ranges, or change nothing.
 *
 *   0 ask the agent whether the content can be restored now, so that no other session loses pages for a wake that
 *     cannot succeed
 *   1 get pages for all ranges in one grant, so that two processes that wake at the same time cannot each hold half
 *   2 open the objects that were kept, in the same versions
 *   3 map the pages
 *   4 restore the content; the spilled block is kept until then, and no later step can fail
 */
#include "client/vm/range.h"
#include "shm/plural.h"

#include "client/core/alloc.h"
#include "client/core/last_error.h"
#include "client/core/refill.h"
#include "client/core/stitch.h"

#include <stdlib.h>

/* The ranges that need new pages. Those with spilled content come first, in the order of the chain in sleep.c. */
struct waking {
	struct gpool_range **ranges; /* [count] */
	uint32_t *wanted;            /* [count] number of pages that each needs */
	struct page_list *lists;     /* [count] */
	uint32_t count, spilled;
};

static void waking_free(struct waking *waking)
{
	free(waking->ranges);
	free(waking->wanted);
	free(waking->lists);
}

static bool needs_pages(const struct gpool_range *range)
{
	return !range->pages.count && range->memory_class != GPOOL_OBJECT_IMMUTABLE;
}

static int waking_make(const struct ranges *ranges, struct waking *waking)
{
	uint32_t count = 0, at = 0;

	for (const struct gpool_range *range = ranges->all; range; range = range->next) {
		count += needs_pages(range);
		waking->spilled += range->spilled;
	}
	waking->ranges = calloc(count + 1, sizeof(*waking->ranges));
	waking->wanted = calloc(count + 1, sizeof(*waking->wanted));
	waking->lists = calloc(count + 1, sizeof(*waking->lists));
	if (!waking->ranges || !waking->wanted || !waking->lists)
		return -ENOMEM;
	waking->count = count;
	at = waking->spilled;
	for (struct gpool_range *range = ranges->all; range; range = range->next)
		if (range->spilled)
			waking->ranges[--at] = range; /* sleep.c built the chain in reverse order */
	at = waking->spilled;
	for (struct gpool_range *range = ranges->all; range; range = range->next)
		if (needs_pages(range) && !range->spilled)
			waking->ranges[at++] = range;
	for (uint32_t i = 0; i < count; i++)
		waking->wanted[i] = range_held(waking->ranges[i]);
	return 0;
}

/* ---- objects ---- */

/* Open the same version with the same layout; an object that differs is not the one that was kept. */
static int range_reopen(struct gpool_range *range)
{
	struct gpool_object_open_options options = GPOOL_OBJECT_OPEN_OPTIONS_INIT;
	int error;

	options.version = range->version;
	options.layout_hash = range->layout_hash;
	error = object_open(range->pool, range->name, &options, false, &range->object);
	if (error == -ENOENT || error == -EPROTO) {
		pool_log(range->pool, POOL_LOG_ERROR,
			"cannot wake: object '%s' version %llu no longer exists; this process stays asleep",
			range->name, (unsigned long long)range->version);
		return fail(-ESTALE,
			"version %llu of object '%s', which keeps the content of a range, no longer exists",
			(unsigned long long)range->version, range->name);
	}
	if (error)
		return error;
	error = range_object_pages(range);
	if (!error &&
		(uint64_t)range_handles(range) * range->pool->page_bytes * range->pool->header->pages_per_handle !=
			range->bytes)
		error = fail(-ESTALE, "version %llu of object '%s' does not fill the %llu byte%s of its range",
			(unsigned long long)range->version, range->name, (unsigned long long)range->bytes,
			plural(range->bytes));
	if (error) {
		page_list_reset(&range->pages);
		gpool_object_close(range->object);
		range->object = NULL;
	}
	return error;
}

static int ranges_reopen(struct ranges *ranges)
{
	int error = 0;

	for (struct gpool_range *range = ranges->all; range && !error; range = range->next)
		if (range->version && !range->object)
			error = range_reopen(range);
	return error;
}

/* ---- map ---- */

static int ranges_map(struct ranges *ranges)
{
	int error = 0;

	for (struct gpool_range *range = ranges->all; range && !error; range = range->next) {
		if (range->mapped || range->gone)
			continue;
		error = range_map(range);
		range->waking = !error;
	}
	return error;
}

static void ranges_unmap_again(struct ranges *ranges)
{
	for (struct gpool_range *range = ranges->all; range; range = range->next) {
		if (range->waking)
			range_unmap(range); /* no work uses the mapping, because it was not visible yet */
		range->waking = false;
		if (range->mapped || !range->object)
			continue;
		gpool_object_close(range->object);
		range->object = NULL;
		page_list_reset(&range->pages);
	}
}

/* ---- restore the content ---- */

/* Restore the spilled content into the new pages. After -EPIPE the mover may still be writing to them. */
static int content_restore(struct gpool *pool, const struct waking *waking)
{
	const struct block_attributes attributes = {.flags = BLOCK_PREPARED | BLOCK_RANGE};
	struct ranges *ranges = pool->ranges;
	struct lease_request ask = {
		.kind = LEASE_RESTORE_INTO,
		.need = ranges->spilled_pages,
		.tag = ranges->spilled_tag & ~(uint64_t)BLOCK_SCATTERED,
	};
	struct gpool_block block;
	uint32_t next = 0;
	int error;

	for (uint32_t i = waking->spilled; i-- > 0;) {
		page_list_chain(pool, &waking->ranges[i]->pages, next);
		next = waking->ranges[i]->pages.spans[0].first + 1;
	}
	ask.first_page = next - 1;
	if (chain_stand(pool, thread_cache_of(pool), ask.first_page, ask.need, &attributes, &block))
		return -EPIPE;
	error = lease_ask(pool, &ask);
	if (error == -EPIPE)
		return error;
	/*
	 * The pages are in transit again. The agent does not treat pages as idle that its journal lists as granted, or
	 * that it has moved.
	 */
	chain_end(pool, block.page);
	pin_drop(&pool->session, block.page);
	if (error)
		pool_log(pool, POOL_LOG_ERROR,
			"cannot wake: the content of %u page%s cannot be restored; this process stays asleep", ask.need,
			plural(ask.need));
	if (error == -ESTALE || error == -EIO)
		return fail(-EIO,
			"the spilled content of %u page%s cannot be restored; the log of the agent contains the cause",
			ask.need, plural(ask.need));
	return error;
}

/* ---- wake ---- */

static void pages_give_back(struct gpool *pool, const struct waking *waking, bool spilled_too)
{
	for (uint32_t i = 0; i < waking->count; i++) {
		if (i < waking->spilled && !spilled_too)
			page_list_reset(&waking->ranges[i]->pages);
		else
			page_list_put(pool, &waking->ranges[i]->pages);
	}
	pool_wake_waiters(pool);
}

/* Convert the pages of each range to its block again. */
static int ranges_stand(struct gpool *pool, const struct waking *waking)
{
	int error = 0;

	for (uint32_t i = 0; i < waking->count; i++) {
		struct gpool_range *range = waking->ranges[i];

		range->spilled = false;
		if (range->gone) {
			page_list_put(pool, &range->pages);
			range_free(range);
		} else if (range_stand(range)) {
			error = -EPIPE;
		}
	}
	return error;
}

static int wake_up(struct gpool *pool, const struct waking *waking)
{
	struct ranges *ranges = pool->ranges;
	struct thread_stats *transit;
	int error;

	error = ranges_reopen(ranges);
	if (!error)
		error = ranges_map(ranges);
	if (!error && ranges->spilled_tag)
		error = content_restore(pool, waking);
	if (error) {
		ranges_unmap_again(ranges);
		pages_give_back(pool, waking, error != -EPIPE);
		return error;
	}
	transit = transit_begin(pool);
	error = ranges_stand(pool, waking);
	transit_end(pool, transit);
	for (struct gpool_range *range = ranges->all; range; range = range->next)
		range->waking = false;
	ranges->spilled_tag = 0;
	ranges->spilled_pages = 0;
	ranges->asleep = false;
	pool_wake_waiters(pool);
	return error;
}

/* Ask the agent whether the content can be restored. Also return 0 if only the restore itself can find out. */
static int content_look(struct gpool *pool)
{
	const struct ranges *ranges = pool->ranges;
	struct lease_request ask = {
		.kind = LEASE_QUERY,
		.need = ranges->spilled_pages,
		.tag = ranges->spilled_tag & ~(uint64_t)BLOCK_SCATTERED,
	};

	if (!ranges->spilled_tag || lease_ask(pool, &ask) != -EIO)
		return 0;
	pool_log(pool, POOL_LOG_ERROR,
		"cannot wake: no mover serves the pool, so the content of %u page%s cannot be restored now; this "
		"process stays asleep",
		ranges->spilled_pages, plural(ranges->spilled_pages));
	return fail(-EIO, "no mover serves the pool, so the content of %u page%s cannot be restored now",
		ranges->spilled_pages, plural(ranges->spilled_pages));
}

static int wake_all(struct gpool *pool, int timeout_ms)
{
	struct waking waking = {.wanted = 0};
	int error = thread_cache_of(pool) ? waking_make(pool->ranges, &waking) : -ENOMEM;

	if (!error)
		error = content_look(pool);
	if (!error)
		error = page_lists_take(pool, waking.lists, waking.wanted, waking.count, timeout_ms);
	if (!error) {
		for (uint32_t i = 0; i < waking.count; i++)
			waking.ranges[i]->pages = waking.lists[i];
		error = wake_up(pool, &waking);
	}
	waking_free(&waking);
	return error;
}

int gpool_wake(struct gpool *pool, int timeout_ms)
{
	int error = 0;

	if (!pool->alive)
		return -ECHILD;
	if (timeout_ms < -1)
		return fail_timeout(timeout_ms);
	if (pool->session_kind)
		return fail_kind(pool);
	pthread_mutex_lock(&pool->ranges->lock);
	if (pool->ranges->asleep) {
		error = wake_all(pool, timeout_ms);
		if (!pool->ranges->asleep)
			gate_open(pool->ranges);
	}
	pthread_mutex_unlock(&pool->ranges->lock);
	return error;
}
