/*
 * quantise.cu - conversion to int8 and back, 16 bytes at a time where the arguments permit it, and element by element
 * otherwise. Each thread has four loads in flight.
 *
 * quantise needs a group twice, for its largest magnitude and for the codes. A group of at most 32 parts stays in the
 * registers of as many lanes, and a warp converts several such groups at once. A longer group is read again for the
 * codes, from the cache, because it has only tens of thousands of bytes even if it is a whole row. The groups of
 * kv_write are vectors of keys and values, which are never longer than 32 parts.
 *
 * Codes and scales equal those of the C reference bit by bit. The sums of errors are added in another order, with fused
 * multiplications.
 */
#include "cuda/kernels/kv_write.h"
#include "cuda/kernels/quantise.h"

enum { AT_ONCE = 4 };

static __device__ float infinity(void)
{
	return float_of_bits(0x7f800000);
}

/* ---- parts: W adjacent elements of a group, which a thread loads at once ---- */

template <uint32_t element, int W> struct part {
	enum { BYTES = element == ELEMENT_F32 ? 4 : 2, WORDS = (W * BYTES + 3) / 4 };
	uint32_t words[WORDS];
};

template <uint32_t element, int W> static __device__ struct part<element, W> part_get(uint64_t values, uint64_t at) {
	struct part<element, W> part;
	const char *from = (const char *)values + at * part.BYTES;

	if (W > 1) {
		const uint4 all = __ldg((const uint4 *)from);
		const uint32_t words[4] = {all.x, all.y, all.z, all.w};

#pragma unroll
		for (int i = 0; i < part.WORDS; i++)
			part.words[i] = words[i];
	} else {
		part.words[0] = part.BYTES == 4 ? *(const uint32_t *)from : *(const uint16_t *)from;
	}
	return part;
}

template <uint32_t element, int W>
static __device__ float part_value(const struct part<element, W> &part, int i)
{
	const uint32_t word = part.words[i * part.BYTES / 4];

	if (element == ELEMENT_F16)
		return float_of_f16((uint16_t)(word >> i % 2 * 16));
	if (element == ELEMENT_BF16)
		return float_of_bits(i % 2 ? word & 0xffff0000 : word << 16);
	return float_of_bits(word);
}

/* part_largest() - return the largest magnitude of the part and of `largest`; infinity also for a NaN. */
template <uint32_t element, int W>
static __device__ float part_largest(const struct part<element, W> &part, float largest)
{
#pragma unroll
	for (int i = 0; i < W; i++) {
		const float magnitude = fabsf(part_value(part, i));

		largest = magnitude <= 3.402823466e+38f ? fmaxf(largest, magnitude) : infinity();
	}
	return largest;
}

/* lanes_max() - return the maximum of `lanes` adjacent lanes, a power of two; values are neither negative nor NaN. */
static __device__ float lanes_max(float value, uint32_t lanes)
{
	for (uint32_t step = lanes / 2; step; step /= 2)
		value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, step));
	return value;
}

static __device__ double warp_sum(double value)
{
	for (int step = 16; step; step /= 2)
		value += __shfl_xor_sync(0xffffffff, value, step);
	return value;
}

/* ---- quantise ---- */

/* The errors that one thread has found. */
struct errors {
	bool wanted;
	double error_squares, squares;
	float max_error;
};

/*
 * quotient() - return value / scale, correctly rounded where the rounding of a code depends on it, in a few
 * instructions instead of a division: `reciprocal` is the rounded reciprocal of the scale, and the remainder corrects
 * the product (P. Markstein, "Computation of elementary functions on the IBM RISC System/6000 processor", 1990). Both
 * numbers are multiplied by `boost`, a power of two that keeps small ones and the remainder in the range of normal
 * numbers.
 */
static __device__ float quotient(float value, float scale, float boost, float reciprocal)
{
	const float estimate = value * boost * reciprocal;

	return fmaf(fmaf(-estimate, scale * boost, value * boost), reciprocal, estimate);
}

/* part_quantise() - store the codes of a part whose group has this largest magnitude at `to`. */
template <uint32_t element, int W>
static __device__ void part_quantise(
	uint64_t to, const struct part<element, W> &part, float largest, struct errors &errors)
{
	const float scale = float_of_bf16(quantise_scale(largest)), boost = scale < 0x1p-60f ? 0x1p64f : 1,
		    reciprocal = scale > 0 ? 1 / (scale * boost) : 0;
	uint64_t codes = 0;

#pragma unroll
	for (int i = 0; i < W; i++) {
		const float value = isinf(largest) ? 0 : part_value(part, i);
		const float code = fminf(fmaxf(rintf(quotient(value, scale, boost, reciprocal)), -127), 127);

		codes |= (uint64_t)(uint8_t)(int8_t)code << i * 8;
		if (errors.wanted) {
			const float difference = fabsf(value - quantise_value((int8_t)code, scale, element));

			errors.max_error = fmaxf(errors.max_error, difference);
			errors.error_squares += (double)difference * difference;
			errors.squares += (double)value * value;
		}
	}
	if (W == 8)
		*(uint64_t *)to = codes;
	else if (W == 4)
		*(uint32_t *)to = (uint32_t)codes;
	else
		*(uint8_t *)to = (uint8_t)codes;
}

