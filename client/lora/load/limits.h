/*
 * limits.h - keep the adapters of a set within hot_bytes and hot_adapters, and their copies in host memory within
 * warm_bytes and warm_adapters (struct gpool_lora_options). Internal to client/lora.
 *
 * Without limits, a load begins when a caller requests it, the agent evicts adapters when pages are needed, and copies
 * are made as later.h describes. With limits, the residency policy (residency.h) decides all of these:
 *
 *   callers: acquire, release, prefetch --> limits_want(), limits_prefetch(), limits_update() --> policy
 *   loader threads: limits_take() <-- its decisions: begin a load; evict an adapter; make or delete a copy
 *   load_set_state() --> lora->follow: the end of a load, or an eviction by the agent --> policy
 *
 * The policy considers an adapter as used while it is acquired, or a caller waits for it, or it is a draft, or a fence
 * of its last release is not signaled. A fence signals no thread, so entries that only fences hold are in lora->fenced
 * and are checked before each request to the policy. No load waits for a fence or for a copy: copies are made from
 * files, so the policy evicts and loads at once, or refuses.
 *
 * A decision is executed some time after it is made. If the adapter is acquired again before its eviction, it is
 * evicted after its last use, unless the policy decides in the meantime to load it again. Until then, the limits are
 * exceeded.
 *
 * All functions are called under the lock, except limits_begin() and limits_end(). They may be called only for a set
 * with limits, except limits_begin(), limits_end(), limits_update() and limits_have().
 */
#ifndef GPOOL_CLIENT_LORA_LIMITS_H
#define GPOOL_CLIENT_LORA_LIMITS_H

#include "client/lora/load/lora.h"

enum { LIMITS_ADAPTERS_MAX = 65536 }; /* chosen: the memory of the policy is allocated for this number, but not used */

/*
 * limits_begin() - create the policy if the options have a limit; after rebalance_begin(). Return: 0, -ENOMEM.
 * limits_end() - destroy it.
 */
int limits_begin(struct gpool_lora *lora, const struct gpool_lora_options *options);
void limits_end(struct gpool_lora *lora);

/*
 * limits_register() - register an adapter of `pages` pages. Return: 0; -ENOSPC: too many adapters, or -EINVAL: it is
 * larger than the limit, with a reason.
 * limits_unregister() - forget a cold adapter. Return: 0, -EBUSY: its load has been decided.
 */
int limits_register(struct gpool_lora *lora, uint32_t id, uint32_t pages, struct reason *reason);
int limits_unregister(struct gpool_lora *lora, struct lora_entry *entry);

/*
 * limits_want() - request the load of a COLD adapter for a caller. It is POSTPONED until the policy decides, or remains
 * COLD with an error if the other adapters in use leave no room.
 * limits_prefetch() - request the load of an adapter that will be acquired.
 */
void limits_want(struct gpool_lora *lora, struct lora_entry *entry);
void limits_prefetch(struct gpool_lora *lora, struct lora_entry *entry);

/* Report to the policy whether the adapter is used. Call it after changes of entry->acquired or entry->waiting. */
void limits_report(struct gpool_lora *lora, struct lora_entry *entry);
static inline void limits_update(struct gpool_lora *lora, struct lora_entry *entry)
{
	if (unlikely(lora->residency != NULL))
		limits_report(lora, entry);
}

/*
 * limits_loaded() - report at the end of a load whether it has found a copy in host memory.
 * limits_copied() - report the result of a copy that the policy has decided.
 */
struct lora_later;
void limits_loaded(struct gpool_lora *lora, const struct lora_load *load);
void limits_copied(struct gpool_lora *lora, const struct lora_later *later);

/* limits_count() - count a use. */
void limits_count(struct gpool_lora *lora, const struct lora_entry *entry);

/*
 * Work for loader threads; limits_take() releases the lock.
 *   limits_have()   Return: true if there is a decision that no thread executes
 *   limits_take()   Execute a decision
 *   limits_tick()   Rebalance, and find the adapters that the agent has evicted. Cost: linear in their number
 *   limits_due_ns() Return the time at which limits_look() has work, on the monotonic clock; UINT64_MAX: none
 *   limits_look()   Make copies of idle adapters, and find those that only fences held
 */
bool limits_have(struct gpool_lora *lora);
void limits_take(struct gpool_lora *lora);
void limits_tick(struct gpool_lora *lora);
uint64_t limits_due_ns(const struct gpool_lora *lora);
void limits_look(struct gpool_lora *lora);

#endif
