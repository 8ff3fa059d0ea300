/*
 * test_sharing_objects.c - the sharing matrix (sharing.h) for named objects and for the ranges of sleeping engines.
 *
 * Goal: the class of an object determines which pages another process can get. Immutable and mutable objects are not
 * evicted, even after the death of their publisher. Ephemeral and pinnable ones are evicted as soon as no process uses
 * them. A sleeping engine keeps only content that its class saves. Method: see sharing.h; four objects, or ranges, of
 * four pages each.
 *
 * Requirements: U17.
 */
#include "tests/integration/sharing.h"

enum { OBJECTS = 4, OBJECT_PAGES = UNITS / OBJECTS };

static const char *const arguments[] = {"--pool", POOL ",spill_memory=32MiB", CALM, NULL};

/* ---- objects ---- */

struct objects {
	struct gpool_object *open[OBJECTS];
	struct gpool_range *ranges[OBJECTS];
};

static struct objects *objects_of(struct owner *owner)
{
	if (!owner->own)
		owner->own = calloc(1, sizeof(struct objects));
	assert_non_null(owner->own);
	return owner->own;
}

static uint64_t object_address(struct gpool_object *object)
{
	uint64_t address = 0, bytes = 0;

	assert_int_equal(gpool_object_address(object, 0, &address, &bytes), 0);
	return address;
}

static const char *object_name(uint32_t i)
{
	static char name[16];

	snprintf(name, sizeof(name), "object-%u", i);
	return name;
}

static void objects_create(struct owner *owner, uint32_t memory_class, uint32_t flags)
{
	struct objects *objects = objects_of(owner);

	for (uint32_t i = 0; i < OBJECTS; i++) {
		struct gpool_object_options options = GPOOL_OBJECT_OPTIONS_INIT;
		uint32_t index;

		options.memory_class = memory_class;
		options.flags = flags;
		assert_int_equal(gpool_object_create(owner->pool, object_name(i), &options, &objects->open[i]), 0);
		assert_int_equal(gpool_object_alloc(objects->open[i], OBJECT_PAGES, NULL, &index), 0);
		for (uint32_t page = 0; page < OBJECT_PAGES; page++)
			page_write(object_address(objects->open[i]) + (uint64_t)page * PAGE_BYTES,
				i * OBJECT_PAGES + page);
	}
}

static void objects_publish(struct owner *owner, uint32_t memory_class, uint32_t flags)
{
	objects_create(owner, memory_class, flags);
	for (uint32_t i = 0; i < OBJECTS; i++) {
		uint64_t version = 0;

		assert_int_equal(gpool_object_publish(objects_of(owner)->open[i], &version), 0);
	}
}

static void objects_draft(struct owner *owner)
{
	objects_create(owner, GPOOL_OBJECT_IMMUTABLE, 0);
}

static void objects_immutable(struct owner *owner)
{
	objects_publish(owner, GPOOL_OBJECT_IMMUTABLE, 0);
}

static void objects_mutable(struct owner *owner)
{
	objects_publish(owner, GPOOL_OBJECT_MUTABLE, 0);
}

static void objects_ephemeral(struct owner *owner)
{
	objects_publish(owner, GPOOL_OBJECT_EPHEMERAL, 0);
}

static void objects_pinned(struct owner *owner)
{
	objects_publish(owner, GPOOL_OBJECT_PINNABLE, GPOOL_OBJECT_PINNED);
}

static void objects_close(struct owner *owner)
{
	for (uint32_t i = 0; i < OBJECTS; i++) {
		assert_int_equal(gpool_object_close(objects_of(owner)->open[i]), 0);
		objects_of(owner)->open[i] = NULL;
	}
}

static void objects_unpin(struct owner *owner)
{
	for (uint32_t i = 0; i < OBJECTS; i++)
		assert_int_equal(gpool_object_unpin(objects_of(owner)->open[i]), 0);
}

static void objects_unpin_after(struct owner *owner)
{
	for (uint32_t i = 0; i < OBJECTS; i++)
		assert_int_equal(gpool_object_unpin_after(objects_of(owner)->open[i], owner->fence), 0);
}

static void object_look(struct found *found, struct gpool_object *object, uint32_t i)
{
	for (uint32_t page = 0; page < OBJECT_PAGES; page++)
		found_page(found, object != NULL, object ? object_address(object) + (uint64_t)page * PAGE_BYTES : 0,
			i * OBJECT_PAGES + page);
}

/* Check objects by their names, or by open handles. */
static void objects_look(struct owner *owner, struct found *found)
{
	for (uint32_t i = 0; i < OBJECTS; i++) {
		struct gpool_object *object = objects_of(owner)->open[i];

		if (!object) {
			int error = gpool_object_open(owner->pool, object_name(i), NULL, &object);

			assert_true(error == 0 || error == -ENOENT);
		}
		object_look(found, object, i);
	}
}

