/*
 * lora.cu - shrink and expand for a batch with mixed ranks and adapters.
 *
 * During decoding, both kernels are bound by memory bandwidth: each weight is used for one or a few tokens. Each thread
 * therefore loads its own operands, 16 bytes at a time, before the previous ones are used. Each byte is loaded once for
 * all tokens of a piece, in the layout of a tensor operation. The weights are its operand with 16 rows, and the tokens
 * are its 8 columns, so that few tokens need few operations. The same code serves decoding and prefill. Ranks that are
 * not multiples of 8 or 16 are padded with zeros in registers.
 *
 * shrink: a block is a piece (x), a split of `in` (y), and a slice of 32 ranks (z). Each of its four warps processes 32
 * columns of every tile of the split. The sums of the warps are added through shared memory. The sums of the splits are
 * always added in the same order: by expand if the piece has few tokens, else by the block that finishes last. Large
 * pieces are not split: one block processes the whole of `in`, and adds in the same order.
 *
 * The last split also loads a part of B to the second-level cache. expand may start before the end of shrink, and loads
 * weights and y before it waits (overlap.h).
 *
 * expand: a block is a piece (x) and 256 columns, or 512 for ranks up to 16 (y). The sums are fp32, but a tensor
 * operation has operands of 16 bits. Each token's sums are therefore divided by a power of two that brings the largest
 * near 1, and each is passed as two numbers: its rounded value and its rounding error.
 */
#include "cuda/kernels/async_copy.h"
#include "cuda/kernels/lora.h"
#include "cuda/kernels/mma.h"
#include "cuda/kernels/overlap.h"

enum { WARPS = 4, THREADS = 32 * WARPS };

/* A piece and its data. */
struct job {
	struct lora_matrix matrix; /* A or B of the adapter */
	uint64_t ahead;            /* shrink: the first tile of B */
	const uint32_t *order;     /* of this piece */
	uint32_t begin, count, row, rank;
	uint32_t ahead_tiles; /* shrink: tiles of B that follow each other */
	uint32_t tokens;      /* of the batch */
	float scale;
	bool split, late;
};

/*
 * load_now() - load 16 bytes. The compiler does not delay a load that might depend on stores of other threads, so
 * several loads are in flight together, although a branch comes before the use of some of them.
 */
static __device__ __forceinline__ uint4 load_now(const uint4 *place)
{
#ifdef __CUDA_ARCH__
	uint4 value;

	asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
		     : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
		     : "l"(__cvta_generic_to_global(place)));
	return value;
#else
	return __ldg(place);
#endif
}

static __device__ __forceinline__ uint64_t address_of(uint32_t low, uint32_t high)
{
	return (uint64_t)high << 32 | low;
}

/* struct lora_adapter; expand does not load the first part. */
struct entry {
	uint4 part[sizeof(struct lora_adapter) / sizeof(uint4)];
};

static __device__ __forceinline__ struct entry entry_load(const struct lora_adapter *adapter, bool b)
{
	const uint4 *parts = (const uint4 *)adapter;
	struct entry entry;

	if (!b)
		entry.part[0] = load_now(parts);
	for (int i = 1; i < 4; i++)
		entry.part[i] = load_now(parts + i);
	return entry;
}

