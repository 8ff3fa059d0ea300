/*
 * test_eviction.c - eviction: between tenants, its order, and its exemptions.
 *
 * Goal: the watermarks start and stop eviction. The order depends on usage, recency, size and priority. Blocks that are
 * pinned or wait for a fence are not evicted, and a scattered block is evicted as a whole. Between tenants, minima,
 * priorities and weights decide. A refused request evicts nothing. The pressure is reported in the pool's header and by
 * events.
 *
 * Method: each test starts a gpoold with a pool of 64 pages. Watermarks are disabled where they are not the subject.
 * Workers keep one page in their magazine, so that pages can be counted. Blocks count as equally recent if they were
 * touched within one step of the agent's clock.
 */
#include "client/core/block.h"
#include "client/gpool.h"
#include "client/core/pool.h"
#include "client/core/request.h"
#include "proto/codec.h"
#include "shm/pins.h"
#include "shm/session_segment.h"
#include "tests/lib/await.h"
#include "tests/lib/harness.h"
#include "tests/lib/temporary.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

enum { PAGES = 64, PAGE_BYTES = 512 << 10, ANSWER_MS = AWAIT_MS, STUCK_SECONDS = 1000, EVENTS_MAX = 256 };

#define POOL "name=p0,backend=host,size=32MiB,page_size=512KB,reserved=0"
/* No block is evicted without a request, and no pages are lent beyond the request. */
#define QUIET \
	"--set", "eviction.start=100", "--set", "eviction.stop=99", "--set", "lease.initial_pages=0", "--set", \
		"lease.batch_pages=1", "--set", "lease.batch_most=1"

static const char *const quiet[] = {"--pool", POOL, QUIET, NULL};

/* With many blocks, a scan for the policy `adaptive` takes longer than several requests. */
enum { MANY = 8192 };
static const char *const slow[] = {"--pool", "name=p0,backend=host,size=4GiB,page_size=512KB,reserved=0", QUIET,
	"--set", "eviction.policy=adaptive", NULL};

static struct harness harness;
static struct gpool *looker; /* an admin session, for requests and events */

/* ---- requests ---- */

static uint8_t reply_bytes[MSG_BYTES_MAX];

#define ASK(question, request, answer, into) \
	do { \
		uint8_t message_[MSG_LARGEST_##question]; \
		int length_ = msg_encode_##question(request, 0, NULL, message_, sizeof(message_)); \
		length_ = pool_request( \
			looker, message_, (size_t)length_, reply_bytes, sizeof(reply_bytes), ANSWER_MS, NULL); \
		assert_true(length_ > 0); \
		assert_int_equal(msg_decode_##answer(into, reply_bytes, (size_t)length_), 0); \
	} while (0)

static const struct msg_pool_status *status(void)
{
	static struct msg_status_reply reply;
	const struct msg_status_request request = {0};

	ASK(status_request, &request, status_reply, &reply);
	assert_int_equal(reply.pools_count, 1);
	return &reply.pools[0];
}

/* Evict pages and return their number. `contents` has one bit for each usage; 0 means all. */
static uint32_t evict(uint32_t pages, uint32_t session, uint32_t contents)
{
	const struct msg_evict_request request = {.pages = pages, .session = session, .usages = contents};
	struct msg_done_reply done;

	ASK(evict_request, &request, done_reply, &done);
	return (uint32_t)done.value;
}

/* Wait for steps of the agent's clock, at which it does its housekeeping. */
static void await_ticks(int count)
{
	const struct pool_header *header = pool_view(looker)->header;

	while (count-- > 0) {
		uint32_t was = atomic_load(&header->clock_ms);

		AWAIT(atomic_load(&header->clock_ms) != was);
	}
}

/* ---- fixture ---- */

static void looker_open(void)
{
	struct gpool_options options = harness_options(&harness);

	options.flags = GPOOL_OPEN_ADMIN;
	assert_int_equal(gpool_open(&options, &looker), 0);
}

static void start(const char *const *arguments)
{
	alarm(STUCK_SECONDS);
	harness_start(&harness, arguments);
	looker_open();
}

static int stop(void **state)
{
	uint32_t findings = harness.pid > 0 ? harness_check(&harness) : 0;

	(void)state;
	gpool_close(looker);
	looker = NULL;
	alarm(0);
	return harness_stop(&harness) || findings ? -1 : 0;
}

static struct gpool *open_limited(const char *tenant, uint32_t quota_pages)
{
	struct gpool_options options = harness_options(&harness);
	struct gpool *pool = NULL;

	options.tenant = tenant;
	options.magazine = 1;
	options.quota_bytes = (uint64_t)quota_pages * PAGE_BYTES;
	assert_int_equal(gpool_open(&options, &pool), 0);
	return pool;
}

static struct gpool *open_tenant(const char *tenant)
{
	return open_limited(tenant, 0);
}

static int try_alloc(struct gpool *pool, uint32_t page_count, uint32_t flags, struct gpool_block *block)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;

	options.flags = flags;
	return gpool_alloc(pool, page_count, &options, block);
}

static struct gpool_block alloc_as(struct gpool *pool, uint32_t page_count, uint32_t content, uint32_t priority)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_block block = {0};

	options.usage = content;
	options.priority = priority;
	assert_int_equal(gpool_alloc(pool, page_count, &options, &block), 0);
	return block;
}

static struct gpool_block alloc(struct gpool *pool, uint32_t page_count)
{
	return alloc_as(pool, page_count, GPOOL_USAGE_KV_CACHE, 0);
}

static void unpin_all(struct gpool *pool, const struct gpool_block *blocks, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		assert_int_equal(gpool_unpin(pool, &blocks[i]), 0);
}

static void alloc_pinned(struct gpool *pool, struct gpool_block *blocks, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		blocks[i] = alloc(pool, 1);
}

