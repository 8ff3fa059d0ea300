/* vpmm_map.c - the steps of the stream-ordered allocator that call the driver or the agent. See vpmm.h. */
#include "client/core/stream.h"
#include "client/vm/vpmm.h"
#include "client/core/window.h"
#include "shm/invariant.h"
#include "shm/plural.h"
#include "shm/timeline.h"

#include <stdlib.h>

/* ---- addresses ---- */

static int chunk_open(struct vpmm *vpmm, uint32_t pages, struct vpmm_chunk **opened)
{
	uint64_t least = pages * vpmm->page_bytes,
		 bytes = (least + vpmm->address_bytes - 1) / vpmm->address_bytes * vpmm->address_bytes;
	struct vpmm_chunk *chunk = calloc(1, sizeof(*chunk));
	int error;

	if (!chunk)
		return -ENOMEM;
	chunk->space.let_go = vpmm_let_go;
	chunk->space.owner = vpmm;
	error = vm_space_open(vpmm->pool, bytes, &chunk->space);
	/* Reduce the size, unless the program has set it: the address space may be small or limited. */
	while (error && !vpmm->address_fixed && bytes / 2 >= least && bytes / 2 >= vpmm->page_bytes) {
		bytes /= 2;
		error = vm_space_open(vpmm->pool, bytes, &chunk->space);
		if (!error)
			pool_log(vpmm->pool, POOL_LOG_INFO, "reserving only %llu byte%s of addresses",
				(unsigned long long)bytes, plural(bytes));
	}
	if (error) {
		free(chunk);
		return error;
	}
	error = vpmm_tags_open(chunk);
	if (!error)
		error = region_chunk_open(
			&chunk->regions, chunk->space.base, chunk->space.slot_count / vpmm->page_slots);
	if (error) {
		vpmm_tags_close(chunk);
		vm_space_close(&chunk->space);
		free(chunk);
		return error;
	}
	*opened = chunk;
	return 0;
}

int vpmm_chunk_add(struct vpmm *vpmm, uint32_t pages)
{
	struct vpmm_chunk *chunk = NULL;
	int error;

	vpmm_unlock(vpmm);
	error = chunk_open(vpmm, pages, &chunk);
	vpmm_lock(vpmm);
	if (error)
		return error;
	error = region_spare(&vpmm->set, 1);
	if (error) {
		vpmm_unlock(vpmm);
		vpmm_tags_close(chunk);
		vm_space_close(&chunk->space);
		region_chunk_close(&chunk->regions);
		free(chunk);
		vpmm_lock(vpmm);
		return error;
	}
	chunk->next = vpmm->chunks;
	vpmm->chunks = chunk;
	region_chunk_add(&vpmm->set, &chunk->regions);
	return 0;
}

/* Ensure that a hole of call->count pages exists. Lock held; released if addresses must be reserved. */
static int hole_ensure(struct vpmm_call *call)
{
	struct vpmm *vpmm = call->vpmm;

	while (!region_best_hole(&vpmm->set, call->count)) {
		int error = vpmm_chunk_add(vpmm, call->count);

		if (error)
			return error;
		vpmm_trace(call, "reserved %llu byte%s of addresses", (unsigned long long)vpmm->chunks->space.bytes,
			plural(vpmm->chunks->space.bytes));
	}
	return region_spare(&vpmm->set, 3);
}

/* ---- phase 0: pending unmaps ---- */

