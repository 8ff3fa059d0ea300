/*
 * tensor.c - sliced ranges: block i of every slice is committed together, and the next blocks are read ahead in the
 * background.
 *
 *   [0, backed)      committed
 *   [backed, ready)  read ahead; the agent may have taken some since
 *   [.., high)       blocks from here on were not read ahead
 *
 * The background task handles one block at a time, `working`, beyond the size to which a call is growing. A call
 * therefore waits for it only if it needs this block, which is being provided then.
 */
#include "client/core/stream.h"
#include "client/core/last_error.h"
#include "client/vm/background.h"
#include "client/vm/elastic.h"

#include <stdlib.h>
#include <string.h>

struct gpool_sliced_range {
	struct background_task task; /* first field: the task's address is that of the sliced range */
	struct gpool *pool;
	struct gpool_range *range;
	LIST_ENTRY(gpool_sliced_range) link;
	uint32_t slices, blocks, block_pages, slice_pages, read_ahead;
	pthread_mutex_t growing; /* serializes grow and shrink */
	pthread_mutex_t lock;    /* protects all fields below */
	pthread_cond_t worked;   /* signaled when the background task is done with a block */
	uint32_t backed, ready, high;
	uint32_t claimed; /* the number of blocks to which a call is growing */
	uint32_t working; /* block + 1; 0: none */
};

static struct elastic_pages blocks_of(const struct gpool_sliced_range *tensor, uint32_t from, uint32_t to)
{
	return (struct elastic_pages){
		.first = from * tensor->block_pages,
		.count = (to - from) * tensor->block_pages,
		.stride = tensor->slice_pages,
		.times = tensor->slices,
	};
}

static uint32_t larger(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

/* ---- in the background ---- */

/* Return the next block to read ahead, or UINT32_MAX. *first to *end: surplus blocks that were read ahead. */
static uint32_t work_next(struct gpool_sliced_range *tensor, uint32_t *first, uint32_t *end)
{
	uint32_t base, last, next = UINT32_MAX;

	pthread_mutex_lock(&tensor->lock);
	base = larger(tensor->backed, tensor->claimed);
	last = tensor->read_ahead < tensor->blocks - base ? base + tensor->read_ahead : tensor->blocks;
	*first = last;
	*end = tensor->high;
	if (tensor->high > last)
		tensor->high = last;
	tensor->ready = larger(tensor->ready, base);
	/* A call that grows gets the pages first, and wakes the task when it has ended. */
	if (tensor->ready < last && !tensor->claimed) {
		next = tensor->ready;
		tensor->working = next + 1;
		tensor->high = larger(tensor->high, next + 1);
	}
	pthread_mutex_unlock(&tensor->lock);
	return next;
}

static void work_end(struct gpool_sliced_range *tensor, uint32_t block, bool there)
{
	pthread_mutex_lock(&tensor->lock);
	tensor->working = 0;
	/* Unless a call has started meanwhile. */
	if (there && tensor->ready == block)
		tensor->ready++;
	pthread_cond_broadcast(&tensor->worked);
	pthread_mutex_unlock(&tensor->lock);
}

static void tensor_work(struct background_task *task)
{
	struct gpool_sliced_range *tensor = (struct gpool_sliced_range *)task;
	struct elastic *elastic = tensor->range->elastic;
	struct ranges *ranges = tensor->pool->ranges;
	int64_t brought = 0;

	while (brought >= 0) {
		uint32_t first, end, block = work_next(tensor, &first, &end);
		struct elastic_pages pages;

		brought = ranges_enter(ranges);
		if (brought == 0) {
			if (end > first) {
				pages = blocks_of(tensor, first, end);
				elastic_settle(elastic, &pages);
			}
			pages = blocks_of(tensor, block, block + 1);
			if (block == UINT32_MAX || pool_is_short(tensor->pool))
				brought = -EAGAIN;
			else
				brought = elastic_back(elastic, &pages, 0, true);
			ranges_leave(ranges);
		}
		if (block != UINT32_MAX)
			work_end(tensor, block, brought >= 0);
	}
}

/* ---- life ---- */

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

static void tensor_free(struct gpool_sliced_range *tensor)
{
	pthread_mutex_destroy(&tensor->growing);
	pthread_mutex_destroy(&tensor->lock);
	pthread_cond_destroy(&tensor->worked);
	free(tensor);
}

void tensors_close(struct gpool *pool)
{
	struct gpool_sliced_range *tensor;

	while (pool->ranges && (tensor = LIST_FIRST(&pool->ranges->tensors))) {
		LIST_REMOVE(tensor, link);
		tensor_free(tensor);
	}
}

/* Compute the shape: each slice begins at the start of a handle. Return false if it exceeds the pages of a range. */
static bool shape_set(struct gpool_sliced_range *tensor, uint32_t *pages)
{
	uint64_t unit = handle_pages(tensor->pool), slice = (uint64_t)tensor->blocks * tensor->block_pages;

	slice = (slice + unit - 1) / unit * unit;
	if (!tensor->slices || !slice || slice > UINT32_MAX || slice * tensor->slices > UINT32_MAX)
		return false;
	tensor->slice_pages = (uint32_t)slice;
	*pages = tensor->slices * tensor->slice_pages;
	return true;
}

static int tensor_open(struct gpool_sliced_range *tensor, const struct gpool_range_options *options)
{
	struct gpool *pool = tensor->pool;
	uint32_t pages;
	int error;

	if (!shape_set(tensor, &pages))
		return fail(-EINVAL, "slices is %u, blocks %u and block_pages %u; together they must be 1 to %u pages",
			tensor->slices, tensor->blocks, tensor->block_pages, UINT32_MAX);
	error = range_reserve_elastic(pool, pages, options, &tensor->range);
	if (error)
		return error;
	tensor->task.run = tensor_work;
	error = tensor->read_ahead ? background_add(pool, &tensor->task) : 0;
	if (error) {
		gpool_range_destroy(tensor->range);
		return -ENOMEM;
	}
	pthread_mutex_lock(&pool->ranges->lock);
	LIST_INSERT_HEAD(&pool->ranges->tensors, tensor, link);
	pthread_mutex_unlock(&pool->ranges->lock);
	return 0;
}

int gpool_sliced_range_create(struct gpool *pool, uint32_t slices, uint32_t blocks, uint32_t block_pages,
	const struct gpool_sliced_range_options *options, struct gpool_sliced_range **tensor)
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
	error = tensor_open(made, &range);
	if (error) {
		tensor_free(made);
		return error;
	}
	if (made->read_ahead)
		background_wake(pool, &made->task);
	*tensor = made;
	return 0;
}

