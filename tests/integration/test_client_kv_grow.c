/*
 * test_client_kv_grow.c - growing a sequence, and preempting others for it.
 *
 * Goal: while blocks or pages are missing, sequences are preempted in the order of the cache or as the caller's policy
 * requires, no more than needed and at most as many as permitted. The content of the others is unchanged. Offloaded
 * content is restored; content for which there is no room is discarded. A call that cannot succeed preempts nothing.
 *
 * Method: the tests fill a cache or the pool with sequences of known content. Policies are functions of the test.
 *
 * Requirements: K16.
 */
#include "tests/integration/kv_view.h"

#include <pthread.h>

enum { BLOCKS = 64, MOST = 8 };

static uint64_t victims[MOST];

static struct gpool_kv_growth growth_of(uint32_t most)
{
	struct gpool_kv_growth growth = GPOOL_KV_GROWTH_INIT;

	growth.most = most;
	return growth;
}

static int grow(uint64_t sequence, uint32_t blocks, const struct gpool_kv_growth *growth)
{
	memset(victims, 0xff, sizeof(victims));
	return gpool_kv_grow(kv, sequence, blocks * BLOCK_TOKENS, growth, NULL, victims);
}

static bool runs(uint64_t sequence)
{
	return info_of(sequence).state == GPOOL_KV_RUNNING;
}

/* Allocate a sequence of some blocks whose tokens have the content `priority`. */
static uint64_t written(uint32_t blocks, uint32_t priority)
{
	uint64_t sequence = allocated(blocks * BLOCK_TOKENS, 0, priority);

	write_tokens(sequence, 0, blocks * BLOCK_TOKENS, priority);
	return sequence;
}

/* ---- the order of the cache ---- */

static void test_order(void **state)
{
	struct gpool_kv_growth growth = growth_of(MOST);
	uint64_t high, middle, low, late, slot, calls;

	(void)state;
	kv_start(calm, BLOCKS);
	high = written(16, 9);
	middle = written(16, 5);
	low = written(16, 1);
	late = written(15, 1);
	/* There is a free block. */
	assert_int_equal(gpool_kv_grow(kv, high, 1, NULL, &slot, NULL), 0);
	assert_int_equal(slot, (uint64_t)(uint32_t)block_at(high, 16) * BLOCK_TOKENS);
	/* No request to the agent and no mapping is needed: the memory stays committed. */
	calls = gpu_thread_calls(GPU_CALL_MAP);
	assert_int_equal(grow(high, 1, &growth), 1);
	assert_int_equal(gpu_thread_calls(GPU_CALL_MAP), calls);
	assert_int_equal(victims[0], late);
	for (int i = 1; i < MOST; i++)
		assert_int_equal(victims[i], 0);
	assert_false(runs(late));
	assert_true(runs(low));
	assert_int_equal(statistics().refusals, 0);
	/* 14 blocks are free. Two sequences are preempted for 40. */
	assert_int_equal(grow(high, 40, &growth), 2);
	assert_int_equal(victims[0], low);
	assert_int_equal(victims[1], middle);
	assert_int_equal(victims[2], 0);
	assert_int_equal(wrong_tokens(high, 0, 16 * BLOCK_TOKENS, 9), 0);
	assert_int_equal(info_of(high).tokens, 57 * BLOCK_TOKENS + 1);
	assert_int_equal(statistics().preemptions, 3);
	/* Memory that is not needed is returned. */
	assert_int_equal(statistics().committed_chunks, 8);
	assert_int_equal(gpool_kv_free(kv, high), 0);
	assert_int_equal(gpool_kv_resume(kv, middle), 0);
	assert_int_equal(info_of(middle).tokens, 16 * BLOCK_TOKENS);
}

/* A sequence that is itself the next of the order preempts no other. */
static void test_own_turn(void **state)
{
	struct gpool_kv_growth growth = growth_of(MOST);
	uint64_t high, low, late;

	(void)state;
	kv_start(calm, BLOCKS);
	high = written(30, 9);
	low = written(17, 1);
	late = written(17, 1);
	assert_int_equal(grow(late, 1, &growth), -ENOSPC);
	assert_int_equal(victims[0], 0);
	assert_int_equal(statistics().preemptions, 0);
	assert_int_equal(statistics().refusals, 1);
	assert_int_equal(shortage().needed_blocks, 1);
	/* The late sequence is preempted first, but its blocks are not enough. */
	assert_int_equal(grow(low, 20, &growth), -ENOSPC);
	assert_int_equal(victims[0], late);
	assert_int_equal(victims[1], 0);
	assert_false(runs(late));
	assert_true(runs(low) && runs(high));
	assert_int_equal(info_of(low).tokens, 17 * BLOCK_TOKENS);
	assert_int_equal(wrong_tokens(low, 0, 17 * BLOCK_TOKENS, 1), 0);
	assert_int_equal(statistics().refusals, 2);
	assert_int_equal(statistics().committed_chunks, 6);
}

