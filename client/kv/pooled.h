/*
 * pooled.h - chunks of a cache that are shared with other processes, as named objects. They are mapped read-only, at
 * addresses above those of the cache's own chunks. Internal to libgpool. The callers hold the cache's lock.
 *
 * A chunk can be published in the pool if all its blocks follow each other in one chain. Its pages become an ephemeral
 * object, whose name is the key of the chunk's first block, and whose metadata are the keys of all its blocks. The
 * records of objects in the pool segment serve as the directory: the agent writes them, and all processes read them.
 * Only the agent tracks readers, deaths and evictions.
 *
 * Block numbers from kv->blocks.blocks on belong to places for such chunks. A place has one of these states:
 *
 *   unused    The place has no object, or it is lost.
 *   in use    Either a sequence has one of its blocks, and the object is pinned; or a block of another chunk follows
 *             one of its blocks, and the object is not pinned, so that the agent may evict it. The table contains those
 *             of its keys that this process has computed itself, and no others.
 *   leaving   Neither of these applies, and the table has no keys of the place. It is unmapped and closed when the work
 *             that was queued before has finished, unless the chunk is needed again earlier.
 *
 * After an object was evicted, the next check (offer.h) removes the keys of its place and all blocks that follow them.
 */
#ifndef GPOOL_CLIENT_KV_POOLED_H
#define GPOOL_CLIENT_KV_POOLED_H

#include "client/kv/kv.h"

struct prefix_walk;

struct pooled_place {
	struct gpool_object *object;
	const struct prefix_key *keys; /* [chunk_blocks], in the object's manifest */
	uint32_t refs;                 /* sum of the references to its blocks */
	bool pinned;
	bool leaving, fenced;
	bool lost;                /* the mapping could not be removed, so the place is not used again */
	struct gpool_fence fence; /* if fenced: all work that may use the addresses is queued before this fence */
};

/* An own chunk whose pages have become an object. Its addresses are reused when the fence is signaled. */
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
	uint64_t evictions_known; /* number of evictions in the pool at the last check */
	uint64_t *refused;        /* [object_count] for each object, the version that this cache cannot use; 0: none */
};

/* pooled_open() - create places, after block_pool_init(). Return: 0, -ENOMEM. */
int pooled_open(struct gpool_kv *kv, uint32_t places);
/*
 * pooled_end() - unmap and close all places. Return: 0, -EBUSY (GPU work that the program queued on its own streams may
 * still use one).
 */
int pooled_end(struct gpool_kv *kv);
/*
 * pooled_close() - free the state and unmap all places. Their objects are closed when the session ends. Accepts a
 * zeroed struct.
 */
void pooled_close(struct gpool_kv *kv);

static inline bool is_pooled(const struct gpool_kv *kv, uint32_t block)
{
	return block >= kv->blocks.blocks;
}

/* kv_block_count() - return the first unused block number; own blocks and blocks in places have the numbers below. */
static inline uint32_t kv_block_count(const struct gpool_kv *kv)
{
	return kv->blocks.blocks + (kv->pooled ? kv->pooled->count * kv->blocks.chunk_blocks : 0);
}

/* kv_refs() - return the number of references to a block of any kind. */
static inline uint32_t kv_refs(const struct gpool_kv *kv, uint32_t block)
{
	return is_pooled(kv, block) ? kv->pooled->refs[block - kv->blocks.blocks] : kv->blocks.refs[block];
}

void pooled_ref(struct gpool_kv *kv, uint32_t block);
void pooled_unref(struct gpool_kv *kv, uint32_t block);
/*
 * pooled_unfollowed() - leave the place of `block` if the place is no longer needed; called after a block that followed
 * `block` lost its key.
 */
void pooled_unfollowed(struct gpool_kv *kv, uint32_t block);

/*
 * pooled_find() - find the block with this key, in a place or in the pool, and add its key to the table. before: the
 * block that it follows, or PREFIX_NONE. May send a request to the agent and map a chunk.
 * Return: the block, or PREFIX_NONE if no usable block exists.
 */
uint32_t pooled_find(struct gpool_kv *kv, struct prefix_key key, uint32_t before);
/*
 * pooled_use() - pin the object of a block's place. It stays pinned until pooled_park() finds the place without
 * references.
 * Return: 0; -ENODATA: the object was evicted, and its blocks and their followers were removed from the cache;
 * -ETIMEDOUT.
 */
int pooled_use(struct gpool_kv *kv, uint32_t block);
/*
 * pooled_lost() - add the places whose objects were evicted since the last call to kv->lost. Their chunk numbers follow
 * those of the cache.
 * Cost: one load if nothing was evicted in the pool; otherwise linear in the number of places.
 */
void pooled_lost(struct gpool_kv *kv);
/* pooled_settle() - leave the places that a lookup has opened and that no sequence uses. */
void pooled_settle(struct gpool_kv *kv);
/* pooled_park() - record a fence for places that are being left, and close those whose fence is signaled. */
void pooled_park(struct gpool_kv *kv);

/*
 * pooled_share() - publish the blocks of a running sequence from `index` on, which are a whole own chunk in order.
 * Their keys must be known, and all work that writes them must be done. If another process has published the same chunk
 * before, that chunk is used instead.
 * Return: 0, -ENOENT (no such chunk; nothing has changed), -ENOSPC (no place), or as gpool_object_publish().
 */
int pooled_share(struct gpool_kv *kv, struct kv_sequence *sequence, uint32_t index);

#endif
