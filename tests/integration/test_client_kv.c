/*
 * test_client_kv.c - paged KV caches.
 *
 * Goal: the shape determines blocks and chunks. The lowest blocks are used first. Forks share blocks and copy them on
 * write. Admission keeps the watermark and reports what is missing. Preempted sequences are restored unchanged. Memory
 * is committed and decommitted by chunks, with its fence. Invalid arguments are refused, and a failed driver call
 * changes nothing.
 *
 * Method: each test starts a gpoold. Each token has distinct content; driver calls are counted and made to fail. For
 * random steps and threads see test_client_kv_random.c.
 */
#include "tests/integration/kv_view.h"

static const char *const fours[] = {"--pool", POOL ",handle_size=2MiB", CALM, NULL};
static const char *const spilling[] = {"--pool", POOL ",spill_memory=32MiB", CALM, NULL};

/* ---- shape ---- */

static struct gpool_kv_layout layout_of(struct gpool_kv_shape shape)
{
	struct gpool_kv_options options = small_options(0);
	struct gpool_kv_layout layout = {.size = sizeof(layout)};
	struct gpool_kv *made;

	options.shape = shape;
	assert_int_equal(gpool_kv_create(worker, &options, &made), 0);
	assert_int_equal(gpool_kv_layout(made, &layout), 0);
	assert_int_equal(gpool_kv_destroy(made), 0);
	return layout;
}

/* Requirements: K1. */
static void test_shapes(void **state)
{
	struct gpool_kv_layout layout;

	(void)state;
	worker_open(calm);
	/* A page holds exactly eight blocks. The cache has as many blocks as the pool has pages for. */
	layout = layout_of((struct gpool_kv_shape)SMALL);
	assert_int_equal(layout.block_bytes, BLOCK_BYTES);
	assert_int_equal(layout.chunk_bytes, PAGE_BYTES);
	assert_int_equal(layout.chunk_blocks, CHUNK_BLOCKS);
	assert_int_equal(layout.max_blocks, PAGES * CHUNK_BLOCKS);
	assert_int_equal(layout.table_columns, 1024 / BLOCK_TOKENS);
	/* 32 layers, 8 heads of size 128, 2 bytes, 16 tokens by default: a block has 2 MiB, four pages. */
	layout = layout_of((struct gpool_kv_shape){.layers = 32, .kv_heads = 8, .head_size = 128, .dtype_bytes = 2});
	assert_int_equal(layout.block_tokens, 16);
	assert_int_equal(layout.block_bytes, 2 << 20);
	assert_int_equal(layout.chunk_bytes, 2 << 20);
	assert_int_equal(layout.chunk_blocks, 1);
	/* Blocks of 192 KiB: two in one page waste a quarter of it, eight in three pages waste nothing. */
	layout = layout_of((struct gpool_kv_shape){
		.layers = 24, .kv_heads = 8, .head_size = 64, .dtype_bytes = 2, .block_tokens = 4});
	assert_int_equal(layout.chunk_bytes, 3 * PAGE_BYTES);
	assert_int_equal(layout.chunk_blocks, 8);
	/*
	 * 28 layers, 1 head of size 128, 2 bytes, 32 tokens: blocks of 448 KiB. One page would waste an eighth, seven
	 * pages waste nothing.
	 */
	layout = layout_of((struct gpool_kv_shape){
		.layers = 28, .kv_heads = 1, .head_size = 128, .dtype_bytes = 2, .block_tokens = 32});
	assert_int_equal(layout.chunk_bytes, 7 * PAGE_BYTES);
	assert_int_equal(layout.chunk_blocks, 8);
	/* The block is larger than 16 handles. */
	layout = layout_of((struct gpool_kv_shape){
		.layers = 80, .kv_heads = 8, .head_size = 128, .dtype_bytes = 4, .block_tokens = 16});
	assert_int_equal(layout.chunk_blocks, 1);
	assert_int_equal(layout.chunk_bytes, 20 * PAGE_BYTES);
}

/* Requirements: K1. */
static void test_handles_of_several_pages(void **state)
{
	struct gpool_kv_layout layout;
	uint64_t sequence;

	(void)state;
	kv_start(fours, 64);
	layout = layout_of((struct gpool_kv_shape)SMALL);
	assert_int_equal(layout.chunk_bytes, 4 * PAGE_BYTES);
	assert_int_equal(layout.chunk_blocks, 32);
	sequence = allocated(33 * BLOCK_TOKENS, 0, 0);
	write_tokens(sequence, 0, 33 * BLOCK_TOKENS, 1);
	assert_int_equal(wrong_tokens(sequence, 0, 33 * BLOCK_TOKENS, 1), 0);
	assert_int_equal(statistics().committed_chunks, 2);
	assert_int_equal(gpool_kv_free(kv, sequence), 0);
	assert_int_equal(statistics().committed_chunks, 0);
}

static void test_wrong_options(void **state)
{
	static const struct gpool_kv_shape shapes[] = {
		{0, 8, 64, 2, 16},
		{8, 0, 64, 2, 16},
		{8, 8, 0, 2, 16},
		{8, 8, 64, 0, 16},
		{8, 8, 64, 3, 16},
		{8, 8, 64, 16, 16},
		{8, 8, 64, 2, 24},
		{8, 8, 64, 2, 2048},
		{UINT32_MAX, UINT32_MAX, UINT32_MAX, 8, 1024},
		{1 << 20, 1 << 20, 1 << 20, 2, 16},
	};
	struct gpool_kv_options options;
	struct gpool_kv *made = NULL;
	uint32_t manual;

	(void)state;
	worker_open(calm);
	assert_int_equal(gpool_stream_open(worker, NULL, GPOOL_STREAM_HOST_SIGNALED, &manual), 0);
	for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++) {
		options = small_options(0);
		options.shape = shapes[i];
		assert_int_equal(gpool_kv_create(worker, &options, &made), -EINVAL);
	}
	for (int i = 0; i < 10; i++) {
		options = small_options(0);
		/* GPOOL_KV_ADAPTIVE needs GPOOL_KV_PREFIXES */
		options.flags = i == 0 ? 32 : i == 9 ? GPOOL_KV_ADAPTIVE : 0;
		options.pool_blocks = i == 8;
		options.stream = i == 1 ? 0 : i == 2 ? manual : i == 3 ? 12345 : stream;
		options.max_blocks = i == 4 ? BITMAP_BITS_MAX + 1 : 0;
		options.max_sequences = i == 5 ? 65537 : 0;
		options.max_sequence_tokens = i == 6 ? 1 << 24 : 0;
		options.watermark_blocks = i == 7 ? PAGES * CHUNK_BLOCKS : 0;
		assert_int_equal(gpool_kv_create(worker, &options, &made), -EINVAL);
	}
	options = small_options(0);
	assert_int_equal(gpool_kv_create(admin, &options, &made), -EPERM);
	assert_null(made);
	assert_int_equal(gpool_kv_destroy(NULL), 0);
}

/* ---- growing ---- */

