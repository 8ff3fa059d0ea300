/*
 * malloc_make.h - random traces of allocations (seeded). Sizes are uniform; each step is an allocation or the free of a
 * random live allocation. A recipe makes the same trace on every machine.
 */
#ifndef GPOOL_TOOLS_LIB_MALLOC_MAKE_H
#define GPOOL_TOOLS_LIB_MALLOC_MAKE_H

#include "tools/lib/malloc_trace.h"

struct malloc_recipe {
	uint32_t allocations;      /* number of allocations; 0: unlimited */
	uint64_t through;          /* total bytes of allocations; 0: unlimited */
	uint64_t least, most;      /* size of each allocation in bytes, inclusive */
	uint64_t cap;              /* maximum number of live bytes; at least `most` */
	uint32_t chance;           /* percent of steps, 1 to 100, that allocate if the cap permits it */
	uint32_t threads, streams; /* at least 1 thread; 0 streams: none */
	uint64_t seed;
};

/*
 * malloc_make() - make a trace. Return: 0, -EINVAL (an invalid recipe), -EFBIG (too many events for a trace), -ENOMEM.
 */
int malloc_make(const struct malloc_recipe *recipe, struct malloc_trace *trace);

/* random_step() - return the next number of splitmix64; any state is valid. */
uint64_t random_step(uint64_t *state);

#endif
