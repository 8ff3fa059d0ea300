/*
 * attention.cu - attention over a paged cache, with tensor operations and online softmax in fp32 (M. Milakov, N.
 * Gimelshein, "Online normalizer calculation for softmax", 2018; T. Dao, "FlashAttention-2", 2023).
 *
 * The rows of a tensor operation are the queries that share a head of keys and values: heads / kv_heads for each query
 * token. A thread block computes a tile of rows of one sequence (x) and one head of keys and values (y). A step is 16
 * tokens.
 *
 * The decode kernel is for few rows, and is bound by memory bandwidth. A tile has 16 rows. A sequence's tokens are
 * divided into splits (z), and a split's steps among the warps. The results of warps are combined through shared
 * memory, and those of splits by the thread block that finishes last, always in the same order.
 *
 * The prefill kernel is for many rows: each warp has 16 rows, and all warps use the same keys and values.
 *
 * A lane's operands are always parts of 16 bytes in the layout of a tensor operation (mma.h): for the products with
 * keys, parts of the vectors of tokens g and g + 8; for the products with values, parts of tokens 2c, 2c + 1, 2c + 8
 * and 2c + 9, whose columns are reordered in registers. The lanes with the same number need the same parts in all
 * warps, so shared memory is an array [part][lane]. In decode, each thread reads only the parts that it has copied
 * itself. Copies are asynchronous: values are loaded while keys are used, and keys while values are used.
 *
 * The weights of tokens are operands of 16 bits: elements, or bf16 for int8. Codes are converted to operands without
 * rounding; the products and the weights are multiplied by the scales.
 */
#include "cuda/kernels/async_copy.h"
#include "cuda/kernels/attention.h"
#include "cuda/kernels/mma.h"

static const uint32_t no_block = UINT32_MAX;

/* A form of the kernels: element type E, with or without int8 codes, a head size up to C, decode or prefill. */
template <uint32_t E, bool CODES, int C, bool DECODE> struct form {
	enum {
		COLUMNS = C,
		WARPS = C > 128 ? 2 : 4,
		THREADS = WARPS * 32,
		STEPS = DECODE || C > 128 ? 1 : 2, /* per tile of tokens */
		TOKENS = STEPS * 16,
		ROWS = DECODE ? ATTENTION_ROWS : ATTENTION_ROWS * WARPS,
		WIDTH = CODES ? 16 : 8, /* columns of a part */
		QUERY_PARTS = C / 32,   /* of 8 elements per lane and row */
		KEY_PARTS = C / (4 * WIDTH),
		VALUE_PARTS = (C + 8 * WIDTH - 1) / (8 * WIDTH),
		KEYS = STEPS * 2 * KEY_PARTS, /* parts per lane and tile */
		VALUES = STEPS * 4 * VALUE_PARTS,
		SHARERS = DECODE ? 1 : WARPS, /* warps that load a tile together */
		QUERIES = 2 * QUERY_PARTS,    /* parts per lane and 16 rows */
		VALUE_ELEMENT = CODES ? (uint32_t)ELEMENT_BF16 : E,
		ROW_STRIDE = C + 4, /* of results in shared memory; distributes rows over banks */
	};
};

static __device__ __forceinline__ float minus_infinity(void)
{
	return float_of_bits(0xff800000);
}

/* power_of_two() - return 2^value, 0 for minus infinity. */
static __device__ __forceinline__ float power_of_two(float value)
{
#ifdef __CUDA_ARCH__
	float result;

	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
	return result;
#else
	return exp2f(value);
#endif
}

/* pair_bits() - return two elements, the first one in the low half. */
template <uint32_t element> static __device__ __forceinline__ uint32_t pair_bits(float low, float high)
{
#ifdef __CUDA_ARCH__
	uint32_t bits;

	if (element == ELEMENT_F16)
		asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
	else
		asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
	return bits;
#else
	return element == ELEMENT_F16 ? f16_of_float(low) | (uint32_t)f16_of_float(high) << 16
				      : bf16_of_float(low) | (uint32_t)bf16_of_float(high) << 16;
#endif
}

