/*
 * range_map.c - map and unmap the pages of a range at its addresses, with one mapping for each handle and one access
 * call for all. See range.h.
 */
#include "client/vm/range.h"
#include "shm/plural.h"

#include "client/core/last_error.h"
#include "client/vm/elastic.h"
#include "client/core/window.h"

static uint64_t handle_bytes(const struct gpool *pool)
{
	return pool->page_bytes * pool->header->pages_per_handle;
}

static uint32_t handles_of(const struct gpool *pool, const struct page_span *span)
{
	uint32_t per_handle = pool->header->pages_per_handle;

	return (span->first + span->count - 1) / per_handle - span->first / per_handle + 1;
}

int64_t range_handles(const struct gpool_range *range)
{
	const struct gpool *pool = range->pool;
	const struct page_list *pages = &range->pages;
	uint32_t per_handle = pool->header->pages_per_handle;
	int64_t handles = 0;

	for (uint32_t i = 0; i < pages->count; i++) {
		const struct page_span *span = &pages->spans[i];

		if ((i && span->first % per_handle) ||
			(i + 1 < pages->count && (span->first + span->count) % per_handle))
			return -EOPNOTSUPP;
		handles += handles_of(pool, span);
	}
	return handles;
}

int range_reserve(struct gpool_range *range, uint64_t handles)
{
	struct gpool *pool = range->pool;
	uint64_t bytes = handles * handle_bytes(pool);

	if (addresses_reserve(pool, bytes, &range->va))
		return -ENOMEM;
	range->bytes = bytes;
	range->address = range->va;
	return 0;
}

void range_unreserve(struct gpool_range *range)
{
	struct gpool *pool = range->pool;

	if (range->elastic) {
		elastic_close(range->elastic);
		range->elastic = NULL;
		range->bytes = 0;
	}
	if (range->bytes && gpu_unreserve(pool->gpu, range->va, range->bytes))
		pool_log(pool, POOL_LOG_ERROR, "cannot free the addresses of a range: %s; the addresses are lost",
			gpu_error_text());
	range->bytes = 0;
}

/* If the back end has one descriptor per handle, request the descriptors of all handles together. */
static int handles_import(const struct gpool_range *range)
{
	uint32_t least = UINT32_MAX, end = 0;

	for (uint32_t i = 0; i < range->pages.count; i++) {
		const struct page_span *span = &range->pages.spans[i];

		if (span->first < least)
			least = span->first;
		if (span->first + span->count > end)
			end = span->first + span->count;
	}
	return window_import(range->pool, least, end - least);
}

int range_map(struct gpool_range *range)
{
	struct gpool *pool = range->pool;
	uint64_t at = range->va;
	int error;

	if (range->elastic)
		return elastic_map(range->elastic);
	error = handles_import(range);
	for (uint32_t i = 0; i < range->pages.count && !error; i++)
		error = window_map_at(pool, range->pages.spans[i].first, range->pages.spans[i].count, &at);
	if (!error)
		error = gpu_access(
			pool->gpu, range->va, range->bytes, range->version ? GPU_ACCESS_READ : GPU_ACCESS_READ_WRITE);
	if (!error) {
		window_keep_from_child(pool, range->va, range->bytes);
		range->mapped = true;
		return 0;
	}
	pool_log(pool, POOL_LOG_ERROR, "cannot map a range of %u page%s: %s", range->page_count,
		plural(range->page_count), error == -EPIPE ? "the agent is not running" : gpu_error_text());
	if (error != -EPIPE)
		error = fail_map();
	if (at > range->va && gpu_unmap(pool->gpu, range->va, at - range->va))
		pool_log(pool, POOL_LOG_ERROR, "cannot unmap the pages that were mapped before the failure: %s",
			gpu_error_text());
	return error;
}

int range_unmap(struct gpool_range *range)
{
	int error;

	if (!range->mapped)
		return 0;
	if (range->elastic)
		return elastic_unmap(range->elastic);
	error = gpu_unmap(range->pool->gpu, range->va, range->bytes);
	if (!error)
		range->mapped = false;
	else if (error != -EBUSY)
		pool_log(range->pool, POOL_LOG_ERROR, "cannot unmap a range of %u page%s: %s", range->page_count,
			plural(range->page_count), gpu_error_text());
	return error == -EBUSY
		? fail(error, "queued GPU work uses a range of %u page%s", range->page_count, plural(range->page_count))
		: error;
}
