/*
 * test_client_kv_offload.c - preempt sequences and save the content of their blocks.
 *
 * Goal: sequences are restored exactly after other sequences have used their memory, including forks and queued work. A
 * sequence whose content cannot be saved continues to run. Host memory is bounded and freed. A failed copy changes
 * nothing.
 *
 * Method: each token has distinct content. Random steps, scaled by GPOOL_TEST_SCALE, run in a cache that is too small
 * for all sequences, and are compared with arrays of the contents.
 *
 * Requirements: K8, K11.
 */
#include "tests/integration/kv_view.h"
#include "tests/lib/scale.h"
#include "tests/lib/seed.h"

enum { BLOCKS = 32, HOST_BLOCKS = 48, MODELS = 12, TOKENS_MAX = 60, STEPS = 20000 };

static void offload_start(uint32_t host_blocks)
{
	kv_start(calm, BLOCKS);
	assert_int_equal(gpool_kv_host_reserve(kv, (uint64_t)host_blocks * BLOCK_BYTES), 0);
}

static struct gpool_kv_offload_info offloaded(void)
{
	struct gpool_kv_offload_info found = {.size = sizeof(found)};

	assert_int_equal(gpool_kv_offload_info(kv, &found), 0);
	return found;
}

/* Let other sequences use and overwrite all memory once. */
static void disturb(void)
{
	uint64_t other = allocated(BLOCKS * BLOCK_TOKENS, 0, 0);

	settle();
	write_tokens(other, 0, BLOCKS * BLOCK_TOKENS, 0xbad);
	assert_int_equal(gpool_kv_free(kv, other), 0);
}

static void test_content_is_restored(void **state)
{
	uint64_t sequence, victim = 0;

	(void)state;
	offload_start(HOST_BLOCKS);
	assert_int_equal(offloaded().host_blocks, HOST_BLOCKS);
	/* The last block is not full. One more block was allocated in advance; its content is not saved. */
	sequence = allocated(10 * BLOCK_TOKENS + 1, 12 * BLOCK_TOKENS, 0);
	write_tokens(sequence, 0, 10 * BLOCK_TOKENS + 1, 7);
	assert_int_equal(gpool_kv_offload(kv, 0, 0, &victim), 12);
	assert_int_equal(victim, sequence);
	assert_int_equal(offloaded().host_free_blocks, HOST_BLOCKS - 11);
	assert_int_equal(statistics().used_blocks, 0);
	assert_int_equal(gpool_kv_offload(kv, sequence, 0, NULL), -EAGAIN);
	assert_int_equal(gpool_kv_offload(kv, 0, 0, NULL), -ENOENT);
	assert_int_equal(gpool_kv_append(kv, sequence, 1, NULL), -EAGAIN);
	disturb();
	assert_int_equal(gpool_kv_resume(kv, sequence), 0);
	settle();
	assert_int_equal(wrong_tokens(sequence, 0, 10 * BLOCK_TOKENS + 1, 7), 0);
	assert_int_equal(offloaded().host_free_blocks, HOST_BLOCKS);
	assert_int_equal(offloaded().saves, 1);
	assert_int_equal(offloaded().loads, 1);
	/* After a preemption that did not save the content, none is restored. */
	assert_true(gpool_kv_preempt(kv, sequence, NULL) > 0);
	assert_int_equal(gpool_kv_resume(kv, sequence), 0);
	assert_int_equal(offloaded().loads, 1);
}

/* The copies include the work queued before them. Work queued later runs after the copies. */
static void test_in_the_order_of_the_stream(void **state)
{
	uint64_t sequence, address = 0, other;

	(void)state;
	offload_start(HOST_BLOCKS);
	sequence = allocated(8 * BLOCK_TOKENS, 0, 0);
	assert_int_equal(gpool_kv_address(kv, (uint32_t)block_at(sequence, 0), &address), 0);
	for (uint32_t round = 1; round <= 20; round++) {
		assert_int_equal(gpool_fill(worker, stream, address, round, 8 * BLOCK_BYTES), 0);
		assert_true(gpool_kv_offload(kv, sequence, 0, NULL) > 0);
		other = allocated(8 * BLOCK_TOKENS, 0, 0);
		assert_int_equal(gpool_kv_address(kv, (uint32_t)block_at(other, 0), &address), 0);
		assert_int_equal(gpool_fill(worker, stream, address, 0xbad, 8 * BLOCK_BYTES), 0);
		assert_int_equal(gpool_kv_free(kv, other), 0);
		assert_int_equal(gpool_kv_resume(kv, sequence), 0);
		settle();
		for (uint32_t token = 0; token < 8 * BLOCK_TOKENS; token++)
			assert_int_equal((uint32_t)*token_at(sequence, token), round);
		assert_int_equal(gpool_kv_address(kv, (uint32_t)block_at(sequence, 0), &address), 0);
	}
}

