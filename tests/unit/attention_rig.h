/*
 * attention_rig.h - attention over caches of any shape on any back end, and the expected results in float64.
 *
 * Blocks are scattered, and their layout varies: vectors by token or by head, one layer or several in a block, one
 * block or several in a chunk. Memory that must not be read contains NaN, and memory that must not be written is
 * checked.
 */
#ifndef TESTS_UNIT_ATTENTION_RIG_H
#define TESTS_UNIT_ATTENTION_RIG_H

#include "tests/unit/lora_rig.h"

#include "cuda/kernels/attention.h"
#include "cuda/kernels/quantise.h"

enum { CACHE_SEQUENCES_MAX = 8 };

struct cache_shape {
	uint32_t element, int8;
	uint32_t head_size, kv_heads, group;
	uint32_t block_tokens, chunk_blocks;
	uint32_t layers, layer;
	bool by_head; /* vectors of a head are adjacent, otherwise those of a token */
	uint32_t sequences;
	uint32_t tokens[CACHE_SEQUENCES_MAX], queries[CACHE_SEQUENCES_MAX];
	uint32_t query_most; /* 0: the largest of queries[] */
	float size;          /* of queries and keys; if they are large, a few tokens have all of the weight */
};

struct cache {
	struct rig *rig;
	struct cache_shape shape;
	struct attention_args args;
	struct place blocks, tables, sequences, queries, output, workspace;
};

UNWATCHED static inline float cache_float(const struct cache *cache, uint16_t bits)
{
	return cache->shape.element == ELEMENT_F16 ? float_of_f16(bits) : float_of_bf16(bits);
}

UNWATCHED static inline uint16_t cache_bits(const struct cache *cache, float value)
{
	return cache->shape.element == ELEMENT_F16 ? f16_of_float(value) : bf16_of_float(value);
}

static inline uint32_t cache_entry(const struct cache *cache, uint32_t sequence, uint32_t token)
{
	const struct attention_sequence *one = (const struct attention_sequence *)cache->sequences.host + sequence;

	return ((const uint32_t *)
			cache->tables.host)[one->row * cache->args.table_columns + token / cache->args.block_tokens];
}

/* cache_at() - return the place of a token's vector, or scale, in host memory. */
static inline uint8_t *cache_at(const struct cache *cache, uint32_t sequence, uint32_t token, uint32_t head,
	uint64_t offset, uint32_t token_stride, uint32_t head_stride)
{
	uint32_t block = cache_entry(cache, sequence, token), per_chunk = cache->args.chunk_blocks;

	return (uint8_t *)cache->blocks.host + block / per_chunk * cache->args.chunk_bytes +
		block % per_chunk * cache->args.block_bytes + offset + token % cache->args.block_tokens * token_stride +
		head * head_stride;
}

/* cache_put() - store a random vector, and its scale if it is int8. */
UNWATCHED static inline void cache_put(
	struct cache *cache, uint32_t sequence, uint32_t token, uint32_t head, bool value)
{
	const struct attention_args *args = &cache->args;
	float size = value ? 1 : cache->shape.size, vector[ATTENTION_SIZE_MAX];
	uint8_t *to = cache_at(
		cache, sequence, token, head, value ? args->values : args->keys, args->token_stride, args->head_stride);

	for (uint32_t i = 0; i < args->head_size; i++)
		vector[i] = rig_normal(cache->rig) * size;
	if (args->int8) {
		uint16_t *scale = (uint16_t *)(void *)cache_at(cache, sequence, token, head,
			value ? args->value_scales : args->key_scales, args->scale_token_stride,
			args->scale_head_stride);

		quantise_group_plain(ELEMENT_F32, vector, args->head_size, (int8_t *)to, scale, NULL);
		return;
	}
	for (uint32_t i = 0; i < args->head_size; i++)
		((uint16_t *)(void *)to)[i] = cache_bits(cache, vector[i]);
}

/* cache_get() - return an element of a key or value. */
UNWATCHED static inline double cache_get(
	const struct cache *cache, uint32_t sequence, uint32_t token, uint32_t head, bool value, uint32_t i)
{
	const struct attention_args *args = &cache->args;
	const uint8_t *from = cache_at(
		cache, sequence, token, head, value ? args->values : args->keys, args->token_stride, args->head_stride);

	if (!args->int8)
		return cache_float(cache, ((const uint16_t *)(const void *)from)[i]);
	return (double)((const int8_t *)from)[i] *
		float_of_bf16(*(const uint16_t *)(void *)cache_at(cache, sequence, token, head,
			value ? args->value_scales : args->key_scales, args->scale_token_stride,
			args->scale_head_stride));
}

