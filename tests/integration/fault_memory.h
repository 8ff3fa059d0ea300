/*
 * fault_memory.h - rounds with ranges, sleep, objects and KV caches; for fault_rounds.h.
 */
#ifndef GPOOL_TESTS_FAULT_MEMORY_H
#define GPOOL_TESTS_FAULT_MEMORY_H

#include "tests/integration/fault_base.h"

#include <errno.h>

static int round_of_ranges(struct gpool *pool, const struct gpool_options *session)
{
	struct gpool_range_options options = GPOOL_RANGE_OPTIONS_INIT;
	struct gpool_object *object, *mapped;
	struct gpool_range *range;
	uint8_t kept[8];
	int error = gpool_object_delete(pool, "pages", 0), destroyed;

	if (error && error != -ENOENT)
		return error;
	options.flags = GPOOL_RANGE_ZERO;
	options.memory_class = GPOOL_OBJECT_EPHEMERAL;
	error = gpool_range_reserve(pool, 8, &options, &range);
	if (error)
		return error;
	error = gpool_range_commit(range, 0, 4, session->timeout_ms);
	if (!error)
		error = gpool_range_offer(range, 0, 2, GPOOL_FENCE_NONE);
	if (!error)
		error = error_of(gpool_range_reclaim(range, 0, 2, kept));
	if (!error)
		error = gpool_range_publish(range, 2, 2, "pages", NULL, &object);
	if (!error) {
		error = gpool_range_map(range, 6, "pages", NULL, &mapped);
		if (!error)
			error = gpool_object_unpin(mapped);
		if (!error)
			error = gpool_range_unmap(range, mapped);
		if (!error)
			error = gpool_object_unpin(object);
		if (!error)
			error = gpool_range_unmap(range, object);
	}
	if (!error)
		error = gpool_range_decommit(range, 0, 2, GPOOL_FENCE_NONE);
	destroyed = gpool_range_destroy(range);
	if (!error)
		error = gpool_object_delete(pool, "pages", 0);
	return error == -ENOENT ? 0 : error ? error : destroyed;
}

/* A range that sleeps and wakes must have its content again. An immutable one is kept as an object. */
static int round_of_sleep(struct gpool *pool, const struct gpool_options *session)
{
	struct gpool_range_options options = GPOOL_RANGE_OPTIONS_INIT;
	struct gpool_range *range, *kept = NULL, *elastic = NULL;
	volatile uint64_t *words;
	uint64_t address;
	int error = gpool_object_delete(pool, "kept", 0), destroyed;

	options.memory_class = GPOOL_OBJECT_IMMUTABLE;
	options.name = "kept";
	error = error == -ENOENT ? 0 : error;
	if (!error)
		error = gpool_range_create(pool, 2, NULL, &range);
	if (error)
		return error;
	error = gpool_range_create(pool, 2, &options, &kept);
	if (!error)
		error = gpool_range_reserve(pool, 4, NULL, &elastic);
	if (!error)
		error = gpool_range_commit(elastic, 0, 2, session->timeout_ms);
	if (!error)
		error = gpool_range_address(range, &address);
	words = (volatile uint64_t *)(uintptr_t)address;
	if (!error)
		*words = 77;
	if (!error)
		error = error_of(gpool_sleep(pool, 0));
	if (!error)
		error = error_of(gpool_wake(pool, session->timeout_ms));
	if (!error && *words != 77)
		error = -EBADMSG;
	destroyed = gpool_range_destroy(range);
	error = error ? error : destroyed;
	if (kept) {
		destroyed = gpool_range_destroy(kept);
		error = error ? error : destroyed;
	}
	if (elastic) {
		destroyed = gpool_range_destroy(elastic);
		error = error ? error : destroyed;
	}
	destroyed = gpool_object_delete(pool, "kept", 0);
	return error ? error : destroyed == -ENOENT ? 0 : destroyed;
}

/* A sequence is offloaded to host memory, as it is and in int8, and resumed. */
static int round_of_cache(struct gpool *pool, const struct gpool_options *session)
{
	struct gpool_kv_options options = GPOOL_KV_OPTIONS_INIT;
	struct gpool_kv_request request = GPOOL_KV_REQUEST_INIT;
	uint64_t sequence;
	struct gpool_kv *kv;
	int error = gpool_stream_open(pool, NULL, 0, &options.stream), destroyed;

	(void)session;
	if (error)
		return error;
	options.shape = (struct gpool_kv_shape){
		.layers = 2, .kv_heads = 2, .head_size = 64, .dtype_bytes = 2, .block_tokens = 16};
	options.max_blocks = 64;
	options.flags = GPOOL_KV_ZERO;
	options.max_sequence_tokens = 512;
	error = gpool_kv_create(pool, &options, &kv);
	if (error)
		return error;
	error = error_of(gpool_kv_host_reserve(kv, 1 << 20));
	request.tokens = 40;
	if (!error)
		error = error_of(gpool_kv_allocate(kv, &request, &sequence));
	for (uint32_t flags = 0; flags <= GPOOL_KV_OFFLOAD_INT8 && !error; flags += GPOOL_KV_OFFLOAD_INT8) {
		error = error_of(gpool_kv_offload(kv, sequence, flags, NULL));
		if (!error)
			error = error_of(gpool_kv_resume(kv, sequence));
	}
	if (!error)
		error = error_of(gpool_kv_sync(kv));
	if (!error)
		error = error_of(gpool_kv_free(kv, sequence));
	destroyed = gpool_kv_destroy(kv);
	return error ? error : destroyed;
}

