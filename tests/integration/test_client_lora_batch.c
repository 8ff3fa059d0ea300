/*
 * test_client_lora_batch.c - batches of tokens with different adapters, through the public calls, on a real agent.
 *
 * Goal: gpool_lora_batch_apply() adds the product of each token's own adapter, regardless of which adapters were
 * loaded, evicted or moved. A batch keeps exactly the adapters that it uses. Adapters that do not fit are refused by
 * name, and the previous batch stays valid. The number of calls of a set does not depend on the number of modules. The
 * result of a failed copy is not applied.
 *
 * Method: a small model on host memory, with every output compared with float64. Calls of the back end are counted and
 * made to fail.
 *
 * Requirements: L7, L8.
 */
#include "tests/integration/lora_engine.h"

static const char *const calm[] = {"--pool", POOL, QUIET, "--set", "lease.initial_pages=0", "--set",
	"lease.batch_pages=1", "--set", "lease.batch_most=1", NULL};

static struct engine engine;

static void engine_start(uint32_t element, const uint32_t *ranks, uint32_t count)
{
	start(calm);
	engine_adapters_begin();
	for (uint32_t i = 0; i < count; i++)
		engine_adapter(ranks[i], element == GPOOL_LORA_F16 ? SAFETENSORS_F16 : SAFETENSORS_F32);
	engine_open(&engine, element);
	for (uint32_t i = 0; i < count; i++)
		assert_int_equal(gpool_lora_acquire(engine.lora, engine.ids[i], -1), 0);
}

static int engine_stop(void **state)
{
	struct gpool_lora_info info = {.size = sizeof(info)};
	int error = gpool_lora_batch_destroy(engine.batch);

	engine.batch = NULL;
	/* Wait until only the test itself has adapters acquired. */
	for (uint32_t i = 0; i < engine_rig_count; i++)
		while (!gpool_lora_info(engine.lora, engine.ids[i], &info) && info.acquired)
			error |= gpool_lora_release(engine.lora, engine.ids[i], GPOOL_FENCE_NONE);
	error |= engine_close(&engine);
	error |= engine_adapters_end();
	return error | stop(state);
}

static uint32_t acquired(uint32_t adapter)
{
	struct gpool_lora_info info = {.size = sizeof(info)};

	assert_int_equal(gpool_lora_info(engine.lora, engine.ids[adapter], &info), 0);
	return info.acquired;
}

static void set_and_check(int32_t which[ENGINE_TOKENS], uint32_t tokens)
{
	char why[GPOOL_LORA_REASON_BYTES];

	if (engine_set(&engine, which, tokens, why))
		fail_msg("%s", why);
	assert_string_equal(why, "");
	assert_int_equal(engine_apply(&engine), 0);
	assert_int_equal(engine_wrong(&engine, which), 0);
}

/* ---- correct results ---- */

static void each_its_own(uint32_t element)
{
	static const uint32_t ranks[] = {8, 128, 16, 100, 32, 64, 24, 1, 9, 33};
	int32_t which[ENGINE_TOKENS];

	engine_start(element, ranks, 10);
	/* Before the first set, apply adds nothing. */
	memset(which, 0xff, sizeof(which));
	assert_int_equal(engine_apply(&engine), 0);
	assert_int_equal(engine_wrong(&engine, which), 0);
	for (uint32_t round = 0; round < 12; round++) {
		uint32_t first = engine_random(&engine, 10), tokens = engine_random(&engine, ENGINE_TOKENS + 1);

		/* Use up to 8 of 10 adapters, in sequence or mixed. */
		for (uint32_t i = 0; i < ENGINE_TOKENS; i++)
			which[i] = i % 5 == 4
				? -1
				: (int32_t)((first + (round % 2 ? i / 9 : engine_random(&engine, 8))) % 10);
		set_and_check(which, tokens);
	}
}

static void test_fp16(void **state)
{
	(void)state;
	each_its_own(GPOOL_LORA_F16);
}

static void test_bf16(void **state)
{
	(void)state;
	each_its_own(GPOOL_LORA_BF16);
}

/*
 * An adapter was evicted and loaded to other addresses, and another adapter has its former addresses. The table of the
 * first adapter must contain the new addresses.
 */
