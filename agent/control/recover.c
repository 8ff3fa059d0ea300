/*
 * recover.c - recover a pool; see recover.h. The table in docs/internals/agent.md lists the incomplete steps and their
 * results.
 */
#include "agent/control/recover.h"

#include "agent/control/control.h"
#include "agent/base/journal.h"
#include "agent/keeper/channel.h"
#include "agent/pages/lease.h"
#include "agent/pages/reservation.h"
#include "agent/base/log.h"
#include "agent/object/objects.h"
#include "agent/session/roles.h"
#include "agent/session/session.h"
#include "agent/spill/spill.h"
#include "agent/session/timelines.h"
#include "agent/trust/trust_transfer.h"
#include "shm/doorbell.h"
#include "shm/lease_bitmap.h"
#include "shm/page_map.h"
#include "shm/plural.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- sessions ---- */

/*
 * Return an array of the items that the keeper holds, [POOL_SESSIONS], indexed by session; NULL: no item. Return NULL
 * if out of memory.
 */
static const struct held **held_sessions(const struct pool *pool)
{
	const struct module_start *start = pool->agent->start;
	const struct held **by_id = calloc(POOL_SESSIONS, sizeof(*by_id));

	for (uint32_t i = 0; by_id && i < start->held_count; i++)
		if (start->held[i].kind == KEEP_SESSION && start->held[i].pool == pool->index &&
			start->held[i].id < POOL_SESSIONS)
			by_id[start->held[i].id] = &start->held[i];
	return by_id;
}

/* Remove a session that was being admitted or ended when the previous agent died. */
static void session_bury(struct pool *pool, uint32_t id, const struct held *held)
{
	pool_take_back_of(pool, id);
	atomic_store_explicit(&pool->segment.sessions[id].state, SESSION_RECORD_NONE, memory_order_release);
	crash_point();
	atomic_store_explicit(&pool->ledger.sessions[id].state, LEDGER_SESSION_NONE, memory_order_release);
	crash_point();
	agent_drop(pool->agent, KEEP_SESSION, pool->index, id);
	/* `held` has duplicates of the keeper's descriptors. The worker's connection closes with the last duplicate. */
	if (held)
		held_close(held);
}

static int sessions_restore(struct pool *pool)
{
	uint32_t *leased = calloc(POOL_SESSIONS, sizeof(*leased));
	const struct held **held = held_sessions(pool);
	int error = leased && held ? 0 : -ENOMEM;

	for (uint32_t page = 0; !error && page < pool->page_count; page++)
		if (page_word_state(pool_word(pool, page)) != PAGE_SHARED)
			leased[page_word_session(pool_word(pool, page))]++;
	for (uint32_t id = 1; id < POOL_SESSIONS && !error; id++) {
		uint32_t state = atomic_load_explicit(&pool->ledger.sessions[id].state, memory_order_acquire);

		/*
		 * The keeper still holds a session with the state NONE if the previous agent died before it reported
		 * the end of the session.
		 */
		if (state == LEDGER_SESSION_ADMITTING || state == LEDGER_SESSION_ENDING ||
			(state == LEDGER_SESSION_NONE && held[id]))
			session_bury(pool, id, held[id]);
		else if (state != LEDGER_SESSION_NONE)
			error = session_restore(pool, id, held[id], leased[id]);
	}
	free((void *)held);
	free(leased);
	return error;
}

/* ---- incomplete steps ---- */

static bool owned(const struct pool *pool, uint32_t page, uint32_t session)
{
	uint64_t word = pool_word(pool, page);

	return page_word_owner(word) == session &&
		(page_word_state(word) == PAGE_LEASED || page_word_state(word) == PAGE_EVICTING);
}

/* Free those pages of a run of the journal that the session still owns. */
static void runs_take_back(struct pool *pool, struct session *session, const struct page_run *run)
{
	for (uint32_t page = run->first; page < run->first + run->count; page++) {
		if (!owned(pool, page, session->id))
			continue;
		pool_take_back(pool, page, 1);
		session->leased--;
		session->tenant->leased--;
	}
}

