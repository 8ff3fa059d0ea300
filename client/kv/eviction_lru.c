/*
 * eviction_lru.c - the candidate that was touched longest ago. A heap, since a parent that becomes a candidate when its last
 * child goes stands anywhere in the order.
 */
#include "client/kv/eviction_policy.h"

#include <errno.h>
#include <stdlib.h>

struct lru {
	uint32_t *heap;   /* [count] nodes, the one touched first on top */
	uint32_t *places; /* [node_count] of candidates: index in heap */
	uint32_t count;
};

static void lru_fini(struct eviction *eviction)
{
	struct lru *lru = eviction->state;

	if (!lru)
		return;
	free(lru->heap);
	free(lru->places);
	free(lru);
	eviction->state = NULL;
}

static int lru_init(struct eviction *eviction)
{
	struct lru *lru = eviction->state = calloc(1, sizeof(*lru));

	if (!lru)
		return -ENOMEM;
	lru->heap = calloc(eviction->node_count, sizeof(*lru->heap));
	lru->places = calloc(eviction->node_count, sizeof(*lru->places));
	return lru->heap && lru->places ? 0 : -ENOMEM;
}

static void heap_set(struct lru *lru, uint32_t place, uint32_t node)
{
	lru->heap[place] = node;
	lru->places[node] = place;
}

/* Puts a node at a place that is free, or at one above or below where the order wants it. */
static void heap_settle(struct eviction *eviction, uint32_t place, uint32_t node)
{
	struct lru *lru = eviction->state;
	uint64_t touched = eviction->nodes[node].touched;

	while (place && eviction->nodes[lru->heap[(place - 1) / 2]].touched > touched) {
		heap_set(lru, place, lru->heap[(place - 1) / 2]);
		place = (place - 1) / 2;
	}
	for (;;) {
		uint32_t child = 2 * place + 1;

		if (child + 1 < lru->count && eviction->nodes[lru->heap[child + 1]].touched < eviction->nodes[lru->heap[child]].touched)
			child++;
		if (child >= lru->count || eviction->nodes[lru->heap[child]].touched > touched)
			break;
		heap_set(lru, place, lru->heap[child]);
		place = child;
	}
	heap_set(lru, place, node);
}

static void lru_offered(struct eviction *eviction, uint32_t node)
{
	struct lru *lru = eviction->state;

	lru->count++;
	heap_settle(eviction, lru->count - 1, node);
}

static void lru_withdrawn(struct eviction *eviction, uint32_t node)
{
	struct lru *lru = eviction->state;
	uint32_t place = lru->places[node], last = lru->heap[--lru->count];

	if (last != node)
		heap_settle(eviction, place, last);
}

static uint32_t lru_victim(struct eviction *eviction)
{
	return ((const struct lru *)eviction->state)->heap[0];
}

const struct eviction_policy eviction_lru = {
	.name = "lru",
	.init = lru_init,
	.fini = lru_fini,
	.offered = lru_offered,
	.withdrawn = lru_withdrawn,
	.victim = lru_victim,
};
