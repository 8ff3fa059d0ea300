/*
 * kv_write.h - store keys and values of tokens as int8 codes and scales, in blocks of a paged cache.
 *
 * Blocks, offsets and strides are those of attention.h, and the int8 form is that of quantise.h: each key and value of
 * a token and head is one group. Codes and scales are therefore what attention reads with `int8`.
 *
 * A slot is block * block_tokens + position in the block. Tokens with any other number, such as -1, are not stored, so
 * that a captured graph can be launched for fewer tokens. Two tokens must not have the same slot.
 */
#ifndef CUDA_KERNELS_KV_WRITE_H
#define CUDA_KERNELS_KV_WRITE_H

#include "cuda/kernels/element.h"

#include <assert.h>

struct gpu;
struct gpu_stream;

struct kv_write_args {
	uint64_t keys, values; /* [tokens][stride] elements, of which kv_heads * head_size are used */
	uint64_t slots;        /* uint64_t[tokens] */
	uint64_t error;        /* struct quantise_error, to which the kernel adds; 0: not wanted */
	uint64_t blocks;       /* address of block 0 */
	uint64_t block_bytes, chunk_bytes;
	uint64_t key_codes, value_codes;   /* offsets in a block of token 0 and head 0 */
	uint64_t key_scales, value_scales; /* the same for bf16 scales */
	uint32_t chunk_blocks;
	uint32_t block_count; /* blocks with higher numbers are not written */
	uint32_t block_tokens;
	uint32_t token_stride, head_stride;             /* bytes */
	uint32_t scale_token_stride, scale_head_stride; /* bytes */
	uint32_t tokens;
	uint32_t kv_heads, head_size;
	uint32_t key_stride, value_stride; /* elements between tokens */
	uint32_t element;                  /* ELEMENT_F16 or ELEMENT_BF16 */
	uint32_t reserved;                 /* 0 */
};
static_assert(sizeof(struct kv_write_args) == 144, "both compilers must have the same");

/* The addresses of the codes and the scale of a vector. */
struct kv_write_to {
	uint64_t codes, scale;
};

/* kv_write_slots() - return the number of slots. */
ON_BOTH uint64_t kv_write_slots(const struct kv_write_args *args)
{
	return (uint64_t)args->block_count * args->block_tokens;
}

/* kv_write_to_of() - return the addresses for the key or value of a slot and head. */
ON_BOTH struct kv_write_to kv_write_to_of(const struct kv_write_args *args, uint64_t slot, uint32_t head, int value)
{
	const uint32_t block = (uint32_t)(slot / args->block_tokens), in_block = (uint32_t)(slot % args->block_tokens);
	const uint64_t place = args->blocks + block / args->chunk_blocks * args->chunk_bytes +
		block % args->chunk_blocks * args->block_bytes;
	struct kv_write_to to;

	to.codes = place + (value ? args->value_codes : args->key_codes) + (uint64_t)in_block * args->token_stride +
		(uint64_t)head * args->head_stride;
	to.scale = place + (value ? args->value_scales : args->key_scales) +
		(uint64_t)in_block * args->scale_token_stride + (uint64_t)head * args->scale_head_stride;
	return to;
}

/*
 * kv_write_check() - check the arguments. Return: 0 or -EINVAL, with a text.
 * kv_write_queue() - queue the kernel, in one launch, and return at once. The launch can be captured into a graph.
 * Without tokens, nothing is queued.
 *
 * Return: 0; -EINVAL (an element other than fp16 and bf16; a head size other than a multiple of 16 up to 256;
 * block_tokens that is not a power of two; a count that is 0 or too large; rows, codes or scales that are not aligned,
 * or do not fit into a block or a row; an address that is 0); or an error of gpu_launch().
 */
int kv_write_check(const struct kv_write_args *args);
int kv_write_queue(struct gpu *gpu, const struct kv_write_args *args, struct gpu_stream *stream);

/* The C reference: perform the work synchronously, on memory of the process. */
void kv_write_host(const struct kv_write_args *args);

#endif
