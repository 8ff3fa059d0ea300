/*
 * elastic_object.c - named objects at the addresses of an elastic range: pages of the range are published where they
 * are, and pages of another process's object are mapped. See elastic.h.
 *
 * A slot belongs to one call from the check of its state on: TAKEN while it is published, MOVING while an object is
 * mapped there. Other calls for its pages see pages that are not committed, or return -EBUSY.
 *
 * The agent may evict an object that is not pinned. Its mapping remains, and is removed when another trust domain needs
 * the pages (objects_sweep()). The slots stay SHARED until gpool_range_unmap().
 */
#include "client/core/last_error.h"
#include "client/vm/elastic.h"
#include "shm/plural.h"

#include <stdlib.h>

static uint32_t slots_of(const struct elastic *elastic, const struct elastic_pages *pages)
{
	return pages->count / handle_pages(elastic->space.pool);
}

static uint64_t bytes_of(const struct elastic *elastic, const struct elastic_pages *pages)
{
	return pages->count * elastic->space.pool->page_bytes;
}

static uint64_t address_of(const struct elastic *elastic, const struct elastic_pages *pages)
{
	return vm_address(&elastic->space, elastic_slot_of(elastic, pages->first));
}

/* The caller holds the lock. */
static void slots_set(struct elastic *elastic, const struct elastic_pages *pages, enum elastic_state state)
{
	uint32_t first = elastic_slot_of(elastic, pages->first);

	for (uint32_t slot = first; slot < first + slots_of(elastic, pages); slot++)
		elastic_set(elastic, slot, state);
}

static int whole_handles(const struct elastic *elastic, const struct elastic_pages *pages)
{
	uint32_t per_handle = handle_pages(elastic->space.pool);

	return pages->first % per_handle || pages->count % per_handle
		? fail(-EINVAL, "first is %u and count is %u; both must be multiples of %u, the pages of a handle",
			  pages->first, pages->count, per_handle)
		: 0;
}

/* ---- publish ---- */

/* Take the slots out of use. Return: 0, or -EINVAL with nothing changed. */
static int publish_begin(struct elastic *elastic, const struct elastic_pages *pages)
{
	uint32_t per_handle = handle_pages(elastic->space.pool);
	int error = 0;

	pthread_mutex_lock(&elastic->lock);
	for (uint32_t page = pages->first; page < pages->first + pages->count && !error; page++) {
		const struct elastic_slot *slot = &elastic->slots[elastic_slot_of(elastic, page)];

		if (!elastic_bit(elastic->committed, page))
			error = fail(-EINVAL, "page %u is not committed", page);
		else if (slot->state != ELASTIC_HELD || slot->uses != per_handle)
			error = fail(-EINVAL, "page %u is offered, captured, or in use by another call", page);
	}
	if (!error) {
		elastic_uncommit(elastic, pages);
		slots_set(elastic, pages, ELASTIC_TAKEN);
	}
	elastic_unlock(elastic);
	return error;
}

static void publish_undo(struct elastic *elastic, const struct elastic_pages *pages)
{
	uint32_t first = elastic_slot_of(elastic, pages->first), per_handle = handle_pages(elastic->space.pool);

	pthread_mutex_lock(&elastic->lock);
	slots_set(elastic, pages, ELASTIC_HELD);
	for (uint32_t slot = first; slot < first + slots_of(elastic, pages); slot++)
		elastic->slots[slot].uses = per_handle;
	for (uint32_t page = pages->first; page < pages->first + pages->count; page++)
		elastic->committed[page / 64] |= UINT64_C(1) << (page % 64);
	elastic->committed_pages += pages->count;
	elastic_unlock(elastic);
}

/* The pages belong to the object now, and so does their mapping. */
static void publish_end(struct elastic *elastic, const struct elastic_pages *pages, struct gpool_object *object)
{
	object->in_range = true;
	object_mapped_at(object, address_of(elastic, pages), bytes_of(elastic, pages));
	pthread_mutex_lock(&elastic->lock);
	vm_forget(&elastic->space, elastic_slot_of(elastic, pages->first), slots_of(elastic, pages));
	slots_set(elastic, pages, ELASTIC_SHARED);
	elastic_unlock(elastic);
}

static int pages_give(struct elastic *elastic, const struct elastic_pages *pages, const struct object_gift *gift,
	struct gpool_object **object)
{
	struct gpool *pool = elastic->space.pool;
	uint32_t count = slots_of(elastic, pages);
	struct gpool_block *blocks = calloc(count, sizeof(*blocks));
	uint32_t *list = calloc(count, sizeof(*list));
	int error = blocks && list ? 0 : -ENOMEM;

