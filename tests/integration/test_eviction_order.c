/*
 * test_eviction_order.c - the common eviction order of blocks and objects.
 *
 * Goal: the least recently used content is evicted first, whether it is a block, a cached prefix or an adapter. This
 * holds with both policies, for a request, at the watermarks, and where adjacent pages are needed. An object stays at
 * least as long as an object that follows it. If enough content can be evicted, a request evicts more than it needs, by
 * the configured hysteresis.
 *
 * Method: each case starts a gpoold with one pool of 64 pages. The test sets the time stamps of the use of one-page
 * blocks. The age of an object is the time since its last use.
 *
 * Requirements: U18.
 */
#include "client/object/object.h"
#include "client/core/pool.h"
#include "tests/integration/life.h"

enum { BLOCKS = 22, OBJECT_PAGES = 8, AGE_TICKS = 5 };

/* far longer than this machine may stand still between two calls of a test */
enum { IDLE_MS = 3600000 };

static const char lru[] = "eviction.policy=lru_size_aware", adaptive[] = "eviction.policy=adaptive";
static const char *const policies[] = {lru, adaptive};

static struct gpool *worker, *other;

static void begin(const char *policy, const char *hysteresis, const char *start_percent, const char *stop_percent)
{
	start((const char *const[]){"--pool", POOL, "--set", start_percent, "--set", stop_percent, "--set", policy,
		"--set", hysteresis, "--set", "lease.initial_pages=0", "--set", "lease.batch_pages=1", "--set",
		"lease.batch_most=1", NULL});
	worker = open_worker();
	other = open_worker();
}

/* Start a gpoold that evicts only for requests, and no more than they need. */
static void begin_quiet(const char *policy)
{
	begin(policy, "eviction.hysteresis=0", "eviction.start=100", "eviction.stop=99");
}

static int end(void **state)
{
	gpool_close(worker);
	gpool_close(other);
	worker = other = NULL;
	return stop(state);
}

/* ---- resident content ---- */

static void block_touch(const struct gpool_block *block, uint32_t idle_ms)
{
	atomic_store(&worker->session.touch[block->page], pool_clock(worker) - idle_ms);
}

/* Allocate unpinned blocks of one page each. */
static void blocks_make(struct gpool_block *blocks, uint32_t count, uint32_t priority)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;

	options.usage = GPOOL_USAGE_KV_CACHE;
	options.priority = priority;
	for (uint32_t i = 0; i < count; i++) {
		assert_int_equal(gpool_alloc(worker, 1, &options, &blocks[i]), 0);
		assert_int_equal(gpool_unpin(worker, &blocks[i]), 0);
	}
}

static void blocks_touch(const struct gpool_block *blocks, uint32_t count, uint32_t idle_ms)
{
	for (uint32_t i = 0; i < count; i++)
		block_touch(&blocks[i], idle_ms);
}

static uint32_t blocks_there(const struct gpool_block *blocks, uint32_t count)
{
	uint64_t address;
	uint32_t there = 0;

	for (uint32_t i = 0; i < count; i++)
		there += gpool_address(worker, &blocks[i], &address) == 0;
	return there;
}

static struct gpool_object *published(
	const char *name, uint32_t memory_class, uint32_t pages, const struct gpool_object *follows)
{
	struct gpool_object_options options = GPOOL_OBJECT_OPTIONS_INIT;
	struct gpool_object *object;
	uint64_t version;
	uint32_t index;

	options.memory_class = memory_class;
	options.flags |= OBJECT_CREATE_OWN;
	assert_int_equal(gpool_object_create(worker, name, &options, &object), 0);
	assert_int_equal(gpool_object_alloc(object, pages, NULL, &index), 0);
	object->follows = follows;
	assert_int_equal(gpool_object_publish(object, &version), 0);
	return object;
}

static void clock_steps(int count)
{
	while (count--) {
		uint32_t now = pool_clock(worker);

		AWAIT(pool_clock(worker) != now);
	}
}

/* Wait until earlier uses are clearly older than later ones. */
static void time_passes(void)
{
	clock_steps(AGE_TICKS);
}

/* Three kinds of evictable objects. Each object is used once. A pinnable one stays open, as an adapter does. */
static const struct kind {
	const char *name;
	uint32_t memory_class;
} kinds[] = {
	{"lora/a", GPOOL_OBJECT_PINNABLE},
	{"kv-prefix/a", GPOOL_OBJECT_EPHEMERAL},
	{"anything", GPOOL_OBJECT_EPHEMERAL},
};
enum { KINDS = sizeof(kinds) / sizeof(*kinds) };

