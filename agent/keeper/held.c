#include "agent/keeper/held.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/*
 * Return the limit of ids of this kind. The agent is trusted, but a number in its message must not determine the size
 * of an allocation.
 */
static uint32_t ids_of(uint32_t kind)
{
	switch (kind) {
	case KEEP_HANDLE: return POOL_PAGES_MAX;
	case KEEP_SESSION:
	case KEEP_TIMELINE: return POOL_SESSIONS;
	case KEEP_OBJECT: return POOL_OBJECTS_MOST;
	case KEEP_TIER: return 16;
	case KEEP_CONFIG: return 1;
	default: return 0;
	}
}

static uint32_t *place_of(const struct held_table *table, uint32_t kind, uint32_t pool, uint32_t id)
{
	const struct held_index *index;

	if (kind >= HELD_KINDS || pool >= MODULE_POOLS_MAX)
		return NULL;
	index = &table->index[kind][pool];
	return id < index->count ? &index->places[id] : NULL;
}

static int index_grow(struct held_index *index, uint32_t id, uint32_t most)
{
	uint32_t count = index->count ? index->count : 64;
	uint32_t *places;

	while (count <= id)
		count *= 2;
	if (count > most)
		count = most;
	places = realloc(index->places, count * sizeof(*places));
	if (!places)
		return -ENOMEM;
	memset(places + index->count, 0, (count - index->count) * sizeof(*places));
	index->places = places;
	index->count = count;
	return 0;
}

static int list_grow(struct held_table *table)
{
	uint32_t capacity = table->capacity ? table->capacity * 2 : 64;
	struct held *list = realloc(table->list, capacity * sizeof(*list));

	if (!list)
		return -ENOMEM;
	table->list = list;
	table->capacity = capacity;
	return 0;
}

int held_add(struct held_table *table, const struct held *item)
{
	uint32_t most = ids_of(item->kind);
	struct held_index *index;

	if (item->id >= most || item->pool >= MODULE_POOLS_MAX || item->fd_count > KEEP_FDS_MAX)
		return -EINVAL;
	index = &table->index[item->kind][item->pool];
	if (item->id >= index->count && index_grow(index, item->id, most))
		return -ENOMEM;
	if (index->places[item->id]) {
		struct held *old = &table->list[index->places[item->id] - 1];

		held_close(old);
		*old = *item;
		return 0;
	}
	if (table->count == table->capacity && list_grow(table))
		return -ENOMEM;
	table->list[table->count++] = *item;
	index->places[item->id] = table->count;
	return 0;
}

void held_drop(struct held_table *table, uint32_t kind, uint32_t pool, uint32_t id)
{
	uint32_t *place = place_of(table, kind, pool, id), hole;
	const struct held *last;

	if (!place || !*place)
		return;
	hole = *place - 1;
	*place = 0;
	held_close(&table->list[hole]);
	last = &table->list[--table->count];
	if (hole == table->count)
		return;
	table->list[hole] = *last;
	*place_of(table, last->kind, last->pool, last->id) = hole + 1;
}

void held_clear(struct held_table *table)
{
	for (uint32_t i = 0; i < table->count; i++)
		held_close(&table->list[i]);
	for (uint32_t kind = 0; kind < HELD_KINDS; kind++)
		for (uint32_t pool = 0; pool < MODULE_POOLS_MAX; pool++)
			free(table->index[kind][pool].places);
	free(table->list);
	memset(table, 0, sizeof(*table));
}
