/*
 * region_set.h - the addresses of the stream-ordered allocator as regions in four sets. Internal to libgpool.
 *
 * A chunk is a reservation, counted in pages of the allocator. Its regions, side by side and without gaps, are
 *   allocated  somebody's, since gpool_malloc_async()
 *   free       mapped, nobody's; of the stream in which it was freed, or of none
 *   hole       nothing is mapped there
 *   pending unmap     the old place of pages that were mapped elsewhere too; still mapped, because work that is queued
 *   may use
 *              it
 * so the sets partition the space at every moment. A region is `moving` while one thread works on it without the lock:
 * it has its kind, and its place among its neighbours, and nobody else finds it.
 *
 * A free region is, for its own stream, free at once. For others it is
 *   UNFENCED  freed without a fence, since one stream alone was in use: somebody has to record one before anything can
 *             be said
 *   PENDING   until its fence is reached
 *   READY     from then on; so is every region of no stream
 * What a stream has again at once, while the GPU may still work there for what was freed, keeps that as its guard: an
 * allocation has the readiness and the fence that its region had. Freed in the same stream it is as any other. Freed in
 * no stream it is that stream's again, until then. Freed in another one it is `guarded`: nobody's until the guard is
 * over, and then that other stream's.
 *
 * Regions of no stream that the agent may take back without asking are of the slot VM_RECLAIMABLE: their pages may be
 * gone.
 *
 * Invariants, which region_check.c proves:
 *   regions of a chunk follow each other from its first page to its last; totals are the sums over them
 *   each one that does not move is in exactly the trees and lists that its kind, slot and readiness say
 *   no two neighbours could be joined: holes with holes; free ones of one slot, of which the later fence then counts
 *   the keys of a tree do not change while a region is in it
 * No driver call and no question to the agent is made here. The caller holds the lock of whoever owns the sets.
 *
 * Cost: O(log n) for each step. What is reached is found at the head of each stream's fences in order; a reached fence
 * is one load.
 */
#ifndef GPOOL_CLIENT_VM_REGION_SET_H
#define GPOOL_CLIENT_VM_REGION_SET_H

#include "shm/session_segment.h"

#include <bsd/sys/tree.h>
#include <sys/queue.h>

enum vm_region_kind { VM_HOLE, VM_FREE, VM_ALLOCATED, VM_PENDING_UNMAP, VM_KINDS };
enum vm_region_ready { VM_READY, VM_PENDING, VM_UNFENCED };

enum {
	VM_NONE = 0, /* the slot of regions of no stream */
	VM_RECLAIMABLE = SESSION_TIMELINES,
	VM_SLOTS,
	VM_WORDS = SESSION_TIMELINES / 64,
};

struct region_chunk;

struct vm_region {
	struct region_chunk *chunk;
	struct vm_region *before, *after; /* in the chunk, by address */
	uint32_t first, count;            /* pages */
	uint8_t kind;                     /* enum vm_region_kind */
	/* enum vm_region_ready, of free ones and pending unmaps; of allocated ones the guard's */
	uint8_t ready;
	bool moving;
	bool guarded;        /* free, and nobody's before its guard is over */
	bool unmapped;       /* pending unmap that moves: it is not mapped any more */
	bool captured;       /* allocated: keeps its pages also when it is freed, and is free only when that ends */
	bool released;       /* allocated, captured: freed meanwhile */
	bool held;           /* free, allocated: some of its handles are held */
	bool offered;        /* free: some of its handles are released (vpmm_offer.c) */
	uint16_t slot;       /* stream slot of free ones; of allocated ones the guard's */
	uint16_t next_slot;  /* guarded: whose it is then */
	uint64_t fence;      /* free, pending unmap, guard: until it is reached; 0: none */
	uint64_t next_fence; /* guarded: of the free */
	uint64_t id;         /* order of creation; allocated: number of the allocation */
	uint64_t bytes;      /* allocated: as asked for */
	uint32_t stream;     /* number: allocated for; harvested from */
	uint32_t freed_in;   /* released: number */
	uint16_t row;        /* in the table that others look at */
	RB_ENTRY(vm_region) by_size;  /* free: of its slot; hole */
	RB_ENTRY(vm_region) by_ready; /* PENDING: by fence, of its slot. READY, of a stream: by size, of all slots */
	/* free: of its slot; READY pending unmap; and whatever list a thread that moves it keeps */
	TAILQ_ENTRY(vm_region) by_age;
	TAILQ_ENTRY(vm_region) queue; /* free: UNFENCED of its slot, or READY of all streams, oldest first */
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
	struct vm_region **at; /* [pages]: the allocated region that begins here; address space until it is used */
};
RB_HEAD(region_chunks, region_chunk);

