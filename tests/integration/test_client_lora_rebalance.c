/*
 * test_client_lora_rebalance.c - load evicted adapters again before they are requested.
 *
 * Goal: an adapter that was used repeatedly and then evicted for others is loaded again when memory is free. Only one
 * adapter is loaded at a time, and an adapter is loaded at most once until it is used again. Adapters that were used
 * once or were unloaded are not loaded again. No load evicts content or runs under pressure. The settings of the group
 * `adapters` take effect.
 *
 * Method: an engine with adapters and a worker that takes their pages, on a gpoold. In the first test the rebalancing
 * runs on request, so its effect is known.
 *
 * Requirements: L5.
 */
#include "client/lora/load/later.h"
#include "tests/integration/lora_engine.h"
#include "tests/lib/temporary.h"

#include <errno.h>

enum { HOUR_MS = 3600000, HALF_PAGES = PAGES / 2 };

static const char *const calm[] = {"--pool", POOL, QUIET, "--set", "lease.initial_pages=0", "--set",
	"lease.batch_pages=1", "--set", "lease.batch_most=1", NULL};

static struct gpool *one, *other, *warm;
static struct gpool_lora *lora;

/* ---- fixture ---- */

static void engine_start_with(const char *const *arguments, const char *warm_pool, uint32_t rebalance_ms)
{
	struct gpool_lora_options options = GPOOL_LORA_OPTIONS_INIT;

	engine_adapters_begin();
	start(arguments);
	one = open_as(0, "p0", NULL);
	other = open_as(0, "p0", NULL);
	if (warm_pool)
		warm = open_as(0, warm_pool, NULL);
	options.rebalance_ms = rebalance_ms;
	options.warm = warm;
	assert_int_equal(gpool_lora_create(one, &options, &lora), 0);
}

static void engine_start(uint32_t rebalance_ms)
{
	engine_start_with(calm, NULL, rebalance_ms);
}

static int engine_stop(void **state)
{
	int error = gpool_lora_destroy(lora);

	lora = NULL;
	gpool_close(one);
	gpool_close(other);
	gpool_close(warm);
	warm = NULL;
	return error | engine_adapters_end() | stop(state);
}

static uint32_t registered(uint32_t adapter)
{
	char path[128], why[GPOOL_LORA_REASON_BYTES];
	uint32_t id;

	snprintf(path, sizeof(path), "%s/%u", engine_folder, adapter);
	if (gpool_lora_register(lora, path, path, &id, why))
		fail_msg("%s", why);
	return id;
}

static uint32_t small_one(void)
{
	return registered(engine_adapter(24, SAFETENSORS_F16));
}

/* Write an adapter of more than half of the pool. */
static uint32_t large_one(void)
{
	struct rig_module modules[] = {
		{"model.layers.0.q", 128, 8704, 8704, SAFETENSORS_F16},
		{"model.layers.0.v", 128, 8704, 8704, SAFETENSORS_F16},
		{"model.layers.1.q", 128, 8704, 8704, SAFETENSORS_F16},
		{"model.layers.1.v", 128, 8704, 8704, SAFETENSORS_F16},
	};

	return registered(engine_adapter_of(modules, 4));
}

static void used(uint32_t id, int times)
{
	while (times--) {
		assert_int_equal(gpool_lora_acquire(lora, id, -1), 0);
		assert_int_equal(gpool_lora_release(lora, id, GPOOL_FENCE_NONE), 0);
	}
}

static struct gpool_lora_info info_of(uint32_t id)
{
	struct gpool_lora_info info = {.size = sizeof(info)};

	assert_int_equal(gpool_lora_info(lora, id, &info), 0);
	return info;
}

static uint64_t rebalanced(void)
{
	struct gpool_lora_stats stats = {.size = sizeof(stats)};

	assert_int_equal(gpool_lora_stats(lora, &stats), 0);
	return stats.rebalanced;
}

static uint32_t free_pages(void)
{
	return atomic_load(&one->header->state_pages[PAGE_FREE]);
}