/* code_value() - return code i of a word as a float. The low bits of the float 2^23 + integer are the integer. */
static __device__ __forceinline__ float code_value(uint32_t word, uint32_t i)
{
	return float_of_bits(__byte_perm(word ^ 0x80808080, 0x4b000000, 0x7650 + i)) - 8388736.0f;
}

/* codes_pair() - return two codes as elements, without rounding; for bf16, the upper halves of their floats. */
template <uint32_t element> static __device__ __forceinline__ uint32_t codes_pair(float low, float high)
{
	if (element == ELEMENT_BF16)
		return __byte_perm(float_bits(low), float_bits(high), 0x7632);
	return pair_bits<element>(low, high);
}

/* ---- the work of a thread block ---- */

struct job {
	const int32_t *table;
	uint32_t tokens, query_begin, query_count;
	uint32_t group, rows, first; /* first: the first row of the thread block */
	uint32_t end;                /* token after the last one that a row of the thread block uses */
};

/* job_get() - return false if the thread block has no rows, or the sequence is invalid. */
static __device__ bool job_get(const struct attention_args &args, uint32_t tile_rows, struct job &job)
{
	const uint32_t tiles = attention_tiles(&args, tile_rows);
	const struct attention_sequence sequence =
		((const struct attention_sequence *)args.sequences)[blockIdx.x / tiles];

	job.group = attention_group(&args);
	job.first = blockIdx.x % tiles * tile_rows;
	if (sequence.row >= args.table_rows || sequence.query_count > args.query_most ||
		sequence.query_count > sequence.tokens || sequence.query_begin > args.query_tokens ||
		sequence.query_count > args.query_tokens - sequence.query_begin ||
		sequence.tokens > (uint64_t)args.table_columns * args.block_tokens)
		return false;
	job.rows = sequence.query_count * job.group;
	if (job.first >= job.rows)
		return false;
	job.table = (const int32_t *)args.tables + (uint64_t)sequence.row * args.table_columns;
	job.tokens = sequence.tokens;
	job.query_begin = sequence.query_begin;
	job.query_count = sequence.query_count;
	job.end = job.tokens - job.query_count + (min(job.first + tile_rows, job.rows) - 1) / job.group + 1;
	return true;
}

/* row_limit() - return the number of tokens that a row may use; 0: there is no such row. */
static __device__ uint32_t row_limit(const struct job &job, uint32_t row)
{
	return row < job.rows ? job.tokens - job.query_count + row / job.group + 1 : 0;
}

/* row_at() - return the position of a row's vector in queries or output. */
static __device__ uint64_t row_at(
	const struct attention_args &args, const struct job &job, uint32_t row, uint32_t stride)
{
	return (uint64_t)(job.query_begin + row / job.group) * stride +
		(blockIdx.y * job.group + row % job.group) * args.head_size;
}

/* queries_load() - begin to load the queries of 16 rows, as thread `index` of `threads` threads. */
template <typename F>
static __device__ void queries_load(const struct attention_args &args, const struct job &job, uint32_t first,
	uint32_t index, uint32_t threads, uint4 *queries)
{
	for (uint32_t i = index; i < F::QUERIES * 32; i += threads) {
		const uint32_t lane = i % 32, part = i / 64, row = first + i / 32 % 2 * 8 + lane / 4;
		/* The order of columns is that of the keys: a part of 16 codes is used in two operations. */
		const uint32_t column =
			F::WIDTH == 8 ? part * 32 + lane % 4 * 8 : part / 2 * 64 + lane % 4 * 16 + part % 2 * 8;
		const bool used = row < job.rows && column < args.head_size;

		async_copy(queries + i,
			(const uint16_t *)args.queries +
				(used ? row_at(args, job, row, args.query_stride) + column : 0),
			used ? 16 : 0);
	}
}

/* ---- loading tokens ---- */

/* The blocks of a tile, one for each half of a step, and their scales. */
template <typename F> struct tile {
	uint32_t ahead[2 * F::STEPS]; /* numbers of the blocks of the next tile to load; no_block: none */
	uint64_t place[2 * F::STEPS]; /* addresses of the blocks, 0: none */
	uint32_t key_scale[4 * F::STEPS], value_scale[4 * F::STEPS]; /* bf16 in the upper half */
};

