#include "agent/pages/trust.h"

#include "agent/base/crash_point.h"
#include "agent/base/log.h"
#include "agent/pages/object_records.h"
#include "agent/pages/session_state.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- domains ---- */

static uint32_t domain_count(const struct ledger *ledger)
{
	uint32_t count = atomic_load_explicit(&ledger->header->domain_count, memory_order_acquire);

	return count < LEDGER_DOMAINS ? count : LEDGER_DOMAINS;
}

bool trust_wanted(const struct pool *pool, const struct ledger *ledger)
{
	return config_domains(&pool->agent->config) > 1 || domain_count(ledger) > 1;
}

const char *trust_domain_name(const struct pool *pool, uint32_t domain)
{
	if (domain == LEDGER_DOMAIN_FRESH)
		return "(fresh)";
	return domain >= 1 && domain <= domain_count(&pool->ledger) ? pool->ledger.header->domains[domain - 1] : "";
}

static bool name_in_use(const struct pool *pool, uint32_t domain)
{
	const struct config *config = &pool->agent->config;

	for (uint32_t i = 0; i < config->tenant_count; i++)
		if (!strcmp(config->tenants[i].domain, trust_domain_name(pool, domain)))
			return true;
	for (uint32_t id = 1; id < POOL_SESSIONS; id++)
		if (atomic_load_explicit(&pool->ledger.sessions[id].state, memory_order_relaxed) !=
				LEDGER_SESSION_NONE &&
			pool->ledger.sessions[id].domain == domain)
			return true;
	for (uint32_t handle = 0; handle < pool->trust->handle_count; handle++)
		if (atomic_load_explicit(&trust_note(pool, handle)->domain, memory_order_relaxed) == domain)
			return true;
	for (uint32_t i = 1; i < object_end_of(pool); i++)
		if (object_state(pool, i) != OBJECT_NONE && object_record(pool, i)->domain == domain)
			return true;
	for (uint32_t i = 0; i < POOL_ROLES; i++)
		if (atomic_load_explicit(&pool->segment.roles[i].state, memory_order_relaxed) == ROLE_NAMED &&
			pool->segment.roles[i].domain == domain)
			return true;
	return false;
}

/*
 * Return an index for a new name: an unused index or, if all are used, the index of a domain without members, pages
 * and roles. Return 0 if there is no such index.
 */
static uint32_t name_place(const struct pool *pool)
{
	uint32_t count = domain_count(&pool->ledger);

	if (count < LEDGER_DOMAINS)
		return count + 1;
	for (uint32_t domain = 1; domain <= count; domain++)
		if (!name_in_use(pool, domain))
			return domain;
	return 0;
}

static void view_fill(struct pool *pool, struct trust_view *view)
{
	for (uint32_t page = 0; page < pool->page_count; page++) {
		enum page_state state = page_word_state(pool_word(pool, page));

		if (trust_of_page(pool, page))
			continue;
		if (state == PAGE_FREE)
			free_runs_put(&view->normal, page, 1);
		else if (state == PAGE_RESERVED)
			free_runs_put(&view->reserved, page, 1);
	}
}

static int view_make(struct pool *pool, uint32_t domain, bool fill)
{
	struct trust_view *view = &pool->trust->views[domain];
	uint32_t border = pool->segment.header->reserved_first;

	if (view->made)
		return 0;
	if (free_runs_init(&view->normal, 0, border))
		return -ENOMEM;
	if (free_runs_init(&view->reserved, border, pool->page_count - border)) {
		free_runs_fini(&view->normal);
		return -ENOMEM;
	}
	view->made = true;
	if (fill)
		view_fill(pool, view);
	return 0;
}

static uint32_t name_find(const struct pool *pool, const char *name)
{
	for (uint32_t domain = 1; domain <= domain_count(&pool->ledger); domain++)
		if (!strcmp(trust_domain_name(pool, domain), name))
			return domain;
	return 0;
}