void vpmm_pending_unmaps_end(struct vpmm_call *call)
{
	struct region_list ending = TAILQ_HEAD_INITIALIZER(ending);
	struct vpmm *vpmm = call->vpmm;
	struct vm_region *region, *next;

	region_sweep(&vpmm->set);
	while ((region = region_ripe(&vpmm->set))) {
		TAILQ_INSERT_TAIL(&ending, region, by_age);
		region_show(&vpmm->set, region);
	}
	if (TAILQ_EMPTY(&ending))
		return;
	vpmm_unlock(vpmm);
	TAILQ_FOREACH(region, &ending, by_age)
	{
		/* `unmapped` keeps the result until the lock is acquired again. */
		region->unmapped = vm_unmap(vpmm_space(region), vpmm_region_slot(vpmm, region),
					   vpmm_region_slots(vpmm, region)) == 0;
		vpmm_trace(call, "0: pending unmap of %u page%s at %#llx %s", region->count, plural(region->count),
			(unsigned long long)region_address(&vpmm->set, region),
			region->unmapped ? "unmapped" : "cannot be unmapped");
	}
	vpmm_lock(vpmm);
	for (region = TAILQ_FIRST(&ending); region; region = next) {
		next = TAILQ_NEXT(region, by_age);
		if (region->unmapped) {
			region_turn(&vpmm->set, region, VM_HOLE);
			region_put(&vpmm->set, region);
		} else {
			vpmm->unmaps_refused++;
			region_put_pending_unmap(&vpmm->set, region, 0);
		}
	}
}

/* ---- fences ---- */

static bool fence_record_slot(struct vpmm *vpmm, uint32_t slot)
{
	uint64_t last_id = TAILQ_LAST(&vpmm->set.streams[slot].unfenced, region_list)->id;
	uint32_t stream = vpmm->numbers[slot];
	struct gpool_fence fence;
	int error;

	vpmm_unlock(vpmm);
	error = gpool_fence_record(vpmm->pool, stream, &fence);
	vpmm_lock(vpmm);
	/*
	 * Limit this to last_id: while the lock was released, a new stream may have taken over the slot and freed
	 * regions, which have a higher id. If the stream was closed, its work is done.
	 */
	if (!error)
		region_fence(&vpmm->set, slot, fence.value, last_id);
	else if (vpmm->numbers[slot] == stream && (!stream || stream_slot_of(vpmm->pool, stream, &slot)))
		region_stream_end(&vpmm->set, slot);
	else
		return false;
	return true;
}

bool vpmm_fences_record(struct vpmm *vpmm, uint32_t except)
{
	bool recorded = false;

	for (uint32_t word = 0; word < VM_WORDS && vpmm->set.unfenced; word++)
		for (uint64_t loose = vpmm->set.loose[word]; loose; loose &= loose - 1) {
			uint32_t slot = word * 64 + (uint32_t)__builtin_ctzll(loose);

			if (slot != except && !TAILQ_EMPTY(&vpmm->set.streams[slot].unfenced))
				recorded |= fence_record_slot(vpmm, slot);
		}
	return recorded;
}

/* ---- phase 2: map a new place ---- */

/* A place that is being mapped. */
struct making {
	struct region_list parts; /* adjacent moving regions: holes, and free regions, which are mapped already */
	struct vm_region *place;  /* the parts as one region, after success */
	uint32_t mapped;          /* number of pages of the free regions */
	struct region_harvest harvest;
	uint32_t fresh; /* number of pages to request from the agent */
	uint32_t slack; /* number of these that could be free pages; the request is then only for pages that are free */
	int32_t timeout_ms;
	uint32_t *handles;
	uint32_t old_handles; /* number of handles of the harvest */
	uint32_t waits;
	uint64_t recorded[VM_SLOTS]; /* for each slot, the fence for its regions that were UNFENCED */
};

/* Take a hole as the place. A sufficient one exists. */
static void hole_take(struct vpmm_call *call, struct making *making)
{
	struct region_set *set = &call->vpmm->set;
	struct vm_region *place = region_carve(set, region_best_hole(set, call->count), call->count);

	region_show(set, place);
	TAILQ_INSERT_TAIL(&making->parts, place, by_age);
}

static int handles_gather(struct vpmm_call *call, struct making *making)
{
	struct vpmm *vpmm = call->vpmm;
	uint32_t fresh = making->fresh * vpmm->page_slots;
	struct vm_take_options options = vpmm->take;
	struct vm_region *region;

	making->handles = malloc((size_t)call->count * vpmm->page_slots * sizeof(*making->handles));
	if (!making->handles)
		return -ENOMEM;
	TAILQ_FOREACH(region, &making->harvest.regions, by_age)
	{
		const uint32_t *from = &vpmm_space(region)->pages[vpmm_region_slot(vpmm, region)];

		for (uint32_t i = 0; i < vpmm_region_slots(vpmm, region); i++)
			making->handles[making->old_handles++] = from[i] - 1;
	}
	options.timeout_ms = making->timeout_ms;
	if (making->slack)
		options.flags |= LEASE_FREE;
	return fresh ? vm_take(vpmm->pool, fresh, &options, making->handles + making->old_handles) : 0;
}

