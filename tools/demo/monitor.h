/*
 * monitor.h - an observer of the agent: what it says about pools and sessions, over the control channel.
 */
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

/* monitor_open() - attach as an observer. Return: 0 or what gpool_open() said. */
int monitor_open(
	struct monitor *monitor, const char *directory, const char *const *pools, uint32_t count, int timeout_ms);
void monitor_close(struct monitor *monitor);

/*
 * monitor_sample() - pages of the sessions called names[0] and names[1]; fills only the page counts of *sample.
 * Return: 0, or what the request said.
 */
int monitor_sample(struct monitor *monitor, const char *const names[BOARD_ENGINES], struct run_sample *sample);

/* monitor_finish() - the agent's counters and the check of its invariants, once both engines have ended. Return: 0 or
 * an error.
 */
int monitor_finish(struct monitor *monitor, struct run_agent *counted);

#endif