uint32_t trust_domain(struct pool *pool, const char *name)
{
	struct ledger_header *header = pool->ledger.header;
	uint32_t domain;

	if (!pool->trust)
		return 0;
	domain = name_find(pool, name);
	if (!domain) {
		domain = name_place(pool);
		if (!domain) {
			log_error("pool '%s': cannot add trust domain '%s', since it has %d domains, the limit; its "
				  "members cannot attach",
				pool->config->name, name, LEDGER_DOMAINS);
			return 0;
		}
		snprintf(header->domains[domain - 1], sizeof(header->domains[0]), "%s", name);
		if (domain > domain_count(&pool->ledger))
			atomic_store_explicit(&header->domain_count, domain, memory_order_release);
		crash_point();
	}
	if (view_make(pool, domain, true)) {
		log_error("pool '%s': out of memory for trust domain '%s'; its members cannot attach",
			pool->config->name, name);
		return 0;
	}
	return domain;
}

/* ---- open and close ---- */

/*
 * Assign memory that was never leased to LEDGER_DOMAIN_FRESH, unless the back end guarantees zeroed memory. The memory
 * may have been created by a previous agent that died before it leased any page.
 */
static void fresh_note(struct pool *pool, const struct module_pool *start)
{
	const struct gpu_ops *ops = gpu_backend(pool->segment.header->backend);
	struct gpu_device_info info;

	if (!ops->device_info(start->device, &info) && info.capabilities & GPU_CAP_ZEROED)
		return;
	log_info("pool '%s': back end '%s' does not guarantee zeroed memory; each page is cleared before it is lent "
		 "the first time",
		pool->segment.header->name, ops->name);
	for (uint32_t handle = 0; handle < pool->trust->handle_count; handle++)
		atomic_store_explicit(&trust_note(pool, handle)->domain, LEDGER_DOMAIN_FRESH, memory_order_release);
}

int trust_open(struct pool *pool, const struct module_pool *start, const struct trust_transfers *transfers)
{
	struct pool_header *header = pool->segment.header;
	struct trust *trust;

	if (!trust_wanted(pool, &pool->ledger))
		return 0;
	if (atomic_load_explicit(&pool->ledger.header->started, memory_order_acquire) && !domain_count(&pool->ledger)) {
		/* The pool had a single domain, so the ledger does not record which processes have its pages mapped. */
		log_error("pool '%s': the memory was kept by a run with one trust domain; stop gpoold without "
			  "keep_over_restart, or keep the tenants in one domain",
			header->name);
		return -EACCES;
	}
	trust = calloc(1, sizeof(*trust));
	if (!trust)
		return -ENOMEM;
	trust->transfers = transfers;
	trust->per_handle = header->pages_per_handle;
	trust->handle_count = pool->page_count / trust->per_handle;
	trust->words = (trust->handle_count + 63) / 64;
	trust->holders = calloc(trust->handle_count, sizeof(*trust->holders));
	trust->since_ms = calloc(trust->handle_count, sizeof(*trust->since_ms));
	trust->moving = calloc(trust->words, sizeof(*trust->moving));
	trust->stuck = calloc(trust->words, sizeof(*trust->stuck));
	trust->scrubs = calloc(pool->page_count, sizeof(*trust->scrubs));
	pool->trust = trust;
	if (!trust->holders || !trust->since_ms || !trust->moving || !trust->stuck || !trust->scrubs)
		goto close;
	if (!atomic_load_explicit(&pool->ledger.header->started, memory_order_acquire))
		fresh_note(pool, start);
	/*
	 * Create the views of the existing domains. Free pages are added to the views when they are added to the index.
	 */
	for (uint32_t domain = 1; domain <= domain_count(&pool->ledger); domain++)
		if (view_make(pool, domain, false))
			goto close;
	/* A nonzero serial shows processes that the pool separates domains. */
	if (!atomic_load_explicit(&header->release_serial, memory_order_relaxed))
		trust_call(pool);
	return 0;
close:
	trust_close(pool);
	return -ENOMEM;
}

