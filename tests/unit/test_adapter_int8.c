/*
 * test_adapter_int8.c - pages as int8, and the error of that form.
 *
 * Goal: the form has the documented size. A conversion in both directions changes each element by at most half a step
 * of its row, and always in the same way. The measured error is the one that an engine would see, and its bound holds.
 * Weights that are not suitable for int8 are detected.
 *
 * Method: modules small enough for a full product, whose weights have an approximately normal distribution, outliers,
 * the largest numbers of fp16, or zeros.
 *
 * Requirements: L5.
 */
#include "client/lora/format/int8_form.h"
#include "client/lora/format/pack.h"
#include "tests/unit/adapter_rig.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

enum { PAGE = 512 << 10, ROWS = PAGE / 256 };

static struct reason reason;

static struct int8_loss loss_of(const struct rig *rig, enum adapter_element element)
{
	struct adapter_layout layout;
	struct int8_loss loss;
	struct convert convert;

	assert_int_equal(pack_make(&rig->peft, PAGE, element, &layout, &reason), 0);
	assert_int_equal(convert_open(&rig->peft, &layout, rig->weights, &convert, &reason), 0);
	assert_int_equal(int8_loss_measure(&convert, &loss, &reason), 0);
	convert_close(&convert);
	pack_free(&layout);
	return loss;
}

static float value_of(const uint16_t *image, uint64_t at, enum adapter_element element)
{
	return element == ADAPTER_F16 ? float_of_f16(image[at]) : float_of_bf16(image[at]);
}

static void test_form(void **state)
{
	uint16_t *image = malloc(PAGE), *back = malloc(PAGE), *again = malloc(PAGE);
	uint8_t *form = malloc(int8_form_bytes(ROWS));

	(void)state;
	assert_int_equal(int8_form_bytes(ROWS), PAGE / 2 + PAGE / 128);
	for (enum adapter_element element = 0; element < ADAPTER_ELEMENTS; element++) {
		for (uint32_t i = 0; i < PAGE / 2; i++) {
			float value = i / 128 % 5 ? rig_normal() * exp2f((float)(i / 128 % 13) - 9) : 0;

			image[i] = element == ADAPTER_F16 ? f16_of_float(value) : bf16_of_float(value);
		}
		int8_form_make(image, ROWS, element, form);
		int8_form_expand(form, ROWS, element, back);
		int8_form_expand(form, ROWS, element, again);
		assert_memory_equal(back, again, PAGE);
		for (uint32_t row = 0; row < ROWS; row++) {
			float scale = float_of_bf16(((uint16_t *)(void *)(form + ROWS * 128))[row]), largest = 0;

			for (uint32_t i = row * 128; i < (row + 1) * 128; i++) {
				float value = value_of(image, i, element),
				      difference = value_of(back, i, element) - value;

				largest = fmaxf(largest, fabsf(value));
				if (fabsf(difference) > 0.5f * scale + fabsf(value) * 0x1p-8f)
					fail_msg("row %u: %g for %g in steps of %g", row, value + difference, value,
						scale);
			}
			assert_true(scale <= largest / 127 * 1.01f && (row % 5 || scale == 0));
		}
	}
	free(image);
	free(back);
	free(again);
	free(form);
}

/* Return a matrix as it is in the pages, or after a conversion to int8, as [rank][columns]. */
static double *matrix_of(
	const struct rig *rig, const struct peft_matrix *from, uint32_t rank, uint32_t columns, bool is_b, bool int8)
{
	uint32_t wide = (columns + 127) / 128 * 128;
	uint16_t *image = calloc((size_t)rank * wide, 2);
	uint8_t *form = malloc(int8_form_bytes(rank * wide / 128));
	double *values = calloc((size_t)rank * columns, sizeof(*values));

	for (uint32_t k = 0; k < rank; k++)
		for (uint32_t c = 0; c < columns; c++)
			image[k * wide + c] = bf16_of_float(
				rig_get(rig, from, is_b ? (uint64_t)c * rank + k : (uint64_t)k * columns + c));
	if (int8) {
		int8_form_make(image, rank * wide / 128, ADAPTER_BF16, form);
		int8_form_expand(form, rank * wide / 128, ADAPTER_BF16, image);
	}
	for (uint32_t k = 0; k < rank; k++)
		for (uint32_t c = 0; c < columns; c++)
			values[k * columns + c] = float_of_bf16(image[k * wide + c]);
	free(image);
	free(form);
	return values;
}

static double norm(const double *values, uint64_t count)
{
	double sum = 0;

	for (uint64_t i = 0; i < count; i++)
		sum += values[i] * values[i];
	return sqrt(sum);
}

