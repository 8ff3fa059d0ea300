/*
 * test_lora.c - the LoRA kernels on the back end `host`, and the preparation of their work: tiles, batches, refusals.
 *
 * Goal: results are within 1e-3 (fp16) and 1e-2 (bf16) of float64 for any shape, rank and batch. No other bits are
 * changed. A token's result has the same bits alone and in a batch. Method: lora_rig.h builds layers whose tiles are
 * scattered over pages, and computes the expected results.
 *
 * Requirements: L8.
 */
#include "tests/unit/lora_cases.h"

static int setup(void **state)
{
	static struct rig rig;

	assert_int_equal(rig_open(&rig, &gpu_host_ops, 64 << 20), 0);
	*state = &rig;
	return 0;
}

static int teardown(void **state)
{
	rig_close(*state);
	return 0;
}

static void test_random_shapes(void **state)
{
	case_random_shapes(*state, 60, 2000, 2000, 96);
}

static void test_all_ranks(void **state)
{
	case_all_ranks(*state, ELEMENT_F16, 1);
	case_all_ranks(*state, ELEMENT_BF16, 1);
}

static void test_bits_do_not_depend_on_the_batch(void **state)
{
	case_bits_do_not_depend_on_the_batch(*state, ELEMENT_F16, false);
	case_bits_do_not_depend_on_the_batch(*state, ELEMENT_BF16, false);
}

static void test_batches_follow_each_other(void **state)
{
	case_batches_follow_each_other(*state);
}

static void test_large_and_small_sums(void **state)
{
	case_large_and_small_sums(*state);
}

static void test_plain(void **state)
{
	case_plain(*state);
}

static void test_wrong_args_are_refused(void **state)
{
	struct rig *rig = *state;
	struct layer_shape shape = {
		.element = ELEMENT_F16, .in = 64, .out = 64, .adapter_count = 1, .rank_max = 8, .tokens_max = 4};
	static const uint32_t ranks[] = {8};
	struct lora_plain_args plain;
	struct lora_args wrong[21];
	struct layer layer;

	layer_init(&layer, rig, &shape, ranks);
	layer_batch(&layer, (const int32_t[]){0}, 1);
	for (size_t i = 0; i < 21; i++)
		wrong[i] = layer.args;
	wrong[0].element = ELEMENT_F32;
	wrong[1].tokens_max = 0;
	wrong[2].tokens_max = LORA_TOKENS_MAX + 1;
	wrong[3].rank_max = 0;
	wrong[4].rank_max = LORA_RANK_MAX + 1;
	wrong[5].adapter_count = 0;
	wrong[6].in = 0;
	wrong[7].out = 0;
	wrong[8].in = wrong[8].x_stride + 1;
	wrong[9].out = wrong[9].y_stride + 1;
	wrong[10].x_stride += 4;
	wrong[11].y_stride += 4;
	wrong[12].x += 8;
	wrong[13].y += 2;
	wrong[14].workspace += 4;
	wrong[15].batch = 0;
	wrong[16].adapters += 4;
	wrong[17].x = 0;
	wrong[18].workspace = 0;
	wrong[19].out = wrong[19].y_stride = LORA_TOKENS_MAX + 8;
	wrong[20].adapter_stride = sizeof(struct lora_adapter) + 4;
	for (size_t i = 0; i < 21; i++) {
		plain = (struct lora_plain_args){.lora = wrong[i], .piece_count = 1};
		assert_int_equal(lora_shrink_queue(rig->gpu, &wrong[i], rig->stream), -EINVAL);
		assert_int_equal(lora_expand_queue(rig->gpu, &wrong[i], rig->stream), -EINVAL);
		assert_int_equal(lora_plain_queue(rig->gpu, &plain, rig->stream), -EINVAL);
	}
	assert_int_equal(lora_shrink_queue(rig->gpu, NULL, rig->stream), -EINVAL);
	assert_int_equal(lora_plain_queue(rig->gpu, NULL, rig->stream), -EINVAL);
	assert_int_equal(gpu_calls(rig->gpu, GPU_CALL_LAUNCH), 0);
	layer_fini(&layer);
}

