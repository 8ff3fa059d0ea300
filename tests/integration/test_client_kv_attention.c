/*
 * test_client_kv_attention.c - gpool_kv_attention() reads the blocks and tables of a cache.
 *
 * Goal: keys and values are found through the device tables in the documented layout, including shared blocks and int8
 * codes. Calls that cannot be made are refused. The kernels' accuracy is tested in test_attention.c.
 *
 * Method: keys are zero, so that each value has the same weight and the result is their mean; or one key selects its
 * value.
 *
 * Requirements: K13.
 */
#include "tests/integration/kv_view.h"

#include "cuda/kernels/element.h"

#include <math.h>

enum { LAYERS = 2, KV_HEADS = 2, HEADS = 4, SIZE = 64, TOKENS = 40, BLOCK = 16, VECTOR = SIZE * 2 };

static uint64_t scratch, scratch_left; /* address and bytes of memory for launches */

/* scratch_place() - return memory of the device, filled with zeros. */
static void *scratch_place(uint64_t bytes)
{
	struct gpool_block block;
	void *place;

	bytes = (bytes + 15) / 16 * 16;
	if (bytes > scratch_left) {
		assert_int_equal(gpool_alloc(worker, 1, NULL, &block), 0);
		assert_int_equal(gpool_address(worker, &block, &scratch), 0);
		scratch_left = PAGE_BYTES;
		assert_true(bytes <= PAGE_BYTES);
	}
	place = (void *)(uintptr_t)scratch;
	scratch += bytes;
	scratch_left -= bytes;
	memset(place, 0, bytes);
	return place;
}

static void cache_start(struct gpool_kv_shape shape)
{
	struct gpool_kv_options options;

	worker_open(calm);
	options = small_options(64);
	options.shape = shape;
	assert_int_equal(gpool_kv_create(worker, &options, &kv), 0);
	scratch_left = 0;
}

/* launch_of() - describe a launch for the last token of each sequence. */
static struct gpool_kv_attention launch_of(const uint64_t *sequences, uint32_t count, bool int8)
{
	struct gpool_kv_attention launch = GPOOL_KV_ATTENTION_INIT;
	struct gpool_kv_attention_sequence *list = scratch_place(count * sizeof(*list));
	uint32_t vector = int8 ? SIZE : VECTOR;
	uint64_t bytes;

	for (uint32_t i = 0; i < count; i++)
		list[i] = (struct gpool_kv_attention_sequence){
			info_of(sequences[i]).row, info_of(sequences[i]).tokens, i, 1};
	launch.sequences = (uintptr_t)list;
	launch.sequence_count = count;
	launch.query_tokens = count;
	launch.max_query_count = 1;
	launch.heads = HEADS;
	launch.head_size = SIZE;
	launch.query_stride = launch.output_stride = HEADS * SIZE;
	launch.queries = (uintptr_t)scratch_place(count * HEADS * VECTOR);
	launch.output = (uintptr_t)scratch_place(count * HEADS * VECTOR);
	launch.flags = int8 ? GPOOL_KV_ATTENTION_INT8 : 0;
	launch.token_stride = KV_HEADS * vector;
	launch.head_stride = vector;
	launch.values = BLOCK * KV_HEADS * vector;
	launch.key_scales = 2 * launch.values;
	launch.value_scales = launch.key_scales + BLOCK * KV_HEADS * 2;
	launch.scale_token_stride = KV_HEADS * 2;
	launch.scale_head_stride = 2;
	assert_int_equal(gpool_kv_attention_workspace(kv, &launch, &bytes), 0);
	assert_true(bytes > 0);
	launch.workspace = (uintptr_t)scratch_place(bytes);
	return launch;
}

static uint8_t *token_place(uint64_t sequence, uint32_t token, uint64_t offset)
{
	uint64_t address;

	assert_int_equal(gpool_kv_address(kv, (uint32_t)block_at(sequence, token / BLOCK), &address), 0);
	return (uint8_t *)(uintptr_t)address + offset;
}

/* token_put() - store zero keys, and values that are all `value` for head 0 and the negative for head 1. */
static void token_put(uint64_t sequence, uint32_t token, uint32_t layer, float value)
{
	uint64_t layer_bytes = kv->block_bytes / LAYERS, half = layer_bytes / 2;
	uint16_t *keys = (uint16_t *)(void *)token_place(
		sequence, token, layer * layer_bytes + token % BLOCK * KV_HEADS * VECTOR);
	uint16_t *values = keys + half / 2;

	for (uint32_t i = 0; i < KV_HEADS * SIZE; i++) {
		keys[i] = 0;
		values[i] = f16_of_float(i < SIZE ? value : -value);
	}
}

static float output_of(const struct gpool_kv_attention *launch, uint32_t sequence, uint32_t head)
{
	const uint16_t *output = (const uint16_t *)(uintptr_t)launch->output + sequence * HEADS * SIZE + head * SIZE;

	for (uint32_t i = 1; i < SIZE; i++)
		assert_int_equal(output[i], output[0]);
	return float_of_f16(output[0]);
}

static void launch_run(const struct gpool_kv_attention *launch)
{
	assert_int_equal(gpool_kv_sync(kv), 0);
	assert_int_equal(gpool_kv_attention(kv, launch), 0);
	settle();
}

