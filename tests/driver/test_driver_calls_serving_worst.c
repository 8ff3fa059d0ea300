/*
 * test_driver_calls_serving_worst.c - the calls of the driver that KV caches, groups, adapters and schedulers make in
 * the worst case; see calls.h.
 *
 * Goal: as test_driver_calls_serving.c. Method: each test produces one kind of situation with several values of n:
 * cached blocks that other sessions have evicted, blocks that are not adjacent, preempted sequences, saved content, and
 * adapters of another engine.
 *
 * Requirements: D5.
 */
#include "client/kv/offload_pool.h"
#include "tests/driver/calls.h"
#include "tests/integration/lora_engine.h"
#include "tests/integration/spill_view.h"

static const struct gpool_fence none;
static uint32_t ids[1024];

static struct gpool *other;

static int worst_stop(void **state)
{
	if (other)
		gpool_close(other);
	other = NULL;
	gate_forget();
	return kv_stop(state);
}

/* ---- evicted blocks ---- */

static struct gpool_kv *prefix_cache(uint32_t blocks)
{
	struct gpool_kv_options options = small_options(blocks);
	struct gpool_kv *made;

	options.flags = GPOOL_KV_PREFIXES;
	options.model[0] = 9;
	assert_int_equal(gpool_kv_create(worker, &options, &made), 0);
	return made;
}

/* Cache a text of n chunks, and let another session evict it. The cache uses `pages` other pages. */
static void chunks_lost(uint32_t n, uint32_t pages)
{
	uint32_t tokens = n * CHUNK_BLOCKS * BLOCK_TOKENS, found;
	struct gpool_kv_prefix prefix = prefix_of(ids, tokens);
	struct gpool_block all;
	uint64_t sequence;

	assert_int_equal(try_allocate_prefix(tokens, &prefix, &sequence, &found), 0);
	assert_int_equal(gpool_kv_prefix_publish(kv, sequence, &prefix), n * CHUNK_BLOCKS);
	assert_int_equal(gpool_kv_free(kv, sequence), 0);
	settle();
	all = alloc(other, PAGES - pages);
	assert_int_equal(gpool_free(other, &all), 0);
}

static void test_evicted_blocks(void **state)
{
	struct gpool_kv_need need = {.size = sizeof(need)};
	struct gpool_kv_batch limits = GPOOL_KV_BATCH_INIT;
	struct gpool_kv_stats stats = {.size = sizeof(stats)};
	struct gpool_kv_prefix_found found = {.size = sizeof(found)};
	struct gpool_kv_prefix prefix = prefix_of(ids, BLOCK_TOKENS);
	struct gpool_kv_group *group;
	uint32_t tokens = 4, member;

	(void)state;
	for (uint32_t i = 0; i < sizeof(ids) / sizeof(*ids); i++)
		ids[i] = i;
	worker_open(steady);
	other = open_worker();
	kv = prefix_cache(64);
	assert_int_equal(gpool_kv_group_create(&kv, 1, 8 * BLOCK_TOKENS, &group), 0);
	for (uint32_t n = 1; n <= 3; n++) {
		chunks_lost(n, 0);
		CALLS_N(n, gpool_kv_can_allocate(kv, 4, &need), "n offered chunks were evicted",
			"cuStreamIsCapturing 2n, cuStreamWriteValue64 n, n frames");
		chunks_lost(n, 0);
		CALLS_N(n, gpool_kv_can_batch(kv, &tokens, 1, &limits, &need), "n offered chunks were evicted",
			"cuStreamIsCapturing 2n, cuStreamWriteValue64 n, n frames");
		chunks_lost(n, 0);
		CALLS_N(n, gpool_kv_stats(kv, &stats), "n offered chunks were evicted",
			"cuStreamIsCapturing 2n, cuStreamWriteValue64 n, n frames");
		chunks_lost(n, 0);
		CALLS_N(n, gpool_kv_prefix_find(kv, &prefix, &found), "n offered chunks were evicted",
			"cuStreamIsCapturing 2n, cuStreamWriteValue64 n, n frames");
		chunks_lost(n, 0);
		CALLS_N(n, gpool_kv_prefix_tree(kv, NULL, 0, NULL), "n offered chunks were evicted",
			"cuStreamIsCapturing 2n, cuStreamWriteValue64 n, n frames");
		chunks_lost(n, 0);
		CALLS_N(n, gpool_kv_group_can_allocate(group, 4, &member, &need),
			"n offered chunks of its caches were evicted",
			"cuStreamIsCapturing 2n, cuStreamWriteValue64 n, n frames");
	}
	gpool_kv_group_destroy(group);
	assert_int_equal(gpool_kv_destroy(kv), 0);
}

