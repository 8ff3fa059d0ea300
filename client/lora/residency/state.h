/*
 * state.h - the state that residency.c changes and inspect.c checks. Used only by the files of
 * residency.h.
 *
 * The fields of an adapter alone determine the sums that include it and the heaps that contain it (see the functions
 * below). To change an adapter, call withdraw(), change the fields, and call offer(); sums and heaps then stay
 * consistent.
 */
#ifndef GPOOL_CLIENT_LORA_RESIDENCY_STATE_H
#define GPOOL_CLIENT_LORA_RESIDENCY_STATE_H

#include "shm/policy/number_heap.h"
#include "client/lora/residency/residency.h"

#include <stddef.h>

#define NO_ADAPTER UINT32_MAX

/* Reasons for a load, in the order in which loads are executed. */
enum reason {
	FOR_USE,
	FOR_PREFETCH,
	FOR_REBALANCING,
};

struct adapter {
	uint64_t bytes, warm_bytes;
	struct worth worth;
	uint32_t references, pins;
	uint64_t idle_us, expected_us, settled_us; /* idle since; expected until; last moved at */
	uint64_t turn;                             /* position in the queue, for QUEUED */
	uint8_t hot, warm, reason;
	bool registered, expected, prefetched, copyable, settled, from_files;
};

struct sums {
	uint64_t hot_bytes, leaving_bytes, queued_bytes, warm_bytes;
	uint64_t victim_bytes[2]; /* [0] not expected, [1] expected adapters */
	uint32_t hot, resident, loading, leaving, queued, copies, warm, active;
	uint32_t victims[2];
};

struct residency {
	struct residency_limits limits;
	struct adapter *adapters; /* [adapter_count] */
	uint32_t adapter_count, registered;
	struct sums sums;
	struct number_heap victims;  /* by worth, lowest first */
	struct number_heap copies;   /* warm copies that may be dropped, by worth */
	struct number_heap queued;   /* by reason, then turn */
	struct number_heap absent;   /* by worth, highest first */
	struct number_heap idle;     /* victims without a copy, by idle_us */
	struct number_heap expected; /* by expected_us */
	uint64_t turns;
	uint32_t moving;      /* the adapter that rebalancing is loading, or NO_ADAPTER */
	uint32_t compressing; /* the idle adapter whose copy is made, or NO_ADAPTER */
	uint64_t moved_us;
	uint32_t *ring; /* [ring_size] adapter << 3 | action */
	uint32_t ring_size, ring_first, ring_count;
	struct residency_stats stats;
};

static inline bool has_hot(const struct adapter *adapter)
{
	return adapter->hot >= RESIDENCY_LOADING;
}

static inline bool is_active(const struct adapter *adapter)
{
	return adapter->references || adapter->pins;
}

static inline bool is_victim(const struct adapter *adapter)
{
	return adapter->hot == RESIDENCY_RESIDENT && !is_active(adapter) &&
		(adapter->warm != RESIDENCY_COPYING || adapter->from_files);
}

static inline bool is_droppable(const struct adapter *adapter)
{
	return adapter->warm == RESIDENCY_COPY && adapter->hot != RESIDENCY_LOADING;
}

static inline bool may_compress(const struct adapter *adapter)
{
	return is_victim(adapter) && adapter->warm == RESIDENCY_NO_COPY && adapter->copyable;
}

static inline struct adapter *adapter_at(const struct residency *residency, uint32_t number)
{
	return number < residency->adapter_count && residency->adapters[number].registered
		? &residency->adapters[number]
		: NULL;
}

/* sums_add() - add an adapter to the sums; subtract it if sign is -1. The arithmetic is unsigned and may wrap. */
void sums_add(struct sums *sums, const struct adapter *adapter, int sign);

/* ---- worth.c ---- */
/*
 * hot_worth() - return the worth per byte of GPU memory, as a binary logarithm. The values of all adapters are
 * comparable and do not change with time.
 *
 * Keys of the heaps, which are ordered lowest first:
 * victim_key() - by worth; expected adapters after all others.
 * absent_key() - by worth, highest first.
 * copy_key() - by worth; copies of hot adapters before all others.
 */
double hot_worth(const struct residency *residency, const struct adapter *adapter);
uint64_t victim_key(const struct residency *residency, const struct adapter *adapter);
uint64_t absent_key(const struct residency *residency, const struct adapter *adapter);
uint64_t copy_key(const struct residency *residency, const struct adapter *adapter, bool hot);

#endif
