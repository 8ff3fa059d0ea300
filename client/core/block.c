#include "client/core/block.h"

#include "client/core/stream.h"
#include "shm/doorbell.h"
#include "shm/timeline.h"

enum {
	RUN_PIN_TRIES = 1000,      /* consecutive inspections by the agent; more: the agent has ended permanently */
	SETTLE_SPINS = 64,         /* about the duration of an inspection by the agent, less than a microsecond */
	SETTLE_SLICE_NS = 1000000, /* the agent wakes waiters; this limits the wait if the agent has died */
	GONE_SLICES = 256,         /* slices between two checks whether an agent is still attached */
};

int run_pin(const struct gpool *pool, uint32_t page, uint64_t *word)
{
	uint64_t now;

	for (int tries = 0;; tries++) {
		now = pin_raise(&pool->session, pool->pages, page);
		if (page_word_state(now) == PAGE_LEASED)
			break;
		pin_drop(&pool->session, page);
		/* No block starts here, so the agent restores the page word at the end of its inspection. */
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
 * unpin_after unpins immediately and stores the fence in the entry; the agent does not take the block before the fence
 * is signaled. An entry has room for one fence. If it already has an unfinished fence of another stream, both are
 * combined into a joint fence.
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
