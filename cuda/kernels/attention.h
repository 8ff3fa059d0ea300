/*
 * attention.h - attention over keys and values in blocks of a paged cache.
 *
 *   output[q][head] = sum over t of softmax over t (scale * query[q][head] . key[t]) * value[t]
 *
 * for the tokens t up to the query's own position. heads / kv_heads query heads share one head of keys and values.
 *
 * Blocks. Block i is at blocks + i / chunk_blocks * chunk_bytes + i % chunk_blocks * block_bytes, as in struct
 * gpool_kv_layout. In a block, the key of a token and head is at keys + token * token_stride + head * head_stride, and
 * the value at `values` with the same strides. These numbers describe blocks of one layer or of all layers, with
 * vectors ordered by token (NHD) or by head (HND). The table of a sequence contains the numbers of its blocks.
 *
 * int8. Keys and values may be codes of quantise.h, with one scale for each vector of a token and head: a row of
 * head_size columns in one group. The scales are also stored in the block, with their own strides.
 *
 * Sequences are described in device memory. A captured graph can therefore be launched again for the next step, after
 * the new descriptions have been copied there. The grid depends on the arguments only.
 *
 * Determinism. Within one back end, the result for a query depends only on its own sequence and on the arguments. The
 * two back ends add in different orders.
 */
#ifndef CUDA_KERNELS_ATTENTION_H
#define CUDA_KERNELS_ATTENTION_H

#include "cuda/kernels/element.h"

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>

struct gpu;
struct gpu_stream;

enum {
	ATTENTION_ALIGN = 16,          /* of vectors, and of rows of queries and output, in bytes */
	ATTENTION_SIZE_STEP = 16,      /* head_size is a multiple of this */
	ATTENTION_SIZE_MAX = 256,      /* of head_size */
	ATTENTION_HALF = 8,            /* tokens with adjacent slots; block_tokens is a multiple of this */
	ATTENTION_ROWS = 16,           /* queries of a tensor operation; each query token has heads / kv_heads rows */
	ATTENTION_SPLIT_ROWS_MAX = 64, /* rows of a sequence up to which its tokens are divided into splits */
	ATTENTION_SPLITS_MAX = 32,
	ATTENTION_SPLIT_TOKENS = 256, /* chosen: minimum number of tokens per split */
	ATTENTION_SPLIT_STEP = 64,    /* splits are multiples of the tokens that a thread block processes at once */
	/* chosen: thread blocks that occupy a current GPU; beyond this, larger splits are better than more splits */
	ATTENTION_BLOCKS_WANTED = 1024,
	ATTENTION_COUNT_MAX = 1 << 20, /* of sequences, heads, query tokens */
};

struct attention_sequence {
	uint32_t row;         /* of the table */
	uint32_t tokens;      /* in the cache, including those of the queries */
	uint32_t query_begin; /* first row of queries and output */
	uint32_t query_count; /* number of its last tokens that have queries: 1 for decoding; 0: skip the sequence */
};

struct attention_args {
	uint64_t queries;   /* [query_tokens][query_stride] elements, of which heads * head_size are used */
	uint64_t output;    /* [query_tokens][output_stride] elements */
	uint64_t sequences; /* struct attention_sequence[sequence_count] */
	uint64_t tables;    /* int32_t [table_rows][table_columns] */
	uint64_t blocks;    /* address of block 0 */
	uint64_t block_bytes, chunk_bytes;
	uint64_t keys, values;             /* offsets in a block of token 0 and head 0 */
	uint64_t key_scales, value_scales; /* the same offsets of bf16 scales; int8 only */
	/* attention_workspace_bytes(); zero it before the first launch. 0 if that returns 0 */
	uint64_t workspace;
	uint32_t chunk_blocks;
	uint32_t block_count; /* vectors of blocks with higher numbers are read as zeros */
	uint32_t block_tokens;
	uint32_t table_rows, table_columns;
	uint32_t token_stride, head_stride;             /* bytes */
	uint32_t scale_token_stride, scale_head_stride; /* bytes */
	uint32_t sequence_count;
	uint32_t query_tokens;
	uint32_t query_most; /* maximum of query_count; sequences with more are ignored */
	uint32_t heads, kv_heads, head_size;
	uint32_t query_stride, output_stride; /* elements */
	uint32_t element;                     /* ELEMENT_F16 or ELEMENT_BF16 */
	uint32_t int8;                        /* 1: keys and values are int8 codes; 0: elements */
	float scale;                          /* factor of the products, usually 1 / sqrt(head_size) */
};

/* Both compilers must agree on the shared structs. */
static_assert(sizeof(struct attention_sequence) == 16 && sizeof(struct attention_args) == 176, "in device memory");

/* attention_group() - return the number of query heads for each head of keys and values. */
ON_BOTH uint32_t attention_group(const struct attention_args *args)
{
	return args->heads / args->kv_heads;
}

/* attention_rows_most() - return the maximum number of rows of a sequence. */
ON_BOTH uint32_t attention_rows_most(const struct attention_args *args)
{
	return args->query_most * attention_group(args);
}