int gpool_sliced_range_destroy(struct gpool_sliced_range *tensor)
{
	struct gpool *pool;
	int error;

	if (!tensor)
		return 0;
	pool = tensor->pool;
	if (!pool->alive)
		return -ECHILD;
	background_remove(pool, &tensor->task);
	error = gpool_range_destroy(tensor->range);
	if (error) {
		/* On failure it is unchanged; the thread exists already. */
		if (tensor->read_ahead)
			background_add(pool, &tensor->task);
		return error;
	}
	pthread_mutex_lock(&pool->ranges->lock);
	LIST_REMOVE(tensor, link);
	pthread_mutex_unlock(&pool->ranges->lock);
	tensor_free(tensor);
	return 0;
}

/* ---- growing and shrinking ---- */

/* Return true if the background task handles a block with a handle of the first `blocks` blocks. */
static bool works_below(const struct gpool_sliced_range *tensor, uint32_t blocks)
{
	uint32_t unit = handle_pages(tensor->pool);

	return tensor->working &&
		(tensor->working - 1) * tensor->block_pages / unit <= (blocks * tensor->block_pages - 1) / unit;
}

/*
 * Prevent the background task from starting a block until growth_end(). Return true if it is still working on one
 * beyond those of the caller.
 */
static bool growth_begin(struct gpool_sliced_range *tensor, uint32_t blocks)
{
	bool works;

	pthread_mutex_lock(&tensor->lock);
	tensor->claimed = blocks;
	while (works_below(tensor, blocks))
		pthread_cond_wait(&tensor->worked, &tensor->lock);
	works = tensor->working != 0;
	pthread_mutex_unlock(&tensor->lock);
	return works;
}

static void background_await(struct gpool_sliced_range *tensor)
{
	pthread_mutex_lock(&tensor->lock);
	while (tensor->working)
		pthread_cond_wait(&tensor->worked, &tensor->lock);
	pthread_mutex_unlock(&tensor->lock);
}

