/*
 * evict.c - the policy of a pool, and eviction of content in the order of the last scan.
 */
#include "agent/pages/evict_scan.h"

#include "agent/base/log.h"
#include "agent/pages/evict_block.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
	/* age at which the order of a queue is outdated */
	EVICT_QUEUE_NS = 20000000,
};

static const struct evict_policy *evict_policy_named(const char *name)
{
	static const struct evict_policy *const policies[] = {&evict_lru_size_aware, &evict_adaptive};

	for (size_t i = 0; i < sizeof(policies) / sizeof(*policies); i++)
		if (!strcmp(policies[i]->name, name))
			return policies[i];
	return NULL;
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

/* Change the policy. The new policy starts without history. */
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
		log_error("cannot change the eviction policy of pool '%s': out of memory; the previous policy remains "
			  "in effect",
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

/* Return true if the queue of an earlier scan can be used, because it contains all content and its order is recent. */
static bool queue_usable(const struct evict_state *evict, const struct evict_request *request, uint64_t now)
{
	return evict->queue_general && (evict->queue_head < evict->queue_count || evict->queue_objects) &&
		now - evict->queue_ns < EVICT_QUEUE_NS && !request->cached_only;
}

static bool general(const struct evict_request *request)
{
	return !request->only && !request->within && !request->cached_only && !request->usages;
}

/* Return the variable that stores the time of the last scan for this tenant that found nothing. */
static uint64_t *barren_of(struct pool *pool, const struct evict_request *request)
{
	return request->for_tenant ? &request->for_tenant->barren_ns : &pool->evict.barren_ns;
}

/*
 * Return true if the next candidate belongs to the session own_last and has not been pinned since the scan. Eviction
 * then ends.
 */
static bool own_is_next(const struct evict_request *request, const struct evict_candidate *candidate)
{
	return request->own_last && !candidate->cached && candidate->session == request->own_last->id &&
		evict_block_idle(request->own_last, candidate->page);
}

/*
 * Return true if the remaining candidates, taken in order and without violating a tenant's minimum, have at least
 * `need` pages.
 */
static bool queue_suffices(const struct pool *pool, const struct evict_request *request, uint32_t need)
{
	const struct evict_state *evict = &pool->evict;
	uint32_t lost[CONFIG_TENANTS_MAX] = {0}, pages = 0, room = pool->saver->room(pool);

	for (uint32_t i = evict->queue_head; i < evict->queue_count && pages < need; i++) {
		const struct evict_candidate *candidate = &evict->queue[i];
		const struct session *session = pool->sessions[candidate->session];
		bool spill = evict_tag_spills(candidate->tag);

		if (own_is_next(request, candidate))
			return pages + pool->evict.source->before(pool, request, candidate) >= need;
		if (session && (!spill || room >= candidate->pages) &&
			evict_wanted(request, session, candidate->tag,
				lost[session->tenant - pool->tenants] + candidate->pages)) {
			pages += candidate->pages;
			lost[session->tenant - pool->tenants] += candidate->pages;
			room -= spill ? candidate->pages : 0;
		}
	}
	return pages >= need || pages + pool->evict.source->evictable(pool, request, lost) >= need;
}

bool evict_possible(struct pool *pool, const struct evict_request *request)
{
	evict_scan(pool, request);
	pool->evict.queue_general = false;
	return queue_suffices(pool, request, request->pages);
}

/*
 * Return the next block that the request may evict, or the block at which the eviction ends (own_is_next()); skip other
 * blocks. Return NULL at the end of the queue.
 */
static const struct evict_candidate *next_block(struct pool *pool, const struct evict_request *request)
{
	struct evict_state *evict = &pool->evict;

	for (; evict->queue_head < evict->queue_count; evict->queue_head++) {
		const struct evict_candidate *candidate = &evict->queue[evict->queue_head];
		const struct session *session = pool->sessions[candidate->session];

		if (session &&
			(evict_wanted(request, session, candidate->tag, candidate->pages) ||
				own_is_next(request, candidate)))
			return candidate;
	}
	return NULL;
}

/*
 * Evict the next block or object in order. Return the number of its pages; 0: it was pinned or has changed. Set *none
 * if no content is left, or if the next content has more than `most` pages. Add pages without content to *empty.
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
	taken = evict_block(pool, next);
	*empty += next->cached ? taken : 0;
	return taken;
}

/* Return the number of additional pages for hysteresis. `empty` of the taken pages had no content. */
static uint32_t surplus(const struct evict_request *request, uint32_t empty)
{
	return empty < request->pages ? (uint32_t)((request->pages - empty) * request->hysteresis) : 0;
}

/*
 * Return true if the next scan must wait. After a scan without an eviction, except for a request with own_last, the
 * agent waits for as long as the scan took, so that such requests cost it at most half of its time even if all content
 * is pinned. (A scan takes microseconds per thousand pages.) Until then, requests wait too: see requests.c.
 */
static bool scan_waits(struct pool *pool, const struct evict_request *request, uint64_t now)
{
	uint64_t barren_ns = *barren_of(pool, request);

	return general(request) && barren_ns >= pool->evict.released_ns && now - barren_ns < pool->evict.scan_ns;
}

/* Scan for a request. One queue serves all tenants, because each candidate is checked again when it is taken. */
static void scan_for(struct pool *pool, const struct evict_request *request)
{
	static const struct evict_request everybody = {.by_operator = true};

	pool->evict.source->back(pool);
	evict_scan(pool, general(request) ? &everybody : request);
	pool->evict.queue_general = general(request);
}

uint32_t evict_pages(struct pool *pool, const struct evict_request *request)
{
	struct evict_state *evict = &pool->evict;
	uint64_t begin = clock_ns();
	uint32_t taken = 0, empty = 0;
	/*
	 * Search the queue of an earlier scan only once: it may be long and contain little that this request may evict.
	 */
	bool reuse = queue_usable(evict, request, begin) &&
		(!request->whole || queue_suffices(pool, request, request->pages));
	bool fresh = false, none = !reuse;

	while (taken < request->pages || taken < request->pages + surplus(request, empty)) {
		bool needed = taken < request->pages;
		uint32_t most = needed ? UINT32_MAX : request->pages + surplus(request, empty) - taken;

		if (none && (!needed || fresh))
			break;
		if (none && scan_waits(pool, request, begin)) {
			evict->put_off = true;
			break;
		}
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
