/*
 * trust_transfer.c - the transfer of a handle from one trust domain to another.
 *
 * A transfer consists of the following stores, after each of which the agent may die:
 *   transfer = WAITS
 *   page words = QUARANTINED (RETIRED if a holder does not release the pages in time)
 *   transfer = SCRUBS, when no session may have the handle mapped
 *   domain = 0, when the mover has cleared all pages
 *   page words = FREE
 *   transfer = NONE
 * If the transfer is not NONE, the next agent continues it. If the domain is 0, it only frees the remaining pages.
 * Otherwise it clears all pages again except those whose jobs are in the ring.
 */
#include "agent/trust/trust_transfer.h"

#include "agent/base/crash_point.h"
#include "agent/pages/event.h"
#include "agent/spill/jobs.h"
#include "agent/base/log.h"
#include "agent/pages/session_state.h"

#include <errno.h>
#include <string.h>

enum {
	/* time for a session to release pages, after which it is silent; shorter than the wait of a request */
	RELEASE_PATIENCE_MS = 1000,
	WAIT_TICK_MS = 20,
	RING_SHARE = MOVER_JOBS / 2, /* limit of scrubs in the ring, which other jobs also need */
	SCRUB_REST_MS = 1000,
	AHEAD_PAGES = 16, /* pages per domain that are transferred in advance at a time */
	AHEAD_MS = 200,
	AHEAD_REST_MS = 2000, /* pause after no pages could be transferred */
};

static enum ledger_transfer transfer_of(const struct pool *pool, uint32_t handle)
{
	return (enum ledger_transfer)atomic_load_explicit(&trust_note(pool, handle)->transfer, memory_order_acquire);
}

static void transfer_set(struct pool *pool, uint32_t handle, enum ledger_transfer transfer)
{
	atomic_store_explicit(&trust_note(pool, handle)->transfer, (uint8_t)transfer, memory_order_release);
	crash_point();
}

static void moving_set(struct trust *trust, uint32_t handle, bool moving)
{
	uint64_t bit = UINT64_C(1) << (handle % 64);

	if (moving)
		trust->moving[handle / 64] |= bit;
	else
		trust->moving[handle / 64] &= ~bit;
}

static void words_set(struct pool *pool, uint32_t handle, enum page_state state)
{
	uint32_t first = handle * pool->trust->per_handle;

	for (uint32_t page = first; page < first + pool->trust->per_handle; page++)
		if (page_word_state(pool_word(pool, page)) != state)
			pool_put_aside(pool, page, state);
}

static bool is_retired(const struct pool *pool, uint32_t handle)
{
	return page_word_state(pool_word(pool, handle * pool->trust->per_handle)) == PAGE_RETIRED;
}

/* ---- scrubs ---- */

static void scrubs_submit(struct pool *pool)
{
	struct trust *trust = pool->trust;

	if (!jobs_possible(pool->jobs) || clock_ms() < trust->rest_ms)
		return;
	for (uint32_t word = 0; word < trust->words; word++)
		for (uint64_t bits = trust->moving[word]; bits; bits &= bits - 1) {
			uint32_t handle = word * 64 + (uint32_t)__builtin_ctzll(bits),
				 first = handle * trust->per_handle;

			for (uint32_t page = first;
				page < first + trust->per_handle && transfer_of(pool, handle) == LEDGER_TRANSFER_SCRUBS;
				page++) {
				struct mover_order order = {
					.kind = MOVER_SCRUB, .page = page, .tag = job_tag(JOB_OF_TRUST, page)};

				if (trust->scrubs[page] != SCRUB_NONE)
					continue;
				if (trust->in_ring >= RING_SHARE || mover_submit(&pool->jobs->queue, &order))
					return;
				crash_point();
				trust->scrubs[page] = SCRUB_BEGUN;
				trust->in_ring++;
			}
		}
}

static uint32_t coming(const struct pool *pool)
{
	return jobs_served(pool->jobs) ? pool->trust->cleaning : 0;
}

