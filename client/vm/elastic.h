/*
 * elastic.h - ranges whose pages are committed one by one. docs/internals/vm.md states the rules. Internal to libgpool.
 *
 * An elastic range is a space (space.h) whose slots are in one of these states. A slot holds one handle, that is one
 * page, or several if pages are smaller than the unit that the GPU maps; it is held as long as one of its pages is in
 * use.
 *
 *   HOLE          nothing is mapped
 *   RECLAIMABLE   mapped, and not in use. Its handle is idle, or the agent has taken it
 *   RELEASED      mapped, and not in use: decommitted behind a fence, or read ahead. Its handle is released, or the
 *                 agent has taken it
 *   OFFERED       mapped and committed; its handle is offered, or the agent has taken it
 *   HELD          its handle is held. Mapped, unless the range sleeps
 *   MOVING        a thread is providing a handle for it
 *   TAKEN         like HELD, for a thread that provides handles for other slots of the same call, or publishes them
 *   SHARED        the pages of a named object are mapped there, read-only (elastic_object.c); the slot has no handle
 *
 * uses: the number of its committed pages and of its captured pages. A slot whose uses drop to 0 is reclaimable, or
 * released while a fence of its handle is not signaled.
 */
#ifndef GPOOL_CLIENT_VM_ELASTIC_H
#define GPOOL_CLIENT_VM_ELASTIC_H

#include "client/vm/range.h"
#include "client/vm/space.h"

enum elastic_state {
	ELASTIC_HOLE,
	ELASTIC_RECLAIMABLE,
	ELASTIC_RELEASED,
	ELASTIC_OFFERED,
	ELASTIC_HELD,
	ELASTIC_MOVING,
	ELASTIC_TAKEN,
	ELASTIC_SHARED,
	ELASTIC_STATES
};

struct elastic_slot {
	uint64_t tag; /* RELEASED, OFFERED: tag of its handle */
	uint32_t uses;
	uint32_t state;
};

enum { ELASTIC_GROUP = 64 };

struct elastic {
	struct gpool_range *range;
	struct gpu_stream *zeroing; /* GPOOL_RANGE_ZERO: the stream that fills new pages; else NULL */
	bool own_last;              /* evict own offered content last (LEASE_OWN_LAST); set before the first commit */
	pthread_mutex_t lock;       /* protects all fields below; not held while a handle is requested or mapped */
	struct vm_space space;
	struct elastic_slot *slots;     /* [space.slot_count], touched on demand */
	uint64_t *committed, *captured; /* a bit for each page, touched on demand */
	uint64_t *used;                 /* a bit for each 64 slots, set if one of them was ever not a HOLE */
	size_t bytes;                   /* size of the memory of the four arrays */
	uint32_t committed_pages, captured_pages;
	uint32_t count[ELASTIC_STATES]; /* number of slots in each state except HOLE */
	uint32_t offered_told;          /* number of OFFERED or RELEASED slots in the session's header */
	_Atomic uint64_t discarded;     /* offered slots whose content was discarded by sleep; read without the lock */
};

/* Pages [first + i * stride, + count) of a range, for each i below `times`. */
struct elastic_pages {
	uint32_t first, count, stride, times;
};

/* range_reserve_elastic() - gpool_range_reserve() after the checks for a fork and for the session kind. */
int range_reserve_elastic(
	struct gpool *pool, uint32_t page_count, const struct gpool_range_options *options, struct gpool_range **range);

/*
 * range_enter() - begin a call for pages of an elastic range: 0, -ECHILD, -EINVAL (beyond its end), -EBUSY. End it with
 * ranges_leave().
 */
int range_enter(struct gpool_range *range, const struct elastic_pages *pages);

/*
 * elastic_open() - reserve addresses for the range's pages: 0, -ENOMEM. elastic_close() - free them; GPU work must be
 * done. Handles that are still held end with the session.
 */
int elastic_open(struct gpool_range *range);
void elastic_close(struct elastic *elastic);