/* Requirements: K2, K3. */
static void test_append(void **state)
{
	struct gpool_kv_sequence_info info;
	uint64_t sequence, slot;

	(void)state;
	kv_start(calm, 64);
	sequence = allocated(0, 0, 0);
	assert_int_equal(info_of(sequence).blocks, 0);
	for (uint32_t i = 0; i < 100; i++) {
		assert_int_equal(gpool_kv_append(kv, sequence, 1, &slot), 0);
		/* The lowest blocks are used in order. */
		assert_int_equal(slot, i);
		*word_at(slot) = UINT64_C(7) << 32 | i;
	}
	assert_int_equal(wrong_tokens(sequence, 0, 100, 7), 0);
	info = info_of(sequence);
	assert_int_equal(info.tokens, 100);
	assert_int_equal(info.blocks, 25);
	assert_int_equal(info.room, 0);
	assert_int_equal(statistics().step_blocks, 1);
	assert_int_equal(gpool_kv_append(kv, sequence, 9, &slot), 0);
	assert_int_equal(slot, 100);
	assert_int_equal(info_of(sequence).room, 3);
	assert_int_equal(gpool_kv_append(kv, sequence, 0, &slot), -EINVAL);
	assert_int_equal(gpool_kv_append(kv, sequence, 1024 - 109 + 1, NULL), -EFBIG);
	assert_int_equal(gpool_kv_append(kv, sequence, UINT32_MAX, NULL), -EFBIG);
	/* 64 blocks are 256 tokens. */
	assert_int_equal(gpool_kv_append(kv, sequence, 256 - 109 + 1, NULL), -ENOSPC);
	assert_int_equal(shortage().needed_blocks, 37);
	assert_int_equal(shortage().available_blocks, 36);
	assert_int_equal(gpool_kv_append(kv, sequence, 256 - 109, NULL), 0);
	assert_int_equal(statistics().free_blocks, 0);
}

/* Requirements: K4. */
static void test_bulk(void **state)
{
	uint64_t bulk, sequence, calls;

	(void)state;
	kv_start(calm, 64);
	bulk = allocated(10, 100, 0);
	assert_int_equal(info_of(bulk).blocks, 25);
	assert_int_equal(info_of(bulk).room, 90);
	sequence = allocated(10, 5, 0);
	assert_int_equal(info_of(sequence).blocks, 3);
	assert_int_equal(block_at(sequence, 0), 25);
	/* Committed memory needs no request to the agent. */
	calls = gpu_thread_calls_total();
	for (uint32_t i = 0; i < 90; i++)
		assert_int_equal(gpool_kv_append(kv, bulk, 1, NULL), 0);
	assert_int_equal(gpu_thread_calls_total(), calls);
	assert_int_equal(info_of(bulk).blocks, 25);
	assert_int_equal(gpool_kv_append(kv, bulk, 1, NULL), 0);
	assert_int_equal(block_at(bulk, 25), 28);
}

/* The lowest committed block is used. After chunks are decommitted, the lowest ones are committed first. */
/* Requirements: K5. */
static void test_lowest_first(void **state)
{
	uint64_t sequences[4];

	(void)state;
	kv_start(calm, 64);
	for (int i = 0; i < 4; i++)
		sequences[i] = allocated(CHUNK_BLOCKS * BLOCK_TOKENS, 0, 0);
	assert_int_equal(statistics().committed_chunks, 4);
	assert_int_equal(statistics().committed_bytes, 4 * PAGE_BYTES);
	assert_int_equal(gpool_kv_free(kv, sequences[1]), 0);
	assert_int_equal(gpool_kv_free(kv, sequences[0]), 0);
	assert_int_equal(statistics().committed_chunks, 2);
	sequences[0] = allocated(BLOCK_TOKENS, 0, 0);
	assert_int_equal(block_at(sequences[0], 0), 0);
	sequences[1] = allocated(CHUNK_BLOCKS * BLOCK_TOKENS, 0, 0);
	assert_int_equal(block_at(sequences[1], 0), 1);
	assert_int_equal(block_at(sequences[1], 7), 8);
	assert_int_equal(gpool_kv_free(kv, sequences[0]), 0);
	assert_int_equal(gpool_kv_append(kv, sequences[1], 1, NULL), 0);
	assert_int_equal(block_at(sequences[1], 8), 0);
}

/* ---- sharing ---- */

/* Requirements: K3, K6. */
static void test_fork(void **state)
{
	uint64_t parent, child, third;
	struct gpool_kv_stats before;

	(void)state;
	kv_start(calm, 64);
	parent = allocated(10, 0, 3);
	write_tokens(parent, 0, 10, 1);
	child = forked(parent);
	assert_int_equal(info_of(child).tokens, 10);
	assert_int_equal(info_of(child).priority, 3);
	assert_int_equal(info_of(child).shared_blocks, 3);
	assert_int_equal(info_of(parent).room, 0);
	before = statistics();
	assert_int_equal(before.used_blocks, 3);
	assert_int_equal(before.shared_blocks, 3);
	assert_int_equal(before.step_blocks, 2);
	/* The child copies the last block. The parent is then its only user and continues to write. */
	assert_int_equal(gpool_kv_append(kv, child, 1, NULL), 0);
	settle();
	assert_int_equal(block_at(child, 1), block_at(parent, 1));
	assert_int_not_equal(block_at(child, 2), block_at(parent, 2));
	assert_int_equal(wrong_tokens(child, 0, 10, 1), 0);
	write_tokens(child, 10, 1, 2);
	assert_int_equal(gpool_kv_append(kv, parent, 1, NULL), 0);
	write_tokens(parent, 10, 1, 3);
	assert_int_equal(statistics().block_copies, before.block_copies + 1);
	assert_int_equal(wrong_tokens(child, 10, 1, 2), 0);
	assert_int_equal(wrong_tokens(parent, 10, 1, 3) + wrong_tokens(parent, 0, 10, 1), 0);
	/* Full blocks are not copied. */
	assert_int_equal(gpool_kv_append(kv, parent, 1, NULL), 0);
	write_tokens(parent, 11, 1, 3);
	third = forked(parent);
	assert_int_equal(gpool_kv_append(kv, parent, 1, NULL), 0);
	assert_int_equal(gpool_kv_append(kv, third, 1, NULL), 0);
	assert_int_equal(statistics().block_copies, before.block_copies + 1);
	assert_int_equal(statistics().used_blocks, 6);
	/* Blocks of other sequences stay allocated. */
	assert_int_equal(gpool_kv_free(kv, parent), 0);
	assert_int_equal(
		wrong_tokens(third, 0, 10, 1) + wrong_tokens(third, 10, 2, 3) + wrong_tokens(child, 0, 10, 1), 0);
	assert_int_equal(statistics().used_blocks, 5);
	assert_int_equal(gpool_kv_free(kv, child), 0);
	assert_int_equal(gpool_kv_free(kv, third), 0);
	assert_int_equal(statistics().used_blocks, 0);
	assert_int_equal(statistics().shared_blocks, 0);
	assert_int_equal(statistics().committed_chunks, 0);
}

/*
 * Blocks allocated in advance belong to the first sequence. They count as room again once the parent no longer shares
 * its last block.
 * Requirements: K6.
 */