enum { BATCH_TOKENS = 2000 };

/* The call cannot refuse invalid values in device memory; they are skipped. */
static void test_a_wrong_batch_is_left_out(void **state)
{
	struct rig *rig = *state;
	struct layer_shape shape = {
		.element = ELEMENT_F16, .in = 64, .out = 64, .adapter_count = 2, .rank_max = 8, .tokens_max = 4};
	static const uint32_t ranks[] = {8, 8};
	const int32_t none[] = {-1, -1, -1, -1};
	struct lora_batch *batch;
	struct lora_piece *piece;
	struct layer layer;

	layer_init(&layer, rig, &shape, ranks);
	batch = layer.batch.host;
	piece = (struct lora_piece *)(uintptr_t)lora_batch_pieces(batch, 4) + 1; /* the home of adapter 1 */
	for (int wrong = 0; wrong < 5; wrong++) {
		lora_batch_build(batch, 4, (const int32_t[]){1, 1, 1, 1}, 4, 2);
		switch (wrong) {
		case 0: piece->adapter = 2; break;
		case 1: piece->adapter = -1; break;
		case 2: piece->count = 5; break;
		case 3: piece->begin = UINT32_MAX; break;
		default: batch->tokens_max = 5;
		}
		rig_upload(rig, &layer.batch);
		layer_run(&layer);
		layer_check(&layer, none, 4);
	}
	layer_fini(&layer);
}

/*
 * Build a batch, and check that each token with an adapter is in exactly one piece of its adapter, in the adapter's
 * home if it is the first one.
 */
static void batch_check(
	struct lora_batch *batch, uint32_t tokens_max, const int32_t *adapters, uint32_t tokens, uint32_t count)
{
	int pieces = lora_batch_build(batch, tokens_max, adapters, tokens, count);
	uint32_t homes = count <= tokens_max ? count : 0, with = 0, seen = 0;
	bool done[BATCH_TOKENS] = {false};

	assert_in_range(pieces, homes, lora_pieces_max(tokens_max, count)); /* the maximum for which grids are made */
	assert_int_equal(pieces, batch->piece_count);
	for (uint32_t i = 0; i < tokens; i++)
		with += adapters[i] >= 0;
	assert_int_equal(batch->token_count, with);
	assert_int_equal(batch->split, with <= LORA_SPLIT_TOKENS_MAX);
	for (uint32_t p = 0; p < (uint32_t)pieces; p++) {
		struct lora_piece piece = lora_batch_pieces(batch, tokens_max)[p];

		if (p < homes)
			assert_int_equal(piece.adapter, p);
		if (p >= homes || piece.count) {
			assert_in_range(piece.count, 1, batch->split ? LORA_PIECE_SMALL : LORA_PIECE_LARGE);
			assert_int_equal(piece.row, lora_batch_order(batch)[piece.begin]);
		}
		seen += piece.count;
		for (uint32_t i = 0; i < piece.count; i++) {
			uint32_t token = lora_batch_order(batch)[piece.begin + i];

			assert_true(token < tokens && !done[token]);
			assert_int_equal(adapters[token], piece.adapter);
			done[token] = true;
		}
	}
	assert_int_equal(seen, with);
}

/* Requirements: L7. */
static void test_batch_build(void **state)
{
	enum { TOKENS = BATCH_TOKENS };
	struct rig *rig = *state;
	struct lora_batch *batch = malloc(lora_batch_bytes(TOKENS, 50));
	int32_t adapters[TOKENS];

	assert_non_null(batch);
	for (uint32_t tokens = 0; tokens <= TOKENS; tokens += 1 + rig_random(rig) % 300) {
		uint32_t count = 1 + rig_random(rig) % 50;

		case_adapters(rig, adapters, tokens, count);
		batch_check(batch, TOKENS, adapters, tokens, count);
	}
	for (uint32_t tokens = 1; tokens < 50; tokens++) { /* fewer tokens than adapters: no homes */
		case_adapters(rig, adapters, tokens, 50);
		batch_check(batch, tokens, adapters, tokens, 50);
	}
	adapters[0] = 7;
	assert_int_equal(lora_batch_build(batch, TOKENS, adapters, 1, 7), -EINVAL);
	adapters[0] = -2;
	assert_int_equal(lora_batch_build(batch, TOKENS, adapters, 1, 7), -EINVAL);
	assert_int_equal(lora_batch_build(batch, TOKENS, adapters, TOKENS + 1, 7), -EINVAL);
	free(batch);
}