/* job_get() - return false if the block has no work. b: the kernel uses B instead of A. */
static __device__ __forceinline__ bool job_get(const struct lora_args &args, uint32_t index, bool b, struct job &job)
{
	const struct lora_batch *place = (const struct lora_batch *)args.batch;
	const bool home = index < lora_homes(args.tokens_max, args.adapter_count);

	/*
	 * Load all of this before any of it is used, because a load takes longer than the computation (`make lint`
	 * checks it). The memory has a piece for each block of the grid. In the homes, the index of the adapter is
	 * known before the piece has been loaded; otherwise, the first adapter is loaded in vain.
	 */
	const uint4 batch = load_now((const uint4 *)place),
		    piece = load_now((const uint4 *)lora_batch_pieces(place, args.tokens_max) + index);
	struct entry entry = entry_load(lora_adapter_at(&args, home ? index : 0), b);

	job.split = batch.z;
	job.begin = piece.y;
	job.count = piece.z;
	job.row = piece.w;
	if (index >= batch.x || batch.w != args.tokens_max || piece.x >= args.adapter_count ||
		(home && piece.x != index) || !job.count ||
		job.count > (job.split ? LORA_PIECE_SMALL : LORA_PIECE_LARGE) || job.begin > args.tokens_max ||
		job.count > args.tokens_max - job.begin || (job.split && job.begin + job.count > LORA_SPLIT_TOKENS_MAX))
		return false;
	if (!home)
		entry = entry_load(lora_adapter_at(&args, piece.x), b);
	job.order = lora_batch_order(place) + job.begin;
	job.ahead = address_of(entry.part[1].z, entry.part[1].w);
	job.ahead_tiles = entry.part[2].z;
	if (b)
		job.matrix = {
			job.ahead, address_of(entry.part[2].x, entry.part[2].y), job.ahead_tiles, entry.part[2].w};
	else
		job.matrix = {address_of(entry.part[0].x, entry.part[0].y),
			address_of(entry.part[0].z, entry.part[0].w), entry.part[1].x, entry.part[1].y};
	job.tokens = batch.y;
	job.rank = entry.part[3].x;
	job.scale = float_of_bits(entry.part[3].y);
	job.late = job.split && job.count <= LORA_LATE_TOKENS && job.rank <= LORA_LATE_RANK;
	return job.rank && job.rank <= args.rank_max;
}

static const uint32_t no_row = UINT32_MAX;