/* attention_splits_tokens() - return true if the kernel for few rows runs, which divides tokens among thread blocks. */
ON_BOTH bool attention_splits_tokens(const struct attention_args *args)
{
	return attention_rows_most(args) <= ATTENTION_SPLIT_ROWS_MAX;
}

/* attention_tiles() - return the number of tiles of `rows` rows per sequence. */
ON_BOTH uint32_t attention_tiles(const struct attention_args *args, uint32_t rows)
{
	return (attention_rows_most(args) + rows - 1) / rows;
}

/*
 * attention_splits() - return the maximum number of splits.
 * attention_split_tokens() - return the number of tokens in each split of a sequence; the last one may have fewer.
 */
ON_BOTH uint32_t attention_splits(const struct attention_args *args)
{
	const uint64_t blocks = (uint64_t)args->sequence_count * attention_tiles(args, ATTENTION_ROWS) * args->kv_heads;
	const uint64_t splits = (ATTENTION_BLOCKS_WANTED + blocks - 1) / blocks;

	return splits < ATTENTION_SPLITS_MAX ? (uint32_t)splits : (uint32_t)ATTENTION_SPLITS_MAX;
}

ON_BOTH uint32_t attention_split_tokens(uint32_t splits, uint32_t tokens)
{
	uint32_t part = (tokens + splits - 1) / splits;

	part = part > ATTENTION_SPLIT_TOKENS ? part : (uint32_t)ATTENTION_SPLIT_TOKENS;
	return (part + ATTENTION_SPLIT_STEP - 1) / ATTENTION_SPLIT_STEP * ATTENTION_SPLIT_STEP;
}

/* ---- the workspace: counters of finished splits, which are zero between launches, then the splits' results ---- */

/* attention_partial_rows() - return the maximum number of rows in use in a tile. */
ON_BOTH uint32_t attention_partial_rows(const struct attention_args *args)
{
	const uint32_t rows = attention_rows_most(args);

	return rows < ATTENTION_ROWS ? rows : (uint32_t)ATTENTION_ROWS;
}

/* attention_partial_floats() - return the size of a split's result: [rows][head_size] sums, [rows] maxima, [rows]
 * weights.
 */
ON_BOTH uint64_t attention_partial_floats(const struct attention_args *args)
{
	return (uint64_t)attention_partial_rows(args) * (args->head_size + 2);
}

/* attention_pairs() - return the number of pairs of a tile and a head. */
ON_BOTH uint64_t attention_pairs(const struct attention_args *args)
{
	return (uint64_t)args->sequence_count * attention_tiles(args, ATTENTION_ROWS) * args->kv_heads;
}

ON_BOTH float *attention_partials(const struct attention_args *args)
{
	return (float *)(uintptr_t)args->workspace + (attention_pairs(args) + 3) / 4 * 4;
}

/* attention_workspace_bytes() - return the size of the workspace for valid arguments; 0: none is needed. */
ON_BOTH uint64_t attention_workspace_bytes(const struct attention_args *args)
{
	const uint64_t pairs = attention_pairs(args);

	if (!attention_splits_tokens(args) || attention_splits(args) == 1)
		return 0;
	return ((pairs + 3) / 4 * 4 + pairs * attention_splits(args) * attention_partial_floats(args)) * 4;
}

/* ---- on the host ---- */

/*
 * attention_vectors_fit() - return true if the vectors of a block, each of `bytes`, are aligned and end in the block.
 */
static inline bool attention_vectors_fit(uint64_t block_bytes, uint32_t tokens, uint32_t heads, uint64_t offset,
	uint32_t token_stride, uint32_t head_stride, uint32_t bytes, uint32_t align)
{
	uint64_t last = (uint64_t)(tokens - 1) * token_stride + (uint64_t)(heads - 1) * head_stride;

	return offset % align == 0 && token_stride % align == 0 && head_stride % align == 0 &&
		offset <= UINT64_MAX / 2 && offset + last + bytes <= block_bytes;
}

/*
 * attention_check() - check the arguments. Return: 0 or -EINVAL, with a text.
 * attention_queue() - queue the kernel for these arguments, in one launch, and return at once.
 *
 * A workspace may be used by one stream at a time. The launch can be captured into a graph. Between launches of the
 * graph, the content of the sequences, the tables, queries and blocks may change; the arguments may not.
 *
 * Return: 0; -EINVAL (an element other than fp16 and bf16; a head size other than a multiple of 16 up to 256;
 * block_tokens below 8 or not a power of two; heads that are not a multiple of kv_heads; a count that is 0 or too
 * large; vectors, rows or scales that are not aligned, or do not fit into a block or a row; an address that is 0); or
 * an error of gpu_launch().
 */
int attention_check(const struct attention_args *args);
int attention_queue(struct gpu *gpu, const struct attention_args *args, struct gpu_stream *stream);

/* The C references, which all do the same work, synchronously and on memory of the process. */
void attention_decode_64_host(const struct attention_args *args);
void attention_decode_128_host(const struct attention_args *args);
void attention_decode_256_host(const struct attention_args *args);
void attention_prefill_64_host(const struct attention_args *args);
void attention_prefill_128_host(const struct attention_args *args);
void attention_prefill_256_host(const struct attention_args *args);

#endif
