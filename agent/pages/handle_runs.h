/*
 * handle_runs.h - choose runs of pages that a process can map side by side.
 *
 * A handle is mapped as a whole. Pages of several runs are therefore at contiguous addresses only if each run but the
 * first begins at the start of a handle, and each run but the last ends at the end of one. If each handle has one page,
 * this holds for any runs.
 */
#ifndef GPOOL_AGENT_HANDLE_RUNS_H
#define GPOOL_AGENT_HANDLE_RUNS_H

#include "agent/base/ledger.h"

/* Runs of available pages. */
struct run_source {
	/* Find the first run that begins at page `from` or after it. Return false if there is none. */
	bool (*next)(const void *context, uint32_t from, struct page_run *run);
	const void *context;
};

struct run_want {
	uint32_t per_handle; /* pages in each handle */
	uint32_t need;       /* pages, at least 1 */
	bool aligned;        /* the first run must begin at the start of a handle */
	bool contiguous;     /* only one run */
};

/*
 * handle_runs_choose() - choose runs with `need` pages in total: the shortest run that contains all of them, or several
 * runs. Pages of handles that are available in part are used first, so that whole handles stay available.
 *
 * @runs: [need] receives the chosen runs in the order in which they are mapped
 *
 * Return: the number of runs; 0: no choice of the available pages can be mapped side by side.
 * Cost: two passes over the runs.
 */
uint32_t handle_runs_choose(const struct run_source *source, const struct run_want *want, struct page_run *runs);

#endif
