/* vpmm.c - the stream-ordered allocator: open and close, and the steps without driver calls. See vpmm.h. */
#include "client/vm/vpmm.h"

#include "client/core/last_error.h"
#include "client/core/stream.h"
#include "shm/plural.h"
#include "shm/timeline.h"

#include <stdlib.h>
#include <time.h>

/*
 * chosen: longer than a thread of this process waits for a processor on a busy machine. Waiting starts only while
 * another thread holds free pages.
 */
enum { SETTLE_NS = 1000000000 };

/* ---- open and close ---- */

static void stream_closed(struct gpool *pool, uint32_t stream)
{
	struct vpmm *vpmm = pool->vpmm;
	uint32_t slot = stream & (SESSION_TIMELINES - 1);

	if (!vpmm || !atomic_load_explicit(&vpmm->started, memory_order_acquire))
		return;
	vpmm_lock(vpmm);
	if (vpmm->numbers[slot] == stream) {
		region_stream_end(&vpmm->set, slot);
		vpmm->numbers[slot] = 0;
		atomic_fetch_sub_explicit(&vpmm->streams_used, 1, memory_order_relaxed);
	}
	vpmm_unlock(vpmm);
	vpmm_small_stream_closed(vpmm, stream);
}

int vpmm_open(struct gpool *pool)
{
	struct vpmm *vpmm = calloc(1, sizeof(*vpmm));
	pthread_condattr_t attributes;

	if (!vpmm)
		return -ENOMEM;
	vpmm->pool = pool;
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&vpmm->settled, &attributes);
	pthread_condattr_destroy(&attributes);
	pthread_mutex_init(&vpmm->start_lock, NULL);
	pthread_mutex_init(&vpmm->lock, NULL);
	pool->vpmm = vpmm;
	stream_on_close(pool, stream_closed);
	return 0;
}

/* Free the parts of a started or partly started allocator. */
static void parts_close(struct vpmm *vpmm)
{
	struct vpmm_chunk *chunk;

	vpmm_idle_close(vpmm);
	vpmm_small_close(vpmm);
	if (vpmm->writer.table) {
		region_table_begin(&vpmm->writer);
		region_set_close(&vpmm->set);
		region_table_end(&vpmm->writer);
	}
	while ((chunk = vpmm->chunks)) {
		vpmm->chunks = chunk->next;
		vpmm_tags_close(chunk);
		vm_space_close(&chunk->space);
		region_chunk_close(&chunk->regions);
		free(chunk);
	}
	vpmm_record_close(vpmm);
}

void vpmm_close(struct gpool *pool)
{
	struct vpmm *vpmm = pool->vpmm;

	if (!vpmm)
		return;
	parts_close(vpmm);
	pthread_cond_destroy(&vpmm->settled);
	pthread_mutex_destroy(&vpmm->lock);
	pthread_mutex_destroy(&vpmm->start_lock);
	free(vpmm->record_path);
	free(vpmm);
	pool->vpmm = NULL;
}

/* Map the initial pages as one free region of the stream of the first call. No queued work can use it yet. */
static int initial_pages(struct vpmm *vpmm, uint32_t stream)
{
	struct vpmm_call call;
	struct vm_region *place;
	uint64_t pages =
		vpmm->options.initial_bytes / vpmm->page_bytes + (vpmm->options.initial_bytes % vpmm->page_bytes != 0);
	int error;

	call.vpmm = vpmm;
	call.stream = stream;
	call.count = (uint32_t)pages;
	call.traced = 0;
	if (!pages)
		return 0;
	if (pages > vpmm->pool->page_count)
		return vpmm_too_much(vpmm->pool, pages);
	vpmm_lock(vpmm);
	error = vpmm_slot(vpmm, stream, &call.slot);
	if (!error)
		error = vpmm_fill(&call, vpmm->options.timeout_ms, &place);
	if (!error)
		region_put_free(&vpmm->set, place, call.slot, fence_make(call.slot, 0));
	vpmm_unlock(vpmm);
	if (error)
		pool_log(vpmm->pool, POOL_LOG_ERROR, "cannot allocate the initial %llu byte%s: %s",
			(unsigned long long)vpmm->options.initial_bytes, plural(vpmm->options.initial_bytes),
			gpool_strerror(error));
	return error;
}

