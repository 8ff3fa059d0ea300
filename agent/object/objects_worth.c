/*
 * objects_worth.c - the worth of a pinnable object (shm/policy/worth.h). It depends on the uses counted by the readers'
 * pins, the reload cost stated by the publisher, and the size. The counted uses are also stored in the record, for the
 * next agent.
 */
#include "agent/object/objects.h"

#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum {
	USES_MOST = 1 << 20, /* limit of uses per check, since a session's count is not trusted */
	HEAT_SHIFT = 20,
	/* Reload cost if the publisher states none: time to read a file from a current disk. */
	LOAD_US = 200,
	LOAD_BYTES_PER_US = 3000,
};

static const struct worth_terms terms = WORTH_TERMS_INIT;

static uint64_t now_us(void)
{
	return clock_ns() / 1000;
}

static void keep(struct pool *pool, uint32_t number)
{
	const struct object *object = &pool->objects->of[number];

	atomic_store_explicit(&object_record(pool, number)->heat, (int64_t)(object->worth.heat * (1 << HEAT_SHIFT)),
		memory_order_relaxed);
}

/* ---- uses before an eviction ---- */

static uint64_t ghost_key(const struct object_record *record)
{
	return XXH3_64bits_withSeed(record->name, strnlen(record->name, sizeof(record->name)), record->domain) | 1;
}

static struct object_ghost *ghost_place(const struct objects *objects, uint64_t key)
{
	return &objects->ghosts[key >> 1 & (objects->ghost_count - 1)];
}

/* Of two objects with the same place, the one with more uses is kept. Heats of different times are comparable. */
void object_worth_evicted(struct pool *pool, uint32_t number)
{
	uint64_t key = ghost_key(object_record(pool, number));
	struct object_ghost *ghost = ghost_place(pool->objects, key);
	double heat = pool->objects->of[number].worth.heat;

	if (ghost->key && ghost->key != key && ghost->heat > heat)
		return;
	*ghost = (struct object_ghost){.key = key, .heat = heat};
}

static void ghost_return(const struct pool *pool, uint32_t number, struct worth *worth)
{
	uint64_t key = ghost_key(object_record(pool, number));
	const struct object_ghost *ghost = ghost_place(pool->objects, key);

	if (ghost->key == key && ghost->heat > worth->heat)
		worth->heat = ghost->heat;
}

/* ---- worth ---- */

void object_worth_begin(struct pool *pool, uint32_t number)
{
	struct object *object = &pool->objects->of[number];
	int64_t heat = atomic_load_explicit(&object_record(pool, number)->heat, memory_order_relaxed);
	struct object_pins pins;

	/* The object was already in the order: the policy of ephemeral objects was changed. */
	if (object->worth.window_us)
		return;
	object_pins_look(pool, number, &pins);
	object->uses_seen = pins.uses;
	worth_begin(&terms, &object->worth, now_us());
	if (heat) {
		object->worth.heat = (double)heat / (1 << HEAT_SHIFT);
	} else {
		ghost_return(pool, number, &object->worth);
		worth_count(&terms, &object->worth, 1, now_us());
	}
	keep(pool, number);
}

bool object_worth_learn(struct pool *pool, uint32_t number, const struct object_pins *pins)
{
	struct object_record *record = object_record(pool, number);
	struct object *object = &pool->objects->of[number];
	int32_t uses = (int32_t)(pins->uses - object->uses_seen);

	if (pins->touched_ms != object->touched_ms)
		atomic_store_explicit(
			&record->used_ms, wall_ms() - ((uint32_t)clock_ms() - pins->touched_ms), memory_order_relaxed);
	object->touched_ms = pins->touched_ms;
	object->uses_seen = pins->uses;
	if (uses <= 0)
		return false;
	worth_count(&terms, &object->worth, uses < USES_MOST ? (uint32_t)uses : USES_MOST, now_us());
	atomic_fetch_add_explicit(&record->uses, (uint32_t)uses, memory_order_relaxed);
	keep(pool, number);
	return true;
}

void object_worth_reader(struct pool *pool, uint32_t number, const struct session *session, bool comes)
{
	uint32_t uses;

	if (!pool->objects->of[number].in_order || object_record(pool, number)->class != OBJECT_PINNABLE)
		return;
	/* Count the session's uses until now. */
	if (!comes)
		object_order_look_at_pins(pool, number);
	uses = object_uses_of(pool, number, session);
	pool->objects->of[number].uses_seen += comes ? uses : -uses;
}

static double bytes_of(const struct pool *pool, uint32_t number)
{
	return (double)object_record(pool, number)->pages * (double)pool->segment.header->page_bytes;
}

static double load_us(const struct pool *pool, uint32_t number)
{
	return LOAD_US + bytes_of(pool, number) / LOAD_BYTES_PER_US;
}

uint64_t object_worth_key(const struct pool *pool, uint32_t number)
{
	uint32_t cost_us = object_record(pool, number)->cost_us;

	return worth_key(worth_of(
		&pool->objects->of[number].worth, cost_us ? cost_us : load_us(pool, number), bytes_of(pool, number)));
}

float object_cost(const struct pool *pool, uint32_t number)
{
	uint32_t cost_us = object_record(pool, number)->cost_us;

	return cost_us ? (float)(cost_us / load_us(pool, number)) : 1;
}