static void objects_look_pinned(struct owner *owner, struct found *found)
{
	for (uint32_t i = 0; i < OBJECTS; i++) {
		struct gpool_object *object = objects_of(owner)->open[i];
		int error = gpool_object_pin(object);

		assert_true(error == 0 || error == -ESTALE);
		object_look(found, error ? NULL : object, i);
	}
}

/* ---- ranges of a sleeping engine ---- */

static uint64_t range_page(struct gpool_range *range, uint32_t page)
{
	uint64_t address = 0;

	assert_int_equal(gpool_range_address(range, &address), 0);
	return address + (uint64_t)page * PAGE_BYTES;
}

static void ranges_create(struct owner *owner, uint32_t memory_class)
{
	for (uint32_t i = 0; i < OBJECTS; i++) {
		struct gpool_range_options options = GPOOL_RANGE_OPTIONS_INIT;
		struct gpool_range **range = &objects_of(owner)->ranges[i];

		options.memory_class = memory_class;
		options.name = memory_class == GPOOL_OBJECT_IMMUTABLE ? object_name(i) : NULL;
		assert_int_equal(gpool_range_create(owner->pool, OBJECT_PAGES, &options, range), 0);
		for (uint32_t page = 0; page < OBJECT_PAGES; page++)
			page_write(range_page(*range, page), i * OBJECT_PAGES + page);
	}
}

static void ranges_immutable(struct owner *owner)
{
	ranges_create(owner, GPOOL_OBJECT_IMMUTABLE);
}

static void ranges_mutable(struct owner *owner)
{
	ranges_create(owner, GPOOL_OBJECT_MUTABLE);
}

static void ranges_ephemeral(struct owner *owner)
{
	ranges_create(owner, GPOOL_OBJECT_EPHEMERAL);
}

static void engine_sleep(struct owner *owner)
{
	assert_int_equal(gpool_sleep(owner->pool, 0), 0);
}

static void ranges_look(struct owner *owner, struct found *found)
{
	assert_int_equal(gpool_wake(owner->pool, ANSWER_MS), 0);
	for (uint32_t i = 0; i < UNITS; i++)
		found_page(found, true, range_page(objects_of(owner)->ranges[i / OBJECT_PAGES], i % OBJECT_PAGES), i);
}

/* ---- the table ---- */

static const struct kind kinds[] = {
	{.name = "objects, not published",
		.gets = HELD,
		.content = NEEDED,
		.prepare = objects_draft,
		.look = objects_look},
	{.name = "objects, immutable",
		.gets = OUTLIVES,
		.content = NEEDED,
		.prepare = objects_immutable,
		.let_go = objects_close,
		.look = objects_look},
	{.name = "objects, mutable and open",
		.gets = OUTLIVES,
		.content = NEEDED,
		.prepare = objects_mutable,
		.look = objects_look},
	{.name = "objects, ephemeral and open",
		.gets = HELD,
		.content = NEEDED,
		.prepare = objects_ephemeral,
		.look = objects_look},
	{.name = "objects, ephemeral and closed",
		.gets = AT_ONCE,
		.content = KEPT,
		.prepare = objects_ephemeral,
		.let_go = objects_close,
		.look = objects_look},
	{.name = "objects, pinnable and pinned",
		.gets = HELD,
		.content = NEEDED,
		.prepare = objects_pinned,
		.look = objects_look_pinned},
	{.name = "objects, pinnable and unpinned",
		.gets = AT_ONCE,
		.content = KEPT,
		.prepare = objects_pinned,
		.let_go = objects_unpin,
		.look = objects_look_pinned},
	{.name = "objects, pinnable and unpinned behind a fence",
		.gets = BEHIND_WORK,
		.content = KEPT,
		.prepare = objects_pinned,
		.let_go = objects_unpin_after,
		.look = objects_look_pinned},
	{.name = "sleeping engine, immutable ranges",
		.gets = OUTLIVES,
		.content = NEEDED,
		.work_later = true,
		.prepare = ranges_immutable,
		.let_go = engine_sleep,
		.look = ranges_look},
	{.name = "sleeping engine, mutable ranges",
		.gets = AT_ONCE,
		.content = SAVED,
		.work_later = true,
		.needs_room = true,
		.prepare = ranges_mutable,
		.let_go = engine_sleep,
		.look = ranges_look},
	{.name = "sleeping engine, ephemeral ranges",
		.gets = AT_ONCE,
		.content = GONE,
		.work_later = true,
		.prepare = ranges_ephemeral,
		.let_go = engine_sleep},
};

int main(int argc, char **argv)
{
	return sharing_main(argc, argv, arguments, kinds, sizeof(kinds) / sizeof(*kinds));
}
