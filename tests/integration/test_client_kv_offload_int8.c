/*
 * test_client_kv_offload_int8.c - preempt sequences and save them as int8.
 *
 * Goal: restored contents are within the bound of gpool.h for fp16, bf16 and fp32, both through host memory and through
 * the pool and its tiers. The reported error is the actual one, and zeros stay zeros. Contents without an int8 form are
 * refused with the reason. The copy takes about half the space.
 *
 * Method: random elements and difficult distributions, each compared with the original.
 *
 * Requirements: K11.
 */
#include "client/kv/offload_int8.h"
#include "cuda/kernels/element.h"
#include "cuda/kernels/quantise.h"
#include "tests/integration/kv_view.h"
#include "tests/integration/spill_view.h"
#include "tests/lib/seed.h"
#include "tests/lib/unwatched.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

enum {
	BLOCKS = 128,
	HEAD = 64,
	LAYERS = 8,
	HEADS = 8,
	SEQUENCE_BLOCKS = 26,
	HOLES = 8,
	KINDS = 7,
	ROWS = 170, /* the losses of these and one more take more than a page of 4096 bytes */
};

static const char *const in_memory[] = {"--pool", POOL ",spill_memory=64MiB", CALM, NULL};

static const struct {
	enum element element;
	uint32_t flags;
	double rounding; /* half a unit in the last place of 1 */
	float most;
} forms[] = {
	{ELEMENT_F16, 0, 0x1p-11, 65504.0f},
	{ELEMENT_BF16, GPOOL_KV_BF16, 0x1p-8, 3.38e38f},
	{ELEMENT_F32, 0, 0x1p-23, 3.40282346e38f},
};

static uint32_t form;
static uint64_t elements; /* number of elements in the sequence */
static float *was;

static float any_float(void)
{
	return (float)any(1 << 24) / (1 << 23) - 1;
}

/* ---- elements ---- */

static void *element_at(uint64_t sequence, uint64_t index)
{
	uint64_t address = 0, per_block = kv->block_bytes / kv->shape.dtype_bytes;

	assert_int_equal(
		gpool_kv_address(kv, (uint32_t)block_at(sequence, (uint32_t)(index / per_block)), &address), 0);
	return (void *)(uintptr_t)(address + index % per_block * kv->shape.dtype_bytes);
}

/* Return a vector of HEAD elements, all of one block, as float values. */
static void vector_get(uint64_t sequence, uint64_t first, float *values)
{
	const void *vector = element_at(sequence, first);

	for (uint32_t i = 0; i < HEAD; i++)
		switch (forms[form].element) {
		case ELEMENT_F16: values[i] = float_of_f16(((const uint16_t *)vector)[i]); break;
		case ELEMENT_BF16: values[i] = float_of_bf16(((const uint16_t *)vector)[i]); break;
		default: values[i] = ((const float *)vector)[i];
		}
}

static void vector_put(uint64_t sequence, uint64_t first, const float *values)
{
	void *vector = element_at(sequence, first);

	for (uint32_t i = 0; i < HEAD; i++)
		switch (forms[form].element) {
		case ELEMENT_F16: ((uint16_t *)vector)[i] = f16_of_float(values[i]); break;
		case ELEMENT_BF16: ((uint16_t *)vector)[i] = bf16_of_float(values[i]); break;
		default: ((float *)vector)[i] = values[i];
		}
}

static void elements_get(uint64_t sequence, float *values)
{
	for (uint64_t i = 0; i < elements; i += HEAD)
		vector_get(sequence, i, values + i);
}

static void elements_put(uint64_t sequence, const float *values)
{
	for (uint64_t i = 0; i < elements; i += HEAD)
		vector_put(sequence, i, values + i);
}

/* Return the value of an element. Each vector contains one kind of elements, and the kinds alternate. */
static float value_of(uint64_t index)
{
	float most = forms[form].most;

	switch (index / HEAD % KINDS) {
	case 0: return 0;
	case 1: return any_float();
	case 2: return index % HEAD ? any_float() / 4096 : 1000; /* one outlier */
	case 3: return any(2) ? most : -most;
	case 4: return any_float() * 0x1p-14f;       /* subnormal in fp16 */
	case 5: return (float)((int)any(255) - 127); /* exactly representable if the largest one is among them */
	default: return any_float() * most;
	}
}

/* Return a sequence whose elements from `end` on are zeros. */
static uint64_t filled_until(uint64_t end)
{
	uint64_t per_block = kv->block_bytes / kv->shape.dtype_bytes;
	uint64_t sequence = allocated((uint32_t)(elements / per_block) * BLOCK_TOKENS, 0, 0);

	for (uint64_t i = 0; i < elements; i++)
		was[i] = i < end ? value_of(i) : 0;
	elements_put(sequence, was);
	elements_get(sequence, was);
	return sequence;
}