static void test_layers_forks_and_selection(void **state)
{
	struct gpool_kv_attention launch;
	uint64_t sequences[2];

	(void)state;
	cache_start((struct gpool_kv_shape){LAYERS, KV_HEADS, SIZE, 2, BLOCK});
	sequences[0] = allocated(TOKENS, 0, 0);
	for (uint32_t token = 0; token < TOKENS; token++)
		for (uint32_t layer = 0; layer < LAYERS; layer++)
			token_put(sequences[0], token, layer, (float)(token * (layer + 1)));
	sequences[1] = forked(sequences[0]);
	assert_int_equal(gpool_kv_append(kv, sequences[1], 1, NULL), 0);
	settle();
	for (uint32_t layer = 0; layer < LAYERS; layer++)
		token_put(sequences[1], TOKENS, layer, 0);

	launch = launch_of(sequences, 2, false);
	for (uint32_t layer = 0; layer < LAYERS; layer++) {
		launch.keys = layer * kv->block_bytes / LAYERS;
		launch.values = launch.keys + kv->block_bytes / LAYERS / 2;
		launch_run(&launch);
		for (uint32_t head = 0; head < HEADS; head++) {
			float sum = (float)(TOKENS * (TOKENS - 1) / 2 * (layer + 1)) * (head < HEADS / 2 ? 1 : -1);

			assert_true(fabsf(output_of(&launch, 0, head) - sum / TOKENS) < 0.02f);
			assert_true(fabsf(output_of(&launch, 1, head) - sum / (TOKENS + 1)) < 0.02f);
		}
	}
	/* A key of layer 1 and head 1 selects token 7 for the queries that use this head. */
	((uint16_t *)(void *)token_place(sequences[0], 7, launch.keys + (7 * KV_HEADS + 1) * VECTOR))[3] =
		f16_of_float(100);
	for (uint32_t head = 0; head < HEADS; head++)
		((uint16_t *)(uintptr_t)launch.queries)[head * SIZE + 3] = f16_of_float(100);
	launch_run(&launch);
	assert_true(output_of(&launch, 0, 0) == 39);
	assert_true(output_of(&launch, 0, HEADS - 1) == -14);
}

static void test_int8(void **state)
{
	enum { CODES = BLOCK * KV_HEADS * SIZE, SCALES = BLOCK * KV_HEADS * 2 };
	struct gpool_kv_attention launch;
	uint64_t sequence;

	(void)state;
	/* Each vector has two more bytes in the block, for its scale. */
	cache_start((struct gpool_kv_shape){1, KV_HEADS, SIZE + 2, 1, BLOCK});
	sequence = allocated(TOKENS, 0, 0);
	for (uint32_t token = 0; token < TOKENS; token++) {
		uint32_t vector = token % BLOCK * KV_HEADS;

		memset(token_place(sequence, token, vector * SIZE), 1, KV_HEADS * SIZE);
		memset(token_place(sequence, token, CODES + vector * SIZE), (int)token, KV_HEADS * SIZE);
		for (uint32_t head = 0; head < KV_HEADS; head++) {
			uint16_t *scales =
				(uint16_t *)(void *)token_place(sequence, token, 2 * CODES + (vector + head) * 2);

			scales[0] = bf16_of_float(1);
			scales[SCALES / 2] = bf16_of_float(head ? 0.5f : 2);
		}
	}
	launch = launch_of(&sequence, 1, true);
	launch_run(&launch);
	assert_true(fabsf(output_of(&launch, 0, 0) - 39) < 0.2f);
	assert_true(fabsf(output_of(&launch, 0, HEADS - 1) - 9.75f) < 0.05f);
}

static void test_refused(void **state)
{
	struct gpool_kv_attention launch, wrong;
	uint64_t sequence, bytes = 7;

	(void)state;
	cache_start((struct gpool_kv_shape){LAYERS, KV_HEADS, SIZE, 2, BLOCK});
	sequence = allocated(TOKENS, 0, 0);
	launch = launch_of(&sequence, 1, false);
	wrong = launch;
	wrong.size = 4;
	assert_int_equal(gpool_kv_attention(kv, &wrong), -EINVAL);
	wrong = launch;
	wrong.flags = 4;
	assert_int_equal(gpool_kv_attention(kv, &wrong), -EINVAL);
	wrong = launch;
	wrong.reserved = 1;
	assert_int_equal(gpool_kv_attention_workspace(kv, &wrong, &bytes), -EINVAL);
	wrong = launch;
	wrong.heads = 3;
	assert_int_equal(gpool_kv_attention_workspace(kv, &wrong, &bytes), -EINVAL);
	assert_int_equal(bytes, 7);
	wrong = launch;
	wrong.workspace = 0;
	assert_int_equal(gpool_kv_attention(kv, &wrong), -EINVAL);
	wrong = launch;
	wrong.keys = kv->block_bytes;
	assert_int_equal(gpool_kv_attention(kv, &wrong), -EINVAL);
	assert_int_equal(gpool_sleep(worker, 0), 0);
	assert_int_equal(gpool_kv_attention(kv, &launch), -EHOSTDOWN);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_layers_forks_and_selection, kv_stop),
		cmocka_unit_test_teardown(test_int8, kv_stop),
		cmocka_unit_test_teardown(test_refused, kv_stop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
