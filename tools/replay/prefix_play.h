/*
 * prefix_play.h - the requests of a trace, served by a cache of prefixes with one policy and one size. Only the cache's
 * directory is simulated, without memory.
 *
 * A request looks up its blocks in order; blocks before the first miss are hits. Then all of its blocks are inserted.
 * After the request, blocks are evicted until the capacity is met. There are no pins.
 */
#ifndef GPOOL_REPLAY_PREFIX_PLAY_H
#define GPOOL_REPLAY_PREFIX_PLAY_H

#include "shm/policy/eviction.h"
#include "tools/lib/prefix_trace.h"

#include <signal.h>
#include <stdbool.h>

enum { PREFIX_WINDOWS = 60 /* intervals of the chart */ };

struct prefix_plan {
	const struct prefix_trace *trace;
	const struct eviction_policy *policy;
	uint32_t capacity; /* in blocks, 1..PREFIX_CAPACITY_MAX */
	uint32_t history;  /* of simple policies, see prefix_simple_begin() */
	bool progress;     /* print progress on standard error */
	const volatile sig_atomic_t *interrupted;
};

#define PREFIX_CAPACITY_MAX (EVICTION_NODES_MAX / 2)

struct prefix_result {
	const struct eviction_policy *policy;
	uint32_t capacity;
	uint64_t hits, blocks; /* blocks: the total of all requests */
	uint64_t duration_ns;
	struct eviction_stats stats;
	uint32_t window_hits[PREFIX_WINDOWS], window_blocks[PREFIX_WINDOWS];
};

/*
 * prefix_play() - play the trace. Return: 0, -EINTR, -ENOMEM, -EFBIG (the cache and the longest request together exceed
 * the maximum number of nodes).
 */
int prefix_play(const struct prefix_plan *plan, struct prefix_result *result);

/* prefix_rate() - return hits / blocks. */
double prefix_rate(const struct prefix_result *result);

#endif
