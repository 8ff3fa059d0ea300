#include "agent/spill/spill_sink.h"
#include "shm/plural.h"

#include "agent/base/journal.h"
#include "agent/base/log.h"
#include "agent/pages/event.h"
#include "agent/pages/evict.h"
#include "agent/pages/flight.h"
#include "agent/pages/lease.h"
#include "agent/pages/requests.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { REST_MS = 1000 }; /* delay after a failure, of the tier and of the block */

/* ---- jobs ---- */

/* Return true if the results of the block's jobs are still needed. */
static bool wanted(const struct spill_block *block)
{
	return !block->error && (block->phase == SPILL_SINKING ? block->rises != NULL : block->session != NULL);
}

static struct mover_order order_of(const struct pool *pool, const struct spill_block *block, uint32_t index)
{
	const struct ledger_slot *slot = spill_slot(pool, block, index);
	struct mover_order order = {
		.kind = block->phase == SPILL_SAVING ? MOVER_SPILL : MOVER_LOAD,
		.page = slot->page,
		.checksum = slot->checksum,
		.tag = job_tag(JOB_OF_SPILL, block->chain[index]),
	};

	order.tier = slots_tier(&pool->spill->slots, block->chain[index], &order.to);
	if (block->phase == SPILL_SINKING) {
		order.kind = MOVER_SINK;
		slots_tier(&pool->spill->slots, block->rises->chain[index], &order.page);
	}
	return order;
}

static void submit(struct pool *pool)
{
	struct spill *spill = pool->spill;
	struct spill_block *block;

	TAILQ_FOREACH(block, &spill->working, working)
	{
		for (; block->next < block->pages && wanted(block); block->next++) {
			struct spill_place *place = &spill->places[block->chain[block->next]];
			struct mover_order order;

			if (place->begun)
				continue;
			if (block->phase == SPILL_SINKING && block->begun - block->finished == SINK_JOBS)
				break;
			order = order_of(pool, block, block->next);
			if (mover_submit(&pool->jobs->queue, &order))
				return;
			crash_point();
			place->begun = true;
			block->begun++;
		}
	}
}

static void tier_rests(struct pool *pool, enum mover_tier id, int error)
{
	struct spill_tier *tier = &pool->spill->slots.tiers[id];
	uint64_t now = clock_ms();

	if (now >= tier->rest_ms) {
		const char *name = id == MOVER_TIER_MEMORY ? "memory" : "the file";

		log_warning("pool '%s': cannot spill a page to %s: %s; its block stays in the pool; no further blocks "
			    "are spilled there for %d ms",
			pool->config->name, name, strerror(-error), REST_MS);
		event_publish(pool->agent, EVENT_SPILL_ERROR, pool, 0, (uint64_t)-error, "cannot spill to %s: %s", name,
			strerror(-error));
	}
	tier->rest_ms = now + REST_MS;
}

/*
 * Submit a failed load a second time. The saved content may be valid, and the error may be due to the mover, such as a
 * lost context or lack of memory; its successor may be able to read the content.
 */
static bool load_again(struct pool *pool, struct spill_place *place, uint32_t number, int error)
{
	struct spill_block *block = place->block;
	uint32_t index = pool->ledger.slots[number].index;

	if (error != -EIO || block->phase != SPILL_LOADING || !block->session || place->again)
		return false;
	place->again = true;
	place->begun = false;
	block->begun--;
	if (index < block->next)
		block->next = index;
	return true;
}

