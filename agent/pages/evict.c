#include "agent/pages/evict.h"

#include "agent/pages/flight.h"
#include "agent/base/journal.h"
#include "agent/base/log.h"
#include "agent/pages/session_state.h"
#include "agent/pages/trust.h"
#include "shm/doorbell.h"
#include "shm/lease_bitmap.h"
#include "shm/pins.h"
#include "shm/timeline.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum {
	/* How long an ordered queue of candidates is used before its order is too old. */
	EVICT_QUEUE_NS = 20000000,
	LORA_COLD_MS = 60000,
};

const struct evict_policy *evict_policy_named(const char *name)
{
	static const struct evict_policy *const policies[] = {&evict_lru_size_aware, &evict_adaptive};

	for (size_t i = 0; i < sizeof(policies) / sizeof(*policies); i++)
		if (!strcmp(policies[i]->name, name))
			return policies[i];
	return NULL;
}

double evict_usage_value(const struct evict_candidate *candidate)
{
	/* by enum gpool_usage: KV_CACHE, LORA_WEIGHT, TEMP_BUFFER, ACTIVATION, GRADIENT */
	static const double values[] = {5, 4, 0, 1, 2};
	double value = candidate->usage < sizeof(values) / sizeof(*values) ? values[candidate->usage] : 0;

	if (candidate->usage == EVICT_LORA_WEIGHT && candidate->idle_ms >= LORA_COLD_MS)
		value = 3;
	return (value + candidate->priority / 4.0) / 6.0;
}

int evict_init(struct pool *pool)
{
	pool->evict.queue = calloc(pool->page_count, sizeof(*pool->evict.queue));
	pool->evict.sights = calloc(pool->page_count, sizeof(*pool->evict.sights));
	pool->evict.seen = calloc(pool->page_count, sizeof(*pool->evict.seen));
	if (pool->evict.queue && pool->evict.sights && pool->evict.seen)
		evict_configure(pool);
	if (pool->evict.policy)
		return 0;
	evict_fini(pool);
	return -ENOMEM;
}

void evict_fini(struct pool *pool)
{
	free(pool->evict.queue);
	free(pool->evict.sights);
	free(pool->evict.seen);
	if (pool->evict.policy)
		pool->evict.policy->destroy(pool->evict.policy_state);
}

/* Another policy begins anew, with what there is. */
static int policy_change(struct pool *pool, const struct evict_policy *policy)
{
	const struct evict_policy *before = pool->evict.policy;
	void *state, *state_before = pool->evict.policy_state;

	if (policy->create(pool->page_count, &state))
		return -ENOMEM;
	pool->evict.policy = policy;
	if (pool->evict.source && pool->evict.source->order(pool)) {
		pool->evict.policy = before;
		policy->destroy(state);
		return -ENOMEM;
	}
	pool->evict.policy_state = state;
	if (before)
		before->destroy(state_before);
	return 0;
}

void evict_configure(struct pool *pool)
{
	const struct evict_policy *policy = evict_policy_named(pool->agent->config.eviction.policy);

	if (policy && policy != pool->evict.policy && policy_change(pool, policy)) {
		log_error("cannot change the eviction policy of pool '%s': out of memory; it stays as it is",
			pool->config->name);
		return;
	}
	if (pool->evict.policy && pool->evict.policy->configure)
		pool->evict.policy->configure(pool->evict.policy_state, &pool->agent->config);
	evict_queue_drop(pool);
}

void evict_queue_drop(struct pool *pool)
{
	pool->evict.queue_count = pool->evict.queue_head = pool->evict.queue_objects = 0;
}

/*
 * The pages of a block, extents included, read from the hostile segment: 0 when it is not a block that could be, else
 * the total. `budget`, pages that may still be looked at, bounds what a session can cost whose blocks lie over each
 * other. run_count not NULL: the extents stand in pool->runs afterwards, and no page is in two of them.
 */