/* Convert the error of a driver call, which may be any code. */
static int driver_error(int error)
{
	switch (error) {
	case 0:
	case -EINVAL:
	case -ENOMEM:
	case -EBUSY:
	case -ECHILD: return error;
	default: return -EIO;
	}
}

/*
 * Collect the fences for which the work of this call must wait, one for each slot. For UNFENCED regions a fence is
 * recorded, because they become pending unmaps.
 */
static int fences_gather(struct vpmm_call *call, struct making *making, uint64_t *until)
{
	struct vm_region *region;

	TAILQ_FOREACH(region, &making->harvest.regions, by_age)
	{
		uint32_t slot = region->slot;
		uint64_t fence = region->fence;

		if (region->ready == VM_UNFENCED) {
			struct gpool_fence record = {0};
			int error = making->recorded[slot]
				? 0
				: gpool_fence_record(call->vpmm->pool, region->stream, &record);

			/* -EINVAL for another slot: its stream was closed, so its work is done. */
			if (error && (error != -EINVAL || slot == call->slot))
				return driver_error(error);
			if (record.value)
				making->recorded[slot] = record.value;
			fence = making->recorded[slot];
		}
		if (slot != call->slot && fence > until[slot])
			until[slot] = fence;
	}
	return 0;
}

static int wait_for(struct vpmm_call *call, uint64_t value)
{
	struct gpool *pool = call->vpmm->pool;
	struct gpool_fence fence = {value};
	bool can = stream_can_wait(pool, call->stream);
	int error;

	vpmm_trace(call, "2: %s waits for slot %u", can ? "stream" : "caller", fence_slot(value));
	error = can ? gpool_stream_wait(pool, call->stream, fence) : -EBUSY;
	/* A stream from which a graph is being captured cannot wait for other streams. */
	if (error != -EBUSY)
		return driver_error(error);
	error = gpool_fence_wait(pool, fence, call->vpmm->options.timeout_ms);
	return error == -ETIMEDOUT ? -ENOSPC : driver_error(error);
}

static int waits_queue(struct vpmm_call *call, struct making *making)
{
	uint64_t until[VM_SLOTS] = {0};
	int error = fences_gather(call, making, until);

	for (uint32_t slot = 1; slot < SESSION_TIMELINES && !error; slot++)
		if (!fence_signaled(&call->vpmm->pool->session, until[slot])) {
			error = wait_for(call, until[slot]);
			making->waits++;
		}
	return error;
}

/* Return true if a slot of a hole is still mapped, because it could not be unmapped when its map was undone. */
static bool is_mapped(const struct vpmm *vpmm, const struct vm_region *hole)
{
	const uint32_t *pages = &vpmm_space(hole)->pages[vpmm_region_slot(vpmm, hole)];

	for (uint32_t i = 0; i < vpmm_region_slots(vpmm, hole); i++)
		if (pages[i])
			return true;
	return false;
}

static int holes_map(struct vpmm *vpmm, const struct making *making)
{
	const struct vm_region *part;
	uint32_t done = 0;
	int error = 0;

	TAILQ_FOREACH(part, &making->parts, by_age)
	{
		if (part->kind == VM_FREE)
			continue;
		error = vm_map(vpmm_space(part), vpmm_region_slot(vpmm, part), making->handles + done,
			vpmm_region_slots(vpmm, part));
		if (error)
			break;
		done += vpmm_region_slots(vpmm, part);
	}
	return error;
}

static void holes_unmap(struct vpmm *vpmm, const struct making *making)
{
	const struct vm_region *part;

	TAILQ_FOREACH(part, &making->parts, by_age)
	if (part->kind == VM_HOLE && is_mapped(vpmm, part))
		vm_unmap(vpmm_space(part), vpmm_region_slot(vpmm, part), vpmm_region_slots(vpmm, part));
}

