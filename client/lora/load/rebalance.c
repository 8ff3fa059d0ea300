#include "client/lora/load/rebalance.h"

#include "client/lora/load/load.h"

enum {
	DEFAULT_MS = 10000, /* chosen: limits the bandwidth for loads for which no caller has asked */
	RESERVE = 8,        /* one page in RESERVE stays free for other requests */
};

static const struct worth_terms terms = WORTH_TERMS_INIT;

void rebalance_begin(struct gpool_lora *lora, uint32_t rebalance_ms)
{
	lora->rebalance_ms = rebalance_ms ? rebalance_ms : DEFAULT_MS;
	lora->rebalance_ns = monotonic_ns() + lora->rebalance_ms * UINT64_C(1000000);
}

uint64_t rebalance_due_ns(const struct gpool_lora *lora)
{
	return lora->rebalance_ms == UINT32_MAX ? UINT64_MAX : lora->rebalance_ns;
}

/* ---- candidates ---- */

/*
 * Include new acquires in the worth. An acquire itself only increments a counter, because the logarithm that the worth
 * requires would double its cost.
 */
static void uses_learn(struct lora_entry *entry, uint64_t now_us)
{
	uint64_t uses = entry->acquires - entry->acquires_learned;

	if (!uses)
		return;
	if (!entry->worth.window_us)
		worth_begin(&terms, &entry->worth, now_us);
	worth_count(&terms, &entry->worth, uses < UINT32_MAX ? (uint32_t)uses : UINT32_MAX, now_us);
	entry->acquires_learned = entry->acquires;
}

/*
 * Return the number of free pages beyond the reserve, or 0 if the pressure is not low or a session waits for pages.
 * Idle pages of sessions are not included, because the sessions are likely to use them.
 */
static uint32_t pages_to_spare(const struct gpool *pool)
{
	uint32_t free = atomic_load_explicit(&pool->header->state_pages[PAGE_FREE], memory_order_relaxed),
		 stay = pool->page_count / RESERVE;

	if (gpool_pressure(pool) != GPOOL_PRESSURE_LOW ||
		atomic_load_explicit(&pool->header->waiters, memory_order_relaxed))
		return 0;
	return free > stay ? free - stay : 0;
}

/*
 * Return true if the adapter is no longer in the pool. This is checked without a pin, because a pin counts as a use.
 */
static bool has_left(const struct gpool_lora *lora, const struct lora_entry *entry)
{
	return entry->state == GPOOL_LORA_COLD ||
		(entry->state == GPOOL_LORA_RESIDENT && !entry->load && entry_is_gone(lora, entry));
}

static bool may_come_back(
	const struct gpool_lora *lora, struct lora_entry *entry, uint32_t uses_least, uint32_t pages, uint64_t now_us)
{
	if (entry->acquires == entry->acquires_spent || entry->acquired || entry->waiting ||
		worth_recent(&terms, &entry->worth, now_us) < uses_least)
		return false;
	return has_left(lora, entry) && entry->adapter->layout.header->pages <= pages;
}

/*
 * Return the best candidate. The cost of a load is proportional to its size, and worth_of() divides by the size, so it
 * is sufficient to compare the uses.
 */
static struct lora_entry *best_of(const struct gpool_lora *lora, uint64_t now_us)
{
	uint32_t pages = pages_to_spare(lora->pool);
	uint32_t uses_least = atomic_load_explicit(&lora->pool->header->promotion_uses, memory_order_relaxed);
	struct lora_entry *best = NULL;

	for (uint32_t i = 0; i < lora->entry_count; i++) {
		struct lora_entry *entry = lora->entries[i];

		if (!entry)
			continue;
		uses_learn(entry, now_us);
		if (may_come_back(lora, entry, uses_least, pages, now_us) &&
			(!best || entry->worth.heat > best->worth.heat))
			best = entry;
	}
	return best;
}

void rebalance(struct gpool_lora *lora)
{
	uint64_t now_ns = monotonic_ns();
	struct lora_entry *entry = best_of(lora, now_ns / 1000);

	lora->rebalance_ns = now_ns + lora->rebalance_ms * UINT64_C(1000000);
	/* Load one adapter at a time, and only while no other load is in progress. */
	if (!entry || lora->loads)
		return;
	if (entry->state == GPOOL_LORA_RESIDENT) {
		if (entry_close(lora, entry))
			return;
		entry->counts.lost++;
	}
	entry->acquires_spent = entry->acquires;
	entry->error = 0;
	load_set_state(lora, entry, LOAD_QUEUED_UNASKED);
}
