/*
 * test_attention.c - the attention kernel: the C reference, and the CUDA code run on the CPU.
 *
 * Goal: for all head sizes, elements, groups and layouts, each result is within a bound that is derived from float64.
 * Invalid arguments are refused, and invalid sequences in device memory are ignored.
 *
 * Method: random shapes with a fixed seed on both back ends (attention_rig.h). tests/emulated/ runs each thread as a
 * fiber. Every place is allocated separately, so that AddressSanitizer (make asan) detects its end. Under
 * ThreadSanitizer (make tsan), blocks run concurrently.
 *
 * Requirements: K13.
 */
#include "tests/emulated/emulator.h"
#include "tests/lib/scale.h"
#include "tests/unit/attention_rig.h"

static int setup_host(void **state)
{
	static struct rig rig;

	assert_int_equal(rig_open(&rig, &gpu_host_ops, 0), 0);
	*state = &rig;
	return 0;
}

static int setup_emulated(void **state)
{
	static struct rig rig;

	assert_int_equal(rig_open(&rig, emulator_ops(), 0), 0);
	emulator_seed(12345);
	*state = &rig;
	return 0;
}

static int teardown(void **state)
{
	rig_close(*state);
	return 0;
}

static uint32_t one_of(struct rig *rig, const uint32_t *list, uint32_t count)
{
	return list[rig_random(rig) % count];
}

/* shape_random() - return a random shape; every third one has enough rows for prefill. */
static struct cache_shape shape_random(struct rig *rig, uint32_t round)
{
	static const uint32_t sizes[] = {64, 80, 96, 128, 256, 64, 80, 96, 128, 256, 16, 112, 160};
	static const uint32_t groups[] = {1, 2, 3, 4, 7, 8, 16, 20}, block_tokens[] = {8, 16, 32};
	bool prefill = round % 3 == 2;
	struct cache_shape shape = {
		.element = round % 2 ? ELEMENT_BF16 : ELEMENT_F16,
		.int8 = round / 2 % 3 == 2,
		.head_size = one_of(rig, sizes, sizeof(sizes) / sizeof(*sizes)),
		.kv_heads = 1 + rig_random(rig) % 2,
		.group = one_of(rig, groups, prefill ? 5 : 8),
		.block_tokens = one_of(rig, block_tokens, 3),
		.chunk_blocks = 1 + rig_random(rig) % 3,
		.layers = 1 + rig_random(rig) % 2,
		.by_head = rig_random(rig) % 2,
		.sequences = 1 + rig_random(rig) % 2,
		.size = rig_random(rig) % 4 ? 1 : 4,
	};

	shape.layer = rig_random(rig) % shape.layers;
	for (uint32_t i = 0; i < shape.sequences; i++) {
		shape.queries[i] = prefill ? 1 + rig_random(rig) % (80 / shape.group) : rig_random(rig) % 3;
		if (prefill && !i)
			shape.queries[i] = 65 / shape.group + 1;
		shape.tokens[i] = shape.queries[i] + rig_random(rig) % 60;
		if (rig_random(rig) % 8 == 0)
			shape.tokens[i] += 256 + rig_random(rig) % 100; /* two splits */
	}
	return shape;
}

static void random_shapes(struct rig *rig, uint32_t rounds)
{
	double worst[2] = {0, 0};

	for (uint32_t round = 0; round < rounds; round++) {
		struct cache_shape shape = shape_random(rig, round);
		struct cache cache;

		cache_init(&cache, rig, &shape);
		cache_run(&cache);
		worst[round % 2] = fmax(worst[round % 2], cache_check(&cache));
		rig_clear(rig);
	}
	print_message(
		"%u shapes; largest error, divided by its bound: %.2f fp16, %.2f bf16\n", rounds, worst[0], worst[1]);
}

static void test_random_shapes_host(void **state)
{
	random_shapes(*state, test_scaled(400));
}

/* At least 200 in `make test`; fewer where each costs ten times as much. */
static void test_random_shapes(void **state)
{
#ifdef __SANITIZE_THREAD__
	random_shapes(*state, test_scaled(130));
#else
	random_shapes(*state, test_scaled(400));
#endif
}