static int parts_open(struct vpmm *vpmm, uint32_t stream)
{
	int error = vpmm_options_read(vpmm);

	if (error)
		return error;
	region_writer_init(&vpmm->writer, vpmm->pool->session.regions, &vpmm->pool->header->clock_ms, vpmm->page_bytes);
	region_set_open(&vpmm->set, &vpmm->pool->session, vpmm->page_bytes, &vpmm->writer);
	error = vpmm_small_open(vpmm);
	if (!error && vpmm->options.record_path)
		error = vpmm_record_open(vpmm, vpmm->options.record_path);
	if (!error)
		error = vpmm_idle_open(vpmm);
	if (error)
		return error;
	if (vpmm->off)
		return 0;
	vpmm_lock(vpmm);
	error = vpmm_chunk_add(vpmm, 1);
	vpmm_unlock(vpmm);
	/* Allocate the pages last, because a later failure would have to return them. */
	return error ? error : initial_pages(vpmm, stream);
}

/* Start the allocator. If this fails, nothing is left behind, and the next call tries again. */
static COLD int vpmm_start(struct vpmm *vpmm, uint32_t stream)
{
	uint32_t slot;
	int error = 0;

	if (stream && stream_slot_of(vpmm->pool, stream, &slot))
		return fail_stream(stream);
	pthread_mutex_lock(&vpmm->start_lock);
	if (!atomic_load_explicit(&vpmm->started, memory_order_relaxed)) {
		error = parts_open(vpmm, stream);
		if (error)
			parts_close(vpmm);
		else
			atomic_store_explicit(&vpmm->started, true, memory_order_release);
	}
	pthread_mutex_unlock(&vpmm->start_lock);
	return error;
}

/* ---- streams ---- */

int vpmm_slot_enter(struct vpmm *vpmm, uint32_t stream, uint32_t *slot)
{
	*slot = VM_NONE;
	if (stream_slot_of(vpmm->pool, stream, slot))
		return fail_stream(stream);
	/* The former stream of this slot is closed and its work is done; stream_closed() was not called yet. */
	if (vpmm->numbers[*slot])
		region_stream_end(&vpmm->set, *slot);
	else
		atomic_fetch_add_explicit(&vpmm->streams_used, 1, memory_order_relaxed);
	vpmm->numbers[*slot] = stream;
	return 0;
}

/* ---- malloc ---- */

/*
 * Phase 1: find a region, which then moves. If no region fits, *found is NULL without an error; continue with phase 2.
 */
static int find(struct vpmm_call *call, struct vm_region **found)
{
	struct region_set *set = &call->vpmm->set;
	struct vm_region *region = region_best(set, call->slot, call->count);
	const char *which = "in its stream";

	*found = NULL;
	if (!region) {
		region_sweep(set);
		region = region_best_ready(set, call->count);
		which = "done with";
	}
	if (!region)
		return vpmm_fences_record(call->vpmm, call->slot) ? -EAGAIN : 0;
	if (region_spare(set, 1))
		return -ENOMEM;
	vpmm_trace(call, "1: %u page%s %s, %u of stream slot %u, id %llu", call->count, plural(call->count), which,
		region->count, region->slot, (unsigned long long)region->id);
	region = region_carve(set, region, call->count);
	if (region->slot == VM_RECLAIMABLE || region->offered) {
		int error = vpmm_adopt(call, region);

		if (error)
			return error;
	}
	*found = region;
	return 0;
}

/*
 * Adopt as many reclaimable pages as needed, before a stream waits for other streams and before a request to the agent.
 */