static struct gpool_object *object;

static void object_make(const struct kind *kind, uint32_t pages)
{
	object = published(kind->name, kind->memory_class, pages, NULL);
	if (kind->memory_class == GPOOL_OBJECT_EPHEMERAL) {
		assert_int_equal(gpool_object_close(object), 0);
		object = NULL;
		return;
	}
	/* The use is later than the publication, as after a delay of this process. */
	clock_steps(1);
	assert_int_equal(gpool_object_pin(object), 0);
	assert_int_equal(gpool_object_unpin(object), 0);
}

static void object_done(void)
{
	if (object)
		assert_int_equal(gpool_object_close(object), 0);
	object = NULL;
}

static bool is_there(const char *name)
{
	struct gpool_object_info info = {.size = sizeof(info)};
	uint32_t cursor = 0;

	while (gpool_object_next(admin, &cursor, &info) == 0)
		if (!strcmp(info.name, name))
			return true;
	return false;
}

/* Let another session allocate that number of pages more than are free, and keep them. */
static void request_beyond_free(uint32_t lacks, uint32_t flags)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_block block;

	options.flags = flags;
	assert_int_equal(gpool_alloc(other, harness_free_pages(&harness) + lacks, &options, &block), 0);
}

/* ---- requests ---- */

static void idle_object_goes(const char *policy, const struct kind *kind)
{
	struct gpool_block blocks[BLOCKS];

	begin_quiet(policy);
	object_make(kind, OBJECT_PAGES);
	time_passes();
	blocks_make(blocks, BLOCKS, 3);
	blocks_touch(blocks, BLOCKS, 0);
	request_beyond_free(OBJECT_PAGES, 0);
	assert_false(is_there(kind->name));
	assert_int_equal(blocks_there(blocks, BLOCKS), BLOCKS);
	object_done();
	assert_int_equal(end(NULL), 0);
}

static void idle_blocks_go(const char *policy, const struct kind *kind)
{
	struct gpool_block blocks[BLOCKS];

	begin_quiet(policy);
	blocks_make(blocks, BLOCKS, 3);
	object_make(kind, OBJECT_PAGES);
	blocks_touch(blocks, BLOCKS, IDLE_MS);
	request_beyond_free(BLOCKS / 2, 0);
	assert_true(is_there(kind->name));
	assert_int_equal(blocks_there(blocks, BLOCKS), BLOCKS - BLOCKS / 2);
	object_done();
	assert_int_equal(end(NULL), 0);
}

/* Old blocks, the object and young blocks are evicted in one order. */
static void object_stands_between(const char *policy, const struct kind *kind)
{
	struct gpool_block old[BLOCKS], young[BLOCKS];

	begin_quiet(policy);
	blocks_make(old, BLOCKS, 0);
	object_make(kind, OBJECT_PAGES);
	blocks_touch(old, BLOCKS, IDLE_MS);
	time_passes();
	blocks_make(young, BLOCKS, 3);
	blocks_touch(young, BLOCKS, 0);
	request_beyond_free(BLOCKS - 1, 0);
	assert_true(is_there(kind->name));
	assert_int_equal(blocks_there(old, BLOCKS), 1);
	request_beyond_free(1 + OBJECT_PAGES, 0);
	assert_false(is_there(kind->name));
	assert_int_equal(blocks_there(old, BLOCKS), 0);
	assert_int_equal(blocks_there(young, BLOCKS), BLOCKS);
	request_beyond_free(BLOCKS, 0);
	assert_int_equal(blocks_there(young, BLOCKS), 0);
	object_done();
	assert_int_equal(end(NULL), 0);
}

static void of_all(void (*test)(const char *policy, const struct kind *kind))
{
	for (size_t policy = 0; policy < 2; policy++)
		for (size_t kind = 0; kind < KINDS; kind++)
			test(policies[policy], &kinds[kind]);
}

static void test_an_idle_object_is_evicted_before_recent_blocks(void **state)
{
	(void)state;
	of_all(idle_object_goes);
}

static void test_idle_blocks_are_evicted_before_a_recent_object(void **state)
{
	(void)state;
	of_all(idle_blocks_go);
}

static void test_an_object_is_evicted_between_blocks(void **state)
{
	(void)state;
	of_all(object_stands_between);
}

/*
 * The object that was released first is evicted after the one that follows it. Blocks older than the follower are
 * evicted before it.
 */
