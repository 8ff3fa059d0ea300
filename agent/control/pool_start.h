/*
 * pool_start.h - create and destroy a pool, by calling the functions of each part of the agent in order.
 */
#ifndef GPOOL_AGENT_POOL_START_H
#define GPOOL_AGENT_POOL_START_H

#include "agent/pages/pool.h"

struct module_pool;

/*
 * pool_create() - take over the segment, create or adopt the physical pages, and recover the pool. Return: 0, or a
 * negative errno; *pool is then NULL.
 */
int pool_create(struct agent *agent, uint32_t index, const struct module_pool *start, struct pool **pool);
void pool_destroy(struct pool *pool);

#endif
