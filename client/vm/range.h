/*
 * range.h - ranges: addresses that stay the same while their pages change. docs/internals/vm.md states the rules.
 * Internal to libgpool.
 */
#ifndef GPOOL_CLIENT_VM_RANGE_H
#define GPOOL_CLIENT_VM_RANGE_H

#include "client/object/object.h"
#include "client/vm/page_list.h"

#include <sys/queue.h>

struct elastic;

struct gpool_range {
	struct gpool *pool;
	struct gpool_range *next, **link; /* in the list ranges->all, in order of creation */
	uint32_t page_count;
	uint32_t memory_class; /* enum gpool_object_class */
	struct block_attributes attributes;
	char name[128];     /* immutable: name of the object */
	uint64_t va, bytes; /* reserved addresses, in whole handles */
	uint64_t address;   /* address of the first page */
	/* NULL: committed completely; otherwise `pages` contains the held handles while the range is not mapped */
	struct elastic *elastic;
	bool mapped;
	bool waking;             /* mapped by the wake that is in progress */
	bool spilled;            /* its content is in ranges->spilled */
	uint32_t spilled_pages;  /* number of its spilled pages */
	_Atomic uint32_t losses; /* number of times that sleep has discarded its content */
	bool gone;               /* destroyed while asleep: its pages are still part of the spilled block */
	/* the runs, while the range has pages */
	struct page_list pages;
	struct gpool_block block; /* the block of the pages; tag 0: the pages belong to an object, or are in transit */
	/* immutable only, after the range was kept as an object */
	struct gpool_object *object; /* NULL: closed */
	uint64_t version, layout_hash;
};

LIST_HEAD(sliced_range_list, gpool_sliced_range);

struct ranges {
	pthread_mutex_t lock;
	struct gpool_range *all, **end;
	struct sliced_range_list sliced_ranges; /* used only by sliced_range.c */
	bool asleep;
	_Atomic uint32_t gate; /* number of calls that use elastic ranges, and a bit that prevents further calls */
	uint64_t spilled_tag;  /* tag of the one block with the content of all mutable ranges; 0: none */
	uint32_t spilled_pages;
};

int ranges_open(struct gpool *pool);
/* sliced_ranges_close() - free the sliced ranges; ranges_close() frees the ranges that they use. */
void sliced_ranges_close(struct gpool *pool);
/* ranges_close() - free all ranges, after all GPU work has finished. Their blocks end with the session. */
void ranges_close(struct gpool *pool);

/*
 * ranges_enter() - begin a call that uses elastic ranges and does not acquire the lock. Return: 0, -EHOSTDOWN (the
 * process sleeps, or is going to sleep). ranges_leave() - end the call.
 *
 * gate_close() - prevent further calls, and wait for those in progress. Return false if one does not end, because it
 * waits for pages. gate_open() - permit calls again.
 */
int ranges_enter(struct ranges *ranges);
void ranges_leave(struct ranges *ranges);
bool gate_close(struct ranges *ranges);
void gate_open(struct ranges *ranges);

/*
 * range_new() - allocate the struct. range_link() - insert it into the list of all ranges. The caller holds the lock.
 */
struct gpool_range *range_new(struct gpool *pool, uint32_t page_count, uint32_t memory_class);
void range_link(struct gpool_range *range);

/* The callers of all functions below hold ranges->lock. */

/*
 * range_map() - map the pages at the range's address. Return: 0, -ENOMEM, -EPIPE. range_unmap() - unmap them. Return:
 * 0, -EBUSY, or the error of the back end.
 */
int range_map(struct gpool_range *range);
int range_unmap(struct gpool_range *range);

/*
 * range_reserve() - reserve addresses for `handles` handles. Return: 0, -ENOMEM. range_unreserve() - free the
 * addresses, after everything was unmapped.
 */
int range_reserve(struct gpool_range *range, uint64_t handles);
void range_unreserve(struct gpool_range *range);

/* range_held() - return the number of pages that the range has, awake or asleep. */
uint32_t range_held(const struct gpool_range *range);

/*
 * range_handles() - return the number of handles that contain its pages, or -EOPNOTSUPP if they cannot be mapped side
 * by side.
 */
int64_t range_handles(const struct gpool_range *range);

/*
 * range_stand() - convert the range's pages, which are in transit, to its block. Return: 0, -EPIPE (they belong to
 * another session). range_fall() - convert the block to pages in transit, and end its pin.
 */
int range_stand(struct gpool_range *range);
void range_fall(struct gpool_range *range);

/* range_object_pages() - read the pages of the range's open object. Return: 0, -ENOMEM. */
int range_object_pages(struct gpool_range *range);

/*
 * range_settle() - return 0, or -EBUSY: unfinished GPU work uses pages that were decommitted or offered, or pages of
 * named objects are mapped in the range. Call it after stream_sync_all().
 */
int range_settle(struct gpool_range *range);

void range_free(struct gpool_range *range);

#endif
