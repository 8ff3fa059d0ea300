/*
 * handle.h - whole handles of this session: take, hold, release, offer and adopt them. Internal to libgpool.
 *
 * A handle is the unit that a GPU maps: one page, or several if pages are smaller. It is identified by its first page.
 * A handle of this session has one of these states:
 *
 *   held      Its pages belong to this session and are in use. They have one block entry (BLOCK_RANGE, pinned once), so
 *             that tools and a restarted agent see it.
 *   offered   Its block entry is kept, without a pin. The content is kept until the agent needs the page.
 *   released  Its entry is marked as freed (BLOCK_DYING), without a pin and without content. The agent takes the page
 *             when pages are needed, but not because of its age. Other allocations of this process do not.
 *   idle      Its free bits are set. Any thread of this process may take it, and so may the agent, without a request.
 *             If it is still mapped, it is reclaimable.
 *
 * The fence in the entry applies to offered and released handles: the agent takes neither before the fence is signaled,
 * even if this process dies. Tags are never reused, so an unchanged tag proves that the handle is still the one that
 * was offered or released.
 *
 * A handle refers to the same memory as long as the pool exists. A reclaimable mapping is therefore valid again as soon
 * as its pages belong to this session again. To adopt the handle, a thread clears the free bits and checks that the
 * first page's word shows it as leased to this session.
 */
#ifndef GPOOL_CLIENT_VM_HANDLE_H
#define GPOOL_CLIENT_VM_HANDLE_H

#include "client/core/thread_cache.h"

/* Options of vm_take(). All zero: the defaults. */
struct vm_take_options {
	uint32_t flags; /* LEASE_NO_EVICT, LEASE_FREE, LEASE_OWN_LAST */
	uint32_t usage; /* enum gpool_usage */
	uint64_t owner_id;
	int32_t timeout_ms; /* longest wait for pages; -1: no limit */
};

/*
 * vm_take() - take handles and hold them; all or none. pages[] receives the first page of each. Idle handles of this
 * session that no space maps are used first. The others are requested from the agent together. Waits according to the
 * options, and holds no handle during the wait. Return: 0, -ENOMEM, or as refill_take().
 */
int vm_take(struct gpool *pool, uint32_t handles, const struct vm_take_options *options, uint32_t *pages);

/* vm_put() - make held handles idle. */
void vm_put(struct gpool *pool, const uint32_t *pages, uint32_t handles);

/*
 * handle_fence() - record that GPU work up to this fence uses a held handle. Return false if no joint fence is free.
 * handle_pending() - return true if such work of a held, offered or released handle is unfinished.
 */
bool handle_fence(struct gpool *pool, uint32_t page, uint64_t fence);
bool handle_pending(const struct gpool *pool, uint32_t page);

/*
 * handle_release() - release a held handle and return its tag. handle_claim() - hold it again, with its fence and as a
 * new block. Return false if the agent has taken it, or the thread has no cache.
 */
uint64_t handle_release(struct gpool *pool, uint32_t page);
bool handle_claim(struct gpool *pool, uint32_t page, uint64_t tag, const struct vm_take_options *options);

/*
 * handle_offer() - offer a held handle and return its tag. owner_id: the new owner id of its content. handle_reclaim()
 * - hold it again, with its content. Return false if the agent has taken it.
 */
uint64_t handle_offer(struct gpool *pool, uint32_t page, uint64_t owner_id);
bool handle_reclaim(struct gpool *pool, uint32_t page, uint64_t tag);

/*
 * handles_offered() - add to the number of offered and released handles, which the agent's watermarks use. A negative
 * number is passed in two's complement.
 */
static inline void handles_offered(struct gpool *pool, uint32_t more)
{
	atomic_fetch_add_explicit(
		&pool->session.header->offered_pages, more * pool->header->pages_per_handle, memory_order_relaxed);
}

/* handle_is_here() - return true if the agent has not taken an offered or released handle. Cost: two loads. */
bool handle_is_here(const struct gpool *pool, uint32_t page, uint64_t tag);

static inline uint32_t handle_pages(const struct gpool *pool)
{
	return pool->header->pages_per_handle;
}

/*
 * handle_stand() - hold a handle in transit. Return: 0, -ESTALE (it belongs to another session). handle_fall() - the
 * reverse.
 */
int handle_stand(struct gpool *pool, struct thread_cache *cache, uint32_t page, const struct vm_take_options *options);
void handle_fall(struct gpool *pool, uint32_t page);

#endif
