#include "client/vm/handle.h"

#include "client/core/alloc.h"
#include "client/vm/page_list.h"
#include "client/vm/space.h"
#include "shm/timeline.h"

#include <stdlib.h>

/* consecutive inspections by the agent, each shorter than a microsecond; if there are more, the agent has ended */
enum { CLAIM_TRIES = 1000 };

static const struct vm_take_options no_options;

/* ---- one handle ---- */

/* Write the handle's entry. The page belongs to this session and is pinned. */
static void handle_write(struct gpool *pool, struct thread_cache *cache, uint32_t page,
	const struct vm_take_options *options, uint64_t fence)
{
	const struct block_attributes attributes = {.owner_id = options->owner_id, .fence = fence};

	block_write(pool, page, handle_pages(pool), block_tag_make(sequence_next(cache), options->usage | BLOCK_RANGE),
		&attributes);
}

int handle_stand(struct gpool *pool, struct thread_cache *cache, uint32_t page, const struct vm_take_options *options)
{
	uint64_t word;

	if (run_pin(pool, page, &word))
		return -ESTALE;
	handle_write(pool, cache, page, options, 0);
	return 0;
}

void handle_fall(struct gpool *pool, uint32_t page)
{
	atomic_store_explicit(&block_entry(pool, page)->tag, 0, memory_order_release);
	pin_drop(&pool->session, page);
}

bool handle_fence(struct gpool *pool, uint32_t page, uint64_t fence)
{
	return entry_fence_raise(pool, block_entry(pool, page), fence);
}

bool handle_pending(const struct gpool *pool, uint32_t page)
{
	return !fence_signaled(
		&pool->session, atomic_load_explicit(&block_entry(pool, page)->fence, memory_order_acquire));
}

uint64_t handle_release(struct gpool *pool, uint32_t page)
{
	struct block_entry *entry = block_entry(pool, page);
	uint64_t tag = atomic_load_explicit(&entry->tag, memory_order_relaxed) | BLOCK_DYING;

	atomic_store_explicit(&entry->tag, tag, memory_order_release);
	pin_drop(&pool->session, page);
	return tag;
}

uint64_t handle_offer(struct gpool *pool, uint32_t page, uint64_t owner_id)
{
	struct block_entry *entry = block_entry(pool, page);
	uint64_t tag = atomic_load_explicit(&entry->tag, memory_order_relaxed);

	atomic_store_explicit(&entry->owner_id, owner_id, memory_order_relaxed);
	atomic_store_explicit(&pool->session.touch[page], pool_clock(pool), memory_order_relaxed);
	pin_drop(&pool->session, page);
	return tag;
}

static inline bool is_ours(const struct gpool *pool, uint64_t word)
{
	return page_word_state(word) == PAGE_LEASED && page_word_owner(word) == pool->id;
}

/* While the agent inspects the page, its page word has another state. */
static COLD bool pin_settled(struct gpool *pool, uint32_t page, uint64_t tag)
{
	for (int tries = 0; tries < CLAIM_TRIES; tries++) {
		uint64_t word;

		word_settle(pool, page);
		word = pin_raise(&pool->session, pool->pages, page);
		if (is_ours(pool, word) &&
			atomic_load_explicit(&block_entry(pool, page)->tag, memory_order_seq_cst) == tag)
			return true;
		pin_drop(&pool->session, page);
		if (!page_word_in_motion(word) || page_word_owner(word) != pool->id)
			return false;
	}
	return false;
}

bool handle_reclaim(struct gpool *pool, uint32_t page, uint64_t tag)
{
	uint64_t word = pin_raise(&pool->session, pool->pages, page);

	if (likely(is_ours(pool, word) &&
		    atomic_load_explicit(&block_entry(pool, page)->tag, memory_order_seq_cst) == tag))
		return true;
	pin_drop(&pool->session, page);
	return page_word_in_motion(word) && page_word_owner(word) == pool->id && pin_settled(pool, page, tag);
}

bool handle_claim(struct gpool *pool, uint32_t page, uint64_t tag, const struct vm_take_options *options)
{
	struct thread_cache *cache = thread_cache_of(pool);

	if (!cache || !handle_reclaim(pool, page, tag))
		return false;
	handle_write(pool, cache, page, options ? options : &no_options,
		handle_pending(pool, page) ? atomic_load_explicit(&block_entry(pool, page)->fence, memory_order_relaxed)
					   : 0);
	return true;
}

bool handle_is_here(const struct gpool *pool, uint32_t page, uint64_t tag)
{
	uint64_t word = atomic_load_explicit(&pool->pages[page], memory_order_acquire);

	return page_word_owner(word) == pool->id &&
		(page_word_state(word) == PAGE_LEASED || page_word_in_motion(word)) &&
		atomic_load_explicit(&block_entry(pool, page)->tag, memory_order_acquire) == tag;
}

