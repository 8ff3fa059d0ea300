#include "client/lora/residency/state.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* maximum number of unfetched decisions per adapter: EVICT, DROP, LOAD or SAVE, COMPRESS */
enum { RING_SHARE = 4 };

/* chosen: time after which a copy for which there was no room is tried again, if the adapter is not used */
enum { RETRY_US = 10000000 };

#define ADAPTER_BYTES_MAX (UINT64_C(1) << 40)

/* ---- sums and heaps, derived from an adapter's state ---- */

/* Remove an adapter from sums and heaps before its fields are changed. offer() adds it again. */
static void withdraw(struct residency *residency, uint32_t number)
{
	const struct adapter *adapter = &residency->adapters[number];

	sums_add(&residency->sums, adapter, -1);
	if (is_victim(adapter))
		number_heap_remove(&residency->victims, number);
	if (may_compress(adapter))
		number_heap_remove(&residency->idle, number);
	if (is_droppable(adapter))
		number_heap_remove(&residency->copies, number);
	if (adapter->hot == RESIDENCY_QUEUED)
		number_heap_remove(&residency->queued, number);
	if (adapter->hot == RESIDENCY_ABSENT)
		number_heap_remove(&residency->absent, number);
	if (adapter->expected)
		number_heap_remove(&residency->expected, number);
}

static void offer(struct residency *residency, uint32_t number)
{
	const struct adapter *adapter = &residency->adapters[number];

	sums_add(&residency->sums, adapter, 1);
	if (is_victim(adapter))
		number_heap_add(&residency->victims, number, victim_key(residency, adapter));
	if (may_compress(adapter))
		number_heap_add(&residency->idle, number, adapter->idle_us);
	if (is_droppable(adapter))
		number_heap_add(&residency->copies, number, copy_key(residency, adapter, has_hot(adapter)));
	if (adapter->hot == RESIDENCY_QUEUED)
		number_heap_add(&residency->queued, number, (uint64_t)adapter->reason << 60 | adapter->turn);
	if (adapter->hot == RESIDENCY_ABSENT)
		number_heap_add(&residency->absent, number, absent_key(residency, adapter));
	if (adapter->expected)
		number_heap_add(&residency->expected, number, adapter->expected_us);
}

static void set_hot(struct residency *residency, uint32_t number, enum residency_hot hot)
{
	static const uint8_t next[] = {
		[RESIDENCY_ABSENT] = 0, /* QUEUED is set by enqueue() */
		[RESIDENCY_QUEUED] = 1 << RESIDENCY_LOADING | 1 << RESIDENCY_ABSENT,
		[RESIDENCY_LOADING] = 1 << RESIDENCY_RESIDENT | 1 << RESIDENCY_ABSENT,
		[RESIDENCY_RESIDENT] = 1 << RESIDENCY_LEAVING | 1 << RESIDENCY_ABSENT,
		[RESIDENCY_LEAVING] = 1 << RESIDENCY_ABSENT,
	};

	assert(next[residency->adapters[number].hot] & 1 << hot);
	withdraw(residency, number);
	residency->adapters[number].hot = (uint8_t)hot;
	offer(residency, number);
}

static void set_warm(struct residency *residency, uint32_t number, enum residency_warm warm)
{
	withdraw(residency, number);
	residency->adapters[number].warm = (uint8_t)warm;
	offer(residency, number);
}

static void decide(struct residency *residency, uint32_t number, enum residency_action action)
{
	assert(residency->ring_count < residency->ring_size);
	residency->ring[(residency->ring_first + residency->ring_count++) % residency->ring_size] =
		number << 3 | (uint32_t)action;
}

/* ---- eviction ---- */

static void drop(struct residency *residency, uint32_t number)
{
	set_warm(residency, number, RESIDENCY_NO_COPY);
	decide(residency, number, RESIDENCY_DROP);
}

