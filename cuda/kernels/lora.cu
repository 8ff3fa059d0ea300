/*
 * lora.cu - shrink and expand for a batch with mixed ranks and adapters.
 *
 * During decoding, both kernels are bound by memory bandwidth: each weight is used for one or a few tokens. Each thread
 * therefore loads its own operands, 16 bytes at a time, before the previous ones are used. Each byte is loaded once for
 * all tokens of a piece, in the layout of a tensor operation. A tensor operation always processes 16 tokens; the cost
 * for fewer is not significant, so the same code serves decoding and prefill. Ranks that are not multiples of 8 or 16
 * are padded with zeros in registers.
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
#include "cuda/kernels/async_copy.h"
#include "cuda/kernels/lora.h"
#include "cuda/kernels/mma.h"

enum { WARPS = 4, THREADS = 32 * WARPS, PAD = 8, STAGES = LORA_SHRINK_STAGES };

/* A piece and its data, and the position of a thread in its warp. */
struct job {
	const struct lora_adapter *adapter;
	const uint32_t *order; /* of this piece */
	uint32_t begin, count, rank;
	float scale;
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
	job.scale = job.adapter->scale;
	return job.rank && job.rank <= args.rank_max;
}

static const uint32_t no_row = UINT32_MAX;

/* tile_part() - return 8 elements of row k of a tile, or zeros if k is not below the rank. */
static __device__ uint4 tile_part(const uint16_t *tile, uint32_t k, uint32_t rank, uint32_t column)
{
	return k < rank ? __ldg((const uint4 *)(tile + k * LORA_TILE_COLUMNS + column)) : make_uint4(0, 0, 0, 0);
}

/* ---- shrink ---- */

/*
 * thread_index() - return threadIdx.x.
 * slice_begin() - return the first rank of the block's slice.
 *
 * The compiler does not know that these are always the same, so it computes addresses where they are used. Otherwise,
 * it would compute those of all sums before the loop over tiles, which needs the registers.
 */
static __device__ __forceinline__ uint32_t thread_index(void)
{
	uint32_t index = threadIdx.x;

#ifdef __CUDA_ARCH__
	asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
#endif
	return index;
}

static __device__ __forceinline__ uint32_t slice_begin(void)
{
	uint32_t index = blockIdx.z;

#ifdef __CUDA_ARCH__
	asm volatile("mov.u32 %0, %%ctaid.z;" : "=r"(index));
#endif
	return index * LORA_SLICE;
}

/* The rows of x of a thread: g and g + 8 of each 16 tokens. */
template <int M> struct x_rows {
	uint32_t row[M * 2];
};

template <int M> static __device__ struct x_rows<M> x_rows_get(const struct job &job) {
	const uint32_t g = thread_index() % 32 / 4;
	struct x_rows<M> x;

#pragma unroll
	for (int i = 0; i < M * 2; i++)
		x.row[i] = i * 8 + g < job.count ? job.order[i * 8 + g] : no_row;
	return x;
}

/* The next tile of a matrix, and the number of tiles that follow it without a gap. */
struct tile_cursor {
	uint64_t at;
	uint32_t left, run;
};

static __device__ struct tile_cursor cursor_at(const struct lora_matrix &matrix, uint32_t rank, uint32_t tile)
{
	struct tile_cursor cursor = {matrix.first + (uint64_t)tile * lora_tile_bytes(rank), 0, 0};

	if (tile < matrix.head_tiles) {
		cursor.left = matrix.head_tiles - tile;
	} else {
		const uint32_t further = tile - matrix.head_tiles, in_run = further % matrix.run_tiles;

		cursor.run = further / matrix.run_tiles;
		cursor.at = ((const uint64_t *)matrix.more)[cursor.run++] + (uint64_t)in_run * lora_tile_bytes(rank);
		cursor.left = matrix.run_tiles - in_run;
	}
	return cursor;
}

/* cursor_take() - return the address of the next tile, and advance. */
static __device__ const uint16_t *cursor_take(
	struct tile_cursor &cursor, const struct lora_matrix &matrix, uint32_t rank)
{
	const uint16_t *tile;

	if (!cursor.left) {
		cursor.at = ((const uint64_t *)matrix.more)[cursor.run++];
		cursor.left = matrix.run_tiles;
	}
	tile = (const uint16_t *)cursor.at;
	cursor.at += lora_tile_bytes(rank);
	cursor.left--;
	return tile;
}

/*
 * The data of one tile that a thread uses, in shared memory: N parts of A, then 2 M parts of x, of 8 elements each. The
 * parts of the threads are next to each other. Each thread reads only the parts that it has copied itself, so warps do
 * not wait for each other.
 */
