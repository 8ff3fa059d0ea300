/*
 * test_client_kv_int8.c - caches whose keys and values are int8 while resident.
 *
 * Goal: gpool_kv_write() stores codes and scales at the addresses that follow from gpool_kv_layout(), and reports the
 * loss correctly. Attention over them is within a bound that is derived from float64 and the values before their
 * conversion. Forks, copies, sleep, offloading and spilling keep every byte and convert nothing again; so does sharing,
 * also when the engine that wrote a prefix was killed. Options and arguments for which it is not available are refused.
 *
 * Method: elements are a function of a seed, the layer, the token and the position, so that each process can compute
 * what another one has written.
 *
 * Requirements: K18.
 */
#include "tests/integration/kv_view.h"
#include "tests/integration/spill_view.h"

#include "cuda/kernels/quantise.h"

#include <math.h>
#include <sys/socket.h>

enum { TOKENS = 40, TOKENS_MAX = 62, WIDTH_MAX = 1024, CHUNK_TOKENS = 16, SCRATCH_PAGES = 2 };

static const struct gpool_kv_shape small = {.layers = 2,
					   .kv_heads = 2,
					   .head_size = 64,
					   .dtype_bytes = 1,
					   .block_tokens = 16},
				   /* a block fills a page, so that three blocks can be shared */
	large = {.layers = 15, .kv_heads = 8, .head_size = 128, .dtype_bytes = 1, .block_tokens = CHUNK_TOKENS};
static const char *const in_memory[] = {"--pool", POOL ",spill_memory=64MiB", CALM, NULL};

static struct gpool_kv_layout layout;
static bool bf16;
static uint64_t scratch; /* address of the memory for a launch */

enum {
	KEYS_AT = 0,
	VALUES_AT = 128 << 10,
	SLOTS_AT = 256 << 10,
	ERROR_AT = 258 << 10,
	LIST_AT = 259 << 10,
	QUERIES_AT = 260 << 10,
	OUTPUT_AT = 264 << 10,
	WORKSPACE_AT = 272 << 10
};

static void *scratch_at(uint32_t offset)
{
	return (void *)(uintptr_t)(scratch + offset);
}

static uint16_t bits_of(float value)
{
	return bf16 ? bf16_of_float(value) : f16_of_float(value);
}

static float float_of(uint16_t bits)
{
	return bf16 ? float_of_bf16(bits) : float_of_f16(bits);
}

/* Return an element, as it is before the conversion: approximately normal, some vectors with an outlier. */
static float element(uint32_t seed, uint32_t layer, uint32_t token, bool value, uint32_t i)
{
	uint64_t hash = ((((uint64_t)seed * 64 + layer) * 1024 + token) * 2 + value) * 2048 + i + 1;
	float sum = -2;

	for (int n = 0; n < 4; n++) {
		hash = (hash ^ hash >> 31) * UINT64_C(0x7fb5d329728ea185);
		hash = (hash ^ hash >> 27) * UINT64_C(0x81dadef4bc2dd44d);
		sum += (float)(hash >> 40) * 0x1p-24f;
	}
	return float_of(bits_of(i % 64 == 7 && token % 5 == 3 ? sum * 8 : sum * 1.7f));
}

static uint32_t width(void)
{
	return kv->shape.kv_heads * kv->shape.head_size;
}

/* ---- caches ---- */

static void cache_make(const struct gpool_kv_shape *shape, uint32_t flags)
{
	struct gpool_kv_options options = small_options(64);
	struct gpool_block block;

	options.shape = *shape;
	options.flags = GPOOL_KV_INT8 | flags;
	options.max_sequence_tokens = 256;
	options.pool_blocks = flags & GPOOL_KV_PREFIXES ? 16 : 0;
	assert_int_equal(gpool_kv_create(worker, &options, &kv), 0);
	layout.size = sizeof(layout);
	assert_int_equal(gpool_kv_layout(kv, &layout), 0);
	assert_int_equal(gpool_alloc(worker, SCRATCH_PAGES, NULL, &block), 0);
	assert_int_equal(gpool_address(worker, &block, &scratch), 0);
	memset(scratch_at(0), 0, SCRATCH_PAGES * PAGE_BYTES);
	bf16 = false;
}