static uint32_t block_walk(struct pool *pool, const struct session *session, uint32_t head, uint64_t tag,
	uint32_t *budget, uint32_t *run_count)
{
	const struct block_entry *blocks = session->segment.blocks;
	uint32_t total = 0, extent = head;

	if (run_count)
		*run_count = 0;
	evict_look_begin(&pool->evict);
	for (;;) {
		uint32_t count = atomic_load_explicit(&blocks[extent].page_count, memory_order_relaxed), next;

		if (count < 1 || count > pool->page_count - extent || count > pool->page_count - total ||
			count > *budget)
			return 0;
		*budget -= count;
		for (uint32_t page = extent; page < extent + count; page++) {
			uint64_t word = pool_word(pool, page);

			if (page_word_owner(word) != session->id ||
				(page_word_state(word) != PAGE_LEASED &&
					!(page == head && page_word_state(word) == PAGE_EVICTING)))
				return 0;
			if (run_count && !evict_look_first(&pool->evict, page))
				return 0;
		}
		if (run_count)
			pool->runs[(*run_count)++] = (struct page_run){extent, count};
		next = tag & BLOCK_SCATTERED ? atomic_load_explicit(&blocks[extent].next, memory_order_relaxed) : 0;
		total += count;
		if (!next)
			return total;
		if (next > pool->page_count)
			return 0;
		extent = next - 1;
		if (atomic_load_explicit(&blocks[extent].tag, memory_order_acquire) >> BLOCK_SEQUENCE_SHIFT !=
			tag >> BLOCK_SEQUENCE_SHIFT)
			return 0;
	}
}

/* The extents in pool->runs become free: bits, tags, words. */
static uint32_t runs_take(struct pool *pool, struct session *session, uint32_t run_count)
{
	uint32_t total = 0;

	for (uint32_t i = 0; i < run_count; i++) {
		const struct page_run *run = &pool->runs[i];
		uint32_t end = run->first + run->count;

		/* A liar's free bits on these pages must not outlive the lease. */
		for (uint32_t word = run->first / 64; word <= (end - 1) / 64; word++)
			lease_take_word(session->segment.free_bits, word, lease_mask(word, run->first, run->count));
		atomic_store_explicit(&session->segment.blocks[run->first].tag, 0, memory_order_release);
		crash_point();
		pool_take_back(pool, run->first, run->count);
		total += run->count;
	}
	return total;
}

/* The block ends, in a step that the next agent can finish. */
static uint32_t block_take(struct pool *pool, struct session *session, uint32_t run_count)
{
	uint32_t total;

	journal_begin(&pool->ledger, LEDGER_TAKE, session->id, run_count);
	total = runs_take(pool, session, run_count);
	session->leased -= total;
	session->tenant->leased -= total;
	journal_end(&pool->ledger);
	return total;
}

static bool block_idle(const struct session *session, uint32_t page)
{
	return pin_count(&session->segment, page) == 0 &&
		fence_reached(&session->segment,
			atomic_load_explicit(&session->segment.blocks[page].fence, memory_order_acquire));
}

/* A run in a thread's magazine, or a freed block, which waits for a fence: there is no content to lose. */
static bool tag_is_free(uint64_t tag)
{
	return tag == BLOCK_TAG_CACHED || tag & BLOCK_DYING;
}

static bool tag_evictable(uint64_t tag)
{
	return tag == BLOCK_TAG_CACHED || (block_tag_is_block(tag) && !(tag & (BLOCK_EXTENT | BLOCK_PREPARED)));
}

/* Dropped, or spilled: then it is on its way. */
static bool spills(uint64_t tag)
{
	return !tag_is_free(tag) && tag & BLOCK_SPILL;
}

static void mark(struct pool *pool, uint32_t page, uint64_t word)
{
	pool_word_set(pool, page, STEP_MARK,
		page_word_make(PAGE_EVICTING, page_word_owner(word), page_word_generation(word)));
}

static void wake_pins(const struct pool *pool, const struct session *session, uint32_t page)
{
	if (atomic_load_explicit(&session->segment.header->pin_waiters, memory_order_seq_cst))
		futex_wake((_Atomic uint32_t *)&pool->segment.pages[page] + 1, INT32_MAX);
}

/*
 * The protocol: mark the word, then look at the pins. Returns pages taken or on their way; 0: busy or changed, nothing
 * happened.
 */
