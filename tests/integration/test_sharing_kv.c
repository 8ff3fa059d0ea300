/*
 * test_sharing_kv.c - the sharing matrix (sharing.h) for KV caches: blocks of running sequences, and freed, cached and
 * preempted ones.
 *
 * Goal: another process gets every chunk without a running sequence as soon as the GPU work that uses it has ended.
 * Lost content of preempted and cached sequences is computed again, and content that is found again is correct byte for
 * byte.
 *
 * Method: see sharing.h. The cache's stream is the first one, a page has eight blocks of four tokens, and each token
 * has distinct content.
 *
 * Requirements: U17.
 */
#include "tests/integration/sharing.h"

enum { BLOCK_TOKENS = 4, TOKEN_BYTES = 16 << 10, CHUNK_BLOCKS = 8, SEQUENCES = 4 };
enum {
	PAGE_TOKENS = CHUNK_BLOCKS * BLOCK_TOKENS,
	SEQUENCE_PAGES = UNITS / SEQUENCES,
	TOKENS = SEQUENCE_PAGES * PAGE_TOKENS
};

static const char *const arguments[] = {"--pool", POOL ",spill_memory=32MiB", CALM, NULL};

struct cache {
	struct gpool_kv *kv;
	uint64_t sequences[SEQUENCES];
	uint32_t ids[SEQUENCES][TOKENS];
};

static struct cache *cache_of(struct owner *owner)
{
	return owner->own;
}

/* ---- the cache ---- */

static void cache_open(struct owner *owner, uint32_t flags)
{
	struct gpool_kv_options options = GPOOL_KV_OPTIONS_INIT;
	struct cache *cache = calloc(1, sizeof(*cache));

	assert_non_null(cache);
	owner->own = cache;
	options.flags = flags;
	options.shape = (struct gpool_kv_shape){
		.layers = 8, .kv_heads = 8, .head_size = 64, .dtype_bytes = 2, .block_tokens = BLOCK_TOKENS};
	options.stream = owner->gates[0].stream;
	options.max_blocks = UNITS * CHUNK_BLOCKS;
	options.max_sequence_tokens = TOKENS;
	options.watermark_blocks = GPOOL_KV_NO_WATERMARK;
	assert_int_equal(gpool_kv_create(owner->pool, &options, &cache->kv), 0);
	for (uint32_t s = 0; s < SEQUENCES; s++)
		for (uint32_t i = 0; i < TOKENS; i++)
			cache->ids[s][i] = s << 16 | i;
}

/* Return the address of the first word of a token's slot. */
static volatile uint64_t *token_at(struct cache *cache, uint64_t sequence, uint32_t token)
{
	const int32_t *blocks = NULL;
	uint64_t address = 0;
	uint32_t count = 0;

	assert_int_equal(gpool_kv_table(cache->kv, sequence, &blocks, &count), 0);
	assert_true(token / BLOCK_TOKENS < count);
	assert_int_equal(gpool_kv_address(cache->kv, (uint32_t)blocks[token / BLOCK_TOKENS], &address), 0);
	return (volatile uint64_t *)(uintptr_t)(address + token % BLOCK_TOKENS * TOKEN_BYTES);
}

static struct gpool_kv_prefix prefix_of(struct cache *cache, uint32_t sequence)
{
	struct gpool_kv_prefix prefix = GPOOL_KV_PREFIX_INIT;

	prefix.ids = cache->ids[sequence];
	prefix.count = TOKENS;
	return prefix;
}

static void sequences_run(struct owner *owner, uint32_t flags)
{
	struct cache *cache;

	cache_open(owner, flags);
	cache = cache_of(owner);
	for (uint32_t s = 0; s < SEQUENCES; s++) {
		struct gpool_kv_request request = GPOOL_KV_REQUEST_INIT;

		request.tokens = TOKENS;
		assert_int_equal(gpool_kv_allocate(cache->kv, &request, &cache->sequences[s]), 0);
		for (uint32_t i = 0; i < TOKENS; i++)
			*token_at(cache, cache->sequences[s], i) = cache->ids[s][i];
	}
}

/* ---- kinds ---- */

static void cache_run(struct owner *owner)
{
	sequences_run(owner, 0);
}

static void cache_run_published(struct owner *owner)
{
	struct cache *cache;

	sequences_run(owner, GPOOL_KV_PREFIXES);
	cache = cache_of(owner);
	for (uint32_t s = 0; s < SEQUENCES; s++) {
		struct gpool_kv_prefix prefix = prefix_of(cache, s);

		assert_int_equal(
			gpool_kv_prefix_publish(cache->kv, cache->sequences[s], &prefix), TOKENS / BLOCK_TOKENS);
	}
}

static void cache_run_with_host_memory(struct owner *owner)
{
	sequences_run(owner, 0);
	assert_int_equal(gpool_kv_host_reserve(cache_of(owner)->kv, UNITS * PAGE_BYTES), 0);
}

static void sequences_free(struct owner *owner)
{
	for (uint32_t s = 0; s < SEQUENCES; s++)
		assert_int_equal(gpool_kv_free(cache_of(owner)->kv, cache_of(owner)->sequences[s]), 0);
}

