/*
 * test_client_streams.c - streams and fences with a real agent, and operations that are deferred until fences are
 * signaled.
 *
 * Host-signaled timelines represent unfinished GPU work. The test signals their fences itself, so it knows which work
 * is not done yet. Streams of the back end show that queued work, fences and waits keep their order.
 */
#include "client/core/block.h"
#include "tests/integration/calm_pool.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { ALL = 1000000, SOON_MS = AWAIT_MS };

static struct gpool_block alloc(uint32_t page_count)
{
	struct gpool_block block = {0};

	assert_int_equal(gpool_alloc(pool, page_count, NULL, &block), 0);
	return block;
}

static uint64_t address_of(const struct gpool_block *block)
{
	uint64_t address = 0;

	assert_int_equal(gpool_address(pool, block, &address), 0);
	return address;
}

static uint32_t open_stream(uint32_t flags)
{
	uint32_t stream = 0;

	assert_int_equal(gpool_stream_open(pool, NULL, flags, &stream), 0);
	assert_true(stream != 0);
	return stream;
}

static struct gpool_fence record(uint32_t stream)
{
	struct gpool_fence fence = {0};

	assert_int_equal(gpool_fence_record(pool, stream, &fence), 0);
	return fence;
}

static uint32_t deferred(void)
{
	struct gpool_stats filled = {.size = sizeof(filled)};

	assert_int_equal(gpool_stats(pool, &filled), 0);
	return filled.deferred_blocks;
}

static void evict_all(void)
{
	harness_evict(&harness, gpool_session(pool), ALL);
}

/* ---- fences ---- */

static void test_manual_fences(void **state)
{
	uint32_t stream = open_stream(GPOOL_STREAM_HOST_SIGNALED), other = open_stream(GPOOL_STREAM_HOST_SIGNALED);
	struct gpool_fence first = record(stream), second = record(stream), elsewhere = record(other), never = {0},
			   future;

	(void)state;
	assert_int_equal(gpool_fence_done(pool, never), 1);
	assert_int_equal(gpool_fence_wait(pool, never, 0), 0);
	assert_int_equal(gpool_fence_signal(pool, never), -EINVAL);
	assert_int_equal(gpool_fence_done(pool, first), 0);
	assert_int_equal(gpool_fence_wait(pool, first, 0), -ETIMEDOUT);
	assert_int_equal(gpool_fence_wait(pool, first, 5), -ETIMEDOUT);
	assert_int_equal(gpool_fence_wait(pool, first, -2), -EINVAL);
	assert_int_equal(gpool_fence_signal(pool, second), 0);
	assert_int_equal(gpool_fence_done(pool, first), 1);
	assert_int_equal(gpool_fence_done(pool, second), 1);
	assert_int_equal(gpool_fence_done(pool, elsewhere), 0);
	/* A late signal of an earlier fence has no effect. */
	assert_int_equal(gpool_fence_signal(pool, first), 0);
	assert_int_equal(gpool_fence_wait(pool, second, -1), 0);
	/* A number that was never recorded is not a fence. */
	future.value = second.value + 1;
	assert_int_equal(gpool_fence_done(pool, future), -EINVAL);
	assert_int_equal(gpool_fence_wait(pool, future, 0), -EINVAL);
	assert_int_equal(gpool_fence_signal(pool, future), -EINVAL);
	future.value = UINT64_C(300) << 48 | 1;
	assert_int_equal(gpool_fence_done(pool, future), -EINVAL);
	gpool_stream_close(pool, stream);
	gpool_stream_close(pool, other);
	assert_int_equal(gpool_fence_done(pool, elsewhere), 1);
}

static void *signal_fence(void *fence)
{
	gpool_fence_signal(pool, *(struct gpool_fence *)fence);
	return NULL;
}

static void test_wait_is_woken(void **state)
{
	uint32_t stream = open_stream(GPOOL_STREAM_HOST_SIGNALED);
	struct gpool_fence fence = record(stream);
	pthread_t thread;

	(void)state;
	assert_int_equal(pthread_create(&thread, NULL, signal_fence, &fence), 0);
	assert_int_equal(gpool_fence_wait(pool, fence, SOON_MS), 0);
	pthread_join(thread, NULL);
}

