/*
 * test_driver_calls_serving.c - the calls of the driver that KV caches, adapters, batches and schedulers make; see
 * calls.h.
 *
 * Goal: each public call makes exactly the calls of the driver in docs/driver_calls.md. Method: each test produces the
 * situations of one part. A KV cache has blocks of an eighth of a page; a page is a handle.
 *
 * Requirements: D5.
 */
#include "tests/driver/calls.h"
#include "tests/integration/lora_engine.h"

static const struct gpool_fence none;

/* ---- KV caches ---- */

static void test_kv(void **state)
{
	struct gpool_kv_options options;
	struct gpool_kv_request request = GPOOL_KV_REQUEST_INIT;
	struct gpool_kv_layout layout = {.size = sizeof(layout)};
	struct gpool_kv_need need = {.size = sizeof(need)};
	struct gpool_kv_batch limits = GPOOL_KV_BATCH_INIT;
	struct gpool_kv_stats stats = {.size = sizeof(stats)};
	struct gpool_kv_sequence_info info = {.size = sizeof(info)};
	const struct gpool_kv_shape shape = SMALL;
	struct gpool_kv_pair pairs[2];
	uint64_t sequence, child, victim, slot, address;
	uint32_t tokens = 4, count;
	const int32_t *blocks;

	(void)state;
	worker_open(steady);
	options = small_options(64);
	options.stream = stream;
	CALLS(gpool_kv_create(worker, &options, &kv), "always",
		"cuMemAddressReserve 2, cuMemHostGetDevicePointer, cuMemHostRegister, 3 frames");
	NEVER(gpool_kv_layout(kv, &layout));
	NEVER(gpool_kv_address(kv, 0, &address));
	CALLS(gpool_kv_can_allocate(kv, 4, &need), "steady", "");
	CALLS(gpool_kv_can_batch(kv, &tokens, 1, &limits, &need), "steady", "");
	NEVER(gpool_kv_oom_info(kv, &need));
	request.tokens = 4;
	CALLS(gpool_kv_allocate(kv, &request, &sequence), "the cache needs a page",
		"cuMemImportFromShareableHandle, cuMemMap, cuMemSetAccess, 3 frames");
	CALLS(gpool_kv_append(kv, sequence, 1, &slot), "steady", "");
	CALLS(gpool_kv_append(kv, sequence, 30, NULL), "the cache needs a page",
		"cuMemImportFromShareableHandle, cuMemMap, cuMemSetAccess, 3 frames");
	NEVER(gpool_kv_fork(kv, sequence, &child));
	CALLS(gpool_kv_append(kv, child, 1, &slot), "the last block is shared", "cuMemcpyAsync, 1 frame");
	CALLS(gpool_kv_grow(kv, child, 1, NULL, &slot, NULL), "steady", "");
	NEVER(gpool_kv_table(kv, sequence, &blocks, &count));
	CALLS(gpool_kv_sync(kv), "the tables of two sequences have changed",
		"cuMemImportFromShareableHandle, cuMemMap, cuMemSetAccess, cuMemcpyAsync 2, cuStreamIsCapturing 2, "
		"cuStreamWriteValue64, 6 frames");
	CALLS(gpool_kv_sync(kv), "steady: nothing has changed", "");
	assert_int_equal(gpool_kv_append(kv, sequence, 4, &slot), 0);
	CALLS(gpool_kv_sync(kv), "the table of one sequence has changed",
		"cuMemcpyAsync, cuStreamIsCapturing 2, cuStreamWriteValue64, 2 frames");
	NEVER(gpool_kv_validate(kv, sequence, blocks[0], &shape));
	NEVER(gpool_kv_sequence_info(kv, sequence, &info));
	CALLS(gpool_kv_stats(kv, &stats), "steady", "");
	pairs[0] = (struct gpool_kv_pair){block_at(child, 8), block_at(sequence, 8)};
	pairs[1] = (struct gpool_kv_pair){block_at(child, 8), block_at(sequence, 9)};
	CALLS(gpool_kv_copy_blocks(kv, pairs, 1), "steady: one block", "cuMemcpyAsync, 1 frame");
	CALLS(gpool_kv_copy_blocks(kv, pairs, 2), "two blocks, the first of the process",
		"cuLaunchKernel, cuModuleGetFunction, cuModuleLoadData, 1 frame");
	CALLS(gpool_kv_copy_blocks(kv, pairs, 2), "two blocks", "cuLaunchKernel, 1 frame");
	CALLS(gpool_kv_preempt(kv, child, &victim), "steady", "");
	NEVER(gpool_kv_waiting(kv, &victim));
	CALLS(gpool_kv_resume(kv, child), "the cache needs a page",
		"cuMemImportFromShareableHandle, cuMemMap, cuMemSetAccess, 3 frames");
	CALLS(gpool_kv_compact(kv, 8), "steady", "");
	CALLS(gpool_kv_free(kv, child), "a page is no longer used",
		"cuStreamIsCapturing 2, cuStreamWriteValue64, 1 frame");
	assert_int_equal(gpool_kv_free(kv, sequence), 0);
	CALLS(gpool_kv_allocate(kv, &request, &sequence), "steady", "");
	assert_int_equal(gpool_kv_free(kv, sequence), 0);
	CALLS(gpool_kv_destroy(kv), "always",
		"cuMemAddressFree 2, cuMemHostUnregister, cuMemUnmap 2, cuStreamIsCapturing 2, cuStreamSynchronize 2, "
		"7 frames");
}

