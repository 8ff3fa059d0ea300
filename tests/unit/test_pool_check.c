/*
 * test_pool_check.c - the check of a pool.
 *
 * Goal: pool_check() reports no finding for a consistent pool and names each broken invariant, which shows that the
 * check can fail. Method: build a small consistent pool by hand, then break one property at a time.
 */
#include "shm/pool_check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { PAGES = 128, SESSION = 3 };

static struct {
	struct pool_segment pool;
	struct session_segment session;
	int pool_fd, session_fd;
	char findings[4096]; /* all findings, one after another */
} it;

static void lend(uint32_t first, uint32_t count)
{
	for (uint32_t page = first; page < first + count; page++)
		it.pool.pages[page] = page_word_make(PAGE_LEASED, SESSION, 2);
	it.pool.header->state_pages[PAGE_FREE] -= count;
	it.pool.header->state_pages[PAGE_LEASED] += count;
}

static void block(uint32_t first, uint32_t count, uint64_t tag, uint32_t next)
{
	it.session.blocks[first].page_count = count;
	it.session.blocks[first].next = next;
	it.session.blocks[first].tag = tag;
}

/* 0..3 idle, 4 cached, 5..8 a pinned block, 10..11 and 20..22 one scattered block, the rest free */
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
	assert_int_equal(pool_segment_create(&geometry, &it.pool, &it.pool_fd), 0);
	assert_int_equal(session_segment_create(PAGES, 0, SESSION, 1, &it.session, &it.session_fd), 0);
	lend(0, 9);
	lend(10, 2);
	lend(20, 3);
	it.session.free_bits[0] = 0xf;
	block(4, 1, BLOCK_TAG_CACHED, 0);
	block(5, 4, block_tag_make(1, 0), 0);
	block(10, 2, block_tag_make(2, BLOCK_SCATTERED), 21);
	block(20, 3, block_tag_make(2, BLOCK_EXTENT), 0);
	it.session.pins[5] = 1;
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	pool_segment_close(&it.pool);
	session_segment_close(&it.session);
	close(it.pool_fd);
	close(it.session_fd);
	return 0;
}

static void note(void *context, const struct pool_finding *finding)
{
	size_t length = strlen(it.findings);

	(void)context;
	snprintf(it.findings + length, sizeof(it.findings) - length, "%s\n", finding->text);
}

static struct pool_check look(bool quiescent)
{
	struct pool_check_session session = {SESSION, &it.session};
	struct pool_check check = {.quiescent = quiescent, .found = note};
	int result = pool_check(&it.pool, &session, 1, &check);

	assert_int_equal(result, check.findings ? 1 : 0);
	return check;
}

static void expect(const char *words)
{
	struct pool_check check = look(true);

	assert_true(check.findings > 0);
	if (!strstr(it.findings, words))
		fail_msg("'%s' does not say '%s'", it.findings, words);
}

static void test_sound_pool_is_clean(void **state)
{
	struct pool_check check = look(true);

	(void)state;
	assert_int_equal(check.findings, 0);
	assert_int_equal(check.in_transit, 0);
	assert_int_equal(check.idle_pages, 4);
	assert_int_equal(check.cached_pages, 1);
	assert_int_equal(check.block_pages, 9);
	assert_int_equal(check.pinned_pages, 4);
}

static void test_page_in_transit(void **state)
{
	(void)state;
	it.session.free_bits[0] = 0xe;
	assert_int_equal(look(false).findings, 0);
	assert_int_equal(look(false).in_transit, 1);
	expect("but not in a block");
}

static void test_count_that_is_off(void **state)
{
	(void)state;
	it.pool.header->state_pages[PAGE_FREE]++;
	expect("but the header of the pool counts");
}

static void test_free_page_with_an_owner(void **state)
{
	(void)state;
	it.pool.pages[50] = page_word_make(PAGE_FREE, SESSION, 2);
	expect("but owned");
}

static void test_page_of_an_unattached_session(void **state)
{
	(void)state;
	it.pool.pages[8] = page_word_make(PAGE_LEASED, 9, 2);
	assert_true(look(true).findings >= 1);
}

static void test_state_that_is_none(void **state)
{
	(void)state;
	it.pool.pages[60] = UINT64_C(15) << 60;
	assert_true(look(true).findings >= 1);
}

static void test_free_bit_on_a_foreign_page(void **state)
{
	(void)state;
	it.session.free_bits[1] = 1;
	expect("a free bit on a page that is not leased");
}

static void test_free_bit_inside_a_block(void **state)
{
	(void)state;
	it.session.free_bits[0] |= 1 << 6;
	expect("the session claims the page twice");
}

static void test_blocks_that_overlap(void **state)
{
	(void)state;
	block(7, 1, block_tag_make(3, 0), 0);
	expect("the session claims the page twice");
}

static void test_block_beyond_the_pool(void **state)
{
	(void)state;
	block(5, PAGES, block_tag_make(1, 0), 0);
	assert_true(look(true).findings >= 1);
}

/*
 * Overlapping runs of a damaged session cause one finding each. The cost of a check is bounded by the pool's size, not
 * by the session's content.
 */
static void test_overlapping_heads_cost_one_finding_each(void **state)
{
	struct pool_check check;

	(void)state;
	for (uint32_t page = 0; page < PAGES; page++)
		block(page, PAGES - page, block_tag_make(100 + page, 0), 0);
	check = look(false);
	assert_true(check.findings >= PAGES - 1);
	assert_true(check.findings <= PAGES + 8);
}

static void test_chain_into_nowhere(void **state)
{
	(void)state;
	it.session.blocks[10].next = PAGES + 5;
	assert_true(look(false).findings >= 1);
}

static void test_chain_in_a_cycle(void **state)
{
	(void)state;
	it.session.blocks[20].next = 21;
	assert_true(look(false).findings >= 1);
}

static void test_extent_without_a_head(void **state)
{
	(void)state;
	it.session.blocks[10].next = 0;
	assert_true(look(true).findings >= 1);
}

static void test_pin_on_nothing(void **state)
{
	(void)state;
	it.session.pins[6] = 1;
	expect("no block starts here");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_sound_pool_is_clean, setup, teardown),
		cmocka_unit_test_setup_teardown(test_page_in_transit, setup, teardown),
		cmocka_unit_test_setup_teardown(test_count_that_is_off, setup, teardown),
		cmocka_unit_test_setup_teardown(test_free_page_with_an_owner, setup, teardown),
		cmocka_unit_test_setup_teardown(test_page_of_an_unattached_session, setup, teardown),
		cmocka_unit_test_setup_teardown(test_state_that_is_none, setup, teardown),
		cmocka_unit_test_setup_teardown(test_free_bit_on_a_foreign_page, setup, teardown),
		cmocka_unit_test_setup_teardown(test_free_bit_inside_a_block, setup, teardown),
		cmocka_unit_test_setup_teardown(test_blocks_that_overlap, setup, teardown),
		cmocka_unit_test_setup_teardown(test_block_beyond_the_pool, setup, teardown),
		cmocka_unit_test_setup_teardown(test_overlapping_heads_cost_one_finding_each, setup, teardown),
		cmocka_unit_test_setup_teardown(test_chain_into_nowhere, setup, teardown),
		cmocka_unit_test_setup_teardown(test_chain_in_a_cycle, setup, teardown),
		cmocka_unit_test_setup_teardown(test_extent_without_a_head, setup, teardown),
		cmocka_unit_test_setup_teardown(test_pin_on_nothing, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