static int unpark(struct vpmm_call *call)
{
	struct region_set *set = &call->vpmm->set;
	uint64_t there = region_at_once(set, call->slot);
	struct vm_region *region;
	int error;

	if (!set->reclaimable || there >= call->count)
		return 0;
	if (region_spare(set, 1))
		return -ENOMEM;
	region = region_reclaimable(set, NULL, call->count - there);
	error = vpmm_adopt(call, region);
	if (!error)
		region_put_free(set, region, VM_NONE, 0);
	return error == -ENOMEM ? error : -EAGAIN;
}

static int search(struct vpmm_call *call, struct vm_region **found)
{
	int error;

	do {
		error = find(call, found);
		if (!error && !*found)
			error = unpark(call);
	} while (error == -EAGAIN);
	return error || *found ? error : vpmm_place(call, found);
}

/*
 * Wait, within the limit, until other threads put back free pages that they had taken out of the sets. Return false if
 * no thread has any, or at the limit.
 */
static bool others_settle(struct vpmm *vpmm, uint64_t limit_ns)
{
	const struct region_set *set = &vpmm->set;
	struct timespec limit = {.tv_sec = (time_t)(limit_ns / 1000000000), .tv_nsec = (long)(limit_ns % 1000000000)};
	int late;

	if (set->pages[VM_FREE] == set->available + set->guarded)
		return false;
	region_show_totals(&vpmm->set);
	region_table_end(&vpmm->writer);
	vpmm->settling++;
	late = pthread_cond_timedwait(&vpmm->settled, &vpmm->lock, &limit);
	vpmm->settling--;
	region_table_begin(&vpmm->writer);
	return !late;
}

static COLD int malloc_slowly(struct vpmm_call *call, struct vm_region **found)
{
	struct vpmm *vpmm = call->vpmm;
	uint64_t limit_ns = 0, parks;
	int error;

	if (vpmm->set.counts[VM_PENDING_UNMAP])
		vpmm_pending_unmaps_end(call);
	/*
	 * Do not refuse a request while another thread makes free pages idle, or if it did so during the search: the
	 * agent may have refused pages that were neither held nor idle at that moment.
	 */
	do {
		parks = vpmm->parks;
		error = search(call, found);
		if (error != -ENOSPC && error != -EDQUOT)
			break;
		limit_ns = limit_ns ? limit_ns : monotonic_ns() + SETTLE_NS;
	} while (vpmm->parks != parks ? monotonic_ns() < limit_ns : others_settle(vpmm, limit_ns));
	return error;
}

static void call_begin(struct vpmm_call *call, struct vpmm *vpmm, uint32_t stream)
{
	call->vpmm = vpmm;
	call->stream = stream;
	call->traced = 0;
	call->driver_calls = gpu_calls_total(vpmm->pool->gpu);
}

static int pages_malloc(
	struct vpmm *vpmm, uint64_t bytes, uint32_t count, uint32_t stream, uint64_t *address, uint64_t *id)
{
	struct region_set *set = &vpmm->set;
	struct vm_region *region = NULL;
	struct vpmm_call call;
	uint32_t slot;
	int error;

	vpmm_lock(vpmm);
	error = vpmm_slot(vpmm, stream, &slot);
	if (unlikely(error))
		goto unlock;
	if (likely(!set->counts[VM_PENDING_UNMAP] && !vpmm->options.trace && set->spare_count))
		region = region_best(set, slot, count);
	if (likely(region && !region->offered)) {
		region = region_carve(set, region, count);
	} else {
		call_begin(&call, vpmm, stream);
		call.slot = slot;
		call.count = count;
		call.bytes = bytes;
		error = malloc_slowly(&call, &region);
		if (error)
			goto unlock;
	}
	region->stream = stream;
	region_put_allocated(set, region, slot, bytes);
	vpmm_live_rose(vpmm);
	*address = region_address(set, region);
	set->newest = region->id;
	*id = 2 * region->id;
	vpmm->counters.allocations++;
unlock:
	vpmm_idle_touch(vpmm);
	if (unlikely(pool_is_short(vpmm->pool)))
		vpmm_pressed(vpmm);
	vpmm_unlock(vpmm);
	if (unlikely(vpmm->options.trace) && error != -EINVAL)
		vpmm_trace_end(&call, "malloc", error, error ? 0 : *address);
	return error;
}

