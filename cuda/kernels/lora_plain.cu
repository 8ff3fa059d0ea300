/*
 * lora_plain.cu - LoRA in the simplest way, for comparison: without splits and tensor operations, and with weights that
 * are read again for each token. In the grid, x is the piece. In shrink, y is a rank, computed by one warp; in expand,
 * y is a tile, with one thread per column.
 */
#include "cuda/kernels/lora.h"

struct job {
	const struct lora_adapter *adapter;
	const uint32_t *order;
	float *sums;
	uint32_t count, rank;
};

static __device__ bool job_get(const struct lora_plain_args &args, struct job &job)
{
	const struct lora_batch *batch = (const struct lora_batch *)args.lora.batch;
	const uint32_t index = args.piece_first + blockIdx.x;

	if (index >= batch->piece_count || batch->tokens_max != args.lora.tokens_max)
		return false;

	const struct lora_piece piece = lora_batch_pieces(batch, args.lora.tokens_max)[index];

	if (piece.adapter < 0 || (uint32_t)piece.adapter >= args.lora.adapter_count ||
		piece.begin > args.lora.tokens_max || piece.count > args.lora.tokens_max - piece.begin)
		return false;
	job.adapter = lora_adapter_at(&args.lora, (uint32_t)piece.adapter);
	job.order = lora_batch_order(batch) + piece.begin;
	job.sums = lora_sums(&args.lora) + (uint64_t)piece.begin * lora_rank_stride(args.lora.rank_max);
	job.count = piece.count;
	job.rank = job.adapter->rank;
	return job.rank && job.rank <= args.lora.rank_max && job.rank >= args.rank_low && job.rank <= args.rank_high;
}

static __device__ float value_get(uint32_t element, uint16_t bits)
{
	return element == ELEMENT_F16 ? float_of_f16(bits) : float_of_bf16(bits);
}

extern "C" __global__ void __launch_bounds__(128) lora_plain_shrink(const struct lora_plain_args args)
{
	const struct lora_args &lora = args.lora;
	const uint32_t lane = threadIdx.x % 32, k = blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32;
	struct job job;

	if (!job_get(args, job) || k >= job.rank)
		return;
	for (uint32_t i = 0; i < job.count; i++) {
		const uint16_t *x = (const uint16_t *)lora.x + (uint64_t)job.order[i] * lora.x_stride;
		float sum = 0;

		for (uint32_t tile = 0; tile < lora_tiles(lora.in); tile++) {
			const uint64_t at = lora_tile_at(&job.adapter->a, job.rank, tile);
			const uint16_t *row = (const uint16_t *)at + k * LORA_TILE_COLUMNS;

			for (uint32_t c = lane; c < LORA_TILE_COLUMNS && tile * LORA_TILE_COLUMNS + c < lora.in;
				c += 32)
				sum += value_get(lora.element, x[tile * LORA_TILE_COLUMNS + c]) *
					value_get(lora.element, row[c]);
		}
		for (int step = 16; step; step /= 2)
			sum += __shfl_xor_sync(0xffffffff, sum, step);
		if (lane == 0)
			job.sums[(uint64_t)i * lora_rank_stride(lora.rank_max) + k] = sum;
	}
}

extern "C" __global__ void __launch_bounds__(128) lora_plain_expand(const struct lora_plain_args args)
{
	const struct lora_args &lora = args.lora;
	const uint32_t column = blockIdx.y * LORA_TILE_COLUMNS + threadIdx.x;
	struct job job;

	if (!job_get(args, job) || column >= lora.out)
		return;

	const uint16_t *weights = (const uint16_t *)lora_tile_at(&job.adapter->b, job.rank, blockIdx.y) + threadIdx.x;

	for (uint32_t i = 0; i < job.count; i++) {
		uint16_t *y = (uint16_t *)lora.y + (uint64_t)job.order[i] * lora.y_stride + column;
		float sum = 0;

		for (uint32_t k = 0; k < job.rank; k++)
			sum += job.sums[(uint64_t)i * lora_rank_stride(lora.rank_max) + k] *
				value_get(lora.element, weights[k * LORA_TILE_COLUMNS]);
		sum = value_get(lora.element, *y) + job.adapter->scale * sum;
		*y = lora.element == ELEMENT_F16 ? f16_of_float(sum) : bf16_of_float(sum);
	}
}
