/*
 * elastic_view.h - test elastic ranges in a pool of 64 pages: start agents, write contents that identify their pages,
 * and allocate all available pages. Based on spill_view.h.
 */
#ifndef GPOOL_TESTS_ELASTIC_VIEW_H
#define GPOOL_TESTS_ELASTIC_VIEW_H

#include "client/vm/elastic.h"
#include "tests/integration/spill_view.h"
#include "tests/lib/unwatched.h"

enum { PAGE_BYTES = TEST_PAGE_BYTES, SPARSE = 4096 };

#define CALM QUIET, "--set", "lease.initial_pages=0", "--set", "lease.batch_pages=1", "--set", "lease.batch_most=1"

__attribute__((unused)) static const char *const plain[] = {"--pool", POOL, CALM, NULL};
__attribute__((unused)) static const char *const fours[] = {
	"--pool", POOL ",handle_size=" TEST_SIZE_4_PAGES, CALM, NULL};
__attribute__((unused)) static const char *const spilling[] = {
	"--pool", POOL ",spill_memory=" TEST_SIZE_64_PAGES, CALM, NULL};
__attribute__((unused)) static const char *const fours_spilling[] = {
	"--pool", POOL ",handle_size=" TEST_SIZE_4_PAGES ",spill_memory=" TEST_SIZE_64_PAGES, CALM, NULL};

static const struct gpool_fence done_fence = {0};

/* ---- ranges and their contents ---- */

static inline struct gpool_range *reserved_as(struct gpool *pool, uint32_t pages, uint32_t memory_class)
{
	struct gpool_range_options options = GPOOL_RANGE_OPTIONS_INIT;
	struct gpool_range *range = NULL;

	options.memory_class = memory_class;
	options.owner_id = 4711;
	assert_int_equal(gpool_range_reserve(pool, pages, &options, &range), 0);
	return range;
}

static inline struct gpool_range *reserved(struct gpool *pool)
{
	return reserved_as(pool, SPARSE, GPOOL_OBJECT_MUTABLE);
}

static inline volatile uint64_t *words_at(struct gpool_range *range, uint32_t page)
{
	uint64_t address = 0;

	assert_int_equal(gpool_range_address(range, &address), 0);
	return (volatile uint64_t *)(uintptr_t)(address + page * (uint64_t)PAGE_BYTES);
}

/* Write the first and the last word of each page. */
static inline void fill(struct gpool_range *range, uint32_t first, uint32_t count, uint64_t content)
{
	for (uint32_t page = first; page < first + count; page++) {
		volatile uint64_t *words = words_at(range, page);

		words[0] = words[PAGE_BYTES / 8 - 1] = content << 32 | page;
	}
}

static inline uint32_t wrong(struct gpool_range *range, uint32_t first, uint32_t count, uint64_t content)
{
	uint32_t found = 0;

	for (uint32_t page = first; page < first + count; page++) {
		const volatile uint64_t *words = words_at(range, page);

		found += words[0] != (content << 32 | page) || words[PAGE_BYTES / 8 - 1] != (content << 32 | page);
	}
	return found;
}

static inline int commit(struct gpool_range *range, uint32_t first, uint32_t count)
{
	return gpool_range_commit(range, first, count, 0);
}

static inline int decommit(struct gpool_range *range, uint32_t first, uint32_t count)
{
	return gpool_range_decommit(range, first, count, done_fence);
}

static inline struct gpool_range_info info_of(struct gpool_range *range)
{
	struct gpool_range_info info = {.size = sizeof(info)};

	assert_int_equal(gpool_range_info(range, &info), 0);
	return info;
}

static inline struct gpool_range_page page_of(struct gpool_range *range, uint32_t index)
{
	struct gpool_range_page page = {.size = sizeof(page)};

	assert_int_equal(gpool_range_resolve(range, index, &page), 0);
	return page;
}

static inline uint32_t in_state(struct gpool_range *range, uint32_t first, uint32_t count, uint32_t state)
{
	uint32_t found = 0;

	for (uint32_t page = first; page < first + count; page++)
		found += page_of(range, page).state == state;
	return found;
}

static inline uint32_t free_pages(void)
{
	return atomic_load(&pool_view(admin)->header->state_pages[PAGE_FREE]);
}

/* Allocate all free pages as blocks of one page, and overwrite them. */
static inline uint32_t squat(struct gpool *pool, struct gpool_block *blocks, uint32_t most)
{
	uint32_t count = 0;

	while (count < most && gpool_alloc(pool, 1, NULL, &blocks[count]) == 0) {
		uint64_t address;

		assert_int_equal(gpool_address(pool, &blocks[count], &address), 0);
		spoil(address, PAGE_BYTES);
		count++;
	}
	return count;
}

static inline void leave(struct gpool *pool, struct gpool_block *blocks, uint32_t count)
{
	while (count)
		assert_int_equal(gpool_free(pool, &blocks[--count]), 0);
	thread_cache_flush(thread_cache_of(pool));
}

static inline uint32_t lease_idle_count(const struct gpool *pool)
{
	uint32_t idle = 0;

	for (uint32_t word = 0; word < PAGES / 64; word++)
		idle += (uint32_t)__builtin_popcountll(atomic_load(&pool->session.free_bits[word]));
	return idle;
}

static inline uint64_t requests(const struct gpool *pool)
{
	struct gpool_stats statistics = {.size = sizeof(statistics)};

	assert_int_equal(gpool_stats((struct gpool *)pool, &statistics), 0);
	return statistics.refills;
}

#endif
