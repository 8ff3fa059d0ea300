/*
 * objects_pins.c - objects that only pins protect: pins, last use, and the check before eviction.
 *
 * A reader's pin is stored in its own segment at the object's first page, as for its own blocks. Its fence is stored in
 * the block entry of that page, and its pin count in the entry's owner id. Pins of sessions that do not have the object
 * open are ignored. shm/pins.h describes the protocol (object_pin_try()): LEAVING is stored in the record first, then
 * the pins are read.
 */
#include "agent/object/objects.h"

#include "shm/doorbell.h"
#include "shm/pins.h"
#include "shm/timeline.h"

enum { LOOK_MS = 4000 }; /* short enough to attribute uses to the right window of 60 s */

static bool pinned_by(const struct session *session, uint32_t page)
{
	return pin_count(&session->segment, page) ||
		!fence_signaled(&session->segment,
			atomic_load_explicit(&session->segment.blocks[page].fence, memory_order_acquire));
}

/* Return the later time. A time in the future counts as now. */
static uint32_t later(uint32_t a, uint32_t b, uint32_t now)
{
	return now - a <= now - b || now - a > INT32_MAX ? a : b;
}

uint32_t object_page(const struct pool *pool, uint32_t number)
{
	const struct object *object = &pool->objects->of[number];

	return object_page_stands(object) ? object->runs[0].first : 0;
}

uint32_t object_uses_of(const struct pool *pool, uint32_t number, const struct session *session)
{
	return (uint32_t)atomic_load_explicit(
		&session->segment.blocks[object_page(pool, number)].owner_id, memory_order_relaxed);
}

void object_pins_look(const struct pool *pool, uint32_t number, struct object_pins *pins)
{
	uint32_t page = object_page(pool, number), now = (uint32_t)clock_ms();
	uint32_t left = atomic_load_explicit(&object_record(pool, number)->readers, memory_order_relaxed);

	*pins = (struct object_pins){.touched_ms = pool->objects->of[number].touched_ms};
	for (uint32_t word = 0; word < POOL_SESSIONS / 64 && left; word++) {
		uint64_t bits = atomic_load_explicit(&pool->ledger.objects[number].readers[word], memory_order_relaxed);

		for (; bits; bits &= bits - 1, left--) {
			const struct session *session = pool->sessions[word * 64 + (uint32_t)__builtin_ctzll(bits)];

			if (!session)
				continue;
			pins->touched_ms = later(pins->touched_ms,
				atomic_load_explicit(&session->segment.touch[page], memory_order_relaxed), now);
			pins->uses += object_uses_of(pool, number, session);
			pins->holders += pinned_by(session, page);
		}
	}
}

void object_holders(const struct pool *pool, uint32_t number, evict_holder_found *found, void *context)
{
	uint32_t left = atomic_load_explicit(&object_record(pool, number)->readers, memory_order_relaxed),
		 page = object_page(pool, number);

	for (uint32_t word = 0; word < POOL_SESSIONS / 64 && left; word++) {
		uint64_t bits = atomic_load_explicit(&pool->ledger.objects[number].readers[word], memory_order_relaxed);

		for (; bits; bits &= bits - 1, left--) {
			struct session *session = pool->sessions[word * 64 + (uint32_t)__builtin_ctzll(bits)];

			if (session && pinned_by(session, page))
				found(context, number, session, pin_count(&session->segment, page));
		}
	}
}

void objects_holders(const struct pool *pool, evict_holder_found *found, void *context)
{
	const struct bitmap *pinnable = &pool->objects->pinnable;

	for (uint32_t i = bitmap_lowest(pinnable); i != BITMAP_NONE; i = bitmap_next(pinnable, i + 1))
		if (object_stands(pool, i) && pool->objects->of[i].fd > 0)
			object_holders(pool, i, found, context);
}

bool object_pinned(const struct pool *pool, uint32_t number)
{
	struct object_pins pins;

	object_pins_look(pool, number, &pins);
	return pins.holders;
}

/* Wake the threads that wait for the state of a record. They also check it every millisecond. */
static void wake(struct pool *pool, uint32_t number)
{
	futex_wake(&object_record(pool, number)->state, INT32_MAX);
}

void object_mark(struct pool *pool, uint32_t number)
{
	object_set_state(pool, number, OBJECT_LEAVING);
}

void object_unmark(struct pool *pool, uint32_t number)
{
	object_set_state(pool, number, OBJECT_CURRENT);
	wake(pool, number);
}

bool object_leave(struct pool *pool, uint32_t number)
{
	object_mark(pool, number);
	if (!object_pinned(pool, number))
		return true;
	object_unmark(pool, number);
	return false;
}

void objects_tick(struct pool *pool)
{
	const struct bitmap *pinnable = &pool->objects->pinnable;
	uint64_t now = clock_ms();

	for (uint32_t i = bitmap_lowest(pinnable); i != BITMAP_NONE; i = bitmap_next(pinnable, i + 1))
		object_end_if_unused(pool, i);
	if (now - pool->objects->looked_ms < LOOK_MS)
		return;
	pool->objects->looked_ms = now;
	objects_order_look_at_pins(pool);
	objects_thin(pool, NULL, 0);
}
