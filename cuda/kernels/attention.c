/* attention.c - attention: checks, the shape of the launch, and the C reference. */
#include "cuda/kernels/attention.h"

#include "cuda/gpu_private.h"
#include "cuda/kernels/quantise.h"

#include <errno.h>
#include <math.h>

static int sizes_check(const struct attention_args *args)
{
	if (args->element != ELEMENT_F16 && args->element != ELEMENT_BF16)
		return gpu_fail(-EINVAL, "attention: elements must be fp16 or bf16");
	if (!args->head_size || args->head_size % ATTENTION_SIZE_STEP || args->head_size > ATTENTION_SIZE_MAX)
		return gpu_fail(-EINVAL, "attention: the head size is %u; it must be a multiple of %d up to %d",
			args->head_size, ATTENTION_SIZE_STEP, ATTENTION_SIZE_MAX);
	if (args->block_tokens < ATTENTION_HALF || args->block_tokens & (args->block_tokens - 1))
		return gpu_fail(-EINVAL, "attention: blocks have %u tokens; it must be a power of two, at least %d",
			args->block_tokens, ATTENTION_HALF);
	if (!args->kv_heads || args->kv_heads > GPU_GRID_MAX || !args->heads || args->heads % args->kv_heads ||
		args->heads > ATTENTION_COUNT_MAX)
		return gpu_fail(-EINVAL,
			"attention: %u heads of queries and %u of keys and values; the first number must be a multiple "
			"of the second, at most %d and %d",
			args->heads, args->kv_heads, ATTENTION_COUNT_MAX, GPU_GRID_MAX);
	if (!args->sequence_count || !args->query_most || !args->query_tokens || !args->table_rows ||
		!args->table_columns || args->sequence_count > ATTENTION_COUNT_MAX ||
		args->query_tokens > ATTENTION_COUNT_MAX || args->query_most > args->query_tokens ||
		(uint64_t)args->query_most * attention_group(args) > ATTENTION_COUNT_MAX ||
		(uint64_t)args->table_columns * args->block_tokens > INT32_MAX ||
		(uint64_t)args->sequence_count * attention_tiles(args, ATTENTION_ROWS) > INT32_MAX)
		return gpu_fail(-EINVAL,
			"attention: %u sequences, %u query tokens, %u of one sequence, tables of %u x %u blocks; the "
			"minimum is 1, the maximum of the first two %d, and a table has fewer than 2^31 tokens",
			args->sequence_count, args->query_tokens, args->query_most, args->table_rows,
			args->table_columns, ATTENTION_COUNT_MAX);
	return 0;
}

static bool strided_fits(const struct attention_args *args, uint64_t offset, uint32_t token_stride,
	uint32_t head_stride, uint32_t bytes, uint32_t align)
{
	return attention_vectors_fit(
		args->block_bytes, args->block_tokens, args->kv_heads, offset, token_stride, head_stride, bytes, align);
}

static int layout_check(const struct attention_args *args)
{
	uint32_t bytes = args->head_size * (args->int8 ? 1 : 2), align = ATTENTION_ALIGN;

	if (!args->chunk_blocks || args->blocks % align || args->block_bytes % align || args->chunk_bytes % align ||
		!strided_fits(args, args->keys, args->token_stride, args->head_stride, bytes, align) ||
		!strided_fits(args, args->values, args->token_stride, args->head_stride, bytes, align))
		return gpu_fail(-EINVAL,
			"attention: keys at %llu and values at %llu of blocks of %llu bytes, with strides of %u and "
			"%u bytes; vectors must be aligned to %d bytes and fit into the block",
			(unsigned long long)args->keys, (unsigned long long)args->values,
			(unsigned long long)args->block_bytes, args->token_stride, args->head_stride, align);
	if (args->int8 &&
		(!strided_fits(args, args->key_scales, args->scale_token_stride, args->scale_head_stride, 2, 2) ||
			!strided_fits(
				args, args->value_scales, args->scale_token_stride, args->scale_head_stride, 2, 2)))
		return gpu_fail(-EINVAL, "attention: scales must be aligned to 2 bytes and fit into the block");
	return 0;
}

