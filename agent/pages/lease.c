#include "agent/pages/lease.h"

#include "agent/pages/flight.h"
#include "agent/base/journal.h"
#include "agent/pages/handle_runs.h"
#include "agent/pages/trust.h"
#include "shm/lease_bitmap.h"

#include <errno.h>
#include <stdlib.h>

enum {
	REFILL_SOON_MS = 50,   /* a shorter interval between refills doubles the batch */
	REFILL_CALM_MS = 1000, /* a longer interval resets the batch */
};

uint32_t lease_idle(const struct session *session)
{
	uint32_t words = (session->segment.page_count + 63) / 64, idle = 0;

	for (uint32_t word = 0; word < words; word++)
		idle += (uint32_t)__builtin_popcountll(
			atomic_load_explicit(&session->segment.free_bits[word], memory_order_relaxed));
	return idle < session->leased ? idle : session->leased;
}

static void account(struct session *session, int64_t pages)
{
	session->leased = (uint32_t)(session->leased + pages);
	session->tenant->leased = (uint32_t)(session->tenant->leased + pages);
}

/* Return the pages of `mask` that are leased to the session according to their page words. The segment is untrusted. */
static uint64_t owned_mask(const struct pool *pool, const struct session *session, uint32_t word, uint64_t mask)
{
	uint64_t owned = 0;

	for (; mask; mask &= mask - 1) {
		uint32_t page = word * 64 + (uint32_t)__builtin_ctzll(mask);
		uint64_t value;

		if (page >= pool->page_count)
			break;
		value = pool_word(pool, page);
		if (page_word_owner(value) == session->id && page_word_state(value) == PAGE_LEASED)
			owned |= mask & -mask;
	}
	return owned;
}

/*
 * Take back the idle pages of `mask` in one word and return their number. All of them must have been found idle. If the
 * agent dies here, pages whose bits are cleared become doubtful, and a page in transit must not be among them.
 */
static uint32_t reclaim_word(struct session *session, uint32_t word, uint64_t mask)
{
	struct ledger_journal *journal = &session->pool->ledger.header->journal;
	uint32_t taken;
	uint64_t got;

	journal->slot = word;
	journal->mask = mask;
	journal_begin(&session->pool->ledger, LEDGER_RECLAIM, session->id, 0);
	got = lease_take_word(session->segment.free_bits, word, mask);
	crash_point();
	got = owned_mask(session->pool, session, word, got);
	taken = (uint32_t)__builtin_popcountll(got);
	pool_take_back_word(session->pool, word, got);
	journal_end(&session->pool->ledger);
	account(session, -(int64_t)taken);
	session->reclaimed_pages += taken;
	session->pool->reclaimed_unannounced += taken;
	pool_count(session->pool, POOL_COUNT_RECLAIMS, taken);
	return taken;
}

/* Write one record for all pages, which need not be adjacent. */
static void note_return(const struct session *session, uint32_t pages)
{
	if (pages)
		flight_note(session->pool,
			&(struct flight_entry){.kind = FLIGHT_RETURN, .session = (uint16_t)session->id, .pages = pages},
			0);
}

uint32_t lease_reclaim(struct session *session, uint32_t most)
{
	uint32_t taken = 0;

	if (session->state != SESSION_LIVE)
		return 0;
	/* Begin with the highest pages, so that the remaining pages are adjacent. */
	for (uint32_t word = (session->segment.page_count + 63) / 64; word-- > 0 && taken < most;) {
		uint64_t seen = atomic_load_explicit(&session->segment.free_bits[word], memory_order_relaxed);

		while ((uint32_t)__builtin_popcountll(seen) > most - taken)
			seen &= seen - 1;
		if (seen)
			taken += reclaim_word(session, word, seen);
	}
	note_return(session, taken);
	return taken;
}