static void alloc_unpinned(struct gpool *pool, struct gpool_block *blocks, uint32_t count)
{
	alloc_pinned(pool, blocks, count);
	unpin_all(pool, blocks, count);
}

/* Allocate pinned blocks of one page until an allocation fails; *error is the result of that call. */
static uint32_t alloc_most(struct gpool *pool, struct gpool_block *blocks, int *error)
{
	uint32_t count = 0;

	while (count < PAGES && !(*error = try_alloc(pool, 1, 0, &blocks[count])))
		count++;
	return count;
}

static bool alive(struct gpool *pool, const struct gpool_block *block)
{
	int error = gpool_pin(pool, block);

	if (error) {
		assert_int_equal(error, -ESTALE);
		return false;
	}
	assert_int_equal(gpool_unpin(pool, block), 0);
	return true;
}

static uint32_t count_alive(struct gpool *pool, const struct gpool_block *blocks, uint32_t count)
{
	uint32_t found = 0;

	for (uint32_t i = 0; i < count; i++)
		found += alive(pool, &blocks[i]);
	return found;
}

/* Touch all blocks within one step of the clock. */
static void touch_together(struct gpool *pool, const struct gpool_block *blocks, uint32_t count)
{
	const struct pool_header *header = pool_view(pool)->header;
	uint32_t clock;

	do {
		clock = atomic_load(&header->clock_ms);
		for (uint32_t i = 0; i < count; i++)
			assert_int_equal(gpool_touch(pool, &blocks[i]), 0);
	} while (atomic_load(&header->clock_ms) != clock);
}

/* Check that the blocks are evicted one by one, in the order of the array. gpool_address() does not touch a block. */
static void expect_order(struct gpool *pool, const struct gpool_block *blocks, uint32_t count)
{
	uint64_t address;

	for (uint32_t gone = 0; gone < count; gone++) {
		for (uint32_t i = 0; i < count; i++)
			assert_int_equal(gpool_address(pool, &blocks[i], &address), i < gone ? -ESTALE : 0);
		assert_int_equal(evict(1, gpool_session(pool), 0), blocks[gone].page_count);
	}
	assert_int_equal(evict(1, gpool_session(pool), 0), 0);
}

/* ---- watermarks ---- */

static const char *const watermarks[] = {"--pool", POOL, "--set", "eviction.start=75", "--set", "eviction.stop=50",
	"--set", "lease.initial_pages=0", "--set", "lease.batch_pages=1", "--set", "lease.batch_most=1", NULL};

/* Requirements: U7. */
static void test_watermarks_start_and_stop(void **state)
{
	struct gpool_block pinned[16], blocks[PAGES];
	uint64_t address;
	struct gpool *pool;
	uint32_t left = 0;

	(void)state;
	start(watermarks);
	pool = open_tenant(NULL);
	alloc_pinned(pool, pinned, 16);
	/* 47 of 64 pages are 73 %. */
	alloc_unpinned(pool, blocks, 31);
	await_ticks(4);
	assert_int_equal(status()->evicted_pages, 0);
	/* 48 pages are 75 %: the agent evicts down to 50 %, and no further. */
	alloc_unpinned(pool, blocks + 31, 1);
	AWAIT(status()->evicted_pages != 0);
	await_ticks(4);
	assert_int_equal(status()->evicted_pages, 16);
	assert_int_equal(status()->used_pages, 32);
	for (uint32_t i = 0; i < 32; i++)
		left += gpool_address(pool, &blocks[i], &address) == 0;
	assert_int_equal(left, 16);
	/* Use more pages again. Below the start watermark, no block is evicted. */
	alloc_unpinned(pool, blocks + 32, 15);
	await_ticks(4);
	assert_int_equal(status()->evicted_pages, 16);
	/* Pinned blocks stayed resident throughout. */
	for (uint32_t i = 0; i < 16; i++)
		assert_int_equal(gpool_free(pool, &pinned[i]), 0);
	gpool_close(pool);
}

/* Requirements: U7. */
static void test_watermarks_take_no_pinned_block(void **state)
{
	struct gpool_block pinned[56], blocks[4];
	struct gpool *pool;

	(void)state;
	start(watermarks);
	pool = open_tenant(NULL);
	alloc_pinned(pool, pinned, 56);
	alloc_unpinned(pool, blocks, 4);
	/* All unpinned blocks are evicted, which is not enough to reach the watermark. */
	AWAIT(status()->evicted_pages == 4);
	await_ticks(12);
	assert_int_equal(status()->evicted_pages, 4);
	assert_int_equal(status()->used_pages, 56);
	for (uint32_t i = 0; i < 56; i++)
		assert_int_equal(gpool_unpin(pool, &pinned[i]), 0);
	AWAIT(status()->used_pages < 48);
	gpool_close(pool);
}

/*
 * One percent of this pool is less than a page. Eviction stops close to the stop watermark, and starts again only at
 * the start watermark.
 */
static void test_watermarks_rest_in_a_small_pool(void **state)
{
	struct gpool_block blocks[56], more[14];
	struct gpool_fence fence;
	uint32_t stream, used;
	struct gpool *pool;

	(void)state;
	start(watermarks);
	pool = open_tenant(NULL);
	assert_int_equal(gpool_stream_open(pool, NULL, GPOOL_STREAM_HOST_SIGNALED, &stream), 0);
	assert_int_equal(gpool_fence_record(pool, stream, &fence), 0);
	alloc_pinned(pool, blocks, 56);
	for (uint32_t i = 0; i < 56; i++)
		assert_int_equal(gpool_unpin_after(pool, &blocks[i], fence), 0);
	/* Make all blocks evictable at the same time. */
	assert_int_equal(gpool_fence_signal(pool, fence), 0);
	AWAIT(status()->used_pages <= 33);
	await_ticks(4);
	used = status()->used_pages;
	assert_in_range(used, 32, 33);
	alloc_unpinned(pool, more, 14);
	await_ticks(4);
	assert_int_equal(status()->used_pages, used + 14);
	gpool_close(pool);
}