static void test_fork_of_bulk(void **state)
{
	uint64_t parent, child;

	(void)state;
	kv_start(calm, 64);
	parent = allocated(10, 40, 0);
	child = forked(parent);
	assert_int_equal(info_of(parent).blocks, 10);
	assert_int_equal(info_of(child).blocks, 3);
	assert_int_equal(gpool_kv_append(kv, parent, 1, NULL), 0);
	assert_int_equal(info_of(parent).room, 29);
	assert_int_equal(gpool_kv_append(kv, child, 1, NULL), 0);
	assert_int_equal(info_of(child).room, 1);
	assert_int_equal(statistics().used_blocks, 11);
	assert_int_equal(statistics().block_copies, 1);
}

static uint32_t nonzero_bytes(int32_t block)
{
	const volatile unsigned char *memory;
	uint32_t count = 0;
	uint64_t address;

	assert_int_equal(gpool_kv_address(kv, (uint32_t)block, &address), 0);
	memory = (const volatile unsigned char *)(uintptr_t)address;
	for (uint32_t i = 0; i < BLOCK_BYTES; i++)
		count += memory[i] != 0;
	return count;
}

static void dirty_blocks(uint64_t sequence)
{
	uint32_t count;
	const int32_t *blocks = table_of(sequence, &count);
	uint64_t address;

	for (uint32_t i = 0; i < count; i++) {
		assert_int_equal(gpool_kv_address(kv, (uint32_t)blocks[i], &address), 0);
		memset((void *)(uintptr_t)address, 0xa5, BLOCK_BYTES);
	}
}

/* With GPOOL_KV_ZERO, blocks that a sequence gets are zero, whatever they contained before. Requirements: K15. */
static void test_zero(void **state)
{
	struct gpool_kv_options options;
	uint64_t sequence, child, calls;

	(void)state;
	worker_open(calm);
	options = small_options(64);
	options.flags = GPOOL_KV_ZERO;
	assert_int_equal(gpool_kv_create(worker, &options, &kv), 0);
	assert_int_equal(gpool_kv_host_reserve(kv, 16 * BLOCK_BYTES), 0);
	sequence = allocated(64 * BLOCK_TOKENS, 0, 0);
	settle();
	dirty_blocks(sequence);
	assert_int_equal(gpool_kv_free(kv, sequence), 0);
	/* Adjacent blocks need one fill, also across chunks. */
	calls = gpu_thread_calls(GPU_CALL_FILL);
	sequence = allocated(9 * BLOCK_TOKENS, 12 * BLOCK_TOKENS, 0);
	assert_int_equal(gpu_thread_calls(GPU_CALL_FILL), calls + 1);
	settle();
	for (uint32_t i = 0; i < 12; i++)
		assert_int_equal(nonzero_bytes(block_at(sequence, i)), 0);
	write_tokens(sequence, 0, 9 * BLOCK_TOKENS, 1);
	/* New blocks of an append are zero; the others are unchanged. */
	assert_int_equal(gpool_kv_append(kv, sequence, 4 * BLOCK_TOKENS - 1, NULL), 0);
	assert_int_equal(gpu_thread_calls(GPU_CALL_FILL), calls + 2);
	settle();
	assert_int_equal(nonzero_bytes(block_at(sequence, 12)), 0);
	assert_int_equal(wrong_tokens(sequence, 0, 9 * BLOCK_TOKENS, 1), 0);
	/* A copy of a shared block has its content. */
	write_tokens(sequence, 12 * BLOCK_TOKENS, 3, 1);
	child = forked(sequence);
	assert_int_equal(gpool_kv_append(kv, child, 1, NULL), 0);
	assert_int_equal(gpu_thread_calls(GPU_CALL_FILL), calls + 2);
	settle();
	assert_int_equal(wrong_tokens(child, 12 * BLOCK_TOKENS, 3, 1), 0);
	assert_int_equal(gpool_kv_free(kv, child), 0);
	/* Resumed blocks are zero, but not where saved content was restored. */
	assert_true(gpool_kv_offload(kv, sequence, 0, NULL) >= 0);
	assert_int_equal(gpool_kv_resume(kv, sequence), 0);
	settle();
	assert_int_equal(wrong_tokens(sequence, 0, 9 * BLOCK_TOKENS, 1), 0);
	assert_true(gpool_kv_preempt(kv, sequence, NULL) > 0);
	assert_int_equal(gpool_kv_resume(kv, sequence), 0);
	settle();
	for (uint32_t i = 0; i < 13; i++)
		assert_int_equal(nonzero_bytes(block_at(sequence, i)), 0);
	assert_int_equal(gpool_kv_destroy(kv), 0);
	/* A block must have a multiple of four bytes. */
	options.shape = (struct gpool_kv_shape){1, 1, 1, 1, 1};
	assert_int_equal(gpool_kv_create(worker, &options, &kv), -EINVAL);
	kv = NULL;
}

/* A fill that fails leaves everything as before. Requirements: K15. */
static void test_zero_fails(void **state)
{
	struct gpool_kv_options options;
	struct gpool_kv_stats before;
	uint64_t sequence, other;

	(void)state;
	worker_open(calm);
	options = small_options(64);
	options.flags = GPOOL_KV_ZERO;
	assert_int_equal(gpool_kv_create(worker, &options, &kv), 0);
	sequence = allocated(3 * BLOCK_TOKENS, 0, 0);
	before = statistics();
	for (int i = 0; i < 3; i++) {
		gpu_fault_set(worker->gpu, GPU_CALL_FILL, 1, -EIO);
		if (i == 0)
			assert_int_equal(try_allocate(20 * BLOCK_TOKENS, 0, 0, &other), -EIO);
		else if (i == 1)
			assert_int_equal(gpool_kv_append(kv, sequence, 20 * BLOCK_TOKENS, NULL), -EIO);
		else
			assert_int_equal(gpool_kv_resume(kv, sequence), -EIO);
		gpu_fault_set(worker->gpu, GPU_CALL_FILL, 0, 0);
		assert_int_equal(statistics().used_blocks, i < 2 ? 3 : 0);
		assert_int_equal(statistics().committed_chunks, i < 2 ? before.committed_chunks : 0);
		assert_int_equal(statistics().allocations, 1);
		assert_int_equal(statistics().frees, 0);
		assert_int_equal(info_of(sequence).tokens, 3 * BLOCK_TOKENS);
		if (i == 1)
			assert_int_equal(gpool_kv_preempt(kv, sequence, NULL), 3);
	}
	assert_int_equal(gpool_kv_resume(kv, sequence), 0);
	assert_int_equal(gpool_kv_append(kv, sequence, 1, NULL), 0);
}

