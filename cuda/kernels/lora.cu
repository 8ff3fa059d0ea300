/*
 * lora.cu - shrink and expand for a batch with mixed ranks and adapters.
 *
 * During decoding, both kernels are bound by memory bandwidth: each weight is used for one or a few tokens. Each thread
 * therefore loads the tiles from memory to registers, 16 bytes at a time, without shared memory. Each byte is loaded
 * once for all tokens of a piece, in the layout of a tensor operation. A tensor operation always processes 16 tokens;
 * the cost for fewer is not significant, so the same code serves decoding and prefill. Ranks that are not multiples of
 * 8 or 16 are padded with zeros in registers.
 *
 * shrink: a block is a piece (x), a split of `in` (y), and a slice of 32 ranks (z). Each of its four warps processes 32
 * columns of every tile of the split. The sums of the warps are added through shared memory. The block that finishes
 * last adds the sums of the splits, always in the same order. Large pieces are not split: one block processes the whole
 * of `in`, and adds in the same order.
 *
 * expand: a block is a piece (x) and 256 columns (y); each warp processes 64 columns. The sums are fp32, but a tensor
 * operation has operands of 16 bits. Each token's sums are therefore divided by a power of two that brings the largest
 * near 1, and each is passed as two numbers: its rounded value and its rounding error.
 */
#include "cuda/kernels/lora.h"
#include "cuda/kernels/mma.h"

enum { WARPS = 4, THREADS = 32 * WARPS, PAD = 8 };

/* A piece and its data, and the position of a thread in its warp. */
struct job {
	const struct lora_adapter *adapter;
	const uint32_t *order; /* of this piece */
	uint32_t begin, count, rank;
	bool split;
};

static __device__ bool job_get(const struct lora_args &args, uint32_t index, struct job &job)
{
	const struct lora_batch *place = (const struct lora_batch *)args.batch;
	/*
	 * Load both at once, because a load takes longer than the computation. The memory has tokens_max pieces, so
	 * `index` is valid.
	 */
	const struct lora_batch batch = *place;
	const struct lora_piece piece = lora_batch_pieces(place)[index];

	if (index >= batch.piece_count || batch.tokens_max != args.tokens_max)
		return false;
	job.split = batch.split;
	if (piece.adapter < 0 || (uint32_t)piece.adapter >= args.adapter_count || !piece.count ||
		piece.count > (job.split ? LORA_PIECE_SMALL : LORA_PIECE_LARGE) || piece.begin > args.tokens_max ||
		piece.count > args.tokens_max - piece.begin ||
		(job.split && piece.begin + piece.count > LORA_SPLIT_TOKENS_MAX))
		return false;
	job.adapter = lora_adapter_at(&args, (uint32_t)piece.adapter);
	job.order = lora_batch_order(place, args.tokens_max) + piece.begin;
	job.begin = piece.begin;
	job.count = piece.count;
	job.rank = job.adapter->rank;
	return job.rank && job.rank <= args.rank_max;
}

static const uint32_t no_row = UINT32_MAX;

/*
 * x_part() - return 8 elements of a row of x from `column` on, a multiple of 8; zeros beyond the end, where other data
 * follows.
 */
static __device__ uint4 x_part(const struct lora_args &args, uint32_t index, uint32_t column)
{
	const uint16_t *row = (const uint16_t *)args.x + (uint64_t)index * args.x_stride;
	uint32_t words[4] = {0, 0, 0, 0};

	if (index == no_row)
		return make_uint4(0, 0, 0, 0);
	if (column + 8 <= args.in)
		return *(const uint4 *)(row + column);
#pragma unroll
	for (int i = 0; i < 8; i++)
		if (column + i < args.in)
			words[i / 2] |= (uint32_t)row[column + i] << i % 2 * 16;
	return make_uint4(words[0], words[1], words[2], words[3]);
}

