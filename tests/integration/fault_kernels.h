/*
 * fault_kernels.h - rounds with the kernels of KV caches, with the allocator's reports, and with eviction by a policy;
 * for fault_rounds.h.
 */
#ifndef GPOOL_TESTS_FAULT_KERNELS_H
#define GPOOL_TESTS_FAULT_KERNELS_H

#include "client/core/request.h"
#include "proto/codec.h"
#include "tests/integration/fault_memory.h"

#include <errno.h>

enum { KERNEL_TOKENS = 96, KERNEL_SIZE = 64, KERNEL_HEADS = 2 };

/* Write the first block of a sequence in int8, and compute the attention of its last token, in memory at `scratch`. */
static int kernels_run(struct gpool_kv *kv, uint64_t sequence, const int32_t *blocks, uint64_t scratch)
{
	struct gpool_kv_sequence_info info = {.size = sizeof(info)};
	struct gpool_kv_layout layout = {.size = sizeof(layout)};
	struct gpool_kv_attention attention = GPOOL_KV_ATTENTION_INIT;
	struct gpool_kv_write write = GPOOL_KV_WRITE_INIT;
	uint64_t *slots = (uint64_t *)(uintptr_t)(scratch + (64 << 10));
	int error = gpool_kv_sequence_info(kv, sequence, &info);

	for (uint32_t i = 0; i < 16; i++)
		slots[i] = (uint64_t)blocks[0] * 16 + i;
	write.keys = write.values = scratch;
	write.slots = scratch + (64 << 10);
	write.tokens = 16;
	if (!error)
		error = gpool_kv_write(kv, &write);
	if (!error)
		error = gpool_kv_layout(kv, &layout);
	attention.flags = GPOOL_KV_ATTENTION_INT8;
	attention.queries = scratch;
	attention.output = scratch + (96 << 10);
	attention.sequences = scratch + (128 << 10);
	attention.workspace = scratch + (160 << 10);
	attention.keys = layout.keys;
	attention.values = layout.values;
	attention.key_scales = layout.key_scales;
	attention.value_scales = layout.value_scales;
	attention.token_stride = layout.token_stride;
	attention.head_stride = layout.head_stride;
	attention.scale_token_stride = layout.scale_token_stride;
	attention.scale_head_stride = layout.scale_head_stride;
	attention.sequence_count = attention.query_tokens = attention.max_query_count = 1;
	attention.heads = KERNEL_HEADS;
	attention.query_stride = attention.output_stride = KERNEL_HEADS * KERNEL_SIZE;
	*(struct gpool_kv_attention_sequence *)(uintptr_t)attention.sequences =
		(struct gpool_kv_attention_sequence){info.row, info.tokens, 0, 1};
	if (!error)
		error = error_of(gpool_kv_sync(kv));
	return error ? error : gpool_kv_attention(kv, &attention);
}

/* Use the blocks of a sequence: kernels, copies, prefixes, a group, and copies in the pool. */
static int kernels_use(struct gpool_kv *kv, uint64_t scratch)
{
	struct gpool_kv_request request = GPOOL_KV_REQUEST_INIT;
	struct gpool_kv_prefix prefix = GPOOL_KV_PREFIX_INIT;
	struct gpool_kv_prefix_node nodes[8];
	struct gpool_kv_group *group;
	uint32_t ids[KERNEL_TOKENS], count;
	const int32_t *blocks;
	uint64_t sequence;
	int error;

	request.tokens = KERNEL_TOKENS;
	error = error_of(gpool_kv_allocate(kv, &request, &sequence));
	if (error)
		return error;
	error = error_of(gpool_kv_table(kv, sequence, &blocks, &count));
	if (!error)
		error = kernels_run(kv, sequence, blocks, scratch);
	if (!error)
		error = gpool_kv_copy_blocks(
			kv, (struct gpool_kv_pair[]){{blocks[0], blocks[3]}, {blocks[1], blocks[5]}}, 2);
	for (uint32_t i = 0; i < KERNEL_TOKENS; i++)
		ids[i] = i;
	prefix.ids = ids;
	prefix.count = KERNEL_TOKENS;
	if (!error)
		error = error_of(gpool_kv_prefix_publish(kv, sequence, &prefix));
	if (!error)
		error = error_of(gpool_kv_prefix_tree(kv, nodes, 8, NULL));
	if (!error)
		error = gpool_kv_group_create(&kv, 1, 64, &group);
	if (!error)
		gpool_kv_group_destroy(group);
	if (!error)
		error = error_of(gpool_kv_offload(kv, sequence, GPOOL_KV_OFFLOAD_POOL, NULL));
	if (!error)
		error = error_of(gpool_kv_resume(kv, sequence));
	if (!error)
		error = error_of(gpool_kv_compact(kv, 8));
	return error ? error : error_of(gpool_kv_free(kv, sequence));
}