static void test_tiles(void **state)
{
	enum { RANK = 3, COLUMNS = 300 };
	uint16_t matrix[RANK][COLUMNS], turned[COLUMNS][RANK], tile[RANK][LORA_TILE_COLUMNS],
		other[RANK][LORA_TILE_COLUMNS];
	uint64_t runs[] = {0x9000000, 0x5000000};
	struct lora_matrix places = {.first = 0x1000100, .more = (uintptr_t)runs, .head_tiles = 2, .run_tiles = 3};

	(void)state;
	assert_int_equal(lora_tiles(COLUMNS), 3);
	assert_int_equal(lora_tile_bytes(RANK), sizeof(tile));
	assert_int_equal(lora_matrix_bytes(RANK, COLUMNS), 3 * sizeof(tile));
	for (uint16_t k = 0; k < RANK; k++)
		for (uint16_t c = 0; c < COLUMNS; c++)
			matrix[k][c] = turned[c][k] = (uint16_t)(k * COLUMNS + c + 1);
	for (uint32_t index = 0; index < 3; index++) {
		lora_tile_pack(tile, matrix[0], RANK, COLUMNS, COLUMNS, 1, index);
		lora_tile_pack(other, turned[0], RANK, COLUMNS, 1, RANK, index);
		assert_memory_equal(tile, other, sizeof(tile));
		for (uint32_t k = 0; k < RANK; k++)
			for (uint32_t c = 0; c < LORA_TILE_COLUMNS; c++) {
				uint32_t column = index * LORA_TILE_COLUMNS + c;

				assert_int_equal(tile[k][c], column < COLUMNS ? matrix[k][column] : 0);
			}
	}
	assert_true(lora_tile_at(&places, RANK, 1) == 0x1000100 + sizeof(tile));
	assert_true(lora_tile_at(&places, RANK, 2) == 0x9000000);
	assert_true(lora_tile_at(&places, RANK, 4) == 0x9000000 + 2 * sizeof(tile));
	assert_true(lora_tile_at(&places, RANK, 5) == 0x5000000);
}

/* Splits cover each tile once, and grids and workspaces have the same number of splits. */
static void test_splits(void **state)
{
	(void)state;
	for (uint32_t in = 1; in < 100000; in += 37) {
		uint32_t tiles = lora_tiles(in), length = lora_split_tiles(in), splits = lora_splits(in);

		assert_in_range(splits, 1, LORA_SPLITS_MAX);
		assert_true(splits * length >= tiles && (splits - 1) * length < tiles);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_random_shapes, setup, teardown),
		cmocka_unit_test_setup_teardown(test_all_ranks, setup, teardown),
		cmocka_unit_test_setup_teardown(test_bits_do_not_depend_on_the_batch, setup, teardown),
		cmocka_unit_test_setup_teardown(test_batches_follow_each_other, setup, teardown),
		cmocka_unit_test_setup_teardown(test_large_and_small_sums, setup, teardown),
		cmocka_unit_test_setup_teardown(test_plain, setup, teardown),
		cmocka_unit_test_setup_teardown(test_wrong_args_are_refused, setup, teardown),
		cmocka_unit_test_setup_teardown(test_a_wrong_batch_is_left_out, setup, teardown),
		cmocka_unit_test_setup_teardown(test_batch_build, setup, teardown),
		cmocka_unit_test(test_tiles),
		cmocka_unit_test(test_splits),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
