/*
 * lora_cases.h - test cases for the LoRA kernels of any back end. Each case gets an open rig; see lora_rig.h.
 */
#ifndef TESTS_UNIT_LORA_CASES_H
#define TESTS_UNIT_LORA_CASES_H

#include "tests/unit/lora_rig.h"

enum { CASE_TOKENS_MAX = 1200, CASE_ADAPTERS_MAX = 64 };

/* Choose one of `count` adapters, or none, for each token. */
static inline void case_adapters(struct rig *rig, int32_t *adapters, uint32_t tokens, uint32_t count)
{
	for (uint32_t i = 0; i < tokens; i++)
		adapters[i] = (int32_t)(rig_random(rig) % (count + 1)) - 1;
}

/* Use random shapes, ranks and batches, in fp16 and bf16. in_max and out_max are the maximum features of the layers. */
static inline void case_random_shapes(
	struct rig *rig, uint32_t rounds, uint32_t in_max, uint32_t out_max, uint32_t tokens_max)
{
	double largest[2] = {0, 0};

	for (uint32_t round = 0; round < rounds; round++) {
		struct layer_shape shape = {
			.element = round % 2 ? ELEMENT_BF16 : ELEMENT_F16,
			.in = 1 + rig_random(rig) % in_max,
			.out = 1 + rig_random(rig) % out_max,
			.adapter_count = 1 + rig_random(rig) % 8,
			.rank_max = 1 + rig_random(rig) % LORA_RANK_MAX,
			.tokens_max = 1 + rig_random(rig) % tokens_max,
			.page_bytes = 16u << (10 + rig_random(rig) % 4),
			.others = rig_random(rig) % 3,
		};
		uint32_t ranks[8], tokens = rig_random(rig) % (shape.tokens_max + 1);
		int32_t adapters[CASE_TOKENS_MAX];
		struct layer layer;
		double error;

		for (uint32_t i = 0; i < shape.adapter_count; i++)
			ranks[i] = rig_random(rig) % (shape.rank_max + 1); /* 0: none in this layer */
		ranks[rig_random(rig) % shape.adapter_count] = shape.rank_max;
		case_adapters(rig, adapters, tokens, shape.adapter_count);
		layer_init(&layer, rig, &shape, ranks);
		layer_batch(&layer, adapters, tokens);
		layer_run(&layer);
		error = layer_check(&layer, adapters, tokens);
		largest[round % 2] = fmax(largest[round % 2], error);
		layer_fini(&layer);
	}
	print_message("largest error against float64: %.2e fp16, %.2e bf16\n", largest[0], largest[1]);
}

/* Use all ranks in one batch, with two tokens each. */
static inline void case_all_ranks(struct rig *rig, uint32_t element, uint32_t step)
{
	struct layer_shape shape = {.element = element,
		.in = 264,
		.out = 200,
		.adapter_count = LORA_RANK_MAX / step,
		.rank_max = LORA_RANK_MAX,
		.page_bytes = 64 << 10};
	uint32_t ranks[LORA_RANK_MAX];
	int32_t adapters[2 * LORA_RANK_MAX];
	struct layer layer;

	shape.tokens_max = 2 * shape.adapter_count;
	for (uint32_t i = 0; i < shape.adapter_count; i++) {
		ranks[i] = (i + 1) * step;
		adapters[i] = adapters[i + shape.adapter_count] = (int32_t)i;
	}
	layer_init(&layer, rig, &shape, ranks);
	layer_batch(&layer, adapters, shape.tokens_max);
	layer_run(&layer);
	layer_check(&layer, adapters, shape.tokens_max);
	layer_fini(&layer);
}

/*
 * A token's result has the same bits alone, in a batch of small pieces, and in one of large pieces. brief: a smaller
 * layer, with several blocks in each dimension of the grids, and fewer batches.
 */
static inline void case_bits_do_not_depend_on_the_batch(struct rig *rig, uint32_t element, bool brief)
{
	struct layer_shape shape = {.element = element,
		.in = brief ? 260 : 2100, /* splits of one tile or of two, except the last */
		.out = brief ? 264 : 136,
		.adapter_count = 3,
		.rank_max = brief ? 33 : 100,
		.tokens_max = CASE_TOKENS_MAX};
	const uint32_t ranks[] = {5, shape.rank_max, 17}, small_tokens = brief ? 48 : 512;
	static const uint32_t tried[] = {0, 1099, 1, 17, 100, 511};
	int32_t adapters[CASE_TOKENS_MAX], one[CASE_TOKENS_MAX];
	uint16_t *small, *large;
	struct layer layer;
	uint64_t row_bytes;

	for (uint32_t i = 0; i < CASE_TOKENS_MAX; i++)
		adapters[i] = i % 7 ? (int32_t)(i % 3) : 1;
	layer_init(&layer, rig, &shape, ranks);
	row_bytes = layer.args.y_stride * 2;
	small = malloc(layer.y.bytes);
	large = malloc(layer.y.bytes);
	assert_true(small && large);

	layer_batch(&layer, adapters, 1100); /* above LORA_SPLIT_TOKENS_MAX */
	assert_int_equal(((struct lora_batch *)layer.batch.host)->split, 0);
	layer_run(&layer);
	memcpy(large, layer.y.host, layer.y.bytes);
	layer_reset(&layer);
	layer_batch(&layer, adapters, small_tokens);
	assert_int_equal(((struct lora_batch *)layer.batch.host)->split, 1);
	layer_run(&layer);
	memcpy(small, layer.y.host, layer.y.bytes);
	assert_memory_equal(small, large, small_tokens * row_bytes);
	for (size_t i = 0; i < (brief ? 2 : sizeof(tried) / sizeof(*tried)); i++) {
		memset(one, 0xff, sizeof(one));
		one[tried[i]] = adapters[tried[i]];
		layer_reset(&layer);
		layer_batch(&layer, one, CASE_TOKENS_MAX);
		layer_run(&layer);
		assert_memory_equal(layer_y(&layer, tried[i]), (uint8_t *)large + tried[i] * row_bytes, row_bytes);
	}
	memcpy(layer.y.host, large, layer.y.bytes);
	layer_check(&layer, adapters, 1100);
	free(small);
	free(large);
	layer_fini(&layer);
}

