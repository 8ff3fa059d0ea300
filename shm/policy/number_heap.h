/*
 * number_heap.h - small numbers ordered by their keys, the lowest key on top: a binary heap that stores the position of
 * each number, so that any of them can be removed. Threads: no locks; its owner has one.
 */
#ifndef GPOOL_POLICY_NUMBER_HEAP_H
#define GPOOL_POLICY_NUMBER_HEAP_H

#include <stdint.h>

struct number_heap {
	uint32_t *order;  /* [count] */
	uint32_t *places; /* [numbers] position in `order`, for members */
	uint64_t *keys;   /* [numbers] for members */
	uint32_t count;
};

/*
 * number_heap_init() - initialize an empty heap for numbers below `numbers`, at least 1: 0, -ENOMEM. number_heap_fini()
 * - free it; an all-zero struct is permitted.
 */
int number_heap_init(struct number_heap *heap, uint32_t numbers);
void number_heap_fini(struct number_heap *heap);

/* number_heap_add() - add a number that is not a member. number_heap_remove() - remove a member. Cost: logarithmic. */
void number_heap_add(struct number_heap *heap, uint32_t number, uint64_t key);
void number_heap_remove(struct number_heap *heap, uint32_t number);

/* number_heap_lowest() - return a member with the lowest key. There must be a member. */
static inline uint32_t number_heap_lowest(const struct number_heap *heap)
{
	return heap->order[0];
}

#endif