/* Fill the cache, so that a sequence can grow only if another one is preempted. */
static void test_kv_grow(void **state)
{
	struct gpool_kv_options options;
	uint64_t sequence;

	(void)state;
	worker_open(steady);
	options = small_options(32);
	assert_int_equal(gpool_kv_create(worker, &options, &kv), 0);
	sequence = allocated(16 * BLOCK_TOKENS, 0, 1);
	allocated(16 * BLOCK_TOKENS, 0, 0);
	settle();
	CALLS(gpool_kv_grow(kv, sequence, 1, NULL, NULL, NULL),
		"one sequence is preempted, and a page is no longer used",
		"cuStreamIsCapturing 2, cuStreamWriteValue64, 1 frame");
	assert_int_equal(gpool_kv_destroy(kv), 0);
}

/* The sequence of the launch is empty, so no memory is read. */
static void test_kv_attention(void **state)
{
	struct gpool_kv_attention launch = GPOOL_KV_ATTENTION_INIT;
	struct gpool_kv_options options;
	struct gpool_block block;
	uint64_t place, bytes;

	(void)state;
	worker_open(steady);
	if (!(worker->capabilities & GPU_CAP_KERNELS))
		skip();
	options = small_options(64);
	options.stream = stream;
	options.shape.block_tokens = 8;
	assert_int_equal(gpool_kv_create(worker, &options, &kv), 0);
	assert_int_equal(gpool_alloc(worker, 1, NULL, &block), 0);
	assert_int_equal(gpool_address(worker, &block, &place), 0);
	launch.sequences = place;
	launch.queries = place + 4096;
	launch.output = place + 8192;
	launch.workspace = place + 65536;
	launch.sequence_count = launch.query_tokens = launch.max_query_count = 1;
	launch.heads = 8;
	launch.query_stride = launch.output_stride = 8 * 64;
	launch.token_stride = 8 * 128;
	launch.head_stride = 128;
	launch.values = 8 * launch.token_stride;
	NEVER(gpool_kv_attention_workspace(kv, &launch, &bytes));
	assert_true(bytes <= worker->header->page_bytes - 65536);
	CALLS(gpool_kv_attention(kv, &launch), "first call of the process",
		"cuLaunchKernel, cuModuleGetFunction, cuModuleLoadData, 1 frame");
	CALLS(gpool_kv_attention(kv, &launch), "steady", "cuLaunchKernel, 1 frame");
	settle();
	assert_int_equal(gpool_kv_destroy(kv), 0);
}

