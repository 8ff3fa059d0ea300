/*
 * test_client_kv_compact.c - compaction of a cache moves blocks together and frees memory.
 *
 * Goal: after compaction the blocks occupy the smallest possible number of chunks. Contents, forks, published and
 * cached blocks, and the order of eviction are unchanged. The limit on moves is observed, and a failed copy changes
 * nothing.
 *
 * Method: each token has distinct content, and prefix_check() runs after each step. The tests are examples and random
 * steps, whose number GPOOL_TEST_SCALE scales.
 *
 * Requirements: K11.
 */
#include "tests/integration/kv_view.h"
#include "tests/lib/scale.h"
#include "tests/lib/seed.h"

enum { BLOCKS = 160, MODELS = 40, TOKENS_MAX = 40, STEPS = 5000 };

static void pack_start(uint32_t flags)
{
	struct gpool_kv_options options;

	worker_open(calm);
	options = small_options(BLOCKS);
	options.flags = flags;
	assert_int_equal(gpool_kv_create(worker, &options, &kv), 0);
}

/* Create sequences of one block each that fill `chunks` chunks, then free all but every `each`-th one. */
static uint32_t holes_make(uint64_t *sequences, uint32_t chunks, uint32_t each)
{
	uint32_t left = 0;

	for (uint32_t i = 0; i < chunks * CHUNK_BLOCKS; i++) {
		sequences[i] = allocated(BLOCK_TOKENS, 0, 0);
		write_tokens(sequences[i], 0, BLOCK_TOKENS, 100 + i);
	}
	for (uint32_t i = 0; i < chunks * CHUNK_BLOCKS; i++) {
		if (i % each == 0) {
			left++;
			continue;
		}
		assert_int_equal(gpool_kv_free(kv, sequences[i]), 0);
		sequences[i] = 0;
	}
	return left;
}

static void contents_stand(const uint64_t *sequences, uint32_t count)
{
	settle();
	for (uint32_t i = 0; i < count; i++)
		if (sequences[i])
			assert_int_equal(wrong_tokens(sequences[i], 0, BLOCK_TOKENS, 100 + i), 0);
}

static void test_memory_goes(void **state)
{
	uint64_t sequences[4 * CHUNK_BLOCKS];

	(void)state;
	pack_start(0);
	assert_int_equal(holes_make(sequences, 4, 4), 8);
	assert_int_equal(statistics().committed_chunks, 4);
	/* No more blocks move than requested, and no chunk is emptied only in part. */
	assert_int_equal(gpool_kv_compact(kv, 0), 0);
	assert_int_equal(gpool_kv_compact(kv, 1), 0);
	assert_int_equal(gpool_kv_compact(kv, 3), 2);
	assert_int_equal(statistics().committed_chunks, 3);
	contents_stand(sequences, 4 * CHUNK_BLOCKS);
	assert_int_equal(gpool_kv_compact(kv, UINT32_MAX), 4);
	assert_int_equal(statistics().committed_chunks, 1);
	assert_int_equal(statistics().block_copies, 6);
	contents_stand(sequences, 4 * CHUNK_BLOCKS);
	assert_int_equal(gpool_kv_compact(kv, UINT32_MAX), 0);
	assert_int_equal(gpool_kv_sync(kv), 0);
	settle();
	for (uint32_t i = 0; i < 4 * CHUNK_BLOCKS; i++)
		if (sequences[i])
			assert_true(device_agrees(sequences[i]));
	assert_int_equal(statistics().available_blocks, BLOCKS - 8);
	contents_stand(sequences, 4 * CHUNK_BLOCKS);
}

static void test_forks(void **state)
{
	uint64_t sequences[2 * CHUNK_BLOCKS], parent, child;

	(void)state;
	pack_start(0);
	assert_int_equal(holes_make(sequences, 2, 8), 2);
	/* The parent uses free blocks of the first chunk and half of its last block. The second chunk has one block. */
	parent = allocated(BLOCK_TOKENS + 2, 0, 0);
	write_tokens(parent, 0, BLOCK_TOKENS + 2, 9);
	child = forked(parent);
	assert_int_equal(gpool_kv_free(kv, sequences[0]), 0);
	sequences[0] = 0;
	assert_true(gpool_kv_compact(kv, UINT32_MAX) > 0);
	assert_int_equal(statistics().committed_chunks, 1);
	assert_int_equal(statistics().shared_blocks, 2);
	settle();
	assert_int_equal(wrong_tokens(child, 0, BLOCK_TOKENS + 2, 9), 0);
	/* The last block is still shared, so an append makes a copy. */
	assert_int_equal(gpool_kv_append(kv, child, 1, NULL), 0);
	settle();
	*token_at(child, BLOCK_TOKENS + 2) = 77;
	assert_int_equal(wrong_tokens(parent, 0, BLOCK_TOKENS + 2, 9), 0);
	assert_int_equal(wrong_tokens(child, 0, BLOCK_TOKENS + 2, 9), 0);
	assert_int_equal(statistics().shared_blocks, 1);
	contents_stand(sequences, 2 * CHUNK_BLOCKS);
}