struct region_stream {
	struct region_sizes sizes;
	struct region_list ages;
	struct region_list unfenced;
	struct region_fences fences; /* PENDING, by whose fence they wait for */
	uint64_t pages;              /* free */
	uint64_t ready;              /* of those of a stream: READY */
};

struct region_slab;

struct region_set {
	const struct session_segment *session; /* its timeline */
	uint64_t page_bytes;
	uint64_t last_id;
	struct region_chunks chunks;
	struct region_sizes holes;
	struct region_readies readies; /* READY regions of streams */
	struct region_list ready_ages; /* the same, oldest first */
	struct region_list ripe;       /* READY pending unmaps */
	uint64_t fenced[VM_WORDS];     /* a bit for each slot that has something PENDING */
	uint64_t used[VM_WORDS];       /* a bit for each slot that has free regions */
	uint64_t loose[VM_WORDS];      /* a bit for each slot that has UNFENCED ones */
	uint64_t pages[VM_KINDS];      /* totals, also of what moves */
	uint64_t counts[VM_KINDS];
	uint64_t available;           /* free pages that do not move and are not guarded */
	uint64_t guarded;             /* free pages that are */
	uint64_t reclaimable;         /* of those */
	uint64_t ready;               /* of those of streams: READY */
	uint64_t unfenced;            /* UNFENCED regions, guarded ones too */
	uint64_t newest;              /* id of what the last call allocated; 0: it did something else */
	struct region_writer *writer; /* NULL: nobody looks */
	bool changed;                 /* since the totals were shown */
	struct region_list spares;
	uint32_t spare_count;
	struct region_slab *slabs;
	struct region_stream streams[VM_SLOTS];
};

/*
 * region_set_open() - writer NULL: its regions are not shown. _close() - chunks end after it. Both may change what is
 * shown.
 */
void region_set_open(struct region_set *set, const struct session_segment *session, uint64_t page_bytes,
	struct region_writer *writer);
void region_set_close(struct region_set *set);

/*
 * region_show() - that a region moves while the lock is let go. region_show_totals() - what has changed, before it is.
 */
void region_show(struct region_set *set, struct vm_region *region);
void region_show_totals(struct region_set *set);

/*
 * region_chunk_open() - memory for `pages` at base: 0, -ENOMEM. region_chunk_add() - from now on all of it is a hole.
 */
int region_chunk_open(struct region_chunk *chunk, uint64_t base, uint32_t pages);
void region_chunk_close(struct region_chunk *chunk);
void region_chunk_add(struct region_set *set, struct region_chunk *chunk);

static inline bool is_stream_slot(uint32_t slot)
{
	return slot != VM_NONE && slot != VM_RECLAIMABLE;
}

/*
 * region_spare() - memory for so many steps that make a region: 0, -ENOMEM. Each of region_chunk_add(), region_carve()
 * and region_split() takes one.
 */
int region_spare(struct region_set *set, uint32_t steps);

/* region_chunk_next() - in ascending order; NULL: the first. */
const struct region_chunk *region_chunk_next(const struct region_set *set, const struct region_chunk *chunk);

static inline uint64_t region_address(const struct region_set *set, const struct vm_region *region)
{
	return region->chunk->base + region->first * set->page_bytes;
}

/*
 * region_find() - the allocation that begins at an address: 0; -EINVAL: no page of ours begins there; -ESTALE: no
 * allocation.
 */
int region_find(const struct region_set *set, uint64_t address, struct vm_region **region);

/* ---- finding: the smallest that holds `count` pages, of those the lowest. NULL: there is none ---- */

struct vm_region *region_best(struct region_set *set, uint32_t slot, uint32_t count);
/* region_best_ready() - of any stream, of none, or reclaimable; in this order where they are equal. */
struct vm_region *region_best_ready(struct region_set *set, uint32_t count);
struct vm_region *region_best_hole(struct region_set *set, uint32_t count);

