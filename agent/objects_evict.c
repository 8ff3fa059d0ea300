/*
 * objects_evict.c - taking whole objects: whose, by the tenant rules, and how many pages that would be. In which order: objects_order.c.
 */
#include "agent/objects.h"

#include "agent/event.h"
#include "agent/evict.h"

#include <string.h>

static bool evictable(const struct pool *pool, uint32_t number, const struct tenant *taker, enum objects_whose whose)
{
	const struct object *object = &pool->objects->of[number];

	return object->in_order && !object->open &&
		(whose == OBJECTS_OF_EVERYONE || (whose == OBJECTS_OF_TAKER ? object->tenant == taker :
			!object->tenant || evict_tenant_may_lose(object->tenant, taker, object_record(pool, number)->pages)));
}

/* What a tenant has, as far as it may lose it. */
static uint32_t evictable_of(const struct tenant *victim, const struct tenant *taker, enum objects_whose whose)
{
	uint32_t above = victim->leased - victim->saving;

	if (whose == OBJECTS_OF_EVERYONE || victim == taker)
		return victim->idle_pages;
	if (whose == OBJECTS_OF_TAKER || !victim->idle_pages || !evict_tenant_may_lose(victim, taker, 1))
		return 0;
	above = above > victim->minimum ? above - victim->minimum : 0;
	return victim->idle_pages < above ? victim->idle_pages : above;
}

uint32_t objects_evictable(struct pool *pool, const struct tenant *taker, enum objects_whose whose)
{
	uint32_t pages;

	objects_order_look_at_pins(pool);
	pages = whose == OBJECTS_OF_TAKER ? 0 : object_order_idle_pages(pool);
	for (uint32_t i = 0; i < pool->tenant_count; i++)
		pages += evictable_of(&pool->tenants[i], taker, whose);
	return pages;
}

static bool is_in_order(const struct pool *pool, uint32_t number)
{
	return pool->objects->of[number].in_order;
}

/* Returns how many pages came free. 0: somebody has pinned it just now. */
static uint32_t evict_one_object(struct pool *pool, uint32_t number)
{
	const struct object_record *record = object_record(pool, number);
	struct tenant *tenant = pool->objects->of[number].tenant;
	uint32_t pages = record->pages;

	if (record->class == OBJECT_PINNABLE && !object_leave(pool, number)) {
		object_order_open(pool, number, true);
		return 0;
	}
	if (tenant)
		tenant->evicted_pages += pages;
	pool_count(pool, POOL_COUNT_EVICTIONS, 1);
	pool_count(pool, POOL_COUNT_EVICTED_PAGES, pages);
	pool->evicted_unannounced += pages;
	event_publish(pool->agent, EVENT_OBJECT_EVICTED, pool, 0, record->version, "object '%s' version %llu evicted, %u pages",
		record->name, (unsigned long long)record->version, pages);
	object_order_evicted(pool, number);
	object_end(pool, number);
	return pages;
}

uint32_t objects_evict(struct pool *pool, const struct tenant *taker, enum objects_whose whose, uint32_t pages)
{
	uint32_t taken = 0, number;

	/* Which looks at pins, too. */
	if (!objects_evictable(pool, taker, whose))
		return 0;
	while (taken < pages && (number = object_order_next(pool)))
		if (evictable(pool, number, taker, whose))
			taken += evict_one_object(pool, number);
		else
			object_order_aside(pool, number);
	object_order_back(pool);
	return taken;
}

void objects_thin(struct pool *pool, const struct tenant *taker, uint32_t spared)
{
	uint32_t most = pool->config->pinnable_objects, number;

	if (!most || object_order_pinnables(pool) <= most)
		return;
	objects_order_look_at_pins(pool);
	while (object_order_pinnables(pool) > most && (number = object_order_next_pinnable(pool)))
		if (number != spared && evictable(pool, number, taker, OBJECTS_BY_RULES))
			evict_one_object(pool, number);
		else
			object_order_aside(pool, number);
	object_order_back(pool);
}

void objects_window(struct pool *pool, const struct tenant *taker)
{
	bool *stays = pool->objects->stays;
	uint32_t end = object_end_of(pool);

	objects_order_look_at_pins(pool);
	memset(stays, 0, end * sizeof(*stays));
	for (uint32_t i = 1; i < end; i++)
		if (is_in_order(pool, i) && !evictable(pool, i, taker, OBJECTS_BY_RULES))
			for (uint32_t above = i; above && !stays[above]; above = object_followed(pool, above))
				stays[above] = true;
}

bool objects_window_has(const struct pool *pool, uint64_t word)
{
	uint32_t number = page_word_owner(word);

	return page_word_state(word) == PAGE_SHARED && number < object_end_of(pool) && is_in_order(pool, number) &&
		!pool->objects->stays[number];
}

void objects_evict_at(struct pool *pool, uint32_t first, uint32_t count)
{
	const uint32_t *sorted = pool->objects->sorted;
	bool *goes = pool->objects->goes;
	uint32_t count_sorted;

	memset(goes, 0, object_end_of(pool) * sizeof(*goes));
	for (uint32_t page = first; page < first + count; page++)
		if (objects_window_has(pool, pool_word(pool, page)))
			goes[page_word_owner(pool_word(pool, page))] = true;
	count_sorted = objects_sort(pool, is_in_order);
	for (uint32_t i = 0; i < count_sorted; i++)
		if (goes[object_followed(pool, sorted[i])])
			goes[sorted[i]] = true;
	while (count_sorted--)
		if (goes[sorted[count_sorted]])
			evict_one_object(pool, sorted[count_sorted]);
}