int vpmm_too_much(struct gpool *pool, uint64_t count)
{
	struct thread_cache *cache = thread_cache_of(pool);

	if (cache)
		cache->shortage = (struct gpool_oom_info){.needed = count < UINT32_MAX ? (uint32_t)count : UINT32_MAX};
	return fail(-ENOSPC, "%llu page%s %s needed; this pool has %u", (unsigned long long)count, plural(count),
		be(count), pool->page_count);
}

int gpool_malloc_async(struct gpool *pool, uint64_t bytes, uint32_t stream, uint64_t *address)
{
	struct vpmm *vpmm;
	uint64_t count, id, at, limit_ns = 0;
	int error = 0;

	if (unlikely(!pool->alive))
		return -ECHILD;
	if (unlikely(pool->session_kind))
		return fail_kind(pool);
	if (unlikely(!bytes))
		return fail(-EINVAL, "bytes is 0");
	vpmm = pool->vpmm;
	if (unlikely(!atomic_load_explicit(&vpmm->started, memory_order_acquire)))
		error = vpmm_start(vpmm, stream);
	/* Create the cache of a new thread now, since this acquires a lock, which is not permitted under vpmm->lock. */
	if (unlikely(!error && !thread_cache_of(pool)))
		error = -ENOMEM;
	if (unlikely(error))
		return error;
	do {
		error = bytes <= vpmm->small_bytes ? vpmm_small_malloc(vpmm, bytes, stream, &at, &id) : -ENOSPC;
		/* If a small allocation finds no page, use a free region, if necessary after a wait on the GPU. */
		if ((error == -ENOSPC || error == -EDQUOT) && !vpmm->off) {
			count = bytes / vpmm->page_bytes + (bytes % vpmm->page_bytes != 0);
			if (unlikely(count > pool->page_count))
				return vpmm_too_much(pool, count);
			error = pages_malloc(vpmm, bytes, (uint32_t)count, stream, &at, &id);
		}
	} while (unlikely(error == -ENOSPC || error == -EDQUOT) && vpmm_small_wait(vpmm, &limit_ns));
	if (unlikely(error))
		return error;
	if (unlikely(vpmm->record) && vpmm_record_add(vpmm->record, false, stream, bytes, id))
		background_wake(pool, &vpmm->task);
	*address = at;
	return 0;
}

/* ---- free ---- */

uint64_t vpmm_fence_now(struct vpmm *vpmm, uint32_t stream)
{
	struct gpool_fence fence = {0};

	/* A later fence after the work of a thread's default stream would let other threads' streams wait for it. */
	if (stream &&
		(atomic_load_explicit(&vpmm->streams_used, memory_order_relaxed) > 1 ||
			stream_is_threads(vpmm->pool, stream)))
		gpool_fence_record(vpmm->pool, stream, &fence);
	return fence.value;
}

/* Free an allocation in a stream, which may have been closed since. The caller holds the lock. */
static void region_release(struct vpmm *vpmm, struct vm_region *region, uint32_t stream, uint64_t fence)
{
	bool guard = is_stream_slot(region->slot) && vpmm->numbers[region->slot] == region->stream;
	uint32_t slot;

	if (vpmm_slot(vpmm, stream, &slot))
		slot = VM_NONE;
	region = region_carve(&vpmm->set, region, region->count);
	region_put_released(&vpmm->set, region, slot, slot == VM_NONE ? 0 : fence, guard);
}

