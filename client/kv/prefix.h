/*
 * prefix.h - find blocks by their content. Internal to libgpool. The callers hold the cache's lock.
 *
 * Invariants, checked by prefix_check():
 *
 * - If a sequence has a block with a key, it has the block's parent at the index before. Therefore no parent is cached
 *   while one of its children is in use.
 * - A block is cached in kv->order if and only if it has a key, no reference, and memory of this cache (not of
 *   pooled.h). Children are ordered before their parents.
 * - Blocks with keys are full and are not written.
 */
#ifndef GPOOL_CLIENT_KV_PREFIX_H
#define GPOOL_CLIENT_KV_PREFIX_H

#include "client/kv/kv.h"

/* The state of a lookup along a chain: the blocks found so far, and the key of the last of them. */
struct prefix_walk {
	const uint32_t *ids;
	uint32_t count; /* number of full blocks in `ids` */
	struct prefix_key root, last;
	uint32_t found, idle; /* idle: number of found blocks in the cache's own memory that have no reference */
};

/*
 * prefix_open() - create the table, with the model and the limit of the options. Return: 0, -ENOMEM.
 * prefix_close() - free it; accepts a zeroed struct.
 */
int prefix_open(struct gpool_kv *kv, const struct gpool_kv_options *options);
void prefix_close(struct gpool_kv *kv);

/*
 * prefix_ref(), prefix_unref() - add or remove a sequence's reference to a block. prefix_unref() returns true if it was
 * the last reference.
 */
void prefix_ref(struct gpool_kv *kv, uint32_t block);
bool prefix_unref(struct gpool_kv *kv, uint32_t block);

/*
 * prefix_replace() - replace block `from` by `to`, which has the same content, in all sequences that have it at this
 * index.
 */
void prefix_replace(struct gpool_kv *kv, uint32_t index, uint32_t from, uint32_t to);

/* prefix_inherit() - copy the keys of the parent's blocks to a fork. */
void prefix_inherit(struct kv_sequence *child, const struct kv_sequence *parent);

/*
 * prefix_evict() - free `blocks` cached blocks, which must exist.
 * prefix_limit() - free cached blocks above the limit in the options.
 */
void prefix_evict(struct gpool_kv *kv, uint32_t blocks);
void prefix_limit(struct gpool_kv *kv);

/*
 * prefix_take() - take the found blocks as the first blocks of a sequence, in the order of the chain; writes
 * entries[found].
 * prefix_untake() - undo this.
 */
void prefix_take(struct gpool_kv *kv, const struct prefix_walk *walk, int32_t *entries);
void prefix_untake(struct gpool_kv *kv, const struct prefix_walk *walk, const int32_t *entries);

/*
 * losses_follow() - remove the keys of all blocks, cached or in use, if sleep has discarded the content. A sequence
 * publishes its content again after it has recomputed it.
 * fail_no_prefixes() - return -EOPNOTSUPP, with a text.
 */
void losses_follow(struct gpool_kv *kv);
int fail_no_prefixes(void);

/* prefix_check() - check the invariants. Cost: linear in all blocks. */
bool prefix_check(struct gpool_kv *kv);

/*
 * sequence.c: sequence_allocate() - allocate a sequence that begins with the blocks of a walk. Return: as
 * gpool_kv_allocate().
 * request_read() - read and check a request. Return: 0, -EINVAL, -E2BIG.
 */
int sequence_allocate(
	struct gpool_kv *kv, const struct gpool_kv_request *request, const struct prefix_walk *walk, uint64_t *number);
int request_read(struct gpool_kv_request *read, const struct gpool_kv_request *request);

#endif
