/*
 * housekeeping.h - the agent's periodic work: the coarse clock, waiters, watermarks, pressure, idle leases, leaked
 * pins, closed connections. The clock runs while a session is attached, and for one more tick after the last one has
 * detached.
 */
#ifndef GPOOL_AGENT_HOUSEKEEPING_H
#define GPOOL_AGENT_HOUSEKEEPING_H

struct pool;

void housekeeping(struct pool *pool);

#endif
