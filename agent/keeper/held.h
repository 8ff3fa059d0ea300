/*
 * held.h - the descriptors that survive the agent, indexed by kind, pool and id. A pool may have 40,960 handles, and
 * 4,000 sessions with four descriptors each. The list has no gaps; the next agent inherits it.
 */
#ifndef GPOOL_AGENT_KEEPER_HELD_H
#define GPOOL_AGENT_KEEPER_HELD_H

#include "agent/keeper/channel.h"
#include "agent/base/module.h"

enum { HELD_KINDS = KEEP_TIMELINE + 1 };

struct held_index {
	uint32_t *places; /* indexed by id: position in the list plus 1; 0: not held */
	uint32_t count;
};

struct held_table {
	struct held *list;
	uint32_t count, capacity;
	struct held_index index[HELD_KINDS][MODULE_POOLS_MAX];
};

/*
 * held_add() - hold an item, replacing an item with the same kind, pool and id.
 *
 * Return: 0: the table now owns the descriptors (-1: no descriptor at that place). -EINVAL (unknown kind or pool, id
 * out of range) or -ENOMEM: the caller still owns them.
 */
int held_add(struct held_table *table, const struct held *item);
/* held_drop() - close and remove an item. Does nothing if the item is not held. */
void held_drop(struct held_table *table, uint32_t kind, uint32_t pool, uint32_t id);
void held_clear(struct held_table *table);

#endif
