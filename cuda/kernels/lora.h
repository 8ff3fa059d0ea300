/*
 * lora.h - LoRA adapters on a device: how their weights lie, what a batch is, and the two kernels that add them to a
 * layer's output.
 *
 *   y[token][out] += scale * sum over k of (sum over i of x[token][i] * A[k][i]) * B[out][k]
 *
 * for every token's own adapter, all ranks mixed, by one launch of shrink (the inner sum) and one of expand for each
 * layer and target.
 *
 * Weights. A matrix of rank r and n columns (A: r x in; B transposed: r x out) is cut into tiles of 128 columns. A tile
 * is [r][128] elements of 2 bytes, a row after the other, so it has 256 r bytes whatever the rank: no rank is padded.
 * The last tile is whole; columns beyond n are zeros. A tile is contiguous and never crosses a page; the
 * places of the tiles are given by struct lora_matrix: some follow each other at its first place (the rest of a page
 * that another matrix began), then equal runs at places in a list (whole pages). Rows of 256 bytes are what both
 * kernels read 16 bytes at a time, and are the groups of the int8 form (quantise.h, groups of 128).
 *
 * A batch. lora_batch_build() sorts tokens by adapter and cuts each adapter's tokens into pieces; the batch is in
 * device memory of a fixed size and place, so a captured graph runs the next batch after a copy to it. The grid is for
 * the largest batch; blocks without a piece end.
 *
 * Bits. A token's result depends on its own row, its adapter and the shape of the layer alone: not on who else is in
 * the batch. That holds for each back end by itself; between them sums are added in another order.
 */
#ifndef CUDA_KERNELS_LORA_H
#define CUDA_KERNELS_LORA_H

#include "cuda/kernels/element.h"

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>

struct gpu;
struct gpu_stream;

enum {
	LORA_RANK_MAX = 128,
	LORA_TILE_COLUMNS = 128,
	LORA_ALIGN = 16, /* of a tile, and of the rows of x and y, bytes */
	/* parts of `in` that different blocks sum; by the shape alone, for the bits' sake */
	LORA_SPLITS_MAX = 16,
	LORA_SPLIT_TOKENS_MAX = 1024, /* with more tokens there is enough to do without splitting */
	LORA_PIECE_SMALL = 16,        /* tokens of a piece while `in` is split: what one tensor operation takes */
	LORA_PIECE_LARGE = 64,
	LORA_SLICE = 32, /* ranks that one block of shrink does */
	LORA_TOKENS_MAX = 1 << 20,
};

struct lora_matrix {
	uint64_t first; /* device address of tile 0 */
	/* device address of uint64_t[]: where the further runs begin; not read when there are none */
	uint64_t more;
	uint32_t head_tiles; /* how many follow each other at `first` */
	uint32_t run_tiles;  /* how many in each further run, the last of which may have fewer */
};

/* One adapter's part in one layer and target. */
struct lora_adapter {
	struct lora_matrix a;
	struct lora_matrix b;
	uint32_t rank; /* 0: none here, so its tokens are left alone */
	float scale;   /* alpha / rank, or what the adapter says */
	uint64_t reserved;
};

/* Tokens of one adapter: order[begin] to order[begin + count - 1]. */
struct lora_piece {
	int32_t adapter;
	uint32_t begin;
	uint32_t count;
	uint32_t reserved;
};

/* What lora_batch_build() fills: this, struct lora_piece[tokens_max], uint32_t order[tokens_max]. */
struct lora_batch {
	uint32_t piece_count;
	uint32_t token_count; /* in order[]: those that have an adapter */
	uint32_t split;       /* 1: small pieces, `in` is split; 0: large pieces */
	uint32_t tokens_max;
};

