/*
 * preempt.h - the orders in which sequences are preempted and resumed. Internal to libgpool. The callers hold the
 * cache's lock.
 */
#ifndef GPOOL_CLIENT_KV_PREEMPT_H
#define GPOOL_CLIENT_KV_PREEMPT_H

#include "client/kv/kv.h"

/*
 * order_enter() - set the state of a sequence that is in no tree, and insert it into the tree of this state.
 * order_leave() - remove a sequence from its tree.
 */
void order_enter(struct gpool_kv *kv, struct kv_sequence *sequence, enum gpool_kv_state state);
void order_leave(struct gpool_kv *kv, struct kv_sequence *sequence);

/*
 * kv_victim() - find the running sequence with this number; 0: the sequence to preempt next. Return: 0, or as
 * gpool_kv_preempt().
 */
int kv_victim(struct gpool_kv *kv, uint64_t number, struct kv_sequence **sequence);
/*
 * kv_preempt() - preempt a sequence. Return the number of blocks that became free or cached. The memory of free blocks
 * stays committed until memory_park() is called.
 */
int kv_preempt(struct gpool_kv *kv, struct kv_sequence *sequence);

#endif
