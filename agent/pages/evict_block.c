/*
 * evict_block.c - take one block; see evict_block.h.
 */
#include "agent/pages/evict_block.h"

#include "agent/base/journal.h"
#include "agent/pages/flight.h"
#include "shm/doorbell.h"
#include "shm/lease_bitmap.h"
#include "shm/pins.h"
#include "shm/timeline.h"

#include <errno.h>

uint32_t evict_block_walk(struct pool *pool, const struct session *session, uint32_t head, uint64_t tag,
	uint32_t *budget, uint32_t *run_count)
{
	const struct block_entry *blocks = session->segment.blocks;
	uint32_t total = 0, extent = head;

	if (run_count)
		*run_count = 0;
	evict_look_begin(&pool->evict);
	for (;;) {
		uint32_t count = atomic_load_explicit(&blocks[extent].page_count, memory_order_relaxed), next;

		if (count < 1 || count > pool->page_count - extent || count > pool->page_count - total ||
			count > *budget)
			return 0;
		*budget -= count;
		for (uint32_t page = extent; page < extent + count; page++) {
			uint64_t word = pool_word(pool, page);

			if (page_word_owner(word) != session->id ||
				(page_word_state(word) != PAGE_LEASED &&
					!(page == head && page_word_state(word) == PAGE_EVICTING)))
				return 0;
			if (run_count && !evict_look_first(&pool->evict, page))
				return 0;
		}
		if (run_count)
			pool->runs[(*run_count)++] = (struct page_run){extent, count};
		next = tag & BLOCK_SCATTERED ? atomic_load_explicit(&blocks[extent].next, memory_order_relaxed) : 0;
		total += count;
		if (!next)
			return total;
		if (next > pool->page_count)
			return 0;
		extent = next - 1;
		if (atomic_load_explicit(&blocks[extent].tag, memory_order_acquire) >> BLOCK_SEQUENCE_SHIFT !=
			tag >> BLOCK_SEQUENCE_SHIFT)
			return 0;
	}
}

/* Free the extents in pool->runs: clear bits and tags, then change the page words. */
static uint32_t runs_take(struct pool *pool, struct session *session, uint32_t run_count)
{
	uint32_t total = 0;

	for (uint32_t i = 0; i < run_count; i++) {
		const struct page_run *run = &pool->runs[i];
		uint32_t end = run->first + run->count;

		/*
		 * Clear free bits that the worker has wrongly set for these pages, because they must not outlive the
		 * lease.
		 */
		for (uint32_t word = run->first / 64; word <= (end - 1) / 64; word++)
			lease_take_word(session->segment.free_bits, word, lease_mask(word, run->first, run->count));
		atomic_store_explicit(&session->segment.blocks[run->first].tag, 0, memory_order_release);
		crash_point();
		pool_take_back(pool, run->first, run->count);
		total += run->count;
	}
	return total;
}

/* Free a block as a step that the next agent can complete. */
static uint32_t block_take(struct pool *pool, struct session *session, uint32_t run_count)
{
	uint32_t total;

	journal_begin(&pool->ledger, LEDGER_TAKE, session->id, run_count);
	total = runs_take(pool, session, run_count);
	session->leased -= total;
	session->tenant->leased -= total;
	journal_end(&pool->ledger);
	return total;
}

bool evict_block_idle(const struct session *session, uint32_t page)
{
	return pin_count(&session->segment, page) == 0 &&
		fence_signaled(&session->segment,
			atomic_load_explicit(&session->segment.blocks[page].fence, memory_order_acquire));
}

uint64_t evict_mark(struct session *session, uint32_t page)
{
	struct pool *pool = session->pool;
	uint64_t word = pool_word(pool, page);

	if (session->state != SESSION_LIVE || page_word_owner(word) != session->id ||
		page_word_state(word) != PAGE_LEASED)
		return 0;
	pool_word_set(pool, page, STEP_MARK,
		page_word_make(PAGE_EVICTING, page_word_owner(word), page_word_generation(word)));
	crash_point();
	return word;
}