/* Requirements: K6. */
static void test_copy_blocks(void **state)
{
	const struct gpool_kv_pair pairs[] = {{0, 3}, {1, 4}, {2, 5}, {5, 0}, {0, 1}, {1, 2}};
	uint64_t sequence, other, calls;

	(void)state;
	kv_start(calm, 64);
	sequence = allocated(6 * BLOCK_TOKENS, 0, 0);
	write_tokens(sequence, 0, 6 * BLOCK_TOKENS, 1);
	calls = gpu_thread_calls(GPU_CALL_COPY);
	assert_int_equal(gpool_kv_copy_blocks(kv, pairs, 6), 0);
	assert_int_equal(gpu_thread_calls(GPU_CALL_COPY), calls + 4);
	settle();
	for (uint32_t i = 0; i < BLOCK_TOKENS; i++) {
		assert_int_equal(*word_at(3 * BLOCK_TOKENS + i), UINT64_C(1) << 32 | i);
		assert_int_equal(*word_at(4 * BLOCK_TOKENS + i), UINT64_C(1) << 32 | (BLOCK_TOKENS + i));
		for (uint32_t block = 0; block < 3; block++)
			assert_int_equal(
				*word_at(block * BLOCK_TOKENS + i), UINT64_C(1) << 32 | (2 * BLOCK_TOKENS + i));
	}
	assert_int_equal(statistics().block_copies, 6);
	/* Pass blocks that are not in use, do not exist, are the same, or are shared. */
	assert_int_equal(gpool_kv_copy_blocks(kv, &(struct gpool_kv_pair){6, 0}, 1), -EINVAL);
	assert_int_equal(gpool_kv_copy_blocks(kv, &(struct gpool_kv_pair){0, 6}, 1), -EINVAL);
	assert_int_equal(gpool_kv_copy_blocks(kv, &(struct gpool_kv_pair){-1, 0}, 1), -EINVAL);
	assert_int_equal(gpool_kv_copy_blocks(kv, &(struct gpool_kv_pair){0, 64}, 1), -EINVAL);
	assert_int_equal(gpool_kv_copy_blocks(kv, &(struct gpool_kv_pair){1, 1}, 1), -EINVAL);
	other = forked(sequence);
	assert_int_equal(gpool_kv_copy_blocks(kv, pairs, 1), -EINVAL);
	assert_int_equal(gpool_kv_free(kv, other), 0);
	assert_int_equal(gpool_kv_copy_blocks(kv, pairs, 1), 0);
	assert_int_equal(gpool_kv_copy_blocks(kv, NULL, 0), 0);
}

/* Copies that do not depend on one another are one launch of at most 168 runs. Requirements: K19. */
static void test_many_copies(void **state)
{
	enum { COUNT = 190, WHOLE = 168 };
	struct gpool_kv_pair pairs[COUNT];
	uint64_t from, to, launches;

	(void)state;
	kv_start(calm, 0);
	from = allocated(COUNT * BLOCK_TOKENS, 0, 0);
	to = allocated(COUNT * BLOCK_TOKENS, 0, 0);
	write_tokens(from, 0, COUNT * BLOCK_TOKENS, 1);
	for (uint32_t i = 0; i < COUNT; i++)
		pairs[i] = (struct gpool_kv_pair){block_at(from, i), block_at(to, COUNT - 1 - i)};
	for (int turn = 0; turn < 2; turn++) {
		write_tokens(to, 0, COUNT * BLOCK_TOKENS, 2);
		launches = gpu_thread_calls(GPU_CALL_LAUNCH);
		if (turn)
			worker->capabilities &= ~(uint32_t)GPU_CAP_KERNELS;
		assert_int_equal(gpool_kv_copy_blocks(kv, pairs, COUNT), 0);
		worker->capabilities |= GPU_CAP_KERNELS;
		assert_int_equal(
			gpu_thread_calls(GPU_CALL_LAUNCH), launches + (turn ? 0 : (COUNT + WHOLE - 1) / WHOLE));
		settle();
		for (uint32_t i = 0; i < COUNT * BLOCK_TOKENS; i++) {
			uint32_t source = (COUNT - 1 - i / BLOCK_TOKENS) * BLOCK_TOKENS + i % BLOCK_TOKENS;

			assert_int_equal(*token_at(to, i), UINT64_C(1) << 32 | source);
		}
	}
	/* A swap through a third block, and two copies to the same block: each copy is made after those before it. */
	pairs[0] = (struct gpool_kv_pair){block_at(from, 0), block_at(to, 0)};
	pairs[1] = (struct gpool_kv_pair){block_at(from, 5), block_at(from, 0)};
	pairs[2] = (struct gpool_kv_pair){block_at(to, 0), block_at(from, 5)};
	pairs[3] = (struct gpool_kv_pair){block_at(from, 7), block_at(to, 3)};
	pairs[4] = (struct gpool_kv_pair){block_at(from, 9), block_at(to, 3)};
	assert_int_equal(gpool_kv_copy_blocks(kv, pairs, 5), 0);
	settle();
	assert_int_equal(*token_at(from, 0), UINT64_C(1) << 32 | 5 * BLOCK_TOKENS);
	assert_int_equal(*token_at(from, 5 * BLOCK_TOKENS), UINT64_C(1) << 32 | 0);
	assert_int_equal(*token_at(to, 3 * BLOCK_TOKENS), UINT64_C(1) << 32 | 9 * BLOCK_TOKENS);
}

/* ---- admission ---- */

/* Requests that fit together are counted in order. Requirements: K10. */
static void test_batch(void **state)
{
	const uint32_t tokens[] = {10 * BLOCK_TOKENS, 20 * BLOCK_TOKENS, 1, 20 * BLOCK_TOKENS, 6 * BLOCK_TOKENS, 1};
	struct gpool_kv_batch limits = GPOOL_KV_BATCH_INIT;
	struct gpool_kv_need need = {.size = sizeof(need)};
	const uint32_t huge[] = {1, 57 * BLOCK_TOKENS, 1};
	struct gpool_kv_options options;
	uint64_t sequence;

	(void)state;
	worker_open(calm);
	options = small_options(64);
	options.watermark_blocks = 8;
	assert_int_equal(gpool_kv_create(worker, &options, &kv), 0);
	/* The requests need 10 + 20 + 1 + 20 blocks; five of the 56 remain. */
	assert_int_equal(gpool_kv_can_batch(kv, tokens, 6, NULL, &need), 4);
	assert_int_equal(need.needed_blocks, 51);
	assert_int_equal(need.available_blocks, 64);
	assert_int_equal(gpool_kv_can_batch(kv, tokens + 4, 2, NULL, NULL), 2);
	assert_int_equal(gpool_kv_can_batch(kv, tokens, 0, NULL, NULL), 0);
	/* A request that can never be satisfied ends the batch. */
	assert_int_equal(gpool_kv_can_batch(kv, huge, 3, NULL, &need), 1);
	limits.max_tokens = 30 * BLOCK_TOKENS;
	assert_int_equal(gpool_kv_can_batch(kv, tokens, 6, &limits, NULL), 2);
	limits.max_tokens++;
	assert_int_equal(gpool_kv_can_batch(kv, tokens, 6, &limits, NULL), 3);
	limits.max_sequences = 2;
	assert_int_equal(gpool_kv_can_batch(kv, tokens, 6, &limits, NULL), 2);
	/* Running sequences count toward the limit. Preempted ones have a row, but do not run. */
	sequence = allocated(BLOCK_TOKENS, 0, 0);
	assert_int_equal(gpool_kv_can_batch(kv, tokens, 6, &limits, NULL), 1);
	assert_int_equal(gpool_kv_preempt(kv, sequence, NULL), 1);
	assert_int_equal(gpool_kv_can_batch(kv, tokens, 6, &limits, NULL), 2);
	/* All counted requests can be admitted. */
	for (int i = 0; i < 4; i++)
		allocated(tokens[i], 0, 0);
	assert_int_equal(gpool_kv_can_batch(kv, tokens, 6, NULL, NULL), 0);
	assert_int_equal(gpool_kv_can_batch(kv, tokens + 5, 1, NULL, NULL), 1);
	limits.size = 2;
	assert_int_equal(gpool_kv_can_batch(kv, tokens, 1, &limits, NULL), -EINVAL);
	need.size = 2;
	assert_int_equal(gpool_kv_can_batch(kv, tokens, 1, NULL, &need), -EINVAL);
}

