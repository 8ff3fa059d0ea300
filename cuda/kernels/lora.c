/* lora.c - packing tiles, building batches, and launching the LoRA kernels: checks and shapes. */
#include "cuda/kernels/lora.h"

#include "cuda/gpu_private.h"

#include <errno.h>
#include <stdlib.h>

enum {
	BLOCK_THREADS = 128,
};

void lora_tile_pack(void *tile, const uint16_t *from, uint32_t rank, uint32_t columns, uint64_t row_step,
	uint64_t column_step, uint32_t index)
{
	uint32_t begin = index * LORA_TILE_COLUMNS, left = columns > begin ? columns - begin : 0;
	uint32_t used = left < LORA_TILE_COLUMNS ? left : LORA_TILE_COLUMNS;
	uint16_t *to = tile;

	for (uint32_t k = 0; k < rank; k++, to += LORA_TILE_COLUMNS) {
		for (uint32_t c = 0; c < used; c++)
			to[c] = from[k * row_step + (begin + c) * column_step];
		memset(to + used, 0, (LORA_TILE_COLUMNS - used) * sizeof(*to));
	}
}

static int compare_tokens(const void *one, const void *two, void *context)
{
	const int32_t *adapters = context;
	uint32_t a = *(const uint32_t *)one, b = *(const uint32_t *)two;

	if (adapters[a] != adapters[b])
		return adapters[a] < adapters[b] ? -1 : 1;
	return a < b ? -1 : a > b;
}

/*
 * order_fill() - store the positions of tokens with an adapter, sorted by adapter, then by position. Return: the number
 * of positions, or -EINVAL.
 */
static int64_t order_fill(uint32_t *order, const int32_t *adapters, uint32_t tokens, uint32_t adapter_count)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < tokens; i++) {
		if (adapters[i] < -1 || (adapters[i] >= 0 && (uint32_t)adapters[i] >= adapter_count))
			return gpu_fail(-EINVAL, "token %u has adapter %d; the number of adapters is %u", i,
				adapters[i], adapter_count);
		if (adapters[i] >= 0)
			order[count++] = i;
	}
	qsort_r(order, count, sizeof(*order), compare_tokens, (void *)(uintptr_t)adapters);
	return count;
}

int lora_batch_build(
	struct lora_batch *batch, uint32_t tokens_max, const int32_t *adapters, uint32_t tokens, uint32_t adapter_count)
{
	struct lora_piece *pieces = (struct lora_piece *)(uintptr_t)lora_batch_pieces(batch, tokens_max);
	uint32_t *order = (uint32_t *)(uintptr_t)lora_batch_order(batch);
	uint32_t homes = lora_homes(tokens_max, adapter_count), piece_max, count = homes, length;
	int32_t last = -1;
	int64_t rc;

	if (tokens > tokens_max || tokens_max > LORA_TOKENS_MAX)
		return gpu_fail(-EINVAL,
			"lora: %u tokens for a batch of at most %u tokens; the maximum of a batch is %d", tokens,
			tokens_max, LORA_TOKENS_MAX);
	rc = order_fill(order, adapters, tokens, adapter_count);
	if (rc < 0)
		return (int)rc;
	*batch = (struct lora_batch){
		.token_count = (uint32_t)rc,
		.split = rc <= LORA_SPLIT_TOKENS_MAX,
		.tokens_max = tokens_max,
	};
	piece_max = batch->split ? LORA_PIECE_SMALL : LORA_PIECE_LARGE;
	for (uint32_t i = 0; i < homes; i++)
		pieces[i] = (struct lora_piece){.adapter = (int32_t)i};
	for (uint32_t begin = 0; begin < batch->token_count; begin += length) {
		int32_t adapter = adapters[order[begin]];

		for (length = 1; length < piece_max && begin + length < batch->token_count; length++)
			if (adapters[order[begin + length]] != adapter)
				break;
		pieces[homes && adapter != last ? (uint32_t)adapter : count++] =
			(struct lora_piece){.adapter = adapter, .begin = begin, .count = length, .row = order[begin]};
		last = adapter;
	}
	batch->piece_count = count;
	return (int)count;
}

static int args_check(const struct lora_args *args)
{
	uint32_t align = LORA_ALIGN / 2; /* elements */

	if (!args || (args->element != ELEMENT_F16 && args->element != ELEMENT_BF16))
		return gpu_fail(-EINVAL, "lora: elements must be fp16 or bf16");
	if (!args->tokens_max || args->tokens_max > LORA_TOKENS_MAX || !args->rank_max ||
		args->rank_max > LORA_RANK_MAX || !args->adapter_count || args->adapter_count > LORA_TOKENS_MAX)
		return gpu_fail(-EINVAL,
			"lora: %u tokens, %u adapters, rank %u; the maxima are %d, %d and %d, the minimum is 1",
			args->tokens_max, args->adapter_count, args->rank_max, LORA_TOKENS_MAX, LORA_TOKENS_MAX,
			LORA_RANK_MAX);
	if (!args->in || !args->out || args->in > args->x_stride || args->out > args->y_stride ||
		args->out > LORA_TOKENS_MAX || args->in > LORA_TOKENS_MAX)
		return gpu_fail(-EINVAL,
			"lora: %u input features in rows of %u, %u output features in rows of %u; features must fit "
			"into a row, 1 to %d",
			args->in, args->x_stride, args->out, args->y_stride, LORA_TOKENS_MAX);
	if (!args->batch || !args->adapters || !args->x || !args->y || !args->workspace || args->batch % LORA_ALIGN ||
		args->adapters % LORA_ALIGN || args->adapter_stride % LORA_ALIGN || args->x % LORA_ALIGN ||
		args->y % LORA_ALIGN || args->workspace % LORA_ALIGN || args->x_stride % align ||
		args->y_stride % align)
		return gpu_fail(-EINVAL,
			"lora: an address is 0, or an address or the distance of rows or adapters is not aligned to "
			"%d bytes",
			LORA_ALIGN);
	return 0;
}

