/*
 * lora_on_gpu.c - test and measure the kernels of cuda/kernels/ on a real GPU.
 *
 * Goal: the results of test_lora.c and test_kernels_emulated.c apply to a GPU, and the LoRA kernels approach the memory
 * bandwidth. Method: the cases of lora_cases.h, with memory that is accessed only by copies; quantise, dequantise and
 * block copy are compared with their C references. A table follows with microseconds, bytes and the ratio to the
 * roofline. For comparison, it has one or two pairs of plain products for each adapter (`naive`; not cuBLAS, which
 * would have to be linked) and one for each class of ranks (`grouped`). tests/gpu/lora_bmm.py measures torch.bmm with
 * the same shapes.
 *
 * Times are host times of many launches and one sync, over enough copies of the weights to exceed every cache. The
 * roofline is the bytes (weights once; x; y read and written) divided by the bandwidth of a copy on the device, which
 * is measured first or given by --bandwidth GB/S. Times are printed, but not checked. --small selects sizes for the
 * kernels' emulation and for the references, which `lora_on_gpu --backend host` runs to test the test.
 *
 * Exit status: 0: passed; 1: failed; 77: no GPU or no kernels (the reason is printed).
 *
 * Requirements: L8.
 */
#include "tests/unit/lora_cases.h"

#include "cuda/kernels/block_copy.h"
#include "cuda/kernels/quantise.h"

#include <time.h>

static const char *backend = "cuda";
static double bandwidth; /* GB/s; 0: measure it */
static bool small;       /* sizes for a CPU */

static int setup(void **state)
{
	static struct rig rig;

	assert_int_equal(rig_open(&rig, gpu_backend(backend), 64 << 20), 0);
	*state = &rig;
	return 0;
}

static int teardown(void **state)
{
	rig_close(*state);
	return 0;
}

static void test_lora_random_shapes(void **state)
{
	case_random_shapes(*state, small ? 10 : 100, small ? 600 : 3000, small ? 600 : 3000, small ? 40 : 96);
}

static void test_lora_all_ranks(void **state)
{
	case_all_ranks(*state, ELEMENT_F16, small ? 3 : 1);
	case_all_ranks(*state, ELEMENT_BF16, small ? 5 : 1);
}

static void test_lora_bits_do_not_depend_on_the_batch(void **state)
{
	case_bits_do_not_depend_on_the_batch(*state, ELEMENT_F16, false);
	case_bits_do_not_depend_on_the_batch(*state, ELEMENT_BF16, false);
}

static void test_lora_batches_follow_each_other(void **state)
{
	case_batches_follow_each_other(*state);
}

static void test_lora_large_and_small_sums(void **state)
{
	case_large_and_small_sums(*state);
}

static void test_lora_plain(void **state)
{
	case_plain(*state);
}

/*
 * Codes, scales and dequantized values are compared bit by bit. Sums of errors may differ, since terms are added in
 * another order.
 */
static void test_quantise(void **state)
{
	enum { ROWS = 300, COLUMNS = 1111, COUNT = ROWS * COLUMNS };
	static const uint32_t groups[] = {128, 100, 0};
	struct rig *rig = *state;

	for (uint32_t element = 0; element < ELEMENTS; element++)
		for (size_t g = 0; g < sizeof(groups) / sizeof(*groups); g++) {
			uint64_t scale_bytes = ROWS * quantise_groups(COLUMNS, groups[g]) * 2;
			struct place values = rig_place(rig, COUNT * element_bytes(element)),
				     codes = rig_place(rig, COUNT);
			struct place scales = rig_place(rig, scale_bytes),
				     error = rig_place(rig, sizeof(struct quantise_error));
			struct quantise_error *got = error.host, expected = {0};
			struct quantise_args args = {values.device, codes.device, scales.device, error.device, ROWS,
				COLUMNS, groups[g], element};
			struct quantise_args reference = args;
			int8_t *expected_codes = malloc(COUNT);
			uint16_t *expected_scales = malloc(scale_bytes);

			assert_true(expected_codes && expected_scales);
			for (uint32_t i = 0; i < COUNT; i++) {
				float value = rig_normal(rig) * 0.02f;

				if (element == ELEMENT_F32)
					((float *)values.host)[i] = value;
				else
					((uint16_t *)values.host)[i] =
						element == ELEMENT_F16 ? f16_of_float(value) : bf16_of_float(value);
			}
			*got = expected;
			rig_upload(rig, &values);
			rig_upload(rig, &error);
			assert_int_equal(quantise_queue(rig->gpu, &args, rig->stream), 0);
			rig_download(rig, &codes);
			rig_download(rig, &scales);
			rig_download(rig, &error);
			reference.values = (uintptr_t)values.host;
			reference.codes = (uintptr_t)expected_codes;
			reference.scales = (uintptr_t)expected_scales;
			reference.error = (uintptr_t)&expected;
			quantise_host(&reference);
			assert_memory_equal(codes.host, expected_codes, COUNT);
			assert_memory_equal(scales.host, expected_scales, scale_bytes);
			assert_true(fabs(got->squares / expected.squares - 1) < 1e-6);
			assert_true(fabs(got->error_squares / expected.error_squares - 1) < 1e-3);
			assert_true(fabsf(got->max_error / expected.max_error - 1) < 1e-3f);
			assert_int_equal(dequantise_queue(rig->gpu, &args, rig->stream), 0);
			dequantise_host(&reference);
			memcpy(expected_codes, codes.host, COUNT);
			{
				void *from_reference = malloc(values.bytes);

				assert_non_null(from_reference);
				memcpy(from_reference, values.host, values.bytes);
				rig_download(rig, &values);
				assert_memory_equal(values.host, from_reference, values.bytes);
				free(from_reference);
			}
			free(expected_codes);
			free(expected_scales);
			rig_clear(rig);
		}
}

