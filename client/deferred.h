/*
 * deferred.h - blocks that are freed and cannot end yet, and pins that end behind a fence. Internal to libgpool.
 *
 * A block waits in one of two kinds of list, always with one pin of its own, so that the agent leaves it alone:
 *   behind a fence   one list for each stream slot, in order of fence values: only the heads are looked at
 *   for other pins   until those who still pin it unpin; each unpin of a dying block looks after it
 * And whoever else in this library has something to do behind a fence leaves a call here.
 *
 * Cost: constant for each call. Fences of a stream are recorded in order, so an insertion looks at the tail of one list; a sweep
 * looks at one head for each stream that has something waiting, and at a few of those that wait for pins.
 */
#ifndef GPOOL_CLIENT_DEFERRED_H
#define GPOOL_CLIENT_DEFERRED_H

#include "client/alloc.h"

#include <sys/queue.h>

/* One that waits; deferred.c's alone. */
struct deferred {
	TAILQ_ENTRY(deferred) link;
	struct gpool_block block;
	uint64_t fence; /* value: 48 bits, slot: which list; 0: waits for pins */
	uint32_t kind;
};

/* In the caller's memory. reached() is called once, by whatever thread finds the fence reached, with the lock of these lists held. */
struct deferred_call {
	struct deferred entry;
	void (*reached)(struct gpool *pool, struct deferred_call *call);
};

int deferred_open(struct gpool *pool);
void deferred_close(struct gpool *pool);

/* deferred_free() - a block whose tag is claimed (BLOCK_DYING); the pin is kept for it. `block` has the tag without DYING. */
void deferred_free(struct gpool *pool, const struct gpool_block *block, uint64_t fence);

/* deferred_unpin() - end one pin of a block behind a fence: 0, -ENOMEM. */
int deferred_unpin(struct gpool *pool, const struct gpool_block *block, uint64_t fence);

/* deferred_call() - behind a fence; at once when that is reached already. deferred_cancel() - one that was not called, and is not any more. */
void deferred_call(struct gpool *pool, struct deferred_call *call, uint64_t fence);
void deferred_cancel(struct gpool *pool, struct deferred_call *call);

/* deferred_unpinned() - somebody let go of a dying block; perhaps it was the last one. */
void deferred_unpinned(struct gpool *pool, uint32_t page) COLD;

/* deferred_reuse() - a block of this size whose end waits in this stream: work queued there comes after what it waits for. */
bool deferred_reuse(struct gpool *pool, struct thread_cache *cache, uint32_t slot, uint32_t page_count,
	const struct block_attributes *attributes, struct gpool_block *block);

/* deferred_sweep_now() - unless another thread is at it. deferred_sweep_wait() - also then: all that has been reached so far has ended. */
void deferred_sweep_now(struct gpool *pool) COLD;
void deferred_sweep_wait(struct gpool *pool) COLD;

/* deferred_sweep() - end what can end by now. */
static inline void deferred_sweep(struct gpool *pool)
{
	if (unlikely(atomic_load_explicit(&pool->deferred_count, memory_order_relaxed)))
		deferred_sweep_now(pool);
}

#endif
