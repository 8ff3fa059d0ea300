/*
 * elastic_commit.c - provide handles for slots of elastic ranges. See elastic.h.
 *
 *   1 Under the lock: take back offered, released and reclaimable handles, unless the agent has taken them. Offered
 *     slots become HELD. HELD slots get one more use. Released and reclaimable slots become TAKEN. Slots without a
 *     handle become MOVING.
 *   2 Without the lock: get handles from the agent in one request, and map them run by run.
 *   3 Under the lock: the TAKEN and MOVING slots become HELD, or released if they are read ahead. After a failure, they
 *     become reclaimable, released or holes; mappings that were made before the failure remain.
 *
 * Two calls that wait for pages, while each holds pages that the other needs, would deadlock. A call that has to wait
 * therefore returns its handles and waits for handles for all of its slots, which the agent grants in one step. It then
 * starts again, and takes back those handles that are still reclaimable.
 */
#include "client/core/last_error.h"
#include "client/vm/elastic.h"
#include "shm/plural.h"

#include <stdlib.h>

enum { ADOPT_RUN = 64 }; /* maximum number of reclaimable slots that are checked together */

struct backing {
	struct elastic *elastic;
	const struct elastic_pages *pages;
	struct vm_take_options options;
	bool ahead;
	uint32_t taken;    /* slots that were not held, and whose handles the agent had not taken */
	uint32_t missing;  /* slots without a handle */
	uint32_t *slots;   /* [missing], ascending */
	uint32_t *handles; /* the handles that were waited for, otherwise [missing] */
	uint32_t waited;   /* number of handles that were waited for */
};

/* Iterate over all slots of the pages, in order. A slot that two pieces share occurs twice. */
#define FOR_SLOTS(backing, slot) \
	for (uint32_t piece_ = 0; piece_ < (backing)->pages->times; piece_++) \
		for (uint32_t first_ = (backing)->pages->first + piece_ * (backing)->pages->stride, \
			      slot = elastic_slot_of((backing)->elastic, first_), \
			      end_ = elastic_slot_of((backing)->elastic, first_ + (backing)->pages->count - 1) + 1; \
			slot < end_; slot++)

/* ---- step 1, under the lock ---- */

static bool is_free(const struct backing *backing)
{
	FOR_SLOTS(backing, slot)
	{
		uint32_t state = backing->elastic->slots[slot].state;

		if (state == ELASTIC_MOVING || state == ELASTIC_TAKEN || state == ELASTIC_SHARED) {
			fail(-EBUSY, "page %u is %s", slot * handle_pages(backing->elastic->space.pool),
				state == ELASTIC_SHARED ? "mapped to a named object" : "in use by another call");
			return false;
		}
	}
	return true;
}

static void miss(struct backing *backing, uint32_t slot)
{
	elastic_set(backing->elastic, slot, ELASTIC_MOVING);
	backing->missing++;
}

/*
 * Adopt the handles of a run of reclaimable slots. A slot whose handle the agent has taken becomes MOVING and counts as
 * missing. Return the length of the run.
 */
static uint32_t reclaimable_adopt(struct backing *backing, uint32_t slot, uint32_t end)
{
	struct elastic *elastic = backing->elastic;
	uint32_t gone[ADOPT_RUN], count = 0, lost, next = 0;

	while (slot + count < end && count < ADOPT_RUN && elastic->slots[slot + count].state == ELASTIC_RECLAIMABLE)
		count++;
	lost = vm_adopt_run(&elastic->space, slot, count, &backing->options, gone);
	for (uint32_t i = slot; i < slot + count; i++) {
		if (next < lost && gone[next] == i) {
			miss(backing, i);
			next++;
		} else {
			elastic_set(elastic, i, ELASTIC_TAKEN);
			backing->taken++;
		}
	}
	return count;
}

static void released_claim(struct backing *backing, uint32_t slot)
{
	struct elastic *elastic = backing->elastic;

	if (!handle_claim(
		    elastic->space.pool, elastic->space.pages[slot] - 1, elastic->slots[slot].tag, &backing->options)) {
		miss(backing, slot);
		return;
	}
	elastic_set(elastic, slot, ELASTIC_TAKEN);
	backing->taken++;
}