void trust_close(struct pool *pool)
{
	struct trust *trust = pool->trust;

	if (!trust)
		return;
	for (uint32_t domain = 1; domain <= LEDGER_DOMAINS; domain++) {
		if (!trust->views[domain].made)
			continue;
		free_runs_fini(&trust->views[domain].normal);
		free_runs_fini(&trust->views[domain].reserved);
	}
	free(trust->holders);
	free(trust->since_ms);
	free(trust->moving);
	free(trust->stuck);
	free(trust->scrubs);
	free(trust);
	pool->trust = NULL;
}

/* ---- free pages of each domain ---- */

struct ledger_page *trust_note(const struct pool *pool, uint32_t handle)
{
	return &pool->ledger.pages[handle * pool->trust->per_handle];
}

uint32_t trust_of_page(const struct pool *pool, uint32_t page)
{
	uint32_t domain = !pool->trust
		? 0
		: atomic_load_explicit(&trust_note(pool, page / pool->trust->per_handle)->domain, memory_order_relaxed);

	return domain <= LEDGER_DOMAINS ? domain : LEDGER_DOMAIN_FRESH;
}

bool trust_handle_free(const struct pool *pool, uint32_t handle)
{
	for (uint32_t i = 0; i < pool->trust->per_handle; i++) {
		enum page_state state = page_word_state(pool_word(pool, handle * pool->trust->per_handle + i));

		if (state != PAGE_FREE && state != PAGE_RESERVED)
			return false;
	}
	return true;
}

typedef void runs_change(struct free_runs *runs, uint32_t first, uint32_t count);

/* Apply a change to both indexes, normal and reserved pages. */
static void view_change(
	const struct pool *pool, struct trust_view *view, uint32_t first, uint32_t count, runs_change *change)
{
	uint32_t border = pool->segment.header->reserved_first, normal;

	if (!view->made)
		return;
	normal = first >= border ? 0 : first + count <= border ? count : border - first;
	if (normal)
		change(&view->normal, first, normal);
	if (count > normal)
		change(&view->reserved, first + normal, count - normal);
}

/*
 * Apply a change of [first, first + count), whose pages are all of one domain, to the views of all domains that may
 * lease these pages, except that of domain `except`.
 */
static void views_change(
	struct pool *pool, uint32_t domain, uint32_t except, uint32_t first, uint32_t count, runs_change *change)
{
	for (uint32_t i = 1; i <= LEDGER_DOMAINS; i++)
		if (i != except && (!domain || i == domain))
			view_change(pool, &pool->trust->views[i], first, count, change);
}

/* Return the number of pages from `first` on, at most `count`, that belong to the same domain. */
static uint32_t alike(const struct pool *pool, uint32_t first, uint32_t count)
{
	uint32_t domain = trust_of_page(pool, first), length = 1;

	while (length < count && trust_of_page(pool, first + length) == domain)
		length++;
	return length;
}

void trust_put(struct pool *pool, uint32_t first, uint32_t count)
{
	while (pool->trust && count) {
		uint32_t length = alike(pool, first, count);

		views_change(pool, trust_of_page(pool, first), 0, first, length, free_runs_put);
		first += length;
		count -= length;
	}
}

void trust_withdraw(struct pool *pool, uint32_t first, uint32_t count)
{
	while (count) {
		uint32_t length = alike(pool, first, count);

		views_change(pool, trust_of_page(pool, first), 0, first, length, free_runs_remove);
		first += length;
		count -= length;
	}
}

/*
 * Assign the cleared handles [first, end) to the domain. Their pages are already in its view, except those that were
 * just taken.
 */
