/*
 * lora_host.c - the LoRA kernels in C: their definition, and the implementation of the `host` back end.
 *
 * shrink and expand process a piece tile by tile. A row of a tile is converted to fp32 once and used for all tokens of
 * the piece, in loops of a constant length that the compiler vectorizes. The plain kernels sum one number at a time;
 * shrink and expand are tested against them. All sums are fp32. The order in which a token's sums are added does not
 * depend on the other tokens of its piece.
 */
#include "cuda/kernels/lora.h"

enum { COLUMNS = LORA_TILE_COLUMNS, LANES = 16 };

_Static_assert((int)COLUMNS == (int)ELEMENT_ROW, "a tile's row is one");

/* One piece and its data. */
struct job {
	const struct lora_args *args;
	const struct lora_adapter *adapter;
	const uint32_t *order; /* of this piece */
	float *sums;           /* of this piece */
	uint32_t count;
};

/*
 * job_get() - fill a job. Return false if there is nothing to do, because the adapter has no weights in this layer, or
 * the batch has another size.
 */
static bool job_get(const struct lora_args *args, uint32_t index, struct job *job)
{
	const struct lora_batch *batch = (const struct lora_batch *)(uintptr_t)args->batch;
	struct lora_piece piece;

	if (index >= batch->piece_count || batch->tokens_max != args->tokens_max)
		return false;
	piece = lora_batch_pieces(batch, args->tokens_max)[index];
	if (piece.adapter < 0 || (uint32_t)piece.adapter >= args->adapter_count || piece.count > LORA_PIECE_LARGE ||
		piece.begin > args->tokens_max || piece.count > args->tokens_max - piece.begin)
		return false;
	*job = (struct job){
		.args = args,
		.adapter = lora_adapter_at(args, (uint32_t)piece.adapter),
		.order = lora_batch_order(batch) + piece.begin,
		.sums = lora_sums(args) + (uint64_t)piece.begin * lora_rank_stride(args->rank_max),
		.count = piece.count,
	};
	return job->adapter->rank && job->adapter->rank <= args->rank_max;
}

static uint32_t piece_count(const struct lora_args *args)
{
	return ((const struct lora_batch *)(uintptr_t)args->batch)->piece_count;
}

static const uint16_t *x_row(const struct job *job, uint32_t i)
{
	return (const uint16_t *)(uintptr_t)job->args->x + (uint64_t)job->order[i] * job->args->x_stride;
}

static uint16_t *y_row(const struct job *job, uint32_t i)
{
	return (uint16_t *)(uintptr_t)job->args->y + (uint64_t)job->order[i] * job->args->y_stride;
}

static const uint16_t *tile_row(const struct lora_matrix *matrix, uint32_t rank, uint32_t tile, uint32_t k)
{
	return (const uint16_t *)(uintptr_t)lora_tile_at(matrix, rank, tile) + (uint64_t)k * COLUMNS;
}

static float value_get(uint32_t element, uint16_t bits)
{
	return element == ELEMENT_F16 ? float_of_f16(bits) : float_of_bf16(bits);
}

static uint16_t value_bits(uint32_t element, float value)
{
	return element == ELEMENT_F16 ? f16_of_float(value) : bf16_of_float(value);
}

/* columns_of() - return the number of a matrix's columns in a tile. */
static uint32_t columns_of(uint32_t columns, uint32_t tile)
{
	uint32_t left = columns - tile * COLUMNS;

	return left < COLUMNS ? left : COLUMNS;
}

/* row_dot() - compute LANES sums and add them one by one, in an order that does not depend on the compiler. */
static float row_dot(const float *restrict one, const float *restrict two)
{
	float lanes[LANES] = {0}, sum = 0;

	for (int i = 0; i < COLUMNS; i += LANES)
		for (int lane = 0; lane < LANES; lane++)
			lanes[lane] += one[i + lane] * two[i + lane];
	for (int lane = 0; lane < LANES; lane++)
		sum += lanes[lane];
	return sum;
}

static void piece_shrink(const struct job *job)
{
	const struct lora_args *args = job->args;
	uint32_t stride = lora_rank_stride(args->rank_max), rank = job->adapter->rank;
	float x[LORA_PIECE_LARGE][COLUMNS], row[COLUMNS];

	for (uint32_t i = 0; i < job->count; i++)
		memset(job->sums + (uint64_t)i * stride, 0, rank * sizeof(float));
	for (uint32_t tile = 0; tile < lora_tiles(args->in); tile++) {
		uint32_t used = columns_of(args->in, tile);

		for (uint32_t i = 0; i < job->count; i++)
			element_row_get(args->element, x_row(job, i) + (uint64_t)tile * COLUMNS, used, x[i]);
		for (uint32_t k = 0; k < rank; k++) {
			element_row_get(args->element, tile_row(&job->adapter->a, rank, tile, k), COLUMNS, row);
			for (uint32_t i = 0; i < job->count; i++)
				job->sums[(uint64_t)i * stride + k] += row_dot(x[i], row);
		}
	}
}