static void cache_start(const char *const *arguments, const struct gpool_kv_shape *shape, uint32_t flags)
{
	worker_open(arguments);
	cache_make(shape, flags);
}

static uint64_t slot_at(uint64_t sequence, uint32_t token)
{
	return (uint64_t)(uint32_t)block_at(sequence, token / layout.block_tokens) * layout.block_tokens +
		token % layout.block_tokens;
}

static struct gpool_kv_write write_of(uint32_t layer, uint32_t tokens)
{
	struct gpool_kv_write write = GPOOL_KV_WRITE_INIT;

	write.flags = bf16 ? GPOOL_KV_WRITE_BF16 : 0;
	write.keys = scratch + KEYS_AT;
	write.values = scratch + VALUES_AT;
	write.slots = scratch + SLOTS_AT;
	write.error = scratch + ERROR_AT;
	write.layer = layer;
	write.tokens = tokens;
	return write;
}

/* Write tokens of a sequence in one layer. Values have a longer row than keys. */
static void layer_write(uint64_t sequence, uint32_t first, uint32_t count, uint32_t seed, uint32_t layer)
{
	struct gpool_kv_write write = write_of(layer, count);
	uint16_t *keys = scratch_at(KEYS_AT), *values = scratch_at(VALUES_AT);
	uint64_t *slots = scratch_at(SLOTS_AT);

	assert_true(count <= TOKENS_MAX && width() <= WIDTH_MAX);
	write.value_stride = width() + 8;
	for (uint32_t token = 0; token < count; token++) {
		slots[token] = slot_at(sequence, first + token);
		for (uint32_t i = 0; i < width(); i++) {
			keys[token * width() + i] = bits_of(element(seed, layer, first + token, false, i));
			values[token * (width() + 8) + i] = bits_of(element(seed, layer, first + token, true, i));
		}
	}
	assert_int_equal(gpool_kv_write(kv, &write), 0);
	settle();
}

static void layers_write(uint64_t sequence, uint32_t first, uint32_t count, uint32_t seed)
{
	for (uint32_t layer = 0; layer < kv->shape.layers; layer += kv->shape.layers - 1)
		layer_write(sequence, first, count, seed, layer);
}

/* Allocate a sequence and write its tokens. */
static uint64_t written(uint32_t tokens, uint32_t seed)
{
	uint64_t sequence = allocated(tokens, 0, 0);

	layers_write(sequence, 0, tokens, seed);
	return sequence;
}

/* ---- what is stored ---- */

static uint8_t *vector_at(uint64_t sequence, uint32_t layer, uint32_t token, uint32_t head, uint64_t offset,
	uint64_t token_stride, uint64_t head_stride)
{
	uint64_t address;

	assert_int_equal(gpool_kv_address(kv, (uint32_t)block_at(sequence, token / layout.block_tokens), &address), 0);
	return (uint8_t *)(uintptr_t)(address + layer * layout.layer_bytes + offset +
		token % layout.block_tokens * token_stride + head * head_stride);
}

static int8_t *codes_at(uint64_t sequence, uint32_t layer, uint32_t token, uint32_t head, bool value)
{
	return (int8_t *)vector_at(sequence, layer, token, head, value ? layout.values : layout.keys,
		layout.token_stride, layout.head_stride);
}

static uint16_t scale_at(uint64_t sequence, uint32_t layer, uint32_t token, uint32_t head, bool value)
{
	return *(const uint16_t *)(const void *)vector_at(sequence, layer, token, head,
		value ? layout.value_scales : layout.key_scales, layout.scale_token_stride, layout.scale_head_stride);
}

