/*
 * test_client_lora_crash.c - engines load, find and evict adapters while the agent dies after each of its stores in
 * turn.
 *
 * Goal: an acquire succeeds as if no death had happened, with the weights of the files. Acquired adapters remain
 * resident, and no page is lost. The method is described in test_objects_crash.c.
 */
#include "client/lora/load/lora.h"
#include "cuda/kernels/lora.h"
#include "tests/integration/crash_points.h"
#include "tests/integration/lora_engine.h"

#include <errno.h>

enum { ADAPTERS = 2, SIDES = 2, RANK = 40 };

static struct side {
	struct gpool *pool;
	struct gpool_lora *lora;
	uint32_t ids[ADAPTERS];
} sides[SIDES];
static struct gpool_block rest[PAGES];
static uint32_t rest_count, lora_flags;

/* ---- engines ---- */

static void side_open(struct side *side)
{
	struct gpool_options options = harness_options(&harness);
	struct gpool_lora_options lora_options = GPOOL_LORA_OPTIONS_INIT;
	char folder[128], name[16];

	options.timeout_ms = ANSWER_MS;
	options.magazine = 1;
	assert_int_equal(gpool_open(&options, &side->pool), 0);
	lora_options.load_threads = 1;
	lora_options.flags = lora_flags;
	assert_int_equal(gpool_lora_create(side->pool, &lora_options, &side->lora), 0);
	for (uint32_t i = 0; i < ADAPTERS; i++) {
		snprintf(name, sizeof(name), "%u", i);
		snprintf(folder, sizeof(folder), "%s/%u", engine_folder, i);
		assert_int_equal(gpool_lora_register(side->lora, name, folder, &side->ids[i], NULL), 0);
	}
}

static void side_close(struct side *side)
{
	assert_int_equal(gpool_lora_destroy(side->lora), 0);
	gpool_close(side->pool);
}

static void acquire(const struct side *side, uint32_t adapter)
{
	int error = gpool_lora_acquire(side->lora, side->ids[adapter], ANSWER_MS);
	char why[GPOOL_LORA_REASON_BYTES];

	gpool_lora_last_error(side->lora, side->ids[adapter], why);
	if (error)
		fail_msg("adapter %u is not acquired: %s: %s", adapter, gpool_strerror(error), why);
}

static void release(const struct side *side, uint32_t adapter)
{
	assert_int_equal(gpool_lora_release(side->lora, side->ids[adapter], GPOOL_FENCE_NONE), 0);
}

static bool is_right(const struct side *side, uint32_t adapter)
{
	const struct rig *rig = &engine_rigs[adapter];
	bool right = true;

	for (uint32_t m = 0; m < rig->peft.count; m++) {
		const struct peft_module *module = &rig->peft.modules[m];
		int32_t layer = module->layer == PEFT_NO_LAYER ? -1 : (int32_t)module->layer;
		struct gpool_lora_weights part;
		struct lora_matrix at;

		assert_int_equal(gpool_lora_weights(side->lora, side->ids[adapter], layer, module->target, &part), 0);
		memcpy(&at, &part.a, sizeof(at));
		for (uint32_t k = 0; k < module->rank; k++)
			for (uint32_t i = 0; i < module->in; i++) {
				const uint16_t *tile = (const uint16_t *)(uintptr_t)lora_tile_at(
					&at, part.rank, i / LORA_TILE_COLUMNS);

				right &= tile[k * LORA_TILE_COLUMNS + i % LORA_TILE_COLUMNS] ==
					f16_of_float(rig_get(rig, &module->a, (uint64_t)k * module->in + i));
			}
	}
	return right;
}

static struct gpool_lora_info info_of(const struct side *side, uint32_t adapter)
{
	struct gpool_lora_info info = {.size = sizeof(info)};

	assert_int_equal(gpool_lora_info(side->lora, side->ids[adapter], &info), 0);
	return info;
}

/* ---- a scenario, with a death at each point ---- */

static void nothing_is_left(void)
{
	for (int i = 0; i < SIDES; i++)
		side_close(&sides[i]);
	AWAIT(try_evict(admin, "p0", PAGES, NULL) == 0 && harness_free_pages(&harness) == PAGES);
	AWAIT(harness_check(&harness) == 0);
}

static void play(void (*prepare)(void), void (*act)(void), void (*verify)(void))
{
	const char *stride_text = getenv("GPOOL_CRASH_STRIDE");
	int stride = stride_text ? atoi(stride_text) : 1;
	int64_t left = 0, at;
	uint32_t deaths = 0;

	for (at = 1; left == 0; at += stride > 0 ? stride : 1) {
		alarm(STUCK_SECONDS);
		for (int i = 0; i < SIDES; i++)
			side_open(&sides[i]);
		prepare();
		atomic_store(countdown, at);
		act();
		left = atomic_exchange(countdown, 0);
		deaths += left == 0;
		verify();
		AWAIT(harness_check(&harness) == 0);
		nothing_is_left();
		if (left == 0)
			crash_another(deaths);
	}
	print_message("%u deaths at %lld points\n", deaths, (long long)(at - left));
	assert_true(deaths > 0);
}

/* ---- published by one engine, found by the other ---- */

static void nothing(void)
{
}

static void load_and_find(void)
{
	acquire(&sides[0], 0);
	acquire(&sides[1], 0);
}

