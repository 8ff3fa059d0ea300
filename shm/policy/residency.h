/*
 * residency.h - decide which adapters are hot (in GPU memory), which have a warm copy (int8, in host memory), and which
 * are on disk only. It works on numbers only: events are passed in, decisions are returned, and the time is an
 * argument.
 *
 *           acquire, pin, prefetch, tick                  LOAD, EVICT, SAVE, COMPRESS, DROP
 *   caller ------------------------------> residency ------------------------------------> caller executes it
 *             ^                                                                               |
 *             +------------------ residency_done() of LOAD, SAVE, COMPRESS ------------------+
 *
 * Rules:
 * - An acquired adapter is loaded at once if room can be made, however rarely it is used. Bytes are the first limit,
 *   counts the second.
 * - Only idle adapters are evicted: without reference or pin, not being loaded or saved, and not being read for a
 *   warm copy.
 * - Of these the one whose bytes save the least is evicted: expected accesses times reload time, divided by its size.
 *   Expected accesses are learned: each counts one, and half is forgotten in half_life_us. An adapter with
 *   promote_uses of them within window_us counts as if this rate had always held; the boost excludes no adapter.
 * - A prefetched adapter is expected: until window_us later, only acquired adapters displace it.
 * - An adapter that was idle for idle_us gets a warm copy while it stays hot; one that is evicted earlier gets a copy
 *   first (SAVE). When host memory is short, copies of hot adapters are dropped first, since they can be made again.
 *
 * Rebalancing (residency_tick()) loads adapters that are worth more than resident ones. Its limits: one move at a time;
 * at most one begins in rebalance_us; the loaded adapter promises at least twice as much per byte as any evicted one;
 * and a moved adapter is not moved again in the same direction for window_us. With constant counts, a place is
 * therefore refilled at most log2(best / worst) times.
 *
 * Invariants, checked by residency_check():
 *   hot bytes and adapters = loading + resident + leaving, within both limits; warm ones = copies + those being made,
 *   within both limits; victims = resident, and idle as above
 *   an adapter is queued only while room is being made, or all memory that could be freed is in use
 *
 * Threads: none of its own, and no lock; its owner has one.
 * Memory:  200 bytes for each possible adapter, all of it allocated by residency_create().
 * Cost:    each call and each decision is logarithmic in the number of adapters, unless stated otherwise.
 */
#ifndef GPOOL_POLICY_RESIDENCY_H
#define GPOOL_POLICY_RESIDENCY_H

#include "shm/policy/worth.h"

#include <stdbool.h>
#include <stdint.h>

#define RESIDENCY_ADAPTERS_MAX (UINT32_C(1) << 20)

struct residency;

struct residency_limits {
	uint64_t hot_bytes, warm_bytes;
	uint32_t hot_count, warm_count; /* warm_count 0: no warm copies */
	struct worth_terms worth;
	uint64_t idle_us, rebalance_us;                /* rebalance_us 0: never */
	uint32_t load_us;                              /* duration of a load in addition to its transfer */
	uint32_t warm_bytes_per_us, cold_bytes_per_us; /* of a warm copy to the GPU; from disk */
};

/*
 * Counts, window, accesses and idle time as specified; the rest chosen: tried with gpool-replay lora, speeds of PCIe 4
 * and NVMe.
 */
#define RESIDENCY_LIMITS_INIT \
	{ \
		.hot_bytes = UINT64_MAX, .warm_bytes = UINT64_MAX, .hot_count = 100, .warm_count = 1000, \
		.worth = WORTH_TERMS_INIT, .idle_us = 60000000, .rebalance_us = 10000000, .load_us = 200, \
		.warm_bytes_per_us = 25000, .cold_bytes_per_us = 3000, \
	}

enum residency_hot {
	RESIDENCY_ABSENT,
	RESIDENCY_QUEUED, /* to be loaded when memory is free */
	RESIDENCY_LOADING,
	RESIDENCY_RESIDENT,
	RESIDENCY_LEAVING, /* its warm copy is being made; it is evicted afterwards */
};

enum residency_warm {
	RESIDENCY_NO_COPY,
	RESIDENCY_COPYING,
	RESIDENCY_COPY,
};

enum residency_action {
	RESIDENCY_LOAD_WARM, /* load it from its warm copy, which stays; then residency_done() */
	RESIDENCY_LOAD_COLD, /* from disk; then residency_done() */
	RESIDENCY_EVICT,     /* its GPU memory is freed, and its warm copy, if there is one, stays */
	RESIDENCY_SAVE,      /* make a warm copy, then free its GPU memory; then residency_done() */
	RESIDENCY_COMPRESS,  /* make a warm copy, and keep it in GPU memory; then residency_done() */
	RESIDENCY_DROP,      /* free its warm copy now */
};

/* Decisions must be executed in order: a later one uses the memory that an earlier one frees. */
struct residency_decision {
	uint32_t adapter;
	enum residency_action action;
};

struct residency_stats {
	uint32_t registered, resident, active, loading, queued, leaving,
		copies; /* adapters now; active: with a reference or a pin */
	uint64_t hot_bytes, warm_bytes;
	/* acquisitions: resident; not resident; of the latter, no room could be made */
	uint64_t hits, misses, refused;
	uint64_t loads_warm, loads_cold, failed_loads, evictions, saves, compressions, drops;
	/* prefetches, and their loads that were used; moves: loads by rebalancing */
	uint64_t prefetches, prefetches_used, moves;
};

