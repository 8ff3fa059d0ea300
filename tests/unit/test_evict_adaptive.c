/*
 * test_evict_adaptive.c - the eviction policy `adaptive`.
 *
 * Goal: `adaptive` keeps reused content where `lru_size_aware` loses it: in a loop larger than the pool, in a scan, and
 * by popularity. It recognizes evicted blocks by their owner ids, and forgets freed ones. False names of one session do
 * not dominate the statistics.
 *
 * Method: a pool of pages simulated in memory, read and evicted only through struct evict_policy, as in evict.c.
 *
 * Requirements: U7.
 */
#include "agent/config/config.h"
#include "agent/pages/evict.h"
#include "shm/session_segment.h"
#include "tests/lib/seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { PAGES = 400, BATCH = 8, NAMES = 100000, USES = 60000 };

struct block {
	uint64_t name; /* 0: the page is free */
	uint64_t tag;
	uint32_t session, touched;
};

static struct {
	const struct evict_policy *policy;
	void *state;
	struct block blocks[PAGES];
	uint32_t places[NAMES]; /* page plus 1 */
	uint32_t free_pages, now;
	uint64_t sequence;
} pool;

static void pool_begin(const struct evict_policy *policy)
{
	struct config *config = calloc(1, sizeof(*config));

	memset(&pool, 0, sizeof(pool));
	pool.policy = policy;
	pool.free_pages = PAGES;
	config->eviction.recency = 0.6;
	config->eviction.size = config->eviction.priority = 0.2;
	assert_int_equal(policy->create(PAGES, &pool.state), 0);
	if (policy->configure)
		policy->configure(pool.state, config);
	free(config);
}

static void block_free(uint32_t page)
{
	pool.places[pool.blocks[page].name] = 0;
	pool.blocks[page].name = 0;
	pool.free_pages++;
}

static int by_score(const void *left, const void *right)
{
	const struct evict_candidate *a = left, *b = right;

	if (a->score != b->score)
		return a->score < b->score ? -1 : 1;
	return a->idle_ms > b->idle_ms ? -1 : a->idle_ms < b->idle_ms;
}

/* Scan, and evict `count` blocks. */
static void evict(uint32_t count)
{
	static struct evict_sight sights[PAGES];
	static struct evict_candidate candidates[PAGES];
	uint32_t blocks = 0;

	for (uint32_t page = 0; page < PAGES; page++) {
		const struct block *block = &pool.blocks[page];

		if (!block->name)
			continue;
		sights[blocks] = (struct evict_sight){.key = block->name,
			.tag = block->tag,
			.page = page,
			.session = block->session,
			.idle_ms = pool.now - block->touched,
			.touched = block->touched};
		candidates[blocks++] = (struct evict_candidate){.tag = block->tag,
			.page = page,
			.pages = 1,
			.session = block->session,
			.idle_ms = pool.now - block->touched,
			.cost = 1};
	}
	if (pool.policy->see)
		pool.policy->see(pool.state, sights, blocks);
	pool.policy->score(pool.state, candidates, blocks);
	qsort(candidates, blocks, sizeof(*candidates), by_score);
	for (uint32_t i = 0; i < count; i++) {
		block_free(candidates[i].page);
		if (pool.policy->evicted)
			pool.policy->evicted(pool.state, &candidates[i]);
	}
}

static bool named_later;

/* Let a scan see the page with a name that no other block has. */
static void see_unnamed(uint32_t page)
{
	uint64_t name = pool.blocks[page].name;

	pool.blocks[page].name = NAMES + pool.sequence;
	evict(0);
	pool.blocks[page].name = name;
}

static bool use(uint32_t session, uint32_t name)
{
	uint32_t page = 0;

	pool.now++;
	if (pool.places[name]) {
		pool.blocks[pool.places[name] - 1].touched = pool.now;
		return true;
	}
	if (!pool.free_pages)
		evict(BATCH);
	while (pool.blocks[page].name)
		page++;
	pool.blocks[page] = (struct block){
		.name = name, .tag = block_tag_make(++pool.sequence, 0), .session = session, .touched = pool.now};
	pool.places[name] = page + 1;
	pool.free_pages--;
	if (named_later)
		see_unnamed(page);
	return false;
}

static void pool_end(void)
{
	pool.policy->destroy(pool.state);
}

/* ---- workloads: hits of USES uses ---- */

static uint32_t loop_hits(const struct evict_policy *policy)
{
	uint32_t hits = 0;

	pool_begin(policy);
	for (uint32_t i = 0; i < USES; i++)
		hits += use(1, 1 + i % (PAGES * 3 / 2));
	pool_end();
	return hits;
}

/* One use in five is of reused content. The others are of content that is used once. */
static uint32_t scan_hits(const struct evict_policy *policy)
{
	uint32_t hits = 0, once = 0;

	pool_begin(policy);
	for (uint32_t i = 0; i < USES; i++)
		hits += i % 5 ? (use(1, PAGES + once++), 0) : use(1, 1 + i / 5 % (PAGES / 2));
	pool_end();
	return hits;
}

