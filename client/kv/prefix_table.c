#include "client/kv/prefix_table.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static uint64_t slot_of(struct prefix_key key, uint32_t block)
{
	return key.low << 32 | (block + 1);
}

static uint32_t slot_block(uint64_t slot)
{
	return (uint32_t)slot - 1;
}

/* Return the index at which the search for a slot's key begins. */
static uint32_t slot_home(const struct prefix_table *table, uint64_t slot)
{
	return (uint32_t)(slot >> 32) & table->mask;
}

int prefix_table_init(struct prefix_table *table, uint32_t blocks)
{
	uint64_t slots = 2;

	while (slots < 2 * (uint64_t)blocks)
		slots *= 2;
	memset(table, 0, sizeof(*table));
	table->entries = malloc(blocks * sizeof(*table->entries));
	/* calloc() gets such a large block as zeroed memory from the kernel, which allocates its pages on first use. */
	table->slots = calloc(slots, sizeof(*table->slots));
	if (!table->entries || !table->slots) {
		prefix_table_fini(table);
		return -ENOMEM;
	}
	table->blocks = blocks;
	table->mask = (uint32_t)(slots - 1);
	for (uint32_t block = 0; block < blocks; block++)
		table->entries[block] = (struct prefix_entry){.parent = PREFIX_NO_KEY};
	return 0;
}

void prefix_table_fini(struct prefix_table *table)
{
	free(table->entries);
	free(table->slots);
	table->entries = NULL;
	table->slots = NULL;
}

uint32_t prefix_table_find(const struct prefix_table *table, struct prefix_key key)
{
	uint64_t slot;

	for (uint32_t at = (uint32_t)key.low & table->mask; (slot = table->slots[at]); at = (at + 1) & table->mask)
		if (slot >> 32 == (uint32_t)key.low && prefix_key_same(table->entries[slot_block(slot)].key, key))
			return slot_block(slot);
	return PREFIX_NONE;
}

void prefix_table_add(struct prefix_table *table, uint32_t block, struct prefix_key key, uint32_t parent)
{
	uint32_t at = (uint32_t)key.low & table->mask;

	assert(!prefix_table_has(table, block));
	while (table->slots[at])
		at = (at + 1) & table->mask;
	table->slots[at] = slot_of(key, block);
	table->entries[block] = (struct prefix_entry){.key = key, .parent = parent};
	if (parent != PREFIX_NONE) {
		table->entries[parent].children++;
		table->entries[block].depth = table->entries[parent].depth + 1;
	}
	table->count++;
}

/* Move the following slots into the hole, but no slot before the index at which the search for its key begins. */
static void slot_remove(struct prefix_table *table, uint32_t hole)
{
	uint64_t slot;

	for (uint32_t at = (hole + 1) & table->mask; (slot = table->slots[at]); at = (at + 1) & table->mask) {
		if (((at - slot_home(table, slot)) & table->mask) < ((at - hole) & table->mask))
			continue;
		table->slots[hole] = slot;
		hole = at;
	}
	table->slots[hole] = 0;
}

void prefix_table_remove(struct prefix_table *table, uint32_t block)
{
	struct prefix_entry *entry = &table->entries[block];
	uint64_t slot = slot_of(entry->key, block);
	uint32_t at = slot_home(table, slot);

	assert(prefix_table_has(table, block) && !entry->children);
	while (table->slots[at] != slot)
		at = (at + 1) & table->mask;
	slot_remove(table, at);
	if (entry->parent != PREFIX_NONE)
		table->entries[entry->parent].children--;
	*entry = (struct prefix_entry){.parent = PREFIX_NO_KEY};
	table->count--;
}

static uint32_t adopt(struct prefix_table *table, uint32_t child, uint32_t from, uint32_t to)
{
	if (child >= table->blocks || table->entries[child].parent != from)
		return 0;
	table->entries[child].parent = to;
	return 1;
}

void prefix_table_move(struct prefix_table *table, uint32_t from, uint32_t to, uint32_t child)
{
	struct prefix_entry *entry = &table->entries[from];
	uint64_t slot = slot_of(entry->key, from);
	uint32_t at = slot_home(table, slot), left = entry->children;

	assert(prefix_table_has(table, from) && !prefix_table_has(table, to));
	while (table->slots[at] != slot)
		at = (at + 1) & table->mask;
	table->slots[at] = slot_of(entry->key, to);
	table->entries[to] = *entry;
	*entry = (struct prefix_entry){.parent = PREFIX_NO_KEY};
	left -= adopt(table, child, from, to);
	for (uint32_t block = 0; left && block < table->blocks; block++)
		left -= adopt(table, block, from, to);
}

void prefix_table_clear(struct prefix_table *table)
{
	for (uint32_t block = 0; block < table->blocks; block++)
		table->entries[block] = (struct prefix_entry){.parent = PREFIX_NO_KEY};
	memset(table->slots, 0, ((size_t)table->mask + 1) * sizeof(*table->slots));
	table->count = 0;
}

bool prefix_table_check(const struct prefix_table *table)
{
	uint32_t count = 0, slots = 0, children = 0, firsts = 0;

	for (uint32_t block = 0; block < table->blocks; block++) {
		const struct prefix_entry *entry = &table->entries[block];

		if (!prefix_table_has(table, block))
			continue;
		count++;
		children += entry->children;
		firsts += entry->parent == PREFIX_NONE;
		if (prefix_table_find(table, entry->key) != block)
			return false;
		if (entry->parent != PREFIX_NONE &&
			(entry->parent >= table->blocks || !prefix_table_has(table, entry->parent)))
			return false;
	}
	for (uint64_t at = 0; at <= table->mask; at++)
		slots += table->slots[at] != 0;
	return count == table->count && slots == count && children + firsts == count;
}
