/* block.c - see block.h. */
#include "client/core/block.h"

#include "client/core/stream.h"
#include "shm/doorbell.h"
#include "shm/timeline.h"

enum {
	RUN_PIN_TRIES = 1000,      /* inspections by the agent in succession; more means that it has ended for good */
	SETTLE_SPINS = 64,         /* a look of the agent lasts less than a microsecond: about that long */
	SETTLE_SLICE_NS = 1000000, /* the agent wakes waiters; the limit is for an agent that died meanwhile */
	GONE_SLICES = 256,         /* between two checks for a further agent */
};

int run_pin(const struct gpool *pool, uint32_t page, uint64_t *word)
{
	uint64_t now;

	for (int tries = 0;; tries++) {
		now = pin_raise(&pool->session, pool->pages, page);
		if (page_word_state(now) == PAGE_LEASED)
			break;
		pin_drop(&pool->session, page);
		/* No block starts here, so the agent restores the word at the end of its inspection. */
		if (!page_word_in_motion(now) || page_word_owner(now) != pool->id || tries == RUN_PIN_TRIES)
			return -ESTALE;
		word_settle(pool, page);
	}
	if (page_word_owner(now) != pool->id) {
		pin_drop(&pool->session, page);
		return -ESTALE;
	}
	*word = now;
	return 0;
}

void word_settle(const struct gpool *pool, uint32_t page)
{
	for (int slices = 1;; slices++) {
		uint64_t word = atomic_load_explicit(&pool->pages[page], memory_order_seq_cst);

		if (!page_word_in_motion(word) || (slices % GONE_SLICES == 0 && pool_gone(pool)))
			return;
		if (slices < SETTLE_SPINS)
			cpu_relax();
		else
			futex_wait(page_word_high(pool, page), (uint32_t)(word >> 32), SETTLE_SLICE_NS);
	}
}

/*
 * unpin_after unpins at once and stores the fence in the entry, which the agent respects. An entry has room for one
 * fence: together with the unfinished fence of another stream it becomes a joint fence.
 */
bool entry_fence_raise(struct gpool *pool, struct block_entry *entry, uint64_t fence)
{
	uint64_t old = atomic_load_explicit(&entry->fence, memory_order_acquire), joined;

	do {
		joined = fence;
		if (fence_slot(old) == fence_slot(fence) ? old >= fence : false)
			return true;
		if (fence_slot(old) != fence_slot(fence) && !fence_signaled(&pool->session, old))
			joined = fence_joined(pool, old, fence);
		if (!joined)
			return false;
	} while (!atomic_compare_exchange_weak_explicit(
		&entry->fence, &old, joined, memory_order_acq_rel, memory_order_acquire));
	return true;
}
