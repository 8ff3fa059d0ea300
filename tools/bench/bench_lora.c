/*
 * bench_lora.c - the kernels' C references, which the host back end runs in place of a GPU: their cost in replays and
 * tests. For GPUs, see tests/gpu/lora_on_gpu.
 */
#include "tools/bench/bench.h"

#include "cuda/kernels/lora.h"
#include "cuda/kernels/quantise.h"

#include <errno.h>
#include <stdlib.h>

enum { FEATURES = 4096, ADAPTERS = 32, RANK_MAX = 64, QUANTISED = 1 << 20 };

/* One layer, in ordinary memory. */
struct layer {
	struct lora_args args;
	struct lora_batch *batch;
	struct lora_adapter adapters[ADAPTERS];
	uint16_t *weights, *x, *y;
	void *workspace;
};

static uint16_t *elements_new(uint64_t count)
{
	uint16_t *elements = aligned_alloc(256, (count * 2 + 255) / 256 * 256);

	for (uint64_t i = 0; elements && i < count; i++)
		elements[i] = f16_of_float((float)(i * 2654435761u % 1000) / 20000);
	return elements;
}

static void layer_fini(struct layer *layer)
{
	free(layer->batch);
	free(layer->weights);
	free(layer->x);
	free(layer->y);
	free(layer->workspace);
}

/* layer_init() - create a layer with one token per adapter, of ranks 8, 16, 32 and 64 in turn. */
static int layer_init(struct layer *layer)
{
	uint64_t workspace_bytes = lora_workspace_bytes(ADAPTERS, RANK_MAX, FEATURES), at = 0;
	int32_t tokens[ADAPTERS];

	*layer = (struct layer){
		.batch = malloc(lora_batch_bytes(ADAPTERS, ADAPTERS)),
		.weights = elements_new(2ull * ADAPTERS * RANK_MAX * FEATURES),
		.x = elements_new(ADAPTERS * FEATURES),
		.y = elements_new(ADAPTERS * FEATURES),
		.workspace = calloc(1, workspace_bytes),
	};
	if (!layer->batch || !layer->weights || !layer->x || !layer->y || !layer->workspace)
		return -ENOMEM;
	for (int i = 0; i < ADAPTERS; i++) {
		uint32_t rank = 8u << i % 4, tiles = lora_tiles(FEATURES);
		uint64_t a = (uintptr_t)(layer->weights + at), b = a + lora_matrix_bytes(rank, FEATURES);

		layer->adapters[i] = (struct lora_adapter){
			.a = {.first = a, .head_tiles = tiles},
			.b = {.first = b, .head_tiles = tiles},
			.rank = rank,
			.scale = 1e-3f,
		};
		at += lora_matrix_bytes(rank, FEATURES); /* elements: each of the two matrices has half as many */
		tokens[i] = i;
	}
	layer->args = (struct lora_args){(uintptr_t)layer->batch, (uintptr_t)layer->adapters, (uintptr_t)layer->x,
		(uintptr_t)layer->y, (uintptr_t)layer->workspace, ADAPTERS, ADAPTERS, RANK_MAX, FEATURES, FEATURES,
		FEATURES, FEATURES, ELEMENT_F16, 0, 0};
	return lora_batch_build(layer->batch, ADAPTERS, tokens, ADAPTERS, ADAPTERS) < 0 ? -EINVAL : 0;
}

static void sample_lora(struct bench *bench, struct layer *layer)
{
	struct lora_plain_args plain = {.lora = layer->args, .piece_count = ADAPTERS, .rank_high = RANK_MAX};
	uint64_t begin = own_time_ns();

	lora_shrink_host(&layer->args);
	lora_expand_host(&layer->args);
	bench_sample(bench, FIGURE_lora_shrink_expand, (double)(own_time_ns() - begin) / 1e3);
	begin = own_time_ns();
	lora_plain_shrink_host(&plain);
	lora_plain_expand_host(&plain);
	bench_sample(bench, FIGURE_peer_lora_plain, (double)(own_time_ns() - begin) / 1e3);
}

static void sample_quantise(struct bench *bench, uint16_t *values, int8_t *codes, uint16_t *scales)
{
	struct quantise_error error = {0};
	struct quantise_args args = {(uintptr_t)values, (uintptr_t)codes, (uintptr_t)scales, (uintptr_t)&error,
		QUANTISED / 128, 128, 128, ELEMENT_F16};
	uint64_t begin = own_time_ns();

	quantise_host(&args);
	bench_sample(bench, FIGURE_quantise_int8, 2.0 * QUANTISED / (double)(own_time_ns() - begin));
	begin = own_time_ns();
	dequantise_host(&args);
	bench_sample(bench, FIGURE_dequantise_int8, 2.0 * QUANTISED / (double)(own_time_ns() - begin));
}

int bench_lora(struct bench *bench)
{
	uint16_t *values = elements_new(QUANTISED), *scales = malloc(QUANTISED / 128 * sizeof(*scales));
	int8_t *codes = malloc(QUANTISED);
	struct layer layer;
	int error = layer_init(&layer);

	if (!error && (!values || !scales || !codes))
		error = -ENOMEM;
	if (error)
		bench_complain(bench, error, "cannot create a layer");
	for (unsigned run = 0; run < bench->runs && !error; run++) {
		sample_lora(bench, &layer);
		sample_quantise(bench, values, codes, scales);
	}
	layer_fini(&layer);
	free(values);
	free(scales);
	free(codes);
	return error;
}
