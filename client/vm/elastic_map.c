/*
 * elastic_map.c - sleep and wake of elastic ranges: unmap the held handles into a list, and map them again from this
 * list. See elastic.h.
 */
#include "client/vm/elastic.h"

#include <stdlib.h>

/* ---- unmap ---- */

static int held_list(const struct elastic *elastic, struct page_list *list)
{
	page_list_reset(list);
	FOR_USED(elastic, slot)
	if (elastic->slots[slot].state == ELASTIC_HELD &&
		page_list_add(list, elastic->space.pages[slot] - 1, handle_pages(elastic->space.pool))) {
		page_list_reset(list);
		return -ENOMEM;
	}
	return 0;
}

/* Change reclaimable slots that are no longer mapped to holes. */
static void reclaimable_forget(struct elastic *elastic)
{
	FOR_USED(elastic, slot)
	if (elastic->slots[slot].state == ELASTIC_RECLAIMABLE && !elastic->space.pages[slot])
		elastic_set(elastic, slot, ELASTIC_HOLE);
}

/* Unmap the used slots run by run. No mapping extends from one run to the next. */
static int used_unmap(struct elastic *elastic)
{
	uint32_t slot = 0, count;
	int error = 0;

	for (; !error && (count = elastic_used(elastic, &slot)); slot += count)
		error = vm_unmap(&elastic->space, slot, count);
	return error;
}

int elastic_unmap(struct elastic *elastic)
{
	struct gpool_range *range = elastic->range;
	int error;

	pthread_mutex_lock(&elastic->lock);
	/* Sleep discards offered content. */
	FOR_USED(elastic, slot)
	{
		if (elastic->slots[slot].state == ELASTIC_OFFERED && elastic_hold_offered(elastic, slot)) {
			elastic_discard(elastic, slot);
			atomic_fetch_add_explicit(&elastic->discarded, 1, memory_order_release);
		}
		elastic_settle_slot(elastic, slot);
	}
	error = held_list(elastic, &range->pages);
	if (!error) {
		error = used_unmap(elastic);
		range->mapped = false;
		reclaimable_forget(elastic);
	}
	elastic_unlock(elastic);
	/*
	 * Some slots may be unmapped, so map them again. If this fails, the range is in the same state as one that
	 * sleeps and keeps its pages.
	 */
	if (error && !range->mapped)
		elastic_map(elastic);
	return error;
}

/* ---- map again ---- */

struct held {
	uint32_t *slots, *handles; /* [count] */
	uint32_t count;
};

static int held_make(const struct elastic *elastic, struct held *held)
{
	const struct page_list *list = &elastic->range->pages;
	uint32_t count = 0;

	held->slots = malloc((elastic->count[ELASTIC_HELD] + 1) * sizeof(*held->slots));
	held->handles = malloc((elastic->count[ELASTIC_HELD] + 1) * sizeof(*held->handles));
	if (!held->slots || !held->handles)
		return -ENOMEM;
	FOR_USED(elastic, slot)
	if (elastic->slots[slot].state == ELASTIC_HELD)
		held->slots[held->count++] = slot;
	for (uint32_t i = 0; i < list->count; i++)
		for (uint32_t j = 0; j < list->spans[i].count; j += handle_pages(elastic->space.pool))
			held->handles[count++] = list->spans[i].first + j;
	return 0;
}

static bool is_mapped(const struct elastic *elastic, const struct held *held, uint32_t index)
{
	return elastic->space.pages[held->slots[index]] == held->handles[index] + 1;
}

static int held_map(struct elastic *elastic, const struct held *held)
{
	uint32_t first, end = 0;
	int error = 0;

	while (end < held->count && !error) {
		first = end++;
		/* After an incomplete unmap some slots are still mapped. */
		if (is_mapped(elastic, held, first))
			continue;
		while (end < held->count && held->slots[end] == held->slots[end - 1] + 1 &&
			!is_mapped(elastic, held, end))
			end++;
		error = vm_map(&elastic->space, held->slots[first], held->handles + first, end - first);
	}
	return error;
}

int elastic_map(struct elastic *elastic)
{
	struct held held = {.count = 0};
	int error;

	pthread_mutex_lock(&elastic->lock);
	error = held_make(elastic, &held);
	if (!error)
		error = held_map(elastic, &held);
	/* Slots that cannot be unmapped stay recorded; the next call finds them mapped, or replaces the mapping. */
	if (error)
		used_unmap(elastic);
	elastic->range->mapped = !error;
	elastic_unlock(elastic);
	free(held.slots);
	free(held.handles);
	return error;
}

/* ---- blocks ---- */

int elastic_stand(struct elastic *elastic)
{
	struct gpool *pool = elastic->space.pool;
	const struct vm_take_options options = elastic_options(elastic);
	const struct page_list *list = &elastic->range->pages;
	struct thread_cache *cache = thread_cache_of(pool);
	int error = cache ? 0 : -ENOMEM;

	for (uint32_t i = 0; i < list->count && !error; i++)
		for (uint32_t j = 0; j < list->spans[i].count && !error; j += handle_pages(pool))
			error = handle_stand(pool, cache, list->spans[i].first + j, &options);
	return error == -ESTALE ? -EPIPE : error;
}

void elastic_fall(struct elastic *elastic)
{
	struct gpool *pool = elastic->space.pool;
	const struct page_list *list = &elastic->range->pages;

	for (uint32_t i = 0; i < list->count; i++)
		for (uint32_t j = 0; j < list->spans[i].count; j += handle_pages(pool)) {
			uint32_t page = list->spans[i].first + j;

			/* If the agent has taken the block, this session's pin no longer exists. */
			if (block_tag_is_block(
				    atomic_load_explicit(&block_entry(pool, page)->tag, memory_order_acquire)))
				handle_fall(pool, page);
		}
}

uint32_t elastic_held_pages(struct elastic *elastic)
{
	uint32_t handles;

	pthread_mutex_lock(&elastic->lock);
	handles = elastic->count[ELASTIC_HELD];
	elastic_unlock(elastic);
	return handles * handle_pages(elastic->space.pool);
}

bool elastic_leaving(struct elastic *elastic)
{
	bool some = false;

	pthread_mutex_lock(&elastic->lock);
	FOR_USED(elastic, slot)
	some |= elastic_is_pending(elastic, slot);
	elastic_unlock(elastic);
	return some;
}

uint32_t elastic_shared(struct elastic *elastic)
{
	uint32_t handles;

	pthread_mutex_lock(&elastic->lock);
	handles = elastic->count[ELASTIC_SHARED];
	elastic_unlock(elastic);
	return handles * handle_pages(elastic->space.pool);
}