void lease_reclaim_guaranteed(struct pool *pool)
{
	for (uint32_t id = 1, left = pool->session_count; left && id < POOL_SESSIONS; id++) {
		struct session *session = pool->sessions[id];

		if (!session)
			continue;
		left--;
		if (session->kind == SESSION_WORKER && session->tenant->minimum &&
			session->tenant->leased > session->tenant->minimum)
			lease_reclaim(session, session->tenant->leased - session->tenant->minimum);
	}
}

uint32_t lease_reclaim_range(struct session *session, uint32_t first, uint32_t count)
{
	uint32_t taken = 0;

	if (session->state != SESSION_LIVE)
		return 0;
	for (uint32_t word = first / 64; word <= (first + count - 1) / 64; word++) {
		uint64_t seen = atomic_load_explicit(&session->segment.free_bits[word], memory_order_relaxed) &
			lease_mask(word, first, count);

		if (seen)
			taken += reclaim_word(session, word, seen);
	}
	note_return(session, taken);
	return taken;
}

/*
 * Return the number of idle pages of `tenant` that are useful to `taker`. If `tenant` keeps the unused part of its
 * minimum, only pages above the minimum count.
 */
static uint32_t spare_of(const struct tenant *tenant, const struct tenant *taker)
{
	if (tenant == taker || tenant->config->unused == CONFIG_UNUSED_LEND)
		return UINT32_MAX;
	return tenant->leased > tenant->minimum ? tenant->leased - tenant->minimum : 0;
}

/* Return true if pages are taken from the session in this turn. The first turn concerns tenants above their minimum. */
static bool in_turn(const struct session *session, int turn)
{
	return (session->tenant->leased > session->tenant->minimum) == (turn == 0);
}

/* The sessions whose idle pages may be taken: all, or those of one tenant or trust domain. */
struct whose {
	const struct tenant *tenant; /* NULL: any */
	uint32_t domain;             /* 0: any */
};

static bool is_whose(const struct session *session, const struct whose *whose)
{
	return (!whose->tenant || session->tenant == whose->tenant) &&
		(!whose->domain || session->domain == whose->domain);
}

/* Take back idle pages that are useful to `taker`. */
static uint32_t reclaim_from(struct pool *pool, const struct whose *whose, const struct tenant *taker, uint32_t pages)
{
	uint32_t taken = 0;

	for (int turn = 0; turn < 2 && taken < pages; turn++)
		for (uint32_t id = 1, left = pool->session_count; left && id < POOL_SESSIONS && taken < pages; id++) {
			struct session *session = pool->sessions[id];

			if (!session)
				continue;
			left--;
			if (session->kind == SESSION_WORKER && is_whose(session, whose) && in_turn(session, turn) &&
				trust_useful(pool, taker->domain, session)) {
				uint32_t spare = spare_of(session->tenant, taker);

				taken += lease_reclaim(session, pages - taken < spare ? pages - taken : spare);
			}
		}
	return taken;
}

/* Return the number of free pages that are kept for other tenants: the unused parts of minima that are not lent. */
static uint32_t kept_from(const struct pool *pool, const struct tenant *tenant)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < pool->tenant_count; i++) {
		const struct tenant *other = &pool->tenants[i];

		if (other != tenant && other->config->unused == CONFIG_UNUSED_KEEP && other->leased < other->minimum)
			kept += other->minimum - other->leased;
	}
	return kept;
}

/* Return the number of free pages in all trust domains. */
static uint32_t free_pages(const struct pool *pool, uint32_t flags)
{
	return pool->free.total + (flags & LEASE_CRITICAL ? pool->reserved.total : 0);
}

/* Return the index with the free pages that may be leased to this session's trust domain. */
static struct free_runs *free_of(const struct session *session, bool reserved)
{
	struct pool *pool = session->pool;
	struct trust_view *view = pool->trust ? &pool->trust->views[session->domain] : NULL;

	if (reserved)
		return view ? &view->reserved : &pool->reserved;
	return view ? &view->normal : &pool->free;
}

