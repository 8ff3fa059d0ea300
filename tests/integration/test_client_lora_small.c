/*
 * test_client_lora_small.c - adapters smaller than a page, of which several share one (GPOOL_LORA_SHARE_PAGES).
 *
 * Goal: such an adapter takes no page and no object of its own. It can be used, evicted, loaded again and unloaded like
 * any other, and every matrix has the weights of the files. When no adapter is left, no page is left.
 *
 * Method: generated adapters of 0.1 to 0.9 pages, and a gpoold on host memory.
 */
#include "tests/integration/lora_sets.h"

#include <errno.h>

#define WARM_POOL "name=warm,backend=host,size=40MiB,page_size=1MiB,reserved=0"

static const char *const calm[] = {"--pool", POOL, "--pool", WARM_POOL, QUIET, "--set", "lease.initial_pages=0",
	"--set", "lease.batch_pages=1", "--set", "lease.batch_most=1", NULL};

/* ---- fixture ---- */

static void small_make(uint32_t rank)
{
	struct rig_module modules[8];

	for (uint32_t layer = 0; layer < 4; layer++) {
		struct rig_module *q = &modules[2 * layer], *v = q + 1;

		*q = (struct rig_module){.rank = rank, .in = 2048, .out = 2048, .type = SAFETENSORS_BF16};
		*v = (struct rig_module){.rank = rank, .in = 2048, .out = 300, .type = SAFETENSORS_F32};
		snprintf(q->path, sizeof(q->path), "model.layers.%u.q", layer);
		snprintf(v->path, sizeof(v->path), "model.layers.%u.v", layer);
	}
	engine_adapter_of(modules, 8);
}

static int adapters_write(void **state)
{
	(void)state;
	engine_adapters_begin();
	for (uint32_t i = 0; i < ADAPTERS; i++)
		small_make(1 + i * 8 / (ADAPTERS - 1));
	return 0;
}

static int adapters_remove(void **state)
{
	(void)state;
	return engine_adapters_end();
}

static void begin(void)
{
	start(calm);
	warm = open_as(0, "warm", NULL);
}

static void begin_with_set(void)
{
	begin();
	set_open(0, &(struct gpool_lora_options)GPOOL_LORA_OPTIONS_INIT);
}

static uint32_t object_count(struct gpool *pool)
{
	struct gpool_object_info info = {.size = sizeof(info)};
	uint32_t cursor = 0, count = 0;

	while (!gpool_object_next(pool, &cursor, &info))
		count++;
	return count;
}

/* ---- tests ---- */

/* Requirements: L18. */
static void test_several_share_a_page(void **state)
{
	uint64_t bytes = 0;
	uint32_t pages;

	(void)state;
	begin_with_set();
	for (uint32_t i = 0; i < ADAPTERS; i++)
		acquire(0, i);
	for (uint32_t i = 0; i < ADAPTERS; i++) {
		const struct lora_entry *entry = entry_at(0, i);

		check(0, i);
		assert_int_equal(entry->adapter->layout.header->pages, 1);
		bytes += entry->adapter->layout.header->last_bytes;
		assert_int_equal(info_of(0, i).tier, GPOOL_LORA_TIER_HOT);
		assert_int_equal(info_of(0, i).activity, GPOOL_LORA_ACTIVE);
	}
	pages = shared_pages(0);
	print_message("%u pages instead of %u; %.1f %% of them unused instead of %.1f %%\n", pages, ADAPTERS,
		100 * (1 - (double)bytes / pages / PAGE_BYTES), 100 * (1 - (double)bytes / ADAPTERS / PAGE_BYTES));
	assert_int_equal(object_count(pools[0]), 0);
	assert_int_equal(stats_of(0).hot_bytes, (uint64_t)pages * PAGE_BYTES);
	assert_int_equal(stats_of(0).hot_all_bytes, stats_of(0).hot_bytes);
	/* At most the end of one page is unused, apart from holes that are too small for a run. */
	assert_true(bytes > (uint64_t)(pages - 1) * PAGE_BYTES);
	for (uint32_t i = 0; i < ADAPTERS; i++)
		release(0, i);
}