static uint64_t filled(void)
{
	return filled_until(elements);
}

/* ---- the permitted error ---- */

struct seen {
	double max_error, error_squares, squares;
};

static void vector_check(uint64_t sequence, uint64_t first, struct seen *seen)
{
	double largest = 0;
	float values[HEAD];

	vector_get(sequence, first, values);
	for (uint64_t i = first; i < first + HEAD; i++)
		largest = fmax(largest, fabs(was[i]));
	for (uint64_t i = first; i < first + HEAD; i++) {
		double is = values[i - first], error = fabs(is - was[i]);

		if (!(error <= largest / 252 + largest * forms[form].rounding + 0x1p-25))
			fail_msg("element %llu was %g, is %g; the largest of its vector was %g", (unsigned long long)i,
				was[i], is, largest);
		if (largest == 0)
			assert_true(is == 0);
		seen->max_error = fmax(seen->max_error, error);
		seen->error_squares += error * error;
		seen->squares += (double)was[i] * was[i];
	}
}

/* The reported error does not include the last rounding. */
static void loss_check(uint64_t sequence, const struct seen *seen)
{
	struct gpool_kv_quant_error loss = {.size = sizeof(loss)};
	double relative = sqrt(seen->error_squares / seen->squares);

	assert_int_equal(gpool_kv_quant_error(kv, sequence, &loss), 0);
	if (!(fabs(loss.relative_error - relative) <= 0.02 * relative + forms[form].rounding))
		fail_msg("relative error %g, reported %g", relative, loss.relative_error);
	if (!(fabs(loss.max_error - seen->max_error) <=
		    0.02 * seen->max_error + forms[form].most * forms[form].rounding))
		fail_msg("largest error %g, reported %g", seen->max_error, loss.max_error);
	assert_true(loss.relative_error < 0.004);
}

static void contents_check(uint64_t sequence)
{
	struct seen seen = {0};

	settle();
	for (uint64_t i = 0; i < elements; i += HEAD)
		vector_check(sequence, i, &seen);
	loss_check(sequence, &seen);
}

/* ---- tests ---- */

static void int8_start(uint32_t of, uint64_t host_bytes)
{
	struct gpool_kv_options options;

	seed = 0x9e3779b97f4a7c15;
	form = of;
	worker_open(in_memory);
	options = small_options(BLOCKS);
	options.max_sequences = ROWS;
	options.flags = forms[of].flags;
	options.shape.dtype_bytes = element_bytes(forms[of].element);
	options.shape.layers = forms[of].element == ELEMENT_F32 ? LAYERS / 2 : LAYERS;
	assert_int_equal(gpool_kv_create(worker, &options, &kv), 0);
	assert_int_equal(kv->block_bytes, BLOCK_BYTES);
	if (host_bytes)
		assert_int_equal(gpool_kv_host_reserve(kv, host_bytes), 0);
	elements = SEQUENCE_BLOCKS * kv->block_bytes / kv->shape.dtype_bytes;
	was = malloc(elements * sizeof(*was));
}

static int int8_stop(void **state)
{
	free(was);
	was = NULL;
	return kv_stop(state);
}

static struct gpool_kv_offload_info offloaded(void)
{
	struct gpool_kv_offload_info found = {.size = sizeof(found)};

	assert_int_equal(gpool_kv_offload_info(kv, &found), 0);
	return found;
}

/* Let other sequences use the blocks. */
static void disturb(void)
{
	uint64_t other = allocated(BLOCKS * BLOCK_TOKENS, 0, 0);

	settle();
	write_tokens(other, 0, BLOCKS * BLOCK_TOKENS, 0xbad);
	assert_int_equal(gpool_kv_free(kv, other), 0);
}

/* Occupy every second one of the first slots, so that the content is saved in several parts. */
static void holes_make(uint64_t sequences[2 * HOLES])
{
	for (uint32_t i = 0; i < 2 * HOLES; i++) {
		sequences[i] = allocated(BLOCK_TOKENS, 0, 0);
		settle(); /* the block is read by the copy of the previous sequence */
		for (uint32_t byte = 0; byte < BLOCK_BYTES; byte += 8)
			*(uint64_t *)((uintptr_t)word_at((uint64_t)block_at(sequences[i], 0) * BLOCK_TOKENS) + byte) =
				i + byte;
		assert_int_equal(gpool_kv_offload(kv, sequences[i], 0, NULL), 1);
	}
	for (uint32_t i = 0; i < 2 * HOLES; i += 2)
		assert_int_equal(gpool_kv_free(kv, sequences[i]), 0);
	settle();
}

