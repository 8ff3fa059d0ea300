/*
 * quantise.h - int8 forms of fp16, bf16 and fp32, for content of colder tiers: weights and KV blocks.
 *
 * The form is symmetric: value = code * scale, with codes -127..127 and one scale for each group of adjacent elements
 * of a row. A scale is bf16, which adds 1.6 % to the size with 128 elements per group. It is rounded up, so that the
 * largest value of a group has a code. A group with an infinity or a NaN has no int8 form: its scale and codes are 0
 * and its error is infinite, so a caller that checks the error rejects it.
 */
#ifndef CUDA_KERNELS_QUANTISE_H
#define CUDA_KERNELS_QUANTISE_H

#include "cuda/kernels/element.h"

#include <assert.h>

struct gpu;
struct gpu_stream;

/* The error over all groups. The relative error is the square root of error_squares / squares. */
struct quantise_error {
	double error_squares; /* sum of the squared differences */
	double squares;       /* sum of the squared values */
	float max_error;      /* largest difference; infinity: a group has no int8 form */
	uint32_t reserved;
};

struct quantise_args {
	uint64_t values; /* [rows][columns] elements, without gaps */
	uint64_t codes;  /* [rows][columns] int8 */
	uint64_t scales; /* [rows][groups of a row] bf16 */
	uint64_t error;  /* struct quantise_error, cleared by the caller, to which quantise adds; 0: not wanted */
	uint64_t rows;
	uint64_t columns;
	uint32_t group;   /* elements; the last group of a row may be shorter. 0: a row is one group */
	uint32_t element; /* enum element */
};

static_assert(
	sizeof(struct quantise_args) == 56 && sizeof(struct quantise_error) == 24, "both compilers must have the same");

/* quantise_groups() - return the number of scales of a row. */
ON_BOTH uint64_t quantise_groups(uint64_t columns, uint32_t group)
{
	return group ? (columns + group - 1) / group : 1;
}

/* quantise_scale() - return the scale of a group whose largest magnitude is `largest`; 0: no int8 form. */
ON_BOTH uint16_t quantise_scale(float largest)
{
	if (!(largest <= 3.402823466e+38f))
		return 0;
	return (uint16_t)((float_bits(largest / 127.0f) + 0xffff) >> 16);
}

/*
 * quantise_value() - return the value of a code, limited to the range of the element. The largest code may exceed this
 * range, because scales are rounded up.
 */
ON_BOTH float quantise_value(int8_t code, float scale, uint32_t element)
{
	const float value = (float)code * scale, most = element_most(element);

	return value > most ? most : value < -most ? -most : value;
}

/*
 * quantise_queue() - convert values to codes and scales.
 * dequantise_queue() - convert codes and scales to values.
 *
 * Both functions queue one kernel and return at once. All addresses are device addresses, also those of registered
 * host memory; on `host`, addresses in the process. If `rows` is 0, nothing is queued.
 *
 * Return: 0, -EINVAL (an unknown element; no columns; addresses that are 0 or not multiples of the element's size; more
 * than 2^48 elements), or as gpu_launch().
 */
int quantise_queue(struct gpu *gpu, const struct quantise_args *args, struct gpu_stream *stream);
int dequantise_queue(struct gpu *gpu, const struct quantise_args *args, struct gpu_stream *stream);

/*
 * quantise_host(), dequantise_host() - perform the work synchronously, on memory of the process, with this CPU's vector
 * instructions. Codes, scales and values equal the kernels' in every bit. The sums of squares may differ by 1e-6 of
 * their values.
 */
void quantise_host(const struct quantise_args *args);
void dequantise_host(const struct quantise_args *args);

/* quantise_error_add() - add errors to `all`, on the CPU. NULL: they are not wanted. */
static inline void quantise_error_add(struct quantise_error *all, const struct quantise_error *error)
{
	if (!all)
		return;
	all->error_squares += error->error_squares;
	all->squares += error->squares;
	all->max_error = error->max_error > all->max_error ? error->max_error : all->max_error;
}

/* The C references for one group; see struct element_rows. */
void quantise_group_plain(uint32_t element, const void *values, uint64_t count, int8_t *codes, uint16_t *scale,
	struct quantise_error *error);
void dequantise_group_plain(uint32_t element, const int8_t *codes, uint64_t count, uint16_t scale, void *values);

#endif
