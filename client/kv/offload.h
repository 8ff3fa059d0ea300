/*
 * offload.h - save the content of preempted sequences. Internal to libgpool. The callers hold the cache's lock.
 *
 * The content consists of the blocks with the sequence's tokens, in order. It is divided into parts, each of which is
 * stored in slots of the cache's own host memory (offload_host.h) or in a block of the pool (offload_pool.h).
 */
#ifndef GPOOL_CLIENT_KV_OFFLOAD_H
#define GPOOL_CLIENT_KV_OFFLOAD_H

#include "client/kv/extent.h"

/*
 * offload_close() - free the host memory. All queued copies must have finished.
 * offload_end() - free the saved content, including the blocks in the pool, while the pool is open.
 */
void offload_close(struct gpool_kv *kv);
void offload_end(struct gpool_kv *kv);

/*
 * offload_check() - check the flags of gpool_kv_offload(), and that the cache has memory for them. Return: 0, -EINVAL,
 * -EOPNOTSUPP.
 * offload_preempt() - preempt a running sequence as gpool_kv_offload(). Return: as kv_preempt(); on an error, the
 * sequence is still running.
 */
int offload_check(const struct gpool_kv *kv, uint32_t flags);
int offload_preempt(struct gpool_kv *kv, struct kv_sequence *sequence, uint32_t flags);

/*
 * offload_load() - queue the copies of the saved content into the sequence's current blocks, and forget the saved
 * content.
 * Return: 0, even if nothing was saved; -ENODATA: the content is lost; otherwise as gpool_kv_resume(), and the content
 * remains saved.
 * offload_forget() - free the saved content.
 */
int offload_load(struct gpool_kv *kv, struct kv_sequence *sequence);
void offload_forget(struct gpool_kv *kv, struct kv_sequence *sequence);

#endif