/* Check the content of the sequences between the parts. */
static void holes_check(const uint64_t sequences[2 * HOLES])
{
	for (uint32_t i = 1; i < 2 * HOLES; i += 2) {
		uint32_t wrong = 0;

		assert_int_equal(gpool_kv_resume(kv, sequences[i]), 0);
		settle();
		for (uint32_t byte = 0; byte < BLOCK_BYTES; byte += 8)
			wrong += *(uint64_t *)((uintptr_t)word_at((uint64_t)block_at(sequences[i], 0) * BLOCK_TOKENS) +
					 byte) != i + byte;
		assert_int_equal(wrong, 0);
	}
}

static void by_host_memory(uint32_t of)
{
	struct gpool_block taken[PAGES];
	uint64_t sequence, between[2 * HOLES];
	uint32_t count = 0;

	int8_start(of, (64 + HOLES) * BLOCK_BYTES);
	holes_make(between);
	sequence = filled();
	assert_int_equal(gpool_kv_offload(kv, sequence, GPOOL_KV_OFFLOAD_INT8, NULL), SEQUENCE_BLOCKS);
	/* The copy consists of codes, scales of 1/32 of their size, and the sums of each part. */
	assert_in_range(64 - offloaded().host_free_blocks, 1, SEQUENCE_BLOCKS / kv->shape.dtype_bytes * 66 / 64 + 2);
	disturb();
	assert_int_equal(gpool_kv_resume(kv, sequence), 0);
	contents_check(sequence);
	assert_int_equal(offloaded().host_free_blocks, 64);
	/* Save the content without an intermediate page, as always on `host`. */
	elements_put(sequence, was);
	while (count < PAGES && !gpool_alloc(worker, 1, NULL, &taken[count]))
		count++;
	assert_int_equal(gpool_kv_offload(kv, sequence, GPOOL_KV_OFFLOAD_INT8, NULL), SEQUENCE_BLOCKS);
	settle();
	assert_int_equal(gpool_kv_resume(kv, sequence), 0);
	contents_check(sequence);
	while (count)
		assert_int_equal(gpool_free(worker, &taken[--count]), 0);
	holes_check(between);
}

static void test_by_host_memory(void **state)
{
	(void)state;
	by_host_memory(0);
}

static void test_by_host_memory_bf16(void **state)
{
	(void)state;
	by_host_memory(1);
}

static void test_by_host_memory_fp32(void **state)
{
	(void)state;
	by_host_memory(2);
}

static void test_by_the_pool(void **state)
{
	uint64_t sequence, before;

	(void)state;
	int8_start(0, 0);
	sequence = filled();
	assert_int_equal(
		gpool_kv_offload(kv, sequence, GPOOL_KV_OFFLOAD_POOL | GPOOL_KV_OFFLOAD_INT8, NULL), SEQUENCE_BLOCKS);
	/* The content of four pages is stored in two. */
	assert_int_equal(offloaded().pool_pages, 2);
	disturb();
	before = spilled();
	AWAIT(spilled() - before >= 2 ||
		(harness_evict(&harness, gpool_session(worker), PAGES), spilled() - before >= 2));
	AWAIT(gpool_kv_prefetch(kv, sequence) == 0);
	assert_int_equal(gpool_kv_resume(kv, sequence), 0);
	contents_check(sequence);
	assert_int_equal(offloaded().pool_pages, 0);
}

/* The scales, the aligned codes and the sums fit into a part of any size, and not many vectors more would fit. */
static void test_room(void **state)
{
	(void)state;
	int8_start(0, 0);
	for (uint64_t bytes = 0; bytes < 4 * BLOCK_BYTES; bytes += 2) {
		uint64_t vectors = int8_room(kv, bytes) / (HEAD * kv->shape.dtype_bytes);

		assert_true(!vectors || 32 + (2 * vectors + 15) / 16 * 16 + HEAD * vectors <= bytes);
		assert_true(32 + 16 + (2 + HEAD) * (vectors + 1) > bytes);
	}
}

/*
 * Two sequences whose blocks are not adjacent, and of which the second half of one is zeros. They are saved in several
 * parts. Each has its own error, whatever the errors of others.
 */
