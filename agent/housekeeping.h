/*
 * housekeeping.h - what the agent does by the clock, while anybody is attached: the coarse clock, waiters, watermarks, pressure,
 * idle leases, leaked pins, closed connections.
 */
#ifndef GPOOL_AGENT_HOUSEKEEPING_H
#define GPOOL_AGENT_HOUSEKEEPING_H

struct pool;

void housekeeping(struct pool *pool);

#endif