static void test_stream_numbers(void **state)
{
	uint32_t streams[255], one, again;
	struct gpool_fence fence;
	int marker;

	(void)state;
	assert_int_equal(gpool_stream_open(pool, NULL, 2, &one), -EINVAL);
	assert_int_equal(gpool_stream_open(pool, &marker, GPOOL_STREAM_HOST_SIGNALED, &one), -EINVAL);
	assert_int_equal(gpool_stream_open(pool, &marker, 0, &one), -EINVAL); /* not a stream of this device */
	for (int i = 0; i < 255; i++)
		streams[i] = open_stream(GPOOL_STREAM_HOST_SIGNALED);
	assert_int_equal(gpool_stream_open(pool, NULL, GPOOL_STREAM_HOST_SIGNALED, &one), -EUSERS);
	assert_int_equal(gpool_fence_record(pool, 0, &fence), -EINVAL);
	gpool_stream_close(pool, streams[100]);
	assert_int_equal(gpool_fence_record(pool, streams[100], &fence), -EINVAL);
	again = open_stream(GPOOL_STREAM_HOST_SIGNALED);
	/* The slot is reused by another stream. */
	assert_true(again != streams[100]);
	assert_int_equal(again & 255, streams[100] & 255);
	assert_int_equal(gpool_fence_record(pool, streams[100], &fence), -EINVAL);
	gpool_stream_close(pool, streams[100]);
	fence = record(again);
	assert_int_equal(gpool_fence_done(pool, fence), 0);
	assert_int_equal(gpool_fill(pool, again, 0, 0, 4), -EINVAL);
	assert_int_equal(gpool_copy(pool, again, 0, 0, 4), -EINVAL);
	assert_int_equal(gpool_stream_wait(pool, again, fence), -EINVAL);
}

/* ---- queued work ---- */

static void test_copy_fill_and_order(void **state)
{
	uint32_t manual = open_stream(GPOOL_STREAM_HOST_SIGNALED), stream = open_stream(0), second = open_stream(0);
	struct gpool_block from = alloc(2), to = alloc(2);
	struct gpool_fence gate = record(manual), filled, copied;
	volatile uint32_t *words = (volatile uint32_t *)(uintptr_t)address_of(&to);

	(void)state;
	words[0] = 1;
	words[2 * PAGE_BYTES / 4 - 1] = 2;
	/* The stream waits for a gate that the test opens, so the work is not executed before. */
	assert_int_equal(gpool_stream_wait(pool, stream, gate), 0);
	assert_int_equal(gpool_fill(pool, stream, address_of(&from), 0xabcd0123, 2 * PAGE_BYTES), 0);
	assert_int_equal(gpool_fill(pool, stream, address_of(&from), 0, 6), -EINVAL);
	filled = record(stream);
	assert_int_equal(gpool_stream_wait(pool, second, filled), 0);
	assert_int_equal(gpool_copy(pool, second, address_of(&to), address_of(&from), 2 * PAGE_BYTES), 0);
	copied = record(second);
	assert_int_equal(gpool_fence_done(pool, filled), 0);
	assert_int_equal(gpool_fence_wait(pool, copied, 10), -ETIMEDOUT);
	assert_int_equal(words[0], 1);
	assert_int_equal(gpool_fence_signal(pool, gate), 0);
	assert_int_equal(gpool_fence_wait(pool, copied, SOON_MS), 0);
	assert_int_equal(gpool_fence_done(pool, filled), 1);
	assert_int_equal(words[0], 0xabcd0123);
	assert_int_equal(words[2 * PAGE_BYTES / 4 - 1], 0xabcd0123);
}

/* The call refuses an address outside the session's mappings. On CUDA, the GPU would fail. */
static void test_address_outside_the_mappings(void **state)
{
	(void)state;
	assert_true(gpool_fill(pool, open_stream(0), 4096, 0, 4) < 0);
}

static void test_close_waits_for_queued_work(void **state)
{
	struct gpool_block block = alloc(64);
	uint32_t stream = open_stream(0);
	struct gpool_fence fence;
	volatile uint32_t *words = (volatile uint32_t *)(uintptr_t)address_of(&block);

	(void)state;
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(gpool_fill(pool, stream, address_of(&block), i, 64 * PAGE_BYTES), 0);
	fence = record(stream);
	gpool_stream_close(pool, stream);
	assert_int_equal(gpool_fence_done(pool, fence), 1);
	assert_int_equal(words[64 * PAGE_BYTES / 4 - 1], 3);
	/* Closing the pool waits too: it removes mappings only when the work is done. Otherwise detach() would fail. */
	stream = open_stream(0);
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(gpool_fill(pool, stream, address_of(&block), i, 64 * PAGE_BYTES), 0);
}

