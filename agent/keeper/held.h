/*
 * held.h - the descriptors that outlive the agent, each found by kind, pool and id without a search: there may be
 * 40,960 of handles and four for each of 4,000 sessions in a pool. The list itself is dense, and is what the next agent
 * gets.
 */
#ifndef GPOOL_AGENT_KEEPER_HELD_H
#define GPOOL_AGENT_KEEPER_HELD_H

#include "agent/keeper/channel.h"
#include "agent/base/module.h"

enum { HELD_KINDS = KEEP_TIMELINE + 1 };

struct held_index {
	uint32_t *places; /* by id: place in the list plus 1; 0: not held */
	uint32_t count;
};

struct held_table {
	struct held *list;
	uint32_t count, capacity;
	struct held_index index[HELD_KINDS][MODULE_POOLS_MAX];
};

/*
 * held_add() - keep this item, in place of one of the same kind, pool and id; its descriptors become the table's (-1:
 * none at that place). 0, -EINVAL (no such kind or pool, an id beyond what there can be) or -ENOMEM: then they stay the
 * caller's.
 */
int held_add(struct held_table *table, const struct held *item);
/* held_drop() - close and forget; nothing when it is not held. */
void held_drop(struct held_table *table, uint32_t kind, uint32_t pool, uint32_t id);
/* held_find() - NULL: not held. Valid until the next change. */
const struct held *held_find(const struct held_table *table, uint32_t kind, uint32_t pool, uint32_t id);
/* held_count() - how many of this kind in this pool. */
uint32_t held_count(const struct held_table *table, uint32_t kind, uint32_t pool);
/* held_clear() - close and forget all. */
void held_clear(struct held_table *table);

#endif
