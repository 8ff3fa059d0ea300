#include "agent/lease.h"

#include "agent/event.h"
#include "agent/log.h"
#include "shm/doorbell.h"
#include "shm/lease_bitmap.h"

#include <errno.h>
#include <stdlib.h>

enum {
	WAITER_TICK_MS = 5,       /* how often pages are looked for again while somebody waits; a worker that frees rings earlier */
	REFILL_SOON_MS = 50,      /* refills closer than this double the batch */
	REFILL_CALM_MS = 1000,    /* further apart than this: the batch starts over */
	PINNED_EXTENTS_MAX = 4096, /* of one stitched block, in the figures of a refusal: a chain in a circle must end */
	CONTIGUITY_ROUNDS = 8,    /* rounds of eviction to make a run, before a contiguous request is refused */
};

uint32_t lease_idle(const struct session *session)
{
	uint32_t words = (session->segment.page_count + 63) / 64, idle = 0;

	for (uint32_t word = 0; word < words; word++)
		idle += (uint32_t)__builtin_popcountll(atomic_load_explicit(&session->segment.free_bits[word], memory_order_relaxed));
	return idle < session->leased ? idle : session->leased;
}

static void account(struct session *session, int64_t pages)
{
	session->leased = (uint32_t)(session->leased + pages);
	session->tenant->leased = (uint32_t)(session->tenant->leased + pages);
}

/* Those of `mask` that are leased to the session by the agent's own table: what the segment says is not believed. */
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

/* Those of `mask` in one word that are idle and ours to take. Returns how many. */
static uint32_t reclaim_word(struct session *session, uint32_t word, uint64_t mask)
{
	uint64_t got = owned_mask(session->pool, session, word, lease_take_word(session->segment.free_bits, word, mask));
	uint32_t taken = (uint32_t)__builtin_popcountll(got);

	pool_take_back_word(session->pool, word, got);
	account(session, -(int64_t)taken);
	session->reclaimed_pages += taken;
	session->pool->reclaimed_unannounced += taken;
	pool_count(session->pool, POOL_COUNT_RECLAIMS, taken);
	return taken;
}

uint32_t lease_reclaim(struct session *session, uint32_t most)
{
	uint32_t taken = 0;

	if (session->state != SESSION_LIVE)
		return 0;
	/* From the top, so that what stays lies together at the bottom. */
	for (uint32_t word = (session->segment.page_count + 63) / 64; word-- > 0 && taken < most;) {
		uint64_t seen = atomic_load_explicit(&session->segment.free_bits[word], memory_order_relaxed);

		while ((uint32_t)__builtin_popcountll(seen) > most - taken)
			seen &= seen - 1;
		if (seen)
			taken += reclaim_word(session, word, seen);
	}
	return taken;
}

uint32_t lease_reclaim_range(struct session *session, uint32_t first, uint32_t count)
{
	uint32_t taken = 0;

	if (session->state != SESSION_LIVE)
		return 0;
	for (uint32_t word = first / 64; word <= (first + count - 1) / 64; word++) {
		uint64_t mask = lease_mask(word, first, count);

		if (atomic_load_explicit(&session->segment.free_bits[word], memory_order_relaxed) & mask)
			taken += reclaim_word(session, word, mask);
	}
	return taken;
}

static bool over_minimum(const struct session *session)
{
	return session->tenant->leased > session->tenant->minimum;
}

/* Take back idle pages: of borrowers first. `tenant` not NULL: only of its sessions. */
static uint32_t reclaim_from(struct pool *pool, const struct tenant *tenant, uint32_t pages)
{
	uint32_t taken = 0;

	for (int borrowers = 1; borrowers >= 0 && taken < pages; borrowers--)
		for (uint32_t id = 1, left = pool->session_count; left && id < POOL_SESSIONS && taken < pages; id++) {
			struct session *session = pool->sessions[id];

			if (!session)
				continue;
			left--;
			if (session->role == SESSION_WORKER && (!tenant || session->tenant == tenant) &&
				over_minimum(session) == (borrowers == 1))
				taken += lease_reclaim(session, pages - taken);
		}
	return taken;
}

/* Free pages that are kept for other tenants: what they do not use of minima that they do not lend. */
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

/* What this session may be lent now. */
static uint32_t available(const struct session *session, uint32_t flags)
{
	const struct pool *pool = session->pool;
	uint32_t pages = pool->free.total + (flags & LEASE_CRITICAL ? pool->reserved.total : 0);
	uint32_t kept = kept_from(pool, session->tenant);

	return pages > kept ? pages - kept : 0;
}