/* Map the place, without the lock. If this fails, the holes are unmapped, except those whose unmap fails too. */
static int make(struct vpmm_call *call, struct making *making)
{
	struct vpmm *vpmm = call->vpmm;
	int error = handles_gather(call, making);

	if (error)
		return error;
	error = holes_map(vpmm, making);
	/* Queue the waits last, because they cannot be cancelled. */
	if (!error)
		error = waits_queue(call, making);
	if (!error)
		return 0;
	holes_unmap(vpmm, making);
	vm_put(vpmm->pool, making->handles + making->old_handles, making->fresh * vpmm->page_slots);
	return error;
}

/*
 * Make the harvested regions pending unmaps. The guard of the new place is the unfinished work of its own stream and
 * the work for which it waits. A fence after this work is recorded when it is needed.
 */
static void harvest_bury(struct vpmm *vpmm, const struct vpmm_call *call, struct making *making)
{
	struct vm_region *region;

	TAILQ_FOREACH(region, &making->harvest.regions, by_age)
	if (region->ready != VM_READY && call->slot != VM_NONE) {
		making->place->ready = VM_UNFENCED;
		making->place->fence = 0;
	}
	while ((region = TAILQ_FIRST(&making->harvest.regions))) {
		TAILQ_REMOVE(&making->harvest.regions, region, by_age);
		region_put_pending_unmap(&vpmm->set, region,
			region->ready == VM_UNFENCED ? making->recorded[region->slot] : region->fence);
	}
}

/* Restore the state before place_make(). */
static void making_undo(struct vpmm *vpmm, struct making *making)
{
	struct vm_region *part;

	region_harvest_undo(&vpmm->set, &making->harvest);
	while ((part = TAILQ_FIRST(&making->parts))) {
		TAILQ_REMOVE(&making->parts, part, by_age);
		if (part->kind == VM_HOLE && is_mapped(vpmm, part))
			region_put_pending_unmap(&vpmm->set, part, 0);
		else
			region_put(&vpmm->set, part);
	}
}

/*
 * Map the holes of a place with `harvest` harvested pages, and new pages from the agent for the rest. Lock held;
 * released temporarily.
 */
static int place_make(struct vpmm_call *call, struct making *making, uint32_t harvest)
{
	struct vpmm *vpmm = call->vpmm;
	struct vm_region *region;
	int error;

	region_harvest(&vpmm->set, call->slot, harvest, &making->harvest);
	making->fresh = call->count - making->mapped - harvest;
	TAILQ_FOREACH(region, &making->harvest.regions, by_age)
	{
		GPOOL_INVARIANT(
			!region->offered, "maps the region at page %u, whose handles are released", region->first);
		region->stream = is_stream_slot(region->slot) ? vpmm->numbers[region->slot] : 0;
		region_show(&vpmm->set, region);
		vpmm_trace(call, "2: harvest %u page%s of slot %u, id %llu", region->count, plural(region->count),
			region->slot, (unsigned long long)region->id);
	}
	if (making->mapped)
		vpmm_trace(call, "2: %u page%s %s mapped there", making->mapped, plural(making->mapped),
			be(making->mapped));
	if (making->fresh)
		vpmm_trace(call, "2: %u page%s to ask the agent for, %u of them instead of free ones", making->fresh,
			plural(making->fresh), making->slack);
	vpmm_unlock(vpmm);
	error = make(call, making);
	free(making->handles);
	vpmm_lock(vpmm);
	if (error) {
		making_undo(vpmm, making);
		return error;
	}
	making->place = region_unite(&vpmm->set, &making->parts, call->slot);
	harvest_bury(vpmm, call, making);
	making->place->held = true;
	vpmm->counters.taken_bytes += making->fresh * vpmm->page_bytes;
	vpmm->counters.slack_taken_bytes += making->slack * vpmm->page_bytes;
	vpmm->counters.remapped_bytes += harvest * vpmm->page_bytes;
	vpmm->counters.remaps += harvest != 0;
	vpmm->counters.waits += making->waits;
	vpmm_trace(call, "2: mapped %u page%s at %#llx", call->count, plural(call->count),
		(unsigned long long)region_address(&vpmm->set, making->place));
	return 0;
}

