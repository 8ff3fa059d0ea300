/*
 * test_adapter_convert.c - conversion of weights of safetensors files to images of pages.
 *
 * Goal: each element of the file is at the position where the kernels read it (lora_tile_at()), rounded once, and all
 * other elements are zero. A weight that is not finite in the pages is refused with its position.
 *
 * Method: random adapters with all element types are compared element by element. The kernels' reference on the pages
 * is compared with B (A x) of the file.
 */
#include "client/lora/format/convert.h"
#include "client/lora/format/pack.h"
#include "cuda/kernels/lora.h"
#include "tests/unit/adapter_rig.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

static struct reason reason;

/* All pages of an adapter. */
struct images {
	struct adapter_layout layout;
	uint8_t *bytes; /* [pages][page_bytes] */
};

/* Convert the pages in the order of `stride`, because any order must work. */
static struct images images_of(
	const struct rig *rig, uint32_t page_bytes, enum adapter_element element, uint32_t stride)
{
	struct images images;
	struct convert convert;
	uint32_t pages;

	assert_int_equal(pack_make(&rig->peft, page_bytes, element, &images.layout, &reason), 0);
	pages = images.layout.header->pages;
	images.bytes = malloc((size_t)pages * page_bytes);
	memset(images.bytes, 0xee, (size_t)pages * page_bytes);
	assert_int_equal(convert_open(&rig->peft, &images.layout, rig->weights, &convert, &reason), 0);
	for (uint32_t first = 0; first < stride; first++)
		for (uint32_t page = first; page < pages; page += stride)
			assert_int_equal(
				convert_page(&convert, page, images.bytes + (size_t)page * page_bytes, &reason), 0);
	convert_close(&convert);
	return images;
}

static void images_free(struct images *images)
{
	pack_free(&images->layout);
	free(images->bytes);
}

/* Build the engine's view of the layout and the addresses of its pages. `more` is the number of runs. */
static struct lora_matrix kernels_matrix(
	const struct images *images, const struct adapter_matrix *matrix, uint32_t columns, uint64_t *more)
{
	uint32_t runs = adapter_matrix_runs(matrix, adapter_tiles(columns));

	for (uint32_t i = 0; i < runs; i++) {
		const struct adapter_run *run = &images->layout.runs[matrix->first + i];

		more[i] = (uint64_t)(uintptr_t)(images->bytes + (size_t)run->page * images->layout.header->page_bytes +
			run->offset);
	}
	return (struct lora_matrix){.first = more[0],
		.more = (uint64_t)(uintptr_t)(more + 1),
		.head_tiles = matrix->head_tiles,
		.run_tiles = matrix->run_tiles};
}

static uint16_t rounded(float value, enum adapter_element element)
{
	return element == ADAPTER_F16 ? f16_of_float(value) : bf16_of_float(value);
}

/* Remove each element from the images, so that only zeros must remain. */
static void matrix_holds(const struct rig *rig, const struct images *images, const struct adapter_matrix *matrix,
	const struct peft_matrix *from, uint32_t rank, uint32_t columns, bool is_b)
{
	uint64_t *more = calloc(adapter_tiles(columns), sizeof(*more));
	struct lora_matrix tiles = kernels_matrix(images, matrix, columns, more);

	for (uint32_t column = 0; column < columns; column++)
		for (uint32_t k = 0; k < rank; k++) {
			uint16_t *at = (uint16_t *)(uintptr_t)lora_tile_at(&tiles, rank, column / 128) + k * 128 +
				column % 128;
			float value =
				rig_get(rig, from, is_b ? (uint64_t)column * rank + k : (uint64_t)k * columns + column);

			if (*at != rounded(value, images->layout.header->element))
				fail_msg("%c, column %u, rank %u: %x for %g", is_b ? 'B' : 'A', column, k, *at, value);
			*at = 0;
		}
	free(more);
}

