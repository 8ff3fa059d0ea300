/*
 * region_set.h - the addresses of the stream-ordered allocator, as regions in four sets. Internal to libgpool.
 *
 * A chunk is a reservation, counted in pages of the allocator. Its regions, side by side and without gaps, are
 *   allocated      returned by gpool_malloc_async()
 *   free           mapped and not allocated; it belongs to the stream in which it was freed, or to none
 *   hole           nothing is mapped
 *   pending unmap  the old addresses of pages that were also mapped elsewhere; still mapped, because queued work may
 *                  use them
 * so that the sets always partition the space. A region is `moving` while one thread works on it without the lock: it
 * has its kind, and its place among its neighbours, but it is in no tree or list.
 *
 * A free region is available to its own stream at once. For other streams it is
 *   UNFENCED  freed without a fence, since only one stream was in use: a fence must be recorded first
 *   PENDING   until its fence is signaled
 *   READY     from then on; so is every region without a stream
 * When a stream reuses a region at once, the GPU may still execute the earlier work there; the allocation therefore
 * keeps the readiness and the fence of the region as its guard. Freed in the same stream, it is like any other region.
 * Freed without a stream, it belongs to that stream until the guard ends. Freed in another stream, it is `guarded`:
 * available to no stream until the guard ends, and then to that other stream.
 *
 * Regions without a stream that the agent may take without a request have the slot VM_RECLAIMABLE: their pages may have
 * been taken.
 *
 * Invariants, which region_check.c checks:
 *   Regions of a chunk follow each other from its first page to its last; totals are the sums over them.
 *   Each region that does not move is in exactly the trees and lists that its kind, slot and readiness require.
 *   No two neighbours could be joined: holes with holes; free ones of one slot, of which the later fence then applies.
 *   The keys of a tree do not change while a region is in it.
 * No driver call and no request to the agent is made here. The caller holds the lock of the sets' owner.
 *
 * Cost: O(log n) for each step. Signaled fences are found at the head of each stream's fences in order; checking one
 * costs a load.
 */
#ifndef GPOOL_CLIENT_VM_REGION_SET_H
#define GPOOL_CLIENT_VM_REGION_SET_H

#include "shm/session_segment.h"

#include <bsd/sys/tree.h>
#include <sys/queue.h>

enum vm_region_kind { VM_HOLE, VM_FREE, VM_ALLOCATED, VM_PENDING_UNMAP, VM_KINDS };
enum vm_region_ready { VM_READY, VM_PENDING, VM_UNFENCED };

enum {
	VM_NONE = 0, /* the slot of regions without a stream */
	VM_RECLAIMABLE = SESSION_TIMELINES,
	VM_SLOTS,
	VM_WORDS = SESSION_TIMELINES / 64,
};

struct region_chunk;

struct vm_region {
	struct region_chunk *chunk;
	struct vm_region *before, *after; /* neighbours in the chunk, by address */
	uint32_t first, count;            /* pages */
	uint8_t kind;                     /* enum vm_region_kind */
	/* enum vm_region_ready, of free regions and pending unmaps; of allocated ones that of the guard */
	uint8_t ready;
	bool moving;
	bool guarded;  /* free, and available to no stream until its guard ends */
	bool unmapped; /* moving pending unmap: it is unmapped */
	bool captured; /* allocated: keeps its pages even when it is freed, and is free only when the capture ends */
	bool released; /* allocated, captured: freed meanwhile */
	bool held;     /* free, allocated: some of its handles are held */
	bool offered;  /* free: some of its handles are released (vpmm_offer.c) */
	uint16_t slot; /* free: stream slot; allocated: that of the guard */
	uint16_t next_slot;           /* guarded: slot after the end of the guard */
	uint64_t fence;               /* fence of a free region, a pending unmap or a guard; 0: none */
	uint64_t next_fence;          /* guarded: fence of the free */
	uint64_t id;                  /* order of creation; allocated: number of the allocation */
	uint64_t bytes;               /* allocated: requested size */
	uint32_t stream;              /* number of the stream of the allocation or the harvest */
	uint32_t freed_in;            /* released: number of the stream of the free */
	uint16_t row;                 /* index in the table for tools */
	RB_ENTRY(vm_region) by_size;  /* free regions of a slot; holes */
	RB_ENTRY(vm_region) by_ready; /* PENDING: by fence, of its slot. READY, of a stream: by size, of all slots */
	/* free regions of a slot; READY pending unmaps; or the list of the thread that moves it */
	TAILQ_ENTRY(vm_region) by_age;
	TAILQ_ENTRY(vm_region) queue; /* free regions: UNFENCED of its slot, or READY of all streams, oldest first */
};

