/*
 * latencies.h - how long calls took: buckets that grow with what they count, so that any number of calls takes the same
 * memory and a percentile is right within 1/32.
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
 * latencies_percentile() - the value that `share` (0..1) of all do not exceed, rounded up to its bucket's end; 0: there
 * are none.
 */
uint64_t latencies_percentile(const struct latencies *latencies, double share);
double latencies_mean(const struct latencies *latencies);

#endif