static void test_reloaded_at_other_pages(void **state)
{
	static const uint32_t ranks[] = {16, 24, 16};
	struct gpool_lora_weights before, after;
	int32_t which[ENGINE_TOKENS] = {0, 1, 0};

	(void)state;
	engine_start(GPOOL_LORA_BF16, ranks, 3);
	assert_int_equal(gpool_lora_release(engine.lora, engine.ids[2], GPOOL_FENCE_NONE), 0);
	assert_int_equal(gpool_lora_unload(engine.lora, engine.ids[2]), 0);
	set_and_check(which, 3);
	assert_int_equal(gpool_lora_weights(engine.lora, engine.ids[0], 0, "model.layers.*.q", &before), 0);
	which[0] = which[2] = 1;
	set_and_check(which, 3);
	assert_int_equal(acquired(0), 1);
	assert_int_equal(gpool_lora_release(engine.lora, engine.ids[0], GPOOL_FENCE_NONE), 0);
	assert_int_equal(gpool_lora_unload(engine.lora, engine.ids[0]), 0);
	assert_int_equal(gpool_lora_acquire(engine.lora, engine.ids[2], -1), 0);
	assert_int_equal(gpool_lora_acquire(engine.lora, engine.ids[0], -1), 0);
	assert_int_equal(gpool_lora_weights(engine.lora, engine.ids[0], 0, "model.layers.*.q", &after), 0);
	assert_int_not_equal(before.a.first, after.a.first);
	which[0] = 0;
	set_and_check(which, 3);
}

/* ---- which adapters a batch keeps ---- */

static void test_a_batch_keeps_its_adapters(void **state)
{
	static const uint32_t ranks[] = {128, 128};
	int32_t which[ENGINE_TOKENS] = {0, 1, 0};
	struct gpool_block block;

	(void)state;
	engine_start(GPOOL_LORA_BF16, ranks, 2);
	assert_int_equal(engine_set(&engine, which, 3, NULL), 0);
	assert_int_equal(acquired(0), 2);
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(gpool_lora_release(engine.lora, engine.ids[i], GPOOL_FENCE_NONE), 0);
		assert_int_equal(gpool_lora_unregister(engine.lora, engine.ids[i]), -EBUSY);
	}
	assert_int_equal(gpool_lora_destroy(engine.lora), -EBUSY);
	assert_int_equal(gpool_alloc(engine.pool, harness_free_pages(&harness) + 2, NULL, &block), -ENOSPC);
	assert_int_equal(engine_apply(&engine), 0);
	assert_int_equal(engine_wrong(&engine, which), 0);
	/*
	 * The next batch keeps only one of the adapters, which no other caller has acquired. The batch after it keeps
	 * none.
	 */
	which[0] = which[2] = 1;
	set_and_check(which, 3);
	assert_int_equal(acquired(0), 0);
	assert_int_equal(acquired(1), 1);
	set_and_check(which, 0);
	assert_int_equal(acquired(1), 0);
	assert_int_equal(gpool_lora_destroy(engine.lora), -EBUSY);
}

/* An adapter is not evicted under queued work. It was released after that work and has no users, but stays mapped. */
static void test_queued_work_keeps_it(void **state)
{
	static const uint32_t ranks[] = {16};
	struct gpool_fence held, signaled;
	uint32_t manual;
	int32_t which[ENGINE_TOKENS] = {0};

	(void)state;
	engine_start(GPOOL_LORA_BF16, ranks, 1);
	assert_int_equal(gpool_stream_open(engine.pool, NULL, GPOOL_STREAM_HOST_SIGNALED, &manual), 0);
	assert_int_equal(gpool_fence_record(engine.pool, manual, &held), 0);
	assert_int_equal(engine_set(&engine, which, 1, NULL), 0);
	assert_int_equal(gpool_lora_release(engine.lora, engine.ids[0], GPOOL_FENCE_NONE), 0);
	assert_int_equal(gpool_stream_wait(engine.pool, engine.stream, held), 0);
	assert_int_equal(engine_set(&engine, which, 0, NULL), 0);
	assert_int_equal(acquired(0), 0);
	assert_int_equal(gpool_lora_unload(engine.lora, engine.ids[0]), -EBUSY);
	assert_int_equal(gpool_lora_unregister(engine.lora, engine.ids[0]), -EBUSY);
	assert_int_equal(gpool_fence_record(engine.pool, engine.stream, &signaled), 0);
	assert_int_equal(gpool_fence_signal(engine.pool, held), 0);
	assert_int_equal(gpool_fence_wait(engine.pool, signaled, -1), 0);
	assert_int_equal(gpool_lora_unload(engine.lora, engine.ids[0]), 0);
	gpool_stream_close(engine.pool, manual);
}

