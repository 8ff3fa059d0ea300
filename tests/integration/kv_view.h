/*
 * kv_view.h - test a KV cache whose tokens have distinct contents. Based on life.h.
 *
 * The shape SMALL has blocks of 64 KiB with 4 tokens each; a page contains eight blocks. The first word of a token's
 * slot is its content.
 */
#ifndef GPOOL_TESTS_KV_VIEW_H
#define GPOOL_TESTS_KV_VIEW_H

#include "client/core/pool.h"
#include "tests/integration/life.h"

#include "client/kv/kv.h"
#include "client/kv/prefix.h"

#include <errno.h>

enum {
	PAGE_BYTES = 512 << 10,
	BLOCK_TOKENS = 4,
	TOKEN_BYTES = 16 << 10,
	BLOCK_BYTES = BLOCK_TOKENS * TOKEN_BYTES,
	CHUNK_BLOCKS = 8
};

#define SMALL \
	{ \
		.layers = 8, .kv_heads = 8, .head_size = 64, .dtype_bytes = 2, .block_tokens = BLOCK_TOKENS \
	}
#define CALM QUIET, "--set", "lease.initial_pages=0", "--set", "lease.batch_pages=1", "--set", "lease.batch_most=1"

static const char *const calm[] = {"--pool", POOL, CALM, NULL};

static struct gpool *worker;
static uint32_t stream;
static struct gpool_kv *kv;

static inline struct gpool_kv_options small_options(uint32_t blocks)
{
	struct gpool_kv_options options = GPOOL_KV_OPTIONS_INIT;

	options.shape = (struct gpool_kv_shape)SMALL;
	options.stream = stream;
	options.max_blocks = blocks;
	options.max_sequences = 64;
	options.max_sequence_tokens = 1024;
	options.watermark_blocks = GPOOL_KV_NO_WATERMARK;
	return options;
}

static inline void worker_open(const char *const *arguments)
{
	start(arguments);
	worker = open_worker();
	assert_int_equal(gpool_stream_open(worker, NULL, 0, &stream), 0);
}

/* Start a gpoold, a worker, and a cache of `blocks` blocks. */
static inline void kv_start(const char *const *arguments, uint32_t blocks)
{
	struct gpool_kv_options options;

	worker_open(arguments);
	options = small_options(blocks);
	assert_int_equal(gpool_kv_create(worker, &options, &kv), 0);
}

static inline int kv_stop(void **state)
{
	if (worker)
		gpool_close(worker);
	worker = NULL;
	kv = NULL;
	return stop(state);
}

/* Wait for all queued work. */
static inline void settle(void)
{
	struct gpool_fence fence;

	assert_int_equal(gpool_fence_record(worker, stream, &fence), 0);
	assert_int_equal(gpool_fence_wait(worker, fence, ANSWER_MS), 0);
}

static inline struct gpool_kv_stats statistics(void)
{
	struct gpool_kv_stats found = {.size = sizeof(found)};

	assert_int_equal(gpool_kv_stats(kv, &found), 0);
	assert_int_equal(found.used_blocks + found.free_blocks, kv->blocks.blocks);
	assert_true(prefix_check(kv));
	return found;
}

static inline struct gpool_kv_sequence_info info_of(uint64_t sequence)
{
	struct gpool_kv_sequence_info info = {.size = sizeof(info)};

	assert_int_equal(gpool_kv_sequence_info(kv, sequence, &info), 0);
	return info;
}

static inline struct gpool_kv_need shortage(void)
{
	struct gpool_kv_need need = {.size = sizeof(need)};

	assert_int_equal(gpool_kv_oom_info(kv, &need), 0);
	return need;
}

static inline int try_allocate(uint32_t tokens, uint32_t estimated, uint32_t priority, uint64_t *sequence)
{
	struct gpool_kv_request request = GPOOL_KV_REQUEST_INIT;

	request.tokens = tokens;
	request.estimated_tokens = estimated;
	request.priority = priority;
	return gpool_kv_allocate(kv, &request, sequence);
}

