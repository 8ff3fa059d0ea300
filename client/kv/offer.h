/*
 * offer.h - offer chunks that no sequence uses: the cache keeps their content until the agent takes them. Internal to
 * libgpool. The callers hold the cache's lock.
 *
 * A chunk is offered, with a fence on the cache's stream, when none of its blocks is in use and at least one is cached.
 * It is reclaimed before a sequence gets one of its blocks. A chunk is lost when the agent has taken one of its
 * handles. Its blocks, and all blocks in other chunks that follow one of them, are then removed from the cache.
 */
#ifndef GPOOL_CLIENT_KV_OFFER_H
#define GPOOL_CLIENT_KV_OFFER_H

#include "client/kv/kv.h"

/*
 * offer_open() - allocate the state, after prefix_open(). Return: 0, -ENOMEM.
 * offer_close() - free it; accepts a zeroed struct.
 */
int offer_open(struct gpool_kv *kv);
void offer_close(struct gpool_kv *kv);

/* offer_chunks() - offer all chunks that can be offered now, with the fence. */
void offer_chunks(struct gpool_kv *kv, struct gpool_fence fence);

/*
 * offer_reclaim() - hold an offered chunk again.
 * Return: 0; -ENODATA: the chunk was lost, and its blocks and their followers were removed from the cache; another
 * error: nothing has changed.
 * offer_use() - the same for any chunk that has memory; also records the use for the agent.
 */
int offer_reclaim(struct gpool_kv *kv, uint32_t chunk);
int offer_use(struct gpool_kv *kv, uint32_t chunk);

/*
 * offer_drop_lost() - remove the blocks of the chunks in kv->lost, and the blocks that follow them. The cache's own
 * chunks become holes; places (pooled.h) are released.
 */
void offer_drop_lost(struct gpool_kv *kv);

/*
 * offer_settle() - reclaim the offered chunks that have no cached block. Each becomes an empty chunk, or a hole if the
 * agent has taken it. Stops at the first chunk that cannot be reclaimed now.
 */
void offer_settle(struct gpool_kv *kv);

/*
 * offer_look() - remove the content that the agent has taken.
 * Cost: a few loads if nothing was evicted since the last call; otherwise linear in the number of offered handles or
 * places. If a chunk is lost, also linear in the number of blocks.
 */
void offer_look(struct gpool_kv *kv);

#endif
