/*
 * inspect.c - report the state and check the invariants; see residency.h.
 */
#include "client/lora/residency/state.h"

#include <string.h>

void sums_add(struct sums *sums, const struct adapter *adapter, int sign)
{
	uint32_t one = (uint32_t)sign;
	uint64_t bytes = (uint64_t)sign * adapter->bytes;

	sums->active += is_active(adapter) ? one : 0;
	if (has_hot(adapter)) {
		sums->hot_bytes += bytes;
		sums->hot += one;
	}
	sums->resident += adapter->hot == RESIDENCY_RESIDENT ? one : 0;
	sums->loading += adapter->hot == RESIDENCY_LOADING ? one : 0;
	if (adapter->hot == RESIDENCY_LEAVING) {
		sums->leaving_bytes += bytes;
		sums->leaving += one;
	}
	if (adapter->hot == RESIDENCY_QUEUED) {
		sums->queued_bytes += bytes;
		sums->queued += one;
	}
	if (is_victim(adapter)) {
		sums->victim_bytes[adapter->expected] += bytes;
		sums->victims[adapter->expected] += one;
	}
	if (adapter->warm != RESIDENCY_NO_COPY) {
		sums->warm_bytes += (uint64_t)sign * adapter->warm_bytes;
		sums->warm += one;
	}
	sums->copies += adapter->warm == RESIDENCY_COPY ? one : 0;
}

enum residency_hot residency_hot(const struct residency *residency, uint32_t number)
{
	const struct adapter *adapter = adapter_at(residency, number);

	return adapter ? (enum residency_hot)adapter->hot : RESIDENCY_ABSENT;
}

enum residency_warm residency_warm(const struct residency *residency, uint32_t number)
{
	const struct adapter *adapter = adapter_at(residency, number);

	return adapter ? (enum residency_warm)adapter->warm : RESIDENCY_NO_COPY;
}

void residency_get_stats(const struct residency *residency, struct residency_stats *stats)
{
	const struct sums *sums = &residency->sums;

	*stats = residency->stats;
	stats->registered = residency->registered;
	stats->resident = sums->resident;
	stats->active = sums->active;
	stats->loading = sums->loading;
	stats->queued = sums->queued;
	stats->leaving = sums->leaving;
	stats->copies = sums->copies;
	stats->hot_bytes = sums->hot_bytes;
	stats->warm_bytes = sums->warm_bytes;
}

/* ---- check ---- */

struct found {
	struct sums sums;
	uint32_t registered, droppable, absent, idle, expected;
};

static void find(const struct residency *residency, struct found *found)
{
	memset(found, 0, sizeof(*found));
	for (uint32_t number = 0; number < residency->adapter_count; number++) {
		const struct adapter *adapter = &residency->adapters[number];

		if (!adapter->registered)
			continue;
		found->registered++;
		sums_add(&found->sums, adapter, 1);
		found->droppable += is_droppable(adapter);
		found->absent += adapter->hot == RESIDENCY_ABSENT;
		found->idle += may_compress(adapter);
		found->expected += adapter->expected;
	}
}

/*
 * Check that every member is at its recorded position and belongs to the heap, and that no member has a lower key than
 * its parent.
 */
static bool heap_holds(const struct residency *residency, const struct number_heap *heap,
	bool (*belongs)(const struct adapter *adapter))
{
	for (uint32_t place = 0; place < heap->count; place++) {
		uint32_t number = heap->order[place];

		if (number >= residency->adapter_count || heap->places[number] != place ||
			!belongs(&residency->adapters[number]))
			return false;
		if (place && heap->keys[heap->order[(place - 1) / 2]] > heap->keys[number])
			return false;
	}
	return true;
}

static bool is_queued(const struct adapter *adapter)
{
	return adapter->hot == RESIDENCY_QUEUED;
}

static bool is_absent(const struct adapter *adapter)
{
	return adapter->hot == RESIDENCY_ABSENT;
}

static bool is_expected(const struct adapter *adapter)
{
	return adapter->expected;
}

/* Return true if the first queued adapter could be served, but is not. */
static bool queue_sleeps(const struct residency *residency)
{
	const struct sums *sums = &residency->sums;
	const struct adapter *first;

	if (!residency->queued.count)
		return false;
	first = &residency->adapters[number_heap_lowest(&residency->queued)];
	return first->bytes <= residency->limits.hot_bytes - sums->hot_bytes && sums->hot < residency->limits.hot_count;
}

const char *residency_check(const struct residency *residency)
{
	const struct residency_limits *limits = &residency->limits;
	const struct sums *sums = &residency->sums;
	struct found found;

	find(residency, &found);
	if (memcmp(&found.sums, sums, sizeof(*sums)) != 0 || found.registered != residency->registered)
		return "the sums differ from those of the adapters";
	if (sums->hot_bytes > limits->hot_bytes || sums->hot > limits->hot_count)
		return "hot adapters exceed the limit";
	if (sums->warm_bytes > limits->warm_bytes || sums->warm > limits->warm_count)
		return "warm copies exceed the limit";
	if (sums->hot != sums->loading + sums->resident + sums->leaving)
		return "hot differs from loading + resident + leaving";
	if (residency->victims.count != sums->victims[0] + sums->victims[1] ||
		residency->queued.count != sums->queued || residency->copies.count != found.droppable ||
		residency->absent.count != found.absent || residency->idle.count != found.idle ||
		residency->expected.count != found.expected)
		return "a heap has a missing or an extra member";
	if (!heap_holds(residency, &residency->victims, is_victim) ||
		!heap_holds(residency, &residency->queued, is_queued) ||
		!heap_holds(residency, &residency->copies, is_droppable) ||
		!heap_holds(residency, &residency->absent, is_absent) ||
		!heap_holds(residency, &residency->idle, may_compress) ||
		!heap_holds(residency, &residency->expected, is_expected))
		return "a heap is out of order";
	if (queue_sleeps(residency))
		return "an adapter is queued although there is room for it";
	return NULL;
}