static void spill_job_done(struct pool *pool, const struct mover_result *result)
{
	struct spill *spill = pool->spill;
	uint64_t number = result->order.tag & ((UINT64_C(1) << JOB_OWNER_SHIFT) - 1);
	struct spill_place *place;
	uint32_t to;

	/*
	 * The agent chose the tag, but after a restart the tag comes from a ring that the mover can write, so it is
	 * checked.
	 */
	if (number >= pool->ledger.header->slot_count || !spill->places[number].begun || spill->places[number].done)
		return;
	place = &spill->places[number];
	if (load_again(pool, place, (uint32_t)number, result->error))
		return;
	place->done = true;
	place->block->finished++;
	if (result->error && !place->block->error)
		place->block->error = result->error;
	if (result->error == JOB_GIVEN_UP)
		return;
	if (result->error) {
		/* The damage is reported when the content is requested. */
		if (place->block->phase == SPILL_SINKING && result->error == -EBADMSG)
			return;
		pool_count(pool, POOL_COUNT_SPILL_ERRORS, 1);
		if (place->block->phase != SPILL_LOADING)
			tier_rests(pool, slots_tier(&spill->slots, (uint32_t)number, &to), result->error);
	} else if (place->block->phase == SPILL_SAVING) {
		pool->ledger.slots[number].checksum = result->order.checksum;
		crash_point();
	}
}

/* ---- saving ---- */

static bool spill_possible(const struct pool *pool, uint32_t head, uint32_t pages)
{
	const struct spill *spill = pool->spill;
	uint64_t now = clock_ms();

	return jobs_served(pool->jobs) && slots_room(&spill->slots, now) >= pages &&
		(!spill->rest_ms[head] || (int32_t)((uint32_t)now - spill->rest_ms[head]) >= 0);
}

static int spill_begin(
	struct session *session, uint32_t head, uint64_t tag, uint32_t pages, const struct spill_asker *asker)
{
	struct pool *pool = session->pool;
	struct spill *spill = pool->spill;
	struct spill_block *block = jobs_possible(pool->jobs) ? spill_block_find(pool, session->id, tag) : NULL;
	struct spill_name name = {
		.tag = tag & ~(uint64_t)BLOCK_SCATTERED,
		.session = session->id,
		.owner_id = atomic_load_explicit(&session->segment.blocks[head].owner_id, memory_order_relaxed),
	};
	int error;

	if (!jobs_possible(pool->jobs))
		return -EOPNOTSUPP;
	if (!jobs_served(pool->jobs))
		return -EIO;
	if (block && block->phase != SPILL_SAVED)
		return -EBUSY;
	/* The block is in the pool, so previously saved content of it is obsolete. */
	if (block)
		spill_block_drop(pool, block);
	if (!spill_sources_read(session, head, tag, pages))
		return -EAGAIN;
	block = spill_block_new(pool, session, session->id, tag, pages);
	if (!block)
		return -ENOMEM;
	error = slots_take(&spill->slots, &name, spill->sources, pages, clock_ms(), block->chain);
	if (error) {
		spill_block_free(pool, block);
		return error;
	}
	spill_pages_move(pool, block);
	if (asker) {
		block->request = asker->slot;
		block->request_word = asker->word;
	}
	spill_block_begin(pool, block, SPILL_SAVING);
	submit(pool);
	return 0;
}

/* Return true if the entry is unchanged. A worker that frees without a pin, or is hostile, may have changed it. */
static bool entry_stands(const struct pool *pool, const struct spill_block *block)
{
	const struct block_entry *entry = &block->session->segment.blocks[spill_slot(pool, block, 0)->page];

	return (atomic_load_explicit(&entry->tag, memory_order_acquire) & ~(uint64_t)BLOCK_SCATTERED) == block->tag;
}

/* Record the end of a save or a load in the flight recorder. */
static void note(
	const struct pool *pool, const struct spill_block *block, enum flight_kind kind, uint32_t head, int error)
{
	flight_note(pool,
		&(struct flight_entry){.kind = kind,
			.session = (uint16_t)block->owner,
			.page = head,
			.pages = block->pages,
			.tag = block->tag,
			.value = (uint64_t)-error},
		block->begun_ns);
}