static void sequences_preempt(struct owner *owner)
{
	for (uint32_t s = 0; s < SEQUENCES; s++)
		assert_true(gpool_kv_preempt(cache_of(owner)->kv, cache_of(owner)->sequences[s], NULL) > 0);
}

static void sequences_offload(struct owner *owner)
{
	for (uint32_t s = 0; s < SEQUENCES; s++)
		assert_true(gpool_kv_offload(cache_of(owner)->kv, cache_of(owner)->sequences[s], 0, NULL) > 0);
}

/* Offload the sequences in turn into blocks of the pool: each reuses the memory that the last one released. */
static void cache_run_offloaded(struct owner *owner)
{
	sequences_run(owner, 0);
	for (uint32_t s = 0; s < SEQUENCES; s++)
		assert_true(gpool_kv_offload(cache_of(owner)->kv, cache_of(owner)->sequences[s], GPOOL_KV_OFFLOAD_POOL,
				    NULL) > 0);
	assert_int_equal(gpool_fence_wait(owner->pool, fence_of(owner->pool, owner->gates[0].stream), ANSWER_MS), 0);
}

/* ---- content that is found again ---- */

static void pages_look(struct cache *cache, uint32_t s, uint64_t sequence, uint32_t pages, struct found *found)
{
	for (uint32_t page = 0; page < pages; page++) {
		bool right = true;

		for (uint32_t i = page * PAGE_TOKENS; i < (page + 1) * PAGE_TOKENS; i++)
			right &= *token_at(cache, sequence, i) == cache->ids[s][i];
		found->kept += right;
		found->wrong += !right;
	}
	found->lost += SEQUENCE_PAGES - pages;
}

static void cache_look(struct owner *owner, struct found *found)
{
	for (uint32_t s = 0; s < SEQUENCES; s++)
		pages_look(cache_of(owner), s, cache_of(owner)->sequences[s], SEQUENCE_PAGES, found);
}

/* Count the cached part of each prefix, in whole pages, and check a sequence that begins with it. */
static void cache_look_for_prefixes(struct owner *owner, struct found *found)
{
	struct cache *cache = cache_of(owner);

	for (uint32_t s = 0; s < SEQUENCES; s++) {
		struct gpool_kv_prefix_found cached = {.size = sizeof(cached)};
		struct gpool_kv_request request = GPOOL_KV_REQUEST_INIT;
		struct gpool_kv_prefix prefix = prefix_of(cache, s);
		uint32_t tokens = 0;
		uint64_t sequence = 0;

		assert_int_equal(gpool_kv_prefix_find(cache->kv, &prefix, &cached), 0);
		request.tokens = cached.tokens;
		prefix.count = cached.tokens;
		if (cached.tokens) {
			assert_int_equal(gpool_kv_prefix_allocate(cache->kv, &request, &prefix, &sequence, &tokens), 0);
			assert_int_equal(tokens, cached.tokens);
		}
		pages_look(cache, s, sequence, tokens / PAGE_TOKENS, found);
	}
}

static void cache_look_resumed(struct owner *owner, struct found *found)
{
	struct cache *cache = cache_of(owner);

	for (uint32_t s = 0; s < SEQUENCES; s++)
		assert_int_equal(gpool_kv_resume(cache->kv, cache->sequences[s]), 0);
	assert_int_equal(gpool_fence_wait(owner->pool, fence_of(owner->pool, owner->gates[0].stream), ANSWER_MS), 0);
	cache_look(owner, found);
}

/* ---- the table ---- */

static const struct kind kinds[] = {
	{.name = "KV cache, running sequences",
		.gets = HELD,
		.content = NEEDED,
		.prepare = cache_run,
		.look = cache_look},
	{.name = "KV cache, freed sequences",
		.gets = BEHIND_WORK,
		.content = GONE,
		.prepare = cache_run,
		.let_go = sequences_free},
	{.name = "KV cache, cached prefixes",
		.gets = BEHIND_WORK,
		.content = KEPT,
		.prepare = cache_run_published,
		.let_go = sequences_free,
		.look = cache_look_for_prefixes},
	{.name = "KV cache, cached prefixes that the GPU work does not use",
		.gets = AT_ONCE,
		.content = KEPT,
		.work_later = true,
		.prepare = cache_run_published,
		.let_go = sequences_free,
		.look = cache_look_for_prefixes},
	{.name = "KV cache, preempted sequences",
		.gets = BEHIND_WORK,
		.content = GONE,
		.prepare = cache_run,
		.let_go = sequences_preempt},
	{.name = "KV cache, preempted sequences copied to host memory",
		.gets = BEHIND_WORK,
		.content = SAVED,
		.work_copies = true,
		.needs_room = true,
		.prepare = cache_run_with_host_memory,
		.let_go = sequences_offload,
		.look = cache_look_resumed},
	{.name = "KV cache, preempted sequences copied to blocks of the pool",
		.gets = AT_ONCE,
		.content = SAVED,
		.work_later = true,
		.needs_room = true,
		.prepare = cache_run_offloaded,
		.look = cache_look_resumed},
};

int main(int argc, char **argv)
{
	return sharing_main(argc, argv, arguments, kinds, sizeof(kinds) / sizeof(*kinds));
}