/* ---- refusals ---- */

static void refused(int32_t which[ENGINE_TOKENS], uint32_t tokens, int error, const char *words)
{
	static int32_t good[ENGINE_TOKENS] = {0, 1};
	char why[GPOOL_LORA_REASON_BYTES];

	assert_int_equal(engine_set(&engine, good, 2, NULL), 0);
	assert_int_equal(engine_set(&engine, which, tokens, why), error);
	if (!strstr(why, words))
		fail_msg("'%s' is not in: %s", words, why);
	assert_int_equal(engine_apply(&engine), 0);
	assert_int_equal(engine_wrong(&engine, good), 0);
}

static void test_refused(void **state)
{
	static const uint32_t ranks[] = {16, 24};
	struct gpool_lora_batch_options options;
	struct rig_module modules[] = {
		{"model.layers.0.q", 8, ENGINE_IN, 384, SAFETENSORS_F32}, /* its other fields are invalid */
		{"model.layers.0.v", 8, ENGINE_IN, 131, SAFETENSORS_F32},
		{"model.layers.2.v", 8, ENGINE_IN, 130, SAFETENSORS_F32},
		{"model.layers.1.up", 8, ENGINE_IN, 130, SAFETENSORS_F32},
		{"embed", 8, ENGINE_IN, 130, SAFETENSORS_F32},
		{"model.layers.1.v", 65, ENGINE_IN, 130, SAFETENSORS_F32},
	};
	static const char *const words[] = {"",
		"has 256 input features and 131 output features, but the batch has 256 and 130",
		"layer 2, which is not a target in the 2 layers of the batch",
		"'model.layers.*.up' in layer 1, which is not a target", "contains 'embed', which is not a target",
		"has rank 65; the maximum of the batch is 64 (rank_max)"};
	uint32_t others[ENGINE_TOKENS];
	int32_t which[ENGINE_TOKENS] = {0, 2, 1};
	char why[GPOOL_LORA_REASON_BYTES], path[128];

	(void)state;
	engine_start(GPOOL_LORA_BF16, ranks, 2);
	assert_int_equal(gpool_lora_batch_destroy(engine.batch), 0);
	options = engine_batch_options(&engine);
	options.rank_max = 64;
	assert_int_equal(gpool_lora_batch_create(engine.lora, &options, &engine.batch), 0);
	for (uint32_t i = 1; i < 6; i++) {
		uint32_t adapter = engine_adapter_of((struct rig_module[]){modules[0], modules[i]}, 2);

		snprintf(path, sizeof(path), "%s/%u", engine_folder, adapter);
		assert_int_equal(gpool_lora_register(engine.lora, path, path, &engine.ids[adapter], NULL), 0);
		which[1] = (int32_t)adapter;
		refused(which, 3, -EINVAL, "is not acquired; call gpool_lora_acquire() first");
		assert_int_equal(gpool_lora_acquire(engine.lora, engine.ids[adapter], -1), 0);
		refused(which, 3, -EINVAL, words[i]);
		refused(which, 3, -EINVAL, path);
		assert_int_equal(acquired(adapter), 1);
		assert_int_equal(acquired(0), 2);
	}
	for (uint32_t i = 0; i < ENGINE_TOKENS; i++)
		others[i] = 3 + i % 9;
	assert_int_equal(gpool_lora_batch_set(engine.batch, others, ENGINE_TOKENS, why), -ENOENT);
	assert_non_null(strstr(why, "no adapter 7 is registered"));
	others[0] = 1000000;
	assert_int_equal(gpool_lora_batch_set(engine.batch, others, 1, why), -ENOENT);
	assert_int_equal(gpool_lora_batch_set(engine.batch, others, ENGINE_TOKENS + 1, why), -EINVAL);
	assert_string_equal(why, "there are 65 tokens; the batch can have at most 64 (tokens_max)");
	which[1] = 0;
	set_and_check(which, 3);
}