static void save_undo(struct pool *pool, struct spill_block *block, int error)
{
	uint32_t head = spill_slot(pool, block, 0)->page, rest = (uint32_t)clock_ms() + REST_MS;

	if (block->session) {
		/* If no mover served, the failure is not due to the block. */
		if (error != JOB_GIVEN_UP)
			pool->spill->rest_ms[head] = rest ? rest : 1;
		spill_pages_give_back(pool, block);
	}
	spill_block_end(pool, block);
	note(pool, block, FLIGHT_SPILL, head, error == JOB_GIVEN_UP ? -EIO : error);
	spill_block_answer(block, error);
	spill_block_answered(block);
	slots_put(&pool->spill->slots, block->chain, block->pages);
	spill_block_free(pool, block);
}

static void save_end(struct pool *pool, struct spill_block *block)
{
	struct session *session = block->session;

	if (block->error || !session || session->state != SESSION_LIVE || !entry_stands(pool, block)) {
		save_undo(pool, block, block->error ? block->error : -EAGAIN);
		return;
	}
	spill_state(pool, block, SLOT_SAVED);
	spill_block_end(pool, block);
	note(pool, block, FLIGHT_SPILL, spill_slot(pool, block, 0)->page, 0);
	spill_pages_take(pool, block);
	session->spilled_pages += block->pages;
	session->evicted_pages += block->pages;
	tenant_evicted(session->tenant, block->tag & BLOCK_TYPE_MASK, block->pages);
	pool->evicted_unannounced += block->pages;
	pool_mark_freed(pool);
	pool_count(pool, POOL_COUNT_EVICTIONS, 1);
	pool_count(pool, POOL_COUNT_EVICTED_PAGES, block->pages);
	pool_count(pool, POOL_COUNT_SPILLED_PAGES, block->pages);
	spill_block_rest(pool, block);
	spill_block_answer(block, 0);
	spill_block_answered(block);
}

/* ---- loading ---- */

/* Record the request in the ledger, so that the next agent can determine whether it was answered. */
static void request_note(const struct pool *pool, const struct spill_block *block, uint32_t slot, uint32_t word)
{
	spill_slot(pool, block, 0)->request = slot;
	spill_slot(pool, block, 0)->request_word = word;
}

/*
 * Begin to load a block into the LEASED pages in spill->sources. `lent`: the journal contains the grant of these pages,
 * and is cleared after a slot with state SLOT_LOADING refers to them. The next agent therefore finds the pages in the
 * journal or in the slot.
 */
static void load_begin(struct pool *pool, struct spill_block *block, uint32_t slot, uint32_t word, bool lent)
{
	for (uint32_t i = 0; i < block->pages; i++) {
		spill_slot(pool, block, i)->page = pool->spill->sources[i].page;
		spill_slot(pool, block, i)->generation = pool->spill->sources[i].generation;
	}
	request_note(pool, block, slot, word);
	spill_state(pool, block, SLOT_LOADING);
	if (lent)
		journal_end(&pool->ledger);
	spill_pages_move(pool, block);
	block->request = (int32_t)slot;
	block->request_word = word;
	block->lent = lent;
	spill_block_begin(pool, block, SPILL_LOADING);
	submit(pool);
}

/* Free the pages to which the mover wrote, after the end of their worker. */
static void load_bury(struct pool *pool, struct spill_block *block)
{
	for (uint32_t i = 0; i < block->pages; i++) {
		const struct ledger_slot *slot = spill_slot(pool, block, i);

		if (pool_word(pool, slot->page) == page_word_make(PAGE_RETIRED, 0, slot->generation + 1))
			pool_take_back(pool, slot->page, 1);
	}
	pool_mark_freed(pool);
	spill_block_end(pool, block);
	spill_block_drop(pool, block);
}

/*
 * Log that the content could not be read; the worker's request is answered with an error. `kept`: it may be restored
 * later.
 */
