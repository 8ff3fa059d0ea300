/*
 * prefix_optimum.h - the policy that knows the trace to its end: of the blocks that nothing hangs below, the one goes
 * that is needed last, or never again. What others can be measured against, and nothing that a cache could do.
 */
#ifndef GPOOL_REPLAY_PREFIX_OPTIMUM_H
#define GPOOL_REPLAY_PREFIX_OPTIMUM_H

#include "shm/policy/eviction.h"

extern const struct eviction_policy prefix_optimum;

/*
 * prefix_optimum_foresee() - before the first insertion. `next`: [keys] by key, when each will be needed next: any
 * numbers in order of time, EVICTION_NONE: never. Its owner brings it up to date before each insertion and touch.
 */
void prefix_optimum_foresee(struct eviction *eviction, const uint32_t *next);

#endif