/* Requirements: K3, K10. */
static void test_watermark(void **state)
{
	struct gpool_kv_options options;
	struct gpool_kv_need need = {.size = sizeof(need)};
	uint64_t sequence;

	(void)state;
	worker_open(calm);
	options = small_options(64);
	options.watermark_blocks = 8;
	assert_int_equal(gpool_kv_create(worker, &options, &kv), 0);
	assert_int_equal(gpool_kv_can_allocate(kv, 56 * BLOCK_TOKENS, &need), GPOOL_KV_OK);
	assert_int_equal(need.needed_blocks, 56);
	assert_int_equal(need.available_blocks, 64);
	assert_int_equal(need.watermark_blocks, 8);
	assert_int_equal(gpool_kv_can_allocate(kv, 56 * BLOCK_TOKENS + 1, NULL), GPOOL_KV_NEVER);
	assert_int_equal(gpool_kv_can_allocate(kv, UINT32_MAX, NULL), GPOOL_KV_NEVER);
	assert_int_equal(try_allocate(56 * BLOCK_TOKENS + 1, 0, 0, &sequence), -EFBIG);
	sequence = allocated(50 * BLOCK_TOKENS, 0, 0);
	assert_int_equal(gpool_kv_can_allocate(kv, 6 * BLOCK_TOKENS, &need), GPOOL_KV_OK);
	assert_int_equal(gpool_kv_can_allocate(kv, 6 * BLOCK_TOKENS + 1, &need), GPOOL_KV_LATER);
	assert_int_equal(try_allocate(6 * BLOCK_TOKENS + 1, 0, 0, &(uint64_t){0}), -ENOSPC);
	assert_int_equal(shortage().needed_blocks, 7);
	assert_int_equal(shortage().free_blocks, 14);
	/* A running sequence may use all blocks, even after a preemption. */
	assert_int_equal(gpool_kv_append(kv, sequence, 14 * BLOCK_TOKENS, NULL), 0);
	assert_int_equal(gpool_kv_preempt(kv, sequence, NULL), 64);
	allocated(1, 0, 0);
	assert_int_equal(gpool_kv_resume(kv, sequence), -ENOSPC);
	assert_int_equal(gpool_kv_preempt(kv, 0, NULL), 1);
	assert_int_equal(gpool_kv_resume(kv, sequence), 0);
	assert_int_equal(statistics().refusals, 3);
}

/* The pool is short of pages, although the cache has enough block numbers. Requirements: K3. */
static void test_pool_is_short(void **state)
{
	struct gpool_block block;
	struct gpool *other;
	uint64_t sequence;

	(void)state;
	kv_start(calm, 0);
	other = open_worker();
	block = alloc(other, PAGES - 2);
	assert_int_equal(gpool_kv_can_allocate(kv, 16 * BLOCK_TOKENS, NULL), GPOOL_KV_OK);
	assert_int_equal(gpool_kv_can_allocate(kv, 17 * BLOCK_TOKENS, NULL), GPOOL_KV_LATER);
	assert_int_equal(try_allocate(17 * BLOCK_TOKENS, 0, 0, &sequence), -ENOSPC);
	assert_int_equal(shortage().available_blocks, 16);
	assert_int_equal(statistics().committed_chunks, 0);
	sequence = allocated(16 * BLOCK_TOKENS, 0, 0);
	write_tokens(sequence, 0, 16 * BLOCK_TOKENS, 1);
	assert_int_equal(gpool_kv_append(kv, sequence, 1, NULL), -ENOSPC);
	assert_int_equal(wrong_tokens(sequence, 0, 16 * BLOCK_TOKENS, 1), 0);
	/* Another session's unpinned blocks are evicted, although can_allocate() does not count them. */
	assert_int_equal(gpool_unpin(other, &block), 0);
	assert_int_equal(gpool_kv_can_allocate(kv, 1, NULL), GPOOL_KV_LATER);
	assert_int_equal(gpool_kv_append(kv, sequence, 1, NULL), 0);
	gpool_close(other);
}

/* Free chunks become available to other sessions, but not before the queued work is done. */
static void test_memory_goes(void **state)
{
	struct gpool_fence gate;
	struct gpool_block block;
	struct gpool *other;
	uint64_t sequence;
	uint32_t manual;

	(void)state;
	kv_start(calm, 0);
	other = open_worker();
	assert_int_equal(gpool_stream_open(worker, NULL, GPOOL_STREAM_HOST_SIGNALED, &manual), 0);
	sequence = allocated(200 * BLOCK_TOKENS, 0, 0);
	assert_int_equal(gpool_fence_record(worker, manual, &gate), 0);
	assert_int_equal(gpool_stream_wait(worker, stream, gate), 0);
	assert_int_equal(gpool_kv_free(kv, sequence), 0);
	assert_int_equal(statistics().committed_chunks, 0);
	assert_int_equal(gpool_alloc(other, PAGES - 24, NULL, &block), -ENOSPC);
	/* Until then the cache can use the memory again. */
	sequence = allocated(8 * BLOCK_TOKENS, 0, 0);
	assert_int_equal(gpool_fence_signal(worker, gate), 0);
	settle();
	block = alloc(other, PAGES - 1);
	write_tokens(sequence, 0, 8 * BLOCK_TOKENS, 5);
	assert_int_equal(wrong_tokens(sequence, 0, 8 * BLOCK_TOKENS, 5), 0);
	gpool_close(other);
}

/* ---- preemption ---- */

/* Requirements: K8. */
static void test_preempt_and_resume(void **state)
{
	uint64_t low, late, early, high, victim, waiting;
	struct gpool_kv_sequence_info before, after;

	(void)state;
	kv_start(calm, 64);
	assert_int_equal(gpool_kv_preempt(kv, 0, &victim), -ENOENT);
	assert_int_equal(gpool_kv_waiting(kv, &waiting), -ENOENT);
	high = allocated(9, 0, 2);
	early = allocated(9, 0, 1);
	late = allocated(9, 30, 1);
	low = allocated(9, 0, 0);
	before = info_of(late);
	assert_int_equal(statistics().reclaimable_blocks, 3);
	assert_int_equal(gpool_kv_preempt(kv, 0, &victim), 3);
	assert_int_equal(victim, low);
	assert_int_equal(gpool_kv_preempt(kv, 0, &victim), 8);
	assert_int_equal(victim, late);
	assert_int_equal(gpool_kv_preempt(kv, 0, &victim), 3);
	assert_int_equal(victim, early);
	assert_int_equal(gpool_kv_preempt(kv, low, &victim), -EAGAIN);
	assert_int_equal(gpool_kv_append(kv, low, 1, NULL), -EAGAIN);
	assert_int_equal(gpool_kv_fork(kv, low, &victim), -EAGAIN);
	assert_int_equal(gpool_kv_resume(kv, high), -EALREADY);
	assert_int_equal(statistics().preempted, 3);
	assert_int_equal(statistics().used_blocks, 3);
	assert_int_equal(gpool_kv_waiting(kv, &waiting), 0);
	assert_int_equal(waiting, early);
	assert_int_equal(gpool_kv_resume(kv, early), 0);
	assert_int_equal(gpool_kv_waiting(kv, &waiting), 0);
	assert_int_equal(waiting, late);
	assert_int_equal(gpool_kv_resume(kv, late), 0);
	after = info_of(late);
	assert_memory_equal(&before, &after, sizeof(before));
	assert_int_equal(gpool_kv_free(kv, low), 0);
	assert_int_equal(gpool_kv_waiting(kv, &waiting), -ENOENT);
	assert_int_equal(gpool_kv_append(kv, late, 21, NULL), 0);
}

