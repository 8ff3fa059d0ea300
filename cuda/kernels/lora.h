/*
 * lora.h - LoRA adapters on a device: the layout of their weights, batches, and the two kernels that add them to a
 * layer's output.
 *
 *   y[token][out] += scale * sum over k of (sum over i of x[token][i] * A[k][i]) * B[out][k]
 *
 * for each token's own adapter. Ranks may be mixed. Each layer and target needs one launch of shrink, which computes
 * the inner sum, and one of expand.
 *
 * Weights. A matrix of rank r and n columns (A: r x in; B transposed: r x out) is divided into tiles of 128 columns. A
 * tile is [r][128] elements of 2 bytes, row by row, so it has 256 r bytes: ranks are not padded. The last tile is
 * complete; columns beyond n are zeros. A tile is contiguous and never crosses a page. struct lora_matrix has the
 * positions of the tiles: a first run (the rest of a page in which another matrix ended), then runs of equal length at
 * the positions in a list (whole pages). Both kernels read rows of 256 bytes, 16 bytes at a time; a row is also one
 * group of 128 in the int8 form (quantise.h).
 *
 * A batch. lora_batch_build() sorts tokens by adapter and divides each adapter's tokens into pieces. The batch is in
 * device memory of a fixed size and address, so a captured graph can run the next batch after it was copied there. The
 * grid has the size of the largest batch; blocks without a piece end at once. Piece i is the home of adapter i: its
 * first piece, or an empty one if no token has the adapter. A block can therefore load its piece and its adapter at the
 * same time. Further pieces follow. If a batch can have more adapters than tokens, it has no homes, which would need
 * more blocks.
 *
 * Determinism. A token's result depends only on its own row, its adapter and the shape of the layer, not on other
 * tokens of the batch. This is true within each back end; the two back ends add in different orders.
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
	LORA_ALIGN = 16, /* of a tile, and of the rows of x and y, in bytes */
	/*
	 * maximum number of parts of `in` that different blocks sum; the number depends only on the shape, so results
	 * are deterministic
	 */
	LORA_SPLITS_MAX = 8,
	/* `in` is split for at most this number of tokens; more tokens occupy the device without a split */
	LORA_SPLIT_TOKENS_MAX = 1024,
	LORA_PIECE_SMALL = 16, /* tokens per piece if `in` is split */
	LORA_PIECE_LARGE = 64,
	/* if `in` is split: expand adds the sums of the splits of pieces of at most this number of tokens and ranks */
	LORA_LATE_TOKENS = 4,
	LORA_LATE_RANK = 32,
	LORA_SLICE = 32,              /* ranks per block of shrink */
	LORA_SHRINK_STAGES = 4,       /* tiles that a block of shrink loads at once, */
	LORA_SHRINK_STAGES_LARGE = 2, /* for pieces of more than LORA_PIECE_SMALL tokens */
	/*
	 * bytes of B, per multiprocessor, that shrink loads to the second-level cache for expand, for all pieces
	 * together, if `in` is split; an A40 has a cache of 73 KB per multiprocessor, other GPUs have more
	 */
	LORA_AHEAD_BYTES = 64 << 10,
	LORA_TOKENS_MAX = 1 << 20,
};

struct lora_matrix {
	uint64_t first; /* device address of tile 0 */
	/* device address of uint64_t[]: the positions of further runs; not read if there are none */
	uint64_t more;
	uint32_t head_tiles; /* tiles in the first run */
	uint32_t run_tiles;  /* tiles in each further run; the last one may have fewer */
};

/* An adapter in one layer and target. */
struct lora_adapter {
	struct lora_matrix a;
	struct lora_matrix b;
	uint32_t rank; /* 0: this layer and target has no adapter, so the tokens are unchanged */
	float scale;   /* alpha / rank, or as stated by the adapter */
	uint64_t reserved;
};

/* Tokens of one adapter: order[begin] to order[begin + count - 1]. count is 0 in a home without tokens. */
struct lora_piece {
	int32_t adapter;
	uint32_t begin;
	uint32_t count;
	uint32_t row; /* order[begin] */
};

/*
 * The output of lora_batch_build(): this struct, then uint32_t order[tokens_max], and struct
 * lora_piece[lora_pieces_max()], aligned to 16 bytes.
 */
