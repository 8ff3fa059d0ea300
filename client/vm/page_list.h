/*
 * page_list.h - pages in runs, as ranges have them. Internal to libgpool.
 *
 * Where handles hold several pages, which are mapped whole, a list is one run that begins where a handle begins.
 */
#ifndef GPOOL_CLIENT_VM_PAGE_LIST_H
#define GPOOL_CLIENT_VM_PAGE_LIST_H

#include "client/core/block.h"
#include "client/core/thread_cache.h"

struct page_span {
	uint32_t first, count;
};

/* All zero: without pages. */
struct page_list {
	struct page_span *spans;
	uint32_t count, capacity;
};

/* page_list_add() - a run at its end: 0, -ENOMEM. page_list_reset() - without pages again; they are whose they were. */
int page_list_add(struct page_list *list, uint32_t first, uint32_t count);
void page_list_reset(struct page_list *list);

/*
 * page_list_take() - `pages` pages in one request, flags: LEASE_*. They are in transit. Where handles hold several
 * pages: one run that begins with a handle. Waits for them at most timeout_ms and holds none while it waits. Return: as
 * refill_take(), and -ENOMEM.
 */
int page_list_take(struct gpool *pool, uint32_t pages, uint32_t flags, int32_t timeout_ms, struct page_list *list);

/* page_run_take() - one run, wherever it begins. */
int page_run_take(struct gpool *pool, uint32_t pages, uint32_t flags, struct page_list *list);

/*
 * page_lists_take() - wanted[i] pages into lists[i] for all i, in one request as above: all or none. Return: likewise.
 */
int page_lists_take(
	struct gpool *pool, struct page_list *lists, const uint32_t *wanted, uint32_t list_count, int32_t timeout_ms);

/* page_list_put() - pages in transit become idle; the list is empty. */
void page_list_put(struct gpool *pool, struct page_list *list);

/*
 * page_list_chain() - write down in the entries of pages in transit which run follows which; lists may be chained on:
 * first run.
 */
void page_list_chain(const struct gpool *pool, const struct page_list *list, uint32_t next);

#endif