int attention_check(const struct attention_args *args)
{
	uint32_t align = ATTENTION_ALIGN / 2; /* elements */
	int rc = args ? sizes_check(args) : gpu_fail(-EINVAL, "attention: no arguments");

	if (rc == 0)
		rc = layout_check(args);
	if (rc < 0)
		return rc;
	if (!args->queries || !args->output || !args->sequences || !args->tables || !args->blocks ||
		args->queries % ATTENTION_ALIGN || args->output % ATTENTION_ALIGN || args->sequences % 4 ||
		args->tables % 4 || args->query_stride % align || args->output_stride % align ||
		(uint64_t)args->heads * args->head_size > args->query_stride ||
		(uint64_t)args->heads * args->head_size > args->output_stride)
		return gpu_fail(-EINVAL,
			"attention: an address is 0 or not aligned, or rows of %u and %u elements are not aligned to "
			"%d bytes or do not have %u heads of %u",
			args->query_stride, args->output_stride, ATTENTION_ALIGN, args->heads, args->head_size);
	if (attention_workspace_bytes(args) && (!args->workspace || args->workspace % ATTENTION_ALIGN))
		return gpu_fail(-EINVAL, "attention: the workspace is 0 or not aligned to %d bytes", ATTENTION_ALIGN);
	return 0;
}

/* class_of() - return the index of the kernel for a head size, and its number of warps. */
static int class_of(const struct attention_args *args, uint32_t *warps)
{
	*warps = args->head_size <= 128 ? 4 : 2;
	return args->head_size <= 64 ? 0 : args->head_size <= 128 ? 1 : 2;
}

/*
 * shared_bytes() - return the size of what attention.cu stores in shared memory: queries, and the slots of keys and
 * values; or, for decode, a flag and the results of the warps.
 */
static uint32_t shared_bytes(const struct attention_args *args, int class, uint32_t warps, bool decode)
{
	uint32_t columns = 64u << class, steps = decode || class == 2 ? 1 : 2;
	uint32_t vector = columns * (args->int8 ? 1 : 2), values = args->int8 && class == 0 ? 2 * vector : vector;
	uint32_t queries = ATTENTION_ROWS * columns * 2, slots = steps * ATTENTION_ROWS * (vector + values);
	uint32_t results = 16 + warps * ATTENTION_ROWS * (columns + 4 + 2) * 4;

	if (!decode)
		return warps * queries + slots;
	return queries + warps * slots > results ? queries + warps * slots : results;
}

int attention_queue(struct gpu *gpu, const struct attention_args *args, struct gpu_stream *stream)
{
	static const enum gpu_kernel kernels[2][3] = {
		{GPU_KERNEL_ATTENTION_PREFILL_64, GPU_KERNEL_ATTENTION_PREFILL_128, GPU_KERNEL_ATTENTION_PREFILL_256},
		{GPU_KERNEL_ATTENTION_DECODE_64, GPU_KERNEL_ATTENTION_DECODE_128, GPU_KERNEL_ATTENTION_DECODE_256},
	};
	struct gpu_shape shape = {0};
	uint32_t warps;
	bool decode;
	int rc = attention_check(args), class;

	if (rc < 0)
		return rc;
	class = class_of(args, &warps);
	decode = attention_splits_tokens(args);
	shape.block = warps * 32;
	shape.grid[0] = args->sequence_count * attention_tiles(args, decode ? ATTENTION_ROWS : ATTENTION_ROWS * warps);
	shape.grid[1] = args->kv_heads;
	shape.grid[2] = decode ? attention_splits(args) : 1;
	shape.shared_bytes = shared_bytes(args, class, warps, decode);
	return gpu_launch(gpu, kernels[decode][class], &shape, args, sizeof(*args), stream);
}

/* ---- the reference ---- */

/* vector_get() - convert the key or value of a token to fp32; zeros if its block does not exist. */
static void vector_get(const struct attention_args *args, const int32_t *table, uint32_t token, uint32_t head,
	uint64_t offset, uint64_t scales, float to[ATTENTION_SIZE_MAX])
{
	uint32_t block = (uint32_t)table[token / args->block_tokens], in_block = token % args->block_tokens;
	uint64_t place = args->blocks + (uint64_t)(block / args->chunk_blocks) * args->chunk_bytes +
		block % args->chunk_blocks * args->block_bytes;
	uint64_t vector = place + offset + (uint64_t)in_block * args->token_stride + (uint64_t)head * args->head_stride;
	uint64_t scale_at = place + scales + (uint64_t)in_block * args->scale_token_stride +
		(uint64_t)head * args->scale_head_stride;

	memset(to, 0, ATTENTION_SIZE_MAX * sizeof(*to));
	if (block >= args->block_count)
		return;
	if (args->int8) {
		float scale = float_of_bf16(*(const uint16_t *)(uintptr_t)scale_at);

		for (uint32_t i = 0; i < args->head_size; i++)
			to[i] = (float)((const int8_t *)(uintptr_t)vector)[i] * scale;
		return;
	}
	for (uint32_t i = 0; i < args->head_size; i += ELEMENT_ROW) {
		uint32_t left = args->head_size - i;

		element_row_get(args->element, (const uint16_t *)(uintptr_t)vector + i,
			left < ELEMENT_ROW ? left : ELEMENT_ROW, to + i);
	}
}

