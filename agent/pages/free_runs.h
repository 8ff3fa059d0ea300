/*
 * free_runs.h - the agent's index of free pages: runs of adjacent pages, found by length or by position.
 *
 * A run that is added next to another one is merged with it. Lists are segregated by length (each length up to 64 has
 * its own, longer ones eight per power of two), with boundary tags in arrays, so that adding, taking and merging take
 * nanoseconds, and no memory is allocated after init. Threads: one owner.
 */
#ifndef GPOOL_AGENT_FREE_RUNS_H
#define GPOOL_AGENT_FREE_RUNS_H

#include <stdbool.h>
#include <stdint.h>

enum { FREE_RUNS_EXACT = 64, FREE_RUNS_CLASSES = 256 };

struct free_runs {
	uint32_t low, pages;               /* the range [low, low + pages) of the index */
	uint32_t total;                    /* number of free pages */
	uint32_t *length;                  /* [pages] at the first and at the last page of a run: its length; else 0 */
	uint32_t *next, *previous;         /* [pages] at the first page: neighbours in its list, as page + 1; 0: none */
	uint64_t *starts;                  /* bitmap of first pages, for first fit */
	uint32_t heads[FREE_RUNS_CLASSES]; /* page + 1 */
	uint64_t filled[FREE_RUNS_CLASSES / 64];
};

/* free_runs_init() - initialize an empty index. 0 or -ENOMEM. */
int free_runs_init(struct free_runs *runs, uint32_t low, uint32_t pages);
void free_runs_fini(struct free_runs *runs);

/* free_runs_put() - add pages [first, first + count), none of which is in the index. */
void free_runs_put(struct free_runs *runs, uint32_t first, uint32_t count);

/*
 * free_runs_take() - take `count` adjacent pages from the shortest run that is long enough, or the lowest. False: no
 * run is long enough.
 */
bool free_runs_take(struct free_runs *runs, uint32_t count, bool first_fit, uint32_t *first);

/* free_runs_take_longest() - take the longest run, or `most` pages of it. Return: its length, 0: no page is free. */
uint32_t free_runs_take_longest(struct free_runs *runs, uint32_t most, uint32_t *first);

/* free_runs_remove() - remove pages [first, first + count), all of which are in the index. */
void free_runs_remove(struct free_runs *runs, uint32_t first, uint32_t count);

uint32_t free_runs_longest(const struct free_runs *runs);

#endif