/* Return true if the worker's request was answered, or the step is no answer to a request. */
static bool was_answered(const struct session *session, const struct ledger_journal *journal)
{
	uint32_t word;

	if (journal->slot >= SESSION_REQUESTS || session->kind != SESSION_WORKER)
		return true;
	word = atomic_load_explicit(&session->segment.requests[journal->slot].state, memory_order_acquire);
	return word != journal->slot_word && word != lease_state_to(journal->slot_word, LEASE_CANCELLED);
}

/* Undo a grant, unless the answer has committed it. */
static void grant_settle(struct pool *pool, struct session *session, const struct ledger_journal *journal)
{
	if (was_answered(session, journal))
		return;
	for (uint32_t i = 0; i < journal->run_count; i++)
		runs_take_back(pool, session, &pool->runs[i]);
}

static void pass_settle(struct pool *pool, struct session *session, const struct ledger_journal *journal)
{
	if (was_answered(session, journal))
		reservation_taken(pool);
	else
		reservation_untake(session);
}

/* Complete an eviction that was already decided. */
static void take_finish(struct pool *pool, struct session *session, const struct ledger_journal *journal)
{
	for (uint32_t i = 0; i < journal->run_count; i++) {
		const struct page_run *run = &pool->runs[i];

		/* Clear the tag before the first page is freed. */
		if (owned(pool, run->first, session->id)) {
			for (uint32_t word = run->first / 64; word <= (run->first + run->count - 1) / 64; word++)
				lease_take_word(
					session->segment.free_bits, word, lease_mask(word, run->first, run->count));
			atomic_store_explicit(&session->segment.blocks[run->first].tag, 0, memory_order_release);
			crash_point();
		}
		runs_take_back(pool, session, run);
	}
}

/* Mark pages as doubtful if their bits are cleared, because the worker or the previous agent may have cleared them. */
static void reclaim_doubt(struct pool *pool, const struct session *session, const struct ledger_journal *journal)
{
	uint64_t bits;

	if (journal->slot >= (pool->page_count + 63) / 64)
		return;
	bits = atomic_load_explicit(&session->segment.free_bits[journal->slot], memory_order_acquire);
	for (uint64_t mask = journal->mask & ~bits; mask; mask &= mask - 1) {
		uint32_t page = journal->slot * 64 + (uint32_t)__builtin_ctzll(mask);

		if (page >= pool->page_count)
			return;
		if (owned(pool, page, session->id))
			pool->ledger.pages[page].doubt = 1;
		crash_point();
	}
}

static void journal_settle(struct pool *pool)
{
	struct ledger_journal *journal = &pool->ledger.header->journal;
	uint32_t what = atomic_load_explicit(&journal->what, memory_order_acquire);
	/* NULL: the session was removed by sessions_restore() and has no pages. */
	struct session *session = pool->sessions[journal->session % POOL_SESSIONS];

	if (what == LEDGER_REST)
		return;
	if (session && what == LEDGER_GRANT)
		grant_settle(pool, session, journal);
	else if (session && what == LEDGER_PASS)
		pass_settle(pool, session, journal);
	else if (session && what == LEDGER_TAKE)
		take_finish(pool, session, journal);
	else if (session && what == LEDGER_RECLAIM && session->kind == SESSION_WORKER)
		reclaim_doubt(pool, session, journal);
	journal_end(&pool->ledger);
}

/* End undecided evictions by changing EVICTING pages to LEASED, and wake the threads that wait to pin these pages. */
static void looks_end(struct pool *pool)
{
	for (uint32_t page = 0; page < pool->page_count; page++) {
		uint64_t word = pool_word(pool, page);

		if (page_word_state(word) != PAGE_EVICTING)
			continue;
		pool_word_set(pool, page, STEP_UNMARK,
			page_word_make(PAGE_LEASED, page_word_owner(word), page_word_generation(word)));
		crash_point();
		futex_wake((_Atomic uint32_t *)&pool->segment.pages[page] + 1, INT32_MAX);
	}
}