static void piece_take(struct backing *backing, uint32_t slot, uint32_t end)
{
	while (slot < end) {
		switch (backing->elastic->slots[slot].state) {
		case ELASTIC_RECLAIMABLE: slot += reclaimable_adopt(backing, slot, end); continue;
		case ELASTIC_RELEASED: released_claim(backing, slot); break;
		case ELASTIC_OFFERED: elastic_hold_offered(backing->elastic, slot); continue;
		case ELASTIC_HOLE: miss(backing, slot); break;
		case ELASTIC_HELD:
			/* Add a use, since the other use of the slot may end during this call. */
			backing->elastic->slots[slot].uses++;
			break;
		default: /* the slot belongs to an earlier piece too */ break;
		}
		slot++;
	}
}

static void slots_take(struct backing *backing)
{
	backing->taken = backing->missing = 0;
	for (uint32_t i = 0; i < backing->pages->times; i++) {
		uint32_t first = backing->pages->first + i * backing->pages->stride,
			 last = first + backing->pages->count - 1;

		piece_take(
			backing, elastic_slot_of(backing->elastic, first), elastic_slot_of(backing->elastic, last) + 1);
	}
}

/* ---- step 3, under the lock ---- */

static void pages_commit(struct backing *backing)
{
	struct elastic *elastic = backing->elastic;

	for (uint32_t i = 0; i < backing->pages->times; i++) {
		uint32_t first = backing->pages->first + i * backing->pages->stride;

		for (uint32_t page = first; page < first + backing->pages->count; page++) {
			if (elastic_bit(elastic->committed, page))
				continue;
			elastic->committed[page / 64] |= UINT64_C(1) << (page % 64);
			elastic->committed_pages++;
			elastic->slots[elastic_slot_of(elastic, page)].uses++;
		}
	}
}

/* Drop the uses that piece_take() added to held slots. */
static void uses_drop(struct backing *backing)
{
	struct elastic *elastic = backing->elastic;

	FOR_SLOTS(backing, slot)
	if (elastic->slots[slot].state == ELASTIC_HELD && !--elastic->slots[slot].uses)
		elastic_drop(elastic, slot);
}

static void slots_hold(struct backing *backing)
{
	struct elastic *elastic = backing->elastic;

	if (!backing->ahead)
		pages_commit(backing);
	uses_drop(backing);
	for (uint32_t i = 0; i < backing->missing; i++)
		elastic_set(elastic, backing->slots[i], ELASTIC_TAKEN);
	FOR_SLOTS(backing, slot)
	{
		struct elastic_slot *at = &elastic->slots[slot];

		if (at->state != ELASTIC_TAKEN)
			continue;
		elastic_set(elastic, slot, backing->ahead ? ELASTIC_RELEASED : ELASTIC_HELD);
		if (backing->ahead)
			at->tag = handle_release(elastic->space.pool, elastic->space.pages[slot] - 1);
	}
}

/* Undo step 1. The handles that vm_take() provided are already idle. */
static void slots_give_back(struct backing *backing)
{
	struct elastic *elastic = backing->elastic;

	uses_drop(backing);
	FOR_SLOTS(backing, slot)
	{
		if (elastic->slots[slot].state == ELASTIC_TAKEN)
			elastic_drop(elastic, slot);
		else if (elastic->slots[slot].state == ELASTIC_MOVING)
			elastic_set(elastic, slot, elastic->space.pages[slot] ? ELASTIC_RECLAIMABLE : ELASTIC_HOLE);
	}
}

/* ---- step 2, without the lock ---- */

static int missing_list(struct backing *backing)
{
	uint32_t count = 0;

	free(backing->slots);
	backing->slots = malloc(backing->missing * sizeof(*backing->slots));
	if (!backing->slots)
		return -ENOMEM;
	/* MOVING slots belong to this thread, so they can be read without the lock. */
	FOR_SLOTS(backing, slot)
	if (backing->elastic->slots[slot].state == ELASTIC_MOVING && (!count || backing->slots[count - 1] != slot))
		backing->slots[count++] = slot;
	return 0;
}

static int missing_map(struct backing *backing)
{
	uint32_t first, end = 0;
	int error = 0;

	while (end < backing->missing && !error) {
		first = end;
		do
			end++;
		while (end < backing->missing && backing->slots[end] == backing->slots[end - 1] + 1);
		error = vm_map(&backing->elastic->space, backing->slots[first], backing->handles + first, end - first);
	}
	return error;
}