/* Blocks of a preempted sequence that others share are not free, so further sequences are preempted. */
static void test_shared(void **state)
{
	struct gpool_kv_growth growth = growth_of(MOST);
	uint64_t high, low, child;

	(void)state;
	kv_start(calm, BLOCKS);
	high = written(32, 9);
	low = written(32, 1);
	child = forked(low);
	assert_int_equal(grow(high, 32, &growth), 2);
	assert_true((victims[0] == low && victims[1] == child) || (victims[0] == child && victims[1] == low));
	assert_int_equal(statistics().used_blocks, 64);
}

/* Cached blocks count as free: they are evicted before a sequence is preempted. */
static void test_cached(void **state)
{
	uint32_t ids[32 * BLOCK_TOKENS] = {0};
	struct gpool_kv_prefix prefix = prefix_of(ids, 32 * BLOCK_TOKENS);
	struct gpool_kv_growth growth = growth_of(MOST);
	struct gpool_kv_options options;
	uint64_t high, low;

	(void)state;
	worker_open(calm);
	options = small_options(BLOCKS);
	options.flags = GPOOL_KV_PREFIXES;
	assert_int_equal(gpool_kv_create(worker, &options, &kv), 0);
	low = written(32, 1);
	assert_int_equal(gpool_kv_prefix_publish(kv, low, &prefix), 32);
	high = written(30, 9);
	assert_int_equal(grow(high, 20, &growth), 1);
	assert_int_equal(victims[0], low);
	/* The beginning of the preempted sequence is still cached. */
	assert_int_equal(found_of(&prefix).blocks, 14);
	assert_int_equal(statistics().prefix_evicted, 18);
	assert_int_equal(grow(high, 14, &growth), 0);
	assert_int_equal(found_of(&prefix).blocks, 0);
}

/* The pool is short of pages, although the cache has enough block numbers. */
static void test_pool_is_short(void **state)
{
	struct gpool_kv_growth growth = growth_of(MOST);
	struct gpool_block block;
	struct gpool *other;
	uint64_t high, low;

	(void)state;
	kv_start(calm, 0);
	other = open_worker();
	high = written(2 * CHUNK_BLOCKS, 9);
	low = written(2 * CHUNK_BLOCKS, 1);
	block = alloc(other, PAGES - 4);
	assert_int_equal(grow(high, 1, &growth), 1);
	assert_int_equal(victims[0], low);
	assert_int_equal(wrong_tokens(high, 0, 2 * CHUNK_BLOCKS * BLOCK_TOKENS, 9), 0);
	assert_int_equal(statistics().committed_chunks, 3);
	settle();
	assert_int_equal(gpool_free(other, &block), 0);
	gpool_close(other);
}

/* ---- policies ---- */

static struct {
	uint64_t sequence, returned[MOST]; /* the policy's answers */
	int code;
	uint32_t calls, missing;
	bool end;
} policy;

static int choose(void *context, uint64_t sequence, uint64_t *victim)
{
	assert_ptr_equal(context, &policy);
	assert_int_equal(sequence, policy.sequence);
	assert_int_equal(*victim, 0);
	/* The cache can be used in the meantime. */
	policy.missing = shortage().needed_blocks;
	if (policy.end)
		assert_int_equal(gpool_kv_free(kv, sequence), 0);
	*victim = policy.returned[policy.calls++];
	return policy.code;
}

static struct gpool_kv_growth policy_of(uint64_t sequence, uint64_t first, uint64_t second)
{
	struct gpool_kv_growth growth = growth_of(MOST);

	memset(&policy, 0, sizeof(policy));
	policy.sequence = sequence;
	policy.returned[0] = first;
	policy.returned[1] = second;
	growth.choose = choose;
	growth.context = &policy;
	return growth;
}

