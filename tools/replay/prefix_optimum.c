#include "tools/replay/prefix_optimum.h"

#include "shm/policy/eviction_policy.h"
#include "shm/policy/number_heap.h"

#include <errno.h>
#include <stdlib.h>

struct optimum {
	struct number_heap heap; /* the top has the latest next use */
	const uint32_t *next;
};

static void optimum_fini(struct eviction *eviction)
{
	struct optimum *optimum = eviction->state;

	if (optimum)
		number_heap_fini(&optimum->heap);
	free(optimum);
	eviction->state = NULL;
}

static int optimum_init(struct eviction *eviction)
{
	struct optimum *optimum = eviction->state = calloc(1, sizeof(*optimum));

	return optimum ? number_heap_init(&optimum->heap, eviction->node_count) : -ENOMEM;
}

static void optimum_offered(struct eviction *eviction, uint32_t node)
{
	struct optimum *optimum = eviction->state;

	number_heap_add(&optimum->heap, node, UINT32_MAX - optimum->next[eviction->nodes[node].key]);
}

static void optimum_withdrawn(struct eviction *eviction, uint32_t node)
{
	number_heap_remove(&((struct optimum *)eviction->state)->heap, node);
}

static uint32_t optimum_victim(struct eviction *eviction)
{
	return number_heap_lowest(&((const struct optimum *)eviction->state)->heap);
}

void prefix_optimum_foresee(struct eviction *eviction, const uint32_t *next)
{
	((struct optimum *)eviction->state)->next = next;
}

const struct eviction_policy prefix_optimum = {
	.name = "optimum",
	.init = optimum_init,
	.fini = optimum_fini,
	.offered = optimum_offered,
	.withdrawn = optimum_withdrawn,
	.victim = optimum_victim,
};
