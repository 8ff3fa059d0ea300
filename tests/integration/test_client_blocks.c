/*
 * test_client_blocks.c - block allocation with a real agent: successful calls, and every error that the calls document.
 *
 * One gpoold serves a pool of 512 pages of 512 KB. Each test attaches a new session, which starts without pages. An
 * admin session requests evictions at the point where a test needs them. After each test the agent checks the
 * invariants of the pool.
 */
#include "client/core/thread_cache.h"
#include "cuda/gpu.h"
#include "tests/integration/calm_pool.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ALL = 1000000 };

static struct gpool_block alloc(uint32_t page_count)
{
	struct gpool_block block = {0};

	assert_int_equal(gpool_alloc(pool, page_count, NULL, &block), 0);
	assert_int_equal(block.page_count, page_count);
	return block;
}

static volatile uint64_t *address_of(const struct gpool_block *block)
{
	uint64_t address = 0;

	assert_int_equal(gpool_address(pool, block, &address), 0);
	return (volatile uint64_t *)(uintptr_t)address;
}

/* Write the first and the last word of each page. */
static void write_pages(const struct gpool_block *block, uint64_t value)
{
	volatile uint64_t *at = address_of(block);

	for (uint64_t page = 0; page < block->page_count; page++) {
		at[page * (PAGE_BYTES / 8)] = value + page;
		at[(page + 1) * (PAGE_BYTES / 8) - 1] = value + page;
	}
}

static void assert_pages(const struct gpool_block *block, uint64_t value)
{
	volatile uint64_t *at = address_of(block);

	for (uint64_t page = 0; page < block->page_count; page++) {
		assert_int_equal(at[page * (PAGE_BYTES / 8)], value + page);
		assert_int_equal(at[(page + 1) * (PAGE_BYTES / 8) - 1], value + page);
	}
}

static struct gpool_stats statistics(void)
{
	struct gpool_stats filled = {.size = sizeof(filled)};

	assert_int_equal(gpool_stats(pool, &filled), 0);
	return filled;
}

static void evict_all(void)
{
	harness_evict(&harness, gpool_session(pool), ALL);
}

/* ---- allocating and freeing ---- */

static void test_alloc_free(void **state)
{
	struct gpool_block one = alloc(1), many = alloc(7), again;
	struct gpool_stats before = statistics();

	(void)state;
	write_pages(&one, 1000);
	write_pages(&many, 2000);
	assert_pages(&one, 1000);
	assert_pages(&many, 2000);
	assert_int_equal(gpool_free(pool, &one), 0);
	assert_int_equal(gpool_free(pool, &many), 0);
	again = alloc(7);
	/* The pages come from the thread's cache: the block has the same first page and a different tag. */
	assert_int_equal(again.page, many.page);
	assert_true(again.tag != many.tag);
	assert_int_equal(gpool_free(pool, &again), 0);
	assert_int_equal(statistics().frees - before.frees, 3);
	assert_int_equal(statistics().allocations - before.allocations, 1);
}

/* Requirements: U3. */
static void test_double_free_and_use_after_free(void **state)
{
	(void)state;
	for (uint32_t pages = 1; pages <= 3; pages += 2) {
		struct gpool_block block = alloc(pages), next;
		uint64_t address = 77;

		assert_int_equal(gpool_free(pool, &block), 0);
		assert_int_equal(gpool_free(pool, &block), -ESTALE);
		assert_int_equal(gpool_discard(pool, &block), -ESTALE);
		assert_int_equal(gpool_pin(pool, &block), -ESTALE);
		assert_int_equal(gpool_unpin(pool, &block), -ESTALE);
		assert_int_equal(gpool_touch(pool, &block), -ESTALE);
		assert_int_equal(gpool_address(pool, &block, &address), -ESTALE);
		assert_int_equal(address, 77);
		/* The old handle stays stale when another block uses the entry. */
		next = alloc(pages);
		assert_int_equal(next.page, block.page);
		assert_int_equal(gpool_free(pool, &block), -ESTALE);
		assert_int_equal(gpool_unpin(pool, &block), -ESTALE);
		assert_int_equal(gpool_pin(pool, &block), -ESTALE);
		assert_int_equal(gpool_free(pool, &next), 0);
	}
}

/* Requirements: U6. */
static void test_pins_count(void **state)
{
	struct gpool_block block = alloc(2);

	(void)state;
	assert_int_equal(gpool_pin(pool, &block), 0);
	assert_int_equal(gpool_unpin(pool, &block), 0);
	assert_int_equal(gpool_unpin(pool, &block), 0);
	assert_int_equal(gpool_unpin(pool, &block), -EINVAL);
	assert_int_equal(gpool_free(pool, &block), -EINVAL);
	assert_int_equal(gpool_touch(pool, &block), 0);
	assert_int_equal(gpool_discard(pool, &block), 0);
	assert_int_equal(gpool_discard(pool, &block), -ESTALE);
}