struct lora_args {
	uint64_t batch;    /* struct lora_batch, built for tokens_max */
	uint64_t adapters; /* struct lora_adapter of index 0, in this layer and target; 8 bytes aligned */
	uint64_t x;        /* [tokens][x_stride] elements, of which `in` are used */
	uint64_t y;        /* [tokens][y_stride] elements, of which `out` are added to; must not overlap x */
	/* lora_workspace_bytes(), zeros before the first launch; shrink leaves in it what expand takes */
	uint64_t workspace;
	uint32_t adapter_count;
	uint32_t tokens_max;
	uint32_t rank_max; /* no adapter has more: 1..LORA_RANK_MAX; one that has is left out */
	uint32_t in, out;
	uint32_t x_stride, y_stride; /* elements */
	uint32_t element;            /* ELEMENT_F16 or ELEMENT_BF16: of x, y and the weights */
	/* bytes from one struct lora_adapter to that of the next index, a multiple of 8; 0: they lie side by side */
	uint32_t adapter_stride;
	uint32_t reserved;
};

/*
 * The plain kernels do some of a batch: pieces from piece_first on, and of them those with rank_low <= rank <=
 * rank_high.
 */
struct lora_plain_args {
	struct lora_args lora;
	uint32_t piece_first, piece_count;
	uint32_t rank_low, rank_high;
};

/* Both compilers must have the same of what they share. */
static_assert(sizeof(struct lora_matrix) == 24 && sizeof(struct lora_adapter) == 64, "in device memory");
static_assert(sizeof(struct lora_batch) == 16 && sizeof(struct lora_piece) == 16, "in device memory");
static_assert(sizeof(struct lora_args) == 80 && sizeof(struct lora_plain_args) == 96, "arguments of kernels");

/* ---- sizes ---- */

ON_BOTH uint32_t lora_tiles(uint32_t columns)
{
	return (columns + LORA_TILE_COLUMNS - 1) / LORA_TILE_COLUMNS;
}

ON_BOTH uint32_t lora_tile_bytes(uint32_t rank)
{
	return rank * LORA_TILE_COLUMNS * 2;
}

ON_BOTH uint64_t lora_matrix_bytes(uint32_t rank, uint32_t columns)
{
	return (uint64_t)lora_tiles(columns) * lora_tile_bytes(rank);
}

/* lora_tile_at() - the device address of a tile. */
ON_BOTH uint64_t lora_tile_at(const struct lora_matrix *matrix, uint32_t rank, uint32_t tile)
{
	uint32_t further;

	if (tile < matrix->head_tiles)
		return matrix->first + (uint64_t)tile * lora_tile_bytes(rank);
	further = tile - matrix->head_tiles;
	return ((const uint64_t *)(uintptr_t)matrix->more)[further / matrix->run_tiles] +
		(uint64_t)(further % matrix->run_tiles) * lora_tile_bytes(rank);
}

/* lora_split_tiles() - tiles of A that one split sums; lora_splits() - how many splits there are. */
ON_BOTH uint32_t lora_split_tiles(uint32_t in)
{
	return (lora_tiles(in) + LORA_SPLITS_MAX - 1) / LORA_SPLITS_MAX;
}

ON_BOTH uint32_t lora_splits(uint32_t in)
{
	return (lora_tiles(in) + lora_split_tiles(in) - 1) / lora_split_tiles(in);
}

/* ---- parts of a batch and of the workspace ---- */

/* lora_adapter_at() - of an index. */
ON_BOTH const struct lora_adapter *lora_adapter_at(const struct lora_args *args, uint32_t index)
{
	uint64_t stride = args->adapter_stride ? args->adapter_stride : sizeof(struct lora_adapter);

	return (const struct lora_adapter *)(uintptr_t)(args->adapters + index * stride);
}

ON_BOTH const struct lora_piece *lora_batch_pieces(const struct lora_batch *batch)
{
	return (const struct lora_piece *)(batch + 1);
}

ON_BOTH const uint32_t *lora_batch_order(const struct lora_batch *batch, uint32_t tokens_max)
{
	return (const uint32_t *)(lora_batch_pieces(batch) + tokens_max);
}

ON_BOTH uint64_t lora_batch_bytes(uint32_t tokens_max)
{
	return sizeof(struct lora_batch) + (uint64_t)tokens_max * (sizeof(struct lora_piece) + sizeof(uint32_t));
}

/* lora_rank_stride() - floats from one row of sums to the next. */
ON_BOTH uint32_t lora_rank_stride(uint32_t rank_max)
{
	return (rank_max + 3) / 4 * 4;
}