static void test_block_copy(void **state)
{
	enum { ITEMS = 100, SLOT = 65536 };
	struct rig *rig = *state;
	struct place from = rig_place(rig, ITEMS * SLOT), to = rig_place(rig, ITEMS * SLOT);
	struct block_copy_args args = {.bytes_max = SLOT, .count = ITEMS};
	struct block_copy_item *items = args.items;
	uint8_t *expected = malloc(ITEMS * SLOT);

	assert_non_null(expected);
	memset(expected, 0xff, ITEMS * SLOT);
	for (uint32_t i = 0; i < ITEMS * SLOT; i++)
		((uint8_t *)from.host)[i] = (uint8_t)rig_random(rig);
	for (uint32_t i = 0; i < ITEMS; i++) {
		uint32_t skew = i % 3 ? 0 : rig_random(rig) % 16,
			 bytes = i % 7 ? SLOT - 16 - rig_random(rig) % 2 * 5 : 0;
		uint64_t source = (uint64_t)(i * 7 + 3) % ITEMS * SLOT;

		items[i] = (struct block_copy_item){to.device + (uint64_t)i * SLOT + skew, from.device + source, bytes};
		memcpy(expected + (uint64_t)i * SLOT + skew, (uint8_t *)from.host + source, bytes);
	}
	rig_upload(rig, &from);
	rig_upload(rig, &to);
	assert_int_equal(block_copy_queue(rig->gpu, &args, rig->stream), 0);
	rig_download(rig, &to);
	assert_memory_equal(to.host, expected, ITEMS * SLOT);
	free(expected);
}

/* ---- speed ---- */

enum { PAGE = 2 << 20, ADAPTERS_MAX = 128, TOKENS_MAX = 4096, COPIES_MAX = 512 };

/* Device memory for weights whose content does not matter. */
struct weights {
	uint64_t va, handle, bytes;
	uint64_t page;   /* the page that is being filled, of bytes / PAGE pages in a shuffled order */
	uint64_t within; /* used bytes of that page */
};

static double now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static void weights_open(struct weights *weights, struct rig *rig, uint64_t bytes)
{
	*weights = (struct weights){.bytes = bytes};
	assert_int_equal(gpu_reserve(rig->gpu, bytes, 0, &weights->va), 0);
	assert_int_equal(gpu_create(rig->gpu, bytes, &weights->handle), 0);
	assert_int_equal(gpu_map(rig->gpu, weights->va, bytes, weights->handle), 0);
	assert_int_equal(gpu_access(rig->gpu, weights->va, bytes, GPU_ACCESS_READ_WRITE), 0);
	/* two fp16 values of 0.0039 */
	assert_int_equal(gpu_fill(rig->gpu, weights->va, 0x1c001c00, bytes, rig->stream), 0);
	assert_int_equal(gpu_stream_sync(rig->gpu, rig->stream), 0);
}

static void weights_close(struct weights *weights, struct rig *rig)
{
	gpu_unmap(rig->gpu, weights->va, weights->bytes);
	gpu_unreserve(rig->gpu, weights->va, weights->bytes);
	gpu_release(rig->gpu, weights->handle);
}