RB_HEAD(region_sizes, vm_region);
RB_HEAD(region_readies, vm_region);
RB_HEAD(region_fences, vm_region);
TAILQ_HEAD(region_list, vm_region);

struct region_chunk {
	RB_ENTRY(region_chunk) by_base;
	uint64_t base;
	uint32_t pages;
	struct vm_region *lowest;
	struct vm_region **at; /* [pages]: the allocated region that begins here; touched on demand */
};
RB_HEAD(region_chunks, region_chunk);

struct region_stream {
	struct region_sizes sizes;
	struct region_list ages;
	struct region_list unfenced;
	struct region_fences fences; /* PENDING regions, by the stream of their fence */
	uint64_t pages;              /* number of free pages */
	uint64_t ready;              /* number of READY pages of the stream */
};

struct region_slab;

struct region_set {
	const struct session_segment *session; /* segment with the timeline */
	uint64_t page_bytes;
	uint64_t last_id;
	struct region_chunks chunks;
	struct region_sizes holes;
	struct region_readies readies; /* READY regions of streams */
	struct region_list ready_ages; /* the same, oldest first */
	struct region_list ripe;       /* READY pending unmaps */
	uint64_t fenced[VM_WORDS];     /* a bit for each slot with PENDING regions */
	uint64_t used[VM_WORDS];       /* a bit for each slot with free regions */
	uint64_t loose[VM_WORDS];      /* a bit for each slot with UNFENCED regions */
	uint64_t pages[VM_KINDS];      /* totals, including moving regions */
	uint64_t counts[VM_KINDS];
	uint64_t available;           /* free pages that are neither moving nor guarded */
	uint64_t guarded;             /* guarded free pages */
	uint64_t reclaimable;         /* reclaimable ones of the available pages */
	uint64_t ready;               /* READY pages of streams */
	uint64_t unfenced;            /* number of UNFENCED regions, including guarded ones */
	uint64_t newest;              /* id of the last call's allocation; 0: it allocated nothing */
	struct region_writer *writer; /* NULL: regions are not shown */
	bool changed;                 /* changed since the totals were shown */
	struct region_list spares;
	uint32_t spare_count;
	struct region_slab *slabs;
	struct region_stream streams[VM_SLOTS];
};

/*
 * region_set_open() - initialize a set; writer NULL: its regions are not shown. region_set_close() - free it, before
 * its chunks. Both may change the shown table.
 */
void region_set_open(struct region_set *set, const struct session_segment *session, uint64_t page_bytes,
	struct region_writer *writer);
void region_set_close(struct region_set *set);

/*
 * region_show() - show a moving region's change before the lock is released. region_show_totals() - show the changed
 * totals, before it is released.
 */
void region_show(struct region_set *set, struct vm_region *region);
void region_show_totals(struct region_set *set);

/*
 * region_chunk_open() - allocate the memory for `pages` pages at base: 0, -ENOMEM. region_chunk_add() - add the chunk
 * as one hole.
 */
int region_chunk_open(struct region_chunk *chunk, uint64_t base, uint32_t pages);
void region_chunk_close(struct region_chunk *chunk);
void region_chunk_add(struct region_set *set, struct region_chunk *chunk);

static inline bool is_stream_slot(uint32_t slot)
{
	return slot != VM_NONE && slot != VM_RECLAIMABLE;
}

/*
 * region_spare() - allocate memory for steps that create a region: 0, -ENOMEM. Each of region_chunk_add(),
 * region_carve() and region_split() takes the memory of one step.
 */
int region_spare(struct region_set *set, uint32_t steps);

/* region_chunk_next() - return the next chunk in ascending order; NULL: the first. */
const struct region_chunk *region_chunk_next(const struct region_set *set, const struct region_chunk *chunk);

static inline uint64_t region_address(const struct region_set *set, const struct vm_region *region)
{
	return region->chunk->base + region->first * set->page_bytes;
}

/*
 * region_find() - find the allocation that begins at an address: 0; -EINVAL: no page of the allocator begins there;
 * -ESTALE: no allocation begins there.
 */
int region_find(const struct region_set *set, uint64_t address, struct vm_region **region);

/* ---- finding: the smallest that holds `count` pages, of those the lowest. NULL: there is none ---- */

struct vm_region *region_best(struct region_set *set, uint32_t slot, uint32_t count);
/*
 * region_best_ready() - return the smallest sufficient READY region: of any stream, of none, or reclaimable; in this
 * order if their sizes are equal.
 */