int vpmm_fill(struct vpmm_call *call, int32_t timeout_ms, struct vm_region **place)
{
	struct making making = {.timeout_ms = timeout_ms};
	int error = hole_ensure(call);

	if (error)
		return error;
	TAILQ_INIT(&making.parts);
	hole_take(call, &making);
	error = place_make(call, &making, 0);
	if (!error)
		*place = making.place;
	return error;
}

/*
 * Take the place: a window whose pages are mapped in part, or a hole if all pages may be new or no window exists. Lock
 * held; released temporarily. From the return to the harvest, nothing may release the lock.
 */
static int place_take(struct vpmm_call *call, bool all_new, struct making *making)
{
	struct region_set *set = &call->vpmm->set;
	struct region_window window;
	int error;

	TAILQ_INIT(&making->parts);
	/* While the lock is released, another thread may take the hole. */
	do {
		error = hole_ensure(call);
		/* The free pages will be mapped elsewhere or allocated, so their handles must be held. */
		if (!error && !all_new)
			error = vpmm_hold(call, NULL, false);
		if (!error)
			error = region_spare(set, 3);
	} while (!error && !region_best_hole(set, call->count));
	if (error)
		return error;
	if (!all_new && region_window(set, call->slot, call->count, &window)) {
		region_window_take(set, &window, call->count, &making->parts);
		making->mapped = window.mapped;
	} else {
		hole_take(call, making);
	}
	return 0;
}

/*
 * Map a place with up to *slack new pages, then with free pages, and with new pages for the rest. *slack receives the
 * number of new pages that are used instead of free ones. unfinished: also harvest pages whose work is unfinished.
 */
static int place_harvest(struct vpmm_call *call, bool unfinished, uint32_t *slack, struct vm_region **place)
{
	struct region_set *set = &call->vpmm->set;
	struct making making = {.timeout_ms = 0};
	int error = place_take(call, *slack == call->count, &making);
	uint32_t missing = call->count - making.mapped, least;
	uint64_t there;

	if (error)
		return error;
	there = unfinished ? set->available - set->reclaimable : region_at_once(set, call->slot);
	least = there < missing ? missing - (uint32_t)there : 0;
	if (*slack > missing)
		*slack = missing;
	making.slack = *slack = *slack > least ? *slack - least : 0;
	error = place_make(call, &making, missing - least - making.slack);
	if (!error)
		*place = making.place;
	return error;
}

int vpmm_place(struct vpmm_call *call, struct vm_region **place)
{
	struct vpmm *vpmm = call->vpmm;
	/*
	 * Avoid waits between streams: use new pages first, unless pages are short in the pool and the GPU can wait by
	 * itself.
	 */
	bool wait = stream_can_wait(vpmm->pool, call->stream) && pool_is_short(vpmm->pool);
	uint32_t slack = vpmm_slack(vpmm, call->count), none = 0;
	int error = place_harvest(call, wait, &slack, place);

	/* If pages that are not necessary cannot be taken, for whatever reason, use free ones. */
	if (error && slack) {
		vpmm_slack_refused(vpmm);
		error = place_harvest(call, wait, &none, place);
	}
	if (!wait && (error == -ENOSPC || error == -EDQUOT))
		error = place_harvest(call, true, &none, place);
	/* Unfinished pages cannot be mapped elsewhere while no fence can be recorded in their stream. */
	if (error == -EBUSY)
		error = vpmm_fill(call, 0, place);
	if (error != -ENOSPC || !vpmm->options.timeout_ms)
		return error;
	/* A call that waits for pages must not keep pages that other sessions could use. */
	vpmm_fences_record(vpmm, VM_SLOTS);
	region_sweep(&vpmm->set);
	vpmm_park(vpmm, 0);
	vpmm_offer(vpmm);
	vpmm_trace(call, "2: waits for pages");
	return vpmm_fill(call, vpmm->options.timeout_ms, place);
}
