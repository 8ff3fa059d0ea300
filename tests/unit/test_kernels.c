/*
 * test_kernels.c - kernel launches on the back end `host`, and the references of quantise, dequantise and block copy.
 *
 * Goal: a launch is queued like any other work, and the caller can reuse its arguments at once. The call refuses
 * invalid launches. The references conform to their headers, for all elements and for incomplete groups.
 *
 * Method: kernels run on a stream of a host device, in memory that is mapped as a worker maps it. Each result is
 * computed again with another algorithm.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "cuda/gpu.h"
#include "cuda/kernels/block_copy.h"
#include "cuda/kernels/kernel.h"
#include "cuda/kernels/quantise.h"

enum { MEMORY_BYTES = 4 << 20 };

struct fixture {
	struct gpu *gpu;
	struct gpu_stream *stream;
	uint64_t va;
	uint64_t used;  /* used bytes of the memory at va */
	uint64_t *word; /* registered; the gate */
	uint64_t random;
};

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));
	uint64_t handle, page = (uint64_t)sysconf(_SC_PAGESIZE);

	assert_non_null(f);
	f->random = 88172645463325252u;
	assert_int_equal(gpu_open(&gpu_host_ops, 0, 0, &f->gpu), 0);
	assert_int_equal(gpu_reserve(f->gpu, MEMORY_BYTES, 0, &f->va), 0);
	assert_int_equal(gpu_create(f->gpu, MEMORY_BYTES, &handle), 0);
	assert_int_equal(gpu_map(f->gpu, f->va, MEMORY_BYTES, handle), 0);
	assert_int_equal(gpu_access(f->gpu, f->va, MEMORY_BYTES, GPU_ACCESS_READ_WRITE), 0);
	f->word = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_true(f->word != MAP_FAILED);
	assert_int_equal(gpu_host_register(f->gpu, f->word, page), 0);
	assert_int_equal(gpu_stream_create(f->gpu, &f->stream), 0);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	gpu_close(f->gpu);
	munmap(f->word, (size_t)sysconf(_SC_PAGESIZE));
	free(f);
	return 0;
}

/* Return `bytes` bytes of device memory that the CPU can access. */
static void *device(struct fixture *f, uint64_t bytes)
{
	uint64_t at = f->va + f->used;

	f->used += (bytes + 255) / 256 * 256;
	assert_true(f->used <= MEMORY_BYTES);
	return (void *)(uintptr_t)at;
}

static uint32_t random_bits(struct fixture *f)
{
	f->random ^= f->random << 13;
	f->random ^= f->random >> 7;
	f->random ^= f->random << 17;
	return (uint32_t)(f->random >> 16);
}

/* Return a random value with about a normal distribution, like weights. */
static float random_value(struct fixture *f)
{
	float sum = 0;

	for (int i = 0; i < 6; i++)
		sum += (float)(random_bits(f) >> 8) / 16777216.0f - 0.5f;
	return sum * 0.02f;
}

static void finish(struct fixture *f)
{
	assert_int_equal(gpu_stream_sync(f->gpu, f->stream), 0);
}

/* ---- launching ---- */

static void test_a_launch_waits_for_its_turn(void **state)
{
	struct fixture *f = *state;
	char *from = device(f, 16), *to = device(f, 16);
	struct block_copy_args args = {.count = 1};

	memset(from, 'x', 16);
	args.items[0] = (struct block_copy_item){(uintptr_t)to, (uintptr_t)from, 16};
	assert_int_equal(gpu_timeline_wait(f->gpu, f->stream, f->word, 1), 0);
	assert_int_equal(block_copy_queue(f->gpu, &args, f->stream), 0);
	memset(&args, 0xff, sizeof(args)); /* the launch has copied it */
	assert_int_equal(to[0], 0);
	__atomic_store_n(f->word, 1, __ATOMIC_RELEASE);
	finish(f);
	assert_memory_equal(to, from, 16);
	assert_int_equal(gpu_calls(f->gpu, GPU_CALL_LAUNCH), 1);
}

static void test_close_cancels_a_launch(void **state)
{
	struct fixture *f = *state;
	struct block_copy_args args = {.count = 1};

	assert_int_equal(gpu_timeline_wait(f->gpu, f->stream, f->word, 1), 0);
	assert_int_equal(block_copy_queue(f->gpu, &args, f->stream), 0);
	/* the teardown closes the device; the sanitizer would detect a leak */
}