/*
 * The name is the larger of two random numbers, repeatedly. Few names are used often, most seldom, and some never
 * again.
 */
static uint32_t mix_hits(const struct evict_policy *policy)
{
	uint32_t hits = 0, once = 0;

	pool_begin(policy);
	seed = 0x9e3779b97f4a7c15;
	for (uint32_t i = 0; i < USES; i++) {
		uint32_t name = any(20 * PAGES);

		for (int j = 0; j < 3; j++)
			name = any(name + 1);
		hits += i % 3 ? use(1, 1 + name) : (use(1, 1 + 20 * PAGES + once++), 0);
	}
	pool_end();
	return hits;
}

static void test_loop_larger_than_the_pool(void **state)
{
	(void)state;
	assert_int_equal(loop_hits(&evict_lru_size_aware), 0);
	assert_true(loop_hits(&evict_adaptive) > USES / 2);
}

static void test_scan_does_not_flush(void **state)
{
	uint32_t lru = scan_hits(&evict_lru_size_aware), adaptive = scan_hits(&evict_adaptive);

	(void)state;
	print_message("lru %u, adaptive %u\n", lru, adaptive);
	assert_true(adaptive > lru && adaptive > USES / 5 * 8 / 10);
}

static void test_mix_is_kept_by_use(void **state)
{
	uint32_t lru = mix_hits(&evict_lru_size_aware), adaptive = mix_hits(&evict_adaptive);

	(void)state;
	print_message("lru %u, adaptive %u\n", lru, adaptive);
	assert_true(adaptive > lru + lru / 20);
}

/* ---- statistics of blocks ---- */

/* Before any statistics exist, the least recently used block is evicted first, even if all were seen in one scan. */
static void test_first_scan_is_lru(void **state)
{
	enum { BLOCKS = PAGES / 2 };

	(void)state;
	pool_begin(&evict_adaptive);
	for (uint32_t i = 0; i < BLOCKS; i++)
		use(1, 1 + i * 7 % BLOCKS);
	for (uint32_t i = 0; i < BLOCKS; i++)
		use(1, 1 + i * 11 % BLOCKS);
	evict(BLOCKS / 4);
	for (uint32_t i = 0; i < BLOCKS; i++)
		assert_int_equal(pool.places[1 + i * 11 % BLOCKS] != 0, i >= BLOCKS / 4);
	pool_end();
}

/*
 * If blocks get their names after a scan has seen them, the policy recognizes them as if they had had the names from
 * the start.
 */
static void test_named_later(void **state)
{
	uint32_t at_once = scan_hits(&evict_adaptive), later;

	(void)state;
	named_later = true;
	later = scan_hits(&evict_adaptive);
	named_later = false;
	print_message("at once %u, later %u\n", at_once, later);
	assert_true(later > at_once * 97 / 100);
}

/* A page may have another block at each scan. The statistics must be those of the current block. */
static void test_random_life(void **state)
{
	(void)state;
	seed_begin();
	pool_begin(&evict_adaptive);
	for (uint32_t i = 0; i < USES; i++) {
		uint32_t page = any(PAGES);

		if (any(4))
			use(1 + any(3), 1 + any(3 * PAGES));
		else if (pool.blocks[page].name)
			block_free(page);
		if (any(200) == 0)
			evict((PAGES - pool.free_pages) / (1 + any(4)));
	}
	pool_end();
}

/*
 * One session, which has a quarter of the pool, reports false uses of its blocks all the time. Its blocks have few
 * names, so an evicted name soon recurs. The hit rate of the other session's loop must be nearly that of the remaining
 * part of the pool without the first session.
 */
static void test_false_uses(void **state)
{
	uint32_t hits = 0, uses = 0, false_names = PAGES / 4;

	(void)state;
	pool_begin(&evict_adaptive);
	for (uint32_t i = 0; uses < USES; i++) {
		for (uint32_t page = 0; page < PAGES; page++)
			if (pool.blocks[page].session == 2)
				pool.blocks[page].touched = pool.now + any(1000);
		for (uint32_t j = 0; j < 5; j++)
			use(2, 50000 + any(false_names));
		for (uint32_t j = 0; j < 20; j++, uses++)
			hits += use(1, 1 + uses % (PAGES * 9 / 8));
	}
	pool_end();
	print_message("%u hits of %u\n", hits, uses);
	assert_true(hits > uses * 5 / 10);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_loop_larger_than_the_pool),
		cmocka_unit_test(test_scan_does_not_flush),
		cmocka_unit_test(test_mix_is_kept_by_use),
		cmocka_unit_test(test_first_scan_is_lru),
		cmocka_unit_test(test_named_later),
		cmocka_unit_test(test_random_life),
		cmocka_unit_test(test_false_uses),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
