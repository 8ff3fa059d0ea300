#include "client/kv/resident.h"

#include "client/core/last_error.h"
#include "client/core/stream.h"
#include "cuda/kernels/attention.h"
#include "cuda/kernels/kv_write.h"
#include "cuda/kernels/quantise.h"
#include "shm/plural.h"

#include <inttypes.h>

static_assert(sizeof(struct gpool_kv_write_error) == sizeof(struct quantise_error) &&
		offsetof(struct gpool_kv_write_error, max_error) == offsetof(struct quantise_error, max_error),
	"the kernel adds to the public struct");

int resident_check(const struct gpool_kv_options *options)
{
	const struct gpool_kv_shape *shape = &options->shape;

	if (options->flags & GPOOL_KV_BF16)
		return fail(-EINVAL, "GPOOL_KV_BF16 is for elements of 2 bytes; those of GPOOL_KV_INT8 have 1 byte");
	if (shape->dtype_bytes != 1)
		return fail(-EINVAL, "dtype_bytes is %u; with GPOOL_KV_INT8 it must be 1", shape->dtype_bytes);
	if (!shape->head_size || shape->head_size % ATTENTION_SIZE_STEP || shape->head_size > ATTENTION_SIZE_MAX)
		return fail(-EINVAL, "head_size is %u; with GPOOL_KV_INT8 it must be a multiple of %d up to %d",
			shape->head_size, ATTENTION_SIZE_STEP, ATTENTION_SIZE_MAX);
	if (shape->kv_heads > GPU_GRID_MAX)
		return fail(
			-EINVAL, "kv_heads is %u; with GPOOL_KV_INT8 the maximum is %d", shape->kv_heads, GPU_GRID_MAX);
	return shape->block_tokens >= ATTENTION_HALF
		? 0
		: fail(-EINVAL, "block_tokens is %u; with GPOOL_KV_INT8 the minimum is %d", shape->block_tokens,
			  ATTENTION_HALF);
}

void resident_layout(const struct gpool_kv *kv, struct gpool_kv_layout *layout)
{
	const uint64_t vectors = (uint64_t)kv->shape.block_tokens * kv->shape.kv_heads;
	const uint64_t codes = vectors * kv->shape.head_size, scales = vectors * RESIDENT_SCALE_BYTES;

	if (!kv->int8)
		return;
	layout->layer_bytes = 2 * (codes + scales);
	layout->values = codes;
	layout->key_scales = 2 * codes;
	layout->value_scales = 2 * codes + scales;
	layout->token_stride = kv->shape.kv_heads * kv->shape.head_size;
	layout->head_stride = kv->shape.head_size;
	layout->scale_token_stride = kv->shape.kv_heads * RESIDENT_SCALE_BYTES;
	layout->scale_head_stride = RESIDENT_SCALE_BYTES;
}

/* ---- writing ---- */

enum { STRIDE_STEP = 8 }; /* elements of a row that are read at once */

static int address_check(const char *name, uint64_t address, uint32_t alignment, const char *array)
{
	if (!address && array)
		return fail(-EINVAL, "%s is 0; it must be the address of %s", name, array);
	return address % alignment ? fail(-EINVAL, "%s is %#" PRIx64 "; it must be a multiple of %" PRIu32 " byte%s",
					     name, address, alignment, plural(alignment))
				   : 0;
}

static int stride_check(const char *name, uint32_t stride, const struct gpool_kv_shape *shape)
{
	const uint32_t width = shape->kv_heads * shape->head_size;

	return !stride || (stride >= width && stride % STRIDE_STEP == 0)
		? 0
		: fail(-EINVAL,
			  "%s is %" PRIu32 " element%s; it must be 0 or a multiple of %d that is at least %" PRIu32
			  " (kv_heads * head_size)",
			  name, stride, plural(stride), STRIDE_STEP, width);
}