static void unheld(struct pool *pool, uint32_t handle)
{
	struct trust *trust = pool->trust;

	if (transfer_of(pool, handle) != LEDGER_TRANSFER_WAITS)
		return;
	if (is_retired(pool, handle)) {
		trust->retired -= trust->per_handle;
		trust->cleaning += trust->per_handle;
	}
	transfer_set(pool, handle, LEDGER_TRANSFER_SCRUBS);
	words_set(pool, handle, PAGE_QUARANTINED);
	memset(&trust->scrubs[handle * trust->per_handle], SCRUB_NONE, trust->per_handle);
	scrubs_submit(pool);
}

static void transfer_end(struct pool *pool, uint32_t handle)
{
	struct trust *trust = pool->trust;
	uint32_t first = handle * trust->per_handle;

	atomic_store_explicit(&trust_note(pool, handle)->domain, 0, memory_order_release);
	crash_point();
	pool_take_back(pool, first, trust->per_handle);
	memset(&trust->scrubs[first], SCRUB_NONE, trust->per_handle);
	transfer_set(pool, handle, LEDGER_TRANSFER_NONE);
	moving_set(trust, handle, false);
	trust->cleaning -= trust->per_handle;
	pool_mark_freed(pool);
}

static void scrub_failed(struct pool *pool, uint32_t page, int error)
{
	struct trust *trust = pool->trust;

	trust->scrubs[page] = SCRUB_NONE;
	trust->rest_ms = clock_ms() + SCRUB_REST_MS;
	agent_need_tick(pool->agent, SCRUB_REST_MS);
	if (!trust->told)
		log_error("pool '%s': cannot clear page %u for another trust domain: %s; the page stays out of use "
			  "until a later attempt succeeds",
			pool->config->name, page, strerror(-error));
	trust->told = true;
}

static void job_done(struct pool *pool, const struct mover_result *result)
{
	struct trust *trust = pool->trust;
	uint64_t page = result->order.tag & ((UINT64_C(1) << JOB_OWNER_SHIFT) - 1);
	uint32_t handle;

	/*
	 * After a restart, orders come from the ring, which the mover can write. A result is accepted only for a page
	 * with a pending scrub.
	 */
	if (!trust || page >= pool->page_count || result->order.kind != MOVER_SCRUB || result->order.page != page ||
		trust->scrubs[page] != SCRUB_BEGUN)
		return;
	trust->in_ring--;
	if (result->error) {
		scrub_failed(pool, (uint32_t)page, result->error);
		return;
	}
	trust->told = false;
	trust->scrubs[page] = SCRUB_DONE;
	pool_count(pool, POOL_COUNT_SCRUBBED_PAGES, 1);
	handle = (uint32_t)page / trust->per_handle;
	for (uint32_t i = 0; i < trust->per_handle; i++)
		if (trust->scrubs[handle * trust->per_handle + i] != SCRUB_DONE)
			return;
	transfer_end(pool, handle);
}

static void go_on(struct pool *pool)
{
	if (pool->trust)
		scrubs_submit(pool);
}

/* No give_up(): pages that have not been cleared wait for the next mover. */
const struct job_user trust_job_user = {.done = job_done, .go_on = go_on};

/* ---- start of a transfer ---- */

static void holders_call(struct pool *pool)
{
	trust_call(pool);
	agent_need_tick(pool->agent, WAIT_TICK_MS);
}

/* Begin the transfer of a handle. Return true if sessions must be asked to unmap it. */
static bool transfer_begin(struct pool *pool, uint32_t handle)
{
	struct trust *trust = pool->trust;
	uint32_t first = handle * trust->per_handle, border = pool->segment.header->reserved_first;

	transfer_set(pool, handle, LEDGER_TRANSFER_WAITS);
	trust_withdraw(pool, first, trust->per_handle);
	for (uint32_t page = first; page < first + trust->per_handle; page++)
		free_runs_remove(page < border ? &pool->free : &pool->reserved, page, 1);
	words_set(pool, handle, PAGE_QUARANTINED);
	moving_set(trust, handle, true);
	trust->since_ms[handle] = (uint32_t)clock_ms();
	trust->cleaning += trust->per_handle;
	if (trust->holders[handle])
		return true;
	unheld(pool, handle);
	return false;
}