static void test_alloc_refuses_bad_arguments(void **state)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_block block = {.page = 4711};

	(void)state;
	assert_int_equal(gpool_alloc(pool, 0, NULL, &block), -EINVAL);
	assert_int_equal(gpool_alloc(pool, PAGES + 1, NULL, &block), -EINVAL);
	options.flags = 1u << 5;
	assert_int_equal(gpool_alloc(pool, 1, &options, &block), -EINVAL);
	options.flags = 0;
	options.usage = GPOOL_USAGE_COUNT;
	assert_int_equal(gpool_alloc(pool, 1, &options, &block), -EINVAL);
	options.usage = GPOOL_USAGE_GRADIENT;
	options.priority = 4;
	assert_int_equal(gpool_alloc(pool, 1, &options, &block), -EINVAL);
	options.priority = 3;
	options.timeout_ms = -2;
	assert_int_equal(gpool_alloc(pool, 1, &options, &block), -EINVAL);
	options.timeout_ms = 0;
	options.stream = 5;
	assert_int_equal(gpool_alloc(pool, 1, &options, &block), -EINVAL);
	assert_int_equal(block.page, 4711);
	options.stream = 0;
	options.owner_id = 99;
	assert_int_equal(gpool_alloc(pool, 1, &options, &block), 0);
	assert_int_equal(atomic_load(&block_entry(pool, block.page)->owner_id), 99);
	assert_int_equal(gpool_free(pool, &block), 0);
}

static uint64_t random_next(uint64_t *seed)
{
	*seed = *seed * 6364136223846793005u + 1442695040888963407u;
	return *seed >> 17;
}

/*
 * Pass invented handles, and real ones with one field changed. Each call must return an error and leave the real block
 * unchanged.
 */
static void test_garbage_handles(void **state)
{
	struct gpool_block real = alloc(3);
	uint64_t seed = 12345, address;

	(void)state;
	write_pages(&real, 5);
	for (int i = 0; i < 100000; i++) {
		struct gpool_block bad = real;
		int error;

		switch (random_next(&seed) % 6) {
		case 0: bad.page = (uint32_t)random_next(&seed); break;
		case 1: bad.page = (uint32_t)(random_next(&seed) % PAGES); break;
		case 2: bad.tag ^= UINT64_C(1) << random_next(&seed) % 64; break;
		case 3: bad.tag = random_next(&seed) % 4; break;
		case 4:
			bad = (struct gpool_block){random_next(&seed), random_next(&seed), (uint32_t)random_next(&seed),
				(uint32_t)random_next(&seed)};
			break;
		default: bad.generation ^= UINT64_C(1) << random_next(&seed) % 64; break;
		}
		if (!memcmp(&bad, &real, sizeof(bad)))
			continue;
		error = gpool_pin(pool, &bad);
		assert_true(error == -EINVAL || error == -ESTALE);
		error = gpool_touch(pool, &bad);
		assert_true(error == -EINVAL || error == -ESTALE);
		error = gpool_free(pool, &bad);
		assert_true(error == -EINVAL || error == -ESTALE);
		error = gpool_discard(pool, &bad);
		assert_true(error == -EINVAL || error == -ESTALE);
		error = gpool_commit(pool, &bad, NULL);
		assert_true(error == -EINVAL || error == -ESTALE);
		if (bad.tag == real.tag && bad.page == real.page)
			continue; /* unpin and address use the tag, which is correct */
		error = gpool_unpin(pool, &bad);
		assert_true(error == -EINVAL || error == -ESTALE);
		error = gpool_address(pool, &bad, &address);
		assert_true(error == -EINVAL || error == -ESTALE);
	}
	real.page_count = 2;
	assert_int_equal(gpool_free(pool, &real), -EINVAL);
	real.page_count = 3;
	assert_pages(&real, 5);
	assert_int_equal(gpool_free(pool, &real), 0);
}

