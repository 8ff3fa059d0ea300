/*
 * prefix.h - blocks that are found again by what is in them. Internal to libgpool; the callers hold the cache's lock.
 *
 * Invariants, proved by prefix_check():
 *   a sequence that has a block with a key has its parent too, in the place before; so no parent is cached while a
 *   child is in use a block is cached in kv->order exactly if it has a key, no reference, and memory of this cache (not
 *   pooled.h's); there children stand before their parents
 *   blocks with keys are full, and nobody writes to them
 */
#ifndef GPOOL_CLIENT_KV_PREFIX_H
#define GPOOL_CLIENT_KV_PREFIX_H

#include "client/kv/kv.h"

/* A chain being followed: blocks found so far, and the key of the last one of these. */
struct prefix_walk {
	const uint32_t *ids;
	uint32_t count; /* full blocks that the ids are */
	struct prefix_key root, last;
	uint32_t found, idle; /* idle: found without a reference, in memory of ours */
};

/* prefix_open() - with the options' model and limit: 0, -ENOMEM. prefix_close() - takes all zero, too. */
int prefix_open(struct gpool_kv *kv, const struct gpool_kv_options *options);
void prefix_close(struct gpool_kv *kv);

/* prefix_ref(), prefix_unref() - a sequence has a block (more); true: its last reference went. */
void prefix_ref(struct gpool_kv *kv, uint32_t block);
bool prefix_unref(struct gpool_kv *kv, uint32_t block);

/*
 * prefix_own() - this block with a key, or the nearest one before it, that is of the cache's own memory; or
 * PREFIX_NONE.
 */
uint32_t prefix_own(const struct gpool_kv *kv, uint32_t block);

/*
 * prefix_replace() - sequences that have block `from` in this place have `to` there instead, which has the same
 * content.
 */
void prefix_replace(struct gpool_kv *kv, uint32_t index, uint32_t from, uint32_t to);

/* prefix_inherit() - a fork has the blocks of its parent, and with them their keys. */
void prefix_inherit(struct kv_sequence *child, const struct kv_sequence *parent);

/*
 * prefix_evict() - so many cached blocks, of which there are so many, are free. prefix_limit() - what is beyond the
 * option's limit.
 */
void prefix_evict(struct gpool_kv *kv, uint32_t blocks);
void prefix_limit(struct gpool_kv *kv);

/*
 * prefix_take() - what the walk found is a sequence's first blocks, in the order of the chain, written to
 * entries[found]. prefix_untake() - and not, after all.
 */
void prefix_take(struct gpool_kv *kv, const struct prefix_walk *walk, int32_t *entries);
void prefix_untake(struct gpool_kv *kv, const struct prefix_walk *walk, const int32_t *entries);

/* prefix_check() - whether the invariants hold. Cost: a look at everything. */
bool prefix_check(struct gpool_kv *kv);

/*
 * sequence.c: sequence_allocate() - a sequence that begins with what a walk found. request_read() - 0, -EINVAL, -E2BIG.
 */
int sequence_allocate(
	struct gpool_kv *kv, const struct gpool_kv_request *request, const struct prefix_walk *walk, uint64_t *number);
int request_read(struct gpool_kv_request *read, const struct gpool_kv_request *request);

#endif
