/*
 * object_map.c - map a version into a range of its own. The allocations follow each other, each with the length of its
 * handles, since a handle is mapped as a whole. One call sets the access of the whole range.
 */
#include "client/object/object.h"

#include "client/core/window.h"

#include <stdlib.h>

/* Return the pages of a run, extended to whole handles. */
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

static int run_map(struct gpool_object *object, const struct manifest_run *run, uint64_t *at)
{
	struct gpool *pool = object->pool;
	uint32_t per_handle = pool->header->pages_per_handle, first = run->first / per_handle * per_handle;
	uint64_t handle_bytes = pool->page_bytes * per_handle, handle;
	int error = 0;

	for (uint32_t i = 0; i < handles_of(object, run) && !error; i++) {
		error = window_handle(pool, first + i * per_handle, &handle);
		if (!error)
			error = gpu_map(pool->gpu, *at, handle_bytes, 0, handle);
		if (!error)
			*at += handle_bytes;
	}
	return error;
}

int object_map(struct gpool_object *object)
{
	struct gpool *pool = object->pool;
	const struct manifest *manifest = &object->manifest;
	uint64_t handle_bytes = pool->page_bytes * pool->header->pages_per_handle, at;
	const struct manifest_run *run = manifest->runs;
	int error = handles_import(object);

	if (error)
		return error;
	object->addresses = malloc(manifest->header->allocations * sizeof(*object->addresses));
	if (!object->addresses)
		return -ENOMEM;
	for (uint32_t i = 0; i < manifest->header->runs; i++)
		object->range_bytes += handles_of(object, &manifest->runs[i]) * handle_bytes;
	error = gpu_reserve(pool->gpu, object->range_bytes, 0, &object->range);
	if (error)
		goto fail;
	at = object->range;
	for (uint32_t i = 0; i < manifest->header->allocations && !error; i++) {
		object->addresses[i] = at + run->first % pool->header->pages_per_handle * pool->page_bytes;
		for (uint32_t j = 0; j < manifest->run_counts[i] && !error; j++)
			error = run_map(object, run++, &at);
	}
	if (!error)
		error = gpu_access(pool->gpu, object->range, object->range_bytes,
			object->writable ? GPU_ACCESS_READ_WRITE : GPU_ACCESS_READ);
	if (!error) {
		window_keep_from_child(pool, object->range, object->range_bytes);
		return 0;
	}
	if (at > object->range)
		gpu_unmap(pool->gpu, object->range, at - object->range);
	gpu_unreserve(pool->gpu, object->range, object->range_bytes);
fail:
	pool_log(pool, POOL_LOG_ERROR, "cannot map object '%s', %u pages: %s", object->name, manifest->header->pages,
		gpu_error_text());
	free(object->addresses);
	object->addresses = NULL;
	object->range = object->range_bytes = 0;
	return -ENOMEM;
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