/* ---- order ---- */

/* Requirements: U7. */
static void test_order_by_content(void **state)
{
	static const uint32_t contents[] = {GPOOL_USAGE_TEMP_BUFFER, GPOOL_USAGE_ACTIVATION, GPOOL_USAGE_GRADIENT,
		GPOOL_USAGE_LORA_WEIGHT, GPOOL_USAGE_KV_CACHE};
	struct gpool_block blocks[5];
	struct gpool *pool;

	(void)state;
	start(quiet);
	pool = open_tenant(NULL);
	/* Allocate in another order than that of the pages, because the page number decides between equal blocks. */
	for (uint32_t i = 5; i-- > 0;)
		blocks[i] = alloc_as(pool, 1, contents[i], 0);
	unpin_all(pool, blocks, 5);
	touch_together(pool, blocks, 5);
	expect_order(pool, blocks, 5);
	gpool_close(pool);
}

static void test_order_by_priority_within_a_content(void **state)
{
	struct gpool_block blocks[6];
	struct gpool *pool;

	(void)state;
	start(quiet);
	pool = open_tenant(NULL);
	for (uint32_t i = 6; i-- > 0;)
		blocks[i] =
			alloc_as(pool, 1, i < 4 ? GPOOL_USAGE_TEMP_BUFFER : GPOOL_USAGE_ACTIVATION, i < 4 ? i : i - 4);
	unpin_all(pool, blocks, 6);
	touch_together(pool, blocks, 6);
	expect_order(pool, blocks, 6);
	gpool_close(pool);
}

/* Requirements: U7. */
static void test_order_by_size(void **state)
{
	struct gpool_block blocks[3];
	struct gpool *pool;

	(void)state;
	start(quiet);
	pool = open_tenant(NULL);
	for (uint32_t i = 3; i-- > 0;)
		blocks[i] = alloc(pool, 12 - 4 * i);
	unpin_all(pool, blocks, 3);
	touch_together(pool, blocks, 3);
	expect_order(pool, blocks, 3);
	gpool_close(pool);
}

/* A KV block that was not used for a long time is evicted before a recent temporary one. Requirements: U7. */
static void test_order_by_recency(void **state)
{
	struct gpool_block blocks[4];
	struct gpool *pool;

	(void)state;
	start(quiet);
	pool = open_tenant(NULL);
	for (uint32_t i = 4; i-- > 0;)
		blocks[i] = alloc_as(pool, 1, i == 0 ? GPOOL_USAGE_KV_CACHE : GPOOL_USAGE_TEMP_BUFFER, 0);
	unpin_all(pool, blocks, 4);
	touch_together(pool, blocks, 4);
	/* These steps are long compared with a few requests. */
	for (uint32_t i = 1; i < 4; i++) {
		await_ticks(i == 1 ? 20 : 8);
		touch_together(pool, blocks + i, 4 - i);
	}
	expect_order(pool, blocks, 4);
	gpool_close(pool);
}

static void test_contents_that_were_not_named_stay(void **state)
{
	struct gpool_block temporary, kv;
	struct gpool *pool;

	(void)state;
	start(quiet);
	pool = open_tenant(NULL);
	temporary = alloc_as(pool, 1, GPOOL_USAGE_TEMP_BUFFER, 0);
	kv = alloc_as(pool, 1, GPOOL_USAGE_KV_CACHE, 0);
	assert_int_equal(gpool_unpin(pool, &temporary), 0);
	assert_int_equal(gpool_unpin(pool, &kv), 0);
	assert_int_equal(evict(PAGES, 0, 1u << GPOOL_USAGE_KV_CACHE), 1);
	assert_false(alive(pool, &kv));
	assert_true(alive(pool, &temporary));
	gpool_close(pool);
}

/* ---- exempt blocks, and blocks evicted as a whole ---- */

static void test_a_fence_protects(void **state)
{
	struct gpool_block blocks[4], more;
	struct gpool_fence fence;
	struct gpool *pool, *other;
	uint32_t stream;

	(void)state;
	start(quiet);
	pool = open_tenant(NULL);
	other = open_tenant(NULL);
	assert_int_equal(gpool_stream_open(pool, NULL, GPOOL_STREAM_HOST_SIGNALED, &stream), 0);
	for (uint32_t i = 0; i < 4; i++)
		blocks[i] = alloc(pool, PAGES / 4);
	assert_int_equal(gpool_fence_record(pool, stream, &fence), 0);
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(gpool_unpin_after(pool, &blocks[i], fence), 0);
	/* Neither a request nor the operator can evict a block that waits for a fence. */
	assert_int_equal(try_alloc(other, 1, 0, &more), -ENOSPC);
	assert_int_equal(evict(1, gpool_session(pool), 0), 0);
	assert_int_equal(evict(1, 0, 0), 0);
	assert_int_equal(gpool_fence_signal(pool, fence), 0);
	assert_int_equal(try_alloc(other, 1, 0, &more), 0);
	assert_int_equal(count_alive(pool, blocks, 4), 3);
	gpool_close(pool);
	gpool_close(other);
}