/* ---- several handles ---- */

/* Make handles in transit idle, with one atomic instruction for adjacent ones in the same bitmap word. */
static void handles_idle(struct gpool *pool, const uint32_t *pages, uint32_t handles)
{
	uint32_t per_handle = handle_pages(pool);

	for (uint32_t i = 0; i < handles;) {
		uint32_t first = i;

		do
			i++;
		while (i < handles && pages[i] == pages[i - 1] + per_handle);
		pool_put(pool, pages[first], (i - first) * per_handle);
	}
}

void vm_put(struct gpool *pool, const uint32_t *pages, uint32_t handles)
{
	struct thread_stats *transit;

	if (!handles)
		return;
	transit = transit_begin(pool);
	for (uint32_t i = 0; i < handles; i++)
		handle_fall(pool, pages[i]);
	handles_idle(pool, pages, handles);
	transit_end(pool, transit);
	pool_wake_waiters(pool);
}

/* Hold handles in transit, or make all of them idle. */
static int handles_stand(
	struct gpool *pool, const uint32_t *pages, uint32_t handles, const struct vm_take_options *options)
{
	struct thread_cache *cache = thread_cache_of(pool);

	for (uint32_t i = 0; i < handles; i++) {
		if (!handle_stand(pool, cache, pages[i], options))
			continue;
		pool_log(pool, POOL_LOG_ERROR, "granted pages are no longer leased to session %u", pool->id);
		handles_idle(pool, pages + i, handles - i);
		vm_put(pool, pages, i);
		return -EPIPE;
	}
	return 0;
}

static uint32_t list_handles(const struct gpool *pool, const struct page_list *list, uint32_t *pages)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < list->count; i++)
		for (uint32_t page = list->spans[i].first; page < list->spans[i].first + list->spans[i].count;
			page += handle_pages(pool))
			pages[count++] = page;
	return count;
}

/*
 * Take idle pages of this session that no space maps, without a request. Mapped pages are skipped, so that their spaces
 * can adopt them again.
 */
static uint32_t idle_take(struct gpool *pool, uint32_t most, uint32_t *pages)
{
	uint32_t per_handle = handle_pages(pool), handles = pool->unreserved / per_handle, count = 0;

	for (uint32_t handle = 0; handle < handles && count < most;) {
		uint32_t page = handle * per_handle;
		uint64_t bits =
			atomic_load_explicit(&pool->session.free_bits[page / 64], memory_order_relaxed) >> (page % 64);

		if (!bits) {
			handle = (page / 64 * 64 + 64 + per_handle - 1) / per_handle;
			continue;
		}
		if (bits & 1 && !vm_maps(pool, handle) && lease_take(pool->session.free_bits, page, per_handle))
			pages[count++] = page;
		handle++;
	}
	return count;
}

/* Get handles from the agent, in transit, with one request. */
static int agent_take(struct gpool *pool, uint32_t handles, uint32_t flags, int32_t timeout_ms, uint32_t *pages)
{
	struct page_list list = {.count = 0};
	int error = page_list_take(pool, handles * handle_pages(pool), flags | LEASE_SCATTERED, timeout_ms, &list);

	if (!error)
		list_handles(pool, &list, pages);
	page_list_reset(&list);
	return error;
}

/* The caller has called transit_begin(). */
static int take(struct gpool *pool, uint32_t handles, const struct vm_take_options *options, uint32_t *pages)
{
	uint32_t flags = options->flags | options->usage << LEASE_USAGE_SHIFT, idle = idle_take(pool, handles, pages);
	int error = idle < handles ? agent_take(pool, handles - idle, flags, 0, pages + idle) : 0;

	if (error)
		handles_idle(pool, pages, idle);
	/* Hold no handle during the wait. */
	if ((error == -ENOSPC || error == -EDQUOT) && options->timeout_ms)
		error = agent_take(pool, handles, flags, options->timeout_ms, pages);
	return error ? error : handles_stand(pool, pages, handles, options);
}

int vm_take(struct gpool *pool, uint32_t handles, const struct vm_take_options *options, uint32_t *pages)
{
	struct thread_stats *transit;
	int error;

	if (!thread_cache_of(pool))
		return -ENOMEM;
	if (handles > pool->page_count / handle_pages(pool))
		return -ENOSPC;
	pool_sweep(pool);
	transit = transit_begin(pool);
	error = take(pool, handles, options ? options : &no_options, pages);
	transit_end(pool, transit);
	return error;
}
