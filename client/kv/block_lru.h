/*
 * block_lru.h - blocks in the order in which they were last put here, the one that was put here first being the next to
 * go. Internal to libgpool; no locks.
 */
#ifndef GPOOL_CLIENT_KV_BLOCK_LRU_H
#define GPOOL_CLIENT_KV_BLOCK_LRU_H

#include <stdint.h>

#define BLOCK_LRU_NONE UINT32_MAX

struct block_link {
	uint32_t before, after;
};

struct block_lru {
	struct block_link *links; /* [blocks + 1] a ring; the last one is its head */
	uint32_t blocks;
};

/* block_lru_init() - empty, for blocks below `blocks`: 0, -ENOMEM. _fini() - takes all zero, too. */
int block_lru_init(struct block_lru *lru, uint32_t blocks);
void block_lru_fini(struct block_lru *lru);

/* block_lru_add() - one that is not in it, behind all others; block_lru_remove() - one that is in it. */
void block_lru_add(struct block_lru *lru, uint32_t block);
void block_lru_remove(struct block_lru *lru, uint32_t block);

/* block_lru_move() - one that is not in it takes the place of one that is. */
void block_lru_move(struct block_lru *lru, uint32_t from, uint32_t to);

/* block_lru_first() - the next to go, or BLOCK_LRU_NONE. */
uint32_t block_lru_first(const struct block_lru *lru);

#endif