static void test_publish_again(void **state)
{
	uint32_t tokens = CHUNK_BLOCKS * BLOCK_TOKENS;
	struct gpool_kv_prefix prefix = prefix_of(ids, tokens);
	uint64_t first, second;

	(void)state;
	worker_open(steady);
	other = open_worker();
	kv = prefix_cache(64);
	first = allocated(tokens, 0, 0);
	second = allocated(tokens, 0, 0);
	assert_int_equal(gpool_kv_prefix_publish(kv, first, &prefix), CHUNK_BLOCKS);
	CALLS(gpool_kv_prefix_publish(kv, second, &prefix),
		"the blocks of another sequence are used instead, and a page is no longer used",
		"cuStreamIsCapturing 2, cuStreamWriteValue64, 1 frame");
	assert_int_equal(gpool_kv_free(kv, first), 0);
	assert_int_equal(gpool_kv_free(kv, second), 0);
	for (uint32_t n = 1; n <= 3; n++) {
		struct gpool_kv_prefix lost = prefix_of(ids, n * tokens);

		assert_true(gpool_kv_prefix_evict(kv, UINT32_MAX) >= 0);
		second = allocated(n * tokens, 0, 0);
		chunks_lost(n, n);
		CALLS_N(n, gpool_kv_prefix_publish(kv, second, &lost), "n offered chunks of the same text were evicted",
			"cuStreamIsCapturing 2n, cuStreamWriteValue64 n, n frames");
		assert_int_equal(gpool_kv_free(kv, second), 0);
	}
	assert_int_equal(gpool_kv_destroy(kv), 0);
}

/* ---- blocks that are not adjacent ---- */

/* Allocate 2n sequences of one block, and free every second one. */
static void holes(uint32_t n, uint64_t *sequences)
{
	for (uint32_t i = 0; i < 2 * n; i++)
		sequences[i] = allocated(BLOCK_TOKENS, 0, 0);
	for (uint32_t i = 0; i < 2 * n; i += 2)
		assert_int_equal(gpool_kv_free(kv, sequences[i]), 0);
}

static void test_zeroed_blocks(void **state)
{
	struct gpool_kv_request request = GPOOL_KV_REQUEST_INIT;
	struct gpool_kv_options options;
	uint64_t sequences[8], sequence;

	(void)state;
	worker_open(steady);
	options = small_options(64);
	options.flags = GPOOL_KV_ZERO;
	for (uint32_t n = 2; n <= 4; n++) {
		assert_int_equal(gpool_kv_create(worker, &options, &kv), 0);
		holes(n, sequences);
		request.tokens = n * BLOCK_TOKENS;
		CALLS_N(n, gpool_kv_allocate(kv, &request, &sequence), "GPOOL_KV_ZERO, n blocks that are not adjacent",
			"cuMemsetD32Async n, n frames");
		settle();
		assert_int_equal(gpool_kv_destroy(kv), 0);
	}
}

