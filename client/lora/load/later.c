/* later.c - choose the copies that are to be made, and the time at which they are made. */
#include "client/lora/load/later.h"

#include "client/lora/load/limits.h"

#include <errno.h>
#include <stdlib.h>

uint32_t later_idle_ms(const struct gpool_lora *lora)
{
	return lora->idle_ms ? lora->idle_ms
			     : atomic_load_explicit(&lora->pool->header->compression_ms, memory_order_relaxed);
}

/* ---- register ---- */

/* Insert a copy into the list that is ordered by since_ms. */
static void rest_insert(struct gpool_lora *lora, struct lora_later *later)
{
	struct lora_later *before = TAILQ_LAST(&lora->resting, lora_later_list);

	while (before && (int32_t)(before->since_ms - later->since_ms) > 0)
		before = TAILQ_PREV(before, lora_later_list, link);
	if (before)
		TAILQ_INSERT_AFTER(&lora->resting, before, later, link);
	else
		TAILQ_INSERT_HEAD(&lora->resting, later, link);
}

static int add(struct gpool_lora *lora, const struct lora_later *wanted, bool rests)
{
	struct lora_later *later = malloc(sizeof(*later));

	if (!later)
		return -ENOMEM;
	*later = *wanted;
	later->adapter->refs++;
	if (rests)
		rest_insert(lora, later);
	else
		TAILQ_INSERT_TAIL(&lora->later, later, link);
	return 0;
}

void later_load(const struct lora_load *load)
{
	struct gpool_lora *lora = load->lora;
	struct lora_later later = {
		.adapter = load->adapter,
		.id = load->entry->id,
		.since_ms = pool_clock(lora->pool),
		.warm_refused = load->warm_refused,
		.cold_refused = load->cold_refused,
		.warm = lora->warm && !lora->residency && load->from != LORA_FROM_WARM,
		.cold = lora->cold_fd >= 0 && load->from != LORA_FROM_COLD,
	};

	if (load->shared)
		return;
	if (lora->residency)
		limits_loaded(lora, load);
	if (load->unasked)
		return;
	if (later.warm && later_idle_ms(lora)) {
		struct lora_later rests = later;

		rests.cold = later.warm = false;
		add(lora, &rests, true);
	}
	if (later.warm || later.cold)
		add(lora, &later, false);
}

int later_decided(struct gpool_lora *lora, struct lora_entry *entry)
{
	const struct lora_later later = {.adapter = entry->adapter,
		.id = entry->id,
		.warm = true,
		.decided = true,
		.warm_refused = entry->warm_refused};

	return add(lora, &later, false);
}

/* ---- take ---- */

/*
 * Move the copies that are due from lora->resting to lora->later. lora->resting is ordered by the last use that was
 * known at the insertion, so only the first copies need a check. If a copy was used later, it is inserted again.
 */
static void rest_look(struct gpool_lora *lora)
{
	uint32_t now_ms = pool_clock(lora->pool), idle_ms = later_idle_ms(lora);
	struct lora_later *later;

	while ((later = TAILQ_FIRST(&lora->resting)) && now_ms - later->since_ms >= idle_ms) {
		const struct lora_entry *entry = entry_of(lora, later->id);

		if (entry && entry->adapter == later->adapter) {
			if (entry->acquired || entry->waiting)
				later->since_ms = now_ms;
			else if (entry->acquires && (int32_t)(entry->used_ms - later->since_ms) > 0)
				later->since_ms = entry->used_ms;
		}
		TAILQ_REMOVE(&lora->resting, later, link);
		if (now_ms - later->since_ms < idle_ms)
			rest_insert(lora, later);
		else
			TAILQ_INSERT_TAIL(&lora->later, later, link);
	}
}

uint64_t later_due_ns(struct gpool_lora *lora)
{
	const struct lora_later *first;
	uint32_t passed_ms, idle_ms;

	if (lora->copying)
		return UINT64_MAX;
	rest_look(lora);
	if (!TAILQ_EMPTY(&lora->later))
		return 0;
	first = TAILQ_FIRST(&lora->resting);
	if (!first)
		return UINT64_MAX;
	passed_ms = pool_clock(lora->pool) - first->since_ms;
	idle_ms = later_idle_ms(lora);
	/* The clock is coarse, so it may not have reached the time yet. */
	return monotonic_ns() + (passed_ms < idle_ms ? idle_ms - passed_ms : 1) * UINT64_C(1000000);
}

static void later_free(struct lora_later *later)
{
	adapter_unref(later->adapter);
	free(later);
}

void later_take(struct lora_loader *loader)
{
	struct gpool_lora *lora = loader->lora;
	struct lora_later *later = TAILQ_FIRST(&lora->later);

	TAILQ_REMOVE(&lora->later, later, link);
	lora->copying = true;
	pthread_mutex_unlock(&lora->lock);
	copies_make(loader, later);
	pthread_mutex_lock(&lora->lock);
	lora->copying = false;
	if (later->decided)
		limits_copied(lora, later);
	later_free(later);
}

void later_drop(struct gpool_lora *lora)
{
	struct lora_later *later;

	while ((later = TAILQ_FIRST(&lora->resting))) {
		TAILQ_REMOVE(&lora->resting, later, link);
		later_free(later);
	}
	while ((later = TAILQ_FIRST(&lora->later))) {
		TAILQ_REMOVE(&lora->later, later, link);
		later_free(later);
	}
}
