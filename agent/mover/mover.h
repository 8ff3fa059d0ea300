/*
 * mover.h - the process that moves bytes: one for each pool, which obeys the jobs of its ring (ring.h).
 */
#ifndef GPOOL_AGENT_MOVER_MOVER_H
#define GPOOL_AGENT_MOVER_MOVER_H

#include "agent/module.h"

/*
 * mover_run() - serve pools[start->pool] until SIGTERM, or until the keeper dies (then it is killed). Called in a forked child with default signals.
 * Of its pool it gets the segment mapped read-only, ring, bells, and of start->held the handles and tiers; of other pools, of
 * sessions and of the ledger nothing. Returns the exit status.
 */
int mover_run(const struct module_start *start);

#endif