	if (!error)
		error = gpu_access(pool->gpu, address_of(elastic, pages), bytes_of(elastic, pages), GPU_ACCESS_READ);
	if (!error) {
		elastic_blocks(elastic, pages, blocks, list);
		error = object_give(pool, gift, blocks, count, object);
		if (error)
			gpu_access(
				pool->gpu, address_of(elastic, pages), bytes_of(elastic, pages), GPU_ACCESS_READ_WRITE);
	}
	free(blocks);
	free(list);
	return error;
}

static int publish(struct elastic *elastic, const struct elastic_pages *pages, const char *name,
	const struct gpool_range_publish_options *options, struct gpool_object **object)
{
	const struct object_gift gift = {
		.name = name,
		.follows = options->follows,
		.key = options->key,
		.value = options->value,
		.bytes = options->value_bytes,
		.private = options->flags & GPOOL_OBJECT_PRIVATE,
	};
	int error = whole_handles(elastic, pages);

	if (!error)
		error = publish_begin(elastic, pages);
	if (error)
		return error;
	error = pages_give(elastic, pages, &gift, object);
	if (error)
		publish_undo(elastic, pages);
	else
		publish_end(elastic, pages, *object);
	return error;
}

static int publish_options(struct gpool_range_publish_options *read, const struct gpool *pool,
	const struct gpool_range_publish_options *options)
{
	int error = options ? options_read(read, sizeof(*read), options) : 0;

	if (error)
		return error;
	if (read->flags & ~(uint32_t)GPOOL_OBJECT_PRIVATE)
		return fail(-EINVAL, "flags are 0x%x; the only known flag is GPOOL_OBJECT_PRIVATE", read->flags);
	if (!read->key && (read->value || read->value_bytes))
		return fail(-EINVAL, "value is set without a key");
	if (read->follows && (read->follows->pool != pool || !read->follows->number))
		return fail(-EINVAL, "follows is not an open object of this pool");
	return 0;
}

int gpool_range_publish(struct gpool_range *range, uint32_t first, uint32_t count, const char *name,
	const struct gpool_range_publish_options *options, struct gpool_object **object)
{
	const struct elastic_pages pages = {.first = first, .count = count, .times = 1};
	struct gpool_range_publish_options read = GPOOL_RANGE_PUBLISH_OPTIONS_INIT;
	int error = range_enter(range, &pages);

	if (error)
		return error;
	error = publish_options(&read, range->pool, options);
	if (!error)
		error = publish(range->elastic, &pages, name, &read, object);
	ranges_leave(range->pool->ranges);
	return error;
}

/* ---- map ---- */

/* Return 0 if the object's pages can be mapped side by side and are no longer written. */
static int object_fits(const struct gpool_object *object)
{
	uint32_t per_handle = handle_pages(object->pool);

	if (object->memory_class == GPOOL_OBJECT_MUTABLE)
		return fail(-EINVAL, "object '%s' has the class MUTABLE and cannot be mapped in a range", object->name);
	for (uint32_t i = 0; i < object->manifest.header->runs; i++)
		if (object->manifest.runs[i].first % per_handle || object->manifest.runs[i].count % per_handle)
			return fail(-EOPNOTSUPP, "the pages of object '%s' do not fill handles of %u page%s",
				object->name, per_handle, plural(per_handle));
	return 0;
}

/* Reserve slots that have no content: 0, -EBUSY. */
static int map_begin(struct elastic *elastic, const struct elastic_pages *pages)
{
	uint32_t first = elastic_slot_of(elastic, pages->first), end = first + slots_of(elastic, pages);
	int error = 0;

	pthread_mutex_lock(&elastic->lock);
	for (uint32_t slot = first; slot < end && !error; slot++) {
		elastic_settle_slot(elastic, slot);
		if (elastic->slots[slot].state != ELASTIC_HOLE && elastic->slots[slot].state != ELASTIC_RECLAIMABLE)
			error = fail(-EBUSY,
				"page %u is not free: it is committed, mapped to an object, or in use by another call",
				slot * handle_pages(elastic->space.pool));
	}
	if (!error)
		slots_set(elastic, pages, ELASTIC_MOVING);
	elastic_unlock(elastic);
	return error;
}