/* Drop copies that are worth less than this adapter's copy until there is room for the latter. */
static bool copy_room(struct residency *residency, uint32_t number, bool hot)
{
	const struct residency_limits *limits = &residency->limits;
	const struct adapter *adapter = &residency->adapters[number];
	uint64_t key = copy_key(residency, adapter, hot);

	if (!adapter->copyable || adapter->warm_bytes > limits->warm_bytes || limits->warm_count == 0)
		return false;
	while (limits->warm_bytes - residency->sums.warm_bytes < adapter->warm_bytes ||
		residency->sums.warm >= limits->warm_count) {
		uint32_t least = residency->copies.count ? number_heap_lowest(&residency->copies) : NO_ADAPTER;

		if (least == NO_ADAPTER || residency->copies.keys[least] >= key)
			return false;
		drop(residency, least);
	}
	return true;
}

static void evict(struct residency *residency, uint32_t number)
{
	bool save = residency->adapters[number].warm == RESIDENCY_NO_COPY && copy_room(residency, number, false);
	bool first = save && !residency->limits.from_files;

	residency->stats.evictions++;
	residency->stats.saves += save;
	set_hot(residency, number, first ? RESIDENCY_LEAVING : RESIDENCY_ABSENT);
	if (!first)
		decide(residency, number, RESIDENCY_EVICT);
	if (!save)
		return;
	set_warm(residency, number, RESIDENCY_COPYING);
	decide(residency, number, first ? RESIDENCY_SAVE : RESIDENCY_COMPRESS);
}

/* ---- loads ---- */

/*
 * Return true if `bytes` bytes of `count` adapters would fit after the eviction of all idle adapters that are not
 * expected or, with expected_too, of all idle adapters.
 */
static bool could_have_room(const struct residency *residency, uint64_t bytes, uint32_t count, bool expected_too)
{
	const struct residency_limits *limits = &residency->limits;
	const struct sums *sums = &residency->sums;
	uint64_t room = limits->hot_bytes - sums->hot_bytes + sums->leaving_bytes + sums->victim_bytes[0];
	uint32_t places = limits->hot_count - sums->hot + sums->leaving + sums->victims[0];

	if (expected_too) {
		room += sums->victim_bytes[1];
		places += sums->victims[1];
	}
	return bytes <= room && count <= places;
}

static bool fits(const struct residency *residency, uint64_t bytes, bool with_leaving)
{
	const struct residency_limits *limits = &residency->limits;
	const struct sums *sums = &residency->sums;

	return bytes <= limits->hot_bytes - sums->hot_bytes + (with_leaving ? sums->leaving_bytes : 0) &&
		1 <= limits->hot_count - sums->hot + (with_leaving ? sums->leaving : 0);
}

/* Evict adapters to make room, as far as the reason of the load permits. Return true if the adapter fits now. */
static bool hot_room(struct residency *residency, const struct adapter *adapter)
{
	bool for_use = adapter->reason == FOR_USE;

	if (!could_have_room(residency, adapter->bytes, 1, for_use))
		return false;
	while (!fits(residency, adapter->bytes, true)) {
		if (adapter->reason == FOR_REBALANCING)
			return false; /* its victim was already evicted */
		evict(residency, number_heap_lowest(&residency->victims));
	}
	return fits(residency, adapter->bytes, false);
}

static void load(struct residency *residency, uint32_t number)
{
	const struct adapter *adapter = &residency->adapters[number];
	bool warm = adapter->warm == RESIDENCY_COPY;

	set_hot(residency, number, RESIDENCY_LOADING);
	residency->stats.prefetches += adapter->reason == FOR_PREFETCH;
	residency->stats.loads_warm += warm;
	residency->stats.loads_cold += !warm;
	decide(residency, number, warm ? RESIDENCY_LOAD_WARM : RESIDENCY_LOAD_COLD);
}

/* Remove an adapter from the queue. If it was queued by rebalancing, that move ends. */
static void unqueue(struct residency *residency, uint32_t number)
{
	residency->moving = residency->moving == number ? NO_ADAPTER : residency->moving;
	set_hot(residency, number, RESIDENCY_ABSENT);
}

/*
 * Load the queued adapters in order, after memory was freed. If no room can be made for the first adapter, the queue
 * waits if this adapter is to be used, or if the eviction of all idle adapters would make room for it. Otherwise the
 * adapter is removed from the queue.
 */