/* A hole of 8 pages is below a hole of 4 pages. First fit uses the lower hole, best fit the exact one. */
/* Requirements: U4. */
static void test_first_fit_and_best_fit(void **state)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_block blocks[8], first, best;

	(void)state;
	options.flags = GPOOL_ALLOC_FIRST_FIT;
	for (int i = 0; i < 8; i++) {
		assert_int_equal(gpool_alloc(pool, 4, &options, &blocks[i]), 0);
		assert_true(i == 0 || blocks[i].page == blocks[i - 1].page + 4);
	}
	assert_int_equal(gpool_free(pool, &blocks[1]), 0);
	assert_int_equal(gpool_free(pool, &blocks[2]), 0);
	assert_int_equal(gpool_free(pool, &blocks[5]), 0);
	thread_cache_flush(thread_cache_of(pool));
	assert_int_equal(gpool_alloc(pool, 4, &options, &first), 0);
	assert_int_equal(first.page, blocks[1].page);
	assert_int_equal(gpool_free(pool, &first), 0);
	thread_cache_flush(thread_cache_of(pool));
	best = alloc(4);
	assert_int_equal(best.page, blocks[5].page);
}

/* Requirements: U4. */
static void test_out_of_memory_names_the_holder(void **state)
{
	struct gpool_block all = alloc(PAGES), more = {.page = 4711};
	struct gpool_oom_info shortage = {.size = sizeof(shortage)};

	(void)state;
	assert_int_equal(gpool_alloc(pool, 3, NULL, &more), -ENOSPC);
	assert_int_equal(more.page, 4711);
	gpool_oom_info(pool, &shortage);
	assert_int_equal(shortage.needed, 3);
	assert_int_equal(shortage.free, 0);
	assert_int_equal(shortage.pinned, PAGES);
	assert_int_equal(shortage.holder, gpool_session(pool));
	assert_int_equal(shortage.holder_pages, PAGES);
	assert_int_equal(statistics().refusals, 1);
	assert_int_equal(gpool_free(pool, &all), 0);
	more = alloc(3);
	assert_int_equal(gpool_free(pool, &more), 0);
}

static void test_quota(void **state)
{
	struct gpool_options options = harness_options(&harness);
	struct gpool_block block;
	struct gpool *small;

	(void)state;
	options.quota_bytes = 8 * (uint64_t)PAGE_BYTES;
	assert_int_equal(gpool_open(&options, &small), 0);
	assert_int_equal(gpool_alloc(small, 9, NULL, &block), -EDQUOT);
	assert_int_equal(gpool_alloc(small, 8, NULL, &block), 0);
	assert_int_equal(gpool_free(small, &block), 0);
	gpool_close(small);
}

/* ---- eviction ---- */

/* Requirements: U6. */
static void test_evicted_block_is_stale(void **state)
{
	(void)state;
	for (uint32_t pages = 1; pages <= 4; pages += 3) {
		struct gpool_block gone = alloc(pages), kept = alloc(pages);
		uint64_t address;

		write_pages(&kept, 9);
		assert_int_equal(gpool_unpin(pool, &gone), 0);
		evict_all();
		assert_int_equal(gpool_pin(pool, &gone), -ESTALE);
		assert_int_equal(gpool_touch(pool, &gone), -ESTALE);
		assert_int_equal(gpool_unpin(pool, &gone), -ESTALE);
		assert_int_equal(gpool_free(pool, &gone), -ESTALE);
		assert_int_equal(gpool_discard(pool, &gone), -ESTALE);
		assert_int_equal(gpool_address(pool, &gone, &address), -ESTALE);
		/* A pinned block is not evicted. */
		assert_pages(&kept, 9);
		assert_int_equal(gpool_free(pool, &kept), 0);
	}
	assert_true(statistics().stale_pins >= 6);
}

static void test_evicted_caches_are_forgotten(void **state)
{
	struct gpool_block blocks[20], run = alloc(5);

	(void)state;
	for (int i = 0; i < 20; i++)
		blocks[i] = alloc(1);
	for (int i = 0; i < 20; i++)
		assert_int_equal(gpool_free(pool, &blocks[i]), 0);
	assert_int_equal(gpool_free(pool, &run), 0);
	assert_true(harness_evict(&harness, gpool_session(pool), ALL) >= 16 + 5);
	for (int i = 0; i < 20; i++) {
		blocks[i] = alloc(1);
		write_pages(&blocks[i], (uint64_t)i);
	}
	run = alloc(5);
	write_pages(&run, 100);
	for (int i = 0; i < 20; i++)
		assert_pages(&blocks[i], (uint64_t)i);
	assert_pages(&run, 100);
}

/* Requirements: U4. */
static void test_eviction_makes_room(void **state)
{
	struct gpool_block old = alloc(PAGES / 2), pinned = alloc(PAGES / 2), new;
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	int error;

	(void)state;
	write_pages(&pinned, 3);
	assert_int_equal(gpool_unpin(pool, &old), 0);
	options.flags = GPOOL_ALLOC_NO_EVICT;
	/* In a full pool, the agent evicts unpinned blocks in the background. It may have evicted this one already. */
	error = gpool_alloc(pool, 2, &options, &new);
	if (!error) {
		assert_int_equal(gpool_pin(pool, &old), -ESTALE);
		assert_int_equal(gpool_free(pool, &new), 0);
	} else {
		assert_int_equal(error, -ENOSPC);
	}
	options.flags = 0;
	options.timeout_ms = AWAIT_MS;
	assert_int_equal(gpool_alloc(pool, 2, &options, &new), 0);
	assert_int_equal(gpool_pin(pool, &old), -ESTALE);
	assert_pages(&pinned, 3);
}

