/*
 * eviction_lru.c - evict the least recently touched candidate. The order is kept in a heap, because a parent becomes a
 * candidate when its last child is evicted, and may then have any position in the order.
 */
#include "shm/policy/eviction_policy.h"
#include "shm/policy/number_heap.h"

#include <errno.h>
#include <stdlib.h>

static void lru_fini(struct eviction *eviction)
{
	if (eviction->state)
		number_heap_fini(eviction->state);
	free(eviction->state);
	eviction->state = NULL;
}

static int lru_init(struct eviction *eviction)
{
	eviction->state = calloc(1, sizeof(struct number_heap));
	return eviction->state ? number_heap_init(eviction->state, eviction->node_count) : -ENOMEM;
}

static void lru_offered(struct eviction *eviction, uint32_t node)
{
	number_heap_add(eviction->state, node, eviction->nodes[node].touched);
}

static void lru_withdrawn(struct eviction *eviction, uint32_t node)
{
	number_heap_remove(eviction->state, node);
}

static uint32_t lru_victim(struct eviction *eviction)
{
	return number_heap_lowest(eviction->state);
}

static float lru_worth(const struct eviction *eviction, uint32_t node)
{
	return -(float)(eviction->clock - eviction->nodes[node].touched);
}

const struct eviction_policy eviction_lru = {
	.name = "lru",
	.init = lru_init,
	.fini = lru_fini,
	.offered = lru_offered,
	.withdrawn = lru_withdrawn,
	.victim = lru_victim,
	.worth = lru_worth,
};
