/*
 * cells.h - the rates at which groups of nodes are touched, and the touches of the nodes that these rates would keep.
 *
 * A cell is a group of nodes that are assumed to be touched at the same rate, whatever their age. The caller counts the
 * time that nodes spend in each cell and the touches there. Counts are fresh until the next cells_learn(). The rates do
 * not depend on fresh counts, so fresh counts can be used to measure how good the rates are.
 *
 * Threads: the caller provides locking.
 */
#ifndef GPOOL_POLICY_CELLS_H
#define GPOOL_POLICY_CELLS_H

#include <stdint.h>

enum { CELLS_MAX = 96 };

struct cells {
	uint32_t count;
	float time[CELLS_MAX], touches[CELLS_MAX]; /* counts, which decay, without fresh ones */
	float fresh_time[CELLS_MAX], fresh_touches[CELLS_MAX];
	float rates[CELLS_MAX];
	uint8_t order[CELLS_MAX];  /* by rate, lowest first */
	uint8_t before[CELLS_MAX]; /* a cell with a lower number and a similar rate, or the cell itself: none */
};

/* cells_init() - start with `count` cells, at most CELLS_MAX, without counts. The caller may then set `before`. */
void cells_init(struct cells *cells, uint32_t count);

/*
 * cells_learn() - make fresh counts a part of the rates, order the cells, and let the counts decay by a factor.
 *
 * @first_guess: rate of all cells, before anything is learned
 * @memory:      factor of the counts, 0 to 1
 */
void cells_learn(struct cells *cells, float first_guess, float memory);

/*
 * The touches of kept nodes, if those with the highest rates are kept: start with the time for which nodes can be kept,
 * and add groups of nodes in the order of their rates, highest first.
 */
struct hits {
	float time_left, touches;
};

static inline void hits_add(struct hits *hits, float time, float touches)
{
	if (time > hits->time_left) {
		touches *= hits->time_left / time;
		time = hits->time_left;
	}
	hits->touches += touches;
	hits->time_left -= time;
}

/* cells_hits() - return the fresh touches of kept nodes, if nodes could be kept for `time` in total. */
float cells_hits(const struct cells *cells, float time);

#endif