/* Return the number of free pages that may be leased to this session's trust domain. */
static uint32_t own_pages(const struct session *session, uint32_t flags)
{
	return free_of(session, false)->total + (flags & LEASE_CRITICAL ? free_of(session, true)->total : 0);
}

/* Return the number of pages that can be leased to this session now. */
static uint32_t available(const struct session *session, uint32_t flags)
{
	uint32_t pages = free_pages(session->pool, flags), own = own_pages(session, flags);
	uint32_t kept = kept_from(session->pool, session->tenant);

	pages = pages > kept ? pages - kept : 0;
	return pages < own ? pages : own;
}

/*
 * Return the number of pages that must become free before `need` pages can be leased. Pages that are kept for other
 * tenants are needed in addition. Free pages of other trust domains count only if they can be transferred.
 */
static uint32_t lacking(const struct session *session, uint32_t need, uint32_t flags)
{
	const struct pool *pool = session->pool;
	uint32_t pages = free_pages(pool, flags), own = own_pages(session, flags);
	uint32_t target = need + kept_from(pool, session->tenant), lacks = target > pages ? target - pages : 0;
	struct trust_wish wish = {
		.domain = session->domain, .pages = need > own ? need - own : 0, .reserved = flags & LEASE_CRITICAL};

	if (pool->trust && wish.pages) {
		uint32_t reach = trust_reach(pool, &wish);

		if (wish.pages > reach + lacks)
			lacks = wish.pages - reach;
	}
	return lacks;
}

static uint32_t tenant_room(const struct session *session)
{
	const struct tenant *tenant = session->tenant;

	/* A limit of at least the pool's size has no effect. */
	if (tenant->limit >= session->pool->page_count)
		return UINT32_MAX;
	return tenant->limit > tenant->leased ? tenant->limit - tenant->leased : 0;
}

static uint32_t session_room(const struct session *session)
{
	if (!session->limit)
		return UINT32_MAX;
	return session->limit > session->leased ? session->limit - session->leased : 0;
}

static uint32_t room(const struct session *session)
{
	uint32_t tenant = tenant_room(session), own = session_room(session);

	return tenant < own ? tenant : own;
}

/* Return the number of pages that must be freed in addition to `leaving` pages that are already being freed. */
static uint32_t beyond(uint32_t pages, uint32_t leaving)
{
	return pages > leaving ? pages - leaving : 0;
}

/* Return the number of pages being spilled or cleared that no waiting request has claimed. */
static uint32_t leaving(const struct pool *pool)
{
	return beyond(pool->saving_pages + trust_coming(pool), pool->claimed_pages);
}

/* Take back all idle pages of the session, including those in magazines, so that they can be leased in one run. */
static void consolidate(struct session *session)
{
	struct evict_request cached = {.only = session, .cached_only = true, .pages = UINT32_MAX};

	lease_reclaim(session, UINT32_MAX);
	evict_pages(session->pool, &cached);
}

/* Return the session that evicts its own content itself, or NULL. */
static const struct session *own_last(const struct session *session, uint32_t flags)
{
	return flags & LEASE_OWN_LAST ? session : NULL;
}

/*
 * Return true if the pool could provide `need` pages by taking everything that may be taken. This is checked before
 * blocks are evicted because of a limit.
 */
static bool could_free(struct session *session, uint32_t need, uint32_t flags)
{
	struct evict_request request = {.for_tenant = session->tenant, .own_last = own_last(session, flags)};
	uint32_t lacks = lacking(session, need, flags), idle = pool_idle_owned(session->pool);

	request.pages = beyond(beyond(lacks, idle), leaving(session->pool));
	return !request.pages || evict_possible(session->pool, &request);
}

/*
 * Make room for `need` pages below the limits of the session and its tenant, by taking unused pages of both. Return: 0,
 * -EDQUOT, -ENOSPC.
 */