static void test_a_prepared_block_stays(void **state)
{
	struct gpool_block prepared, more;
	struct gpool *pool, *other;
	uint64_t entry = 0, address = 0;

	(void)state;
	start(quiet);
	pool = open_tenant(NULL);
	other = open_tenant(NULL);
	assert_int_equal(gpool_prepare(pool, PAGES, NULL, &prepared), 0);
	assert_int_equal(try_alloc(other, 1, 0, &more), -ENOSPC);
	assert_int_equal(evict(PAGES, 0, 0), 0);
	assert_int_equal(gpool_commit(pool, &prepared, &entry), 0);
	assert_int_equal(gpool_address(pool, &prepared, &address), 0);
	assert_true(entry == address);
	assert_int_equal(gpool_unpin(pool, &prepared), 0);
	assert_int_equal(try_alloc(other, 1, 0, &more), 0);
	assert_false(alive(pool, &prepared));
	gpool_close(pool);
	gpool_close(other);
}

static void test_a_scattered_block_is_evicted_as_a_whole(void **state)
{
	struct gpool_block blocks[PAGES], scattered, more;
	struct gpool *pool, *other;
	int error;

	(void)state;
	start(quiet);
	pool = open_tenant(NULL);
	other = open_tenant(NULL);
	assert_int_equal(alloc_most(pool, blocks, &error), PAGES);
	for (uint32_t i = 0; i < 16; i += 2)
		assert_int_equal(gpool_free(pool, &blocks[i]), 0);
	scattered = alloc(pool, 8);
	assert_true(scattered.tag & BLOCK_SCATTERED);
	/* A pinned block is not evicted at all. */
	assert_int_equal(try_alloc(other, 1, 0, &more), -ENOSPC);
	assert_int_equal(evict(1, 0, 0), 0);
	assert_int_equal(gpool_unpin(pool, &scattered), 0);
	assert_int_equal(evict(1, gpool_session(pool), 0), 8);
	assert_false(alive(pool, &scattered));
	assert_int_equal(status()->free_pages, 8);
	more = alloc(other, 8);
	assert_true(more.tag & BLOCK_SCATTERED);
	gpool_close(pool);
	gpool_close(other);
}

/* The extents of a hostile worker overlap: no page may be freed twice. */
static void test_extents_that_overlap_are_no_block(void **state)
{
	struct gpool_block block, mine[PAGES], theirs[PAGES];
	struct gpool *pool, *other;
	uint32_t own, others;
	int error;

	(void)state;
	start(quiet);
	pool = open_tenant(NULL);
	other = open_tenant(NULL);
	assert_int_equal(try_alloc(pool, 8, GPOOL_ALLOC_CONTIGUOUS, &block), 0);
	/* The block has pages 0 to 4 and, as another extent, pages 2 to 4 again. */
	atomic_store(&block_entry(pool, block.page)->page_count, 5);
	atomic_store(&block_entry(pool, block.page)->next, block.page + 2 + 1);
	atomic_store(&block_entry(pool, block.page + 2)->page_count, 3);
	atomic_store(&block_entry(pool, block.page + 2)->next, 0);
	atomic_store(&block_entry(pool, block.page + 2)->tag, block.tag | BLOCK_SCATTERED | BLOCK_EXTENT);
	atomic_store(&block_entry(pool, block.page)->tag, block.tag | BLOCK_SCATTERED);
	pin_drop(&pool->session, block.page);
	evict(PAGES, gpool_session(pool), 0);
	/* Two workers must get each page only once, and no more pages than the pool has. */
	own = alloc_most(pool, mine, &error);
	others = alloc_most(other, theirs, &error);
	assert_in_range(own + others, 0, PAGES);
	for (uint32_t i = 0; i < own; i++)
		for (uint32_t j = 0; j < others; j++)
			assert_int_not_equal(mine[i].page, theirs[j].page);
	gpool_close(other);
	gpool_close(pool);
	AWAIT(status()->free_pages == PAGES);
	other = open_tenant(NULL);
	assert_int_equal(alloc_most(other, theirs, &error), PAGES);
	gpool_close(other);
}

/* ---- refused requests ---- */

static void test_a_refused_request_destroys_nothing(void **state)
{
	struct gpool_block pinned, blocks[10], more;
	struct gpool *pool, *other;

	(void)state;
	start(quiet);
	pool = open_tenant(NULL);
	other = open_tenant(NULL);
	pinned = alloc(pool, PAGES - 10);
	alloc_unpinned(pool, blocks, 10);
	assert_int_equal(try_alloc(other, 11, 0, &more), -ENOSPC);
	assert_int_equal(try_alloc(pool, 11, 0, &more), -ENOSPC);
	assert_int_equal(count_alive(pool, blocks, 10), 10);
	assert_int_equal(status()->evicted_pages, 0);
	assert_int_equal(try_alloc(other, 10, 0, &more), 0);
	assert_int_equal(count_alive(pool, blocks, 10), 0);
	assert_int_equal(gpool_free(pool, &pinned), 0);
	gpool_close(pool);
	gpool_close(other);
}

/* The agent frees adjacent pages where that costs least. If that is impossible, it evicts nothing. */
static void test_a_contiguous_request_takes_the_cheapest_place(void **state)
{
	struct gpool_block blocks[PAGES], by_page[PAGES], more;
	struct gpool *pool, *other;

	(void)state;
	start(quiet);
	pool = open_tenant(NULL);
	other = open_tenant(NULL);
	alloc_pinned(pool, blocks, PAGES);
	for (uint32_t i = 0; i < PAGES; i++)
		by_page[blocks[i].page] = blocks[i];
	/* One page in sixteen stays pinned, so no sixteen adjacent pages can be allocated. */
	for (uint32_t page = 0; page < PAGES; page++)
		if (page % 16 != 0)
			assert_int_equal(gpool_unpin(pool, &by_page[page]), 0);
	assert_int_equal(try_alloc(other, 16, GPOOL_ALLOC_CONTIGUOUS, &more), -ENOSPC);
	assert_int_equal(status()->evicted_pages, 0);
	/* Page 16 is free, so fifteen more blocks around it suffice. */
	assert_int_equal(gpool_free(pool, &by_page[16]), 0);
	assert_int_equal(try_alloc(other, 16, GPOOL_ALLOC_CONTIGUOUS, &more), 0);
	assert_true(more.page <= 16 && more.page + 16 > 16);
	assert_int_equal(status()->evicted_pages, 15);
	for (uint32_t page = 0; page < PAGES; page++)
		if (page % 16 != 0)
			assert_int_equal(alive(pool, &by_page[page]), page < more.page || page >= more.page + 16);
	gpool_close(pool);
	gpool_close(other);
}