struct lora_batch {
	uint32_t piece_count;
	uint32_t token_count; /* number of tokens in order[], which have an adapter */
	uint32_t split;       /* 1: small pieces, `in` is split; 0: large pieces */
	uint32_t tokens_max;
};

struct lora_args {
	uint64_t batch;    /* struct lora_batch, built for tokens_max and adapter_count */
	uint64_t adapters; /* struct lora_adapter of index 0 for this layer and target */
	uint64_t x;        /* [tokens][x_stride] elements, of which `in` are used */
	uint64_t y;        /* [tokens][y_stride] elements; the first `out` are added to; must not overlap x */
	/* lora_workspace_bytes(); zero it before the first launch. shrink stores sums there for expand */
	uint64_t workspace;
	uint32_t adapter_count;
	uint32_t tokens_max;
	uint32_t rank_max; /* 1..LORA_RANK_MAX; adapters with a higher rank are ignored */
	uint32_t in, out;
	uint32_t x_stride, y_stride; /* elements */
	uint32_t element;            /* ELEMENT_F16 or ELEMENT_BF16: of x, y and the weights */
	/* distance in bytes of consecutive struct lora_adapter; 0: sizeof(struct lora_adapter) */
	uint32_t adapter_stride;
	uint32_t reserved;
};

/*
 * Arguments of the plain kernels, which process a part of a batch: the pieces from piece_first with rank_low <= rank <=
 * rank_high.
 */
struct lora_plain_args {
	struct lora_args lora;
	uint32_t piece_first, piece_count;
	uint32_t rank_low, rank_high;
};

/* Both compilers must agree on the shared structs. */
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

/* lora_tile_at() - return the device address of a tile. */
ON_BOTH uint64_t lora_tile_at(const struct lora_matrix *matrix, uint32_t rank, uint32_t tile)
{
	uint32_t further;

	if (tile < matrix->head_tiles)
		return matrix->first + (uint64_t)tile * lora_tile_bytes(rank);
	further = tile - matrix->head_tiles;
	return ((const uint64_t *)(uintptr_t)matrix->more)[further / matrix->run_tiles] +
		(uint64_t)(further % matrix->run_tiles) * lora_tile_bytes(rank);
}

/*
 * lora_split_tiles() - return the number of tiles of A per split.
 * lora_splits() - return the number of splits.
 */
ON_BOTH uint32_t lora_split_tiles(uint32_t in)
{
	return (lora_tiles(in) + LORA_SPLITS_MAX - 1) / LORA_SPLITS_MAX;
}

ON_BOTH uint32_t lora_splits(uint32_t in)
{
	return (lora_tiles(in) + lora_split_tiles(in) - 1) / lora_split_tiles(in);
}

/* ---- parts of a batch and of the workspace ---- */

/* lora_adapter_at() - return the adapter of an index. */
ON_BOTH const struct lora_adapter *lora_adapter_at(const struct lora_args *args, uint32_t index)
{
	uint64_t stride = args->adapter_stride ? args->adapter_stride : sizeof(struct lora_adapter);

	return (const struct lora_adapter *)(uintptr_t)(args->adapters + index * stride);
}

ON_BOTH const uint32_t *lora_batch_order(const struct lora_batch *batch)
{
	return (const uint32_t *)(batch + 1);
}

ON_BOTH const struct lora_piece *lora_batch_pieces(const struct lora_batch *batch, uint32_t tokens_max)
{
	return (const struct lora_piece *)(lora_batch_order(batch) + ((uint64_t)tokens_max + 3) / 4 * 4);
}

/* lora_split_rows() - return the maximum number of tokens for which `in` is split. */
ON_BOTH uint32_t lora_split_rows(uint32_t tokens_max)
{
	return tokens_max < LORA_SPLIT_TOKENS_MAX ? tokens_max : (uint32_t)LORA_SPLIT_TOKENS_MAX;
}

/* lora_homes() - return the number of pieces whose adapter has the same index. */
ON_BOTH uint32_t lora_homes(uint32_t tokens_max, uint32_t adapter_count)
{
	return adapter_count <= tokens_max ? adapter_count : 0;
}

/* lora_pieces_max() - return the maximum number of pieces; each adapter may have one partial piece. */
ON_BOTH uint32_t lora_pieces_max(uint32_t tokens_max, uint32_t adapter_count)
{
	uint32_t small = lora_split_rows(tokens_max) / LORA_PIECE_SMALL, large = tokens_max / LORA_PIECE_LARGE;

	return lora_homes(tokens_max, adapter_count) ? adapter_count + (small > large ? small : large) : tokens_max;
}