static void test_policy(void **state)
{
	struct gpool_kv_growth growth;
	uint64_t high, middle, low, late;

	(void)state;
	kv_start(calm, BLOCKS);
	high = written(16, 9);
	middle = written(16, 5);
	low = written(16, 1);
	late = written(16, 1);
	/* The sequence of the lowest priority grows at the expense of others, then in the order of the cache. */
	growth = policy_of(low, high, 0);
	assert_int_equal(grow(low, 20, &growth), 2);
	assert_int_equal(policy.calls, 2);
	assert_int_equal(policy.missing, 20);
	assert_int_equal(victims[0], high);
	assert_int_equal(victims[1], late);
	assert_true(runs(middle));
	assert_int_equal(wrong_tokens(low, 0, 16 * BLOCK_TOKENS, 1), 0);
	/* The policy is not asked without need. */
	growth = policy_of(low, middle, 0);
	assert_int_equal(grow(low, 12, &growth), 0);
	assert_int_equal(policy.calls, 0);
	/* It permits none. */
	growth = policy_of(low, low, 0);
	assert_int_equal(grow(low, 1, &growth), -ENOSPC);
	assert_int_equal(policy.calls, 1);
	/* Its code is returned. */
	growth = policy_of(low, middle, 0);
	policy.code = -ECANCELED;
	assert_int_equal(grow(low, 1, &growth), -ECANCELED);
	policy.code = 1;
	assert_int_equal(grow(low, 1, &growth), -EINVAL);
	/* The policy names a preempted sequence, and a number that no sequence has. */
	growth = policy_of(low, high, 0);
	assert_int_equal(grow(low, 1, &growth), -EINVAL);
	growth = policy_of(low, 7, 0);
	assert_int_equal(grow(low, 1, &growth), -EINVAL);
	assert_true(runs(middle));
	assert_int_equal(info_of(low).tokens, 48 * BLOCK_TOKENS);
	/* The sequence ends in the meantime. */
	growth = policy_of(low, middle, 0);
	policy.end = true;
	assert_int_equal(grow(low, 1, &growth), -ESTALE);
	assert_true(runs(middle));
	assert_int_equal(statistics().used_blocks, 16);
}

static void test_limits(void **state)
{
	struct gpool_kv_growth growth = growth_of(1);
	uint64_t high, low, late;

	(void)state;
	kv_start(calm, BLOCKS);
	high = written(32, 9);
	low = written(16, 1);
	late = written(16, 1);
	assert_int_equal(grow(high, 20, &growth), -ENOSPC);
	assert_int_equal(victims[0], late);
	assert_true(runs(low));
	/* More than the cache has. */
	assert_int_equal(grow(high, 33, &growth), -EFBIG);
	assert_int_equal(statistics().refusals, 2);
	assert_int_equal(victims[0], 0);
	assert_true(runs(low));
	assert_int_equal(gpool_kv_grow(kv, high, 2000, NULL, NULL, NULL), -EFBIG);
	assert_int_equal(gpool_kv_grow(kv, high, 0, NULL, NULL, NULL), -EINVAL);
	assert_int_equal(gpool_kv_grow(kv, late, 1, NULL, NULL, NULL), -EAGAIN);
	assert_int_equal(gpool_kv_grow(kv, 7, 1, NULL, NULL, NULL), -EINVAL);
	growth.flags = 2;
	assert_int_equal(grow(high, 1, &growth), -EINVAL);
	growth = growth_of(0);
	assert_int_equal(grow(high, 1, &growth), -EINVAL);
	growth.size = 3;
	assert_int_equal(gpool_kv_grow(kv, high, 1, &growth, NULL, NULL), -EINVAL);
	assert_true(runs(low));
	assert_int_equal(gpool_kv_grow(kv, high, 20 * BLOCK_TOKENS, NULL, NULL, NULL), 1);
	assert_false(runs(low));
}

/* ---- offloading ---- */

static void test_offload(void **state)
{
	struct gpool_kv_growth growth = growth_of(MOST);
	struct gpool_kv_offload_info info = {.size = sizeof(info)};
	uint64_t high, middle, low;

	(void)state;
	kv_start(calm, BLOCKS);
	high = written(20, 9);
	middle = written(20, 5);
	low = written(20, 1);
	growth.flags = GPOOL_KV_GROW_OFFLOAD;
	/* Grow without memory for the content, and with an unknown flag. */
	assert_int_equal(grow(high, 20, &growth), -EOPNOTSUPP);
	growth.offload_flags = 4;
	assert_int_equal(grow(high, 20, &growth), -EINVAL);
	growth.offload_flags = 0;
	assert_true(runs(low));
	/* The host memory has room for one of them. */
	assert_int_equal(gpool_kv_host_reserve(kv, 30 * BLOCK_BYTES), 0);
	assert_int_equal(grow(high, 44, &growth), 2);
	assert_int_equal(victims[0], low);
	assert_int_equal(victims[1], middle);
	assert_int_equal(gpool_kv_offload_info(kv, &info), 0);
	assert_int_equal(info.sequences, 1);
	assert_int_equal(info.host_free_blocks, 10);
	assert_int_equal(gpool_kv_free(kv, high), 0);
	assert_int_equal(gpool_kv_resume(kv, low), 0);
	settle();
	assert_int_equal(wrong_tokens(low, 0, 20 * BLOCK_TOKENS, 1), 0);
	assert_int_equal(gpool_kv_resume(kv, middle), 0);
}