static void map_end(struct elastic *elastic, const struct elastic_pages *pages, bool mapped)
{
	uint32_t first = elastic_slot_of(elastic, pages->first);

	pthread_mutex_lock(&elastic->lock);
	for (uint32_t slot = first; slot < first + slots_of(elastic, pages); slot++)
		elastic_set(elastic, slot,
			mapped                               ? ELASTIC_SHARED
				: elastic->space.pages[slot] ? ELASTIC_RECLAIMABLE
							     : ELASTIC_HOLE);
	elastic_unlock(elastic);
}

static int map(struct elastic *elastic, const struct elastic_pages *pages, struct gpool_object *object)
{
	uint32_t first = elastic_slot_of(elastic, pages->first);
	bool stuck = false;
	int error = whole_handles(elastic, pages);

	if (!error)
		error = map_begin(elastic, pages);
	if (error)
		return error;
	error = vm_unmap(&elastic->space, first, slots_of(elastic, pages));
	if (!error)
		error = object_map_at(object, address_of(elastic, pages), &stuck);
	if (!error) {
		object->in_range = true;
		object_mapped_at(object, address_of(elastic, pages), bytes_of(elastic, pages));
	}
	/* `stuck` mappings make later calls for these pages fail in the driver; the log has the cause. */
	map_end(elastic, pages, !error);
	return error;
}

static int map_in_range(struct gpool_range *range, uint32_t first, struct gpool_object *object)
{
	const struct elastic_pages pages = {.first = first, .count = object->manifest.header->pages, .times = 1};
	int error = range_enter(range, &pages);

	if (error)
		return error;
	error = map(range->elastic, &pages, object);
	ranges_leave(range->pool->ranges);
	return error;
}

int gpool_range_map(struct gpool_range *range, uint32_t first, const char *name,
	const struct gpool_object_open_options *options, struct gpool_object **object)
{
	const struct elastic_pages one = {.first = first, .count = 1, .times = 1};
	struct gpool_object_open_options read = GPOOL_OBJECT_OPEN_OPTIONS_INIT;
	struct gpool_object *opened;
	bool pinned = false;
	int error = range_enter(range, &one);

	if (error)
		return error;
	ranges_leave(range->pool->ranges);
	if (options)
		error = options_read(&read, sizeof(read), options);
	if (!error && (read.flags || read.role))
		error = fail(-EINVAL, "flags and role must not be set for a range");
	if (!error)
		error = object_open(range->pool, name, &read, false, &opened);
	if (error)
		return error;
	error = object_fits(opened);
	if (!error && opened->by_pins) {
		error = object_pin(opened);
		pinned = !error;
	}
	if (!error)
		error = map_in_range(range, first, opened);
	if (!error) {
		*object = opened;
		return 0;
	}
	if (pinned)
		object_unpin(opened, GPOOL_FENCE_NONE);
	gpool_object_close(opened);
	return error;
}

/* ---- unmap ---- */

int gpool_range_unmap(struct gpool_range *range, struct gpool_object *object)
{
	struct elastic_pages pages = {.times = 1};
	struct elastic *elastic = range->elastic;
	struct gpool *pool = range->pool;
	int error;

	if (!pool->alive)
		return -ECHILD;
	if (!elastic || !object->in_range || object->mapping < range->address ||
		object->mapping >= range->address + range->bytes)
		return fail(-EINVAL, "object '%s' is not mapped in this range", object->name);
	pages.first = (uint32_t)((object->mapping - range->address) / pool->page_bytes);
	pages.count = object->manifest.header->pages;
	error = range_enter(range, &pages);
	if (error)
		return error;
	error = object_mapping_unmap(object);
	if (!error) {
		pthread_mutex_lock(&elastic->lock);
		slots_set(elastic, &pages, ELASTIC_HOLE);
		elastic_unlock(elastic);
		object->in_range = false;
	}
	ranges_leave(pool->ranges);
	return error ? error : gpool_object_close(object);
}

void elastic_shared_close(struct elastic *elastic)
{
	struct gpool *pool = elastic->space.pool;

	pthread_mutex_lock(&pool->objects_lock);
	for (struct gpool_object *object = pool->objects; elastic->count[ELASTIC_SHARED] && object;
		object = object->next)
		if (object->in_range && object->mapping_bytes && object->mapping >= elastic->space.base &&
			object->mapping < elastic->space.base + elastic->space.bytes &&
			!gpu_unmap(pool->gpu, object->mapping, object->mapping_bytes))
			object->mapping_bytes = 0;
	pthread_mutex_unlock(&pool->objects_lock);
}
