/*
 * region_set.h - the addresses of the stream-ordered allocator, as regions of four kinds. Internal to libgpool.
 *
 * A chunk is a reservation of addresses, counted in pages of the allocator. It consists of adjacent regions without
 * gaps. The kinds of regions are
 *   allocated      returned by gpool_malloc_async()
 *   free           mapped and not allocated; it belongs to the stream in which it was freed, or to none
 *   hole           nothing is mapped
 *   pending unmap  the old addresses of pages that were mapped elsewhere, or that the agent has taken; still mapped,
 *                  because queued work may use them
 * The regions therefore always partition the space. A region is `moving` while one thread works on it without the lock.
 * A moving region keeps its kind and its place among its neighbors, but is in no tree or list.
 *
 * A free region is available to its own stream immediately. For other streams its readiness is one of
 *   UNFENCED  freed without a fence, because only one stream was in use: a fence must be recorded first
 *   PENDING   its fence is not signaled
 *   READY     its fence is signaled, or the region has no stream
 * When a stream reuses a region immediately, the GPU may still be executing earlier work on it. The allocation
 * therefore keeps the readiness and the fence of the region as its guard. When the allocation is freed, its state
 * depends on the stream of the free:
 *   the same stream   the region is like any other
 *   no stream         it belongs to the guard's stream until the guard ends
 *   another stream    it is `guarded`: available to no stream until the guard ends, and then to that other stream
 *
 * The slot VM_RECLAIMABLE is for regions without a stream whose pages the agent may take without a request, or may
 * already have taken.
 *
 * Invariants, which region_check.c checks:
 *   The regions of a chunk follow each other from its first page to its last. The totals are the sums over them.
 *   Each region that does not move is in exactly the trees and lists that its kind, slot and readiness require.
 *   The parts of a region that was taken apart keep its id until they are put back.
 *   No two neighbors can be joined. Holes can be joined; so can free regions of the same slot, and the later fence
 *   then applies.
 *   The keys of a tree do not change while a region is in it.
 * The functions of this file call neither driver nor agent. The caller holds the lock of the sets' owner.
 *
 * Cost: O(log n) for each step. Each stream keeps its fences in order, so signaled ones are found at the head. Checking
 * a fence costs one load.
 */
#ifndef GPOOL_CLIENT_VM_REGION_SET_H
#define GPOOL_CLIENT_VM_REGION_SET_H

#include "shm/session_segment.h"

#include <bsd/sys/tree.h>
#include <sys/queue.h>

enum vm_region_kind { VM_HOLE, VM_FREE, VM_ALLOCATED, VM_PENDING_UNMAP, VM_KINDS };
enum vm_region_ready { VM_READY, VM_PENDING, VM_UNFENCED };

enum {
	VM_NONE = 0, /* slot of regions without a stream */
	VM_RECLAIMABLE = SESSION_TIMELINES,
	VM_SLOTS,
	VM_WORDS = SESSION_TIMELINES / 64,
};

struct region_chunk;

struct vm_region {
	struct region_chunk *chunk;
	struct vm_region *before, *after; /* neighbors in the chunk, by address */
	uint32_t first, count;            /* pages */
	uint8_t kind;                     /* enum vm_region_kind */
	/* enum vm_region_ready: of a free region or a pending unmap; of the guard, if the region is allocated */
	uint8_t ready;
	bool moving;
	bool guarded;        /* free, but available to no stream until its guard ends */
	bool unmapped;       /* moving pending unmap: the pages were unmapped */
	bool captured;       /* allocated: keeps its pages when it is freed, and becomes free when the capture ends */
	bool released;       /* allocated, captured: it was freed during the capture */
	bool held;           /* free, allocated: some of its handles are held */
	bool offered;        /* free: some of its handles are released (vpmm_offer.c) */
	uint16_t slot;       /* free: slot of the stream; allocated: slot of the guard */
	uint16_t next_slot;  /* guarded: slot of the region after the guard has ended */
	uint64_t fence;      /* fence of a free region, a pending unmap or a guard; 0: none */
	uint64_t next_fence; /* guarded: fence of the free operation */
	uint64_t id;         /* order of creation; allocated: number of the allocation */
	uint64_t bytes;      /* allocated: requested size */
	uint32_t stream;     /* number of the stream of the allocation, or of the harvested region */
	uint32_t freed_in;   /* released: number of the stream in which it was freed */
	uint16_t row;        /* index in the table for tools */
	RB_ENTRY(vm_region) by_size;  /* free regions of a slot; holes */
	RB_ENTRY(vm_region) by_ready; /* PENDING: by fence, per slot. READY with a stream: by size, for all slots */
	/* free regions of a slot; READY pending unmaps; or the list of the thread that moves the region */
	TAILQ_ENTRY(vm_region) by_age;
	TAILQ_ENTRY(vm_region) queue; /* free regions, oldest first: UNFENCED of a slot, or READY of all streams */
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
	struct vm_region **at; /* [pages]: the allocated region that begins here; allocated on first use */
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
	struct region_list ready_ages; /* the same regions, oldest first */
	struct region_list ripe;       /* READY pending unmaps */
	uint64_t fenced[VM_WORDS];     /* a bit for each slot with PENDING regions */
	uint64_t used[VM_WORDS];       /* a bit for each slot with free regions */
	uint64_t loose[VM_WORDS];      /* a bit for each slot with UNFENCED regions */
	uint64_t pages[VM_KINDS];      /* totals, including moving regions */
	uint64_t counts[VM_KINDS];
	uint64_t available;           /* free pages that are neither moving nor guarded */
	uint64_t guarded;             /* guarded free pages */
	uint64_t reclaimable;         /* available pages that are reclaimable */
	uint64_t ready;               /* READY pages of streams */
	uint64_t unfenced;            /* number of UNFENCED regions, including those that are guarded */
	uint64_t newest;              /* id of the allocation by the last call; 0: it allocated nothing */
	struct region_writer *writer; /* NULL: the regions are not shown to tools */
	bool changed;                 /* changed since the totals were last shown */
	struct region_list spares;
	uint32_t spare_count;
	struct region_slab *slabs;
	struct region_stream streams[VM_SLOTS];
};

