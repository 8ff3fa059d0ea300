/*
 * prefix_make.h - random traces of prefixes: workloads that are hard on a cache of some size, each in its own way. The
 * same recipe makes the same trace on every machine.
 */
#ifndef GPOOL_TOOLS_LIB_PREFIX_MAKE_H
#define GPOOL_TOOLS_LIB_PREFIX_MAKE_H

#include <stdint.h>
#include <stdio.h>

/* gpool-replay(1) describes each of them. */
struct prefix_workload;

enum { PREFIX_MAKE_REQUESTS_MAX = 1000000, PREFIX_MAKE_BLOCKS_MIN = 100, PREFIX_MAKE_BLOCKS_MAX = 1000000 };

struct prefix_recipe {
	const struct prefix_workload *workload;
	uint32_t requests; /* 1..PREFIX_MAKE_REQUESTS_MAX */
	uint32_t blocks;   /* size of the cache that it is made for, PREFIX_MAKE_BLOCKS_MIN..PREFIX_MAKE_BLOCKS_MAX */
	uint64_t seed;
};

/* prefix_workload_named() - NULL: another word. */
const struct prefix_workload *prefix_workload_named(const char *name);

/* prefix_make() - as text (prefix_trace.h): 0; -EINVAL (a recipe that cannot be), -ENOMEM, or why writing failed. */
int prefix_make(const struct prefix_recipe *recipe, FILE *out);

#endif