static void serve_queue(struct residency *residency)
{
	while (residency->queued.count) {
		uint32_t number = number_heap_lowest(&residency->queued);
		const struct adapter *adapter = &residency->adapters[number];

		if (hot_room(residency, adapter))
			load(residency, number);
		else if (adapter->reason == FOR_USE || fits(residency, adapter->bytes, true))
			return;
		else
			unqueue(residency, number);
	}
}

static void enqueue(struct residency *residency, uint32_t number, enum reason reason)
{
	struct adapter *adapter = &residency->adapters[number];

	if (residency->moving == number && reason != FOR_REBALANCING)
		residency->moving = NO_ADAPTER;
	withdraw(residency, number);
	adapter->hot = RESIDENCY_QUEUED;
	adapter->reason = (uint8_t)reason;
	adapter->turn = residency->turns++;
	offer(residency, number);
	serve_queue(residency);
}

/* ---- accesses ---- */

void residency_access(struct residency *residency, uint32_t number, uint32_t count, uint64_t now_us)
{
	struct adapter *adapter = &residency->adapters[number];

	if (number >= residency->adapter_count || !adapter->registered || count == 0)
		return;
	withdraw(residency, number);
	worth_count(&residency->limits.worth, &adapter->worth, count, now_us);
	offer(residency, number);
}

/* ---- references and pins ---- */

static bool can_come(const struct residency *residency, const struct adapter *adapter, bool expected_too)
{
	if (adapter->hot == RESIDENCY_LOADING || adapter->hot == RESIDENCY_RESIDENT ||
		adapter->hot == RESIDENCY_LEAVING)
		return true;
	if (adapter->hot == RESIDENCY_QUEUED && adapter->reason == FOR_USE)
		return true;
	if (adapter->hot == RESIDENCY_QUEUED)
		return could_have_room(residency, residency->sums.queued_bytes, residency->sums.queued, expected_too);
	return could_have_room(
		residency, residency->sums.queued_bytes + adapter->bytes, residency->sums.queued + 1, expected_too);
}

static int hold(struct residency *residency, uint32_t number, uint32_t *holds, bool accessed, uint64_t now_us)
{
	struct adapter *adapter = &residency->adapters[number];

	if (!can_come(residency, adapter, true)) {
		residency->stats.refused++;
		return -ENOSPC;
	}
	withdraw(residency, number);
	if (accessed)
		worth_count(&residency->limits.worth, &adapter->worth, 1, now_us);
	++*holds;
	adapter->expected = false;
	residency->stats.prefetches_used += adapter->prefetched && adapter->hot == RESIDENCY_RESIDENT;
	adapter->prefetched = adapter->prefetched && adapter->hot != RESIDENCY_RESIDENT;
	offer(residency, number);
	if (adapter->hot == RESIDENCY_ABSENT || (adapter->hot == RESIDENCY_QUEUED && adapter->reason != FOR_USE))
		enqueue(residency, number, FOR_USE);
	return adapter->hot == RESIDENCY_RESIDENT;
}

static void let_go(struct residency *residency, uint32_t number, uint32_t *holds, uint64_t now_us)
{
	struct adapter *adapter = &residency->adapters[number];

	assert(*holds);
	withdraw(residency, number);
	--*holds;
	adapter->idle_us = is_active(adapter) ? adapter->idle_us : now_us;
	offer(residency, number);
	if (!is_active(adapter) && adapter->hot == RESIDENCY_QUEUED)
		unqueue(residency, number);
	serve_queue(residency);
}

int residency_acquire(struct residency *residency, uint32_t number, uint64_t now_us)
{
	struct adapter *adapter = adapter_at(residency, number);

	if (!adapter)
		return -ENOENT;
	residency->stats.hits += adapter->hot == RESIDENCY_RESIDENT;
	residency->stats.misses += adapter->hot != RESIDENCY_RESIDENT;
	return hold(residency, number, &adapter->references, true, now_us);
}

void residency_release(struct residency *residency, uint32_t number, uint64_t now_us)
{
	let_go(residency, number, &residency->adapters[number].references, now_us);
}

int residency_pin(struct residency *residency, uint32_t number, uint64_t now_us)
{
	struct adapter *adapter = adapter_at(residency, number);

	return adapter ? hold(residency, number, &adapter->pins, false, now_us) : -ENOENT;
}