/*
 * The agent delays the next scan after a scan that found nothing, but does not refuse a request because of that. Blocks
 * that have been unpinned since are available to a request that does not wait.
 *
 * Requirements: U17.
 */
static void test_unpinned_pages_are_available_right_after_a_refusal(void **state)
{
	enum { ROUNDS = 50 };
	struct gpool_block block, taken;
	struct gpool *pool, *other;

	(void)state;
	start(slow);
	pool = open_tenant(NULL);
	other = open_tenant(NULL);
	for (int i = 0; i < MANY - 1; i++)
		alloc(pool, 1);
	for (int round = 0; round < ROUNDS; round++) {
		block = alloc(pool, 1);
		assert_int_equal(try_alloc(other, 1, 0, &taken), -ENOSPC);
		assert_int_equal(gpool_unpin(pool, &block), 0);
		assert_int_equal(try_alloc(other, 1, 0, &taken), 0);
		assert_int_equal(gpool_free(other, &taken), 0);
	}
	gpool_close(pool);
	gpool_close(other);
}

struct waiter {
	struct gpool *pool;
	uint32_t page_count;
	int32_t timeout_ms;
	struct gpool_block block;
	int error;
	pthread_t thread;
};

static void *wait_for_pages(void *argument)
{
	struct waiter *waiter = argument;
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;

	options.timeout_ms = waiter->timeout_ms;
	waiter->error = gpool_alloc(waiter->pool, waiter->page_count, &options, &waiter->block);
	return NULL;
}

static void waiter_start(struct waiter *waiter)
{
	assert_int_equal(pthread_create(&waiter->thread, NULL, wait_for_pages, waiter), 0);
	AWAIT(status()->waiters == 1);
}

static void test_a_waiting_request_destroys_nothing_before_it_can_be_served(void **state)
{
	struct waiter waiter = {.page_count = 12, .timeout_ms = AWAIT_MS};
	struct gpool_block pinned, two, blocks[10];
	uint64_t address;
	struct gpool *pool;

	(void)state;
	start(quiet);
	pool = open_tenant(NULL);
	pinned = alloc(pool, PAGES - 12);
	two = alloc(pool, 2);
	alloc_unpinned(pool, blocks, 10);
	waiter.pool = open_tenant(NULL);
	waiter_start(&waiter);
	await_ticks(6);
	for (uint32_t i = 0; i < 10; i++)
		assert_int_equal(gpool_address(pool, &blocks[i], &address), 0);
	assert_int_equal(status()->evicted_pages, 0);
	assert_int_equal(gpool_unpin(pool, &two), 0);
	pthread_join(waiter.thread, NULL);
	assert_int_equal(waiter.error, 0);
	assert_int_equal(count_alive(pool, blocks, 10), 0);
	assert_int_equal(gpool_free(pool, &pinned), 0);
	gpool_close(waiter.pool);
	gpool_close(pool);
}

/* A request above the quota could evict blocks of its own session, but the pool has too few pages for it. */
static void test_a_request_that_the_pool_refuses_costs_no_block_for_the_quota(void **state)
{
	struct gpool_block blocks[10], pinned, more;
	struct gpool *pool, *other;

	(void)state;
	start(quiet);
	pool = open_limited(NULL, 20);
	other = open_tenant(NULL);
	alloc_unpinned(pool, blocks, 10);
	pinned = alloc(other, PAGES - 10);
	assert_int_equal(try_alloc(pool, 15, 0, &more), -ENOSPC);
	assert_int_equal(count_alive(pool, blocks, 10), 10);
	assert_int_equal(gpool_free(other, &pinned), 0);
	gpool_close(pool);
	gpool_close(other);
}

static void test_no_evict_is_refused_at_the_quota_too(void **state)
{
	struct gpool_block blocks[10], more;
	struct gpool *pool, *other;

	(void)state;
	start(quiet);
	pool = open_limited(NULL, 10);
	other = open_tenant(NULL);
	alloc_unpinned(pool, blocks, 10);
	assert_int_equal(try_alloc(pool, 1, GPOOL_ALLOC_NO_EVICT, &more), -EDQUOT);
	assert_int_equal(count_alive(pool, blocks, 10), 10);
	more = alloc(other, PAGES - 10);
	assert_int_equal(try_alloc(other, 1, GPOOL_ALLOC_NO_EVICT, &more), -ENOSPC);
	assert_int_equal(count_alive(pool, blocks, 10), 10);
	assert_int_equal(try_alloc(other, 1, 0, &more), 0);
	assert_int_equal(count_alive(pool, blocks, 10), 9);
	assert_int_equal(try_alloc(pool, 1, 0, &more), 0);
	gpool_close(pool);
	gpool_close(other);
}

/* ---- tenants ---- */

/* The text of a configuration with the tenants `list`. Only the last one has no `users` and accepts every user. */
#define TENANTS(list) \
	"pools = ( { name = \"p0\"; backend = \"host\"; size = \"32MiB\"; page_size = \"512KB\"; reserved = \"0 " \
	"pages\"; } );\n" \
	"tenants = ( " list " );\n"

