/*
 * block_order.h - which cached block is the next to go: the one least recently used, or the one that `adaptive` expects
 * least of (eviction.h). Internal to libgpool; no locks.
 *
 * A block of the cache's own memory that has a key is in use (a sequence has it) or cached. The least recently used
 * goes by the order in which blocks became cached, which is told of them children first. `adaptive` knows all blocks
 * with keys as a tree, whose parents are the nearest ones of own memory: no parent goes before its children.
 */
#ifndef GPOOL_CLIENT_KV_BLOCK_ORDER_H
#define GPOOL_CLIENT_KV_BLOCK_ORDER_H

#include "client/kv/block_lru.h"

#include <stdbool.h>

#define BLOCK_ORDER_NONE BLOCK_LRU_NONE

struct eviction;

struct block_order {
	struct block_lru lru;
	struct eviction *eviction; /* NULL: it is `lru` that decides, and what follows is not there */
	uint32_t *nodes;           /* [blocks] of blocks with a key */
	uint32_t *owners;          /* [blocks] by node */
};

/* block_order_init() - without a block: 0, -ENOMEM. _fini() - takes all zero, too. */
int block_order_init(struct block_order *order, uint32_t blocks, bool adaptive);
void block_order_fini(struct block_order *order);

/*
 * block_order_key() - a block in use has a key now; parent: BLOCK_ORDER_NONE, or one that has one. key: any part of it,
 * for knowing it again.
 */
void block_order_key(struct block_order *order, uint32_t block, uint32_t parent, uint64_t key);
/* block_order_found() - a request found it, in use or cached; from the first block of a text on. */
void block_order_found(struct block_order *order, uint32_t block);
/* block_order_cache() - nobody has it any more. block_order_use() - somebody has it again. */
void block_order_cache(struct block_order *order, uint32_t block);
void block_order_use(struct block_order *order, uint32_t block);

/*
 * block_order_next() - the next to go, or BLOCK_ORDER_NONE. block_order_evict() - a cached one without children goes.
 */
uint32_t block_order_next(struct block_order *order);
void block_order_evict(struct block_order *order, uint32_t block);
/*
 * block_order_leave() - one in use loses its key; its children are its parent's. Cost: with `adaptive` a look at each
 * block.
 */
void block_order_leave(struct block_order *order, uint32_t block);
/* block_order_move() - a block with a key, in use or cached, is another one from now on. */
void block_order_move(struct block_order *order, uint32_t from, uint32_t to, bool cached);
/* block_order_clear() - none has a key any more, and none is cached. */
void block_order_clear(struct block_order *order);

#endif