static void test_kv_write(void **state)
{
	struct gpool_kv_write write = GPOOL_KV_WRITE_INIT;
	struct gpool_kv_options options;
	struct gpool_block block;
	uint64_t place;

	(void)state;
	worker_open(steady);
	if (!(worker->capabilities & GPU_CAP_KERNELS))
		skip();
	options = small_options(64);
	options.stream = stream;
	options.flags = GPOOL_KV_INT8;
	options.shape.block_tokens = 8;
	options.shape.dtype_bytes = 1;
	assert_int_equal(gpool_kv_create(worker, &options, &kv), 0);
	assert_int_equal(gpool_alloc(worker, 1, NULL, &block), 0);
	assert_int_equal(gpool_address(worker, &block, &place), 0);
	assert_int_equal(gpool_fill(worker, stream, place, UINT32_MAX, 4096), 0); /* no slot exists */
	write.slots = place;
	write.keys = write.values = place + 4096;
	write.tokens = 4;
	CALLS(gpool_kv_write(kv, &write), "first call of the process",
		"cuLaunchKernel, cuModuleGetFunction, cuModuleLoadData, 1 frame");
	CALLS(gpool_kv_write(kv, &write), "steady", "cuLaunchKernel, 1 frame");
	settle();
	assert_int_equal(gpool_kv_destroy(kv), 0);
}

/* Free blocks of several chunks, so that there are blocks to move. */
static void test_kv_compact(void **state)
{
	struct gpool_kv_options options;
	uint64_t sequences[8], victim;

	(void)state;
	worker_open(steady);
	options = small_options(64);
	assert_int_equal(gpool_kv_create(worker, &options, &kv), 0);
	for (int i = 0; i < 8; i++)
		sequences[i] = allocated(4 * BLOCK_TOKENS, 0, 0);
	for (int i = 1; i < 8; i += 2)
		assert_int_equal(gpool_kv_free(kv, sequences[i]), 0);
	settle();
	CALLS(gpool_kv_compact(kv, 4), "four adjacent blocks are moved",
		"cuMemcpyAsync, cuStreamIsCapturing 2, cuStreamWriteValue64, 2 frames");
	settle();
	assert_true(gpool_kv_preempt(kv, sequences[0], &victim) > 0);
	assert_int_equal(gpool_kv_free(kv, sequences[2]), 0);
	CALLS(gpool_kv_resume(kv, sequences[0]), "steady", "");
	assert_int_equal(gpool_kv_destroy(kv), 0);
}

static void test_kv_offload(void **state)
{
	struct gpool_kv_offload_info info = {.size = sizeof(info)};
	struct gpool_kv_quant_error loss = {.size = sizeof(loss)};
	struct gpool_kv_options options;
	uint64_t sequence, victim;

	(void)state;
	worker_open(steady);
	options = small_options(64);
	assert_int_equal(gpool_kv_create(worker, &options, &kv), 0);
	CALLS(gpool_kv_host_reserve(kv, 48 * BLOCK_BYTES), "always",
		"cuMemHostGetDevicePointer, cuMemHostRegister, 1 frame");
	NEVER(gpool_kv_offload_info(kv, &info));
	sequence = allocated(4 * BLOCK_TOKENS, 0, 0);
	settle();
	CALLS(gpool_kv_offload(kv, sequence, 0, &victim), "steady: a run of four blocks",
		"cuMemcpyAsync, cuStreamIsCapturing 2, cuStreamWriteValue64, 2 frames");
	CALLS(gpool_kv_prefetch(kv, sequence), "steady", "");
	CALLS(gpool_kv_resume(kv, sequence), "a run of four blocks was offloaded", "cuMemcpyAsync, 1 frame");
	settle();
	if (worker->capabilities & GPU_CAP_KERNELS) {
		CALLS(gpool_kv_offload(kv, sequence, GPOOL_KV_OFFLOAD_INT8, &victim),
			"GPOOL_KV_OFFLOAD_INT8, first call for the cache and of the process",
			"cuLaunchKernel, cuMemHostGetDevicePointer, cuMemHostRegister, cuMemImportFromShareableHandle "
			"8, cuMemMap 8, cuMemSetAccess, cuMemcpyAsync 3, cuModuleGetFunction, cuModuleLoadData, "
			"cuStreamIsCapturing 6, cuStreamWriteValue64 3, 18 frames");
		settle();
		CALLS(gpool_kv_quant_error(kv, sequence, &loss), "steady", "");
		CALLS(gpool_kv_resume(kv, sequence), "a run of four blocks was offloaded with GPOOL_KV_OFFLOAD_INT8",
			"cuLaunchKernel, cuMemcpyAsync, cuModuleGetFunction, cuStreamIsCapturing 2, "
			"cuStreamWriteValue64, 3 frames");
		settle();
		CALLS(gpool_kv_offload(kv, sequence, GPOOL_KV_OFFLOAD_INT8, &victim), "GPOOL_KV_OFFLOAD_INT8",
			"cuLaunchKernel, cuMemcpyAsync 3, cuStreamIsCapturing 6, cuStreamWriteValue64 3, 7 frames");
	}
	assert_int_equal(gpool_kv_free(kv, sequence), 0);
	assert_int_equal(gpool_kv_destroy(kv), 0);
}