static bool is_in_pool(void)
{
	struct gpool_object_info info = {.size = sizeof(info)};
	uint32_t cursor = 0;

	return gpool_object_next(one, &cursor, &info) == 0;
}

/* Allocate all pages. No adapter is in use, so all of them are evicted. */
static void room_taken(void)
{
	alloc(other, PAGES);
	AWAIT(!is_in_pool());
}

/* Free all pages. A session keeps freed pages until it ends. */
static void room_given(void)
{
	gpool_close(other);
	other = open_worker();
	AWAIT(free_pages() >= PAGES - 2 && gpool_pressure(one) == GPOOL_PRESSURE_LOW);
}

static void lost_to_others(void)
{
	room_taken();
	room_given();
}

static bool has_looked(void)
{
	bool looked;

	pthread_mutex_lock(&lora->lock);
	looked = lora->rebalance_ns != 0 && TAILQ_EMPTY(&lora->queue) && !lora->loads;
	pthread_mutex_unlock(&lora->lock);
	return looked;
}

/* Run the rebalancing once, and wait for its loads. */
static void look(void)
{
	AWAIT(has_looked());
	pthread_mutex_lock(&lora->lock);
	lora->rebalance_ns = 0;
	pthread_cond_broadcast(&lora->queued);
	pthread_mutex_unlock(&lora->lock);
	AWAIT(has_looked());
}

/* ---- adapters that are loaded again ---- */

static void test_evicted_adapter_is_loaded_again(void **state)
{
	struct gpool_lora_info info;
	uint32_t id;

	(void)state;
	engine_start(1);
	id = small_one();
	used(id, 2);
	lost_to_others();
	AWAIT(info_of(id).rebalanced == 1);
	info = info_of(id);
	assert_int_equal(info.state, GPOOL_LORA_RESIDENT);
	assert_int_equal(info.lost, 1);
	assert_int_equal(info.loads, 2);
	/* The adapter is not pinned. */
	used(id, 1);
	assert_int_equal(info_of(id).loads, 2);
	assert_int_equal(info_of(id).hits, info.hits + 1);
	lost_to_others();
}

static void test_one_at_a_time(void **state)
{
	uint32_t less, more;

	(void)state;
	engine_start(HOUR_MS);
	less = small_one();
	more = small_one();
	used(less, 2);
	used(more, 5);
	lost_to_others();
	look();
	assert_int_equal(rebalanced(), 1);
	assert_int_equal(info_of(more).rebalanced, 1);
	look();
	assert_int_equal(info_of(less).rebalanced, 1);
	look();
	assert_int_equal(rebalanced(), 2);
}

static void test_once_for_its_uses(void **state)
{
	uint32_t id;

	(void)state;
	engine_start(HOUR_MS);
	id = small_one();
	used(id, 2);
	for (int i = 0; i < 2; i++) {
		lost_to_others();
		look();
		assert_int_equal(rebalanced(), 1);
	}
	used(id, 1);
	lost_to_others();
	look();
	assert_int_equal(rebalanced(), 2);
}

/* Requirements: U20. */
static void test_threshold(void **state)
{
	static const char *const arguments[] = {"--pool", POOL, QUIET, "--set", "lease.initial_pages=0", "--set",
		"lease.batch_pages=1", "--set", "lease.batch_most=1", "--set", "adapters.promotion_threshold=4", NULL};
	uint32_t id;

	(void)state;
	engine_start_with(arguments, NULL, HOUR_MS);
	id = small_one();
	used(id, 3);
	lost_to_others();
	look();
	assert_int_equal(rebalanced(), 0);
	used(id, 1);
	lost_to_others();
	look();
	assert_int_equal(rebalanced(), 1);
}

/* ---- budgets ---- */

static uint32_t objects_in(struct gpool *pool)
{
	struct gpool_object_info info = {.size = sizeof(info)};
	uint32_t cursor = 0, count = 0;

	while (gpool_object_next(pool, &cursor, &info) == 0)
		count++;
	return count;
}