/* Return true if the handle can be transferred to domain `to`. */
static bool can_move(const struct pool *pool, uint32_t handle, uint32_t to)
{
	const struct trust *trust = pool->trust;
	uint32_t domain = trust_of_page(pool, handle * trust->per_handle);

	return domain && domain != to && !trust_bit(trust->stuck, handle) && !trust_bit(trust->moving, handle) &&
		trust_handle_free(pool, handle);
}

static bool reachable(const struct pool *pool, uint32_t domain, uint32_t page)
{
	uint32_t of = trust_of_page(pool, page);

	return !of || of == domain ||
		(jobs_served(pool->jobs) && can_move(pool, page / pool->trust->per_handle, domain));
}

/* Return how many of the handle's pages the wish may use. */
static uint32_t gain(const struct pool *pool, const struct trust_wish *wish, uint32_t handle)
{
	uint32_t per_handle = pool->trust->per_handle, first = handle * per_handle,
		 border = pool->segment.header->reserved_first;

	if (wish->reserved || first + per_handle <= border)
		return per_handle;
	return first < border ? border - first : 0;
}

static uint32_t reach(const struct pool *pool, const struct trust_wish *wish)
{
	uint32_t pages = 0;

	if (!jobs_served(pool->jobs))
		return 0;
	for (uint32_t handle = 0; handle < pool->trust->handle_count && pages < wish->pages; handle++)
		if (can_move(pool, handle, wish->domain))
			pages += gain(pool, wish, handle);
	return pages;
}

/* Transfer handles that no session may have mapped, and, unless in advance, other handles if these are too few. */
static uint32_t wish_begin(struct pool *pool, const struct trust_wish *wish)
{
	struct trust *trust = pool->trust;
	uint32_t begun = 0;
	bool ask = false;

	if (!jobs_served(pool->jobs))
		return 0;
	for (int asked = 0; asked <= (wish->ahead ? 0 : 1); asked++)
		for (uint32_t i = 0; i < trust->handle_count && begun < wish->pages; i++) {
			uint32_t handle = (trust->hand + i) % trust->handle_count;

			if ((trust->holders[handle] != 0) != (asked != 0) || !can_move(pool, handle, wish->domain) ||
				!gain(pool, wish, handle))
				continue;
			begun += gain(pool, wish, handle);
			ask |= transfer_begin(pool, handle);
			if (begun >= wish->pages)
				trust->hand = handle;
		}
	if (ask)
		holders_call(pool);
	return begun;
}

static void range_begin(struct pool *pool, uint32_t domain, uint32_t first, uint32_t count)
{
	struct trust *trust = pool->trust;
	bool ask = false;

	if (!jobs_served(pool->jobs))
		return;
	for (uint32_t handle = first / trust->per_handle; handle <= (first + count - 1) / trust->per_handle; handle++)
		if (can_move(pool, handle, domain))
			ask |= transfer_begin(pool, handle);
	if (ask)
		holders_call(pool);
}

static uint32_t cancel(struct pool *pool, uint32_t domain, uint32_t pages)
{
	struct trust *trust = pool->trust;
	uint32_t back = 0;

	for (uint32_t word = 0; trust->retired && word < trust->words; word++)
		for (uint64_t bits = trust->moving[word]; bits && back < pages; bits &= bits - 1) {
			uint32_t handle = word * 64 + (uint32_t)__builtin_ctzll(bits);

			if (trust_of_page(pool, handle * trust->per_handle) != domain || !is_retired(pool, handle) ||
				transfer_of(pool, handle) != LEDGER_TRANSFER_WAITS)
				continue;
			pool_take_back(pool, handle * trust->per_handle, trust->per_handle);
			transfer_set(pool, handle, LEDGER_TRANSFER_NONE);
			moving_set(trust, handle, false);
			trust->retired -= trust->per_handle;
			back += trust->per_handle;
		}
	return back;
}