static void start_tenants(const char *text, const char *start_percent)
{
	/* With a start of 100 and a stop of 50, a tick while the pool is full would evict half of the pool. */
	const char *set_stop = strcmp(start_percent, "100") ? "eviction.stop=50" : "eviction.stop=99";
	char path[64], set_start[64];
	const char *arguments[] = {"--config", path, QUIET, "--set", set_start, "--set", set_stop, NULL};
	FILE *file;

	snprintf(set_start, sizeof(set_start), "eviction.start=%s", start_percent);
	snprintf(path, sizeof(path), "%s/gpool-test-%d.conf", temporary_folder(), (int)getpid());
	file = fopen(path, "we");
	assert_non_null(file);
	assert_true(fputs(text, file) >= 0);
	assert_int_equal(fclose(file), 0);
	start(arguments);
	unlink(path);
}

static const char minima[] =
	TENANTS("{ name = \"sure\"; users = [ \"1\" ]; minimum = \"16 pages\"; },{ name = \"lender\"; users = [ \"2\" "
		"]; minimum = \"16 pages\"; unused = \"lend\"; },{ name = \"rest\"; }");

static void test_kept_pages_are_available_at_once(void **state)
{
	struct gpool_block blocks[PAGES], sure[16], more;
	struct gpool *borrower, *owner;
	int error;

	(void)state;
	start_tenants(minima, "100");
	borrower = open_tenant("rest");
	/* The borrower also gets the lender's pages, except those of the minimum. */
	assert_int_equal(alloc_most(borrower, blocks, &error), PAGES - 16);
	assert_int_equal(error, -ENOSPC);
	assert_int_equal(status()->free_pages, 16);
	owner = open_tenant("sure");
	for (uint32_t i = 0; i < 16; i++)
		assert_int_equal(try_alloc(owner, 1, GPOOL_ALLOC_NO_EVICT, &sure[i]), 0);
	assert_int_equal(try_alloc(owner, 1, 0, &more), -ENOSPC);
	/* Freed pages are kept for the owner again. */
	for (uint32_t i = 0; i < 16; i++)
		assert_int_equal(gpool_free(owner, &sure[i]), 0);
	gpool_close(owner);
	assert_int_equal(try_alloc(borrower, 1, 0, &more), -ENOSPC);
	gpool_close(borrower);
}

static void test_lent_pages_are_returned_when_unpinned(void **state)
{
	struct gpool_block blocks[PAGES], mine[16], more;
	struct gpool *borrower, *lender;
	uint32_t count;
	int error;

	(void)state;
	start_tenants(minima, "100");
	borrower = open_tenant("rest");
	count = alloc_most(borrower, blocks, &error);
	assert_int_equal(count, PAGES - 16);
	lender = open_tenant("lender");
	assert_int_equal(try_alloc(lender, 1, 0, &more), -ENOSPC);
	unpin_all(borrower, blocks, count);
	alloc_pinned(lender, mine, 16);
	/* One page is evicted for each page requested, and no page beyond the minimum. */
	assert_int_equal(count_alive(borrower, blocks, count), count - 16);
	gpool_close(lender);
	gpool_close(borrower);
}

static void test_watermarks_leave_minima_alone(void **state)
{
	struct gpool_block sure[24], pinned;
	struct gpool *owner, *other;

	(void)state;
	start_tenants(minima, "75");
	owner = open_tenant("sure");
	other = open_tenant("rest");
	alloc_unpinned(owner, sure, 24);
	pinned = alloc(other, PAGES - 24);
	/* The pages above the minimum are evicted, which does not reach the stop watermark. */
	AWAIT(status()->evicted_pages >= 8);
	await_ticks(12);
	assert_int_equal(status()->evicted_pages, 8);
	assert_int_equal(count_alive(owner, sure, 24), 16);
	assert_int_equal(gpool_free(other, &pinned), 0);
	gpool_close(owner);
	gpool_close(other);
}

static void test_no_priority_takes_a_minimum(void **state)
{
	static const char text[] = TENANTS("{ name = \"sure\"; users = [ \"1\" ]; minimum = \"16 pages\"; priority = "
					   "10; },{ name = \"gold\"; priority = 90; }");
	struct gpool_block sure[20], blocks[PAGES];
	struct gpool *owner, *other;
	int error;

	(void)state;
	start_tenants(text, "100");
	owner = open_tenant("sure");
	other = open_tenant("gold");
	alloc_unpinned(owner, sure, 20);
	assert_int_equal(alloc_most(other, blocks, &error), PAGES - 16);
	assert_int_equal(error, -ENOSPC);
	assert_int_equal(count_alive(owner, sure, 20), 16);
	gpool_close(owner);
	gpool_close(other);
}

/* A minimum protects against other tenants. For a page above the minimum, the tenant's own block is evicted. */
static void test_a_tenant_at_its_minimum_takes_its_own_blocks(void **state)
{
	struct gpool_block sure[16], pinned, more;
	struct gpool *owner, *other;

	(void)state;
	start_tenants(minima, "100");
	owner = open_tenant("sure");
	other = open_tenant("rest");
	alloc_unpinned(owner, sure, 16);
	pinned = alloc(other, PAGES - 16);
	assert_int_equal(try_alloc(owner, 1, 0, &more), 0);
	assert_int_equal(count_alive(owner, sure, 16), 15);
	assert_int_equal(gpool_free(other, &pinned), 0);
	gpool_close(owner);
	gpool_close(other);
}

static const char doubled[] = "eviction = { hysteresis = 1.0; };\n" TENANTS(
	"{ name = \"sure\"; users = [ \"1\" ]; minimum = \"16 pages\"; }, { name = \"rest\"; priority = 90; }");

