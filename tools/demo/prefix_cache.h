/*
 * prefix_cache.h - the KV of finished requests, kept unpinned for some time for continuations. The agent may evict it
 * at any time; the cache detects that at its next pin.
 */
#ifndef GPOOL_DEMO_PREFIX_CACHE_H
#define GPOOL_DEMO_PREFIX_CACHE_H

#include "tools/demo/kv.h"

struct prefix_entry {
	struct kv_part part;
	uint64_t until_us;
};

struct prefix_cache {
	struct prefix_entry *entries; /* [count], oldest first */
	uint32_t count, capacity;
	uint64_t keep_us;
};

/*
 * prefix_cache_put() - take over a pinned part with full pages. It is unpinned, or freed if the cache is out of memory.
 */
void prefix_cache_put(
	struct prefix_cache *cache, const struct kv_context *context, const struct kv_part *part, uint64_t now_us);

/*
 * prefix_cache_get() - remove and pin a part with 1..most_pages full pages. `pick` is a random number that selects the
 * part.
 *
 * Return: 0; -ENOENT: no such part; -ESTALE: the selected part was evicted, which is counted.
 */
int prefix_cache_get(struct prefix_cache *cache, const struct kv_context *context, uint32_t most_pages, uint64_t pick,
	struct kv_part *part);

/* prefix_cache_expire() - free parts that have expired. */
void prefix_cache_expire(struct prefix_cache *cache, const struct kv_context *context, uint64_t now_us);

/* prefix_cache_destroy() - free all parts. */
void prefix_cache_destroy(struct prefix_cache *cache, const struct kv_context *context);

#endif
