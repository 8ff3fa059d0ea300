/*
 * spill_recover.c - recover blocks that were spilled, or were being saved or loaded, after the death of an agent.
 *
 * The slots (with the state of each block), the page words, and the jobs in the mover's ring have survived. The tag of
 * a job contains the number of its slot. If the ring has no job for a slot, the job was never submitted or has
 * finished. It is then submitted again, which is harmless, since the content of MOVING pages does not change. The table
 * in docs/internals/agent.md, "Spill", lists all cases.
 */
#include "agent/spill/spill_sink.h"
#include "shm/plural.h"

#include "agent/base/crash_point.h"
#include "agent/base/log.h"
#include "agent/pages/pool.h"
#include "agent/pages/session_state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void forget(struct pool *pool, const uint32_t *chain, uint32_t pages)
{
	slots_put(&pool->spill->slots, chain, pages);
}

/* ---- blocks of live sessions ---- */

/*
 * Recover a block that was being saved. busy: the ring has a job for it, so its slots and pages must not be used before
 * the job has finished.
 */
static void saving_recover(struct pool *pool, struct spill_block *block, bool busy)
{
	const struct ledger_slot *head = spill_slot(pool, block, 0);

	/*
	 * The head becomes MOVING first, and LEASED first when a save is undone. If it is not MOVING, nothing had begun
	 * or everything was undone.
	 */
	if (pool_word(pool, head->page) == page_word_make(PAGE_MOVING, block->owner, head->generation) &&
		spill_pages_hold(pool, block)) {
		spill_block_begin(pool, block, SPILL_SAVING);
		return;
	}
	if (busy) {
		spill_pages_forget(pool, block);
		spill_block_begin(pool, block, SPILL_SAVING);
		block->error = -EAGAIN;
		return;
	}
	spill_pages_give_back(pool, block);
	forget(pool, block->chain, block->pages);
	spill_block_free(pool, block);
}

/* Keep a block outside of the pool. The target pages are free, or belong to the worker. */
static void stays_out(struct pool *pool, struct spill_block *block)
{
	spill_state(pool, block, SLOT_SAVED);
	spill_pages_forget(pool, block);
	spill_block_rest(pool, block);
}

enum asked { ASKED_STILL, ASKED_NO_MORE, ASKED_AND_ANSWERED };

/* Return the state of the request for which a block was loaded. */
static enum asked request_of(const struct pool *pool, const struct spill_block *block)
{
	const struct ledger_slot *head = spill_slot(pool, block, 0);
	uint32_t word = atomic_load_explicit(
		&block->session->segment.requests[head->request % SESSION_REQUESTS].state, memory_order_acquire);

	if (word == head->request_word)
		return ASKED_STILL;
	return word == lease_state_to(head->request_word, LEASE_CANCELLED) ? ASKED_NO_MORE : ASKED_AND_ANSWERED;
}

/*
 * Return true if the target pages belong to the agent. Until a request is answered, or a cancelled one is returned,
 * its slot is as the worker wrote it.
 */
static bool is_lent(const struct pool *pool, const struct spill_block *block)
{
	uint32_t request = spill_slot(pool, block, 0)->request % SESSION_REQUESTS;

	return *(volatile uint32_t *)&block->session->segment.requests[request].kind != LEASE_RESTORE_INTO;
}

static void loading_recover(struct pool *pool, struct spill_block *block, bool busy)
{
	const struct ledger_slot *head = spill_slot(pool, block, 0);
	bool hold = spill_pages_hold(pool, block);

	block->lent = is_lent(pool, block);
	block->session->spilled_pages += block->pages;
	if (!hold && busy) {
		/* The pages are quarantined, so the load fails when it has finished. */
		spill_pages_forget(pool, block);
		spill_block_begin(pool, block, SPILL_LOADING);
		block->error = -ECANCELED;
		return;
	}
	if (!hold) {
		spill_load_leave(pool, block);
		stays_out(pool, block);
		return;
	}
	/* This also applies if the worker has cancelled the request: the mover may be writing to the pages. */
	block->request = (int32_t)(head->request % SESSION_REQUESTS);
	block->request_word = head->request_word;
	spill_state(pool, block, SLOT_LOADING);
	spill_block_begin(pool, block, SPILL_LOADING);
}