/* elastic_unlock() - update the number of offered and released slots in the session's header, and unlock. */
static inline void elastic_unlock(struct elastic *elastic)
{
	uint32_t offered = elastic->count[ELASTIC_OFFERED] + elastic->count[ELASTIC_RELEASED];

	if (offered != elastic->offered_told)
		handles_offered(elastic->space.pool, offered - elastic->offered_told);
	elastic->offered_told = offered;
	pthread_mutex_unlock(&elastic->lock);
}

/* Return the bit of a page in a bitmap. */
static inline bool elastic_bit(const uint64_t *bits, uint32_t page)
{
	return bits[page / 64] >> (page % 64) & 1;
}

static inline uint32_t elastic_slot_of(const struct elastic *elastic, uint32_t page)
{
	return page / handle_pages(elastic->space.pool);
}

/*
 * elastic_used() - find slots that may be other than holes, since a range may be far larger than its used part: the
 * first run of them from *slot on. Returns its length, 0: none; *slot becomes its first slot.
 */
uint32_t elastic_used(const struct elastic *elastic, uint32_t *slot);

#define FOR_USED(elastic, slot) \
	for (uint32_t run_ = 0, count_; (count_ = elastic_used(elastic, &run_)); run_ += count_) \
		for (uint32_t slot = run_; slot < run_ + count_; slot++)

/* elastic_set() - change a slot's state; the caller holds the lock. */
void elastic_set(struct elastic *elastic, uint32_t slot, enum elastic_state state);
/*
 * elastic_drop() - make a slot in state HELD or TAKEN that has no uses reclaimable or released. The caller holds the
 * lock.
 */
void elastic_drop(struct elastic *elastic, uint32_t slot);
/*
 * elastic_is_pending() - return true if GPU work uses the handle of a released or offered slot and the agent has not
 * taken it. The caller holds the lock.
 */
bool elastic_is_pending(const struct elastic *elastic, uint32_t slot);
/* elastic_discard() - decommit all pages of a held slot. The caller holds the lock. */
void elastic_discard(struct elastic *elastic, uint32_t slot);
/*
 * elastic_hold_offered() - hold an offered slot again; if the agent has taken its handle, decommit its pages and return
 * false. The caller holds the lock.
 */
bool elastic_hold_offered(struct elastic *elastic, uint32_t slot);
/* elastic_options() - return the options for its handles. */
struct vm_take_options elastic_options(const struct elastic *elastic);

/*
 * elastic_commit() - commit the pages that are not committed; all or none. Handles that were not taken cost no call;
 * the others need one request to the agent, a mapping for each handle and one access call for each run. ahead: only
 * provide the handles, for a later call; nothing is evicted for them.
 * Return: the number of provided handles, or -EBUSY (another thread is providing one of them, or queued GPU work uses
 * an address whose handle was taken), or as vm_take() and vm_map().
 */
int64_t elastic_commit(struct elastic *elastic, const struct elastic_pages *pages, int32_t timeout_ms, bool ahead);

/*
 * elastic_decommit() - decommit the committed ones of the pages. Memory that no other page uses is available to other
 * sessions once the fence is signaled, without a further call. Makes no call to driver or agent. Return: 0, -ENOMEM (no
 * joint fence is free).
 */
int elastic_decommit(struct elastic *elastic, const struct elastic_pages *pages, uint64_t fence);

/*
 * elastic_offer() - offer whole handles, all of whose pages are committed and none captured, behind the fence; owner_id
 * names their content (0: the range's). Handles that are offered already get the fence as well. Makes no call to driver
 * or agent.
 * Return: 0, -EINVAL (a page is not committed, is captured, or is part of a handle that the call does not cover),
 * -ENOMEM (no joint fence is free); on an error none of the pages is offered. -EBUSY: the range sleeps.
 *
 * elastic_reclaim() - hold offered pages again. kept[i] (unless NULL): page i has its content; otherwise it is not
 * committed any more. Returns the number of lost pages, or -EBUSY. A page that was never offered counts as kept if it
 * is committed.
 *
 * elastic_is_here() - return true if the agent has taken none of the handles of these pages, offered or held. Cost: two
 * loads for each; the result may be outdated at once.
 */