/* The agent evicts shared pages like other unpinned blocks, but none with an adapter in use. */
static void test_evicted(void **state)
{
	(void)state;
	begin_with_set();
	for (uint32_t i = 0; i < ADAPTERS; i++)
		use(0, i);
	acquire(0, 3);
	evict_all();
	check(0, 3);
	assert_int_equal(info_of(0, 3).tier, GPOOL_LORA_TIER_HOT);
	release(0, 3);
	evict_all();
	assert_int_equal(info_of(0, 3).tier, GPOOL_LORA_TIER_COLD);
	assert_int_equal(info_of(0, 3).activity, GPOOL_LORA_ABSENT);
	for (uint32_t i = 0; i < ADAPTERS; i++) {
		use(0, i);
		assert_int_equal(info_of(0, i).loads, 2);
		assert_int_equal(info_of(0, i).lost, 1);
	}
}

/* Adapters that are acquired layer by layer stay when they are released. */
static void test_layer_by_layer(void **state)
{
	(void)state;
	begin_with_set();
	for (uint32_t i = 0; i < ADAPTERS; i++) {
		assert_int_equal(gpool_lora_acquire_async(loras[0], ids[0][i], -1), 0);
		for (int layer = 0; layer < 4; layer++)
			assert_int_equal(gpool_lora_wait_layer(loras[0], ids[0][i], layer, -1), 0);
	}
	for (uint32_t i = 0; i < ADAPTERS; i++) {
		check(0, i);
		release(0, i);
		AWAIT(!info_of(0, i).acquired && info_of(0, i).activity == GPOOL_LORA_IDLE);
		use(0, i);
		assert_int_equal(info_of(0, i).loads, 1);
	}
}

/* The room of an unloaded adapter is used again. The last one frees its page. */
static void test_unloaded(void **state)
{
	uint32_t most = 0;

	(void)state;
	begin_with_set();
	for (uint32_t round = 0; round < 4; round++)
		for (uint32_t i = 0; i < ADAPTERS; i++) {
			use(0, i);
			if (!round)
				most = shared_pages(0);
			if (i % 4 == round)
				assert_int_equal(gpool_lora_unload(loras[0], ids[0][i]), 0);
			AWAIT(shared_pages(0) <= most + 1);
		}
	for (uint32_t i = 0; i < ADAPTERS; i++)
		assert_int_equal(gpool_lora_unload(loras[0], ids[0][i]), 0);
	AWAIT(shared_pages(0) == 0);
	set_close(0);
	AWAIT(harness_free_pages(&harness) == PAGES);
}

/* Each engine has its own copies, from any source. */
static void test_two_engines(void **state)
{
	struct gpool_lora_options options = GPOOL_LORA_OPTIONS_INIT;

	(void)state;
	begin();
	options.warm = warm;
	set_open(0, &options);
	for (uint32_t i = 0; i < ADAPTERS; i++)
		use(0, i);
	AWAIT(stats_of(0).warm_made == ADAPTERS);
	set_open(1, &options);
	for (uint32_t i = 0; i < ADAPTERS; i++) {
		use(1, i);
		assert_int_equal(info_of(1, i).shared, 0);
		assert_int_equal(info_of(1, i).from_warm, 1);
	}
	set_close(0);
	for (uint32_t i = 0; i < ADAPTERS; i++)
		use(1, i);
}

/* With limits, the policy of the set evicts small adapters, too. */
static void test_limited(void **state)
{
	struct gpool_lora_options options = GPOOL_LORA_OPTIONS_INIT;

	(void)state;
	begin();
	options.hot_adapters = 4;
	set_open(0, &options);
	for (uint32_t round = 0; round < 3; round++)
		for (uint32_t i = 0; i < ADAPTERS; i++)
			use(0, i);
	AWAIT(stats_of(0).resident <= 4);
	assert_true(stats_of(0).evicted >= ADAPTERS - 4);
	evict_all();
	for (uint32_t i = 0; i < ADAPTERS; i++)
		use(0, i);
}