/* page_at() - return the n-th page to fill; it is far from the previous one. */
static uint64_t page_at(const struct weights *weights, uint64_t n)
{
	uint64_t pages = weights->bytes / PAGE;

	return weights->va + n * 37 % pages * PAGE; /* pages is a power of two */
}

/*
 * matrix_place() - place a matrix as an adapter store does: after the previous one, and continued in other pages.
 * `more` has room for its runs.
 */
static struct lora_matrix matrix_place(
	struct weights *weights, uint32_t rank, uint32_t columns, uint64_t *more, uint64_t more_device, uint32_t *runs)
{
	uint32_t tile_bytes = lora_tile_bytes(rank), left = lora_tiles(columns), run = PAGE / tile_bytes, head;
	struct lora_matrix matrix = {.more = more_device, .run_tiles = run};

	if (PAGE - weights->within < tile_bytes) {
		weights->page++;
		weights->within = 0;
	}
	head = (uint32_t)((PAGE - weights->within) / tile_bytes);
	matrix.head_tiles = head < left ? head : left;
	matrix.first = page_at(weights, weights->page) + weights->within;
	weights->within += (uint64_t)matrix.head_tiles * tile_bytes;
	left -= matrix.head_tiles;
	for (*runs = 0; left; (*runs)++) {
		uint32_t here = left < run ? left : run;

		more[*runs] = page_at(weights, ++weights->page);
		weights->within = (uint64_t)here * tile_bytes;
		left -= here;
	}
	return matrix;
}

struct run_shape {
	uint32_t in, out, rank, adapters, tokens;
};

struct timed {
	struct rig *rig;
	struct weights *weights;
	struct run_shape shape;
	struct lora_args args[COPIES_MAX];
	uint32_t copies, pieces;
};

/* pair_bytes() - return the minimum number of bytes that must be moved. */
static double pair_bytes(const struct run_shape *shape)
{
	return 2.0 * shape->adapters * shape->rank * (shape->in + shape->out) +
		2.0 * shape->tokens * (shape->in + 2.0 * shape->out);
}

/* timed_init() - prepare as many layers of this shape as fit into the weights. */
static void timed_init(struct timed *timed, struct rig *rig, struct weights *weights, const struct run_shape *shape)
{
	enum { RUNS_MAX = 4 };
	uint64_t layer_bytes = 2ull * shape->adapters * shape->rank * (shape->in + shape->out + 256);
	struct place batch = rig_place(rig, lora_batch_bytes(shape->tokens, shape->adapters)), x, y, workspace;
	int32_t adapters[TOKENS_MAX];
	int pieces;

	*timed = (struct timed){.rig = rig, .weights = weights, .shape = *shape};
	timed->copies = (uint32_t)(weights->bytes * 3 / 4 / layer_bytes);
	timed->copies = timed->copies > COPIES_MAX ? COPIES_MAX : timed->copies ? timed->copies : 1;
	for (uint32_t i = 0; i < shape->tokens; i++)
		adapters[i] = (int32_t)(i % shape->adapters);
	pieces = lora_batch_build(batch.host, shape->tokens, adapters, shape->tokens, shape->adapters);
	assert_true(pieces > 0);
	timed->pieces = (uint32_t)pieces;
	x = rig_place(rig, (uint64_t)shape->tokens * shape->in * 2);
	y = rig_place(rig, (uint64_t)shape->tokens * shape->out * 2);
	workspace = rig_place(rig, lora_workspace_bytes(shape->tokens, shape->rank, shape->in));
	memset(x.host, 0, x.bytes);
	memset(y.host, 0, y.bytes);
	memset(workspace.host, 0, workspace.bytes);
	rig_upload(rig, &batch);
	rig_upload(rig, &x);
	rig_upload(rig, &y);
	rig_upload(rig, &workspace);
	weights->page = weights->within = 0;
	for (uint32_t copy = 0; copy < timed->copies; copy++) {
		struct place table = rig_place(rig, shape->adapters * sizeof(struct lora_adapter));
		struct place more = rig_place(rig, (uint64_t)shape->adapters * 2 * RUNS_MAX * sizeof(uint64_t));
		struct lora_adapter *list = table.host;
		uint32_t used = 0, runs;

		for (uint32_t i = 0; i < shape->adapters; i++) {
			list[i] = (struct lora_adapter){.rank = shape->rank, .scale = 1};
			list[i].a = matrix_place(weights, shape->rank, shape->in, (uint64_t *)more.host + used,
				more.device + used * 8, &runs);
			used += runs;
			list[i].b = matrix_place(weights, shape->rank, shape->out, (uint64_t *)more.host + used,
				more.device + used * 8, &runs);
			used += runs;
			assert_true(used <= shape->adapters * 2 * RUNS_MAX && weights->page < weights->bytes / PAGE);
		}
		rig_upload(rig, &table);
		rig_upload(rig, &more);
		timed->args[copy] = (struct lora_args){batch.device, table.device, x.device, y.device, workspace.device,
			shape->adapters, shape->tokens, shape->rank, shape->in, shape->out, shape->in, shape->out,
			ELEMENT_F16, 0, 0};
	}
	assert_int_equal(gpu_stream_sync(rig->gpu, rig->stream), 0);
}