static void answered_recover(struct pool *pool, struct spill_block *block, bool busy)
{
	switch (request_of(pool, block)) {
	case ASKED_STILL: loading_recover(pool, block, busy); break;
	case ASKED_NO_MORE:
		block->lent = is_lent(pool, block);
		if (block->lent) {
			spill_pages_hold(pool, block);
			spill_pages_take(pool, block);
		}
		stays_out(pool, block);
		block->session->spilled_pages += block->pages;
		break;
	case ASKED_AND_ANSWERED:
		forget(pool, block->chain, block->pages);
		spill_block_free(pool, block);
		break;
	}
}

/* Delete a block if the worker has received the answer that it was discarded. */
static void discarded_recover(struct pool *pool, struct spill_block *block)
{
	if (request_of(pool, block) == ASKED_AND_ANSWERED) {
		forget(pool, block->chain, block->pages);
		spill_block_free(pool, block);
		return;
	}
	spill_state(pool, block, SLOT_SAVED);
	spill_block_rest(pool, block);
	block->session->spilled_pages += block->pages;
}

static void saved_recover(struct pool *pool, struct spill_block *block)
{
	spill_pages_take(pool, block);
	spill_pages_forget(pool, block);
	spill_block_rest(pool, block);
	block->session->spilled_pages += block->pages;
}

/* ---- blocks of ended sessions ---- */

/* Free a block of an ended session. Slots and pages of its jobs are kept until the jobs have finished. */
static void orphan_recover(struct pool *pool, struct spill_block *block, enum ledger_slot_state state)
{
	if (state != SLOT_LOADING && state != SLOT_SAVING) {
		forget(pool, block->chain, block->pages);
		free(block);
		return;
	}
	/* The id of the session may soon be assigned to another one. */
	for (uint32_t i = block->pages; i-- > 0;)
		pool->ledger.slots[block->chain[i]].session = 0;
	crash_point();
	spill_block_begin(pool, block, state == SLOT_SAVING ? SPILL_SAVING : SPILL_LOADING);
}

/* ---- all blocks ---- */

/* Determine the slots with a job in the ring. */
static void ring_look(const struct pool *pool, uint8_t *named)
{
	for (uint32_t i = 0; i < MOVER_JOBS && jobs_possible(pool->jobs); i++) {
		const struct mover_order *order = mover_order_of(&pool->jobs->queue, i);
		uint64_t number = order ? order->tag & ((UINT64_C(1) << JOB_OWNER_SHIFT) - 1) : 0;

		if (order && order->tag >> JOB_OWNER_SHIFT == JOB_OF_SPILL && number < pool->ledger.header->slot_count)
			named[number] = 1;
	}
}

static void chain_recover(struct pool *pool, const uint32_t *chain, bool busy)
{
	const struct ledger_slot *head = &pool->ledger.slots[chain[0]];
	uint64_t tag = atomic_load_explicit(&head->tag, memory_order_relaxed);
	enum ledger_slot_state state = (enum ledger_slot_state)atomic_load_explicit(&head->state, memory_order_acquire);
	struct session *session = head->session < POOL_SESSIONS ? pool->sessions[head->session] : NULL;
	/*
	 * If both memory and file contain the block, the agent was about to free the memory slots; they are used, and
	 * sink again later.
	 */
	bool sinking = state == SLOT_SINKING || (session && spill_block_find(pool, session->id, tag));
	struct spill_block *block = spill_block_new(pool, sinking ? NULL : session, head->session, tag, head->pages);

	if (!block) {
		log_error("pool '%s': out of memory; %u spilled page%s of session %u lost", pool->config->name,
			head->pages, plural(head->pages), head->session);
		forget(pool, chain, head->pages);
		return;
	}
	memcpy(block->chain, chain, head->pages * sizeof(*chain));
	if (sinking)
		spill_sink_recover(pool, block, busy);
	else if (!session)
		orphan_recover(pool, block, state);
	else if (state == SLOT_SAVING)
		saving_recover(pool, block, busy);
	else if (state == SLOT_LOADING)
		loading_recover(pool, block, busy);
	else if (state == SLOT_ANSWERED)
		answered_recover(pool, block, busy);
	else if (state == SLOT_DISCARDED)
		discarded_recover(pool, block);
	else
		saved_recover(pool, block);
}

static enum spill_phase phase_of(const struct mover_order *order)
{
	return order->kind == MOVER_SPILL ? SPILL_SAVING : order->kind == MOVER_SINK ? SPILL_SINKING : SPILL_LOADING;
}

