/*
 * vpmm_idle.c - free pages that the process returns. See vpmm.h.
 *
 * A region becomes reclaimable when its GPU work is done and the process does not need it now. Its pages are then idle,
 * so that the agent may take them without a request, but they stay mapped. The next use adopts the pages that the agent
 * has not taken, without a driver call. The other pages become a pending unmap, then a hole. Regions become reclaimable
 *
 * - when pages are short: at a malloc or free, at most once per step of the pool's clock; and before a call waits for
 *   pages
 * - when the pressure rises, in the background: what exceeds the peak of allocated pages (vpmm_slack.c)
 * - when no call was made for idle_ms: in the background, which also unmaps pending unmaps
 * - in gpool_trim_to()
 */
#include "client/vm/vpmm.h"
#include "client/core/last_error.h"
#include "client/core/window.h"
#include "shm/invariant.h"
#include "shm/plural.h"

#include <stdlib.h>
#include <string.h>

enum {
	TICK_MS = 250, /* chosen: recorded calls are written soon, and four runs per second are cheap */
	/*
	 * free regions are offered this time after the last call; chosen: longer than the time between an allocation
	 * and its free in an engine's step
	 */
	OFFER_MS = 5,
	OFFER_TICKS = 10, /* during calls, free regions are offered every OFFER_TICKS runs: 50 ms */
	/* chosen: longer than an engine's step, and too short for an operator to notice */
	IDLE_MS_DEFAULT = 1000,
};

/* ---- park ---- */

uint64_t vpmm_park(struct vpmm *vpmm, uint64_t keep_pages)
{
	struct region_list parking = TAILQ_HEAD_INITIALIZER(parking);
	struct region_set *set = &vpmm->set;
	struct vpmm_call call = {.vpmm = vpmm};
	struct vm_region *region;
	uint64_t pages = 0;

	if (vpmm_hold(&call, NULL, true))
		return 0;
	while (set->available - set->reclaimable > keep_pages && !region_spare(set, 1)) {
		region = region_idle(set, set->available - set->reclaimable - keep_pages);
		if (!region)
			break;
		GPOOL_INVARIANT(
			!region->offered, "parks the region at page %u, whose handles are released", region->first);
		region->held = false;
		TAILQ_INSERT_TAIL(&parking, region, by_age);
		region_show(set, region);
		pages += region->count;
	}
	if (TAILQ_EMPTY(&parking))
		return 0;
	vpmm_unlock(vpmm);
	TAILQ_FOREACH(region, &parking, by_age)
	vm_park(vpmm_space(region), vpmm_region_slot(vpmm, region), vpmm_region_slots(vpmm, region));
	vpmm_lock(vpmm);
	while ((region = TAILQ_FIRST(&parking))) {
		TAILQ_REMOVE(&parking, region, by_age);
		region_put_free(set, region, VM_RECLAIMABLE, 0);
	}
	return pages;
}

void vpmm_pressed(struct vpmm *vpmm)
{
	uint32_t now = pool_clock(vpmm->pool);

	if (vpmm->pressed_ms == now)
		return;
	vpmm->pressed_ms = now;
	vpmm_fences_record(vpmm, VM_SLOTS);
	region_sweep(&vpmm->set);
	vpmm_park(vpmm, 0);
	vpmm->parks++;
}

int64_t gpool_trim_to(struct gpool *pool, uint64_t keep_bytes)
{
	struct vpmm *vpmm;
	uint64_t pages;

	if (!pool->alive)
		return -ECHILD;
	if (pool->session_kind)
		return fail_kind(pool);
	vpmm = pool->vpmm;
	if (!atomic_load_explicit(&vpmm->started, memory_order_acquire))
		return 0;
	vpmm_small_return(vpmm, true);
	vpmm_lock(vpmm);
	vpmm_fences_record(vpmm, VM_SLOTS);
	region_sweep(&vpmm->set);
	pages = vpmm_park(vpmm, keep_bytes / vpmm->page_bytes + (keep_bytes % vpmm->page_bytes != 0));
	vpmm->parks++;
	vpmm_unlock(vpmm);
	return (int64_t)(pages * vpmm->page_bytes);
}

