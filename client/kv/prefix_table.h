/*
 * prefix_table.h - the keys of blocks, and the block that each of them follows. Internal to libgpool.
 *
 * Blocks with keys form a forest: the parent of a block is the block before it, and each block counts its children. A
 * block can be removed only after its children.
 *
 * A hash table with open addressing, at most half full, maps keys to blocks. A slot contains the block and the low half
 * of the key's low word, which determines where the search for the slot begins. A search therefore reads the entry of a
 * block only if this half matches. A removal moves the following slots into the gap instead of leaving a mark.
 */
#ifndef GPOOL_CLIENT_KV_PREFIX_TABLE_H
#define GPOOL_CLIENT_KV_PREFIX_TABLE_H

#include "client/kv/prefix_key.h"

#define PREFIX_NONE UINT32_MAX         /* no block; as a parent: the block is the first of its chain */
#define PREFIX_NO_KEY (UINT32_MAX - 1) /* as a parent: the block has no key */

struct prefix_entry {
	struct prefix_key key;
	uint32_t parent;
	uint32_t children;
	uint32_t depth; /* number of ancestors */
};

struct prefix_table {
	struct prefix_entry *entries; /* [blocks] */
	uint64_t *slots; /* [mask + 1] 0: empty; otherwise half of the key, and the block + 1 in the low bits */
	uint32_t mask, blocks;
	uint32_t count; /* number of blocks with a key */
};

/*
 * prefix_table_init() - create an empty table. Return: 0, -ENOMEM.
 * prefix_table_fini() - free it; accepts a zeroed struct.
 */
int prefix_table_init(struct prefix_table *table, uint32_t blocks);
void prefix_table_fini(struct prefix_table *table);

/* prefix_table_has() - return true if a block has a key. A table that was not created has no keys. */
static inline bool prefix_table_has(const struct prefix_table *table, uint32_t block)
{
	return table->entries && table->entries[block].parent != PREFIX_NO_KEY;
}

/* prefix_table_find() - return the block with this key, or PREFIX_NONE. */
uint32_t prefix_table_find(const struct prefix_table *table, struct prefix_key key);

/*
 * prefix_table_add() - assign a key, which no other block has, to a block without one. parent: PREFIX_NONE, or a block
 * with a key.
 */
void prefix_table_add(struct prefix_table *table, uint32_t block, struct prefix_key key, uint32_t parent);
/* prefix_table_remove() - remove the key of a block without children. */
void prefix_table_remove(struct prefix_table *table, uint32_t block);
/*
 * prefix_table_move() - move the key, the parent and the children of block `from` to a block without a key. child: one
 * of its children, or any other block.
 * Cost: linear in the number of blocks if `from` has other children than `child`.
 */
void prefix_table_move(struct prefix_table *table, uint32_t from, uint32_t to, uint32_t child);
void prefix_table_clear(struct prefix_table *table);

/* prefix_table_check() - check the invariants above. Cost: linear in the blocks and slots. */
bool prefix_table_check(const struct prefix_table *table);

#endif