/* tile_part() - return 8 elements of row k of a tile, or zeros if k is not below the rank. */
static __device__ uint4 tile_part(const uint16_t *tile, uint32_t k, uint32_t rank, uint32_t column)
{
	return k < rank ? __ldg((const uint4 *)(tile + k * LORA_TILE_COLUMNS + column)) : make_uint4(0, 0, 0, 0);
}

/* ---- shrink ---- */

/* The rows of x of a thread: g and g + 8 of each 16 tokens. */
template <int M> struct x_rows {
	uint32_t row[M][2];
};

template <int M> static __device__ struct x_rows<M> x_rows_get(const struct job &job) {
	const uint32_t g = threadIdx.x % 32 / 4;
	struct x_rows<M> x;

#pragma unroll
	for (int i = 0; i < M * 2; i++) {
		const uint32_t token = i / 2 * 16 + i % 2 * 8 + g;

		x.row[i / 2][i % 2] = token < job.count ? job.order[token] : no_row;
	}
	return x;
}

/* tile_shrink() - add the warp's 32 columns of one tile: d[16 M tokens][8 N ranks] += x A^T. */
template <uint32_t element, int M, int N>
static __device__ void tile_shrink(const struct lora_args &args, const struct job &job, const struct x_rows<M> &x,
	uint32_t tile, uint32_t slice, float (&d)[M][N][4])
{
	const uint32_t lane = threadIdx.x % 32, g = lane / 4, column = threadIdx.x / 32 * 32 + lane % 4 * 8;
	const uint16_t *weights = (const uint16_t *)lora_tile_at(&job.adapter->a, job.rank, tile);
	uint4 a[N];

#pragma unroll
	for (int n = 0; n < N; n++)
		a[n] = tile_part(weights, slice + n * 8 + g, job.rank, column);
#pragma unroll
	for (int m = 0; m < M; m++) {
		const uint4 low = x_part(args, x.row[m][0], tile * LORA_TILE_COLUMNS + column);
		const uint4 high = x_part(args, x.row[m][1], tile * LORA_TILE_COLUMNS + column);
		const uint32_t first[4] = {low.x, high.x, low.y, high.y}, second[4] = {low.z, high.z, low.w, high.w};

#pragma unroll
		for (int n = 0; n < N; n++) {
			mma<element>(d[m][n], first, a[n].x, a[n].y);
			mma<element>(d[m][n], second, a[n].z, a[n].w);
		}
	}
}

/* warps_add() - add the sums of the four warps to `total`; each thread adds M N of the [16 M][8 N] numbers. */
template <int M, int N>
static __device__ void warps_add(float *shared, const float (&d)[M][N][4], float (&total)[M * N])
{
	enum { ROWS = M * 16, COLUMNS = N * 8, STRIDE = COLUMNS + PAD };
	const uint32_t lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
	float *mine = shared + threadIdx.x / 32 * ROWS * STRIDE;

#pragma unroll
	for (int m = 0; m < M; m++)
#pragma unroll
		for (int n = 0; n < N; n++) {
			*(float2 *)(mine + (m * 16 + g) * STRIDE + n * 8 + c * 2) = make_float2(d[m][n][0], d[m][n][1]);
			*(float2 *)(mine + (m * 16 + g + 8) * STRIDE + n * 8 + c * 2) =
				make_float2(d[m][n][2], d[m][n][3]);
		}
	__syncthreads();
#pragma unroll
	for (int i = 0; i < M * N; i++) {
		const uint32_t at = threadIdx.x + i * THREADS, place = at / COLUMNS * STRIDE + at % COLUMNS;
		float sum = shared[place];

#pragma unroll
		for (int warp = 1; warp < WARPS; warp++)
			sum += shared[warp * ROWS * STRIDE + place];
		total[i] += sum;
	}
	__syncthreads();
}

