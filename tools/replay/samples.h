/*
 * samples.h - what lay at which address in the course of a trace: a list of regions at each of up to SAMPLES_MAX
 * moments.
 *
 * Memory is bounded: when the lists have grown to SAMPLES_REGIONS_MAX regions in all, every second of them is given up
 * and from then on the interval is doubled.
 */
#ifndef GPOOL_REPLAY_SAMPLES_H
#define GPOOL_REPLAY_SAMPLES_H

#include "tools/lib/allocator.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

enum {
	SAMPLES_MAX = 480,
	SAMPLES_REGIONS_MAX = 4 << 20, /* 64 MiB */
};

struct sample_region {
	uint64_t address;
	uint64_t bytes_kind; /* bytes << 2 | enum region_kind */
};

struct sample {
	uint64_t time_ns; /* in the trace */
	size_t first;     /* its regions: [first, first + count) of all */
	size_t count;
	uint64_t live, mapped; /* bytes */
};

struct samples {
	struct allocator *allocator;
	uint64_t step_ns;
	_Atomic uint64_t next_ns;
	pthread_mutex_t lock;
	struct sample list[SAMPLES_MAX];
	size_t count;
	struct sample_region *regions;
	size_t region_count, region_capacity;
	int error; /* the first; after it nothing is added */
};

/* samples_init() - of a trace that lasts span_ns. samples_fini() - frees what belongs to it. */
void samples_init(struct samples *samples, uint64_t span_ns);
void samples_fini(struct samples *samples);

/* samples_due() - whether the trace has come to where the next is to be taken. One load. */
static inline int samples_due(const struct samples *samples, uint64_t time_ns)
{
	return time_ns >= atomic_load_explicit(&samples->next_ns, memory_order_relaxed);
}

/* samples_take() - one more, at this moment of the trace. Any thread; of several at once one does it. */
void samples_take(struct samples *samples, uint64_t time_ns);

#endif