struct vm_region *region_best_ready(struct region_set *set, uint32_t count);
struct vm_region *region_best_hole(struct region_set *set, uint32_t count);

/* ---- taking out of the sets, and putting back ---- */

/* region_carve() - take the first `count` pages of a region in the sets as a moving region; the rest stays. */
struct vm_region *region_carve(struct region_set *set, struct vm_region *region, uint32_t count);

/* region_split() - split the first `count` pages, fewer than all, off a moving region; the result moves too. */
struct vm_region *region_split(struct region_set *set, struct vm_region *region, uint32_t count);

/* region_turn() - change the kind of a moving region. */
void region_turn(struct region_set *set, struct vm_region *region, enum vm_region_kind kind);

/*
 * region_put() - insert a region into the sets that its fields require, joined with its neighbours. Returns the
 * resulting region.
 */
struct vm_region *region_put(struct region_set *set, struct vm_region *region);

/* region_put_free() - make a moving region free in a slot, with a new id. fence 0 with a stream's slot: UNFENCED. */
struct vm_region *region_put_free(struct region_set *set, struct vm_region *region, uint32_t slot, uint64_t fence);

/*
 * region_put_released() - free a moving allocation in a slot, behind a fence or 0. guard: the slot of its guard still
 * belongs to the same stream.
 */
struct vm_region *region_put_released(
	struct region_set *set, struct vm_region *region, uint32_t slot, uint64_t fence, bool guard);

/* region_put_pending_unmap() - make a moving region a pending unmap until the fence is signaled. */
void region_put_pending_unmap(struct region_set *set, struct vm_region *region, uint64_t fence);

/* region_put_allocated() - make a moving region allocated; its readiness and fence become its guard. */
void region_put_allocated(struct region_set *set, struct vm_region *region, uint32_t slot, uint64_t bytes);

/* ---- time ---- */

/* region_sweep() - make regions whose fences are signaled READY. */
void region_sweep(struct region_set *set);

/* region_ripe() - take the oldest READY pending unmap, which moves from now on; NULL: none. */
struct vm_region *region_ripe(struct region_set *set);

/* region_fence() - set `fence` for all regions that were freed unfenced in its slot up to this id. */
void region_fence(struct region_set *set, uint32_t slot, uint64_t fence, uint64_t last_id);

/* region_stream_end() - a stream was closed and its work is done: its regions have no stream any more. */
void region_stream_end(struct region_set *set, uint32_t slot);

/* ---- choosing what others may have ---- */

/*
 * region_at_once() - return the number of pages that a stream can use without waiting and without a request: its own,
 * and READY ones that are not reclaimable.
 */
static inline uint64_t region_at_once(const struct region_set *set, uint32_t slot)
{
	uint64_t others = set->ready - set->streams[slot].ready;

	return set->streams[slot].pages + others + (slot == VM_NONE ? 0 : set->streams[VM_NONE].pages);
}

/*
 * A harvest: free regions whose pages are to be mapped elsewhere. They move. Those of `slot` come first, then READY
 * ones, then unfinished ones of other streams; oldest first in each group. The last region is split; `rest_id`
 * identifies the rest.
 */
struct region_harvest {
	struct region_list regions; /* linked by by_age */
	uint32_t pages;
	uint64_t rest_id;
};

/*
 * region_harvest() - harvest `pages` pages, which must be available without the reclaimable ones; takes one step's
 * memory.
 */
void region_harvest(struct region_set *set, uint32_t slot, uint32_t pages, struct region_harvest *harvest);

/* region_harvest_undo() - restore the regions, with their ids, fences and places in order of age. */
void region_harvest_undo(struct region_set *set, struct region_harvest *harvest);

/*
 * region_idle() - take the oldest READY region that is not reclaimable, at most `pages` of it, which moves from now on;
 * NULL: none.
 */
struct vm_region *region_idle(struct region_set *set, uint64_t pages);

/* region_reclaimable() - the same for reclaimable regions; chunk NULL: any. */
struct vm_region *region_reclaimable(struct region_set *set, const struct region_chunk *chunk, uint64_t pages);

/* ---- proving ---- */

/*
 * region_check() - check all invariants: 0, or the number of violations, the first of them as text. region_check_near()
 * - check those around one region. Moving regions are permitted.
 */
uint32_t region_check(const struct region_set *set, char *text, size_t text_bytes);
uint32_t region_check_near(const struct region_set *set, const struct vm_region *region, char *text, size_t text_bytes);

#endif