static void wake_pins(const struct pool *pool, const struct session *session, uint32_t page)
{
	if (atomic_load_explicit(&session->segment.header->pin_waiters, memory_order_seq_cst))
		futex_wake((_Atomic uint32_t *)&pool->segment.pages[page] + 1, INT32_MAX);
}

void evict_unmark(struct session *session, uint32_t page, uint64_t word)
{
	pool_word_set(session->pool, page, STEP_UNMARK, word);
	crash_point();
	wake_pins(session->pool, session, page);
}

/* Mark the word before reading the pins (shm/pins.h). If the result is 0, nothing was changed. */
uint32_t evict_block(struct pool *pool, const struct evict_candidate *candidate)
{
	struct session *session = pool->sessions[candidate->session];
	uint32_t page = candidate->page, taken = 0, budget = candidate->pages, leaving = 0, run_count;
	uint64_t word = session ? evict_mark(session, page) : 0, tag, owner_id;

	if (!word)
		return 0;
	owner_id = atomic_load_explicit(&session->segment.blocks[page].owner_id, memory_order_relaxed);
	/*
	 * Read the tag after pins and fence. If it were read earlier, a free could complete in between and set free
	 * bits of pages without an owner.
	 */
	if (evict_block_idle(session, page)) {
		tag = atomic_load_explicit(&session->segment.blocks[page].tag, memory_order_acquire);
		if (tag != candidate->tag ||
			evict_block_walk(pool, session, page, tag, &budget, &run_count) != candidate->pages)
			;
		else if (!evict_tag_spills(tag))
			taken = block_take(pool, session, run_count);
		else if (!pool->saver->begin(session, page, tag, candidate->pages, NULL))
			leaving = candidate->pages;
	}
	if (!taken && !leaving)
		evict_unmark(session, page, word);
	else
		wake_pins(pool, session, page);
	if ((taken || leaving) && !candidate->cached && pool->evict.policy->evicted)
		pool->evict.policy->evicted(pool->evict.policy_state, candidate);
	if (!taken)
		return leaving;
	if (!candidate->cached) {
		session->evicted_pages += taken;
		tenant_evicted(session->tenant, candidate->usage, taken);
		atomic_fetch_add_explicit(&session->segment.header->evictions, 1, memory_order_release);
		pool->evicted_unannounced += taken;
		pool_count(pool, POOL_COUNT_EVICTIONS, 1);
		pool_count(pool, POOL_COUNT_EVICTED_PAGES, taken);
		flight_note(pool,
			&(struct flight_entry){.kind = FLIGHT_EVICT,
				.session = (uint16_t)session->id,
				.page = page,
				.pages = taken,
				.tag = candidate->tag,
				.value = owner_id},
			0);
	} else {
		session->reclaimed_pages += taken;
		pool_count(pool, POOL_COUNT_RECLAIMS, taken);
	}
	return taken;
}

int evict_to_spill(struct session *session, uint32_t page, uint64_t tag, const struct spill_asker *asker)
{
	struct pool *pool = session->pool;
	uint64_t word = evict_mark(session, page), now;
	uint32_t budget = session->leased, pages;
	int error = -EBUSY;

	if (!word)
		return -ESTALE;
	if (evict_block_idle(session, page)) {
		now = atomic_load_explicit(&session->segment.blocks[page].tag, memory_order_acquire);
		pages = now == tag && !evict_tag_is_free(tag) && evict_tag_evictable(tag)
			? evict_block_walk(pool, session, page, tag, &budget, NULL)
			: 0;
		error = pages ? pool->saver->begin(session, page, tag, pages, asker) : -ESTALE;
	}
	if (error)
		evict_unmark(session, page, word);
	else
		wake_pins(pool, session, page);
	return error;
}