static void test_two_scattered_sequences(void **state)
{
	static const uint32_t flags[] = {GPOOL_KV_OFFLOAD_INT8, GPOOL_KV_OFFLOAD_INT8 | GPOOL_KV_OFFLOAD_POOL};
	const struct quantise_error large = {1e30, 1e30, 1e30f, 0};
	uint64_t single[2 * SEQUENCE_BLOCKS], sequences[2], between[2 * HOLES];
	float *contents[2];

	(void)state;
	int8_start(0, (64 + HOLES) * BLOCK_BYTES);
	holes_make(between);
	for (uint32_t i = 0; i < 2 * SEQUENCE_BLOCKS; i++)
		single[i] = allocated(BLOCK_TOKENS, 0, 0);
	contents[0] = was;
	contents[1] = malloc(elements * sizeof(*was));
	for (uint32_t which = 0; which < 2; which++) {
		for (uint32_t i = which; i < 2 * SEQUENCE_BLOCKS; i += 2)
			assert_int_equal(gpool_kv_free(kv, single[i]), 0);
		was = contents[which];
		sequences[which] = filled_until(which ? elements : elements / 2);
		assert_true(block_at(sequences[which], 1) != block_at(sequences[which], 0) + 1);
	}
	for (uint32_t i = 0; i < sizeof(flags) / sizeof(*flags); i++) {
		for (uint32_t which = 0; which < 2; which++)
			assert_int_equal(gpool_kv_offload(kv, sequences[which], flags[i], NULL), SEQUENCE_BLOCKS);
		disturb();
		for (uint32_t which = 0; which < 2; which++)
			assert_int_equal(gpool_kv_resume(kv, sequences[which]), 0);
		for (uint32_t which = 0; which < 2; which++) {
			was = contents[which];
			contents_check(sequences[which]);
			elements_put(sequences[which], was);
		}
		for (uint32_t row = 0; row < ROWS; row++)
			kv->losses[row] = large;
	}
	holes_check(between);
	was = contents[0];
	free(contents[1]);
}

static void page_mark(const struct gpool_block *block, uint64_t mark)
{
	uint64_t address;

	assert_int_equal(gpool_address(worker, block, &address), 0);
	for (uint64_t i = 0; i < gpool_page_bytes(worker) / 8; i++)
		((uint64_t *)(uintptr_t)address)[i] = mark + i;
}

static bool page_is_marked(const struct gpool_block *block, uint64_t mark)
{
	uint64_t address, wrong = 0;

	assert_int_equal(gpool_address(worker, block, &address), 0);
	for (uint64_t i = 0; i < gpool_page_bytes(worker) / 8; i++)
		wrong += ((const uint64_t *)(uintptr_t)address)[i] != mark + i;
	return !wrong;
}

static int by_page(const void *a, const void *b)
{
	return (int)((const struct gpool_block *)a)->page - (int)((const struct gpool_block *)b)->page;
}

/*
 * The content is converted in several steps through pages of the pool: if as many are free as a step needs, or directly
 * otherwise. The conversion evicts no content, and writes to no other page. Method: all pages are taken, except `left`
 * adjacent ones, and can be evicted during the conversion.
 */
static void in_steps(uint32_t left)
{
	enum { STEP_BLOCKS = 90 };
	struct gpool_kv_options options;
	struct gpool_block taken[PAGES];
	uint32_t count = 0, begin = 0;
	uint64_t sequence;

	seed = 0x9e3779b97f4a7c15;
	form = 0;
	worker_open(in_memory);
	options = small_options(STEP_BLOCKS);
	options.shape.layers = LAYERS * 3 / 2; /* the size of a page is no multiple of the size of a block */
	assert_int_equal(gpool_kv_create(worker, &options, &kv), 0);
	assert_int_equal(gpool_kv_host_reserve(kv, 50 * kv->block_bytes), 0);
	elements = STEP_BLOCKS * kv->block_bytes / kv->shape.dtype_bytes;
	was = malloc(elements * sizeof(*was));
	sequence = filled();
	while (count < PAGES && !gpool_alloc(worker, 1, NULL, &taken[count]))
		count++;
	qsort(taken, count, sizeof(*taken), by_page);
	while (begin + left < count && taken[begin + left].page != taken[begin].page + left)
		begin++;
	assert_true(begin + left < count);
	for (uint32_t i = 0; i < count; i++) {
		page_mark(&taken[i], i);
		if (i >= begin && i < begin + left)
			assert_int_equal(gpool_free(worker, &taken[i]), 0);
		else
			assert_int_equal(gpool_unpin(worker, &taken[i]), 0);
	}
	assert_int_equal(gpool_kv_offload(kv, sequence, GPOOL_KV_OFFLOAD_INT8, NULL), STEP_BLOCKS);
	settle();
	assert_in_range(offloaded().host_blocks - offloaded().host_free_blocks, 45, 48);
	for (uint32_t i = 0; i < count; i++)
		if (i < begin || i >= begin + left) {
			assert_int_equal(gpool_pin(worker, &taken[i]), 0);
			assert_true(page_is_marked(&taken[i], i));
		}
	assert_int_equal(gpool_kv_resume(kv, sequence), 0);
	contents_check(sequence);
	for (uint32_t i = 0; i < count; i++)
		assert_true((i >= begin && i < begin + left) || page_is_marked(&taken[i], i));
}

