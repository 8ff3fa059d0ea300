/*
 * block_lru.h - a list of blocks in the order in which they were added. The first block is the next to be evicted.
 * Internal to libgpool; no locks.
 */
#ifndef GPOOL_CLIENT_KV_BLOCK_LRU_H
#define GPOOL_CLIENT_KV_BLOCK_LRU_H

#include <stdint.h>

#define BLOCK_LRU_NONE UINT32_MAX

struct block_link {
	uint32_t before, after;
};

struct block_lru {
	struct block_link *links; /* [blocks + 1] a ring; the last element is the head of the list */
	uint32_t blocks;
};

/*
 * block_lru_init() - create an empty list for block numbers below `blocks`. Return: 0, -ENOMEM.
 * block_lru_fini() - free it; accepts a zeroed struct.
 */
int block_lru_init(struct block_lru *lru, uint32_t blocks);
void block_lru_fini(struct block_lru *lru);

/*
 * block_lru_add() - append a block that is not in the list.
 * block_lru_remove() - remove a block that is in the list.
 */
void block_lru_add(struct block_lru *lru, uint32_t block);
void block_lru_remove(struct block_lru *lru, uint32_t block);

/* block_lru_move() - put block `to`, which is not in the list, in the place of block `from`. */
void block_lru_move(struct block_lru *lru, uint32_t from, uint32_t to);

/* block_lru_first() - return the next block to evict, or BLOCK_LRU_NONE. */
uint32_t block_lru_first(const struct block_lru *lru);

#endif
