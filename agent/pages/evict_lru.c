/*
 * evict_lru.c - the policy `lru_size_aware` for blocks and objects: score = 0.6 recency + 0.2 size + 0.2 priority,
 * lowest first. The weights are configurable.
 *
 *   recency:  1 if just used, decreasing to 0 for the longest idle time among the candidates
 *   size:     1 for one page, decreasing to 0 for the largest candidate, whose eviction frees the most pages
 *   priority: evict_usage_value()
 */
#include "agent/config/config.h"
#include "agent/pages/evict.h"

#include <errno.h>
#include <stdlib.h>

struct weights {
	double recency, size, priority;
};

static int lru_create(uint32_t page_count, void **state)
{
	(void)page_count;
	*state = calloc(1, sizeof(struct weights));
	return *state ? 0 : -ENOMEM;
}

static void lru_configure(void *state, const struct config *config)
{
	struct weights *weights = state;

	weights->recency = config->eviction.recency;
	weights->size = config->eviction.size;
	weights->priority = config->eviction.priority;
}

static void lru_score(void *state, struct evict_candidate *candidates, uint32_t count)
{
	const struct weights *weights = state;
	double idle_most = 1, pages_most = 2;

	for (uint32_t i = 0; i < count; i++) {
		if (candidates[i].idle_ms > idle_most)
			idle_most = candidates[i].idle_ms;
		if (candidates[i].pages > pages_most)
			pages_most = candidates[i].pages;
	}
	for (uint32_t i = 0; i < count; i++)
		candidates[i].score = (float)(weights->recency * (1 - candidates[i].idle_ms / idle_most) +
			weights->size * (1 - (candidates[i].pages - 1) / (pages_most - 1)) +
			weights->priority * evict_usage_value(&candidates[i]));
}

const struct evict_policy evict_lru_size_aware = {
	.name = "lru_size_aware",
	.objects = "lru",
	.create = lru_create,
	.destroy = free,
	.configure = lru_configure,
	.score = lru_score,
};
