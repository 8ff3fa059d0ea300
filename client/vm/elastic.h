/*
 * elastic.h - elastic ranges, whose pages are committed one by one. docs/internals/vm.md states the rules. Internal to
 * libgpool.
 *
 * An elastic range is a space (space.h) whose slots each have one of the states below. A slot holds one handle: one
 * page, or several if pages are smaller than the unit that the GPU maps. The handle is held as long as one of its pages
 * is in use.
 *
 *   HOLE          nothing is mapped
 *   RECLAIMABLE   mapped, and not in use. Its handle is idle, or the agent has taken it
 *   RELEASED      mapped, and not in use: decommitted with a fence, or read ahead. Its handle is released, or the
 *                 agent has taken it
 *   OFFERED       mapped and committed; its handle is offered, or the agent has taken it
 *   HELD          its handle is held. Mapped, unless the range sleeps
 *   MOVING        a thread is providing a handle for it
 *   TAKEN         like HELD, but owned by a thread that still provides handles for other slots of the same call, or
 *                 publishes the slot
 *   SHARED        the pages of a named object are mapped there, read-only (elastic_object.c); the slot has no handle
 *
 * The uses of a slot are the number of its committed pages plus the number of its captured pages. When the uses drop to
 * 0, the slot becomes reclaimable, or released if a fence of its handle is not signaled.
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
	uint64_t tag; /* RELEASED, OFFERED: tag of the slot's handle */
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
	struct elastic_slot *slots;     /* [space.slot_count]; the kernel allocates the memory on first use */
	uint64_t *committed, *captured; /* a bit for each page; allocated on first use */
	uint64_t *used;                 /* a bit for each 64 slots: one of them was not a HOLE at some time */
	size_t bytes;                   /* size of the four arrays */
	uint32_t committed_pages, captured_pages;
	uint32_t count[ELASTIC_STATES]; /* number of slots in each state except HOLE */
	uint32_t offered_told;          /* number of OFFERED or RELEASED slots that the session's header includes */
	_Atomic uint64_t discarded;     /* offered slots whose content sleep has discarded; read without the lock */
};

/* Pages [first + i * stride, first + i * stride + count) of a range, for each i below `times`. */
struct elastic_pages {
	uint32_t first, count, stride, times;
};

/* range_reserve_elastic() - gpool_range_reserve() after the fork check and the check of the session kind. */
int range_reserve_elastic(
	struct gpool *pool, uint32_t page_count, const struct gpool_range_options *options, struct gpool_range **range);

/*
 * range_enter() - begin a call that uses pages of an elastic range. Return: 0, -ECHILD, -EINVAL (not elastic, or beyond
 * its end), -EHOSTDOWN (the process sleeps). End the call with ranges_leave().
 */
int range_enter(struct gpool_range *range, const struct elastic_pages *pages);

/*
 * elastic_open() - reserve addresses for the range's pages. Return: 0, -ENOMEM. elastic_close() - free the addresses,
 * after all GPU work has finished. Handles that are still held end with the session.
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

static inline bool elastic_bit(const uint64_t *bits, uint32_t page)
{
	return bits[page / 64] >> (page % 64) & 1;
}

static inline uint32_t elastic_slot_of(const struct elastic *elastic, uint32_t page)
{
	return page / handle_pages(elastic->space.pool);
}

/*
 * elastic_used() - find the next run of slots that might not be holes, from *slot on; a range may be far larger than
 * its used part. Return the length of the run, or 0 if there is no further one; *slot becomes its first slot.
 */
uint32_t elastic_used(const struct elastic *elastic, uint32_t *slot);

#define FOR_USED(elastic, slot) \
	for (uint32_t run_ = 0, count_; (count_ = elastic_used(elastic, &run_)); run_ += count_) \
		for (uint32_t slot = run_; slot < run_ + count_; slot++)

/* elastic_set() - change a slot's state. The caller holds the lock. */
void elastic_set(struct elastic *elastic, uint32_t slot, enum elastic_state state);
/*
 * elastic_drop() - make a slot that has no uses reclaimable or released. Its state is HELD or TAKEN. The caller holds
 * the lock.
 */
void elastic_drop(struct elastic *elastic, uint32_t slot);
/*
 * elastic_is_pending() - return true if GPU work uses the handle of a released or offered slot and the agent has not
 * taken the handle. The caller holds the lock.
 */
bool elastic_is_pending(const struct elastic *elastic, uint32_t slot);
/* elastic_discard() - decommit all pages of a held slot. The caller holds the lock. */
void elastic_discard(struct elastic *elastic, uint32_t slot);
/*
 * elastic_hold_offered() - hold an offered slot again. If the agent has taken its handle, decommit its pages and return
 * false. The caller holds the lock.
 */
bool elastic_hold_offered(struct elastic *elastic, uint32_t slot);
/* elastic_options() - return the options for taking handles of this range. */
struct vm_take_options elastic_options(const struct elastic *elastic);