/* Each chunk has two blocks that are not adjacent, and is emptied by one launch. */
static void test_compaction(void **state)
{
	uint64_t sequences[8][CHUNK_BLOCKS];
	struct gpool_kv_options options;
	struct gpool_kv_pair pairs[2];

	(void)state;
	worker_open(steady);
	if (!(worker->capabilities & GPU_CAP_KERNELS))
		skip();
	options = small_options(64);
	options.compact_bytes_per_s = UINT64_MAX;
	for (uint32_t n = 1; n <= 3; n++) {
		assert_int_equal(gpool_kv_create(worker, &options, &kv), 0);
		for (uint32_t chunk = 0; chunk <= n; chunk++)
			for (int i = 0; i < CHUNK_BLOCKS; i++)
				sequences[chunk][i] = allocated(BLOCK_TOKENS, 0, 0);
		/* The first launch of the process loads the kernel. */
		pairs[0] = (struct gpool_kv_pair){block_at(sequences[0][0], 0), block_at(sequences[0][1], 0)};
		pairs[1] = (struct gpool_kv_pair){block_at(sequences[0][0], 0), block_at(sequences[0][3], 0)};
		assert_int_equal(gpool_kv_copy_blocks(kv, pairs, 2), 0);
		for (uint32_t i = 0; i < 2 * n; i++)
			assert_int_equal(gpool_kv_free(kv, sequences[0][i]), 0);
		for (uint32_t chunk = 1; chunk <= n; chunk++)
			for (int i = 0; i < CHUNK_BLOCKS; i++)
				if (i != 2 && i != 5)
					assert_int_equal(gpool_kv_free(kv, sequences[chunk][i]), 0);
		settle();
		CALLS_N(n, gpool_kv_compact(kv, 2 * n), "n chunks are emptied, each of blocks that are not adjacent",
			"cuLaunchKernel n, cuStreamIsCapturing 2, cuStreamWriteValue64, n + 1 frames");
		settle();
		assert_int_equal(gpool_kv_destroy(kv), 0);
	}
}

/* ---- preempted sequences ---- */

static void test_preempted(void **state)
{
	struct gpool_kv_growth growth = GPOOL_KV_GROWTH_INIT;
	uint64_t sequence, victims[8], victim;
	struct gpool_kv_options options;

	(void)state;
	worker_open(steady);
	options = small_options(64);
	assert_int_equal(gpool_kv_create(worker, &options, &kv), 0);
	sequence = allocated(CHUNK_BLOCKS * BLOCK_TOKENS, 0, 0);
	CALLS(gpool_kv_grow(kv, sequence, 1, NULL, NULL, NULL), "the cache needs a page",
		"cuMemImportFromShareableHandle, cuMemMap, cuMemSetAccess, 3 frames");
	CALLS(gpool_kv_preempt(kv, sequence, &victim), "a page is no longer used",
		"cuStreamIsCapturing 2, cuStreamWriteValue64, 1 frame");
	assert_int_equal(gpool_kv_destroy(kv), 0);
	growth.flags = GPOOL_KV_GROW_OFFLOAD;
	growth.most = 8;
	for (uint32_t n = 1; n <= 3; n++) {
		options = small_options((n + 1) * CHUNK_BLOCKS);
		assert_int_equal(gpool_kv_create(worker, &options, &kv), 0);
		assert_int_equal(gpool_kv_host_reserve(kv, 48 * BLOCK_BYTES), 0);
		sequence = allocated(CHUNK_BLOCKS * BLOCK_TOKENS, 0, 1);
		for (uint32_t i = 0; i < n; i++)
			allocated(CHUNK_BLOCKS * BLOCK_TOKENS, 0, 0);
		settle();
		CALLS_N(n, gpool_kv_grow(kv, sequence, n * CHUNK_BLOCKS * BLOCK_TOKENS, &growth, NULL, victims),
			"n sequences of adjacent blocks are preempted, with GPOOL_KV_GROW_OFFLOAD",
			"cuMemcpyAsync n, n frames");
		settle();
		assert_int_equal(gpool_kv_destroy(kv), 0);
	}
}

/* ---- orders and groups ---- */

