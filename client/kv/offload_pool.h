/*
 * offload_pool.h - blocks of the pool for what preempted sequences contain. Internal to libgpool; the callers hold the
 * cache's lock.
 *
 * They are ordinary blocks with GPOOL_ALLOC_SPILL, which nobody pins: when pages are wanted, the agent evicts them as
 * any others, and the mover takes their content to host memory or file. Only this cache knows their handles.
 */
#ifndef GPOOL_CLIENT_KV_OFFLOAD_POOL_H
#define GPOOL_CLIENT_KV_OFFLOAD_POOL_H

#include "client/kv/offload.h"
#include "client/core/spill.h"

struct kv_piece {
	struct gpool_block block;
	bool coming;
	struct spill_fetch fetch; /* coming: it is brought back ahead of need */
};

/*
 * pieces_save() - pieces for what `saved` says, and copies there are queued: 0, or as gpool_kv_offload(), and it has
 * none.
 */
int pieces_save(struct gpool_kv *kv, const struct kv_sequence *sequence, struct kv_saved *saved);
/*
 * pieces_load() - restore all pieces, wait for that, and queue copies from them: 0, -ESTALE or -EBADMSG (of one the
 * content is lost), or as gpool_pin(); -EIO, -EINVAL.
 */
int pieces_load(struct gpool_kv *kv, const struct kv_sequence *sequence);
/* pieces_fetch() - as gpool_kv_prefetch(). */
int pieces_fetch(struct gpool_kv *kv, const struct kv_sequence *sequence);
/* pieces_forget() - they are freed, behind what is queued. Those on their way are waited for. */
void pieces_forget(struct gpool_kv *kv, struct kv_saved *saved);

#endif
