/* range.c - create, describe and destroy ranges. See range.h. */
#include "client/vm/range.h"

#include "client/core/alloc.h"
#include "client/core/interrupt.h"
#include "client/core/last_error.h"
#include "client/core/refill.h"
#include "client/core/stitch.h"
#include "client/core/stream.h"
#include "client/vm/elastic.h"
#include "shm/doorbell.h"
#include "shm/object_names.h"
#include "shm/plural.h"

#include <stdlib.h>
#include <string.h>

int ranges_open(struct gpool *pool)
{
	struct ranges *ranges = calloc(1, sizeof(*ranges));

	if (!ranges)
		return -ENOMEM;
	pthread_mutex_init(&ranges->lock, NULL);
	ranges->end = &ranges->all;
	LIST_INIT(&ranges->sliced_ranges);
	pool->ranges = ranges;
	return 0;
}

void range_link(struct gpool_range *range)
{
	struct ranges *ranges = range->pool->ranges;

	range->link = ranges->end;
	*range->link = range;
	ranges->end = &range->next;
}

void range_free(struct gpool_range *range)
{
	if (range->link) {
		*range->link = range->next;
		if (range->next)
			range->next->link = range->link;
		else
			range->pool->ranges->end = range->link;
	}
	page_list_reset(&range->pages);
	free(range);
}

void ranges_close(struct gpool *pool)
{
	struct ranges *ranges = pool->ranges;

	if (!ranges)
		return;
	while (ranges->all) {
		struct gpool_range *range = ranges->all;

		/* Work that the program queued on its own streams must not block the detach. */
		if (range->elastic)
			elastic_close(range->elastic);
		else if (!range_unmap(range))
			range_unreserve(range);
		range_free(range);
	}
	pthread_mutex_destroy(&ranges->lock);
	free(ranges);
	pool->ranges = NULL;
}

/* ---- calls that do not acquire the lock ---- */

#define GATE_CLOSED (UINT32_C(1) << 31)

enum { GATE_NS = 1000000000 }; /* chosen: far longer than a call that does not wait for pages */

int ranges_enter(struct ranges *ranges)
{
	if (!(atomic_fetch_add_explicit(&ranges->gate, 1, memory_order_acquire) & GATE_CLOSED))
		return 0;
	ranges_leave(ranges);
	return fail_asleep();
}

void ranges_leave(struct ranges *ranges)
{
	if (atomic_fetch_sub_explicit(&ranges->gate, 1, memory_order_release) == GATE_CLOSED + 1)
		futex_wake(&ranges->gate, 1);
}

bool gate_close(struct ranges *ranges)
{
	uint64_t start = monotonic_ns();
	uint32_t now = atomic_fetch_or_explicit(&ranges->gate, GATE_CLOSED, memory_order_acquire) | GATE_CLOSED;

	while (now != GATE_CLOSED) {
		if (monotonic_ns() - start >= GATE_NS) {
			gate_open(ranges);
			return false;
		}
		futex_wait(&ranges->gate, now, GATE_NS / 10);
		now = atomic_load_explicit(&ranges->gate, memory_order_acquire);
	}
	return true;
}

void gate_open(struct ranges *ranges)
{
	atomic_fetch_and_explicit(&ranges->gate, ~GATE_CLOSED, memory_order_release);
}

/* ---- pages ---- */

uint32_t range_held(const struct gpool_range *range)
{
	if (range->spilled)
		return range->spilled_pages;
	return range->elastic ? elastic_held_pages(range->elastic) : range->page_count;
}

int range_stand(struct gpool_range *range)
{
	struct gpool *pool = range->pool;
	struct thread_cache *cache = thread_cache_of(pool);
	int error;

	if (!cache)
		return -ENOMEM;
	if (range->elastic)
		return elastic_stand(range->elastic);
	page_list_chain(pool, &range->pages, 0);
	error = chain_stand(
		pool, cache, range->pages.spans[0].first, range->page_count, &range->attributes, &range->block);
	if (!error)
		return 0;
	pool_log(pool, POOL_LOG_ERROR, "pages of a range are no longer leased to session %u", pool->id);
	return -EPIPE;
}