static void test_orders(void **state)
{
	struct gpool_kv_order order = {.size = sizeof(order), .verb = GPOOL_KV_ORDER_ALLOCATE};
	struct gpool_kv_options options;
	uint64_t sequence;

	(void)state;
	worker_open(steady);
	options = small_options(32);
	assert_int_equal(gpool_kv_create(worker, &options, &kv), 0);
	order.request.tokens = 1;
	CALLS(gpool_kv_execute(kv, &order), "GPOOL_KV_ORDER_ALLOCATE, and the cache needs a page",
		"cuMemImportFromShareableHandle, cuMemMap, cuMemSetAccess, 3 frames");
	assert_int_equal(order.result, 0);
	sequence = order.sequence;
	order = (struct gpool_kv_order){
		.size = sizeof(order), .verb = GPOOL_KV_ORDER_APPEND, .sequence = forked(sequence), .tokens = 1};
	CALLS(gpool_kv_execute(kv, &order), "GPOOL_KV_ORDER_APPEND, and the last block is shared",
		"cuMemcpyAsync, 1 frame");
	assert_int_equal(order.result, 0);
	assert_int_equal(gpool_kv_free(kv, order.sequence), 0);
	order = (struct gpool_kv_order){.size = sizeof(order), .verb = GPOOL_KV_ORDER_PREEMPT, .sequence = sequence};
	CALLS(gpool_kv_execute(kv, &order), "GPOOL_KV_ORDER_PREEMPT, and a page is no longer used",
		"cuStreamIsCapturing 2, cuStreamWriteValue64, 1 frame");
	assert_true(order.result > 0);
	order = (struct gpool_kv_order){.size = sizeof(order), .verb = GPOOL_KV_ORDER_RESUME, .sequence = sequence};
	assert_int_equal(gpool_kv_execute(kv, &order), 0);
	assert_int_equal(order.result, 0);
	order = (struct gpool_kv_order){.size = sizeof(order), .verb = GPOOL_KV_ORDER_FREE, .sequence = sequence};
	CALLS(gpool_kv_execute(kv, &order), "GPOOL_KV_ORDER_FREE, and a page is no longer used",
		"cuStreamIsCapturing 2, cuStreamWriteValue64, 1 frame");
	assert_int_equal(order.result, 0);
	assert_int_equal(gpool_kv_destroy(kv), 0);
}

static void test_groups(void **state)
{
	struct gpool_kv_request request = GPOOL_KV_REQUEST_INIT;
	struct gpool_kv_options options;
	struct gpool_kv_group *group;
	struct gpool_kv *caches[3];
	uint64_t sequence, child, victim, slot;
	uint32_t member, chunk = CHUNK_BLOCKS * BLOCK_TOKENS;

	(void)state;
	worker_open(steady);
	for (uint32_t n = 1; n <= 3; n++) {
		for (uint32_t i = 0; i < n; i++) {
			options = small_options(4 * CHUNK_BLOCKS);
			assert_int_equal(gpool_kv_create(worker, &options, &caches[i]), 0);
		}
		assert_int_equal(gpool_kv_group_create(caches, n, chunk, &group), 0);
		request.tokens = n * chunk;
		assert_int_equal(gpool_kv_group_allocate(group, &request, &sequence), 0);
		settle();
		CALLS_N(n, gpool_kv_group_preempt(group, sequence, &victim),
			"n caches, and a page of each is no longer used",
			"cuStreamIsCapturing 2n, cuStreamWriteValue64 n, n frames");
		assert_int_equal(gpool_kv_group_free(group, sequence), 0);
		/* n sequences in the first cache */
		request.tokens = chunk;
		for (uint32_t i = 0; i < n; i++)
			assert_int_equal(gpool_kv_group_allocate(group, &request, &sequence), 0);
		settle();
		CALLS_N_VOID(n, gpool_kv_group_destroy(group), "n sequences, each with a page that is no longer used",
			"cuStreamIsCapturing 2n, cuStreamWriteValue64 n, n frames");
		for (uint32_t i = 0; i < n; i++)
			assert_int_equal(gpool_kv_destroy(caches[i]), 0);
		/* a group of one cache, in which the others have all pages */
		options = small_options((n + 1) * CHUNK_BLOCKS);
		assert_int_equal(gpool_kv_create(worker, &options, &caches[0]), 0);
		assert_int_equal(gpool_kv_group_create(caches, 1, 1024, &group), 0);
		request.priority = 1;
		assert_int_equal(gpool_kv_group_allocate(group, &request, &sequence), 0);
		request.priority = 0;
		for (uint32_t i = 0; i < n; i++)
			assert_int_equal(gpool_kv_group_allocate(group, &request, &child), 0);
		settle();
		CALLS_N(n, gpool_kv_group_grow(group, sequence, n * chunk, NULL, &member, &slot, NULL),
			"n sequences of a cache are preempted, each with a page",
			"cuStreamIsCapturing 2n, cuStreamWriteValue64 n, n frames");
		gpool_kv_group_destroy(group);
		assert_int_equal(gpool_kv_destroy(caches[0]), 0);
	}
	options = small_options(4 * CHUNK_BLOCKS);
	assert_int_equal(gpool_kv_create(worker, &options, &caches[0]), 0);
	options.max_sequences = 1;
	assert_int_equal(gpool_kv_create(worker, &options, &caches[1]), 0);
	assert_int_equal(gpool_kv_group_create(caches, 2, chunk, &group), 0);
	request.tokens = 2 * chunk;
	assert_int_equal(gpool_kv_group_allocate(group, &request, &sequence), 0);
	CALLS_ERROR(gpool_kv_group_fork(group, sequence, &child), -EUSERS,
		"the second cache has the maximum number of sequences", "");
	gpool_kv_group_destroy(group);
	for (int i = 0; i < 2; i++)
		assert_int_equal(gpool_kv_destroy(caches[i]), 0);
}

