/*
 * offload.h - what the blocks of preempted sequences contain, kept elsewhere. Internal to libgpool; the callers hold
 * the cache's lock.
 *
 * The content is one row of bytes, that of the blocks with the sequence's tokens in their order. It is cut into parts,
 * each of which is some memory of a place: slots of the cache's own host memory (offload_host.h), or blocks of the pool
 * (offload_pool.h).
 */
#ifndef GPOOL_CLIENT_KV_OFFLOAD_H
#define GPOOL_CLIENT_KV_OFFLOAD_H

#include "client/kv/extent.h"

/*
 * offload_close() - when nothing is queued any more. offload_end() - and what is kept in the pool is given up before:
 * the pool's handle stays.
 */
void offload_close(struct gpool_kv *kv);
void offload_end(struct gpool_kv *kv);

/*
 * offload_load() - copies into its blocks of now are queued, and nothing is kept any more: 0, also when nothing was.
 * Else it is kept: as gpool_kv_resume(). offload_forget() - it is not wanted any more.
 */
int offload_load(struct gpool_kv *kv, struct kv_sequence *sequence);
void offload_forget(struct gpool_kv *kv, struct kv_sequence *sequence);

#endif
