/*
 * prefix_play.h - the requests of a trace through a cache of prefixes with one policy and one size. Only its directory:
 * there is no memory behind it.
 *
 * A request looks its blocks up in order; they are hits up to the first that is not there. Then all of them are in the
 * cache, and behind the request what is too much is evicted. Nothing is pinned.
 */
#ifndef GPOOL_REPLAY_PREFIX_PLAY_H
#define GPOOL_REPLAY_PREFIX_PLAY_H

#include "shm/policy/eviction.h"
#include "tools/lib/prefix_trace.h"

#include <signal.h>
#include <stdbool.h>

enum { PREFIX_WINDOWS = 60 /* parts of the trace's time, for the chart */ };

struct prefix_plan {
	const struct prefix_trace *trace;
	const struct eviction_policy *policy;
	uint32_t capacity; /* blocks, 1..PREFIX_CAPACITY_MAX */
	bool progress;     /* on standard error */
	const volatile sig_atomic_t *interrupted;
};

#define PREFIX_CAPACITY_MAX (EVICTION_NODES_MAX / 2)

struct prefix_result {
	const struct eviction_policy *policy;
	uint32_t capacity;
	uint64_t hits, blocks; /* blocks: of all requests */
	uint64_t duration_ns;
	struct eviction_stats stats;
	uint32_t window_hits[PREFIX_WINDOWS], window_blocks[PREFIX_WINDOWS];
};

/*
 * prefix_play() - 0, -EINTR, -ENOMEM, -EFBIG (the cache and the longest request together are more nodes than there can
 * be).
 */
int prefix_play(const struct prefix_plan *plan, struct prefix_result *result);

/* prefix_rate() - hits of all blocks. */
double prefix_rate(const struct prefix_result *result);

#endif
