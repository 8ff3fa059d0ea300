/*
 * offload_pool.h - blocks of the pool for the content of preempted sequences. Internal to libgpool. The callers hold
 * the cache's lock.
 *
 * The blocks have GPOOL_ALLOC_SPILL and are not pinned. When pages are needed, the agent evicts them like other blocks,
 * and the mover saves their content to host memory or a file. Only this cache has their handles.
 */
#ifndef GPOOL_CLIENT_KV_OFFLOAD_POOL_H
#define GPOOL_CLIENT_KV_OFFLOAD_POOL_H

#include "client/kv/offload.h"
#include "client/core/spill.h"

struct kv_piece {
	struct gpool_block block;
	bool coming;
	struct spill_fetch fetch; /* coming: a restore was started ahead of need */
};

/*
 * pieces_save() - allocate pieces for `saved` and queue the copies to them.
 * Return: 0, or as gpool_kv_offload(); on an error no pieces are allocated.
 */
int pieces_save(struct gpool_kv *kv, const struct kv_sequence *sequence, struct kv_saved *saved);
/*
 * pieces_load() - wait until all pieces are restored, and queue the copies from them.
 * Return: 0, -ESTALE or -EBADMSG (the content of a piece is lost), or as gpool_pin(); -EIO, -EINVAL.
 */
int pieces_load(struct gpool_kv *kv, const struct kv_sequence *sequence);
/* pieces_fetch() - see gpool_kv_prefetch(). */
int pieces_fetch(struct gpool_kv *kv, const struct kv_sequence *sequence);
/* pieces_forget() - free the pieces after the queued work. Waits for restores in progress. */
void pieces_forget(struct gpool_kv *kv, struct kv_saved *saved);

#endif