static void test_wrong_launches_are_refused(void **state)
{
	struct fixture *f = *state;
	const struct gpu_shape sound = {.grid = {1, 1, 1}, .block = 32};
	struct gpu_shape wrong[] = {sound, sound, sound, sound, sound, sound};
	struct block_copy_args args = {.count = 0};
	struct gpu_stream *stream;
	struct gpu *owner, *other;

	wrong[0].grid[0] = 0;
	wrong[1].grid[1] = GPU_GRID_MAX + 1;
	wrong[2].grid[2] = 0;
	wrong[3].block = GPU_BLOCK_MAX + 1;
	wrong[4].block = 0;
	wrong[5].shared_bytes = GPU_SHARED_MAX + 1;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++)
		assert_int_equal(
			gpu_launch(f->gpu, GPU_KERNEL_BLOCK_COPY, &wrong[i], &args, sizeof(args), f->stream), -EINVAL);
	assert_int_equal(gpu_launch(f->gpu, GPU_KERNEL_KINDS, &sound, &args, sizeof(args), f->stream), -EINVAL);
	assert_int_equal(
		gpu_launch(f->gpu, GPU_KERNEL_BLOCK_COPY, &sound, &args, sizeof(args) - 8, f->stream), -EINVAL);
	assert_int_equal(gpu_launch(f->gpu, GPU_KERNEL_BLOCK_COPY, &sound, NULL, sizeof(args), f->stream), -EINVAL);
	assert_int_equal(gpu_launch(f->gpu, GPU_KERNEL_BLOCK_COPY, NULL, &args, sizeof(args), f->stream), -EINVAL);
	assert_int_equal(gpu_launch(f->gpu, GPU_KERNEL_BLOCK_COPY, &sound, &args, sizeof(args), NULL), -EINVAL);
	assert_int_equal(gpu_launch(NULL, GPU_KERNEL_BLOCK_COPY, &sound, &args, sizeof(args), f->stream), -EINVAL);
	assert_int_equal(gpu_calls(f->gpu, GPU_CALL_LAUNCH), 11);
	assert_int_equal(gpu_open(&gpu_host_ops, 1, 0, &other), 0);
	assert_int_equal(gpu_stream_create(other, &stream), 0);
	assert_int_equal(gpu_launch(f->gpu, GPU_KERNEL_BLOCK_COPY, &sound, &args, sizeof(args), stream), -EINVAL);
	gpu_close(other);
	assert_int_equal(gpu_open(&gpu_host_ops, 0, GPU_OPEN_OWNER, &owner), 0);
	assert_int_equal(gpu_launch(owner, GPU_KERNEL_BLOCK_COPY, &sound, &args, sizeof(args), f->stream), -EPERM);
	gpu_close(owner);
	finish(f);
}

static void test_the_table_is_whole(void **state)
{
	(void)state;
	for (int i = 0; i < GPU_KERNEL_KINDS; i++) {
		assert_non_null(gpu_kernels[i].name);
		assert_non_null(gpu_kernels[i].host);
		assert_true(gpu_kernels[i].args_bytes && gpu_kernels[i].args_bytes % 8 == 0 &&
			gpu_kernels[i].args_bytes <= 4096);
		/* all images or none, depending on whether nvcc was available */
		assert_int_equal(!gpu_kernel_images[gpu_kernels[i].image], !gpu_kernel_images[0]);
	}
}

/* ---- elements ---- */

static double f16_decoded(uint32_t bits)
{
	int exponent = bits >> 10 & 31, fraction = bits & 1023;
	double magnitude = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);

	return bits & 0x8000 ? -magnitude : magnitude;
}

static void test_f16_both_ways(void **state)
{
	(void)state;
	for (uint32_t bits = 0; bits < 0x7c00; bits++) {
		double value = f16_decoded(bits), next = bits == 0x7bff ? 65536 : f16_decoded(bits + 1);
		float middle = (float)((value + next) / 2);
		uint32_t even = bits % 2 ? bits + 1 : bits;

		assert_true(float_of_f16((uint16_t)bits) == value);
		assert_true(float_of_f16((uint16_t)(bits | 0x8000)) == -value);
		assert_int_equal(f16_of_float((float)value), bits);
		assert_int_equal(f16_of_float(-(float)value), bits | 0x8000);
		assert_int_equal(f16_of_float(middle), even);
		assert_int_equal(f16_of_float(nextafterf(middle, 0)), bits);
		assert_int_equal(f16_of_float(nextafterf(middle, INFINITY)), bits + 1);
	}
	assert_true(isinf(float_of_f16(0x7c00)) && float_of_f16(0xfc00) < 0);
	assert_true(isnan(float_of_f16(0x7e01)) && isnan(float_of_f16(0x7c01)));
	assert_int_equal(f16_of_float(INFINITY), 0x7c00);
	assert_int_equal(f16_of_float(-1e9f), 0xfc00);
	assert_true(isnan(float_of_f16(f16_of_float(NAN))));
}

