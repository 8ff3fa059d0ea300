/*
 * evict_scan.c - list the candidates for eviction; see evict_scan.h.
 */
#include "agent/pages/evict_scan.h"

#include "agent/pages/evict_block.h"
#include "agent/pages/trust.h"

#include <stdlib.h>
#include <time.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

/*
 * Return the borrowed pages per unit of weight. Of two tenants with the same priority, that with the higher value may
 * lose pages to the other.
 */
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

bool evict_wanted(const struct evict_request *request, const struct session *session, uint64_t tag, uint32_t pages)
{
	if (request->only && request->only != session)
		return false;
	if (request->within && session->tenant != request->for_tenant)
		return false;
	if (request->for_tenant && !trust_useful(session->pool, request->for_tenant->domain, session))
		return false;
	if (evict_tag_is_free(tag))
		return !request->usages;
	if (request->cached_only || request->own_last == session || (request->spare_offered && tag & BLOCK_RANGE))
		return false;
	if (request->usages && !(request->usages >> (tag & BLOCK_TYPE_MASK) & 1))
		return false;
	return request->by_operator || evict_tenant_may_lose(session->tenant, request->for_tenant, pages);
}

static int by_score(const void *left, const void *right)
{
	return evict_order(left, right);
}

/* Move cached runs to the front and return their number. Policies do not score them, because they have no content. */
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

/*
 * Return the idle time in milliseconds. The clock is coarse and the time stamp is not trusted, so a negative time
 * counts as 0.
 */
static uint32_t idle_of(uint32_t now, uint32_t touched)
{
	return now - touched > INT32_MAX ? 0 : now - touched;
}

/*
 * Return a key for the content of a block: its owner id and usage or, without an owner id, its tag, which stays the
 * same when the block is spilled. The key includes the tenant, because different tenants may use the same ids.
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

/*
 * Return the CPU time of this thread, so that the measured cost of a scan excludes the time in which it was preempted.
 */
static uint64_t cpu_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

void evict_scan(struct pool *pool, const struct evict_request *request)
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
		if (evict->policy->see && block_tag_is_block(tag) && !(tag & BLOCK_EXTENT) && !evict_tag_is_free(tag))
			evict->sights[seen++] = sight_of(session, page, tag, now);
		if (!tag || !evict_tag_evictable(tag) || !evict_wanted(request, session, tag, 1) ||
			!evict_block_idle(session, page))
			continue;
		if (session->walk_scan != evict->scan_count) {
			session->walk_scan = evict->scan_count;
			session->walk_budget = session->leased;
		}
		pages = evict_block_walk(pool, session, page, tag, &session->walk_budget, NULL);
		if (!pages || (evict_tag_spills(tag) && !pool->saver->possible(pool, page, pages)))
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
			.cached = evict_tag_is_free(tag),
		};
	}
	/*
	 * Append the objects, so that they are scored together with the blocks. The array is large enough, because each
	 * object has its own pages.
	 */
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
