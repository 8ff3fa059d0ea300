/*
 * test_hostile_blocks.c - impossible blocks that a worker writes into its own segment.
 *
 * Goal: if the extents of a scattered block overlap, no page is lent twice, whether the block is evicted, spilled or
 * used as the target of a restore. The same holds for a worker that uses the pages of its reservation.
 *
 * Method: a real gpoold, and a worker that changes the entries of its blocks. Afterwards the invariants hold, and
 * another worker allocates the whole pool and gets each page once.
 *
 * Requirements: S10.
 */
#include "client/core/pool.h"
#include "shm/pool_segment.h"
#include "tests/integration/life.h"

#include <errno.h>

enum { PART = 8 };

static const char *const bare[] = {"--pool", POOL, QUIET, "--set", "lease.initial_pages=0", "--set",
	"lease.batch_pages=1", "--set", "lease.batch_most=1", NULL};
static const char *const spilling[] = {"--pool", POOL ",spill_memory=16MiB", QUIET, NULL};

static struct gpool_block block_of_a_part(struct gpool *pool, uint32_t flags)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_block block;

	options.flags = flags | GPOOL_ALLOC_CONTIGUOUS;
	assert_int_equal(gpool_alloc(pool, PART, &options, &block), 0);
	return block;
}

/* Set the extents to pages [0, 5) and [2, 5): the right number of pages, three of them twice. Return the new tag. */
static uint64_t fold(struct gpool *pool, const struct gpool_block *block, uint32_t attributes)
{
	struct block_entry *head = &pool->session.blocks[block->page], *extent = head + 2;
	uint64_t tag = atomic_load(&head->tag) | BLOCK_SCATTERED | attributes;

	atomic_store(&extent->page_count, 3);
	atomic_store(&extent->next, 0);
	atomic_store(&extent->tag, (tag | BLOCK_EXTENT) & ~(uint64_t)BLOCK_SCATTERED);
	atomic_store(&head->page_count, 5);
	atomic_store(&head->next, block->page + 3);
	atomic_store(&head->tag, tag);
	return tag;
}

/* Send a request that the library would not send. Return the error of the reply. */
static int request(struct gpool *pool, uint32_t kind, uint32_t page, uint32_t need, uint64_t tag)
{
	struct lease_request *slot = &pool->session.requests[SESSION_REQUESTS - 1];
	uint32_t word = lease_state_to(atomic_load(&slot->state) + LEASE_SERIAL_ONE, LEASE_REQUESTED);
	uint64_t one = 1;

	slot->kind = kind;
	slot->need = need;
	slot->first_page = page;
	slot->tag = tag;
	atomic_store(&slot->state, word);
	atomic_fetch_or(&pool->session.header->requests_pending, UINT64_C(1) << (SESSION_REQUESTS - 1));
	assert_int_equal(write(pool->doorbell, &one, sizeof(one)), sizeof(one));
	AWAIT(lease_state_of(atomic_load(&slot->state)) == LEASE_DONE);
	return slot->error;
}

/* Detach the hostile worker, and check that all pages are free and that each is lent once. */
static void each_page_once(struct gpool *liar)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_block block;
	struct gpool *pool;
	uint64_t seen = 0;

	gpool_close(liar);
	AWAIT(harness_free_pages(&harness) == PAGES);
	pool = open_worker();
	options.timeout_ms = ANSWER_MS;
	for (int i = 0; i < PAGES; i++) {
		assert_int_equal(gpool_alloc(pool, 1, &options, &block), 0);
		assert_false(seen >> block.page & 1);
		seen |= UINT64_C(1) << block.page;
	}
	options.timeout_ms = 0;
	assert_int_equal(gpool_alloc(pool, 1, &options, &block), -ENOSPC);
	gpool_close(pool);
	AWAIT(harness_free_pages(&harness) == PAGES);
	assert_int_equal(harness_check(&harness), 0);
}

static void test_evicted(void **state)
{
	struct gpool_block block;
	struct gpool *liar;

	(void)state;
	start(quiet);
	liar = open_worker();
	block = block_of_a_part(liar, 0);
	assert_int_equal(gpool_unpin(liar, &block), 0);
	fold(liar, &block, 0);
	assert_int_equal(harness_evict(&harness, gpool_session(liar), PART), 0);
	each_page_once(liar);
}

static void test_spilled(void **state)
{
	struct gpool_block block;
	struct gpool *liar;
	uint64_t tag;

	(void)state;
	start(spilling);
	liar = open_worker();
	block = block_of_a_part(liar, GPOOL_ALLOC_SPILL);
	assert_int_equal(gpool_unpin(liar, &block), 0);
	tag = fold(liar, &block, 0);
	assert_int_equal(harness_evict(&harness, gpool_session(liar), PART), 0);
	assert_int_equal(request(liar, LEASE_SPILL, block.page, 0, tag), -EAGAIN);
	each_page_once(liar);
}

