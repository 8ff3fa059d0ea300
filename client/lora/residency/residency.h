/*
 * residency.h - decide which adapters are hot (in GPU memory), which have a warm copy (int8, in host memory), and which
 * are on disk only. It works on numbers only: the caller passes events and the time, and executes the returned
 * decisions.
 *
 *           acquire, pin, prefetch, tick                  LOAD, EVICT, SAVE, COMPRESS, DROP
 *   caller ------------------------------> residency ------------------------------------> caller executes it
 *             ^                                                                               |
 *             +------------------ residency_done() of LOAD, SAVE, COMPRESS ------------------+
 *
 * Rules:
 *
 * - An acquired adapter is loaded as soon as there is room for it and the adapters queued before it. Both the bytes and
 *   the number of adapters are limited.
 * - Only idle adapters are evicted: without reference or pin, not being loaded or saved, and not being read for a
 *   warm copy. If copies are made from files, an adapter may be evicted, and forgotten, while its copy is made.
 * - Of the idle adapters, the one with the lowest worth is evicted first: expected accesses x reload time / size
 *   (worth.h).
 * - A prefetched adapter is expected: for window_us, only acquired adapters displace it, after all others.
 * - An adapter that was idle for idle_us gets a warm copy, if it can have one and host memory has room, and stays hot.
 *   Under the same conditions, an adapter that is evicted earlier gets a copy first (SAVE); if copies are made from
 *   files, it is evicted at once, and gets the copy afterwards (EVICT, COMPRESS). When host memory is short, copies of
 *   hot adapters are dropped first, because they can be made again.
 *
 * Rebalancing (residency_tick()) loads adapters that are worth more than resident ones. It moves one adapter at a time
 * and begins at most one move in rebalance_us. The loaded adapter is worth at least twice as much per byte as the
 * evicted one. An adapter that was moved is not moved again for window_us. If no further accesses are counted, a place
 * is therefore refilled at most log2(best / worst) times.
 *
 * Invariants, checked by residency_check():
 *   hot bytes and adapters = loading + resident + leaving, within both limits
 *   warm bytes and adapters = copies + copies being made, within both limits
 *   victims = resident and idle adapters
 *   the first queued adapter waits only while there is no room for it
 *
 * Threads: the caller provides locking.
 * Memory:  200 bytes per possible adapter, allocated by residency_create().
 * Cost:    each call and each decision is logarithmic in the number of adapters, unless stated otherwise.
 */
#ifndef GPOOL_CLIENT_LORA_RESIDENCY_H
#define GPOOL_CLIENT_LORA_RESIDENCY_H

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
	uint32_t load_us;                              /* duration of a load without its transfer */
	uint32_t warm_bytes_per_us, cold_bytes_per_us; /* speed of loads from a warm copy, and from disk */
	/*
	 * Copies are made from files instead of GPU memory. A load that fails then says nothing about the copy;
	 * residency_copy_seen() reports its loss.
	 */
	bool from_files;
};

/*
 * The counts, the terms of worth and idle_us are requirements of the project. The other values were chosen with
 * gpool-replay lora for the speeds of PCIe 4 and NVMe.
 */
#define RESIDENCY_LIMITS_INIT \
	{ \
		.hot_bytes = UINT64_MAX, .warm_bytes = UINT64_MAX, .hot_count = 100, .warm_count = 1000, \
		.worth = WORTH_TERMS_INIT, .idle_us = 60000000, .rebalance_us = 10000000, .load_us = 200, \
		.warm_bytes_per_us = 25000, .cold_bytes_per_us = 3000, \
	}

enum residency_hot {
	RESIDENCY_ABSENT,
	RESIDENCY_QUEUED, /* will be loaded when memory is free */
	RESIDENCY_LOADING,
	RESIDENCY_RESIDENT,
	RESIDENCY_LEAVING, /* a warm copy is being made; the adapter is evicted afterwards */
};

enum residency_warm {
	RESIDENCY_NO_COPY,
	RESIDENCY_COPYING,
	RESIDENCY_COPY,
};

enum residency_action {
	RESIDENCY_LOAD_WARM, /* load the adapter from its warm copy, which is kept; then call residency_done() */
	RESIDENCY_LOAD_COLD, /* load the adapter from disk; then call residency_done() */
	RESIDENCY_EVICT,     /* free its GPU memory, but keep its warm copy, if any */
	RESIDENCY_SAVE,      /* make a warm copy, then free its GPU memory; then call residency_done() */
	RESIDENCY_COMPRESS,  /* make a warm copy and keep the GPU memory; then call residency_done() */
	RESIDENCY_DROP,      /* free its warm copy */
};

/*
 * Decisions must be executed in the order in which they are returned: a later one uses memory that an earlier one
 * frees.
 */
struct residency_decision {
	uint32_t adapter;
	enum residency_action action;
};

struct residency_stats {
	uint32_t registered, resident, active, loading, queued, leaving,
		copies; /* adapters now; active: referenced or pinned */
	uint64_t hot_bytes, warm_bytes;
	/* acquisitions of resident and of other adapters; refused: misses for which no room could be made */
	uint64_t hits, misses, refused;
	uint64_t loads_warm, loads_cold, evictions, saves; /* saves: copies that were made because of an eviction */
	/* prefetches, and prefetched loads that were used; moves: loads by rebalancing */
	uint64_t prefetches, prefetches_used, moves;
};