/* ---- saved content ---- */

static struct gpool_block others[PAGES]; /* [page] */

/*
 * Let another session hold all pages of the pool, except n that are not adjacent: every second page from the page
 * `last` downwards.
 */
static void scatter(uint32_t n, uint32_t last)
{
	struct gpool *third = open_worker();
	struct gpool_block block;

	if (other)
		gpool_close(other);
	other = open_worker();
	while (!gpool_alloc(other, 1, NULL, &block))
		others[block.page] = block;
	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(gpool_free(other, &others[last - 2 * i]), 0);
	/* The pages are free when the session that leases them has ended. */
	for (uint32_t i = 0; i < n; i++)
		alloc(third, 1);
	gpool_close(third);
	AWAIT(free_pages() == n);
}

/* Return true if the agent has answered the request to restore the sequence's only piece. */
static bool piece_has_come(uint64_t number)
{
	const struct lease_ticket *ticket;
	struct kv_sequence *sequence;

	assert_int_equal(kv_find(kv, number, &sequence), 0);
	assert_int_equal(sequence->saved->count, 1);
	ticket = &sequence->saved->pieces[0].fetch.ticket;
	return atomic_load(&worker->session.requests[ticket->slot].state) != ticket->word;
}

static void test_saved_in_the_pool(void **state)
{
	static const char *const spilling[] = {"--pool", POOL ",spill_memory=32MiB", CALM, "--set", "lease.idle=1h",
		"--set", "lease.keep_pages=64", NULL};
	uint64_t sequence, victim;

	(void)state;
	start(spilling);
	for (uint32_t n = 2; n <= 4; n++) {
		struct kv_sequence *saved;

		worker = open_worker();
		assert_int_equal(gpool_stream_open(worker, NULL, 0, &stream), 0);
		{
			struct gpool_kv_options options = small_options(64);

			assert_int_equal(gpool_kv_create(worker, &options, &kv), 0);
		}
		sequence = allocated(n * CHUNK_BLOCKS * BLOCK_TOKENS, 0, 0);
		settle();
		scatter(n, PAGES - 1);
		CALLS_N(n, gpool_kv_offload(kv, sequence, GPOOL_KV_OFFLOAD_POOL, &victim),
			"GPOOL_KV_OFFLOAD_POOL, to n scattered pages that the process has not imported yet",
			"cuMemAddressReserve, cuMemImportFromShareableHandle n, cuMemMap n, cuMemSetAccess, "
			"cuMemcpyAsync, cuStreamIsCapturing 4, cuStreamWriteValue64 2, 2n + 5 frames");
		settle();
		assert_int_equal(kv_find(kv, sequence, &saved), 0);
		assert_int_equal(saved->saved->count, 1);
		AWAIT(spill_now(worker, &saved->saved->pieces[0].block) == 0);
		scatter(2 * n, PAGES / 2 - 1);
		assert_true(gpool_kv_prefetch(kv, sequence) > 0);
		AWAIT(piece_has_come(sequence));
		CALLS_N(n, gpool_kv_prefetch(kv, sequence),
			"a restore to n scattered pages that the process has not imported yet is done",
			"cuMemAddressReserve, cuMemImportFromShareableHandle n, cuMemMap n, cuMemSetAccess, "
			"2n + 2 frames");
		gpool_close(worker);
		worker = NULL;
		gpool_close(other);
		other = NULL;
	}
}