/* A copy of the shared last block fails after a sequence was preempted for it. */
static void test_copy_fails(void **state)
{
	struct gpool_kv_growth growth = growth_of(MOST);
	uint64_t high, child, low;

	(void)state;
	kv_start(calm, BLOCKS);
	high = allocated(32 * BLOCK_TOKENS - 1, 0, 9);
	write_tokens(high, 0, 32 * BLOCK_TOKENS - 1, 9);
	child = forked(high);
	low = written(32, 1);
	memset(victims, 0xff, sizeof(victims));
	gpu_fault_set(worker->gpu, GPU_CALL_COPY, 1, -EIO);
	assert_int_equal(gpool_kv_grow(kv, child, 1, &growth, NULL, victims), -EIO);
	gpu_fault_set(worker->gpu, GPU_CALL_COPY, 0, 0);
	assert_int_equal(victims[0], low);
	assert_int_equal(info_of(child).tokens, 32 * BLOCK_TOKENS - 1);
	assert_int_equal(statistics().used_blocks, 32);
	assert_int_equal(statistics().committed_chunks, 4);
	assert_int_equal(gpool_kv_grow(kv, child, 1, &growth, NULL, victims), 0);
	settle();
	assert_int_equal(wrong_tokens(child, 0, 32 * BLOCK_TOKENS - 1, 9), 0);
	assert_int_equal(statistics().used_blocks, 33);
}

/* ---- threads ---- */

enum { THREADS = 4, STEPS = 300 };

static uint64_t grown[THREADS];

/* Resume the thread's sequence if another thread has preempted it, grow it, and preempt it when it is long. */
static void *grow_all(void *argument)
{
	uint64_t sequence = *(const uint64_t *)argument;
	const char *wrong = NULL;

	for (int i = 0; i < STEPS && !wrong; i++) {
		int result = gpool_kv_grow(kv, sequence, BLOCK_TOKENS, NULL, NULL, NULL);

		if (result == -EAGAIN || result == -EFBIG)
			result = gpool_kv_resume(kv, sequence);
		if (result < 0 && result != -ENOSPC && result != -EALREADY)
			wrong = "another result";
	}
	return (void *)(uintptr_t)wrong;
}

static void test_threads(void **state)
{
	pthread_t threads[THREADS];
	void *wrong;

	(void)state;
	kv_start(calm, BLOCKS);
	for (uint32_t i = 0; i < THREADS; i++)
		grown[i] = allocated(1, 0, i);
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, grow_all, &grown[i]), 0);
	for (int i = 0; i < THREADS; i++) {
		assert_int_equal(pthread_join(threads[i], &wrong), 0);
		assert_null(wrong);
	}
	assert_true(statistics().preemptions > 0);
	for (int i = 0; i < THREADS; i++) {
		if (!runs(grown[i]))
			continue;
		assert_int_equal(
			info_of(grown[i]).blocks, (info_of(grown[i]).tokens + BLOCK_TOKENS - 1) / BLOCK_TOKENS);
	}
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(gpool_kv_free(kv, grown[i]), 0);
	assert_int_equal(statistics().used_blocks, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_order, kv_stop),
		cmocka_unit_test_teardown(test_own_turn, kv_stop),
		cmocka_unit_test_teardown(test_shared, kv_stop),
		cmocka_unit_test_teardown(test_cached, kv_stop),
		cmocka_unit_test_teardown(test_pool_is_short, kv_stop),
		cmocka_unit_test_teardown(test_policy, kv_stop),
		cmocka_unit_test_teardown(test_limits, kv_stop),
		cmocka_unit_test_teardown(test_offload, kv_stop),
		cmocka_unit_test_teardown(test_copy_fails, kv_stop),
		cmocka_unit_test_teardown(test_threads, kv_stop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