/* Launch the same args repeatedly with different batches, including empty ones, as a captured graph does. */
static inline void case_batches_follow_each_other(struct rig *rig)
{
	struct layer_shape shape = {
		.element = ELEMENT_F16, .in = 520, .out = 300, .adapter_count = 9, .rank_max = 64, .tokens_max = 70};
	static const uint32_t ranks[] = {8, 16, 32, 64, 0, 1, 65, 33, 24}; /* an adapter that is too large is skipped */
	int32_t adapters[70];
	struct layer layer;

	layer_init(&layer, rig, &shape, ranks);
	for (uint32_t round = 0; round < 8; round++) {
		uint32_t tokens = round == 3 ? 0 : 1 + rig_random(rig) % 70;

		case_adapters(rig, adapters, tokens, shape.adapter_count);
		for (uint32_t i = 0; round == 5 && i < tokens; i++)
			adapters[i] = -1;
		layer_reset(&layer);
		layer_batch(&layer, adapters, tokens);
		layer_run(&layer);
		layer_check(&layer, adapters, tokens);
	}
	layer_fini(&layer);
}

/* Use sums far from 1, which 16-bit numbers would lose. */
static inline void case_large_and_small_sums(struct rig *rig)
{
	struct layer_shape shape = {
		.element = ELEMENT_F16, .in = 256, .out = 128, .adapter_count = 2, .rank_max = 16, .tokens_max = 2};
	static const uint32_t ranks[] = {16, 16};
	static const float factors[] = {4000, 1e-4f};
	const int32_t adapters[] = {0, 1};
	struct layer layer;

	layer_init(&layer, rig, &shape, ranks);
	for (uint32_t token = 0; token < 2; token++) {
		struct lora_adapter *adapter = layer_entry(&layer, token);

		for (uint32_t i = 0; i < shape.in; i++) {
			uint16_t *x = (uint16_t *)layer.x.host + token * layer.args.x_stride + i;

			*x = layer_bits(&layer, layer_float(&layer, *x) * factors[token]);
		}
		layer.scales[token] = adapter->scale = 1 / factors[token];
	}
	memset(layer.y_before, 0, layer.shape.out * 2); /* y is the sum only */
	memset(layer.y_before + layer.args.y_stride, 0, layer.shape.out * 2);
	layer_reset(&layer);
	rig_upload(rig, &layer.x);
	rig_upload(rig, &layer.adapters);
	layer_batch(&layer, adapters, 2);
	layer_run(&layer);
	layer_check(&layer, adapters, 2);
	layer_fini(&layer);
}

/* The plain kernels, naive and grouped, must have the same results. */
static inline void case_plain(struct rig *rig)
{
	struct layer_shape shape = {
		.element = ELEMENT_BF16, .in = 300, .out = 140, .adapter_count = 5, .rank_max = 128, .tokens_max = 60};
	static const uint32_t ranks[] = {8, 128, 3, 64, 32};
	static const uint32_t classes[] = {0, 8, 16, 32, 64, 128};
	int32_t adapters[60];
	struct lora_plain_args plain;
	struct layer layer;
	uint32_t pieces;

	case_adapters(rig, adapters, 60, 5);
	layer_init(&layer, rig, &shape, ranks);
	pieces = (uint32_t)layer_batch(&layer, adapters, 60);
	plain = (struct lora_plain_args){.lora = layer.args, .piece_count = 1, .rank_high = LORA_RANK_MAX};
	for (plain.piece_first = 0; plain.piece_first < pieces; plain.piece_first++)
		assert_int_equal(lora_plain_queue(rig->gpu, &plain, rig->stream), 0);
	rig_download(rig, &layer.y);
	layer_check(&layer, adapters, 60);

	layer_reset(&layer);
	plain.piece_first = 0;
	plain.piece_count = pieces;
	for (int class = 1; class < 6; class ++) {
		plain.rank_low = classes[class - 1] + 1;
		plain.rank_high = classes[class];
		assert_int_equal(lora_plain_queue(rig->gpu, &plain, rig->stream), 0);
	}
	rig_download(rig, &layer.y);
	layer_check(&layer, adapters, 60);
	layer_fini(&layer);
}

#endif
