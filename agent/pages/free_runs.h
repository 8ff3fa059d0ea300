/*
 * free_runs.h - the index of free pages: runs of adjacent pages, found by length or by position.
 *
 * Adjacent runs are merged. Runs are in lists by length: one list for each length up to 64, and eight lists for each
 * power of two above. Arrays contain the length of each run at its ends, so adding, taking and merging take
 * nanoseconds, and no memory is allocated after free_runs_init().
 * Threads: the caller provides locking.
 */
#ifndef GPOOL_AGENT_FREE_RUNS_H
#define GPOOL_AGENT_FREE_RUNS_H

#include <stdbool.h>
#include <stdint.h>

enum { FREE_RUNS_EXACT = 64, FREE_RUNS_CLASSES = 256 };

struct free_runs {
	uint32_t low, pages;               /* the index covers the range [low, low + pages) */
	uint32_t total;                    /* number of free pages */
	uint32_t *length;                  /* [pages] length of a run, at its first and last page; otherwise 0 */
	uint32_t *next, *previous;         /* [pages] at the first page: neighbors in the list, as page + 1; 0: none */
	uint64_t *starts;                  /* bitmap of the first pages of runs, for first fit */
	uint32_t heads[FREE_RUNS_CLASSES]; /* first run of each list, as page + 1 */
	uint64_t filled[FREE_RUNS_CLASSES / 64];
};

/* free_runs_init() - initialize an empty index. Return: 0 or -ENOMEM. */
int free_runs_init(struct free_runs *runs, uint32_t low, uint32_t pages);
void free_runs_fini(struct free_runs *runs);

/* free_runs_put() - add pages [first, first + count). None of them may be in the index. */
void free_runs_put(struct free_runs *runs, uint32_t first, uint32_t count);

/*
 * free_runs_take() - take `count` adjacent pages from the shortest run that is long enough or, if first_fit is set,
 * from the lowest one. Return false if no run is long enough.
 */
bool free_runs_take(struct free_runs *runs, uint32_t count, bool first_fit, uint32_t *first);

/*
 * free_runs_take_longest() - take the longest run, or the first `most` pages of it. Return: the number of pages taken;
 * 0: the index is empty.
 */
uint32_t free_runs_take_longest(struct free_runs *runs, uint32_t most, uint32_t *first);

/* free_runs_remove() - remove pages [first, first + count). All of them must be in the index. */
void free_runs_remove(struct free_runs *runs, uint32_t first, uint32_t count);

uint32_t free_runs_longest(const struct free_runs *runs);

/* free_runs_next() - find the first run that begins at page `from` or after it. Return false if there is none. */
bool free_runs_next(const struct free_runs *runs, uint32_t from, uint32_t *first, uint32_t *count);

#endif