/* ---- doubts ---- */

static uint32_t doubts_count(struct pool *pool, const struct session *session)
{
	uint32_t count = 0;

	for (uint32_t page = 0; page < pool->page_count; page++) {
		struct ledger_page *note = &pool->ledger.pages[page];

		if (!note->doubt || page_word_owner(pool_word(pool, page)) != session->id)
			continue;
		count++;
	}
	return count;
}

/* Return the sum, over all threads, of the transits that have begun or ended. */
static uint64_t transits(const struct session *session, bool begun)
{
	const struct thread_stats *threads = session->segment.stats->threads;
	uint64_t sum = 0;

	for (int i = 0; i < SESSION_STAT_SLOTS; i++)
		sum += atomic_load_explicit(
			begun ? &threads[i].transits_begun : &threads[i].transits_ended, memory_order_seq_cst);
	return sum;
}

void recover_doubts(struct session *session)
{
	struct pool *pool = session->pool;
	struct pool_check_session as = {session->id, &session->segment};
	struct page_fact *facts = malloc(pool->page_count * sizeof(*facts));
	uint32_t left = 0;
	uint64_t ended;
	bool quiet;

	if (!facts)
		return;
	/*
	 * A page of the worker has a free bit or is part of a block entry, unless it is in transit. The ended transits
	 * are counted before the scan and the begun transits after it. If the counts are equal, no page was in transit
	 * during the scan.
	 */
	ended = transits(session, false);
	page_map_fill(&pool->segment, &as, 1, facts);
	quiet = transits(session, true) == ended;
	for (uint32_t page = 0; page < pool->page_count; page++) {
		struct ledger_page *note = &pool->ledger.pages[page];

		if (!note->doubt || page_word_owner(pool_word(pool, page)) != session->id)
			continue;
		if (facts[page].use == PAGE_USE_NONE && !quiet) {
			left++;
			continue;
		}
		if (facts[page].use == PAGE_USE_NONE && owned(pool, page, session->id)) {
			pool_take_back(pool, page, 1);
			session->leased--;
			session->tenant->leased--;
		}
		note->doubt = 0;
		crash_point();
	}
	free(facts);
	session->doubts = left;
}

/* ---- the whole recovery ---- */

int recover_pool(struct pool *pool)
{
	uint64_t begin = clock_ns();
	int error;

	spill_recover_ends(pool);
	error = sessions_restore(pool);
	if (error)
		return error;
	timelines_recover(pool);
	journal_settle(pool);
	reservations_recover(pool);
	looks_end(pool);
	spill_recover(pool);
	control_recover(pool);
	roles_recover(pool);
	objects_recover(pool);
	trust_recover(pool);
	for (uint32_t id = 1; id < POOL_SESSIONS; id++) {
		struct session *session = pool->sessions[id];

		if (session && session->kind == SESSION_WORKER && session->state == SESSION_LIVE)
			session->doubts = doubts_count(pool, session);
	}
	log_info("pool '%s': recovered %u session%s, %u of %u page%s leased, in %llu us", pool->config->name,
		pool->session_count, plural(pool->session_count), pool->leased, pool->page_count,
		plural(pool->page_count), (unsigned long long)(clock_ns() - begin) / 1000);
	return 0;
}

void recover_resume(struct pool *pool)
{
	for (uint32_t id = 1; id < POOL_SESSIONS; id++) {
		if (!pool->sessions[id])
			continue;
		/* Count an eviction, because the previous agent may have died before it counted one. */
		atomic_fetch_add_explicit(&pool->sessions[id]->segment.header->evictions, 1, memory_order_release);
		session_resume(pool->sessions[id]);
	}
	jobs_resume(pool);
	/*
	 * A tick is required even without sessions, because the pressure in the header may be due to sessions that have
	 * ended.
	 */
	agent_need_tick(pool->agent, 1);
}
