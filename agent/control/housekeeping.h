/*
 * housekeeping.h - periodic work of the agent: the coarse clock, waiting requests, watermarks, pressure, idle leases,
 * leaked pins, disconnected sessions, jobs, objects and transfers. It runs regularly while a session is attached, and
 * otherwise only after agent_need_tick().
 */
#ifndef GPOOL_AGENT_HOUSEKEEPING_H
#define GPOOL_AGENT_HOUSEKEEPING_H

struct pool;

void housekeeping(struct pool *pool);

#endif