/* numbers_load() - load the numbers of the blocks of a tile. */
template <typename F>
static __device__ void numbers_load(
	const struct attention_args &args, const struct job &job, uint32_t token, uint32_t end, struct tile<F> &tile)
{
#pragma unroll
	for (int half = 0; half < 2 * F::STEPS; half++) {
		const uint32_t at = token + half * 8;
		uint32_t number = no_block;

		if (at < end)
			number = (uint32_t)job.table[at / args.block_tokens];
		tile.ahead[half] = number;
	}
}

template <typename F> static __device__ void places_get(const struct attention_args &args, struct tile<F> &tile)
{
#pragma unroll
	for (int half = 0; half < 2 * F::STEPS; half++) {
		const uint32_t number = tile.ahead[half];

		tile.place[half] = number < args.block_count
			? args.blocks + (uint64_t)(number / args.chunk_blocks) * args.chunk_bytes +
				number % args.chunk_blocks * args.block_bytes
			: 0;
	}
}

/* place_of() - return tile.place[half], even if `half` is not constant. */
template <typename F> static __device__ uint64_t place_of(const struct tile<F> &tile, uint32_t half)
{
	uint64_t place = tile.place[0];

#pragma unroll
	for (int i = 1; i < 2 * F::STEPS; i++)
		place = half == (uint32_t)i ? tile.place[i] : place;
	return place;
}

/* part_load() - begin to load a part of a vector; zeros if the token, its block or the columns do not exist. */
template <typename F>
static __device__ __forceinline__ void part_load(const struct attention_args &args, uint64_t place, uint64_t offset,
	uint32_t token, uint32_t end, uint32_t column, uint4 *to)
{
	const bool used = place && token < end && column < args.head_size;
	const uint64_t at = place + offset + token % args.block_tokens * args.token_stride + column * (16 / F::WIDTH);

	async_copy(to, (const void *)(used ? at : args.queries), used ? 16 : 0);
}

/* scales_load() - load the scales of tokens 2c, 2c + 1, 2c + 8 and 2c + 9 of each step; 0 if there is none. */
template <typename F>
static __device__ void scales_load(const struct attention_args &args, const struct tile<F> &tile, uint64_t offset,
	uint32_t token, uint32_t end, uint32_t (&scale)[4 * F::STEPS])
{
#pragma unroll
	for (int i = 0; i < 4 * F::STEPS; i++) {
		const uint32_t at = token + i / 2 * 8 + threadIdx.x % 4 * 2 + i % 2;
		const uint64_t place = tile.place[i / 2];

		scale[i] = 0;
		if (place && at < end)
			scale[i] = (uint32_t) *
					(const uint16_t *)(place + offset +
						at % args.block_tokens * args.scale_token_stride)
				<< 16;
	}
}

template <typename F, bool CODES>
static __device__ void keys_load(
	const struct attention_args &args, struct tile<F> &tile, uint32_t token, uint32_t end, uint4 *keys)
{
	const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	const uint64_t offset = args.keys + (uint64_t)blockIdx.y * args.head_stride;

#pragma unroll
	for (int n = 0; n < F::KEYS / F::SHARERS; n++) {
		const uint32_t i = F::SHARERS == 1 ? n : n * F::SHARERS + warp, half = i / F::KEY_PARTS;

		part_load<F>(args, place_of(tile, half), offset, token + half * 8 + lane / 4, end,
			(i % F::KEY_PARTS * 4 + lane % 4) * F::WIDTH, keys + i * 32 + lane);
	}
	if (CODES)
		scales_load<F>(args, tile, args.key_scales + (uint64_t)blockIdx.y * args.scale_head_stride, token, end,
			tile.key_scale);
}