/* exponential() - return e^value for a value of at most 0, without libm, which libgpool does not link. */
static float exponential(float value)
{
	float power = value * 1.44269504f, fraction, result; /* log2(e) */
	int32_t whole;

	if (!(power > -126)) /* or a NaN */
		return power <= -126 ? 0 : power;
	whole = (int32_t)(power - 0.5f);
	fraction = (power - (float)whole) * 0.693147181f;
	result = 1 + fraction / 7;
	for (int i = 6; i; i--)
		result = 1 + fraction / (float)i * result;
	return result * float_of_bits((uint32_t)(whole + 127) << 23);
}

/* row_attend() - compute the output of one query token and head, which uses `tokens` tokens. */
static void row_attend(
	const struct attention_args *args, const int32_t *table, uint32_t tokens, uint64_t query, uint32_t head)
{
	uint32_t kv_head = head / attention_group(args), size = args->head_size;
	float row[ATTENTION_SIZE_MAX] = {0}, vector[ATTENTION_SIZE_MAX], sums[ATTENTION_SIZE_MAX] = {0};
	const uint16_t *from =
		(const uint16_t *)(uintptr_t)args->queries + query * args->query_stride + (uint64_t)head * size;
	uint16_t *to = (uint16_t *)(uintptr_t)args->output + query * args->output_stride + (uint64_t)head * size;
	float most = -INFINITY, weight = 0;

	for (uint32_t i = 0; i < size; i++)
		row[i] = args->element == ELEMENT_F16 ? float_of_f16(from[i]) : float_of_bf16(from[i]);
	for (uint32_t token = 0; token < tokens; token++) {
		float product = 0, before = most, shrink, add;

		vector_get(args, table, token, kv_head, args->keys, args->key_scales, vector);
		for (uint32_t i = 0; i < size; i++)
			product += row[i] * vector[i];
		product *= args->scale;
		most = product > most ? product : most;
		shrink = token ? exponential(before - most) : 0;
		add = exponential(product - most);
		vector_get(args, table, token, kv_head, args->values, args->value_scales, vector);
		for (uint32_t i = 0; i < size; i++)
			sums[i] = sums[i] * shrink + add * vector[i];
		weight = weight * shrink + add;
	}
	for (uint32_t i = 0; i < size; i++) {
		float value = weight > 0 ? sums[i] / weight : 0;

		to[i] = args->element == ELEMENT_F16 ? f16_of_float(value) : bf16_of_float(value);
	}
}

static void attention_host(const struct attention_args *args)
{
	const struct attention_sequence *sequences = (const struct attention_sequence *)(uintptr_t)args->sequences;

	for (uint32_t i = 0; i < args->sequence_count; i++) {
		const struct attention_sequence one = sequences[i];
		const int32_t *table =
			(const int32_t *)(uintptr_t)args->tables + (uint64_t)one.row * args->table_columns;

		if (one.row >= args->table_rows || one.query_count > args->query_most || one.query_count > one.tokens ||
			one.query_begin > args->query_tokens ||
			one.query_count > args->query_tokens - one.query_begin ||
			one.tokens > (uint64_t)args->table_columns * args->block_tokens)
			continue;
		for (uint32_t query = 0; query < one.query_count; query++)
			for (uint32_t head = 0; head < args->heads; head++)
				row_attend(args, table, one.tokens - one.query_count + query + 1,
					one.query_begin + query, head);
	}
}

#define REFERENCE(name) \
	void name##_host(const struct attention_args *args) \
	{ \
		attention_host(args); \
	}

REFERENCE(attention_decode_64)
REFERENCE(attention_decode_128)
REFERENCE(attention_decode_256)
REFERENCE(attention_prefill_64)
REFERENCE(attention_prefill_128)
REFERENCE(attention_prefill_256)