static double *product(const double *a, const double *b, const struct peft_module *module)
{
	double *all = calloc((size_t)module->out * module->in, sizeof(*all));

	for (uint32_t o = 0; o < module->out; o++)
		for (uint32_t k = 0; k < module->rank; k++)
			for (uint32_t i = 0; i < module->in; i++)
				all[o * module->in + i] += b[k * module->out + o] * a[k * module->in + i];
	return all;
}

/*
 * The relative error of BA is the expected error of y for any x. The measured error must therefore be close to it, and
 * the bound above it.
 */
static void loss_holds(const struct rig *rig, const struct int8_loss *loss)
{
	const struct peft_module *module = &rig->peft.modules[0];
	double *a = matrix_of(rig, &module->a, module->rank, module->in, false, false);
	double *b = matrix_of(rig, &module->b, module->rank, module->out, true, false);
	double *a8 = matrix_of(rig, &module->a, module->rank, module->in, false, true);
	double *b8 = matrix_of(rig, &module->b, module->rank, module->out, true, true);
	double *all = product(a, b, module), *all8 = product(a8, b8, module);
	uint64_t count = (uint64_t)module->in * module->out;
	uint64_t count_a = (uint64_t)module->rank * module->in, count_b = (uint64_t)module->rank * module->out;
	double whole = norm(all, count), error, norms = norm(a, count_a) * norm(b, count_b);

	for (uint64_t i = 0; i < count; i++)
		all8[i] -= all[i];
	error = norm(all8, count);
	printf("rank %u, %u to %u: of y %.3f %%, of BA %.3f %%, bound %.3f %%\n", module->rank, module->in, module->out,
		100 * (double)loss->output, 100 * error / whole, 100 * (double)loss->bound);
	assert_true(error <= (double)loss->bound * norms);
	assert_true((double)loss->output > 0.7 * error / whole && (double)loss->output < 1.4 * error / whole);
	free(a);
	free(b);
	free(a8);
	free(b8);
	free(all);
	free(all8);
}

static float outlier(void)
{
	return rig_random(100) ? rig_normal() : 50 * rig_normal();
}

static void test_loss(void **state)
{
	static const struct rig_module shapes[] = {
		{"h.0.q", 1, 500, 700, SAFETENSORS_F32},
		{"h.0.q", 16, 1024, 512, SAFETENSORS_F32},
		{"h.0.q", 100, 640, 384, SAFETENSORS_BF16},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++) {
		struct int8_loss loss;
		struct rig rig;

		rig_make(&rig, &shapes[i], 1);
		rig_fill(&rig, rig_normal);
		loss = loss_of(&rig, ADAPTER_BF16);
		loss_holds(&rig, &loss);
		assert_true(loss.output < INT8_LOSS_MAX);
		rig_fill(&rig, outlier);
		loss = loss_of(&rig, ADAPTER_BF16);
		loss_holds(&rig, &loss);
		assert_true(loss.output > INT8_LOSS_MAX);
		rig_end(&rig);
	}
}

/* One bad module among good ones determines the result. Outputs that fp32 cannot represent have the worst error. */
static void test_worst(void **state)
{
	const struct rig_module fixed[] = {
		{"h.0.q", 8, 256, 256, SAFETENSORS_F16},
		{"h.1.q", 8, 256, 256, SAFETENSORS_F16},
		{"h.2.q", 8, 256, 256, SAFETENSORS_F16},
	};
	const struct rig_module huge[] = {{"h.0.q", 8, 256, 256, SAFETENSORS_BF16}};
	struct int8_loss loss;
	struct rig rig;

	(void)state;
	rig_make(&rig, fixed, 3);
	rig_fill(&rig, rig_normal);
	rig_fill_matrix(&rig, &rig.peft.modules[1].b, outlier);
	loss = loss_of(&rig, ADAPTER_F16);
	assert_int_equal(loss.module, 1);
	assert_true(loss.output > INT8_LOSS_MAX);
	/* B is zero, as in an adapter before training. */
	memset(rig.file + rig.peft.modules[1].b.offset, 0, rig.peft.modules[1].b.bytes);
	loss = loss_of(&rig, ADAPTER_F16);
	assert_int_not_equal(loss.module, 1);
	assert_true(loss.output < INT8_LOSS_MAX);
	/* A weight close to the maximum of fp16 makes the rest of its row coarse, but no value becomes infinite. */
	rig_put(&rig, &rig.peft.modules[2].a, 5, 65504);
	loss = loss_of(&rig, ADAPTER_F16);
	assert_true(isfinite(loss.output));
	rig_end(&rig);
	rig_make(&rig, huge, 1);
	rig_fill(&rig, rig_normal);
	rig_put(&rig, &rig.peft.modules[0].a, 0, 3e38f);
	rig_put(&rig, &rig.peft.modules[0].b, 0, 3e38f);
	loss = loss_of(&rig, ADAPTER_BF16);
	assert_true(isinf(loss.output));
	rig_end(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_form),
		cmocka_unit_test(test_loss),
		cmocka_unit_test(test_worst),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
