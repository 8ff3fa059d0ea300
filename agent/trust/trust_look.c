/*
 * trust_look.c - report pending transfers to tools, and check the invariants of agent/pages/trust.h.
 */
#include "agent/trust/trust_transfer.h"
#include "shm/plural.h"

#include "agent/pages/session_state.h"

#include <stdio.h>

struct look {
	const struct pool *pool;
	void (*found)(void *context, uint32_t session, uint32_t page, const char *text);
	void *context;
};

static void report(const struct look *look, uint32_t session, uint32_t page, const char *text)
{
	look->found(look->context, session, page, text);
}

static enum ledger_transfer transfer_of(const struct pool *pool, uint32_t handle)
{
	return (enum ledger_transfer)atomic_load_explicit(&trust_note(pool, handle)->transfer, memory_order_acquire);
}

/* Check that a page in transfer has no owner, and that a leased page belongs to its owner's trust domain. */
static void check_page(const struct look *look, uint32_t handle, uint32_t page)
{
	const struct pool *pool = look->pool;
	uint64_t word = pool_word(pool, page);
	enum page_state state = page_word_state(word);
	uint32_t owner = page_word_owner(word), domain = trust_of_page(pool, page);
	bool moves = transfer_of(pool, handle) != LEDGER_TRANSFER_NONE;

	if (moves && (owner || (state != PAGE_QUARANTINED && state != PAGE_RETIRED)))
		report(look, 0, page, "the page is being transferred to another trust domain, but has an owner");
	if (!moves && state == PAGE_QUARANTINED && !owner)
		report(look, 0, page, "the page is QUARANTINED and has no owner, but is not being transferred");
	if (pool->sessions[page_word_session(word)] && domain != pool->sessions[page_word_session(word)]->domain)
		report(look, owner, page, "the page is leased to a session of another trust domain");
}

static void check_handle(const struct look *look, uint32_t handle)
{
	const struct pool *pool = look->pool;
	uint32_t first = handle * pool->trust->per_handle, domain = trust_of_page(pool, first), holders = 0;
	enum ledger_transfer transfer = transfer_of(pool, handle);

	for (uint32_t page = first; page < first + pool->trust->per_handle; page++)
		check_page(look, handle, page);
	for (uint32_t id = 1; id < POOL_SESSIONS; id++) {
		const struct session *session = pool->sessions[id];

		if (!session || !trust_is_held(pool, id, handle))
			continue;
		holders++;
		if (session->domain != domain)
			report(look, id, first,
				"the session may have mapped a page of another trust domain, or of none");
	}
	if (holders != pool->trust->holders[handle])
		report(look, 0, first, "wrong number of sessions that may have the handle mapped");
	if (holders && transfer == LEDGER_TRANSFER_SCRUBS)
		report(look, 0, first, "the handle is being cleared while a session may have it mapped");
	if ((transfer != LEDGER_TRANSFER_NONE) != trust_bit(pool->trust->moving, handle))
		report(look, 0, first, "the ledger and the agent disagree about the transfer of the handle");
}

static void check_view(const struct look *look, uint32_t domain)
{
	const struct pool *pool = look->pool;
	const struct trust_view *view = &pool->trust->views[domain];
	uint32_t normal = 0, reserved = 0;
	char text[160];

	for (uint32_t page = 0; view->made && page < pool->page_count; page++) {
		enum page_state state = page_word_state(pool_word(pool, page));
		uint32_t of = trust_of_page(pool, page);

		if (of && of != domain)
			continue;
		normal += state == PAGE_FREE;
		reserved += state == PAGE_RESERVED;
	}
	if (!view->made || (normal == view->normal.total && reserved == view->reserved.total))
		return;
	snprintf(text, sizeof(text),
		"%u page%s %s free for trust domain '%.40s' and %u reserved, but its index contains %u and %u", normal,
		plural(normal), be(normal), trust_domain_name(pool, domain), reserved, view->normal.total,
		view->reserved.total);
	report(look, 0, 0, text);
}

void trust_check(const struct pool *pool,
	void (*found)(void *context, uint32_t session, uint32_t page, const char *text), void *context)
{
	const struct look look = {pool, found, context};

	if (!pool->trust)
		return;
	for (uint32_t handle = 0; handle < pool->trust->handle_count; handle++)
		check_handle(&look, handle);
	for (uint32_t domain = 1; domain <= LEDGER_DOMAINS; domain++)
		check_view(&look, domain);
}

static void run_read(const struct pool *pool, uint32_t handle, struct trust_run *run)
{
	const struct trust *trust = pool->trust;
	uint32_t first = handle * trust->per_handle;

	*run = (struct trust_run){
		.first = first,
		.count = trust->per_handle,
		.domain = trust_of_page(pool, first),
		.holders = trust->holders[handle],
		.age_ms = (uint32_t)clock_ms() - trust->since_ms[handle],
		.retired = page_word_state(pool_word(pool, first)) == PAGE_RETIRED,
		.scrubs = transfer_of(pool, handle) == LEDGER_TRANSFER_SCRUBS,
	};
	for (uint32_t id = 1; run->holders && !run->session && id < POOL_SESSIONS; id++)
		if (pool->sessions[id] && trust_is_held(pool, id, handle))
			run->session = id;
}

bool trust_run_next(const struct pool *pool, uint32_t from, struct trust_run *run)
{
	const struct trust *trust = pool->trust;
	uint32_t handle = trust ? (from + trust->per_handle - 1) / trust->per_handle : 0;
	struct trust_run next;

	while (trust && handle < trust->handle_count && !trust_bit(trust->moving, handle))
		handle++;
	if (!trust || handle >= trust->handle_count)
		return false;
	run_read(pool, handle, run);
	while (++handle < trust->handle_count && trust_bit(trust->moving, handle)) {
		run_read(pool, handle, &next);
		if (next.domain != run->domain || next.holders != run->holders || next.session != run->session ||
			next.retired != run->retired || next.scrubs != run->scrubs)
			break;
		run->count += next.count;
	}
	return true;
}
