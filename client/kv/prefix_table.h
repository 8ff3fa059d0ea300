/*
 * prefix_table.h - which block has which key, and which one it follows. Numbers only; who has the block is
 * block_pool.h's. Internal to libgpool.
 *
 * Blocks with keys are a forest: each has the one before it for its parent, and counts its children. A block goes after
 * its children.
 *
 * From a key to its block: a table with open addressing, at most half full. A slot is a block and the low half of the
 * key's low word, which says where the slot's search began; so a search looks at a block's entry only where that half
 * fits, and removing moves what follows up instead of leaving marks.
 */
#ifndef GPOOL_CLIENT_KV_PREFIX_TABLE_H
#define GPOOL_CLIENT_KV_PREFIX_TABLE_H

#include "client/kv/prefix_key.h"

#define PREFIX_NONE UINT32_MAX         /* no block: of a parent, it is a first one */
#define PREFIX_NO_KEY (UINT32_MAX - 1) /* in place of a parent: the block has no key */

struct prefix_entry {
	struct prefix_key key;
	uint32_t parent;
	uint32_t children;
	uint32_t depth; /* blocks before it */
};

struct prefix_table {
	struct prefix_entry *entries; /* [blocks] */
	uint64_t *slots;              /* [mask + 1] 0: none; else the half of the key, and below it the block + 1 */
	uint32_t mask, blocks;
	uint32_t count; /* blocks with a key */
};

/* prefix_table_init() - none has a key: 0, -ENOMEM. _fini() - takes all zero, too. */
int prefix_table_init(struct prefix_table *table, uint32_t blocks);
void prefix_table_fini(struct prefix_table *table);

/* prefix_table_has() - whether a block has a key; a table that was never made has none. */
static inline bool prefix_table_has(const struct prefix_table *table, uint32_t block)
{
	return table->entries && table->entries[block].parent != PREFIX_NO_KEY;
}

/* prefix_table_find() - the block with that key, or PREFIX_NONE. */
uint32_t prefix_table_find(const struct prefix_table *table, struct prefix_key key);

/*
 * prefix_table_add() - a block without a key has this one, which none has; parent: PREFIX_NONE, or a block that has
 * one.
 */
void prefix_table_add(struct prefix_table *table, uint32_t block, struct prefix_key key, uint32_t parent);
/* prefix_table_remove() - a block without children has no key any more. */
void prefix_table_remove(struct prefix_table *table, uint32_t block);
/*
 * prefix_table_move() - a block without a key has the other one's, its place and its children; `child`: perhaps one of
 * these. Cost: a look at each block where it has others.
 */
void prefix_table_move(struct prefix_table *table, uint32_t from, uint32_t to, uint32_t child);
/* prefix_table_clear() - no block has one. */
void prefix_table_clear(struct prefix_table *table);

/* prefix_table_check() - whether all that is said above is so. Cost: a look at each block and slot. */
bool prefix_table_check(const struct prefix_table *table);

#endif
