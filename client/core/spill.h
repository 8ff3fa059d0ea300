/*
 * spill.h - blocks whose content can be spilled and restored into other pages (GPOOL_ALLOC_SPILL). Internal to
 * libgpool.
 *
 * The sequence in the tag of a handle identifies its content. A table in this process stores the current place of
 * content that has moved. The table is read only if the handle's own page no longer holds the block, so blocks that
 * never moved cost nothing. Only one thread restores a block; other threads that need the block wait for it.
 */
#ifndef GPOOL_CLIENT_SPILL_H
#define GPOOL_CLIENT_SPILL_H

#include "client/core/alloc.h"
#include "client/core/refill.h"

int spills_open(struct gpool *pool);
void spills_close(struct gpool *pool);

/*
 * spill_where() - find the place of a block that has moved. Return: 0, or -ESTALE if its place is unknown; it may be
 * spilled.
 */
int spill_where(struct gpool *pool, const struct gpool_block *block, struct gpool_block *place) COLD;

/*
 * spill_pin() - pin a block whose pin at the handle's place failed with `error`. Waits while the block is being
 * spilled, then finds its new place or restores it. *place: where it is pinned. Return: as gpool_pin().
 */
int spill_pin(struct gpool *pool, const struct gpool_block *block, int error, struct gpool_block *place) COLD;

/* A restore that is in progress without a waiting thread. */
struct spill_fetch {
	struct gpool_block block;
	struct lease_ticket ticket;
};

/* spill_here() - return true if the block is in the pool and not being spilled, and record a use of it. */
bool spill_here(struct gpool *pool, const struct gpool_block *block);

/*
 * spill_fetch_begin() - request that a block be restored, without the eviction of content. Threads that pin the block
 * wait until spill_fetch_end() is called, which is required. Return: 0, -EALREADY (it is in the pool), -EAGAIN (being
 * spilled, or restored by another thread), -ENOMEM, -EINTR, -EPIPE.
 * spill_fetch_end() - end the request. On success the block is in the pool, unpinned. Return: 0; -EAGAIN (not finished;
 * only without `wait`); -EBUSY (it was being spilled), -ENOSPC, or as gpool_pin().
 */
int spill_fetch_begin(struct gpool *pool, const struct gpool_block *block, struct spill_fetch *fetch);
int spill_fetch_end(struct gpool *pool, struct spill_fetch *fetch, bool wait);

/* spill_drop() - free a block without restoring it. Return: as gpool_discard(). */
int spill_drop(struct gpool *pool, const struct gpool_block *block) COLD;

/* spill_forget() - remove the place of a block that is freed. */
void spill_forget(struct gpool *pool, uint64_t tag) COLD;

/* pin_at() - gpool_pin() at the handle's place only; defined in pin.c. */
int pin_at(struct gpool *pool, const struct gpool_block *block);

#endif