/* ---- freed blocks that are still pinned ---- */

static void test_free_while_others_pin(void **state)
{
	struct gpool_block block = alloc(PAGES), all;

	(void)state;
	write_pages(&block, 42);
	assert_int_equal(gpool_pin(pool, &block), 0);
	assert_int_equal(gpool_pin(pool, &block), 0);
	assert_int_equal(gpool_free(pool, &block), 0);
	/* The block can be neither pinned nor freed again. Existing pins keep the block and its content. */
	assert_int_equal(gpool_pin(pool, &block), -ESTALE);
	assert_int_equal(gpool_free(pool, &block), -ESTALE);
	assert_int_equal(statistics().deferred_blocks, 1);
	evict_all();
	assert_pages(&block, 42);
	assert_int_equal(gpool_alloc(pool, 1, NULL, &all), -ENOSPC);
	assert_int_equal(gpool_unpin(pool, &block), 0);
	assert_pages(&block, 42);
	assert_int_equal(gpool_unpin(pool, &block), 0);
	/* The last unpin freed the pages, without any other call. */
	assert_int_equal(statistics().deferred_blocks, 0);
	assert_int_equal(gpool_unpin(pool, &block), -ESTALE);
	all = alloc(PAGES);
	assert_int_equal(gpool_free(pool, &all), 0);
}

/* ---- scattered blocks ---- */

/* Fill the pool with single pages and free every second one, so that no two free pages are adjacent. */
static void make_comb(struct gpool_block blocks[PAGES])
{
	for (int i = 0; i < PAGES; i++)
		blocks[i] = alloc(1);
	for (int i = 0; i < PAGES; i++)
		if (blocks[i].page % 2)
			assert_int_equal(gpool_free(pool, &blocks[i]), 0);
}

static void free_comb(struct gpool_block blocks[PAGES])
{
	for (int i = 0; i < PAGES; i++)
		if (blocks[i].page % 2 == 0)
			assert_int_equal(gpool_free(pool, &blocks[i]), 0);
}

/* Return the address of page `index` of a scattered block in the window. */
static volatile uint64_t *window_of(const struct gpool_block *block, uint32_t index)
{
	uint32_t run = block->page;

	for (;;) {
		uint32_t count = atomic_load(&block_entry(pool, run)->page_count);

		if (index < count)
			return (volatile uint64_t *)(uintptr_t)(pool->window_base + (run + index) * pool->page_bytes);
		index -= count;
		run = atomic_load(&block_entry(pool, run)->next) - 1;
	}
}

/* Requirements: U10. */
static void test_scattered_block(void **state)
{
	static struct gpool_block comb[PAGES];
	struct gpool_alloc_options contiguous = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_block block, whole;

	(void)state;
	make_comb(comb);
	contiguous.flags = GPOOL_ALLOC_CONTIGUOUS | GPOOL_ALLOC_NO_EVICT;
	assert_int_equal(gpool_alloc(pool, 2, &contiguous, &block), -ENOSPC);
	/* An allocation never fails while enough pages are free. */
	block = alloc(PAGES / 2);
	assert_int_equal(statistics().scattered, 1);
	write_pages(&block, 7000);
	for (uint32_t i = 0; i < block.page_count; i++) {
		assert_int_equal(window_of(&block, i)[0], 7000 + i);
		window_of(&block, i)[1] = 8000 + i;
		assert_int_equal(address_of(&block)[i * (PAGE_BYTES / 8) + 1], 8000 + i);
	}
	assert_int_equal(gpool_alloc(pool, 1, NULL, &whole), -ENOSPC);
	assert_int_equal(harness_check(&harness), 0);

	assert_int_equal(gpool_pin(pool, &block), 0);
	assert_int_equal(gpool_unpin(pool, &block), 0);
	assert_int_equal(gpool_free(pool, &block), 0);
	assert_int_equal(gpool_free(pool, &block), -ESTALE);
	free_comb(comb);
	whole = alloc(PAGES);
	write_pages(&whole, 1);
	assert_int_equal(gpool_free(pool, &whole), 0);
}