static void columns_add(const struct job *job, uint32_t i, uint32_t tile, const float add[COLUMNS])
{
	uint16_t *y = y_row(job, i) + (uint64_t)tile * COLUMNS;
	uint32_t used = columns_of(job->args->out, tile);
	float row[COLUMNS];

	element_row_get(job->args->element, y, used, row);
	for (int c = 0; c < COLUMNS; c++)
		row[c] += job->adapter->scale * add[c];
	element_row_put(job->args->element, row, used, y);
}

static void piece_expand(const struct job *job)
{
	const struct lora_args *args = job->args;
	uint32_t stride = lora_rank_stride(args->rank_max), rank = job->adapter->rank;
	float add[LORA_PIECE_LARGE][COLUMNS], row[COLUMNS];

	for (uint32_t tile = 0; tile < lora_tiles(args->out); tile++) {
		memset(add, 0, job->count * sizeof(*add));
		for (uint32_t k = 0; k < rank; k++) {
			element_row_get(args->element, tile_row(&job->adapter->b, rank, tile, k), COLUMNS, row);
			for (uint32_t i = 0; i < job->count; i++) {
				float sum = job->sums[(uint64_t)i * stride + k];

				for (int c = 0; c < COLUMNS; c++)
					add[i][c] += sum * row[c];
			}
		}
		for (uint32_t i = 0; i < job->count; i++)
			columns_add(job, i, tile, add[i]);
	}
}

void lora_shrink_host(const struct lora_args *args)
{
	struct job job;

	for (uint32_t piece = 0; piece < piece_count(args); piece++)
		if (job_get(args, piece, &job))
			piece_shrink(&job);
}

void lora_expand_host(const struct lora_args *args)
{
	struct job job;

	for (uint32_t piece = 0; piece < piece_count(args); piece++)
		if (job_get(args, piece, &job))
			piece_expand(&job);
}

/* ---- the plain kernels ---- */

static bool plain_job_get(const struct lora_plain_args *args, uint32_t index, struct job *job)
{
	return job_get(&args->lora, args->piece_first + index, job) && job->adapter->rank >= args->rank_low &&
		job->adapter->rank <= args->rank_high;
}

static void plain_shrink(const struct job *job)
{
	const struct lora_args *args = job->args;
	uint32_t rank = job->adapter->rank;

	for (uint32_t i = 0; i < job->count; i++)
		for (uint32_t k = 0; k < rank; k++) {
			float sum = 0;

			for (uint32_t c = 0; c < args->in; c++)
				sum += value_get(args->element, x_row(job, i)[c]) *
					value_get(args->element,
						tile_row(&job->adapter->a, rank, c / COLUMNS, k)[c % COLUMNS]);
			job->sums[(uint64_t)i * lora_rank_stride(args->rank_max) + k] = sum;
		}
}

static void plain_expand(const struct job *job)
{
	const struct lora_args *args = job->args;
	uint32_t rank = job->adapter->rank;

	for (uint32_t i = 0; i < job->count; i++)
		for (uint32_t c = 0; c < args->out; c++) {
			uint16_t *y = &y_row(job, i)[c];
			float sum = 0;

			for (uint32_t k = 0; k < rank; k++)
				sum += job->sums[(uint64_t)i * lora_rank_stride(args->rank_max) + k] *
					value_get(args->element,
						tile_row(&job->adapter->b, rank, c / COLUMNS, k)[c % COLUMNS]);
			*y = value_bits(args->element, value_get(args->element, *y) + job->adapter->scale * sum);
		}
}

void lora_plain_shrink_host(const struct lora_plain_args *args)
{
	struct job job;

	for (uint32_t i = 0; i < args->piece_count; i++)
		if (plain_job_get(args, i, &job))
			plain_shrink(&job);
}

void lora_plain_expand_host(const struct lora_plain_args *args)
{
	struct job job;

	for (uint32_t i = 0; i < args->piece_count; i++)
		if (plain_job_get(args, i, &job))
			plain_expand(&job);
}
