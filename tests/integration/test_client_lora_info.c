/*
 * test_client_lora_info.c - what gpool_lora_info() and gpool_lora_stats() report.
 *
 * Goal: tier, activity, time of the last use, served requests and targets are those of the adapter at this moment, not
 * at its last use. The statistics have the size, utilization and evictions of each tier.
 *
 * Method: two engines with the same adapter, a warm pool, and a worker that takes all pages.
 *
 * Requirements: L16.
 */
#include "tests/integration/lora_engine.h"

#include <errno.h>
#include <time.h>

#define WARM_POOL "name=warm,backend=host,size=64MiB,page_size=1MiB,reserved=0"

static const char *const calm[] = {"--pool", POOL, "--pool", WARM_POOL, QUIET, "--set", "lease.initial_pages=0",
	"--set", "lease.batch_pages=1", "--set", "lease.batch_most=1", NULL};

static struct gpool *one, *other, *warm;
static struct gpool_lora *lora, *lora_of_other;
static uint32_t id, id_of_other;

/* ---- fixture ---- */

static struct gpool_lora *lora_opened(struct gpool *pool, uint32_t *number)
{
	struct gpool_lora_options options = GPOOL_LORA_OPTIONS_INIT;
	char path[128], why[GPOOL_LORA_REASON_BYTES];
	struct gpool_lora *made;

	options.warm = warm;
	options.rebalance_ms = UINT32_MAX;
	assert_int_equal(gpool_lora_create(pool, &options, &made), 0);
	snprintf(path, sizeof(path), "%s/0", engine_folder);
	if (gpool_lora_register(made, "adapter", path, number, why))
		fail_msg("%s", why);
	return made;
}

static int engines_start(void **state)
{
	(void)state;
	engine_adapters_begin();
	engine_adapter(24, SAFETENSORS_F16);
	start(calm);
	one = open_worker();
	other = open_worker();
	warm = open_as(0, "warm", NULL);
	lora = lora_opened(one, &id);
	lora_of_other = lora_opened(other, &id_of_other);
	return 0;
}

static int engines_stop(void **state)
{
	int error = gpool_lora_destroy(lora) | gpool_lora_destroy(lora_of_other);

	gpool_close(one);
	gpool_close(other);
	gpool_close(warm);
	return error | engine_adapters_end() | stop(state);
}

static struct gpool_lora_info info(void)
{
	struct gpool_lora_info read = {.size = sizeof(read)};

	assert_int_equal(gpool_lora_info(lora, id, &read), 0);
	return read;
}

static struct gpool_lora_stats stats(void)
{
	struct gpool_lora_stats read = {.size = sizeof(read)};

	assert_int_equal(gpool_lora_stats(lora, &read), 0);
	return read;
}

static void is_now(enum gpool_lora_tier tier, enum gpool_lora_activity activity)
{
	struct gpool_lora_info read = info();

	assert_int_equal(read.tier, tier);
	assert_int_equal(read.activity, activity);
}

static void acquired(struct gpool_lora *in, uint32_t number)
{
	assert_int_equal(gpool_lora_acquire(in, number, -1), 0);
}

static void released(struct gpool_lora *in, uint32_t number)
{
	assert_int_equal(gpool_lora_release(in, number, GPOOL_FENCE_NONE), 0);
}

/* ---- tests ---- */

static void test_activity(void **state)
{
	struct gpool_fence fence;
	uint32_t stream;

	(void)state;
	is_now(GPOOL_LORA_TIER_COLD, GPOOL_LORA_ABSENT);
	acquired(lora, id);
	is_now(GPOOL_LORA_TIER_HOT, GPOOL_LORA_ACTIVE);
	released(lora, id);
	is_now(GPOOL_LORA_TIER_HOT, GPOOL_LORA_IDLE);
	/* GPU work may still use it. */
	assert_int_equal(gpool_stream_open(one, NULL, GPOOL_STREAM_HOST_SIGNALED, &stream), 0);
	assert_int_equal(gpool_fence_record(one, stream, &fence), 0);
	acquired(lora, id);
	assert_int_equal(gpool_lora_release(lora, id, fence), 0);
	is_now(GPOOL_LORA_TIER_HOT, GPOOL_LORA_ACTIVE);
	assert_int_equal(gpool_fence_signal(one, fence), 0);
	is_now(GPOOL_LORA_TIER_HOT, GPOOL_LORA_IDLE);
	gpool_stream_close(one, stream);
}

