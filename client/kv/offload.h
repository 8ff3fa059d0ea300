/*
 * offload.h - what the blocks of preempted sequences contain, in host memory. Internal to libgpool; the callers hold the cache's lock.
 */
#ifndef GPOOL_CLIENT_KV_OFFLOAD_H
#define GPOOL_CLIENT_KV_OFFLOAD_H

#include "client/kv/kv.h"

struct kv_offload;

/* offload_close() - when nothing is queued any more; NULL is fine. */
void offload_close(struct gpool_kv *kv);

/* offload_has() - whether there is a content to be brought back. */
bool offload_has(const struct gpool_kv *kv, const struct kv_sequence *sequence);

/* offload_save() - copies of the blocks with its tokens are queued: 0, -ENOSPC, -ENOMEM, -EIO, -EINVAL (the stream is closed): it has none. */
int offload_save(struct gpool_kv *kv, const struct kv_sequence *sequence, uint32_t tokens);

/* offload_load() - copies into its blocks of now are queued: 0, -EIO, -EINVAL. offload_forget() - the content is not wanted any more. */
int offload_load(struct gpool_kv *kv, const struct kv_sequence *sequence);
void offload_forget(struct gpool_kv *kv, const struct kv_sequence *sequence);

#endif