/* The session ends while an object is mapped in a range, which is deleted with its last reader. */
static int round_of_leaving(struct gpool *pool, const struct gpool_options *session)
{
	struct gpool_range_options options = GPOOL_RANGE_OPTIONS_INIT;
	struct gpool_object *object;
	struct gpool_range *range;
	int error = gpool_object_delete(pool, "left", 0);

	if (error && error != -ENOENT)
		return error;
	options.memory_class = GPOOL_OBJECT_EPHEMERAL;
	error = gpool_range_reserve(pool, 4, &options, &range);
	if (!error)
		error = gpool_range_commit(range, 0, 4, session->timeout_ms);
	if (!error)
		error = gpool_range_publish(range, 0, 2, "left", NULL, &object);
	return error ? error : gpool_object_delete(pool, "left", 0);
}

/*
 * Publish an object with a scattered allocation and large metadata, which is mapped, and use its pages for blocks
 * afterwards.
 */
static int round_of_scattered(struct gpool *pool, const struct gpool_options *session)
{
	static const char large[65 << 10];
	struct gpool_object_options options = GPOOL_OBJECT_OPTIONS_INIT;
	int error = gpool_object_delete(pool, "scattered", 0);
	struct gpool_object *object = NULL;
	struct gpool_block blocks[PAGES];
	uint64_t version;
	uint32_t index;
	int deleted;

	error = error == -ENOENT ? 0 : error;
	for (uint32_t i = 0; i < PAGES && !error; i++)
		error = gpool_alloc(pool, 1, NULL, &blocks[i]);
	for (uint32_t i = 0; i < PAGES && !error; i += 2)
		error = gpool_free(pool, &blocks[i]);
	options.memory_class = GPOOL_OBJECT_IMMUTABLE;
	if (!error)
		error = gpool_object_create(pool, "scattered", &options, &object);
	if (error)
		return error;
	error = gpool_object_alloc(object, PAGES / 4, NULL, &index);
	if (!error)
		error = gpool_object_set(object, "large", large, sizeof(large));
	if (!error)
		error = gpool_object_publish(object, &version);
	gpool_object_close(object);
	deleted = gpool_object_delete(pool, "scattered", 0);
	error = error ? error : deleted;
	for (uint32_t i = 1; i < PAGES && !error; i += 2)
		error = gpool_free(pool, &blocks[i]);
	return error ? error : round_of_blocks(pool, session);
}

/* The agent returns the memory of free slots some time after content was spilled. Wait until the call has failed. */
static int round_of_tidying(struct gpool *pool, const struct gpool_options *session)
{
	int error = round_of_spilling(pool, session);

	return error ? error : round_of_beats(pool, session);
}

/* Allocate and free all pages, so that all content is evicted. */
static int pages_evict(struct gpool *pool, int timeout_ms)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_block block;
	int error;

	options.timeout_ms = timeout_ms;
	error = gpool_alloc(pool, PAGES, &options, &block);
	return error ? error : gpool_free(pool, &block);
}

/* A cache shares a prefix with other caches of the pool, and another session finds it. */
static int prefix_use(struct gpool *pool, bool share, int timeout_ms)
{
	enum { TOKENS = 64 };
	struct gpool_kv_options options = GPOOL_KV_OPTIONS_INIT;
	struct gpool_kv_request request = GPOOL_KV_REQUEST_INIT;
	struct gpool_kv_prefix prefix = GPOOL_KV_PREFIX_INIT;
	uint32_t ids[TOKENS], found;
	uint64_t sequence;
	struct gpool_kv *kv;
	int error = gpool_stream_open(pool, NULL, 0, &options.stream), destroyed;

	for (uint32_t i = 0; i < TOKENS; i++)
		ids[i] = i;
	options.shape = (struct gpool_kv_shape){
		.layers = 8, .kv_heads = 8, .head_size = 64, .dtype_bytes = 2, .block_tokens = 4};
	options.flags = GPOOL_KV_PREFIXES;
	options.model[0] = 9;
	options.max_blocks = 64;
	options.pool_blocks = 32;
	options.max_sequence_tokens = 512;
	options.watermark_blocks = GPOOL_KV_NO_WATERMARK;
	if (!error)
		error = gpool_kv_create(pool, &options, &kv);
	if (error)
		return error;
	prefix.ids = ids;
	prefix.count = TOKENS;
	request.tokens = TOKENS + 1;
	error = error_of(gpool_kv_prefix_allocate(kv, &request, &prefix, &sequence, &found));
	if (!error)
		error = error_of(gpool_kv_prefix_publish(kv, sequence, &prefix));
	if (!error && share)
		error = error_of(gpool_kv_prefix_share(kv, sequence, timeout_ms));
	if (!error)
		error = error_of(gpool_kv_free(kv, sequence));
	destroyed = gpool_kv_destroy(kv);
	return error ? error : destroyed;
}

static int round_of_prefixes(struct gpool *pool, const struct gpool_options *session)
{
	struct gpool *other;
	int error = gpool_open(session, &other), evicted;

	if (error)
		return error;
	error = prefix_use(pool, true, WAIT_MS);
	if (!error)
		error = prefix_use(other, false, WAIT_MS);
	gpool_close(other);
	evicted = pages_evict(pool, session->timeout_ms);
	return error ? error : evicted;
}

#endif