static void both_have_one(void)
{
	assert_true(is_right(&sides[0], 0) && is_right(&sides[1], 0));
	assert_int_equal(info_of(&sides[0], 0).loads, 1);
	assert_int_equal(info_of(&sides[1], 0).shared, 1);
	for (int i = 0; i < SIDES; i++)
		release(&sides[i], 0);
}

static void test_load_and_find(void **state)
{
	(void)state;
	play(nothing, load_and_find, both_have_one);
}

/* ---- evicted for another adapter ---- */

/* Make adapter 0 resident without acquiring it, and leave no other page free. */
static void the_pool_is_full(void)
{
	struct gpool_alloc_options options = GPOOL_ALLOC_OPTIONS_INIT;

	acquire(&sides[0], 0);
	acquire(&sides[1], 0);
	for (int i = 0; i < SIDES; i++)
		release(&sides[i], 0);
	options.flags = GPOOL_ALLOC_NO_EVICT;
	rest_count = 0;
	while (gpool_alloc(sides[1].pool, 1, &options, &rest[rest_count]) == 0)
		rest_count++;
}

static void displace(void)
{
	acquire(&sides[0], 1);
}

static void it_comes_back(void)
{
	assert_true(is_right(&sides[0], 1));
	release(&sides[0], 1);
	acquire(&sides[1], 0);
	assert_true(is_right(&sides[1], 0));
	assert_int_equal(info_of(&sides[1], 0).lost, 1);
	release(&sides[1], 0);
	while (rest_count)
		assert_int_equal(gpool_free(sides[1].pool, &rest[--rest_count]), 0);
}

static void test_displaced(void **state)
{
	(void)state;
	play(the_pool_is_full, displace, it_comes_back);
}

/*
 * Fill the pool as before, and let the other engine acquire the adapter: the load must be refused at every death of the
 * agent.
 */
static void it_is_acquired(void)
{
	the_pool_is_full();
	acquire(&sides[1], 0);
}

static void cannot_displace(void)
{
	assert_int_equal(gpool_lora_acquire(sides[0].lora, sides[0].ids[1], ANSWER_MS), -ENOSPC);
}

static void it_has_stayed(void)
{
	assert_true(is_right(&sides[1], 0));
	acquire(&sides[0], 0);
	assert_true(is_right(&sides[0], 0));
	for (int i = 0; i < SIDES; i++)
		release(&sides[i], 0);
	while (rest_count)
		assert_int_equal(gpool_free(sides[1].pool, &rest[--rest_count]), 0);
}

static void test_not_displaced(void **state)
{
	(void)state;
	play(it_is_acquired, cannot_displace, it_has_stayed);
}

/* ---- unloaded ---- */

static void the_other_has_it(void)
{
	acquire(&sides[0], 0);
	acquire(&sides[1], 0);
	release(&sides[0], 0);
}

/* The adapter is freed with its last use; the next acquire loads it again. */
static void unload_and_load(void)
{
	assert_int_equal(gpool_lora_unload(sides[0].lora, sides[0].ids[0]), 0);
	acquire(&sides[0], 0);
}

static void both_have_their_own(void)
{
	assert_true(is_right(&sides[0], 0) && is_right(&sides[1], 0));
	assert_int_equal(info_of(&sides[0], 0).loads, 2);
	for (int i = 0; i < SIDES; i++)
		release(&sides[i], 0);
}

static void test_unloaded(void **state)
{
	(void)state;
	play(the_other_has_it, unload_and_load, both_have_their_own);
}

/* ---- in shared pages ---- */

/* Use up the lease, so that the agent grants the shared page. */
static void the_lease_is_used(void)
{
	for (rest_count = 0; rest_count < 4; rest_count++)
		assert_int_equal(gpool_alloc(sides[0].pool, 1, NULL, &rest[rest_count]), 0);
}

static void load_twice(void)
{
	for (uint32_t i = 0; i < ADAPTERS; i++)
		acquire(&sides[0], i);
	for (uint32_t i = 0; i < ADAPTERS; i++) {
		release(&sides[0], i);
		assert_int_equal(gpool_lora_unload(sides[0].lora, sides[0].ids[i]), 0);
	}
	for (uint32_t i = 0; i < ADAPTERS; i++)
		acquire(&sides[0], i);
}

static void both_share_a_page(void)
{
	assert_int_equal(tails_page_count(&sides[0].lora->tails), 1);
	for (uint32_t i = 0; i < ADAPTERS; i++) {
		assert_true(is_right(&sides[0], i));
		assert_int_equal(info_of(&sides[0], i).loads, 2);
		release(&sides[0], i);
	}
	while (rest_count)
		assert_int_equal(gpool_free(sides[0].pool, &rest[--rest_count]), 0);
}

static void test_shared_page(void **state)
{
	(void)state;
	lora_flags = GPOOL_LORA_SHARE_PAGES;
	play(the_lease_is_used, load_twice, both_share_a_page);
	lora_flags = 0;
}

/* ---- fixture ---- */

static int engines_start(void **state)
{
	engine_adapters_begin();
	for (int i = 0; i < ADAPTERS; i++)
		engine_adapter(RANK, SAFETENSORS_F16);
	return crash_start(state);
}

static int engines_stop(void **state)
{
	return crash_stop(state) | engine_adapters_end();
}

int main(int argc, char **argv)
{
#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, engines_start, engines_stop)
	const struct CMUnitTest tests[] = {
		TEST(load_and_find),
		TEST(displaced),
		TEST(not_displaced),
		TEST(unloaded),
		TEST(shared_page),
	};

	crash_setting = "eviction.start=100";
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, crash_end);
}