static inline uint64_t allocated(uint32_t tokens, uint32_t estimated, uint32_t priority)
{
	uint64_t sequence = 0;

	assert_int_equal(try_allocate(tokens, estimated, priority, &sequence), 0);
	return sequence;
}

static inline struct gpool_kv_prefix prefix_of(const uint32_t *ids, uint32_t count)
{
	struct gpool_kv_prefix prefix = GPOOL_KV_PREFIX_INIT;

	prefix.ids = ids;
	prefix.count = count;
	return prefix;
}

static inline struct gpool_kv_prefix_found found_of(const struct gpool_kv_prefix *prefix)
{
	struct gpool_kv_prefix_found found = {.size = sizeof(found)};

	assert_int_equal(gpool_kv_prefix_find(kv, prefix, &found), 0);
	assert_int_equal(found.tokens, found.blocks * BLOCK_TOKENS);
	assert_true(found.cached_blocks <= found.blocks);
	return found;
}

static inline int try_allocate_prefix(
	uint32_t tokens, const struct gpool_kv_prefix *prefix, uint64_t *sequence, uint32_t *found)
{
	struct gpool_kv_request request = GPOOL_KV_REQUEST_INIT;

	request.tokens = tokens;
	return gpool_kv_prefix_allocate(kv, &request, prefix, sequence, found);
}

static inline uint64_t forked(uint64_t sequence)
{
	uint64_t child = 0;

	assert_int_equal(gpool_kv_fork(kv, sequence, &child), 0);
	return child;
}

static inline const int32_t *table_of(uint64_t sequence, uint32_t *count)
{
	const int32_t *blocks = NULL;

	assert_int_equal(gpool_kv_table(kv, sequence, &blocks, count), 0);
	return blocks;
}

static inline int32_t block_at(uint64_t sequence, uint32_t index)
{
	uint32_t count;
	const int32_t *blocks = table_of(sequence, &count);

	assert_true(index < count);
	return blocks[index];
}

/* Return the address of a slot's content. */
static inline volatile uint64_t *word_at(uint64_t slot)
{
	uint64_t address = 0;

	assert_int_equal(gpool_kv_address(kv, (uint32_t)(slot / BLOCK_TOKENS), &address), 0);
	return (volatile uint64_t *)(uintptr_t)(address + slot % BLOCK_TOKENS * TOKEN_BYTES);
}

static inline volatile uint64_t *token_at(uint64_t sequence, uint32_t token)
{
	return word_at(
		(uint64_t)(uint32_t)block_at(sequence, token / BLOCK_TOKENS) * BLOCK_TOKENS + token % BLOCK_TOKENS);
}

static inline void write_tokens(uint64_t sequence, uint32_t first, uint32_t count, uint64_t content)
{
	for (uint32_t i = first; i < first + count; i++)
		*token_at(sequence, i) = content << 32 | i;
}

static inline uint32_t wrong_tokens(uint64_t sequence, uint32_t first, uint32_t count, uint64_t content)
{
	uint32_t wrong = 0;

	for (uint32_t i = first; i < first + count; i++)
		wrong += *token_at(sequence, i) != (content << 32 | i);
	return wrong;
}

/* Return true if the device's table of a running sequence equals the host's table. */
static inline bool device_agrees(uint64_t sequence)
{
	const int32_t *device =
		(const int32_t *)(uintptr_t)kv->table_address + (size_t)info_of(sequence).row * kv->columns;
	uint32_t count;
	const int32_t *blocks = table_of(sequence, &count);

	return !memcmp(device, blocks, count * sizeof(*blocks));
}

static inline uint32_t free_pages(void)
{
	return atomic_load(&pool_view(admin)->header->state_pages[PAGE_FREE]);
}

#endif