static void chain_goes_by_its_end(const char *policy)
{
	struct gpool_block blocks[BLOCKS];
	struct gpool_object *head, *tail;

	begin_quiet(policy);
	head = published("kv-prefix/head", GPOOL_OBJECT_EPHEMERAL, OBJECT_PAGES, NULL);
	tail = published("kv-prefix/tail", GPOOL_OBJECT_EPHEMERAL, OBJECT_PAGES, head);
	assert_int_equal(gpool_object_close(head), 0);
	blocks_make(blocks, BLOCKS, 0);
	time_passes();
	assert_int_equal(gpool_object_close(tail), 0);
	blocks_touch(blocks, BLOCKS, IDLE_MS);
	request_beyond_free(BLOCKS - 2, 0);
	assert_true(is_there("kv-prefix/head") && is_there("kv-prefix/tail"));
	assert_int_equal(blocks_there(blocks, BLOCKS), 2);
	request_beyond_free(2 + OBJECT_PAGES, 0);
	assert_true(is_there("kv-prefix/head") && !is_there("kv-prefix/tail"));
	assert_int_equal(end(NULL), 0);
}

static void test_a_chain_is_ordered_by_its_end(void **state)
{
	(void)state;
	chain_goes_by_its_end(lru);
	chain_goes_by_its_end(adaptive);
}

/* ---- evicted as a whole or not at all ---- */

static void too_much_takes_nothing(const char *policy, const struct kind *kind)
{
	struct gpool_block blocks[BLOCKS], block, kept;

	begin_quiet(policy);
	object_make(kind, OBJECT_PAGES);
	blocks_make(blocks, BLOCKS, 0);
	assert_int_equal(gpool_alloc(other, 1, NULL, &kept), 0);
	assert_int_equal(gpool_alloc(other, PAGES, NULL, &block), -ENOSPC);
	assert_true(is_there(kind->name));
	assert_int_equal(blocks_there(blocks, BLOCKS), BLOCKS);
	assert_int_equal(gpool_alloc(other, PAGES - 1, NULL, &block), 0);
	assert_false(is_there(kind->name));
	assert_int_equal(blocks_there(blocks, BLOCKS), 0);
	object_done();
	assert_int_equal(end(NULL), 0);
}

static void test_a_refused_request_takes_neither(void **state)
{
	(void)state;
	of_all(too_much_takes_nothing);
}

/* ---- watermarks and adjacent pages ---- */

static void watermark_takes_the_idle_object(const char *policy, const struct kind *kind)
{
	struct gpool_block blocks[BLOCKS];

	/* 22 blocks and 24 pages of the object are 71 % of the pool; the blocks alone are 34 %. */
	begin(policy, "eviction.hysteresis=0", "eviction.start=70", "eviction.stop=60");
	object_make(kind, 3 * OBJECT_PAGES);
	time_passes();
	blocks_make(blocks, BLOCKS - 1, 3);
	blocks_touch(blocks, BLOCKS - 1, 0);
	blocks_make(blocks + BLOCKS - 1, 1, 3);
	blocks_touch(blocks, BLOCKS, 0);
	AWAIT(!is_there(kind->name));
	assert_int_equal(blocks_there(blocks, BLOCKS), BLOCKS);
	object_done();
	assert_int_equal(end(NULL), 0);
}

static void test_watermarks_use_the_same_order(void **state)
{
	(void)state;
	of_all(watermark_takes_the_idle_object);
}

static void place_is_where_the_object_is(const char *policy, const struct kind *kind)
{
	struct gpool_block blocks[PAGES - 2 * OBJECT_PAGES];
	const uint32_t count = sizeof(blocks) / sizeof(*blocks);

	begin_quiet(policy);
	object_make(kind, 2 * OBJECT_PAGES);
	time_passes();
	blocks_make(blocks, count, 3);
	blocks_touch(blocks, count, 0);
	request_beyond_free(2 * OBJECT_PAGES, GPOOL_ALLOC_CONTIGUOUS);
	assert_false(is_there(kind->name));
	assert_int_equal(blocks_there(blocks, count), count);
	object_done();
	assert_int_equal(end(NULL), 0);
}

static void test_adjacent_pages_evict_the_least_valuable(void **state)
{
	(void)state;
	of_all(place_is_where_the_object_is);
}

/* ---- hysteresis ---- */

static void begin_with(const char *hysteresis)
{
	begin(lru, hysteresis, "eviction.start=100", "eviction.stop=99");
}

