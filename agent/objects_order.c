/*
 * objects_order.c - which ephemeral object goes next when room is needed: by policy/eviction.h, whose nodes are the CURRENT
 * ephemeral objects, below the one that each follows. One that somebody has open has a pin there. Its age begins when it is let
 * go of, and another session's opening is a touch. By its name it is known again. Pinnable objects are among them; whether
 * somebody pins one, and when it was used, is looked at before anybody is chosen.
 *
 * Invariants: an object has a node just when it is CURRENT (or LEAVING) and ephemeral or pinnable; a pin just when it has a
 * reader, or somebody pinned it at the last look. It stays while it has a pin, or one that follows it stays; stay_below counts the
 * latter. idle_pages of the tenants, and of objects whose tenant is no more, are those of nodes that do not stay.
 */
#include "agent/objects.h"

#include "agent/event.h"
#include "agent/evict.h"
#include "policy/eviction.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

struct objects_order {
	struct eviction *eviction;
	uint32_t *numbers;   /* [count] by node */
	uint32_t *sorted;    /* [count] scratch */
	bool *stays, *goes;  /* [count] scratch, by number: objects_window(), objects_evict_at() */
	uint32_t idle_pages; /* of no tenant's; the others' are in struct tenant */
};

static struct object *object_of(const struct pool *pool, uint32_t number)
{
	return &pool->objects->of[number];
}

static uint32_t *idle_pages(struct pool *pool, uint32_t number)
{
	struct tenant *tenant = object_of(pool, number)->tenant;

	return tenant ? &tenant->idle_pages : &pool->objects->order->idle_pages;
}

/* ---- coming and going ---- */

/* The number of the one before it in the tree; 0: none. */
static uint32_t followed(const struct pool *pool, uint32_t number)
{
	const struct objects_order *order = pool->objects->order;
	uint32_t node = eviction_parent(order->eviction, object_of(pool, number)->node - 1);

	return node == EVICTION_NONE ? 0 : order->numbers[node];
}

static uint32_t parent_of(const struct pool *pool, const struct object_record *record)
{
	uint32_t number = record->follows < pool->objects->count ? record->follows : 0;

	/* What it follows was there before it: so no two follow each other. */
	if (!number || !object_of(pool, number)->node || object_record(pool, number)->version != record->follows_version ||
		record->follows_version >= record->version)
		return EVICTION_NONE;
	return object_of(pool, number)->node - 1;
}

static bool stays(const struct object *object)
{
	return object->open || object->stay_below;
}

/* One more of those that follow it stays, or (-1) one fewer; and so on upwards. Each is changed at most once, whatever is opened in which order. */
static void stay_add(struct pool *pool, uint32_t number, int more)
{
	for (; number && more; number = followed(pool, number)) {
		struct object *object = object_of(pool, number);
		bool stayed = stays(object);

		object->stay_below += (uint32_t)more;
		if (stays(object) == stayed)
			return;
		*idle_pages(pool, number) += stayed ? object_record(pool, number)->pages : -object_record(pool, number)->pages;
	}
}

static void enter(struct pool *pool, uint32_t number)
{
	const struct object_record *record = object_record(pool, number);
	struct objects_order *order = pool->objects->order;
	struct object *object = object_of(pool, number);
	uint32_t node;

	/* There are as many nodes as objects, so it cannot fail. */
	eviction_insert(order->eviction, parent_of(pool, record), XXH3_64bits(record->name, strlen(record->name)), &node);
	order->numbers[node] = number;
	object->node = node + 1;
	object->open = false;
	object->stay_below = 0;
	object->touched_ms = (uint32_t)clock_ms();
	*idle_pages(pool, number) += record->pages;
}

/* Those that follow it follow what it has followed. */
static void leave(struct pool *pool, uint32_t number, bool evicted)
{
	struct object *object = object_of(pool, number);
	uint32_t above = followed(pool, number);

	if (!stays(object))
		*idle_pages(pool, number) -= object_record(pool, number)->pages;
	else if (!object->stay_below)
		stay_add(pool, above, -1);
	else if (above)
		object_of(pool, above)->stay_below += object->stay_below - 1;
	if (evicted)
		eviction_evict(pool->objects->order->eviction, object->node - 1);
	else
		eviction_forget(pool->objects->order->eviction, object->node - 1);
	object->node = 0;
}