/* ---- adopt ---- */

/*
 * Split a moving region into runs of lost and of kept pages, and insert the runs into the sets: lost ones as pending
 * unmaps, the others as free regions. The caller has provided memory for one region for each split (`region_spare()`).
 */
static void pieces_put(struct vpmm *vpmm, struct vm_region *region, const bool *lost, uint32_t slot, uint64_t fence)
{
	uint32_t done = 0, total = region->count;

	while (done < total) {
		struct vm_region *piece = region;
		uint32_t run = 1;

		while (done + run < total && lost[done + run] == lost[done])
			run++;
		if (run < total - done)
			piece = region_split(&vpmm->set, region, run);
		if (lost[done])
			region_put_pending_unmap(&vpmm->set, piece, 0);
		else
			region_put_free(&vpmm->set, piece, slot, fence);
		done += run;
	}
}

static uint32_t runs_count(const bool *lost, uint32_t count)
{
	uint32_t runs = 1;

	for (uint32_t i = 1; i < count; i++)
		runs += lost[i] != lost[i - 1];
	return runs;
}

/* Make the handles that were adopted on lost pages idle again. */
static void adopted_put(
	struct vpmm *vpmm, const struct vm_region *region, const bool *lost, const uint32_t *gone, uint32_t gone_count)
{
	const struct vm_space *space = vpmm_space(region);
	uint32_t first = vpmm_region_slot(vpmm, region), next = 0;

	for (uint32_t slot = first; slot < first + vpmm_region_slots(vpmm, region); slot++) {
		uint32_t page = space->pages[slot] - 1;

		if (next < gone_count && gone[next] == slot)
			next++;
		else if (lost[(slot - first) / vpmm->page_slots])
			vm_put(vpmm->pool, &page, 1);
	}
}

/* Adopt the handles of a region, without the lock, and mark its lost pages. Return the number of lost slots. */
static uint32_t region_adopt(struct vpmm *vpmm, const struct vm_region *region, bool *lost, uint32_t *gone)
{
	uint32_t first = vpmm_region_slot(vpmm, region), count;

	if (region->slot == VM_RECLAIMABLE)
		count = vm_adopt_run(vpmm_space(region), first, vpmm_region_slots(vpmm, region), &vpmm->take, gone);
	else
		count = vpmm_claim(vpmm, region, gone);

	memset(lost, 0, region->count * sizeof(*lost));
	for (uint32_t i = 0; i < count; i++)
		lost[(gone[i] - first) / vpmm->page_slots] = true;
	if (count && vpmm->page_slots > 1)
		adopted_put(vpmm, region, lost, gone, count);
	return count;
}

int vpmm_adopt(struct vpmm_call *call, struct vm_region *region)
{
	struct vpmm *vpmm = call->vpmm;
	uint32_t count = region->count, gone_count = 0, *gone;
	bool *lost, reclaimable = region->slot == VM_RECLAIMABLE;
	int error = 0;

	region_show(&vpmm->set, region);
	vpmm_unlock(vpmm);
	gone = malloc((size_t)vpmm_region_slots(vpmm, region) * sizeof(*gone));
	lost = calloc(count, sizeof(*lost));
	if (gone && lost)
		gone_count = region_adopt(vpmm, region, lost, gone);
	vpmm_lock(vpmm);
	if (!gone || !lost) {
		region_put(&vpmm->set, region);
		error = -ENOMEM;
	} else if (gone_count) {
		vpmm_trace(call, "1: of %u %s pages %u handle%s %s gone", count,
			reclaimable ? "reclaimable" : "offered", gone_count, plural(gone_count), be(gone_count));
		error = -EAGAIN;
		if (region_spare(&vpmm->set, runs_count(lost, count))) {
			for (uint32_t i = 0; i < count; i++)
				lost[i] = !lost[i];
			vpmm_unlock(vpmm);
			adopted_put(vpmm, region, lost, gone, gone_count);
			vpmm_lock(vpmm);
			region_put_pending_unmap(&vpmm->set, region, 0);
			error = -ENOMEM;
		} else {
			region->held = true;
			region->offered = false;
			/* The agent has taken a part of the region, so the guard's work is done. */
			reclaimable |= region->guarded;
			region->guarded = false;
			pieces_put(vpmm, region, lost, reclaimable ? VM_NONE : region->slot,
				reclaimable ? 0 : region->fence);
		}
	} else {
		region->held = true;
		region->offered = false;
	}
	free(lost);
	free(gone);
	return error;
}