/* Shared blocks stay allocated. A resumed sequence has its own blocks. Requirements: K8. */
static void test_preempt_shared(void **state)
{
	uint64_t parent, child;

	(void)state;
	kv_start(calm, 64);
	parent = allocated(10, 0, 0);
	write_tokens(parent, 0, 10, 1);
	child = forked(parent);
	assert_int_equal(gpool_kv_append(kv, child, 3, NULL), 0);
	assert_int_equal(gpool_kv_preempt(kv, child, NULL), 2);
	assert_int_equal(info_of(parent).shared_blocks, 0);
	assert_int_equal(gpool_kv_resume(kv, child), 0);
	assert_int_equal(info_of(child).shared_blocks, 0);
	assert_int_equal(info_of(child).tokens, 13);
	assert_int_equal(statistics().used_blocks, 7);
	settle(); /* the copy of the last block, in memory that was reclaimed */
	write_tokens(child, 0, 13, 2);
	assert_int_equal(wrong_tokens(parent, 0, 10, 1), 0);
}

/* ---- the device's tables ---- */

/* Requirements: K2. */
static void test_sync(void **state)
{
	struct gpool_kv_options options;
	uint64_t sequences[32], bytes;

	(void)state;
	worker_open(calm);
	options = small_options(0);
	options.max_sequence_tokens = 1 << 15;
	assert_int_equal(gpool_kv_create(worker, &options, &kv), 0);
	assert_int_equal(gpool_kv_sync(kv), 0);
	for (int i = 0; i < 32; i++)
		sequences[i] = allocated((uint32_t)(1 + 2 * i), 0, 0);
	assert_int_equal(gpool_kv_sync(kv), 0);
	settle();
	for (int i = 0; i < 32; i++)
		assert_true(device_agrees(sequences[i]));
	/* Only changed entries are copied. */
	bytes = statistics().table_bytes;
	assert_int_equal(gpool_kv_append(kv, sequences[0], 1, NULL), 0);
	assert_int_equal(gpool_kv_sync(kv), 0);
	assert_int_equal(statistics().table_bytes, bytes);
	assert_int_equal(gpool_kv_append(kv, sequences[0], 4, NULL), 0);
	assert_int_equal(gpool_kv_append(kv, sequences[5], 4, NULL), 0);
	forked(sequences[7]);
	assert_int_equal(gpool_kv_append(kv, sequences[7], 1, NULL), 0);
	assert_int_equal(gpool_kv_preempt(kv, sequences[9], NULL), 5);
	assert_int_equal(gpool_kv_resume(kv, sequences[9]), 0);
	assert_int_equal(gpool_kv_sync(kv), 0);
	settle();
	/* The changes are 1 entry, 1 entry, the child's 4, the copied block's 1, and the resumed sequence's 5. */
	assert_int_equal(statistics().table_bytes, bytes + 4 * (1 + 1 + 4 + 1 + 5));
	for (int i = 0; i < 32; i++)
		assert_true(device_agrees(sequences[i]));
}

/* Change more entries than all stages can hold, and one row that is longer than a stage. Requirements: K2. */
static void test_sync_large(void **state)
{
	struct gpool_kv_options options;
	uint64_t sequence, children[8];

	(void)state;
	worker_open(calm);
	options = small_options(40000);
	options.shape = (struct gpool_kv_shape){
		.layers = 1, .kv_heads = 1, .head_size = 64, .dtype_bytes = 1, .block_tokens = 2};
	options.max_sequence_tokens = 80000;
	assert_int_equal(gpool_kv_create(worker, &options, &kv), 0);
	sequence = allocated(80000, 0, 0);
	for (int i = 0; i < 8; i++)
		children[i] = forked(sequence);
	assert_int_equal(gpool_kv_sync(kv), 0);
	settle();
	assert_int_equal(statistics().table_bytes, 9 * 40000 * 4);
	assert_true(device_agrees(sequence));
	for (int i = 0; i < 8; i++)
		assert_true(device_agrees(children[i]));
}

/* Kernels that were queued earlier see the earlier table. */
static void test_sync_is_in_order(void **state)
{
	struct gpool_fence gate;
	uint64_t sequence, child;
	int32_t was, now;
	const int32_t *device;
	uint32_t manual;

	(void)state;
	kv_start(calm, 0);
	assert_int_equal(gpool_stream_open(worker, NULL, GPOOL_STREAM_HOST_SIGNALED, &manual), 0);
	sequence = allocated(2, 0, 0);
	child = forked(sequence);
	assert_int_equal(gpool_kv_sync(kv), 0);
	settle();
	device = (const int32_t *)(uintptr_t)kv->table_address + info_of(sequence).row * kv->columns;
	was = block_at(sequence, 0);
	assert_int_equal(gpool_fence_record(worker, manual, &gate), 0);
	assert_int_equal(gpool_stream_wait(worker, stream, gate), 0);
	assert_int_equal(gpool_kv_append(kv, sequence, 1, NULL), 0);
	assert_int_equal(gpool_kv_sync(kv), 0);
	assert_int_equal(__atomic_load_n(device, __ATOMIC_RELAXED), was);
	now = block_at(sequence, 0);
	assert_int_not_equal(now, was);
	assert_int_equal(gpool_kv_preempt(kv, sequence, NULL), 1);
	allocated(8, 0, 0);
	assert_int_equal(gpool_fence_signal(worker, gate), 0);
	settle();
	assert_int_equal(*device, now);
	assert_true(device_agrees(child));
}

/* ---- sleep ---- */

static void test_sleep(void **state)
{
	struct gpool_kv_options options;
	uint64_t sequence;

	(void)state;
	worker_open(spilling);
	options = small_options(64);
	options.flags = GPOOL_KV_KEEP;
	assert_int_equal(gpool_kv_create(worker, &options, &kv), 0);
	sequence = allocated(30, 0, 0);
	write_tokens(sequence, 0, 30, 1);
	assert_int_equal(gpool_kv_sync(kv), 0);
	assert_int_equal(gpool_sleep(worker, 0), 0);
	/* While the worker sleeps, sequences can use committed memory, but no memory can be committed. */
	assert_int_equal(gpool_kv_append(kv, sequence, 2, NULL), 0);
	assert_int_equal(gpool_kv_append(kv, sequence, 1, NULL), -EHOSTDOWN);
	assert_int_equal(gpool_wake(worker, ANSWER_MS), 0);
	assert_int_equal(wrong_tokens(sequence, 0, 30, 1), 0);
	assert_true(device_agrees(sequence));
	assert_int_equal(gpool_kv_append(kv, sequence, 1, NULL), 0);
	/* Memory freed during sleep is decommitted with the next free. */
	assert_int_equal(gpool_sleep(worker, 0), 0);
	assert_int_equal(gpool_kv_free(kv, sequence), 0);
	assert_int_equal(statistics().committed_chunks, 2);
	assert_int_equal(gpool_wake(worker, ANSWER_MS), 0);
	sequence = allocated(1, 0, 0);
	assert_int_equal(statistics().committed_chunks, 2);
	assert_int_equal(gpool_kv_free(kv, sequence), 0);
	assert_int_equal(statistics().committed_chunks, 0);
	assert_int_equal(gpool_sleep(worker, 0), 0);
	assert_int_equal(gpool_kv_destroy(kv), 0);
}