/* If handles had to be provided, other read-ahead blocks may have been taken too, and are checked again. */
static void growth_end(struct gpool_sliced_range *tensor, uint32_t blocks, int64_t brought)
{
	pthread_mutex_lock(&tensor->lock);
	tensor->claimed = 0;
	if (brought >= 0)
		tensor->backed = blocks;
	if (brought)
		tensor->ready = tensor->backed;
	tensor->high = larger(tensor->high, tensor->backed);
	pthread_mutex_unlock(&tensor->lock);
	if (tensor->read_ahead)
		background_wake(tensor->pool, &tensor->task);
}

static int64_t grow(struct gpool_sliced_range *tensor, uint32_t blocks, int timeout_ms)
{
	const struct elastic_pages pages = blocks_of(tensor, tensor->backed, blocks);
	bool works = growth_begin(tensor, blocks);
	int64_t brought = range_enter(tensor->range, &pages);

	if (!brought) {
		brought = elastic_back(tensor->range->elastic, &pages, timeout_ms, false);
		if (works && (brought == -ENOSPC || brought == -EDQUOT)) {
			/* The task held pages, which are available after it has finished its block. */
			background_await(tensor);
			brought = elastic_back(tensor->range->elastic, &pages, timeout_ms, false);
		}
		ranges_leave(tensor->pool->ranges);
	}
	growth_end(tensor, blocks, brought);
	return brought;
}

int gpool_sliced_range_grow(struct gpool_sliced_range *tensor, uint32_t blocks, int timeout_ms)
{
	int64_t brought = 0;

	if (!tensor->pool->alive)
		return -ECHILD;
	if (blocks > tensor->blocks)
		return fail(-EINVAL, "blocks is %u; the tensor has at most %u", blocks, tensor->blocks);
	if (timeout_ms < -1)
		return fail_timeout(timeout_ms);
	pthread_mutex_lock(&tensor->growing);
	if (blocks > tensor->backed)
		brought = grow(tensor, blocks, timeout_ms);
	pthread_mutex_unlock(&tensor->growing);
	return brought < 0 ? (int)brought : 0;
}

static int shrink(struct gpool_sliced_range *tensor, uint32_t blocks, struct gpool_fence fence)
{
	const struct elastic_pages pages = blocks_of(tensor, blocks, tensor->backed);
	int error = range_enter(tensor->range, &pages);

	if (error)
		return error;
	error = elastic_unback(tensor->range->elastic, &pages, fence.value);
	ranges_leave(tensor->pool->ranges);
	if (error)
		return error;
	pthread_mutex_lock(&tensor->lock);
	tensor->high = larger(tensor->high, tensor->backed);
	tensor->backed = tensor->ready = blocks;
	pthread_mutex_unlock(&tensor->lock);
	if (tensor->read_ahead)
		background_wake(tensor->pool, &tensor->task);
	return 0;
}

int gpool_sliced_range_shrink(struct gpool_sliced_range *tensor, uint32_t blocks, struct gpool_fence fence)
{
	int error = 0;

	if (!tensor->pool->alive)
		return -ECHILD;
	if (fence_check(tensor->pool, fence))
		return -EINVAL;
	pthread_mutex_lock(&tensor->growing);
	if (blocks < tensor->backed)
		error = shrink(tensor, blocks, fence);
	pthread_mutex_unlock(&tensor->growing);
	return error;
}

/* ---- looking ---- */

int gpool_sliced_range_info(struct gpool_sliced_range *tensor, struct gpool_sliced_range_info *info)
{
	struct gpool_sliced_range_info filled = {.size = info->size};
	struct gpool *pool = tensor->pool;

	if (!pool->alive)
		return -ECHILD;
	if (filled.size < sizeof(filled.size))
		return fail_size(filled.size);
	pthread_mutex_lock(&tensor->lock);
	filled.committed = tensor->backed;
	filled.ready = larger(tensor->ready, tensor->backed);
	pthread_mutex_unlock(&tensor->lock);
	filled.slices = tensor->slices;
	filled.blocks = tensor->blocks;
	filled.block_pages = tensor->block_pages;
	filled.address = tensor->range->address;
	filled.block_bytes = tensor->block_pages * pool->page_bytes;
	filled.slice_bytes = tensor->slice_pages * pool->page_bytes;
	if (filled.size > sizeof(filled))
		memset((char *)info + sizeof(filled), 0, filled.size - sizeof(filled));
	memcpy(info, &filled, filled.size < sizeof(filled) ? filled.size : sizeof(filled));
	return 0;
}