/* A cache of int8 blocks, whose cached blocks are evicted by statistics. */
static int round_of_kernels(struct gpool *pool, const struct gpool_options *session)
{
	struct gpool_kv_options options = GPOOL_KV_OPTIONS_INIT;
	struct gpool_block scratch;
	struct gpool_kv *kv;
	uint64_t address;
	int error = gpool_stream_open(pool, NULL, 0, &options.stream), destroyed;

	(void)session;
	if (!error)
		error = gpool_alloc(pool, 1, NULL, &scratch);
	if (error)
		return error;
	error = gpool_address(pool, &scratch, &address);
	if (!error)
		memset((void *)(uintptr_t)address, 0, gpool_page_bytes(pool));
	options.shape = (struct gpool_kv_shape){
		.layers = 1, .kv_heads = KERNEL_HEADS, .head_size = KERNEL_SIZE, .dtype_bytes = 1, .block_tokens = 16};
	options.flags = GPOOL_KV_INT8 | GPOOL_KV_PREFIXES | GPOOL_KV_ADAPTIVE;
	options.model[0] = 9;
	options.max_blocks = 64;
	options.max_sequence_tokens = 512;
	options.watermark_blocks = GPOOL_KV_NO_WATERMARK;
	if (!error)
		error = gpool_kv_create(pool, &options, &kv);
	if (error)
		return error;
	error = kernels_use(kv, address);
	destroyed = gpool_kv_destroy(kv);
	error = error ? error : destroyed;
	return error ? error : gpool_free(pool, &scratch);
}

static void line_ignore(void *context, const char *text)
{
	(void)context;
	(void)text;
}

/* The allocator describes its regions after each call, and takes back memory that it has offered. */
static int round_of_reports(struct gpool *pool, const struct gpool_options *session)
{
	struct gpool_vm_stats stats = {.size = sizeof(stats)};
	struct gpool_vm_options options = GPOOL_VM_OPTIONS_INIT;
	uint64_t address, bytes = 3 * gpool_page_bytes(pool);
	uint32_t stream;
	int error = gpool_stream_open(pool, NULL, 0, &stream);

	(void)session;
	options.trace = 3;
	options.idle_ms = 1;
	if (!error)
		error = gpool_vm_configure(pool, &options);
	if (!error)
		error = gpool_malloc_async(pool, bytes, stream, &address);
	if (!error)
		error = gpool_free_async(pool, address, stream);
	for (int i = 0; i < AWAIT_TRIES && !error && !stats.reclaimable_bytes && !fault_has_happened(); i++) {
		poll(NULL, 0, AWAIT_STEP_MS);
		error = gpool_vm_stats(pool, &stats);
	}
	if (!error)
		error = gpool_malloc_async(pool, bytes, stream, &address);
	if (!error)
		error = gpool_free_async(pool, address, stream);
	return error ? error : error_of(gpool_vm_dump(pool, line_ignore, NULL));
}

/* A range waits for pages that another block has. */
static int range_wait(struct gpool *pool, int timeout_ms)
{
	struct gpool_range *range;
	struct gpool_block most;
	int error = gpool_range_reserve(pool, 8, NULL, &range), destroyed;

	if (error)
		return error;
	error = gpool_alloc(pool, PAGES - 4, NULL, &most);
	if (!error) {
		error = gpool_range_commit(range, 0, 8, 100);
		error = error == -ENOSPC ? 0 : error;
		destroyed = gpool_free(pool, &most);
		error = error ? error : destroyed;
	}
	if (!error)
		error = gpool_range_commit(range, 0, 8, timeout_ms);
	destroyed = gpool_range_destroy(range);
	return error ? error : destroyed;
}

