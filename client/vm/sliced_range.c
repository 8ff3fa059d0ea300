/*
 * sliced_range.c - sliced ranges: block i of all slices is committed together, and the next blocks are read ahead in
 * the background.
 *
 *   [0, committed)      committed
 *   [committed, ready)  read ahead; the agent may have taken some of them since
 *   [ready, high)       the block that is being read ahead, and blocks that were committed or read ahead earlier
 *   [high, ...)         neither committed nor read ahead
 *
 * The background task handles one block at a time, `working`, beyond the size to which a call is growing. A growing
 * call therefore waits for the task only if the task is providing a block that the call needs.
 */
#include "client/core/interrupt.h"
#include "client/core/stream.h"
#include "client/core/last_error.h"
#include "client/vm/background.h"
#include "client/vm/elastic.h"

#include <stdlib.h>
#include <string.h>

enum { RETRY_MS = 200 };

struct gpool_sliced_range {
	struct background_task task; /* first field, so that the task's address is that of the sliced range */
	struct gpool *pool;
	struct gpool_range *range;
	LIST_ENTRY(gpool_sliced_range) link;
	uint32_t slices, blocks, block_pages, slice_pages, read_ahead;
	pthread_mutex_t growing; /* serializes grow and shrink */
	pthread_mutex_t lock;    /* protects all fields below */
	pthread_cond_t worked;   /* signaled when the background task has finished a block */
	uint32_t committed, ready, high;
	uint32_t claimed; /* number of blocks to which a call is growing */
	uint32_t working; /* block that the task handles, plus 1; 0: none */
};

static struct elastic_pages blocks_of(const struct gpool_sliced_range *sliced, uint32_t from, uint32_t to)
{
	return (struct elastic_pages){
		.first = from * sliced->block_pages,
		.count = (to - from) * sliced->block_pages,
		.stride = sliced->slice_pages,
		.times = sliced->slices,
	};
}