static void test_loss_is_not_known(void **state)
{
	struct gpool_kv_quant_error loss = {.size = sizeof(loss)};
	struct gpool_kv_options options;
	uint64_t sequence, victim;

	(void)state;
	worker_open(steady);
	if (!(worker->capabilities & GPU_CAP_KERNELS))
		skip();
	options = small_options(64);
	assert_int_equal(gpool_kv_create(worker, &options, &kv), 0);
	assert_int_equal(gpool_kv_host_reserve(kv, 48 * BLOCK_BYTES), 0);
	sequence = allocated(4 * BLOCK_TOKENS, 0, 0);
	gate_close(stream);
	assert_true(gpool_kv_offload(kv, sequence, GPOOL_KV_OFFLOAD_INT8, &victim) > 0);
	CALLS_MOST_ERROR(gpool_kv_quant_error(kv, sequence, &loss), -EAGAIN,
		"the work is not done, at most once per millisecond", "cuStreamIsCapturing, cuStreamQuery, 1 frame");
	gate_open(stream);
	assert_int_equal(gpool_kv_destroy(kv), 0);
}

/* ---- adapters ---- */

static struct gpool_lora *lora_of(struct gpool *pool, uint32_t hot_adapters)
{
	struct gpool_lora_options options = GPOOL_LORA_OPTIONS_INIT;
	struct gpool_lora *made;

	options.element = GPOOL_LORA_BF16;
	options.load_threads = 1;
	options.rebalance_ms = UINT32_MAX;
	options.hot_adapters = hot_adapters;
	assert_int_equal(gpool_lora_create(pool, &options, &made), 0);
	return made;
}

static uint32_t registered(struct gpool_lora *lora, uint32_t adapter)
{
	char path[128], why[GPOOL_LORA_REASON_BYTES];
	uint32_t id;

	snprintf(path, sizeof(path), "%s/%u", engine_folder, adapter);
	if (gpool_lora_register(lora, path, path, &id, why))
		fail_msg("%s", why);
	return id;
}

static void loaded(struct gpool_lora *lora, uint32_t id)
{
	assert_int_equal(gpool_lora_acquire(lora, id, -1), 0);
	assert_int_equal(gpool_lora_release(lora, id, none), 0);
}

