/* pool_start.h - start and end of a pool: every room's part of it, in order. */
#ifndef GPOOL_AGENT_POOL_START_H
#define GPOOL_AGENT_POOL_START_H

#include "agent/pages/pool.h"

struct module_pool;

/*
 * pool_create() - take over the segment, create or adopt the physical pages, recover. *pool is NULL on failure, which
 * is logged.
 */
int pool_create(struct agent *agent, uint32_t index, const struct module_pool *start, struct pool **pool);
void pool_destroy(struct pool *pool);

#endif