template <typename F, bool CODES>
static __device__ void values_load(
	const struct attention_args &args, struct tile<F> &tile, uint32_t token, uint32_t end, uint4 *values)
{
	const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	const uint64_t offset = args.values + (uint64_t)blockIdx.y * args.head_stride;

#pragma unroll
	for (int n = 0; n < F::VALUES / F::SHARERS; n++) {
		const uint32_t i = F::SHARERS == 1 ? n : n * F::SHARERS + warp, row = i / F::VALUE_PARTS;

		part_load<F>(args, place_of(tile, row / 2), offset, token + row / 2 * 8 + lane % 4 * 2 + row % 2, end,
			(i % F::VALUE_PARTS * 8 + lane / 4) * F::WIDTH, values + i * 32 + lane);
	}
	if (CODES)
		scales_load<F>(args, tile, args.value_scales + (uint64_t)blockIdx.y * args.scale_head_stride, token,
			end, tile.value_scale);
}

/* ---- computing ---- */

/* The softmax of a lane's rows g and g + 8, and the sums of values. */
template <typename F> struct state {
	float most[2];   /* the largest product */
	float weight[2]; /* sum of 2^(product - most) of the lane's tokens */
	float sums[F::VALUE_PARTS][F::WIDTH][4];
};

/* scores_get() - multiply a tile's keys by the queries: products[step][half][...], in the layout of mma.h. */
template <typename F, uint32_t E, bool CODES>
static __device__ void scores_get(const uint4 *queries, const uint4 *keys, float (&products)[F::STEPS][2][4])
{
	const uint32_t lane = threadIdx.x % 32;

#pragma unroll
	for (int part = 0; part < F::QUERY_PARTS; part++) {
		const uint4 low = queries[part * 64 + lane], high = queries[part * 64 + 32 + lane];
		const uint32_t first[4] = {low.x, high.x, low.y, high.y}, second[4] = {low.z, high.z, low.w, high.w};

#pragma unroll
		for (int half = 0; half < 2 * F::STEPS; half++) {
			float(&d)[4] = products[half / 2][half % 2];

			if (CODES) {
				const uint4 k = keys[(half * F::KEY_PARTS + part / 2) * 32 + lane];
				const uint32_t one = part % 2 ? k.z : k.x, two = part % 2 ? k.w : k.y;

				mma<E>(d, first, codes_pair<E>(code_value(one, 0), code_value(one, 1)),
					codes_pair<E>(code_value(one, 2), code_value(one, 3)));
				mma<E>(d, second, codes_pair<E>(code_value(two, 0), code_value(two, 1)),
					codes_pair<E>(code_value(two, 2), code_value(two, 3)));
			} else {
				const uint4 k = keys[(half * F::KEY_PARTS + part) * 32 + lane];

				mma<E>(d, first, k.x, k.y);
				mma<E>(d, second, k.z, k.w);
			}
		}
	}
}

/* weights_get() - replace a tile's products by weights, and update the state. factor: for powers of two. */
template <typename F, bool CODES>
static __device__ void weights_get(const struct tile<F> &tile, uint32_t token, const uint32_t (&limit)[2], float factor,
	float (&products)[F::STEPS][2][4], struct state<F> &state)
{
	float most[2] = {state.most[0], state.most[1]}, lower[2];

#pragma unroll
	for (int i = 0; i < F::STEPS * 8; i++) {
		float &product = products[i / 8][i / 4 % 2][i % 4];
		const int row = i % 4 / 2, at = i / 4 * 2 + i % 2;

		product *= CODES ? factor * float_of_bits(tile.key_scale[at]) : factor;
		if (token + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2 >= limit[row])
			product = minus_infinity();
		most[row] = fmaxf(most[row], product);
	}
#pragma unroll
	for (int row = 0; row < 2; row++) {
		float shrink;

		most[row] = fmaxf(most[row], __shfl_xor_sync(0xffffffff, most[row], 1));
		most[row] = fmaxf(most[row], __shfl_xor_sync(0xffffffff, most[row], 2));
		lower[row] = most[row] == minus_infinity() ? 0 : most[row];
		shrink = power_of_two(state.most[row] - lower[row]);
		state.most[row] = most[row];
		state.weight[row] *= shrink;
#pragma unroll
		for (int part = 0; part < F::VALUE_PARTS; part++)
#pragma unroll
			for (int j = 0; j < F::WIDTH; j++) {
				state.sums[part][j][row * 2] *= shrink;
				state.sums[part][j][row * 2 + 1] *= shrink;
			}
	}
#pragma unroll
	for (int i = 0; i < F::STEPS * 8; i++) {
		float &product = products[i / 8][i / 4 % 2][i % 4];

		product = power_of_two(product - lower[i % 4 / 2]);
		state.weight[i % 4 / 2] += product;
		if (CODES)
			product *= float_of_bits(tile.value_scale[i / 4 * 2 + i % 2]);
	}
}