/* ---- invalid arguments ---- */

/* Requirements: K12. */
static void test_wrong_numbers(void **state)
{
	struct gpool_kv_shape shape = SMALL;
	struct gpool_kv_options options;
	struct gpool_kv *second;
	uint64_t sequence, other, ended, address;
	const int32_t *blocks;
	uint32_t count;

	(void)state;
	kv_start(calm, 64);
	options = small_options(64);
	assert_int_equal(gpool_kv_create(worker, &options, &second), 0);
	sequence = allocated(8, 0, 0);
	other = allocated(4, 0, 0);
	ended = allocated(4, 0, 0);
	assert_int_equal(gpool_kv_free(kv, ended), 0);
	assert_int_equal(gpool_kv_validate(kv, sequence, 0, &shape), 0);
	assert_int_equal(gpool_kv_validate(kv, sequence, 1, &shape), 0);
	assert_int_equal(gpool_kv_validate(kv, sequence, 2, &shape), -EACCES);
	assert_int_equal(gpool_kv_validate(kv, other, 2, &shape), 0);
	assert_int_equal(gpool_kv_validate(kv, sequence, 3, &shape), -ESTALE);
	assert_int_equal(gpool_kv_validate(kv, sequence, -1, &shape), -EINVAL);
	assert_int_equal(gpool_kv_validate(kv, sequence, 64, &shape), -EINVAL);
	assert_int_equal(gpool_kv_validate(kv, ended, 0, &shape), -ESTALE);
	shape.head_size = 128;
	assert_int_equal(gpool_kv_validate(kv, sequence, 0, &shape), -EPROTO);
	/* Pass a sequence of another cache, an unused number and an invalid one. */
	assert_int_equal(gpool_kv_free(second, sequence), -ESTALE);
	for (int i = 0; i < 3; i++) {
		uint64_t number = i == 0 ? ended : i == 1 ? sequence + 64 : 7, child;
		int error = i == 0 ? -ESTALE : -EINVAL;

		assert_int_equal(gpool_kv_free(kv, number), error);
		assert_int_equal(gpool_kv_append(kv, number, 1, NULL), error);
		assert_int_equal(gpool_kv_fork(kv, number, &child), error);
		assert_int_equal(gpool_kv_preempt(kv, number, NULL), error);
		assert_int_equal(gpool_kv_resume(kv, number), error);
		assert_int_equal(gpool_kv_table(kv, number, &blocks, &count), error);
		assert_int_equal(
			gpool_kv_sequence_info(kv, number, &(struct gpool_kv_sequence_info){.size = 48}), error);
	}
	assert_int_equal(gpool_kv_preempt(kv, other, NULL), 1);
	assert_int_equal(gpool_kv_address(kv, 64, &address), -EINVAL);
	assert_int_equal(gpool_kv_destroy(second), 0);
	/* The cache has 64 rows. */
	for (int i = 0; i < 62; i++)
		forked(sequence);
	assert_int_equal(gpool_kv_fork(kv, sequence, &other), -EUSERS);
	assert_int_equal(try_allocate(1, 0, 0, &other), -EUSERS);
}

static void test_other_process(void **state)
{
	struct gpool_kv_need need = {.size = sizeof(need)};
	uint64_t sequence, number;
	int status_found;
	pid_t child;

	(void)state;
	kv_start(calm, 64);
	sequence = allocated(8, 0, 0);
	child = fork();
	if (child == 0)
		_exit(try_allocate(1, 0, 0, &number) != -ECHILD || gpool_kv_append(kv, sequence, 1, NULL) != -ECHILD ||
			gpool_kv_free(kv, sequence) != -ECHILD || gpool_kv_sync(kv) != -ECHILD ||
			gpool_kv_destroy(kv) != -ECHILD || gpool_kv_preempt(kv, 0, NULL) != -ECHILD ||
			gpool_kv_can_allocate(kv, 1, &need) != -ECHILD);
	assert_int_equal(waitpid(child, &status_found, 0), child);
	assert_int_equal(status_found, 0);
	assert_int_equal(gpool_kv_append(kv, sequence, 1, NULL), 0);
}

/* ---- faults ---- */

static uint64_t one, two, third;

/* The visible state of a cache and its sequences. */
struct view {
	struct gpool_kv_stats all;
	struct gpool_kv_sequence_info infos[3];
	int32_t tables[3][32];
};

static struct view view_of_all(void)
{
	const uint64_t sequences[] = {one, two, third};
	struct view view;

	memset(&view, 0, sizeof(view));
	view.all = statistics();
	view.all.refusals = 0;
	for (int i = 0; i < 3; i++) {
		uint32_t count;
		const int32_t *blocks = table_of(sequences[i], &count);

		view.infos[i] = info_of(sequences[i]);
		memcpy(view.tables[i], blocks, count * sizeof(*blocks));
	}
	return view;
}

/* Another session takes reclaimable memory and frees it again, so the range has to map it again. */
static void scatter(void)
{
	struct gpool *other = open_worker();

	settle();
	alloc(other, PAGES - statistics().committed_chunks);
	gpool_close(other);
	AWAIT(free_pages() == PAGES - statistics().committed_chunks);
}

static int step_allocate(void)
{
	uint64_t made;
	int error = try_allocate(20 * BLOCK_TOKENS, 0, 0, &made);

	return error ? error : gpool_kv_free(kv, made);
}

/* Append tokens, which needs a copy and more memory. */
static int step_append(void)
{
	int error = gpool_kv_append(kv, one, 15 * BLOCK_TOKENS, NULL);

	if (error)
		return error;
	settle();
	assert_int_equal(wrong_tokens(one, 0, 6, 9), 0);
	assert_int_equal(gpool_kv_free(kv, one), 0);
	one = forked(two);
	return 0;
}

static int step_resume(void)
{
	int error = gpool_kv_resume(kv, third);

	if (error)
		return error;
	assert_int_equal(gpool_kv_preempt(kv, third, NULL), 20);
	return 0;
}

/*
 * Make each call of one kind that the step makes fail in turn, and check that nothing changes. Return the number of
 * failed calls.
 */
static uint32_t fail_each(int (*step)(void), enum gpu_call kind)
{
	for (uint32_t failed = 0;; failed++) {
		struct view before, after;
		int error;

		scatter();
		before = view_of_all();
		gpu_fault_set(worker->gpu, kind, failed + 1, -EIO);
		error = step();
		gpu_fault_set(worker->gpu, kind, 0, 0);
		if (!error)
			return failed;
		settle();
		after = view_of_all();
		assert_memory_equal(&before, &after, sizeof(before));
		assert_int_equal(wrong_tokens(one, 0, 6, 9) + wrong_tokens(two, 0, 6, 9), 0);
	}
}

