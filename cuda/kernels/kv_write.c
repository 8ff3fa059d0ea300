/* kv_write.c - kv_write: checks, the shape of the launch, and the C reference. */
#include "cuda/kernels/kv_write.h"

#include "cuda/gpu_private.h"
#include "cuda/kernels/attention.h"
#include "cuda/kernels/element_rows.h"

#include <errno.h>

enum { BLOCK_THREADS = 256, WARP_PARTS = 32 * 4, PART = 8 }; /* each lane converts four parts of eight elements */
static const uint32_t blocks_max = 132 * 16;                 /* as for quantise */

static int sizes_check(const struct kv_write_args *args)
{
	if (args->element != ELEMENT_F16 && args->element != ELEMENT_BF16)
		return gpu_fail(-EINVAL, "kv_write: elements must be fp16 or bf16");
	if (!args->head_size || args->head_size % ATTENTION_SIZE_STEP || args->head_size > ATTENTION_SIZE_MAX)
		return gpu_fail(-EINVAL, "kv_write: the head size is %u; it must be a multiple of %d up to %d",
			args->head_size, ATTENTION_SIZE_STEP, ATTENTION_SIZE_MAX);
	if (!args->kv_heads || args->kv_heads > GPU_GRID_MAX || args->tokens > ATTENTION_COUNT_MAX)
		return gpu_fail(-EINVAL,
			"kv_write: %u heads and %u tokens; the minimum of the first is 1, and the maxima are %d and %d",
			args->kv_heads, args->tokens, GPU_GRID_MAX, ATTENTION_COUNT_MAX);
	if (!args->block_tokens || args->block_tokens & (args->block_tokens - 1) || !args->chunk_blocks)
		return gpu_fail(
			-EINVAL, "kv_write: blocks have %u tokens; it must be a power of two", args->block_tokens);
	return 0;
}

static int layout_check(const struct kv_write_args *args)
{
	const uint64_t vectors[] = {args->key_codes, args->value_codes};
	const uint64_t scales[] = {args->key_scales, args->value_scales};

	for (int i = 0; i < 2; i++)
		if (!attention_vectors_fit(args->block_bytes, args->block_tokens, args->kv_heads, vectors[i],
			    args->token_stride, args->head_stride, args->head_size, ATTENTION_ALIGN) ||
			!attention_vectors_fit(args->block_bytes, args->block_tokens, args->kv_heads, scales[i],
				args->scale_token_stride, args->scale_head_stride, 2, 2))
			return gpu_fail(-EINVAL,
				"kv_write: codes at %llu and scales at %llu of blocks of %llu bytes; they must be "
				"aligned to %d and 2 bytes and fit into the block",
				(unsigned long long)vectors[i], (unsigned long long)scales[i],
				(unsigned long long)args->block_bytes, ATTENTION_ALIGN);
	return args->blocks % ATTENTION_ALIGN || args->block_bytes % ATTENTION_ALIGN ||
			args->chunk_bytes % ATTENTION_ALIGN
		? gpu_fail(-EINVAL, "kv_write: blocks must be aligned to %d bytes", ATTENTION_ALIGN)
		: 0;
}

int kv_write_check(const struct kv_write_args *args)
{
	const uint64_t width = (uint64_t)args->kv_heads * args->head_size;
	int rc = sizes_check(args);

	if (rc == 0)
		rc = layout_check(args);
	if (rc < 0)
		return rc;
	if (!args->keys || !args->values || !args->slots || !args->blocks || args->keys % ATTENTION_ALIGN ||
		args->values % ATTENTION_ALIGN || args->slots % 8 || args->error % 8 || args->key_stride % PART ||
		args->value_stride % PART || args->key_stride < width || args->value_stride < width)
		return gpu_fail(-EINVAL,
			"kv_write: an address is 0 or not aligned, or rows of %u and %u elements are not aligned to %d "
			"bytes or do not have %u heads of %u",
			args->key_stride, args->value_stride, ATTENTION_ALIGN, args->kv_heads, args->head_size);
	return 0;
}

int kv_write_queue(struct gpu *gpu, const struct kv_write_args *args, struct gpu_stream *stream)
{
	struct gpu_shape shape = {.block = BLOCK_THREADS};
	uint32_t lanes = 2, tokens, blocks;
	int rc = kv_write_check(args);

	if (rc < 0 || !args->tokens)
		return rc;
	while (lanes * PART < args->head_size)
		lanes *= 2;
	tokens = BLOCK_THREADS / 32 * (WARP_PARTS / lanes); /* of a thread block */
	blocks = (args->tokens + tokens - 1) / tokens;
	shape.grid[0] = blocks < blocks_max ? blocks : blocks_max;
	shape.grid[1] = args->kv_heads;
	shape.grid[2] = 2;
	return gpu_launch(gpu, GPU_KERNEL_KV_WRITE, &shape, args, sizeof(*args), stream);
}

static void head_write(
	const struct kv_write_args *args, uint32_t token, uint32_t head, int value, struct quantise_error *error)
{
	const uint64_t slot = ((const uint64_t *)(uintptr_t)args->slots)[token];
	const uint64_t stride = value ? args->value_stride : args->key_stride;
	const uint16_t *from = (const uint16_t *)(uintptr_t)(value ? args->values : args->keys) + token * stride +
		(uint64_t)head * args->head_size;
	struct kv_write_to to;

	if (slot >= kv_write_slots(args))
		return;
	to = kv_write_to_of(args, slot, head, value);
	element_rows()->quantise(args->element, from, 1, args->head_size, (int8_t *)(uintptr_t)to.codes,
		(uint16_t *)(uintptr_t)to.scale, error);
}

void kv_write_host(const struct kv_write_args *args)
{
	struct quantise_error error = {0}, *all = (struct quantise_error *)(uintptr_t)args->error;

	for (uint32_t token = 0; token < args->tokens; token++)
		for (uint32_t head = 0; head < args->kv_heads; head++)
			for (int value = 0; value < 2; value++)
				head_write(args, token, head, value, all ? &error : NULL);
	quantise_error_add(all, &error);
}