/* word_add() - add the products of a word of each of four rows: two columns, or four of codes. */
template <typename F, bool CODES>
static __device__ __forceinline__ void word_add(const uint32_t (&a)[4], uint32_t row0, uint32_t row1, uint32_t row2,
	uint32_t row3, float (&sums)[F::WIDTH][4], int word)
{
	enum { E = F::VALUE_ELEMENT };

	if (CODES) {
#pragma unroll
		for (int i = 0; i < 4; i++)
			mma<E>(sums[word * 4 + i], a, codes_pair<E>(code_value(row0, i), code_value(row1, i)),
				codes_pair<E>(code_value(row2, i), code_value(row3, i)));
	} else {
		mma<E>(sums[word * 2], a, __byte_perm(row0, row1, 0x5410), __byte_perm(row2, row3, 0x5410));
		mma<E>(sums[word * 2 + 1], a, __byte_perm(row0, row1, 0x7632), __byte_perm(row2, row3, 0x7632));
	}
}

template <typename F, bool CODES>
static __device__ void values_add(const uint4 *values, const float (&weights)[F::STEPS][2][4], struct state<F> &state)
{
	enum { E = F::VALUE_ELEMENT };
	const uint32_t lane = threadIdx.x % 32;

#pragma unroll
	for (int step = 0; step < F::STEPS; step++) {
		const float(&w)[2][4] = weights[step];
		const uint32_t a[4] = {pair_bits<E>(w[0][0], w[0][1]), pair_bits<E>(w[0][2], w[0][3]),
			pair_bits<E>(w[1][0], w[1][1]), pair_bits<E>(w[1][2], w[1][3])};

#pragma unroll
		for (int part = 0; part < F::VALUE_PARTS; part++) {
			const uint4 *from = values + (step * 4 * F::VALUE_PARTS + part) * 32 + lane;
			const uint4 v0 = from[0], v1 = from[F::VALUE_PARTS * 32], v2 = from[2 * F::VALUE_PARTS * 32],
				    v3 = from[3 * F::VALUE_PARTS * 32];
			float(&sums)[F::WIDTH][4] = state.sums[part];

			word_add<F, CODES>(a, v0.x, v1.x, v2.x, v3.x, sums, 0);
			word_add<F, CODES>(a, v0.y, v1.y, v2.y, v3.y, sums, 1);
			word_add<F, CODES>(a, v0.z, v1.z, v2.z, v3.z, sums, 2);
			word_add<F, CODES>(a, v0.w, v1.w, v2.w, v3.w, sums, 3);
		}
	}
}

/*
 * tokens_add() - add tokens from `token` on, one tile of every `step` tokens, up to end - 1. The values of a tile are
 * loaded while its keys are used, and the keys of the next tile while these values are used.
 */