/* Compare a vector with the C reference, and with the elements. Return the largest error. */
static double vector_check(uint64_t sequence, uint32_t layer, uint32_t token, uint32_t head, bool value, uint32_t seed)
{
	float elements[256], scale, most = 0;
	double worst = 0;
	int8_t codes[256];
	uint16_t bits;
	uint32_t size = kv->shape.head_size;

	for (uint32_t i = 0; i < size; i++) {
		elements[i] = element(seed, layer, token, value, head * size + i);
		most = fmaxf(most, fabsf(elements[i]));
	}
	quantise_group_plain(ELEMENT_F32, elements, size, codes, &bits, NULL);
	assert_int_equal(scale_at(sequence, layer, token, head, value), bits);
	assert_memory_equal(codes_at(sequence, layer, token, head, value), codes, size);
	scale = float_of_bf16(bits);
	for (uint32_t i = 0; i < size; i++)
		worst = fmax(worst, fabs((double)codes[i] * scale - elements[i]));
	assert_true(worst <= most / 252 * (1 + 1e-6));
	return worst;
}

static double tokens_check(uint64_t sequence, uint32_t tokens, uint32_t seed)
{
	double worst = 0;

	for (uint32_t layer = 0; layer < kv->shape.layers; layer += kv->shape.layers - 1)
		for (uint32_t token = 0; token < tokens; token++)
			for (uint32_t head = 0; head < kv->shape.kv_heads; head++)
				for (int value = 0; value < 2; value++)
					worst = fmax(worst, vector_check(sequence, layer, token, head, value, seed));
	return worst;
}

/* ---- attention ---- */

static float query_of(uint32_t i)
{
	return element(77, 0, 0, false, i);
}

static struct gpool_kv_attention launch_of(uint64_t sequence, uint32_t layer, uint32_t heads)
{
	struct gpool_kv_attention launch = GPOOL_KV_ATTENTION_INIT;
	uint64_t first = layer * layout.layer_bytes;

	*(struct gpool_kv_attention_sequence *)scratch_at(LIST_AT) =
		(struct gpool_kv_attention_sequence){info_of(sequence).row, info_of(sequence).tokens, 0, 1};
	for (uint32_t i = 0; i < heads * kv->shape.head_size; i++)
		((uint16_t *)scratch_at(QUERIES_AT))[i] = bits_of(query_of(i));
	launch.flags = GPOOL_KV_ATTENTION_INT8 | (bf16 ? GPOOL_KV_ATTENTION_BF16 : 0);
	launch.queries = scratch + QUERIES_AT;
	launch.output = scratch + OUTPUT_AT;
	launch.sequences = scratch + LIST_AT;
	launch.workspace = scratch + WORKSPACE_AT;
	launch.keys = first + layout.keys;
	launch.values = first + layout.values;
	launch.key_scales = first + layout.key_scales;
	launch.value_scales = first + layout.value_scales;
	launch.token_stride = layout.token_stride;
	launch.head_stride = layout.head_stride;
	launch.scale_token_stride = layout.scale_token_stride;
	launch.scale_head_stride = layout.scale_head_stride;
	launch.sequence_count = launch.query_tokens = launch.max_query_count = 1;
	launch.heads = heads;
	launch.query_stride = launch.output_stride = heads * kv->shape.head_size;
	return launch;
}

/*
 * head_worst() - compare the output of a head with float64 of the elements before their conversion. Return the largest
 * error, divided by its bound.
 *
 * An element of a vector whose largest magnitude is m is stored with an error of at most m / 252. The product of a
 * query with a key then differs by at most d, and the weight of a token by a factor between exp(-2 d) and exp(2 d):
 *
 *   sum over t of p[t] ((exp(2 d) - 1) |v[t][i]| + exp(2 d) most[t] / 252)
 *
 * with most[t] the largest magnitude of the value. The kernel rounds weights to bf16 and the output to its type.
 */
