/*
 * handle.h - whole handles of this session: taken from the agent, held, put idle, adopted again. Internal to libgpool.
 *
 * A handle is what a GPU maps at once: one page, or several where pages are smaller than what the GPU maps. It is named by its first page.
 *
 *   held     its pages are ours and in use: one block entry of its own (BLOCK_RANGE, pinned once), so that tools see it and an agent
 *            that restarts does
 *   at hand  kept for us, as pages in a thread's magazine are (BLOCK_TAG_CACHED): the agent takes it without asking when somebody
 *            needs pages, but not by the clock, and other threads of ours leave it alone
 *   idle     its free bits are set: any thread of ours may take it, and the agent without asking. What is still mapped of it is parked
 *
 * A handle stays the same memory for as long as the pool lives. So a mapping that was parked is good again as soon as its pages are ours
 * again: adopting clears their free bits, and looks that the page word says that they are lent to us.
 */
#ifndef GPOOL_CLIENT_VM_HANDLE_H
#define GPOOL_CLIENT_VM_HANDLE_H

#include "client/thread_cache.h"

/* All zero: the defaults. */
struct vm_take_options {
	uint32_t flags;      /* LEASE_NO_EVICT, LEASE_FREE */
	uint32_t content;    /* enum gpool_content */
	uint64_t owner_id;
	int32_t timeout_ms;  /* how long to wait for pages; -1: no limit */
};

/*
 * vm_take() - so many handles, all or nothing: pages[] receives the first page of each. They are held. What is idle here and mapped in no
 * space comes first; for the rest there is one request to the agent, or, where a handle is several pages and no run of so many is to be
 * had, one for each. Waits for them at most as the options say, and holds none while it waits.
 * Return: 0, -ENOSPC, -EDQUOT, -EPIPE, -ENOMEM.
 */
int vm_take(struct gpool *pool, uint32_t handles, const struct vm_take_options *options, uint32_t *pages);

/* vm_put() - held handles become idle. */
void vm_put(struct gpool *pool, const uint32_t *pages, uint32_t handles);

/* vm_adopt() - exactly this handle, if it is idle here: held again. What it contains is anybody's. Costs no call. */
bool vm_adopt(struct gpool *pool, uint32_t page, const struct vm_take_options *options);

/*
 * handle_keep() - a held one is at hand; returns the word by which handle_claim() knows that it still is: held again, unless the agent has
 * taken it.
 */
uint64_t handle_keep(struct gpool *pool, uint32_t page);
bool handle_claim(struct gpool *pool, uint32_t page, uint64_t word, const struct vm_take_options *options);

static inline uint32_t handle_pages(const struct gpool *pool)
{
	return pool->header->pages_per_handle;
}

/* handle_stand() - a handle in transit becomes held: 0, -ESTALE (not ours any more). _fall() - the other way. */
int handle_stand(struct gpool *pool, struct thread_cache *cache, uint32_t page, const struct vm_take_options *options);
void handle_fall(struct gpool *pool, uint32_t page);

#endif
