/*
 * mover.h - the process that moves bytes: one for each pool, with the GPU context that the agent does without.
 */
#ifndef GPOOL_AGENT_MOVER_MOVER_H
#define GPOOL_AGENT_MOVER_MOVER_H

#include "agent/base/module.h"

/*
 * mover_run() - serve the ring of start->pool until SIGTERM. Called in a child that the keeper has just forked, and
 * which it makes its own: all descriptors and mappings but those of this pool are dropped.
 *
 * Of start->held it takes, of its pool: KEEP_HANDLE (id 0 alone may stand for all handles, where a back end lays them
 * one after the other behind one descriptor), KEEP_TIER 0 (memory) and 1 (file), each optional, with the number of its
 * slots in `value`, or 0: as many as the file's size holds. GPOOL_NO_URING=1 in the environment: the file by threads.
 *
 * Return: exit status. 0: told to end; 1: it cannot serve, or its GPU context is lost, and a successor should try.
 */
int mover_run(const struct module_start *start);

#endif