/* sums_put() - store a thread's numbers in rows of fp32, which begin at the piece's first token. */
template <int M, int N>
static __device__ void sums_put(
	const struct lora_args &args, const struct job &job, uint32_t slice, float *rows, const float (&total)[M * N])
{
#pragma unroll
	for (int i = 0; i < M * N; i++) {
		const uint32_t at = threadIdx.x + i * THREADS, token = at / (N * 8), k = slice + at % (N * 8);

		if (token < job.count && k < job.rank)
			rows[(uint64_t)token * lora_rank_stride(args.rank_max) + k] = total[i];
	}
}

/* is_last() - return true if all other splits of this piece and slice have been written and are visible. */
static __device__ bool is_last(const struct lora_args &args, uint32_t *flag)
{
	uint32_t *counter = lora_counters(&args) + (uint64_t)blockIdx.x * (LORA_RANK_MAX / LORA_SLICE) + blockIdx.z;

	__threadfence();
	__syncthreads();
	if (threadIdx.x == 0) {
		*flag = atomicAdd(counter, 1) == gridDim.y - 1;
		if (*flag)
			*counter = 0; /* for the next launch */
	}
	__syncthreads();
	__threadfence();
	return *flag;
}

/*
 * splits_add() - add the splits in order. Loads bypass the first-level cache, which may contain outdated data of other
 * multiprocessors.
 */
template <int M, int N>
static __device__ void splits_add(
	const struct lora_args &args, const struct job &job, uint32_t slice, float (&total)[M * N])
{
	const uint64_t stride = lora_rank_stride(args.rank_max), rows = lora_split_rows(args.tokens_max);
	const float *partials = lora_partials(&args) + (uint64_t)job.begin * stride;

#pragma unroll
	for (int i = 0; i < M * N; i++) {
		const uint32_t at = threadIdx.x + i * THREADS, token = at / (N * 8), k = slice + at % (N * 8);

		total[i] = 0;
		if (token < job.count && k < job.rank)
#pragma unroll 4
			for (uint32_t split = 0; split < gridDim.y; split++)
				total[i] += __ldcg(partials + (split * rows + token) * stride + k);
	}
}

/* Like expand(), this function is not inlined, so that each rank class has its own number of registers. */
template <uint32_t element, int M, int N>
static __device__ __noinline__ void shrink(const struct lora_args &args, const struct job &job, uint32_t *flag)
{
	const uint32_t slice = blockIdx.z * LORA_SLICE, tiles = lora_tiles(args.in),
		       split_tiles = lora_split_tiles(args.in);
	const uint32_t stride = lora_rank_stride(args.rank_max);
	const struct x_rows<M> x = x_rows_get<M>(job);
	float *shared = (float *)(flag + 4), total[M * N] = {};

	for (uint32_t split = blockIdx.y; split < gridDim.y; split += job.split ? gridDim.y : 1) {
		const uint32_t end = min(tiles, (split + 1) * split_tiles);
		float d[M][N][4] = {};

#pragma unroll(M == 1 ? 4 : 1)
		for (uint32_t tile = split * split_tiles; tile < end; tile++)
			tile_shrink<element, M, N>(args, job, x, tile, slice, d);
		warps_add<M, N>(shared, d, total);
	}
	if (job.split && gridDim.y > 1) {
		const uint64_t row = (uint64_t)blockIdx.y * lora_split_rows(args.tokens_max) + job.begin;

		sums_put<M, N>(args, job, slice, lora_partials(&args) + row * stride, total);
		if (!is_last(args, flag))
			return;
		splits_add<M, N>(args, job, slice, total);
	}
	sums_put<M, N>(args, job, slice, lora_sums(&args) + (uint64_t)job.begin * stride, total);
}

template <uint32_t element, int M>
static __device__ void shrink_ranks(const struct lora_args &args, const struct job &job, uint32_t *flag)
{
	const uint32_t ranks = job.rank - blockIdx.z * LORA_SLICE; /* remaining from this slice on */

	if (ranks <= 8)
		shrink<element, M, 1>(args, job, flag);
	else if (ranks <= 16)
		shrink<element, M, 2>(args, job, flag);
	else
		shrink<element, M, 4>(args, job, flag);
}