const struct trust_transfers trust_transfers = {
	.reach = reach,
	.begin = wish_begin,
	.begin_range = range_begin,
	.reachable = reachable,
	.cancel = cancel,
	.coming = coming,
	.unheld = unheld,
};

/* ---- periodic work ---- */

static void holders_are_silent(struct pool *pool, uint32_t handle)
{
	for (uint32_t id = 1; id < POOL_SESSIONS; id++) {
		struct session *session = pool->sessions[id];

		if (!session || session->kind != SESSION_WORKER || session->silent || !trust_is_held(pool, id, handle))
			continue;
		session->silent = true;
		log_warning("session %u of pool '%s' ('%s', pid %d) does not unmap pages that trust domain '%s' has "
			    "returned; the pages are out of use until the session unmaps them or ends",
			id, pool->config->name, session->name, session->pid, trust_domain_name(pool, session->domain));
		event_publish(pool->agent, EVENT_RETIRED, pool, id, (uint64_t)session->pid,
			"pages that '%s' (pid %d) may still map are retired", session->name, session->pid);
	}
}

/* Retire pages that former holders have not released in time. */
static void retire(struct pool *pool)
{
	struct trust *trust = pool->trust;
	uint32_t patience = pool->agent->config.trust.release == CONFIG_RELEASE_DEATH ? 0 : RELEASE_PATIENCE_MS,
		 retired = 0;
	uint32_t now = (uint32_t)clock_ms();

	for (uint32_t word = 0; word < trust->words; word++)
		for (uint64_t bits = trust->moving[word]; bits; bits &= bits - 1) {
			uint32_t handle = word * 64 + (uint32_t)__builtin_ctzll(bits);

			if (transfer_of(pool, handle) != LEDGER_TRANSFER_WAITS || is_retired(pool, handle) ||
				now - trust->since_ms[handle] < patience)
				continue;
			words_set(pool, handle, PAGE_RETIRED);
			trust->cleaning -= trust->per_handle;
			trust->retired += trust->per_handle;
			retired += trust->per_handle;
			holders_are_silent(pool, handle);
		}
	if (!retired)
		return;
	pool_count(pool, POOL_COUNT_RETIREMENTS, retired);
	trust_stuck_update(pool);
}

/* Transfer pages in advance to each domain: the unused part of its tenants' minima, and some for the next request. */
static void ahead(struct pool *pool)
{
	uint32_t kept[LEDGER_DOMAINS + 1] = {0};
	bool lives[LEDGER_DOMAINS + 1] = {false}, barren = false;

	for (uint32_t i = 0; i < pool->tenant_count; i++) {
		const struct tenant *tenant = &pool->tenants[i];

		if (tenant->config->unused == CONFIG_UNUSED_KEEP && tenant->leased < tenant->minimum)
			kept[tenant->domain] += tenant->minimum - tenant->leased;
		lives[tenant->domain] |= tenant->sessions != 0;
	}
	for (uint32_t domain = 1; domain <= LEDGER_DOMAINS; domain++) {
		struct trust_wish wish = {.domain = domain, .ahead = true};
		uint32_t goal = kept[domain] + (lives[domain] ? AHEAD_PAGES : 0),
			 have = pool->trust->views[domain].normal.total;

		have += pool->trust->cleaning;
		if (have >= goal)
			continue;
		wish.pages = goal - have < AHEAD_PAGES ? goal - have : AHEAD_PAGES;
		barren |= !wish_begin(pool, &wish);
	}
	pool->trust->ahead_ms = clock_ms() + (barren ? AHEAD_REST_MS : AHEAD_MS);
}

