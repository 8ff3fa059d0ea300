#include "client/kv/block_lru.h"

#include <errno.h>
#include <stdlib.h>

int block_lru_init(struct block_lru *lru, uint32_t blocks)
{
	lru->links = malloc(((size_t)blocks + 1) * sizeof(*lru->links));
	if (!lru->links)
		return -ENOMEM;
	lru->blocks = blocks;
	lru->links[blocks] = (struct block_link){.before = blocks, .after = blocks};
	return 0;
}

void block_lru_fini(struct block_lru *lru)
{
	free(lru->links);
	lru->links = NULL;
}

void block_lru_add(struct block_lru *lru, uint32_t block)
{
	struct block_link *head = &lru->links[lru->blocks];

	lru->links[block] = (struct block_link){.before = head->before, .after = lru->blocks};
	lru->links[head->before].after = block;
	head->before = block;
}

void block_lru_remove(struct block_lru *lru, uint32_t block)
{
	struct block_link link = lru->links[block];

	lru->links[link.before].after = link.after;
	lru->links[link.after].before = link.before;
}

void block_lru_move(struct block_lru *lru, uint32_t from, uint32_t to)
{
	struct block_link link = lru->links[from];

	lru->links[to] = link;
	lru->links[link.before].after = to;
	lru->links[link.after].before = to;
}

uint32_t block_lru_first(const struct block_lru *lru)
{
	uint32_t first = lru->links[lru->blocks].after;

	return first == lru->blocks ? BLOCK_LRU_NONE : first;
}