enum how { BATCHED, NAIVE, GROUPED };

static void plain_queue(struct rig *rig, const struct lora_args *args, uint32_t first, uint32_t count)
{
	struct lora_plain_args plain = {
		.lora = *args, .piece_first = first, .piece_count = count, .rank_high = LORA_RANK_MAX};

	assert_int_equal(lora_plain_queue(rig->gpu, &plain, rig->stream), 0); /* nothing is launched for 0 pieces */
}

static void pair_queue(const struct timed *timed, enum how how, uint32_t turn)
{
	struct rig *rig = timed->rig;
	const struct lora_args *args = &timed->args[turn % timed->copies];
	uint32_t adapters = timed->shape.adapters, further = timed->pieces / adapters - 1;

	if (how == BATCHED) {
		assert_int_equal(lora_shrink_queue(rig->gpu, args, rig->stream), 0);
		assert_int_equal(lora_expand_queue(rig->gpu, args, rig->stream), 0);
	} else if (how == GROUPED) {
		plain_queue(rig, args, 0, timed->pieces);
	} else {
		/* All adapters have the same number of pieces: one home each, and then the further ones. */
		for (uint32_t i = 0; i < adapters; i++) {
			plain_queue(rig, args, i, 1);
			plain_queue(rig, args, adapters + i * further, further);
		}
	}
}

/* pair_us() - return the microseconds of one pair of shrink and expand: the median of five series. */
static double pair_us(const struct timed *timed, enum how how)
{
	enum { TIMES = 5 };
	uint32_t turns = small ? 1 : how == BATCHED ? COPIES_MAX : 64;
	double us[TIMES];

	pair_queue(timed, how, 0); /* loads the image */
	assert_int_equal(gpu_stream_sync(timed->rig->gpu, timed->rig->stream), 0);
	for (int i = 0; i < TIMES; i++) {
		double begin = now_us();

		for (uint32_t turn = 0; turn < turns; turn++)
			pair_queue(timed, how, turn);
		assert_int_equal(gpu_stream_sync(timed->rig->gpu, timed->rig->stream), 0);
		us[i] = (now_us() - begin) / turns;
		for (int at = i; at > 0 && us[at - 1] > us[at]; at--) {
			double swap = us[at];

			us[at] = us[at - 1];
			us[at - 1] = swap;
		}
	}
	return us[TIMES / 2];
}

/* copy_bandwidth() - return the bandwidth of a copy on the device in GB/s; reads and writes are counted. */
static double copy_bandwidth(struct rig *rig, const struct weights *weights)
{
	enum { TURNS = 10 };
	uint64_t half = weights->bytes / 2;
	double begin;

	assert_int_equal(gpu_copy(rig->gpu, weights->va + half, weights->va, half, rig->stream), 0);
	assert_int_equal(gpu_stream_sync(rig->gpu, rig->stream), 0);
	begin = now_us();
	for (int i = 0; i < TURNS; i++)
		assert_int_equal(gpu_copy(rig->gpu, weights->va + half, weights->va, half, rig->stream), 0);
	assert_int_equal(gpu_stream_sync(rig->gpu, rig->stream), 0);
	return 2.0 * TURNS * (double)half / (now_us() - begin) / 1e3;
}