/* scale_put() - store the scale of a group at `to`. */
static __device__ void scale_put(uint64_t to, float largest, struct errors &errors)
{
	*(uint16_t *)to = quantise_scale(largest);
	if (isinf(largest))
		errors.max_error = infinity();
}

/* errors_add() - add the errors of the threads of a warp to those at `to`; 0: they are not wanted. */
static __device__ void errors_add(uint64_t to, const struct errors &errors)
{
	struct quantise_error *all = (struct quantise_error *)to;

	if (!to)
		return;

	const double error_squares = warp_sum(errors.error_squares), squares = warp_sum(errors.squares);
	const float max_error = lanes_max(errors.max_error, 32);

	if (threadIdx.x % 32 == 0) {
		atomicAdd(&all->error_squares, error_squares);
		atomicAdd(&all->squares, squares);
		/* Non-negative floats are ordered like their bits. */
		atomicMax((int *)&all->max_error, __float_as_int(max_error));
	}
}

/* The groups of a launch. */
struct groups {
	uint64_t count, per_row, length, columns;
	bool even; /* all have the same length, so they follow each other without a gap */
};

static __device__ struct groups groups_get(const struct quantise_args &args)
{
	struct groups groups;

	groups.per_row = quantise_groups(args.columns, args.group);
	groups.count = args.rows * groups.per_row;
	groups.length = args.group ? args.group : args.columns;
	groups.columns = args.columns;
	groups.even = groups.per_row * groups.length == args.columns;
	return groups;
}

/* group_begin() - return the first element of a group; length: receives their number. */
static __device__ uint64_t group_begin(const struct groups &groups, uint64_t group, uint64_t &length)
{
	length = groups.length;
	if (groups.even)
		return group * groups.length;

	const uint64_t row = group / groups.per_row, column = (group - row * groups.per_row) * groups.length;

	if (groups.columns - column < length)
		length = groups.columns - column;
	return row * groups.columns + column;
}