static void test_kv_prefix(void **state)
{
	struct gpool_kv_options options;
	struct gpool_kv_request request = GPOOL_KV_REQUEST_INIT;
	struct gpool_kv_prefix_found found = {.size = sizeof(found)};
	struct gpool_kv_prefix prefix;
	uint32_t ids[64], tokens;
	uint64_t sequence;

	(void)state;
	worker_open(steady);
	options = small_options(64);
	options.flags = GPOOL_KV_PREFIXES;
	options.model[0] = 9;
	options.pool_blocks = 64;
	assert_int_equal(gpool_kv_create(worker, &options, &kv), 0);
	for (uint32_t i = 0; i < 64; i++)
		ids[i] = i;
	prefix = prefix_of(ids, 64);
	request.tokens = 64;
	CALLS(gpool_kv_prefix_find(kv, &prefix, &found), "steady", "");
	CALLS(gpool_kv_prefix_tree(kv, NULL, 0, NULL), "steady", "");
	CALLS(gpool_kv_prefix_allocate(kv, &request, &prefix, &sequence, &tokens), "the cache needs two pages",
		"cuMemImportFromShareableHandle 2, cuMemMap 2, cuMemSetAccess, 4 frames");
	assert_int_equal(gpool_kv_prefix_publish(kv, sequence, &prefix), 16);
	CALLS_MOST(gpool_kv_prefix_share(kv, sequence, ANSWER_MS), "two pages are published",
		"cuMemMap 2, cuMemSetAccess 2, cuStreamIsCapturing 8, cuStreamWriteValue64 4, 8 frames");
	CALLS(gpool_kv_prefix_share(kv, sequence, ANSWER_MS), "steady: all are published",
		"cuStreamIsCapturing 2, cuStreamWriteValue64, 1 frame");
	CALLS_MOST(gpool_kv_free(kv, sequence), "two pages were published",
		"cuMemUnmap 2, cuStreamIsCapturing 4, cuStreamWriteValue64 2, 4 frames");
	CALLS_MOST(gpool_kv_prefix_allocate(kv, &request, &prefix, &sequence, &tokens),
		"two pages of the prefix are in the pool",
		"cuMemMap 2, cuMemSetAccess 2, cuStreamIsCapturing 2, cuStreamWriteValue64, 5 frames");
	assert_int_equal(gpool_kv_free(kv, sequence), 0);
	settle();
	CALLS_MOST(gpool_kv_prefix_evict(kv, UINT32_MAX), "two pages are no longer used",
		"cuMemUnmap 2, cuStreamIsCapturing 4, cuStreamWriteValue64 2, 4 frames");
	/* The first of these records the fences for which the other one waits. */
	for (int i = 0; i < 2; i++) {
		settle();
		assert_true(gpool_kv_prefix_evict(kv, UINT32_MAX) >= 0);
	}
	CALLS(gpool_kv_prefix_evict(kv, UINT32_MAX), "steady: nothing is cached", "");
	request.tokens = 8;
	prefix.count = 8;
	CALLS(gpool_kv_prefix_allocate(kv, &request, &prefix, &sequence, &tokens),
		"one page of the prefix is in the pool", "cuMemMap, cuMemSetAccess, 2 frames");
	assert_int_equal(gpool_kv_free(kv, sequence), 0);
	assert_int_equal(gpool_kv_destroy(kv), 0);
}

