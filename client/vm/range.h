/*
 * range.h - ranges of addresses that keep while their pages come and go. docs/internals/vm.md says what holds. Internal
 * to libgpool.
 */
#ifndef GPOOL_CLIENT_VM_RANGE_H
#define GPOOL_CLIENT_VM_RANGE_H

#include "client/object/object.h"
#include "client/vm/page_list.h"

#include <sys/queue.h>

struct elastic;

struct gpool_range {
	struct gpool *pool;
	struct gpool_range *next, **link; /* in ranges->all, in order of creation */
	uint32_t page_count;
	uint32_t memory_class; /* enum gpool_object_class */
	struct block_attributes attributes;
	char name[128];     /* immutable: of the object */
	uint64_t va, bytes; /* reserved: whole handles */
	uint64_t address;   /* of the first page */
	/* NULL: it is backed whole; else pages below are those of its held handles, while it is not mapped */
	struct elastic *elastic;
	bool mapped;
	bool waking;             /* mapped by the waking that goes on */
	bool spilled;            /* its content is in ranges->spilled */
	uint32_t spilled_pages;  /* so many of that */
	_Atomic uint32_t losses; /* how often its content was dropped in sleep */
	bool gone;               /* destroyed asleep: its pages are still part of the spilled block */
	/* while it has pages */
	struct page_list pages;
	struct gpool_block block; /* that they are; its tag 0: an object's pages, or in transit */
	/* immutable, once it is kept as an object */
	struct gpool_object *object; /* NULL: closed */
	uint64_t version, layout_hash;
};

LIST_HEAD(tensor_list, gpool_sliced_range);

struct ranges {
	pthread_mutex_t lock;
	struct gpool_range *all, **end;
	struct tensor_list tensors; /* tensor.c's */
	bool asleep;
	_Atomic uint32_t gate; /* calls that are at elastic ranges, and a bit: none may begin */
	uint64_t spilled_tag;  /* of the one block with the content of all mutable ranges; 0: none */
	uint32_t spilled_pages;
};

int ranges_open(struct gpool *pool);
/* tensors_close() - they are gone, and their ranges as any others. */
void tensors_close(struct gpool *pool);
/* ranges_close() - all GPU work is done; what blocks there are end with the session. */
void ranges_close(struct gpool *pool);

/*
 * ranges_enter() - a call is at elastic ranges, which does not take the lock: 0, -EBUSY (asleep, or on the way to it).
 * ranges_leave() - no more.
 * gate_close() - none may begin any more, and none is left: false: one does not end, since it waits for pages.
 * gate_open() - they may.
 */
int ranges_enter(struct ranges *ranges);
void ranges_leave(struct ranges *ranges);
bool gate_close(struct ranges *ranges);
void gate_open(struct ranges *ranges);

/* range_new() - the struct. range_link() - in the list of all; the caller holds the lock. */
struct gpool_range *range_new(struct gpool *pool, uint32_t page_count, uint32_t memory_class);
void range_link(struct gpool_range *range);

/* The callers of all below hold ranges->lock. */

/* range_map() - its pages at its address: 0, -ENOMEM, -EPIPE. range_unmap() - 0, -EBUSY, or what the back end said. */
int range_map(struct gpool_range *range);
int range_unmap(struct gpool_range *range);

/* range_reserve() - addresses for `handles` handles: 0, -ENOMEM. range_unreserve() - not mapped any more. */
int range_reserve(struct gpool_range *range, uint64_t handles);
void range_unreserve(struct gpool_range *range);

/* range_held() - pages that it has, awake or asleep. */
uint32_t range_held(const struct gpool_range *range);

/* range_handles() - how many handles its pages lie in, or -EOPNOTSUPP: they cannot be put side by side. */
int64_t range_handles(const struct gpool_range *range);

/*
 * range_stand() - its pages, in transit, become its block: 0, -EPIPE (not ours any more). range_fall() - the other way,
 * without the pin.
 */
int range_stand(struct gpool_range *range);
void range_fall(struct gpool_range *range);

/* range_object_pages() - those of the object that it has open: 0, -ENOMEM. */
int range_object_pages(struct gpool_range *range);

/*
 * range_settle() - 0; -EBUSY: GPU work that is not done uses pages of it that were unbacked or offered. Call after
 * stream_sync_all().
 */
int range_settle(struct gpool_range *range);

/* range_end() - it is gone: 0, -EBUSY, and as gpool_range_destroy(). */
int range_end(struct gpool_range *range);

void range_free(struct gpool_range *range);

#endif
