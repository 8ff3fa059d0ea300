#include "shm/policy/number_heap.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int number_heap_init(struct number_heap *heap, uint32_t numbers)
{
	memset(heap, 0, sizeof(*heap));
	heap->order = calloc(numbers, sizeof(*heap->order));
	heap->places = calloc(numbers, sizeof(*heap->places));
	heap->keys = calloc(numbers, sizeof(*heap->keys));
	if (heap->order && heap->places && heap->keys)
		return 0;
	number_heap_fini(heap);
	return -ENOMEM;
}

void number_heap_fini(struct number_heap *heap)
{
	free(heap->order);
	free(heap->places);
	free(heap->keys);
	memset(heap, 0, sizeof(*heap));
}

static uint64_t key_at(const struct number_heap *heap, uint32_t place)
{
	return heap->keys[heap->order[place]];
}

static void set(struct number_heap *heap, uint32_t place, uint32_t number)
{
	heap->order[place] = number;
	heap->places[number] = place;
}

/* Put a number at a free position, or move it up or down until the order is correct. */
static void settle(struct number_heap *heap, uint32_t place, uint32_t number)
{
	uint64_t key = heap->keys[number];

	for (; place && key_at(heap, (place - 1) / 2) > key; place = (place - 1) / 2)
		set(heap, place, heap->order[(place - 1) / 2]);
	for (;;) {
		uint32_t child = 2 * place + 1;

		if (child + 1 < heap->count && key_at(heap, child + 1) < key_at(heap, child))
			child++;
		if (child >= heap->count || key_at(heap, child) >= key)
			break;
		set(heap, place, heap->order[child]);
		place = child;
	}
	set(heap, place, number);
}

void number_heap_add(struct number_heap *heap, uint32_t number, uint64_t key)
{
	heap->keys[number] = key;
	heap->count++;
	settle(heap, heap->count - 1, number);
}

void number_heap_remove(struct number_heap *heap, uint32_t number)
{
	uint32_t place = heap->places[number], last = heap->order[--heap->count];

	if (last != number)
		settle(heap, place, last);
}
