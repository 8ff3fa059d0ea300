#include "agent/pages/reservation.h"

#include "agent/base/journal.h"
#include "agent/pages/flight.h"
#include "agent/pages/handle_runs.h"
#include "agent/pages/share.h"

#include <errno.h>
#include <string.h>

static struct ledger_reservation *record_of(const struct pool *pool, uint32_t index)
{
	return &pool->ledger.header->reservations[index];
}

static uint64_t id_of(const struct pool *pool, uint32_t index)
{
	return atomic_load_explicit(&record_of(pool, index)->id, memory_order_acquire);
}

static void id_set(const struct pool *pool, uint32_t index, uint64_t id)
{
	atomic_store_explicit(&record_of(pool, index)->id, id, memory_order_release);
	crash_point();
}

/* Return the index of the reservation, or of an unused record if id is 0. Return 0 if there is none. */
static uint32_t find(const struct pool *pool, uint64_t id)
{
	for (uint32_t index = 1; index < POOL_RESERVATIONS; index++)
		if (id_of(pool, index) == id)
			return index;
	return 0;
}

static struct session *maker_of(const struct pool *pool, uint32_t index)
{
	return pool->sessions[record_of(pool, index)->session % POOL_SESSIONS];
}

/* Return true if the page belongs to the reservation and was not taken over. */
static bool is_left(const struct pool *pool, uint32_t index, uint32_t page)
{
	uint64_t word;

	if (atomic_load_explicit(&pool->ledger.pages[page].reservation, memory_order_relaxed) != index)
		return false;
	/* A page that has since become free keeps its index until it is leased again. */
	word = pool_word(pool, page);
	return page_word_state(word) == PAGE_LEASED && page_word_owner(word) == record_of(pool, index)->session;
}

static bool any_left(const struct pool *pool, uint32_t index)
{
	for (uint32_t page = 0; page < pool->page_count; page++)
		if (is_left(pool, index, page))
			return true;
	return false;
}

static void assign(const struct pool *pool, uint32_t run_count, uint32_t index)
{
	for (uint32_t i = 0; i < run_count; i++)
		for (uint32_t page = pool->runs[i].first; page < pool->runs[i].first + pool->runs[i].count; page++)
			atomic_store_explicit(
				&pool->ledger.pages[page].reservation, (uint8_t)index, memory_order_release);
	crash_point();
}

/* ---- make ---- */

static void refusal_set(struct session *session, enum lease_limit limit, uint32_t most, uint32_t used)
{
	atomic_store_explicit(
		&session->segment.header->refusal, lease_limit_make(limit, most, used), memory_order_relaxed);
}

/* Return true if the session may have one more reservation. Otherwise, store the limit for the worker's error text. */
static bool share_left(struct session *session)
{
	const struct pool *pool = session->pool;
	const struct config *config = &pool->agent->config;
	struct share_use use = {0};

	for (uint32_t index = 1; index < POOL_RESERVATIONS; index++) {
		const struct session *maker = id_of(pool, index) ? maker_of(pool, index) : NULL;

		if (!maker)
			continue;
		use.all++;
		use.of_user += maker->uid == session->uid;
		use.of_tenant[maker->tenant - pool->tenants]++;
	}
	switch (share_check(pool, session->tenant, session->uid, &use, POOL_RESERVATIONS - 1, POOL_RESERVATIONS - 1)) {
	case SHARE_LEFT: return true;
	case SHARE_NONE_LEFT: refusal_set(session, LEASE_LIMIT_RESERVATIONS, POOL_RESERVATIONS - 1, use.all); break;
	case SHARE_OF_OTHER_TENANTS:
		refusal_set(session, LEASE_LIMIT_TENANT_RESERVATIONS, config->limits.tenant_percent,
			use.of_tenant[session->tenant - pool->tenants]);
		break;
	case SHARE_OF_USER_USED:
		refusal_set(session, LEASE_LIMIT_USER_RESERVATIONS, config->limits.user_percent, use.of_user);
		break;
	}
	return false;
}