/* A scope of a block that two fences protect. */
static int scope_use(struct gpool *pool)
{
	struct gpool_scope scope = GPOOL_SCOPE_INIT;
	struct gpool_fence first, second;
	struct gpool_block block;
	uint32_t streams[2];
	int error = gpool_stream_open(pool, NULL, GPOOL_STREAM_HOST_SIGNALED, &streams[0]), ended;

	if (!error)
		error = gpool_stream_open(pool, NULL, GPOOL_STREAM_HOST_SIGNALED, &streams[1]);
	if (!error)
		error = gpool_fence_record(pool, streams[0], &first);
	if (!error)
		error = gpool_fence_record(pool, streams[1], &second);
	if (!error)
		error = gpool_scope_begin(pool, GPOOL_USAGE_TEMP_BUFFER, 0, &scope);
	if (error)
		return error;
	error = gpool_scope_alloc(&scope, 1, NULL, &block);
	if (!error)
		error = gpool_pin(pool, &block);
	if (!error)
		error = gpool_unpin_after(pool, &block, first);
	ended = gpool_scope_end(&scope, second);
	error = error ? error : ended;
	ended = gpool_fence_signal(pool, first);
	error = error ? error : ended;
	ended = gpool_fence_signal(pool, second);
	return error ? error : ended;
}

static int round_of_waits(struct gpool *pool, const struct gpool_options *session)
{
	int error = range_wait(pool, session->timeout_ms);

	return error ? error : scope_use(pool);
}

static int blocks_offer(struct gpool *pool, struct gpool_block *blocks)
{
	int error = 0;

	for (uint32_t i = 0; i < PAGES && !error; i++) {
		error = gpool_alloc(pool, 1, NULL, &blocks[i]);
		if (!error)
			error = gpool_unpin(pool, &blocks[i]);
	}
	return error;
}

/* Ask an observer's question: the kinds of all pages. */
static int pages_ask(const struct gpool_options *session)
{
	const struct msg_page_kinds_request request = {.first = 0};
	struct gpool_options options = *session;
	static uint8_t reply[MSG_BYTES_MAX];
	struct gpool *observer;
	uint8_t message[256];
	int error, length;

	options.flags = GPOOL_OPEN_OBSERVER;
	error = gpool_open(&options, &observer);
	if (error)
		return error;
	length = msg_encode_page_kinds_request(&request, 0, NULL, message, sizeof(message));
	error = error_of(
		pool_request(observer, message, (size_t)length, reply, sizeof(reply), session->timeout_ms, NULL));
	gpool_close(observer);
	return error;
}

/* Content is evicted by the policy `adaptive`, for adjacent pages and for whole handles. */
static int round_of_policies(struct gpool *pool, const struct gpool_options *session)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_block blocks[PAGES], adjacent;
	struct gpool_range *range;
	int error = blocks_offer(pool, blocks), destroyed;

	options.flags = GPOOL_ALLOC_CONTIGUOUS;
	options.timeout_ms = session->timeout_ms;
	if (!error)
		error = gpool_alloc(pool, PAGES / 4, &options, &adjacent);
	if (!error)
		error = gpool_free(pool, &adjacent);
	if (!error)
		error = blocks_offer(pool, blocks);
	if (!error)
		error = gpool_range_reserve(pool, 8, NULL, &range);
	if (error)
		return error;
	error = gpool_range_commit(range, 0, 8, session->timeout_ms);
	destroyed = gpool_range_destroy(range);
	error = error ? error : destroyed;
	if (!error)
		error = pages_ask(session);
	/* The agent searches for pins that are older than pins.max_duration. */
	if (!error)
		error = gpool_alloc(pool, 1, NULL, &adjacent);
	if (!error)
		error = round_of_beats(pool, session);
	return error ? error : gpool_free(pool, &adjacent);
}

#endif