static int make_room(struct session *session, uint32_t need, uint32_t flags)
{
	struct pool *pool = session->pool;

	if (need <= room(session))
		return 0;
	/*
	 * Take no more pages than needed: the session may have mapped its idle pages, and can use them again without a
	 * driver call.
	 */
	lease_reclaim(session, need - room(session));
	if (need <= room(session))
		return 0;
	consolidate(session);
	if (need > room(session) && !(flags & LEASE_NO_EVICT) && !could_free(session, need, flags))
		return -ENOSPC;
	if (need > session_room(session) && !(flags & (LEASE_NO_EVICT | LEASE_OWN_LAST))) {
		struct evict_request own = {.only = session,
			.for_tenant = session->tenant,
			.whole = true,
			.pages = beyond(need - session_room(session), session->saving)};

		evict_pages(pool, &own);
	}
	if (need > tenant_room(session))
		reclaim_from(
			pool, &(struct whose){.tenant = session->tenant}, session->tenant, need - tenant_room(session));
	if (need > tenant_room(session) && need <= session_room(session) && !(flags & LEASE_NO_EVICT)) {
		struct evict_request within = {
			.for_tenant = session->tenant,
			.within = true,
			.own_last = own_last(session, flags),
			.whole = true,
			.pages = beyond(need - tenant_room(session), session->tenant->saving),
		};

		evict_pages(pool, &within);
	}
	return need <= room(session) ? 0 : -EDQUOT;
}

/*
 * Provide pages of the session's trust domain: take idle pages of the domain's sessions, take back its retired pages,
 * then begin the transfer of free pages of other domains.
 */
static void make_ours(struct session *session, uint32_t need, uint32_t flags)
{
	struct pool *pool = session->pool;
	uint32_t own = own_pages(session, flags);
	struct trust_wish wish = {.domain = session->domain, .reserved = flags & LEASE_CRITICAL};

	if (!pool->trust || need <= own)
		return;
	reclaim_from(pool, &(struct whose){.domain = session->domain}, session->tenant, need - own);
	own = own_pages(session, flags);
	if (need > own)
		trust_cancel(pool, session->domain, need - own);
	own = own_pages(session, flags);
	wish.pages = beyond(need > own ? need - own : 0, leaving(pool));
	/* Do not begin an insufficient transfer, because sessions would have to unmap pages without a benefit. */
	if (wish.pages && trust_reach(pool, &wish) >= wish.pages)
		trust_begin(pool, &wish);
}

/* Make `need` pages available. Return false if this is not possible now. */
static bool make_free(struct session *session, uint32_t need, uint32_t flags)
{
	struct pool *pool = session->pool;

	if (need <= available(session, flags))
		return true;
	make_ours(session, need, flags);
	if (need > available(session, flags))
		reclaim_from(pool, &(struct whose){0}, session->tenant,
			beyond(lacking(session, need, flags), pool->trust ? leaving(pool) : 0));
	if (need > available(session, flags)) {
		struct evict_request request = {
			.for_tenant = session->tenant,
			.own_last = own_last(session, flags),
			.pages = beyond(lacking(session, need, flags), leaving(pool)),
			.whole = true,
			.cached_only = flags & LEASE_NO_EVICT,
			/* Evict more pages than needed, which is cheaper than a scan for each of the next requests. */
			.hysteresis = flags & LEASE_NO_EVICT ? 0 : pool->agent->config.eviction.hysteresis,
		};

		evict_pages(pool, &request);
	}
	/* Pages taken from another trust domain are free, but must be transferred. */
	make_ours(session, need, flags);
	return need <= available(session, flags);
}

/* Return the length of the longest run that can be leased to this session now. */
static uint32_t longest_run(const struct session *session, uint32_t flags)
{
	uint32_t longest = free_runs_longest(free_of(session, false)), normal = available(session, 0);
	uint32_t reserved = flags & LEASE_CRITICAL ? free_runs_longest(free_of(session, true)) : 0;

	if (longest > normal)
		longest = normal;
	return longest > reserved ? longest : reserved;
}