static void test_in_steps(void **state)
{
	(void)state;
	in_steps(8);
}

static void test_in_steps_directly(void **state)
{
	(void)state;
	in_steps(7);
}

/* Repeating the conversion does not increase the error. */
static void test_again_and_again(void **state)
{
	uint64_t sequence;
	float *once, *now;

	(void)state;
	int8_start(0, 64 * BLOCK_BYTES);
	sequence = filled();
	assert_int_equal(gpool_kv_offload(kv, sequence, GPOOL_KV_OFFLOAD_INT8, NULL), SEQUENCE_BLOCKS);
	assert_int_equal(gpool_kv_resume(kv, sequence), 0);
	settle();
	once = malloc(elements * sizeof(*once));
	now = malloc(elements * sizeof(*now));
	elements_get(sequence, once);
	for (int round = 0; round < 3; round++) {
		struct gpool_kv_quant_error loss = {.size = sizeof(loss)};

		assert_int_equal(gpool_kv_offload(kv, sequence, GPOOL_KV_OFFLOAD_INT8, NULL), SEQUENCE_BLOCKS);
		assert_int_equal(gpool_kv_resume(kv, sequence), 0);
		settle();
		assert_int_equal(gpool_kv_quant_error(kv, sequence, &loss), 0);
		assert_true(loss.relative_error < 0.004);
		elements_get(sequence, now);
		for (uint64_t i = 0; i < elements; i++)
			assert_true(fabs(now[i] - once[i]) <= fabs(once[i]) * 0.02 + 520);
	}
	free(once);
	free(now);
}

static void no_form(float value, uint32_t flags)
{
	struct gpool_kv_quant_error loss = {.size = sizeof(loss)};
	uint64_t sequence, index;
	float values[HEAD];

	int8_start(0, 64 * BLOCK_BYTES);
	sequence = filled();
	index = any((uint32_t)elements);
	vector_get(sequence, index - index % HEAD, values);
	values[index % HEAD] = value;
	vector_put(sequence, index - index % HEAD, values);
	assert_int_equal(gpool_kv_offload(kv, sequence, flags | GPOOL_KV_OFFLOAD_INT8, NULL), SEQUENCE_BLOCKS);
	settle();
	assert_int_equal(gpool_kv_quant_error(kv, sequence, &loss), 0);
	assert_true(isinf(loss.max_error) && isinf(loss.relative_error));
	assert_int_equal(gpool_kv_resume(kv, sequence), -ENODATA);
	assert_non_null(strstr(gpool_last_error(ENODATA), "has elements that are not finite"));
	assert_int_equal(info_of(sequence).state, GPOOL_KV_PREEMPTED);
	assert_int_equal(offloaded().sequences, 0);
	assert_int_equal(offloaded().host_free_blocks, 64);
	assert_int_equal(gpool_kv_resume(kv, sequence), 0);
}

static void test_infinite(void **state)
{
	(void)state;
	no_form(INFINITY, 0);
}

static void test_not_a_number(void **state)
{
	(void)state;
	no_form(NAN, GPOOL_KV_OFFLOAD_POOL);
}

/* On `cuda`, calls that map memory must not be made while a stream waits for this thread. */
static void test_conversion_is_queued(void **state)
{
	const bool delayed = !strcmp(harness_backend(), "host");
	struct gpool_kv_quant_error loss = {.size = sizeof(loss)};
	struct gpool_fence fence;
	uint64_t sequence;
	uint32_t timeline;
	char text[96];

	(void)state;
	int8_start(0, 64 * BLOCK_BYTES);
	sequence = filled();
	if (delayed) {
		assert_int_equal(gpool_stream_open(worker, NULL, GPOOL_STREAM_HOST_SIGNALED, &timeline), 0);
		assert_int_equal(gpool_fence_record(worker, timeline, &fence), 0);
		assert_int_equal(gpool_stream_wait(worker, kv->stream, fence), 0);
	}
	assert_int_equal(gpool_kv_offload(kv, sequence, GPOOL_KV_OFFLOAD_INT8, NULL), SEQUENCE_BLOCKS);
	if (delayed) {
		assert_int_equal(gpool_kv_quant_error(kv, sequence, &loss), -EAGAIN);
		snprintf(text, sizeof(text), "stream %u has not yet converted sequence 0x%llx", kv->stream,
			(unsigned long long)sequence);
		assert_non_null(strstr(gpool_last_error(EAGAIN), text));
		assert_int_equal(gpool_fence_signal(worker, fence), 0);
	}
	settle();
	assert_int_equal(gpool_kv_quant_error(kv, sequence, &loss), 0);
}