/* job_row() - return the row of x and y of a token of the piece; that of token 0 is in the piece. */
static __device__ __forceinline__ uint32_t job_row(const struct job &job, uint32_t token)
{
	return token >= job.count ? no_row : token ? job.order[token] : job.row;
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

/* The rows of x of a thread: token g of each 8 tokens. */
template <int T> struct x_rows {
	uint32_t row[T];
};

template <int T> static __device__ struct x_rows<T> x_rows_get(const struct job &job) {
	const uint32_t g = thread_index() % 32 / 4;
	struct x_rows<T> x;

#pragma unroll
	for (int i = 0; i < T; i++)
		x.row[i] = job_row(job, i * 8 + g);
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
 * The data of one tile that a thread uses, in shared memory: N parts of A, then T parts of x, of 8 elements each. The
 * parts of the threads are next to each other. Each thread reads only the parts that it has copied itself, so warps do
 * not wait for each other.
 */
template <int T, int N> struct stages {
	enum { COUNT = T <= LORA_PIECE_SMALL / 8 ? LORA_SHRINK_STAGES : LORA_SHRINK_STAGES_LARGE };

	static __device__ uint4 *at(uint4 *memory, uint32_t thread, uint32_t stage)
	{
		return memory + stage % COUNT * (N + T) * THREADS + thread;
	}
};

/*
 * tile_load() - begin to load the warp's 32 columns of one tile. Ranks and tokens that do not exist are zeros, and so
 * are the columns beyond the end of x, where other data follows: nothing of them is read. There are no branches.
 */
template <int T, int N>
static __device__ __forceinline__ void tile_load(const struct lora_args &args, const struct job &job,
	const struct x_rows<T> &x, const uint16_t *weights, uint32_t tile, uint32_t thread, uint32_t slice,
	uint4 *stage)
{
	const uint32_t lane = thread % 32, column = thread / 32 * 32 + lane % 4 * 8, k = slice + lane / 4,
		       at = tile * LORA_TILE_COLUMNS + column, left = at < args.in ? min(args.in - at, 8) * 2 : 0;
	const uint16_t *from = (const uint16_t *)args.x + at;

	weights += k * LORA_TILE_COLUMNS + column;
#pragma unroll
	for (int n = 0; n < N; n++)
		async_copy(stage + n * THREADS, weights + n * 8 * LORA_TILE_COLUMNS, k + n * 8 < job.rank ? 16 : 0);
#pragma unroll
	for (int i = 0; i < T; i++)
		async_copy(stage + (N + i) * THREADS,
			from + (uint64_t)(x.row[i] != no_row ? x.row[i] : 0) * args.x_stride,
			x.row[i] != no_row ? left : 0);
}

/*
 * The sums of a warp, of 16 ranks and 8 tokens each. A thread has ranks g and g + 8 of tokens
 * 2c and 2c + 1, in the order of mma.h.
 */
template <int T, int N> using tile_sums = float[(N + 1) / 2][T][4];

/* tile_shrink() - add the warp's 32 columns of one tile: d += A x^T. */
template <uint32_t element, int T, int N>
static __device__ __forceinline__ void tile_shrink(const uint4 *stage, tile_sums<T, N> &d)
{
	uint32_t first[(N + 1) / 2][4], second[(N + 1) / 2][4];

#pragma unroll
	for (int r = 0; r < (N + 1) / 2; r++) {
		const uint4 low = stage[2 * r * THREADS],
			    high = N > 1 ? stage[(2 * r + 1) * THREADS] : make_uint4(0, 0, 0, 0);

		first[r][0] = low.x;
		first[r][1] = high.x;
		first[r][2] = low.y;
		first[r][3] = high.y;
		second[r][0] = low.z;
		second[r][1] = high.z;
		second[r][2] = low.w;
		second[r][3] = high.w;
	}
#pragma unroll
	for (int t = 0; t < T; t++) {
		const uint4 x = stage[(N + t) * THREADS];

#pragma unroll
		for (int r = 0; r < (N + 1) / 2; r++) {
			mma<element>(d[r][t], first[r], x.x, x.y);
			mma<element>(d[r][t], second[r], x.z, x.w);
		}
	}
}

/*
 * tiles_ahead() - begin to load the first tiles of B to the second-level cache, so that the memory is busy until expand
 * loads weights. The block of the last split does so: it is among the last ones that start, so that no block waits for
 * weights of A behind these tiles. The tokens of the batch share the bytes, because the cache is limited. Tiles
 * after a gap are omitted: their positions would have to be loaded.
 */
static __device__ __forceinline__ void tiles_ahead(const struct lora_args &args, const struct job &job)
{
	const uint32_t bytes = lora_tile_bytes(job.rank), tiles = min(lora_tiles(args.out), job.ahead_tiles);
	uint32_t processors = 100;

#ifdef __CUDA_ARCH__
	asm("mov.u32 %0, %%nsmid;" : "=r"(processors));
#endif
	if (blockIdx.z || blockIdx.y != gridDim.y - 1)
		return;
#pragma unroll 1
	for (uint32_t tile = threadIdx.x / 32;
		tile < tiles && (uint64_t)(tile + 1) * bytes * job.tokens <= processors * LORA_AHEAD_BYTES;
		tile += WARPS)
		cache_ahead(job.ahead + (uint64_t)tile * bytes, bytes, threadIdx.x % 32);
}

/* tiles_shrink() - add the tiles from `tile` to end - 1. While one is computed, the next ones are loaded. */
template <int T, int N>
static __device__ __forceinline__ void tiles_shrink(const struct lora_args &args, const struct job &job,
	const struct x_rows<T> &x, uint32_t tile, uint32_t end, uint4 *memory, tile_sums<T, N> &d)
{
	enum { STAGES = stages<T, N>::COUNT };
	struct tile_cursor cursor = cursor_at(job.matrix, job.rank, tile);
	uint32_t next = tile, thread = threadIdx.x, slice = blockIdx.z * LORA_SLICE;

#pragma unroll
	for (int stage = 0; stage < STAGES; stage++, next++) {
		if (T > LORA_PIECE_SMALL / 8) {
			thread = thread_index();
			slice = slice_begin();
		}

		if (next < end)
			tile_load<T, N>(args, job, x, cursor_take(cursor, job.matrix, job.rank), next, thread, slice,
				stages<T, N>::at(memory, thread, stage));
		async_copies_end();
	}
	if (T <= LORA_PIECE_SMALL / 8 && job.split)
		tiles_ahead(args, job);
#pragma unroll 1
	for (; next < end + STAGES; next++) {
		if (T > LORA_PIECE_SMALL / 8) {
			thread = thread_index();
			slice = slice_begin();
		}

		uint4 *stage = stages<T, N>::at(memory, thread, next - tile);

		async_copies_wait<STAGES - 1>();
		if (args.element == ELEMENT_F16)
			tile_shrink<ELEMENT_F16, T, N>(stage, d);
		else
			tile_shrink<ELEMENT_BF16, T, N>(stage, d);
		if (next < end)
			tile_load<T, N>(
				args, job, x, cursor_take(cursor, job.matrix, job.rank), next, thread, slice, stage);
		async_copies_end();
	}
}

/*
 * The numbers of a piece and slice, [8 T tokens][8 N ranks], of which each thread has COUNT. The position of one in
 * shared memory is `place`; there is none if the token or the rank does not exist.
 */
template <int T, int N> struct number {
	enum { COUNT = (T * N + 1) / 2, STRIDE = T * 8 + 2 };
	uint32_t token, k, place;
	bool exists;

	__device__ __forceinline__ number(const struct job &job, int i)
	{
		const uint32_t at = thread_index() + i * THREADS, rank = at % (N * 8);

		token = at / (N * 8);
		k = slice_begin() + rank;
		place = rank * STRIDE + token;
		exists = token < job.count && k < job.rank;
	}
};

template <int T, int N> using totals = float[number<T, N>::COUNT];

/* warps_add() - add the sums of the four warps. */
template <int T, int N>
static __device__ __forceinline__ void warps_add(
	const struct job &job, float *shared, const tile_sums<T, N> &d, totals<T, N> &total)
{
	enum { STRIDE = number<T, N>::STRIDE, SIZE = N * 8 * STRIDE };
	const uint32_t thread = thread_index(), lane = thread % 32;
	float *mine = shared + thread / 32 * SIZE + lane / 4 * STRIDE + lane % 4 * 2;

	__syncthreads(); /* the stages of other warps have the same memory */
#pragma unroll
	for (int n = 0; n < N; n++)
#pragma unroll
		for (int t = 0; t < T; t++)
			*(float2 *)(mine + n * 8 * STRIDE + t * 8) =
				make_float2(d[n / 2][t][n % 2 * 2], d[n / 2][t][n % 2 * 2 + 1]);
	__syncthreads();
#pragma unroll
	for (int i = 0; i < number<T, N>::COUNT; i++) {
		const struct number<T, N> number(job, i);

		total[i] = 0; /* the result is not -0, as in splits_add() */
		if (number.exists)
#pragma unroll
			for (int warp = 0; warp < WARPS; warp++)
				total[i] += shared[warp * SIZE + number.place];
	}
	__syncthreads();
}

/*
 * sums_put() - store a thread's numbers in rows of fp32, which begin at the piece's first token, or add them to what
 * the thread has stored there.
 */
template <int T, int N>
static __device__ __forceinline__ void sums_put(
	const struct lora_args &args, const struct job &job, float *rows, const totals<T, N> &total, bool add)
{
	const uint32_t stride = lora_rank_stride(args.rank_max);

#pragma unroll
	for (int i = 0; i < number<T, N>::COUNT; i++) {
		const struct number<T, N> number(job, i);
		float *to = rows + number.token * stride + number.k;

		if (number.exists)
			*to = (add ? *to : 0) + total[i];
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
template <int T, int N>
static __device__ __forceinline__ void splits_add(
	const struct lora_args &args, const struct job &job, totals<T, N> &total)
{
	const uint32_t stride = lora_rank_stride(args.rank_max);
	const uint64_t step = (uint64_t)lora_split_rows(args.tokens_max) * stride;
	const float *partials = lora_partials(&args) + (uint64_t)job.begin * stride;

#pragma unroll
	for (int i = 0; i < number<T, N>::COUNT; i++) {
		const struct number<T, N> number(job, i);
		const float *from = partials + number.token * stride + number.k;

		total[i] = 0;
		if (number.exists)
#pragma unroll
			for (uint32_t split = 0; split < LORA_SPLITS_MAX; split++)
				total[i] += split < gridDim.y ? __ldcg(from + split * step) : 0;
	}
}

template <int T, int N>
static __device__ __forceinline__ void shrink(const struct lora_args &args, const struct job &job, uint4 *memory)
{
	const uint32_t tiles = lora_tiles(args.in), split_tiles = lora_split_tiles(args.in);
	const uint64_t stride = lora_rank_stride(args.rank_max);
	const struct x_rows<T> x = x_rows_get<T>(job);
	float *sums = lora_sums(&args) + job.begin * stride;
	totals<T, N> total;

	for (uint32_t split = blockIdx.y;; split++) {
		tile_sums<T, N> d = {};

		tiles_shrink<T, N>(args, job, x, split * split_tiles, min(tiles, (split + 1) * split_tiles), memory, d);
		warps_add<T, N>(job, (float *)(memory + 1), d, total);
		if (T <= LORA_PIECE_SMALL / 8 && job.split)
			break;
		sums_put<T, N>(args, job, sums, total, split);
		if (split + 1 == gridDim.y)
			return;
	}
	if (job.late || gridDim.y > 1) {
		const uint64_t row = (uint64_t)blockIdx.y * lora_split_rows(args.tokens_max) + job.begin;

		sums_put<T, N>(args, job, lora_partials(&args) + row * stride, total, false);
		if (job.late || !is_last(args, (uint32_t *)memory))
			return;
		splits_add<T, N>(args, job, total);
	}
	sums_put<T, N>(args, job, sums, total, false);
}

template <int T> static __device__ void shrink_ranks(const struct lora_args &args, const struct job &job, uint4 *memory)
{
	const uint32_t ranks = job.rank - blockIdx.z * LORA_SLICE; /* remaining from this slice on */

	if (ranks <= 8)
		shrink<T, 1>(args, job, memory);
	else if (ranks <= 16)
		shrink<T, 2>(args, job, memory);
	else
		shrink<T, 4>(args, job, memory);
}

/* shrink_job_get() - like job_get(), for a block of shrink; false also if the block has no ranks or no split. */
static __device__ bool shrink_job_get(const struct lora_args &args, struct job &job)
{
	return job_get(args, blockIdx.x, false, job) && blockIdx.z * LORA_SLICE < job.rank &&
		(job.split || !blockIdx.y);
}

extern "C" __global__ void __launch_bounds__(THREADS, 4) lora_shrink(const __grid_constant__ struct lora_args args)
{
	extern __shared__ uint4 block_memory[]; /* stages; or a flag, then [warps][ranks][tokens + 2] fp32 */
	struct job job;

	kernel_release();
	if (!shrink_job_get(args, job))
		return;
	if (job.count <= 8)
		shrink_ranks<1>(args, job, block_memory);
	else if (job.count <= LORA_PIECE_SMALL)
		shrink_ranks<LORA_PIECE_SMALL / 8>(args, job, block_memory);
	else
		shrink_ranks<LORA_PIECE_LARGE / 8>(args, job, block_memory);
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

/* pair_bits() - return two elements in one word. */
template <uint32_t element> static __device__ uint32_t pair_bits(float low, float high)
{
	return value_bits<element>(low) | value_bits<element>(high) << 16;
}

/*
 * exponent_of() - return the exponent of the power of two at or below a positive number, with its bias, within the
 * range of normal reciprocals.
 */
static __device__ uint32_t exponent_of(float value)
{
	const uint32_t exponent = float_bits(value) >> 23;

	return exponent < 1 ? 1 : exponent > 253 ? 253 : exponent;
}

/*
 * A rank class of R ranks: 8, 16, 32, 64 or 128. Ranks are processed in steps of 16; the class of 8 has one step of 8.
 *
 * In a step, a lane has the ranks 2c and 2c + 1, and 2c + 8 and 2c + 9, of the operands: of 8 columns of B from 8 g on,
 * and of the sums of token g. The class of 8 uses the second half of the tensor operation for the rounding errors.
 *
 * A warp has PARTS times 64 columns, so that it has enough loads in flight and few instructions per column.
 */
template <int R> struct rank_class {
	enum {
		STEP = R < 16 ? 8 : 16,
		STEPS = R / STEP,
		PAIRS = STEP / 8, /* of ranks per lane in a step */
		PARTS = R <= 16 ? 2 : 1,
		AHEAD = STEPS < 2 ? STEPS : 2, /* steps whose weights are loaded before they are used */
		COLUMNS = WARPS * PARTS * 64,  /* of a block */
	};
};

/*
 * The sums of a piece in shared memory, as operands: [groups of 8 tokens][steps][lanes] of the rounded values of each
 * pair of ranks and then of the rounding errors; and each token's factor.
 */
template <int R> struct sums {
	uint32_t *operands;
	float *factors;
};

template <int R> static __device__ struct sums<R> sums_place(uint32_t groups, uint4 *memory) {
	struct sums<R> sums;

	sums.operands = (uint32_t *)memory;
	sums.factors = (float *)(sums.operands + groups * 8 * R);
	return sums;
}

/*
 * sums_load() - make the operands; each warp processes a token at a time, and each lane every 32nd rank. Ranks above
 * that of the adapter are zeros. Operands of tokens that do not exist are undefined; they do not affect other tokens.
 */
template <uint32_t element, int R>
static __device__ __forceinline__ void sums_load(
	const struct lora_args &args, const struct job &job, const struct sums<R> &sums)
{
	enum { STEPS = rank_class<R>::STEPS, PAIRS = rank_class<R>::PAIRS, EACH = (R + 31) / 32 };
	const uint32_t lane = threadIdx.x % 32, stride = lora_rank_stride(args.rank_max);
	const bool late = R <= LORA_LATE_RANK && job.late;
	const uint64_t step = (uint64_t)lora_split_rows(args.tokens_max) * stride;
	const float *from = (late ? lora_partials(&args) : lora_sums(&args)) + (uint64_t)job.begin * stride + lane;
	const uint32_t split_tiles = lora_split_tiles(args.in), tiles = lora_tiles(args.in);

#pragma unroll 1
	for (uint32_t token = threadIdx.x / 32; token < job.count; token += WARPS) {
		uint16_t *to = (uint16_t *)(sums.operands + (token / 8 * STEPS * 32 + token % 8 * 4) * 2 * PAIRS);
		const float *of_token = from + token * stride;
		float value[EACH], largest = 0;

#pragma unroll
		for (int i = 0; i < EACH; i++) {
			value[i] = 0;
			if (i * 32 + lane < job.rank)
				value[i] = __ldcg(of_token + i * 32);
		}
		/* The splits in order, as in splits_add(); the first one is never -0. */
		if (late && lane < job.rank)
#pragma unroll
			for (uint32_t split = 1; split < LORA_SPLITS_MAX; split++)
				value[0] += split * split_tiles < tiles ? __ldcg(of_token + split * step) : 0;
#pragma unroll
		for (int i = 0; i < EACH; i++)
			largest = fmaxf(largest, fabsf(value[i]));
#pragma unroll
		for (int lanes = 16; lanes; lanes /= 2)
			largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, lanes));

		const uint32_t exponent = exponent_of(largest);
		const float reciprocal = float_of_bits((254 - exponent) << 23);

#pragma unroll
		for (int i = 0; i < EACH; i++) {
			const uint32_t k = i * 32 + lane, pair = k % (8 * PAIRS) / 8,
				       at = k / 16 * 128 * PAIRS + k % 8 / 2 * 4 * PAIRS + pair * 2 + k % 2;
			const float scaled = value[i] * reciprocal;
			const uint32_t rounded = value_bits<element>(scaled);

			if (k < R) {
				to[at] = (uint16_t)rounded;
				to[at + 2 * PAIRS] =
					(uint16_t)value_bits<element>(scaled - value_get<element>(rounded));
			}
		}
		if (lane == 0)
			sums.factors[token] = job.scale * float_of_bits(exponent << 23);
	}
}

/* The weights of a lane in a step: 8 columns of each of its ranks. */
template <int R> struct weights {
	uint4 row[rank_class<R>::PAIRS * 2];
};

/* weights_get() - load the weights of a step; zeros for ranks from `rank` on. */
template <int R>
static __device__ __forceinline__ struct weights<R> weights_get(const uint16_t *part, uint32_t rank, uint32_t step) {
	const uint32_t lane = threadIdx.x % 32, k = step * 16 + lane % 4 * 2;
	struct weights<R> weights;

	part += k * LORA_TILE_COLUMNS + lane / 4 * 8;
#pragma unroll
	for (uint32_t i = 0; i < rank_class<R>::PAIRS * 2; i++) {
		const uint32_t further = i / 2 * 8 + i % 2;

		weights.row[i] = k + further < rank ? __ldg((const uint4 *)(part + further * LORA_TILE_COLUMNS))
						    : make_uint4(0, 0, 0, 0);
	}
	return weights;
}

/* The sums of a lane: of two adjacent columns of its 8 and of tokens 2c and 2c + 1, in the order of mma.h. */
typedef float expanded[4][4];

/* pair_expand() - add a step for two columns, the low and the high halves of a word of the rows. */
template <uint32_t element>
static __device__ __forceinline__ void pair_expand(
	float (&d)[4], const uint4 &sums, uint32_t row0, uint32_t row1, uint32_t row2, uint32_t row3)
{
	const uint32_t w[4] = {__byte_perm(row0, row1, 0x5410), __byte_perm(row0, row1, 0x7632),
		__byte_perm(row2, row3, 0x5410), __byte_perm(row2, row3, 0x7632)};

	mma<element>(d, w, sums.x, sums.y);
	mma<element>(d, w, sums.z, sums.w);
}

/* The same for the class of 8 ranks. */
template <uint32_t element>
static __device__ __forceinline__ void pair_expand(float (&d)[4], const uint2 &sums, uint32_t row0, uint32_t row1)
{
	const uint32_t even = __byte_perm(row0, row1, 0x5410), odd = __byte_perm(row0, row1, 0x7632);
	const uint32_t w[4] = {even, odd, even, odd};

	mma<element>(d, w, sums.x, sums.y);
}

/* step_expand() - add a step for a group of 8 tokens. */
template <uint32_t element, int R>
static __device__ __forceinline__ void step_expand(
	const struct sums<R> &sums, uint32_t group, uint32_t step, const struct weights<R> &weights, expanded &d)
{
	const uint32_t at = (group * rank_class<R>::STEPS + step) * 32 + threadIdx.x % 32;
	const uint4 *row = weights.row;

	if constexpr (rank_class<R>::PAIRS == 1) {
		const uint2 both = ((const uint2 *)sums.operands)[at];

		pair_expand<element>(d[0], both, row[0].x, row[1].x);
		pair_expand<element>(d[1], both, row[0].y, row[1].y);
		pair_expand<element>(d[2], both, row[0].z, row[1].z);
		pair_expand<element>(d[3], both, row[0].w, row[1].w);
	} else {
		const uint4 all = ((const uint4 *)sums.operands)[at];

		pair_expand<element>(d[0], all, row[0].x, row[1].x, row[2].x, row[3].x);
		pair_expand<element>(d[1], all, row[0].y, row[1].y, row[2].y, row[3].y);
		pair_expand<element>(d[2], all, row[0].z, row[1].z, row[2].z, row[3].z);
		pair_expand<element>(d[3], all, row[0].w, row[1].w, row[2].w, row[3].w);
	}
}

/* The results of a lane before the addition: 8 columns of each part, of tokens 2c and 2c + 1 of a group. */
template <int R> struct results {
	uint16_t *row[2]; /* at the lane's first column */
	int32_t left[2];  /* columns from there on; 0: no such token */
	uint4 old[2][rank_class<R>::PARTS];
};

/*
 * results_get() - load the results of a group. `left` columns exist from the lane's first one on. Rows of y have a
 * multiple of 8 columns, so all 8 can be read if one exists.
 */
template <int R>
static __device__ __forceinline__ void results_get(const struct lora_args &args, const struct job &job, uint32_t group,
	uint32_t column, int32_t left, struct results<R> &results)
{
#pragma unroll
	for (int half = 0; half < 2; half++) {
		const uint32_t row = job_row(job, group * 8 + threadIdx.x % 4 * 2 + half);

		results.row[half] = (uint16_t *)args.y + (uint64_t)row * args.y_stride + column;
		results.left[half] = row != no_row ? left : 0;
#pragma unroll
		for (int part = 0; part < rank_class<R>::PARTS; part++)
			if (results.left[half] > part * 64)
				results.old[half][part] = *(const uint4 *)(results.row[half] + part * 64);
	}
}

/* columns_put() - store the first `left` of 8 columns. */
static __device__ __forceinline__ void columns_put(uint16_t *to, int32_t left, uint4 words)
{
	if (left >= 8) {
		*(uint4 *)to = words;
		return;
	}
#pragma unroll 1
	for (; left > 0; left--) {
		*to++ = (uint16_t)words.x;
		words.x = words.x >> 16 | words.y << 16;
		words.y = words.y >> 16 | words.z << 16;
		words.z = words.z >> 16 | words.w << 16;
		words.w >>= 16;
	}
}

/* results_add() - add d to the results of one part. */
template <uint32_t element, int R>
static __device__ __forceinline__ void results_add(
	const struct results<R> &results, int part, const float2 &factors, const expanded &d)
{
#pragma unroll
	for (int half = 0; half < 2; half++)
		if (results.left[half] > part * 64) {
			const uint4 &old = results.old[half][part];
			const uint32_t before[4] = {old.x, old.y, old.z, old.w};
			const float factor = half ? factors.y : factors.x;
			uint32_t words[4];

#pragma unroll
			for (int i = 0; i < 4; i++)
				words[i] =
					pair_bits<element>(value_get<element>(before[i] & 0xffff) + factor * d[i][half],
						value_get<element>(before[i] >> 16) + factor * d[i][2 + half]);
			columns_put(results.row[half] + part * 64, results.left[half] - part * 64,
				make_uint4(words[0], words[1], words[2], words[3]));
		}
}

template <uint32_t element, int R>
static __device__ __forceinline__ void expand(const struct lora_args &args, const struct job &job, uint4 *memory)
{
	enum { STEPS = rank_class<R>::STEPS, PARTS = rank_class<R>::PARTS, AHEAD = rank_class<R>::AHEAD };
	const uint32_t begin = blockIdx.y * rank_class<R>::COLUMNS + threadIdx.x / 32 * PARTS * 64,
		       column = begin + threadIdx.x % 32 / 4 * 8, groups = (job.count + 7) / 8;
	const int32_t left = (int32_t)(args.out - column);
	const struct sums<R> sums = sums_place<R>(groups, memory);
	const bool used = begin < args.out;
	const uint16_t *from = (const uint16_t *)job.matrix.first; /* if not used, nothing is read there */
	struct weights<R> ahead[PARTS][AHEAD];
	struct results<R> results;

	if (blockIdx.y * rank_class<R>::COLUMNS >= args.out) {
		kernel_wait();
		return; /* the grid is that of the highest rank */
	}
	if (used)
		from = (const uint16_t *)lora_tile_at(&job.matrix, job.rank, begin / LORA_TILE_COLUMNS) +
			begin % LORA_TILE_COLUMNS;
#pragma unroll
	for (int part = 0; part < PARTS; part++)
#pragma unroll
		for (int step = 0; step < AHEAD; step++)
			ahead[part][step] = weights_get<R>(from + part * 64, used ? job.rank : 0, step);
	results_get<R>(args, job, 0, column, left, results);
	kernel_wait(); /* only the sums are results of shrink */
	sums_load<element, R>(args, job, sums);
	__syncthreads();
	if (!used)
		return;
	for (uint32_t group = 0; group < groups; group++) {
		const float2 factors = *(const float2 *)(sums.factors + group * 8 + threadIdx.x % 4 * 2);

#pragma unroll
		for (int part = 0; part < PARTS; part++) {
			expanded d = {};

			/* Not unrolled further: the addresses of all steps would need more registers than there are. */
#pragma unroll 1
			for (uint32_t first = 0; first < STEPS; first += AHEAD)
#pragma unroll
				for (uint32_t i = 0; i < AHEAD; i++) {
					step_expand<element, R>(sums, group, first + i, ahead[part][i], d);
					if (STEPS > AHEAD && (first + AHEAD < STEPS || group + 1 < groups))
						ahead[part][i] = weights_get<R>(
							from + part * 64, job.rank, (first + AHEAD + i) % STEPS);
				}
			results_add<element, R>(results, part, factors, d);
		}
		if (group + 1 < groups)
			results_get<R>(args, job, group + 1, column, left, results);
	}
}

template <uint32_t element>
static __device__ void expand_ranks(const struct lora_args &args, const struct job &job, uint4 *memory)
{
	if (job.rank <= 8)
		expand<element, 8>(args, job, memory);
	else if (job.rank <= 16)
		expand<element, 16>(args, job, memory);
	else if (job.rank <= 32)
		expand<element, 32>(args, job, memory);
	else if (job.rank <= 64)
		expand<element, 64>(args, job, memory);
	else
		expand<element, 128>(args, job, memory);
}

extern "C" __global__ void __launch_bounds__(THREADS, 4) lora_expand(const __grid_constant__ struct lora_args args)
{
	extern __shared__ uint4 block_memory[]; /* struct sums */
	struct job job;

	if (!job_get(args, blockIdx.x, true, job)) {
		kernel_wait();
		return;
	}
	if (args.element == ELEMENT_F16)
		expand_ranks<ELEMENT_F16>(args, job, block_memory);
	else
		expand_ranks<ELEMENT_BF16>(args, job, block_memory);
}