void residency_unpin(struct residency *residency, uint32_t number, uint64_t now_us)
{
	let_go(residency, number, &residency->adapters[number].pins, now_us);
}

/* ---- prefetches and rebalancing ---- */

int residency_prefetch(struct residency *residency, uint32_t number, uint64_t now_us)
{
	struct adapter *adapter = adapter_at(residency, number);

	if (!adapter)
		return -ENOENT;
	if (!can_come(residency, adapter, false))
		return -ENOSPC;
	withdraw(residency, number);
	adapter->expected = true;
	adapter->expected_us = now_us + residency->limits.worth.window_us;
	offer(residency, number);
	if (adapter->hot == RESIDENCY_ABSENT ||
		(adapter->hot == RESIDENCY_QUEUED && adapter->reason == FOR_REBALANCING)) {
		adapter->prefetched = true;
		enqueue(residency, number, FOR_PREFETCH);
	}
	return adapter->hot == RESIDENCY_RESIDENT;
}

static bool is_settled(const struct residency *residency, const struct adapter *adapter, uint64_t now_us)
{
	return adapter->settled && now_us - adapter->settled_us < residency->limits.worth.window_us;
}

/*
 * Select the adapter to evict for this one; NO_ADAPTER if no eviction is needed. Return false if no suitable adapter is
 * worth at most half as much.
 */
static bool rebalance_victim(
	const struct residency *residency, const struct adapter *adapter, uint64_t now_us, uint32_t *victim)
{
	const struct adapter *least;

	*victim = NO_ADAPTER;
	if (fits(residency, adapter->bytes, true))
		return true;
	if (!residency->sums.victims[0])
		return false; /* all victims are expected */
	*victim = number_heap_lowest(&residency->victims);
	least = &residency->adapters[*victim];
	return hot_worth(residency, least) + 1 <= hot_worth(residency, adapter) &&
		!is_settled(residency, least, now_us) &&
		residency->limits.hot_bytes - residency->sums.hot_bytes + residency->sums.leaving_bytes +
			least->bytes >=
		adapter->bytes;
}

static void settle(struct adapter *adapter, uint64_t now_us)
{
	adapter->settled = true;
	adapter->settled_us = now_us;
}

static void rebalance(struct residency *residency, uint64_t now_us)
{
	uint32_t best, victim;
	struct adapter *adapter;

	if (!residency->limits.rebalance_us || residency->moving != NO_ADAPTER || residency->queued.count ||
		!residency->absent.count || now_us - residency->moved_us < residency->limits.rebalance_us)
		return;
	best = number_heap_lowest(&residency->absent);
	adapter = &residency->adapters[best];
	if (is_active(adapter) || is_settled(residency, adapter, now_us) ||
		worth_uses(&residency->limits.worth, &adapter->worth, now_us) < 1 ||
		!rebalance_victim(residency, adapter, now_us, &victim))
		return;
	if (victim != NO_ADAPTER) {
		settle(&residency->adapters[victim], now_us);
		evict(residency, victim);
	}
	settle(adapter, now_us);
	residency->moving = best;
	residency->moved_us = now_us;
	residency->stats.moves++;
	enqueue(residency, best, FOR_REBALANCING);
}

uint64_t residency_due_us(const struct residency *residency)
{
	return residency->compressing == NO_ADAPTER && residency->idle.count
		? residency->adapters[number_heap_lowest(&residency->idle)].idle_us + residency->limits.idle_us
		: UINT64_MAX;
}

void residency_set_idle(struct residency *residency, uint64_t idle_us)
{
	residency->limits.idle_us = idle_us;
}

/*
 * Make warm copies of idle adapters, one at a time to limit the effect on loads. If host memory has no room for a copy,
 * the next attempt is made after another idle time, and not before RETRY_US.
 */
static void compress(struct residency *residency, uint64_t now_us)
{
	uint64_t idle_us = residency->limits.idle_us;

	while (residency->compressing == NO_ADAPTER && residency->idle.count) {
		uint32_t number = number_heap_lowest(&residency->idle);
		struct adapter *adapter = &residency->adapters[number];

		if (now_us < adapter->idle_us || now_us - adapter->idle_us < idle_us)
			return;
		if (copy_room(residency, number, true)) {
			set_warm(residency, number, RESIDENCY_COPYING);
			residency->compressing = number;
			decide(residency, number, RESIDENCY_COMPRESS);
		} else {
			withdraw(residency, number);
			adapter->idle_us = now_us + (idle_us < RETRY_US ? RETRY_US - idle_us : 0);
			offer(residency, number);
		}
	}
}

