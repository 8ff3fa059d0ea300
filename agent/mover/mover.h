/*
 * mover.h - the process that copies pages. Each pool has one; unlike the agent, it has a GPU context.
 */
#ifndef GPOOL_AGENT_MOVER_MOVER_H
#define GPOOL_AGENT_MOVER_MOVER_H

#include "agent/base/module.h"

/*
 * mover_run() - serve the ring of start->pool until SIGTERM. Call it in a child that the keeper has just forked. It
 * closes all descriptors and mappings except those of this pool.
 *
 * It uses these items of its pool in start->held: KEEP_HANDLE (id 0 alone represents all handles if the back end has
 * them adjacent in one file), KEEP_TIER 0 (memory) and KEEP_TIER 1 (file). Tiers are optional; `value` is the number of
 * slots, or 0 for as many as fit into the file. If GPOOL_NO_URING=1 is set in the environment, threads access the file.
 *
 * Return: the exit status: 0 after SIGTERM; 1 if the mover cannot serve or has lost its GPU context, and a new one
 * should be started.
 */
int mover_run(const struct module_start *start);

#endif