/* ---- free_after, unpin_after ---- */

static void test_free_after_waits_for_its_fence(void **state)
{
	uint32_t stream = open_stream(GPOOL_STREAM_HOST_SIGNALED);
	struct gpool_block block = alloc(PAGES), more;
	struct gpool_fence fence = record(stream), none = {0}, bad = {UINT64_C(200) << 48 | 7};

	(void)state;
	assert_int_equal(gpool_free_after(pool, &block, bad), -EINVAL);
	assert_int_equal(gpool_free_after(pool, &block, fence), 0);
	assert_int_equal(gpool_free_after(pool, &block, fence), -ESTALE);
	assert_int_equal(gpool_pin(pool, &block), -ESTALE);
	evict_all();
	assert_int_equal(gpool_alloc(pool, 1, NULL, &more), -ENOSPC);
	assert_int_equal(deferred(), 1);
	assert_int_equal(gpool_fence_signal(pool, fence), 0);
	assert_int_equal(deferred(), 0);
	more = alloc(PAGES);
	/* If the fence is signaled or there is none, the block is freed at once. */
	assert_int_equal(gpool_free_after(pool, &more, fence), 0);
	more = alloc(PAGES);
	assert_int_equal(gpool_free_after(pool, &more, none), 0);
	more = alloc(PAGES);
}

/* A waiting allocation gets pages that are freed with a fence during its wait. */
static void test_waiting_allocation_gets_deferred_pages(void **state)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	uint32_t stream = open_stream(GPOOL_STREAM_HOST_SIGNALED);
	struct gpool_block block = alloc(PAGES), more;
	struct gpool_fence fence = record(stream);
	pthread_t thread;

	(void)state;
	assert_int_equal(gpool_free_after(pool, &block, fence), 0);
	assert_int_equal(pthread_create(&thread, NULL, signal_fence, &fence), 0);
	options.timeout_ms = SOON_MS;
	assert_int_equal(gpool_alloc(pool, PAGES, &options, &more), 0);
	pthread_join(thread, NULL);
}

static void test_many_behind_one_stream(void **state)
{
	uint32_t stream = open_stream(GPOOL_STREAM_HOST_SIGNALED);
	struct gpool_block blocks[100];
	struct gpool_fence fences[100];

	(void)state;
	for (int i = 0; i < 100; i++) {
		blocks[i] = alloc(1);
		fences[i] = record(stream);
	}
	/* Free the blocks in a different order than the fences. */
	for (int i = 0; i < 100; i++)
		assert_int_equal(gpool_free_after(pool, &blocks[i * 37 % 100], fences[i * 37 % 100]), 0);
	assert_int_equal(deferred(), 100);
	for (int i = 0; i < 100; i += 10) {
		uint32_t before = deferred();
		struct gpool_block other;

		assert_int_equal(gpool_fence_signal(pool, fences[i]), 0);
		/* While a later fence is not signaled, calls for fences do not complete frees. */
		assert_int_equal(deferred(), before);
		other = alloc(1);
		assert_int_equal(gpool_free(pool, &other), 0);
		assert_int_equal(deferred(), 99 - i);
	}
	gpool_stream_close(pool, stream);
	assert_int_equal(deferred(), 0);
}

static void test_same_stream_reuses_at_once(void **state)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	uint32_t stream = open_stream(GPOOL_STREAM_HOST_SIGNALED), other = open_stream(GPOOL_STREAM_HOST_SIGNALED);
	struct gpool_block block = alloc(5), again, elsewhere, differs;
	struct gpool_fence fence = record(stream);

	(void)state;
	assert_int_equal(gpool_free_after(pool, &block, fence), 0);
	options.stream = other;
	assert_int_equal(gpool_alloc(pool, 5, &options, &elsewhere), 0);
	assert_true(elsewhere.page != block.page);
	options.stream = stream;
	assert_int_equal(gpool_alloc(pool, 4, &options, &differs), 0);
	assert_true(differs.page != block.page);
	assert_int_equal(gpool_alloc(pool, 5, &options, &again), 0);
	assert_int_equal(again.page, block.page);
	assert_int_equal(deferred(), 0);
	assert_int_equal(gpool_pin(pool, &block), -ESTALE);
	/* The fence of the first free still applies, so the unpinned block may not be evicted yet. */
	assert_int_equal(gpool_unpin(pool, &again), 0);
	evict_all();
	assert_int_equal(gpool_pin(pool, &again), 0);
	assert_int_equal(gpool_unpin(pool, &again), 0);
	assert_int_equal(gpool_fence_signal(pool, fence), 0);
	evict_all();
	assert_int_equal(gpool_pin(pool, &again), -ESTALE);
}

