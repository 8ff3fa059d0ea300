/* tails_pack.h - free shared pages. Internal to client/lora. */
#ifndef GPOOL_CLIENT_LORA_TAILS_PACK_H
#define GPOOL_CLIENT_LORA_TAILS_PACK_H

#include "client/lora/load/lora.h"

/*
 * tails_freed() - Report that a tail was freed; under the lock.
 * tails_pack() - Try to empty one shared page, in a loader thread that has no other work. The lock is released during
 * copies. lora->unpacked is then set if another attempt may succeed.
 */
void tails_freed(struct gpool_lora *lora);
void tails_pack(struct lora_loader *loader);

#endif
