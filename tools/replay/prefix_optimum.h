/*
 * prefix_optimum.h - the policy that knows the whole trace: it evicts the leaf block whose next use is the latest, or
 * that is never used again. It is a reference for other policies, and not possible in a cache.
 */
#ifndef GPOOL_REPLAY_PREFIX_OPTIMUM_H
#define GPOOL_REPLAY_PREFIX_OPTIMUM_H

#include "shm/policy/eviction.h"

extern const struct eviction_policy prefix_optimum;

/*
 * prefix_optimum_foresee() - set the times of the next uses before the first insertion. `next`: [keys] time of the next
 * use, by key: numbers in order of time, EVICTION_NONE: never. Its owner updates it before each insertion and touch.
 */
void prefix_optimum_foresee(struct eviction *eviction, const uint32_t *next);

#endif
