/*
 * samples.h - the regions of an address space over time: lists of regions at up to SAMPLES_MAX times of a trace. Memory
 * is bounded: when there are SAMPLES_MAX lists, or the lists have SAMPLES_REGIONS_MAX regions in total, every second
 * list is discarded, and the interval is doubled.
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
	uint64_t time_ns; /* time in the trace */
	size_t first;     /* its regions: [first, first + count) of the array of all regions */
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
	int error; /* the first error, after which nothing is added */
};

/*
 * samples_init() - prepare samples for a trace that lasts span_ns.
 * samples_fini() - free them.
 */
void samples_init(struct samples *samples, uint64_t span_ns);
void samples_fini(struct samples *samples);

/* samples_due() - return true if the trace has reached the time of the next sample. Cost: one load. */
static inline int samples_due(const struct samples *samples, uint64_t time_ns)
{
	return time_ns >= atomic_load_explicit(&samples->next_ns, memory_order_relaxed);
}

/*
 * samples_take() - take a sample at this time of the trace. Threads: any; if several call it at once, one takes the
 * sample.
 */
void samples_take(struct samples *samples, uint64_t time_ns);

#endif
