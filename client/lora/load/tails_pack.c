/*
 * tails_pack.c - free the tails of evicted adapters, and move those of adapters that are not used out of the emptiest
 * shared page, so that it is freed.
 *
 * The content is copied without the lock, to places that no other thread knows. An acquisition in the meantime gets the
 * old addresses, and the copy is dropped. If the adapter is closed in the meantime, this thread frees its tail.
 */
#include "client/lora/load/tails_pack.h"

#include <errno.h>
#include <string.h>

/* Copy the runs whose places differ, without the table, and wait for the copies. */
static int content_copy(struct lora_loader *loader, const struct tail *from, const struct tail *to)
{
	struct gpool *pool = loader->lora->pool;
	struct gpool_fence fence;
	int error = 0, late;

	for (uint32_t i = 0; i < tail_runs(from) && !error; i++) {
		const struct tail_piece *source = &from->pieces[i], *target = &to->pieces[i];

		if (source->address == target->address)
			continue;
		if (loader->stage)
			error = gpool_copy(pool, loader->stream, target->address, source->address, source->bytes);
		else
			memcpy((void *)(uintptr_t)target->address, (const void *)(uintptr_t)source->address,
				source->bytes);
	}
	if (!loader->stage)
		return 0;
	late = gpool_fence_record(pool, loader->stream, &fence);
	if (!late)
		late = gpool_fence_wait(pool, fence, -1);
	return error ? error : late;
}

static bool is_idle(struct gpool_lora *lora, struct lora_entry *entry)
{
	return entry->load_state == LOAD_RESIDENT && !entry->acquired && !entry->waiting && !entry_is_used(lora, entry);
}

/* Free a tail that is pinned once. */
static void drop(struct gpool_lora *lora, struct tail *tail, const struct tail *other)
{
	if (pool_gpu_failed(lora->pool)) {
		tail_abandon(&lora->tails, tail);
		return;
	}
	tail_unpin(lora->pool, tail, GPOOL_FENCE_NONE);
	tail_free(&lora->tails, lora->pool, tail, other);
}

/* Move the content to `to` and make its table of runs; without the lock. */
static int move_make(struct lora_loader *loader, const struct adapter *adapter, uint64_t base, const struct tail *from,
	const struct tail *to, struct lora_runs *runs)
{
	int error = content_copy(loader, from, to);

	return error ? error : runs_make(loader, &adapter->layout, base, to, GPOOL_ALLOC_NO_EVICT, runs);
}

/* Let an idle adapter use the new places of its tail; under the lock. */
static void move_use(struct gpool_lora *lora, struct lora_entry *entry, const struct tail *to, struct lora_runs *runs)
{
	struct lora_runs before = entry->runs;

	entry->tail = *to;
	entry->runs = *runs;
	entry->placed = ++lora->placings;
	*runs = before;
}

/*
 * Move the runs of an idle adapter out of a page; under the lock, except during the copy. Return: false if they stay.
 */
static bool entry_move(struct lora_loader *loader, struct lora_entry *entry, const struct tail_page *page)
{
	struct gpool_lora *lora = loader->lora;
	struct adapter *adapter = entry->adapter;
	struct tail from = entry->tail, to;
	struct lora_runs runs = {0};
	uint64_t base = entry->base;
	bool moved = false, open;
	int error;

	if (tail_pin(&lora->tails, lora->pool, &from))
		return false;
	adapter->refs++;
	lora->moving = entry;
	pthread_mutex_unlock(&lora->lock);
	error = tail_move(&lora->tails, lora->pool, &from, page, &to);
	if (!error)
		error = move_make(loader, adapter, base, &from, &to, &runs);
	pthread_mutex_lock(&lora->lock);
	open = lora->moving == entry;
	lora->moving = NULL;
	if (open && !error && is_idle(lora, entry)) {
		move_use(lora, entry, &to, &runs);
		moved = true;
		tail_unpin(lora->pool, &to, GPOOL_FENCE_NONE);
		drop(lora, &from, &to);
	} else {
		if (to.count)
			drop(lora, &to, &from);
		if (open)
			tail_unpin(lora->pool, &from, GPOOL_FENCE_NONE);
		else
			drop(lora, &from, NULL);
	}
	if (!pool_gpu_failed(lora->pool))
		runs_free(lora, &runs);
	adapter_unref(adapter);
	return moved;
}

void tails_freed(struct gpool_lora *lora)
{
	lora->unpacked = true;
	pthread_cond_signal(&lora->queued);
}

void tails_placed(struct gpool_lora *lora)
{
	if (tails_grew(&lora->tails))
		tails_freed(lora);
}

/* Choose a page that contains no tail of an adapter in use; under the lock. */
static struct tail_page *page_choose(struct gpool_lora *lora)
{
	for (int stay = 0; stay < 2; stay++)
		for (uint32_t i = 0; i < lora->entry_count; i++)
			if (lora->entries[i] && (!stay || !is_idle(lora, lora->entries[i])))
				tails_stay(&lora->tails, &lora->entries[i]->tail, stay);
	return tails_choose(&lora->tails, lora->pool);
}

/*
 * Close the adapters of which the agent has evicted the object or a part of the tail, so that the rest of the tail is
 * freed; under the lock.
 */
static void gone_close(struct gpool_lora *lora)
{
	for (uint32_t i = 0; i < lora->entry_count; i++) {
		struct lora_entry *entry = lora->entries[i];

		if (entry && entry->tail.count && is_idle(lora, entry) && entry_is_gone(lora, entry) &&
			!entry_close(lora, entry))
			entry->counts.lost++;
	}
}

void tails_pack(struct lora_loader *loader)
{
	struct gpool_lora *lora = loader->lora;
	struct tail_page *page;
	bool empty;

	gone_close(lora);
	page = page_choose(lora);
	empty = page != NULL;
	lora->unpacked = false;
	if (!page)
		return;
	lora->packing = true;
	for (uint32_t i = 0; i < lora->entry_count && empty; i++) {
		struct lora_entry *entry = lora->entries[i];

		if (entry && tail_has(&entry->tail, page))
			empty = is_idle(lora, entry) && entry_move(loader, entry, page);
	}
	lora->packing = false;
	/* A load in progress may have runs in the page. */
	lora->unpacked |= tails_choose_end(&lora->tails, lora->pool, page);
}