/* Its state follows the load in this order; some of the steps may be too short to be seen. */
static void test_load(void **state)
{
	static const enum gpool_lora_activity order[] = {GPOOL_LORA_QUEUED, GPOOL_LORA_IN_LOAD, GPOOL_LORA_IDLE};
	uint32_t step = 0;

	(void)state;
	assert_int_equal(gpool_lora_prefetch(lora, id), 0);
	while (order[step] != GPOOL_LORA_IDLE) {
		uint32_t activity = info().activity;

		while (step < 3 && order[step] != activity)
			step++;
		assert_true(step < 3);
	}
	is_now(GPOOL_LORA_TIER_HOT, GPOOL_LORA_IDLE);
	assert_int_equal(info().used_ms, 0);
	assert_int_equal(info().served, 0);
}

static void test_unloaded_by_another_engine(void **state)
{
	(void)state;
	acquired(lora, id);
	AWAIT(stats().warm_made == 1);
	acquired(lora_of_other, id_of_other);
	released(lora_of_other, id_of_other);
	assert_int_equal(gpool_lora_unload(lora_of_other, id_of_other), 0);
	is_now(GPOOL_LORA_TIER_WARM, GPOOL_LORA_EVICTING);
	released(lora, id);
	is_now(GPOOL_LORA_TIER_WARM, GPOOL_LORA_ABSENT);
}

static void test_evicted(void **state)
{
	struct gpool_lora_stats before, after;

	(void)state;
	acquired(lora, id);
	released(lora, id);
	AWAIT(stats().warm_made == 1);
	before = stats();
	assert_int_equal(before.hot_evictions, 0);
	assert_int_equal(before.warm_evictions, 0);
	assert_int_equal(before.hot_all_bytes, before.hot_bytes);
	assert_int_equal(before.hot_limit_bytes, PAGES * gpool_page_bytes(one));
	assert_int_equal(before.warm_limit_bytes, UINT64_C(64) << 20);
	assert_int_equal(before.cold_limit_bytes, 0);
	assert_true(before.warm_bytes > 0);
	assert_float_equal(before.hot_utilization, (double)before.hot_bytes / (double)before.hot_limit_bytes, 1e-6);
	assert_float_equal(before.warm_utilization, (double)before.warm_bytes / (double)before.warm_limit_bytes, 1e-6);
	assert_float_equal(before.cold_utilization, 0, 0);
	/* All pages are needed elsewhere; the copy in host memory is kept. */
	alloc(other, PAGES);
	AWAIT(stats().hot_evictions == 1);
	is_now(GPOOL_LORA_TIER_WARM, GPOOL_LORA_ABSENT);
	after = stats();
	assert_int_equal(after.hot_all_bytes, 0);
	assert_float_equal(after.hot_utilization, 0, 0);
	assert_int_equal(after.warm_evictions, 0);
	alloc(warm, 64);
	AWAIT(stats().warm_evictions == 1);
	is_now(GPOOL_LORA_TIER_COLD, GPOOL_LORA_ABSENT);
	assert_int_equal(stats().warm_bytes, 0);
}