static void row_print(struct rig *rig, struct weights *weights, const struct run_shape *shape)
{
	static struct timed timed;
	double bytes = pair_bytes(shape), us, naive, grouped, roofline = bytes / bandwidth / 1e3;

	timed_init(&timed, rig, weights, shape);
	us = pair_us(&timed, BATCHED);
	naive = pair_us(&timed, NAIVE);
	grouped = pair_us(&timed, GROUPED);
	printf("| %u | %u | %u | %.1f | %.2f | %.1f | %.2f | %.1f | %.1f |\n", shape->tokens, shape->adapters,
		shape->rank, us, bytes / 1e6, roofline, us / roofline, naive, grouped);
	rig_clear(rig);
}

static void test_table(void **state)
{
	static const uint32_t adapters[] = {1, 2, 4, 8, 16, 32, 64, 128}, ranks[] = {8, 16, 32, 64, 128};
	static const uint32_t prefill[][2] = {{256, 1}, {1024, 1}, {4096, 1}, {4096, 8}};
	struct run_shape shape = {.in = small ? 512 : 4096, .out = small ? 768 : 11008};
	struct gpu_device_info info;
	struct weights weights;
	struct rig rig;

	(void)state;
	assert_int_equal(rig_open(&rig, gpu_backend(backend), small ? 32 << 20 : 512 << 20), 0);
	weights_open(&weights, &rig, small ? 32 << 20 : 1 << 30);
	assert_int_equal(gpu_backend(backend)->device_info(0, &info), 0);
	if (bandwidth == 0)
		bandwidth = copy_bandwidth(&rig, &weights);
	printf("\n%s%s, fp16, %u to %u; roofline by %.0f GB/s; us of one shrink and expand\n\n", info.name,
		small ? " (on a CPU)" : "", shape.in, shape.out, bandwidth);
	printf("| tokens | adapters | rank | us | MB | roofline us | ratio | naive us | grouped us |\n");
	printf("| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
	for (size_t r = 0; r < sizeof(ranks) / sizeof(*ranks); r += small ? 3 : 1)
		for (size_t a = 0; a < (small ? 3 : sizeof(adapters) / sizeof(*adapters)); a++) {
			shape.adapters = shape.tokens = adapters[a];
			shape.rank = ranks[r];
			row_print(&rig, &weights, &shape);
		}
	for (size_t r = 1; r < sizeof(ranks) / sizeof(*ranks) && !small; r++)
		for (size_t p = 0; p < sizeof(prefill) / sizeof(*prefill); p++) {
			shape.tokens = prefill[p][0];
			shape.adapters = prefill[p][1];
			shape.rank = ranks[r];
			row_print(&rig, &weights, &shape);
		}
	printf("\n");
	weights_close(&weights, &rig);
	rig_close(&rig);
}

/* usable() - return 0, or print the reason and return 77. */
static int usable(void)
{
	const struct gpu_ops *ops = gpu_backend(backend);
	struct gpu_device_info info;
	int count = ops ? ops->device_count() : -EINVAL;

	if (count < 1 || ops->device_info(0, &info) < 0) {
		printf("no device of back end '%s': %s\n", backend, count ? gpu_error_text() : "none is listed");
		return 77;
	}
	if (!(info.capabilities & GPU_CAP_KERNELS)) {
		printf("no kernels: this gpool was built without nvcc\n");
		return 77;
	}
	return 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_lora_random_shapes, setup, teardown),
		cmocka_unit_test_setup_teardown(test_lora_all_ranks, setup, teardown),
		cmocka_unit_test_setup_teardown(test_lora_bits_do_not_depend_on_the_batch, setup, teardown),
		cmocka_unit_test_setup_teardown(test_lora_batches_follow_each_other, setup, teardown),
		cmocka_unit_test_setup_teardown(test_lora_large_and_small_sums, setup, teardown),
		cmocka_unit_test_setup_teardown(test_lora_plain, setup, teardown),
		cmocka_unit_test_setup_teardown(test_quantise, setup, teardown),
		cmocka_unit_test_setup_teardown(test_block_copy, setup, teardown),
		cmocka_unit_test(test_table),
	};

	for (int i = 1; i < argc; i++) {
		if (i + 1 < argc && !strcmp(argv[i], "--backend")) {
			backend = argv[++i];
		} else if (i + 1 < argc && !strcmp(argv[i], "--bandwidth") && atof(argv[i + 1]) > 0) {
			bandwidth = atof(argv[++i]);
		} else if (!strcmp(argv[i], "--small")) {
			small = true;
		} else {
			fprintf(stderr, "usage: lora_on_gpu [--backend cuda|host] [--bandwidth GB/S] [--small]\n");
			return 2;
		}
	}
	small |= !strcmp(backend, "host");
	if (usable())
		return 77;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
