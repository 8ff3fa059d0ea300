/*
 * residency.h - which adapters are hot (in GPU memory), which have a warm copy (int8, in host memory), and which are on
 * disk alone. Numbers only: events go in, decisions come out, and the time is an argument.
 *
 *           acquire, pin, prefetch, tick                  LOAD, EVICT, SAVE, COMPRESS, DROP
 *   caller ------------------------------> residency ------------------------------------> caller does it
 *             ^                                                                               |
 *             +------------------ residency_done() of LOAD, SAVE, COMPRESS ------------------+
 *
 * What it goes by:
 * - An adapter that is acquired is loaded at once if room can be made, however seldom it is used. Bytes are the first
 *   limit, counts the second.
 * - Only idle ones leave: without reference and pin, not on their way in or out, and not being read for a warm copy.
 * - Of these the one goes whose bytes save the least: expected accesses times the time that it takes to have it back,
 *   by its bytes. Expected accesses are learned: each counts one, and half is forgotten in half_life_us. Who had
 *   promote_uses of them within window_us counts as if that had always been so; that is a boost and bars nobody.
 * - Who is prefetched is expected: only what is acquired displaces it until window_us later.
 * - What was idle for idle_us gets a warm copy while it stays hot; what leaves earlier gets one on the way (SAVE).
 *   Copies of what is hot go first where host memory is short, since they can be made again.
 *
 * Rebalancing (residency_tick()) brings back what is worth more than what is there. What bounds it: one move at a time,
 * and one begun in rebalance_us at most; what comes promises at least twice as much for each byte as anything that
 * goes; and who was moved is not moved so again for window_us. With counts at rest a place is thus filled anew
 * log2(best / worst) times at most.
 *
 * Invariants, proved by residency_check():
 *   hot bytes and adapters = loading + resident + leaving, within both limits; warm ones = copies + those being made,
 *   within both victims = resident, and idle as above
 *   queued only while room is being made, or all that could make some is in use
 *
 * Threads: none of its own and no lock; its owner has one.
 * Memory:  200 bytes for each adapter that there may be, all of it from residency_create() on.
 * Cost:    of each call and each decision logarithmic in the adapters, unless said otherwise.
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
	uint32_t load_us;                              /* what a load takes beside its bytes */
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
	RESIDENCY_QUEUED, /* to be loaded when there is room */
	RESIDENCY_LOADING,
	RESIDENCY_RESIDENT,
	RESIDENCY_LEAVING, /* its warm copy is being made, then it goes */
};

enum residency_warm {
	RESIDENCY_NO_COPY,
	RESIDENCY_COPYING,
	RESIDENCY_COPY,
};

enum residency_action {
	RESIDENCY_LOAD_WARM, /* bring it in from its warm copy, which stays; then residency_done() */
	RESIDENCY_LOAD_COLD, /* from disk; then residency_done() */
	RESIDENCY_EVICT,     /* its GPU memory is free now, its warm copy, if it has one, stays */
	RESIDENCY_SAVE,      /* make a warm copy, then free its GPU memory; then residency_done() */
	RESIDENCY_COMPRESS,  /* make a warm copy, and let it stay; then residency_done() */
	RESIDENCY_DROP,      /* free its warm copy now */
};

/* To be done in the order in which they come: what one frees the next one uses. */
struct residency_decision {
	uint32_t adapter;
	enum residency_action action;
};

struct residency_stats {
	uint32_t registered, resident, active, loading, queued, leaving,
		copies; /* adapters now; active: with a reference or a pin */
	uint64_t hot_bytes, warm_bytes;
	uint64_t hits, misses, refused; /* acquisitions: it was resident; it was not; of these, no room could be made */
	uint64_t loads_warm, loads_cold, failed_loads, evictions, saves, compressions, drops;
	uint64_t prefetches, prefetches_used, moves; /* loads for each; moves: by rebalancing */
};

/* Who holds what, for those who are told that all is in use. */
struct residency_holder {
	uint32_t adapter, references, pins;
	enum residency_hot state;
	uint64_t bytes;
};

/*
 * residency_create() - without an adapter.
 * @adapters: 1..RESIDENCY_ADAPTERS_MAX; adapters' numbers are below it
 * Return: 0, -EINVAL (a limit of 0 that may be none), -ENOMEM. residency_destroy() takes NULL, too.
 */
int residency_create(const struct residency_limits *limits, uint32_t adapters, struct residency **out);
void residency_destroy(struct residency *residency);

