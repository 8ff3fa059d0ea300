/* cells.c - see cells.h. */
#include "shm/policy/cells.h"

#include <string.h>

void cells_init(struct cells *cells, uint32_t count)
{
	memset(cells, 0, sizeof(*cells));
	cells->count = count;
	for (uint32_t cell = 0; cell < count; cell++)
		cells->order[cell] = cells->before[cell] = (uint8_t)cell;
}

static void fresh_add(struct cells *cells)
{
	for (uint32_t cell = 0; cell < cells->count; cell++) {
		cells->time[cell] += cells->fresh_time[cell];
		cells->touches[cell] += cells->fresh_touches[cell];
	}
	memset(cells->fresh_time, 0, sizeof(cells->fresh_time));
	memset(cells->fresh_touches, 0, sizeof(cells->fresh_touches));
}

/* The average rate, or that of a similar cell, counts as much as one touch. */
static void rates_make(struct cells *cells, float first_guess)
{
	float time = 1 / first_guess, touches = 1;

	for (uint32_t cell = 0; cell < cells->count; cell++) {
		time += cells->time[cell];
		touches += cells->touches[cell];
	}
	for (uint32_t cell = 0; cell < cells->count; cell++) {
		uint32_t before = cells->before[cell];
		float prior = before == cell ? touches / time : cells->rates[before];

		cells->rates[cell] = (cells->touches[cell] + 1) / (cells->time[cell] + 1 / prior);
	}
}

/* The order changes little from one time to the next, so insertion is fast. */
static void order_make(struct cells *cells)
{
	for (uint32_t i = 0; i < cells->count; i++) {
		uint8_t cell = cells->order[i];
		uint32_t place = i;

		for (; place && cells->rates[cells->order[place - 1]] > cells->rates[cell]; place--)
			cells->order[place] = cells->order[place - 1];
		cells->order[place] = cell;
	}
}

static void counts_decay(float counts[CELLS_MAX], float memory)
{
	/* Otherwise, counts that are too small to make a difference would become denormal, and slow. */
	for (uint32_t cell = 0; cell < CELLS_MAX; cell++)
		counts[cell] = counts[cell] < 1e-30f ? 0 : counts[cell] * memory;
}

void cells_learn(struct cells *cells, float first_guess, float memory)
{
	fresh_add(cells);
	rates_make(cells, first_guess);
	order_make(cells);
	counts_decay(cells->time, memory);
	counts_decay(cells->touches, memory);
}

float cells_hits(const struct cells *cells, float time)
{
	struct hits hits = {.time_left = time};

	for (uint32_t i = cells->count; i-- > 0 && hits.time_left > 0;)
		hits_add(&hits, cells->fresh_time[cells->order[i]], cells->fresh_touches[cells->order[i]]);
	return hits.touches;
}