static void unreadable_tell(struct pool *pool, const struct spill_block *block, bool kept)
{
	const struct session *session = block->session;
	const char *fate = kept ? "it is kept" : "it is lost",
		   *why = block->error == -EBADMSG ? "the checksum differs" : strerror(-block->error);

	pool->spill->lost_blocks += !kept;
	log_error("pool '%s': the spilled content of a block of session %u ('%s', pid %d) cannot be read back: %s; %s, "
		  "%u page%s",
		pool->config->name, session->id, session->name, session->pid, why, fate, block->pages,
		plural(block->pages));
	event_publish(pool->agent, EVENT_SPILL_ERROR, pool, session->id, block->pages,
		"%u spilled page%s of '%s' cannot be read back: %s; %s", block->pages, plural(block->pages),
		session->name, why, fate);
}

/* Return a block to SAVED after a load that was not completed. Its pages were returned, or belong to the worker. */
static void load_came_to_nothing(struct pool *pool, struct spill_block *block)
{
	spill_state(pool, block, SLOT_SAVED);
	spill_pages_forget(pool, block);
	spill_block_rest(pool, block);
}

/*
 * Fail a load. Content whose checksum differs is deleted after its worker has received that answer, unless a process
 * needs it to wake. Other content is kept. If this agent dies here, the next one serves the request again.
 */
static void load_fail(struct pool *pool, struct spill_block *block)
{
	bool lost = block->error == -EBADMSG && block->lent, answered;
	int error = lost ? -EBADMSG : -EIO;

	spill_load_leave(pool, block);
	note(pool, block, FLIGHT_LOAD, spill_slot(pool, block, 0)->page, error);
	if (lost)
		spill_state(pool, block, SLOT_ANSWERED);
	else
		load_came_to_nothing(pool, block);
	spill_block_end(pool, block);
	answered = spill_block_answer(block, error);
	if (lost && !answered)
		load_came_to_nothing(pool, block);
	spill_block_answered(block);
	if (answered && block->error != JOB_GIVEN_UP)
		unreadable_tell(pool, block, !lost);
	if (lost && answered)
		spill_block_drop(pool, block);
}

/* Answer the request of a load whose content is complete. If the session has cancelled it, the block stays saved. */
static void load_succeed(struct pool *pool, struct spill_block *block)
{
	struct session *session = block->session;
	uint32_t head = spill_slot(pool, block, 0)->page;

	atomic_store_explicit(
		&session->segment.blocks[head].owner_id, spill_slot(pool, block, 0)->owner_id, memory_order_relaxed);
	spill_pages_give_back(pool, block);
	note(pool, block, FLIGHT_LOAD, head, 0);
	spill_state(pool, block, SLOT_ANSWERED);
	spill_block_end(pool, block);
	if (block->request >= 0)
		session->segment.requests[block->request].first_page = head;
	if (!spill_block_answer(block, 0)) {
		if (block->lent) {
			spill_pages_hold(pool, block);
			spill_load_leave(pool, block);
		}
		load_came_to_nothing(pool, block);
		spill_block_answered(block);
		return;
	}
	spill_block_answered(block);
	pool_count(pool, POOL_COUNT_RESTORED_PAGES, block->pages);
	spill_block_drop(pool, block);
}

static void load_end(struct pool *pool, struct spill_block *block)
{
	if (!block->session)
		load_bury(pool, block);
	else if (block->error)
		load_fail(pool, block);
	else
		load_succeed(pool, block);
}

/* ---- requests ---- */

static void answer_now(struct session *session, uint32_t slot, const struct lease_request *ask, int error)
{
	session->segment.requests[slot].error = error;
	if (!requests_answer(session, slot, ask->state))
		requests_give_back(session, slot);
}

static int block_restorable(const struct pool *pool, const struct spill_block *block, uint32_t pages)
{
	if (!block)
		return -ESTALE;
	if (block->phase != SPILL_SAVED)
		return -EBUSY;
	if (block->pages != pages)
		return -EINVAL;
	return jobs_served(pool->jobs) ? 0 : -EIO;
}

/* Return 0 if a request to restore can be served, or the error. A pool without a ring has no spilled blocks. */
static int spill_restorable(const struct session *session, uint64_t tag, uint32_t pages)
{
	return block_restorable(session->pool, spill_block_find(session->pool, session->id, tag), pages);
}