/*
 * residency_register() - a number that is none becomes an adapter on disk. bytes: in GPU memory; warm_bytes: of its
 * warm copy, 0: it cannot have one. Return: 0, -EINVAL, -EEXIST, -EFBIG (more than the hot limit: it could never be
 * loaded).
 */
int residency_register(
	struct residency *residency, uint32_t adapter, uint64_t bytes, uint64_t warm_bytes, uint64_t now_us);

/*
 * residency_adopt() - of one just registered: it is in GPU memory, or has a warm copy, or both, since whoever decided
 * before has had it brought there. Return: 0; -ENOENT; -EBUSY: it is on its way or there already; -ENOSPC: that is more
 * than may be, and nothing changed.
 */
int residency_adopt(struct residency *residency, uint32_t adapter, bool resident, bool copied, uint64_t now_us);

/* residency_forget() - an adapter is none any more, at once. Return: 0, -ENOENT, -EBUSY (in use, or on its way). */
int residency_forget(struct residency *residency, uint32_t adapter);

/*
 * residency_resize() - its warm copy needs other room than was said, such as for one that int8 does not suit; 0: it
 * cannot have one. Return: 0, -ENOENT, -EBUSY (it has one, or one is being made).
 */
int residency_resize(struct residency *residency, uint32_t adapter, uint64_t warm_bytes);

/*
 * residency_acquire() - a reference, and an access. It is counted from now on also while the adapter is on its way;
 * when the load fails it is there still, and the next acquisition tries again. Return: 1: resident, use it; 0: being
 * loaded, or queued for room that others make; and no reference with -ENOENT -ENOSPC  no room can be made: all is in
 * use; residency_holders() says by whom
 */
int residency_acquire(struct residency *residency, uint32_t adapter, uint64_t now_us);
void residency_release(struct residency *residency, uint32_t adapter, uint64_t now_us);

/* residency_pin() - as acquire, but no access: it stays until it is unpinned as often. */
int residency_pin(struct residency *residency, uint32_t adapter, uint64_t now_us);
void residency_unpin(struct residency *residency, uint32_t adapter, uint64_t now_us);

/* residency_access() - `count` uses by those who hold it, beside their acquisitions. */
void residency_access(struct residency *residency, uint32_t adapter, uint32_t count, uint64_t now_us);

/*
 * residency_prefetch() - somebody is about to acquire it: it is loaded if that displaces nothing that is in use or
 * expected, and then expected itself. Return: 1: resident; 0: on its way; -ENOENT; -ENOSPC: not now.
 */
int residency_prefetch(struct residency *residency, uint32_t adapter, uint64_t now_us);

/*
 * residency_unload() - it leaves GPU memory. Return: 0, also when it is not there; -ENOENT; -EBUSY: in use, or on its
 * way.
 */
int residency_unload(struct residency *residency, uint32_t adapter);

/* residency_next() - the next decision; false: there is none. */
bool residency_next(struct residency *residency, struct residency_decision *decision);

/*
 * residency_done() - what a decision asked for has been done, or, without ok, has failed. A SAVE that failed has freed
 * the memory all the same. Who could not be copied is not asked for a copy again until residency_resize(); a failed
 * load from a warm copy drops the copy. Return: 0; -EINVAL: it was not asked for.
 */
int residency_done(struct residency *residency, const struct residency_decision *decision, bool ok, uint64_t now_us);

/* residency_tick() - time has passed: warm copies for the idle, the end of what was expected, rebalancing. As often as
 * you like.
 */
void residency_tick(struct residency *residency, uint64_t now_us);

/* Of an adapter, or a number that is none: ABSENT, NO_COPY, 0. */
enum residency_hot residency_hot(const struct residency *residency, uint32_t adapter);
enum residency_warm residency_warm(const struct residency *residency, uint32_t adapter);
uint32_t residency_references(const struct residency *residency, uint32_t adapter);

/*
 * residency_holders() - who has GPU memory that cannot be taken: up to `most` of them in out[], lowest number first.
 * Return: how many there are in all. Cost: a look at each adapter.
 */
uint32_t residency_holders(const struct residency *residency, struct residency_holder *out, uint32_t most);

void residency_get_stats(const struct residency *residency, struct residency_stats *stats);

/* residency_check() - the invariants: NULL, or the words for one that does not hold. Cost: a look at each adapter,
 * several times.
 */
const char *residency_check(const struct residency *residency);

#endif
