/*
 * tails.h - pages that several adapters of a process share. Internal to client/lora.
 *
 * With GPOOL_LORA_SHARE_PAGES, the object of an adapter contains all of its pages except the last. The runs of the last
 * page, the tail, are stored in shared pages instead, each run where there is room. Kernels find runs by their
 * addresses, so a tail may be scattered. The table of these addresses is stored in the shared pages, too. An adapter
 * that is smaller than a page has only a tail; it shares pages with adapters like it.
 *
 * A shared page is a block of this process, which no other process reads. It is pinned while one of its adapters is
 * pinned, and may be evicted otherwise; its adapters then lose their tails. While an adapter is not used, its runs may
 * be moved to other shared pages, so that pages become free (tails_pack.c).
 */
#ifndef GPOOL_CLIENT_LORA_TAILS_H
#define GPOOL_CLIENT_LORA_TAILS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "client/gpool.h"
#include "shm/adapter_layout.h"

struct tail_page;
TAILQ_HEAD(tail_page_list, tail_page);

/* The shared pages of a set of adapters. */
struct tails {
	pthread_mutex_t lock; /* protects the pages, except their pins */
	struct tail_page_list pages;
	uint32_t page_count;
	bool grew; /* tails_grew() */
};

/* A run of a tail, or the table of runs. */
struct tail_piece {
	struct tail_page *page;
	uint64_t address;
	uint32_t run;    /* index in the layout; the table: the number of runs of the layout */
	uint32_t offset; /* in the image of the adapter's last page, which does not contain the table */
	uint32_t bytes;
	uint32_t at; /* in the shared page */
};

struct tail {
	struct tail_piece *pieces; /* [count], ordered by run; NULL: the adapter has no tail */
	uint32_t count;
	struct tail_page **pages; /* [page_count] the pages of the pieces, each once */
	uint32_t page_count;
	bool has_table; /* the last piece is the table of runs */
	bool whole;     /* the adapter has no other page */
};

/* tails_begin() - begin without pages. tails_end() - Free the memory of `tails` after all tails have been freed. */
void tails_begin(struct tails *tails);
void tails_end(struct tails *tails);
/*
 * tails_page_count() - return the number of shared pages.
 * tails_grew() - return true if a page was added since the last call.
 */
uint32_t tails_page_count(struct tails *tails);
bool tails_grew(struct tails *tails);
/*
 * tails_touch() - mark the shared pages as used, except those with adapters that have no other page. The agent then
 * evicts the objects of adapters first, in their order, and the tails of evicted adapters are freed (tails_pack.h). The
 * eviction of a shared page would leave the objects of several adapters without use.
 */
void tails_touch(struct tails *tails, struct gpool *pool);

/*
 * tail_table_bytes() - return the size of the table of runs, uint64_t[runs of the layout]; 0: kernels need no table,
 * because each matrix has one run.
 */
static inline uint64_t tail_table_bytes(const struct adapter_layout *layout)
{
	return layout->header->runs > 2 * layout->header->modules ? layout->header->runs * sizeof(uint64_t) : 0;
}

/*
 * tail_make() - place the runs of an adapter's last page, and the table of runs if it has at most half a page. The
 * pages are pinned once for the caller.
 *
 * @flags: GPOOL_ALLOC_* of pages that are allocated
 *
 * Return: 0, or as gpool_alloc(), with an empty tail.
 */
int tail_make(struct tails *tails, struct gpool *pool, const struct adapter_layout *layout, uint32_t flags,
	struct tail *tail);
/*
 * tail_free() - free a tail that this process does not pin, and pages without runs. An empty tail is permitted.
 *
 * @other: NULL, or the tail from or to which tail_move() has moved this one: common places are not freed
 */
void tail_free(struct tails *tails, struct gpool *pool, struct tail *tail, const struct tail *other);
/* tail_abandon() - forget a tail to which a failed GPU may still write. Its pages stay pinned and get no other runs. */
void tail_abandon(struct tails *tails, struct tail *tail);

/*
 * tail_is_gone() - return true if a page of a tail was evicted.
 * tail_pin() - pin the pages of a tail. Return: as gpool_pin(); -ESTALE: a page was evicted.
 * tail_unpin() - end one pin of each, when the fence is signaled.
 */
bool tail_is_gone(const struct gpool *pool, const struct tail *tail);
int tail_pin(struct tails *tails, struct gpool *pool, const struct tail *tail);
void tail_unpin(struct gpool *pool, const struct tail *tail, struct gpool_fence fence);

/*
 * tails_stay() - determine whether tails_choose() may choose the pages of a tail.
 * tails_choose() - choose the page with the least content if the free memory of all pages is at least a page, so that
 * the others may have room for its content. No run is placed in the page until tails_choose_end(). Return: the page, or
 * NULL.
 * tails_choose_end() - return true if the page was empty and is freed.
 * tail_has() - return true if a run of the tail is in the page.
 * tail_move() - place the runs that are in `page` in other pages, without copying their content, and find a new place
 * for the table, so that the old one stays valid. The caller has pinned `from`. All pages of `to` are pinned once for
 * the caller, which frees one of the two tails. Return: 0; -ENOSPC: no room; or as gpool_pin(), -ENOMEM, with an empty
 * `to`.
 */
void tails_stay(struct tails *tails, const struct tail *tail, bool stay);
struct tail_page *tails_choose(struct tails *tails, const struct gpool *pool);
bool tails_choose_end(struct tails *tails, struct gpool *pool, struct tail_page *page);
bool tail_has(const struct tail *tail, const struct tail_page *page);
int tail_move(struct tails *tails, struct gpool *pool, const struct tail *from, const struct tail_page *page,
	struct tail *to);

/* tail_piece_of() - return the piece with this run, or NULL. */
const struct tail_piece *tail_piece_of(const struct tail *tail, uint32_t run);

/* tail_runs() - return the number of pieces that are runs. */
static inline uint32_t tail_runs(const struct tail *tail)
{
	return tail->count - tail->has_table;
}

/* tail_table() - return the place of the table of runs, or NULL. */
static inline const struct tail_piece *tail_table(const struct tail *tail)
{
	return tail->has_table ? &tail->pieces[tail->count - 1] : NULL;
}

#endif