/* The budgets apply in every pool, to adapters in `p0` and to copies in `warm`. An adapter in use is not evicted. */
/* Requirements: U20. */
static void test_budgets(void **state)
{
	static const char *const arguments[] = {"--pool", POOL, "--pool",
		"name=warm,backend=host,size=64MiB,page_size=1MiB,reserved=0", QUIET, "--set", "adapters.hot_budget=2",
		"--set", "adapters.warm_budget=3", NULL};
	struct gpool_lora_stats stats = {.size = sizeof(stats)};
	uint32_t ids[5];

	(void)state;
	engine_start_with(arguments, "warm", HOUR_MS);
	for (int i = 0; i < 5; i++)
		ids[i] = small_one();
	assert_int_equal(gpool_lora_acquire(lora, ids[0], -1), 0);
	for (int i = 1; i < 5; i++) {
		used(ids[i], 1);
		AWAIT(objects_in(one) == 2);
		AWAIT(gpool_lora_stats(lora, &stats) == 0 && stats.warm_made == (uint64_t)i + 1);
	}
	AWAIT(objects_in(warm) == 3);
	assert_int_equal(gpool_lora_stats(lora, &stats), 0);
	assert_int_equal(stats.hot_evictions, 3);
	assert_int_equal(stats.warm_evictions, 2);
	assert_int_equal(info_of(ids[0]).lost, 0);
	assert_int_equal(gpool_lora_acquire(lora, ids[0], 0), 0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(gpool_lora_release(lora, ids[0], GPOOL_FENCE_NONE), 0);
}

/* ---- the threshold for compression ---- */

#define THRESHOLD(time) \
	"pools = ( { name = \"p0\"; backend = \"host\"; size = \"32MiB\"; page_size = \"512KB\"; reserved = \"0 " \
	"pages\"; },\n" \
	"          { name = \"warm\"; backend = \"host\"; size = \"32MiB\"; page_size = \"512KB\"; reserved = \"0 " \
	"pages\"; } );\n" \
	"adapters = { compression_threshold = \"" time "\"; };\n"

static char config_path[128];

static void threshold_reload(const char *text)
{
	const struct msg_reload_request request = {0};
	struct msg_done_reply done;

	harness_config_write(config_path, text);
	ASK(reload_request, &request, done_reply, &done);
	if (!strstr(done.text, "adapters.compression_threshold"))
		fail_msg("the reload reports: %s", done.text);
}

static bool has_copy(uint32_t id)
{
	const char *name = lora->entries[id]->adapter->warm_name;

	return gpool_object_find(warm, &name, 1) == 1;
}

static uint32_t copies_resting(void)
{
	const struct lora_later *later;
	uint32_t count = 0;

	pthread_mutex_lock(&lora->lock);
	TAILQ_FOREACH(later, &lora->resting, link)
	count++;
	pthread_mutex_unlock(&lora->lock);
	return count;
}

/*
 * An adapter is copied to host memory when it was not used for the threshold, and not while it is acquired. A reload
 * changes the threshold. Requirements: U20.
 */
static void test_compression_threshold(void **state)
{
	static const char *const arguments[] = {"--config", config_path, NULL};
	uint32_t ids[3];

	(void)state;
	snprintf(config_path, sizeof(config_path), "%s/gpool-threshold-XXXXXX", temporary_folder());
	close(mkstemp(config_path));
	harness_config_write(config_path, THRESHOLD("1h"));
	engine_start_with(arguments, "warm", 1);
	for (int i = 0; i < 3; i++)
		ids[i] = small_one();
	assert_int_equal(atomic_load(&one->header->compression_ms), HOUR_MS);
	used(ids[0], 1);
	used(ids[1], 1);
	assert_int_equal(gpool_lora_acquire(lora, ids[0], -1), 0);
	assert_int_equal(copies_resting(), 2);
	assert_int_equal(objects_in(warm), 0);
	threshold_reload(THRESHOLD("1ms"));
	AWAIT(has_copy(ids[1]));
	assert_false(has_copy(ids[0]));
	assert_int_equal(copies_resting(), 1);
	assert_int_equal(gpool_lora_release(lora, ids[0], GPOOL_FENCE_NONE), 0);
	AWAIT(has_copy(ids[0]));
	/* An adapter that was unregistered is copied, too. */
	threshold_reload(THRESHOLD("1h"));
	used(ids[2], 1);
	assert_int_equal(copies_resting(), 1);
	assert_int_equal(gpool_lora_unregister(lora, ids[2]), 0);
	/* Without a threshold, the copy is made right after the load, even if the adapter is in use. */
	threshold_reload(THRESHOLD("0ms"));
	AWAIT(objects_in(warm) == 3);
	ids[2] = small_one();
	assert_int_equal(gpool_lora_acquire(lora, ids[2], -1), 0);
	AWAIT(has_copy(ids[2]));
	assert_int_equal(gpool_lora_release(lora, ids[2], GPOOL_FENCE_NONE), 0);
	unlink(config_path);
}

static bool has_no_copies_to_make(struct gpool_lora *set)
{
	bool none;

	pthread_mutex_lock(&set->lock);
	none = TAILQ_EMPTY(&set->resting) && TAILQ_EMPTY(&set->later) && !set->copying;
	pthread_mutex_unlock(&set->lock);
	return none;
}

/* The option of a set has precedence. A copy that another engine has made in the meantime is not made again. */
static void test_idle_ms(void **state)
{
	static const char *const arguments[] = {"--pool", POOL, "--pool",
		"name=warm,backend=host,size=64MiB,page_size=1MiB,reserved=0", QUIET, "--set",
		"adapters.compression_threshold=1h", NULL};
	struct gpool_lora_options options = GPOOL_LORA_OPTIONS_INIT;
	struct gpool_lora *slower = NULL;
	struct gpool_lora_stats stats = {.size = sizeof(stats)};
	char path[128], why[GPOOL_LORA_REASON_BYTES];
	uint32_t id, its;

	(void)state;
	engine_start_with(arguments, "warm", UINT32_MAX);
	slower = lora;
	options.warm = warm;
	options.idle_ms = 1;
	options.rebalance_ms = UINT32_MAX;
	assert_int_equal(gpool_lora_create(one, &options, &lora), 0);
	id = small_one();
	snprintf(path, sizeof(path), "%s/0", engine_folder);
	assert_int_equal(gpool_lora_register(slower, "0", path, &its, why), 0);
	assert_int_equal(gpool_lora_acquire(slower, its, -1), 0);
	assert_int_equal(gpool_lora_release(slower, its, GPOOL_FENCE_NONE), 0);
	assert_int_equal(gpool_lora_unload(slower, its), 0);
	used(id, 1);
	AWAIT(has_copy(id));
	pthread_mutex_lock(&slower->lock);
	slower->idle_ms = 1;
	pthread_cond_broadcast(&slower->queued);
	pthread_mutex_unlock(&slower->lock);
	AWAIT(has_no_copies_to_make(slower));
	assert_int_equal(gpool_lora_stats(slower, &stats), 0);
	assert_int_equal(stats.warm_made + stats.warm_full, 0);
	assert_int_equal(gpool_lora_destroy(slower), 0);
	options.warm = NULL;
	assert_int_equal(gpool_lora_create(one, &options, &slower), -EINVAL);
}

/* ---- adapters that are not loaded again ---- */

static void test_used_once(void **state)
{
	uint32_t id;

	(void)state;
	engine_start(HOUR_MS);
	id = small_one();
	used(id, 1);
	lost_to_others();
	look();
	assert_int_equal(rebalanced(), 0);
}

static void test_unloaded(void **state)
{
	uint32_t id;

	(void)state;
	engine_start(HOUR_MS);
	id = small_one();
	used(id, 2);
	assert_int_equal(gpool_lora_unload(lora, id), 0);
	look();
	assert_int_equal(rebalanced(), 0);
	assert_int_equal(info_of(id).state, GPOOL_LORA_COLD);
}

static void test_never(void **state)
{
	uint32_t id;

	(void)state;
	engine_start(UINT32_MAX);
	id = small_one();
	used(id, 2);
	lost_to_others();
	/* With another interval, a rebalancing would run now. */
	pthread_mutex_lock(&lora->lock);
	lora->rebalance_ns = 0;
	pthread_cond_broadcast(&lora->queued);
	pthread_mutex_unlock(&lora->lock);
	used(small_one(), 1);
	assert_int_equal(rebalanced(), 0);
}

static void test_under_pressure(void **state)
{
	uint32_t id;

	(void)state;
	engine_start(HOUR_MS);
	id = small_one();
	used(id, 2);
	room_taken();
	look();
	assert_int_equal(rebalanced(), 0);
	room_given();
	/* The free pages are sufficient for the adapter, but some must stay free. */
	alloc(other, PAGES - PAGES / 8);
	assert_true(free_pages() > 0);
	look();
	assert_int_equal(rebalanced(), 0);
	room_given();
	look();
	assert_int_equal(rebalanced(), 1);
}

/* Two adapters in use do not fit together. An acquire evicts the other adapter; the rebalancing does not. */
static void test_no_thrash(void **state)
{
	struct gpool_lora_info first_info, second_info;
	uint32_t first, second;

	(void)state;
	engine_start(HOUR_MS);
	first = large_one();
	second = large_one();
	used(first, 2);
	assert_true(info_of(first).pages > HALF_PAGES);
	used(second, 3);
	for (int i = 0; i < 3; i++)
		look();
	first_info = info_of(first);
	second_info = info_of(second);
	assert_int_equal(first_info.loads + second_info.loads, 2);
	used(second, 1);
	assert_int_equal(info_of(second).lost, 0);
	assert_int_equal(rebalanced(), 0);
	used(first, 1);
	assert_int_equal(info_of(first).lost, 1);
}

/* ---- loads that are queued too late ---- */

/* Queue a load as rebalance() does, after the free pages that it saw were taken. */
static void queued_too_late(uint32_t id)
{
	pthread_mutex_lock(&lora->lock);
	load_set_state(lora, entry_of(lora, id), LOAD_QUEUED_UNASKED);
	pthread_mutex_unlock(&lora->lock);
}

static void test_displaces_nothing(void **state)
{
	uint32_t here, away;
	char why[GPOOL_LORA_REASON_BYTES];

	(void)state;
	engine_start(HOUR_MS);
	away = small_one();
	here = small_one();
	used(away, 2);
	lost_to_others();
	assert_int_equal(gpool_lora_unload(lora, away), 0);
	used(here, 2);
	alloc(other, free_pages());
	queued_too_late(away);
	AWAIT(info_of(away).state == GPOOL_LORA_COLD);
	assert_int_equal(gpool_lora_last_error(lora, away, why), 0);
	assert_string_equal(why, "");
	used(here, 1);
	assert_int_equal(info_of(here).lost, 0);
	/* An acquire during the load gets the adapter, even if others must be evicted. */
	queued_too_late(away);
	used(away, 1);
	assert_int_equal(rebalanced(), 0);
}

int main(int argc, char **argv)
{
#define TEST(name) cmocka_unit_test_teardown(test_##name, engine_stop)
	const struct CMUnitTest tests[] = {
		TEST(evicted_adapter_is_loaded_again),
		TEST(one_at_a_time),
		TEST(once_for_its_uses),
		TEST(threshold),
		TEST(budgets),
		TEST(compression_threshold),
		TEST(idle_ms),
		TEST(used_once),
		TEST(unloaded),
		TEST(never),
		TEST(under_pressure),
		TEST(no_thrash),
		TEST(displaces_nothing),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