static void test_bf16_both_ways(void **state)
{
	(void)state;
	for (uint32_t bits = 0; bits < 0x7f80; bits++) {
		float value = float_of_bits(bits << 16), middle = float_of_bits(bits << 16 | 0x8000);

		assert_true(float_of_bf16((uint16_t)bits) == value);
		assert_int_equal(bf16_of_float(value), bits);
		assert_int_equal(bf16_of_float(-value), bits | 0x8000);
		assert_int_equal(bf16_of_float(middle), bits + bits % 2);
		assert_int_equal(bf16_of_float(float_of_bits(bits << 16 | 0x8001)), bits + 1);
		assert_int_equal(bf16_of_float(float_of_bits(bits << 16 | 0x7fff)), bits);
	}
	assert_true(isnan(float_of_bf16(bf16_of_float(NAN))));
	assert_true(isnan(float_of_bf16(bf16_of_float(float_of_bits(0x7f800001)))));
	assert_int_equal(bf16_of_float(INFINITY), 0x7f80);
}

/* ---- quantise ---- */

/* The data of one test, in device memory. */
struct tensor {
	struct quantise_args args;
	struct quantise_error *error;
	int8_t *codes;
	uint16_t *scales;
	void *values, *back;
	uint64_t count;
};

static float tensor_get(const struct tensor *t, const void *values, uint64_t at)
{
	if (t->args.element == ELEMENT_F32)
		return ((const float *)values)[at];
	return t->args.element == ELEMENT_F16 ? float_of_f16(((const uint16_t *)values)[at])
					      : float_of_bf16(((const uint16_t *)values)[at]);
}

static void tensor_set(struct tensor *t, uint64_t at, float value)
{
	if (t->args.element == ELEMENT_F32)
		((float *)t->values)[at] = value;
	else
		((uint16_t *)t->values)[at] =
			t->args.element == ELEMENT_F16 ? f16_of_float(value) : bf16_of_float(value);
}

static struct tensor tensor_new(struct fixture *f, uint32_t element, uint64_t rows, uint64_t columns, uint32_t group)
{
	struct tensor t = {.count = rows * columns};

	f->used = 0;
	t.error = device(f, sizeof(*t.error));
	t.codes = device(f, t.count);
	t.scales = device(f, rows * quantise_groups(columns, group) * 2);
	t.values = device(f, t.count * 4);
	t.back = device(f, t.count * 4);
	*t.error = (struct quantise_error){0};
	t.args = (struct quantise_args){
		.values = (uintptr_t)t.values,
		.codes = (uintptr_t)t.codes,
		.scales = (uintptr_t)t.scales,
		.error = (uintptr_t)t.error,
		.rows = rows,
		.columns = columns,
		.group = group,
		.element = element,
	};
	for (uint64_t i = 0; i < t.count; i++)
		tensor_set(&t, i, random_value(f));
	return t;
}

static void there_and_back(struct fixture *f, struct tensor *t)
{
	struct quantise_args back = t->args;

	back.values = (uintptr_t)t->back;
	assert_int_equal(quantise_queue(f->gpu, &t->args, f->stream), 0);
	assert_int_equal(dequantise_queue(f->gpu, &back, f->stream), 0);
	finish(f);
}

/*
 * Check each value: it is restored within half a step of its group and the rounding to the element. The sums of errors
 * must be those of the restored values.
 */