/*
 * elastic_commit() - commit those of the pages that are not committed, all or none. Handles that the agent has not
 * taken need no call. The others need one request to the agent, one mapping per handle and one access call per run.
 * ahead: only provide the handles, for a later call; nothing is evicted for them. Return: the number of provided
 * handles, or -EBUSY (another thread is providing one of them, an object is mapped there, or queued GPU work uses an
 * address whose handle was taken), or as vm_take() and vm_map().
 */
int64_t elastic_commit(struct elastic *elastic, const struct elastic_pages *pages, int32_t timeout_ms, bool ahead);

/*
 * elastic_decommit() - decommit those of the pages that are committed. Once the fence is signaled, other sessions can
 * use the memory without a further call, except that of handles with other pages in use. Calls neither driver nor
 * agent. Return: 0, -ENOMEM (no joint fence is free).
 */
int elastic_decommit(struct elastic *elastic, const struct elastic_pages *pages, uint64_t fence);

/*
 * elastic_offer() - offer whole handles; the offer takes effect once the fence is signaled. All their pages must be
 * committed, and none captured. owner_id names their content (0: the range's owner id). Handles that are already
 * offered also get the fence. Calls neither driver nor agent.
 * Return: 0, -EINVAL (a page is not committed, is captured, or is part of a handle that the call does not cover),
 * -ENOMEM (no joint fence is free), -EHOSTDOWN (the range sleeps). On an error none of the pages is offered.
 *
 * elastic_reclaim() - hold offered pages again. kept[i] (unless NULL) is true if page i kept its content; otherwise the
 * page is no longer committed. A page that was never offered counts as kept if it is committed. Return the number of
 * lost pages, or -EHOSTDOWN.
 *
 * elastic_is_here() - return true if all of these pages are committed, and the agent has taken none of their handles.
 * Cost: a lock, and two loads for each page. The result may be outdated immediately.
 */
int elastic_offer(struct elastic *elastic, const struct elastic_pages *pages, uint64_t fence, uint64_t owner_id);
int elastic_reclaim(struct elastic *elastic, const struct elastic_pages *pages, uint8_t *kept);
bool elastic_is_here(struct elastic *elastic, const struct elastic_pages *pages);

/*
 * elastic_give() - make slots reclaimable after their handles have been passed to another owner without becoming idle.
 * The handles were completely committed and not otherwise in use. elastic_can_give() - check the handles before, and
 * describe them as elastic_blocks() does. Return: 0, -EBUSY (captured, or offered). Call both between ranges_enter()
 * and ranges_leave().
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
 * elastic_settle() - make those of the released slots reclaimable whose fences are signaled. elastic_settle_all() - the
 * same for the whole range. elastic_settle_slot() - the same for one slot; the caller holds the lock.
 */
void elastic_settle_all(struct elastic *elastic);
void elastic_settle_slot(struct elastic *elastic, uint32_t slot);
void elastic_settle(struct elastic *elastic, const struct elastic_pages *pages);

/*
 * elastic_capture() - capture pages, or end their capture. All pages must be committed (otherwise -EINVAL). The handles
 * of captured pages are kept, even if the pages are decommitted, until the capture ends.
 */
int elastic_capture(struct elastic *elastic, const struct elastic_pages *pages, bool captured);

bool elastic_pages_check(const struct elastic *elastic, const struct elastic_pages *pages);

/* ---- sleep and wake: the callers hold ranges->lock; the gate is closed, or the range ends ---- */

/*
 * elastic_unmap() - unmap all slots, and store the held handles in range->pages, in order. Return: 0, or -EBUSY,
 * -ENOMEM, or the error of the back end; after an error some slots may be unmapped. elastic_map() - map the handles in
 * range->pages at their slots. Return: 0, or -ENOMEM, -EPIPE with nothing mapped.
 */
int elastic_unmap(struct elastic *elastic);
int elastic_map(struct elastic *elastic);

/* elastic_stand(), elastic_fall() - range_stand() and range_fall() for the handles in range->pages. */
int elastic_stand(struct elastic *elastic);
void elastic_fall(struct elastic *elastic);

/* elastic_resolve() - describe a page: fill all fields except `size`. */
void elastic_resolve(struct elastic *elastic, uint32_t index, struct gpool_range_page *page);

/* elastic_counts() - fill the last fields of the public struct. */
void elastic_counts(struct elastic *elastic, struct gpool_range_info *info);

/*
 * elastic_held_pages() - return the number of pages of held handles. elastic_leaving() - return true if GPU work uses
 * released or offered handles. elastic_shared() - return the number of pages of named objects that are mapped in the
 * range.
 */
uint32_t elastic_held_pages(struct elastic *elastic);
bool elastic_leaving(struct elastic *elastic);
uint32_t elastic_shared(struct elastic *elastic);

#endif
