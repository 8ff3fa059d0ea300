/*
 * allocator.h - what a trace of allocations is replayed on: one face for gpool's own allocator and for those that it is
 * compared with.
 *
 * All but the driver's take their memory from the same pool, so that the same pages, the same agent and the same back
 * end stand behind each; only what is made of them differs. Any thread may call malloc and free.
 */
#ifndef GPOOL_TOOLS_LIB_ALLOCATOR_H
#define GPOOL_TOOLS_LIB_ALLOCATOR_H

#include "client/gpool.h"

#include <stdint.h>

/* What an address holds, for pictures. Unused memory that is not between regions is no region. */
enum region_kind {
	REGION_ALLOCATED,
	REGION_FREE,          /* ready to be given out */
	REGION_PENDING_UNMAP, /* still mapped, but its pages are at another address already */
	REGION_HOLE,          /* addresses between others without memory */
	REGION_KINDS
};

struct allocator_totals {
	uint64_t live;         /* given out, as rounded up */
	uint64_t mapped;       /* memory that the allocator holds, given out or not */
	uint64_t free;         /* of it ready to be given out */
	uint64_t largest_free; /* the largest of these at one address */
};

struct allocator;

struct allocator_ops {
	const char *name, *text;
	/* -EOPNOTSUPP: not on this device. */
	int (*open)(struct gpool *pool, struct allocator **allocator);
	/* No call may be in progress; allocations that are left are freed. NULL is allowed. */
	void (*close)(struct allocator *allocator);
	/*
	 * stream: of gpool_stream_open(), 0: none. Return: 0, -ENOSPC, -EDQUOT, -ENOMEM, or what else a driver or agent
	 * says.
	 */
	int (*malloc)(struct allocator *allocator, uint64_t bytes, uint32_t stream, uint64_t *address);
	/* Return: 0, -EINVAL (it is not allocated). */
	int (*free)(struct allocator *allocator, uint64_t address, uint32_t stream);
	/* One load, or little more. */
	uint64_t (*mapped)(struct allocator *allocator);
	void (*totals)(struct allocator *allocator, struct allocator_totals *totals);
	/* Every region, in any order; no call may be made from within. */
	int (*visit)(struct allocator *allocator,
		void (*region)(void *context, uint64_t address, uint64_t bytes, enum region_kind kind), void *context);
};

/* Each begins with this. */
struct allocator {
	const struct allocator_ops *ops;
	struct gpool *pool;
};

extern const struct allocator_ops gpool_ops, best_fit_ops, driver_ops;

/* The table of all, up to NULL. */
extern const struct allocator_ops *const allocators[];
const struct allocator_ops *allocator_find(const char *name);

#endif