/* cache_layout() - set the strides and offsets. A layer has keys, values, and then the scales of both. */
static inline void cache_layout(struct attention_args *args, const struct cache_shape *shape)
{
	uint32_t vector = shape->head_size * (shape->int8 ? 1 : 2), vectors = shape->kv_heads * shape->block_tokens;
	uint32_t half = vector * vectors, scales = shape->int8 ? (2 * vectors + 15) / 16 * 16 : 0;
	uint64_t layer_bytes = 2 * (half + scales), first = shape->layer * layer_bytes;

	args->token_stride = shape->by_head ? vector : vector * shape->kv_heads;
	args->head_stride = shape->by_head ? vector * shape->block_tokens : vector;
	args->scale_token_stride = shape->by_head ? 2 : 2 * shape->kv_heads;
	args->scale_head_stride = shape->by_head ? 2 * shape->block_tokens : 2;
	args->keys = first;
	args->values = first + half;
	args->key_scales = first + 2 * half;
	args->value_scales = first + 2 * half + scales;
	args->block_bytes = layer_bytes * shape->layers;
	args->chunk_bytes = args->block_bytes * shape->chunk_blocks + (shape->chunk_blocks > 1 ? 64 : 0);
}

/* cache_fill() - assign random blocks to the sequences, and store keys, values and queries. */
UNWATCHED static inline void cache_fill(struct cache *cache)
{
	const struct cache_shape *shape = &cache->shape;
	struct attention_sequence *sequences = cache->sequences.host;
	uint32_t *entries = cache->tables.host, next = 0, begin = 0, step = 7;

	while (cache->args.block_count % step == 0)
		step += 2;
	for (uint32_t i = 0; i < shape->sequences; i++) {
		uint32_t row = shape->sequences - 1 - i, blocks;

		sequences[i] = (struct attention_sequence){row, shape->tokens[i], begin, shape->queries[i]};
		begin += shape->queries[i];
		blocks = (shape->tokens[i] + shape->block_tokens - 1) / shape->block_tokens;
		for (uint32_t block = 0; block < blocks; block++)
			entries[row * cache->args.table_columns + block] = next++ * step % cache->args.block_count;
		for (uint32_t token = 0; token < shape->tokens[i]; token++)
			for (uint32_t head = 0; head < shape->kv_heads; head++) {
				cache_put(cache, i, token, head, false);
				cache_put(cache, i, token, head, true);
			}
	}
	for (uint32_t i = 0; i < cache->args.query_tokens; i++)
		for (uint32_t j = 0; j < shape->kv_heads * shape->group * shape->head_size; j++)
			((uint16_t *)cache->queries.host)[(uint64_t)i * cache->args.query_stride + j] =
				cache_bits(cache, rig_normal(cache->rig) * shape->size);
}

static inline void cache_init(struct cache *cache, struct rig *rig, const struct cache_shape *shape)
{
	struct attention_args *args = &cache->args;
	uint32_t columns = 0, blocks = 1, queries = 1, most = 1,
		 width = shape->kv_heads * shape->group * shape->head_size;

	*cache = (struct cache){.rig = rig, .shape = *shape};
	for (uint32_t i = 0; i < shape->sequences; i++) {
		uint32_t needed = (shape->tokens[i] + shape->block_tokens - 1) / shape->block_tokens;

		columns = needed > columns ? needed : columns;
		blocks += needed;
		queries += shape->queries[i];
		most = shape->queries[i] > most ? shape->queries[i] : most;
	}
	*args = (struct attention_args){
		.chunk_blocks = shape->chunk_blocks,
		.block_count = blocks,
		.block_tokens = shape->block_tokens,
		.table_rows = shape->sequences,
		.table_columns = columns + 1,
		.sequence_count = shape->sequences,
		.query_tokens = queries,
		.query_most = shape->query_most ? shape->query_most : most,
		.heads = shape->kv_heads * shape->group,
		.kv_heads = shape->kv_heads,
		.head_size = shape->head_size,
		.query_stride = width + 8,
		.output_stride = width + 16,
		.element = shape->element,
		.int8 = shape->int8,
		.scale = 1 / sqrtf((float)shape->head_size),
	};
	cache_layout(args, shape);
	cache->blocks = rig_place(rig,
		(blocks - 1) / shape->chunk_blocks * args->chunk_bytes +
			((blocks - 1) % shape->chunk_blocks + 1) * args->block_bytes);
	cache->tables = rig_place(rig, (uint64_t)args->table_rows * args->table_columns * 4);
	cache->sequences = rig_place(rig, shape->sequences * sizeof(struct attention_sequence));
	cache->queries = rig_place(rig, (uint64_t)queries * args->query_stride * 2);
	cache->output = rig_place(rig, (uint64_t)queries * args->output_stride * 2);
	cache->workspace = rig_place(rig, attention_workspace_bytes(args));
	/* The counters are zeros. The rest stays NaN, so that a read before a write is detected. */
	if (cache->workspace.bytes)
		memset(cache->workspace.host, 0, (attention_pairs(args) + 3) / 4 * 16);
	cache_fill(cache);
	rig_upload(rig, &cache->blocks);
	rig_upload(rig, &cache->tables);
	rig_upload(rig, &cache->sequences);
	rig_upload(rig, &cache->queries);
	rig_upload(rig, &cache->output);
	rig_upload(rig, &cache->workspace);
	args->blocks = cache->blocks.device;
	args->tables = cache->tables.device;
	args->sequences = cache->sequences.device;
	args->queries = cache->queries.device;
	args->output = cache->output.device;
	args->workspace = cache->workspace.bytes ? cache->workspace.device : 0;
	assert_int_equal(gpu_stream_sync(rig->gpu, rig->stream), 0);
}