static void tensor_check(const struct tensor *t)
{
	uint64_t columns = t->args.columns, length = t->args.group ? t->args.group : columns;
	uint64_t groups = quantise_groups(columns, t->args.group);
	double squares = 0, error_squares = 0, max_error = 0;

	for (uint64_t i = 0; i < t->count; i++) {
		uint64_t index = i / columns * groups + i % columns / length;
		double value = tensor_get(t, t->values, i), step = float_of_bf16(t->scales[index]),
		       exact = t->codes[i] * step;
		double rounding = t->args.element == ELEMENT_F16 ? 0x1p-11
			: t->args.element == ELEMENT_BF16        ? 0x1p-8
								 : 0x1p-23;

		assert_true(fabs(value - exact) <= step * 0.5000001);
		assert_true(fabs(tensor_get(t, t->back, i) - exact) <= fabs(exact) * rounding + 0x1p-25);
		max_error = fmax(max_error, fabs(value - exact));
		error_squares += (value - exact) * (value - exact);
		squares += value * value;
	}
	assert_true(fabs(t->error->squares - squares) <= 1e-6 * squares);
	assert_true(fabs(t->error->error_squares - error_squares) <= 1e-3 * error_squares);
	assert_true(fabs(t->error->max_error - max_error) <= 1e-3 * max_error);
}

static void test_quantise_all_elements_and_groups(void **state)
{
	static const uint32_t groups[] = {1, 8, 32, 64, 128, 100, 0};
	static const uint64_t shapes[][2] = {{1, 1}, {16, 128}, {5, 333}, {64, 1024}, {3, 127}};
	struct fixture *f = *state;

	for (uint32_t element = 0; element < ELEMENTS; element++)
		for (size_t g = 0; g < sizeof(groups) / sizeof(*groups); g++)
			for (size_t s = 0; s < sizeof(shapes) / sizeof(*shapes); s++) {
				struct tensor t = tensor_new(f, element, shapes[s][0], shapes[s][1], groups[g]);

				there_and_back(f, &t);
				tensor_check(&t);
			}
}

/*
 * Groups of 128 limit the error. For approximately normally distributed weights, it corresponds to 127 steps up to
 * three standard deviations.
 */
static void test_the_loss_of_groups_of_128(void **state)
{
	struct fixture *f = *state;
	struct tensor t = tensor_new(f, ELEMENT_F16, 64, 4096, 128);
	double relative;

	there_and_back(f, &t);
	relative = sqrt(t.error->error_squares / t.error->squares);
	print_message("int8 in groups of 128: relative error %.4f\n", relative);
	assert_true(relative > 0.002 && relative < 0.010);
}

static void test_quantise_extremes(void **state)
{
	struct fixture *f = *state;
	struct tensor t = tensor_new(f, ELEMENT_F32, 4, 64, 64);

	for (uint64_t i = 0; i < 64; i++) {
		tensor_set(&t, i, 0);                              /* row 0: only zeros */
		tensor_set(&t, 64 + i, i % 2 ? 3e38f : -3e38f);    /* row 1: the largest values */
		tensor_set(&t, 128 + i, i == 9 ? (float)NAN : 1);  /* row 2: has no int8 form */
		tensor_set(&t, 192 + i, i % 2 ? 1e-40f : -1e-40f); /* row 3: subnormal */
	}
	there_and_back(f, &t);
	for (uint64_t i = 0; i < 64; i++) {
		assert_int_equal(t.codes[i], 0);
		assert_true(tensor_get(&t, t.back, i) == 0);
		assert_int_equal(abs(t.codes[64 + i]), 127);
		assert_true(fabsf(fabsf(tensor_get(&t, t.back, 64 + i)) / 3e38f - 1) < 0.01f);
		assert_int_equal(t.codes[128 + i], 0);
		assert_true(fabsf(tensor_get(&t, t.back, 192 + i)) <= 2e-40f);
	}
	assert_int_equal(t.scales[2], 0);
	assert_true(isinf(t.error->max_error));
}

/* The error is added up over launches, and may be omitted. */
/* The scales of the largest values are rounded up, so that codes could exceed the element's range. */
static void test_the_largest_stay_finite(void **state)
{
	for (uint32_t element = 0; element < ELEMENTS; element++) {
		struct tensor t = tensor_new(*state, element, 64, 8, 0);

		for (uint64_t i = 0; i < t.count; i++)
			tensor_set(&t, i,
				(i % 2 ? element_most(element) : -element_most(element)) * (1 - (float)(i / 8) / 256));
		there_and_back(*state, &t);
		for (uint64_t i = 0; i < t.count; i++)
			assert_true(fabsf(tensor_get(&t, t.back, i)) <= element_most(element));
		assert_true(isfinite(t.error->max_error));
	}
}

static void test_errors_add_up(void **state)
{
	struct fixture *f = *state;
	struct tensor t = tensor_new(f, ELEMENT_BF16, 2, 256, 128);
	double squares;

	there_and_back(f, &t);
	squares = t.error->squares;
	there_and_back(f, &t);
	assert_true(t.error->squares == 2 * squares);
	t.args.error = 0;
	there_and_back(f, &t);
	assert_true(t.error->squares == 2 * squares);
}