void residency_tick(struct residency *residency, uint64_t now_us)
{
	while (residency->expected.count) {
		uint32_t number = number_heap_lowest(&residency->expected);

		if (residency->adapters[number].expected_us > now_us)
			break;
		withdraw(residency, number);
		residency->adapters[number].expected = false;
		offer(residency, number);
	}
	compress(residency, now_us);
	serve_queue(residency);
	rebalance(residency, now_us);
}

/* ---- decisions and their results ---- */

bool residency_has_next(const struct residency *residency)
{
	return residency->ring_count > 0;
}

bool residency_next(struct residency *residency, struct residency_decision *decision)
{
	uint32_t entry;

	if (!residency->ring_count)
		return false;
	entry = residency->ring[residency->ring_first];
	residency->ring_first = (residency->ring_first + 1) % residency->ring_size;
	residency->ring_count--;
	*decision = (struct residency_decision){.adapter = entry >> 3, .action = (enum residency_action)(entry & 7)};
	return true;
}

static void load_done(struct residency *residency, uint32_t number, bool ok, uint64_t now_us)
{
	struct adapter *adapter = &residency->adapters[number];

	residency->moving = residency->moving == number ? NO_ADAPTER : residency->moving;
	adapter->idle_us = now_us; /* no heap contains the adapter while it is being loaded */
	set_hot(residency, number, ok ? RESIDENCY_RESIDENT : RESIDENCY_ABSENT);
	if (ok)
		return;
	adapter->prefetched = false;
	if (adapter->warm == RESIDENCY_COPY && !residency->limits.from_files)
		drop(residency, number);
}

static void copy_done(struct residency *residency, uint32_t number, bool ok)
{
	struct adapter *adapter = &residency->adapters[number];

	withdraw(residency, number);
	adapter->warm = ok ? RESIDENCY_COPY : RESIDENCY_NO_COPY;
	adapter->copyable = ok;
	offer(residency, number);
}

int residency_done(struct residency *residency, const struct residency_decision *decision, bool ok, uint64_t now_us)
{
	const struct adapter *adapter = adapter_at(residency, decision->adapter);
	bool loading = adapter && adapter->hot == RESIDENCY_LOADING,
	     leaving = adapter && adapter->hot == RESIDENCY_LEAVING;

	if ((decision->action == RESIDENCY_LOAD_WARM || decision->action == RESIDENCY_LOAD_COLD) && loading) {
		load_done(residency, decision->adapter, ok, now_us);
	} else if (decision->action == RESIDENCY_SAVE && leaving) {
		copy_done(residency, decision->adapter, ok);
		set_hot(residency, decision->adapter, RESIDENCY_ABSENT);
		if (is_active(adapter))
			enqueue(residency, decision->adapter, FOR_USE);
	} else if (decision->action == RESIDENCY_COMPRESS && adapter && adapter->warm == RESIDENCY_COPYING &&
		!leaving) {
		if (residency->compressing == decision->adapter)
			residency->compressing = NO_ADAPTER;
		copy_done(residency, decision->adapter, ok);
	} else {
		return -EINVAL;
	}
	serve_queue(residency);
	return 0;
}

/* ---- creation, registration, unloading ---- */

static struct number_heap *const *heaps(struct residency *residency, struct number_heap *all[static 7])
{
	struct number_heap *const list[7] = {&residency->victims, &residency->copies, &residency->queued,
		&residency->absent, &residency->idle, &residency->expected, NULL};

	memcpy(all, list, sizeof(list));
	return all;
}

