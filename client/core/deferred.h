/*
 * deferred.h - freed blocks and unpins that are deferred until fences are signaled or other pins end. Internal to
 * libgpool.
 *
 * A freed block waits in one of two kinds of lists:
 *   with a fence     One list for each stream slot, ordered by fence value, so only the heads are checked. The block
 *                    has no pin, except if no joint fence was free for it. The agent may take it once the fence is
 *                    signaled; otherwise the library ends it in a later call.
 *   for other pins   The block keeps one pin of its own until all other threads have unpinned it. Each unpin of a dying
 *                    block checks that block.
 *
 * Cost: usually constant for each call. A stream records its fences in order, so an insertion usually compares only
 * with the tail of one list. A sweep checks the head of each nonempty stream list, and a few of the blocks that wait
 * for pins.
 */
#ifndef GPOOL_CLIENT_DEFERRED_H
#define GPOOL_CLIENT_DEFERRED_H

#include "client/core/thread_cache.h"

#include <sys/queue.h>

/*
 * End a freed block. Called with deferred->lock held.
 *   taken false   The block is claimed (BLOCK_DYING) and has only the caller's pin. Its pages become idle.
 *   taken true    The agent has taken the pages, or they were reused. Only this process's records of the block are
 *                 removed.
 * Return: 0, or -EBUSY: GPU work still uses the address of a scattered block.
 */
typedef int (*deferred_finish)(struct gpool *pool, const struct gpool_block *block, bool taken);

/* A deferred free or unpin; used only in deferred.c. */
struct deferred {
	TAILQ_ENTRY(deferred) link;
	struct gpool_block block;
	deferred_finish finish; /* set for deferred frees */
	uint64_t fence;         /* value: 48 bits, slot: 16 bits; the slot selects the list; 0: waits for pins */
	uint32_t kind;
	uint32_t own_pins; /* 1: the block waits for other pins, or no joint fence was free for it */
};

int deferred_open(struct gpool *pool);
void deferred_close(struct gpool *pool);

/*
 * deferred_free() - defer the free of a block whose tag is claimed (BLOCK_DYING), and take over the caller's pin. The
 * tag in `block` does not have BLOCK_DYING.
 */
void deferred_free(struct gpool *pool, const struct gpool_block *block, uint64_t fence, deferred_finish finish);

/* deferred_unpin() - defer one unpin of a block until a fence is signaled. Return: 0, -ENOMEM. */
int deferred_unpin(struct gpool *pool, const struct gpool_block *block, uint64_t fence);

/* deferred_unpinned() - end a dying block if it has no other pin; called after a thread has unpinned it. */
void deferred_unpinned(struct gpool *pool, uint32_t page) COLD;

/*
 * deferred_reuse() - reuse a block of this size whose free waits in this stream. No wait is needed: new work on the
 * stream is executed after the work for which the block waits. Return false if none of the last REUSE_LOOKS blocks of
 * the stream is suitable.
 */
bool deferred_reuse(struct gpool *pool, struct thread_cache *cache, uint32_t slot, uint32_t page_count,
	const struct block_attributes *attributes, struct gpool_block *block);

#endif