static uint32_t larger(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

/* ---- read ahead in the background ---- */

/* Return the next block to read ahead, or UINT32_MAX. [*first, *end): surplus blocks that were read ahead. */
static uint32_t work_next(struct gpool_sliced_range *sliced, uint32_t *first, uint32_t *end)
{
	uint32_t base, last, next = UINT32_MAX;

	pthread_mutex_lock(&sliced->lock);
	base = larger(sliced->committed, sliced->claimed);
	last = sliced->read_ahead < sliced->blocks - base ? base + sliced->read_ahead : sliced->blocks;
	*first = last;
	*end = sliced->high;
	if (sliced->high > last)
		sliced->high = last;
	sliced->ready = larger(sliced->ready, base);
	/* A growing call gets pages first, and wakes the task when the call ends. */
	if (sliced->ready < last && !sliced->claimed) {
		next = sliced->ready;
		sliced->working = next + 1;
		sliced->high = larger(sliced->high, next + 1);
	}
	pthread_mutex_unlock(&sliced->lock);
	return next;
}

static void work_end(struct gpool_sliced_range *sliced, uint32_t block, bool there)
{
	pthread_mutex_lock(&sliced->lock);
	sliced->working = 0;
	/* If a call has grown or shrunk the range during the work, `ready` has changed. */
	if (there && sliced->ready == block)
		sliced->ready++;
	pthread_cond_broadcast(&sliced->worked);
	pthread_mutex_unlock(&sliced->lock);
}

/* If the pool refuses a block, the task tries again after RETRY_MS, since nothing wakes it when pages become free. */
static void sliced_work(struct background_task *task)
{
	struct gpool_sliced_range *sliced = (struct gpool_sliced_range *)task;
	struct elastic *elastic = sliced->range->elastic;
	struct ranges *ranges = sliced->pool->ranges;
	int64_t brought = 0;

	while (brought >= 0) {
		uint32_t first, end, block = work_next(sliced, &first, &end);
		struct elastic_pages pages;

		brought = ranges_enter(ranges);
		if (brought == 0) {
			if (end > first) {
				pages = blocks_of(sliced, first, end);
				elastic_settle(elastic, &pages);
			}
			pages = blocks_of(sliced, block, block + 1);
			if (block == UINT32_MAX || pool_is_short(sliced->pool))
				brought = -EAGAIN;
			else
				brought = elastic_commit(elastic, &pages, 0, true);
			ranges_leave(ranges);
		}
		task->period_ms = block != UINT32_MAX && brought < 0 ? RETRY_MS : 0;
		if (block != UINT32_MAX)
			work_end(sliced, block, brought >= 0);
	}
}

/* ---- create and destroy ---- */

static int options_check(struct gpool_sliced_range_options *read, struct gpool_range_options *range,
	const struct gpool_sliced_range_options *options)
{
	int error;

	read->memory_class = GPOOL_OBJECT_MUTABLE;
	if (options) {
		error = options_read(read, sizeof(*read), options);
		if (error)
			return error;
	}
	range->memory_class = read->memory_class;
	range->usage = read->usage;
	range->owner_id = read->owner_id;
	return read->flags || read->reserved
		? fail(-EINVAL, "flags are 0x%x and reserved is %u; both must be 0", read->flags, read->reserved)
		: 0;
}

static void sliced_free(struct gpool_sliced_range *sliced)
{
	pthread_mutex_destroy(&sliced->growing);
	pthread_mutex_destroy(&sliced->lock);
	pthread_cond_destroy(&sliced->worked);
	free(sliced);
}

void sliced_ranges_close(struct gpool *pool)
{
	struct gpool_sliced_range *sliced;

	while (pool->ranges && (sliced = LIST_FIRST(&pool->ranges->sliced_ranges))) {
		LIST_REMOVE(sliced, link);
		sliced_free(sliced);
	}
}

/*
 * Compute the layout: each slice begins at the start of a handle. Return false if the layout exceeds the maximum size
 * of a range.
 */
static bool shape_set(struct gpool_sliced_range *sliced, uint32_t *pages)
{
	uint64_t unit = handle_pages(sliced->pool), slice = (uint64_t)sliced->blocks * sliced->block_pages;

	slice = (slice + unit - 1) / unit * unit;
	if (!sliced->slices || !slice || slice > UINT32_MAX || slice * sliced->slices > UINT32_MAX)
		return false;
	sliced->slice_pages = (uint32_t)slice;
	*pages = sliced->slices * sliced->slice_pages;
	return true;
}

static int sliced_open(struct gpool_sliced_range *sliced, const struct gpool_range_options *options)
{
	struct gpool *pool = sliced->pool;
	uint32_t pages;
	int error;

	if (!shape_set(sliced, &pages))
		return fail(-EINVAL,
			"slices is %u, blocks is %u and block_pages is %u; their product must be 1 to %u pages",
			sliced->slices, sliced->blocks, sliced->block_pages, UINT32_MAX);
	error = range_reserve_elastic(pool, pages, options, &sliced->range);
	if (error)
		return error;
	sliced->task.run = sliced_work;
	error = sliced->read_ahead ? background_add(pool, &sliced->task) : 0;
	if (error) {
		wait_pause(true); /* the range must not remain */
		gpool_range_destroy(sliced->range);
		wait_pause(false);
		return -ENOMEM;
	}
	pthread_mutex_lock(&pool->ranges->lock);
	LIST_INSERT_HEAD(&pool->ranges->sliced_ranges, sliced, link);
	pthread_mutex_unlock(&pool->ranges->lock);
	return 0;
}

int gpool_sliced_range_create(struct gpool *pool, uint32_t slices, uint32_t blocks, uint32_t block_pages,
	const struct gpool_sliced_range_options *options, struct gpool_sliced_range **sliced)
{
	struct gpool_sliced_range_options read = GPOOL_SLICED_RANGE_OPTIONS_INIT;
	struct gpool_range_options range = GPOOL_RANGE_OPTIONS_INIT;
	struct gpool_sliced_range *made;
	int error;

	if (!pool->alive)
		return -ECHILD;
	if (pool->session_kind)
		return fail_kind(pool);
	error = options_check(&read, &range, options);
	if (error)
		return error;
	made = calloc(1, sizeof(*made));
	if (!made)
		return -ENOMEM;
	pthread_mutex_init(&made->growing, NULL);
	pthread_mutex_init(&made->lock, NULL);
	pthread_cond_init(&made->worked, NULL);
	made->pool = pool;
	made->slices = slices;
	made->blocks = blocks;
	made->block_pages = block_pages;
	made->read_ahead = read.read_ahead;
	error = sliced_open(made, &range);
	if (error) {
		sliced_free(made);
		return error;
	}
	if (made->read_ahead)
		background_wake(pool, &made->task);
	*sliced = made;
	return 0;
}

int gpool_sliced_range_destroy(struct gpool_sliced_range *sliced)
{
	struct gpool *pool;
	int error;

	if (!sliced)
		return 0;
	pool = sliced->pool;
	if (!pool->alive)
		return -ECHILD;
	background_remove(pool, &sliced->task);
	error = gpool_range_destroy(sliced->range);
	if (error) {
		/* The sliced range is unchanged, so add its task again. This cannot fail, because the thread exists. */
		if (sliced->read_ahead)
			background_add(pool, &sliced->task);
		return error;
	}
	pthread_mutex_lock(&pool->ranges->lock);
	LIST_REMOVE(sliced, link);
	pthread_mutex_unlock(&pool->ranges->lock);
	sliced_free(sliced);
	return 0;
}

/* ---- grow and shrink ---- */

/*
 * Return true if the block that the background task handles shares a handle with the first `blocks` blocks, or is one
 * of them.
 */
static bool works_below(const struct gpool_sliced_range *sliced, uint32_t blocks)
{
	uint32_t unit = handle_pages(sliced->pool);

	return sliced->working &&
		(sliced->working - 1) * sliced->block_pages / unit <= (blocks * sliced->block_pages - 1) / unit;
}

/*
 * Prevent the background task from starting a block until growth_end(). Return true if it is still working on a block
 * that the caller does not need.
 */
static bool growth_begin(struct gpool_sliced_range *sliced, uint32_t blocks)
{
	bool works;

	pthread_mutex_lock(&sliced->lock);
	sliced->claimed = blocks;
	while (works_below(sliced, blocks))
		pthread_cond_wait(&sliced->worked, &sliced->lock);
	works = sliced->working != 0;
	pthread_mutex_unlock(&sliced->lock);
	return works;
}

static void background_await(struct gpool_sliced_range *sliced)
{
	pthread_mutex_lock(&sliced->lock);
	while (sliced->working)
		pthread_cond_wait(&sliced->worked, &sliced->lock);
	pthread_mutex_unlock(&sliced->lock);
}

/*
 * Let the background task start blocks again. If handles had to be provided, the agent may have taken other read-ahead
 * blocks too, so they are checked again.
 */
static void growth_end(struct gpool_sliced_range *sliced, uint32_t blocks, int64_t brought)
{
	pthread_mutex_lock(&sliced->lock);
	sliced->claimed = 0;
	if (brought >= 0)
		sliced->committed = blocks;
	if (brought)
		sliced->ready = sliced->committed;
	sliced->high = larger(sliced->high, sliced->committed);
	pthread_mutex_unlock(&sliced->lock);
	if (sliced->read_ahead)
		background_wake(sliced->pool, &sliced->task);
}

static int64_t grow(struct gpool_sliced_range *sliced, uint32_t blocks, int timeout_ms)
{
	const struct elastic_pages pages = blocks_of(sliced, sliced->committed, blocks);
	bool works = growth_begin(sliced, blocks);
	int64_t brought = range_enter(sliced->range, &pages);

	if (!brought) {
		brought = elastic_commit(sliced->range->elastic, &pages, timeout_ms, false);
		if (works && (brought == -ENOSPC || brought == -EDQUOT)) {
			/* The task held pages. They are available after it has finished its block. */
			background_await(sliced);
			brought = elastic_commit(sliced->range->elastic, &pages, timeout_ms, false);
		}
		ranges_leave(sliced->pool->ranges);
	}
	growth_end(sliced, blocks, brought);
	return brought;
}

static int fail_blocks(const struct gpool_sliced_range *sliced, uint32_t blocks)
{
	return fail(-EINVAL, "blocks is %u; the sliced range can have at most %u", blocks, sliced->blocks);
}

int gpool_sliced_range_grow(struct gpool_sliced_range *sliced, uint32_t blocks, int timeout_ms)
{
	int64_t brought = 0;

	if (!sliced->pool->alive)
		return -ECHILD;
	if (blocks > sliced->blocks)
		return fail_blocks(sliced, blocks);
	if (timeout_ms < -1)
		return fail_timeout(timeout_ms);
	pthread_mutex_lock(&sliced->growing);
	if (blocks > sliced->committed)
		brought = grow(sliced, blocks, timeout_ms);
	pthread_mutex_unlock(&sliced->growing);
	return brought < 0 ? (int)brought : 0;
}

static int shrink(struct gpool_sliced_range *sliced, uint32_t blocks, struct gpool_fence fence)
{
	const struct elastic_pages pages = blocks_of(sliced, blocks, sliced->committed);
	int error = range_enter(sliced->range, &pages);

	if (error)
		return error;
	error = elastic_decommit(sliced->range->elastic, &pages, fence.value);
	ranges_leave(sliced->pool->ranges);
	if (error)
		return error;
	pthread_mutex_lock(&sliced->lock);
	sliced->high = larger(sliced->high, sliced->committed);
	sliced->committed = sliced->ready = blocks;
	pthread_mutex_unlock(&sliced->lock);
	if (sliced->read_ahead)
		background_wake(sliced->pool, &sliced->task);
	return 0;
}

int gpool_sliced_range_shrink(struct gpool_sliced_range *sliced, uint32_t blocks, struct gpool_fence fence)
{
	int error = 0;

	if (!sliced->pool->alive)
		return -ECHILD;
	if (blocks > sliced->blocks)
		return fail_blocks(sliced, blocks);
	if (fence_check(sliced->pool, fence))
		return -EINVAL;
	pthread_mutex_lock(&sliced->growing);
	if (blocks < sliced->committed)
		error = shrink(sliced, blocks, fence);
	pthread_mutex_unlock(&sliced->growing);
	return error;
}

/* ---- inspect ---- */

int gpool_sliced_range_info(struct gpool_sliced_range *sliced, struct gpool_sliced_range_info *info)
{
	struct gpool_sliced_range_info filled = {.size = info->size};
	struct gpool *pool = sliced->pool;

	if (!pool->alive)
		return -ECHILD;
	if (filled.size < sizeof(filled.size))
		return fail_size(filled.size);
	pthread_mutex_lock(&sliced->lock);
	filled.committed = sliced->committed;
	filled.ready = larger(sliced->ready, sliced->committed);
	pthread_mutex_unlock(&sliced->lock);
	filled.slices = sliced->slices;
	filled.blocks = sliced->blocks;
	filled.block_pages = sliced->block_pages;
	filled.address = sliced->range->address;
	filled.block_bytes = sliced->block_pages * pool->page_bytes;
	filled.slice_bytes = sliced->slice_pages * pool->page_bytes;
	if (filled.size > sizeof(filled))
		memset((char *)info + sizeof(filled), 0, filled.size - sizeof(filled));
	memcpy(info, &filled, filled.size < sizeof(filled) ? filled.size : sizeof(filled));
	return 0;
}