/* A free respects the fence of an earlier unpin_after. */
static void test_unpin_after_keeps_the_content(void **state)
{
	uint32_t stream = open_stream(GPOOL_STREAM_HOST_SIGNALED);
	struct gpool_block block = alloc(2), freed = alloc(2);
	struct gpool_fence fence = record(stream), late = record(stream);

	(void)state;
	assert_int_equal(gpool_unpin_after(pool, &block, late), 0);
	assert_int_equal(gpool_unpin_after(pool, &block, late), -EINVAL); /* no longer pinned */
	assert_int_equal(gpool_pin(pool, &block), 0);
	assert_int_equal(gpool_unpin_after(pool, &block, fence), 0); /* the later fence counts */
	assert_int_equal(gpool_fence_signal(pool, fence), 0);
	evict_all();
	assert_int_equal(gpool_pin(pool, &block), 0);
	assert_int_equal(gpool_unpin(pool, &block), 0);

	assert_int_equal(gpool_unpin_after(pool, &freed, late), 0);
	assert_int_equal(gpool_discard(pool, &freed), 0);
	assert_int_equal(deferred(), 1);
	assert_int_equal(gpool_fence_signal(pool, late), 0);
	assert_int_equal(deferred(), 0);
	evict_all();
	assert_int_equal(gpool_pin(pool, &block), -ESTALE);
}

static void test_unpin_after_in_two_streams(void **state)
{
	uint32_t first = open_stream(GPOOL_STREAM_HOST_SIGNALED), second = open_stream(GPOOL_STREAM_HOST_SIGNALED);
	struct gpool_block block = alloc(2);
	struct gpool_fence one = record(first), two = record(second);

	(void)state;
	assert_int_equal(gpool_pin(pool, &block), 0);
	assert_int_equal(gpool_unpin_after(pool, &block, one), 0);
	assert_int_equal(gpool_unpin_after(pool, &block, two), 0);
	/* With a joint fence no pin is kept, and the agent does not evict the block until both fences are signaled. */
	assert_int_equal(deferred(), 0);
	assert_int_equal(gpool_fence_signal(pool, one), 0);
	evict_all();
	assert_int_equal(gpool_touch(pool, &block), 0);
	assert_int_equal(gpool_fence_signal(pool, two), 0);
	assert_int_equal(deferred(), 0);
	evict_all();
	assert_int_equal(gpool_touch(pool, &block), -ESTALE);
}

/*
 * A loan ends after the work that is queued on its stream. If the stream is closed or there is none, the loan ends at
 * once. This holds for pins of objects and of blocks.
 */
static void test_loans(void **state)
{
	const struct gpool_object_options options = {
		.size = sizeof(options), .memory_class = GPOOL_OBJECT_PINNABLE, .flags = GPOOL_OBJECT_PINNED};
	uint32_t gate = open_stream(GPOOL_STREAM_HOST_SIGNALED), stream = open_stream(0), index;
	struct gpool_block block = alloc(2);
	struct gpool_fence opened = record(gate);
	struct gpool_object *object;
	uint64_t version;
	struct {
		struct gpool_loan loan;
		char tensor[8];
	} lent = {{.pool = pool, .block = block, .stream = stream, .size = sizeof(struct gpool_loan)}, ""};

	(void)state;
	assert_int_equal(gpool_stream_wait(pool, stream, opened), 0);
	gpool_loan_end(lent.tensor);
	assert_int_equal(lent.loan.ended, 1);
	evict_all();
	assert_int_equal(gpool_touch(pool, &block), 0);
	assert_int_equal(gpool_fence_signal(pool, opened), 0);
	gpool_stream_close(pool, stream);

	lent.loan.ended = 0;
	assert_int_equal(gpool_pin(pool, &block), 0);
	gpool_loan_end(lent.tensor);
	assert_int_equal(lent.loan.ended, 1);
	evict_all();
	assert_int_equal(gpool_touch(pool, &block), -ESTALE);

	assert_int_equal(gpool_object_create(pool, "lent", &options, &object), 0);
	assert_int_equal(gpool_object_alloc(object, 1, NULL, &index), 0);
	assert_int_equal(gpool_object_publish(object, &version), 0);
	lent.loan = (struct gpool_loan){.pool = pool, .object = object, .size = sizeof(struct gpool_loan)};
	gpool_loan_end(lent.tensor);
	assert_int_equal(gpool_object_unpin(object), -EINVAL); /* the loan had the only pin */
	lent.loan.object = NULL;
	gpool_loan_end(lent.tensor); /* the loan has no pin */
	assert_int_equal(lent.loan.ended, 1);
	assert_int_equal(gpool_object_close(object), 0);
	assert_int_equal(gpool_object_delete(pool, "lent", 0), 0);
}