static void test_scattered_block_evicted_and_again(void **state)
{
	static struct gpool_block comb[PAGES];
	struct gpool_block block;
	uint64_t address;

	(void)state;
	make_comb(comb);
	for (int round = 0; round < 40; round++) {
		block = alloc(8);
		write_pages(&block, (uint64_t)round * 100);
		assert_pages(&block, (uint64_t)round * 100);
		assert_int_equal(gpool_unpin(pool, &block), 0);
		evict_all();
		assert_int_equal(gpool_pin(pool, &block), -ESTALE);
		assert_int_equal(gpool_address(pool, &block, &address), -ESTALE);
	}
	assert_int_equal(statistics().scattered, 40);
	free_comb(comb);
}

/* ---- scopes ---- */

/* Requirements: U3. */
static void test_scope_unpins_at_its_end(void **state)
{
	struct gpool_block blocks[40];
	struct gpool_scope scope = GPOOL_SCOPE_INIT;

	(void)state;
	assert_int_equal(gpool_scope_begin(pool, GPOOL_USAGE_COUNT, 0, &scope), -EINVAL);
	assert_int_equal(gpool_scope_begin(pool, GPOOL_USAGE_ACTIVATION, 4, &scope), -EINVAL);
	assert_int_equal(gpool_scope_begin(pool, GPOOL_USAGE_ACTIVATION, 0, &scope), 0);
	for (int i = 0; i < 40; i++)
		assert_int_equal(gpool_scope_alloc(&scope, 1 + (uint32_t)i % 3, NULL, &blocks[i]), 0);
	assert_int_equal(blocks[0].tag & BLOCK_TYPE_MASK, GPOOL_USAGE_ACTIVATION);
	assert_int_equal(gpool_scope_end(&scope, GPOOL_FENCE_NONE), 0);
	assert_int_equal(gpool_scope_end(&scope, GPOOL_FENCE_NONE), 0);
	assert_int_equal(gpool_scope_alloc(&scope, 1, NULL, &blocks[0]), -EINVAL);
	for (int i = 0; i < 40; i++) {
		assert_int_equal(gpool_unpin(pool, &blocks[i]), -EINVAL); /* no longer pinned */
		assert_int_equal(gpool_discard(pool, &blocks[i]), 0);
	}
}

/* Requirements: U3. */
static void test_scope_frees_and_reports(void **state)
{
	struct gpool_block block, freed;
	struct gpool_scope scope = GPOOL_SCOPE_INIT;

	(void)state;
	{
		GPOOL_SCOPE(inner);

		assert_int_equal(gpool_scope_begin(pool, GPOOL_USAGE_TEMP_BUFFER, GPOOL_SCOPE_FREE, &inner), 0);
		assert_int_equal(gpool_scope_alloc(&inner, 2, NULL, &block), 0);
	}
	assert_int_equal(gpool_pin(pool, &block), -ESTALE);

	assert_int_equal(gpool_scope_begin(pool, GPOOL_USAGE_TEMP_BUFFER, GPOOL_SCOPE_FREE, &scope), 0);
	assert_int_equal(gpool_scope_alloc(&scope, 1, NULL, &block), 0);
	assert_int_equal(gpool_scope_alloc(&scope, 1, NULL, &freed), 0);
	assert_int_equal(gpool_free(pool, &freed), 0);
	/* One block was freed explicitly: the end of the scope reports it, and frees the other blocks. */
	assert_int_equal(gpool_scope_end(&scope, GPOOL_FENCE_NONE), -ESTALE);
	assert_int_equal(gpool_pin(pool, &block), -ESTALE);
}

/* ---- pin rules ---- */

static struct gpool_block alloc_as(uint32_t usage, uint32_t pages)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_block block = {0};

	options.usage = usage;
	assert_int_equal(gpool_alloc(pool, pages, &options, &block), 0);
	return block;
}

static bool is_pinned(const struct gpool_block *block)
{
	return atomic_load(&pool->session.pins[block->page]) != 0;
}

static void *allocates_elsewhere(void *block)
{
	*(struct gpool_block *)block = alloc_as(GPOOL_USAGE_ACTIVATION, 1);
	return NULL;
}

/*
 * A thread's scope pins what the thread allocates for its usage, for as long as the scope lasts.
 * Requirements: U21.
 */