static void test_restored_into(void **state)
{
	struct gpool_block block, into;
	struct gpool *liar;
	uint64_t tag;

	(void)state;
	start(spilling);
	liar = open_worker();
	block = block_of_a_part(liar, GPOOL_ALLOC_SPILL);
	assert_int_equal(gpool_unpin(liar, &block), 0);
	tag = atomic_load(&liar->session.blocks[block.page].tag);
	assert_int_equal(request(liar, LEASE_SPILL, block.page, 0, tag), 0);
	into = block_of_a_part(liar, 0);
	fold(liar, &into, BLOCK_PREPARED);
	assert_int_equal(request(liar, LEASE_RESTORE_INTO, into.page, PART, tag), -EINVAL);
	assert_int_equal(request(liar, LEASE_RESTORE, 0, PART - 1, tag), -EINVAL);
	assert_int_equal(request(liar, LEASE_RESTORE, 0, PART, tag + (1 << BLOCK_SEQUENCE_SHIFT)), -ESTALE);
	assert_int_equal(request(liar, LEASE_QUERY, 0, PART - 1, tag), -EINVAL);
	each_page_once(liar);
}

#define TEST(test) cmocka_unit_test_teardown(test, stop)

/* Set the free bits of the pages of a reservation, which the library does not know, and use them. */
static void test_reserved_pages_are_used(void **state)
{
	struct gpool_block block;
	struct gpool *liar, *pool;
	uint64_t reservation;
	uint32_t found = 0, left = PART - 1;

	(void)state;
	start(bare);
	liar = open_worker();
	pool = open_worker();
	assert_int_equal(gpool_reservation_create(liar, PART, 0, 0, &reservation), 0);
	for (uint32_t page = 0; page < PAGES; page++) {
		uint64_t word = atomic_load(&liar->pages[page]);
		_Atomic uint64_t *bits = &liar->session.free_bits[page / 64];

		if (page_word_owner(word) != liar->id || atomic_load(bits) >> (page % 64) & 1)
			continue;
		atomic_store(&liar->session.blocks[page].page_count, 1);
		atomic_store(&liar->session.blocks[page].tag, block_tag_make(1000 + page, 0));
		if (found++ % 2)
			atomic_fetch_or(bits, UINT64_C(1) << (page % 64));
	}
	assert_int_equal(found, PART);
	/* The agent takes these pages as if they were idle or evictable; the reservation then has fewer pages. */
	assert_in_range(harness_evict(&harness, gpool_session(liar), 2), 1, PART);
	assert_int_equal(gpool_reservation_use(pool, reservation), 0);
	assert_int_equal(gpool_alloc(pool, PART, NULL, &block), -ENOENT);
	while (left && gpool_alloc(pool, left, NULL, &block))
		left--;
	gpool_close(pool);
	each_page_once(liar);
}

static void test_requests_about_reservations(void **state)
{
	struct gpool *liar;
	uint64_t own, reservation;

	(void)state;
	start(quiet);
	liar = open_worker();
	own = (uint64_t)liar->id << RESERVATION_SESSION_SHIFT;
	assert_int_equal(gpool_reservation_create(liar, PART, 0, 0, &reservation), 0);
	assert_int_equal(request(liar, LEASE_RESERVE, 0, 1, reservation), -EINVAL);
	assert_int_equal(request(liar, LEASE_RESERVE, 0, 1, 0), -EINVAL);
	assert_int_equal(request(liar, LEASE_RESERVE, 0, 1, (UINT64_C(1) << RESERVATION_SESSION_SHIFT) + own), -EINVAL);
	assert_int_equal(request(liar, LEASE_RESERVE, 0, 0, own + 1), -EINVAL);
	assert_int_equal(request(liar, LEASE_RESERVE, 0, PAGES + 1, own + 1), -EINVAL);
	assert_int_equal(request(liar, LEASE_TAKE_OVER, 0, 1, 0), -ENOENT);
	assert_int_equal(request(liar, LEASE_TAKE_OVER, 0, 1, own), -ENOENT);
	assert_int_equal(request(liar, LEASE_TAKE_OVER, 0, PART + 1, reservation), -ENOENT);
	assert_int_equal(request(liar, LEASE_TAKE_OVER, 0, UINT32_MAX, reservation), -EINVAL);
	assert_int_equal(request(liar, LEASE_UNRESERVE, 0, 0, 0), 0);
	assert_int_equal(request(liar, LEASE_RESERVE, 0, 1, own), 0);
	assert_int_equal(request(liar, LEASE_TAKE_OVER, 0, PART, reservation), 0);
	each_page_once(liar);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		TEST(test_evicted),
		TEST(test_spilled),
		TEST(test_restored_into),
		TEST(test_reserved_pages_are_used),
		TEST(test_requests_about_reservations),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
