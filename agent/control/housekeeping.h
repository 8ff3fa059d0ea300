/*
 * housekeeping.h - periodic work of the agent: the coarse clock, waiting requests, watermarks, pressure, idle leases,
 * leaked pins, disconnected sessions. The clock runs while a session is attached, and for one more tick.
 */
#ifndef GPOOL_AGENT_HOUSEKEEPING_H
#define GPOOL_AGENT_HOUSEKEEPING_H

struct pool;

void housekeeping(struct pool *pool);

#endif
