#include "agent/spill/spill_block.h"

#include "agent/base/crash_point.h"
#include "agent/pages/evict.h"
#include "agent/pages/pool.h"
#include "agent/pages/requests.h"
#include "agent/pages/session_state.h"
#include "shm/doorbell.h"
#include "shm/lease_bitmap.h"

#include <errno.h>
#include <search.h>
#include <stdlib.h>

struct ledger_slot *spill_slot(const struct pool *pool, const struct spill_block *block, uint32_t index)
{
	return &pool->ledger.slots[block->chain[index]];
}

void spill_state(const struct pool *pool, const struct spill_block *block, enum ledger_slot_state state)
{
	atomic_store_explicit(&spill_slot(pool, block, 0)->state, state, memory_order_release);
	crash_point();
}

/* ---- blocks ---- */

static int by_name(const void *left, const void *right)
{
	const struct spill_block *a = left, *b = right;

	if (a->owner != b->owner)
		return a->owner < b->owner ? -1 : 1;
	return a->tag < b->tag ? -1 : a->tag > b->tag;
}

struct spill_block *spill_block_find(const struct pool *pool, uint32_t owner, uint64_t tag)
{
	struct spill_block key = {.owner = owner, .tag = tag & ~(uint64_t)BLOCK_SCATTERED};
	void *found = tfind(&key, &pool->spill->blocks, by_name);

	return found ? *(struct spill_block **)found : NULL;
}

struct spill_block *spill_block_new(
	struct pool *pool, struct session *session, uint32_t owner, uint64_t tag, uint32_t pages)
{
	struct spill_block *block = calloc(1, sizeof(*block) + pages * sizeof(*block->chain));

	if (!block)
		return NULL;
	block->session = session;
	block->owner = owner;
	block->tag = tag & ~(uint64_t)BLOCK_SCATTERED;
	block->pages = pages;
	block->request = -1;
	block->phase = SPILL_SAVED;
	if (!session)
		return block;
	if (!tsearch(block, &pool->spill->blocks, by_name)) {
		free(block);
		return NULL;
	}
	LIST_INSERT_HEAD(&session->spilled, block, of_session);
	return block;
}

void spill_block_rest(struct pool *pool, struct spill_block *block)
{
	uint32_t place;

	spill_block_stay(pool, block);
	for (uint32_t i = 0; i < block->pages; i++)
		if (slots_tier(&pool->spill->slots, block->chain[i], &place) != MOVER_TIER_MEMORY)
			return;
	block->is_aged = true;
	TAILQ_INSERT_TAIL(&pool->spill->aged, block, aged);
}

void spill_block_stay(struct pool *pool, struct spill_block *block)
{
	if (block->sunk)
		block->sunk->rises = NULL;
	block->sunk = NULL;
	if (block->is_aged)
		TAILQ_REMOVE(&pool->spill->aged, block, aged);
	block->is_aged = false;
}

void spill_block_forget(struct pool *pool, struct spill_block *block)
{
	if (!block->session)
		return;
	spill_block_stay(pool, block);
	tdelete(block, &pool->spill->blocks, by_name);
	LIST_REMOVE(block, of_session);
	block->session = NULL;
}

void spill_block_free(struct pool *pool, struct spill_block *block)
{
	spill_block_forget(pool, block);
	free(block);
}

void spill_saving_count(struct pool *pool, const struct spill_block *block, int64_t pages)
{
	pool->saving_pages = (uint32_t)(pool->saving_pages + pages);
	block->session->saving = (uint32_t)(block->session->saving + pages);
	block->session->tenant->saving = (uint32_t)(block->session->tenant->saving + pages);
}

/* Loads are inserted before other blocks, since requests wait for them. */
void spill_block_begin(struct pool *pool, struct spill_block *block, enum spill_phase phase)
{
	spill_block_stay(pool, block);
	block->phase = phase;
	block->begun = block->finished = block->next = 0;
	block->error = 0;
	block->begun_ns = clock_ns();
	for (uint32_t i = 0; i < block->pages; i++)
		pool->spill->places[block->chain[i]] = (struct spill_place){.block = block};
	if (phase == SPILL_LOADING)
		TAILQ_INSERT_HEAD(&pool->spill->working, block, working);
	else
		TAILQ_INSERT_TAIL(&pool->spill->working, block, working);
	if (phase == SPILL_SAVING && block->session)
		spill_saving_count(pool, block, block->pages);
	if (block->request >= 0 && block->session)
		block->session->spill_requests |= UINT64_C(1) << block->request;
}

void spill_block_end(struct pool *pool, struct spill_block *block)
{
	if (block->phase == SPILL_SAVED)
		return;
	for (uint32_t i = 0; i < block->pages; i++)
		pool->spill->places[block->chain[i]] = (struct spill_place){.block = NULL};
	TAILQ_REMOVE(&pool->spill->working, block, working);
	if (block->phase == SPILL_SAVING && block->session)
		spill_saving_count(pool, block, -(int64_t)block->pages);
	block->phase = SPILL_SAVED;
}

void spill_block_drop(struct pool *pool, struct spill_block *block)
{
	if (block->session)
		block->session->spilled_pages -= block->pages;
	slots_put(&pool->spill->slots, block->chain, block->pages);
	spill_block_free(pool, block);
	agent_need_tick(pool->agent, SPILL_TIDY_TICK_MS);
}