static void test_rules_of_a_thread(void **state)
{
	static const uint32_t usages[] = {GPOOL_USAGE_KV_CACHE, GPOOL_USAGE_LORA_WEIGHT, GPOOL_USAGE_TEMP_BUFFER,
		GPOOL_USAGE_ACTIVATION, GPOOL_USAGE_GRADIENT};
	struct gpool_block in, others, out, inner, freed, left;
	struct gpool_scope scope = GPOOL_SCOPE_INIT, nested = GPOOL_SCOPE_INIT;
	pthread_t thread;

	(void)state;
	for (size_t i = 0; i < sizeof(usages) / sizeof(*usages); i++) {
		assert_int_equal(gpool_scope_begin(pool, usages[i], GPOOL_SCOPE_THREAD, &scope), 0);
		in = usages[i] ? alloc_as(usages[i], 2) : alloc(1); /* without options, the usage is KV_CACHE */
		out = alloc_as(usages[(i + 1) % GPOOL_USAGE_COUNT], 1);
		assert_true(is_pinned(&in));
		assert_int_equal(gpool_scope_end(&scope, GPOOL_FENCE_NONE), 0);
		assert_false(is_pinned(&in));
		assert_true(is_pinned(&out));
		assert_int_equal(gpool_discard(pool, &in), 0);
		assert_int_equal(gpool_free(pool, &out), 0);
	}
	assert_int_equal(gpool_scope_begin(pool, GPOOL_USAGE_ACTIVATION, GPOOL_SCOPE_THREAD, &scope), 0);
	in = alloc_as(GPOOL_USAGE_ACTIVATION, 1);
	assert_int_equal(pthread_create(&thread, NULL, allocates_elsewhere, &others), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(
		gpool_scope_begin(pool, GPOOL_USAGE_ACTIVATION, GPOOL_SCOPE_THREAD | GPOOL_SCOPE_FREE, &nested), 0);
	inner = alloc_as(GPOOL_USAGE_ACTIVATION, 1);
	freed = alloc_as(GPOOL_USAGE_ACTIVATION, 1);
	assert_int_equal(gpool_free(pool, &freed), 0);
	assert_int_equal(gpool_scope_end(&nested, GPOOL_FENCE_NONE), 0);
	assert_int_equal(gpool_pin(pool, &inner), -ESTALE);
	assert_true(is_pinned(&in));
	left = alloc_as(GPOOL_USAGE_ACTIVATION, 1);
	assert_int_equal(gpool_scope_end(&scope, GPOOL_FENCE_NONE), 0);
	assert_false(is_pinned(&in));
	assert_false(is_pinned(&left));
	assert_true(is_pinned(&others));
	assert_int_equal(gpool_discard(pool, &in), 0);
	assert_int_equal(gpool_discard(pool, &left), 0);
	assert_int_equal(gpool_free(pool, &others), 0);
	assert_int_equal(atomic_load(&pool->thread_scopes), 0);
}

static void *ends_with_a_scope(void *scope)
{
	struct gpool_scope *begun = scope;

	assert_int_equal(gpool_scope_begin(pool, GPOOL_USAGE_GRADIENT, GPOOL_SCOPE_THREAD, begun), 0);
	return NULL;
}

static void *ends_a_scope(void *scope)
{
	assert_int_equal(gpool_scope_end(scope, GPOOL_FENCE_NONE), -EINVAL);
	return NULL;
}

static void test_scopes_of_other_threads(void **state)
{
	struct gpool_scope scope = GPOOL_SCOPE_INIT, lost = GPOOL_SCOPE_INIT;
	struct gpool_block block;
	pthread_t thread;

	(void)state;
	assert_int_equal(gpool_scope_begin(pool, GPOOL_USAGE_GRADIENT, GPOOL_SCOPE_THREAD, &scope), 0);
	block = alloc_as(GPOOL_USAGE_GRADIENT, 1);
	assert_int_equal(pthread_create(&thread, NULL, ends_a_scope, &scope), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_true(is_pinned(&block));
	assert_int_equal(pthread_create(&thread, NULL, ends_with_a_scope, &lost), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(atomic_load(&pool->thread_scopes), 1);
	assert_int_equal(gpool_scope_end(&lost, GPOOL_FENCE_NONE), -EINVAL);
	assert_int_equal(gpool_scope_end(&scope, GPOOL_FENCE_NONE), 0);
	assert_int_equal(gpool_discard(pool, &block), 0);
}

static uint32_t lines;

static void count_lines(void *context, int level, const char *text)
{
	(void)context;
	lines += level == POOL_LOG_INFO && strstr(text, "outside of a scope") != NULL;
}

/* What no rule can unpin is logged, once for each usage. Requirements: U21. */
static void test_missing_scopes_are_logged(void **state)
{
	struct gpool_options options = harness_options(&harness);
	struct gpool_scope scope = GPOOL_SCOPE_INIT;

	(void)state;
	gpool_close(pool);
	options.log = count_lines;
	assert_int_equal(gpool_open(&options, &pool), 0);
	lines = 0;
	assert_int_equal(gpool_scope_begin(pool, GPOOL_USAGE_TEMP_BUFFER, GPOOL_SCOPE_THREAD, &scope), 0);
	for (uint32_t usage = 0; usage < GPOOL_USAGE_COUNT; usage++)
		for (int i = 0; i < 2; i++)
			alloc_as(usage, 1);
	assert_int_equal(lines, 2); /* ACTIVATION, GRADIENT */
	assert_int_equal(gpool_scope_end(&scope, GPOOL_FENCE_NONE), 0);
	alloc_as(GPOOL_USAGE_TEMP_BUFFER, 1);
	assert_int_equal(lines, 3);
}

/* ---- two phases ---- */

/* Requirements: U9. */
static void test_two_phases(void **state)
{
	struct gpool_block block, prepared, other;
	uint64_t entry = 1, address;

	(void)state;
	assert_int_equal(gpool_prepare(pool, 0, NULL, &block), -EINVAL);
	assert_int_equal(gpool_prepare(pool, 3, NULL, &block), 0);
	prepared = block;
	assert_int_equal(gpool_pin(pool, &block), -EINVAL);
	assert_int_equal(gpool_unpin(pool, &block), -EINVAL);
	assert_int_equal(gpool_free(pool, &block), -EINVAL);
	assert_int_equal(gpool_discard(pool, &block), -EINVAL);
	assert_int_equal(gpool_touch(pool, &block), -EINVAL);
	assert_int_equal(gpool_address(pool, &block, &address), -EINVAL);
	evict_all();
	assert_int_equal(gpool_commit(pool, &block, &entry), 0);
	assert_int_equal(gpool_address(pool, &block, &address), 0);
	assert_int_equal(entry, address);
	assert_int_equal(gpool_commit(pool, &block, &entry), -ESTALE);
	assert_int_equal(gpool_commit(pool, &prepared, &entry), -ESTALE);
	assert_int_equal(gpool_rollback(pool, &prepared), -ESTALE);
	assert_int_equal(gpool_rollback(pool, &block), -ESTALE);
	write_pages(&block, 4);
	assert_int_equal(gpool_free(pool, &block), 0);

	assert_int_equal(gpool_prepare(pool, 3, NULL, &other), 0);
	assert_int_equal(gpool_rollback(pool, &other), 0);
	assert_int_equal(gpool_rollback(pool, &other), -ESTALE);
	assert_int_equal(gpool_commit(pool, &other, NULL), -ESTALE);
}

/* Requirements: U9. */
static void test_two_phases_scattered(void **state)
{
	static struct gpool_block comb[PAGES];
	struct gpool_block block;
	uint64_t entry = 0;

	(void)state;
	make_comb(comb);
	assert_int_equal(gpool_prepare(pool, 6, NULL, &block), 0);
	assert_int_equal(gpool_commit(pool, &block, &entry), 0);
	assert_int_equal(entry, (uintptr_t)address_of(&block));
	write_pages(&block, 60);
	assert_pages(&block, 60);
	assert_int_equal(gpool_free(pool, &block), 0);
	assert_int_equal(gpool_prepare(pool, 6, NULL, &block), 0);
	assert_int_equal(gpool_rollback(pool, &block), 0);
	free_comb(comb);
}

/* ---- the steady state ---- */

/* Once all pages are mapped, allocation, pin, free and refill make no driver call. */
static void test_no_driver_calls_in_the_steady_state(void **state)
{
	struct gpool_block warm = alloc(PAGES), blocks[100];
	uint64_t calls;

	(void)state;
	assert_int_equal(gpool_free(pool, &warm), 0);
	assert_true(statistics().driver_calls > PAGES);
	calls = gpu_thread_calls_total();
	for (int round = 0; round < 100; round++) {
		for (int i = 0; i < 100; i++)
			blocks[i] = alloc(1 + (uint32_t)(i * round) % 4);
		for (int i = 0; i < 100; i++) {
			assert_int_equal(gpool_pin(pool, &blocks[i]), 0);
			assert_int_equal(gpool_unpin(pool, &blocks[i]), 0);
		}
		for (int i = 0; i < 100; i++)
			assert_int_equal(gpool_free(pool, &blocks[i]), 0);
	}
	assert_int_equal(statistics().scattered, 0);
	assert_int_equal(gpu_thread_calls_total(), calls);
}

/* ---- failures of the back end ---- */

/*
 * Make each kind of driver call that mapping needs fail once. The allocation must report the error without losing a
 * page or leaving one partly mapped, and the next allocation must succeed.
 */
static void test_mapping_fails(void **state)
{
	static const enum gpu_call kinds[] = {GPU_CALL_IMPORT, GPU_CALL_MAP, GPU_CALL_ACCESS};
	struct gpool_block block = {.page = 4711};
	uint32_t failures = 0;

	(void)state;
	for (size_t kind = 0; kind < sizeof(kinds) / sizeof(kinds[0]); kind++) {
		for (uint32_t n = 1; n <= 10; n++) {
			uint32_t pages = 20 * (1 + (uint32_t)kind) + n;
			int error;

			gpu_fault_set(pool->gpu, kinds[kind], n, -ENOMEM);
			error = gpool_alloc(pool, pages, NULL, &block);
			gpu_fault_set(pool->gpu, kinds[kind], 0, 0);
			if (error) {
				assert_int_equal(error, -ENOMEM);
				failures++;
				assert_int_equal(gpool_alloc(pool, pages, NULL, &block), 0);
			}
			write_pages(&block, n);
			assert_pages(&block, n);
			assert_int_equal(gpool_free(pool, &block), 0);
			/* Detach, so the next round has to map the pages again. */
			gpool_close(pool);
			pool = harness_open(&harness);
		}
	}
	assert_true(failures >= 21);
	block = alloc(PAGES);
}

static void test_stitching_fails(void **state)
{
	static const enum gpu_call kinds[] = {GPU_CALL_RESERVE, GPU_CALL_MAP, GPU_CALL_ACCESS};
	static struct gpool_block comb[PAGES];
	struct gpool_block block;

	(void)state;
	make_comb(comb);
	for (size_t kind = 0; kind < sizeof(kinds) / sizeof(kinds[0]); kind++) {
		for (uint32_t n = 1; n <= (kinds[kind] == GPU_CALL_MAP ? 4 : 1); n++) {
			gpu_fault_set(pool->gpu, kinds[kind], n, -ENOMEM);
			assert_int_equal(gpool_alloc(pool, 4, NULL, &block), -ENOMEM);
			block = alloc(4);
			write_pages(&block, n);
			assert_int_equal(gpool_free(pool, &block), 0);
		}
	}
	/* A failed unmap loses addresses, but no page. */
	block = alloc(4);
	gpu_fault_set(pool->gpu, GPU_CALL_UNMAP, 1, -EIO);
	assert_int_equal(gpool_free(pool, &block), 0);
	free_comb(comb);
	block = alloc(PAGES);
}

static void test_thread_keeps_as_many_as_asked(void **state)
{
	static const uint32_t sizes[] = {1, 5, 64};
	struct gpool_options options = harness_options(&harness);
	struct gpool_block blocks[70];

	(void)state;
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct gpool_stats before = {.size = sizeof(before)}, after = before;
		struct gpool *other;

		options.magazine = sizes[i];
		assert_int_equal(gpool_open(&options, &other), 0);
		for (int j = 0; j < 70; j++)
			assert_int_equal(gpool_alloc(other, 1, NULL, &blocks[j]), 0);
		/* Return the rest of the last batch, so that the magazine is empty. */
		thread_cache_flush(thread_cache_of(other));
		assert_int_equal(gpool_stats(other, &before), 0);
		for (int j = 0; j < 70; j++)
			assert_int_equal(gpool_free(other, &blocks[j]), 0);
		assert_int_equal(gpool_stats(other, &after), 0);
		assert_int_equal(after.idle_pages - before.idle_pages, 70 - sizes[i]);
		gpool_close(other);
	}
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, attach, detach)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_alloc_free),
		TEST(test_double_free_and_use_after_free),
		TEST(test_pins_count),
		TEST(test_alloc_refuses_bad_arguments),
		TEST(test_garbage_handles),
		TEST(test_first_fit_and_best_fit),
		TEST(test_out_of_memory_names_the_holder),
		TEST(test_quota),
		TEST(test_evicted_block_is_stale),
		TEST(test_evicted_caches_are_forgotten),
		TEST(test_eviction_makes_room),
		TEST(test_free_while_others_pin),
		TEST(test_scattered_block),
		TEST(test_scattered_block_evicted_and_again),
		TEST(test_scope_unpins_at_its_end),
		TEST(test_rules_of_a_thread),
		TEST(test_scopes_of_other_threads),
		TEST(test_missing_scopes_are_logged),
		TEST(test_scope_frees_and_reports),
		TEST(test_two_phases),
		TEST(test_two_phases_scattered),
		TEST(test_no_driver_calls_in_the_steady_state),
		TEST(test_mapping_fails),
		TEST(test_stitching_fails),
		TEST(test_thread_keeps_as_many_as_asked),
	};
	int failed;

	harness_start(&harness, (const char *const[]){"--pool", HARNESS_POOL, NULL});
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	return harness_stop(&harness) || failed;
}