static void test_free_after_while_others_pin(void **state)
{
	uint32_t stream = open_stream(GPOOL_STREAM_HOST_SIGNALED);
	struct gpool_block block = alloc(3);
	struct gpool_fence fence = record(stream);

	(void)state;
	assert_int_equal(gpool_pin(pool, &block), 0);
	assert_int_equal(gpool_free_after(pool, &block, fence), 0);
	assert_int_equal(gpool_fence_signal(pool, fence), 0);
	assert_int_equal(deferred(), 1);
	/* The other user records its own fence. */
	fence = record(stream);
	assert_int_equal(gpool_unpin_after(pool, &block, fence), 0);
	assert_int_equal(deferred(), 1);
	assert_int_equal(gpool_fence_signal(pool, fence), 0);
	assert_int_equal(deferred(), 0);
}

/* Requirements: U3. */
static void test_scope_behind_a_fence(void **state)
{
	uint32_t stream = open_stream(GPOOL_STREAM_HOST_SIGNALED);
	struct gpool_fence fence = record(stream);
	struct gpool_block kept, freed;
	struct gpool_scope scope = GPOOL_SCOPE_INIT;

	(void)state;
	assert_int_equal(gpool_scope_begin(pool, GPOOL_USAGE_ACTIVATION, 0, &scope), 0);
	assert_int_equal(gpool_scope_alloc(&scope, 2, NULL, &kept), 0);
	assert_int_equal(gpool_scope_end(&scope, fence), 0);
	assert_int_equal(gpool_scope_begin(pool, GPOOL_USAGE_TEMP_BUFFER, GPOOL_SCOPE_FREE, &scope), 0);
	assert_int_equal(gpool_scope_alloc(&scope, 2, NULL, &freed), 0);
	assert_int_equal(gpool_scope_end(&scope, fence), 0);
	evict_all();
	assert_int_equal(gpool_touch(pool, &kept), 0);
	assert_int_equal(gpool_touch(pool, &freed), -ESTALE);
	assert_int_equal(deferred(), 1);
	assert_int_equal(gpool_fence_signal(pool, fence), 0);
	assert_int_equal(deferred(), 0);
	evict_all();
	assert_int_equal(gpool_touch(pool, &kept), -ESTALE);
}

/* The range of a scattered block is unmapped only when the work that uses it is done. */
static void test_scattered_block_in_use_by_a_stream(void **state)
{
	uint32_t manual = open_stream(GPOOL_STREAM_HOST_SIGNALED), stream = open_stream(0);
	static struct gpool_block comb[PAGES];
	struct gpool_fence gate = record(manual), done;
	struct gpool_block block;

	(void)state;
	for (int i = 0; i < PAGES; i++)
		comb[i] = alloc(1);
	for (int i = 0; i < PAGES; i++)
		if (comb[i].page % 2)
			assert_int_equal(gpool_free(pool, &comb[i]), 0);
	block = alloc(4);
	assert_true(block.tag & BLOCK_SCATTERED);
	assert_int_equal(gpool_stream_wait(pool, stream, gate), 0);
	assert_int_equal(gpool_fill(pool, stream, address_of(&block), 5, 4 * PAGE_BYTES), 0);
	done = record(stream);
	/*
	 * A free before the end of the work violates the contract, but causes no fault: the back end `host` returns
	 * busy.
	 */
	assert_int_equal(gpool_free(pool, &block), 0);
	assert_int_equal(deferred(), 1);
	assert_int_equal(gpool_fence_signal(pool, gate), 0);
	assert_int_equal(gpool_fence_wait(pool, done, SOON_MS), 0);
	gpool_stream_close(pool, stream);
	assert_int_equal(deferred(), 0);
}