/*
 * Unmap the slots of a moving reclaimable region that another trust domain needs, and mark their pages as lost. Without
 * the lock. Return false if that failed.
 */
static bool region_let_go(struct vpmm *vpmm, const struct vm_region *region, bool *lost)
{
	struct vm_space *space = vpmm_space(region);
	uint32_t first = vpmm_region_slot(vpmm, region), slots = vpmm_region_slots(vpmm, region);
	bool all = vm_let_go(space, first, slots);

	for (uint32_t slot = first; slot < first + slots; slot++)
		if (!space->pages[slot])
			lost[(slot - first) / vpmm->page_slots] = true;
	return all;
}

bool vpmm_let_go(struct vm_space *space)
{
	struct region_list reclaimable = TAILQ_HEAD_INITIALIZER(reclaimable);
	struct vpmm *vpmm = space->owner;
	const struct vpmm_chunk *chunk = (struct vpmm_chunk *)((char *)space - offsetof(struct vpmm_chunk, space));
	struct vm_region *region;
	struct vpmm_call call = {.vpmm = vpmm};
	bool all;

	if (!vpmm_trylock(vpmm))
		return false;
	/* If offered handles are needed elsewhere, the agent has taken them. */
	all = vpmm_hold(&call, &chunk->regions, false) == 0;
	vpmm_pending_unmaps_end(&call);
	while ((region = region_reclaimable(&vpmm->set, &chunk->regions, UINT64_MAX))) {
		TAILQ_INSERT_TAIL(&reclaimable, region, by_age);
		region_show(&vpmm->set, region);
	}
	while ((region = TAILQ_FIRST(&reclaimable))) {
		bool *lost = calloc(region->count, sizeof(*lost));

		TAILQ_REMOVE(&reclaimable, region, by_age);
		vpmm_unlock(vpmm);
		all &= lost && region_let_go(vpmm, region, lost);
		vpmm_lock(vpmm);
		if (!lost)
			region_put_free(&vpmm->set, region, VM_RECLAIMABLE, 0);
		else if (region_spare(&vpmm->set, runs_count(lost, region->count)))
			region_put_pending_unmap(&vpmm->set, region, 0);
		else
			pieces_put(vpmm, region, lost, VM_RECLAIMABLE, 0);
		free(lost);
	}
	vpmm_offer(vpmm);
	vpmm->parks++;
	vpmm_unlock(vpmm);
	return all;
}

/* ---- in the background ---- */

/* Return true if a later run could find work even if no call is made until then. Lock held. */
static bool is_unsettled(const struct vpmm *vpmm)
{
	const struct region_set *set = &vpmm->set;

	return vpmm->touched || set->counts[VM_PENDING_UNMAP] || set->available != set->reclaimable ||
		vpmm_small_waits(vpmm);
}