void range_fall(struct gpool_range *range)
{
	const struct gpool_block *block = &range->block;
	struct gpool *pool = range->pool;

	if (range->elastic) {
		elastic_fall(range->elastic);
		return;
	}
	/* If the agent has taken the block, this session's pin no longer exists. */
	if (block->tag &&
		atomic_load_explicit(&block_entry(pool, block->page)->tag, memory_order_acquire) == block->tag) {
		chain_end(pool, block->page);
		pin_drop(&pool->session, block->page);
	}
	range->block = (struct gpool_block){0};
}

int range_object_pages(struct gpool_range *range)
{
	const struct manifest *manifest = &range->object->manifest;

	for (uint32_t i = 0; i < manifest->header->runs; i++)
		if (page_list_add(&range->pages, manifest->runs[i].first, manifest->runs[i].count)) {
			page_list_reset(&range->pages);
			return -ENOMEM;
		}
	return 0;
}

/* ---- create ---- */

static int options_check(const struct gpool *pool, const struct gpool_range_options *options, uint32_t page_count)
{
	if (options->flags || options->reserved)
		return fail(-EINVAL, "flags are 0x%x and reserved is %u; both must be 0", options->flags,
			options->reserved);
	if (options->memory_class > GPOOL_OBJECT_EPHEMERAL)
		return fail(-EINVAL, "memory_class is %u; the maximum is %d", options->memory_class,
			GPOOL_OBJECT_EPHEMERAL);
	if (options->usage >= GPOOL_USAGE_COUNT)
		return fail(-EINVAL, "usage is %u; the maximum is %d", options->usage, GPOOL_USAGE_COUNT - 1);
	if (options->timeout_ms < -1)
		return fail_timeout(options->timeout_ms);
	if (page_count == 0 || page_count > pool->page_count)
		return fail(-EINVAL, "page_count is %u; it must be 1 to %u, the pages of the pool", page_count,
			pool->page_count);
	/* Only a range that is kept as an object has a name. */
	if ((options->memory_class == GPOOL_OBJECT_IMMUTABLE) != (options->name && *options->name))
		return fail(-EINVAL,
			options->name && *options->name ? "only a range of the class IMMUTABLE can have a name"
							: "a range of the class IMMUTABLE must have a name");
	/* Publishing the range would be refused at the first gpool_sleep(). */
	return options->name && object_name_reserved(options->name) ? fail_reserved(options->name) : 0;
}

struct gpool_range *range_new(struct gpool *pool, uint32_t page_count, uint32_t memory_class)
{
	struct gpool_range *range = calloc(1, sizeof(*range));

	if (!range)
		return NULL;
	range->pool = pool;
	range->page_count = page_count;
	range->memory_class = memory_class;
	return range;
}

/* Reserve addresses, take pages, map them, and convert them to a block. If this fails, only the struct exists. */
static int range_commit(struct gpool_range *range, int32_t timeout_ms)
{
	struct gpool *pool = range->pool;
	uint32_t per_handle = pool->header->pages_per_handle;
	int error = range_reserve(range, (range->page_count + per_handle - 1) / per_handle);

	if (error)
		return error;
	error = page_lists_take(pool, &range->pages, &range->page_count, 1, timeout_ms);
	if (error)
		goto unreserve;
	error = range_map(range);
	if (error)
		goto put;
	error = range_stand(range);
	if (!error)
		return 0;
	range_unmap(range);
put:
	page_list_put(pool, &range->pages);
unreserve:
	range_unreserve(range);
	return error;
}

int gpool_range_create(
	struct gpool *pool, uint32_t page_count, const struct gpool_range_options *options, struct gpool_range **range)
{
	struct gpool_range_options read = GPOOL_RANGE_OPTIONS_INIT;
	struct gpool_range *made;
	int error = 0;