/* Take the idle pages at a place where content was evicted, and begin the transfer of pages of other domains. */
static void place_take(struct session *session, uint32_t first, uint32_t count)
{
	struct pool *pool = session->pool;

	for (uint32_t id = 1; id < POOL_SESSIONS; id++)
		if (pool->sessions[id] && pool->sessions[id]->kind == SESSION_WORKER)
			lease_reclaim_range(pool->sessions[id], first, count);
	trust_begin_range(pool, session->domain, first, count);
}

/* Form one run of `need` pages without loss of content or, with LEASE_CONTIGUOUS, also by eviction. */
static bool make_run(struct session *session, uint32_t need, uint32_t flags)
{
	struct pool *pool = session->pool;
	struct evict_request request = {
		.for_tenant = session->tenant,
		.own_last = own_last(session, flags),
		.cached_only = flags & LEASE_NO_EVICT,
	};
	uint32_t first;

	if (longest_run(session, flags) >= need)
		return true;
	consolidate(session);
	if (longest_run(session, flags) >= need || !(flags & LEASE_CONTIGUOUS))
		return longest_run(session, flags) >= need;
	/* Do not choose another place while pages of a chosen place are being spilled or cleared. */
	if (pool->saving_pages || trust_coming(pool) || !evict_window(pool, &request, need, &first))
		return false;
	/*
	 * If a page was pinned or allocated in the meantime, this attempt fails, and the next attempt chooses another
	 * place.
	 */
	place_take(session, first, need);
	return longest_run(session, flags) >= need;
}

/* ---- requests in pools with several pages in each handle ---- */

/* Return true if the runs of the request must be chosen so that the worker can map them side by side. */
static bool by_handle(const struct session *session, const struct lease_want *want)
{
	return session->pool->segment.header->pages_per_handle > 1 && (want->need > 1 || want->flags & LEASE_ALIGNED);
}

/* The indexes of free pages, in the order of their pages. NULL: not used. */
struct indexes {
	const struct free_runs *normal, *reserved;
};

static bool indexes_next(const void *context, uint32_t from, struct page_run *run)
{
	const struct indexes *indexes = context;

	return (indexes->normal && free_runs_next(indexes->normal, from, &run->first, &run->count)) ||
		(indexes->reserved && free_runs_next(indexes->reserved, from, &run->first, &run->count));
}

static uint32_t choose_from(const struct session *session, const struct lease_want *want,
	const struct free_runs *normal, const struct free_runs *reserved)
{
	const struct indexes indexes = {normal, reserved};
	const struct run_source source = {indexes_next, &indexes};
	const struct run_want runs = {
		.per_handle = session->pool->segment.header->pages_per_handle,
		.need = want->need,
		.aligned = want->flags & LEASE_ALIGNED,
		.contiguous = want->flags & LEASE_CONTIGUOUS,
	};

	return handle_runs_choose(&source, &runs, session->pool->runs);
}

/*
 * Choose the runs of the request in pool->runs. Return their number, 0 if there are none. normal: number of pages of
 * the normal index that may be used; reserved pages are used if these do not suffice.
 */
static uint32_t runs_choose(const struct session *session, const struct lease_want *want, uint32_t normal)
{
	const struct free_runs *index = free_of(session, false);
	const struct free_runs *reserved = want->flags & LEASE_CRITICAL ? free_of(session, true) : NULL;
	uint32_t count = want->need <= normal ? choose_from(session, want, index, NULL) : 0;

	if (!count && reserved)
		count = choose_from(session, want, NULL, reserved);
	if (!count && reserved && normal >= index->total)
		count = choose_from(session, want, index, reserved);
	return count;
}

static bool runs_exist(const struct session *session, const struct lease_want *want)
{
	return runs_choose(session, want, UINT32_MAX) > 0;
}