/* Return what the process does not use. Lock held; released temporarily. */
static void settle(struct vpmm *vpmm)
{
	struct vpmm_call call = {.vpmm = vpmm};

	vpmm_unlock(vpmm);
	vpmm_small_return(vpmm, true);
	vpmm_lock(vpmm);
	vpmm_fences_record(vpmm, VM_SLOTS);
	vpmm_pending_unmaps_end(&call);
	vpmm_park(vpmm, 0);
	/* Later slack is relative to what the process uses from now on. */
	vpmm->live_peak = vpmm->set.pages[VM_ALLOCATED];
}

/* Offer free regions soon after the last call, and at intervals during calls. Lock held; released temporarily. */
static void offer_look(struct vpmm *vpmm)
{
	if (vpmm->touched && ++vpmm->busy_ticks < OFFER_TICKS)
		return;
	vpmm->busy_ticks = 0;
	if (!vpmm->touched) {
		vpmm_unlock(vpmm);
		vpmm_small_return(vpmm, true);
		vpmm_lock(vpmm);
	}
	vpmm_fences_record(vpmm, VM_SLOTS);
	region_sweep(&vpmm->set);
	vpmm_offer(vpmm);
}

static void idle_look(struct background_task *task)
{
	struct vpmm *vpmm = (struct vpmm *)((char *)task - offsetof(struct vpmm, task));
	uint64_t now = monotonic_ns();

	vpmm_lock(vpmm);
	vpmm->calm = !vpmm->touched;
	if (vpmm->touched)
		vpmm->quiet_ns = now;
	if (vpmm->record && now - vpmm->flushed_ns >= TICK_MS * UINT64_C(1000000)) {
		vpmm->flushed_ns = now;
		vpmm_unlock(vpmm);
		vpmm_record_flush(vpmm->record);
		vpmm_lock(vpmm);
	}
	if (pool_is_short(vpmm->pool) ||
		(vpmm->idle_ms != UINT32_MAX && now - vpmm->quiet_ns >= vpmm->idle_ms * UINT64_C(1000000)))
		settle(vpmm);
	vpmm_slack_shrink(vpmm);
	offer_look(vpmm);
	/*
	 * Set `asleep` before the check. If a small allocation is freed in the meantime, either the check finds it, or
	 * the thread that freed it sees `asleep` and wakes the task.
	 */
	atomic_store(&vpmm->asleep, true);
	if (vpmm->touched || is_unsettled(vpmm))
		atomic_store_explicit(&vpmm->asleep, false, memory_order_relaxed);
	/*
	 * While no call is made, check the progress of the GPU, for example for small allocations, at increasing
	 * intervals.
	 */
	vpmm->wait_ms = !vpmm->calm ? OFFER_MS : vpmm->wait_ms < TICK_MS / 2 ? vpmm->wait_ms * 2 : TICK_MS;
	task->period_ms = atomic_load_explicit(&vpmm->asleep, memory_order_relaxed) ? 0 : vpmm->wait_ms;
	vpmm->touched = false;
	/* Parking, offering and returning small allocations all take regions out of the sets for a while. */
	vpmm->parks++;
	vpmm_unlock(vpmm);
}

int vpmm_idle_open(struct vpmm *vpmm)
{
	int error;

	vpmm->idle_ms = IDLE_MS_DEFAULT;
	if (vpmm->options.idle_ms)
		vpmm->idle_ms = vpmm->options.idle_ms < 0 ? UINT32_MAX : (uint32_t)vpmm->options.idle_ms;
	vpmm->touched = true;
	vpmm->wait_ms = OFFER_MS;
	vpmm->quiet_ns = monotonic_ns();
	vpmm->task = (struct background_task){.run = idle_look, .period_ms = OFFER_MS};
	error = background_add(vpmm->pool, &vpmm->task);
	if (error)
		pool_log(vpmm->pool, POOL_LOG_ERROR, "cannot start a thread: %s", strerror(-error));
	return error ? -ENOMEM : 0;
}

void vpmm_idle_close(struct vpmm *vpmm)
{
	background_remove(vpmm->pool, &vpmm->task);
}
