/*
 * quantise.cu - one warp per group, in two passes: the largest magnitude, then the codes. The second pass reads the
 * group from the cache, because a group has only some hundred bytes, or tens of thousands if it is a whole row.
 *
 * Codes and scales equal those of the C reference bit by bit. The sums of errors are added in another order, with fused
 * multiplications.
 */
#include "cuda/kernels/quantise.h"

static __device__ float infinity(void)
{
	return float_of_bits(0x7f800000);
}

struct group {
	uint64_t begin, count;
};

static __device__ struct group group_at(const struct quantise_args &args, uint64_t index)
{
	const uint64_t groups = quantise_groups(args.columns, args.group),
		       length = args.group ? args.group : args.columns;
	const uint64_t column = index % groups * length, left = args.columns - column;
	struct group group = {index / groups * args.columns + column, left < length ? left : length};

	return group;
}

template <uint32_t element> static __device__ float value_get(const struct quantise_args &args, uint64_t at)
{
	if (element == ELEMENT_F16)
		return float_of_f16(((const uint16_t *)args.values)[at]);
	if (element == ELEMENT_BF16)
		return float_of_bf16(((const uint16_t *)args.values)[at]);
	return ((const float *)args.values)[at];
}

template <uint32_t element> static __device__ void value_put(const struct quantise_args &args, uint64_t at, float value)
{
	if (element == ELEMENT_F16)
		((uint16_t *)args.values)[at] = f16_of_float(value);
	else if (element == ELEMENT_BF16)
		((uint16_t *)args.values)[at] = bf16_of_float(value);
	else
		((float *)args.values)[at] = value;
}

/* warp_max() - return the maximum of all lanes; values are neither negative nor NaN. */
static __device__ float warp_max(float value)
{
	for (int step = 16; step; step /= 2)
		value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, step));
	return value;
}

static __device__ double warp_sum(double value)
{
	for (int step = 16; step; step /= 2)
		value += __shfl_xor_sync(0xffffffff, value, step);
	return value;
}

/* The errors that one thread has found. */
struct errors {
	double error_squares, squares;
	float max_error;
};

template <uint32_t element>
static __device__ void group_quantise(
	const struct quantise_args &args, uint64_t index, uint32_t lane, struct errors &errors)
{
	const struct group group = group_at(args, index);
	int8_t *codes = (int8_t *)args.codes + group.begin;
	float largest = 0;

	for (uint64_t i = lane; i < group.count; i += 32) {
		const float magnitude = fabsf(value_get<element>(args, group.begin + i));

		largest = magnitude <= 3.402823466e+38f ? fmaxf(largest, magnitude) : infinity(); /* also for a NaN */
		if (isinf(largest))
			break;
	}
	largest = warp_max(largest);

	const uint16_t scale_bits = quantise_scale(largest);
	const float scale = float_of_bf16(scale_bits);

	if (lane == 0)
		((uint16_t *)args.scales)[index] = scale_bits;
	if (isinf(largest))
		errors.max_error = infinity();
	for (uint64_t i = lane; i < group.count; i += 32) {
		const float value = isinf(largest) ? 0 : value_get<element>(args, group.begin + i);
		float code = scale > 0 ? rintf(value / scale) : 0;

		code = fminf(fmaxf(code, -127), 127);
		codes[i] = (int8_t)code;

		const float difference = fabsf(value - quantise_value((int8_t)code, scale, element));

		errors.max_error = fmaxf(errors.max_error, difference);
		errors.error_squares += (double)difference * difference;
		errors.squares += (double)value * value;
	}
}

template <uint32_t element> static __device__ void rows_quantise(const struct quantise_args &args)
{
	const uint64_t groups = args.rows * quantise_groups(args.columns, args.group);
	const uint32_t lane = threadIdx.x % 32, warps = blockDim.x / 32;
	struct errors errors = {0, 0, 0};

	for (uint64_t i = (uint64_t)blockIdx.x * warps + threadIdx.x / 32; i < groups; i += (uint64_t)gridDim.x * warps)
		group_quantise<element>(args, i, lane, errors);
	if (!args.error)
		return;

	struct quantise_error *all = (struct quantise_error *)args.error;
	const double error_squares = warp_sum(errors.error_squares), squares = warp_sum(errors.squares);
	const float max_error = warp_max(errors.max_error);

	if (lane == 0) {
		atomicAdd(&all->error_squares, error_squares);
		atomicAdd(&all->squares, squares);
		/* Non-negative floats are ordered like their bits. */
		atomicMax((int *)&all->max_error, __float_as_int(max_error));
	}
}

template <uint32_t element> static __device__ void rows_dequantise(const struct quantise_args &args)
{
	const uint64_t groups = args.rows * quantise_groups(args.columns, args.group);
	const uint32_t lane = threadIdx.x % 32, warps = blockDim.x / 32;

	const uint64_t first = (uint64_t)blockIdx.x * warps + threadIdx.x / 32;

	for (uint64_t index = first; index < groups; index += (uint64_t)gridDim.x * warps) {
		const struct group group = group_at(args, index);
		const float scale = float_of_bf16(((const uint16_t *)args.scales)[index]);

		for (uint64_t i = group.begin + lane; i < group.begin + group.count; i += 32)
			value_put<element>(args, i, quantise_value(((const int8_t *)args.codes)[i], scale, element));
	}
}

extern "C" __global__ void __launch_bounds__(256) quantise(const struct quantise_args args)
{
	if (args.element == ELEMENT_F16)
		rows_quantise<ELEMENT_F16>(args);
	else if (args.element == ELEMENT_BF16)
		rows_quantise<ELEMENT_BF16>(args);
	else
		rows_quantise<ELEMENT_F32>(args);
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
