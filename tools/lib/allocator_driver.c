/*
 * allocator_driver.c - the GPU driver's stream-ordered pool (cuMemAllocFromPoolAsync) as an allocator for replays. It
 * needs a GPU with memory that the agent does not own.
 */
#include "tools/lib/allocator.h"

#include "client/core/pool.h"
#include "client/core/stream.h"

#include <stdlib.h>

struct driver_pool {
	struct allocator allocator;
	uint32_t stream; /* for calls without a stream, which wait for the GPU */
};

static struct driver_pool *driver_pool_of(struct allocator *allocator)
{
	return (struct driver_pool *)allocator; /* its first member */
}

static int driver_open(struct gpool *pool, struct allocator **allocator)
{
	struct driver_pool *made;
	int error;

	if (!(pool->capabilities & GPU_CAP_POOL))
		return -EOPNOTSUPP;
	made = calloc(1, sizeof(*made));
	if (!made)
		return -ENOMEM;
	made->allocator = (struct allocator){.ops = &driver_ops, .pool = pool};
	error = gpool_stream_open(pool, NULL, 0, &made->stream);
	if (error)
		free(made);
	else
		*allocator = &made->allocator;
	return error;
}

/* Closing the session frees the pool and its allocations. */
static void driver_close(struct allocator *allocator)
{
	if (allocator)
		gpool_stream_close(allocator->pool, driver_pool_of(allocator)->stream);
	free(allocator);
}

/* Wait for the work queued for a caller without a stream. */
static int driver_settle(struct driver_pool *driver)
{
	struct gpool_fence fence;
	int error = gpool_fence_record(driver->allocator.pool, driver->stream, &fence);

	return error ? error : gpool_fence_wait(driver->allocator.pool, fence, -1);
}

static int driver_malloc(struct allocator *allocator, uint64_t bytes, uint32_t stream, uint64_t *address)
{
	struct driver_pool *driver = driver_pool_of(allocator);
	int error = stream_pool_alloc(allocator->pool, stream ? stream : driver->stream, bytes, address);

	return error || stream ? error : driver_settle(driver);
}

static int driver_free(struct allocator *allocator, uint64_t address, uint32_t stream)
{
	struct driver_pool *driver = driver_pool_of(allocator);

	return stream_pool_free(allocator->pool, stream ? stream : driver->stream, address);
}

static void driver_totals(struct allocator *allocator, struct allocator_totals *totals)
{
	*totals = (struct allocator_totals){.live = 0};
	if (gpu_pool_info(allocator->pool->gpu, &totals->mapped, &totals->live) == 0)
		totals->free = totals->mapped - totals->live;
}

static uint64_t driver_mapped(struct allocator *allocator)
{
	struct allocator_totals totals;

	driver_totals(allocator, &totals);
	return totals.mapped;
}

/* The driver does not report its regions. */
static int driver_visit(struct allocator *allocator,
	void (*region)(void *context, uint64_t address, uint64_t bytes, enum region_kind kind), void *context)
{
	(void)allocator, (void)region, (void)context;
	return 0;
}

const struct allocator_ops driver_ops = {
	.name = "driver",
	.text = "the GPU driver's own stream-ordered pool",
	.open = driver_open,
	.close = driver_close,
	.malloc = driver_malloc,
	.free = driver_free,
	.mapped = driver_mapped,
	.totals = driver_totals,
	.visit = driver_visit,
};