/* Several tiles of rows, splits and blocks in each dimension of the grids. */
static void test_large_grid(void **state)
{
	struct cache_shape shape = {.element = ELEMENT_F16,
		.head_size = 64,
		.kv_heads = 2,
		.group = 24,
		.block_tokens = 16,
		.chunk_blocks = 2,
		.layers = 1,
		.sequences = 3,
		.tokens = {700, 5, 300},
		.queries = {1, 1, 2},
		.size = 1};
	struct cache cache;
	uint16_t *first;

	cache_init(&cache, *state, &shape);
	assert_int_equal(attention_tiles(&cache.args, ATTENTION_ROWS), 3);
	cache_run(&cache);
	cache_check(&cache);
	first = malloc(cache.output.bytes);
	assert_non_null(first);
	memcpy(first, cache.output.host, cache.output.bytes);
	/* The counters are zero again, and a sequence's result does not depend on the others. */
	((struct attention_sequence *)cache.sequences.host)[1].query_count = 0;
	rig_upload(*state, &cache.sequences);
	memset(cache.output.host, 0xff, cache.output.bytes);
	rig_upload(*state, &cache.output);
	cache_run(&cache);
	assert_memory_equal(first, cache_output(&cache, 0), cache.args.output_stride * 2);
	assert_memory_equal(
		first + 2 * cache.args.output_stride, cache_output(&cache, 2), cache.args.output_stride * 4);
	assert_int_equal(cache_output(&cache, 1)[0], 0xffff);
	free(first);
	rig_clear(*state);
}

/* Each invalid field of a sequence, and the number of a block that does not exist. */
static void test_invalid_sequences(void **state)
{
	static const struct attention_sequence wrong[] = {{1, 20, 0, 1}, {0, 20, 3, 1}, {0, 20, UINT32_MAX, 1},
		{0, 20, 0, 3}, {0, 1, 0, 2}, {0, 1000, 0, 1}, {UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX}};
	struct cache_shape shape = {.head_size = 64,
		.kv_heads = 1,
		.group = 2,
		.block_tokens = 16,
		.chunk_blocks = 1,
		.layers = 1,
		.sequences = 1,
		.tokens = {20},
		.queries = {2},
		.size = 1};
	struct attention_sequence *sequence;
	struct cache cache;

	cache_init(&cache, *state, &shape);
	sequence = cache.sequences.host;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		*sequence = wrong[i];
		cache_run(&cache);
		for (uint32_t at = 0; at < cache.output.bytes / 2; at++)
			assert_int_equal(((uint16_t *)cache.output.host)[at], 0xffff);
	}
	*sequence = (struct attention_sequence){0, 20, 0, 1};
	((int32_t *)cache.tables.host)[1] = -1;
	cache_run(&cache);
	assert_true(isfinite(cache_float(&cache, cache_output(&cache, 0)[0])));
	rig_clear(*state);
}

static void test_refused(void **state)
{
	struct cache_shape shape = {.head_size = 64,
		.kv_heads = 2,
		.group = 2,
		.block_tokens = 16,
		.chunk_blocks = 1,
		.layers = 1,
		.sequences = 1,
		.tokens = {20},
		.queries = {1},
		.size = 1};
	struct rig *rig = *state;
	struct attention_args args;
	struct cache cache;

	cache_init(&cache, rig, &shape);
#define REFUSED(change) \
	args = cache.args; \
	change; \
	assert_int_equal(attention_queue(rig->gpu, &args, rig->stream), -EINVAL)
	REFUSED(args.element = ELEMENT_F32);
	REFUSED(args.head_size = 0);
	REFUSED(args.head_size = 72);
	REFUSED(args.head_size = 272);
	REFUSED(args.block_tokens = 4);
	REFUSED(args.block_tokens = 24);
	REFUSED(args.kv_heads = 0);
	REFUSED(args.kv_heads = 3);
	REFUSED(args.heads = 0);
	REFUSED(args.sequence_count = 0);
	REFUSED(args.query_most = 0);
	REFUSED(args.query_most = args.query_tokens + 1);
	REFUSED(args.table_columns = 0);
	REFUSED(args.table_columns = UINT32_MAX);
	REFUSED(args.chunk_blocks = 0);
	REFUSED(args.keys += 8);
	REFUSED(args.values += 16);
	REFUSED(args.values = UINT64_MAX - 15);
	REFUSED(args.token_stride = UINT32_MAX - 15);
	REFUSED(args.query_stride = 248);
	REFUSED(args.output_stride = 260);
	REFUSED(args.queries += 8);
	REFUSED(args.output = 0);
	REFUSED(args.tables += 2);
	REFUSED(args.blocks = 0);
	REFUSED(args.int8 = 1; args.key_scales = 1);
	REFUSED(args.table_columns = 1 << 20; args.workspace = 0);
	assert_int_equal(attention_queue(rig->gpu, NULL, rig->stream), -EINVAL);
	rig_clear(rig);
}

#define HOST(test) cmocka_unit_test_setup_teardown(test, setup_host, teardown)
#define EMULATED(test) \
	{ \
#test "_emulated", test, setup_emulated, teardown, NULL \
	}

int main(void)
{
	const struct CMUnitTest tests[] = {
		HOST(test_random_shapes_host),
		HOST(test_large_grid),
		HOST(test_invalid_sequences),
		HOST(test_refused),
		EMULATED(test_random_shapes),
		EMULATED(test_large_grid),
		EMULATED(test_invalid_sequences),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