/* An adapter whose page was evicted is loaded before it is requested. */
static void test_rebalanced(void **state)
{
	struct gpool_lora_options options = GPOOL_LORA_OPTIONS_INIT;

	(void)state;
	begin();
	options.rebalance_ms = 10;
	set_open(0, &options);
	for (int i = 0; i < 3; i++)
		use(0, 5);
	evict_all();
	AWAIT(info_of(0, 5).rebalanced == 1 && info_of(0, 5).tier == GPOOL_LORA_TIER_HOT);
	use(0, 5);
	assert_int_equal(info_of(0, 5).loads, 2);
}

/* A load without room fails, and succeeds later. */
static void test_no_room(void **state)
{
	struct gpool_block blocks[PAGES];
	char why[GPOOL_LORA_REASON_BYTES];
	uint32_t count = 0;

	(void)state;
	begin_with_set();
	while (!gpool_alloc(pools[0], 1, NULL, &blocks[count]))
		count++;
	assert_int_equal(count, PAGES);
	for (uint32_t i = 0; i < ADAPTERS; i++)
		assert_int_equal(gpool_lora_acquire_async(loras[0], ids[0][i], 0), -EAGAIN);
	AWAIT(info_of(0, 0).state == GPOOL_LORA_COLD);
	assert_int_equal(gpool_lora_acquire(loras[0], ids[0][0], -1), -ENOSPC);
	assert_int_equal(gpool_lora_last_error(loras[0], ids[0][0], why), 0);
	if (!strstr(why, "the adapter needs 1 page"))
		fail_msg("%s", why);
	while (count)
		assert_int_equal(gpool_free(pools[0], &blocks[--count]), 0);
	for (uint32_t i = 0; i < ADAPTERS; i++)
		use(0, i);
}

/* A failed load leaves no page. */
static void test_failed_load(void **state)
{
	(void)state;
	begin();
	first_damage();
	set_open(0, &(struct gpool_lora_options)GPOOL_LORA_OPTIONS_INIT);
	assert_int_equal(gpool_lora_acquire(loras[0], ids[0][0], -1), -EINVAL);
	assert_int_equal(gpool_lora_acquire_async(loras[0], ids[0][0], -1), 0);
	assert_int_equal(gpool_lora_wait_layer(loras[0], ids[0][0], -1, -1), -EINVAL);
	release(0, 0);
	AWAIT(info_of(0, 0).state == GPOOL_LORA_COLD);
	assert_int_equal(shared_pages(0), 0);
	use(0, 1);
}

#ifndef __SANITIZE_THREAD__ /* a child of a process with threads cannot have threads under the sanitizer */
/* The pages of a dead engine are free, whether it was loading or using adapters. */
static void test_killed(void **state)
{
	(void)state;
	begin();
	for (uint32_t loaded = 1; loaded <= ADAPTERS; loaded++) {
		int ready[2];
		char byte;
		pid_t child;

		assert_int_equal(pipe(ready), 0);
		child = fork();
		if (!child) {
			admin = warm = NULL;
			set_open(0, &(struct gpool_lora_options)GPOOL_LORA_OPTIONS_INIT);
			for (uint32_t i = 0; i < ADAPTERS; i++)
				if (i < loaded)
					use(0, i);
				else
					gpool_lora_prefetch(loras[0], ids[0][i]);
			if (write(ready[1], "", 1) == 1)
				pause();
			_exit(1);
		}
		assert_true(child > 0);
		close(ready[1]);
		assert_int_equal(read(ready[0], &byte, 1), 1);
		kill(child, SIGKILL);
		assert_int_equal(waitpid(child, NULL, 0), child);
		close(ready[0]);
		AWAIT(harness_free_pages(&harness) == PAGES);
		AWAIT(harness_check(&harness) == 0);
	}
}
#endif

int main(int argc, char **argv)
{
#define TEST(name) cmocka_unit_test_teardown(test_##name, sets_end)
	const struct CMUnitTest tests[] = {
		TEST(several_share_a_page),
		TEST(evicted),
		TEST(layer_by_layer),
		TEST(unloaded),
		TEST(two_engines),
		TEST(limited),
		TEST(rebalanced),
		TEST(no_room),
		TEST(failed_load),
#ifndef __SANITIZE_THREAD__
		TEST(killed),
#endif
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, adapters_write, adapters_remove);
}
