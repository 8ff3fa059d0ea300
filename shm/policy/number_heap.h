/*
 * number_heap.h - small numbers ordered by their keys, the lowest key on top. A binary heap that knows the position of
 * each number, so that any of them can be removed. There are no locks: the owner has one.
 */
#ifndef GPOOL_POLICY_NUMBER_HEAP_H
#define GPOOL_POLICY_NUMBER_HEAP_H

#include <stdint.h>

struct number_heap {
	uint32_t *order;  /* [count] */
	uint32_t *places; /* [numbers] where in order; of members */
	uint64_t *keys;   /* [numbers] of members */
	uint32_t count;
};

/*
 * number_heap_init() - without a member, for numbers below `numbers`, 1 at least: 0, -ENOMEM. _fini() - takes all zero,
 * too.
 */
int number_heap_init(struct number_heap *heap, uint32_t numbers);
void number_heap_fini(struct number_heap *heap);

/* number_heap_add() - one that is none; number_heap_remove() - one that is. Cost: logarithmic. */
void number_heap_add(struct number_heap *heap, uint32_t number, uint64_t key);
void number_heap_remove(struct number_heap *heap, uint32_t number);

/* number_heap_lowest() - of those with the lowest key, one; there is a member. */
static inline uint32_t number_heap_lowest(const struct number_heap *heap)
{
	return heap->order[0];
}

#endif
