/*
 * page_list.h - the pages of a range, as a list of runs. Internal to libgpool.
 *
 * If handles have several pages, each run of a new range begins at the start of a handle, and each but the last ends at
 * the end of one, because handles are mapped as a whole.
 */
#ifndef GPOOL_CLIENT_VM_PAGE_LIST_H
#define GPOOL_CLIENT_VM_PAGE_LIST_H

#include "client/core/block.h"
#include "client/core/thread_cache.h"

struct page_span {
	uint32_t first, count;
};

/* All zero: an empty list. */
struct page_list {
	struct page_span *spans;
	uint32_t count, capacity;
};

/*
 * page_list_add() - append a run. Return: 0, -ENOMEM. page_list_reset() - remove all runs; the pages keep their owner.
 */
int page_list_add(struct page_list *list, uint32_t first, uint32_t count);
void page_list_reset(struct page_list *list);

/*
 * page_list_take() - take pages together, in runs that begin at the start of a handle. They are in transit. flags:
 * LEASE_*. Waits at most timeout_ms. Return: as refill_take(), and -ENOMEM.
 */
int page_list_take(struct gpool *pool, uint32_t pages, uint32_t flags, int32_t timeout_ms, struct page_list *list);

/*
 * page_lists_take() - take wanted[i] pages into lists[i] for all i, all or none, as page_list_take() does. Return: as
 * page_list_take().
 */
int page_lists_take(
	struct gpool *pool, struct page_list *lists, const uint32_t *wanted, uint32_t list_count, int32_t timeout_ms);

/* page_list_put() - make pages in transit idle, and empty the list. */
void page_list_put(struct gpool *pool, struct page_list *list);

/*
 * page_list_chain() - write the order of the runs to the entries of pages in transit. next: the first page of a list
 * that follows, plus 1; 0: none.
 */
void page_list_chain(const struct gpool *pool, const struct page_list *list, uint32_t next);

#endif
