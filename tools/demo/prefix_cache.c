#include "tools/demo/prefix_cache.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Handle a cached part that could not be pinned: it was evicted, which is expected, or there is an error. */
static void lost(const struct kv_context *context, const struct kv_part *part, int error)
{
	if (error == -ESTALE)
		board_add(&context->score->prefix_losses, 1);
	else
		board_error(context->score, "cannot pin the cached block at page %u: %s", part->block.page,
			gpool_strerror(error));
}

void prefix_cache_put(
	struct prefix_cache *cache, const struct kv_context *context, const struct kv_part *part, uint64_t now_us)
{
	int error;

	if (cache->count == cache->capacity) {
		uint32_t more = cache->capacity ? cache->capacity * 2 : 64;
		struct prefix_entry *grown = realloc(cache->entries, more * sizeof *grown);

		if (!grown) {
			gpool_free(context->pool, &part->block);
			return;
		}
		cache->entries = grown;
		cache->capacity = more;
	}
	error = gpool_unpin(context->pool, &part->block);
	if (error) {
		board_error(context->score, "cannot unpin a pinned block at page %u: %s", part->block.page,
			gpool_strerror(error));
		return;
	}
	cache->entries[cache->count++] = (struct prefix_entry){*part, now_us + cache->keep_us};
}

static void entry_remove(struct prefix_cache *cache, uint32_t index)
{
	cache->count--;
	memmove(&cache->entries[index], &cache->entries[index + 1], (cache->count - index) * sizeof cache->entries[0]);
}

static bool fits(
	const struct prefix_cache *cache, const struct kv_context *context, uint32_t index, uint32_t most_pages)
{
	uint32_t pages = kv_part_full_pages(context, &cache->entries[index].part);

	return pages > 0 && pages <= most_pages;
}

int prefix_cache_get(struct prefix_cache *cache, const struct kv_context *context, uint32_t most_pages, uint64_t pick,
	struct kv_part *part)
{
	uint32_t fitting = 0, chosen = 0;
	int error;

	for (uint32_t i = 0; i < cache->count; i++)
		fitting += fits(cache, context, i, most_pages);
	if (fitting == 0)
		return -ENOENT;
	for (uint32_t skip = (uint32_t)(pick % fitting); !fits(cache, context, chosen, most_pages) || skip-- > 0;)
		chosen++;
	*part = cache->entries[chosen].part;
	entry_remove(cache, chosen);
	error = gpool_pin(context->pool, &part->block);
	if (error)
		lost(context, part, error);
	return error ? -ESTALE : 0;
}

void prefix_cache_expire(struct prefix_cache *cache, const struct kv_context *context, uint64_t now_us)
{
	uint32_t old = 0;

	while (old < cache->count && cache->entries[old].until_us <= now_us) {
		int error = gpool_discard(context->pool, &cache->entries[old].part.block);

		if (error)
			lost(context, &cache->entries[old].part, error);
		old++;
	}
	if (old == 0)
		return;
	cache->count -= old;
	memmove(cache->entries, cache->entries + old, cache->count * sizeof cache->entries[0]);
}

void prefix_cache_destroy(struct prefix_cache *cache, const struct kv_context *context)
{
	prefix_cache_expire(cache, context, UINT64_MAX);
	free(cache->entries);
	memset(cache, 0, sizeof *cache);
}
