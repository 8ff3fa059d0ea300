/* elastic_range.c - the public calls for elastic ranges. See elastic.h. */
#include "client/core/alloc.h"
#include "client/core/last_error.h"
#include "client/core/stream.h"
#include "client/vm/elastic.h"
#include "shm/plural.h"

#include <string.h>

static int reserve_options(struct gpool_range_options *read, const struct gpool_range_options *options)
{
	int error;

	read->memory_class = GPOOL_OBJECT_MUTABLE;
	if (!options)
		return 0;
	error = options_read(read, sizeof(*read), options);
	if (error)
		return error;
	if (read->usage >= GPOOL_USAGE_COUNT)
		return fail(-EINVAL, "usage is %u; the maximum is %d", read->usage, GPOOL_USAGE_COUNT - 1);
	if (read->memory_class != GPOOL_OBJECT_MUTABLE && read->memory_class != GPOOL_OBJECT_EPHEMERAL)
		return fail(-EINVAL, "memory_class is %u; an elastic range must be MUTABLE (%d) or EPHEMERAL (%d)",
			read->memory_class, GPOOL_OBJECT_MUTABLE, GPOOL_OBJECT_EPHEMERAL);
	if (read->flags & ~(uint32_t)GPOOL_RANGE_ZERO)
		return fail(-EINVAL, "flags are 0x%x; the only known flag is GPOOL_RANGE_ZERO", read->flags);
	return read->name || read->timeout_ms || read->reserved
		? fail(-EINVAL, "name, timeout_ms and reserved must not be set for an elastic range")
		: 0;
}

int range_reserve_elastic(
	struct gpool *pool, uint32_t page_count, const struct gpool_range_options *options, struct gpool_range **range)
{
	struct gpool_range_options read = GPOOL_RANGE_OPTIONS_INIT;
	struct gpool_range *made;
	int error = reserve_options(&read, options);

	if (!error && page_count == 0)
		error = fail(-EINVAL, "page_count is 0; the minimum is 1");
	if (error)
		return error;
	made = range_new(pool, page_count, read.memory_class);
	if (!made)
		return -ENOMEM;
	made->attributes = (struct block_attributes){.flags = read.usage | BLOCK_RANGE, .owner_id = read.owner_id};
	pthread_mutex_lock(&pool->ranges->lock);
	error = pool->ranges->asleep ? fail_asleep() : elastic_open(made);
	if (!error && read.flags & GPOOL_RANGE_ZERO && gpu_stream_create(pool->gpu, &made->elastic->zeroing)) {
		range_unreserve(made);
		error = fail(-ENOMEM, "cannot create a stream to fill pages with zeros: %s", gpu_error_text());
	}
	if (error) {
		range_free(made);
	} else {
		range_link(made);
		*range = made;
	}
	pthread_mutex_unlock(&pool->ranges->lock);
	return error;
}

int gpool_range_reserve(
	struct gpool *pool, uint32_t page_count, const struct gpool_range_options *options, struct gpool_range **range)
{
	if (!pool->alive)
		return -ECHILD;
	if (pool->session_kind)
		return fail_kind(pool);
	return range_reserve_elastic(pool, page_count, options, range);
}

/* Check the arguments that every call for pages of a range has. */
static int pages_check(const struct gpool_range *range, const struct elastic_pages *pages)
{
	if (!range->pool->alive)
		return -ECHILD;
	if (!range->elastic)
		return fail(-EINVAL, "the range is not elastic");
	if (!elastic_pages_check(range->elastic, pages))
		return fail(-EINVAL, "first is %u and count is %u; the range has %u page%s%s", pages->first,
			pages->count, range->page_count, plural(range->page_count),
			pages->count ? "" : ", and count must be at least 1");
	return 0;
}

int range_enter(struct gpool_range *range, const struct elastic_pages *pages)
{
	int error = pages_check(range, pages);

	if (error)
		return error;
	error = ranges_enter(range->pool->ranges);
	if (error || range->mapped)
		return error;
	ranges_leave(range->pool->ranges);
	return fail_asleep();
}

int gpool_range_commit(struct gpool_range *range, uint32_t first, uint32_t count, int timeout_ms)
{
	const struct elastic_pages pages = {.first = first, .count = count, .times = 1};
	int64_t brought = range_enter(range, &pages);

	if (brought)
		return (int)brought;
	brought =
		timeout_ms < -1 ? fail_timeout(timeout_ms) : elastic_commit(range->elastic, &pages, timeout_ms, false);
	ranges_leave(range->pool->ranges);
	return brought < 0 ? (int)brought : 0;
}

int gpool_range_decommit(struct gpool_range *range, uint32_t first, uint32_t count, struct gpool_fence fence)
{
	const struct elastic_pages pages = {.first = first, .count = count, .times = 1};
	int error = range_enter(range, &pages);

	if (error)
		return error;
	error = fence_check(range->pool, fence);
	if (!error)
		error = elastic_decommit(range->elastic, &pages, fence.value);
	ranges_leave(range->pool->ranges);
	return error;
}

int gpool_range_offer(struct gpool_range *range, uint32_t first, uint32_t count, struct gpool_fence fence)
{
	const struct elastic_pages pages = {.first = first, .count = count, .times = 1};
	int error = range_enter(range, &pages);

	if (error)
		return error;
	error = fence_check(range->pool, fence);
	if (!error)
		error = elastic_offer(range->elastic, &pages, fence.value, 0);
	ranges_leave(range->pool->ranges);
	return error;
}

int gpool_range_reclaim(struct gpool_range *range, uint32_t first, uint32_t count, uint8_t *kept)
{
	const struct elastic_pages pages = {.first = first, .count = count, .times = 1};
	int result = range_enter(range, &pages);

	if (result)
		return result;
	result = elastic_reclaim(range->elastic, &pages, kept);
	ranges_leave(range->pool->ranges);
	return result;
}

int gpool_range_capture(struct gpool_range *range, uint32_t first, uint32_t count, int captured)
{
	const struct elastic_pages pages = {.first = first, .count = count, .times = 1};
	int error = range_enter(range, &pages);

	if (error)
		return error;
	error = captured == 0 || captured == 1 ? elastic_capture(range->elastic, &pages, captured)
					       : fail(-EINVAL, "captured is %d; it must be 0 or 1", captured);
	ranges_leave(range->pool->ranges);
	return error;
}

int gpool_range_resolve(struct gpool_range *range, uint32_t index, struct gpool_range_page *page)
{
	const struct elastic_pages pages = {.first = index, .count = 1, .times = 1};
	struct gpool_range_page filled = {.size = page->size};
	int error;

	if (range->pool->alive && filled.size < sizeof(filled.size))
		return fail_size(filled.size);
	error = range_enter(range, &pages);
	if (error)
		return error;
	elastic_resolve(range->elastic, index, &filled);
	ranges_leave(range->pool->ranges);
	if (filled.size > sizeof(filled))
		memset((char *)page + sizeof(filled), 0, filled.size - sizeof(filled));
	memcpy(page, &filled, filled.size < sizeof(filled) ? filled.size : sizeof(filled));
	return 0;
}
