/*
 * rebalance.h - load evicted adapters again before a caller asks for them. Internal to client/lora.
 *
 * The agent evicts adapters by their worth, but only engines load adapters. An idle loader thread therefore looks for
 * an adapter that this process has used recently and that was evicted. If enough pages are free, it loads this adapter.
 * Such a load evicts nothing, leaves an eighth of the pool free, and is not repeated until the adapter is used again,
 * so that adapters are not loaded and evicted in turn. All functions are called under the lock.
 */
#ifndef GPOOL_CLIENT_LORA_REBALANCE_H
#define GPOOL_CLIENT_LORA_REBALANCE_H

#include "client/lora/load/lora.h"

/*
 * rebalance_begin() - set the interval, as in struct gpool_lora_options.
 * rebalance_due_ns() - return the time at which it ends, on the monotonic clock; UINT64_MAX: never.
 */
void rebalance_begin(struct gpool_lora *lora, uint32_t rebalance_ms);
uint64_t rebalance_due_ns(const struct gpool_lora *lora);
/*
 * rebalance() - add the uses since the last call to the worth of each adapter, and queue at most one adapter. Cost:
 * linear in the number of adapters.
 */
void rebalance(struct gpool_lora *lora);

#endif