/* Check the arguments that the kernel would refuse without their names. */
static int arguments_check(const struct gpool_kv *kv, const struct gpool_kv_write *read)
{
	int error;

	if (read->layer >= kv->shape.layers)
		return fail(-EINVAL, "layer is %u; the cache has %u layer%s", read->layer, kv->shape.layers,
			plural(kv->shape.layers));
	if (read->tokens > ATTENTION_COUNT_MAX)
		return fail(-EINVAL, "tokens is %" PRIu32 "; the maximum is %d", read->tokens, ATTENTION_COUNT_MAX);
	error = address_check("keys", read->keys, ATTENTION_ALIGN, "[tokens][key_stride] elements");
	if (!error)
		error = address_check("values", read->values, ATTENTION_ALIGN, "[tokens][value_stride] elements");
	if (!error)
		error = address_check("slots", read->slots, sizeof(uint64_t), "uint64_t[tokens]");
	if (!error)
		error = address_check("error", read->error, sizeof(double), NULL);
	if (!error)
		error = stride_check("key_stride", read->key_stride, &kv->shape);
	if (!error)
		error = stride_check("value_stride", read->value_stride, &kv->shape);
	return error;
}

/* Read the caller's struct. Return: 0, -EINVAL, -E2BIG. */
static int args_read(const struct gpool_kv *kv, const struct gpool_kv_write *given, struct kv_write_args *args)
{
	const uint32_t width = kv->shape.kv_heads * kv->shape.head_size;
	struct gpool_kv_layout layout = {.size = sizeof(layout)};
	struct gpool_kv_write read;
	uint64_t first;
	int error = options_read(&read, sizeof(read), given);

	if (error)
		return error;
	if (read.flags & ~(uint32_t)GPOOL_KV_WRITE_BF16)
		return fail(-EINVAL, "flags are 0x%x; the only known flag is GPOOL_KV_WRITE_BF16", read.flags);
	error = arguments_check(kv, &read);
	if (error)
		return error;
	resident_layout(kv, &layout);
	first = read.layer * layout.layer_bytes;
	*args = (struct kv_write_args){
		.keys = read.keys,
		.values = read.values,
		.slots = read.slots,
		.error = read.error,
		.blocks = kv->address,
		.block_bytes = kv->block_bytes,
		.chunk_bytes = kv->chunk_bytes,
		.key_codes = first + layout.keys,
		.value_codes = first + layout.values,
		.key_scales = first + layout.key_scales,
		.value_scales = first + layout.value_scales,
		.chunk_blocks = kv->blocks.chunk_blocks,
		.block_count = kv->blocks.blocks,
		.block_tokens = kv->shape.block_tokens,
		.token_stride = layout.token_stride,
		.head_stride = layout.head_stride,
		.scale_token_stride = layout.scale_token_stride,
		.scale_head_stride = layout.scale_head_stride,
		.tokens = read.tokens,
		.kv_heads = kv->shape.kv_heads,
		.head_size = kv->shape.head_size,
		.key_stride = read.key_stride ? read.key_stride : width,
		.value_stride = read.value_stride ? read.value_stride : width,
		.element = read.flags & GPOOL_KV_WRITE_BF16 ? ELEMENT_BF16 : ELEMENT_F16,
	};
	return kv_write_check(args) ? fail(-EINVAL, "%s", gpu_error_text()) : 0;
}

static int write_start(struct gpu *gpu, const void *args, struct gpu_stream *stream)
{
	return kv_write_queue(gpu, args, stream);
}

int gpool_kv_write(struct gpool_kv *kv, const struct gpool_kv_write *write)
{
	struct kv_write_args args;
	int error;

	if (!kv->pool->alive)
		return -ECHILD;
	if (!kv->int8)
		return fail(-EOPNOTSUPP, "the cache was created without GPOOL_KV_INT8");
	error = args_read(kv, write, &args);
	if (error)
		return error;
	if (gpool_asleep(kv->pool))
		return fail(-EHOSTDOWN, "the session is asleep, so the cache has no memory; call gpool_wake()");
	return stream_launch(kv->pool, kv->stream, write_start, &args);
}
