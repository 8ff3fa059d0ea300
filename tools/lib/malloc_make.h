/*
 * malloc_make.h - random traces of allocations: sizes uniform up to some size, and at each step either one more
 * allocation or the end of one that lives, picked at random as well. The same recipe makes the same trace on every
 * machine.
 */
#ifndef GPOOL_TOOLS_LIB_MALLOC_MAKE_H
#define GPOOL_TOOLS_LIB_MALLOC_MAKE_H

#include "tools/lib/malloc_trace.h"

struct malloc_recipe {
	uint32_t allocations;      /* number of allocations; 0: no limit */
	uint64_t through;          /* sum of their bytes; 0: no limit */
	uint64_t least, most;      /* size of each, bytes, both included */
	uint64_t cap;              /* most that is live at once, bytes; at least `most` */
	uint32_t chance;           /* percent, 1 to 100, of an allocation where the cap allows one */
	uint32_t threads, streams; /* 1 thread at least; 0 streams: none */
	uint64_t seed;
};

/* malloc_make() - 0; -EINVAL (a recipe that cannot be), -EFBIG (more events than a trace has), -ENOMEM. */
int malloc_make(const struct malloc_recipe *recipe, struct malloc_trace *trace);

/* random_step() - splitmix64: the next of a sequence that any state begins. */
uint64_t random_step(uint64_t *state);

#endif