static uint32_t evict_one(struct pool *pool, const struct evict_candidate *candidate)
{
	struct session *session = pool->sessions[candidate->session];
	uint32_t page = candidate->page, taken = 0, budget = candidate->pages, leaving = 0, run_count;
	uint64_t word = pool_word(pool, page), tag, owner_id;

	if (!session || session->state != SESSION_LIVE || page_word_owner(word) != session->id ||
		page_word_state(word) != PAGE_LEASED)
		return 0;
	owner_id = atomic_load_explicit(&session->segment.blocks[page].owner_id, memory_order_relaxed);
	mark(pool, page, word);
	crash_point();
	/*
	 * Pins, fence, then the tag: read earlier, a free that ends in between would leave its pages' bits to nobody.
	 */
	if (block_idle(session, page)) {
		tag = atomic_load_explicit(&session->segment.blocks[page].tag, memory_order_acquire);
		if (tag != candidate->tag ||
			block_walk(pool, session, page, tag, &budget, &run_count) != candidate->pages)
			;
		else if (!spills(tag))
			taken = block_take(pool, session, run_count);
		else if (!pool->saver->begin(session, page, tag, candidate->pages, NULL))
			leaving = candidate->pages;
	}
	if (!taken && !leaving)
		pool_word_set(pool, page, STEP_UNMARK, word);
	crash_point();
	wake_pins(pool, session, page);
	if ((taken || leaving) && !candidate->cached && pool->evict.policy->evicted)
		pool->evict.policy->evicted(pool->evict.policy_state, candidate);
	if (!taken)
		return leaving;
	if (!candidate->cached) {
		session->evicted_pages += taken;
		session->tenant->evicted_pages += taken;
		atomic_fetch_add_explicit(&session->segment.header->evictions, 1, memory_order_release);
		pool->evicted_unannounced += taken;
		pool_count(pool, POOL_COUNT_EVICTIONS, 1);
		pool_count(pool, POOL_COUNT_EVICTED_PAGES, taken);
		flight_note(pool,
			&(struct flight_entry){.kind = FLIGHT_EVICT,
				.session = (uint16_t)session->id,
				.page = page,
				.pages = taken,
				.tag = candidate->tag,
				.value = owner_id},
			0);
	} else {
		session->reclaimed_pages += taken;
		pool_count(pool, POOL_COUNT_RECLAIMS, taken);
	}
	return taken;
}

int evict_to_spill(struct session *session, uint32_t page, uint64_t tag, const struct spill_asker *asker)
{
	struct pool *pool = session->pool;
	uint64_t word = pool_word(pool, page), now;
	uint32_t budget = session->leased, pages;
	int error = -EBUSY;

	if (session->state != SESSION_LIVE || page_word_owner(word) != session->id ||
		page_word_state(word) != PAGE_LEASED)
		return -ESTALE;
	mark(pool, page, word);
	if (block_idle(session, page)) {
		now = atomic_load_explicit(&session->segment.blocks[page].tag, memory_order_acquire);
		pages = now == tag && !tag_is_free(tag) && tag_evictable(tag)
			? block_walk(pool, session, page, tag, &budget, NULL)
			: 0;
		error = pages ? pool->saver->begin(session, page, tag, pages, asker) : -ESTALE;
	}
	if (error)
		pool_word_set(pool, page, STEP_UNMARK, word);
	wake_pins(pool, session, page);
	return error;
}

/* Borrowed pages per unit of weight, for the comparison between tenants. */
static uint64_t borrowed_share(const struct tenant *tenant)
{
	uint64_t borrowed = tenant->leased > tenant->minimum ? tenant->leased - tenant->minimum : 0;

	return borrowed * 1000 / tenant->config->weight;
}

bool evict_tenant_may_lose(const struct tenant *victim, const struct tenant *taker, uint32_t pages)
{
	if (victim == taker)
		return true;
	if (victim->leased - victim->saving < victim->minimum + pages)
		return false;
	if (!taker || taker->leased < taker->minimum || victim->config->priority < taker->config->priority)
		return true;
	return victim->config->priority == taker->config->priority && borrowed_share(victim) >= borrowed_share(taker);
}