static void open_set(struct pool *pool, uint32_t number, bool open)
{
	struct eviction *eviction = pool->objects->order->eviction;
	struct object *object = object_of(pool, number);
	bool stayed = stays(object);

	if (open == object->open)
		return;
	object->open = open;
	if (open) {
		eviction_pin(eviction, object->node - 1);
	} else {
		eviction_used(eviction, object->node - 1);
		eviction_unpin(eviction, object->node - 1);
	}
	if (stays(object) == stayed)
		return;
	*idle_pages(pool, number) += stayed ? object_record(pool, number)->pages : -object_record(pool, number)->pages;
	stay_add(pool, followed(pool, number), open ? 1 : -1);
}

void object_order_look(struct pool *pool, uint32_t number)
{
	const struct object_record *record = object_record(pool, number);
	enum object_state state = object_state(pool, number);
	bool belongs = (state == OBJECT_CURRENT || state == OBJECT_LEAVING) &&
		(record->class == OBJECT_EPHEMERAL || record->class == OBJECT_PINNABLE);

	if (belongs && !object_of(pool, number)->node)
		enter(pool, number);
	else if (!belongs && object_of(pool, number)->node)
		leave(pool, number, false);
	if (belongs && record->class == OBJECT_EPHEMERAL)
		open_set(pool, number, atomic_load_explicit(&record->readers, memory_order_relaxed));
}

void object_order_touch(struct pool *pool, uint32_t number)
{
	if (object_of(pool, number)->node)
		eviction_touch(pool->objects->order->eviction, object_of(pool, number)->node - 1);
}

/* What their readers' segments say of pinnable ones just now. */
static void pins_look(struct pool *pool)
{
	const struct bitmap *pinnable = &pool->objects->pinnable;

	for (uint32_t i = bitmap_lowest(pinnable); i != BITMAP_NONE; i = bitmap_next(pinnable, i + 1)) {
		uint32_t touched;

		if (!object_of(pool, i)->node)
			continue;
		touched = object_of(pool, i)->touched_ms;
		open_set(pool, i, object_pinned(pool, i, &touched));
		if (touched != object_of(pool, i)->touched_ms)
			object_order_touch(pool, i);
		object_of(pool, i)->touched_ms = touched;
	}
}

/* ---- begin and end ---- */

static int by_version(const void *left, const void *right, void *context)
{
	uint64_t a = object_record(context, *(const uint32_t *)left)->version;
	uint64_t b = object_record(context, *(const uint32_t *)right)->version;

	return a < b ? -1 : a > b;
}

/* Numbers for which `in` says yes, by their versions, so that what is followed stands before what follows it. */
static uint32_t sort(struct pool *pool, bool (*in)(const struct pool *pool, uint32_t number))
{
	uint32_t *sorted = pool->objects->order->sorted, count = 0;

	for (uint32_t i = 1; i < object_end_of(pool); i++)
		if (in(pool, i))
			sorted[count++] = i;
	qsort_r(sorted, count, sizeof(*sorted), by_version, pool);
	return count;
}

static bool is_there(const struct pool *pool, uint32_t number)
{
	return object_state(pool, number) == OBJECT_CURRENT;
}

static bool is_in_order(const struct pool *pool, uint32_t number)
{
	return object_of(pool, number)->node;
}

static void order_free(struct objects_order *order)
{
	if (!order)
		return;
	eviction_destroy(order->eviction);
	free(order->numbers);
	free(order->sorted);
	free(order->stays);
	free(order->goes);
	free(order);
}

static struct objects_order *order_make(const struct pool *pool)
{
	const struct eviction_policy *policy = eviction_policy_named(pool->evict.policy ? pool->evict.policy->objects : "lru");
	struct objects_order *order = calloc(1, sizeof(*order));
	uint32_t count = pool->objects->count;

	if (!order)
		return NULL;
	order->numbers = calloc(count, sizeof(*order->numbers));
	order->sorted = calloc(count, sizeof(*order->sorted));
	order->stays = calloc(count, sizeof(*order->stays));
	order->goes = calloc(count, sizeof(*order->goes));
	if (order->numbers && order->sorted && order->stays && order->goes && !eviction_create(policy, count, &order->eviction))
		return order;
	order_free(order);
	return NULL;
}

