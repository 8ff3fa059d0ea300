/*
 * mover.h - the process that copies pages: one per pool, with the GPU context that the agent does not have.
 */
#ifndef GPOOL_AGENT_MOVER_MOVER_H
#define GPOOL_AGENT_MOVER_MOVER_H

#include "agent/base/module.h"

/*
 * mover_run() - serve the ring of start->pool until SIGTERM. Call it in a child that the keeper has just forked. It
 * closes all descriptors and mappings but those of this pool.
 *
 * It uses these items of start->held, for its pool: KEEP_HANDLE (id 0 alone may represent all handles, for a back end
 * that has them one after the other behind one descriptor), KEEP_TIER 0 (memory) and 1 (file). Tiers are optional;
 * `value` is the number of slots, or 0: as many as fit into the file. GPOOL_NO_URING=1 in the environment: use threads
 * for the file.
 *
 * Return: exit status. 0: stopped; 1: it cannot serve, or its GPU context is lost, and a successor should be started.
 */
int mover_run(const struct module_start *start);

#endif