/*
 * region_set_open() - initialize a set. writer NULL: its regions are not shown to tools. region_set_close() - free it,
 * before its chunks. Both may change the shown table.
 */
void region_set_open(struct region_set *set, const struct session_segment *session, uint64_t page_bytes,
	struct region_writer *writer);
void region_set_close(struct region_set *set);

/*
 * region_show() - write a changed moving region to the table for tools. region_show_totals() - write changed totals to
 * it. Call them before the lock is released.
 */
void region_show(struct region_set *set, struct vm_region *region);
void region_show_totals(struct region_set *set);

/*
 * region_chunk_open() - allocate the memory for `pages` pages at `base`. Return: 0, -ENOMEM. region_chunk_add() - add
 * the chunk as one hole.
 */
int region_chunk_open(struct region_chunk *chunk, uint64_t base, uint32_t pages);
void region_chunk_close(struct region_chunk *chunk);
void region_chunk_add(struct region_set *set, struct region_chunk *chunk);

static inline bool is_stream_slot(uint32_t slot)
{
	return slot != VM_NONE && slot != VM_RECLAIMABLE;
}

/*
 * region_spare() - allocate memory for `steps` steps that create a region. Return: 0, -ENOMEM. Each call of
 * region_chunk_add(), region_carve() and region_split() is one step.
 */
int region_spare(struct region_set *set, uint32_t steps);

/* region_chunk_next() - return the next chunk in ascending order; for NULL, the first. */
const struct region_chunk *region_chunk_next(const struct region_set *set, const struct region_chunk *chunk);

static inline uint64_t region_address(const struct region_set *set, const struct vm_region *region)
{
	return region->chunk->base + region->first * set->page_bytes;
}

/*
 * region_find() - find the allocation that begins at an address. Return: 0; -EINVAL (no page of the allocator begins
 * there); -ESTALE (no allocation begins there).
 */
int region_find(const struct region_set *set, uint64_t address, struct vm_region **region);

/* ---- find the smallest region with `count` pages, and of several the lowest; NULL if none exists ---- */

struct vm_region *region_best(struct region_set *set, uint32_t slot, uint32_t count);
/*
 * region_best_ready() - return the smallest sufficient READY region. Among regions of equal size, those of a stream
 * come first, then those without a stream, then reclaimable ones.
 */
struct vm_region *region_best_ready(struct region_set *set, uint32_t count);
struct vm_region *region_best_hole(struct region_set *set, uint32_t count);

/* ---- take out of the sets, and put back ---- */

/*
 * region_carve() - take the first `count` pages of a region out of the sets, as a moving region. The rest stays in the
 * sets.
 */
struct vm_region *region_carve(struct region_set *set, struct vm_region *region, uint32_t count);

/* region_split() - split the first `count` pages, fewer than all, off a moving region. Both parts move. */
struct vm_region *region_split(struct region_set *set, struct vm_region *region, uint32_t count);

/* region_turn() - change the kind of a moving region. */
void region_turn(struct region_set *set, struct vm_region *region, enum vm_region_kind kind);

/*
 * region_put() - insert a region into the sets that its fields require, joined with its neighbors. Return the
 * resulting region.
 */
struct vm_region *region_put(struct region_set *set, struct vm_region *region);