static struct gpool_kv_prefix text(uint32_t *ids, uint32_t number, uint32_t tokens)
{
	struct gpool_kv_prefix prefix = GPOOL_KV_PREFIX_INIT;

	for (uint32_t i = 0; i < tokens; i++)
		ids[i] = number * 1000 + i;
	prefix.ids = ids;
	prefix.count = tokens;
	return prefix;
}

/* Compact cached blocks of three texts, after the sequences between them were freed. */
static void published_move(uint32_t flags)
{
	uint64_t between[24], sequence;
	uint32_t ids[3][4 * BLOCK_TOKENS], tokens = 0;
	struct gpool_kv_prefix prefix;

	pack_start(flags);
	for (uint32_t i = 0; i < 24; i++) {
		if (i % 8 == 0) {
			sequence = allocated(4 * BLOCK_TOKENS, 0, 0);
			write_tokens(sequence, 0, 4 * BLOCK_TOKENS, 50 + i);
			prefix = text(ids[i / 8], i / 8, 4 * BLOCK_TOKENS);
			assert_int_equal(gpool_kv_prefix_publish(kv, sequence, &prefix), 4);
			if (i / 8 != 1)
				assert_int_equal(gpool_kv_free(kv, sequence), 0);
		}
		between[i] = allocated(BLOCK_TOKENS, 0, 0);
	}
	for (uint32_t i = 0; i < 24; i++)
		assert_int_equal(gpool_kv_free(kv, between[i]), 0);
	assert_int_equal(statistics().cached_blocks, 8);
	assert_true(gpool_kv_compact(kv, UINT32_MAX) > 0);
	assert_int_equal(statistics().committed_chunks, 2);
	assert_int_equal(statistics().cached_blocks, 8);
	for (uint32_t i = 0; i < 3; i++) {
		struct gpool_kv_request request = GPOOL_KV_REQUEST_INIT;

		prefix = text(ids[i], i, 4 * BLOCK_TOKENS);
		request.tokens = 4 * BLOCK_TOKENS;
		assert_int_equal(gpool_kv_prefix_allocate(kv, &request, &prefix, &sequence, &tokens), 0);
		assert_int_equal(tokens, 4 * BLOCK_TOKENS);
		settle();
		assert_int_equal(wrong_tokens(sequence, 0, tokens, 50 + 8 * i), 0);
		assert_int_equal(gpool_kv_free(kv, sequence), 0);
	}
	/* The blocks are evicted in the same order as before. */
	assert_int_equal(gpool_kv_prefix_evict(kv, UINT32_MAX), 8);
	assert_int_equal(statistics().cached_blocks, 0);
}

static void test_published(void **state)
{
	(void)state;
	published_move(GPOOL_KV_PREFIXES);
}

static void test_published_adaptive(void **state)
{
	(void)state;
	published_move(GPOOL_KV_PREFIXES | GPOOL_KV_ADAPTIVE);
}

static void test_copies_that_fail(void **state)
{
	uint64_t sequences[4 * CHUNK_BLOCKS];

	(void)state;
	pack_start(0);
	holes_make(sequences, 4, 4);
	gpu_fault_set(worker->gpu, GPU_CALL_LAUNCH, 1, -EIO);
	assert_int_equal(gpool_kv_compact(kv, UINT32_MAX), -EIO);
	assert_int_equal(statistics().committed_chunks, 4);
	contents_stand(sequences, 4 * CHUNK_BLOCKS);
	/* A library without kernels makes single copies. */
	worker->capabilities &= ~(uint32_t)GPU_CAP_KERNELS;
	for (uint64_t n = 1; n <= 2; n++) {
		gpu_fault_set(worker->gpu, GPU_CALL_COPY, n, -EIO);
		assert_int_equal(gpool_kv_compact(kv, UINT32_MAX), -EIO);
		assert_int_equal(statistics().committed_chunks, 4);
		contents_stand(sequences, 4 * CHUNK_BLOCKS);
	}
	/* The fault occurs one chunk later: the earlier moves are kept. */
	gpu_fault_set(worker->gpu, GPU_CALL_COPY, 3, -EIO);
	assert_int_equal(gpool_kv_compact(kv, UINT32_MAX), 2);
	worker->capabilities |= GPU_CAP_KERNELS;
	contents_stand(sequences, 4 * CHUNK_BLOCKS);
	assert_int_equal(gpool_kv_compact(kv, UINT32_MAX), 4);
	contents_stand(sequences, 4 * CHUNK_BLOCKS);
	assert_int_equal(gpool_sleep(worker, 0), 0);
	assert_int_equal(gpool_kv_compact(kv, 1), -EHOSTDOWN);
	assert_int_equal(gpool_wake(worker, ANSWER_MS), 0);
}

