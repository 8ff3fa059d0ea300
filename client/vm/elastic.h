/*
 * elastic.h - ranges of which single pages are backed. docs/internals/vm.md says what holds. Internal to libgpool.
 *
 * An elastic range is a space (space.h) whose slots are in one of these states. A slot holds one handle, so one page,
 * or several where pages are smaller than what the GPU maps: it is held for as long as one of its pages is in use.
 *
 *   HOLE     nothing is mapped
 *   RECLAIMABLE   mapped, and not in use. Its handle is idle, or the agent has taken it
 *   RELEASED mapped, and not in use: unbacked behind a fence, or backed ahead of need. Its handle is released, or the
 *   agent has taken it
 *   OFFERED  mapped and backed; its handle is offered, or the agent has taken it
 *   HELD     its handle is held. Mapped, unless the range sleeps
 *   MOVING   a thread brings it a handle
 *   TAKEN    as HELD, for a thread that brings handles to other slots of the same call
 *
 * uses: pages of it that are backed, and pages that are captured. A slot whose uses drop to 0 is reclaimable, or
 * released while a fence of its handle is not reached.
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
	ELASTIC_STATES
};

struct elastic_slot {
	uint64_t tag; /* RELEASED, OFFERED: of its handle */
	uint32_t uses;
	uint32_t state;
};

enum { ELASTIC_GROUP = 64 };

struct elastic {
	struct gpool_range *range;
	bool own_last;        /* its owner evicts what it has offered itself: set before the first backing */
	pthread_mutex_t lock; /* all below; not held while a handle is asked for or mapped */
	struct vm_space space;
	struct elastic_slot *slots;  /* [space.slot_count], touched as needed */
	uint64_t *backed, *captured; /* a bit for each page, likewise */
	uint64_t *used;              /* a bit for each 64 slots: one of them was once something else than a HOLE */
	size_t bytes;                /* of the memory of all four */
	uint32_t committed_pages, captured_pages;
	uint32_t count[ELASTIC_STATES]; /* slots in each state but HOLE */
	uint32_t offered_told;          /* slots OFFERED or RELEASED that the session's header counts */
	_Atomic uint64_t discarded;     /* offered slots whose content was dropped in sleep; read without the lock */
};

/* Pages [first + i * stride, + count) of a range, for all i below `times`. */
struct elastic_pages {
	uint32_t first, count, stride, times;
};

/* range_reserve_elastic() - gpool_range_reserve() after the checks of fork and session kind. */
int range_reserve_elastic(
	struct gpool *pool, uint32_t page_count, const struct gpool_range_options *options, struct gpool_range **range);

/*
 * range_enter() - a call at pages of an elastic range begins: 0, -ECHILD, -EINVAL (not in it), -EBUSY. It ends with
 * ranges_leave().
 */
int range_enter(struct gpool_range *range, const struct elastic_pages *pages);

/*
 * elastic_open() - addresses for the range's pages: 0, -ENOMEM. elastic_close() - GPU work is done; handles that are
 * still held end with the session.
 */
int elastic_open(struct gpool_range *range);
void elastic_close(struct elastic *elastic);

/* elastic_unlock() - and the session's header counts what is offered or released by now. */
static inline void elastic_unlock(struct elastic *elastic)
{
	uint32_t offered = elastic->count[ELASTIC_OFFERED] + elastic->count[ELASTIC_RELEASED];

	if (offered != elastic->offered_told)
		handles_offered(elastic->space.pool, offered - elastic->offered_told);
	elastic->offered_told = offered;
	pthread_mutex_unlock(&elastic->lock);
}

/* Of a page in a bitmap. */
static inline bool elastic_bit(const uint64_t *bits, uint32_t page)
{
	return bits[page / 64] >> (page % 64) & 1;
}

static inline uint32_t elastic_slot_of(const struct elastic *elastic, uint32_t page)
{
	return page / handle_pages(elastic->space.pool);
}

/*
 * elastic_used() - slots that may be something else than holes, as a range may be far larger than what is used of it:
 * the first run of them from *slot on. Returns its length, 0 when there is none; *slot is its first.
 */
uint32_t elastic_used(const struct elastic *elastic, uint32_t *slot);

#define FOR_USED(elastic, slot) \
	for (uint32_t run_ = 0, count_; (count_ = elastic_used(elastic, &run_)); run_ += count_) \
		for (uint32_t slot = run_; slot < run_ + count_; slot++)

/* elastic_set() - to another state; the caller holds the lock. */
void elastic_set(struct elastic *elastic, uint32_t slot, enum elastic_state state);
/*
 * elastic_drop() - a slot whose handle is held, HELD or TAKEN, is in no use any more: reclaimable or released. The
 * caller holds the lock.
 */
void elastic_drop(struct elastic *elastic, uint32_t slot);
/*
 * elastic_is_pending() - whether GPU work uses the handle of a released or offered slot, which is still here. Likewise.
 */
