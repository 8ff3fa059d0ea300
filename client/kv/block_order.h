/*
 * block_order.h - the order in which cached blocks are evicted: least recently used first, or by the policy `adaptive`
 * (eviction.h). Internal to libgpool; no locks.
 *
 * Blocks with a key in the cache's own memory are either in use by a sequence or cached. The LRU list contains the
 * cached blocks, in the order in which they became cached; callers add children before their parents. `adaptive` keeps
 * all blocks with keys in a tree. The parent of a block in this tree is its nearest ancestor in the cache's own memory.
 * Both orders evict children before their parents.
 */
#ifndef GPOOL_CLIENT_KV_BLOCK_ORDER_H
#define GPOOL_CLIENT_KV_BLOCK_ORDER_H

#include "client/kv/block_lru.h"

#include <stdbool.h>

#define BLOCK_ORDER_NONE BLOCK_LRU_NONE

struct eviction;

struct block_order {
	struct block_lru lru;
	struct eviction *eviction; /* NULL: `lru` is used, and the fields below are unused */
	uint32_t *nodes;           /* [blocks] node of each block that has a key */
	uint32_t *owners;          /* [blocks] block of each node */
};

/*
 * block_order_init() - create an order without blocks. Return: 0, -ENOMEM.
 * block_order_fini() - free it; accepts a zeroed struct.
 */
int block_order_init(struct block_order *order, uint32_t blocks, bool adaptive);
void block_order_fini(struct block_order *order);

/*
 * block_order_key() - add a block in use that has got a key. parent: a block with a key, or BLOCK_ORDER_NONE. key: any
 * part of the block's key; `adaptive` recognizes evicted content by it.
 */
void block_order_key(struct block_order *order, uint32_t block, uint32_t parent, uint64_t key);
/*
 * block_order_found() - record that a request found the block, which is in use or cached. The blocks of a prefix must
 * be recorded in order.
 */
void block_order_found(struct block_order *order, uint32_t block);
/*
 * block_order_cache() - record that the last sequence released the block.
 * block_order_use() - record that a sequence uses the block again.
 */
void block_order_cache(struct block_order *order, uint32_t block);
void block_order_use(struct block_order *order, uint32_t block);

/*
 * block_order_next() - return the next block to evict, or BLOCK_ORDER_NONE.
 * block_order_evict() - remove a cached block without children.
 */
uint32_t block_order_next(struct block_order *order);
void block_order_evict(struct block_order *order, uint32_t block);
/*
 * block_order_leave() - remove a block in use whose key is removed. Its children become children of its parent.
 * Cost: with `adaptive` linear in the number of blocks, otherwise constant.
 */
void block_order_leave(struct block_order *order, uint32_t block);
/*
 * block_order_move() - replace block `from`, which has a key, by block `to`. cached: the block is cached, not in use.
 */
void block_order_move(struct block_order *order, uint32_t from, uint32_t to, bool cached);
/* block_order_clear() - remove all blocks, after all keys were removed. */
void block_order_clear(struct block_order *order);

#endif
