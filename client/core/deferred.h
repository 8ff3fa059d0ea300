/*
 * deferred.h - blocks that are freed and cannot end yet, and pins that end behind a fence. Internal to libgpool.
 *
 * A freed block waits in one of two kinds of list:
 *   behind a fence   one list for each stream slot, in order of fence values: only the heads are looked at. The block
 *   has no pin, so that the
 *                    agent may take it once the fence is reached; this library ends it at its next call, if it is still
 *                    there
 *   for other pins   with one pin of its own, until the other threads unpin it; each unpin of a dying block looks after
 *   it
 *
 * Cost: constant for each call. Fences of a stream are recorded in order, so an insertion looks at the tail of one
 * list; a sweep looks at one head for each stream that has something waiting, and at a few of those that wait for pins.
 */
#ifndef GPOOL_CLIENT_DEFERRED_H
#define GPOOL_CLIENT_DEFERRED_H

#include "client/core/thread_cache.h"

#include <sys/queue.h>

/*
 * Ends a freed block; called with deferred->lock held. If it is not `taken`, the block is claimed (BLOCK_DYING) and has
 * one pin, that of the caller, and its pages become idle. `taken`: the agent has taken the pages, or they were reused:
 * only the records of the block in this process end.
 * Return: 0, or -EBUSY: GPU work still uses the address of a scattered block.
 */
typedef int (*deferred_finish)(struct gpool *pool, const struct gpool_block *block, bool taken);

/* One that waits; deferred.c's alone. */
struct deferred {
	TAILQ_ENTRY(deferred) link;
	struct gpool_block block;
	deferred_finish finish; /* of a freed block */
	uint64_t fence;         /* of a stream, which is the list: value: 48 bits, slot: 16; 0: waits for pins */
	uint32_t kind;
	uint32_t own_pins; /* 1: it waits for other pins, or there was no joint fence for it */
};

int deferred_open(struct gpool *pool);
void deferred_close(struct gpool *pool);

/*
 * deferred_free() - a block whose tag is claimed (BLOCK_DYING); the pin is kept for it. `block` has the tag without
 * DYING.
 */
void deferred_free(struct gpool *pool, const struct gpool_block *block, uint64_t fence, deferred_finish finish);

/* deferred_unpin() - end one pin of a block behind a fence: 0, -ENOMEM. */
int deferred_unpin(struct gpool *pool, const struct gpool_block *block, uint64_t fence);

/* deferred_unpinned() - somebody let go of a dying block; perhaps it was the last one. */
void deferred_unpinned(struct gpool *pool, uint32_t page) COLD;

/*
 * deferred_reuse() - a block of this size whose end waits in this stream: work queued there comes after what it waits
 * for.
 */
bool deferred_reuse(struct gpool *pool, struct thread_cache *cache, uint32_t slot, uint32_t page_count,
	const struct block_attributes *attributes, struct gpool_block *block);

#endif