/* Take over the jobs that the previous agent submitted and whose results were not read. */
static void ring_recover(struct pool *pool)
{
	for (uint32_t i = 0; i < MOVER_JOBS && jobs_possible(pool->jobs); i++) {
		const struct mover_order *order = mover_order_of(&pool->jobs->queue, i);
		uint64_t number = order ? order->tag & ((UINT64_C(1) << JOB_OWNER_SHIFT) - 1) : 0;
		struct spill_place *place;

		if (!order || order->tag >> JOB_OWNER_SHIFT != JOB_OF_SPILL ||
			number >= pool->ledger.header->slot_count)
			continue;
		place = &pool->spill->places[number];
		if (!place->block || place->begun || phase_of(order) != place->block->phase)
			continue;
		place->begun = true;
		place->block->begun++;
	}
}

/* Restore MOVING pages that no block uses: the agent died before it recorded the block, or after the block ended. */
static void words_recover(struct pool *pool)
{
	const struct spill_block *block;
	uint8_t *moving = calloc(1, pool->page_count);

	if (!moving)
		return;
	TAILQ_FOREACH(block, &pool->spill->working, working)
	for (uint32_t i = 0; i < block->pages && block->phase != SPILL_SINKING; i++)
		moving[spill_slot(pool, block, i)->page] = 1;
	for (uint32_t page = 0; page < pool->page_count; page++)
		if (!moving[page] && page_word_state(pool_word(pool, page)) == PAGE_MOVING)
			pool_move(pool, page, PAGE_LEASED);
	free(moving);
}

/* Free slots that belong to no complete chain: their chain was being created or freed. */
static void leftovers_recover(struct pool *pool, const uint8_t *whole)
{
	const struct spill_slots *slots = &pool->spill->slots;

	for (uint32_t slot = slots_begun(slots, 0); slot < pool->ledger.header->slot_count;
		slot = slots_begun(slots, slot + 1))
		if (!whole[slot] && atomic_load_explicit(&pool->ledger.slots[slot].tag, memory_order_relaxed))
			forget(pool, &slot, 1);
}

/*
 * Continue the end of sessions: pages to which the mover may be writing must not be freed with the session's other
 * pages.
 */
void spill_recover_ends(struct pool *pool)
{
	uint32_t slot_count = pool->ledger.header->slot_count, *chain = calloc(pool->page_count, sizeof(*chain));
	const struct spill_slots *begun = &pool->spill->slots;

	for (uint32_t head = slots_begun(begun, 0); chain && head < slot_count; head = slots_begun(begun, head + 1)) {
		struct ledger_slot *slots = pool->ledger.slots;
		uint32_t owner = slots[head].session % POOL_SESSIONS, state;

		if (!slots_chain(&pool->ledger, head, chain) || slots[head].state != SLOT_LOADING)
			continue;
		state = atomic_load_explicit(&pool->ledger.sessions[owner].state, memory_order_acquire);
		for (uint32_t i = 0; i < slots[head].pages && state != LEDGER_SESSION_LIVE &&
			state != LEDGER_SESSION_CLOSED && state != LEDGER_SESSION_SENDING;
			i++) {
			struct ledger_slot *slot = &slots[chain[i]];

			if (owner && page_word_owner(pool_word(pool, slot->page)) == owner) {
				slot->generation = page_word_generation(pool_word(pool, slot->page));
				pool_set_aside(pool, slot->page);
			}
		}
	}
	free(chain);
}

void spill_recover(struct pool *pool)
{
	uint32_t slot_count = pool->ledger.header->slot_count, *chain = calloc(pool->page_count, sizeof(*chain));
	uint8_t *whole = slots_array(slot_count, 1), *named = slots_array(slot_count, 1);
	const struct spill_slots *slots = &pool->spill->slots;

	if (!chain || !whole || !named) {
		log_error("pool '%s': out of memory; spilled blocks are lost", pool->config->name);
		goto free_memory;
	}
	ring_look(pool, named);
	for (uint32_t head = slots_begun(slots, 0); head < slot_count; head = slots_begun(slots, head + 1)) {
		uint32_t pages = pool->ledger.slots[head].pages;
		bool busy = false;

		if (whole[head] || !slots_chain(&pool->ledger, head, chain))
			continue;
		for (uint32_t i = 0; i < pages; i++) {
			whole[chain[i]] = 1;
			busy |= named[chain[i]];
		}
		chain_recover(pool, chain, busy);
	}
	leftovers_recover(pool, whole);
	ring_recover(pool);
	words_recover(pool);
	slots_soil(&pool->spill->slots);
	/* Continue to sink blocks. */
	agent_need_tick(pool->agent, SPILL_TIDY_TICK_MS);
free_memory:
	slots_array_free(named, slot_count, 1);
	slots_array_free(whole, slot_count, 1);
	free(chain);
}