static int pages_free(struct vpmm *vpmm, uint64_t address, uint32_t stream, uint64_t *bytes, uint64_t *id)
{
	uint64_t fence = vpmm_fence_now(vpmm, stream);
	struct vm_region *region;
	int error;

	vpmm_lock(vpmm);
	error = region_find(&vpmm->set, address, &region);
	if (!error && region->released)
		error = -ESTALE;
	if (likely(!error)) {
		*bytes = region->bytes;
		*id = 2 * region->id;
		if (unlikely(region->captured)) {
			region->released = true;
			region->freed_in = stream;
		} else {
			region_release(vpmm, region, stream, fence);
		}
		vpmm->set.newest = 0;
		vpmm->counters.frees++;
	}
	vpmm_idle_touch(vpmm);
	if (unlikely(pool_is_short(vpmm->pool)))
		vpmm_pressed(vpmm);
	vpmm_unlock(vpmm);
	return error;
}

/* Check the stream of a free. A closed stream becomes 0 (no stream). Return: 0, or an error for an unknown stream. */
static int free_stream(struct gpool *pool, uint32_t *stream)
{
	uint32_t slot;

	/* A stream that the allocator knows is open, or is being closed. */
	if (likely(pool->vpmm->numbers[*stream & (SESSION_TIMELINES - 1)] == *stream) ||
		!stream_slot_of(pool, *stream, &slot))
		return 0;
	if (stream_was(pool, *stream))
		return fail_stream(*stream);
	*stream = 0;
	return 0;
}

static COLD void fail_allocation(int error, uint64_t address)
{
	if (error == -ESTALE)
		fail(error, "no allocation begins at 0x%llx, or it was already freed", (unsigned long long)address);
	else
		fail_address(address);
}

static COLD void free_trace(struct vpmm *vpmm, uint64_t address, uint32_t stream, uint64_t bytes, int error)
{
	struct vpmm_call call;

	call_begin(&call, vpmm, stream);
	call.bytes = bytes;
	vpmm_trace_end(&call, "mfree", error, address);
}

int gpool_free_async(struct gpool *pool, uint64_t address, uint32_t stream)
{
	struct vpmm *vpmm;
	uint64_t bytes = 0, id = 0;
	uint32_t order = stream;
	int error;

	if (unlikely(!pool->alive))
		return -ECHILD;
	if (unlikely(pool->session_kind))
		return fail_kind(pool);
	vpmm = pool->vpmm;
	if (unlikely(!atomic_load_explicit(&vpmm->started, memory_order_acquire)))
		return fail_address(address);
	if (unlikely(free_stream(pool, &order)))
		return -EINVAL;
	error = vpmm_small_has(vpmm, address) ? vpmm_small_free(vpmm, address, order, &bytes, &id)
					      : pages_free(vpmm, address, order, &bytes, &id);
	if (unlikely(error == -EINVAL || error == -ESTALE))
		fail_allocation(error, address);
	if (unlikely(vpmm->options.trace >= 2))
		free_trace(vpmm, address, order, bytes, error);
	if (unlikely(vpmm->record && !error) && vpmm_record_add(vpmm->record, true, stream, bytes, id))
		background_wake(pool, &vpmm->task);
	return error;
}

/* ---- capture ---- */

int gpool_vm_capture(struct gpool *pool, uint64_t address, int captured)
{
	struct vpmm *vpmm;
	struct vm_region *region;
	int error;

	if (!pool->alive)
		return -ECHILD;
	if (pool->session_kind)
		return fail_kind(pool);
	vpmm = pool->vpmm;
	if (captured < 0 || captured > 1)
		return fail(-EINVAL, "captured is %d; it must be 0 or 1", captured);
	if (!atomic_load_explicit(&vpmm->started, memory_order_acquire))
		return fail_address(address);
	vpmm_lock(vpmm);
	error = region_find(&vpmm->set, address, &region);
	if (!error && region->released && captured)
		error = -ESTALE;
	if (!error) {
		region->captured = captured;
		vpmm->set.newest = 0;
		if (region->released)
			region_release(vpmm, region, region->freed_in, 0);
	}
	vpmm_unlock(vpmm);
	if (error == -EINVAL || error == -ESTALE)
		fail_allocation(error, address);
	return error;
}