/*
 * residency_create() - create a state without adapters. adapters: number of possible adapters,
 * 1..RESIDENCY_ADAPTERS_MAX; their numbers are below it. Return: 0, -EINVAL (`adapters` is invalid, or a limit is too
 * low), -ENOMEM.
 * residency_destroy() - destroy it; accepts NULL.
 */
int residency_create(const struct residency_limits *limits, uint32_t adapters, struct residency **out);
void residency_destroy(struct residency *residency);

/*
 * residency_register() - register an unused number as an adapter on disk. bytes: its size in GPU memory; warm_bytes:
 * size of its warm copy, or 0 if it cannot have one.
 * Return: 0, -EINVAL, -EEXIST, -EFBIG (above the hot limit, so it could never be loaded).
 */
int residency_register(
	struct residency *residency, uint32_t adapter, uint64_t bytes, uint64_t warm_bytes, uint64_t now_us);

/*
 * residency_unregister() - forget an adapter and its copy. Decisions about its number that were not fetched yet remain.
 * Return: 0, -ENOENT, -EBUSY (in use, or being moved).
 */
int residency_unregister(struct residency *residency, uint32_t adapter);

/*
 * residency_acquire() - take a reference and record an access. The reference is taken even if the adapter must be
 * loaded, and remains if the load fails; the next acquisition then tries again.
 * Return: 1: resident; 0: being loaded, or queued until memory is freed; -ENOENT; -ENOSPC: all memory is in use. On
 * an error, no reference is taken.
 */
int residency_acquire(struct residency *residency, uint32_t adapter, uint64_t now_us);
void residency_release(struct residency *residency, uint32_t adapter, uint64_t now_us);

/* residency_pin() - like residency_acquire(), but without recording an access. Pins nest. */
int residency_pin(struct residency *residency, uint32_t adapter, uint64_t now_us);
void residency_unpin(struct residency *residency, uint32_t adapter, uint64_t now_us);

/* residency_access() - record `count` uses of the adapter by its holders, in addition to their acquisitions. */
void residency_access(struct residency *residency, uint32_t adapter, uint32_t count, uint64_t now_us);

/*
 * residency_prefetch() - announce that the adapter will be acquired. It is loaded if this is possible without
 * displacing an adapter in use or expected, and is then expected itself.
 * Return: 1: resident; 0: being loaded or queued; -ENOENT; -ENOSPC: not possible now.
 */
int residency_prefetch(struct residency *residency, uint32_t adapter, uint64_t now_us);

/*
 * residency_lost() - report that a resident adapter was evicted without a decision. Its references and pins remain; the
 * next acquisition loads it again.
 */
void residency_lost(struct residency *residency, uint32_t adapter);

/*
 * residency_copy_seen() - report that a load has found, or has not found, a valid warm copy, which another process may
 * have made or dropped. A copy that does not fit within the limits is not counted. warm_bytes: size that the copy has,
 * or would have; a larger one than that of residency_register() is ignored. If there is no copy, the adapter may be
 * copied again even if an earlier attempt has failed.
 */
void residency_copy_seen(struct residency *residency, uint32_t adapter, bool there, uint64_t warm_bytes);

/* residency_set_idle() - change limits.idle_us. */
void residency_set_idle(struct residency *residency, uint64_t idle_us);

/*
 * residency_due_us() - return the time from which residency_tick() makes a copy of an idle adapter; UINT64_MAX: no
 * adapter can be copied now.
 */
uint64_t residency_due_us(const struct residency *residency);

/* residency_is_moving() - return true if rebalancing loads the adapter, and no caller has asked for it since. */
bool residency_is_moving(const struct residency *residency, uint32_t adapter);

/*
 * residency_next() - set *decision to the next decision. Return false if there is none.
 * residency_has_next() - return true if there is one.
 */
bool residency_has_next(const struct residency *residency);
bool residency_next(struct residency *residency, struct residency_decision *decision);

/*
 * residency_done() - report that a decision was executed or, if `ok` is false, that it failed. Even a SAVE that failed
 * must free the GPU memory. An adapter whose copy failed is not copied again. After a failed load from a warm copy, the
 * copy is dropped.
 * Return: 0, -EINVAL (no such decision is pending).
 */
int residency_done(struct residency *residency, const struct residency_decision *decision, bool ok, uint64_t now_us);

/*
 * residency_tick() - advance the time: make warm copies of idle adapters, end expectations, rebalance. The interval
 * between calls is arbitrary.
 */
void residency_tick(struct residency *residency, uint64_t now_us);

/* residency_hot(), residency_warm() - return the state of an adapter: ABSENT and NO_COPY for an unused number. */
enum residency_hot residency_hot(const struct residency *residency, uint32_t adapter);
enum residency_warm residency_warm(const struct residency *residency, uint32_t adapter);

void residency_get_stats(const struct residency *residency, struct residency_stats *stats);

/*
 * residency_check() - check the invariants. Return NULL, or a description of a violated invariant.
 * Cost: several passes over the adapters.
 */
const char *residency_check(const struct residency *residency);

#endif
