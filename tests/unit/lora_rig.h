/*
 * lora_rig.h - LoRA batches of any shape on any back end, and their expected results in float64.
 *
 * Used by test_lora.c (host), test_kernels_emulated.c (the CUDA code on the CPU) and tests/gpu/lora_on_gpu.c. Weights
 * are divided into tiles and scattered over small pages in a shuffled order, as in an adapter store. Memory that must
 * not be read contains NaN, and memory that must not be written is checked.
 */
#ifndef TESTS_UNIT_LORA_RIG_H
#define TESTS_UNIT_LORA_RIG_H

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "cuda/gpu.h"
#include "cuda/kernels/lora.h"
#include "tests/lib/unwatched.h"

enum { RIG_BLOCKS_MAX = 8192 };

/* Memory of the device, and its address for the CPU, which is the same without a GPU. */
struct place {
	void *host;
	uint64_t device;
	uint64_t bytes;
};

struct rig {
	struct gpu *gpu;
	struct gpu_stream *stream;
	/* bytes at host_base and device_base; 0: each place is allocated separately, so that ASan detects its end */
	uint64_t capacity;
	uint8_t *host_base;
	uint64_t device_base, handle, used;
	void *blocks[RIG_BLOCKS_MAX];
	uint32_t block_count;
	uint64_t random;
};

UNWATCHED static inline uint32_t rig_random(struct rig *rig)
{
	rig->random ^= rig->random << 13;
	rig->random ^= rig->random >> 7;
	rig->random ^= rig->random << 17;
	return (uint32_t)(rig->random >> 20);
}

/* Return a random value with about a normal distribution and deviation 1. */
UNWATCHED static inline float rig_normal(struct rig *rig)
{
	float sum = 0;

	for (int i = 0; i < 6; i++)
		sum += (float)(rig_random(rig) & 0xffffff) / 16777216.0f - 0.5f;
	return sum * 1.4142f;
}

