/*
 * test_kernels_emulated.c - the CUDA code of cuda/kernels/, run on the CPU.
 *
 * Goal: the .cu files compute correct results, within bounds and with aligned accesses, before they are run on a GPU.
 * The LoRA kernels are compared with float64, the others with their references.
 *
 * Method: tests/emulated/ runs each thread as a fiber, and tensor operations as the manual defines them. Every place is
 * allocated separately, so that AddressSanitizer (make asan) detects its end. The order of blocks is shuffled. Under
 * ThreadSanitizer (make tsan), blocks run concurrently, and a planted race must be found.
 *
 * Requirements: L8.
 */
#include "tests/emulated/emulator.h"
#include "tests/lib/scale.h"
#include "tests/unit/lora_cases.h"

#include "cuda/kernels/block_copy.h"
#include "cuda/kernels/kv_write.h"
#include "cuda/kernels/quantise.h"

#include <sys/param.h>
#include <sys/resource.h>
#include <sys/wait.h>

#ifdef __SANITIZE_THREAD__
static const bool watched = true;
#else
static const bool watched = false;
#endif

static int setup(void **state)
{
	static struct rig rig;

	assert_int_equal(rig_open(&rig, emulator_ops(), 0), 0);
	emulator_seed(12345);
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
	case_random_shapes(*state, test_scaled(12), 600, 600, 40);
}

static void test_lora_all_ranks(void **state)
{
	case_all_ranks(*state, ELEMENT_F16, 3);
	case_all_ranks(*state, ELEMENT_BF16, 5);
}