static void test_other_elements(void **state)
{
	struct gpool_kv_quant_error loss = {.size = sizeof(loss)};
	struct gpool_kv_options options;
	uint64_t sequence;

	(void)state;
	worker_open(in_memory);
	options = small_options(BLOCKS);
	/* Elements of one byte are saved unchanged. */
	options.shape.dtype_bytes = 1;
	options.shape.layers = 2 * LAYERS;
	assert_int_equal(gpool_kv_create(worker, &options, &kv), 0);
	assert_int_equal(gpool_kv_host_reserve(kv, 64 * BLOCK_BYTES), 0);
	sequence = allocated(20 * BLOCK_TOKENS, 0, 0);
	write_tokens(sequence, 0, 20 * BLOCK_TOKENS, 5);
	assert_int_equal(gpool_kv_offload(kv, sequence, GPOOL_KV_OFFLOAD_INT8, NULL), 20);
	disturb();
	assert_int_equal(gpool_kv_quant_error(kv, sequence, &loss), -ENODATA);
	assert_int_equal(gpool_kv_resume(kv, sequence), 0);
	settle();
	assert_int_equal(wrong_tokens(sequence, 0, 20 * BLOCK_TOKENS, 5), 0);
	assert_int_equal(gpool_kv_destroy(kv), 0);
	/* Elements of eight bytes are refused. */
	options.shape.dtype_bytes = 8;
	options.shape.layers = 2;
	assert_int_equal(gpool_kv_create(worker, &options, &kv), 0);
	assert_int_equal(gpool_kv_host_reserve(kv, 64 * BLOCK_BYTES), 0);
	sequence = allocated(20 * BLOCK_TOKENS, 0, 0);
	assert_int_equal(gpool_kv_offload(kv, sequence, GPOOL_KV_OFFLOAD_INT8, NULL), -EOPNOTSUPP);
	assert_int_equal(info_of(sequence).state, GPOOL_KV_RUNNING);
	assert_int_equal(gpool_kv_destroy(kv), 0);
	/* The block is too small for the int8 form of a vector. */
	options.shape = (struct gpool_kv_shape){
		.layers = 1, .kv_heads = 1, .head_size = 8, .dtype_bytes = 2, .block_tokens = 1};
	assert_int_equal(gpool_kv_create(worker, &options, &kv), 0);
	assert_int_equal(gpool_kv_host_reserve(kv, 1 << 20), 0);
	sequence = allocated(20, 0, 0);
	assert_int_equal(gpool_kv_offload(kv, sequence, GPOOL_KV_OFFLOAD_INT8, NULL), -EOPNOTSUPP);
	assert_int_equal(gpool_kv_offload(kv, sequence, 0, NULL), 20);
	assert_int_equal(gpool_kv_quant_error(kv, sequence, &loss), -ENODATA);
	/* Without content, nothing is converted. */
	assert_int_equal(gpool_kv_destroy(kv), 0);
	options = small_options(BLOCKS);
	assert_int_equal(gpool_kv_create(worker, &options, &kv), 0);
	assert_int_equal(gpool_kv_host_reserve(kv, 64 * BLOCK_BYTES), 0);
	sequence = allocated(0, BLOCK_TOKENS, 0);
	assert_int_equal(gpool_kv_offload(kv, sequence, GPOOL_KV_OFFLOAD_INT8, NULL), 1);
	assert_int_equal(gpool_kv_quant_error(kv, sequence, &loss), -ENODATA);
	assert_int_equal(gpool_kv_resume(kv, sequence), 0);
}

/* Overwrite the free pages, so that a conversion through them cannot find earlier content. */
static void pages_spoil(void)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_block taken[PAGES];
	uint64_t address;
	uint32_t count = 0;

	settle();
	options.flags = GPOOL_ALLOC_NO_EVICT;
	while (count < PAGES && !gpool_alloc(worker, 1, &options, &taken[count])) {
		assert_int_equal(gpool_address(worker, &taken[count++], &address), 0);
		spoil(address, gpool_page_bytes(worker));
	}
	while (count)
		assert_int_equal(gpool_free(worker, &taken[--count]), 0);
}

