/*
 * evict_window.c - make adjacent pages free; see evict_window() in evict.h.
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

/* Compute the cost of each page that is not reserved. */
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

		/* A scattered block is not evicted for a window, because its other extents are elsewhere. */
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
	evict_scan(pool, request);
	pool->evict.queue_general = false;
	window_costs(pool, request, costs);
	found = window_find(costs, pool->segment.header->reserved_first, need, first);
	free(costs);
	for (uint32_t i = 0; found && i < pool->evict.queue_count; i++) {
		const struct evict_candidate *candidate = &pool->evict.queue[i];

		const struct session *session = pool->sessions[candidate->session];

		if (session && !(candidate->tag & BLOCK_SCATTERED) && candidate->page < *first + need &&
			candidate->page + candidate->pages > *first &&
			evict_wanted(request, session, candidate->tag, candidate->pages))
			evict_block(pool, candidate);
	}
	if (found)
		pool->evict.source->evict_at(pool, *first, need);
	return found;
}