void trust_tick(struct pool *pool)
{
	struct trust *trust = pool->trust;

	if (!trust)
		return;
	retire(pool);
	if (!pool->waiter_count && pool->session_count && clock_ms() >= trust->ahead_ms)
		ahead(pool);
	go_on(pool);
	if (coming(pool))
		agent_need_tick(pool->agent, WAIT_TICK_MS);
}

/* ---- after a restart ---- */

static void holders_count(struct pool *pool)
{
	struct trust *trust = pool->trust;

	for (uint32_t id = 1; id < POOL_SESSIONS; id++)
		for (uint32_t handle = 0; pool->sessions[id] && handle < trust->handle_count; handle++)
			trust->holders[handle] += trust_is_held(pool, id, handle);
}

/* Remove a page of a handle in transfer from the index of free pages, which was built from the page words. */
static void take_out(struct pool *pool, uint32_t page)
{
	enum page_state state = page_word_state(pool_word(pool, page));

	if (state != PAGE_FREE && state != PAGE_RESERVED)
		return;
	trust_withdraw(pool, page, 1);
	free_runs_remove(state == PAGE_FREE ? &pool->free : &pool->reserved, page, 1);
}

static void transfer_recover(struct pool *pool, uint32_t handle)
{
	struct trust *trust = pool->trust;
	uint32_t first = handle * trust->per_handle;
	bool retired = is_retired(pool, handle) && transfer_of(pool, handle) == LEDGER_TRANSFER_WAITS;

	if (!trust_of_page(pool, first)) { /* already cleared */
		for (uint32_t page = first; page < first + trust->per_handle; page++)
			if (page_word_state(pool_word(pool, page)) == PAGE_QUARANTINED)
				pool_take_back(pool, page, 1);
		transfer_set(pool, handle, LEDGER_TRANSFER_NONE);
		return;
	}
	for (uint32_t page = first; page < first + trust->per_handle; page++)
		take_out(pool, page);
	words_set(pool, handle, retired ? PAGE_RETIRED : PAGE_QUARANTINED);
	moving_set(trust, handle, true);
	trust->since_ms[handle] = (uint32_t)clock_ms();
	*(retired ? &trust->retired : &trust->cleaning) += trust->per_handle;
	if (retired)
		holders_are_silent(pool, handle);
}

/*
 * Take over the scrubs that the previous agent submitted and whose results it did not process. The transfers of the
 * others are complete. Their results are removed before sessions are served, since a later scrub of the page has the
 * same tag.
 */
static void ring_recover(struct pool *pool)
{
	for (uint32_t i = 0; i < MOVER_JOBS && jobs_possible(pool->jobs); i++) {
		const struct mover_order *order = mover_order_of(&pool->jobs->queue, i);
		uint32_t page = order ? order->page : 0;

		if (!order || order->tag != job_tag(JOB_OF_TRUST, page) || order->kind != MOVER_SCRUB ||
			page >= pool->page_count)
			continue;
		if (pool->trust->scrubs[page] != SCRUB_NONE ||
			transfer_of(pool, page / pool->trust->per_handle) != LEDGER_TRANSFER_SCRUBS) {
			mover_forget(&pool->jobs->queue, i);
			continue;
		}
		pool->trust->scrubs[page] = SCRUB_BEGUN;
		pool->trust->in_ring++;
	}
}

void trust_recover(struct pool *pool)
{
	struct trust *trust = pool->trust;

	if (!trust)
		return;
	holders_count(pool);
	for (uint32_t handle = 0; handle < trust->handle_count; handle++)
		if (transfer_of(pool, handle) != LEDGER_TRANSFER_NONE)
			transfer_recover(pool, handle);
	ring_recover(pool);
	trust_stuck_update(pool);
	for (uint32_t handle = 0; handle < trust->handle_count; handle++)
		if (trust_bit(trust->moving, handle) && !trust->holders[handle])
			unheld(pool, handle);
	/* Ask the holders again, because the previous agent may have died before it asked them. */
	if (trust->cleaning || trust->retired)
		holders_call(pool);
}
