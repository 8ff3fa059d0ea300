/*
 * evict_window.c - make adjacent pages or whole handles free; see evict_window() and evict_handles() in evict.h.
 */
#include "agent/pages/evict_scan.h"

#include "agent/pages/evict_block.h"
#include "agent/pages/trust.h"

#include <stdlib.h>

/*
 * Cost of a page: 0 if it has no content, otherwise WINDOW_LEAST to WINDOW_MOST according to its score, or
 * WINDOW_BLOCKED if it cannot be evicted. WINDOW_LEAST is above 0, so that of two places whose content has low scores,
 * the one with less content is chosen.
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

/* Return true if a page with this word is free or idle, or becomes free by a transfer. */
static bool is_there(const struct pool *pool, const struct evict_request *request, uint32_t page, uint64_t word)
{
	const struct session *session = pool->sessions[page_word_session(word)];

	if (page_word_state(word) == PAGE_FREE)
		return trust_reachable(pool, request->for_tenant->domain, page);
	return session && session->kind == SESSION_WORKER && session->state == SESSION_LIVE &&
		page_word_state(word) == PAGE_LEASED &&
		atomic_load_explicit(&session->segment.free_bits[page / 64], memory_order_relaxed) >> (page % 64) & 1;
}

/* Store the extents of a candidate in pool->runs, and return their number; 0: it has changed since the scan. */
static uint32_t extents(struct pool *pool, const struct evict_candidate *candidate)
{
	const struct session *session = pool->sessions[candidate->session];
	uint32_t budget = candidate->pages, run_count = 0;

	if (!session ||
		evict_block_walk(pool, session, candidate->page, candidate->tag, &budget, &run_count) !=
			candidate->pages)
		return 0;
	return run_count;
}

/*
 * Compute the cost of each page that is not reserved. scattered: scattered blocks may be evicted. Their other extents
 * are elsewhere, so they are not evicted for a window.
 */
static void window_costs(struct pool *pool, const struct evict_request *request, bool scattered, uint16_t *costs)
{
	float highest = highest_score(pool);

	pool->evict.source->window(pool, request);
	for (uint32_t page = 0; page < pool->segment.header->reserved_first; page++) {
		uint64_t word = pool_word(pool, page);

		costs[page] = is_there(pool, request, page, word) ? 0
			: pool->evict.source->window_has(pool, word)
			? window_cost(pool->evict.source->score(pool, word), highest)
			: WINDOW_BLOCKED;
	}
	for (uint32_t i = 0; i < pool->evict.queue_count; i++) {
		const struct evict_candidate *candidate = &pool->evict.queue[i];
		const struct session *session = pool->sessions[candidate->session];
		/* The scan has checked a single page, but the tenant rules apply to the whole block. */
		bool wanted = session && (scattered || !(candidate->tag & BLOCK_SCATTERED)) &&
			evict_wanted(request, session, candidate->tag, candidate->pages);
		uint32_t run_count = wanted ? extents(pool, candidate) : 0;

		for (uint32_t j = 0; j < run_count; j++)
			for (uint32_t page = pool->runs[j].first; page < pool->runs[j].first + pool->runs[j].count;
				page++)
				costs[page] = candidate->cached ? 0 : window_cost(candidate->score, highest);
	}
}

/* Return an array with the cost of each page, or NULL if memory is short. */
static uint16_t *costs_make(struct pool *pool, const struct evict_request *request, bool scattered)
{
	uint16_t *costs = malloc(pool->page_count * sizeof(*costs));

	if (!costs)
		return NULL;
	evict_scan(pool, request);
	pool->evict.queue_general = false;
	window_costs(pool, request, scattered, costs);
	return costs;
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

static void evict_wanted_block(
	struct pool *pool, const struct evict_request *request, const struct evict_candidate *candidate)
{
	const struct session *session = pool->sessions[candidate->session];

	if (session && evict_wanted(request, session, candidate->tag, candidate->pages))
		evict_block(pool, candidate);
}

bool evict_window(struct pool *pool, const struct evict_request *request, uint32_t need, uint32_t *first)
{
	uint16_t *costs = costs_make(pool, request, false);
	bool found = costs && window_find(costs, pool->segment.header->reserved_first, need, first);

	free(costs);
	for (uint32_t i = 0; found && i < pool->evict.queue_count; i++) {
		const struct evict_candidate *candidate = &pool->evict.queue[i];

		if (!(candidate->tag & BLOCK_SCATTERED) && candidate->page < *first + need &&
			candidate->page + candidate->pages > *first)
			evict_wanted_block(pool, request, candidate);
	}
	if (found) {
		pool->evict.source->mark(pool, *first, need);
		pool->evict.source->evict_marked(pool);
	}
	return found;
}

/* ---- whole handles ---- */

struct handle_cost {
	uint32_t cost, handle;
};

static int by_cost(const void *left, const void *right)
{
	const struct handle_cost *a = left, *b = right;

	return a->cost != b->cost ? (a->cost < b->cost ? -1 : 1) : a->handle < b->handle ? -1 : 1;
}

/* Choose the cheapest `count` handles without a page that cannot be evicted. Return false if there are fewer. */
static bool handles_find(const struct pool *pool, const uint16_t *costs, uint32_t count, uint64_t *chosen)
{
	uint32_t per_handle = pool->segment.header->pages_per_handle, found = 0;
	uint32_t handles = pool->segment.header->reserved_first / per_handle;
	struct handle_cost *order = malloc((handles + 1) * sizeof(*order));

	for (uint32_t handle = 0; order && handle < handles; handle++) {
		uint32_t cost = 0, page = handle * per_handle, end = page + per_handle;

		for (; page < end && costs[page] != WINDOW_BLOCKED; page++)
			cost += costs[page];
		if (page == end)
			order[found++] = (struct handle_cost){cost, handle};
	}
	if (found >= count && found) {
		qsort(order, found, sizeof(*order), by_cost);
		for (uint32_t i = 0; i < count; i++)
			chosen[order[i].handle / 64] |= UINT64_C(1) << (order[i].handle % 64);
	}
	free(order);
	return found >= count;
}

/* Return true if a page of the candidate is in a chosen handle. */
static bool is_in(struct pool *pool, const struct evict_candidate *candidate, const uint64_t *chosen)
{
	uint32_t per_handle = pool->segment.header->pages_per_handle, run_count = extents(pool, candidate);

	for (uint32_t i = 0; i < run_count; i++)
		for (uint32_t handle = pool->runs[i].first / per_handle;
			handle <= (pool->runs[i].first + pool->runs[i].count - 1) / per_handle; handle++)
			if (chosen[handle / 64] >> (handle % 64) & 1)
				return true;
	return false;
}

bool evict_handles(struct pool *pool, const struct evict_request *request, uint32_t count, uint64_t *chosen)
{
	uint32_t per_handle = pool->segment.header->pages_per_handle;
	uint16_t *costs = costs_make(pool, request, true);
	bool found = costs && handles_find(pool, costs, count, chosen);

	free(costs);
	for (uint32_t i = 0; found && i < pool->evict.queue_count; i++)
		if (is_in(pool, &pool->evict.queue[i], chosen))
			evict_wanted_block(pool, request, &pool->evict.queue[i]);
	for (uint32_t handle = 0; found && handle < pool->page_count / per_handle; handle++)
		if (chosen[handle / 64] >> (handle % 64) & 1)
			pool->evict.source->mark(pool, handle * per_handle, per_handle);
	if (found)
		pool->evict.source->evict_marked(pool);
	return found;
}