/* Open a rig. Return 0, or the error of gpu_open(). See struct rig for `capacity`, which is a multiple of 2 MiB. */
static inline int rig_open(struct rig *rig, const struct gpu_ops *ops, uint64_t capacity)
{
	int rc;

	*rig = (struct rig){.capacity = capacity, .random = 88172645463325252u};
	rc = gpu_open(ops, 0, 0, &rig->gpu);
	if (rc < 0)
		return rc;
	assert_int_equal(gpu_stream_create(rig->gpu, &rig->stream), 0);
	if (!capacity)
		return 0;
	rig->host_base = mmap(NULL, capacity, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(rig->host_base != MAP_FAILED);
	assert_int_equal(gpu_host_register(rig->gpu, rig->host_base, capacity), 0);
	assert_int_equal(gpu_reserve(rig->gpu, capacity, 0, &rig->device_base), 0);
	assert_int_equal(gpu_create(rig->gpu, capacity, &rig->handle), 0);
	assert_int_equal(gpu_map(rig->gpu, rig->device_base, capacity, rig->handle), 0);
	assert_int_equal(gpu_access(rig->gpu, rig->device_base, capacity, GPU_ACCESS_READ_WRITE), 0);
	return 0;
}

/* Remove everything that was placed. */
static inline void rig_clear(struct rig *rig)
{
	assert_int_equal(gpu_stream_sync(rig->gpu, rig->stream), 0);
	while (rig->block_count)
		free(rig->blocks[--rig->block_count]);
	rig->used = 0;
}

static inline void rig_close(struct rig *rig)
{
	rig_clear(rig);
	gpu_stream_destroy(rig->gpu, rig->stream);
	if (rig->capacity) {
		gpu_host_unregister(rig->gpu, rig->host_base);
		gpu_unmap(rig->gpu, rig->device_base, rig->capacity);
		gpu_unreserve(rig->gpu, rig->device_base, rig->capacity);
		gpu_release(rig->gpu, rig->handle);
		munmap(rig->host_base, rig->capacity);
	}
	gpu_close(rig->gpu);
}

static inline struct place rig_place(struct rig *rig, uint64_t bytes)
{
	struct place place = {.bytes = bytes};

	if (rig->capacity) {
		assert_true(rig->used + bytes <= rig->capacity);
		place.host = rig->host_base + rig->used;
		place.device = rig->device_base + rig->used;
		rig->used += (bytes + 255) / 256 * 256;
	} else {
		assert_true(rig->block_count < RIG_BLOCKS_MAX);
		assert_int_equal(posix_memalign(&place.host, 256, bytes ? bytes : 1), 0);
		rig->blocks[rig->block_count++] = place.host;
		place.device = (uintptr_t)place.host;
	}
	memset(place.host, 0xff, bytes); /* NaN in each element type */
	return place;
}

static inline void rig_upload(struct rig *rig, const struct place *place)
{
	if (rig->capacity)
		assert_int_equal(
			gpu_copy(rig->gpu, place->device, (uintptr_t)place->host, place->bytes, rig->stream), 0);
}

static inline void rig_download(struct rig *rig, const struct place *place)
{
	if (rig->capacity)
		assert_int_equal(
			gpu_copy(rig->gpu, (uintptr_t)place->host, place->device, place->bytes, rig->stream), 0);
	assert_int_equal(gpu_stream_sync(rig->gpu, rig->stream), 0);
}

/* ---- a layer with its adapters ---- */

struct layer_shape {
	uint32_t element;
	uint32_t in, out;
	uint32_t adapter_count;
	uint32_t rank_max;
	uint32_t tokens_max;
	uint32_t page_bytes; /* size of the pages with tiles; 0: 128 KiB, at least a tile */
	uint32_t others;     /* places of the same adapter between this place and the next adapter's */
};

struct layer {
	struct rig *rig;
	struct layer_shape shape;
	struct lora_args args;
	struct place batch, adapters, x, y, workspace;
	uint32_t *ranks; /* [adapter_count] */
	float *scales;
	uint16_t **a, **b; /* [adapter_count] of [rank][in] and [out][rank] */
	uint16_t *y_before;
};

UNWATCHED static inline float layer_float(const struct layer *layer, uint16_t bits)
{
	return layer->shape.element == ELEMENT_F16 ? float_of_f16(bits) : float_of_bf16(bits);
}

UNWATCHED static inline uint16_t layer_bits(const struct layer *layer, float value)
{
	return layer->shape.element == ELEMENT_F16 ? f16_of_float(value) : bf16_of_float(value);
}

/* Distribute tiles over pages in a shuffled order: some on the rest of a page, the others on whole pages. */
static inline struct lora_matrix matrix_scatter(struct layer *layer, const uint16_t *from, uint32_t rank,
	uint32_t columns, uint64_t row_step, uint64_t column_step)
{
	struct rig *rig = layer->rig;
	uint32_t tiles = lora_tiles(columns), tile_bytes = lora_tile_bytes(rank);
	uint32_t page_bytes = layer->shape.page_bytes ? layer->shape.page_bytes : 128u << 10;
	uint32_t run = page_bytes > tile_bytes ? page_bytes / tile_bytes : 1, head = 1 + rig_random(rig) % run, runs;
	struct lora_matrix matrix = {0};
	struct place first, more, *places;

	if (head > tiles)
		head = tiles;
	runs = (tiles - head + run - 1) / run;
	first = rig_place(rig, (uint64_t)head * tile_bytes);
	places = calloc(runs + 1, sizeof(*places));
	assert_non_null(places);
	more = rig_place(rig, runs * sizeof(uint64_t));
	for (uint32_t i = 0; i < runs; i++) { /* every second page, from the end */
		uint32_t at = i % 2 ? runs - 1 - i / 2 : i / 2, left = tiles - head - at * run;

		places[at] = rig_place(rig, (uint64_t)(left < run ? left : run) * tile_bytes);
		((uint64_t *)more.host)[at] = places[at].device;
	}
	for (uint32_t tile = 0; tile < tiles; tile++) {
		uint8_t *to = tile < head
			? (uint8_t *)first.host + (uint64_t)tile * tile_bytes
			: (uint8_t *)places[(tile - head) / run].host + (uint64_t)((tile - head) % run) * tile_bytes;

		lora_tile_pack(to, from, rank, columns, row_step, column_step, tile);
	}
	rig_upload(rig, &first);
	for (uint32_t i = 0; i < runs; i++)
		rig_upload(rig, &places[i]);
	if (runs)
		rig_upload(rig, &more);
	matrix = (struct lora_matrix){
		.first = first.device, .more = runs ? more.device : 0, .head_tiles = head, .run_tiles = runs ? run : 0};
	free(places);
	return matrix;
}

static inline uint32_t layer_stride(const struct layer_shape *shape)
{
	return (1 + shape->others) * sizeof(struct lora_adapter);
}

static inline struct lora_adapter *layer_entry(const struct layer *layer, uint32_t index)
{
	return (struct lora_adapter *)layer->adapters.host + index * (1 + layer->shape.others);
}

UNWATCHED static inline void layer_adapter(struct layer *layer, uint32_t index, uint32_t rank)
{
	struct layer_shape *shape = &layer->shape;
	uint64_t a_count = (uint64_t)rank * shape->in, b_count = (uint64_t)rank * shape->out;
	struct lora_adapter *adapter = layer_entry(layer, index);
	float a_size = 1 / sqrtf((float)shape->in), b_size = rank ? 1 / sqrtf((float)rank) : 0;

	layer->ranks[index] = rank;
	layer->scales[index] = 0.25f + (float)(rig_random(layer->rig) % 1000) / 250;
	layer->a[index] = malloc(a_count * 2 + 1);
	layer->b[index] = malloc(b_count * 2 + 1);
	assert_true(layer->a[index] && layer->b[index]);
	for (uint64_t i = 0; i < a_count; i++)
		layer->a[index][i] = layer_bits(layer, rig_normal(layer->rig) * a_size);
	for (uint64_t i = 0; i < b_count; i++)
		layer->b[index][i] = layer_bits(layer, rig_normal(layer->rig) * b_size);
	*adapter = (struct lora_adapter){.rank = rank, .scale = layer->scales[index]};
	if (!rank)
		return;
	adapter->a = matrix_scatter(layer, layer->a[index], rank, shape->in, shape->in, 1);
	adapter->b = matrix_scatter(layer, layer->b[index], rank, shape->out, 1, rank);
}

/* Create a layer. `ranks` has adapter_count elements. Rows of x and y are longer than their used part. */
UNWATCHED static inline void layer_init(
	struct layer *layer, struct rig *rig, const struct layer_shape *shape, const uint32_t *ranks)
{
	uint32_t x_stride = (shape->in + 15) / 8 * 8, y_stride = (shape->out + 15) / 8 * 8;

	*layer = (struct layer){.rig = rig, .shape = *shape};
	layer->ranks = calloc(shape->adapter_count, sizeof(*layer->ranks));
	layer->scales = calloc(shape->adapter_count, sizeof(*layer->scales));
	layer->a = calloc(shape->adapter_count, sizeof(*layer->a));
	layer->b = calloc(shape->adapter_count, sizeof(*layer->b));
	layer->batch = rig_place(rig, lora_batch_bytes(shape->tokens_max, shape->adapter_count));
	layer->adapters = rig_place(rig, (uint64_t)shape->adapter_count * layer_stride(shape));
	layer->x = rig_place(rig, (uint64_t)shape->tokens_max * x_stride * 2);
	layer->y = rig_place(rig, (uint64_t)shape->tokens_max * y_stride * 2);
	layer->workspace = rig_place(rig, lora_workspace_bytes(shape->tokens_max, shape->rank_max, shape->in));
	layer->y_before = malloc(layer->y.bytes);
	assert_true(layer->ranks && layer->scales && layer->a && layer->b && layer->y_before);
	for (uint32_t i = 0; i < shape->adapter_count; i++)
		layer_adapter(layer, i, ranks[i]);
	rig_upload(rig, &layer->adapters);
	/* The counters are zeros. The rest stays NaN, so that a read before a write is detected. */
	memset(layer->workspace.host, 0, (uint64_t)shape->tokens_max * (LORA_RANK_MAX / LORA_SLICE) * 4);
	rig_upload(rig, &layer->workspace);
	for (uint32_t i = 0; i < shape->tokens_max; i++) {
		for (uint32_t c = 0; c < shape->in; c++)
			((uint16_t *)layer->x.host)[(uint64_t)i * x_stride + c] = layer_bits(layer, rig_normal(rig));
		for (uint32_t c = 0; c < shape->out; c++)
			((uint16_t *)layer->y.host)[(uint64_t)i * y_stride + c] =
				layer_bits(layer, rig_normal(rig) * 0.5f);
	}
	memcpy(layer->y_before, layer->y.host, layer->y.bytes);
	rig_upload(rig, &layer->x);
	rig_upload(rig, &layer->y);
	layer->args = (struct lora_args){
		.batch = layer->batch.device,
		.adapters = layer->adapters.device,
		.x = layer->x.device,
		.y = layer->y.device,
		.workspace = layer->workspace.device,
		.adapter_count = shape->adapter_count,
		.tokens_max = shape->tokens_max,
		.rank_max = shape->rank_max,
		.in = shape->in,
		.out = shape->out,
		.x_stride = x_stride,
		.y_stride = y_stride,
		.element = shape->element,
		.adapter_stride = shape->others ? layer_stride(shape) : 0,
	};
	/* From here on the host's copy may be changed. */
	assert_int_equal(gpu_stream_sync(rig->gpu, rig->stream), 0);
}

static inline void layer_fini(struct layer *layer)
{
	for (uint32_t i = 0; i < layer->shape.adapter_count; i++) {
		free(layer->a[i]);
		free(layer->b[i]);
	}
	free(layer->a);
	free(layer->b);
	free(layer->ranks);
	free(layer->scales);
	free(layer->y_before);
	rig_clear(layer->rig);
}

/* Set the next batch: the adapter of each token. Return the number of pieces. */
static inline int layer_batch(struct layer *layer, const int32_t *adapters, uint32_t tokens)
{
	int pieces = lora_batch_build(
		layer->batch.host, layer->shape.tokens_max, adapters, tokens, layer->shape.adapter_count);

	assert_true(pieces >= 0);
	rig_upload(layer->rig, &layer->batch);
	return pieces;
}

/* Restore the initial y. */
static inline void layer_reset(struct layer *layer)
{
	memcpy(layer->y.host, layer->y_before, layer->y.bytes);
	rig_upload(layer->rig, &layer->y);
}

static inline void layer_run(struct layer *layer)
{
	struct rig *rig = layer->rig;

	assert_int_equal(lora_shrink_queue(rig->gpu, &layer->args, rig->stream), 0);
	assert_int_equal(lora_expand_queue(rig->gpu, &layer->args, rig->stream), 0);
	rig_download(rig, &layer->y);
}

static inline const uint16_t *layer_x(const struct layer *layer, uint32_t token)
{
	return (const uint16_t *)layer->x.host + (uint64_t)token * layer->args.x_stride;
}

static inline const uint16_t *layer_y(const struct layer *layer, uint32_t token)
{
	return (const uint16_t *)layer->y.host + (uint64_t)token * layer->args.y_stride;
}

static inline const uint16_t *layer_y_before(const struct layer *layer, uint32_t token)
{
	return layer->y_before + (uint64_t)token * layer->args.y_stride;
}

/*
 * Return the error of one token's row against float64, relative to the row. Both are square roots of sums of squares.
 */
UNWATCHED static inline double token_error(const struct layer *layer, uint32_t token, uint32_t adapter)
{
	const struct layer_shape *shape = &layer->shape;
	const uint16_t *x = layer_x(layer, token), *y = layer_y(layer, token), *before = layer_y_before(layer, token);
	uint32_t rank = layer->ranks[adapter];
	double sums[LORA_RANK_MAX], difference = 0, all = 0;

	for (uint32_t k = 0; k < rank; k++) {
		sums[k] = 0;
		for (uint32_t i = 0; i < shape->in; i++)
			sums[k] += (double)layer_float(layer, x[i]) *
				layer_float(layer, layer->a[adapter][(uint64_t)k * shape->in + i]);
	}
	for (uint32_t c = 0; c < shape->out; c++) {
		double add = 0, exact;

		for (uint32_t k = 0; k < rank; k++)
			add += sums[k] * layer_float(layer, layer->b[adapter][(uint64_t)c * rank + k]);
		exact = layer_float(layer, before[c]) + layer->scales[adapter] * add;
		difference += (layer_float(layer, y[c]) - exact) * (layer_float(layer, y[c]) - exact);
		all += exact * exact;
	}
	return sqrt(difference / all);
}

/* Check that every token is correct, or unchanged if it has no adapter. Return the largest error. */
static inline double layer_check(const struct layer *layer, const int32_t *adapters, uint32_t tokens)
{
	double bound = layer->shape.element == ELEMENT_F16 ? 1e-3 : 1e-2, largest = 0;
	uint64_t row_bytes = (uint64_t)layer->args.y_stride * 2;

	for (uint32_t i = 0; i < layer->shape.tokens_max; i++) {
		int32_t adapter = i < tokens ? adapters[i] : -1;
		bool alone = adapter < 0 || !layer->ranks[adapter] || layer->ranks[adapter] > layer->shape.rank_max;
		double error;

		if (alone) {
			assert_memory_equal(layer_y(layer, i), layer_y_before(layer, i), row_bytes);
			continue;
		}
		assert_memory_equal(layer_y(layer, i) + layer->shape.out, layer_y_before(layer, i) + layer->shape.out,
			row_bytes - layer->shape.out * 2);
		error = token_error(layer, i, (uint32_t)adapter);
		if (!(error <= bound))
			fail_msg("token %u, adapter %d, rank %u, %u -> %u, %s: error %g", i, adapter,
				layer->ranks[adapter], layer->shape.in, layer->shape.out,
				layer->shape.element == ELEMENT_F16 ? "fp16" : "bf16", error);
		largest = error > largest ? error : largest;
	}
	return largest;
}

#endif