template <uint32_t element>
static __device__ void shrink_tokens(const struct lora_args &args, const struct job &job, uint32_t *flag)
{
	if (job.count <= 16)
		shrink_ranks<element, 1>(args, job, flag);
	else
		shrink_ranks<element, 4>(args, job, flag);
}

extern "C" __global__ void __launch_bounds__(THREADS, 4) lora_shrink(const __grid_constant__ struct lora_args args)
{
	extern __shared__ uint4 block_memory[]; /* a flag, then [warps][tokens][ranks + PAD] fp32 */
	struct job job;

	if (!job_get(args, blockIdx.x, job) || blockIdx.z * LORA_SLICE >= job.rank || (!job.split && blockIdx.y))
		return;
	if (args.element == ELEMENT_F16)
		shrink_tokens<ELEMENT_F16>(args, job, (uint32_t *)block_memory);
	else
		shrink_tokens<ELEMENT_BF16>(args, job, (uint32_t *)block_memory);
}

/* ---- expand ---- */

template <uint32_t element> static __device__ float value_get(uint32_t bits)
{
	return element == ELEMENT_F16 ? float_of_f16((uint16_t)bits) : float_of_bf16((uint16_t)bits);
}

template <uint32_t element> static __device__ uint32_t value_bits(float value)
{
	return element == ELEMENT_F16 ? f16_of_float(value) : bf16_of_float(value);
}

/* power_below() - return the power of two at or below a positive number, within the range of normal reciprocals. */
static __device__ float power_below(float value)
{
	uint32_t exponent = float_bits(value) >> 23;

	exponent = exponent < 1 ? 1 : exponent > 253 ? 253 : exponent;
	return float_of_bits(exponent << 23);
}

/*
 * The sums of a piece in shared memory, in the layout of a tensor operation: [rows][K 16 + PAD] of the rounded values
 * and of the rounding errors, and each token's factor. PAD places the eight rows that a warp reads at once in different
 * banks.
 */
template <int K> struct sums {
	enum { STRIDE = K * 16 + PAD };
	uint16_t *high, *low;
	float *factor;
};

template <int K> static __device__ struct sums<K> sums_place(uint32_t rows, uint4 *memory) {
	struct sums<K> sums;

	sums.high = (uint16_t *)memory;
	sums.low = sums.high + rows * sums.STRIDE;
	sums.factor = (float *)(sums.low + rows * sums.STRIDE);
	return sums;
}

/* sums_load() - load the sums, one warp per token; fill with zeros above the rank and up to 16 tokens. */
template <uint32_t element, int K>
static __device__ void sums_load(
	const struct lora_args &args, const struct job &job, uint32_t rows, const struct sums<K> &sums)
{
	const uint32_t lane = threadIdx.x % 32, stride = lora_rank_stride(args.rank_max);
	const float *from = lora_sums(&args) + (uint64_t)job.begin * stride;

	for (uint32_t token = threadIdx.x / 32; token < rows; token += WARPS) {
		float value[(K + 1) / 2], largest = 0;

#pragma unroll
		for (int i = 0; i < (K + 1) / 2; i++) {
			const uint32_t k = i * 32 + lane;

			value[i] = token < job.count && k < job.rank ? from[(uint64_t)token * stride + k] : 0;
			largest = fmaxf(largest, fabsf(value[i]));
		}
#pragma unroll
		for (int step = 16; step; step /= 2)
			largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, step));

		const float factor = power_below(largest), reciprocal = 1 / factor;

