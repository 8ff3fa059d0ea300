/* attention.c - the public call of the attention kernel: its arguments from the cache's layout. */
#include "client/kv/kv.h"

#include "client/kv/pooled.h"
#include "client/core/last_error.h"
#include "client/core/stream.h"
#include "cuda/kernels/attention.h"

static_assert(sizeof(struct gpool_kv_attention_sequence) == sizeof(struct attention_sequence) &&
		offsetof(struct gpool_kv_attention_sequence, query_count) ==
			offsetof(struct attention_sequence, query_count),
	"the kernel reads the public struct");

/* root_inverse() - return 1 / sqrt(number) for 1 to 256, by Newton's method: libgpool does not link libm. */
static float root_inverse(uint32_t number)
{
	double root = 1.0 / number;

	for (int i = 0; i < 20; i++)
		root *= 1.5 - 0.5 * number * root * root;
	return (float)root;
}

/* args_read() - read the caller's struct. Return: 0, -EINVAL, -E2BIG. */
static int args_read(const struct gpool_kv *kv, const struct gpool_kv_attention *given, struct attention_args *args)
{
	const uint32_t known = GPOOL_KV_ATTENTION_BF16 | GPOOL_KV_ATTENTION_INT8;
	struct gpool_kv_attention read;
	int error = options_read(&read, sizeof(read), given);

	if (error)
		return error;
	if (read.flags & ~known || read.reserved)
		return fail(
			-EINVAL, "flags are 0x%x; the known flags are 0x%x, and reserved must be 0", read.flags, known);
	if (kv->int8 && !(read.flags & GPOOL_KV_ATTENTION_INT8))
		return fail(-EINVAL, "the cache has GPOOL_KV_INT8, so GPOOL_KV_ATTENTION_INT8 is required");
	*args = (struct attention_args){
		.queries = read.queries,
		.output = read.output,
		.sequences = read.sequences,
		.tables = kv->table_address,
		.blocks = kv->address,
		.block_bytes = kv->block_bytes,
		.chunk_bytes = kv->chunk_bytes,
		.keys = read.keys,
		.values = read.values,
		.key_scales = read.key_scales,
		.value_scales = read.value_scales,
		.workspace = read.workspace,
		.chunk_blocks = kv->blocks.chunk_blocks,
		.block_count = kv_block_count(kv),
		.block_tokens = kv->shape.block_tokens,
		.table_rows = kv->max_sequences,
		.table_columns = kv->columns,
		.token_stride = read.token_stride,
		.head_stride = read.head_stride,
		.scale_token_stride = read.scale_token_stride,
		.scale_head_stride = read.scale_head_stride,
		.sequence_count = read.sequence_count,
		.query_tokens = read.query_tokens,
		.query_most = read.max_query_count,
		.heads = read.heads,
		.kv_heads = read.kv_heads ? read.kv_heads : kv->shape.kv_heads,
		.head_size = read.head_size ? read.head_size : kv->shape.head_size,
		.query_stride = read.query_stride,
		.output_stride = read.output_stride,
		.element = read.flags & GPOOL_KV_ATTENTION_BF16 ? ELEMENT_BF16 : ELEMENT_F16,
		.int8 = !!(read.flags & GPOOL_KV_ATTENTION_INT8),
		.scale = read.scale,
	};
	if (args->scale == 0 && args->head_size && args->head_size <= ATTENTION_SIZE_MAX)
		args->scale = root_inverse(args->head_size);
	return 0;
}

static int args_check(const struct attention_args *args)
{
	return attention_check(args) ? fail(-EINVAL, "%s", gpu_error_text()) : 0;
}

int gpool_kv_attention_workspace(struct gpool_kv *kv, const struct gpool_kv_attention *attention, uint64_t *bytes)
{
	struct attention_args args;
	int error;

	if (!kv->pool->alive)
		return -ECHILD;
	error = args_read(kv, attention, &args);
	if (!error) {
		args.queries = args.output = args.sequences = args.workspace = ATTENTION_ALIGN;
		error = args_check(&args);
	}
	if (!error)
		*bytes = attention_workspace_bytes(&args);
	return error;
}

static int attention_start(struct gpu *gpu, const void *args, struct gpu_stream *stream)
{
	return attention_queue(gpu, args, stream);
}

int gpool_kv_attention(struct gpool_kv *kv, const struct gpool_kv_attention *attention)
{
	struct attention_args args;
	int error;

	if (!kv->pool->alive)
		return -ECHILD;
	error = args_read(kv, attention, &args);
	if (!error)
		error = args_check(&args);
	if (error)
		return error;
	if (gpool_asleep(kv->pool))
		return fail(-EHOSTDOWN, "the session is asleep, so the cache has no memory; call gpool_wake()");
	return stream_launch(kv->pool, kv->stream, attention_start, &args);
}