/* A cache that shares no prefixes with the pool. */
static void test_kv_prefix_own(void **state)
{
	struct gpool_kv_options options;
	struct gpool_kv_request request = GPOOL_KV_REQUEST_INIT;
	struct gpool_kv_prefix prefix;
	uint32_t ids[64], tokens;
	uint64_t sequence;

	(void)state;
	worker_open(steady);
	options = small_options(64);
	options.flags = GPOOL_KV_PREFIXES;
	options.model[0] = 9;
	assert_int_equal(gpool_kv_create(worker, &options, &kv), 0);
	for (uint32_t i = 0; i < 64; i++)
		ids[i] = i;
	prefix = prefix_of(ids, 64);
	request.tokens = 64;
	assert_int_equal(gpool_kv_prefix_allocate(kv, &request, &prefix, &sequence, &tokens), 0);
	CALLS(gpool_kv_prefix_publish(kv, sequence, &prefix), "steady", "");
	assert_int_equal(gpool_kv_free(kv, sequence), 0);
	CALLS(gpool_kv_prefix_allocate(kv, &request, &prefix, &sequence, &tokens), "steady: the prefix is cached", "");
	CALLS(gpool_kv_free(kv, sequence), "steady: the cache keeps the prefix",
		"cuStreamIsCapturing 2, cuStreamWriteValue64, 1 frame");
	CALLS(gpool_kv_prefix_evict(kv, UINT32_MAX), "two pages of the cache are no longer used",
		"cuStreamIsCapturing 2, cuStreamWriteValue64, 1 frame");
	assert_int_equal(gpool_kv_destroy(kv), 0);
}

static void test_kv_group(void **state)
{
	struct gpool_kv_options options;
	struct gpool_kv_request request = GPOOL_KV_REQUEST_INIT;
	struct gpool_kv_need need = {.size = sizeof(need)};
	struct gpool_kv_span span = {.size = sizeof(span)};
	struct gpool_kv_order order = {.size = sizeof(order), .verb = GPOOL_KV_ORDER_DESCRIBE};
	struct gpool_kv_member one = {.size = sizeof(one)};
	struct gpool_kv_group *group;
	struct gpool_kv *caches[2];
	uint64_t sequence, child, victim, slot;
	uint32_t member;

	(void)state;
	worker_open(steady);
	for (int i = 0; i < 2; i++) {
		options = small_options(32);
		assert_int_equal(gpool_kv_create(worker, &options, &caches[i]), 0);
	}
	one.cache = caches[0];
	NEVER(gpool_kv_group_create_members(&one, 1, 8 * BLOCK_TOKENS, &group));
	gpool_kv_group_destroy(group);
	CALLS(gpool_kv_execute(caches[0], &order), "steady", "");
	NEVER(gpool_kv_group_create(caches, 2, 8 * BLOCK_TOKENS, &group));
	CALLS(gpool_kv_group_can_allocate(group, 4, &member, &need), "steady", "");
	NEVER(gpool_kv_group_oom_info(group, &member, &need));
	request.tokens = 9 * BLOCK_TOKENS;
	CALLS(gpool_kv_group_allocate(group, &request, &sequence), "two caches need a page each",
		"cuMemImportFromShareableHandle 2, cuMemMap 2, cuMemSetAccess 2, 6 frames");
	CALLS(gpool_kv_group_append(group, sequence, 1, &member, &slot), "steady", "");
	CALLS(gpool_kv_group_fork(group, sequence, &child), "steady", "");
	CALLS(gpool_kv_group_append(group, child, 1, &member, &slot), "the last block is shared",
		"cuMemcpyAsync, 1 frame");
	CALLS(gpool_kv_group_grow(group, sequence, 1, NULL, &member, &slot, NULL), "steady", "");
	NEVER(gpool_kv_group_span(group, sequence, 0, &span));
	CALLS(gpool_kv_group_preempt(group, child, &victim), "steady", "");
	CALLS(gpool_kv_group_resume(group, child), "a cache needs a page",
		"cuMemImportFromShareableHandle, cuMemMap, cuMemSetAccess, 3 frames");
	assert_true(gpool_kv_group_preempt(group, child, &victim) > 0);
	CALLS(gpool_kv_group_resume(group, child), "steady", "");
	CALLS(gpool_kv_group_free(group, child), "a page of a cache is no longer used",
		"cuStreamIsCapturing 2, cuStreamWriteValue64, 1 frame");
	assert_int_equal(gpool_kv_group_free(group, sequence), 0);
	CALLS(gpool_kv_group_allocate(group, &request, &sequence), "steady", "");
	assert_int_equal(gpool_kv_group_fork(group, sequence, &child), 0);
	CALLS(gpool_kv_group_free(group, child), "steady: the blocks are shared", "");
	CALLS_VOID(gpool_kv_group_destroy(group), "steady: one sequence",
		"cuStreamIsCapturing 4, cuStreamWriteValue64 2, 2 frames");
	for (int i = 0; i < 2; i++)
		assert_int_equal(gpool_kv_destroy(caches[i]), 0);
}