static void claim(struct pool *pool, uint32_t domain, uint32_t first, uint32_t end)
{
	uint32_t per_handle = pool->trust->per_handle;

	views_change(pool, 0, domain, first * per_handle, (end - first) * per_handle, free_runs_remove);
	for (uint32_t handle = first; handle < end; handle++) {
		atomic_store_explicit(&trust_note(pool, handle)->domain, (uint8_t)domain, memory_order_release);
		crash_point();
	}
}

void trust_taken(struct pool *pool, uint32_t domain, uint32_t first, uint32_t count)
{
	uint32_t per_handle = pool->trust->per_handle, border = pool->segment.header->reserved_first;
	uint32_t handle = first / per_handle, end = (first + count - 1) / per_handle + 1;

	free_runs_remove(first < border ? &pool->free : &pool->reserved, first, count);
	while (handle < end) {
		uint32_t clean = handle;

		while (clean < end && !trust_of_page(pool, clean * per_handle))
			clean++;
		if (clean > handle)
			claim(pool, domain, handle, clean);
		handle = clean > handle ? clean : handle + 1;
	}
}

/* ---- holders of handles ---- */

static bool row_bit(const _Atomic uint64_t *row, uint32_t handle)
{
	return atomic_load_explicit(&row[handle / 64], memory_order_relaxed) >> (handle % 64) & 1;
}

bool trust_is_held(const struct pool *pool, uint32_t session, uint32_t handle)
{
	return row_bit(ledger_holders(&pool->ledger, session), handle);
}

void trust_hand_out(struct session *session, uint32_t handle)
{
	_Atomic uint64_t *row;

	if (!session->pool->trust)
		return;
	row = ledger_holders(&session->pool->ledger, session->id);
	if (row_bit(row, handle))
		return;
	atomic_fetch_or_explicit(&row[handle / 64], UINT64_C(1) << (handle % 64), memory_order_release);
	crash_point();
	session->pool->trust->holders[handle]++;
}

static void let_go_word(struct session *session, uint32_t word, uint64_t mask)
{
	struct pool *pool = session->pool;
	_Atomic uint64_t *row = ledger_holders(&pool->ledger, session->id);

	for (mask &= atomic_load_explicit(&row[word], memory_order_relaxed); mask; mask &= mask - 1) {
		uint32_t handle = word * 64 + (uint32_t)__builtin_ctzll(mask);

		atomic_fetch_and_explicit(&row[word], ~(mask & -mask), memory_order_release);
		crash_point();
		if (--pool->trust->holders[handle] == 0)
			pool->trust->transfers->unheld(pool, handle);
	}
}

/* Return true if the page is leased to the session and not idle, or belongs to an object that the session has open. */
static bool page_in_use(const struct session *session, uint32_t page)
{
	uint64_t word = pool_word(session->pool, page);

	if (page_word_state(word) == PAGE_SHARED)
		return object_may_map(session->pool, session->id, word);
	return page_word_owner(word) == session->id &&
		!(atomic_load_explicit(&session->segment.free_bits[page / 64], memory_order_relaxed) >> (page % 64) &
			1);
}

/*
 * Return the handles of a word that have a page in use. The session has these handles mapped, even if it reports
 * otherwise.
 */
static uint64_t in_use(const struct session *session, uint32_t word)
{
	const struct pool *pool = session->pool;
	uint32_t per_handle = pool->trust->per_handle;
	uint64_t mask = 0;

	for (uint32_t page = word * 64 * per_handle; page < (word + 1) * 64 * per_handle && page < pool->page_count;
		page++)
		if (page_in_use(session, page))
			mask |= UINT64_C(1) << (page / per_handle % 64);
	return mask;
}