static void images_hold(const struct rig *rig, const struct images *images)
{
	bool zero = true;

	for (uint32_t i = 0; i < rig->peft.count; i++) {
		const struct adapter_module *module = &images->layout.modules[i];

		matrix_holds(rig, images, &module->a, &rig->peft.modules[i].a, module->rank, module->in, false);
		matrix_holds(rig, images, &module->b, &rig->peft.modules[i].b, module->rank, module->out, true);
	}
	for (size_t at = 0; at < (size_t)images->layout.header->pages * images->layout.header->page_bytes; at++)
		zero &= !images->bytes[at];
	assert_true(zero);
}

/* Return a random value, including the smallest numbers and signed zeros. */
static float any_value(void)
{
	float value = rig_normal();

	switch (rig_random(8)) {
	case 0: return value * 0x1p-20f;
	case 1: return value * 0x1p-130f;
	case 2: return copysignf(0, value);
	case 3: return value * 5000;
	default: return value;
	}
}

static void test_random(void **state)
{
	static struct rig_module modules[43];

	(void)state;
	for (uint32_t round = 0; round < 24; round++) {
		struct images images;
		struct rig rig;

		rig_make(&rig, modules, rig_random_modules(modules, 43, round % 8 ? 700 : 5000));
		rig_fill(&rig, any_value);
		images = images_of(&rig, (512u << 10) << round % 4, round / 4 % ADAPTER_ELEMENTS, 1 + round % 3);
		images_hold(&rig, &images);
		images_free(&images);
		rig_end(&rig);
	}
}

/* Use files of the reference library. */
static void test_fixture(void **state)
{
	int config = open("tests/fixtures/adapters/mixed/adapter_config.json", O_RDONLY | O_CLOEXEC);
	int weights = open("tests/fixtures/adapters/mixed/adapter_model.safetensors", O_RDONLY | O_CLOEXEC);
	struct rig rig = {.config = config, .weights = weights};
	struct images images;

	(void)state;
	assert_int_equal(peft_read(config, weights, &rig.peft, &reason), 0);
	rig.file = mmap(NULL, rig.peft.file_bytes, PROT_READ, MAP_PRIVATE, weights, 0);
	images = images_of(&rig, 512 << 10, pack_element(&rig.peft), 1);
	assert_int_equal(images.layout.header->element, ADAPTER_BF16);
	images_hold(&rig, &images);
	images_free(&images);
	munmap(rig.file, rig.peft.file_bytes);
	peft_free(&rig.peft);
	close(config);
	close(weights);
}

/* The kernels' reference computes B (A x) of the file from the pages. */
static void test_kernels(void **state)
{
	const struct rig_module fixed[] = {
		{"h.0.q", 24, 4000, 3000, SAFETENSORS_F32}, {"h.0.k", 9, 4000, 500, SAFETENSORS_F32}};
	enum { IN = 4000, OUT = 3000 };
	static uint16_t x[IN], y[OUT];
	uint64_t more_a[64], more_b[64];
	struct images images;
	struct rig rig;

	(void)state;
	rig_make(&rig, fixed, 2);
	rig_fill(&rig, rig_normal);
	images = images_of(&rig, 512 << 10, ADAPTER_F16, 1);
	for (uint32_t i = 0; i < IN; i++)
		x[i] = f16_of_float(rig_normal() / 64);
	for (uint32_t m = 0; m < rig.peft.count; m++) {
		const struct adapter_module *module = &images.layout.modules[m];
		const struct peft_module *from = &rig.peft.modules[m];
		struct lora_adapter adapter = {.a = kernels_matrix(&images, &module->a, module->in, more_a),
			.b = kernels_matrix(&images, &module->b, module->out, more_b),
			.rank = module->rank,
			.scale = module->scale};
		struct lora_batch *batch = calloc(1, lora_batch_bytes(1, 1));
		void *workspace = calloc(1, lora_workspace_bytes(1, module->rank, IN));
		struct lora_args args = {.batch = (uintptr_t)batch,
			.adapters = (uintptr_t)&adapter,
			.x = (uintptr_t)x,
			.y = (uintptr_t)y,
			.workspace = (uintptr_t)workspace,
			.adapter_count = 1,
			.tokens_max = 1,
			.rank_max = module->rank,
			.in = IN,
			.out = module->out,
			.x_stride = IN,
			.y_stride = OUT,
			.element = ELEMENT_F16};
		double sums[24] = {0};
		int32_t index = 0;

		memset(y, 0, sizeof(y));
		assert_int_equal(lora_batch_build(batch, 1, &index, 1, 1), 1);
		lora_shrink_host(&args);
		lora_expand_host(&args);
		for (uint32_t k = 0; k < module->rank; k++)
			for (uint32_t i = 0; i < IN; i++)
				sums[k] += rig_get(&rig, &from->a, (uint64_t)k * IN + i) * float_of_f16(x[i]);
		for (uint32_t o = 0; o < module->out; o++) {
			double wanted = 0;

			for (uint32_t k = 0; k < module->rank; k++)
				wanted +=
					rig_get(&rig, &from->b, (uint64_t)o * module->rank + k) * sums[k] * from->scale;
			if (fabs(float_of_f16(y[o]) - wanted) > 0.02 + fabs(wanted) * 0.004)
				fail_msg("module %u, output %u: %g, not %g", m, o, float_of_f16(y[o]), wanted);
		}
		free(batch);
		free(workspace);
	}
	images_free(&images);
	rig_end(&rig);
}