int reservation_make(struct session *session, const struct lease_want *want, struct lease_grant *grant)
{
	struct pool *pool = session->pool;
	uint32_t index = find(pool, 0);
	struct ledger_reservation *record = record_of(pool, index);
	int error;

	if (want->reservation >> RESERVATION_SESSION_SHIFT != session->id || find(pool, want->reservation))
		return -EINVAL;
	if (!index)
		refusal_set(session, LEASE_LIMIT_RESERVATIONS, POOL_RESERVATIONS - 1, POOL_RESERVATIONS - 1);
	if (!index || !share_left(session))
		return -EUSERS;
	error = lease_grant(session, want, grant);
	if (error)
		return error;
	/* No block may start at these pages, because eviction reads the entries of all leased pages. */
	for (uint32_t i = 0; i < grant->run_count; i++)
		for (uint32_t page = pool->runs[i].first; page < pool->runs[i].first + pool->runs[i].count; page++)
			atomic_store_explicit(&session->segment.blocks[page].tag, 0, memory_order_relaxed);
	assign(pool, grant->run_count, index);
	record->session = session->id;
	record->deadline_ms = want->duration_ms ? clock_ms() + want->duration_ms : UINT64_MAX;
	id_set(pool, index, want->reservation);
	if (want->duration_ms)
		agent_need_tick(pool->agent, want->duration_ms);
	return 0;
}

void reservation_unmake(struct session *session, const struct lease_want *want, const struct lease_grant *grant)
{
	lease_grant_undo(session, grant);
	id_set(session->pool, find(session->pool, want->reservation), 0);
}

/* ---- take over ---- */

struct left {
	const struct pool *pool;
	uint32_t index;
};

static bool left_next(const void *context, uint32_t from, struct page_run *run)
{
	const struct left *left = context;
	uint32_t pages = left->pool->page_count, end;

	while (from < pages && !is_left(left->pool, left->index, from))
		from++;
	for (end = from; end < pages && is_left(left->pool, left->index, end);)
		end++;
	*run = (struct page_run){from, end - from};
	return end > from;
}

/* Choose the pages of a reservation in pool->runs. Return the number of runs; 0: too few pages, or not in such runs. */
static uint32_t runs_find(const struct pool *pool, uint32_t index, const struct lease_want *want)
{
	const struct left left = {pool, index};
	const struct run_source source = {left_next, &left};
	const struct run_want runs = {
		.per_handle = pool->segment.header->pages_per_handle,
		.need = want->need,
		.aligned = want->flags & LEASE_ALIGNED,
		.contiguous = want->flags & LEASE_CONTIGUOUS,
	};

	return handle_runs_choose(&source, &runs, pool->runs);
}

static void runs_pass(struct pool *pool, uint32_t run_count, uint32_t owner)
{
	for (uint32_t i = 0; i < run_count; i++)
		pool_pass(pool, pool->runs[i].first, pool->runs[i].count, owner);
}

static bool within_quota(const struct session *session, const struct session *maker, uint32_t need)
{
	return !session->limit || session == maker ||
		(session->leased < session->limit && need <= session->limit - session->leased);
}

int reservation_take(struct session *session, const struct lease_want *want, struct lease_grant *grant)
{
	struct pool *pool = session->pool;
	struct ledger_journal *journal = &pool->ledger.header->journal;
	uint32_t index = want->reservation ? find(pool, want->reservation) : 0;
	struct session *maker = index ? maker_of(pool, index) : NULL;

	if (!maker || maker->state != SESSION_LIVE || record_of(pool, index)->deadline_ms <= clock_ms())
		return -ENOENT;
	/* A reload may have moved the tenant to another domain. */
	if (maker->tenant != session->tenant || maker->domain != session->domain)
		return -EPERM;
	if (!within_quota(session, maker, want->need))
		lease_reclaim(session, want->need);
	if (!within_quota(session, maker, want->need))
		return -EDQUOT;
	*grant = (struct lease_grant){.run_count = runs_find(pool, index, want)};
	if (!grant->run_count)
		return -ENOENT;
	journal->slot = want->slot;
	journal->slot_word = want->word;
	journal->mask = index;
	journal_begin(&pool->ledger, LEDGER_PASS, session->id, grant->run_count);
	runs_pass(pool, grant->run_count, session->id);
	lease_chain(session, grant->run_count);
	maker->leased -= want->need;
	session->leased += want->need;
	return 0;
}

void reservation_taken(struct pool *pool)
{
	const struct ledger_journal *journal = &pool->ledger.header->journal;
	uint32_t index = (uint32_t)journal->mask;

	assign(pool, journal->run_count, 0);
	if (!any_left(pool, index))
		id_set(pool, index, 0);
}