/* One holder of GPU memory, for reporting that all memory is in use. */
struct residency_holder {
	uint32_t adapter, references, pins;
	enum residency_hot state;
	uint64_t bytes;
};

/*
 * residency_create() - create a state without adapters. @adapters: 1..RESIDENCY_ADAPTERS_MAX; numbers of adapters are
 * below it.
 * Return: 0, -EINVAL (a limit is 0 that must not be), -ENOMEM. residency_destroy() accepts NULL.
 */
int residency_create(const struct residency_limits *limits, uint32_t adapters, struct residency **out);
void residency_destroy(struct residency *residency);

/*
 * residency_register() - register an unused number as an adapter on disk. bytes: its size in GPU memory; warm_bytes:
 * size of its warm copy, 0: it cannot have one. Return: 0, -EINVAL, -EEXIST, -EFBIG (more than the hot limit: it could
 * never be loaded).
 */
int residency_register(
	struct residency *residency, uint32_t adapter, uint64_t bytes, uint64_t warm_bytes, uint64_t now_us);

/*
 * residency_adopt() - record that an adapter that was just registered is already in GPU memory, has a warm copy, or
 * both, because an earlier state loaded it. Return: 0; -ENOENT; -EBUSY: it is resident or being loaded; -ENOSPC: a
 * limit would be exceeded, and nothing changed.
 */
int residency_adopt(struct residency *residency, uint32_t adapter, bool resident, bool copied, uint64_t now_us);

/* residency_forget() - unregister an adapter at once. Return: 0, -ENOENT, -EBUSY (in use, or being moved). */
int residency_forget(struct residency *residency, uint32_t adapter);

/*
 * residency_resize() - change the size of an adapter's warm copy, for instance if int8 does not suit it; 0: none
 * possible. Return: 0, -ENOENT, -EBUSY (it has a copy, or one is being made).
 */
int residency_resize(struct residency *residency, uint32_t adapter, uint64_t warm_bytes);

/*
 * residency_acquire() - take a reference and record an access. The reference counts from now on, also while the adapter
 * is being loaded; if the load fails the reference remains, and the next acquisition tries again. Return: 1: resident,
 * use it; 0: being loaded, or queued until others free memory; and without a reference -ENOENT, -ENOSPC (no room can be
 * made: all memory is in use; residency_holders() lists the holders)
 */
int residency_acquire(struct residency *residency, uint32_t adapter, uint64_t now_us);
void residency_release(struct residency *residency, uint32_t adapter, uint64_t now_us);

/* residency_pin() - acquire without recording an access: the adapter stays until it is unpinned. Pins nest. */
int residency_pin(struct residency *residency, uint32_t adapter, uint64_t now_us);
void residency_unpin(struct residency *residency, uint32_t adapter, uint64_t now_us);

/* residency_access() - record `count` uses by holders of the adapter, in addition to their acquisitions. */
void residency_access(struct residency *residency, uint32_t adapter, uint32_t count, uint64_t now_us);

/*
 * residency_prefetch() - announce that the adapter will be acquired. It is loaded if that displaces no adapter that is
 * in use or expected, and is then expected itself. Return: 1: resident; 0: being loaded; -ENOENT; -ENOSPC: not now.
 */
int residency_prefetch(struct residency *residency, uint32_t adapter, uint64_t now_us);

/*
 * residency_unload() - evict an adapter from GPU memory. Return: 0, also if it is not resident; -ENOENT; -EBUSY: in
 * use, or being moved.
 */
int residency_unload(struct residency *residency, uint32_t adapter);

/* residency_next() - fetch the next decision; false: there is none. */
bool residency_next(struct residency *residency, struct residency_decision *decision);

/*
 * residency_done() - report that a decision was executed or, without ok, that it failed. A SAVE that failed has freed
 * the memory all the same. An adapter whose copy failed is not copied again until residency_resize(); a failed load
 * from a warm copy drops the copy. Return: 0; -EINVAL: the decision was not requested.
 */
int residency_done(struct residency *residency, const struct residency_decision *decision, bool ok, uint64_t now_us);

/*
 * residency_tick() - advance the time: make warm copies of idle adapters, end expectations, rebalance. It may be called
 * at any frequency.
 */
void residency_tick(struct residency *residency, uint64_t now_us);

/*
 * residency_hot(), residency_warm(), residency_references() - return the state of an adapter; for an unused number:
 * ABSENT, NO_COPY, 0.
 */
enum residency_hot residency_hot(const struct residency *residency, uint32_t adapter);
enum residency_warm residency_warm(const struct residency *residency, uint32_t adapter);
uint32_t residency_references(const struct residency *residency, uint32_t adapter);

/*
 * residency_holders() - list adapters whose GPU memory cannot be freed: up to `most` of them in out[], lowest number
 * first.
 *
 * Return: their total number. Cost: a check of each adapter.
 */
uint32_t residency_holders(const struct residency *residency, struct residency_holder *out, uint32_t most);

void residency_get_stats(const struct residency *residency, struct residency_stats *stats);

/*
 * residency_check() - check the invariants. Return: NULL, or a description of a violation. Cost: several passes over
 * the adapters.
 */
const char *residency_check(const struct residency *residency);

#endif
