#include "client/vm/page_list.h"

#include "client/core/refill.h"
#include "client/core/stitch.h"
#include "shm/lease_bitmap.h"

#include <sched.h>
#include <stdlib.h>

enum { TAKE_TRIES = 8 }; /* retries, as for allocations: other threads of this process may hold pages in transit */

int page_list_add(struct page_list *list, uint32_t first, uint32_t count)
{
	struct page_span *last = list->count ? &list->spans[list->count - 1] : NULL;

	if (last && last->first + last->count == first) {
		last->count += count;
		return 0;
	}
	if (list->count == list->capacity) {
		uint32_t capacity = list->capacity ? list->capacity * 2 : 8;
		struct page_span *grown = realloc(list->spans, capacity * sizeof(*grown));

		if (!grown)
			return -ENOMEM;
		list->spans = grown;
		list->capacity = capacity;
	}
	list->spans[list->count++] = (struct page_span){first, count};
	return 0;
}

void page_list_reset(struct page_list *list)
{
	free(list->spans);
	*list = (struct page_list){.count = 0};
}

void page_list_put(struct gpool *pool, struct page_list *list)
{
	for (uint32_t i = 0; i < list->count; i++)
		pool_put(pool, list->spans[i].first, list->spans[i].count);
	page_list_reset(list);
}

void page_list_chain(const struct gpool *pool, const struct page_list *list, uint32_t next)
{
	for (uint32_t i = list->count; i-- > 0;) {
		struct block_entry *entry = block_entry(pool, list->spans[i].first);

		atomic_store_explicit(&entry->page_count, list->spans[i].count, memory_order_relaxed);
		atomic_store_explicit(&entry->next, next, memory_order_relaxed);
		next = list->spans[i].first + 1;
	}
}

/* ---- take pages ---- */

static uint32_t whole_handles(const struct gpool *pool, uint32_t pages)
{
	uint32_t per_handle = pool->header->pages_per_handle;

	return (pages + per_handle - 1) / per_handle * per_handle;
}

/* Convert the granted chain to a list. The entries are in this session's own segment and were already checked. */
static int chain_read(const struct gpool *pool, uint32_t first, struct page_list *list)
{
	for (uint32_t run = first;;) {
		uint32_t count = atomic_load_explicit(&block_entry(pool, run)->page_count, memory_order_relaxed);
		uint32_t next = atomic_load_explicit(&block_entry(pool, run)->next, memory_order_relaxed);

		if (page_list_add(list, run, count))
			return -ENOMEM;
		if (!next)
			return 0;
		run = next - 1;
	}
}

static int take_once(struct gpool *pool, uint32_t pages, uint32_t flags, int32_t timeout_ms, struct page_list *list)
{
	struct thread_cache *cache = thread_cache_of(pool);
	uint32_t first;
	int error = -ENOSPC;

	if (!cache)
		return -ENOMEM;
	/* Flush the magazines first, because the agent counts their pages as this session's idle pages. */
	thread_cache_flush(cache);
	for (int tries = 0; error == -ENOSPC && tries < (timeout_ms ? 1 : TAKE_TRIES); tries++) {
		if (tries)
			sched_yield();
		error = refill_take(pool, cache, pages, flags, timeout_ms, &first);
		if (error == -ENOSPC &&
			(flags & (LEASE_FREE | LEASE_OWN_LAST) ||
				cache->shortage.pinned + (uint64_t)pages > pool->unreserved))
			break;
	}
	if (error)
		return error;
	error = chain_read(pool, first, list);
	if (error) {
		page_list_reset(list);
		chain_put(pool, first);
	}
	return error;
}

int page_list_take(struct gpool *pool, uint32_t pages, uint32_t flags, int32_t timeout_ms, struct page_list *list)
{
	return pages > pool->page_count ? -ENOSPC : take_once(pool, pages, flags | LEASE_ALIGNED, timeout_ms, list);
}

/* Move the next `pages` pages of the list `from` to the list `to`. *span and *used are the position in `from`. */
static int carve(const struct page_list *from, uint32_t *span, uint32_t *used, uint32_t pages, struct page_list *to)
{
	while (pages) {
		const struct page_span *at = &from->spans[*span];
		uint32_t count = at->count - *used < pages ? at->count - *used : pages;

		if (to && page_list_add(to, at->first + *used, count))
			return -ENOMEM;
		pages -= count;
		*used += count;
		if (*used == at->count) {
			*used = 0;
			++*span;
		}
	}
	return 0;
}

int page_lists_take(
	struct gpool *pool, struct page_list *lists, const uint32_t *wanted, uint32_t list_count, int32_t timeout_ms)
{
	uint32_t total = 0, span = 0, used = 0;
	struct page_list all = {.count = 0};
	int error = 0;

	for (uint32_t i = 0; i < list_count; i++) {
		/* Each list begins at the start of a handle. The last list ends with its last wanted page. */
		uint32_t pages = i + 1 < list_count ? whole_handles(pool, wanted[i]) : wanted[i];

		if (pages > pool->page_count - total)
			return -ENOSPC;
		total += pages;
	}
	if (!total)
		return 0;
	error = page_list_take(pool, total, 0, timeout_ms, &all);
	if (error)
		return error;
	for (uint32_t i = 0; i < list_count && !error; i++)
		if (wanted[i]) {
			error = carve(&all, &span, &used, wanted[i], &lists[i]);
			if (!error && i + 1 < list_count)
				error = carve(&all, &span, &used, whole_handles(pool, wanted[i]) - wanted[i], NULL);
		}
	if (error) {
		for (uint32_t i = 0; i < list_count; i++)
			page_list_reset(&lists[i]);
		page_list_put(pool, &all);
		return error;
	}
	/* Pages that only pad a list to whole handles become idle. They follow the last span, in the same handle. */
	for (uint32_t i = 0; i + 1 < list_count; i++) {
		uint32_t rest = whole_handles(pool, wanted[i]) - wanted[i];
		const struct page_span *last = rest ? &lists[i].spans[lists[i].count - 1] : NULL;

		if (rest)
			pool_put(pool, last->first + last->count, rest);
	}
	page_list_reset(&all);
	return 0;
}