static double head_worst(uint32_t layer, uint32_t tokens, uint32_t head, uint32_t kv_head, uint32_t seed)
{
	const uint16_t *output = (const uint16_t *)scratch_at(OUTPUT_AT) + head * kv->shape.head_size;
	double p[TOKENS_MAX], most[TOKENS_MAX], top = -INFINITY, total = 0, d = 0, worst = 0;
	uint32_t size = kv->shape.head_size;
	double grown, u = bf16 ? 0x1p-8 : 0x1p-11;

	for (uint32_t t = 0; t < tokens; t++) {
		double largest = 0, magnitude = 0;

		p[t] = most[t] = 0;
		for (uint32_t i = 0; i < size; i++) {
			double key = element(seed, layer, t, false, kv_head * size + i), q = query_of(head * size + i);

			p[t] += q * key / sqrt(size);
			magnitude += fabs(q) / sqrt(size);
			largest = fmax(largest, fabs(key));
			most[t] = fmax(most[t], fabs(element(seed, layer, t, true, kv_head * size + i)));
		}
		d = fmax(d, magnitude * largest / 252);
		top = fmax(top, p[t]);
	}
	for (uint32_t t = 0; t < tokens; t++)
		total += p[t] = exp(p[t] - top);
	grown = exp(2 * d);
	for (uint32_t i = 0; i < size; i++) {
		double exact = 0, bound = 0;

		for (uint32_t t = 0; t < tokens; t++) {
			double value = element(seed, layer, t, true, kv_head * size + i), lost = most[t] / 252;

			exact += p[t] / total * value;
			bound += p[t] / total *
				((grown - 1) * fabs(value) + grown * lost + grown * (fabs(value) + lost) * 0x1.4p-8);
		}
		bound += u * fabs(exact) + 1e-4;
		worst = fmax(worst, fabs(float_of(output[i]) - exact) / bound);
	}
	return worst;
}

/* Compute the attention of the last token in two layers. Return the largest error, divided by its bound. */
static double attention_worst(uint64_t sequence, uint32_t tokens, uint32_t seed)
{
	uint32_t heads = 2 * kv->shape.kv_heads;
	double worst = 0;

	assert_int_equal(gpool_kv_sync(kv), 0);
	for (uint32_t layer = 0; layer < kv->shape.layers; layer += kv->shape.layers - 1) {
		struct gpool_kv_attention launch = launch_of(sequence, layer, heads);
		uint64_t bytes;

		assert_int_equal(gpool_kv_attention_workspace(kv, &launch, &bytes), 0);
		assert_true(bytes <= SCRATCH_PAGES * PAGE_BYTES - WORKSPACE_AT);
		assert_int_equal(gpool_kv_attention(kv, &launch), 0);
		settle();
		for (uint32_t head = 0; head < heads; head++)
			worst = fmax(worst, head_worst(layer, tokens, head, head / 2, seed));
	}
	return worst;
}

static void right(uint64_t sequence, uint32_t tokens, uint32_t seed)
{
	tokens_check(sequence, tokens, seed);
	assert_true(attention_worst(sequence, tokens, seed) <= 1);
}

/* ---- tests ---- */

static void test_layout(void **state)
{
	const uint32_t codes = 16 * 2 * 64, scales = 16 * 2 * 2;
	struct gpool_kv_layout other = {.size = sizeof(other)};
	struct gpool_kv_options options;
	struct gpool_kv *plain;

	(void)state;
	cache_start(calm, &small, 0);
	assert_int_equal(layout.block_bytes, 2 * 2 * (codes + scales));
	assert_int_equal(layout.layer_bytes, 2 * (codes + scales));
	assert_int_equal(layout.keys, 0);
	assert_int_equal(layout.values, codes);
	assert_int_equal(layout.key_scales, 2 * codes);
	assert_int_equal(layout.value_scales, 2 * codes + scales);
	assert_int_equal(layout.token_stride, 2 * 64);
	assert_int_equal(layout.head_stride, 64);
	assert_int_equal(layout.scale_token_stride, 4);
	assert_int_equal(layout.scale_head_stride, 2);
	options = small_options(16);
	assert_int_equal(gpool_kv_create(worker, &options, &plain), 0);
	assert_int_equal(gpool_kv_layout(plain, &other), 0);
	assert_int_equal(other.layer_bytes + other.values + other.token_stride + other.scale_head_stride, 0);
}