static void test_the_surplus_leaves_minima_alone(void **state)
{
	struct gpool_block blocks[20], block;
	struct gpool *owner, *taker;

	(void)state;
	start_tenants(doubled, "100");
	owner = open_tenant("sure");
	taker = open_tenant("rest");
	alloc_unpinned(owner, blocks, 20);
	alloc(taker, PAGES - 20);
	/* The request needs three pages and the hysteresis three more, but eviction must stop at the minimum. */
	assert_int_equal(try_alloc(taker, 3, 0, &block), 0);
	assert_int_equal(count_alive(owner, blocks, 20), 16);
	assert_int_equal(status()->free_pages, 1);
	gpool_close(owner);
	gpool_close(taker);
}

static void test_an_operator_may_take_a_minimum(void **state)
{
	struct gpool_block sure[16];
	struct gpool *owner;

	(void)state;
	start_tenants(minima, "100");
	owner = open_tenant("sure");
	alloc_unpinned(owner, sure, 16);
	assert_int_equal(evict(4, gpool_session(owner), 0), 4);
	assert_int_equal(evict(4, 0, 1u << GPOOL_USAGE_KV_CACHE), 4);
	assert_int_equal(evict(4, 0, 0), 4);
	assert_int_equal(count_alive(owner, sure, 16), 4);
	gpool_close(owner);
}

/* Requirements: U12. */
static void test_priority_decides(void **state)
{
	static const char text[] =
		TENANTS("{ name = \"gold\"; users = [ \"1\" ]; priority = 90; },{ name = \"silver\"; priority = 50; }");
	struct gpool_block high[32], low[32], blocks[PAGES];
	struct gpool *gold, *silver;
	int error;

	(void)state;
	start_tenants(text, "100");
	gold = open_tenant("gold");
	silver = open_tenant("silver");
	alloc_unpinned(gold, high, 32);
	alloc_unpinned(silver, low, 32);
	/* The request evicts all blocks of its own tenant, and none of the tenant with the higher priority. */
	assert_int_equal(alloc_most(silver, blocks, &error), 32);
	assert_int_equal(error, -ENOSPC);
	assert_int_equal(count_alive(gold, high, 32), 32);
	/* In the opposite direction, all unpinned blocks are evicted. */
	unpin_all(silver, blocks, 20);
	for (uint32_t i = 0; i < 32; i++)
		assert_int_equal(gpool_pin(gold, &high[i]), 0);
	assert_int_equal(alloc_most(gold, low, &error), 20);
	assert_int_equal(error, -ENOSPC);
	assert_int_equal(count_alive(silver, blocks, 20), 0);
	gpool_close(gold);
	gpool_close(silver);
}

/* Requirements: U12. */
static void test_weight_decides(void **state)
{
	static const char text[] =
		TENANTS("{ name = \"heavy\"; users = [ \"1\" ]; weight = 300; },{ name = \"light\"; weight = 100; }");
	struct gpool_block light[32], heavy[PAGES];
	struct gpool *three, *one;
	uint32_t count;
	int error;

	(void)state;
	start_tenants(text, "100");
	three = open_tenant("heavy");
	one = open_tenant("light");
	alloc_unpinned(one, light, 32);
	/* 48 to 16 pages are three to one. At equal shares one more page may be evicted. */
	count = alloc_most(three, heavy, &error);
	assert_int_equal(error, -ENOSPC);
	assert_in_range(count, 48, 49);
	assert_int_equal(count_alive(one, light, 32), PAGES - count);
	gpool_close(three);
	gpool_close(one);
}

/* ---- pressure ---- */

static struct gpool_event events[EVENTS_MAX];
static uint32_t event_count;

/* Collect the events so far, in order, up to that of a reload. */
static void events_collect(void)
{
	const struct msg_reload_request request = {0};
	struct gpool_event event = GPOOL_EVENT_INIT;
	struct msg_done_reply done;

	event_count = 0;
	ASK(reload_request, &request, done_reply, &done);
	for (;;) {
		assert_int_equal(gpool_event_next(looker, ANSWER_MS, &event), 0);
		if (event.kind == GPOOL_EVENT_RELOAD)
			return;
		assert_true(event_count < EVENTS_MAX);
		events[event_count++] = event;
	}
}

static void events_listen(void)
{
	struct gpool_event event = GPOOL_EVENT_INIT;

	do
		gpool_close(harness_open(&harness));
	while (gpool_event_next(looker, 20, &event));
	events_collect();
}

/* Requirements: U8. */
static void test_pressure_rises_and_falls_step_by_step(void **state)
{
	/* The number of pages, of 64, at which each level begins: 75, 90 and 97 percent. */
	static const uint32_t steps[] = {48, 58, 63};
	static const uint64_t expected[] = {1, 2, 3, 2, 1, 0};
	struct gpool_block blocks[PAGES];
	struct gpool *pool;
	uint32_t count = 0, reported = 0;

	(void)state;
	start(quiet);
	events_listen();
	pool = open_tenant(NULL);
	assert_int_equal(gpool_pressure(pool), GPOOL_PRESSURE_LOW);
	for (int level = 0; level < 3; level++) {
		while (count < steps[level] - 1)
			blocks[count++] = alloc(pool, 1);
		await_ticks(3);
		assert_int_equal(gpool_pressure(pool), level);
		blocks[count++] = alloc(pool, 1);
		AWAIT(gpool_pressure(pool) == level + 1);
		assert_int_equal(gpool_pressure(looker), level + 1);
		assert_int_equal(status()->pressure, level + 1);
	}
	for (int level = 2; level >= 0; level--) {
		/* One page below the step, and one more for the page in the thread's magazine. */
		while (count > steps[level] - 2)
			assert_int_equal(gpool_free(pool, &blocks[--count]), 0);
		AWAIT(gpool_pressure(pool) == level);
		await_ticks(3);
		assert_int_equal(gpool_pressure(pool), level);
	}
	events_collect();
	for (uint32_t i = 0; i < event_count; i++) {
		if (events[i].kind != GPOOL_EVENT_PRESSURE)
			continue;
		assert_true(reported < 6);
		assert_int_equal(events[i].value, expected[reported++]);
		assert_string_equal(events[i].pool, "p0");
	}
	assert_int_equal(reported, 6);
	gpool_close(pool);
}