/* How many pages must come free before `need` can be lent, those that are kept for others included. */
static uint32_t lacking(const struct session *session, uint32_t need, uint32_t flags)
{
	const struct pool *pool = session->pool;
	uint32_t pages = pool->free.total + (flags & LEASE_CRITICAL ? pool->reserved.total : 0);
	uint32_t target = need + kept_from(pool, session->tenant);

	return target > pages ? target - pages : 0;
}

static uint32_t tenant_room(const struct session *session)
{
	const struct tenant *tenant = session->tenant;

	/* A limit of the whole pool is none: what runs out then is the pool. */
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

/* What is idle in the session's own magazines and bitmap goes back, so that it can be lent anew in one piece. */
static void consolidate(struct session *session)
{
	struct evict_request cached = { .only = session, .cached_only = true, .pages = UINT32_MAX };

	lease_reclaim(session, UINT32_MAX);
	evict_pages(session->pool, &cached);
}

/* Bring the session below its limits by giving up what it or its tenant does not use. */
static bool make_room(struct session *session, uint32_t need, uint32_t flags)
{
	struct pool *pool = session->pool;

	if (need <= room(session))
		return true;
	consolidate(session);
	if (need > session_room(session) && !(flags & LEASE_NO_EVICT)) {
		struct evict_request own = { .only = session, .for_tenant = session->tenant, .whole = true, .pages = need - session_room(session) };

		evict_pages(pool, &own);
	}
	if (need > tenant_room(session))
		reclaim_from(pool, session->tenant, need - tenant_room(session));
	if (need > tenant_room(session) && !(flags & LEASE_NO_EVICT)) {
		struct evict_request within = { .for_tenant = session->tenant, .within = true, .whole = true, .pages = need - tenant_room(session) };

		evict_pages(pool, &within);
	}
	return need <= room(session);
}

/* Bring enough pages into the index. */
static bool make_free(struct session *session, uint32_t need, uint32_t flags)
{
	struct pool *pool = session->pool;

	if (need <= available(session, flags))
		return true;
	reclaim_from(pool, NULL, lacking(session, need, flags));
	if (need > available(session, flags)) {
		struct evict_request request = {
			.for_tenant = session->tenant,
			.pages = lacking(session, need, flags),
			.whole = true,
			.cached_only = flags & LEASE_NO_EVICT,
		};

		evict_pages(pool, &request);
	}
	return need <= available(session, flags);
}

static uint32_t longest_run(const struct pool *pool, uint32_t flags)
{
	uint32_t longest = free_runs_longest(&pool->free);
	uint32_t reserved = flags & LEASE_CRITICAL ? free_runs_longest(&pool->reserved) : 0;

	return longest > reserved ? longest : reserved;
}

/* Make one run of `need` pages if it can be had without loss; by eviction too when the request insists on it. */
static bool make_run(struct session *session, uint32_t need, uint32_t flags)
{
	struct pool *pool = session->pool;

	if (longest_run(pool, flags) >= need)
		return true;
	consolidate(session);
	if (!(flags & LEASE_CONTIGUOUS))
		return longest_run(pool, flags) >= need;
	reclaim_from(pool, NULL, UINT32_MAX);
	for (int round = 0; round < CONTIGUITY_ROUNDS && longest_run(pool, flags) < need; round++) {
		struct evict_request request = {
			.for_tenant = session->tenant, .pages = need, .cached_only = flags & LEASE_NO_EVICT
		};

		if (!evict_pages(pool, &request))
			break;
	}
	return longest_run(pool, flags) >= need;
}

struct grant {
	uint32_t run_count; /* in pool->runs: the hand-over */
	uint32_t extra_first, extra_count;
};

/* `need` pages out of the index, in one run or many; there are enough. Extra only when it lies right behind or in one run. */
static void take(struct pool *pool, uint32_t need, uint32_t extra, uint32_t flags, struct grant *grant)
{
	bool first_fit = flags & LEASE_FIRST_FIT;
	uint32_t first, got;

	grant->run_count = 0;
	grant->extra_count = 0;
	if (extra && free_runs_take(&pool->free, need + extra, first_fit, &first)) {
		pool->runs[grant->run_count++] = (struct page_run){ first, need };
		grant->extra_first = first + need;
		grant->extra_count = extra;
		return;
	}
	if (free_runs_take(&pool->free, need, first_fit, &first) ||
		(flags & LEASE_CRITICAL && free_runs_take(&pool->reserved, need, first_fit, &first))) {
		pool->runs[grant->run_count++] = (struct page_run){ first, need };
	} else {
		while (need) {
			got = free_runs_take_longest(&pool->free, need, &first);
			if (!got)
				got = free_runs_take_longest(&pool->reserved, need, &first);
			pool->runs[grant->run_count++] = (struct page_run){ first, got };
			need -= got;
		}
	}
	if (extra)
		grant->extra_count = free_runs_take_longest(&pool->free, extra, &grant->extra_first);
}

/* Words first, then what the worker may act on. */
static void lend(struct session *session, const struct grant *grant)
{
	struct pool *pool = session->pool;
	struct block_entry *blocks = session->segment.blocks;
	uint32_t total = grant->extra_count;

	for (uint32_t i = 0; i < grant->run_count; i++) {
		const struct page_run *run = &pool->runs[i];

		pool_lend(pool, run->first, run->count, session->id);
		atomic_store_explicit(&blocks[run->first].page_count, run->count, memory_order_relaxed);
		atomic_store_explicit(&blocks[run->first].next, i + 1 < grant->run_count ? pool->runs[i + 1].first + 1 : 0,
			memory_order_relaxed);
		total += run->count;
	}
	if (grant->extra_count) {
		pool_lend(pool, grant->extra_first, grant->extra_count, session->id);
		lease_put(session->segment.free_bits, grant->extra_first, grant->extra_count);
	}
	account(session, total);
	pool_count(pool, POOL_COUNT_GRANTS, total);
}

/* The worker gave up waiting while this was decided: the hand-over comes back, what became free bits stays. */
static void take_back(struct session *session, const struct grant *grant)
{
	for (uint32_t i = 0; i < grant->run_count; i++) {
		pool_take_back(session->pool, session->pool->runs[i].first, session->pool->runs[i].count);
		account(session, -(int64_t)session->pool->runs[i].count);
	}
}

/* How many pages beyond the need: the session's batch, less when the pool runs low or has many takers. */
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

static int lease_take_pages(struct session *session, const struct waiter *want, struct grant *grant)
{
	struct pool *pool = session->pool;
	uint32_t extra;

	if (want->flags & LEASE_CRITICAL && !session->privileged)
		return -EPERM;
	if (!make_room(session, want->need, want->flags))
		return -EDQUOT;
	if (!make_free(session, want->need, want->flags))
		return -ENOSPC;
	if (want->need > 1 && !make_run(session, want->need, want->flags) && want->flags & LEASE_CONTIGUOUS)
		return -ENOSPC;
	extra = welcome_extra(session, want->need, want->extra);
	take(pool, want->need, extra, want->flags, grant);
	lend(session, grant);
	return 0;
}

/* Pages of the pinned block at `head`, as its session says, which is believed as far as it can be. */
static uint32_t pinned_pages(const struct pool *pool, const struct session *session, uint32_t head)
{
	const struct block_entry *blocks = session->segment.blocks;
	uint64_t tag = atomic_load_explicit(&blocks[head].tag, memory_order_acquire);
	uint32_t total = 0, extent = head;

	for (int extents = 0; extents < PINNED_EXTENTS_MAX; extents++) {
		uint32_t count = atomic_load_explicit(&blocks[extent].page_count, memory_order_relaxed), next;

		if (count < 1 || count > pool->page_count - extent || count > session->leased - total)
			break;
		total += count;
		next = tag & BLOCK_STITCHED ? atomic_load_explicit(&blocks[extent].next, memory_order_relaxed) : 0;
		if (!next || next > pool->page_count)
			break;
		extent = next - 1;
	}
	return total;
}

/* Who holds the most pinned pages, for the refusal: one pass over the pin words of each session's pages. */
static void shortage(struct pool *pool, struct lease_request *slot)
{
	static uint32_t pinned_by[POOL_SESSIONS];
	uint32_t pinned = 0, holder = 0;
	uint64_t now = clock_ns();

	/* A storm of refusals must not become a storm of scans: the figures may be this old. */
	if (now - pool->shortage_ns > 1000000) {
		for (uint32_t id = 0; id < POOL_SESSIONS; id++)
			pinned_by[id] = 0;
		for (uint32_t page = 0; page < pool->page_count; page++) {
			uint64_t word = pool_word(pool, page);
			const struct session *session = pool->sessions[page_word_owner(word)];
			uint32_t count;

			if (!session || page_word_state(word) != PAGE_LEASED ||
				!atomic_load_explicit(&session->segment.pins[page], memory_order_relaxed))
				continue;
			count = pinned_pages(pool, session, page);
			pinned_by[session->id] += count;
			pinned += count;
			if (pinned_by[session->id] > pinned_by[holder])
				holder = session->id;
		}
		pool->shortage_ns = now;
		pool->shortage_pinned = pinned;
		pool->shortage_holder = holder;
		pool->shortage_holder_pages = pinned_by[holder];
	}
	slot->free_pages = pool->free.total;
	slot->pinned_pages = pool->shortage_pinned;
	slot->holder = pool->shortage_holder;
	slot->holder_pages = pool->shortage_holder_pages;
}

static void note_refill(struct session *session, uint64_t started_ns)
{
	struct pool *pool = session->pool;

	session->refills++;
	pool->refill_ns[pool->refill_count++ % REFILL_SAMPLES] = clock_ns() - started_ns;
	pool_count(pool, POOL_COUNT_REFILLS, 1);
}

/* The end of a request. False: the worker had cancelled it, and the slot is its again. */
static bool answer(struct session *session, uint32_t slot_index)
{
	struct lease_request *slot = &session->segment.requests[slot_index];
	uint32_t state = LEASE_REQUESTED;

	if (atomic_compare_exchange_strong_explicit(&slot->state, &state, LEASE_DONE, memory_order_acq_rel, memory_order_acquire)) {
		futex_wake(&slot->state, 1);
		return true;
	}
	atomic_store_explicit(&slot->state, LEASE_IDLE, memory_order_release);
	return false;
}

/* Once a second at most: a worker must not be able to flood everybody who listens. */
static void announce_limit(struct session *session, uint32_t need)
{
	uint64_t now = clock_ms();

	if (session->quota_event_ms && now - session->quota_event_ms < 1000)
		return;
	session->quota_event_ms = now;
	event_publish(session->pool->agent, EVENT_TENANT_LIMIT, session->pool, session->id, need,
		"'%s' asked for %u pages beyond its limit", session->name, need);
}

/* Try to serve; true when the request is over, with pages or without. */
static bool serve(struct session *session, struct waiter *want, bool last_try)
{
	struct lease_request *slot = &session->segment.requests[want->slot];
	struct grant grant;
	int error = lease_take_pages(session, want, &grant);

	want->at_limit = error == -EDQUOT;
	if (error && !last_try && error != -EPERM)
		return false;
	slot->error = error;
	if (error) {
		session->refusals++;
		session->tenant->refusals++;
		pool_count(session->pool, POOL_COUNT_REFUSALS, 1);
		shortage(session->pool, slot);
		if (error == -EDQUOT)
			announce_limit(session, want->need);
		answer(session, want->slot);
		return true;
	}
	slot->first_page = session->pool->runs[0].first;
	slot->extra_granted = grant.extra_count;
	if (!answer(session, want->slot))
		take_back(session, &grant);
	note_refill(session, want->started_ns);
	return true;
}

/* Workers ring when they free pages only while somebody waits for the pool's; who waits at a limit of his own looks by the clock. */
static void waiters_publish(struct pool *pool)
{
	const struct waiter *waiter;

	pool->short_waiters = 0;
	TAILQ_FOREACH(waiter, &pool->waiters, link)
		pool->short_waiters += !waiter->at_limit;
	atomic_store_explicit(&pool->segment.header->waiters, pool->short_waiters, memory_order_relaxed);
	if (pool->waiter_count)
		agent_need_tick(pool->agent, WAITER_TICK_MS);
}

static void waiter_remove(struct pool *pool, struct waiter *waiter)
{
	TAILQ_REMOVE(&pool->waiters, waiter, link);
	pool->waiter_count--;
	free(waiter);
}

/* In order of the tenants' priority, then of arrival. */
static void waiter_insert(struct pool *pool, struct waiter *waiter)
{
	uint32_t priority = waiter->session->tenant->config->priority;
	struct waiter *at;

	TAILQ_FOREACH(at, &pool->waiters, link)
		if (at->session->tenant->config->priority < priority)
			break;
	if (at)
		TAILQ_INSERT_BEFORE(at, waiter, link);
	else
		TAILQ_INSERT_TAIL(&pool->waiters, waiter, link);
	pool->waiter_count++;
}

void lease_serve_waiters(struct pool *pool)
{
	uint64_t now = clock_ms();
	struct waiter *waiter, *next;

	for (waiter = TAILQ_FIRST(&pool->waiters); waiter; waiter = next) {
		struct lease_request *slot = &waiter->session->segment.requests[waiter->slot];

		next = TAILQ_NEXT(waiter, link);
		if (atomic_load_explicit(&slot->state, memory_order_acquire) != LEASE_REQUESTED) {
			atomic_store_explicit(&slot->state, LEASE_IDLE, memory_order_release);
			waiter_remove(pool, waiter);
		} else if (serve(waiter->session, waiter, now >= waiter->deadline_ms)) {
			waiter_remove(pool, waiter);
		}
	}
	waiters_publish(pool);
}

void lease_forget(struct session *session)
{
	struct pool *pool = session->pool;
	struct waiter *waiter, *next;

	for (waiter = TAILQ_FIRST(&pool->waiters); waiter; waiter = next) {
		next = TAILQ_NEXT(waiter, link);
		if (waiter->session == session)
			waiter_remove(pool, waiter);
	}
	waiters_publish(pool);
}

static bool is_waiting(const struct session *session, uint32_t slot)
{
	const struct waiter *waiter;

	TAILQ_FOREACH(waiter, &session->pool->waiters, link)
		if (waiter->session == session && waiter->slot == slot)
			return true;
	return false;
}

static void request_refuse(struct session *session, uint32_t slot, int error, const char *what)
{
	session->segment.requests[slot].error = error;
	answer(session, slot);
	session_damage(session, what);
}

static void request_serve(struct session *session, uint32_t slot_index)
{
	struct lease_request *slot = &session->segment.requests[slot_index];
	struct pool *pool = session->pool;
	struct waiter want = { .session = session, .slot = slot_index, .started_ns = clock_ns() }, *waiter;
	uint32_t state = atomic_load_explicit(&slot->state, memory_order_acquire), kind, timeout_ms;

	if (state == LEASE_CANCELLED && !is_waiting(session, slot_index))
		atomic_store_explicit(&slot->state, LEASE_IDLE, memory_order_release);
	if (state != LEASE_REQUESTED || is_waiting(session, slot_index))
		return;
	/* Read once; the worker may change them meanwhile. */
	kind = *(volatile uint32_t *)&slot->kind;
	want.need = *(volatile uint32_t *)&slot->need;
	want.extra = *(volatile uint32_t *)&slot->extra;
	want.flags = *(volatile uint32_t *)&slot->flags;
	timeout_ms = *(volatile uint32_t *)&slot->timeout_ms;
	if (kind == LEASE_GIVE_UP) {
		lease_reclaim(session, UINT32_MAX);
		slot->error = 0;
		answer(session, slot_index);
		return;
	}
	if (kind != LEASE_TAKE || want.flags & ~(uint32_t)LEASE_FLAGS) {
		request_refuse(session, slot_index, -EINVAL, "a lease request of an unknown kind");
		return;
	}
	if (want.need < 1 || want.need > pool->page_count) {
		slot->error = -EINVAL;
		answer(session, slot_index);
		return;
	}
	if (serve(session, &want, timeout_ms == 0))
		return;
	waiter = malloc(sizeof(*waiter));
	if (!waiter) {
		slot->error = -ENOMEM;
		answer(session, slot_index);
		return;
	}
	*waiter = want;
	waiter->deadline_ms = clock_ms() + timeout_ms;
	waiter_insert(pool, waiter);
	waiters_publish(pool);
	pool_update_pressure(pool);
}

void lease_doorbell(struct session *session)
{
	uint64_t pending;

	if (session->state != SESSION_LIVE || session->role != SESSION_WORKER)
		return;
	pending = atomic_exchange_explicit(&session->segment.header->requests_pending, 0, memory_order_acq_rel);
	for (; pending && session->state == SESSION_LIVE; pending &= pending - 1)
		request_serve(session, (uint32_t)__builtin_ctzll(pending));
	if (session->pool->waiter_count)
		lease_serve_waiters(session->pool);
}

void lease_initial(struct session *session, uint32_t pages)
{
	struct pool *pool = session->pool;
	struct grant grant = { 0 };
	uint32_t most = room(session);

	if (pages > most)
		pages = most;
	if (pages > available(session, 0) / 2)
		pages = available(session, 0) / 2;
	if (!pages)
		return;
	grant.extra_count = free_runs_take_longest(&pool->free, pages, &grant.extra_first);
	lend(session, &grant);
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
	/* Half of it each time: a worker that comes back finds some. */
	lease_reclaim(session, (idle - config->lease.keep_pages + 1) / 2);
	session->batch = config->lease.batch_pages;
	session->last_refill_ms = now_ms;
}