/*
 * region_put_free() - make a moving region free in a slot, with a new id. It is UNFENCED if `fence` is 0 and the slot
 * belongs to a stream.
 */
struct vm_region *region_put_free(struct region_set *set, struct vm_region *region, uint32_t slot, uint64_t fence);

/*
 * region_put_released() - free a moving allocation in a slot, with a fence or 0. guard: the slot of the allocation's
 * guard still belongs to the same stream.
 */
struct vm_region *region_put_released(
	struct region_set *set, struct vm_region *region, uint32_t slot, uint64_t fence, bool guard);

/* region_put_pending_unmap() - make a moving region a pending unmap until the fence is signaled. */
void region_put_pending_unmap(struct region_set *set, struct vm_region *region, uint64_t fence);

/* region_put_allocated() - make a moving region allocated; its readiness and fence become its guard. */
void region_put_allocated(struct region_set *set, struct vm_region *region, uint32_t slot, uint64_t bytes);

/* ---- readiness ---- */

/* region_sweep() - make regions READY whose fences are signaled. */
void region_sweep(struct region_set *set);

/* region_ripe() - take the oldest READY pending unmap as a moving region. Return NULL if none exists. */
struct vm_region *region_ripe(struct region_set *set);

/* region_fence() - set `fence` for all UNFENCED regions of a slot with an id up to last_id. */
void region_fence(struct region_set *set, uint32_t slot, uint64_t fence, uint64_t last_id);

/* region_stream_end() - remove the stream from its regions, because it was closed and its work is done. */
void region_stream_end(struct region_set *set, uint32_t slot);

/* ---- choose regions for other uses ---- */

/*
 * region_at_once() - return the number of pages that a stream can use without waiting and without a request: its own,
 * and those READY ones that are not reclaimable.
 */
static inline uint64_t region_at_once(const struct region_set *set, uint32_t slot)
{
	uint64_t others = set->ready - set->streams[slot].ready;

	return set->streams[slot].pages + others + (slot == VM_NONE ? 0 : set->streams[VM_NONE].pages);
}

/*
 * A harvest: free regions, now moving, whose pages are to be mapped elsewhere. Those of `slot` come first, then READY
 * ones, then unfinished ones of other streams; within each group, the oldest first. The last region may be split;
 * `rest_id` identifies the rest.
 */
struct region_harvest {
	struct region_list regions; /* linked by by_age */
	uint32_t pages;
	uint64_t rest_id;
};

/*
 * region_harvest() - harvest `pages` pages. At least this number must be available, not counting reclaimable ones.
 * Takes the memory of one step.
 */
void region_harvest(struct region_set *set, uint32_t slot, uint32_t pages, struct region_harvest *harvest);

/* region_harvest_undo() - restore the harvested regions, with their ids, fences and places in the order of age. */
void region_harvest_undo(struct region_set *set, struct region_harvest *harvest);

/*
 * A window: adjacent pages that are mapped in part. They belong to holes and to free regions that a stream can use at
 * once.
 */
struct region_window {
	struct vm_region *region; /* the region with the first page; NULL: none */
	uint32_t first;
	uint32_t mapped; /* number of pages in free regions */
};

/*
 * region_window() - find the window of `count` pages for a slot with the most mapped pages. Return false if no window
 * has any. Offered regions count as free. Cost: linear in the number of regions.
 * region_window_take() - take the regions of a window out of the sets. They move; `parts` receives them, linked by
 * by_age, in ascending order. Takes the memory of two steps.
 * region_unite() - make one moving free region for a slot of parts, which are all mapped now.
 */
bool region_window(const struct region_set *set, uint32_t slot, uint32_t count, struct region_window *window);
void region_window_take(
	struct region_set *set, const struct region_window *window, uint32_t count, struct region_list *parts);
struct vm_region *region_unite(struct region_set *set, struct region_list *parts, uint32_t slot);

/*
 * region_idle() - take the oldest READY region that is not reclaimable, or its first `pages` pages, as a moving region.
 * Return NULL if none exists.
 */
struct vm_region *region_idle(struct region_set *set, uint64_t pages);

/* region_reclaimable() - like region_idle(), for reclaimable regions of a chunk, or of all chunks if it is NULL. */
struct vm_region *region_reclaimable(struct region_set *set, const struct region_chunk *chunk, uint64_t pages);

/* ---- check ---- */

/*
 * region_check() - check all invariants. Return the number of violations; `text` describes the first.
 * region_check_near() - check the invariants around one region. Both permit moving regions.
 */
uint32_t region_check(const struct region_set *set, char *text, size_t text_bytes);
uint32_t region_check_near(const struct region_set *set, const struct vm_region *region, char *text, size_t text_bytes);

#endif