ON_BOTH uint64_t lora_batch_bytes(uint32_t tokens_max, uint32_t adapter_count)
{
	return sizeof(struct lora_batch) + ((uint64_t)tokens_max + 3) / 4 * 4 * sizeof(uint32_t) +
		(uint64_t)lora_pieces_max(tokens_max, adapter_count) * sizeof(struct lora_piece);
}

/* lora_rank_stride() - return the number of floats between two rows of sums. */
ON_BOTH uint32_t lora_rank_stride(uint32_t rank_max)
{
	return (rank_max + 3) / 4 * 4;
}

/*
 * lora_counters() - return the counters of finished splits, one per piece and slice of ranks; they are zero between
 * launches.
 */
ON_BOTH uint32_t *lora_counters(const struct lora_args *args)
{
	return (uint32_t *)(uintptr_t)args->workspace;
}

/*
 * lora_sums() - return the sums that shrink stores for expand: [tokens_max][lora_rank_stride()] fp32, by position in
 * order[].
 */
ON_BOTH float *lora_sums(const struct lora_args *args)
{
	return (float *)(lora_counters(args) + (uint64_t)args->tokens_max * (LORA_RANK_MAX / LORA_SLICE));
}

/* lora_partials() - return the sums of the splits: [lora_splits()][lora_split_rows()][lora_rank_stride()] fp32. */
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
 * lora_tile_pack() - write one tile of a matrix to host memory.
 *
 * @tile: receives lora_tile_bytes(rank)
 * @from: elements of 2 bytes. Row k, column c is from[k * row_step + c * column_step]: the steps of PEFT's lora_A are
 *        `in` and 1, those of lora_B, which is [out][rank], are 1 and `rank`
 */
void lora_tile_pack(void *tile, const uint16_t *from, uint32_t rank, uint32_t columns, uint64_t row_step,
	uint64_t column_step, uint32_t index);

/*
 * lora_batch_build() - sort tokens by adapter.
 *
 * @batch:    receives lora_batch_bytes(tokens_max, adapter_count)
 * @adapters: [tokens] index of each token's adapter; -1: none
 *
 * Return: the number of pieces, with empty homes, or -EINVAL (more tokens than tokens_max, or an index that is neither
 * -1 nor below adapter_count).
 *
 * Cost: sorts `tokens` numbers, and writes a piece for each adapter, once per step for any number of layers.
 */
int lora_batch_build(struct lora_batch *batch, uint32_t tokens_max, const int32_t *adapters, uint32_t tokens,
	uint32_t adapter_count);

/*
 * lora_shrink_queue() - queue workspace = x A^T.
 * lora_expand_queue() - queue y += scale * workspace B^T.
 *
 * Each function queues one launch and returns at once. Pass the same args to both, in this order and on one stream,
 * with nothing in between: expand can start before the end of shrink. A workspace may be used by one stream at a time.
 *
 * The launches can be captured into a graph. Between launches of the graph, the content of the batch, x, struct
 * lora_adapter and the weights may change; the args may not.
 *
 * Return: 0; -EINVAL (element is neither fp16 nor bf16; in, out, tokens, ranks or adapters are 0 or too large;
 * addresses, or strides in bytes, are not multiples of LORA_ALIGN; a stride is smaller than the row); or an error of
 * gpu_launch().
 */
int lora_shrink_queue(struct gpu *gpu, const struct lora_args *args, struct gpu_stream *stream);
int lora_expand_queue(struct gpu *gpu, const struct lora_args *args, struct gpu_stream *stream);

/*
 * lora_plain_queue() - queue both kernels in their simplest form, for comparison. Pass to each call either pieces of
 * one adapter, which yields a pair of matrix products per adapter, or all pieces and the ranks of one class.
 * Return: as lora_shrink_queue().
 */
int lora_plain_queue(struct gpu *gpu, const struct lora_plain_args *args, struct gpu_stream *stream);

/* The C references: perform the work synchronously, on memory of the process. */
void lora_shrink_host(const struct lora_args *args);
void lora_expand_host(const struct lora_args *args);
void lora_plain_shrink_host(const struct lora_plain_args *args);
void lora_plain_expand_host(const struct lora_plain_args *args);

#endif
