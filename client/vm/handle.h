/*
 * handle.h - whole handles of this session: taken from the agent, held, made idle, adopted again. Internal to libgpool.
 *
 * A handle is the unit that a GPU maps: one page, or several if pages are smaller. It is named by its first page.
 *
 *   held      its pages belong to this session and are in use. They have one block entry (BLOCK_RANGE, pinned once), so
 *             that tools and a restarted agent see it
 *   offered   its entry stays, without a pin: the content is kept until the agent needs the page
 *   released  its entry is that of a freed block (BLOCK_DYING), without a pin and without content. The agent takes the
 *             page when pages are needed, but not by the clock, and other threads of this process do not take it
 *   idle      its free bits are set: any thread of this process may take it, and the agent may without a request. If it
 *             is still mapped it is reclaimable
 *
 * The fence in the entry applies to offered and released handles: the agent takes neither before it is signaled,
 * whatever this process does. A tag is never used twice, so an unchanged tag shows that the handle is still the one
 * that was offered or released.
 *
 * A handle refers to the same memory as long as the pool exists. A reclaimable mapping is therefore valid again as soon
 * as its pages belong to this session again: adopting it clears their free bits, and checks that the page words state
 * that the pages are leased to this session.
 */
#ifndef GPOOL_CLIENT_VM_HANDLE_H
#define GPOOL_CLIENT_VM_HANDLE_H

#include "client/core/thread_cache.h"

/* All zero: the defaults. */
struct vm_take_options {
	uint32_t flags; /* LEASE_NO_EVICT, LEASE_FREE, LEASE_OWN_LAST */
	uint32_t usage; /* enum gpool_usage */
	uint64_t owner_id;
	int32_t timeout_ms; /* maximum wait for pages; -1: no limit */
};

/*
 * vm_take() - take handles, all or none: pages[] receives the first page of each. They are held. Idle ones of this
 * session that no space maps are used first; for the others one request is sent to the agent, or, if a handle has
 * several pages and no run of all of them is available, one for each. Waits according to the options, and holds none
 * meanwhile.
 * Return: 0, -ENOSPC, -EDQUOT, -EPIPE, -ENOMEM.
 */
int vm_take(struct gpool *pool, uint32_t handles, const struct vm_take_options *options, uint32_t *pages);

/* vm_put() - make held handles idle. */
void vm_put(struct gpool *pool, const uint32_t *pages, uint32_t handles);

/*
 * vm_adopt() - hold exactly this handle again, if it is idle in this session. Its content is undefined. Makes no call.
 */
bool vm_adopt(struct gpool *pool, uint32_t page, const struct vm_take_options *options);

/*
 * handle_fence() - note that GPU work up to this fence uses a held handle; returns false if no joint fence is free.
 * handle_pending() - return true if such work of a held, offered or released handle is not done.
 */
bool handle_fence(struct gpool *pool, uint32_t page, uint64_t fence);
bool handle_pending(const struct gpool *pool, uint32_t page);

/*
 * handle_release() - release a held handle; returns its tag. handle_claim() - hold it again, with its fence and as a
 * new block; returns false if the agent has taken it.
 */
uint64_t handle_release(struct gpool *pool, uint32_t page);
bool handle_claim(struct gpool *pool, uint32_t page, uint64_t tag, const struct vm_take_options *options);

/*
 * handle_offer() - offer a held handle; returns its tag. owner_id: the new name of its content. handle_reclaim() - hold
 * it again, with its content; returns false if the agent has taken it.
 */
uint64_t handle_offer(struct gpool *pool, uint32_t page, uint64_t owner_id);
bool handle_reclaim(struct gpool *pool, uint32_t page, uint64_t tag);

/*
 * handles_offered() - add to the number of offered and released handles, or (two's complement) subtract from it, for
 * the agent's watermarks.
 */
static inline void handles_offered(struct gpool *pool, uint32_t more)
{
	atomic_fetch_add_explicit(
		&pool->session.header->offered_pages, more * pool->header->pages_per_handle, memory_order_relaxed);
}

/* handle_is_here() - return true if the agent has not taken an offered or released handle yet. Cost: two loads. */
bool handle_is_here(const struct gpool *pool, uint32_t page, uint64_t tag);

static inline uint32_t handle_pages(const struct gpool *pool)
{
	return pool->header->pages_per_handle;
}

/*
 * handle_stand() - hold a handle in transit: 0, -ESTALE (it belongs to another session). handle_fall() - the reverse.
 */
int handle_stand(struct gpool *pool, struct thread_cache *cache, uint32_t page, const struct vm_take_options *options);
void handle_fall(struct gpool *pool, uint32_t page);

#endif
