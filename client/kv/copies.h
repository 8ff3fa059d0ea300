/*
 * copies.h - queue copies of blocks on the cache's stream: one launch of the kernel block_copy for several. Internal to
 * libgpool. The callers hold the cache's lock.
 *
 * Copies are collected, and queued when the list is full or holds a copy that must come first, and by copies_end().
 * Adjacent copies become one. A single copy is queued as gpool_copy(); so are all of them if the library has no
 * kernels.
 */
#ifndef GPOOL_CLIENT_KV_COPIES_H
#define GPOOL_CLIENT_KV_COPIES_H

#include "client/kv/kv.h"
#include "cuda/kernels/block_copy.h"

struct copies {
	struct gpool_kv *kv;
	struct block_copy_args list;
};

void copies_begin(struct copies *copies, struct gpool_kv *kv);
/*
 * copies_add() - copy a block after all copies that were added before.
 * copies_end() - queue the copies that are left.
 * Return: 0, or as gpool_copy(); earlier copies may be queued.
 */
int copies_add(struct copies *copies, uint32_t to, uint32_t from);
int copies_end(struct copies *copies);

#endif