static bool wanted(const struct evict_request *request, const struct session *session, uint64_t tag, uint32_t pages)
{
	if (request->only && request->only != session)
		return false;
	if (request->within && session->tenant != request->for_tenant)
		return false;
	if (request->for_tenant && !trust_useful(session->pool, request->for_tenant->domain, session))
		return false;
	if (tag_is_free(tag))
		return !request->usages;
	if (request->cached_only || request->own_last == session || (request->spare_offered && tag & BLOCK_RANGE))
		return false;
	if (request->usages && !(request->usages >> (tag & BLOCK_TYPE_MASK) & 1))
		return false;
	return request->by_operator || evict_tenant_may_lose(session->tenant, request->for_tenant, pages);
}

int evict_order(const struct evict_candidate *a, const struct evict_candidate *b)
{
	if (a->cached != b->cached)
		return a->cached ? -1 : 1;
	if (a->score != b->score)
		return a->score < b->score ? -1 : 1;
	if (a->priority != b->priority)
		return a->priority < b->priority ? -1 : 1;
	if (a->idle_ms != b->idle_ms)
		return a->idle_ms > b->idle_ms ? -1 : 1;
	return a->page < b->page ? -1 : 1;
}

static int by_score(const void *left, const void *right)
{
	return evict_order(left, right);
}

/* Cached runs to the front; returns how many there are. They have no content, so policies do not see them. */
static uint32_t cached_first(struct evict_candidate *queue, uint32_t count)
{
	uint32_t cached = 0;

	for (uint32_t i = 0; i < count; i++)
		if (queue[i].cached) {
			struct evict_candidate swap = queue[cached];

			queue[cached++] = queue[i];
			queue[i] = swap;
		}
	return cached;
}

/* Milliseconds. The clock is coarse and the worker's word is its own: an age below zero is "just now". */
static uint32_t idle_of(uint32_t now, uint32_t touched)
{
	return now - touched > INT32_MAX ? 0 : now - touched;
}

/*
 * What the block is to its worker: what it calls it and what it contains, or, without such a name, itself; spilled it
 * keeps its tag. Tenants have the same names for different things.
 */
static uint64_t block_key(const struct session *session, const struct block_entry *entry, uint64_t tag)
{
	struct {
		uint64_t name, usage, whose;
	} key = {atomic_load_explicit(&entry->owner_id, memory_order_relaxed), tag & BLOCK_TYPE_MASK,
		(uint64_t)(session->tenant - session->pool->tenants)};

	if (!key.name) {
		key.name = tag >> BLOCK_SEQUENCE_SHIFT;
		key.usage = UINT64_MAX;
		key.whose = session->id;
	}
	return XXH3_64bits(&key, sizeof(key));
}

static struct evict_sight sight_of(const struct session *session, uint32_t page, uint64_t tag, uint32_t now)
{
	uint32_t touched = atomic_load_explicit(&session->segment.touch[page], memory_order_relaxed);

	return (struct evict_sight){
		.key = block_key(session, &session->segment.blocks[page], tag),
		.tag = tag,
		.page = page,
		.session = session->id,
		.idle_ms = idle_of(now, touched),
		.touched = touched,
	};
}

