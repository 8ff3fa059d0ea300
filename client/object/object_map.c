/*
 * object_map.c - map a version into a range of its own. The allocations are mapped one after the other, each with all
 * of its handles, because a handle is mapped as a whole. One call sets the access of the whole range.
 */
#include "client/object/object.h"
#include "shm/plural.h"

#include "client/core/last_error.h"
#include "client/core/window.h"

#include <stdlib.h>

/* Return the number of handles of which a run has pages. */
static uint32_t handles_of(const struct gpool_object *object, const struct manifest_run *run)
{
	uint32_t per_handle = object->pool->header->pages_per_handle;

	return (run->first + run->count - 1) / per_handle - run->first / per_handle + 1;
}

/* If the back end has one descriptor per handle, request the descriptors of all handles together. */
static int handles_import(const struct gpool_object *object)
{
	const struct manifest *manifest = &object->manifest;
	uint32_t least = UINT32_MAX, most = 0;

	for (uint32_t i = 0; i < manifest->header->runs; i++) {
		const struct manifest_run *run = &manifest->runs[i];

		if (run->first < least)
			least = run->first;
		if (run->first + run->count - 1 > most)
			most = run->first + run->count - 1;
	}
	return window_import(object->pool, least, most - least + 1);
}

/*
 * Return the pages of run *next and of the following runs that continue it, which are mapped by one call. A run that
 * begins in the handle in which the one before it ends does not continue it, since this handle must be mapped twice.
 */
static struct manifest_run runs_join(const struct gpool_object *object, uint32_t *next)
{
	const struct manifest *manifest = &object->manifest;
	struct manifest_run run = manifest->runs[(*next)++];

	while (*next < manifest->header->runs && manifest->runs[*next].first == run.first + run.count &&
		(run.first + run.count) % object->pool->header->pages_per_handle == 0)
		run.count += manifest->runs[(*next)++].count;
	return run;
}

int object_map_at(struct gpool_object *object, uint64_t begin, bool *stuck)
{
	struct gpool *pool = object->pool;
	const struct manifest *manifest = &object->manifest;
	uint64_t at = begin;
	int error = handles_import(object);

	for (uint32_t i = 0; i < manifest->header->runs && !error;) {
		struct manifest_run run = runs_join(object, &i);

		error = window_map_at(pool, run.first, run.count, &at);
	}
	if (!error)
		error = gpu_access(
			pool->gpu, begin, at - begin, object->writable ? GPU_ACCESS_READ_WRITE : GPU_ACCESS_READ);
	/* If it has been evicted since, the agent may have refused the descriptors, or its pages have other content. */
	if (object->by_pins && object_is_gone(object))
		error = fail(-ENOENT, "object '%s' was evicted while it was being opened", object->name);
	if (!error) {
		window_keep_from_child(pool, begin, at - begin);
		return 0;
	}
	if (error != -ENOENT)
		pool_log(pool, POOL_LOG_ERROR, "cannot map object '%s', %u page%s: %s", object->name,
			manifest->header->pages, plural(manifest->header->pages),
			error == -EPIPE ? "the agent is not running" : gpu_error_text());
	if (error != -EPIPE && error != -ENOENT)
		error = fail_map();
	*stuck = at > begin && gpu_unmap(pool->gpu, begin, at - begin);
	return error;
}

/* Compute the size of the object's handles, and the addresses of its allocations relative to the first handle. */
static void addresses_compute(struct gpool_object *object)
{
	const struct gpool *pool = object->pool;
	const struct manifest *manifest = &object->manifest;
	uint64_t handle_bytes = pool->page_bytes * pool->header->pages_per_handle;
	const struct manifest_run *run = manifest->runs;

	for (uint32_t i = 0; i < manifest->header->allocations; i++) {
		object->addresses[i] =
			object->range_bytes + run->first % pool->header->pages_per_handle * pool->page_bytes;
		for (uint32_t j = 0; j < manifest->run_counts[i]; j++)
			object->range_bytes += handles_of(object, run++) * handle_bytes;
	}
}

int object_map(struct gpool_object *object)
{
	struct gpool *pool = object->pool;
	bool stuck = false;
	int error;

	object->addresses = malloc(object->manifest.header->allocations * sizeof(*object->addresses));
	if (!object->addresses)
		return -ENOMEM;
	addresses_compute(object);
	error = gpu_reserve(pool->gpu, object->range_bytes, 0, &object->range);
	if (error) {
		pool_log(pool, POOL_LOG_ERROR, "cannot reserve %llu byte%s of addresses for object '%s': %s",
			(unsigned long long)object->range_bytes, plural(object->range_bytes), object->name,
			gpu_error_text());
		error = -ENOMEM;
		goto fail;
	}
	error = object_map_at(object, object->range, &stuck);
	if (!error) {
		for (uint32_t i = 0; i < object->manifest.header->allocations; i++)
			object->addresses[i] += object->range;
		return 0;
	}
	if (!stuck)
		gpu_unreserve(pool->gpu, object->range, object->range_bytes);
fail:
	free(object->addresses);
	object->addresses = NULL;
	object->range = object->range_bytes = 0;
	return error;
}

int object_unmap(struct gpool_object *object)
{
	struct gpool *pool = object->pool;
	int error;

	if (!object->range)
		return 0;
	error = gpu_unmap(pool->gpu, object->range, object->range_bytes);
	if (error == -EBUSY)
		return error;
	if (!error)
		error = gpu_unreserve(pool->gpu, object->range, object->range_bytes);
	if (error)
		pool_log(pool, POOL_LOG_ERROR, "cannot unmap object '%s': %s; its addresses are lost", object->name,
			gpu_error_text());
	object->range = 0;
	return 0;
}