	if (!pool->alive)
		return -ECHILD;
	if (pool->session_kind)
		return fail_kind(pool);
	if (options)
		error = options_read(&read, sizeof(read), options);
	else
		read.memory_class = GPOOL_OBJECT_MUTABLE;
	if (!error)
		error = options_check(pool, &read, page_count);
	if (error)
		return error;
	made = range_new(pool, page_count, read.memory_class);
	if (!made)
		return -ENOMEM;
	made->attributes = (struct block_attributes){.flags = read.usage | BLOCK_RANGE, .owner_id = read.owner_id};
	error = object_text_copy(made->name, sizeof(made->name), read.name, "object");
	pthread_mutex_lock(&pool->ranges->lock);
	if (!error)
		error = pool->ranges->asleep ? fail_asleep() : range_commit(made, read.timeout_ms);
	if (error) {
		range_free(made);
	} else {
		range_link(made);
		*range = made;
	}
	pthread_mutex_unlock(&pool->ranges->lock);
	return error;
}

/* Map the pages of an open object at the range's own addresses. */
static int object_commit(struct gpool_range *range)
{
	struct gpool *pool = range->pool;
	int64_t handles;
	int error = range_object_pages(range);

	if (error)
		return error;
	handles = range_handles(range);
	if (handles < 0)
		return (int)handles;
	error = range_reserve(range, (uint64_t)handles);
	if (error)
		return error;
	range->address = range->va + range->pages.spans[0].first % pool->header->pages_per_handle * pool->page_bytes;
	error = range_map(range);
	if (error)
		range_unreserve(range);
	return error;
}

int gpool_range_open(struct gpool *pool, const char *name, const struct gpool_object_open_options *options,
	struct gpool_range **range)
{
	struct gpool_object_open_options read = GPOOL_OBJECT_OPEN_OPTIONS_INIT;
	struct gpool_object *object;
	struct gpool_range *made;
	int error = 0;

	if (!pool->alive)
		return -ECHILD;
	if (options)
		error = options_read(&read, sizeof(read), options);
	if (!error && (read.flags || read.role))
		error = fail(-EINVAL, "flags and role must not be set for a range");
	if (!error)
		error = object_open(pool, name, &read, false, &object);
	if (error)
		return error;
	/* Other classes are rejected: their content could change or be evicted while the process sleeps. */
	made = object->memory_class == GPOOL_OBJECT_IMMUTABLE
		? range_new(pool, object->manifest.header->pages, GPOOL_OBJECT_IMMUTABLE)
		: NULL;
	if (!made) {
		error = object->memory_class == GPOOL_OBJECT_IMMUTABLE
			? -ENOMEM
			: fail(-EINVAL, "object '%s' does not have the class IMMUTABLE", object->name);
		goto close_object;
	}
	memcpy(made->name, object->name, sizeof(made->name));
	made->object = object;
	made->version = object->version;
	made->layout_hash = object->manifest.header->layout_hash;
	pthread_mutex_lock(&pool->ranges->lock);
	error = pool->ranges->asleep ? fail_asleep() : object_commit(made);
	if (error)
		range_free(made);
	else
		range_link(made);
	pthread_mutex_unlock(&pool->ranges->lock);
	if (error)
		goto close_object;
	*range = made;
	return 0;
close_object:
	gpool_object_close(object);
	return error;
}

/* ---- destroy ---- */

int range_settle(struct gpool_range *range)
{
	uint32_t shared;

	if (!range->elastic)
		return 0;
	shared = elastic_shared(range->elastic);
	if (shared)
		return fail(-EBUSY,
			"%u page%s of named objects %s mapped in a range; unmap them with gpool_range_unmap()", shared,
			plural(shared), be(shared));
	return elastic_leaving(range->elastic) ? fail(-EBUSY,
							 "queued GPU work uses pages that were decommitted from a "
							 "range of %u page%s; wait for its fence",
							 range->page_count, plural(range->page_count))
					       : 0;
}

/* Discard the spilled block, because the last of its ranges was destroyed. */
static int spilled_discard(struct gpool *pool)
{
	struct ranges *ranges = pool->ranges;
	struct lease_request ask = {.kind = LEASE_DISCARD, .tag = ranges->spilled_tag & ~(uint64_t)BLOCK_SCATTERED};
	struct gpool_range *range, *next;
	int error;

	for (range = ranges->all; range; range = range->next)
		if (range->spilled && !range->gone)
			return 0;
	error = lease_ask(pool, &ask);
	if (error && error != -ESTALE)
		return error;
	ranges->spilled_tag = 0;
	ranges->spilled_pages = 0;
	for (range = ranges->all; range; range = next) {
		next = range->next;
		if (!range->gone)
			continue;
		range_unreserve(range);
		range_free(range);
	}
	return 0;
}