/* CPU time of this thread: a scan during which the agent was preempted cost no more than another. */
static uint64_t cpu_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void scan(struct pool *pool, const struct evict_request *request)
{
	struct evict_state *evict = &pool->evict;
	uint64_t begin = cpu_ns();
	uint32_t now = (uint32_t)clock_ms(), count = 0, seen = 0, cached, objects;

	evict->scan_count++;
	for (uint32_t page = 0; page < pool->page_count; page++) {
		uint64_t word = pool_word(pool, page), tag;
		struct session *session;
		struct evict_candidate *candidate;
		uint32_t pages;

		if (page_word_state(word) != PAGE_LEASED)
			continue;
		session = pool->sessions[page_word_session(word)];
		if (!session || session->state != SESSION_LIVE)
			continue;
		tag = atomic_load_explicit(&session->segment.blocks[page].tag, memory_order_acquire);
		if (evict->policy->see && block_tag_is_block(tag) && !(tag & BLOCK_EXTENT) && !tag_is_free(tag))
			evict->sights[seen++] = sight_of(session, page, tag, now);
		if (!tag || !tag_evictable(tag) || !wanted(request, session, tag, 1) || !block_idle(session, page))
			continue;
		if (session->walk_scan != evict->scan_count) {
			session->walk_scan = evict->scan_count;
			session->walk_budget = session->leased;
		}
		pages = block_walk(pool, session, page, tag, &session->walk_budget, NULL);
		if (!pages || (spills(tag) && !pool->saver->possible(pool, page, pages)))
			continue;
		candidate = &evict->queue[count++];
		*candidate = (struct evict_candidate){
			.tag = tag,
			.page = page,
			.pages = pages,
			.session = session->id,
			.idle_ms =
				idle_of(now, atomic_load_explicit(&session->segment.touch[page], memory_order_relaxed)),
			.cost = 1,
			.usage = (uint8_t)(tag & BLOCK_TYPE_MASK),
			.priority = (uint8_t)((tag & BLOCK_PRIORITY_MASK) >> BLOCK_PRIORITY_SHIFT),
			.cached = tag_is_free(tag),
		};
	}
	/* Behind the blocks, for their scores. Each has a page of its own, so there is room for all. */
	objects = pool->evict.source->candidates(pool, request, evict->queue + count, now);
	if (evict->policy->see) {
		seen += pool->evict.source->see(pool, evict->sights + seen, now);
		evict->policy->see(evict->policy_state, evict->sights, seen);
	}
	cached = cached_first(evict->queue, count);
	pool->evict.policy->score(pool->evict.policy_state, evict->queue + cached, count + objects - cached);
	pool->evict.source->scored(pool, evict->queue + count, objects);
	evict->queue_objects = objects;
	qsort(evict->queue, count, sizeof(*evict->queue), by_score);
	evict->queue_head = 0;
	evict->queue_count = count;
	evict->queue_ns = clock_ns();
	evict->scan_ns = cpu_ns() - begin;
}

/* A queue of an earlier round serves again when it was made for everybody and its order is fresh. */
static bool queue_usable(const struct evict_state *evict, const struct evict_request *request, uint64_t now)
{
	return evict->queue_general && (evict->queue_head < evict->queue_count || evict->queue_objects) &&
		now - evict->queue_ns < EVICT_QUEUE_NS && !request->cached_only;
}

static bool general(const struct evict_request *request)
{
	return !request->only && !request->within && !request->cached_only && !request->usages;
}

/* When a scan for this tenant last found nothing. */
static uint64_t *barren_of(struct pool *pool, const struct evict_request *request)
{
	return request->for_tenant ? &request->for_tenant->barren_ns : &pool->evict.barren_ns;
}

/*
 * From here on the session that asks would rather evict what it has itself. What it has pinned since the scan does not
 * count.
 */
static bool own_is_next(const struct evict_request *request, const struct evict_candidate *candidate)
{
	return request->own_last && !candidate->cached && candidate->session == request->own_last->id &&
		block_idle(request->own_last, candidate->page);
}

/* Do the candidates left add up to so many pages, taken in order and no tenant below its minimum? */
static bool queue_suffices(const struct pool *pool, const struct evict_request *request, uint32_t need)
{
	const struct evict_state *evict = &pool->evict;
	uint32_t lost[CONFIG_TENANTS_MAX] = {0}, pages = 0, room = pool->saver->room(pool);

	for (uint32_t i = evict->queue_head; i < evict->queue_count && pages < need; i++) {
		const struct evict_candidate *candidate = &evict->queue[i];
		const struct session *session = pool->sessions[candidate->session];
		bool spill = spills(candidate->tag);

		if (own_is_next(request, candidate))
			return pages + pool->evict.source->before(pool, request, candidate) >= need;
		if (session && (!spill || room >= candidate->pages) &&
			wanted(request, session, candidate->tag,
				lost[session->tenant - pool->tenants] + candidate->pages)) {
			pages += candidate->pages;
			lost[session->tenant - pool->tenants] += candidate->pages;
			room -= spill ? candidate->pages : 0;
		}
	}
	return pages >= need || pages + pool->evict.source->evictable(pool, request, lost) >= need;
}

