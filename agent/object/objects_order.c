/*
 * objects_order.c - the eviction order of objects, and the number of evictable pages.
 *
 * Ephemeral objects are ordered by shm/policy/eviction.h. Each is a node below the object that it follows. An open
 * object has a pin there, and its age starts when it is closed. Opening it in another session is a touch. An evicted
 * object is recognized by its name. Pinnable objects follow no other object; they are ordered by worth, lowest first.
 * The scores of the first objects of both kinds determine which one is evicted (objects_evict.c).
 *
 * Invariants:
 *   an object is in the order if and only if it is CURRENT or LEAVING, and ephemeral or pinnable
 *   it is open if and only if it has a reader or, if only pins protect it, a session pinned it at the last check
 *   it stays (is not evictable) while it is open, or while an object that follows it stays; stay_below counts these
 *   idle_pages (of each tenant, and of objects without a tenant) are the pages of objects in the order that do not stay
 */
#include "agent/object/objects.h"

#include "agent/pages/evict.h"
#include "shm/policy/eviction.h"
#include "shm/policy/number_heap.h"
#include "shm/object_names.h"
#include "shm/pins.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

struct objects_order {
	struct eviction *ephemeral;
	struct number_heap pinnable; /* objects that are not open, by worth */
	uint32_t pinnables;          /* objects in the order, open or not */
	uint32_t adapters[OBJECT_ADAPTER_TIERS];
	uint32_t *numbers; /* [count] objects by node */
	uint32_t *aside;   /* [aside_count] skipped objects */
	uint32_t aside_count;
	uint32_t idle_pages;    /* of objects without a tenant; struct tenant has those of the tenant */
	uint32_t offered_pages; /* idle pages of all objects with OBJECT_BY_PINS */
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

/* ---- insertion and removal ---- */

uint32_t object_followed(const struct pool *pool, uint32_t number)
{
	const struct objects_order *order = pool->objects->order;
	uint32_t node = object_of(pool, number)->node;

	node = node ? eviction_parent(order->ephemeral, node - 1) : EVICTION_NONE;
	return node == EVICTION_NONE ? 0 : order->numbers[node];
}

/* Add or subtract the pages of an object in the order that no longer stays, or that now stays. */
static void idle_add(struct pool *pool, uint32_t number, bool more)
{
	const struct object_record *record = object_record(pool, number);
	uint32_t pages = more ? record->pages : -record->pages;

	*idle_pages(pool, number) += pages;
	if (record->flags & OBJECT_BY_PINS)
		pool->objects->order->offered_pages += pages;
}

static bool is_pinnable(const struct pool *pool, uint32_t number)
{
	return object_record(pool, number)->class == OBJECT_PINNABLE;
}

static uint32_t parent_of(const struct pool *pool, const struct object_record *record)
{
	uint32_t number = record->follows < pool->objects->count ? record->follows : 0;

	/* An object is newer than the one that it follows, so cycles are impossible. */
	if (!number || !object_of(pool, number)->node ||
		object_record(pool, number)->version != record->follows_version ||
		record->follows_version >= record->version)
		return EVICTION_NONE;
	return object_of(pool, number)->node - 1;
}

static bool stays(const struct object *object)
{
	return object->open || object->stay_below;
}

/* Change the number of followers that stay by `more`. Continue with the followed objects while their state changes. */
static void stay_add(struct pool *pool, uint32_t number, int more)
{
	for (; number && more; number = object_followed(pool, number)) {
		struct object *object = object_of(pool, number);
		bool stayed = stays(object);

		object->stay_below += (uint32_t)more;
		if (stays(object) == stayed)
			return;
		idle_add(pool, number, stayed);
	}
}

enum object_adapter_tier object_adapter_tier(const struct object_record *record)
{
	if (!strncmp(record->name, LORA_PREFIX, strlen(LORA_PREFIX)))
		return OBJECT_ADAPTER_HOT;
	return strncmp(record->name, LORA_WARM_PREFIX, strlen(LORA_WARM_PREFIX)) ? OBJECT_ADAPTER_TIERS
										 : OBJECT_ADAPTER_WARM;
}

static void adapters_count(struct objects_order *order, const struct object_record *record, int more)
{
	enum object_adapter_tier tier = object_adapter_tier(record);

	if (tier != OBJECT_ADAPTER_TIERS)
		order->adapters[tier] += (uint32_t)more;
}

static void enter(struct pool *pool, uint32_t number)
{
	const struct object_record *record = object_record(pool, number);
	struct objects_order *order = pool->objects->order;
	struct object *object = object_of(pool, number);
	uint32_t node;

	if (is_pinnable(pool, number)) {
		object_worth_begin(pool, number);
		order->pinnables++;
		adapters_count(order, record, 1);
		number_heap_add(&order->pinnable, number, object_worth_key(pool, number));
	} else {
		/* This cannot fail, because the tree has one node per object. */
		eviction_insert(order->ephemeral, parent_of(pool, record),
			XXH3_64bits(record->name, strlen(record->name)), &node);
		order->numbers[node] = number;
		object->node = node + 1;
	}
	object->in_order = true;
	object->open = false;
	object->stay_below = 0;
	object->touched_ms = (uint32_t)clock_ms();
	idle_add(pool, number, true);
	pool->evict.released_ns = clock_ns();
}

/* Remove an object from the order. Its followers then follow its parent. */
static void leave(struct pool *pool, uint32_t number, bool evicted)
{
	struct objects_order *order = pool->objects->order;
	struct object *object = object_of(pool, number);
	uint32_t above = object_followed(pool, number);

	if (!stays(object))
		idle_add(pool, number, false);
	else if (!object->stay_below)
		stay_add(pool, above, -1);
	else if (above)
		object_of(pool, above)->stay_below += object->stay_below - 1;
	if (is_pinnable(pool, number)) {
		order->pinnables--;
		adapters_count(order, object_record(pool, number), -1);
		if (!object->open)
			number_heap_remove(&order->pinnable, number);
	} else if (evicted) {
		eviction_evict(order->ephemeral, object->node - 1);
	} else {
		eviction_forget(order->ephemeral, object->node - 1);
	}
	object->node = 0;
	object->in_order = false;
}

/* Add the object to the evictable objects or remove it from them, depending on `open`. */
static void place(struct pool *pool, uint32_t number)
{
	struct objects_order *order = pool->objects->order;
	const struct object *object = object_of(pool, number);

	if (is_pinnable(pool, number) && object->open) {
		number_heap_remove(&order->pinnable, number);
	} else if (is_pinnable(pool, number)) {
		number_heap_add(&order->pinnable, number, object_worth_key(pool, number));
	} else if (object->open) {
		eviction_pin(order->ephemeral, object->node - 1);
	} else {
		eviction_used(order->ephemeral, object->node - 1);
		eviction_unpin(order->ephemeral, object->node - 1);
	}
}

void object_order_open(struct pool *pool, uint32_t number, bool open)
{
	struct object *object = object_of(pool, number);
	bool stayed = stays(object);

	if (open == object->open)
		return;
	object->open = open;
	place(pool, number);
	if (!open) {
		object->scanned = 0;
		pool->evict.released_ns = clock_ns();
	}
	if (stays(object) == stayed)
		return;
	idle_add(pool, number, stayed);
	stay_add(pool, object_followed(pool, number), open ? 1 : -1);
}

void object_order_look(struct pool *pool, uint32_t number)
{
	const struct object_record *record = object_record(pool, number);
	enum object_state state = object_state(pool, number);
	bool belongs = (state == OBJECT_CURRENT || state == OBJECT_LEAVING) &&
		(record->class == OBJECT_EPHEMERAL || record->class == OBJECT_PINNABLE);

	if (belongs && !object_of(pool, number)->in_order)
		enter(pool, number);
	else if (!belongs && object_of(pool, number)->in_order)
		leave(pool, number, false);
	if (!belongs || object_kept_by_pins(record))
		return;
	/* The last use is the time at which the object was closed. */
	if (object_of(pool, number)->open)
		object_of(pool, number)->touched_ms = (uint32_t)clock_ms();
	object_order_open(pool, number, atomic_load_explicit(&record->readers, memory_order_relaxed));
}

void object_order_touch(struct pool *pool, uint32_t number)
{
	if (object_of(pool, number)->node)
		eviction_touch(pool->objects->order->ephemeral, object_of(pool, number)->node - 1);
}

/*
 * Update an ephemeral object that only pins protect. It is open while it is pinned, and a pin since the last check
 * counts as a use.
 */
static void ephemeral_used(struct pool *pool, uint32_t number, const struct object_pins *pins)
{
	struct object *object = object_of(pool, number);

	if (pins->touched_ms != object->touched_ms) {
		object->touched_ms = pins->touched_ms;
		object_order_touch(pool, number);
	}
	object_order_open(pool, number, pins->holders);
}

void object_order_look_at_pins(struct pool *pool, uint32_t number)
{
	struct object_pins pins;

	object_pins_look(pool, number, &pins);
	if (!is_pinnable(pool, number)) {
		ephemeral_used(pool, number, &pins);
		return;
	}
	object_order_open(pool, number, pins.holders);
	if (object_worth_learn(pool, number, &pins) && !pins.holders) {
		object_of(pool, number)->scanned = 0;
		number_heap_remove(&pool->objects->order->pinnable, number);
		number_heap_add(&pool->objects->order->pinnable, number, object_worth_key(pool, number));
	}
}

void objects_order_look_at_pins(struct pool *pool)
{
	const struct bitmap *pinnable = &pool->objects->pinnable;

	for (uint32_t i = bitmap_lowest(pinnable); i != BITMAP_NONE; i = bitmap_next(pinnable, i + 1))
		if (object_of(pool, i)->in_order)
			object_order_look_at_pins(pool, i);
}

void object_order_evicted(struct pool *pool, uint32_t number)
{
	leave(pool, number, true);
}

/* ---- next object ---- */

uint32_t object_order_next_ephemeral(const struct pool *pool)
{
	struct objects_order *order = pool->objects->order;
	uint32_t node = eviction_victim(order->ephemeral);

	return node == EVICTION_NONE ? 0 : order->numbers[node];
}

uint32_t object_order_next_pinnable(const struct pool *pool)
{
	const struct objects_order *order = pool->objects->order;

	return order->pinnable.count ? number_heap_lowest(&order->pinnable) : 0;
}

uint32_t object_order_adapters(const struct pool *pool, enum object_adapter_tier tier)
{
	return pool->objects->order->adapters[tier];
}

uint32_t object_order_pinnables(const struct pool *pool)
{
	return pool->objects->order->pinnables;
}

void object_order_aside(struct pool *pool, uint32_t number)
{
	struct objects_order *order = pool->objects->order;

	if (is_pinnable(pool, number))
		number_heap_remove(&order->pinnable, number);
	else
		eviction_pin(order->ephemeral, object_of(pool, number)->node - 1);
	order->aside[order->aside_count++] = number;
}

void object_order_back(struct pool *pool)
{
	struct objects_order *order = pool->objects->order;

	while (order->aside_count) {
		uint32_t number = order->aside[--order->aside_count];

		if (is_pinnable(pool, number))
			number_heap_add(&order->pinnable, number, object_worth_key(pool, number));
		else
			eviction_unpin(order->ephemeral, object_of(pool, number)->node - 1);
	}
}

uint32_t object_order_idle_pages(const struct pool *pool)
{
	return pool->objects->order->idle_pages;
}

uint32_t object_order_offered_pages(const struct pool *pool)
{
	return pool->objects ? pool->objects->order->offered_pages : 0;
}

/* ---- check ---- */

/* Count the followers that stay in the records, to verify stay_below. */
static uint32_t stay_below(const struct pool *pool, uint32_t number)
{
	uint32_t count = 0;

	for (uint32_t i = 1; i < object_end_of(pool); i++)
		count +=
			object_of(pool, i)->in_order && object_followed(pool, i) == number && stays(object_of(pool, i));
	return count;
}

/*
 * Find a session that pins an object without having it open. Such a pin has no effect: the session has not yet detected
 * that the object was evicted.
 */
static bool pinned_by_stranger(const struct pool *pool, uint32_t number, uint32_t *session)
{
	for (uint32_t id = 1; id < POOL_SESSIONS; id++) {
		const struct session *stranger = pool->sessions[id];

		if (!stranger || stranger->kind != SESSION_WORKER || object_has_reader(pool, number, id) ||
			!pin_count(&stranger->segment, object_page(pool, number)))
			continue;
		*session = id;
		return true;
	}
	return false;
}

static void check_one(const struct pool *pool, uint32_t number, objects_fault *found, void *context)
{
	const struct object *object = object_of(pool, number);
	enum object_state state = object_state(pool, number);
	uint32_t class = object_record(pool, number)->class, page = object_page(pool, number), session = 0;

	if (object->in_order != (state == OBJECT_CURRENT && (class == OBJECT_EPHEMERAL || class == OBJECT_PINNABLE)))
		found(context, 0, page,
			"an evictable object is missing from the eviction order, or another object is in it");
	if (object->in_order && object->node && object->stay_below != stay_below(pool, number))
		found(context, 0, page, "wrong number of followers that are not evictable");
	if (object_kept_by_pins(object_record(pool, number)) && object_stands(pool, number) && object->fd > 0 &&
		pinned_by_stranger(pool, number, &session))
		found(context, session, page, "the session pins an object that it does not have open");
}

void objects_check(const struct pool *pool, objects_fault *found, void *context)
{
	uint32_t idle = 0, booked = pool->objects->order->idle_pages;

	for (uint32_t i = 1; i < object_end_of(pool); i++) {
		check_one(pool, i, found, context);
		idle += object_of(pool, i)->in_order && !stays(object_of(pool, i)) ? object_record(pool, i)->pages : 0;
	}
	for (uint32_t i = 0; i < pool->tenant_count; i++)
		booked += pool->tenants[i].idle_pages;
	if (idle != booked)
		found(context, 0, 0, "wrong number of pages of evictable objects");
}

/* ---- creation and destruction ---- */

static int by_version(const void *left, const void *right, void *context)
{
	uint64_t a = object_record(context, *(const uint32_t *)left)->version;
	uint64_t b = object_record(context, *(const uint32_t *)right)->version;

	return a < b ? -1 : a > b;
}

uint32_t objects_sort(struct pool *pool, bool (*in)(const struct pool *pool, uint32_t number))
{
	uint32_t *sorted = pool->objects->sorted, count = 0;

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

static void order_free(struct objects_order *order)
{
	if (!order)
		return;
	eviction_destroy(order->ephemeral);
	number_heap_fini(&order->pinnable);
	free(order->numbers);
	free(order->aside);
	free(order);
}

static struct objects_order *order_make(const struct pool *pool)
{
	const struct eviction_policy *policy =
		eviction_policy_named(pool->evict.policy ? pool->evict.policy->objects : "lru");
	struct objects_order *order = calloc(1, sizeof(*order));
	uint32_t count = pool->objects->count;

	if (!order)
		return NULL;
	order->numbers = calloc(count, sizeof(*order->numbers));
	order->aside = calloc(count, sizeof(*order->aside));
	if (order->numbers && order->aside && !number_heap_init(&order->pinnable, count) &&
		!eviction_create(policy, count, &order->ephemeral))
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
	/* At the start of an agent, objects are not known yet; objects_recover() calls this function again. */
	count = pool->object_count ? objects_sort(pool, is_there) : 0;
	for (uint32_t i = 0; i < count; i++) {
		object_of(pool, pool->objects->sorted[i])->node = 0;
		object_of(pool, pool->objects->sorted[i])->in_order = false;
		object_order_look(pool, pool->objects->sorted[i]);
	}
	return 0;
}

void objects_order_end(struct pool *pool)
{
	order_free(pool->objects->order);
	pool->objects->order = NULL;
}