void trust_let_go(struct session *session, uint32_t first, uint32_t count)
{
	struct pool *pool = session->pool;

	if (!pool->trust || first >= pool->trust->handle_count || count < 1 ||
		count > pool->trust->handle_count - first)
		return;
	if (pool->agent->config.trust.release == CONFIG_RELEASE_DEATH)
		return;
	for (uint32_t word = first / 64; word <= (first + count - 1) / 64; word++) {
		uint32_t low = word * 64 < first ? first - word * 64 : 0;
		uint32_t high = first + count - word * 64;
		uint64_t mask = (high < 64 ? (UINT64_C(1) << high) - 1 : ~UINT64_C(0)) & (~UINT64_C(0) << low);

		let_go_word(session, word, mask & ~in_use(session, word));
	}
	if (!session->silent)
		return;
	session->silent = false;
	log_info("session %u of pool '%s' ('%s', pid %d) releases pages again", session->id, pool->config->name,
		session->name, session->pid);
	trust_stuck_update(pool);
}

void trust_session_begin(struct pool *pool, uint32_t id)
{
	if (pool->trust)
		memset((void *)ledger_holders(&pool->ledger, id), 0, pool->trust->words * sizeof(uint64_t));
}

void trust_session_end(struct session *session)
{
	if (!session->pool->trust)
		return;
	for (uint32_t word = 0; word < session->pool->trust->words; word++)
		let_go_word(session, word, ~UINT64_C(0));
	if (session->silent)
		trust_stuck_update(session->pool);
}

bool trust_holds(const struct session *session)
{
	const struct pool *pool = session->pool;

	if (!pool->trust || pool->agent->config.trust.release != CONFIG_RELEASE_DEATH)
		return false;
	for (uint32_t word = 0; word < pool->trust->words; word++)
		if (atomic_load_explicit(&ledger_holders(&pool->ledger, session->id)[word], memory_order_relaxed))
			return true;
	return false;
}

void trust_call(struct pool *pool)
{
	_Atomic uint32_t *serial = &pool->segment.header->release_serial;
	uint32_t next = atomic_load_explicit(serial, memory_order_relaxed) + 1;

	atomic_store_explicit(serial, next ? next : 1, memory_order_seq_cst);
	crash_point();
}

void trust_stuck_update(struct pool *pool)
{
	struct trust *trust = pool->trust;

	memset(trust->stuck, 0, trust->words * sizeof(*trust->stuck));
	for (uint32_t id = 1; id < POOL_SESSIONS; id++) {
		const struct session *session = pool->sessions[id];

		/* A disconnected session sends no reports. */
		if (!session || session->kind != SESSION_WORKER || (!session->silent && session->state == SESSION_LIVE))
			continue;
		for (uint32_t word = 0; word < trust->words; word++)
			trust->stuck[word] |=
				atomic_load_explicit(&ledger_holders(&pool->ledger, id)[word], memory_order_relaxed);
	}
}

bool trust_useful(const struct pool *pool, uint32_t domain, const struct session *session)
{
	return !pool->trust || session->domain == domain || !session->silent;
}

/* ---- transfers ---- */

uint32_t trust_reach(const struct pool *pool, const struct trust_wish *wish)
{
	return pool->trust ? pool->trust->transfers->reach(pool, wish) : 0;
}

uint32_t trust_begin(struct pool *pool, const struct trust_wish *wish)
{
	return pool->trust ? pool->trust->transfers->begin(pool, wish) : 0;
}

void trust_begin_range(struct pool *pool, uint32_t domain, uint32_t first, uint32_t count)
{
	if (pool->trust)
		pool->trust->transfers->begin_range(pool, domain, first, count);
}

bool trust_reachable(const struct pool *pool, uint32_t domain, uint32_t page)
{
	return !pool->trust || pool->trust->transfers->reachable(pool, domain, page);
}

uint32_t trust_cancel(struct pool *pool, uint32_t domain, uint32_t pages)
{
	return pool->trust ? pool->trust->transfers->cancel(pool, domain, pages) : 0;
}

uint32_t trust_coming(const struct pool *pool)
{
	return pool->trust ? pool->trust->transfers->coming(pool) : 0;
}