int residency_create(const struct residency_limits *limits, uint32_t adapters, struct residency **out)
{
	struct residency *residency;
	struct number_heap *all[7];
	int error = 0;

	if (!adapters || adapters > RESIDENCY_ADAPTERS_MAX || !limits->hot_bytes || !limits->hot_count ||
		!limits->worth.promote_uses || !limits->worth.window_us || limits->worth.half_life_us < 1000 ||
		!limits->warm_bytes_per_us || !limits->cold_bytes_per_us)
		return -EINVAL;
	residency = calloc(1, sizeof(*residency));
	if (!residency)
		return -ENOMEM;
	residency->limits = *limits;
	residency->adapter_count = adapters;
	residency->moving = residency->compressing = NO_ADAPTER;
	residency->ring_size = RING_SHARE * adapters;
	residency->adapters = calloc(adapters, sizeof(*residency->adapters));
	residency->ring = calloc(residency->ring_size, sizeof(*residency->ring));
	for (struct number_heap *const *heap = heaps(residency, all); *heap && !error; heap++)
		error = number_heap_init(*heap, adapters);
	if (error || !residency->adapters || !residency->ring) {
		residency_destroy(residency);
		return -ENOMEM;
	}
	*out = residency;
	return 0;
}

void residency_destroy(struct residency *residency)
{
	struct number_heap *all[7];

	if (!residency)
		return;
	for (struct number_heap *const *heap = heaps(residency, all); *heap; heap++)
		number_heap_fini(*heap);
	free(residency->adapters);
	free(residency->ring);
	free(residency);
}

int residency_register(
	struct residency *residency, uint32_t number, uint64_t bytes, uint64_t warm_bytes, uint64_t now_us)
{
	if (number >= residency->adapter_count || !bytes)
		return -EINVAL;
	if (residency->adapters[number].registered)
		return -EEXIST;
	if (bytes > residency->limits.hot_bytes || bytes > ADAPTER_BYTES_MAX || warm_bytes > ADAPTER_BYTES_MAX)
		return -EFBIG;
	residency->adapters[number] = (struct adapter){
		.bytes = bytes,
		.warm_bytes = warm_bytes,
		.copyable = warm_bytes > 0,
		.from_files = residency->limits.from_files,
		.registered = true,
	};
	worth_begin(&residency->limits.worth, &residency->adapters[number].worth, now_us);
	residency->registered++;
	offer(residency, number);
	return 0;
}

/* Return true if the adapter is used, or a decision about it is being executed. */
static bool is_busy(const struct adapter *adapter)
{
	return is_active(adapter) || adapter->hot == RESIDENCY_LOADING || adapter->hot == RESIDENCY_LEAVING ||
		(adapter->warm == RESIDENCY_COPYING && !adapter->from_files);
}

int residency_unregister(struct residency *residency, uint32_t number)
{
	struct adapter *adapter = adapter_at(residency, number);

	if (!adapter)
		return -ENOENT;
	if (is_busy(adapter))
		return -EBUSY;
	if (adapter->hot == RESIDENCY_QUEUED)
		unqueue(residency, number);
	if (residency->compressing == number)
		residency->compressing = NO_ADAPTER;
	withdraw(residency, number);
	*adapter = (struct adapter){.registered = false};
	residency->registered--;
	serve_queue(residency);
	return 0;
}

void residency_lost(struct residency *residency, uint32_t number)
{
	const struct adapter *adapter = adapter_at(residency, number);

	if (!adapter || adapter->hot != RESIDENCY_RESIDENT)
		return;
	set_hot(residency, number, RESIDENCY_ABSENT);
	serve_queue(residency);
}

void residency_copy_seen(struct residency *residency, uint32_t number, bool there, uint64_t warm_bytes)
{
	const struct residency_limits *limits = &residency->limits;
	struct adapter *adapter = &residency->adapters[number];

	if (!adapter_at(residency, number) || adapter->warm == RESIDENCY_COPYING)
		return;
	withdraw(residency, number);
	if (warm_bytes < adapter->warm_bytes)
		adapter->warm_bytes = warm_bytes;
	if (!there || adapter->warm == RESIDENCY_NO_COPY) {
		bool room = adapter->warm_bytes <= limits->warm_bytes - residency->sums.warm_bytes &&
			residency->sums.warm < limits->warm_count;

		adapter->warm = there && room ? RESIDENCY_COPY : RESIDENCY_NO_COPY;
		adapter->copyable = adapter->warm_bytes > 0;
	}
	offer(residency, number);
}

bool residency_is_moving(const struct residency *residency, uint32_t number)
{
	return residency->moving == number;
}