static void test_back_end_fails(void **state)
{
	uint32_t stream;
	struct gpool_fence fence, before;

	(void)state;
	gpu_fault_set(pool->gpu, GPU_CALL_HOST_REGISTER, 1, -ENOMEM);
	assert_int_equal(gpool_stream_open(pool, NULL, 0, &stream), -ENOMEM);
	gpu_fault_set(pool->gpu, GPU_CALL_STREAM_CREATE, 1, -EIO);
	assert_int_equal(gpool_stream_open(pool, NULL, 0, &stream), -EIO);
	stream = open_stream(0);
	before = record(stream);
	/* A fence that could not be queued does not exist. The next fence gets its number, and is signaled. */
	gpu_fault_set(pool->gpu, GPU_CALL_TIMELINE_WRITE, 1, -EIO);
	assert_int_equal(gpool_fence_record(pool, stream, &fence), -EIO);
	fence = record(stream);
	assert_int_equal(fence.value, before.value + 1);
	assert_int_equal(gpool_fence_wait(pool, fence, SOON_MS), 0);
}

/*
 * The wait completes the frees that wait for the fence, because a thread that has waited for a fence is probably idle
 * afterwards.
 */
static void test_a_wait_completes_frees_behind_the_fence(void **state)
{
	uint32_t gate = open_stream(GPOOL_STREAM_HOST_SIGNALED), stream = open_stream(0);
	struct gpool_block block = alloc(3), other = alloc(2);
	struct gpool_fence hold = record(gate), fence;

	(void)state;
	assert_int_equal(gpool_stream_wait(pool, stream, hold), 0);
	fence = record(stream);
	assert_int_equal(gpool_free_after(pool, &block, fence), 0);
	assert_int_equal(gpool_free_after(pool, &other, fence), 0);
	assert_int_equal(deferred(), 2);
	assert_int_equal(gpool_fence_signal(pool, hold), 0);
	assert_int_equal(gpool_fence_wait(pool, fence, SOON_MS), 0);
	assert_int_equal(deferred(), 0);
}

/*
 * On a stream of the program, fences are recorded after the work that the program queued. gpool_stream_close() does
 * not close the program's stream.
 */
static void test_streams_of_the_program(void **state)
{
	struct gpu_stream *native;
	struct gpool_block block = alloc(1);
	uint32_t stream = 0, *words = (uint32_t *)(uintptr_t)address_of(&block);
	uint32_t gate = open_stream(GPOOL_STREAM_HOST_SIGNALED);
	struct gpool_fence hold = record(gate), fence;

	(void)state;
	assert_int_equal(gpu_stream_create(pool->gpu, &native), 0);
	assert_int_equal(gpool_stream_open(pool, native, 0, &stream), 0);
	assert_int_equal(gpool_stream_wait(pool, stream, hold), 0);
	assert_int_equal(gpu_fill(pool->gpu, address_of(&block), 7, gpool_page_bytes(pool), native), 0);
	fence = record(stream);
	assert_int_equal(gpool_fence_done(pool, fence), 0);
	assert_int_equal(gpool_fence_signal(pool, hold), 0);
	assert_int_equal(gpool_fence_wait(pool, fence, SOON_MS), 0);
	assert_int_equal(words[0], 7);
	gpool_stream_close(pool, stream);
	assert_int_equal(gpu_fill(pool->gpu, address_of(&block), 8, gpool_page_bytes(pool), native), 0);
	assert_int_equal(gpu_stream_sync(pool->gpu, native), 0);
	assert_int_equal(words[0], 8);
	gpu_stream_destroy(pool->gpu, native);
	assert_int_equal(gpool_free(pool, &block), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, attach, detach)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_a_wait_completes_frees_behind_the_fence),
		TEST(test_streams_of_the_program),
		TEST(test_manual_fences),
		TEST(test_wait_is_woken),
		TEST(test_stream_numbers),
		TEST(test_copy_fill_and_order),
		TEST(test_address_outside_the_mappings),
		TEST(test_close_waits_for_queued_work),
		TEST(test_free_after_waits_for_its_fence),
		TEST(test_waiting_allocation_gets_deferred_pages),
		TEST(test_many_behind_one_stream),
		TEST(test_same_stream_reuses_at_once),
		TEST(test_unpin_after_keeps_the_content),
		TEST(test_unpin_after_in_two_streams),
		TEST(test_loans),
		TEST(test_free_after_while_others_pin),
		TEST(test_scope_behind_a_fence),
		TEST(test_scattered_block_in_use_by_a_stream),
		TEST(test_back_end_fails),
	};
	int failed;

	harness_start(&harness, (const char *const[]){"--pool", HARNESS_POOL, NULL});
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	return harness_stop(&harness) || failed;
}