/* Requirements: U19. */
static void test_a_request_evicts_more_than_it_lacks(void **state)
{
	struct gpool_block blocks[PAGES], block;

	(void)state;
	begin_with("eviction.hysteresis=0.5");
	blocks_make(blocks, PAGES, 0);
	assert_int_equal(gpool_alloc(other, 10, NULL, &block), 0);
	assert_int_equal(blocks_there(blocks, PAGES), PAGES - 15);
	assert_int_equal(harness_free_pages(&harness), 5);
	/* The free pages suffice, so no block is evicted. */
	assert_int_equal(gpool_alloc(other, 5, NULL, &block), 0);
	assert_int_equal(blocks_there(blocks, PAGES), PAGES - 15);
	/* Half a page of hysteresis is rounded down to none. */
	assert_int_equal(gpool_alloc(other, 1, NULL, &block), 0);
	assert_int_equal(blocks_there(blocks, PAGES), PAGES - 16);
	assert_int_equal(end(NULL), 0);
}

/* Requirements: U19. */
static void test_the_default_hysteresis_is_a_tenth(void **state)
{
	struct gpool_block blocks[PAGES], block;

	(void)state;
	start((const char *const[]){"--pool", POOL, QUIET, "--set", "lease.initial_pages=0", "--set",
		"lease.batch_pages=1", "--set", "lease.batch_most=1", NULL});
	worker = open_worker();
	other = open_worker();
	blocks_make(blocks, PAGES, 0);
	assert_int_equal(gpool_alloc(other, 20, NULL, &block), 0);
	assert_int_equal(blocks_there(blocks, PAGES), PAGES - 22);
	assert_int_equal(end(NULL), 0);
}

/*
 * The evictable content is less than the hysteresis requires, and the next candidate is larger than the remaining need.
 */
static void test_a_request_does_not_need_the_surplus(void **state)
{
	struct gpool_block pinned, blocks[12], large, block;

	(void)state;
	begin_with("eviction.hysteresis=0.5");
	pinned = alloc(worker, PAGES - 12);
	blocks_make(blocks, 12, 0);
	assert_int_equal(gpool_alloc(other, 11, NULL, &block), 0);
	assert_int_equal(blocks_there(blocks, 12), 0);
	assert_int_equal(gpool_free(other, &block), 0);
	assert_int_equal(gpool_free(worker, &pinned), 0);
	assert_int_equal(gpool_alloc(worker, PAGES, NULL, &pinned), 0);
	assert_int_equal(gpool_free(worker, &pinned), 0);
	blocks_make(blocks, 4, 0);
	large = alloc(worker, PAGES - 4);
	assert_int_equal(gpool_unpin(worker, &large), 0);
	/* The large block was used just now, the others long ago. */
	blocks_touch(blocks, 4, IDLE_MS);
	block_touch(&large, 0);
	assert_int_equal(gpool_alloc(other, 4, NULL, &block), 0);
	assert_int_equal(blocks_there(blocks, 4), 0);
	assert_int_equal(blocks_there(&large, 1), 1);
	assert_int_equal(end(NULL), 0);
}

static void test_without_eviction_there_is_no_surplus(void **state)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_block blocks[PAGES], block;

	(void)state;
	begin_with("eviction.hysteresis=1");
	blocks_make(blocks, PAGES / 2, 0);
	options.flags = GPOOL_ALLOC_NO_EVICT;
	assert_int_equal(gpool_alloc(other, PAGES / 2, &options, &block), 0);
	assert_int_equal(gpool_alloc(other, 1, &options, &block), -ENOSPC);
	assert_int_equal(blocks_there(blocks, PAGES / 2), PAGES / 2);
	assert_int_equal(end(NULL), 0);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_an_idle_object_is_evicted_before_recent_blocks, clean),
		cmocka_unit_test_teardown(test_idle_blocks_are_evicted_before_a_recent_object, clean),
		cmocka_unit_test_teardown(test_an_object_is_evicted_between_blocks, clean),
		cmocka_unit_test_teardown(test_a_chain_is_ordered_by_its_end, clean),
		cmocka_unit_test_teardown(test_a_refused_request_takes_neither, clean),
		cmocka_unit_test_teardown(test_watermarks_use_the_same_order, clean),
		cmocka_unit_test_teardown(test_adjacent_pages_evict_the_least_valuable, clean),
		cmocka_unit_test_teardown(test_a_request_evicts_more_than_it_lacks, clean),
		cmocka_unit_test_teardown(test_the_default_hysteresis_is_a_tenth, clean),
		cmocka_unit_test_teardown(test_a_request_does_not_need_the_surplus, clean),
		cmocka_unit_test_teardown(test_without_eviction_there_is_no_surplus, clean),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
