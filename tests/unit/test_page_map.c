/*
 * test_page_map.c - counts of pages by demand.
 *
 * Goal: page_map_count() and page_map_uses() count each leased page exactly once, as needed, offered or idle, whatever
 * its session contains, and the sum is the size of the lease. Both return the same counts. Method: write valid and
 * impossible page words and session entries by hand.
 */
#include "shm/page_map.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { PAGES = 128, SESSION = 3, OTHER = 7 };

static struct {
	struct pool_segment pool;
	struct session_segment sessions[2]; /* for SESSION and OTHER */
	int fds[3];
	struct page_fact facts[PAGES];
	struct page_uses uses[POOL_SESSIONS];
} it;

static void lend(uint32_t first, uint32_t count, enum page_state state, uint32_t session)
{
	for (uint32_t page = first; page < first + count; page++)
		it.pool.pages[page] = page_word_make(state, session, 2);
}

static void block(uint32_t first, uint32_t count, uint64_t tag, uint32_t next)
{
	it.sessions[0].blocks[first].page_count = count;
	it.sessions[0].blocks[first].next = next;
	it.sessions[0].blocks[first].tag = tag;
}

static int setup(void **state)
{
	static const struct pool_geometry geometry = {.name = "p",
		.backend = "host",
		.device = "d",
		.page_bytes = 1 << 20,
		.page_count = PAGES,
		.pages_per_handle = 1};

	(void)state;
	memset(&it, 0, sizeof(it));
	assert_int_equal(pool_segment_create(&geometry, &it.pool, &it.fds[0]), 0);
	assert_int_equal(session_segment_create(PAGES, 0, SESSION, 1, &it.sessions[0], &it.fds[1]), 0);
	assert_int_equal(session_segment_create(PAGES, 0, OTHER, 1, &it.sessions[1], &it.fds[2]), 0);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	pool_segment_close(&it.pool);
	session_segment_close(&it.sessions[0]);
	session_segment_close(&it.sessions[1]);
	for (int i = 0; i < 3; i++)
		close(it.fds[i]);
	return 0;
}

static void look(void)
{
	const struct pool_check_session sessions[] = {{SESSION, &it.sessions[0]}, {OTHER, &it.sessions[1]}};

	struct page_uses uses[POOL_SESSIONS];
	uint64_t seen[PAGES / 64] = {0};

	page_map_fill(&it.pool, sessions, 2, it.facts);
	page_map_count(it.facts, PAGES, it.uses);
	page_map_uses(&it.pool, sessions, 2, seen, uses);
	assert_memory_equal(uses, it.uses, sizeof(uses));
}

static void expect(uint32_t session, uint32_t needed, uint32_t offered, uint32_t idle)
{
	look();
	assert_int_equal(it.uses[session].needed, needed);
	assert_int_equal(it.uses[session].offered, offered);
	assert_int_equal(it.uses[session].idle, idle);
}

static void test_each_kind(void **state)
{
	(void)state;
	lend(0, 64, PAGE_LEASED, SESSION);
	expect(SESSION, 64, 0, 0); /* in transit */
	it.sessions[0].free_bits[0] = 0xf;
	expect(SESSION, 60, 0, 4);
	block(4, 2, BLOCK_TAG_CACHED, 0);
	expect(SESSION, 58, 0, 6);
	block(8, 4, block_tag_make(1, 1), 0);
	expect(SESSION, 54, 4, 6);
	it.sessions[0].pins[8] = 2;
	expect(SESSION, 58, 0, 6);
	block(12, 4, block_tag_make(2, BLOCK_PREPARED), 0);
	expect(SESSION, 58, 0, 6);
	block(16, 2, block_tag_make(3, BLOCK_SCATTERED), 20 + 1);
	block(20, 3, block_tag_make(3, BLOCK_EXTENT), 0);
	expect(SESSION, 53, 5, 6);
	it.sessions[0].pins[16] = 1;
	expect(SESSION, 58, 0, 6);
	assert_int_equal(it.uses[SESSION].used, 4 + 4 + 5);
	assert_int_equal(it.uses[SESSION].pinned, 4 + 5);
	assert_int_equal(it.uses[SESSION].usages[1], 4);
	assert_int_equal(it.uses[0].needed, 58);
}

static void test_a_freed_block(void **state)
{
	(void)state;
	lend(0, 8, PAGE_LEASED, SESSION);
	block(0, 8, block_tag_make(1, BLOCK_DYING), 0);
	it.sessions[0].blocks[0].fence = UINT64_MAX; /* of no timeline: never signaled */
	it.sessions[0].pins[0] = 1;
	expect(SESSION, 8, 0, 0);
	it.sessions[0].pins[0] = 0;
	expect(SESSION, 0, 0, 8);
	assert_int_equal(it.uses[SESSION].used, 0);
}

