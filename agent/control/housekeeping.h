/*
 * housekeeping.h - what the agent does by the clock: the coarse clock, waiters, watermarks, pressure, idle leases,
 * leaked pins, closed connections. The clock runs while a session is attached, and once more after the last one has
 * left.
 */
#ifndef GPOOL_AGENT_HOUSEKEEPING_H
#define GPOOL_AGENT_HOUSEKEEPING_H

struct pool;

void housekeeping(struct pool *pool);

#endif
