/*
 * block_order.h - the order in which cached blocks are evicted: least recently used first, or by the policy `adaptive`
 * (eviction.h). Internal to libgpool; no locks.
 *
 * A block of the cache's own memory that has a key is in use (a sequence has it) or cached. The LRU list is ordered by
 * the time at which blocks became cached; callers add children before their parents. `adaptive` keeps all blocks with
 * keys as a tree, in which a block's parent is its nearest ancestor in own memory. Both orders evict children before
 * their parents.
 */
#ifndef GPOOL_CLIENT_KV_BLOCK_ORDER_H
#define GPOOL_CLIENT_KV_BLOCK_ORDER_H

#include "client/kv/block_lru.h"

#include <stdbool.h>

#define BLOCK_ORDER_NONE BLOCK_LRU_NONE

struct eviction;

struct block_order {
	struct block_lru lru;
	struct eviction *eviction; /* NULL: `lru` is used, and the fields below are not */
	uint32_t *nodes;           /* [blocks] node of each block with a key */
	uint32_t *owners;          /* [blocks] block of each node */
};

/*
 * block_order_init() - create an order without blocks: 0, -ENOMEM. block_order_fini() - free it; accepts a zeroed
 * struct.
 */
int block_order_init(struct block_order *order, uint32_t blocks, bool adaptive);
void block_order_fini(struct block_order *order);

/*
 * block_order_key() - add a block in use that got a key. parent: BLOCK_ORDER_NONE, or a block with a key. key: any part
 * of the key, by which `adaptive` recognizes evicted content.
 */
void block_order_key(struct block_order *order, uint32_t block, uint32_t parent, uint64_t key);
/*
 * block_order_found() - note that a request found the block, in use or cached. Call it for the blocks of a prefix in
 * order.
 */
void block_order_found(struct block_order *order, uint32_t block);
/* block_order_cache() - the last sequence released the block. block_order_use() - a sequence has the block again. */
void block_order_cache(struct block_order *order, uint32_t block);
void block_order_use(struct block_order *order, uint32_t block);

/*
 * block_order_next() - return the next block to evict, or BLOCK_ORDER_NONE. block_order_evict() - remove a cached block
 * without children.
 */
uint32_t block_order_next(struct block_order *order);
void block_order_evict(struct block_order *order, uint32_t block);
/*
 * block_order_leave() - remove a block in use, whose key is removed; its children become children of its parent.
 * Cost: with `adaptive` linear in the number of blocks.
 */
void block_order_leave(struct block_order *order, uint32_t block);
/* block_order_move() - replace block `from`, which has a key, by `to`. cached: the block is cached, not in use. */
void block_order_move(struct block_order *order, uint32_t from, uint32_t to, bool cached);
/* block_order_clear() - remove all blocks; all keys were removed. */
void block_order_clear(struct block_order *order);

#endif
