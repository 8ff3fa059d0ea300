/*
 * pooled.h - chunks of a cache that are shared with other processes: named objects, mapped read-only behind the cache's
 * own chunks. Internal to libgpool; the callers hold the cache's lock.
 *
 * A chunk all of whose blocks follow each other in one chain can be published in the pool. Its pages become an
 * ephemeral object, whose name is the key of the chunk's first block, and whose metadata are the keys of all its
 * blocks. The records of objects in the pool segment are the directory: the agent writes them, all processes read them.
 * The agent alone tracks readers, deaths and evictions.
 *
 * Block numbers from kv->blocks.blocks on belong to places for such chunks. A place has one of these states:
 *
 *   unused    object is NULL, or the place is lost.
 *   in use    A sequence has one of its blocks: the object is pinned. Or a block of another chunk follows one of them:
 *             the object is not pinned, and the agent may evict it. The table has the keys that this process has
 *             computed itself, and only these.
 *   leaving   Neither: the place has no keys in the table. It is unmapped and closed when the work that was queued by
 *             then is done, or in use again if the chunk is needed.
 *
 * When an object was evicted, the next check (offer.h) removes the keys of its place and all blocks that followed.
 */
#ifndef GPOOL_CLIENT_KV_POOLED_H
#define GPOOL_CLIENT_KV_POOLED_H

#include "client/kv/kv.h"

struct prefix_walk;

/* A place for a chunk. */
struct pooled_place {
	struct gpool_object *object;
	const struct prefix_key *keys; /* [chunk_blocks], in the object's manifest */
	uint32_t refs;                 /* sum of the references to its blocks */
	bool pinned;
	bool leaving, fenced;
	bool lost;                /* the mapping could not be removed: the place is not used again */
	struct gpool_fence fence; /* fenced: all work that may use the addresses is queued before it */
};

/* An own chunk whose pages have become an object. Its addresses are used again when the fence is signaled. */
struct pooled_given {
	uint32_t chunk;
	bool fenced;
	struct gpool_fence fence;
};

struct pooled {
	struct pooled_place *places; /* [count] */
	uint32_t count;
	uint32_t used;
	uint32_t *refs;             /* [count * chunk_blocks] */
	struct pooled_given *given; /* [chunks of the cache] */
	uint32_t given_count;
	uint64_t evictions_known; /* the pool's number of evictions at the last check */
	uint64_t *refused;        /* [object_count] the version of each object that this cache cannot use; 0: none */
};

/* pooled_open() - create places: 0, -ENOMEM. Call it after block_pool_init(). */
int pooled_open(struct gpool_kv *kv, uint32_t places);
/*
 * pooled_end() - unmap and close all chunks: 0, -EBUSY (GPU work that the program queued elsewhere may still use them).
 */
int pooled_end(struct gpool_kv *kv);
/*
 * pooled_close() - free the state. Mapped chunks are unmapped; open objects are closed with the session. Accepts a
 * zeroed struct.
 */
void pooled_close(struct gpool_kv *kv);

static inline bool is_pooled(const struct gpool_kv *kv, uint32_t block)
{
	return block >= kv->blocks.blocks;
}

/* kv_block_count() - return the number of block numbers: own blocks and those of places. */
static inline uint32_t kv_block_count(const struct gpool_kv *kv)
{
	return kv->blocks.blocks + (kv->pooled ? kv->pooled->count * kv->blocks.chunk_blocks : 0);
}

/* kv_refs() - return the references to any block. */
static inline uint32_t kv_refs(const struct gpool_kv *kv, uint32_t block)
{
	return is_pooled(kv, block) ? kv->pooled->refs[block - kv->blocks.blocks] : kv->blocks.refs[block];
}

void pooled_ref(struct gpool_kv *kv, uint32_t block);
void pooled_unref(struct gpool_kv *kv, uint32_t block);
/*
 * pooled_unfollowed() - a block that followed `block` lost its key: if `block` belongs to a place, the place may be
 * left.
 */
void pooled_unfollowed(struct gpool_kv *kv, uint32_t block);

/*
 * pooled_find() - find the block with that key behind `before` (or PREFIX_NONE), in a place or in the pool, and enter
 * its key in the table.
 * Return: the block, or PREFIX_NONE if no usable one exists. May send a request to the agent and map a chunk.
 */
uint32_t pooled_find(struct gpool_kv *kv, struct prefix_key key, uint32_t before);
/*
 * pooled_use() - pin the object of a block's place.
 * Return: 0; -ENODATA: the object was evicted, and its blocks and their followers were removed from the cache;
 * -ETIMEDOUT. The object remains pinned until pooled_park() finds the place without references.
 */
int pooled_use(struct gpool_kv *kv, uint32_t block);
/*
 * pooled_lost() - add the places whose objects were evicted since the last call to kv->lost; their chunk numbers follow
 * the cache's own.
 * Cost: one load if nothing was evicted in the pool.
 */
void pooled_lost(struct gpool_kv *kv);
/* pooled_settle() - leave the places that were found and that no sequence uses. */
void pooled_settle(struct gpool_kv *kv);
/* pooled_park() - record a fence for leaving places, and close those whose fence is signaled. */
void pooled_park(struct gpool_kv *kv);

/*
 * pooled_share() - publish the blocks of a running sequence from `index` on, whose keys are known: a whole own chunk,
 * in order. If another process has published the same chunk first, use that one instead. All work that writes the
 * blocks is done.
 * Return: 0, -ENOENT (no such chunk: nothing has changed), -ENOSPC (no place), or as gpool_object_publish().
 */
int pooled_share(struct gpool_kv *kv, struct kv_sequence *sequence, uint32_t index);

#endif
