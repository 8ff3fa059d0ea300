/*
 * prefix_make.h - random traces of prefixes (seeded): workloads that are each difficult for a cache in a different way.
 * A recipe makes the same trace on every machine.
 */
#ifndef GPOOL_TOOLS_LIB_PREFIX_MAKE_H
#define GPOOL_TOOLS_LIB_PREFIX_MAKE_H

#include <stdint.h>
#include <stdio.h>

/* Workloads are described in gpool-replay(1). */
struct prefix_workload;

enum { PREFIX_MAKE_REQUESTS_MAX = 1000000, PREFIX_MAKE_BLOCKS_MIN = 100, PREFIX_MAKE_BLOCKS_MAX = 1000000 };

struct prefix_recipe {
	const struct prefix_workload *workload;
	uint32_t requests; /* 1..PREFIX_MAKE_REQUESTS_MAX */
	/* size of the cache that the workload targets, PREFIX_MAKE_BLOCKS_MIN..PREFIX_MAKE_BLOCKS_MAX */
	uint32_t blocks;
	uint64_t seed;
};

/* prefix_workload_named() - return the workload of this name; NULL: unknown. */
const struct prefix_workload *prefix_workload_named(const char *name);

/*
 * prefix_make() - write a trace as text (prefix_trace.h). Return: 0, -EINVAL (an invalid recipe), -ENOMEM, or the errno
 * of the write.
 */
int prefix_make(const struct prefix_recipe *recipe, FILE *out);

#endif