/* Return the size of the memory that is not copied to a child: registered memory. */
static uint64_t private_bytes(void)
{
	FILE *file = fopen("/proc/self/smaps", "re");
	uint64_t sum = 0, kib = 0;
	char line[512];

	assert_non_null(file);
	while (fgets(line, sizeof(line), file)) {
		sscanf(line, "Size: %" SCNu64, &kib);
		if (!strncmp(line, "VmFlags:", 8) && strstr(line, " dc"))
			sum += kib * 1024;
	}
	fclose(file);
	return sum;
}

/* Without registered memory for the errors, nothing is saved, and the memory is freed. It is also freed at the end. */
static void test_register_fails(void **state)
{
	uint64_t bytes, sequence, registered;

	(void)state;
	int8_start(0, 64 * BLOCK_BYTES);
	sequence = filled();
	bytes = private_bytes();
	gpu_fault_set(worker->gpu, GPU_CALL_HOST_REGISTER, 1, -EIO);
	assert_int_equal(gpool_kv_offload(kv, sequence, GPOOL_KV_OFFLOAD_INT8, NULL), -EIO);
	gpu_fault_set(worker->gpu, GPU_CALL_HOST_REGISTER, 0, 0);
	assert_int_equal(private_bytes(), bytes);
	assert_int_equal(info_of(sequence).state, GPOOL_KV_RUNNING);
	assert_int_equal(offloaded().host_free_blocks, 64);
	registered = gpu_calls(worker->gpu, GPU_CALL_HOST_REGISTER) - gpu_calls(worker->gpu, GPU_CALL_HOST_UNREGISTER);
	assert_int_equal(gpool_kv_offload(kv, sequence, GPOOL_KV_OFFLOAD_INT8, NULL), SEQUENCE_BLOCKS);
	assert_true(private_bytes() > bytes);
	assert_int_equal(
		gpu_calls(worker->gpu, GPU_CALL_HOST_REGISTER) - gpu_calls(worker->gpu, GPU_CALL_HOST_UNREGISTER),
		registered + 1);
	assert_int_equal(gpool_kv_resume(kv, sequence), 0);
	contents_check(sequence);
	assert_int_equal(gpool_kv_destroy(kv), 0);
	/* The cache has also registered its host memory and its tables. */
	assert_int_equal(
		gpu_calls(worker->gpu, GPU_CALL_HOST_REGISTER) - gpu_calls(worker->gpu, GPU_CALL_HOST_UNREGISTER),
		registered - 2);
	assert_true(private_bytes() <= bytes - 64 * BLOCK_BYTES);
}

/* Each of the first calls fails once while a sequence is saved, and once while it is restored. */
static void test_calls_that_fail(void **state)
{
	static const struct {
		enum gpu_call kind;
		uint32_t flags, most;
	} calls[] = {
		{GPU_CALL_COPY, 0, 4},
		{GPU_CALL_COPY, GPOOL_KV_OFFLOAD_POOL, 4},
		{GPU_CALL_LAUNCH, 0, 2},
		{GPU_CALL_LAUNCH, GPOOL_KV_OFFLOAD_POOL, 2},
	};
	uint64_t sequence;

	(void)state;
	int8_start(0, 64 * BLOCK_BYTES);
	sequence = filled();
	for (uint32_t call = 0; call < sizeof(calls) / sizeof(*calls); call++) {
		for (uint64_t nth = 1; nth <= calls[call].most; nth++) {
			uint32_t flags = GPOOL_KV_OFFLOAD_INT8 | calls[call].flags;
			int result;

			for (uint64_t i = 0; i < elements; i++)
				was[i] = value_of(i);
			elements_put(sequence, was);
			elements_get(sequence, was);
			gpu_fault_set(worker->gpu, calls[call].kind, nth, -EIO);
			result = gpool_kv_offload(kv, sequence, flags, NULL);
			gpu_fault_set(worker->gpu, calls[call].kind, 0, 0);
			if (result < 0) {
				assert_int_equal(result, -EIO);
				assert_int_equal(info_of(sequence).state, GPOOL_KV_RUNNING);
				assert_int_equal(offloaded().host_free_blocks, 64);
				assert_int_equal(offloaded().pool_pages, 0);
				assert_int_equal(gpool_kv_offload(kv, sequence, flags, NULL), SEQUENCE_BLOCKS);
			}
			disturb();
			pages_spoil();
			gpu_fault_set(worker->gpu, calls[call].kind, nth, -EIO);
			result = gpool_kv_resume(kv, sequence);
			gpu_fault_set(worker->gpu, calls[call].kind, 0, 0);
			if (result) {
				assert_int_equal(result, -EIO);
				assert_int_equal(offloaded().sequences, 1);
				assert_int_equal(gpool_kv_resume(kv, sequence), 0);
			}
			contents_check(sequence);
		}
	}
}