template <int M, int N> static __device__ uint4 *stage_at(uint4 *memory, uint32_t thread, uint32_t stage)
{
	return memory + (stage % STAGES * (N + 2 * M)) * THREADS + thread;
}

/*
 * tile_load() - begin to load the warp's 32 columns of one tile. Ranks and tokens that do not exist are read as zeros,
 * and so are the columns beyond the end of x, where other data follows. There are no branches, and the addresses are
 * always valid.
 */
template <int M, int N>
static __device__ void tile_load(const struct lora_args &args, const struct job &job, const struct x_rows<M> &x,
	const uint16_t *weights, uint32_t tile, uint32_t thread, uint4 *stage)
{
	const uint32_t lane = thread % 32, g = lane / 4, column = thread / 32 * 32 + lane % 4 * 8,
		       at = tile * LORA_TILE_COLUMNS + column, left = at < args.in ? min(args.in - at, 8) * 2 : 0;
	const uint32_t slice = slice_begin();
	const uint16_t *from = (const uint16_t *)args.x + (left ? at : 0);

#pragma unroll
	for (int n = 0; n < N; n++) {
		const uint32_t k = slice + n * 8 + g;

		async_copy(stage + n * THREADS, weights + (k < job.rank ? k : 0) * LORA_TILE_COLUMNS + column,
			k < job.rank ? 16 : 0);
	}
#pragma unroll
	for (int i = 0; i < M * 2; i++)
		async_copy(stage + (N + i) * THREADS,
			from + (uint64_t)(x.row[i] != no_row ? x.row[i] : 0) * args.x_stride,
			x.row[i] != no_row ? left : 0);
}

/* tile_shrink() - add the warp's 32 columns of one tile: d[16 M tokens][8 N ranks] += x A^T. */
template <uint32_t element, int M, int N> static __device__ void tile_shrink(const uint4 *stage, float (&d)[M][N][4])
{
	uint4 a[N];

#pragma unroll
	for (int n = 0; n < N; n++)
		a[n] = stage[n * THREADS];
#pragma unroll
	for (int m = 0; m < M; m++) {
		const uint4 low = stage[(N + 2 * m) * THREADS], high = stage[(N + 2 * m + 1) * THREADS];
		const uint32_t first[4] = {low.x, high.x, low.y, high.y}, second[4] = {low.z, high.z, low.w, high.w};

#pragma unroll
		for (int n = 0; n < N; n++) {
			mma<element>(d[m][n], first, a[n].x, a[n].y);
			mma<element>(d[m][n], second, a[n].z, a[n].w);
		}
	}
}

/* tiles_shrink() - add the tiles from `tile` to end - 1. While one is computed, the next one is loaded. */
template <int M, int N>
static __device__ void tiles_shrink(const struct lora_args &args, const struct job &job, const struct x_rows<M> &x,
	uint32_t tile, uint32_t end, uint4 *memory, float (&d)[M][N][4])
{
	const struct lora_matrix &a = job.adapter->a;
	struct tile_cursor cursor = cursor_at(a, job.rank, tile);

	/* The first iterations only load, so that the code for loads exists once. */
	for (uint32_t next = tile, shrunk = tile; shrunk < end;) {
		const bool full = next >= tile + STAGES;
		const uint32_t thread = thread_index();
		uint4 *stage = stage_at<M, N>(memory, thread, next - tile);

		if (full) {
			async_copies_wait<STAGES - 1>();
			if (args.element == ELEMENT_F16)
				tile_shrink<ELEMENT_F16, M, N>(stage, d);
			else
				tile_shrink<ELEMENT_BF16, M, N>(stage, d);
			shrunk++;
		}
		if (next < end)
			tile_load<M, N>(args, job, x, cursor_take(cursor, a, job.rank), next, thread, stage);
		async_copies_end();
		next++;
	}
}

/* warps_add() - add the sums of the four warps; each thread adds M N of the [16 M][8 N] numbers. */
template <int M, int N>
static __device__ void warps_add(float *shared, const float (&d)[M][N][4], float (&total)[M * N])
{
	enum { ROWS = M * 16, COLUMNS = N * 8, STRIDE = COLUMNS + PAD };
	const uint32_t thread = thread_index(), lane = thread % 32, g = lane / 4, c = lane % 4;
	float *mine = shared + thread / 32 * ROWS * STRIDE;

	__syncthreads(); /* the stages of other warps have the same memory */
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
		const uint32_t at = thread + i * THREADS, place = at / COLUMNS * STRIDE + at % COLUMNS;
		float sum = shared[place];

#pragma unroll
		for (int warp = 1; warp < WARPS; warp++)
			sum += shared[warp * ROWS * STRIDE + place];
		total[i] = 0 + sum; /* like splits_add(): not -0 */
	}
	__syncthreads();
}