static void test_a_closed_session_needs_all(void **state)
{
	(void)state;
	lend(0, 8, PAGE_QUARANTINED, SESSION);
	lend(8, 4, PAGE_MOVING, OTHER);
	it.sessions[0].free_bits[0] = 0xf;
	block(4, 2, block_tag_make(1, 0), 0);
	it.sessions[1].blocks[8].page_count = 4;
	it.sessions[1].blocks[8].tag = block_tag_make(1, 0);
	expect(SESSION, 8, 0, 0);
	expect(OTHER, 0, 4, 0);
	expect(0, 0, 4, 0);
}

/* Blocks overlap, form a cycle, extend beyond the end, or include another session's pages or pages with a free bit. */
static void test_a_liar_has_no_page_twice(void **state)
{
	(void)state;
	lend(0, 32, PAGE_LEASED, SESSION);
	lend(32, 8, PAGE_LEASED, OTHER);
	it.sessions[0].free_bits[0] = UINT64_C(0xff00000007);
	block(0, 32, block_tag_make(1, 0), 0);
	block(4, 8, block_tag_make(2, BLOCK_SCATTERED), 4 + 1);
	block(6, PAGES, block_tag_make(3, 0), 0);
	block(20, 30, block_tag_make(4, 0), 0);
	block(30, UINT32_MAX, block_tag_make(5, BLOCK_SCATTERED), UINT32_MAX);
	block(33, 4, BLOCK_TAG_CACHED, 0);
	look();
	assert_int_equal(it.uses[SESSION].needed + it.uses[SESSION].offered + it.uses[SESSION].idle, 32);
	assert_int_equal(it.uses[SESSION].idle, 3);
	expect(OTHER, 8, 0, 0);
}

/* The agent evicts no block whose tag has no sequence. */
static void test_a_tag_without_a_sequence_is_no_offer(void **state)
{
	(void)state;
	lend(0, 8, PAGE_LEASED, SESSION);
	block(0, 4, 0x2, 0);
	block(4, 4, BLOCK_DYING, 0);
	expect(SESSION, 8, 0, 0);
}

/* Both ways to count agree on any contents. */
static void test_random_contents(void **state)
{
	static const enum page_state states[] = {
		PAGE_FREE, PAGE_LEASED, PAGE_LEASED, PAGE_QUARANTINED, PAGE_EVICTING, PAGE_MOVING, PAGE_SHARED};
	static const uint64_t tags[] = {0, BLOCK_TAG_CACHED, BLOCK_DYING, 2};
	static const uint32_t flags[] = {0, BLOCK_SCATTERED, BLOCK_EXTENT, BLOCK_PREPARED, BLOCK_DYING};

	(void)state;
	srandom(11);
	for (int round = 0; round < 2000; round++) {
		for (uint32_t page = 0; page < PAGES; page++)
			if (random() % 8 == 0)
				lend(page, 1, states[random() % 7], random() % 4 ? SESSION : OTHER);
		for (int i = 0; i < 40; i++) {
			uint32_t page = (uint32_t)random() % PAGES;
			uint64_t tag = random() % 4 ? block_tag_make((uint64_t)random() % 9, flags[random() % 5])
						    : tags[random() % 4];

			block(page, random() % 9 ? (uint32_t)random() % 12 : UINT32_MAX, tag,
				(uint32_t)random() % (PAGES + 8));
			it.sessions[0].pins[random() % PAGES] = (uint32_t)(random() % 2);
			it.sessions[0].free_bits[random() % (PAGES / 64)] ^= UINT64_C(1) << random() % 64;
			it.sessions[1].blocks[page].tag = tag;
			it.sessions[1].blocks[page].page_count = 1 + (uint32_t)random() % 3;
		}
		look();
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_each_kind, setup, teardown),
		cmocka_unit_test_setup_teardown(test_a_freed_block, setup, teardown),
		cmocka_unit_test_setup_teardown(test_a_closed_session_needs_all, setup, teardown),
		cmocka_unit_test_setup_teardown(test_a_liar_has_no_page_twice, setup, teardown),
		cmocka_unit_test_setup_teardown(test_a_tag_without_a_sequence_is_no_offer, setup, teardown),
		cmocka_unit_test_setup_teardown(test_random_contents, setup, teardown),
	};

	return cmocka_run_group_tests_name("page_map", tests, NULL, NULL);
}
