/*
 * handle.h - whole handles of this session: taken from the agent, held, put idle, adopted again. Internal to libgpool.
 *
 * A handle is what a GPU maps at once: one page, or several where pages are smaller than what the GPU maps. It is named
 * by its first page.
 *
 *   held     its pages are ours and in use: one block entry of its own (BLOCK_RANGE, pinned once), so that tools see it
 *            and an agent that restarts does
 *   offered  its entry stays, without a pin: the content is kept until the agent needs the page
 *   released its entry is that of a freed block (BLOCK_DYING), without a pin: there is no content. The agent takes the
 *   page when pages are
 *            needed, but not by the clock, and other threads of this process leave it alone
 *
 * The fence in the entry holds for both: the agent takes neither before it is reached, whatever this process does. A
 * tag is never used twice, so the tag alone tells whether the handle is still what was offered or released.
 *
 *   idle     its free bits are set: any thread of ours may take it, and the agent without asking. What is still mapped
 *            of it is reclaimable
 *
 * A handle stays the same memory for as long as the pool lives. So a mapping that was reclaimable is good again as soon
 * as its pages are ours again: adopting clears their free bits, and looks that the page word says that they are lent to
 * us.
 */
#ifndef GPOOL_CLIENT_VM_HANDLE_H
#define GPOOL_CLIENT_VM_HANDLE_H

#include "client/core/thread_cache.h"

/* All zero: the defaults. */
struct vm_take_options {
	uint32_t flags; /* LEASE_NO_EVICT, LEASE_FREE, LEASE_OWN_LAST */
	uint32_t usage; /* enum gpool_usage */
	uint64_t owner_id;
	int32_t timeout_ms; /* how long to wait for pages; -1: no limit */
};

/*
 * vm_take() - so many handles, all or nothing: pages[] receives the first page of each. They are held. What is idle
 * here and mapped in no space comes first; for the rest there is one request to the agent, or, where a handle is
 * several pages and no run of so many is to be had, one for each. Waits for them at most as the options say, and holds
 * none while it waits.
 * Return: 0, -ENOSPC, -EDQUOT, -EPIPE, -ENOMEM.
 */
int vm_take(struct gpool *pool, uint32_t handles, const struct vm_take_options *options, uint32_t *pages);

/* vm_put() - held handles become idle. */
void vm_put(struct gpool *pool, const uint32_t *pages, uint32_t handles);

/* vm_adopt() - exactly this handle, if it is idle here: held again. What it contains is anybody's. Costs no call. */
bool vm_adopt(struct gpool *pool, uint32_t page, const struct vm_take_options *options);

/*
 * handle_fence() - GPU work up to this fence uses a held handle. False: there is no room for a joint fence.
 * handle_pending() - whether there is such work that is not done. Of a held, offered or released handle.
 */
bool handle_fence(struct gpool *pool, uint32_t page, uint64_t fence);
bool handle_pending(const struct gpool *pool, uint32_t page);

/*
 * handle_release() - a held handle is released; returns its tag. handle_claim() - it is held again, with its fence and
 * as a new block, unless the agent has taken it.
 */
uint64_t handle_release(struct gpool *pool, uint32_t page);
bool handle_claim(struct gpool *pool, uint32_t page, uint64_t tag, const struct vm_take_options *options);

/*
 * handle_offer() - a held handle is offered; returns its tag. owner_id: what its content is called from now on.
 * handle_reclaim() - it is held again, with its content, unless the agent has taken it.
 */
uint64_t handle_offer(struct gpool *pool, uint32_t page, uint64_t owner_id);
bool handle_reclaim(struct gpool *pool, uint32_t page, uint64_t tag);

/*
 * handles_offered() - count so many handles more, or (two's complement) fewer, as offered or released, for the agent's
 * watermarks.
 */
static inline void handles_offered(struct gpool *pool, uint32_t more)
{
	atomic_fetch_add_explicit(
		&pool->session.header->offered_pages, more * pool->header->pages_per_handle, memory_order_relaxed);
}

/* handle_is_here() - whether the agent has not taken an offered or released handle yet. Two loads. */
bool handle_is_here(const struct gpool *pool, uint32_t page, uint64_t tag);

static inline uint32_t handle_pages(const struct gpool *pool)
{
	return pool->header->pages_per_handle;
}

/* handle_stand() - a handle in transit becomes held: 0, -ESTALE (not ours any more). _fall() - the other way. */
int handle_stand(struct gpool *pool, struct thread_cache *cache, uint32_t page, const struct vm_take_options *options);
void handle_fall(struct gpool *pool, uint32_t page);

#endif
