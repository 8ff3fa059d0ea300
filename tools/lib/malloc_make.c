#include "tools/lib/malloc_make.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

enum { STEP_NS = 1000 }; /* between consecutive events */

/* The live allocations in arbitrary order, so that a random one can be selected in constant time. */
struct making {
	const struct malloc_recipe *recipe;
	struct malloc_trace *trace;
	uint32_t capacity;
	uint64_t random;
	uint32_t *live; /* index of the malloc event */
	uint32_t live_count, live_capacity;
	uint64_t live_bytes, through;
	uint32_t made;
};

uint64_t random_step(uint64_t *state)
{
	uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return z ^ z >> 31;
}

/* Return a number from 0 to count - 1. The modulo favors low numbers by less than count / 2^64. */
static uint64_t random_below(struct making *making, uint64_t count)
{
	return random_step(&making->random) % count;
}

static bool recipe_right(const struct malloc_recipe *recipe)
{
	return (recipe->allocations || recipe->through) && recipe->least && recipe->least <= recipe->most &&
		recipe->most <= MALLOC_TRACE_BYTES_MAX && recipe->most <= recipe->cap && recipe->chance >= 1 &&
		recipe->chance <= 100 && recipe->threads >= 1 && recipe->threads <= MALLOC_TRACE_THREADS_MAX &&
		recipe->streams <= MALLOC_TRACE_STREAMS_MAX;
}

static int live_keep(struct making *making, uint32_t index)
{
	if (making->live_count == making->live_capacity) {
		uint32_t more = making->live_capacity ? making->live_capacity * 2 : 256;
		uint32_t *grown = realloc(making->live, more * sizeof(*grown));

		if (!grown)
			return -ENOMEM;
		making->live = grown;
		making->live_capacity = more;
	}
	making->live[making->live_count++] = index;
	return 0;
}

static int make_malloc(struct making *making, uint64_t bytes)
{
	const struct malloc_recipe *recipe = making->recipe;
	struct malloc_event event = {.time_ns = (uint64_t)making->trace->count * STEP_NS,
		.bytes = bytes,
		.twin = MALLOC_TRACE_NONE,
		.op = MALLOC_OP_MALLOC,
		.thread = (uint8_t)random_below(making, recipe->threads),
		.stream = recipe->streams ? (uint8_t)(1 + random_below(making, recipe->streams)) : 0};
	int error = malloc_trace_append(making->trace, &making->capacity, &event);

	if (!error)
		error = live_keep(making, making->trace->count - 1);
	making->live_bytes += bytes;
	making->through += bytes;
	making->made++;
	return error;
}

/* Free a live allocation, on a random thread and the allocation's own stream. */
static int make_free(struct making *making)
{
	uint32_t place = (uint32_t)random_below(making, making->live_count), index = making->live[place];
	struct malloc_event event = making->trace->events[index];
	int error;

	making->live[place] = making->live[--making->live_count];
	making->live_bytes -= event.bytes;
	event.time_ns = (uint64_t)making->trace->count * STEP_NS;
	event.twin = index;
	event.op = MALLOC_OP_FREE;
	event.thread = (uint8_t)random_below(making, making->recipe->threads);
	error = malloc_trace_append(making->trace, &making->capacity, &event);
	if (!error)
		making->trace->events[index].twin = making->trace->count - 1;
	return error;
}

static bool making_done(const struct making *making)
{
	const struct malloc_recipe *recipe = making->recipe;

	return (recipe->allocations && making->made >= recipe->allocations) ||
		(recipe->through && making->through >= recipe->through);
}

int malloc_make(const struct malloc_recipe *recipe, struct malloc_trace *trace)
{
	struct malloc_trace made = {0};
	struct making making = {.recipe = recipe, .trace = &made, .random = recipe->seed};
	int error = 0;

	if (!recipe_right(recipe))
		return -EINVAL;
	while (!error && !making_done(&making)) {
		uint64_t bytes = recipe->least + random_below(&making, recipe->most - recipe->least + 1);
		bool wanted = random_below(&making, 100) < recipe->chance;

		if (making.live_count == 0 || (wanted && making.live_bytes + bytes <= recipe->cap))
			error = make_malloc(&making, bytes);
		else
			error = make_free(&making);
	}
	free(making.live);
	if (error) {
		malloc_trace_free(&made);
		return error;
	}
	made.threads = recipe->threads;
	made.streams = recipe->streams;
	malloc_trace_finish(&made);
	*trace = made;
	return 0;
}