/* short_quantise() - convert groups of at most 32 parts: `lanes` lanes per group, four groups per lane at once. */
template <uint32_t element, int W>
static __device__ void short_quantise(
	const struct quantise_args &args, const struct groups &groups, uint32_t lanes, struct errors &errors)
{
	const uint32_t lane = threadIdx.x % 32, at_once = 32 / lanes, own = lane % lanes * W;
	const uint64_t warp = (uint64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32,
		       step = (uint64_t)gridDim.x * (blockDim.x / 32) * at_once * AT_ONCE;

	for (uint64_t first = warp * at_once * AT_ONCE; first < groups.count; first += step) {
		struct part<element, W> part[AT_ONCE];
		uint64_t at[AT_ONCE];
		bool used[AT_ONCE];

#pragma unroll
		for (int n = 0; n < AT_ONCE; n++) {
			const uint64_t group = first + n * at_once + lane / lanes;
			uint64_t length = 0;

			at[n] = group < groups.count ? group_begin(groups, group, length) + own : 0;
			used[n] = own < length;
		}
#pragma unroll
		for (int n = 0; n < AT_ONCE; n++) {
			part[n] = {};
			if (used[n])
				part[n] = part_get<element, W>(args.values, at[n]);
		}
#pragma unroll
		for (int n = 0; n < AT_ONCE; n++) {
			const uint64_t group = first + n * at_once + lane / lanes;
			const float largest = lanes_max(part_largest(part[n], 0), lanes);

			if (!own && used[n])
				scale_put(args.scales + group * 2, largest, errors);
			if (used[n])
				part_quantise(args.codes + at[n], part[n], largest, errors);
		}
	}
}

/* long_quantise() - convert groups with one warp each. */
template <uint32_t element, int W>
static __device__ void long_quantise(
	const struct quantise_args &args, const struct groups &groups, struct errors &errors)
{
	const uint32_t lane = threadIdx.x % 32, warps = blockDim.x / 32;
	const uint64_t first = (uint64_t)blockIdx.x * warps + threadIdx.x / 32;

	for (uint64_t group = first; group < groups.count; group += (uint64_t)gridDim.x * warps) {
		struct part<element, W> part[AT_ONCE];
		uint64_t length;
		const uint64_t begin = group_begin(groups, group, length);
		float largest = 0;

		for (int pass = 0; pass < 2; pass++) {
			for (uint64_t at = lane * W; at < length; at += AT_ONCE * 32 * W) {
#pragma unroll
				for (int n = 0; n < AT_ONCE; n++)
					if (at + n * 32 * W < length)
						part[n] = part_get<element, W>(args.values, begin + at + n * 32 * W);
#pragma unroll
				for (int n = 0; n < AT_ONCE; n++)
					if (at + n * 32 * W < length) {
						if (!pass)
							largest = part_largest(part[n], largest);
						else
							part_quantise(args.codes + begin + at + n * 32 * W, part[n],
								largest, errors);
					}
			}
			if (!pass)
				largest = lanes_max(largest, 32);
		}
		if (lane == 0)
			scale_put(args.scales + group * 2, largest, errors);
	}
}

template <uint32_t element, int W>
static __device__ void parts_quantise(const struct quantise_args &args, struct errors &errors)
{
	const struct groups groups = groups_get(args);
	uint32_t lanes = 1;

	if (groups.length > 32 * W)
		return long_quantise<element, W>(args, groups, errors);
	while (lanes * W < groups.length)
		lanes *= 2;
	short_quantise<element, W>(args, groups, lanes, errors);
}

template <uint32_t element> static __device__ void rows_quantise(const struct quantise_args &args)
{
	enum { W = element == ELEMENT_F32 ? 4 : 8 };
	struct errors errors = {args.error != 0, 0, 0, 0};

	if (args.values % 16 == 0 && args.codes % W == 0 && args.columns % W == 0 && args.group % W == 0)
		parts_quantise<element, W>(args, errors);
	else
		parts_quantise<element, 1>(args, errors);
	errors_add(args.error, errors);
}

/* Two blocks per multiprocessor: without this limit, ptxas uses fewer registers, and spills some. */
extern "C" __global__ void __launch_bounds__(256, 2) quantise(const struct quantise_args args)
{
	if (args.element == ELEMENT_F16)
		rows_quantise<ELEMENT_F16>(args);
	else if (args.element == ELEMENT_BF16)
		rows_quantise<ELEMENT_BF16>(args);
	else
		rows_quantise<ELEMENT_F32>(args);
}

/* ---- kv_write ---- */

/* heads_write() - convert the keys or values (z) of a head (y): `lanes` lanes per token, four tokens at once. */
template <uint32_t element>
static __device__ void heads_write(const struct kv_write_args &args, uint32_t lanes, struct errors &errors)
{
	enum { W = 8 };
	const bool value = blockIdx.z;
	const uint64_t from = (value ? args.values : args.keys) + (uint64_t)blockIdx.y * args.head_size * 2;
	const uint32_t stride = value ? args.value_stride : args.key_stride;
	const uint32_t lane = threadIdx.x % 32, at_once = 32 / lanes, own = lane % lanes * W;
	const uint32_t warp = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32,
		       step = gridDim.x * (blockDim.x / 32) * at_once * AT_ONCE;

	for (uint32_t first = warp * at_once * AT_ONCE; first < args.tokens; first += step) {
		struct part<element, W> part[AT_ONCE];
		uint64_t slot[AT_ONCE];

#pragma unroll
		for (int n = 0; n < AT_ONCE; n++) {
			const uint32_t token = first + n * at_once + lane / lanes;

			slot[n] = UINT64_MAX;
			part[n] = {};
			if (token < args.tokens && own < args.head_size) {
				slot[n] = ((const uint64_t *)args.slots)[token];
				part[n] = part_get<element, W>(from, (uint64_t)token * stride + own);
			}
		}
#pragma unroll
		for (int n = 0; n < AT_ONCE; n++) {
			const float largest = lanes_max(part_largest(part[n], 0), lanes);
			const bool used = slot[n] < kv_write_slots(&args);
			const struct kv_write_to to = kv_write_to_of(&args, used ? slot[n] : 0, blockIdx.y, value);

			if (used && !own)
				scale_put(to.scale, largest, errors);
			if (used)
				part_quantise(to.codes + own, part[n], largest, errors);
		}
	}
}

template <uint32_t element> static __device__ void tokens_write(const struct kv_write_args &args)
{
	struct errors errors = {args.error != 0, 0, 0, 0};
	uint32_t lanes = 2;

	while (lanes * 8 < args.head_size)
		lanes *= 2;
	heads_write<element>(args, lanes, errors);
	errors_add(args.error, errors);
}

extern "C" __global__ void __launch_bounds__(256, 2) kv_write(const struct kv_write_args args)
{
	if (args.element == ELEMENT_F16)
		tokens_write<ELEMENT_F16>(args);
	else
		tokens_write<ELEMENT_BF16>(args);
}

/* ---- dequantise ---- */

template <uint32_t element> static __device__ uint32_t value_bits(int8_t code, float scale)
{
	const float value = quantise_value(code, scale, element);

	return element == ELEMENT_F16     ? f16_of_float(value)
		: element == ELEMENT_BF16 ? bf16_of_float(value)
					  : float_bits(value);
}

/* code_at() - return one of the four codes of a word. */
static __device__ int8_t code_at(uint32_t word, int i)
{
	return (int8_t)(word >> i * 8);
}

/* codes_put() - store the values of 16 codes from element `at` on. */
template <uint32_t element>
static __device__ void codes_put(const struct quantise_args &args, uint64_t at, const uint4 &codes, float scale)
{
	const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};

	if (element == ELEMENT_F32) {
		uint4 *to = (uint4 *)(args.values + at * 4);

#pragma unroll
		for (int i = 0; i < 4; i++)
			to[i] = make_uint4(value_bits<element>(code_at(words[i], 0), scale),
				value_bits<element>(code_at(words[i], 1), scale),
				value_bits<element>(code_at(words[i], 2), scale),
				value_bits<element>(code_at(words[i], 3), scale));
	} else {
		uint4 *to = (uint4 *)(args.values + at * 2);
		uint32_t pairs[8];

#pragma unroll
		for (int i = 0; i < 8; i++)
			pairs[i] = value_bits<element>(code_at(words[i / 2], i % 2 * 2), scale) |
				value_bits<element>(code_at(words[i / 2], i % 2 * 2 + 1), scale) << 16;
		to[0] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
		to[1] = make_uint4(pairs[4], pairs[5], pairs[6], pairs[7]);
	}
}