static int spill_restore(
	struct session *session, const struct lease_want *want, uint64_t tag, const struct lease_grant *grant)
{
	struct pool *pool = session->pool;
	struct spill_block *block = spill_block_find(pool, session->id, tag);
	uint32_t count = 0;
	/*
	 * Search again: granting the pages may have evicted a block of this session with the same tag, which then
	 * replaced the saved one.
	 */
	int error = block_restorable(pool, block, want->need);

	if (error)
		return error;
	for (uint32_t i = 0; i < grant->run_count; i++)
		for (uint32_t page = pool->runs[i].first; page < pool->runs[i].first + pool->runs[i].count; page++)
			pool->spill->sources[count++] =
				(struct spill_source){page, page_word_generation(pool_word(pool, page))};
	load_begin(pool, block, want->slot, want->word, true);
	return 0;
}

/* Begin to serve LEASE_RESTORE_INTO. Return 0 if the answer follows later. */
static int into_ask(struct session *session, uint32_t slot, const struct lease_request *ask, struct spill_block *block)
{
	struct pool *pool = session->pool;
	int error = block_restorable(pool, block, ask->need);
	uint64_t tag;

	if (error)
		return error;
	if (ask->first_page >= pool->page_count)
		return -EINVAL;
	tag = atomic_load_explicit(&session->segment.blocks[ask->first_page].tag, memory_order_acquire);
	if (!(tag & BLOCK_PREPARED) || !spill_sources_read(session, ask->first_page, tag, ask->need) ||
		page_word_state(pool_word(pool, ask->first_page)) != PAGE_LEASED)
		return -EINVAL;
	load_begin(pool, block, slot, ask->state, false);
	return 0;
}

static int discard_ask(
	struct session *session, uint32_t slot, const struct lease_request *ask, struct spill_block *block)
{
	if (!block)
		return -ESTALE;
	if (block->phase != SPILL_SAVED)
		return -EBUSY;
	request_note(session->pool, block, slot, ask->state);
	spill_state(session->pool, block, SLOT_DISCARDED);
	session->segment.requests[slot].error = 0;
	if (requests_answer(session, slot, ask->state)) {
		spill_block_drop(session->pool, block);
	} else {
		spill_state(session->pool, block, SLOT_SAVED);
		requests_give_back(session, slot);
	}
	return 0;
}

static int spill_ask(struct session *session, uint32_t slot, const struct lease_request *ask, struct spill_block *block)
{
	int error;

	if (block && block->phase == SPILL_SAVING && block->request < 0) {
		block->request = (int32_t)slot;
		block->request_word = ask->state;
		session->spill_requests |= UINT64_C(1) << slot;
		return 0;
	}
	if (block && block->phase != SPILL_SAVED)
		return -EBUSY;
	if (ask->first_page >= session->pool->page_count)
		return -EINVAL;
	error = evict_to_spill(session, ask->first_page, ask->tag, &(struct spill_asker){(int32_t)slot, ask->state});
	/* The block is already saved: the request was repeated after a restart, or had been completed. */
	if (error != -ESTALE || !block)
		return error;
	answer_now(session, slot, ask, 0);
	return 0;
}

static void spill_request(struct session *session, uint32_t slot, const struct lease_request *ask)
{
	struct spill_block *block = spill_block_find(session->pool, session->id, ask->tag);
	int error = -EINVAL;

	if (session->spill_requests >> slot & 1)
		return;
	if (!jobs_possible(session->pool->jobs)) {
		answer_now(session, slot, ask, -ESTALE);
		return;
	}
	switch (ask->kind) {
	case LEASE_QUERY: answer_now(session, slot, ask, block_restorable(session->pool, block, ask->need)); return;
	case LEASE_RESTORE_INTO: error = into_ask(session, slot, ask, block); break;
	case LEASE_DISCARD: error = discard_ask(session, slot, ask, block); break;
	case LEASE_SPILL: error = spill_ask(session, slot, ask, block); break;
	}
	if (error)
		answer_now(session, slot, ask, error);
}