static void test_forks(void **state)
{
	uint64_t parent, child;

	(void)state;
	offload_start(HOST_BLOCKS);
	parent = allocated(4 * BLOCK_TOKENS + 2, 0, 0);
	write_tokens(parent, 0, 4 * BLOCK_TOKENS + 2, 3);
	child = forked(parent);
	/* The preemption frees no shared block. The other sequence continues alone, without a copy. */
	assert_int_equal(gpool_kv_offload(kv, parent, 0, NULL), 0);
	assert_int_equal(statistics().shared_blocks, 0);
	assert_int_equal(gpool_kv_append(kv, child, 1, NULL), 0);
	settle();
	*token_at(child, 4 * BLOCK_TOKENS + 2) = 99;
	assert_int_equal(statistics().block_copies, 0);
	assert_int_equal(gpool_kv_resume(kv, parent), 0);
	settle();
	assert_int_equal(wrong_tokens(parent, 0, 4 * BLOCK_TOKENS + 2, 3), 0);
	assert_int_equal(wrong_tokens(child, 0, 4 * BLOCK_TOKENS + 2, 3), 0);
	assert_int_equal(statistics().shared_blocks, 0);
}

static void test_content_that_cannot_be_kept(void **state)
{
	uint64_t large, small;

	(void)state;
	kv_start(calm, BLOCKS);
	large = allocated(8 * BLOCK_TOKENS, 0, 0);
	small = allocated(2 * BLOCK_TOKENS, 0, 0);
	assert_int_equal(gpool_kv_offload(kv, large, 0, NULL), -EOPNOTSUPP);
	assert_int_equal(offloaded().host_blocks, 0);
	assert_int_equal(gpool_kv_host_reserve(kv, BLOCK_BYTES - 1), -EINVAL);
	assert_int_equal(gpool_kv_host_reserve(kv, UINT64_MAX), -EINVAL);
	assert_int_equal(gpool_kv_host_reserve(kv, 9 * BLOCK_BYTES), 0);
	assert_int_equal(gpool_kv_host_reserve(kv, 9 * BLOCK_BYTES), -EALREADY);
	write_tokens(large, 0, 8 * BLOCK_TOKENS, 1);
	assert_int_equal(gpool_kv_offload(kv, small, 0, NULL), 2);
	assert_int_equal(gpool_kv_offload(kv, large, 0, NULL), -ENOSPC);
	assert_int_equal(info_of(large).state, GPOOL_KV_RUNNING);
	assert_int_equal(gpool_kv_append(kv, large, 1, NULL), 0);
	assert_int_equal(wrong_tokens(large, 0, 8 * BLOCK_TOKENS, 1), 0);
	/* The end of a sequence frees its slots in host memory. */
	assert_int_equal(gpool_kv_free(kv, small), 0);
	assert_int_equal(offloaded().host_free_blocks, 9);
	assert_int_equal(gpool_kv_offload(kv, large, 0, NULL), 9);
	assert_int_equal(offloaded().host_free_blocks, 0);
	assert_int_equal(gpool_kv_offload(kv, small, 0, NULL), -ESTALE);
	assert_int_equal(gpool_kv_destroy(kv), 0);
}