template <typename F, uint32_t E, bool CODES>
static __device__ void tokens_add(const struct attention_args &args, const struct job &job, uint32_t row,
	uint32_t token, uint32_t end, uint32_t step, const uint4 *queries, uint4 *keys, struct state<F> &state)
{
	const uint32_t limit[2] = {row_limit(job, row), row_limit(job, row + 8)};
	const float factor = args.scale * 1.44269504f; /* log2(e) */
	uint4 *values = keys + F::KEYS * 32;
	struct tile<F> tile;

	numbers_load<F>(args, job, token, end, tile);
	/* The first iteration only loads, so that the code for loads exists once. */
	for (uint32_t next = token;; next += step) {
		float products[F::STEPS][2][4] = {};
		const bool full = next != token, more = next < end;

		if (full) {
			async_copies_wait<1>();
			if (F::SHARERS > 1)
				__syncthreads();
			scores_get<F, E, CODES>(queries, keys, products);
			weights_get<F, CODES>(tile, next - step, limit, factor, products, state);
			if (F::SHARERS > 1)
				__syncthreads();
		}
		if (more) {
			places_get<F>(args, tile);
			numbers_load<F>(args, job, next + step, end, tile);
			keys_load<F, CODES>(args, tile, next, end, keys);
		}
		async_copies_end();
		if (full) {
			async_copies_wait<1>();
			if (F::SHARERS > 1)
				__syncthreads();
			values_add<F, CODES>(values, products, state);
			if (F::SHARERS > 1)
				__syncthreads();
		}
		if (more)
			values_load<F, CODES>(args, tile, next, end, values);
		async_copies_end();
		if (F::SHARERS == 1 && !full) { /* other warps have loaded queries, in the preceding group of copies */
			async_copies_wait<2>();
			__syncthreads();
		}
		if (!more)
			break;
	}
	async_copies_wait<0>();
#pragma unroll
	for (int i = 0; i < 2; i++) { /* the four lanes of a row have different tokens */
		state.weight[i] += __shfl_xor_sync(0xffffffff, state.weight[i], 1);
		state.weight[i] += __shfl_xor_sync(0xffffffff, state.weight[i], 2);
	}
}

template <typename F> static __device__ void state_clear(struct state<F> &state)
{
	state.most[0] = state.most[1] = minus_infinity();
	state.weight[0] = state.weight[1] = 0;
#pragma unroll
	for (int i = 0; i < F::VALUE_PARTS * F::WIDTH * 4; i++)
		state.sums[i / 4 / F::WIDTH][i / 4 % F::WIDTH][i % 4] = 0;
}

/* lane_column() - return the lane's first column of a part; i: the column 2c or 2c + 1 of a tensor operation. */
template <typename F> static __device__ uint32_t lane_column(int part, int i)
{
	return (part * 8 + threadIdx.x % 4 * 2 + i) * F::WIDTH;
}

/* ---- prefill ---- */

template <typename F, uint32_t E, bool CODES>
static __device__ __forceinline__ void prefill(const struct attention_args &args, uint4 *memory)
{
	const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	uint4 *queries = memory + warp * F::QUERIES * 32;
	struct state<F> state;
	struct job job;

	if (!job_get(args, F::ROWS, job))
		return;

	const uint32_t first = job.first + warp * ATTENTION_ROWS, row = first + lane / 4;

	queries_load<F>(args, job, first, lane, 32, queries);
	state_clear(state);
	/* The wait for the first keys includes the queries. All warps meet at the barrier that follows it. */
	tokens_add<F, E, CODES>(
		args, job, row, 0, job.end, F::TOKENS, queries, memory + F::WARPS * F::QUERIES * 32, state);
#pragma unroll
	for (int half = 0; half < 2; half++) {
		const float factor = state.weight[half] > 0 ? 1 / state.weight[half] : 0;
		uint16_t *to = (uint16_t *)args.output;

		if (row + half * 8 >= job.rows)
			continue;
		to += row_at(args, job, row + half * 8, args.output_stride);
#pragma unroll
		for (int i = 0; i < F::VALUE_PARTS * 2 * F::WIDTH / 8; i++) {
			const int part = i / (F::WIDTH / 4), in = i % (F::WIDTH / 4), j = in % (F::WIDTH / 8) * 8;
			const int d = half * 2 + in / (F::WIDTH / 8);
			const uint32_t column = lane_column<F>(part, in / (F::WIDTH / 8)) + j;
			uint32_t words[4];

#pragma unroll
			for (int k = 0; k < 4; k++)
				words[k] = pair_bits<E>(state.sums[part][j + 2 * k][d] * factor,
					state.sums[part][j + 2 * k + 1][d] * factor);
			if (column < args.head_size)
				*(uint4 *)(to + column) = make_uint4(words[0], words[1], words[2], words[3]);
		}
	}
}