static void test_driver_faults(void **state)
{
	(void)state;
	kv_start(calm, 0);
	third = allocated(20 * BLOCK_TOKENS, 0, 0);
	assert_int_equal(gpool_kv_preempt(kv, third, NULL), 20);
	two = allocated(6, 0, 0);
	write_tokens(two, 0, 6, 9);
	one = forked(two);
	/* Allocate 20 blocks; six are committed. Two more chunks are committed as one run with one access call. */
	assert_int_equal(fail_each(step_allocate, GPU_CALL_MAP), 2);
	assert_int_equal(fail_each(step_allocate, GPU_CALL_ACCESS), 1);
	assert_int_equal(fail_each(step_append, GPU_CALL_MAP), 2);
	assert_int_equal(fail_each(step_append, GPU_CALL_ACCESS), 1);
	assert_int_equal(fail_each(step_append, GPU_CALL_COPY), 1);
	assert_int_equal(fail_each(step_resume, GPU_CALL_MAP), 2);
	assert_int_equal(fail_each(step_resume, GPU_CALL_ACCESS), 1);
}

/* No fence can be recorded for the decommit: the memory stays committed, and is decommitted with the next free. */
static void test_fence_faults(void **state)
{
	uint64_t sequences[2];

	(void)state;
	kv_start(calm, 0);
	for (int i = 0; i < 2; i++)
		sequences[i] = allocated(CHUNK_BLOCKS * BLOCK_TOKENS, 0, 0);
	gpu_fault_set(worker->gpu, GPU_CALL_TIMELINE_WRITE, 1, -EIO);
	assert_int_equal(gpool_kv_free(kv, sequences[0]), 0);
	assert_int_equal(statistics().used_blocks, CHUNK_BLOCKS);
	assert_int_equal(statistics().committed_chunks, 2);
	assert_int_equal(gpool_kv_free(kv, sequences[1]), 0);
	assert_int_equal(statistics().committed_chunks, 0);
}

/* The next call makes the missing copies. A stage without a fence is not reused before its copies are done. */
static void test_sync_faults(void **state)
{
	uint64_t sequences[12];

	(void)state;
	kv_start(calm, 0);
	for (int i = 0; i < 12; i++)
		sequences[i] = allocated(5 * BLOCK_TOKENS, 0, 0);
	gpu_fault_set(worker->gpu, GPU_CALL_MAP, 1, -EIO);
	assert_int_not_equal(gpool_kv_sync(kv), 0);
	for (uint64_t n = 1; n <= 12; n++) {
		gpu_fault_set(worker->gpu, GPU_CALL_COPY, n, -EIO);
		assert_int_equal(gpool_kv_sync(kv), -EIO);
	}
	assert_int_equal(statistics().table_bytes, 0);
	assert_int_equal(gpool_kv_free(kv, sequences[0]), 0);
	gpu_fault_set(worker->gpu, GPU_CALL_TIMELINE_WRITE, 1, -EIO);
	assert_int_equal(gpool_kv_sync(kv), 0);
	settle();
	for (int round = 0; round < 2 * KV_STAGES; round++) {
		for (int i = 1; i < 12; i++)
			assert_int_equal(gpool_kv_append(kv, sequences[i], BLOCK_TOKENS, NULL), 0);
		assert_int_equal(gpool_kv_sync(kv), 0);
	}
	settle();
	for (int i = 1; i < 12; i++)
		assert_true(device_agrees(sequences[i]));
}

/* A failed creation leaves no state behind. A cache whose stream is closed still frees its memory. */
static void test_life(void **state)
{
	static const enum gpu_call kinds[] = {GPU_CALL_RESERVE, GPU_CALL_HOST_REGISTER};
	struct gpool_kv_options options;
	uint64_t sequence;

	(void)state;
	worker_open(calm);
	options = small_options(64);
	for (uint64_t i = 0; i < 3; i++) {
		gpu_fault_set(worker->gpu, kinds[i / 2], i % 2 + 1, -EIO);
		assert_true(gpool_kv_create(worker, &options, &kv) < 0);
		assert_null(kv);
		gpu_fault_set(worker->gpu, kinds[i / 2], 0, 0);
	}
	assert_int_equal(gpool_kv_create(worker, &options, &kv), 0);
	sequence = allocated(10, 0, 0);
	forked(sequence);
	gpool_stream_close(worker, stream);
	assert_int_equal(gpool_kv_append(kv, sequence, 1, NULL), -EINVAL);
	assert_int_equal(info_of(sequence).tokens, 10);
	assert_int_equal(gpool_kv_preempt(kv, 0, NULL), 0);
	assert_int_equal(gpool_kv_preempt(kv, 0, NULL), 3);
	assert_int_equal(statistics().committed_chunks, 0);
	assert_int_equal(gpool_kv_destroy(kv), 0);
	/* Destroy the cache by closing the pool. */
	assert_int_equal(gpool_stream_open(worker, NULL, 0, &stream), 0);
	options.stream = stream;
	assert_int_equal(gpool_kv_create(worker, &options, &kv), 0);
	allocated(10, 0, 0);
	assert_int_equal(gpool_kv_sync(kv), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_shapes, kv_stop),
		cmocka_unit_test_teardown(test_handles_of_several_pages, kv_stop),
		cmocka_unit_test_teardown(test_wrong_options, kv_stop),
		cmocka_unit_test_teardown(test_append, kv_stop),
		cmocka_unit_test_teardown(test_bulk, kv_stop),
		cmocka_unit_test_teardown(test_lowest_first, kv_stop),
		cmocka_unit_test_teardown(test_fork, kv_stop),
		cmocka_unit_test_teardown(test_fork_of_bulk, kv_stop),
		cmocka_unit_test_teardown(test_zero, kv_stop),
		cmocka_unit_test_teardown(test_zero_fails, kv_stop),
		cmocka_unit_test_teardown(test_copy_blocks, kv_stop),
		cmocka_unit_test_teardown(test_many_copies, kv_stop),
		cmocka_unit_test_teardown(test_batch, kv_stop),
		cmocka_unit_test_teardown(test_watermark, kv_stop),
		cmocka_unit_test_teardown(test_pool_is_short, kv_stop),
		cmocka_unit_test_teardown(test_memory_goes, kv_stop),
		cmocka_unit_test_teardown(test_preempt_and_resume, kv_stop),
		cmocka_unit_test_teardown(test_preempt_shared, kv_stop),
		cmocka_unit_test_teardown(test_sync, kv_stop),
		cmocka_unit_test_teardown(test_sync_large, kv_stop),
		cmocka_unit_test_teardown(test_sync_is_in_order, kv_stop),
		cmocka_unit_test_teardown(test_sleep, kv_stop),
		cmocka_unit_test_teardown(test_wrong_numbers, kv_stop),
		cmocka_unit_test_teardown(test_other_process, kv_stop),
		cmocka_unit_test_teardown(test_driver_faults, kv_stop),
		cmocka_unit_test_teardown(test_fence_faults, kv_stop),
		cmocka_unit_test_teardown(test_sync_faults, kv_stop),
		cmocka_unit_test_teardown(test_life, kv_stop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