/* ---- adapters ---- */

static struct engine engine;

static void test_adapters(void **state)
{
	struct gpool_lora_options options = GPOOL_LORA_OPTIONS_INIT;
	struct gpool_lora_info info = {.size = sizeof(info)};
	struct gpool_lora_stats stats = {.size = sizeof(stats)};
	struct gpool_lora_array arrays[2];
	struct gpool_lora_weights weights;
	static const char config[] = "{\"peft_type\":\"LORA\"}", *const own = "default";
	struct gpool_lora *lora;
	char path[128], why[GPOOL_LORA_REASON_BYTES], target[GPOOL_LORA_TARGET_BYTES];
	uint32_t id, found;

	(void)state;
	worker_open(steady);
	engine_adapters_begin();
	engine_adapter(16, SAFETENSORS_F32);
	snprintf(path, sizeof(path), "%s/0", engine_folder);
	options.element = GPOOL_LORA_BF16;
	options.load_threads = 2;
	CALLS(gpool_lora_create(worker, &options, &lora), "always: two loader threads",
		"cuMemHostGetDevicePointer 2, cuMemHostRegister 2, cuStreamCreate 2, 4 frames");
	NEVER(gpool_lora_register(lora, "a", path, &id, why));
	NEVER(gpool_lora_register_buffer(lora, "b", config, engine_rigs[0].file,
		8 + engine_rigs[0].header_bytes + engine_rigs[0].bytes, &found, why));
	arrays[0] = (struct gpool_lora_array){.name = "base_model.model.q.lora_A.weight",
		.data = path,
		.row_stride = 1,
		.column_stride = 1,
		.rows = 1,
		.columns = 1,
		.element = GPOOL_LORA_F16};
	arrays[1] = arrays[0];
	arrays[1].name = "base_model.model.q.lora_B.weight";
	NEVER(gpool_lora_register_arrays(lora, "c", config, arrays, 2, &found, why));
	NEVER(gpool_lora_find(lora, "a", &found));
	NEVER(gpool_lora_restrict(lora, id, &own, 1));
	CALLS(gpool_lora_acquire(lora, id, -1), "the adapter is loaded, by threads of the library", "");
	CALLS(gpool_lora_acquire(lora, id, -1), "steady: the adapter is resident", "");
	CALLS(gpool_lora_acquire_async(lora, id, -1), "steady: the adapter is resident", "");
	NEVER(gpool_lora_wait_layer(lora, id, 0, -1));
	NEVER(gpool_lora_weights(lora, id, 0, "model.layers.*.q", &weights));
	NEVER(gpool_lora_info(lora, id, &info));
	NEVER(gpool_lora_target_name(lora, id, 0, target));
	NEVER(gpool_lora_stats(lora, &stats));
	NEVER(gpool_lora_last_error(lora, id, why));
	CALLS(gpool_lora_prefetch(lora, id), "steady: the adapter is resident", "");
	for (int i = 0; i < 2; i++)
		assert_int_equal(gpool_lora_release(lora, id, none), 0);
	CALLS(gpool_lora_release(lora, id, none), "steady", "");
	CALLS(gpool_lora_unload(lora, id), "steady", "");
	CALLS(gpool_lora_prefetch(lora, id), "the adapter is loaded, by threads of the library", "");
	assert_int_equal(gpool_lora_acquire(lora, id, -1), 0);
	assert_int_equal(gpool_lora_release(lora, id, none), 0);
	CALLS(gpool_lora_unregister(lora, id), "steady", "");
	CALLS_MOST(gpool_lora_destroy(lora), "always: two loader threads",
		"cuEventDestroy 8, cuMemHostUnregister 2, cuStreamDestroy 2, cuStreamIsCapturing 4, "
		"cuStreamSynchronize 4, 12 frames");
	assert_int_equal(engine_adapters_end(), 0);
}