/*
 * Pages that queued work uses are freed after it: those through which content is converted, and after a failure those
 * to which it was to be saved.
 */
static void test_queued_work_keeps_its_pages(void **state)
{
	bool staged;
	struct gpool_fence gate;
	uint64_t sequence;
	uint32_t manual, before;

	(void)state;
	int8_start(0, 64 * BLOCK_BYTES);
	staged = !(worker->capabilities & GPU_CAP_HOST_POINTER);
	sequence = filled();
	assert_int_equal(gpool_stream_open(worker, NULL, GPOOL_STREAM_HOST_SIGNALED, &manual), 0);
	for (uint32_t round = 0; round < 2; round++) {
		assert_int_equal(gpool_fence_record(worker, manual, &gate), 0);
		assert_int_equal(gpool_stream_wait(worker, stream, gate), 0);
		before = atomic_load(&worker->deferred_count);
		if (!round) {
			assert_int_equal(gpool_kv_offload(kv, sequence, GPOOL_KV_OFFLOAD_INT8, NULL), SEQUENCE_BLOCKS);
			assert_int_equal(atomic_load(&worker->deferred_count) - before, staged);
		} else {
			gpu_fault_set(worker->gpu, GPU_CALL_COPY, 2, -EIO);
			assert_int_equal(
				gpool_kv_offload(kv, sequence, GPOOL_KV_OFFLOAD_INT8 | GPOOL_KV_OFFLOAD_POOL, NULL),
				-EIO);
			gpu_fault_set(worker->gpu, GPU_CALL_COPY, 0, 0);
			assert_int_equal(atomic_load(&worker->deferred_count) - before, 1);
		}
		assert_int_equal(gpool_fence_signal(worker, gate), 0);
		settle();
		if (!round)
			assert_int_equal(gpool_kv_resume(kv, sequence), 0);
	}
	assert_int_equal(info_of(sequence).state, GPOOL_KV_RUNNING);
	contents_check(sequence);
}

static int end_wait(void *argument)
{
	(void)argument;
	return 1;
}

/* An interrupted resume does not read the error before it is known. The sequence and its content are kept. */
static void test_interrupted_resume(void **state)
{
	struct gpool_fence gate;
	uint64_t sequence;
	uint32_t manual;

	(void)state;
	int8_start(0, 64 * BLOCK_BYTES);
	sequence = filled();
	assert_int_equal(gpool_stream_open(worker, NULL, GPOOL_STREAM_HOST_SIGNALED, &manual), 0);
	assert_int_equal(gpool_fence_record(worker, manual, &gate), 0);
	assert_int_equal(gpool_stream_wait(worker, stream, gate), 0);
	assert_int_equal(gpool_kv_offload(kv, sequence, GPOOL_KV_OFFLOAD_INT8, NULL), SEQUENCE_BLOCKS);
	gpool_wait_check(end_wait, NULL);
	assert_int_equal(gpool_kv_resume(kv, sequence), -EINTR);
	gpool_wait_check(NULL, NULL);
	assert_int_equal(info_of(sequence).state, GPOOL_KV_PREEMPTED);
	assert_int_equal(offloaded().sequences, 1);
	assert_int_equal(gpool_fence_signal(worker, gate), 0);
	assert_int_equal(gpool_kv_resume(kv, sequence), 0);
	contents_check(sequence);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_by_host_memory, int8_stop),
		cmocka_unit_test_teardown(test_by_host_memory_bf16, int8_stop),
		cmocka_unit_test_teardown(test_by_host_memory_fp32, int8_stop),
		cmocka_unit_test_teardown(test_by_the_pool, int8_stop),
		cmocka_unit_test_teardown(test_room, int8_stop),
		cmocka_unit_test_teardown(test_two_scattered_sequences, int8_stop),
		cmocka_unit_test_teardown(test_in_steps, int8_stop),
		cmocka_unit_test_teardown(test_in_steps_directly, int8_stop),
		cmocka_unit_test_teardown(test_again_and_again, int8_stop),
		cmocka_unit_test_teardown(test_infinite, int8_stop),
		cmocka_unit_test_teardown(test_not_a_number, int8_stop),
		cmocka_unit_test_teardown(test_conversion_is_queued, int8_stop),
		cmocka_unit_test_teardown(test_other_elements, kv_stop),
		cmocka_unit_test_teardown(test_register_fails, int8_stop),
		cmocka_unit_test_teardown(test_calls_that_fail, int8_stop),
		cmocka_unit_test_teardown(test_queued_work_keeps_its_pages, int8_stop),
		cmocka_unit_test_teardown(test_interrupted_resume, int8_stop),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