/* The work on the pool's streams is done. The caller holds the lock. */
static int range_end(struct gpool_range *range)
{
	struct gpool *pool = range->pool;
	struct thread_stats *transit;
	int error = range_settle(range);

	if (!error)
		error = range_unmap(range);
	if (error)
		return error;
	if (range->spilled) {
		range->gone = true;
		error = spilled_discard(pool);
		if (error)
			range->gone = false;
		else if (pool->ranges->spilled_tag)
			range_unreserve(range);
		return error;
	}
	if (range->object) {
		gpool_object_close(range->object);
	} else if (range->pages.count) {
		transit = transit_begin(pool);
		range_fall(range);
		page_list_put(pool, &range->pages);
		transit_end(pool, transit);
		pool_wake_waiters(pool);
	}
	range_unreserve(range);
	range_free(range);
	return 0;
}

/*
 * If this thread has a check function and the range is mapped, wait for the work on the pool's streams without a lock,
 * and set *awaited. Return: as stream_await_all().
 */
static int range_await(struct gpool_range *range, bool *awaited)
{
	struct gpool *pool = range->pool;

	*awaited = false;
	if (!wait_checked())
		return 0;
	pthread_mutex_lock(&pool->ranges->lock);
	*awaited = range->mapped;
	pthread_mutex_unlock(&pool->ranges->lock);
	return *awaited ? stream_await_all(pool, -1) : 0;
}

int gpool_range_destroy(struct gpool_range *range)
{
	struct gpool *pool;
	bool awaited;
	int error;

	if (!range)
		return 0;
	pool = range->pool;
	if (!pool->alive)
		return -ECHILD;
	error = range_await(range, &awaited);
	if (error)
		return error;
	wait_pause(true);
	pthread_mutex_lock(&pool->ranges->lock);
	/* Work that other threads have queued since range_await() does not use the range, which is about to end. */
	if (range->mapped && !awaited)
		error = stream_sync_all(pool);
	if (!error)
		error = range_end(range);
	pthread_mutex_unlock(&pool->ranges->lock);
	wait_pause(false);
	return error;
}

/* ---- inspect ---- */

int gpool_range_address(const struct gpool_range *range, uint64_t *address)
{
	if (!range->pool->alive)
		return -ECHILD;
	*address = range->address;
	return 0;
}

int gpool_range_info(struct gpool_range *range, struct gpool_range_info *info)
{
	struct gpool_range_info filled = {.size = info->size};
	struct gpool *pool = range->pool;

	if (!pool->alive)
		return -ECHILD;
	if (filled.size < sizeof(filled.size))
		return fail_size(filled.size);
	pthread_mutex_lock(&pool->ranges->lock);
	filled.state = range->mapped ? GPOOL_RANGE_AWAKE : GPOOL_RANGE_ASLEEP;
	filled.memory_class = range->memory_class;
	filled.page_count = range->page_count;
	filled.address = range->address;
	filled.bytes = range->page_count * pool->page_bytes;
	filled.version = range->version;
	filled.layout_hash = range->layout_hash;
	memcpy(filled.name, range->name, sizeof(filled.name));
	filled.handle_pages = pool->header->pages_per_handle;
	filled.committed_pages = range->page_count;
	if (range->elastic)
		elastic_counts(range->elastic, &filled);
	pthread_mutex_unlock(&pool->ranges->lock);
	if (filled.size > sizeof(filled))
		memset((char *)info + sizeof(filled), 0, filled.size - sizeof(filled));
	memcpy(info, &filled, filled.size < sizeof(filled) ? filled.size : sizeof(filled));
	return 0;
}

int gpool_asleep(struct gpool *pool)
{
	int asleep;

	if (!pool->alive)
		return -ECHILD;
	if (!pool->ranges)
		return 0;
	pthread_mutex_lock(&pool->ranges->lock);
	asleep = pool->ranges->asleep;
	pthread_mutex_unlock(&pool->ranges->lock);
	return asleep;
}