/* Fill the pages that replace others with zeros, if the range asks for that: 0, -EIO. */
static int missing_zero(struct backing *backing)
{
	struct elastic *elastic = backing->elastic;
	struct gpu *gpu = elastic->space.pool->gpu;
	int error = 0;

	if (!elastic->zeroing)
		return 0;
	for (uint32_t i = 0; i < backing->missing && !error; i++)
		error = gpu_fill(gpu, vm_address(&elastic->space, backing->slots[i]), 0, elastic->space.slot_bytes,
			elastic->zeroing);
	if (!error)
		error = gpu_stream_sync(gpu, elastic->zeroing);
	if (error)
		return fail(-EIO, "%u page%s cannot be filled with zeros: %s", backing->missing,
			plural(backing->missing), gpu_error_text());
	return 0;
}

static int missing_take(struct backing *backing)
{
	/* Fail if more handles are missing now than were waited for. */
	if (backing->waited)
		return backing->missing <= backing->waited
			? 0
			: fail(-ENOSPC, "%u handle%s %s needed, %u were free: others were taken during the wait",
				  backing->missing, plural(backing->missing), be(backing->missing), backing->waited);
	backing->handles = malloc(backing->missing * sizeof(*backing->handles));
	if (!backing->handles)
		return -ENOMEM;
	return vm_take(backing->elastic->space.pool, backing->missing, &backing->options, backing->handles);
}

static int missing_bring(struct backing *backing)
{
	int error = missing_list(backing);

	if (!error)
		error = missing_take(backing);
	if (error)
		return error;
	error = missing_map(backing);
	if (!error)
		error = missing_zero(backing);
	if (error && !backing->waited)
		vm_put(backing->elastic->space.pool, backing->handles, backing->missing);
	return error;
}

/* ---- one attempt, and waiting ---- */

static int back_once(struct backing *backing)
{
	struct elastic *elastic = backing->elastic;
	int error = 0;

	pthread_mutex_lock(&elastic->lock);
	if (!is_free(backing)) {
		elastic_unlock(elastic);
		return -EBUSY;
	}
	slots_take(backing);
	if (backing->missing) {
		elastic_unlock(elastic);
		error = missing_bring(backing);
		pthread_mutex_lock(&elastic->lock);
	}
	if (error)
		slots_give_back(backing);
	else
		slots_hold(backing);
	elastic_unlock(elastic);
	return error;
}

/* Wait for as many handles as the last attempt needed, and repeat the attempt with them. Unused handles become idle. */
static int back_waiting(struct backing *backing, int32_t timeout_ms)
{
	const struct vm_take_options options = {.timeout_ms = timeout_ms};
	struct gpool *pool = backing->elastic->space.pool;
	uint32_t waited = backing->missing + backing->taken, used;
	int error;

	free(backing->handles);
	backing->handles = malloc(waited * sizeof(*backing->handles));
	if (!backing->handles)
		return -ENOMEM;
	error = vm_take(pool, waited, &options, backing->handles);
	if (error)
		return error;
	backing->waited = waited;
	error = back_once(backing);
	backing->waited = 0;
	used = error ? 0 : backing->missing;
	vm_put(pool, backing->handles + used, waited - used);
	return error;
}

static int back_in_time(struct backing *backing, int32_t timeout_ms)
{
	uint64_t limit = timeout_ms < 0 ? UINT64_MAX : monotonic_ns() + (uint64_t)timeout_ms * 1000000, now;
	int error = back_once(backing);

	while (timeout_ms && (error == -ENOSPC || error == -EDQUOT)) {
		now = monotonic_ns();
		if (now >= limit)
			break;
		error = back_waiting(backing, timeout_ms < 0 ? -1 : (int32_t)((limit - now) / 1000000 + 1));
	}
	return error;
}

int64_t elastic_commit(struct elastic *elastic, const struct elastic_pages *pages, int32_t timeout_ms, bool ahead)
{
	struct backing backing = {
		.elastic = elastic, .pages = pages, .options = elastic_options(elastic), .ahead = ahead};
	int error;

	/* Reject a request that exceeds the pool before any slots are changed. */
	if ((uint64_t)pages->count * pages->times > elastic->space.pool->page_count)
		return fail(-ENOSPC, "%llu page%s %s needed; the pool has %u page%s (pools.size)",
			(unsigned long long)pages->count * pages->times, plural(pages->count * pages->times),
			be(pages->count * pages->times), elastic->space.pool->page_count,
			plural(elastic->space.pool->page_count));
	backing.options.flags = ahead ? LEASE_FREE : elastic->own_last ? LEASE_OWN_LAST : 0;
	error = back_in_time(&backing, timeout_ms);
	/* Other sessions can use the pages that were read ahead. */
	if (ahead && !error)
		pool_wake_waiters(elastic->space.pool);
	free(backing.slots);
	free(backing.handles);
	return error ? error : (int64_t)backing.missing;
}