/*
 * Else: what taking the page loses. Any loss counts, so that of places without much worth the one with fewest pages is
 * found.
 */
enum { WINDOW_LEAST = 16, WINDOW_MOST = 256, WINDOW_BLOCKED = UINT16_MAX };

static float highest_score(const struct pool *pool)
{
	float highest = pool->evict.source->highest_score(pool);

	for (uint32_t i = 0; i < pool->evict.queue_count; i++)
		if (!pool->evict.queue[i].cached && pool->evict.queue[i].score > highest)
			highest = pool->evict.queue[i].score;
	return highest;
}

static uint16_t window_cost(float score, float highest)
{
	float share = highest > 0 ? score / highest : 0;

	return (uint16_t)(WINDOW_LEAST + (WINDOW_MOST - WINDOW_LEAST) * (share < 0 ? 0 : share > 1 ? 1 : share));
}

/* What each page below the reserved ones would cost. */
static void window_costs(struct pool *pool, const struct evict_request *request, uint16_t *costs)
{
	float highest = highest_score(pool);

	pool->evict.source->window(pool, request);
	for (uint32_t page = 0; page < pool->segment.header->reserved_first; page++) {
		uint64_t word = pool_word(pool, page);
		const struct session *session = pool->sessions[page_word_session(word)];
		bool idle = session && session->kind == SESSION_WORKER && session->state == SESSION_LIVE &&
			page_word_state(word) == PAGE_LEASED &&
			atomic_load_explicit(&session->segment.free_bits[page / 64], memory_order_relaxed) >>
					(page % 64) &
				1;

		bool there =
			page_word_state(word) == PAGE_FREE && trust_reachable(pool, request->for_tenant->domain, page);

		costs[page] = there || idle ? 0
			: pool->evict.source->window_has(pool, word)
			? window_cost(pool->evict.source->score(pool, word), highest)
			: WINDOW_BLOCKED;
	}
	for (uint32_t i = 0; i < pool->evict.queue_count; i++) {
		const struct evict_candidate *candidate = &pool->evict.queue[i];

		/* The extents of a scattered block lie elsewhere: it is left alone. */
		for (uint32_t page = candidate->page;
			!(candidate->tag & BLOCK_SCATTERED) && page < candidate->page + candidate->pages; page++)
			costs[page] = candidate->cached ? 0 : window_cost(candidate->score, highest);
	}
}

static bool window_find(const uint16_t *costs, uint32_t pages, uint32_t need, uint32_t *first)
{
	uint32_t blocked = 0, cost = 0, best = UINT32_MAX;

	for (uint32_t page = 0; page < pages; page++) {
		blocked += costs[page] == WINDOW_BLOCKED;
		cost += costs[page];
		if (page >= need) {
			blocked -= costs[page - need] == WINDOW_BLOCKED;
			cost -= costs[page - need];
		}
		if (page + 1 >= need && !blocked && cost < best) {
			best = cost;
			*first = page + 1 - need;
		}
	}
	return best != UINT32_MAX;
}

bool evict_window(struct pool *pool, const struct evict_request *request, uint32_t need, uint32_t *first)
{
	uint16_t *costs = malloc(pool->page_count * sizeof(*costs));
	bool found;

	if (!costs)
		return false;
	scan(pool, request);
	pool->evict.queue_general = false;
	window_costs(pool, request, costs);
	found = window_find(costs, pool->segment.header->reserved_first, need, first);
	free(costs);
	for (uint32_t i = 0; found && i < pool->evict.queue_count; i++) {
		const struct evict_candidate *candidate = &pool->evict.queue[i];

		const struct session *session = pool->sessions[candidate->session];

		if (session && !(candidate->tag & BLOCK_SCATTERED) && candidate->page < *first + need &&
			candidate->page + candidate->pages > *first &&
			wanted(request, session, candidate->tag, candidate->pages))
			evict_one(pool, candidate);
	}
	if (found)
		pool->evict.source->evict_at(pool, *first, need);
	return found;
}