/* Evict content so that the runs of the request exist: whole handles or, for fewer pages, adjacent pages. */
static void runs_evict(struct session *session, const struct lease_want *want)
{
	struct pool *pool = session->pool;
	struct evict_request request = {
		.for_tenant = session->tenant,
		.own_last = own_last(session, want->flags),
		.cached_only = want->flags & LEASE_NO_EVICT,
	};
	uint32_t per_handle = pool->segment.header->pages_per_handle;
	uint32_t handles = (want->need + per_handle - 1) / per_handle, first;
	uint64_t *chosen = calloc((pool->page_count / per_handle + 63) / 64, sizeof(*chosen));
	bool aligned = want->flags & LEASE_ALIGNED, parts = !aligned && want->need < per_handle;

	if (chosen && !parts && !(want->flags & LEASE_CONTIGUOUS) && evict_handles(pool, &request, handles, chosen)) {
		for (uint32_t handle = 0; handle < pool->page_count / per_handle; handle++)
			if (chosen[handle / 64] >> (handle % 64) & 1)
				place_take(session, handle * per_handle, per_handle);
	} else if (!aligned && evict_window(pool, &request, want->need, &first)) {
		place_take(session, first, want->need);
	}
	free(chosen);
}

/* Take the idle pages of all sessions, including those in magazines. */
static void idle_take(const struct session *session)
{
	struct evict_request cached = {.for_tenant = session->tenant, .cached_only = true, .pages = UINT32_MAX};

	reclaim_from(session->pool, &(struct whose){0}, session->tenant, UINT32_MAX);
	evict_pages(session->pool, &cached);
}

/*
 * Return true if pages of a chosen place are being spilled or cleared. Until they are free, no other place is chosen.
 */
static bool is_coming(const struct session *session)
{
	return session->pool->saving_pages || trust_coming(session->pool);
}

/* Provide the runs of the request, like make_run(). */
static bool make_runs(struct session *session, const struct lease_want *want)
{
	if (runs_exist(session, want))
		return true;
	consolidate(session);
	if (runs_exist(session, want) || is_coming(session))
		return runs_exist(session, want);
	/* A request that cannot be satisfied evicts nothing. */
	if (!(want->flags & LEASE_NO_EVICT) && !could_free(session, want->need, want->flags))
		return false;
	runs_evict(session, want);
	/* Parts of handles may be idle in other sessions. */
	if (!runs_exist(session, want) && !is_coming(session))
		idle_take(session);
	return runs_exist(session, want);
}

/* Take the chosen runs from the index. */
static void take_chosen(struct session *session, uint32_t run_count)
{
	struct pool *pool = session->pool;

	for (uint32_t i = 0; i < run_count; i++) {
		const struct page_run *run = &pool->runs[i];

		free_runs_remove(
			free_of(session, run->first >= pool->segment.header->reserved_first), run->first, run->count);
		if (pool->trust)
			trust_taken(pool, session->domain, run->first, run->count);
	}
}

/* ---- take from the index ---- */

/* Take a run of `count` pages from the index. Return false if it has no such run. */
static bool take_run(struct session *session, bool reserved, uint32_t count, bool first_fit, uint32_t *first)
{
	if (!free_runs_take(free_of(session, reserved), count, first_fit, first))
		return false;
	if (session->pool->trust)
		trust_taken(session->pool, session->domain, *first, count);
	return true;
}

/* Take the longest run, or the first `most` pages of it, and return the number of pages. */
static uint32_t take_longest(struct session *session, bool reserved, uint32_t most, uint32_t *first)
{
	uint32_t length = free_runs_take_longest(free_of(session, reserved), most, first);

	if (length && session->pool->trust)
		trust_taken(session->pool, session->domain, *first, length);
	return length;
}

/*
 * Take `need` pages from the index, in one or several runs; the caller has checked that they are available. Additional
 * pages are taken only if they are adjacent or in one run.
 */