/* Requirements: U8. */
static void test_a_waiting_request_makes_pressure_critical(void **state)
{
	struct waiter waiter = {.page_count = PAGES / 2 + 1, .timeout_ms = AWAIT_MS};
	struct gpool_block half;
	struct gpool *pool;

	(void)state;
	start(quiet);
	pool = open_tenant(NULL);
	half = alloc(pool, PAGES / 2);
	waiter.pool = open_tenant(NULL);
	assert_int_equal(gpool_pressure(pool), GPOOL_PRESSURE_LOW);
	waiter_start(&waiter);
	AWAIT(gpool_pressure(pool) == GPOOL_PRESSURE_CRITICAL);
	assert_int_equal(gpool_free(pool, &half), 0);
	pthread_join(waiter.thread, NULL);
	assert_int_equal(waiter.error, 0);
	AWAIT(gpool_pressure(pool) == GPOOL_PRESSURE_LOW);
	gpool_close(waiter.pool);
	gpool_close(pool);
}

static uint64_t last_pressure_event(void)
{
	const struct flight_ring *ring = &pool_view(looker)->events;
	uint64_t latest_ns = 0, pressure = UINT64_MAX;
	struct flight_entry entry;

	for (uint32_t place = 0; place < flight_used(ring); place++)
		if (!flight_read(ring, place, UINT64_MAX, &entry, NULL) && entry.kind == GPOOL_EVENT_PRESSURE &&
			entry.time_ns >= latest_ns) {
			latest_ns = entry.time_ns;
			pressure = entry.value;
		}
	return pressure;
}

static void test_pressure_falls_after_the_last_session_has_left(void **state)
{
	const struct pool_header *header;
	struct gpool *pool;
	size_t bytes;

	(void)state;
	start(quiet);
	pool = open_tenant(NULL);
	alloc(pool, PAGES);
	AWAIT(gpool_pressure(pool) == GPOOL_PRESSURE_CRITICAL);
	/* Map the same memory a second time. This mapping outlives the sessions. */
	bytes = pool_view(pool)->bytes;
	header = mremap(pool_view(pool)->header, 0, bytes, MREMAP_MAYMOVE);
	assert_ptr_not_equal(header, MAP_FAILED);
	gpool_close(looker);
	looker = NULL;
	gpool_close(pool);
	AWAIT(atomic_load(&header->sessions) == 0);
	AWAIT(atomic_load(&header->pressure) == POOL_PRESSURE_LOW);
	assert_int_equal(munmap((void *)(uintptr_t)header, bytes), 0);
	looker_open();
	assert_int_equal(status()->pressure, POOL_PRESSURE_LOW);
	assert_int_equal(last_pressure_event(), POOL_PRESSURE_LOW);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_watermarks_start_and_stop, stop),
		cmocka_unit_test_teardown(test_watermarks_take_no_pinned_block, stop),
		cmocka_unit_test_teardown(test_watermarks_rest_in_a_small_pool, stop),
		cmocka_unit_test_teardown(test_order_by_content, stop),
		cmocka_unit_test_teardown(test_order_by_priority_within_a_content, stop),
		cmocka_unit_test_teardown(test_order_by_size, stop),
		cmocka_unit_test_teardown(test_order_by_recency, stop),
		cmocka_unit_test_teardown(test_contents_that_were_not_named_stay, stop),
		cmocka_unit_test_teardown(test_a_fence_protects, stop),
		cmocka_unit_test_teardown(test_a_prepared_block_stays, stop),
		cmocka_unit_test_teardown(test_a_scattered_block_is_evicted_as_a_whole, stop),
		cmocka_unit_test_teardown(test_extents_that_overlap_are_no_block, stop),
		cmocka_unit_test_teardown(test_a_refused_request_destroys_nothing, stop),
		cmocka_unit_test_teardown(test_unpinned_pages_are_available_right_after_a_refusal, stop),
		cmocka_unit_test_teardown(test_a_contiguous_request_takes_the_cheapest_place, stop),
		cmocka_unit_test_teardown(test_a_waiting_request_destroys_nothing_before_it_can_be_served, stop),
		cmocka_unit_test_teardown(test_a_request_that_the_pool_refuses_costs_no_block_for_the_quota, stop),
		cmocka_unit_test_teardown(test_no_evict_is_refused_at_the_quota_too, stop),
		cmocka_unit_test_teardown(test_kept_pages_are_available_at_once, stop),
		cmocka_unit_test_teardown(test_lent_pages_are_returned_when_unpinned, stop),
		cmocka_unit_test_teardown(test_watermarks_leave_minima_alone, stop),
		cmocka_unit_test_teardown(test_no_priority_takes_a_minimum, stop),
		cmocka_unit_test_teardown(test_a_tenant_at_its_minimum_takes_its_own_blocks, stop),
		cmocka_unit_test_teardown(test_the_surplus_leaves_minima_alone, stop),
		cmocka_unit_test_teardown(test_an_operator_may_take_a_minimum, stop),
		cmocka_unit_test_teardown(test_priority_decides, stop),
		cmocka_unit_test_teardown(test_weight_decides, stop),
		cmocka_unit_test_teardown(test_pressure_rises_and_falls_step_by_step, stop),
		cmocka_unit_test_teardown(test_a_waiting_request_makes_pressure_critical, stop),
		cmocka_unit_test_teardown(test_pressure_falls_after_the_last_session_has_left, stop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