/* The reported loss is the actual one. Only the slots of the tokens are written. */
static void test_codes(void **state)
{
	struct gpool_kv_write_error *error;
	uint64_t sequence, next;
	double worst;

	(void)state;
	cache_start(calm, &small, GPOOL_KV_ZERO);
	error = scratch_at(ERROR_AT);
	for (int form = 0; form < 2; form++) {
		bf16 = form;
		sequence = allocated(TOKENS, 0, 0);
		next = allocated(TOKENS, 0, 0);
		*error = (struct gpool_kv_write_error){0};
		/* Write in two parts, not in the order of the slots. */
		layers_write(sequence, 20, TOKENS - 20, 5);
		layers_write(sequence, 0, 20, 5);
		worst = tokens_check(sequence, TOKENS, 5);
		assert_true(fabs(error->max_error - worst) <= worst * 1e-4);
		assert_true(sqrt(error->error_squares / error->squares) < 0.02);
		assert_true(error->squares > TOKENS * 2 * 2 * 2 * 64 / 2);
		for (uint32_t token = 0; token < TOKENS; token++) {
			assert_int_equal(scale_at(next, 0, token, 1, true), 0);
			assert_int_equal(codes_at(next, 1, token, 0, false)[63], 0);
		}
		assert_int_equal(gpool_kv_free(kv, sequence), 0);
		assert_int_equal(gpool_kv_free(kv, next), 0);
	}
}

/* A vector with an infinity or a NaN is stored as zeros, and reported. Tokens with no slot are not written. */
static void test_values_and_slots_that_are_not_stored(void **state)
{
	struct gpool_kv_write write;
	struct gpool_kv_write_error *error;
	uint64_t sequence, *slots;
	float threes[64];
	int8_t codes[64];
	uint16_t bits;

	(void)state;
	cache_start(calm, &small, GPOOL_KV_ZERO);
	error = scratch_at(ERROR_AT);
	slots = scratch_at(SLOTS_AT);
	sequence = written(4, 9);
	assert_false(isinf(error->max_error));
	write = write_of(0, 4);
	for (uint32_t i = 0; i < 4 * width(); i++)
		((uint16_t *)scratch_at(KEYS_AT))[i] = ((uint16_t *)scratch_at(VALUES_AT))[i] = f16_of_float(3);
	slots[0] = UINT64_MAX;
	slots[1] = (uint64_t)layout.max_blocks * layout.block_tokens;
	slots[3] = UINT64_C(1) << 63 | slot_at(sequence, 3);
	((uint16_t *)scratch_at(KEYS_AT))[2 * width() + 5] = f16_of_float(INFINITY);
	((uint16_t *)scratch_at(VALUES_AT))[2 * width() + 64 + 5] = f16_of_float(NAN);
	assert_int_equal(gpool_kv_write(kv, &write), 0);
	settle();
	assert_true(isinf(error->max_error));
	for (uint32_t token = 0; token < 4; token++)
		for (uint32_t head = 0; head < 2; head++)
			for (int value = 0; value < 2; value++)
				if (token != 2)
					vector_check(sequence, 0, token, head, value, 9);
	assert_int_equal(scale_at(sequence, 0, 2, 0, false), 0);
	assert_int_equal(scale_at(sequence, 0, 2, 1, true), 0);
	for (uint32_t i = 0; i < 64; i++) {
		assert_int_equal(codes_at(sequence, 0, 2, 0, false)[i], 0);
		assert_int_equal(codes_at(sequence, 0, 2, 1, true)[i], 0);
		threes[i] = 3;
	}
	quantise_group_plain(ELEMENT_F32, threes, 64, codes, &bits, NULL);
	assert_memory_equal(codes_at(sequence, 0, 2, 1, false), codes, 64);
	assert_int_equal(scale_at(sequence, 0, 2, 0, true), bits);
}

static void test_attention(void **state)
{
	double worst = 0;
	uint64_t sequence;

	(void)state;
	cache_start(calm, &small, 0);
	for (uint32_t seed = 1; seed < 7; seed++) {
		uint32_t tokens = seed * 9;

		bf16 = seed % 2;
		sequence = written(tokens, seed);
		worst = fmax(worst, attention_worst(sequence, tokens, seed));
		assert_int_equal(gpool_kv_free(kv, sequence), 0);
	}
	print_message("largest error, divided by its bound: %.2f\n", worst);
	assert_true(worst <= 1 && worst > 0.001);
}