static uint64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void test_uses(void **state)
{
	struct gpool_lora_schedule schedule = {.size = sizeof(schedule)};
	struct gpool_lora_scheduler *scheduler;
	uint64_t begin = now_ms(), first;
	uint32_t requests[3];

	(void)state;
	acquired(lora, id);
	first = info().used_ms;
	/* The pool's clock is late while the agent waits for a processor. */
	assert_true(first <= now_ms() + AWAIT_MS && first + AWAIT_MS >= begin);
	assert_int_equal(info().served, 1);
	released(lora, id);
	for (uint64_t later = first; later < first + 300; later = info().used_ms) {
		acquired(lora, id);
		released(lora, id);
	}
	assert_int_equal(gpool_lora_scheduler_create(lora, NULL, &scheduler), 0);
	begin = info().served;
	for (int i = 0; i < 3; i++)
		assert_int_equal(gpool_lora_scheduler_add(scheduler, id, 1, &requests[i]), 0);
	assert_int_equal(gpool_lora_scheduler_remove(scheduler, requests[2]), 0);
	assert_int_equal(gpool_lora_scheduler_schedule(scheduler, -1, &schedule), 2);
	assert_int_equal(info().served, begin);
	for (int i = 0; i < 2; i++)
		assert_int_equal(gpool_lora_scheduler_finish(scheduler, requests[i], GPOOL_FENCE_NONE), 0);
	assert_int_equal(info().served, begin + 2);
	assert_int_equal(gpool_lora_scheduler_destroy(scheduler), 0);
}

static void test_targets(void **state)
{
	char name[GPOOL_LORA_TARGET_BYTES];

	(void)state;
	assert_int_equal(info().targets, 2);
	assert_int_equal(gpool_lora_target_name(lora, id, 0, name), 0);
	assert_string_equal(name, "model.layers.*.q");
	assert_int_equal(gpool_lora_target_name(lora, id, 1, name), 0);
	assert_string_equal(name, "model.layers.*.v");
	assert_int_equal(gpool_lora_target_name(lora, id, 2, name), -ENOENT);
	assert_int_equal(gpool_lora_target_name(lora, id + 1, 0, name), -ENOENT);
}

/*
 * Rank and modules are known from the registration on, and stay the same in every state. The highest rank is neither
 * that of the first nor of the last module. Requirements: L1.
 */
static void test_shape(void **state)
{
	static const struct rig_module modules[] = {
		{"model.layers.0.q", 7, 256, 256, SAFETENSORS_F16},
		{"model.layers.0.v", 40, 256, 128, SAFETENSORS_F16},
		{"model.layers.2.q", 7, 256, 256, SAFETENSORS_BF16},
		{"lm_head", 9, 256, 384, SAFETENSORS_F16},
	};
	struct gpool_lora_info read = {.size = sizeof(read)}, of_first;
	char path[128], why[GPOOL_LORA_REASON_BYTES];
	uint32_t number, step;

	(void)state;
	snprintf(path, sizeof(path), "%s/%u", engine_folder, engine_adapter_of(modules, 4));
	assert_int_equal(gpool_lora_register(lora, "shape", path, &number, why), 0);
	for (step = 0; step < 3; step++) {
		if (step == 1)
			acquired(lora, number);
		if (step == 2) {
			released(lora, number);
			assert_int_equal(gpool_lora_unload(lora, number), 0);
		}
		assert_int_equal(gpool_lora_info(lora, number, &read), 0);
		assert_int_equal(read.state, step == 1 ? GPOOL_LORA_RESIDENT : GPOOL_LORA_COLD);
		assert_int_equal(read.rank_max, 40);
		assert_int_equal(read.modules, 4);
		assert_int_equal(read.layers, 3);
	}
	/* The first adapter has other values: ranks 24 and 13 in three modules. */
	of_first = info();
	assert_int_equal(of_first.rank_max, 24);
	assert_int_equal(of_first.modules, 3);
	assert_int_equal(of_first.layers, 2);
}

int main(int argc, char **argv)
{
#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, engines_start, engines_stop)
	const struct CMUnitTest tests[] = {
		TEST(activity),
		TEST(load),
		TEST(unloaded_by_another_engine),
		TEST(evicted),
		TEST(uses),
		TEST(targets),
		TEST(shape),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