bool evict_possible(struct pool *pool, const struct evict_request *request)
{
	scan(pool, request);
	pool->evict.queue_general = false;
	return queue_suffices(pool, request, request->pages);
}

/*
 * A block that this request may have, or one at which it ends (own_is_next()): those that it may not have are passed
 * over. NULL: the queue is at its end.
 */
static const struct evict_candidate *next_block(struct pool *pool, const struct evict_request *request)
{
	struct evict_state *evict = &pool->evict;

	for (; evict->queue_head < evict->queue_count; evict->queue_head++) {
		const struct evict_candidate *candidate = &evict->queue[evict->queue_head];
		const struct session *session = pool->sessions[candidate->session];

		if (session &&
			(wanted(request, session, candidate->tag, candidate->pages) || own_is_next(request, candidate)))
			return candidate;
	}
	return NULL;
}

/*
 * Of the next block and the next object that which goes first; pages, 0: it was pinned or changed. *none: there is
 * neither, or what is next has more pages than `most`. *empty counts pages without content.
 */
static uint32_t take_next(
	struct pool *pool, const struct evict_request *request, uint32_t most, uint32_t *empty, bool *none)
{
	const struct evict_candidate *next = next_block(pool, request);
	const struct evict_candidate *object = next && next->cached ? NULL : pool->evict.source->next(pool, request);
	uint32_t taken;

	if (object && (!next || evict_order(object, next) < 0))
		next = object;
	*none = !next || next->pages > most || own_is_next(request, next);
	if (*none)
		return 0;
	if (next == object)
		return pool->evict.source->take(pool, object->object);
	pool->evict.queue_head++;
	taken = evict_one(pool, next);
	*empty += next->cached ? taken : 0;
	return taken;
}

/* What goes beside request->pages, of which `empty` had no content. */
static uint32_t surplus(const struct evict_request *request, uint32_t empty)
{
	return empty < request->pages ? (uint32_t)((request->pages - empty) * request->hysteresis) : 0;
}

/*
 * After a scan that found too little the next one waits as long as it took: with everything pinned, a storm of
 * requests costs the agent half its time at most. (Microseconds for a thousand pages.)
 */
static bool scan_waits(struct pool *pool, const struct evict_request *request, uint64_t now)
{
	uint64_t barren_ns = *barren_of(pool, request);

	return general(request) && barren_ns >= pool->evict.released_ns && now - barren_ns < pool->evict.scan_ns;
}

/* One queue for all tenants; what of it this request may have is asked again as it is taken. */
static void scan_for(struct pool *pool, const struct evict_request *request)
{
	static const struct evict_request everybody = {.by_operator = true};

	pool->evict.source->back(pool);
	scan(pool, general(request) ? &everybody : request);
	pool->evict.queue_general = general(request);
}

uint32_t evict_pages(struct pool *pool, const struct evict_request *request)
{
	struct evict_state *evict = &pool->evict;
	uint64_t begin = clock_ns();
	uint32_t taken = 0, empty = 0;
	/* A queue of before is asked once whether it will do: it may be long, and this request's part of it short. */
	bool reuse = queue_usable(evict, request, begin) &&
		(!request->whole || queue_suffices(pool, request, request->pages));
	bool fresh = false, none = !reuse;

	while (taken < request->pages || taken < request->pages + surplus(request, empty)) {
		bool needed = taken < request->pages;
		uint32_t most = needed ? UINT32_MAX : request->pages + surplus(request, empty) - taken;

		if (none && (!needed || fresh || scan_waits(pool, request, begin)))
			break;
		if (none) {
			scan_for(pool, request);
			fresh = true;
			if (request->whole && !queue_suffices(pool, request, request->pages - taken))
				break;
		}
		taken += take_next(pool, request, most, &empty, &none);
		if (request->by_operator)
			atomic_store_explicit(&pool->ledger.header->verb.progress, taken, memory_order_relaxed);
	}
	pool->evict.source->back(pool);
	if (fresh && !taken && general(request) && !request->own_last)
		*barren_of(pool, request) = clock_ns();
	return taken;
}