bool spill_block_answer(const struct spill_block *block, int error)
{
	if (block->request < 0 || !block->session)
		return false;
	block->session->segment.requests[block->request].error = error == JOB_GIVEN_UP ? -EIO : error;
	return requests_answer(block->session, (uint32_t)block->request, block->request_word);
}

void spill_block_answered(struct spill_block *block)
{
	if (block->request >= 0 && block->session) {
		block->session->spill_requests &= ~(UINT64_C(1) << block->request);
		requests_give_back(block->session, (uint32_t)block->request);
	}
	block->request = -1;
}

/* ---- page words ---- */

/*
 * Return true if the page is still as recorded in the slot: leased to the session, with the same generation, in this
 * state.
 */
static bool page_is(const struct pool *pool, const struct spill_block *block, uint32_t index, enum page_state state)
{
	const struct ledger_slot *slot = spill_slot(pool, block, index);
	uint64_t word = pool_word(pool, slot->page);

	return word == page_word_make(state, block->owner, slot->generation);
}

void spill_pages_move(struct pool *pool, const struct spill_block *block)
{
	for (uint32_t i = 0; i < block->pages; i++)
		pool_move(pool, spill_slot(pool, block, i)->page, PAGE_MOVING);
}

bool spill_pages_hold(struct pool *pool, const struct spill_block *block)
{
	bool all = true;

	for (uint32_t i = 0; i < block->pages; i++) {
		const struct ledger_slot *slot = spill_slot(pool, block, i);
		uint64_t word = pool_word(pool, slot->page);

		if (word == page_word_make(PAGE_LEASED, block->owner, slot->generation))
			pool_move(pool, slot->page, PAGE_MOVING);
		else if (word != page_word_make(PAGE_MOVING, block->owner, slot->generation))
			all = false;
	}
	return all;
}

static void wake_pins(struct pool *pool, const struct spill_block *block)
{
	uint32_t head = spill_slot(pool, block, 0)->page;

	if (block->session && atomic_load_explicit(&block->session->segment.header->pin_waiters, memory_order_seq_cst))
		futex_wake((_Atomic uint32_t *)&pool->segment.pages[head] + 1, INT32_MAX);
}

void spill_pages_forget(const struct pool *pool, const struct spill_block *block)
{
	for (uint32_t i = 0; i < block->pages; i++)
		if (!page_is(pool, block, i, PAGE_MOVING))
			spill_slot(pool, block, i)->generation = 0;
	crash_point();
}

void spill_pages_give_back(struct pool *pool, const struct spill_block *block)
{
	for (uint32_t i = 0; i < block->pages; i++)
		if (page_is(pool, block, i, PAGE_MOVING))
			pool_move(pool, spill_slot(pool, block, i)->page, PAGE_LEASED);
	wake_pins(pool, block);
}

void spill_pages_take(struct pool *pool, struct spill_block *block)
{
	struct session *session = block->session;
	uint32_t taken = 0;

	for (uint32_t i = 0; i < block->pages; i++) {
		uint32_t page = spill_slot(pool, block, i)->page;
		_Atomic uint64_t *tag = &session->segment.blocks[page].tag;

		if (!page_is(pool, block, i, PAGE_MOVING))
			continue;
		/* Clear free bits that the worker has wrongly set for these pages; they must not outlive the lease. */
		lease_take_word(session->segment.free_bits, page / 64, UINT64_C(1) << (page % 64));
		if (atomic_load_explicit(tag, memory_order_acquire) >> BLOCK_SEQUENCE_SHIFT ==
			block->tag >> BLOCK_SEQUENCE_SHIFT)
			atomic_store_explicit(tag, 0, memory_order_release);
		crash_point();
		pool_take_back(pool, page, 1);
		taken++;
	}
	session->leased -= taken;
	session->tenant->leased -= taken;
	wake_pins(pool, block);
}

void spill_load_leave(struct pool *pool, struct spill_block *block)
{
	if (!block->lent) {
		spill_pages_give_back(pool, block);
		return;
	}
	spill_pages_take(pool, block);
	pool_mark_freed(pool);
}

bool spill_sources_read(struct session *session, uint32_t head, uint64_t tag, uint32_t pages)
{
	struct pool *pool = session->pool;
	const struct block_entry *blocks = session->segment.blocks;
	struct spill_source *sources = pool->spill->sources;
	uint32_t total = 0, extent = head, next;

	evict_look_begin(&pool->evict);
	do {
		uint32_t count = atomic_load_explicit(&blocks[extent].page_count, memory_order_relaxed);

		if (count < 1 || count > pool->page_count - extent || count > pages - total)
			return false;
		for (uint32_t page = extent; page < extent + count; page++) {
			uint64_t word = pool_word(pool, page);

			if (page_word_owner(word) != session->id ||
				(page_word_state(word) != PAGE_LEASED &&
					!(page == head && page_word_state(word) == PAGE_EVICTING)))
				return false;
			if (!evict_look_first(&pool->evict, page))
				return false;
			sources[total++] = (struct spill_source){page, page_word_generation(word)};
		}
		next = tag & BLOCK_SCATTERED ? atomic_load_explicit(&blocks[extent].next, memory_order_relaxed) : 0;
		extent = next - 1;
	} while (next && next <= pool->page_count && total < pages);
	return !next && total == pages;
}