#pragma unroll
		for (int i = 0; i < (K + 1) / 2; i++) {
			const uint32_t k = i * 32 + lane;
			const float scaled = value[i] * reciprocal;
			const uint32_t high = value_bits<element>(scaled);

			if (k < K * 16) {
				sums.high[token * sums.STRIDE + k] = (uint16_t)high;
				sums.low[token * sums.STRIDE + k] =
					(uint16_t)value_bits<element>(scaled - value_get<element>(high));
			}
		}
		if (lane == 0)
			sums.factor[token] = factor;
	}
}

/*
 * The warp's 64 columns of 16 ranks of B. Each lane has 8 columns from 8 g on, of ranks 2c, 2c + 1, 2c + 8 and 2c + 9.
 */
struct weights {
	uint4 row[4];
};

static __device__ struct weights weights_get(const uint16_t *tile, uint32_t rank, uint32_t step)
{
	const uint32_t lane = threadIdx.x % 32, k = step * 16 + lane % 4 * 2,
		       column = threadIdx.x / 32 % 2 * 64 + lane / 4 * 8;
	struct weights weights;

#pragma unroll
	for (int i = 0; i < 4; i++)
		weights.row[i] = tile_part(tile, k + i / 2 * 8 + i % 2, rank, column);
	return weights;
}

/* pair_expand() - compute two columns of each lane: the low and the high halves of a word of its rows. */
template <uint32_t element>
static __device__ void pair_expand(float (&even)[4], float (&odd)[4], const uint32_t (&high)[4],
	const uint32_t (&low)[4], uint32_t row0, uint32_t row1, uint32_t row2, uint32_t row3)
{
	const uint32_t even0 = __byte_perm(row0, row1, 0x5410), even1 = __byte_perm(row2, row3, 0x5410);
	const uint32_t odd0 = __byte_perm(row0, row1, 0x7632), odd1 = __byte_perm(row2, row3, 0x7632);

	mma<element>(even, high, even0, even1);
	mma<element>(even, low, even0, even1);
	mma<element>(odd, high, odd0, odd1);
	mma<element>(odd, low, odd0, odd1);
}

/* step_expand() - add 16 ranks for 16 tokens: d[column j of the lane's 8][...] += sums B. */
template <uint32_t element, int K>
static __device__ void step_expand(
	const struct sums<K> &sums, uint32_t tokens, uint32_t step, const struct weights &w, float (&d)[8][4])
{
	const uint32_t lane = threadIdx.x % 32, at = (tokens + lane / 4) * sums.STRIDE + step * 16 + lane % 4 * 2;
	uint32_t high[4], low[4];

#pragma unroll
	for (int i = 0; i < 4; i++) {
		const uint32_t place = at + i % 2 * 8 * sums.STRIDE + i / 2 * 8;

		high[i] = *(const uint32_t *)(sums.high + place);
		low[i] = *(const uint32_t *)(sums.low + place);
	}
	pair_expand<element>(d[0], d[1], high, low, w.row[0].x, w.row[1].x, w.row[2].x, w.row[3].x);
	pair_expand<element>(d[2], d[3], high, low, w.row[0].y, w.row[1].y, w.row[2].y, w.row[3].y);
	pair_expand<element>(d[4], d[5], high, low, w.row[0].z, w.row[1].z, w.row[2].z, w.row[3].z);
	pair_expand<element>(d[6], d[7], high, low, w.row[0].w, w.row[1].w, w.row[2].w, w.row[3].w);
}

/* columns_add() - add d, [column][part], to 8 columns of a row of y, from `column` on, a multiple of 8. */
template <uint32_t element>
static __device__ void columns_add(
	uint16_t *row, uint32_t column, uint32_t columns, float factor, const float (&d)[8][4], int part)
{
	if (column + 8 > columns) {
#pragma unroll
		for (int i = 0; i < 8; i++)
			if (column + i < columns)
				row[column + i] = (uint16_t)value_bits<element>(
					value_get<element>(row[column + i]) + factor * d[i][part]);
		return;
	}

	uint4 *place = (uint4 *)(row + column), old = *place;
	uint32_t words[4] = {old.x, old.y, old.z, old.w};

#pragma unroll
	for (int i = 0; i < 4; i++)
		words[i] = value_bits<element>(value_get<element>(words[i] & 0xffff) + factor * d[2 * i][part]) |
			value_bits<element>(value_get<element>(words[i] >> 16) + factor * d[2 * i + 1][part]) << 16;
	*place = make_uint4(words[0], words[1], words[2], words[3]);
}