static void test_lora_bits_do_not_depend_on_the_batch(void **state)
{
	case_bits_do_not_depend_on_the_batch(*state, ELEMENT_F16, watched);
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
 * Codes and scales equal those of the reference in every bit: element by element, and 16 bytes at a time, with groups
 * that fit into a warp or not, and with a shorter one at the end of a row.
 */
static void test_quantise(void **state)
{
	static const uint32_t shapes[][2] = {{300, 128}, {300, 64}, {300, 100}, {300, 0}, {256, 128}, {320, 128},
		{320, 64}, {1072, 536}, {1040, 0}, {48, 16}};
	struct rig *rig = *state;

	for (uint32_t element = 0; element < ELEMENTS; element++)
		for (size_t shape = 0; shape < sizeof(shapes) / sizeof(*shapes); shape++) {
			uint32_t columns = shapes[shape][0], group = shapes[shape][1];
			uint64_t rows = columns == 48 ? 50 : 7, count = rows * columns;
			uint64_t scales = rows * quantise_groups(columns, group) * 2;
			struct quantise_error sum = {0};
			struct place values = rig_place(rig, count * element_bytes(element));
			struct place back = rig_place(rig, count * element_bytes(element));
			struct place codes[2] = {rig_place(rig, count), rig_place(rig, count)};
			struct place scale[2] = {rig_place(rig, scales), rig_place(rig, scales)};
			struct place error[2] = {rig_place(rig, sizeof(sum)), rig_place(rig, sizeof(sum))};
			struct quantise_error *errors[2] = {error[0].host, error[1].host};
			struct quantise_args args[2];

			for (uint64_t i = 0; i < count; i++) {
				float value = rig_normal(rig) * (i / 128 % 3 == 2 ? 0 : 0.02f);

				/* Small scales, and values at or next to the middle between two codes. */
				if (i / columns == 3)
					value = (float)(rig_random(rig) % 127 + 0.5) * (1 + rig_normal(rig) * 1e-7f) *
						(element == ELEMENT_F16 ? 0x1p-22f : 0x1p-126f);
				if (element == ELEMENT_F32)
					((float *)values.host)[i] = i == 900 ? INFINITY : value;
				else
					((uint16_t *)values.host)[i] =
						element == ELEMENT_F16 ? f16_of_float(value) : bf16_of_float(value);
			}
			for (int i = 0; i < 2; i++) {
				*errors[i] = sum;
				args[i] = (struct quantise_args){values.device, codes[i].device, scale[i].device,
					error[i].device, rows, columns, group, element};
			}
			assert_int_equal(quantise_queue(rig->gpu, &args[0], rig->stream), 0);
			quantise_host(&args[1]);
			assert_memory_equal(codes[0].host, codes[1].host, count);
			assert_memory_equal(scale[0].host, scale[1].host, scales);
			assert_true(errors[0]->max_error == errors[1]->max_error);
			assert_true(fabs(errors[0]->squares / errors[1]->squares - 1) < 2e-6);
			assert_true(fabs(errors[0]->error_squares / errors[1]->error_squares - 1) < 2e-6);
			args[0].values = back.device;
			assert_int_equal(dequantise_queue(rig->gpu, &args[0], rig->stream), 0);
			dequantise_host(&args[1]);
			assert_memory_equal(back.host, values.host, back.bytes);
			rig_clear(rig);
		}
}

/* kv_write_shape() - return the arguments for blocks with vectors by token or by head, without addresses. */
static struct kv_write_args kv_write_shape(struct rig *rig, uint32_t head_size, uint32_t heads, bool by_head)
{
	uint32_t tokens = 8u << rig_random(rig) % 3, vectors = tokens * heads, codes = vectors * head_size;
	struct kv_write_args args = {.key_codes = 0,
		.value_codes = codes,
		.key_scales = 2 * codes,
		.value_scales = 2 * codes + 2 * vectors,
		.block_bytes = 2 * codes + 4 * vectors,
		.chunk_blocks = 1 + rig_random(rig) % 3,
		.block_count = 7,
		.block_tokens = tokens,
		.token_stride = by_head ? head_size : heads * head_size,
		.head_stride = by_head ? tokens * head_size : head_size,
		.scale_token_stride = by_head ? 2 : heads * 2,
		.scale_head_stride = by_head ? tokens * 2 : 2,
		.tokens = 1 + rig_random(rig) % 150,
		.kv_heads = heads,
		.head_size = head_size,
		.key_stride = heads * head_size,
		.value_stride = heads * head_size + 8,
		.element = rig_random(rig) % 2 ? ELEMENT_F16 : ELEMENT_BF16};

	if (args.tokens > kv_write_slots(&args))
		args.tokens = (uint32_t)kv_write_slots(&args);
	args.chunk_bytes = args.chunk_blocks * args.block_bytes + 64;
	return args;
}

/* Blocks equal those of the reference in every byte, also those that are not written. Requirements: K18. */
static void test_kv_write(void **state)
{
	static const uint32_t sizes[] = {64, 128, 256, 16, 80, 112, 240};
	struct rig *rig = *state;

	for (uint32_t round = 0; round < 28; round++) {
		struct kv_write_args args[2] = {kv_write_shape(rig, sizes[round % 7], 1 + round % 3, round % 2)};
		uint64_t bytes = (6 / args[0].chunk_blocks + 1) * args[0].chunk_bytes, count;
		struct place blocks[2] = {rig_place(rig, bytes), rig_place(rig, bytes)};
		struct place error[2] = {
			rig_place(rig, sizeof(struct quantise_error)), rig_place(rig, sizeof(struct quantise_error))};
		struct place slots = rig_place(rig, args[0].tokens * 8);
		struct place from[2] = {rig_place(rig, (uint64_t)args[0].tokens * args[0].key_stride * 2),
			rig_place(rig, (uint64_t)args[0].tokens * args[0].value_stride * 2)};
		uint64_t first = rig_random(rig) % kv_write_slots(&args[0]);
		struct quantise_error *errors[2] = {error[0].host, error[1].host};

		for (uint32_t token = 0; token < args[0].tokens; token++)
			((uint64_t *)slots.host)[token] =
				token % 9 == 4 ? UINT64_MAX - token : (first + token) % kv_write_slots(&args[0]);
		((uint64_t *)slots.host)[0] = kv_write_slots(&args[0]); /* the first number that does not exist */
		for (int value = 0; value < 2; value++) {
			count = from[value].bytes / 2;
			for (uint64_t i = 0; i < count; i++) {
				float element = rig_normal(rig) * (i / 64 % 5 == 3 ? 30 : 1);

				((uint16_t *)from[value].host)[i] =
					args[0].element == ELEMENT_F16 ? f16_of_float(element) : bf16_of_float(element);
			}
		}
		args[0].keys = from[0].device;
		args[0].values = from[1].device;
		args[0].slots = slots.device;
		args[1] = args[0];
		for (int i = 0; i < 2; i++) {
			*errors[i] = (struct quantise_error){0};
			memset(blocks[i].host, 0x5a, bytes);
			args[i].blocks = blocks[i].device;
			args[i].error = round % 4 == 3 ? 0 : error[i].device;
		}
		assert_int_equal(kv_write_queue(rig->gpu, &args[0], rig->stream), 0);
		assert_int_equal(gpu_stream_sync(rig->gpu, rig->stream), 0);
		kv_write_host(&args[1]);
		assert_memory_equal(blocks[0].host, blocks[1].host, bytes);
		assert_true(errors[0]->max_error == errors[1]->max_error);
		if (args[0].error && args[0].tokens > 1) {
			assert_true(fabs(errors[0]->squares / errors[1]->squares - 1) < 2e-6);
			assert_true(fabs(errors[0]->error_squares / errors[1]->error_squares - 1) < 2e-6);
		}
		rig_clear(rig);
	}
}

static void test_kv_write_is_refused(void **state)
{
	struct rig *rig = *state;
	struct kv_write_args right = kv_write_shape(rig, 64, 2, false), wrong[16];

	right.keys = right.values = right.slots = right.blocks = 4096;
	right.chunk_bytes = right.chunk_blocks * right.block_bytes;
	assert_int_equal(kv_write_check(&right), 0);
	for (int i = 0; i < 16; i++)
		wrong[i] = right;
	wrong[0].element = ELEMENT_F32;
	wrong[1].head_size = 72;
	wrong[2].kv_heads = 0;
	wrong[3].tokens = (1 << 20) + 1;
	wrong[4].block_tokens = 24;
	wrong[5].chunk_blocks = 0;
	wrong[6].value_codes += 8;
	wrong[7].value_scales += 2; /* beyond the end of the block */
	wrong[8].key_scales += 1;
	wrong[9].head_stride = 1u << 31;
	wrong[10].blocks += 8;
	wrong[11].keys += 8;
	wrong[12].slots = 0;
	wrong[13].key_stride = 64;
	wrong[14].value_stride += 4;
	wrong[15].error = 4;
	for (int i = 0; i < 16; i++) {
		assert_int_equal(kv_write_check(&wrong[i]), -EINVAL);
		assert_int_equal(kv_write_queue(rig->gpu, &wrong[i], rig->stream), -EINVAL);
	}
	right.tokens = 0;
	assert_int_equal(kv_write_queue(rig->gpu, &right, rig->stream), 0);
}

static void test_block_copy(void **state)
{
	enum { ITEMS = 9 };
	struct rig *rig = *state;
	struct block_copy_args args = {.bytes_max = 40000, .count = ITEMS};
	struct block_copy_item *items = args.items;
	struct place from[ITEMS], to[ITEMS];

	for (uint32_t i = 0; i < ITEMS; i++) {
		from[i] = rig_place(rig, 1 + 40000 / (i + 1));
		to[i] = rig_place(rig, from[i].bytes);
		for (uint64_t at = 0; at < from[i].bytes; at++)
			((uint8_t *)from[i].host)[at] = (uint8_t)rig_random(rig);
		items[i] = (struct block_copy_item){to[i].device, from[i].device, i == 3 ? 0 : from[i].bytes};
		if (i >= 4) { /* not aligned, or both in the same way */
			items[i].to += i % 2 ? 4 : i - 3;
			items[i].from += i == 6 || i == 7 ? i - 3 : 0;
			items[i].bytes -= 8;
		}
	}
	assert_int_equal(block_copy_queue(rig->gpu, &args, rig->stream), 0);
	for (uint32_t i = 0; i < ITEMS; i++) {
		assert_memory_equal((void *)(uintptr_t)items[i].to, (void *)(uintptr_t)items[i].from, items[i].bytes);
		if (!items[i].bytes)
			assert_int_equal(*(uint8_t *)to[i].host, 0xff);
	}
}

/* Run a batch in which expand can access the workspace only after its wait for shrink. */
static void run_hidden(struct rig *rig)
{
	enum { TOKENS = 20, ADAPTERS = 6, BYTES = 1 << 20 };
	struct layer_shape shape = {.element = ELEMENT_F16,
		.in = 1024,
		.out = 700,
		.adapter_count = ADAPTERS,
		.rank_max = 40,
		.tokens_max = TOKENS};
	static const uint32_t ranks[ADAPTERS] = {8, 16, 0, 40, 32, 5};
	void *workspace = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int32_t adapters[TOKENS];
	struct layer layer;

	assert_ptr_not_equal(workspace, MAP_FAILED);
	assert_true(lora_workspace_bytes(TOKENS, shape.rank_max, shape.in) <= BYTES);
	emulator_hide(workspace, BYTES);
	layer_init(&layer, rig, &shape, ranks);
	layer.args.workspace = (uintptr_t)workspace;
	for (int i = 0; i < TOKENS; i++)
		adapters[i] = i < 12 ? 3 : i % ADAPTERS - 1;
	for (uint32_t tokens = 0; tokens <= TOKENS; tokens += 10) {
		layer_batch(&layer, adapters, tokens);
		layer_reset(&layer);
		layer_run(&layer);
		layer_check(&layer, adapters, tokens);
	}
	layer_fini(&layer);
	emulator_hide(NULL, 0);
	munmap(workspace, BYTES);
}

static void test_expand_waits_for_shrink(void **state)
{
	run_hidden(*state);
}

/* The program of a child: expand does not wait. */
static int planted_wait(void)
{
	static struct rig rig;

	if (rig_open(&rig, emulator_ops(), 0))
		return 0;
	emulator_plant_missing_wait();
	run_hidden(&rig);
	rig_close(&rig);
	return 0;
}

static void test_planted_missing_wait_is_found(void **state)
{
	int status;
	pid_t child;

	(void)state;
	child = fork();
	assert_true(child >= 0);
	if (!child) {
		const struct rlimit none = {0, 0};

		setrlimit(RLIMIT_CORE, &none);
		if (freopen("/dev/null", "w", stderr))
			execl("/proc/self/exe", "test_kernels_emulated", "planted_wait", NULL);
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFSIGNALED(status) || WEXITSTATUS(status));
}

/*
 * The program of a child: shrink without fences, with three blocks. The one that ends last adds the sums of the other
 * two, whose stores nothing orders before its loads.
 */
static int planted(void)
{
	enum { TOKENS = LORA_LATE_TOKENS + 1 }; /* for fewer tokens, expand adds the sums */
	struct layer_shape shape = {
		.element = ELEMENT_F16, .in = 384, .out = 128, .adapter_count = 1, .rank_max = 8, .tokens_max = TOKENS};
	static const uint32_t ranks[] = {8};
	const int32_t adapters[TOKENS] = {0};
	static struct rig rig;
	struct layer layer;

	if (rig_open(&rig, emulator_ops(), 0))
		return 1;
	emulator_plant_missing_fences();
	layer_init(&layer, &rig, &shape, ranks);
	layer_batch(&layer, adapters, TOKENS);
	layer_run(&layer);
	layer_fini(&layer);
	rig_close(&rig);
	return 0;
}

/*
 * ThreadSanitizer detects a planted race between thread blocks: the child ends with the status set in TSAN_OPTIONS, and
 * the report names the function splits_add().
 */
static void test_planted_race_is_found(void **state)
{
	enum { FOUND = 66 };
	char report[16384] = "", part[512];
	size_t length = 0;
	ssize_t some;
	int ends[2], status;
	pid_t child;

	(void)state;
	assert_int_equal(pipe(ends), 0);
	child = fork();
	assert_true(child >= 0);
	if (!child) {
		setenv("TSAN_OPTIONS", "exitcode=66 history_size=7", 1);
		dup2(ends[1], STDERR_FILENO);
		close(ends[0]);
		execl("/proc/self/exe", "test_kernels_emulated", "planted", NULL);
		_exit(1);
	}
	close(ends[1]);
	while ((some = read(ends[0], part, sizeof(part))) > 0) {
		size_t kept = MIN((size_t)some, sizeof(report) - 1 - length);

		memcpy(report + length, part, kept);
		length += kept;
	}
	close(ends[0]);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), FOUND);
	assert_non_null(strstr(report, "data race"));
	assert_non_null(strstr(report, "splits_add"));
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
		cmocka_unit_test_setup_teardown(test_expand_waits_for_shrink, setup, teardown),
		cmocka_unit_test(test_planted_missing_wait_is_found),
		cmocka_unit_test_setup_teardown(test_quantise, setup, teardown),
		cmocka_unit_test_setup_teardown(test_kv_write, setup, teardown),
		cmocka_unit_test_setup_teardown(test_kv_write_is_refused, setup, teardown),
		cmocka_unit_test_setup_teardown(test_block_copy, setup, teardown),
		cmocka_unit_test(test_planted_race_is_found), /* the last one; other builds cannot find it */
	};
	const size_t count = sizeof(tests) / sizeof(tests[0]) - !watched;

	if (argc > 1 && !strcmp(argv[1], "planted"))
		return planted();
	if (argc > 1 && !strcmp(argv[1], "planted_wait"))
		return planted_wait();
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return _cmocka_run_group_tests("tests", tests, count, NULL, NULL);
}