bool elastic_is_pending(const struct elastic *elastic, uint32_t slot);
/* elastic_discard() - no page of a held slot is backed any more. Likewise. */
void elastic_discard(struct elastic *elastic, uint32_t slot);
/*
 * elastic_hold_offered() - of an offered slot: it is held, or, if the agent has taken its handle, its pages are not
 * backed any more. Likewise.
 */
bool elastic_hold_offered(struct elastic *elastic, uint32_t slot);
/* elastic_options() - what its handles are taken with. */
struct vm_take_options elastic_options(const struct elastic *elastic);

/*
 * elastic_back() - those of the pages that are not backed are; all or nothing. What is still here costs no call; for
 * the rest one request to the agent, a mapping for each handle and one access call for each run. ahead: they are not
 * backed but at hand, for the next call to find, and nothing is taken from anybody for them.
 * Return: how many handles had to be brought, or -EBUSY (another thread is at one of them, or queued GPU work at an
 * address whose handle is gone), or as vm_take() and vm_map().
 */
int64_t elastic_back(struct elastic *elastic, const struct elastic_pages *pages, int32_t timeout_ms, bool ahead);

/*
 * elastic_unback() - those that are backed are not any more. Memory that they alone used is available to others once
 * the fence is reached, without a further call. No call to driver or agent. Return: 0, -ENOMEM (no room for a joint
 * fence).
 */
int elastic_unback(struct elastic *elastic, const struct elastic_pages *pages, uint64_t fence);

/*
 * elastic_offer() - whole handles, all pages of which are backed and none captured, are offered behind the fence; their
 * content is called owner_id (0: as the range's). Those that are offered already get the fence as well. No call to
 * driver or agent.
 * Return: 0, -EINVAL (a page is not backed, is captured, or is part of a handle that the call does not cover), -ENOMEM
 * (no room for a joint fence); then none of the pages is offered. -EBUSY: the range sleeps.
 * elastic_reclaim() - offered pages are held again. kept[i] (unless NULL): page i has its content; else it is not
 * backed. Returns how many are not, or -EBUSY. A page that was never offered counts as kept if it is backed.
 * elastic_is_here() - whether the handles of these pages, offered or held, are still this range's. Two loads for each;
 * it may change at once.
 */
int elastic_offer(struct elastic *elastic, const struct elastic_pages *pages, uint64_t fence, uint64_t owner_id);
int elastic_reclaim(struct elastic *elastic, const struct elastic_pages *pages, uint8_t *kept);
bool elastic_is_here(struct elastic *elastic, const struct elastic_pages *pages);

/*
 * elastic_give() - handles that are backed as a whole and in no other use became somebody else's, without ever having
 * been idle: their slots are reclaimable as if they had been. elastic_can_give() - 0, -EBUSY (they are not so:
 * captured, or offered). Between ranges_enter() and ranges_leave().
 */
int elastic_can_give(struct elastic *elastic, const struct elastic_pages *pages);
void elastic_give(struct elastic *elastic, const struct elastic_pages *pages);

/*
 * elastic_settle() - released slots whose fences are reached are reclaimable. elastic_settle_all() - of the whole
 * range. elastic_settle_slot() - the caller holds the lock.
 */
void elastic_settle_all(struct elastic *elastic);
void elastic_settle_slot(struct elastic *elastic, uint32_t slot);
void elastic_settle(struct elastic *elastic, const struct elastic_pages *pages);

/*
 * elastic_capture() - of pages that are backed (else -EINVAL): their handles stay, backed or not, until they are
 * captured no more.
 */
int elastic_capture(struct elastic *elastic, const struct elastic_pages *pages, bool captured);

/* elastic_pages_check() - whether all of them are in the range. */
bool elastic_pages_check(const struct elastic *elastic, const struct elastic_pages *pages);

/* ---- sleep and wake; the callers hold ranges->lock, and the gate is closed, or the range ends ---- */

/*
 * elastic_unmap() - no slot is mapped, and those that are held are in range->pages, in order: 0, -EBUSY, -ENOMEM, or
 * what the back end said; then some may be unmapped. elastic_map() - the handles in range->pages are where they belong:
 * 0, -ENOMEM, -EPIPE, and nothing.
 */
int elastic_unmap(struct elastic *elastic);
int elastic_map(struct elastic *elastic);

/* elastic_stand(), elastic_fall() - range_stand() and range_fall() for the handles in range->pages. */
int elastic_stand(struct elastic *elastic);
void elastic_fall(struct elastic *elastic);

/* elastic_resolve() - what lies behind a page: all fields but the size. */
void elastic_resolve(struct elastic *elastic, uint32_t index, struct gpool_range_page *page);

/* elastic_counts() - the last fields of the public struct. */
void elastic_counts(struct elastic *elastic, struct gpool_range_info *info);

/*
 * elastic_held_pages() - with those that are held because others of their handles are in use. elastic_leaving() - GPU
 * work uses released or offered ones.
 */
uint32_t elastic_held_pages(struct elastic *elastic);
bool elastic_leaving(struct elastic *elastic);

#endif
