/* tails_pack.h - free shared pages. Internal to client/lora. */
#ifndef GPOOL_CLIENT_LORA_TAILS_PACK_H
#define GPOOL_CLIENT_LORA_TAILS_PACK_H

#include "client/lora/load/lora.h"

/*
 * tails_freed() - report that a tail was freed; under the lock.
 * tails_placed() - report that a load with a tail has ended; under the lock. If it needed another page, the agent may
 * have evicted adapters of which this process still has the tails.
 * tails_pack() - free the tails of evicted adapters, and try to empty one shared page, in a loader thread that has no
 * other work. The lock is released during copies. lora->unpacked is then set if another attempt may succeed.
 */
void tails_freed(struct gpool_lora *lora);
void tails_placed(struct gpool_lora *lora);
void tails_pack(struct lora_loader *loader);

#endif
