/*
 * rebalance.h - adapters that have left the pool, and come back before somebody asks for them. Internal to client/lora.
 *
 * The agent lets them go by what they are worth, and brings nothing back: engines load. So it is a loader that has
 * nothing else to do that looks what this process used lately and has lost. Where the room for it is free, one of them
 * is loaded as others are, but that its pages displace nothing.
 *
 * That is why nothing goes to and fro: what comes back takes the place of nobody, leaves an eighth of the pool to those
 * who come next, and comes back but once before it is used again. All of it is under the lock.
 */
#ifndef GPOOL_CLIENT_LORA_REBALANCE_H
#define GPOOL_CLIENT_LORA_REBALANCE_H

#include "client/lora/load/lora.h"

/* rebalance_begin() - as struct gpool_lora_options.rebalance_ms says. */
void rebalance_begin(struct gpool_lora *lora, uint32_t rebalance_ms);
bool rebalance_is_due(const struct gpool_lora *lora);
/*
 * rebalance() - learn what was used since the last time, and queue what comes back, if anything. Cost: looks at each
 * adapter.
 */
void rebalance(struct gpool_lora *lora);
/* rebalance_wait() - until there is something to load, or it is due. */
void rebalance_wait(struct gpool_lora *lora);

#endif