static struct rig one_of(enum safetensors_type type)
{
	const struct rig_module module = {"layers.3.up_proj", 5, 300, 200, type};
	struct rig rig;

	rig_make(&rig, &module, 1);
	return rig;
}

static void refused(const struct rig *rig, enum adapter_element element, const char *why)
{
	struct adapter_layout layout;
	struct convert convert;
	uint8_t *image = malloc(512 << 10);

	assert_int_equal(pack_make(&rig->peft, 512 << 10, element, &layout, &reason), 0);
	assert_int_equal(convert_open(&rig->peft, &layout, rig->weights, &convert, &reason), 0);
	if (convert_page(&convert, 0, image, &reason) != -EINVAL || strcmp(reason.text, why) != 0)
		fail_msg("'%s', not '%s'", reason.text, why);
	convert_close(&convert);
	pack_free(&layout);
	free(image);
}

static void test_refused(void **state)
{
	struct rig rig = one_of(SAFETENSORS_F32);
	struct adapter_layout layout;
	struct convert convert;

	(void)state;
	rig_put(&rig, &rig.peft.modules[0].a, 4 * 300 + 299, 70000);
	refused(&rig, ADAPTER_F16,
		"module 'layers.3.up_proj': lora_A[4][299] is 70000, which is out of range for fp16; use bf16");
	rig_put(&rig, &rig.peft.modules[0].a, 4 * 300 + 299, 65519);
	rig_put(&rig, &rig.peft.modules[0].b, 199 * 5 + 2, -1e6f);
	refused(&rig, ADAPTER_F16,
		"module 'layers.3.up_proj': lora_B[199][2] is -1e+06, which is out of range for fp16; use bf16");
	rig_put(&rig, &rig.peft.modules[0].b, 199 * 5 + 2, 3.4028e38f);
	refused(&rig, ADAPTER_BF16,
		"module 'layers.3.up_proj': lora_B[199][2] is 3.4028e+38, which is out of range for bf16");
	rig_end(&rig);
	rig = one_of(SAFETENSORS_F16);
	rig_put(&rig, &rig.peft.modules[0].b, 0, NAN);
	refused(&rig, ADAPTER_F16, "module 'layers.3.up_proj': lora_B[0][0] is nan");
	rig_put(&rig, &rig.peft.modules[0].b, 0, -INFINITY);
	refused(&rig, ADAPTER_BF16, "module 'layers.3.up_proj': lora_B[0][0] is -inf");
	/* The file is not the one whose header was read. */
	assert_int_equal(pack_make(&rig.peft, 512 << 10, ADAPTER_BF16, &layout, &reason), 0);
	rig.peft.file_bytes++;
	assert_int_equal(convert_open(&rig.peft, &layout, rig.weights, &convert, &reason), -EINVAL);
	assert_non_null(strstr(reason.text, "when its header was read"));
	pack_free(&layout);
	rig_end(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random),
		cmocka_unit_test(test_fixture),
		cmocka_unit_test(test_kernels),
		cmocka_unit_test(test_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