/* An adapter of one page, which the loader thread expands with a kernel. */
static void test_adapters_int8(void **state)
{
	struct gpool_lora_options options = GPOOL_LORA_OPTIONS_INIT;
	struct gpool_lora_stats stats = {.size = sizeof(stats)};
	struct gpool_lora *lora;
	char path[128], why[GPOOL_LORA_REASON_BYTES];
	uint32_t id;

	(void)state;
	worker_open(steady);
	if (!(worker->capabilities & GPU_CAP_KERNELS))
		skip();
	engine_adapters_begin();
	engine_adapter(16, SAFETENSORS_F32);
	snprintf(path, sizeof(path), "%s/0", engine_folder);
	options.element = GPOOL_LORA_BF16;
	options.load_threads = 1;
	options.cache_dir = engine_folder;
	options.flags = GPOOL_LORA_INT8;
	options.rebalance_ms = UINT32_MAX;
	assert_int_equal(gpool_lora_create(worker, &options, &lora), 0);
	assert_int_equal(gpool_lora_register(lora, "a", path, &id, why), 0);
	assert_int_equal(gpool_lora_acquire(lora, id, -1), 0);
	AWAIT(gpool_lora_stats(lora, &stats) == 0 && stats.cold_bytes > 0);
	for (int i = 0; i < 4; i++) { /* until all events of the thread's stream exist */
		assert_int_equal(gpool_lora_release(lora, id, none), 0);
		assert_int_equal(gpool_lora_unload(lora, id), 0);
		assert_int_equal(gpool_lora_acquire(lora, id, -1), 0);
	}
	assert_int_equal(gpool_lora_release(lora, id, none), 0);
	assert_int_equal(gpool_lora_unload(lora, id), 0);
	CALLS_ALL(gpool_lora_acquire(lora, id, -1), "an adapter of one page in int8 is loaded from a cold file",
		"cuEventRecord, cuLaunchKernel, cuMemSetAccess 2, cuMemcpyAsync, cuMemsetD32Async, "
		"cuStreamIsCapturing 4, cuStreamWriteValue64, 7 frames");
	assert_int_equal(gpool_lora_release(lora, id, none), 0);
	assert_int_equal(gpool_lora_destroy(lora), 0);
	assert_int_equal(engine_adapters_end(), 0);
}

static int engine_stop(void **state)
{
	int error;

	if (!engine.pool) /* skipped */
		return 0;
	error = engine_close(&engine);

	error |= engine_adapters_end();
	return error | stop(state);
}

static void engine_start(void)
{
	bool kernels;

	start(steady);
	worker = open_worker();
	kernels = worker->capabilities & GPU_CAP_KERNELS;
	gpool_close(worker);
	worker = NULL;
	if (!kernels) {
		printf("the build has no GPU kernels\n");
		stop(NULL);
		skip();
	}
	engine_adapters_begin();
	for (uint32_t i = 0; i < 3; i++)
		engine_adapter(8, SAFETENSORS_F32);
	engine_open(&engine, GPOOL_LORA_BF16);
}

static void test_batches(void **state)
{
	struct gpool_lora_batch_options options;
	struct gpool_lora_batch *batch;
	uint32_t adapters[8];

	(void)state;
	engine_start();
	options = engine_batch_options(&engine);
	CALLS(gpool_lora_batch_create(engine.lora, &options, &batch), "always",
		"cuLaunchKernel, cuLaunchKernelEx, cuMemHostGetDevicePointer, cuMemHostRegister, "
		"cuMemImportFromShareableHandle, "
		"cuMemMap, cuMemSetAccess, cuMemsetD32Async, 7 frames");
	CALLS(gpool_lora_batch_destroy(batch), "always",
		"cuEventCreate, cuEventRecord, cuMemHostUnregister, cuStreamIsCapturing 4, cuStreamWriteValue64, 4 "
		"frames");
	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(gpool_lora_acquire(engine.lora, engine.ids[i], -1), 0);
	for (uint32_t i = 0; i < 8; i++)
		adapters[i] = engine.ids[i % 2];
	CALLS(gpool_lora_batch_set(engine.batch, adapters, 8, NULL), "adapters are new in the batch, first four calls",
		"cuEventCreate, cuEventRecord, cuMemcpyAsync 2, cuStreamIsCapturing 4, cuStreamWriteValue64, 5 frames");
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(gpool_lora_batch_set(engine.batch, adapters, 7 - i, NULL), 0);
	CALLS(gpool_lora_batch_set(engine.batch, adapters, 7, NULL), "steady: the same adapters",
		"cuEventRecord, cuMemcpyAsync, cuStreamIsCapturing 4, cuStreamWriteValue64, 3 frames");
	for (uint32_t i = 0; i < 8; i++)
		adapters[i] = engine.ids[i % 3];
	CALLS(gpool_lora_batch_set(engine.batch, adapters, 8, NULL), "adapters are new in the batch",
		"cuEventRecord, cuMemcpyAsync 2, cuStreamIsCapturing 4, cuStreamWriteValue64, 4 frames");
	CALLS(gpool_lora_batch_apply(engine.batch, 0, 0, (uintptr_t)engine.x, ENGINE_STRIDE, (uintptr_t)engine.y,
		      ENGINE_STRIDE, engine.stream),
		"always", "cuLaunchKernel, cuLaunchKernelEx, 2 frames");
	for (uint32_t i = 0; i < 8; i++)
		adapters[i] = GPOOL_LORA_NONE;
	assert_int_equal(gpool_lora_batch_set(engine.batch, adapters, 8, NULL), 0);
	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(gpool_lora_release(engine.lora, engine.ids[i], none), 0);
}