void reservation_untake(struct session *session)
{
	struct pool *pool = session->pool;
	const struct ledger_journal *journal = &pool->ledger.header->journal;
	struct session *maker = maker_of(pool, (uint32_t)journal->mask);

	for (uint32_t i = 0; i < journal->run_count; i++)
		for (uint32_t page = pool->runs[i].first; page < pool->runs[i].first + pool->runs[i].count; page++) {
			/* The previous agent may have died before it passed this page. */
			if (page_word_owner(pool_word(pool, page)) != session->id ||
				page_word_state(pool_word(pool, page)) != PAGE_LEASED || session == maker)
				continue;
			session->leased--;
			if (maker && maker->state == SESSION_LIVE) {
				pool_pass(pool, page, 1, maker->id);
				maker->leased++;
			} else {
				pool_take_back(pool, page, 1);
				session->tenant->leased--;
			}
		}
}

/* ---- end ---- */

/* Free the pages that are left. Return their number. */
static uint32_t end(struct pool *pool, uint32_t index)
{
	struct session *maker = maker_of(pool, index);
	uint32_t pages = 0;

	for (uint32_t page = 0; maker && page < pool->page_count; page++) {
		if (!is_left(pool, index, page))
			continue;
		pool_take_back(pool, page, 1);
		maker->leased--;
		maker->tenant->leased--;
		pages++;
	}
	id_set(pool, index, 0);
	if (!pages)
		return 0;
	flight_note(pool,
		&(struct flight_entry){
			.kind = FLIGHT_RETURN, .session = (uint16_t)record_of(pool, index)->session, .pages = pages},
		0);
	pool_mark_freed(pool);
	return pages;
}

int reservation_release(struct session *session, uint64_t id, uint32_t *pages)
{
	struct pool *pool = session->pool;
	uint32_t index = id ? find(pool, id) : 0;

	*pages = 0;
	if (!index)
		return 0;
	if (!maker_of(pool, index) || maker_of(pool, index)->tenant != session->tenant)
		return -EPERM;
	*pages = end(pool, index);
	return 0;
}

static bool any_exists(const struct pool *pool)
{
	for (uint32_t index = 1; index < POOL_RESERVATIONS; index++)
		if (id_of(pool, index))
			return true;
	return false;
}

bool reservation_has(const struct pool *pool, uint32_t page)
{
	uint32_t index = atomic_load_explicit(&pool->ledger.pages[page].reservation, memory_order_relaxed);

	return index && id_of(pool, index) && is_left(pool, index, page);
}

const uint32_t *reservation_pages(const struct pool *pool, bool continues)
{
	static uint32_t pages[POOL_SESSIONS];
	static const struct pool *counted;
	bool any = any_exists(pool);

	if (continues && counted == pool)
		return pages;
	counted = pool;
	memset(pages, 0, sizeof(pages));
	for (uint32_t page = 0; any && page < pool->page_count; page++)
		if (reservation_has(pool, page)) {
			pages[page_word_owner(pool_word(pool, page)) % POOL_SESSIONS]++;
			pages[0]++;
		}
	return pages;
}

void reservations_tick(struct pool *pool)
{
	uint64_t now = clock_ms();

	for (uint32_t index = 1; index < POOL_RESERVATIONS; index++) {
		uint64_t deadline_ms = record_of(pool, index)->deadline_ms;

		if (!id_of(pool, index) || deadline_ms == UINT64_MAX)
			continue;
		if (deadline_ms <= now)
			end(pool, index);
		else
			agent_need_tick(pool->agent, (uint32_t)(deadline_ms - now));
	}
}

/* The pages of the maker have become free. */
static void session_returned(struct session *session)
{
	for (uint32_t index = 1; index < POOL_RESERVATIONS; index++)
		if (id_of(session->pool, index) && record_of(session->pool, index)->session == session->id)
			id_set(session->pool, index, 0);
}

const struct session_part reservation_session_part = {.returned = session_returned};

void reservations_recover(struct pool *pool)
{
	for (uint32_t index = 1; index < POOL_RESERVATIONS; index++)
		if (id_of(pool, index) && !any_left(pool, index))
			id_set(pool, index, 0);
}