static void take(struct session *session, const struct lease_want *want, uint32_t extra, struct lease_grant *grant)
{
	struct pool *pool = session->pool;
	bool first_fit = want->flags & LEASE_FIRST_FIT || pool->agent->config.lease.strategy == CONFIG_FIRST_FIT;
	bool critical = want->flags & LEASE_CRITICAL;
	bool anywhere = !(by_handle(session, want) && want->flags & LEASE_ALIGNED);
	/* Pages that are kept for other tenants are not available; a critical request uses reserved pages instead. */
	uint32_t need = want->need, normal = available(session, 0), first, got;

	grant->run_count = 0;
	grant->extra_count = 0;
	if (anywhere && extra && need + extra <= normal && take_run(session, false, need + extra, first_fit, &first)) {
		pool->runs[grant->run_count++] = (struct page_run){first, need};
		grant->extra_first = first + need;
		grant->extra_count = extra;
		return;
	}
	if (anywhere &&
		((need <= normal && take_run(session, false, need, first_fit, &first)) ||
			(critical && take_run(session, true, need, first_fit, &first)))) {
		pool->runs[grant->run_count++] = (struct page_run){first, need};
	} else if (by_handle(session, want)) {
		grant->run_count = runs_choose(session, want, normal);
		take_chosen(session, grant->run_count);
	} else {
		while (need) {
			got = normal ? take_longest(session, false, need < normal ? need : normal, &first) : 0;
			normal -= got;
			if (!got)
				got = take_longest(session, true, need, &first);
			pool->runs[grant->run_count++] = (struct page_run){first, got};
			need -= got;
		}
	}
	if (extra)
		grant->extra_count = take_longest(session, false, extra, &grant->extra_first);
}

void lease_chain(const struct session *session, uint32_t run_count)
{
	struct block_entry *blocks = session->segment.blocks;
	const struct page_run *runs = session->pool->runs;

	for (uint32_t i = 0; i < run_count; i++) {
		atomic_store_explicit(&blocks[runs[i].first].page_count, runs[i].count, memory_order_relaxed);
		atomic_store_explicit(&blocks[runs[i].first].next, i + 1 < run_count ? runs[i + 1].first + 1 : 0,
			memory_order_relaxed);
	}
}

/* Lease the pages: set their page words, and then write the runs, which the worker reads after the answer. */
static void lend(struct session *session, const struct lease_want *want, const struct lease_grant *grant)
{
	struct pool *pool = session->pool;
	struct ledger_journal *journal = &pool->ledger.header->journal;
	uint32_t total = grant->extra_count, run_count = grant->run_count;

	if (grant->extra_count)
		pool->runs[run_count++] = (struct page_run){grant->extra_first, grant->extra_count};
	journal->slot = want->slot;
	journal->slot_word = want->word;
	journal_begin(&pool->ledger, LEDGER_GRANT, session->id, run_count);
	for (uint32_t i = 0; i < grant->run_count; i++) {
		const struct page_run *run = &pool->runs[i];

		pool_lend(pool, run->first, run->count, session->id);
		total += run->count;
	}
	lease_chain(session, grant->run_count);
	if (grant->extra_count)
		pool_lend(pool, grant->extra_first, grant->extra_count, session->id);
	account(session, total);
	pool_count(pool, POOL_COUNT_GRANTS, total);
}

void lease_grant_undo(struct session *session, const struct lease_grant *grant)
{
	uint32_t run_count = grant->run_count + (grant->extra_count ? 1 : 0);

	for (uint32_t i = 0; i < run_count; i++) {
		pool_take_back(session->pool, session->pool->runs[i].first, session->pool->runs[i].count);
		account(session, -(int64_t)session->pool->runs[i].count);
	}
}

/*
 * Adapt the session's batch to the interval between its refills. Return the number of additional pages: that of the
 * batch, or less if the pool has few free pages or many sessions.
 */