/* Use more adapters than the batch supports, and weights of another type. */
static void test_refused_adapters(void **state)
{
	static const uint32_t ranks[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
	struct gpool_lora_batch_options options;
	int32_t which[ENGINE_TOKENS];
	char why[GPOOL_LORA_REASON_BYTES];

	(void)state;
	engine_start(GPOOL_LORA_BF16, ranks, 9);
	for (int32_t i = 0; i < ENGINE_TOKENS; i++)
		which[i] = i % 9;
	refused(which, ENGINE_TOKENS, -EINVAL, "token 8: the batch has more than 8 different adapters (adapters_max)");
	set_and_check(which, 8);
	assert_int_equal(gpool_lora_batch_destroy(engine.batch), 0);
	options = engine_batch_options(&engine);
	options.element = GPOOL_LORA_F16;
	assert_int_equal(gpool_lora_batch_create(engine.lora, &options, &engine.batch), 0);
	assert_int_equal(engine_set(&engine, which, 1, why), -EINVAL);
	assert_non_null(strstr(why, "has weights in bf16, but the batch is in fp16; set gpool_lora_options.element"));
}

static int opened(struct gpool_lora_batch_options options)
{
	struct gpool_lora_batch *batch;
	int error = gpool_lora_batch_create(engine.lora, &options, &batch);

	return error ? error : gpool_lora_batch_destroy(batch);
}

static void test_wrong_options(void **state)
{
	struct gpool_lora_batch_options good, options;
	struct gpool_lora_target targets[2] = {engine_targets[0], engine_targets[0]};
	uint64_t x;

	(void)state;
	engine_start(GPOOL_LORA_BF16, NULL, 0);
	good = engine_batch_options(&engine);
	assert_int_equal(opened(good), 0);
#define WRONG(field, value, error) \
	options = good; \
	options.field = value; \
	assert_int_equal(opened(options), error)
	WRONG(flags, 1, -EINVAL);
	WRONG(size, 3, -EINVAL);
	WRONG(stream, 0, -EINVAL);
	WRONG(element, GPOOL_LORA_AS_FILE, -EINVAL);
	WRONG(tokens_max, 0, -EINVAL);
	WRONG(tokens_max, (1 << 20) + 1, -EINVAL);
	WRONG(tokens_max, 1 << 20, -ENOSPC);
	WRONG(adapters_max, 1025, -EINVAL);
	WRONG(rank_max, 129, -EINVAL);
	WRONG(layers, 0, -EINVAL);
	WRONG(layers, 4097, -EINVAL);
	WRONG(targets, NULL, -EINVAL);
	WRONG(target_count, 0, -EINVAL);
	options = good;
	options.targets = targets;
	options.target_count = 2;
	assert_int_equal(opened(options), -EINVAL);
	targets[1].name = "";
	assert_int_equal(opened(options), -EINVAL);
	targets[1] = engine_targets[1];
	targets[1].out = 0;
	assert_int_equal(opened(options), -EINVAL);
	assert_int_equal(gpool_lora_batch_destroy(NULL), 0);
	x = (uintptr_t)engine.x;
#define APPLY(layer, target, x, x_stride, y, y_stride, stream) \
	assert_int_equal(gpool_lora_batch_apply(engine.batch, layer, target, x, x_stride, y, y_stride, stream), -EINVAL)
	APPLY(0, 3, x, 536, x + 131072, 536, engine.stream);
	APPLY(2, 0, x, 536, x + 131072, 536, engine.stream);
	APPLY(-1, 0, x, 536, x + 131072, 536, engine.stream);
	APPLY(0, 2, x, 536, x + 131072, 536, engine.stream);
	APPLY(0, 0, x, 536, x + 131072, 536, 0);
	APPLY(0, 0, x + 8, 536, x + 131072, 536, engine.stream);
	APPLY(0, 0, x, 248, x + 131072, 536, engine.stream);
	APPLY(0, 0, x, 536, x + 131072, 376, engine.stream);
	APPLY(0, 0, x, 540, x + 131072, 536, engine.stream);
}

/* ---- cost ---- */

/*
 * Return the number of this thread's calls, without the queries whether a stream failed, which a slow wait repeats, and
 * without the event of each fence while another GPU stream is open: on `cuda`, loaders have streams.
 */
static uint64_t calls_total(void)
{
	return gpu_thread_calls_total() - gpu_thread_calls(GPU_CALL_STREAM_QUERY) -
		gpu_thread_calls(GPU_CALL_EVENT_CREATE) - gpu_thread_calls(GPU_CALL_EVENT_RECORD);
}

static uint64_t calls_of(int32_t which[ENGINE_TOKENS], uint32_t tokens)
{
	uint64_t before = calls_total();

	assert_int_equal(engine_set(&engine, which, tokens, NULL), 0);
	return calls_total() - before;
}

/* A set makes one copy and one fence, and one more copy for new tables if they are adjacent. */
static void test_calls(void **state)
{
	static const uint32_t ranks[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
	int32_t which[ENGINE_TOKENS];

	(void)state;
	engine_start(GPOOL_LORA_BF16, ranks, 9);
	for (int32_t i = 0; i < ENGINE_TOKENS; i++)
		which[i] = i % 8;
	assert_int_equal(calls_of(which, ENGINE_TOKENS), 3);
	assert_int_equal(calls_of(which, ENGINE_TOKENS), 2);
	which[0] = 3;
	assert_int_equal(calls_of(which, 1), 2);
	/*
	 * Adapters that are used again still have their tables. A new adapter replaces the one that has been unused
	 * longest.
	 */
	for (int32_t i = 0; i < 8; i++)
		which[i] = i ? i : 8;
	assert_int_equal(calls_of(which, 8), 3);
	assert_int_equal(engine_apply(&engine), 0);
	assert_int_equal(engine_wrong(&engine, which), 0);
	for (uint64_t i = 0; i < 2; i++) {
		uint64_t before = calls_total();

		assert_int_equal(gpool_lora_batch_apply(engine.batch, 0, 0, (uintptr_t)engine.x, ENGINE_STRIDE,
					 (uintptr_t)engine.y, ENGINE_STRIDE, engine.stream),
			0);
		assert_int_equal(calls_total() - before, 2);
	}
}

/* ---- failures ---- */

/* If a copy or a fence fails, nothing is applied until a complete batch is set again. */
static void test_failed_copies(void **state)
{
	static const uint32_t ranks[] = {16, 24, 40};
	static const enum gpu_call calls[] = {GPU_CALL_COPY, GPU_CALL_COPY, GPU_CALL_TIMELINE_WRITE};
	int32_t which[ENGINE_TOKENS] = {0, 1, 0};

	(void)state;
	engine_start(GPOOL_LORA_BF16, ranks, 3);
	for (uint32_t i = 0; i < 3; i++) {
		which[0] = 0;
		set_and_check(which, 3);
		which[0] = 2;
		/* the tables; the batch; the fence. Every error of the driver is reported as -EIO. */
		gpu_fault_set(engine.pool->gpu, calls[i], 1, i ? -ENODEV : -ENOMEM);
		assert_int_equal(engine_set(&engine, which, 3, NULL), -EIO);
		gpu_fault_set(engine.pool->gpu, calls[i], 0, 0);
		assert_int_equal(engine_apply(&engine), -EIO);
		set_and_check(which, 3);
		/* The batch has acquired each adapter once, regardless of the failures. */
		assert_int_equal(acquired(0), 2);
		assert_int_equal(acquired(2), 2);
		which[0] = which[1] = which[2] = 1;
		set_and_check(which, 3);
		assert_int_equal(acquired(0), 1);
		assert_int_equal(acquired(2), 1);
		which[2] = 0;
	}
}

static void test_failed_opening(void **state)
{
	static const enum gpu_call calls[] = {GPU_CALL_HOST_REGISTER, GPU_CALL_FILL, GPU_CALL_LAUNCH};
	uint32_t pages;

	(void)state;
	engine_start(GPOOL_LORA_BF16, NULL, 0);
	assert_int_equal(opened(engine_batch_options(&engine)), 0);
	pages = harness_free_pages(&harness);
	for (uint32_t i = 0; i < 3; i++) {
		gpu_fault_set(engine.pool->gpu, calls[i], 1, -EIO);
		assert_int_equal(opened(engine_batch_options(&engine)), -EIO);
		gpu_fault_set(engine.pool->gpu, calls[i], 0, 0);
	}
	assert_int_equal(opened(engine_batch_options(&engine)), 0);
	assert_int_equal(harness_free_pages(&harness), pages);
}

int main(int argc, char **argv)
{
#define TEST(name) cmocka_unit_test_teardown(test_##name, engine_stop)
	const struct CMUnitTest tests[] = {
		TEST(fp16),
		TEST(bf16),
		TEST(reloaded_at_other_pages),
		TEST(a_batch_keeps_its_adapters),
		TEST(queued_work_keeps_it),
		TEST(refused),
		TEST(refused_adapters),
		TEST(wrong_options),
		TEST(calls),
		TEST(failed_copies),
		TEST(failed_opening),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