/* A fork copies the last block when it appends. */
static void test_forks_and_copies(void **state)
{
	struct gpool_kv_pair pair;
	uint64_t sequence, child, other;

	(void)state;
	cache_start(calm, &small, 0);
	sequence = written(TOKENS, 8);
	other = written(16, 3);
	child = forked(sequence);
	assert_int_equal(gpool_kv_append(kv, child, 2, NULL), 0);
	settle();
	assert_true(block_at(child, 2) != block_at(sequence, 2));
	assert_int_equal(block_at(child, 1), block_at(sequence, 1));
	layers_write(child, TOKENS, 2, 8);
	right(child, TOKENS + 2, 8);
	right(sequence, TOKENS, 8);
	pair = (struct gpool_kv_pair){block_at(sequence, 0), block_at(other, 0)};
	assert_int_equal(gpool_kv_copy_blocks(kv, &pair, 1), 0);
	settle();
	tokens_check(other, 16, 8);
}

static uint8_t *content_of(uint64_t sequence, uint32_t blocks)
{
	uint8_t *content = malloc(blocks * layout.block_bytes);

	assert_non_null(content);
	for (uint32_t i = 0; i < blocks; i++) {
		uint64_t address;

		assert_int_equal(gpool_kv_address(kv, (uint32_t)block_at(sequence, i), &address), 0);
		memcpy(content + i * layout.block_bytes, (const void *)(uintptr_t)address, layout.block_bytes);
	}
	return content;
}

/* Each byte is restored, and stored as it is: GPOOL_KV_OFFLOAD_INT8 converts nothing. */
static void test_offload(void **state)
{
	struct gpool_kv_offload_info info = {.size = sizeof(info)};
	struct gpool_kv_quant_error loss = {.size = sizeof(loss)};

	(void)state;
	cache_start(in_memory, &large, GPOOL_KV_ZERO);
	assert_int_equal(gpool_kv_host_reserve(kv, 8 * layout.block_bytes), 0);
	for (uint32_t to_pool = 0; to_pool < 2; to_pool++) {
		uint64_t sequence = written(TOKENS, 11), before = spilled();
		uint8_t *was = content_of(sequence, 3), *is;
		uint32_t flags = GPOOL_KV_OFFLOAD_INT8 | (to_pool ? GPOOL_KV_OFFLOAD_POOL : 0);

		assert_int_equal(gpool_kv_offload(kv, sequence, flags, NULL), 3);
		assert_int_equal(gpool_kv_offload_info(kv, &info), 0);
		assert_int_equal(info.content_bytes, 3 * layout.block_bytes);
		assert_int_equal(info.host_free_blocks, to_pool ? 8 : 5);
		assert_int_equal(gpool_kv_quant_error(kv, sequence, &loss), -ENODATA);
		settle();
		if (to_pool) {
			AWAIT(spilled() - before >= info.pool_pages ||
				(harness_evict(&harness, gpool_session(worker), PAGES),
					spilled() - before >= info.pool_pages));
			AWAIT(moving() == 0);
		}
		/* Others use the blocks in the meantime. */
		assert_int_equal(gpool_kv_free(kv, written(TOKENS, 12)), 0);
		assert_int_equal(gpool_kv_resume(kv, sequence), 0);
		settle();
		is = content_of(sequence, 3);
		assert_memory_equal(was, is, 3 * layout.block_bytes);
		right(sequence, TOKENS, 11);
		assert_int_equal(gpool_kv_free(kv, sequence), 0);
		free(was);
		free(is);
	}
}

static void test_sleep(void **state)
{
	struct gpool_kv_write write;
	uint64_t sequence;

	(void)state;
	cache_start(in_memory, &small, GPOOL_KV_KEEP);
	sequence = written(TOKENS, 4);
	write = write_of(0, 1);
	assert_int_equal(gpool_sleep(worker, 0), 0);
	assert_int_equal(gpool_kv_write(kv, &write), -EHOSTDOWN);
	assert_int_equal(gpool_wake(worker, ANSWER_MS), 0);
	right(sequence, TOKENS, 4);
}

