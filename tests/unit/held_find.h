/*
 * held_find.h - a search in the keeper's table of descriptors that does not use its index.
 */
#ifndef TESTS_UNIT_HELD_FIND_H
#define TESTS_UNIT_HELD_FIND_H

#include "agent/keeper/held.h"

#include <stddef.h>

/* held_find() - return an item, or NULL if it is not held. The pointer is valid until the next change. */
static inline const struct held *held_find(const struct held_table *table, uint32_t kind, uint32_t pool, uint32_t id)
{
	for (uint32_t i = 0; i < table->count; i++) {
		const struct held *item = &table->list[i];

		if (item->kind == kind && item->pool == pool && item->id == id)
			return item;
	}
	return NULL;
}

#endif