/* ---- decode ---- */

/* A result consists of the sums of a row, sums[row][column], its largest product and its weight. */
template <bool GLOBAL> static __device__ float number_get(const float *place)
{
	return GLOBAL ? __ldcg(place) : *place;
}

/*
 * results_add() - combine `count` results for a row and column, which are `stride` floats apart. GLOBAL: they are in
 * device memory and were written by other thread blocks, so loads bypass the first-level cache, which may be outdated.
 */
template <bool GLOBAL>
static __device__ float results_add(const float *sums, const float *most, const float *weight, uint64_t stride,
	uint32_t count, float &total_most, float &total_weight)
{
	float sum = 0;

	total_most = minus_infinity();
	total_weight = 0;
	for (uint32_t i = 0; i < count; i++)
		total_most = fmaxf(total_most, number_get<GLOBAL>(most + i * stride));
	for (uint32_t i = 0; i < count && total_most != minus_infinity(); i++) {
		const float factor = power_of_two(number_get<GLOBAL>(most + i * stride) - total_most);

		total_weight += factor * number_get<GLOBAL>(weight + i * stride);
		sum += factor * number_get<GLOBAL>(sums + i * stride);
	}
	return sum;
}

/* The results of the warps in shared memory: [WARPS] of [16][ROW_STRIDE] sums, [16] maxima, [16] weights. */
template <typename F> static __device__ void state_put(const struct state<F> &state, float *results)
{
	const uint32_t g = threadIdx.x % 32 / 4;
	float *mine = results + threadIdx.x / 32 * ATTENTION_ROWS * (F::ROW_STRIDE + 2);

#pragma unroll
	for (int half = 0; half < 2; half++) {
		const uint32_t row = g + half * 8;

#pragma unroll
		for (int part = 0; part < F::VALUE_PARTS; part++)
#pragma unroll
			for (int i = 0; i < 2 * F::WIDTH; i++) {
				const uint32_t column = lane_column<F>(part, i / F::WIDTH) + i % F::WIDTH;

				if (column < F::COLUMNS)
					mine[row * F::ROW_STRIDE + column] =
						state.sums[part][i % F::WIDTH][half * 2 + i / F::WIDTH];
			}
		if (threadIdx.x % 4 == 0) {
			mine[ATTENTION_ROWS * F::ROW_STRIDE + row] = state.most[half];
			mine[ATTENTION_ROWS * (F::ROW_STRIDE + 1) + row] = state.weight[half];
		}
	}
}

/* is_last() - return true if the other `count` - 1 splits of this tile and head are written and visible. */
static __device__ bool is_last(const struct attention_args &args, uint32_t count, uint32_t *flag)
{
	uint32_t *counter = (uint32_t *)args.workspace + (uint64_t)blockIdx.x * gridDim.y + blockIdx.y;

	__threadfence();
	__syncthreads();
	if (threadIdx.x == 0) {
		*flag = atomicAdd(counter, 1) == count - 1;
		if (*flag)
			atomicExch(counter, 0); /* for the next launch */
	}
	__syncthreads();
	__threadfence();
	return *flag;
}

template <uint32_t E>
static __device__ void element_put(
	const struct attention_args &args, const struct job &job, uint32_t row, uint32_t column, float value)
{
	uint16_t *to = (uint16_t *)args.output + row_at(args, job, row, args.output_stride);

	to[column] = E == ELEMENT_F16 ? f16_of_float(value) : bf16_of_float(value);
}

