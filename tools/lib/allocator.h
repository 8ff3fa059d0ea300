/*
 * allocator.h - the interface of the allocators on which traces are replayed: gpool's and those that it is compared
 * with.
 *
 * All but the driver's allocate memory from the same pool, so pages, agent and back end are the same for each. Any
 * thread may call malloc and free.
 */
#ifndef GPOOL_TOOLS_LIB_ALLOCATOR_H
#define GPOOL_TOOLS_LIB_ALLOCATOR_H

#include "client/gpool.h"

#include <stdint.h>

/* The state of an address range, for pictures. Unused memory outside of all regions is not a region. */
enum region_kind {
	REGION_ALLOCATED,
	REGION_FREE,          /* available for allocations */
	REGION_PENDING_UNMAP, /* still mapped, but its pages have also been mapped at another address */
	REGION_HOLE,          /* addresses without memory between other regions */
	REGION_KINDS
};

struct allocator_totals {
	uint64_t live;         /* allocated bytes, rounded up */
	uint64_t mapped;       /* bytes that the allocator holds, allocated or not */
	uint64_t free;         /* bytes of `mapped` that are available for allocations */
	uint64_t largest_free; /* size of the largest available region */
};

struct allocator;

struct allocator_ops {
	const char *name, *text;
	/* -EOPNOTSUPP: not supported on this device. */
	int (*open)(struct gpool *pool, struct allocator **allocator);
	/* No other call may be in progress. Remaining allocations are freed now or with the session. May be NULL. */
	void (*close)(struct allocator *allocator);
	/*
	 * stream: from gpool_stream_open(); 0: none. Return: 0, -ENOSPC, -EDQUOT, -ENOMEM, or another error of the
	 * driver or the agent.
	 */
	int (*malloc)(struct allocator *allocator, uint64_t bytes, uint32_t stream, uint64_t *address);
	/* Return: 0, or -EINVAL (not allocated). */
	int (*free)(struct allocator *allocator, uint64_t address, uint32_t stream);
	/* Cheap: a few loads; for the driver's allocator, a call of the driver. */
	uint64_t (*mapped)(struct allocator *allocator);
	void (*totals)(struct allocator *allocator, struct allocator_totals *totals);
	/*
	 * Call `region` for every region, in any order; `region` must not call the allocator. The driver's allocator
	 * reports no regions.
	 */
	int (*visit)(struct allocator *allocator,
		void (*region)(void *context, uint64_t address, uint64_t bytes, enum region_kind kind), void *context);
};

/* The common beginning of all allocators. */
struct allocator {
	const struct allocator_ops *ops;
	struct gpool *pool;
};

extern const struct allocator_ops gpool_ops, best_fit_ops, driver_ops;

/* All allocators, terminated by NULL. */
extern const struct allocator_ops *const allocators[];
const struct allocator_ops *allocator_find(const char *name);

#endif