/* ---- end of jobs and of sessions ---- */

static bool block_done(const struct spill_block *block)
{
	return (!wanted(block) || block->finished == block->pages) && block->finished == block->begun;
}

static void blocks_end(struct pool *pool)
{
	struct spill_block *block, *next;

	for (block = TAILQ_FIRST(&pool->spill->working); block; block = next) {
		next = TAILQ_NEXT(block, working);
		if (!block_done(block))
			continue;
		if (block->phase == SPILL_SAVING)
			save_end(pool, block);
		else if (block->phase == SPILL_LOADING)
			load_end(pool, block);
		else
			spill_sink_end(pool, block);
	}
}

/* Set the pages aside, so that they are not freed with the other pages of their session. */
static void pages_set_aside(struct pool *pool, const struct spill_block *block)
{
	struct session *session = block->session;

	for (uint32_t i = 0; i < block->pages; i++) {
		struct ledger_slot *slot = spill_slot(pool, block, i);

		if (page_word_owner(pool_word(pool, slot->page)) != session->id)
			continue;
		/* Store the generation first: quarantine has changed it, and load_bury() uses it. */
		slot->generation = page_word_generation(pool_word(pool, slot->page));
		pool_set_aside(pool, slot->page);
		session->leased--;
		session->tenant->leased--;
	}
}

static void spill_session_ends(struct session *session)
{
	struct pool *pool = session->pool;
	struct spill_block *block;

	while ((block = LIST_FIRST(&session->spilled))) {
		if (block->phase == SPILL_SAVED) {
			spill_block_drop(pool, block);
			continue;
		}
		/* Slots, and pages to which the mover may be writing, stay until their last job has finished. */
		if (block->phase == SPILL_SAVING)
			spill_saving_count(pool, block, -(int64_t)block->pages);
		else
			pages_set_aside(pool, block);
		/*
		 * Clear the session in the first slot last: from this slot, the next agent determines the pages that
		 * remain to be set aside.
		 */
		for (uint32_t i = block->pages; i-- > 0;) {
			spill_slot(pool, block, i)->session = 0;
			crash_point();
		}
		spill_block_forget(pool, block);
	}
	blocks_end(pool);
}

static void spill_give_up(struct pool *pool)
{
	struct spill_block *block;

	TAILQ_FOREACH(block, &pool->spill->working, working)
	if (!block_done(block))
		block->error = block->error ? block->error : JOB_GIVEN_UP;
}

/* Return true if any page is being saved or loaded. */
static bool pages_move(const struct spill *spill)
{
	const struct spill_block *block;

	TAILQ_FOREACH(block, &spill->working, working)
	if (block->phase != SPILL_SINKING)
		return true;
	return false;
}

static void spill_go_on(struct pool *pool)
{
	struct spill *spill = pool->spill;

	blocks_end(pool);
	spill_sink_some(pool);
	submit(pool);
	/* Requests that have claimed these pages are now refused. */
	if (!pages_move(spill))
		pool_mark_freed(pool);
}

void spill_tick(struct pool *pool)
{
	uint32_t again_ms;

	spill_sink_some(pool);
	submit(pool);
	again_ms = slots_tidy(&pool->spill->slots, clock_ms());
	if (again_ms)
		agent_need_tick(pool->agent, again_ms);
}

static uint32_t spill_room(const struct pool *pool)
{
	return slots_room(&pool->spill->slots, clock_ms());
}

const struct session_part spill_session_part = {.ending = spill_session_ends};

const struct job_user spill_job_user = {
	.done = spill_job_done,
	.go_on = spill_go_on,
	.give_up = spill_give_up,
};

const struct content_saver spill_saver = {
	.possible = spill_possible,
	.room = spill_room,
	.begin = spill_begin,
	.request = spill_request,
	.restorable = spill_restorable,
	.restore = spill_restore,
};