static uint32_t welcome_extra(struct session *session, uint32_t need, uint32_t extra)
{
	struct pool *pool = session->pool;
	const struct config *config = &pool->agent->config;
	uint64_t now = clock_ms(), since = now - session->last_refill_ms;
	uint32_t spare, most;

	if (session->batch && since < REFILL_SOON_MS && session->batch < config->lease.batch_most)
		session->batch *= 2;
	else if (since > REFILL_CALM_MS || !session->batch)
		session->batch = config->lease.batch_pages;
	if (session->batch > config->lease.batch_most)
		session->batch = config->lease.batch_most;
	session->last_refill_ms = now;
	if (!extra || pool->short_waiters)
		return 0;
	extra = session->batch > need ? session->batch - need : 0;
	spare = available(session, 0);
	spare = spare > need ? spare - need : 0;
	most = spare / (2 * (pool->session_count ? pool->session_count : 1));
	if (extra > most)
		extra = most;
	most = room(session) - need;
	return extra < most ? extra : most;
}

/* Return true if free pages that may be leased to this session form the runs of the request. */
static bool runs_fit(const struct session *session, const struct lease_want *want)
{
	if (by_handle(session, want))
		return runs_choose(session, want, available(session, 0)) > 0;
	return !(want->flags & LEASE_CONTIGUOUS) || want->need <= longest_run(session, want->flags);
}

/* Form the runs of a request that cannot use any pages. */
static bool runs_form(struct session *session, const struct lease_want *want)
{
	if (by_handle(session, want))
		return make_runs(session, want);
	return want->need == 1 || !(want->flags & LEASE_CONTIGUOUS) || make_run(session, want->need, want->flags);
}

/* Return true if the pages can be leased without taking any from a session. */
static bool is_there(const struct session *session, const struct lease_want *want)
{
	return want->need <= room(session) && want->need <= available(session, want->flags) && runs_fit(session, want);
}

int lease_grant(struct session *session, const struct lease_want *want, struct lease_grant *grant)
{
	uint32_t extra;
	int error;

	if (want->flags & LEASE_CRITICAL && !session->privileged)
		return -EPERM;
	if (want->flags & LEASE_FREE && !is_there(session, want))
		return -ENOSPC;
	error = make_room(session, want->need, want->flags);
	if (error)
		return error;
	/* Form the runs first, because pages that are freed elsewhere would not help. */
	if (!runs_form(session, want))
		return -ENOSPC;
	if (!make_free(session, want->need, want->flags))
		return -ENOSPC;
	if (!runs_fit(session, want))
		return -ENOSPC;
	if (want->need > 1 && !(want->flags & (LEASE_CONTIGUOUS | LEASE_SCATTERED)) && !by_handle(session, want))
		make_run(session, want->need, want->flags);
	extra = welcome_extra(session, want->need, want->extra);
	take(session, want, extra, grant);
	lend(session, want, grant);
	return 0;
}

void lease_initial(struct session *session, uint32_t pages)
{
	struct pool *pool = session->pool;
	static const struct lease_want want = {.slot = LEDGER_NO_SLOT};
	struct lease_grant grant = {0};
	uint32_t most = room(session);

	if (pages > most)
		pages = most;
	if (pages > available(session, 0) / 2)
		pages = available(session, 0) / 2;
	if (!pages)
		return;
	grant.extra_count = take_longest(session, false, pages, &grant.extra_first);
	lend(session, &want, &grant);
	lease_put(session->segment.free_bits, grant.extra_first, grant.extra_count);
	journal_end(&pool->ledger);
	flight_note(pool,
		&(struct flight_entry){.kind = FLIGHT_GRANT,
			.session = (uint16_t)session->id,
			.page = grant.extra_first,
			.pages = grant.extra_count},
		0);
}

void lease_shrink_idle(struct session *session, uint64_t now_ms)
{
	const struct config *config = &session->pool->agent->config;
	uint32_t idle;

	if (session->leased <= config->lease.keep_pages || now_ms - session->last_refill_ms < config->lease.idle_ms)
		return;
	idle = lease_idle(session);
	if (idle <= config->lease.keep_pages)
		return;
	/* Take back half of the pages each time, so that a worker that becomes active again still has some. */
	lease_reclaim(session, (idle - config->lease.keep_pages + 1) / 2);
	session->batch = config->lease.batch_pages;
	session->last_refill_ms = now_ms;
}