/* ---- prefixes of a process that is killed ---- */

enum { SHARED = 3 * CHUNK_TOKENS };

static uint64_t prefix_begin(uint32_t tokens, uint32_t *found)
{
	static uint32_t ids[SHARED];
	struct gpool_kv_prefix prefix = prefix_of(ids, SHARED);
	uint64_t sequence = 0;

	for (uint32_t i = 0; i < SHARED; i++)
		ids[i] = i * 3;
	assert_int_equal(try_allocate_prefix(tokens, &prefix, &sequence, found), 0);
	if (*found)
		return sequence;
	layers_write(sequence, 0, tokens, 21);
	assert_int_equal(gpool_kv_prefix_publish(kv, sequence, &prefix), SHARED / CHUNK_TOKENS);
	assert_int_equal(gpool_kv_prefix_share(kv, sequence, ANSWER_MS), SHARED / CHUNK_TOKENS);
	return sequence;
}

static void client_open(const char *directory)
{
	struct gpool_options options = GPOOL_OPTIONS_INIT;

	options.directory = directory;
	options.timeout_ms = ANSWER_MS;
	options.magazine = 1;
	assert_int_equal(gpool_open(&options, &worker), 0);
	assert_int_equal(gpool_stream_open(worker, NULL, 0, &stream), 0);
}

/* argv: program, "writer", directory, channel. Write a prefix, share it, report it, and wait to be killed. */
static int writer_main(char **arguments)
{
	uint32_t found = 1;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	client_open(arguments[2]);
	cache_make(&large, GPOOL_KV_PREFIXES);
	prefix_begin(SHARED, &found);
	if (found || write(atoi(arguments[3]), "", 1) != 1)
		return 1;
	for (;;)
		pause();
}

static void writer_run_and_kill(void)
{
	char channel[16], byte;
	int ends[2];
	pid_t pid;

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
	fflush(stdout);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		snprintf(channel, sizeof(channel), "%d", ends[1]);
		fcntl(ends[1], F_SETFD, 0);
		execl("/proc/self/exe", "writer", "writer", harness.directory, channel, NULL);
		_exit(127);
	}
	close(ends[1]);
	assert_int_equal(read(ends[0], &byte, 1), 1);
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	close(ends[0]);
}

static void test_prefix_of_a_killed_engine(void **state)
{
	struct gpool_kv_options options;
	struct gpool_kv *plain;
	uint64_t sequence;
	uint32_t found;

	(void)state;
	start(in_memory);
	writer_run_and_kill();
	client_open(harness.directory);
	cache_make(&large, GPOOL_KV_PREFIXES);
	sequence = prefix_begin(SHARED + 1, &found);
	assert_int_equal(found, SHARED);
	assert_int_equal(statistics().pool_found, 3);
	layers_write(sequence, SHARED, 1, 21);
	right(sequence, SHARED + 1, 21);
	/* A cache of bytes without scales has other prefixes, though its shape and model are the same. */
	options = small_options(64);
	options.shape = large;
	options.flags = GPOOL_KV_PREFIXES;
	options.pool_blocks = 16;
	options.max_sequence_tokens = 256;
	plain = kv;
	assert_int_equal(gpool_kv_create(worker, &options, &kv), 0);
	{
		const uint32_t ids[CHUNK_TOKENS] = {0, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30, 33, 36, 39, 42, 45};
		struct gpool_kv_prefix prefix = prefix_of(ids, CHUNK_TOKENS);

		assert_int_equal(try_allocate_prefix(CHUNK_TOKENS, &prefix, &sequence, &found), 0);
		assert_int_equal(found, 0);
		assert_int_equal(gpool_kv_destroy(kv), 0);
		kv = plain;
		assert_int_equal(try_allocate_prefix(CHUNK_TOKENS, &prefix, &sequence, &found), 0);
		assert_int_equal(found, CHUNK_TOKENS);
	}
}

/* ---- refusals ---- */

static int try_create(struct gpool_kv_shape shape, uint32_t flags)
{
	struct gpool_kv_options options = small_options(16);
	struct gpool_kv *made;
	int error;

	options.shape = shape;
	options.flags = flags;
	error = gpool_kv_create(worker, &options, &made);
	return error ? error : gpool_kv_destroy(made);
}