/* piece_rows() - return the tokens of the largest possible piece, rounded up to whole tensor operations. */
static uint32_t piece_rows(const struct lora_args *args)
{
	return args->tokens_max > LORA_SPLIT_TOKENS_MAX ? LORA_PIECE_LARGE : LORA_PIECE_SMALL;
}

/*
 * shrink_shared_bytes() - return the size of what lora.cu stores in shared memory: 16 bytes for each part that a thread
 * loads, or a flag and, per token, a row of sums for each of four warps.
 */
static uint32_t shrink_shared_bytes(const struct lora_args *args)
{
	uint32_t eights = args->rank_max <= 8 ? 1 : args->rank_max <= 16 ? 2 : LORA_SLICE / 8, rows = piece_rows(args);
	uint32_t small = LORA_SHRINK_STAGES * (eights + LORA_PIECE_SMALL / 8),
		 large = rows > LORA_PIECE_SMALL ? LORA_SHRINK_STAGES_LARGE * (eights + rows / 8) : 0,
		 stages = (small > large ? small : large) * BLOCK_THREADS * 16,
		 sums = 16 + 4 * eights * 8 * (rows + 2) * 4;

	return stages > sums ? stages : sums;
}

int lora_shrink_queue(struct gpu *gpu, const struct lora_args *args, struct gpu_stream *stream)
{
	struct gpu_shape shape = {.block = BLOCK_THREADS};
	int rc = args_check(args);

	if (rc < 0)
		return rc;
	shape.grid[0] = lora_pieces_max(args->tokens_max, args->adapter_count);
	shape.grid[1] = lora_splits(args->in);
	shape.grid[2] = (args->rank_max + LORA_SLICE - 1) / LORA_SLICE;
	shape.shared_bytes = shrink_shared_bytes(args);
	return gpu_launch(gpu, GPU_KERNEL_LORA_SHRINK, &shape, args, sizeof(*args), stream);
}

/* expand_ranks() - return the rank class of rank_max. */
static uint32_t expand_ranks(uint32_t rank_max)
{
	return rank_max <= 8 ? 8 : rank_max <= 16 ? 16 : rank_max <= 32 ? 32 : rank_max <= 64 ? 64 : 128;
}

/* expand_columns() - return the least number of columns of a block: struct rank_class in lora.cu. */
static uint32_t expand_columns(uint32_t rank_max)
{
	return rank_max <= 16 ? 512 : 256;
}

int lora_expand_queue(struct gpu *gpu, const struct lora_args *args, struct gpu_stream *stream)
{
	struct gpu_shape shape = {.block = BLOCK_THREADS};
	int rc = args_check(args);

	if (rc < 0)
		return rc;
	shape.grid[0] = lora_pieces_max(args->tokens_max, args->adapter_count);
	shape.grid[1] = (args->out + expand_columns(args->rank_max) - 1) / expand_columns(args->rank_max);
	shape.grid[2] = 1;
	shape.early = true; /* it waits for shrink */
	/* Per token: one factor, and two forms of each sum. */
	shape.shared_bytes = piece_rows(args) * (4 + 2 * 2 * expand_ranks(args->rank_max));
	return gpu_launch(gpu, GPU_KERNEL_LORA_EXPAND, &shape, args, sizeof(*args), stream);
}

int lora_plain_queue(struct gpu *gpu, const struct lora_plain_args *args, struct gpu_stream *stream)
{
	struct gpu_shape shape = {.grid = {1, 1, 1}, .block = BLOCK_THREADS};
	int rc = args ? args_check(&args->lora) : -EINVAL;

	if (rc < 0 || !args->piece_count)
		return rc;
	shape.grid[0] = args->piece_count;
	shape.grid[1] = (args->lora.rank_max + 3) / 4; /* a warp per rank */
	rc = gpu_launch(gpu, GPU_KERNEL_LORA_PLAIN_SHRINK, &shape, args, sizeof(*args), stream);
	if (rc < 0)
		return rc;
	shape.grid[1] = lora_tiles(args->lora.out); /* a thread per column */
	return gpu_launch(gpu, GPU_KERNEL_LORA_PLAIN_EXPAND, &shape, args, sizeof(*args), stream);
}