/* lora_counters() - how many splits of a piece and a slice of its ranks are done; zeros between launches. */
ON_BOTH uint32_t *lora_counters(const struct lora_args *args)
{
	return (uint32_t *)(uintptr_t)args->workspace;
}

/* lora_sums() - [tokens_max][lora_rank_stride()] fp32, by place in order[]: what shrink hands to expand. */
ON_BOTH float *lora_sums(const struct lora_args *args)
{
	return (float *)(lora_counters(args) + (uint64_t)args->tokens_max * (LORA_RANK_MAX / LORA_SLICE));
}

ON_BOTH uint32_t lora_split_rows(uint32_t tokens_max)
{
	return tokens_max < LORA_SPLIT_TOKENS_MAX ? tokens_max : (uint32_t)LORA_SPLIT_TOKENS_MAX;
}

/* lora_partials() - [lora_splits()][lora_split_rows()][lora_rank_stride()] fp32. */
ON_BOTH float *lora_partials(const struct lora_args *args)
{
	return lora_sums(args) + (uint64_t)args->tokens_max * lora_rank_stride(args->rank_max);
}

ON_BOTH uint64_t lora_workspace_bytes(uint32_t tokens_max, uint32_t rank_max, uint32_t in)
{
	uint64_t rows = tokens_max + (uint64_t)lora_splits(in) * lora_split_rows(tokens_max);

	return (uint64_t)tokens_max * (LORA_RANK_MAX / LORA_SLICE) * 4 + rows * lora_rank_stride(rank_max) * 4;
}

/* ---- on the host ---- */

/*
 * lora_tile_pack() - one tile of a matrix, in memory that the CPU can write.
 * @tile:  receives lora_tile_bytes(rank)
 * @from:  elements of 2 bytes; that of row k and column c is from[k * row_step + c * column_step]: PEFT's lora_A has
 *         steps `in` and 1, lora_B, which is [out][rank], 1 and `rank`
 */
void lora_tile_pack(void *tile, const uint16_t *from, uint32_t rank, uint32_t columns, uint64_t row_step,
	uint64_t column_step, uint32_t index);

/*
 * lora_batch_build() - sort tokens by adapter.
 * @batch:    receives lora_batch_bytes(tokens_max); 8 bytes aligned
 * @adapters: [tokens] index of each token's adapter, -1: none
 * Return: pieces, or -EINVAL (more tokens than tokens_max, or an index that is neither -1 nor below adapter_count).
 * Cost: sorts `tokens` numbers; once for a step, whatever the number of layers.
 */
int lora_batch_build(struct lora_batch *batch, uint32_t tokens_max, const int32_t *adapters, uint32_t tokens,
	uint32_t adapter_count);

/*
 * lora_shrink_queue() - workspace = x A^T. lora_expand_queue() - y += scale * workspace B^T. One launch each; both
 * return at once. The same args to both, in this order and on one stream, and a workspace belongs to one stream at a
 * time.
 *
 * They can be captured into a graph. Between its launches may change: what the batch, x and struct lora_adapter hold,
 * and weights; not the args.
 *
 * Return: 0, or -EINVAL (no fp16 or bf16; nothing of in, out, tokens, ranks or adapters, or more than there may be;
 * addresses, or strides times the element, not multiples of LORA_ALIGN; a stride below the row), or what gpu_launch()
 * says.
 */
int lora_shrink_queue(struct gpu *gpu, const struct lora_args *args, struct gpu_stream *stream);
int lora_expand_queue(struct gpu *gpu, const struct lora_args *args, struct gpu_stream *stream);

/*
 * lora_plain_queue() - both, in the simplest way, for comparison: naively, with the pieces of one adapter at each call,
 * that is one pair of matrix products for each adapter; or grouped, with all pieces and the ranks of one class at each
 * call. Errors as above.
 */
int lora_plain_queue(struct gpu *gpu, const struct lora_plain_args *args, struct gpu_stream *stream);

/* The references: the same work at once, on memory of the process. */
void lora_shrink_host(const struct lora_args *args);
void lora_expand_host(const struct lora_args *args);
void lora_plain_shrink_host(const struct lora_plain_args *args);
void lora_plain_expand_host(const struct lora_plain_args *args);

#endif
