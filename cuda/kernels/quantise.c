/* quantise.c - quantise and dequantise: what is refused, the shape of the launch, and the references in C. */
#include "cuda/kernels/quantise.h"

#include "cuda/gpu_private.h"

#include <errno.h>
#include <math.h>

enum { BLOCK_THREADS = 256, BLOCK_GROUPS = BLOCK_THREADS / 32 }; /* a warp for each group */
static const uint64_t elements_max = 1ull << 48;
static const uint32_t blocks_max = 132 * 16; /* a few for each multiprocessor; they go on with the next groups */

static int args_check(const struct quantise_args *args)
{
	uint32_t bytes;

	if (!args || args->element >= ELEMENTS)
		return gpu_fail(-EINVAL, "quantise: no elements of kind %u; there are fp16, bf16 and fp32", args ? args->element : 0);
	bytes = element_bytes(args->element);
	if (!args->columns || args->columns > elements_max || args->rows > elements_max / args->columns)
		return gpu_fail(-EINVAL, "quantise: %llu rows of %llu columns; at least one column, at most 2^48 elements",
			(unsigned long long)args->rows, (unsigned long long)args->columns);
	if (!args->values || !args->codes || !args->scales || args->values % bytes || args->scales % 2 || args->error % 8)
		return gpu_fail(-EINVAL, "quantise: values, codes and scales must be there and aligned, the error to 8 bytes");
	return 0;
}

static int queue(struct gpu *gpu, enum gpu_kernel kernel, const struct quantise_args *args, struct gpu_stream *stream)
{
	struct gpu_shape shape = { .grid = { 1, 1, 1 }, .block = BLOCK_THREADS };
	uint64_t blocks;
	int rc = args_check(args);

	if (rc < 0 || !args->rows)
		return rc;
	blocks = (args->rows * quantise_groups(args->columns, args->group) + BLOCK_GROUPS - 1) / BLOCK_GROUPS;
	shape.grid[0] = blocks < blocks_max ? (uint32_t)blocks : blocks_max;
	return gpu_launch(gpu, kernel, &shape, args, sizeof(*args), stream);
}

int quantise_queue(struct gpu *gpu, const struct quantise_args *args, struct gpu_stream *stream)
{
	return queue(gpu, GPU_KERNEL_QUANTISE, args, stream);
}

int dequantise_queue(struct gpu *gpu, const struct quantise_args *args, struct gpu_stream *stream)
{
	return queue(gpu, GPU_KERNEL_DEQUANTISE, args, stream);
}

static float value_get(const struct quantise_args *args, uint64_t at)
{
	const void *values = (const void *)(uintptr_t)args->values;

	switch (args->element) {
	case ELEMENT_F16:
		return float_of_f16(((const uint16_t *)values)[at]);
	case ELEMENT_BF16:
		return float_of_bf16(((const uint16_t *)values)[at]);
	default:
		return ((const float *)values)[at];
	}
}

static void value_put(const struct quantise_args *args, uint64_t at, float value)
{
	void *values = (void *)(uintptr_t)args->values;

	switch (args->element) {
	case ELEMENT_F16:
		((uint16_t *)values)[at] = f16_of_float(value);
		break;
	case ELEMENT_BF16:
		((uint16_t *)values)[at] = bf16_of_float(value);
		break;
	default:
		((float *)values)[at] = value;
	}
}

/* Where a group begins, how long it is, and its scale. */
struct group {
	uint64_t begin;
	uint64_t count;
	uint16_t *scale;
};

static struct group group_at(const struct quantise_args *args, uint64_t index)
{
	uint64_t groups = quantise_groups(args->columns, args->group), length = args->group ? args->group : args->columns;
	uint64_t column = index % groups * length;
	uint64_t left = args->columns - column;

	return (struct group){
		.begin = index / groups * args->columns + column,
		.count = left < length ? left : length,
		.scale = (uint16_t *)(uintptr_t)args->scales + index,
	};
}

/* group_largest() - the largest magnitude; infinity when one is not finite. */
static float group_largest(const struct quantise_args *args, const struct group *group)
{
	float largest = 0;

	for (uint64_t i = 0; i < group->count; i++) {
		float magnitude = fabsf(value_get(args, group->begin + i));

		if (!isfinite(magnitude))
			return INFINITY;
		largest = magnitude > largest ? magnitude : largest;
	}
	return largest;
}

static void group_quantise(const struct quantise_args *args, const struct group *group, struct quantise_error *error)
{
	int8_t *codes = (int8_t *)(uintptr_t)args->codes + group->begin;
	float largest = group_largest(args, group), scale;

	*group->scale = quantise_scale(largest);
	scale = float_of_bf16(*group->scale);
	if (!isfinite(largest)) {
		memset(codes, 0, group->count);
		error->max_error = INFINITY;
		return;
	}
	for (uint64_t i = 0; i < group->count; i++) {
		float value = value_get(args, group->begin + i), code = scale > 0 ? rintf(value / scale) : 0, difference;

		code = code > 127 ? 127 : code < -127 ? -127 : code;
		codes[i] = (int8_t)code;
		difference = fabsf(value - code * scale);
		error->max_error = difference > error->max_error ? difference : error->max_error;
		error->error_squares += (double)difference * difference;
		error->squares += (double)value * value;
	}
}

void quantise_host(const struct quantise_args *args)
{
	uint64_t groups = args->rows * quantise_groups(args->columns, args->group);
	struct quantise_error error = { 0 }, *all = (struct quantise_error *)(uintptr_t)args->error;

	for (uint64_t i = 0; i < groups; i++) {
		struct group group = group_at(args, i);

		group_quantise(args, &group, &error);
	}
	if (!all)
		return;
	all->error_squares += error.error_squares;
	all->squares += error.squares;
	all->max_error = error.max_error > all->max_error ? error.max_error : all->max_error;
}

void dequantise_host(const struct quantise_args *args)
{
	uint64_t groups = args->rows * quantise_groups(args->columns, args->group);
	const int8_t *codes = (const int8_t *)(uintptr_t)args->codes;

	for (uint64_t index = 0; index < groups; index++) {
		struct group group = group_at(args, index);
		float scale = float_of_bf16(*group.scale);

		for (uint64_t i = group.begin; i < group.begin + group.count; i++)
			value_put(args, i, (float)codes[i] * scale);
	}
}