static void test_copies_that_fail(void **state)
{
	uint64_t sequence;

	(void)state;
	offload_start(HOST_BLOCKS);
	sequence = allocated(12 * BLOCK_TOKENS, 0, 0);
	write_tokens(sequence, 0, 12 * BLOCK_TOKENS, 5);
	gpu_fault_set(worker->gpu, GPU_CALL_COPY, 1, -EIO);
	assert_int_equal(gpool_kv_offload(kv, sequence, 0, NULL), -EIO);
	assert_int_equal(offloaded().host_free_blocks, HOST_BLOCKS);
	assert_int_equal(info_of(sequence).state, GPOOL_KV_RUNNING);
	assert_int_equal(wrong_tokens(sequence, 0, 12 * BLOCK_TOKENS, 5), 0);
	assert_int_equal(gpool_kv_offload(kv, sequence, 0, NULL), 12);
	disturb();
	gpu_fault_set(worker->gpu, GPU_CALL_COPY, 1, -EIO);
	assert_int_equal(gpool_kv_resume(kv, sequence), -EIO);
	assert_int_equal(info_of(sequence).state, GPOOL_KV_PREEMPTED);
	assert_int_equal(statistics().used_blocks, 0);
	assert_int_equal(offloaded().host_free_blocks, HOST_BLOCKS - 12);
	assert_int_equal(gpool_kv_resume(kv, sequence), 0);
	settle();
	assert_int_equal(wrong_tokens(sequence, 0, 12 * BLOCK_TOKENS, 5), 0);
}

/* ---- random ---- */

struct model {
	uint64_t number; /* 0: none */
	uint32_t tokens, content;
	bool running;
};

static struct model models[MODELS];
static void allocate_any(struct model *model)
{
	uint32_t tokens = 1 + any(TOKENS_MAX);

	if (try_allocate(tokens, 0, any(3), &model->number)) {
		model->number = 0;
		return;
	}
	*model = (struct model){
		.number = model->number, .tokens = tokens, .content = 1 + any(UINT16_MAX), .running = true};
	settle();
	write_tokens(model->number, 0, tokens, model->content);
}

static void append_any(struct model *model)
{
	uint32_t more = 1 + any(5);

	if (!model->running || model->tokens + more > TOKENS_MAX || gpool_kv_append(kv, model->number, more, NULL))
		return;
	settle();
	write_tokens(model->number, model->tokens, more, model->content);
	model->tokens += more;
}

static void offload_any(struct model *model)
{
	uint32_t room = offloaded().host_free_blocks;
	int result = gpool_kv_offload(kv, model->number, 0, NULL);

	if (!model->running) {
		assert_int_equal(result, -EAGAIN);
	} else if (result < 0) {
		assert_int_equal(result, -ENOSPC);
		assert_true((model->tokens + BLOCK_TOKENS - 1) / BLOCK_TOKENS > room);
	} else {
		model->running = false;
	}
}

static void check(const struct model *model)
{
	if (!model->running)
		return;
	settle();
	assert_int_equal(wrong_tokens(model->number, 0, model->tokens, model->content), 0);
}

static void test_by_chance(void **state)
{
	uint32_t steps = test_scaled(STEPS);

	(void)state;
	seed_begin();
	offload_start(HOST_BLOCKS);
	for (uint32_t i = 0; i < steps; i++) {
		struct model *model = &models[any(MODELS)];

		alarm(STUCK_SECONDS);
		if (!model->number) {
			allocate_any(model);
			continue;
		}
		switch (any(6)) {
		case 0:
			assert_int_equal(gpool_kv_free(kv, model->number), 0);
			model->number = 0;
			break;
		case 1: offload_any(model); break;
		case 2:
		case 3:
			if (!model->running && gpool_kv_resume(kv, model->number) == 0)
				model->running = true;
			break;
		default: append_any(model);
		}
		if (model->number)
			check(model);
	}
	assert_true(offloaded().loads > 0);
	for (int m = 0; m < MODELS; m++)
		if (models[m].number)
			assert_int_equal(gpool_kv_free(kv, models[m].number), 0);
	assert_int_equal(offloaded().host_free_blocks, HOST_BLOCKS);
	assert_int_equal(statistics().used_blocks, 0);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_content_is_restored, kv_stop),
		cmocka_unit_test_teardown(test_in_the_order_of_the_stream, kv_stop),
		cmocka_unit_test_teardown(test_forks, kv_stop),
		cmocka_unit_test_teardown(test_content_that_cannot_be_kept, kv_stop),
		cmocka_unit_test_teardown(test_copies_that_fail, kv_stop),
		cmocka_unit_test_teardown(test_by_chance, kv_stop),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
