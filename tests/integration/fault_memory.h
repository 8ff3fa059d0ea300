/*
 * fault_memory.h - rounds with ranges, sleep and KV caches; for fault_rounds.h.
 */
#ifndef GPOOL_TESTS_FAULT_MEMORY_H
#define GPOOL_TESTS_FAULT_MEMORY_H

#include "tests/integration/fault_trial.h"

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

/* A range that sleeps and wakes must have its content again. */
static int round_of_sleep(struct gpool *pool, const struct gpool_options *session)
{
	struct gpool_range *range;
	volatile uint64_t *words;
	uint64_t address;
	int error = gpool_range_create(pool, 2, NULL, &range), destroyed;

	if (error)
		return error;
	error = gpool_range_address(range, &address);
	words = (volatile uint64_t *)(uintptr_t)address;
	*words = 77;
	if (!error)
		error = error_of(gpool_sleep(pool, 0));
	if (!error)
		error = error_of(gpool_wake(pool, session->timeout_ms));
	if (!error && *words != 77)
		error = -EBADMSG;
	destroyed = gpool_range_destroy(range);
	return error ? error : destroyed;
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

#endif
