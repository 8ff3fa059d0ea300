/*
 * pooled.h - chunks of a cache that other processes have too: named objects, mapped to be read behind the cache's own
 * chunks. Internal to libgpool; the callers hold the cache's lock.
 *
 * A chunk all of whose blocks follow each other in one chain can be published in the pool: its pages become an
 * ephemeral object, whose name is the key of its first block, and whose metadata are the keys of all. The objects'
 * records in the pool segment are the directory: the agent writes them, everybody reads them. What is not done with an
 * object is not known here: who has one open, what a death means and what is evicted is the agent's.
 *
 * Block numbers from kv->blocks.blocks on are places for such chunks. Of each:
 *
 *   unused    object NULL; or lost
 *   in use    a sequence has one of its blocks: the object is pinned. Or a block elsewhere follows one of them: then it
 *   is not, and the agent may
 *             evict it. The keys that this process came by itself, and only these, are in the table
 *   leaving   neither: without keys, and unmapped and closed when work that was queued by then is done. In use again if
 *             it is wanted
 *
 * A place whose object was evicted is without keys, and what followed its blocks is not in the cache, from the next
 * look on (offer.h).
 */
#ifndef GPOOL_CLIENT_KV_POOLED_H
#define GPOOL_CLIENT_KV_POOLED_H

#include "client/kv/kv.h"

struct prefix_walk;

/* A chunk's place. */
struct pooled_place {
	struct gpool_object *object;
	const struct prefix_key *keys; /* [chunk_blocks] in the object's manifest */
	uint32_t refs;                 /* of all its blocks */
	bool pinned;
	bool leaving, fenced;
	bool lost;                /* what was mapped there could not be unmapped: it is not used again */
	struct gpool_fence fence; /* fenced: behind it nothing is queued that looks there */
};

/* An own chunk whose pages are an object now. Its addresses are used again behind the fence. */
struct pooled_given {
	uint32_t chunk;
	bool fenced;
	struct gpool_fence fence;
};

struct pooled {
	struct pooled_place *places; /* [count] NULL: the cache shares with nobody */
	uint32_t count;
	uint32_t used;
	uint32_t *refs;             /* [count * chunk_blocks] */
	struct pooled_given *given; /* [chunks of the cache] */
	uint32_t given_count;
	uint64_t evictions_known; /* in the whole pool at the last look */
	uint64_t *refused;        /* [object_count] the version by this number that is not for this cache; 0: none */
};

/* pooled_open() - so many places: 0, -ENOMEM. After block_pool_init(). */
int pooled_open(struct gpool_kv *kv, uint32_t places);
/*
 * pooled_end() - all is unmapped and closed: 0, -EBUSY (GPU work that the program queued elsewhere still looks there).
 */
int pooled_end(struct gpool_kv *kv);
/* pooled_close() - the memory. What is open is unmapped, and ends with the session. Takes all zero, too. */
void pooled_close(struct gpool_kv *kv);

static inline bool is_pooled(const struct gpool_kv *kv, uint32_t block)
{
	return block >= kv->blocks.blocks;
}

/* kv_block_count() - numbers that blocks can have. */
static inline uint32_t kv_block_count(const struct gpool_kv *kv)
{
	return kv->blocks.blocks + (kv->pooled ? kv->pooled->count * kv->blocks.chunk_blocks : 0);
}

/* kv_refs() - of any block. */
static inline uint32_t kv_refs(const struct gpool_kv *kv, uint32_t block)
{
	return is_pooled(kv, block) ? kv->pooled->refs[block - kv->blocks.blocks] : kv->blocks.refs[block];
}

void pooled_ref(struct gpool_kv *kv, uint32_t block);
void pooled_unref(struct gpool_kv *kv, uint32_t block);
/* pooled_unfollowed() - of a block, perhaps of a place, a follower went: the place may leave. */
void pooled_unfollowed(struct gpool_kv *kv, uint32_t block);

/*
 * pooled_find() - a block with that key behind `before` (or PREFIX_NONE), out of a place, or out of the pool: it has
 * the key by then.
 * PREFIX_NONE: there is none, or none that could be used. May ask the agent; then it maps a chunk.
 */
uint32_t pooled_find(struct gpool_kv *kv, struct prefix_key key, uint32_t before);
/*
 * pooled_use() - of a block of a place with an object: that is pinned from now on: 0; -ENODATA: it was evicted, and its
 * blocks and what follows them have left the cache; -ETIMEDOUT. It is pinned until pooled_park() finds it without a
 * reference.
 */
int pooled_use(struct gpool_kv *kv, uint32_t block);
/*
 * pooled_lost() - places whose objects were evicted since the last look are added to kv->lost, by the numbers of chunks
 * that follow those of the cache's own. Cost: one load if nothing was evicted in the pool.
 */
void pooled_lost(struct gpool_kv *kv);
/* pooled_settle() - places that were found and that nobody took leave. */
void pooled_settle(struct gpool_kv *kv);
/* pooled_park() - a fence for what leaves, and what has one that is reached is gone. */
void pooled_park(struct gpool_kv *kv);

/*
 * pooled_share() - the blocks of a running sequence, whose keys are known, from `index` on: a whole chunk of its own,
 * in order. They become the pool's, or those that another process was first to publish take their place. All work that
 * writes them is done.
 * Return: 0, -ENOENT (no such chunk: nothing has changed), -ENOSPC (no place), or as gpool_object_publish().
 */
int pooled_share(struct gpool_kv *kv, struct kv_sequence *sequence, uint32_t index);

#endif