/*
 * sums_put() - store a thread's numbers in rows of fp32, which begin at the piece's first token, or add them to what
 * the thread has stored there.
 */
template <int M, int N>
static __device__ void sums_put(
	const struct lora_args &args, const struct job &job, float *rows, const float (&total)[M * N], bool add)
{
	const uint32_t thread = thread_index(), slice = slice_begin(), stride = lora_rank_stride(args.rank_max);

#pragma unroll
	for (int i = 0; i < M * N; i++) {
		const uint32_t at = thread + i * THREADS, token = at / (N * 8), k = slice + at % (N * 8);

		if (token < job.count && k < job.rank)
			rows[token * stride + k] = (add ? rows[token * stride + k] : 0) + total[i];
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
			atomicExch(counter, 0); /* for the next launch */
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
static __device__ void splits_add(const struct lora_args &args, const struct job &job, float (&total)[M * N])
{
	const uint32_t thread = thread_index(), slice = slice_begin();
	const uint64_t stride = lora_rank_stride(args.rank_max), rows = lora_split_rows(args.tokens_max);
	const float *partials = lora_partials(&args) + (uint64_t)job.begin * stride;

#pragma unroll
	for (int i = 0; i < M * N; i++) {
		const uint32_t at = thread + i * THREADS, token = at / (N * 8), k = slice + at % (N * 8);

		total[i] = 0;
		if (token < job.count && k < job.rank)
#pragma unroll 4
			for (uint32_t split = 0; split < gridDim.y; split++)
				total[i] += __ldcg(partials + (split * rows + token) * stride + k);
	}
}

template <int M, int N>
static __device__ __forceinline__ void shrink(const struct lora_args &args, const struct job &job, uint4 *memory)
{
	const uint32_t tiles = lora_tiles(args.in), split_tiles = lora_split_tiles(args.in);
	const uint32_t stride = lora_rank_stride(args.rank_max);
	const struct x_rows<M> x = x_rows_get<M>(job);
	float *sums = lora_sums(&args) + (uint64_t)job.begin * stride, total[M * N];

	for (uint32_t split = blockIdx.y;; split++) {
		float d[M][N][4] = {};

		tiles_shrink<M, N>(args, job, x, split * split_tiles, min(tiles, (split + 1) * split_tiles), memory, d);
		warps_add<M, N>((float *)(memory + 1), d, total);
		if (job.split)
			break;
		sums_put<M, N>(args, job, sums, total, split);
		if (split + 1 == gridDim.y)
			return;
	}
	if (gridDim.y > 1) {
		const uint64_t row = (uint64_t)blockIdx.y * lora_split_rows(args.tokens_max) + job.begin;

		sums_put<M, N>(args, job, lora_partials(&args) + row * stride, total, false);
		if (!is_last(args, (uint32_t *)memory))
			return;
		splits_add<M, N>(args, job, total);
	}
	sums_put<M, N>(args, job, sums, total, false);
}

template <int M> static __device__ void shrink_ranks(const struct lora_args &args, const struct job &job, uint4 *memory)
{
	const uint32_t ranks = job.rank - blockIdx.z * LORA_SLICE; /* remaining from this slice on */

	if (ranks <= 8)
		shrink<M, 1>(args, job, memory);
	else if (ranks <= 16)
		shrink<M, 2>(args, job, memory);
	else
		shrink<M, 4>(args, job, memory);
}

/* shrink_job_get() - like job_get(), for a block of shrink; false also if the block has no ranks or no split. */
static __device__ bool shrink_job_get(const struct lora_args &args, struct job &job)
{
	return job_get(args, blockIdx.x, job) && blockIdx.z * LORA_SLICE < job.rank && (job.split || !blockIdx.y);
}

extern "C" __global__ void __launch_bounds__(THREADS, 4) lora_shrink(const __grid_constant__ struct lora_args args)
{
	extern __shared__ uint4 block_memory[]; /* stages; or a flag, then [warps][tokens][ranks + PAD] fp32 */
	struct job job;

	if (!shrink_job_get(args, job))
		return;
	if (job.count <= 16)
		shrink_ranks<1>(args, job, block_memory);
	else
		shrink_ranks<4>(args, job, block_memory);
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

/* The results of a lane before the addition: 16 columns from `column` on, a multiple of 16, of tokens g and g + 8. */
struct results {
	uint16_t *row[2]; /* NULL: no such token */
	uint32_t column;
	uint4 old[2][2]; /* of whole parts of 8 columns */
};

/* results_get() - load the results of 16 tokens and of the warp's 64 columns, from `column` on. */
static __device__ void results_get(
	const struct lora_args &args, const struct job &job, uint32_t tokens, uint32_t column, struct results &results)
{
	const uint32_t lane = threadIdx.x % 32, token = tokens + lane / 4;

	results.column = column + lane % 4 * 16;
#pragma unroll
	for (int half = 0; half < 2; half++)
		results.row[half] = token + half * 8 < job.count
			? (uint16_t *)args.y + (uint64_t)job.order[token + half * 8] * args.y_stride
			: NULL;
#pragma unroll
	for (int i = 0; i < 4; i++)
		if (results.row[i / 2] && results.column + i % 2 * 8 + 8 <= args.out)
			results.old[i / 2][i % 2] = *(uint4 *)(results.row[i / 2] + results.column + i % 2 * 8);
}

/* columns_add() - add d, [column][part], to 8 columns of a row of y, from `column` on, a multiple of 8. */
template <uint32_t element>
static __device__ void columns_add(uint16_t *row, uint32_t column, uint32_t columns, const uint4 &old, float factor,
	const float (&d)[8][4], int part)
{
	const uint32_t before[4] = {old.x, old.y, old.z, old.w};
	uint32_t words[4];

	if (column + 8 > columns) {
#pragma unroll
		for (int i = 0; i < 8; i++)
			if (column + i < columns)
				row[column + i] = (uint16_t)value_bits<element>(
					value_get<element>(row[column + i]) + factor * d[i][part]);
		return;
	}
#pragma unroll
	for (int i = 0; i < 4; i++)
		words[i] = value_bits<element>(value_get<element>(before[i] & 0xffff) + factor * d[2 * i][part]) |
			value_bits<element>(value_get<element>(before[i] >> 16) + factor * d[2 * i + 1][part]) << 16;
	*(uint4 *)(row + column) = make_uint4(words[0], words[1], words[2], words[3]);
}

/* results_add() - add d to the results of 16 tokens. */
template <uint32_t element, int K>
static __device__ void results_add(const struct lora_args &args, const struct job &job, const struct sums<K> &sums,
	uint32_t tokens, const float (&d)[8][4], const struct results &results)
{
#pragma unroll
	for (int half = 0; half < 2; half++)
		if (results.row[half]) {
			const float factor = job.scale * sums.factor[tokens + half * 8 + threadIdx.x % 32 / 4];

#pragma unroll
			for (int part = 0; part < 2; part++)
				columns_add<element>(results.row[half], results.column + part * 8, args.out,
					results.old[half][part], factor, d, half * 2 + part);
		}
}

template <uint32_t element, int K>
static __device__ __forceinline__ void expand(const struct lora_args &args, const struct job &job, uint4 *memory)
{
	enum { AHEAD = K < 2 ? K : 2 }; /* steps whose weights are loaded before they are used */
	const uint32_t warp = threadIdx.x / 32, tile = blockIdx.y * 2 + warp / 2, rows = (job.count + 15) / 16 * 16,
		       column = tile * LORA_TILE_COLUMNS + warp % 2 * 64;
	const struct sums<K> sums = sums_place<K>(rows, memory);
	const bool used = tile < lora_tiles(args.out);
	const uint16_t *weights = used ? (const uint16_t *)lora_tile_at(&job.adapter->b, job.rank, tile) : 0;
	struct weights ahead[AHEAD];
	struct results results;

#pragma unroll
	for (int step = 0; step < AHEAD; step++)
		ahead[step] = weights_get(weights, used ? job.rank : 0, step);
	if (used)
		results_get(args, job, 0, column, results);
	sums_load<element, K>(args, job, rows, sums);
	__syncthreads();
	if (!used)
		return;
	for (uint32_t tokens = 0; tokens < rows; tokens += 16) {
		const bool again = tokens + 16 < rows;
		float d[8][4] = {};

		/* Not unrolled further, because the addresses of all steps would need more registers than there are. */
#pragma unroll 1
		for (uint32_t first = 0; first < K; first += AHEAD)
#pragma unroll
			for (uint32_t i = 0; i < AHEAD; i++) {
				step_expand<element, K>(sums, tokens, first + i, ahead[i], d);
				if (K > AHEAD && (first + AHEAD < K || again))
					ahead[i] = weights_get(weights, job.rank, (first + AHEAD + i) % K);
			}
		results_add<element, K>(args, job, sums, tokens, d, results);
		if (again)
			results_get(args, job, tokens + 16, column, results);
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
