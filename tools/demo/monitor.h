/* monitor.h - an observer of the agent: the state of pools and sessions, read by requests. */
#ifndef GPOOL_DEMO_MONITOR_H
#define GPOOL_DEMO_MONITOR_H

#include "client/gpool.h"
#include "tools/demo/run.h"

enum { MONITOR_POOLS = 2 };

struct monitor {
	struct gpool *handle;
	const char *pools[MONITOR_POOLS]; /* names, [count] */
	uint32_t count;
};

/* monitor_open() - attach as an observer. Return: 0 or the error of gpool_open(). */
int monitor_open(
	struct monitor *monitor, const char *directory, const char *const *pools, uint32_t count, int timeout_ms);
void monitor_close(struct monitor *monitor);

/*
 * monitor_sample() - read the pages of the sessions named names[0] and names[1]; only the page counts of *sample are
 * set. Return: 0, or the error of the request.
 */
int monitor_sample(struct monitor *monitor, const char *const names[BOARD_ENGINES], struct run_sample *sample);

/*
 * monitor_finish() - read the agent's counters and check its invariants, after both engines have ended. Return: 0 or an
 * error.
 */
int monitor_finish(struct monitor *monitor, struct run_agent *counted);

#endif