int objects_order_begin(struct pool *pool)
{
	struct objects_order *order = order_make(pool);
	uint32_t count;

	if (!order)
		return -ENOMEM;
	order_free(pool->objects->order);
	pool->objects->order = order;
	for (uint32_t i = 0; i < CONFIG_TENANTS_MAX; i++)
		pool->tenants[i].idle_pages = 0;
	count = sort(pool, is_there);
	for (uint32_t i = 0; i < count; i++) {
		object_of(pool, order->sorted[i])->node = 0;
		object_order_look(pool, order->sorted[i]);
	}
	return 0;
}

void objects_order_end(struct pool *pool)
{
	order_free(pool->objects->order);
	pool->objects->order = NULL;
}

/* ---- eviction ---- */

static bool evictable(const struct pool *pool, uint32_t number, const struct tenant *taker, enum objects_whose whose)
{
	const struct object *object = object_of(pool, number);

	return object->node && !object->open &&
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

	pins_look(pool);
	pages = whose == OBJECTS_OF_TAKER ? 0 : pool->objects->order->idle_pages;
	for (uint32_t i = 0; i < pool->tenant_count; i++)
		pages += evictable_of(&pool->tenants[i], taker, whose);
	return pages;
}

/* Returns how many pages came free. 0: somebody has pinned it just now. */
static uint32_t evict_one_object(struct pool *pool, uint32_t number)
{
	const struct object_record *record = object_record(pool, number);
	struct tenant *tenant = object_of(pool, number)->tenant;
	uint32_t pages = record->pages;

	if (record->class == OBJECT_PINNABLE && !object_leave(pool, number)) {
		open_set(pool, number, true);
		return 0;
	}
	if (tenant)
		tenant->evicted_pages += pages;
	pool_count(pool, POOL_COUNT_EVICTIONS, 1);
	pool_count(pool, POOL_COUNT_EVICTED_PAGES, pages);
	pool->evicted_unannounced += pages;
	event_publish(pool->agent, EVENT_OBJECT_EVICTED, pool, 0, record->version, "object '%s' version %llu evicted, %u pages",
		record->name, (unsigned long long)record->version, pages);
	leave(pool, number, true);
	object_end(pool, number);
	return pages;
}

uint32_t objects_evict(struct pool *pool, const struct tenant *taker, enum objects_whose whose, uint32_t pages)
{
	struct objects_order *order = pool->objects->order;
	uint32_t taken = 0, aside = 0, node;

	/* Which looks at pins, too. */
	if (!objects_evictable(pool, taker, whose))
		return 0;
	while (taken < pages && (node = eviction_victim(order->eviction)) != EVICTION_NONE) {
		if (evictable(pool, order->numbers[node], taker, whose)) {
			taken += evict_one_object(pool, order->numbers[node]);
			continue;
		}
		/* Not this one: out of the way until the others are found. */
		eviction_pin(order->eviction, node);
		order->sorted[aside++] = node;
	}
	for (uint32_t i = 0; i < aside; i++)
		eviction_unpin(order->eviction, order->sorted[i]);
	return taken;
}

void objects_window(struct pool *pool, const struct tenant *taker)
{
	bool *stays = pool->objects->order->stays;
	uint32_t end = object_end_of(pool);

	pins_look(pool);
	memset(stays, 0, end * sizeof(*stays));
	for (uint32_t i = 1; i < end; i++)
		if (is_in_order(pool, i) && !evictable(pool, i, taker, OBJECTS_BY_RULES))
			for (uint32_t above = i; above && !stays[above]; above = followed(pool, above))
				stays[above] = true;
}

bool objects_window_has(const struct pool *pool, uint64_t word)
{
	uint32_t number = page_word_owner(word);

	return page_word_state(word) == PAGE_SHARED && number < object_end_of(pool) && is_in_order(pool, number) &&
		!pool->objects->order->stays[number];
}

void objects_evict_at(struct pool *pool, uint32_t first, uint32_t count)
{
	struct objects_order *order = pool->objects->order;
	bool *goes = order->goes;
	uint32_t sorted;

	memset(goes, 0, object_end_of(pool) * sizeof(*goes));
	for (uint32_t page = first; page < first + count; page++)
		if (objects_window_has(pool, pool_word(pool, page)))
			goes[page_word_owner(pool_word(pool, page))] = true;
	sorted = sort(pool, is_in_order);
	for (uint32_t i = 0; i < sorted; i++)
		if (goes[followed(pool, order->sorted[i])])
			goes[order->sorted[i]] = true;
	while (sorted--)
		if (goes[order->sorted[sorted]])
			evict_one_object(pool, order->sorted[sorted]);
}