static void test_refused(void **state)
{
	struct gpool_kv_shape shape = small;
	struct gpool_kv_attention attention;
	struct gpool_kv_write write;
	struct gpool_kv *int8_cache;
	struct gpool_kv_options options;
	uint64_t sequence;

	(void)state;
	cache_start(calm, &small, 0);
	assert_int_equal(try_create(shape, GPOOL_KV_INT8), 0);
	assert_int_equal(try_create(shape, GPOOL_KV_INT8 | GPOOL_KV_BF16), -EINVAL);
	shape.dtype_bytes = 2;
	assert_int_equal(try_create(shape, GPOOL_KV_INT8), -EINVAL);
	shape = small;
	shape.head_size = 72;
	assert_int_equal(try_create(shape, GPOOL_KV_INT8), -EINVAL);
	shape.head_size = 272;
	assert_int_equal(try_create(shape, GPOOL_KV_INT8), -EINVAL);
	shape.head_size = 0;
	assert_int_equal(try_create(shape, GPOOL_KV_INT8), -EINVAL);
	shape = small;
	shape.kv_heads = 65536;
	assert_int_equal(try_create(shape, GPOOL_KV_INT8), -EINVAL);
	shape = small;
	shape.block_tokens = 4;
	assert_int_equal(try_create(shape, GPOOL_KV_INT8), -EINVAL);
	sequence = written(TOKENS, 1);
	attention = launch_of(sequence, 0, 2);
	attention.flags = 0;
	assert_int_equal(gpool_kv_attention(kv, &attention), -EINVAL);
	for (int wrong = 0; wrong < 12; wrong++) {
		write = write_of(0, 1);
		switch (wrong) {
		case 0: write.size = 8; break;
		case 1: write.flags = 2; break;
		case 2: write.layer = 2; break;
		case 3: write.tokens = (1 << 20) + 1; break;
		case 4: write.keys += 8; break;
		case 5: write.values = 0; break;
		case 6: write.slots += 4; break;
		case 7: write.error += 4; break;
		case 8: write.key_stride = width() - 8; break;
		case 9: write.value_stride = width() + 4; break;
		case 10: write.slots = 0; break;
		default: write.keys = 0; break;
		}
		assert_int_equal(gpool_kv_write(kv, &write), -EINVAL);
	}
	/* The launch fails once, and writes nothing. */
	write = write_of(0, 1);
	gpu_fault_set(worker->gpu, GPU_CALL_LAUNCH, 1, -EIO);
	assert_int_equal(gpool_kv_write(kv, &write), -EIO);
	gpu_fault_set(worker->gpu, GPU_CALL_LAUNCH, 0, 0);
	*(uint64_t *)scratch_at(SLOTS_AT) = UINT64_MAX;
	assert_int_equal(gpool_kv_write(kv, &write), 0);
	write = write_of(0, 0);
	write.error = 0;
	assert_int_equal(gpool_kv_write(kv, &write), 0);
	right(sequence, TOKENS, 1);
	int8_cache = kv;
	options = small_options(16);
	assert_int_equal(gpool_kv_create(worker, &options, &kv), 0);
	assert_int_equal(gpool_kv_write(kv, &write), -EOPNOTSUPP);
	kv = int8_cache;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_layout, kv_stop),
		cmocka_unit_test_teardown(test_codes, kv_stop),
		cmocka_unit_test_teardown(test_values_and_slots_that_are_not_stored, kv_stop),
		cmocka_unit_test_teardown(test_attention, kv_stop),
		cmocka_unit_test_teardown(test_forks_and_copies, kv_stop),
		cmocka_unit_test_teardown(test_offload, kv_stop),
		cmocka_unit_test_teardown(test_sleep, kv_stop),
		cmocka_unit_test_teardown(test_prefix_of_a_killed_engine, kv_stop),
		cmocka_unit_test_teardown(test_refused, kv_stop),
	};

	if (argc > 1 && !strcmp(argv[1], "writer"))
		return writer_main(argv);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