/* vectors_dequantise() - convert 16 codes at a time. All groups have the same length, a multiple of 16. */
template <uint32_t element>
static __device__ void vectors_dequantise(const struct quantise_args &args, const struct groups &groups)
{
	const uint64_t per_group = groups.length / 16, count = groups.count * per_group;
	const uint64_t threads = (uint64_t)gridDim.x * blockDim.x;

	for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += AT_ONCE * threads) {
		uint4 codes[AT_ONCE];
		uint16_t scale[AT_ONCE];

#pragma unroll
		for (int n = 0; n < AT_ONCE; n++)
			if (i + n * threads < count)
				codes[n] = __ldg((const uint4 *)args.codes + i + n * threads);
#pragma unroll
		for (int n = 0; n < AT_ONCE; n++) {
			const uint64_t at = i + n * threads;

			/* A division of 64 bits takes longer than the load. */
			if (at < count)
				scale[n] = ((
					const uint16_t *)args.scales)[count >> 32 ? at / per_group
										  : (uint32_t)at / (uint32_t)per_group];
		}
#pragma unroll
		for (int n = 0; n < AT_ONCE; n++)
			if (i + n * threads < count)
				codes_put<element>(args, (i + n * threads) * 16, codes[n], float_of_bf16(scale[n]));
	}
}

/* elements_dequantise() - convert element by element, with one warp per group. */
template <uint32_t element>
static __device__ void elements_dequantise(const struct quantise_args &args, const struct groups &groups)
{
	const uint32_t lane = threadIdx.x % 32, warps = blockDim.x / 32;
	const uint64_t first = (uint64_t)blockIdx.x * warps + threadIdx.x / 32;

	for (uint64_t group = first; group < groups.count; group += (uint64_t)gridDim.x * warps) {
		uint64_t length;
		const uint64_t begin = group_begin(groups, group, length);
		const float scale = float_of_bf16(((const uint16_t *)args.scales)[group]);

#pragma unroll 4
		for (uint64_t at = begin + lane; at < begin + length; at += 32) {
			const uint32_t bits = value_bits<element>(((const int8_t *)args.codes)[at], scale);

			if (element == ELEMENT_F32)
				((uint32_t *)args.values)[at] = bits;
			else
				((uint16_t *)args.values)[at] = (uint16_t)bits;
		}
	}
}

template <uint32_t element> static __device__ void rows_dequantise(const struct quantise_args &args)
{
	const struct groups groups = groups_get(args);

	if (groups.even && groups.length % 16 == 0 && args.values % 16 == 0 && args.codes % 16 == 0)
		vectors_dequantise<element>(args, groups);
	else
		elements_dequantise<element>(args, groups);
}

extern "C" __global__ void __launch_bounds__(256) dequantise(const struct quantise_args args)
{
	if (args.element == ELEMENT_F16)
		rows_dequantise<ELEMENT_F16>(args);
	else if (args.element == ELEMENT_BF16)
		rows_dequantise<ELEMENT_BF16>(args);
	else
		rows_dequantise<ELEMENT_F32>(args);
}
