/*
 * lora_held.c - the number of adapters that a cache of a size holds at once: in pages, and each in one contiguous
 * piece.
 *
 * Both caches serve the adapters of the requests in order of arrival, and evict the least recently used adapter until
 * the next one fits. In pages, an adapter needs any free pages. In one piece, it needs a gap, and is placed into the
 * smallest one (best fit); adapters are not moved.
 */
#include "tools/replay/lora.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define PAGE_BYTES (UINT64_C(2) << 20) /* the default page_size */

struct cache {
	const struct lora_workload *workload;
	bool contiguous;
	uint64_t room, used; /* bytes; in pages: whole pages */
	uint64_t *at;        /* [adapter_count] address of a held adapter */
	uint64_t *last;      /* [adapter_count] number of the last use of a held adapter; 0: not held */
	uint32_t *held;      /* [held_count] held adapters; contiguous: in ascending order of address */
	uint32_t held_count;
	uint64_t loads, full_loads; /* full_loads: those since the first eviction */
	double held_sum, idle_sum;  /* of these loads: held adapters; share of the memory without weights */
};

static uint64_t weights_of(const struct cache *cache, uint32_t adapter)
{
	return cache->workload->adapters[adapter].bytes;
}

static uint64_t size_of(const struct cache *cache, uint32_t adapter)
{
	uint64_t bytes = weights_of(cache, adapter);

	return cache->contiguous ? bytes : (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

/* Return the gap before the i-th held adapter, or at the end. */
static uint64_t gap_before(const struct cache *cache, uint32_t i, uint64_t *begin)
{
	uint64_t end = i < cache->held_count ? cache->at[cache->held[i]] : cache->room;

	*begin = i ? cache->at[cache->held[i - 1]] + size_of(cache, cache->held[i - 1]) : 0;
	return end - *begin;
}

/* Find room for an adapter. Return: false if adapters must be evicted first. */
static bool place_find(const struct cache *cache, uint64_t bytes, uint32_t *place, uint64_t *at)
{
	uint64_t best = UINT64_MAX, begin;

	*place = cache->held_count;
	*at = 0;
	if (!cache->contiguous)
		return cache->room - cache->used >= bytes;
	for (uint32_t i = 0; i <= cache->held_count; i++) {
		uint64_t gap = gap_before(cache, i, &begin);

		if (gap < bytes || gap >= best)
			continue;
		best = gap;
		*place = i;
		*at = begin;
	}
	return best != UINT64_MAX;
}

static void oldest_evict(struct cache *cache)
{
	uint32_t oldest = 0;

	for (uint32_t i = 1; i < cache->held_count; i++)
		if (cache->last[cache->held[i]] < cache->last[cache->held[oldest]])
			oldest = i;
	cache->used -= size_of(cache, cache->held[oldest]);
	cache->last[cache->held[oldest]] = 0;
	memmove(&cache->held[oldest], &cache->held[oldest + 1], (--cache->held_count - oldest) * sizeof(*cache->held));
}

static void count(struct cache *cache, bool evicted)
{
	uint64_t weights = 0;

	cache->loads++;
	if (!evicted && !cache->full_loads)
		return;
	for (uint32_t i = 0; i < cache->held_count; i++)
		weights += weights_of(cache, cache->held[i]);
	cache->full_loads++;
	cache->held_sum += cache->held_count;
	cache->idle_sum += 1 - (double)weights / (double)cache->room;
}

static void use(struct cache *cache, uint32_t adapter, uint64_t now)
{
	bool held = cache->last[adapter], evicted = false;
	uint64_t bytes = size_of(cache, adapter);
	uint32_t place;

	cache->last[adapter] = now;
	if (held)
		return;
	cache->last[adapter] = 0;
	while (!place_find(cache, bytes, &place, &cache->at[adapter])) {
		oldest_evict(cache);
		evicted = true;
	}
	memmove(&cache->held[place + 1], &cache->held[place], (cache->held_count - place) * sizeof(*cache->held));
	cache->held[place] = adapter;
	cache->held_count++;
	cache->used += bytes;
	cache->last[adapter] = now;
	count(cache, evicted);
}

static int cache_run(const struct lora_plan *plan, bool contiguous, struct lora_held *held)
{
	const struct lora_workload *workload = plan->workload;
	struct cache cache = {.workload = workload,
		.contiguous = contiguous,
		.room = plan->limits.hot_bytes / PAGE_BYTES * PAGE_BYTES,
		.at = calloc(workload->adapter_count, sizeof(*cache.at)),
		.last = calloc(workload->adapter_count, sizeof(*cache.last)),
		.held = calloc(workload->adapter_count, sizeof(*cache.held))};
	int error = cache.at && cache.last && cache.held ? 0 : -ENOMEM;

	if (!error && workload->largest_bytes > cache.room)
		error = -EINVAL;
	for (uint32_t i = 0; i < workload->count && !error; i++)
		use(&cache, workload->requests[i].adapter, i + 1);
	if (!error)
		*held = (struct lora_held){.loads = cache.loads,
			.adapters = cache.full_loads ? cache.held_sum / (double)cache.full_loads : cache.held_count,
			.idle = cache.full_loads ? cache.idle_sum / (double)cache.full_loads : 0};
	free(cache.at);
	free(cache.last);
	free(cache.held);
	return error;
}

int lora_held_count(const struct lora_plan *plan, struct lora_held *paged, struct lora_held *contiguous)
{
	int error = cache_run(plan, false, paged);

	return error ? error : cache_run(plan, true, contiguous);
}
