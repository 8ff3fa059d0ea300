/*
 * range.h - ranges of addresses that keep while their pages come and go. README.md says what holds. Internal to libgpool.
 */
#ifndef GPOOL_CLIENT_VM_RANGE_H
#define GPOOL_CLIENT_VM_RANGE_H

#include "client/object.h"
#include "client/vm/page_list.h"

struct gpool_range {
	struct gpool *pool;
	struct gpool_range *next, **link; /* in ranges->all, in order of creation */
	uint32_t page_count;
	uint32_t memory_class; /* enum gpool_object_class */
	struct block_attributes attributes;
	char name[128];        /* immutable: of the object */
	uint64_t va, bytes;    /* reserved: whole handles */
	uint64_t address;      /* of the first page */
	bool mapped;
	bool waking;           /* mapped by the waking that goes on */
	bool spilled;          /* its content is in ranges->spilled */
	bool gone;             /* destroyed asleep: its pages are still part of the spilled block */
	/* while it has pages */
	struct page_list pages;
	struct gpool_block block; /* that they are; its tag 0: an object's pages, or in transit */
	/* immutable, once it is kept as an object */
	struct gpool_object *object; /* NULL: closed */
	uint64_t version, layout_hash;
};

struct ranges {
	pthread_mutex_t lock;
	struct gpool_range *all, **end;
	bool asleep;
	uint64_t spilled_tag; /* of the one block with the content of all mutable ranges; 0: none */
	uint32_t spilled_pages;
};

int ranges_open(struct gpool *pool);
/* ranges_close() - all GPU work is done; what blocks there are end with the session. */
void ranges_close(struct gpool *pool);

/* The callers of all below hold ranges->lock. */

/* range_map() - its pages at its address: 0, -ENOMEM, -EPIPE. range_unmap() - 0, -EBUSY, or what the back end said. */
int range_map(struct gpool_range *range);
int range_unmap(struct gpool_range *range);

/* range_reserve() - addresses for `handles` handles: 0, -ENOMEM. range_unreserve() - not mapped any more. */
int range_reserve(struct gpool_range *range, uint64_t handles);
void range_unreserve(struct gpool_range *range);

/* range_handles() - how many handles its pages lie in, or -EOPNOTSUPP: they cannot be put side by side. */
int64_t range_handles(const struct gpool_range *range);

/* range_stand() - its pages, in transit, become its block: 0, -EPIPE (not ours any more). range_fall() - the other way, without the pin. */
int range_stand(struct gpool_range *range);
void range_fall(struct gpool_range *range);

/* range_object_pages() - those of the object that it has open: 0, -ENOMEM. */
int range_object_pages(struct gpool_range *range);

void range_free(struct gpool_range *range);

#endif
