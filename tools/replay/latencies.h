/*
 * latencies.h - a histogram of latencies whose bucket width grows with the latency. Its size does not depend on the
 * number of calls, and percentiles are accurate to 1/32.
 */
#ifndef GPOOL_REPLAY_LATENCIES_H
#define GPOOL_REPLAY_LATENCIES_H

#include <stdint.h>

enum {
	LATENCIES_SUB_BITS = 5, /* 32 buckets for each power of two */
	LATENCIES_BUCKETS = (64 - LATENCIES_SUB_BITS + 1) << LATENCIES_SUB_BITS,
};

struct latencies {
	uint64_t count, sum, most;
	uint64_t buckets[LATENCIES_BUCKETS];
};

void latencies_add(struct latencies *latencies, uint64_t value);
void latencies_merge(struct latencies *latencies, const struct latencies *other);
/*
 * latencies_percentile() - return the value that a `share` (0..1) of all latencies does not exceed, rounded up to the
 * end of its bucket; 0 if there are no latencies.
 */
uint64_t latencies_percentile(const struct latencies *latencies, double share);
double latencies_mean(const struct latencies *latencies);

#endif
