/*
 * free_runs.h - the agent's index of free pages: runs of neighbours, found by length or by place.
 *
 * Runs are kept whole: a run that is put next to another joins it. Lists are segregated by length (each length up to 64
 * has its own, longer ones eight per power of two), with boundary tags in arrays, so that putting, taking and joining
 * cost nanoseconds and no memory is allocated after init. One owner, no thread-safety.
 */
#ifndef GPOOL_AGENT_FREE_RUNS_H
#define GPOOL_AGENT_FREE_RUNS_H

#include <stdbool.h>
#include <stdint.h>

enum { FREE_RUNS_EXACT = 64, FREE_RUNS_CLASSES = 256 };

struct free_runs {
	uint32_t low, pages;               /* the range [low, low + pages) that may be put here */
	uint32_t total;                    /* pages free now */
	uint32_t *length;                  /* [pages] at the first and at the last page of a run: its length; else 0 */
	uint32_t *next, *previous;         /* [pages] at the first page: neighbours in its list, as page + 1; 0: none */
	uint64_t *starts;                  /* bitmap of first pages, for first fit */
	uint32_t heads[FREE_RUNS_CLASSES]; /* page + 1 */
	uint64_t filled[FREE_RUNS_CLASSES / 64];
};

/* Empty. 0 or -ENOMEM. */
int free_runs_init(struct free_runs *runs, uint32_t low, uint32_t pages);
void free_runs_fini(struct free_runs *runs);

/* free_runs_put() - pages [first, first + count), none of which is in it. */
void free_runs_put(struct free_runs *runs, uint32_t first, uint32_t count);

/*
 * free_runs_take() - `count` pages in a row: from the shortest run that holds them, or the lowest. False: no run is so
 * long.
 */
bool free_runs_take(struct free_runs *runs, uint32_t count, bool first_fit, uint32_t *first);

/* free_runs_take_longest() - the longest run, or `most` pages of it. Returns its length, 0 when all is lent. */
uint32_t free_runs_take_longest(struct free_runs *runs, uint32_t most, uint32_t *first);

/* free_runs_remove() - pages [first, first + count), all of which are in it and next to each other. */
void free_runs_remove(struct free_runs *runs, uint32_t first, uint32_t count);

uint32_t free_runs_longest(const struct free_runs *runs);

#endif
