/*
 * offer.h - chunks of a cache that no sequence uses: they are offered, so that the agent may take them while the cache
 * keeps their content. Internal to libgpool; the callers hold the cache's lock.
 *
 * A chunk is offered behind a fence on the cache's stream when none of its blocks is in use and at least one is cached.
 * It is reclaimed before a sequence gets one of its blocks. A chunk of which the agent took a handle is lost: the
 * blocks in it and all blocks that follow one of these, in whatever chunk, leave the cache.
 */
#ifndef GPOOL_CLIENT_KV_OFFER_H
#define GPOOL_CLIENT_KV_OFFER_H

#include "client/kv/kv.h"

/* offer_open() - 0, -ENOMEM; after prefix_open(). offer_close() - takes all zero, too. */
int offer_open(struct gpool_kv *kv);
void offer_close(struct gpool_kv *kv);

/* offer_chunks() - all chunks that can be offered are, behind the fence, as far as that is possible now. */
void offer_chunks(struct gpool_kv *kv, struct gpool_fence fence);

/*
 * offer_reclaim() - an offered chunk is held again: 0; -ENODATA: it was lost, and its blocks and what follows them have
 * left the cache; else an error, and nothing has changed. offer_use() - the same of any chunk that has memory; a hit in
 * it is noted for the agent.
 */
int offer_reclaim(struct gpool_kv *kv, uint32_t chunk);
int offer_use(struct gpool_kv *kv, uint32_t chunk);

/*
 * offer_drop_lost() - chunks in kv->lost have left the cache, with what follows them: own ones are holes, and places
 * leave.
 */
void offer_drop_lost(struct gpool_kv *kv);

/*
 * offer_settle() - reclaim the offered chunks that have no cached block. Each becomes an empty chunk, or a hole if the
 * agent has taken it. Stops at the first chunk that cannot be reclaimed now.
 */
void offer_settle(struct gpool_kv *kv);

/*
 * offer_look() - what the agent took by now has left the cache. Cost: one load if it took nothing from this session
 * since the last look; else a look at each offered handle, and, if a chunk is lost, at each block.
 */
void offer_look(struct gpool_kv *kv);

#endif