/* tokens_add() - add the warp's results of 16 tokens and 64 columns; a lane holds 16 columns of tokens g and g + 8. */
template <uint32_t element, int K>
static __device__ void tokens_add(const struct lora_args &args, const struct job &job, const struct sums<K> &sums,
	uint32_t tokens, uint32_t column, const float (&d)[8][4])
{
	const uint32_t lane = threadIdx.x % 32, first = column + lane % 4 * 16;

#pragma unroll
	for (int half = 0; half < 2; half++) {
		const uint32_t token = tokens + half * 8 + lane / 4;

		if (token < job.count) {
			uint16_t *row = (uint16_t *)args.y + (uint64_t)job.order[token] * args.y_stride;
			const float factor = job.adapter->scale * sums.factor[token];

			columns_add<element>(row, first, args.out, factor, d, half * 2);
			columns_add<element>(row, first + 8, args.out, factor, d, half * 2 + 1);
		}
	}
}

template <uint32_t element, int K>
static __device__ __noinline__ void expand(const struct lora_args &args, const struct job &job, uint4 *memory)
{
	enum { EARLY = K < 2 ? K : 2 }; /* weights that are loaded while the sums are prepared */
	const uint32_t warp = threadIdx.x / 32, tile = blockIdx.y * 2 + warp / 2, rows = (job.count + 15) / 16 * 16;
	const struct sums<K> sums = sums_place<K>(rows, memory);
	const bool used = tile < lora_tiles(args.out);
	const uint16_t *weights = used ? (const uint16_t *)lora_tile_at(&job.adapter->b, job.rank, tile) : 0;
	struct weights early[EARLY];

#pragma unroll
	for (int step = 0; step < EARLY; step++)
		early[step] = weights_get(weights, used ? job.rank : 0, step);
	sums_load<element, K>(args, job, rows, sums);
	__syncthreads();
	if (!used)
		return;
	for (uint32_t tokens = 0; tokens < rows; tokens += 16) {
		float d[8][4] = {};

#pragma unroll
		for (int step = 0; step < EARLY; step++)
			step_expand<element, K>(sums, tokens, step, early[step], d);
#pragma unroll 2
		for (int step = EARLY; step < K; step++)
			step_expand<element, K>(sums, tokens, step, weights_get(weights, job.rank, step), d);
		tokens_add<element, K>(args, job, sums, tokens, tile * LORA_TILE_COLUMNS + warp % 2 * 64, d);
	}
}

template <uint32_t element>
static __device__ void expand_ranks(const struct lora_args &args, const struct job &job, uint4 *memory)
{
	if (job.rank <= 16)
		expand<element, 1>(args, job, memory);
	else if (job.rank <= 32)
		expand<element, 2>(args, job, memory);
	else if (job.rank <= 64)
		expand<element, 4>(args, job, memory);
	else
		expand<element, 8>(args, job, memory);
}

extern "C" __global__ void __launch_bounds__(THREADS, 4) lora_expand(const __grid_constant__ struct lora_args args)
{
	extern __shared__ uint4 block_memory[]; /* struct sums */
	struct job job;

	if (!job_get(args, blockIdx.x, job))
		return;
	if (args.element == ELEMENT_F16)
		expand_ranks<ELEMENT_F16>(args, job, block_memory);
	else
		expand_ranks<ELEMENT_BF16>(args, job, block_memory);
}