/* The budget is one byte per second: it permits one chunk at once, and nothing more for six days. */
static void test_no_more_than_the_budget(void **state)
{
	struct gpool_kv_options options;
	uint64_t sequences[4 * CHUNK_BLOCKS];
	uint32_t in_chunk[BLOCKS / CHUNK_BLOCKS] = {0};

	(void)state;
	worker_open(calm);
	options = small_options(BLOCKS);
	options.compact_bytes_per_s = 1;
	assert_int_equal(gpool_kv_create(worker, &options, &kv), 0);
	assert_int_equal(holes_make(sequences, 4, 2), 16);
	assert_int_equal(gpool_kv_compact(kv, 4), 4);
	/* The chunks have free blocks for four more. */
	assert_int_equal(gpool_kv_compact(kv, UINT32_MAX), 4);
	assert_int_equal(statistics().committed_chunks, 2);
	contents_stand(sequences, 4 * CHUNK_BLOCKS);
	for (uint32_t i = 0; i < 4 * CHUNK_BLOCKS; i += 2) {
		if (in_chunk[(uint32_t)block_at(sequences[i], 0) / CHUNK_BLOCKS]++ < CHUNK_BLOCKS / 2)
			continue;
		assert_int_equal(gpool_kv_free(kv, sequences[i]), 0);
		sequences[i] = 0;
	}
	assert_int_equal(gpool_kv_compact(kv, UINT32_MAX), 0);
	/* Refill the budget, as the passage of time would. */
	kv->packing.level = 4 * BLOCK_BYTES * UINT64_C(1000000000);
	assert_int_equal(gpool_kv_compact(kv, UINT32_MAX), 4);
	assert_int_equal(statistics().committed_chunks, 1);
	contents_stand(sequences, 4 * CHUNK_BLOCKS);
}

/* ---- random ---- */

struct model {
	uint64_t number; /* 0: none */
	uint32_t tokens, content;
};

static struct model models[MODELS];
static void step(struct model *model)
{
	struct model *child = &models[any(MODELS)];
	uint32_t more = 1 + any(7);

	if (!model->number) {
		*model = (struct model){.tokens = 1 + any(TOKENS_MAX / 2), .content = 1 + any(UINT16_MAX)};
		if (try_allocate(model->tokens, 0, any(3), &model->number)) {
			model->number = 0;
			return;
		}
		settle();
		write_tokens(model->number, 0, model->tokens, model->content);
	} else if (any(3) == 0) {
		assert_int_equal(gpool_kv_free(kv, model->number), 0);
		model->number = 0;
	} else if (any(4) == 0 && !child->number) {
		*child = *model;
		child->number = forked(model->number);
	} else if (model->tokens + more <= TOKENS_MAX && !gpool_kv_append(kv, model->number, more, NULL)) {
		settle();
		write_tokens(model->number, model->tokens, more, model->content);
		model->tokens += more;
	}
}

static void test_by_chance(void **state)
{
	uint32_t steps = test_scaled(STEPS), moved = 0;

	(void)state;
	seed_begin();
	pack_start(0);
	for (uint32_t i = 0; i < steps; i++) {
		uint32_t most = any(40);
		int result;

		alarm(STUCK_SECONDS);
		step(&models[any(MODELS)]);
		if (any(4))
			continue;
		result = gpool_kv_compact(kv, most);
		assert_in_range(result, 0, most);
		moved += (uint32_t)result;
		/* Without a limit, the smallest possible number of chunks remains. */
		if (most == 39) {
			moved += (uint32_t)gpool_kv_compact(kv, UINT32_MAX);
			assert_int_equal(statistics().committed_chunks,
				(statistics().used_blocks + CHUNK_BLOCKS - 1) / CHUNK_BLOCKS);
		}
		settle();
		for (int m = 0; m < MODELS; m++)
			if (models[m].number)
				assert_int_equal(
					wrong_tokens(models[m].number, 0, models[m].tokens, models[m].content), 0);
	}
	assert_true(moved > 0);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_memory_goes, kv_stop),
		cmocka_unit_test_teardown(test_forks, kv_stop),
		cmocka_unit_test_teardown(test_published, kv_stop),
		cmocka_unit_test_teardown(test_published_adaptive, kv_stop),
		cmocka_unit_test_teardown(test_copies_that_fail, kv_stop),
		cmocka_unit_test_teardown(test_no_more_than_the_budget, kv_stop),
		cmocka_unit_test_teardown(test_by_chance, kv_stop),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