static void test_wrong_quantisations_are_refused(void **state)
{
	struct fixture *f = *state;
	struct tensor t = tensor_new(f, ELEMENT_F32, 1, 8, 8);
	struct quantise_args wrong[8];

	for (size_t i = 0; i < 8; i++)
		wrong[i] = t.args;
	wrong[0].element = ELEMENTS;
	wrong[1].columns = 0;
	wrong[2].rows = 1ull << 62;
	wrong[3].values = 0;
	wrong[4].values += 2;
	wrong[5].codes = 0;
	wrong[6].scales += 1;
	wrong[7].error += 4;
	for (size_t i = 0; i < 8; i++) {
		assert_int_equal(quantise_queue(f->gpu, &wrong[i], f->stream), -EINVAL);
		assert_int_equal(dequantise_queue(f->gpu, &wrong[i], f->stream), -EINVAL);
	}
	assert_int_equal(quantise_queue(f->gpu, NULL, f->stream), -EINVAL);
	assert_int_equal(gpu_calls(f->gpu, GPU_CALL_LAUNCH), 0);
	t.args.rows = 0;
	assert_int_equal(quantise_queue(f->gpu, &t.args, f->stream), 0); /* no work */
	assert_int_equal(gpu_calls(f->gpu, GPU_CALL_LAUNCH), 0);
}

/* ---- block copy ---- */

static void test_block_copy(void **state)
{
	enum { ITEMS = 40, SLOT = 8192 };
	struct fixture *f = *state;
	uint8_t *from = device(f, ITEMS * SLOT), *to = device(f, ITEMS * SLOT);
	uint8_t *expected = calloc(ITEMS, SLOT);
	struct block_copy_args args = {.bytes_max = SLOT, .count = ITEMS};

	assert_non_null(expected);
	for (uint32_t i = 0; i < ITEMS * SLOT; i++)
		from[i] = (uint8_t)random_bits(f);
	for (uint32_t i = 0; i < ITEMS; i++) {
		uint32_t skew = random_bits(f) % 32, bytes = i % 7 ? random_bits(f) % (SLOT - 32) : 0;
		uint32_t source = (i * 7 + 3) % ITEMS;

		args.items[i] = (struct block_copy_item){
			(uintptr_t)(to + i * SLOT + skew), (uintptr_t)(from + source * SLOT), bytes};
		memcpy(expected + i * SLOT + skew, from + source * SLOT, bytes);
	}
	assert_int_equal(block_copy_queue(f->gpu, &args, f->stream), 0);
	finish(f);
	assert_memory_equal(to, expected, ITEMS * SLOT);
	free(expected);

	args.count = 0;
	assert_int_equal(block_copy_queue(f->gpu, &args, f->stream), 0);
	args.count = BLOCK_COPY_ITEMS_MAX + 1;
	assert_int_equal(block_copy_queue(f->gpu, &args, f->stream), -EINVAL);
	args = (struct block_copy_args){.count = 1, .reserved = 1};
	assert_int_equal(block_copy_queue(f->gpu, &args, f->stream), -EINVAL);
	assert_int_equal(gpu_calls(f->gpu, GPU_CALL_LAUNCH), 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_a_launch_waits_for_its_turn, setup, teardown),
		cmocka_unit_test_setup_teardown(test_close_cancels_a_launch, setup, teardown),
		cmocka_unit_test_setup_teardown(test_wrong_launches_are_refused, setup, teardown),
		cmocka_unit_test(test_the_table_is_whole),
		cmocka_unit_test(test_f16_both_ways),
		cmocka_unit_test(test_bf16_both_ways),
		cmocka_unit_test_setup_teardown(test_quantise_all_elements_and_groups, setup, teardown),
		cmocka_unit_test_setup_teardown(test_the_loss_of_groups_of_128, setup, teardown),
		cmocka_unit_test_setup_teardown(test_quantise_extremes, setup, teardown),
		cmocka_unit_test_setup_teardown(test_the_largest_stay_finite, setup, teardown),
		cmocka_unit_test_setup_teardown(test_errors_add_up, setup, teardown),
		cmocka_unit_test_setup_teardown(test_wrong_quantisations_are_refused, setup, teardown),
		cmocka_unit_test_setup_teardown(test_block_copy, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
