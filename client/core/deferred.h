/*
 * deferred.h - freed blocks and unpins that are deferred behind fences or other pins. Internal to libgpool.
 *
 * A freed block waits in one of two kinds of lists:
 *   behind a fence   One list for each stream slot, in order of fence values: only the heads are checked. The block has
 *                    no pin, so that the agent may take it once the fence is signaled; otherwise the library ends it at
 *                    its next call.
 *   for other pins   The block keeps one pin of its own until the other threads have unpinned it; each unpin of a dying
 *                    block checks it.
 *
 * Cost: constant for each call. Fences of a stream are recorded in order, so an insertion checks the tail of one list;
 * a sweep checks one head for each stream with deferred entries, and a few of the blocks that wait for pins.
 */
#ifndef GPOOL_CLIENT_DEFERRED_H
#define GPOOL_CLIENT_DEFERRED_H

#include "client/core/thread_cache.h"

#include <sys/queue.h>

/*
 * End a freed block; called with deferred->lock held. taken false: the block is claimed (BLOCK_DYING) and has one pin,
 * that of the caller; its pages become idle. taken true: the agent has taken the pages, or they were reused; only the
 * records of the block in this process are removed.
 * Return: 0, or -EBUSY: GPU work still uses the address of a scattered block.
 */
typedef int (*deferred_finish)(struct gpool *pool, const struct gpool_block *block, bool taken);

/* A deferred entry; used only in deferred.c. */
struct deferred {
	TAILQ_ENTRY(deferred) link;
	struct gpool_block block;
	deferred_finish finish; /* set for freed blocks */
	uint64_t fence; /* of a stream, which determines the list: value: 48 bits, slot: 16; 0: waits for pins */
	uint32_t kind;
	uint32_t own_pins; /* 1: it waits for other pins, or no joint fence was free for it */
};

int deferred_open(struct gpool *pool);
void deferred_close(struct gpool *pool);

/*
 * deferred_free() - defer the free of a block whose tag is claimed (BLOCK_DYING), and take over the caller's pin.
 * `block` has the tag without DYING.
 */
void deferred_free(struct gpool *pool, const struct gpool_block *block, uint64_t fence, deferred_finish finish);

/* deferred_unpin() - defer one unpin of a block behind a fence: 0, -ENOMEM. */
int deferred_unpin(struct gpool *pool, const struct gpool_block *block, uint64_t fence);

/* deferred_unpinned() - a thread has unpinned a dying block: end it if that was the last pin. */
void deferred_unpinned(struct gpool *pool, uint32_t page) COLD;

/*
 * deferred_reuse() - reuse a block of this size whose free waits in this stream: work that is queued there is executed
 * after the work for which the block waits.
 */
bool deferred_reuse(struct gpool *pool, struct thread_cache *cache, uint32_t slot, uint32_t page_count,
	const struct block_attributes *attributes, struct gpool_block *block);

#endif