static inline void cache_run(struct cache *cache)
{
	assert_int_equal(attention_queue(cache->rig->gpu, &cache->args, cache->rig->stream), 0);
	rig_download(cache->rig, &cache->output);
}

static inline const uint16_t *cache_output(const struct cache *cache, uint32_t query)
{
	return (const uint16_t *)cache->output.host + (uint64_t)query * cache->args.output_stride;
}

/*
 * row_worst() - compare the output of a query token and head with float64. Return the largest error, divided by its
 * bound. `tokens`: the number of tokens that the query uses.
 *
 * The bound for column i is, with u the largest relative rounding error of a 16-bit number,
 *
 *   sum over t of p[t] |v[t][i]| (u + 2 d + e) + u |output[i]| + 2^-25 (1 + sum over t of |v[t][i]|)
 *
 * u: a weight as an operand, and the output. d: the error of an exponent, from a product of head_size terms in fp32.
 * e: the powers of two, and sums of fp32 over the tokens. 2^-25: half of the smallest fp16.
 */
UNWATCHED static inline double row_worst(
	const struct cache *cache, uint32_t sequence, uint32_t query, uint32_t head, uint32_t tokens)
{
	const struct attention_args *args = &cache->args;
	const uint16_t *q = (const uint16_t *)cache->queries.host + (uint64_t)query * args->query_stride +
		(uint64_t)head * args->head_size;
	double *p = calloc(tokens, sizeof(*p)), most = -INFINITY, total = 0, d = 0, worst = 0;
	double u = args->element == ELEMENT_F16 ? 0x1p-11 : 0x1p-8;
	double weight_u = args->int8 ? 0x1p-8 : u, e = (tokens + 64.0) * 0x1p-22;
	uint32_t kv_head = head / attention_group(args);

	assert_non_null(p);
	for (uint32_t t = 0; t < tokens; t++) {
		double magnitude = 0;

		for (uint32_t i = 0; i < args->head_size; i++) {
			double term = (double)cache_float(cache, q[i]) *
				cache_get(cache, sequence, t, kv_head, false, i) * args->scale;

			p[t] += term;
			magnitude += fabs(term);
		}
		d = fmax(d, magnitude * (args->head_size + 8) * 0x1p-23);
		most = fmax(most, p[t]);
	}
	for (uint32_t t = 0; t < tokens; t++)
		total += p[t] = exp(p[t] - most);
	for (uint32_t i = 0; i < args->head_size; i++) {
		double exact = 0, magnitude = 0, all = 0, bound, error;

		for (uint32_t t = 0; t < tokens; t++) {
			double value = cache_get(cache, sequence, t, kv_head, true, i);

			exact += p[t] / total * value;
			magnitude += p[t] / total * fabs(value);
			all += fabs(value);
		}
		bound = magnitude * (weight_u + 2 * d + e) + u * fabs(exact) + 0x1p-25 * (1 + all);
		error = fabs(cache_float(cache, cache_output(cache, query)[head * args->head_size + i]) - exact);
		worst = error <= 1e30 ? fmax(worst, error / bound) : INFINITY;
	}
	free(p);
	return worst;
}

/*
 * cache_check() - check all outputs, and that nothing else was written. Return the largest error, divided by its bound.
 */
static inline double cache_check(const struct cache *cache)
{
	const struct attention_args *args = &cache->args;
	const struct attention_sequence *sequences = cache->sequences.host;
	uint32_t width = args->heads * args->head_size;
	double worst = 0;

	for (uint32_t i = 0; i < args->sequence_count; i++)
		for (uint32_t query = 0; query < sequences[i].query_count; query++)
			for (uint32_t head = 0; head < args->heads; head++) {
				double one = row_worst(cache, i, sequences[i].query_begin + query, head,
					sequences[i].tokens - sequences[i].query_count + query + 1);

				if (!(one <= 1))
					fail_msg("sequence %u of %u tokens, query %u of %u, head %u of %u/%u of size "
						 "%u, element %u, int8 %u: %g times the bound",
						i, sequences[i].tokens, query, sequences[i].query_count, head,
						args->heads, args->kv_heads, args->head_size, args->element, args->int8,
						one);
				worst = fmax(worst, one);
			}
	for (uint32_t query = 0; query < args->query_tokens; query++)
		for (uint32_t i = query + 1 == args->query_tokens ? 0 : width; i < args->output_stride; i++)
			assert_int_equal(cache_output(cache, query)[i], 0xffff);
	return worst;
}

#endif
