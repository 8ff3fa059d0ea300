/*
 * prefix_optimum.h - the policy that knows the whole trace: it evicts the leaf block whose next use is latest, or that
 * is never used again. It is a reference for the other policies; a real cache cannot implement it.
 */
#ifndef GPOOL_REPLAY_PREFIX_OPTIMUM_H
#define GPOOL_REPLAY_PREFIX_OPTIMUM_H

#include "shm/policy/eviction.h"

extern const struct eviction_policy prefix_optimum;

/*
 * prefix_optimum_foresee() - set the times of next uses; call it before the first insertion. next: [keys] the time of
 * each key's next use, as ascending numbers; EVICTION_NONE: never used again. The owner of `next` updates it before
 * each insertion and touch.
 */
void prefix_optimum_foresee(struct eviction *eviction, const uint32_t *next);

#endif
