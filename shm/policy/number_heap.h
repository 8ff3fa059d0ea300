/*
 * number_heap.h - a binary heap of small numbers, ordered by their keys with the lowest key on top. It stores the
 * position of each number, so that any number can be removed. The caller provides locking.
 */
#ifndef GPOOL_POLICY_NUMBER_HEAP_H
#define GPOOL_POLICY_NUMBER_HEAP_H

#include <stdint.h>

struct number_heap {
	uint32_t *order;  /* [count] */
	uint32_t *places; /* [numbers] position of each member in `order` */
	uint64_t *keys;   /* [numbers] key of each member */
	uint32_t count;
};

/*
 * number_heap_init() - initialize an empty heap of numbers below `numbers`, at least 1. Return: 0, -ENOMEM.
 * number_heap_fini() - free it; accepts a zeroed struct.
 */
int number_heap_init(struct number_heap *heap, uint32_t numbers);
void number_heap_fini(struct number_heap *heap);

/*
 * number_heap_add() - add a number that is not a member.
 * number_heap_remove() - remove a member.
 * Cost: logarithmic.
 */
void number_heap_add(struct number_heap *heap, uint32_t number, uint64_t key);
void number_heap_remove(struct number_heap *heap, uint32_t number);

/* number_heap_lowest() - return a member with the lowest key. The heap must not be empty. */
static inline uint32_t number_heap_lowest(const struct number_heap *heap)
{
	return heap->order[0];
}

#endif