static void test_scheduler(void **state)
{
	struct gpool_lora_scheduler_stats stats = {.size = sizeof(stats)};
	struct gpool_lora_schedule schedule = {.size = sizeof(schedule)};
	struct gpool_lora_scheduler *scheduler;
	uint32_t request, second, queue[4];

	(void)state;
	engine_start();
	assert_int_equal(gpool_lora_acquire(engine.lora, engine.ids[0], -1), 0);
	NEVER(gpool_lora_scheduler_create(engine.lora, NULL, &scheduler));
	CALLS(gpool_lora_scheduler_add(scheduler, engine.ids[0], 10, &request), "steady", "");
	assert_int_equal(gpool_lora_scheduler_add(scheduler, engine.ids[0], 10, &second), 0);
	CALLS(gpool_lora_scheduler_schedule(scheduler, -1, &schedule), "steady: the adapters are resident", "");
	CALLS(gpool_lora_scheduler_finish(scheduler, request, none), "steady", "");
	assert_int_equal(gpool_lora_scheduler_finish(scheduler, second, none), 0);
	assert_int_equal(gpool_lora_scheduler_add(scheduler, engine.ids[0], 10, &request), 0);
	NEVER(gpool_lora_scheduler_queue(scheduler, queue, 4));
	CALLS(gpool_lora_scheduler_remove(scheduler, request), "steady", "");
	NEVER(gpool_lora_scheduler_stats(scheduler, &stats));
	assert_int_equal(gpool_lora_scheduler_add(scheduler, engine.ids[1], 10, &request), 0);
	CALLS(gpool_lora_scheduler_schedule(scheduler, -1, &schedule),
		"an adapter is loaded, by threads of the library", "");
	assert_int_equal(gpool_lora_scheduler_finish(scheduler, request, none), 0);
	CALLS(gpool_lora_scheduler_destroy(scheduler), "steady", "");
	assert_int_equal(gpool_lora_release(engine.lora, engine.ids[0], none), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_kv, kv_stop),
		cmocka_unit_test_teardown(test_kv_attention, kv_stop),
		cmocka_unit_test_teardown(test_kv_write, kv_stop),
		cmocka_unit_test_teardown(test_kv_grow, kv_stop),
		cmocka_unit_test_teardown(test_kv_compact, kv_stop),
		cmocka_unit_test_teardown(test_kv_offload, kv_stop),
		cmocka_unit_test_teardown(test_kv_prefix, kv_stop),
		cmocka_unit_test_teardown(test_kv_prefix_own, kv_stop),
		cmocka_unit_test_teardown(test_kv_group, kv_stop),
		cmocka_unit_test_teardown(test_adapters, kv_stop),
		cmocka_unit_test_teardown(test_adapters_int8, kv_stop),
		cmocka_unit_test_teardown(test_batches, engine_stop),
		cmocka_unit_test_teardown(test_scheduler, engine_stop),
	};

	return calls_result(cmocka_run_group_tests(tests, NULL, NULL));
}