/* One engine has the adapters open that another engine has published. */
static void test_adapters_of_another_engine(void **state)
{
	struct gpool_lora_scheduler *scheduler;
	struct gpool_lora *builder, *reader;
	uint32_t theirs[6], ours[6], request;

	(void)state;
	worker_open(steady);
	other = open_worker();
	engine_adapters_begin();
	builder = lora_of(other, 0);
	reader = lora_of(worker, 0);
	for (uint32_t i = 0; i < 6; i++) {
		uint32_t adapter = engine_adapter(16, SAFETENSORS_F32);

		theirs[i] = registered(builder, adapter);
		ours[i] = registered(reader, adapter);
		loaded(builder, theirs[i]);
	}
	CALLS(gpool_lora_acquire_async(reader, ours[0], -1), "the adapter is an object of another engine", "");
	assert_int_equal(gpool_lora_acquire(reader, ours[0], -1), 0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(gpool_lora_release(reader, ours[0], none), 0);
	for (uint32_t i = 1; i < 6; i++)
		loaded(reader, ours[i]);
	CALLS(gpool_lora_unload(reader, ours[0]), "the adapter was opened as an object of another engine",
		"cuMemAddressFree, cuMemUnmap, 2 frames");
	CALLS(gpool_lora_unregister(reader, ours[1]), "the adapter was opened as an object of another engine",
		"cuMemAddressFree, cuMemUnmap, 2 frames");
	for (uint32_t i = 2; i < 6; i++)
		assert_int_equal(gpool_lora_unload(builder, theirs[i]), 0);
	CALLS(gpool_lora_acquire(reader, ours[2], -1), "the object of another engine was evicted",
		"cuMemAddressFree, cuMemUnmap, 2 frames");
	CALLS(gpool_lora_prefetch(reader, ours[3]), "the object of another engine was evicted",
		"cuMemAddressFree, cuMemUnmap, 2 frames");
	CALLS(gpool_lora_acquire_async(reader, ours[4], -1), "the object of another engine was evicted",
		"cuMemAddressFree, cuMemUnmap, 2 frames");
	assert_int_equal(gpool_lora_scheduler_create(reader, NULL, &scheduler), 0);
	CALLS(gpool_lora_scheduler_add(scheduler, ours[5], 10, &request), "the object of another engine was evicted",
		"cuMemAddressFree, cuMemUnmap, 2 frames");
	assert_int_equal(gpool_lora_scheduler_destroy(scheduler), 0);
	assert_int_equal(gpool_lora_release(reader, ours[2], none), 0);
	assert_int_equal(gpool_lora_acquire(reader, ours[4], -1), 0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(gpool_lora_release(reader, ours[4], none), 0);
	assert_int_equal(gpool_lora_destroy(reader), 0);
	assert_int_equal(gpool_lora_destroy(builder), 0);
	assert_int_equal(engine_adapters_end(), 0);
}

/* Use an adapter by GPU work that is not done. */
static void used(struct gpool_lora *lora, uint32_t id, struct gpool_fence fence)
{
	assert_int_equal(gpool_lora_acquire(lora, id, -1), 0);
	assert_int_equal(gpool_lora_release(lora, id, fence), 0);
}

static bool is_resident(struct gpool_lora *lora, uint32_t id)
{
	struct gpool_lora_info info = {.size = sizeof(info)};

	assert_int_equal(gpool_lora_info(lora, id, &info), 0);
	return info.state == GPOOL_LORA_RESIDENT;
}

/*
 * Let a scheduler keep an adapter for a waiting request, which is returned: the batch has one request, and while the
 * agent is stopped, the adapter is not loaded and another request starts.
 */
static uint32_t kept_request(
	struct gpool_lora_scheduler *scheduler, struct gpool_lora *lora, uint32_t id, uint32_t first)
{
	struct gpool_lora_schedule schedule = {.size = sizeof(schedule)};
	pid_t agent = process_of("gpoold-agent");
	uint32_t waiting, started;

	assert_int_equal(kill(agent, SIGSTOP), 0);
	assert_int_equal(gpool_lora_scheduler_add(scheduler, id, 10, &waiting), 0);
	assert_int_equal(gpool_lora_scheduler_schedule(scheduler, 0, &schedule), 0);
	assert_int_equal(gpool_lora_scheduler_add(scheduler, first, 10, &started), 0);
	assert_int_equal(gpool_lora_scheduler_schedule(scheduler, 0, &schedule), 1);
	assert_int_equal(schedule.starts[0], started);
	assert_int_equal(kill(agent, SIGCONT), 0);
	AWAIT(is_resident(lora, id));
	assert_int_equal(gpool_lora_scheduler_schedule(scheduler, 0, &schedule), 0);
	return waiting;
}

/* If the number of adapters is limited, the last release of an adapter queries its fences. */
static void test_limited_adapters(void **state)
{
	struct gpool_lora_scheduler_options one = GPOOL_LORA_SCHEDULER_OPTIONS_INIT;
	struct gpool_lora_schedule schedule = {.size = sizeof(schedule)};
	struct gpool_lora_scheduler *scheduler;
	struct gpool_lora *lora;
	struct gpool_fence fence;
	uint32_t adapters[8], request;

	(void)state;
	worker_open(steady);
	engine_adapters_begin();
	lora = lora_of(worker, 8);
	for (uint32_t i = 0; i < 8; i++)
		adapters[i] = registered(lora, engine_adapter(16, SAFETENSORS_F32));
	for (uint32_t i = 0; i < 7; i++)
		loaded(lora, adapters[i]);
	gate_close(stream);
	assert_int_equal(gpool_fence_record(worker, stream, &fence), 0);
	assert_int_equal(gpool_lora_acquire(lora, adapters[0], -1), 0);
	CALLS_MOST(gpool_lora_release(lora, adapters[0], fence),
		"the number of adapters is limited, and the fence is not signaled",
		"cuStreamIsCapturing, cuStreamQuery, 1 frame");
	one.batch_requests = 1;
	assert_int_equal(gpool_lora_scheduler_create(lora, &one, &scheduler), 0);
	request = kept_request(scheduler, lora, adapters[7], adapters[1]);
	used(lora, adapters[7], fence);
	CALLS_MOST(gpool_lora_scheduler_remove(scheduler, request),
		"the number of adapters is limited, and a fence of the adapter is not signaled",
		"cuStreamIsCapturing, cuStreamQuery, 1 frame");
	assert_int_equal(gpool_lora_scheduler_destroy(scheduler), 0);
	for (uint32_t n = 1; n <= 3; n++) {
		assert_int_equal(gpool_lora_scheduler_create(lora, NULL, &scheduler), 0);
		for (uint32_t i = 1; i <= n; i++)
			assert_int_equal(gpool_lora_scheduler_add(scheduler, adapters[i], 10, &request), 0);
		assert_int_equal(gpool_lora_scheduler_schedule(scheduler, -1, &schedule), n);
		for (uint32_t i = 1; i <= n; i++)
			used(lora, adapters[i], fence);
		CALLS_N_MOST(n, gpool_lora_scheduler_destroy(scheduler),
			"the number of adapters is limited, n are used, and their fences are not signaled",
			"cuStreamIsCapturing n, cuStreamQuery n, n frames");
	}
	assert_int_equal(gpool_lora_scheduler_create(lora, NULL, &scheduler), 0);
	assert_int_equal(gpool_lora_scheduler_add(scheduler, adapters[4], 10, &request), 0);
	assert_int_equal(gpool_lora_scheduler_schedule(scheduler, -1, &schedule), 1);
	CALLS_MOST(gpool_lora_scheduler_finish(scheduler, request, fence),
		"the number of adapters is limited, and the fence is not signaled",
		"cuStreamIsCapturing, cuStreamQuery, 1 frame");
	gate_open(stream);
	assert_int_equal(gpool_lora_scheduler_destroy(scheduler), 0);
	assert_int_equal(gpool_lora_destroy(lora), 0);
	assert_int_equal(engine_adapters_end(), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_evicted_blocks, worst_stop),
		cmocka_unit_test_teardown(test_publish_again, worst_stop),
		cmocka_unit_test_teardown(test_zeroed_blocks, worst_stop),
		cmocka_unit_test_teardown(test_compaction, worst_stop),
		cmocka_unit_test_teardown(test_preempted, worst_stop),
		cmocka_unit_test_teardown(test_orders, worst_stop),
		cmocka_unit_test_teardown(test_groups, worst_stop),
		cmocka_unit_test_teardown(test_saved_in_the_pool, worst_stop),
		cmocka_unit_test_teardown(test_loss_is_not_known, worst_stop),
		cmocka_unit_test_teardown(test_adapters_of_another_engine, worst_stop),
		cmocka_unit_test_teardown(test_limited_adapters, worst_stop),
	};

	return calls_result(cmocka_run_group_tests(tests, NULL, NULL));
}
