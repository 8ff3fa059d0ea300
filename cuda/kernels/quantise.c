/* quantise.c - quantise and dequantise: checks, the shape of the launch, and the C references. */
#include "cuda/kernels/quantise.h"

#include "cuda/gpu_private.h"
#include "cuda/kernels/element_rows.h"

#include <errno.h>
#include <math.h>

enum { BLOCK_THREADS = 256, BLOCK_GROUPS = BLOCK_THREADS / 32 }; /* one warp per group */
static const uint64_t elements_max = 1ull << 48;
static const uint32_t blocks_max = 132 * 16; /* a few blocks per multiprocessor; each loops over groups */

static int args_check(const struct quantise_args *args)
{
	uint32_t bytes;

	if (!args || args->element >= ELEMENTS)
		return gpu_fail(
			-EINVAL, "quantise: unknown element %u; expected fp16, bf16 or fp32", args ? args->element : 0);
	bytes = element_bytes(args->element);
	if (!args->columns || args->columns > elements_max || args->rows > elements_max / args->columns)
		return gpu_fail(-EINVAL,
			"quantise: %llu rows of %llu columns; there must be at least one column and at most 2^48 "
			"elements",
			(unsigned long long)args->rows, (unsigned long long)args->columns);
	if (!args->values || !args->codes || !args->scales || args->values % bytes || args->scales % 2 ||
		args->error % 8)
		return gpu_fail(-EINVAL,
			"quantise: values, codes and scales must not be 0 and must be aligned; error must be aligned "
			"to 8 bytes");
	return 0;
}

static int queue(struct gpu *gpu, enum gpu_kernel kernel, const struct quantise_args *args, struct gpu_stream *stream)
{
	struct gpu_shape shape = {.grid = {1, 1, 1}, .block = BLOCK_THREADS};
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

/* The position, length and scale of a group. */
struct group {
	uint64_t begin;
	uint64_t count;
	uint16_t *scale;
};

static struct group group_at(const struct quantise_args *args, uint64_t index)
{
	uint64_t groups = quantise_groups(args->columns, args->group),
		 length = args->group ? args->group : args->columns;
	uint64_t column = index % groups * length;
	uint64_t left = args->columns - column;

	return (struct group){
		.begin = index / groups * args->columns + column,
		.count = left < length ? left : length,
		.scale = (uint16_t *)(uintptr_t)args->scales + index,
	};
}

static uint32_t row_count(uint64_t left)
{
	return left < ELEMENT_ROW ? (uint32_t)left : ELEMENT_ROW;
}

/*
 * row_largest() - return the bits of the largest magnitude. Magnitudes are ordered like their bits, with infinity and
 * NaN above all numbers.
 */
static uint32_t row_largest(const float row[ELEMENT_ROW])
{
	uint32_t largest = 0;

	for (int i = 0; i < ELEMENT_ROW; i++) {
		uint32_t magnitude = float_bits(row[i]) & 0x7fffffff;

		largest = magnitude > largest ? magnitude : largest;
	}
	return largest;
}

/*
 * row_quantise() - compute the codes of a row, in vectorizable loops. Adding and subtracting 1.5 * 2^23 rounds to an
 * integer as rintf(3) does. most: the largest value of the element, as in quantise_value().
 */
static void row_quantise(
	const float row[ELEMENT_ROW], float scale, float most, int8_t codes[ELEMENT_ROW], struct quantise_error *error)
{
	enum { LANES = 16 };
	double error_squares[LANES] = {0}, squares[LANES] = {0};
	float largest[LANES] = {0}, divisor = scale > 0 ? scale : 1;

	for (int i = 0; i < ELEMENT_ROW; i += LANES)
		for (int lane = 0; lane < LANES; lane++) {
			float value = row[i + lane], code = value / divisor, back, difference;

			code = scale > 0 ? code : 0;
			code = code > 127 ? 127 : code;
			code = code < -127 ? -127 : code;
			code = (code + 12582912.0f) - 12582912.0f;
			codes[i + lane] = (int8_t)(int)code;
			back = code * scale;
			back = back > most ? most : back;
			back = back < -most ? -most : back;
			difference = fabsf(value - back);
			largest[lane] = difference > largest[lane] ? difference : largest[lane];
			error_squares[lane] += (double)difference * difference;
			squares[lane] += (double)value * value;
		}
	for (int lane = 0; lane < LANES; lane++) {
		error->error_squares += error_squares[lane];
		error->squares += squares[lane];
		error->max_error = largest[lane] > error->max_error ? largest[lane] : error->max_error;
	}
}

void quantise_group_plain(uint32_t element, const void *values, uint64_t count, int8_t *codes, uint16_t *scale_bits,
	struct quantise_error *error)
{
	const uint32_t bytes = element_bytes(element);
	uint32_t largest = 0, some, here;
	struct quantise_error unwanted = {0};
	int8_t part[ELEMENT_ROW];
	float row[ELEMENT_ROW], scale;

	error = error ? error : &unwanted;
	for (uint64_t done = 0; done < count; done += some) {
		some = row_count(count - done);
		element_row_get(element, (const char *)values + done * bytes, some, row);
		here = row_largest(row);
		largest = here > largest ? here : largest;
	}
	*scale_bits = quantise_scale(float_of_bits(largest));
	scale = float_of_bf16(*scale_bits);
	if (largest >= 0x7f800000) {
		memset(codes, 0, count);
		error->max_error = INFINITY;
		return;
	}
	for (uint64_t done = 0; done < count; done += some) {
		some = row_count(count - done);
		element_row_get(element, (const char *)values + done * bytes, some, row);
		row_quantise(row, scale, element_most(element), part, error);
		memcpy(codes + done, part, some);
	}
}

void dequantise_group_plain(uint32_t element, const int8_t *codes, uint64_t count, uint16_t scale, void *values)
{
	const uint32_t bytes = element_bytes(element);
	float row[ELEMENT_ROW];
	uint32_t some;

	for (uint64_t done = 0; done < count; done += some) {
		int8_t part[ELEMENT_ROW] = {0};

		some = row_count(count - done);
		memcpy(part, codes + done, some);
		for (int i = 0; i < ELEMENT_ROW; i++)
			row[i] = quantise_value(part[i], float_of_bf16(scale), element);
		element_row_put(element, row, some, (char *)values + done * bytes);
	}
}

static void *group_values(const struct quantise_args *args, const struct group *group)
{
	return (char *)(uintptr_t)args->values + group->begin * element_bytes(args->element);
}

void quantise_host(const struct quantise_args *args)
{
	uint64_t groups = args->rows * quantise_groups(args->columns, args->group);
	uint64_t length = args->group ? args->group : args->columns;
	struct quantise_error error = {0}, *all = (struct quantise_error *)(uintptr_t)args->error;
	/* Groups of one length follow each other without a gap. */
	uint64_t at_once = args->columns % length ? 1 : groups;

	for (uint64_t i = 0; i < groups; i += at_once) {
		struct group group = group_at(args, i);

		element_rows()->quantise(args->element, group_values(args, &group), at_once, group.count,
			(int8_t *)(uintptr_t)args->codes + group.begin, group.scale, all ? &error : NULL);
	}
	quantise_error_add(all, &error);
}

void dequantise_host(const struct quantise_args *args)
{
	uint64_t groups = args->rows * quantise_groups(args->columns, args->group);
	const struct element_rows *code = element_rows();

	for (uint64_t i = 0; i < groups; i++) {
		struct group group = group_at(args, i);

		code->group_dequantise(args->element, (const int8_t *)(uintptr_t)args->codes + group.begin, group.count,
			*group.scale, group_values(args, &group));
	}
}