int elastic_offer(struct elastic *elastic, const struct elastic_pages *pages, uint64_t fence, uint64_t owner_id);
int elastic_reclaim(struct elastic *elastic, const struct elastic_pages *pages, uint8_t *kept);
bool elastic_is_here(struct elastic *elastic, const struct elastic_pages *pages);

/*
 * elastic_give() - handles that are committed completely and not otherwise in use were passed to another owner, without
 * having been idle: their slots become reclaimable as if they had been. elastic_can_give() - check the handles before,
 * and describe them as elastic_blocks() does: 0, -EBUSY (captured, or offered). Between ranges_enter() and
 * ranges_leave().
 */
int elastic_can_give(
	struct elastic *elastic, const struct elastic_pages *pages, struct gpool_block *blocks, uint32_t *first_pages);
void elastic_give(struct elastic *elastic, const struct elastic_pages *pages);

/*
 * elastic_uncommit() - clear the committed bits of pages whose slots have no other use. The caller holds the lock.
 */
void elastic_uncommit(struct elastic *elastic, const struct elastic_pages *pages);
/*
 * elastic_blocks() - describe the blocks of held handles; first_pages[] receives the first page of each.
 */
void elastic_blocks(const struct elastic *elastic, const struct elastic_pages *pages, struct gpool_block *blocks,
	uint32_t *first_pages);
/*
 * elastic_shared_close() - unmap the named objects that are mapped in the range, before it is closed; GPU work must be
 * done.
 */
void elastic_shared_close(struct elastic *elastic);

/*
 * elastic_settle() - make released slots whose fences are signaled reclaimable. elastic_settle_all() - in the whole
 * range. elastic_settle_slot() - one slot; the caller holds the lock.
 */
void elastic_settle_all(struct elastic *elastic);
void elastic_settle_slot(struct elastic *elastic, uint32_t slot);
void elastic_settle(struct elastic *elastic, const struct elastic_pages *pages);

/*
 * elastic_capture() - capture committed pages (else -EINVAL): their handles are kept, even if they are decommitted,
 * until the capture ends.
 */
int elastic_capture(struct elastic *elastic, const struct elastic_pages *pages, bool captured);

/* elastic_pages_check() - return true if all of them are in the range. */
bool elastic_pages_check(const struct elastic *elastic, const struct elastic_pages *pages);

/* ---- sleep and wake; the callers hold ranges->lock, and the gate is closed, or the range ends ---- */

/*
 * elastic_unmap() - unmap all slots, and store the held handles in range->pages, in order: 0, or -EBUSY, -ENOMEM, or
 * the error of the back end; then some slots may be unmapped. elastic_map() - map the handles in range->pages at their
 * slots: 0, or -ENOMEM, -EPIPE with nothing mapped.
 */
int elastic_unmap(struct elastic *elastic);
int elastic_map(struct elastic *elastic);

/* elastic_stand(), elastic_fall() - range_stand() and range_fall() for the handles in range->pages. */
int elastic_stand(struct elastic *elastic);
void elastic_fall(struct elastic *elastic);

/* elastic_resolve() - describe a page: fill all fields except the size. */
void elastic_resolve(struct elastic *elastic, uint32_t index, struct gpool_range_page *page);

/* elastic_counts() - fill the last fields of the public struct. */
void elastic_counts(struct elastic *elastic, struct gpool_range_info *info);

/*
 * elastic_held_pages() - return the number of held pages, including those held because of other pages of their handle.
 * elastic_leaving() - return true if GPU work uses released or offered handles. elastic_shared() - return the number of
 * pages of named objects that are mapped in the range.
 */
uint32_t elastic_held_pages(struct elastic *elastic);
bool elastic_leaving(struct elastic *elastic);
uint32_t elastic_shared(struct elastic *elastic);

#endif