/* ---- taking out of the sets, and putting back ---- */

/* region_carve() - the first `count` pages of a region in the sets as a region that moves; the rest stays. */
struct vm_region *region_carve(struct region_set *set, struct vm_region *region, uint32_t count);

/* region_split() - the first `count` pages, fewer than all, of one that moves: another that moves. */
struct vm_region *region_split(struct region_set *set, struct vm_region *region, uint32_t count);

/* region_turn() - make one that moves another kind. */
void region_turn(struct region_set *set, struct vm_region *region, enum vm_region_kind kind);

/* region_put() - into the sets that its fields say; joined with its neighbours. Returns what it is part of now. */
struct vm_region *region_put(struct region_set *set, struct vm_region *region);

/* region_put_free() - one that moves becomes free in a slot, with a new id. fence 0 and a stream's slot: UNFENCED. */
struct vm_region *region_put_free(struct region_set *set, struct vm_region *region, uint32_t slot, uint64_t fence);

/*
 * region_put_released() - an allocation that moves is freed in a slot, behind a fence or 0. `guard`: that of its guard
 * is still the same stream's.
 */
struct vm_region *region_put_released(
	struct region_set *set, struct vm_region *region, uint32_t slot, uint64_t fence, bool guard);

/* region_put_pending_unmap() - one that moves becomes a pending unmap until the fence is reached. */
void region_put_pending_unmap(struct region_set *set, struct vm_region *region, uint64_t fence);

/* region_put_allocated() - one that moves is somebody's; what it waits for is its guard. */
void region_put_allocated(struct region_set *set, struct vm_region *region, uint32_t slot, uint64_t bytes);

/* ---- time ---- */

/* region_sweep() - what waited for fences that are reached by now becomes READY. */
void region_sweep(struct region_set *set);

/* region_ripe() - the oldest READY pending unmap, which moves from now on; NULL: there is none. */
struct vm_region *region_ripe(struct region_set *set);

/* region_fence() - `fence` covers all that was freed unfenced in its slot up to this id. */
void region_fence(struct region_set *set, uint32_t slot, uint64_t fence, uint64_t last_id);

/* region_stream_end() - a stream's work is done, and it is no more: what was its own is nobody's. */
void region_stream_end(struct region_set *set, uint32_t slot);

/* ---- choosing what others may have ---- */

/*
 * region_at_once() - pages that a stream may have without waiting and without asking: its own, and READY ones that are
 * not reclaimable.
 */
static inline uint64_t region_at_once(const struct region_set *set, uint32_t slot)
{
	uint64_t others = set->ready - set->streams[slot].ready;

	return set->streams[slot].pages + others + (slot == VM_NONE ? 0 : set->streams[VM_NONE].pages);
}

/*
 * A harvest: free regions whose pages are to be mapped elsewhere. They move. Those of `slot` come first, then READY
 * ones, then what other streams have not finished; oldest first in each of these. The last is cut; `rest_id` says what
 * is left of it.
 */
struct region_harvest {
	struct region_list regions; /* by_age */
	uint32_t pages;
	uint64_t rest_id;
};

/*
 * region_harvest() - `pages`, of which so many must be available without the reclaimable ones; takes one step's memory.
 */
void region_harvest(struct region_set *set, uint32_t slot, uint32_t pages, struct region_harvest *harvest);

/* region_harvest_undo() - as if it had not been: with the ids, fences and places in order of age that they had. */
void region_harvest_undo(struct region_set *set, struct region_harvest *harvest);

/*
 * region_idle() - the oldest READY region that is not reclaimable, at most `pages` of it, which moves from now on;
 * NULL: there is none.
 */
struct vm_region *region_idle(struct region_set *set, uint64_t pages);

/* region_reclaimable() - the same of those that are reclaimable; chunk NULL: any. */
struct vm_region *region_reclaimable(struct region_set *set, const struct region_chunk *chunk, uint64_t pages);

/* ---- proving ---- */

/*
 * region_check() - all invariants: 0, or how many do not hold, with the first of them in words.
 * region_check_near() - those around one region. Both hold for regions that move too.
 */
uint32_t region_check(const struct region_set *set, char *text, size_t text_bytes);
uint32_t region_check_near(const struct region_set *set, const struct vm_region *region, char *text, size_t text_bytes);

#endif
