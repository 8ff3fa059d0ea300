/*
 * spill.h - blocks whose content is spilled and restored into other pages (GPOOL_ALLOC_SPILL). Internal to libgpool.
 *
 * A handle names content by the sequence in its tag. The present place of moved content is stored in a table of this
 * process. The table is not read while the handle's own page still holds its block, so blocks that never moved cost
 * nothing. One thread restores a block; other threads that need it wait for that thread.
 */
#ifndef GPOOL_CLIENT_SPILL_H
#define GPOOL_CLIENT_SPILL_H

#include "client/core/alloc.h"
#include "client/core/refill.h"

int spills_open(struct gpool *pool);
void spills_close(struct gpool *pool);

/* spill_where() - return the place of a block that has moved. -ESTALE: unknown; it may be spilled. */
int spill_where(struct gpool *pool, const struct gpool_block *block, struct gpool_block *place) COLD;

/*
 * spill_pin() - pin a block whose pin at the handle's place failed with `error`: wait while it is being spilled, find
 * its new place, or restore it. *place: where it is pinned. Return: as gpool_pin().
 */
int spill_pin(struct gpool *pool, const struct gpool_block *block, int error, struct gpool_block *place) COLD;

/* A block that is being restored without a waiting thread. */
struct spill_fetch {
	struct gpool_block block;
	struct lease_ticket ticket;
};

/* spill_here() - return true if the block is in the pool and not being spilled; in this case record a use of it. */
bool spill_here(struct gpool *pool, const struct gpool_block *block);

/*
 * spill_fetch_begin() - request that a block be restored into free pages; nothing is evicted for it. Threads that pin
 * it wait until spill_fetch_end() is called, which is required. Return: 0, -EALREADY (it is in the pool), -EAGAIN
 * (being spilled, or restored by another thread), -ENOMEM, -EINTR, -EPIPE.
 * spill_fetch_end() - end the request: the block is in the pool, unpinned. Return: 0; -EAGAIN (not yet; only without
 * `wait`); -EBUSY (it was being spilled), -ENOSPC, or as gpool_pin().
 */
int spill_fetch_begin(struct gpool *pool, const struct gpool_block *block, struct spill_fetch *fetch);
int spill_fetch_end(struct gpool *pool, struct spill_fetch *fetch, bool wait);

/* spill_drop() - free a block without restoring it. */
int spill_drop(struct gpool *pool, const struct gpool_block *block) COLD;

/* spill_forget() - remove the place of a block that is freed. */
void spill_forget(struct gpool *pool, uint64_t tag) COLD;

/*
 * spill_now() - spill an unpinned block. Return: 0, -ESTALE, -EBUSY (pinned, or behind a fence), -ENOSPC, -EIO, -EPIPE.
 */
int spill_now(struct gpool *pool, const struct gpool_block *block);

/* pin_at() - gpool_pin() at the handle's place only; in pin.c. */
int pin_at(struct gpool *pool, const struct gpool_block *block);

#endif