template <typename F, uint32_t E, bool CODES>
static __device__ __forceinline__ void decode(const struct attention_args &args, uint4 *memory)
{
	const uint32_t warp = threadIdx.x / 32;
	const uint64_t floats = attention_partial_floats(&args), stride = gridDim.z * floats;
	uint4 *slots = memory + F::QUERIES * 32 + warp * (F::KEYS + F::VALUES) * 32;
	struct state<F> state;
	struct job job;

	if (!job_get(args, F::ROWS, job))
		return;

	const uint32_t part = attention_split_tokens(gridDim.z, job.tokens), begin = blockIdx.z * part,
		       splits = (job.end + part - 1) / part, rows = min(job.rows - job.first, F::ROWS);

	if (blockIdx.z >= splits)
		return;
	queries_load<F>(args, job, job.first, threadIdx.x, F::THREADS, memory);
	async_copies_end();
	state_clear(state);
	tokens_add<F, E, CODES>(args, job, job.first + threadIdx.x % 32 / 4, begin + warp * F::TOKENS,
		min(begin + part, job.end), F::WARPS * F::TOKENS, memory, slots, state);
	__syncthreads(); /* the results reuse the memory of the slots */

	float *results = (float *)(memory + 1);
	float *partial = attention_partials(&args) + ((uint64_t)blockIdx.x * gridDim.y + blockIdx.y) * stride +
		blockIdx.z * floats;
	const uint32_t partial_rows = attention_partial_rows(&args);
	float most, weight;

	state_put(state, results);
	__syncthreads();
	for (uint32_t i = threadIdx.x; i < rows * args.head_size; i += F::THREADS) {
		const uint32_t row = i / args.head_size, column = i % args.head_size;
		const float *tops = results + ATTENTION_ROWS * F::ROW_STRIDE + row;
		const float sum = results_add<false>(results + row * F::ROW_STRIDE + column, tops,
			tops + ATTENTION_ROWS, ATTENTION_ROWS * (F::ROW_STRIDE + 2), F::WARPS, most, weight);

		if (splits == 1) {
			element_put<E>(args, job, job.first + row, column, weight > 0 ? sum / weight : 0);
			continue;
		}
		partial[i] = sum;
		if (!column) {
			partial[partial_rows * args.head_size + row] = most;
			partial[partial_rows * (args.head_size + 1) + row] = weight;
		}
	}
	if (splits == 1 || !is_last(args, splits, (uint32_t *)memory))
		return;
	partial -= blockIdx.z * floats;
	for (uint32_t i = threadIdx.x; i < rows * args.head_size; i += F::THREADS) {
		const uint32_t row = i / args.head_size;
		const float *tops = partial + partial_rows * args.head_size + row;
		const float sum =
			results_add<true>(partial + i, tops, tops + partial_rows, floats, splits, most, weight);

		element_put<E>(args, job, job.first + row, i % args.head_size, weight > 0 ? sum / weight : 0);
	}
}

/* ---- the kernels ---- */

template <int C, bool DECODE, uint32_t E>
static __device__ __forceinline__ void attention(const struct attention_args &args, uint4 *memory)
{
	if (DECODE) {
		if (args.int8)
			decode<form<E, true, C, true>, E, true>(args, memory);
		else
			decode<form<E, false, C, true>, E, false>(args, memory);
	} else {
		if (args.int8)
			prefill<form<E, true, C, false>, E, true>(args, memory);
		else
			prefill<form<E, false, C, false>, E, false>(args, memory);
	}
}

/* `blocks` per multiprocessor limit the registers of a thread. */
#define ATTENTION(name, c, is_decode, threads, blocks) \
	extern "C" __global__ void __launch_bounds__(threads, blocks) \
		name(const __grid_constant__ struct attention_args args) \
	{ \
		extern __shared__ uint4 block_memory[]; \
\
		if (args.element == ELEMENT_F16) \
			attention<c, is_decode, ELEMENT_F16>(args, block_memory); \
		else \
			attention<c, is_decode, ELEMENT_BF16>(args, block_memory); \
	}

#ifndef ATTENTION_FORMS_ONLY
ATTENTION(attention_decode_64, 64, true, 128, 3)
ATTENTION(attention_decode_128, 128, true, 128, 3)
ATTENTION(attention_decode_256, 256, true, 64, 4)
ATTENTION(attention_prefill_64, 64, false, 128, 3)
ATTENTION(attention_prefill_128, 128, false, 128, 2)
ATTENTION(attention_prefill_256, 256, false, 64, 4)
#endif
