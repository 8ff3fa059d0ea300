/*
 * test_client_lora_limits.c - a set of adapters that keeps its limits by the residency policy, in the pool and among
 * the copies in host memory.
 *
 * Goal: the set evicts the adapters with the lowest worth that are not in use, and refuses an adapter if those in use
 * leave no room. A fence, a failed load, an eviction by the agent, another engine with the same adapter, and a number
 * that is used again leave the policy with the true state. Prefetches and rebalancing follow the policy. Adapters that
 * are idle, or are evicted, are copied to host memory, and the copies with the lowest worth are deleted.
 *
 * Method: an engine with small adapters on a gpoold, and the invariants of the policy after each test.
 *
 * Requirements: L5, L17.
 */
#include "client/lora/load/later.h"
#include "client/lora/residency/residency.h"
#include "tests/integration/lora_engine.h"

#include <errno.h>
#include <pthread.h>

enum { HOUR_MS = 3600000, SMALL_ONES = 6 };

static const char *const calm[] = {"--pool", POOL, QUIET, "--set", "lease.initial_pages=0", "--set",
	"lease.batch_pages=1", "--set", "lease.batch_most=1", NULL};

/* With a second pool for copies, of which each needs one page. */
static const char *const with_copies[] = {"--pool", POOL, "--pool",
	"name=warm,backend=host,size=16MiB,page_size=1MiB,reserved=0", QUIET, "--set", "lease.initial_pages=0", "--set",
	"lease.batch_pages=1", "--set", "lease.batch_most=1", NULL};

static struct gpool *one, *other, *warm;
static struct gpool_lora *lora, *lora_of_other;
static uint32_t ids[SMALL_ONES];

/* ---- fixture ---- */

static struct gpool_lora *set_made(struct gpool *pool, uint32_t hot_adapters, uint64_t hot_bytes, uint32_t rebalance_ms)
{
	struct gpool_lora_options options = GPOOL_LORA_OPTIONS_INIT;
	struct gpool_lora *made;

	options.hot_adapters = hot_adapters;
	options.hot_bytes = hot_bytes;
	options.rebalance_ms = rebalance_ms;
	assert_int_equal(gpool_lora_create(pool, &options, &made), 0);
	return made;
}

static int try_register(struct gpool_lora *in, uint32_t adapter, uint32_t *id, char *why)
{
	char path[128], name[16];

	snprintf(path, sizeof(path), "%s/%u", engine_folder, adapter);
	snprintf(name, sizeof(name), "%u", adapter);
	return gpool_lora_register(in, name, path, id, why);
}

static uint32_t registered(struct gpool_lora *in, uint32_t adapter)
{
	char why[GPOOL_LORA_REASON_BYTES];
	uint32_t id;

	if (try_register(in, adapter, &id, why))
		fail_msg("%s", why);
	return id;
}

static void engine_start_with(const char *const *arguments, const struct gpool_lora_options *limits)
{
	struct gpool_lora_options options = *limits;

	engine_adapters_begin();
	start(arguments);
	one = open_as(0, "p0", NULL);
	other = open_as(0, "p0", NULL);
	warm = arguments == with_copies ? open_as(0, "warm", NULL) : NULL;
	options.warm = warm;
	assert_int_equal(gpool_lora_create(one, &options, &lora), 0);
	for (int i = 0; i < SMALL_ONES; i++)
		ids[i] = registered(lora, engine_adapter(24, SAFETENSORS_F16));
}

static void engine_start(uint32_t hot_adapters, uint32_t rebalance_ms)
{
	struct gpool_lora_options limits = GPOOL_LORA_OPTIONS_INIT;

	limits.hot_adapters = hot_adapters;
	limits.rebalance_ms = rebalance_ms;
	engine_start_with(calm, &limits);
}

static void engine_start_warm(uint32_t hot_adapters, uint32_t warm_adapters, uint32_t idle_ms)
{
	struct gpool_lora_options limits = GPOOL_LORA_OPTIONS_INIT;

	limits.hot_adapters = hot_adapters;
	limits.warm_adapters = warm_adapters;
	limits.idle_ms = idle_ms;
	limits.rebalance_ms = UINT32_MAX;
	engine_start_with(with_copies, &limits);
}

/* Return NULL if the state of the policy is consistent, and corresponds to that of the adapters. */
static const char *wrong(void)
{
	const char *text = residency_check(lora->residency);

	for (uint32_t i = 0; i < lora->entry_count && !text; i++) {
		const struct lora_entry *entry = lora->entries[i];
		enum residency_hot hot = entry ? residency_hot(lora->residency, i) : RESIDENCY_ABSENT;

		if (entry && (entry->state == GPOOL_LORA_RESIDENT) != (hot == RESIDENCY_RESIDENT))
			text = "an adapter is resident and the policy does not know it, or the reverse";
		if (entry && entry->is_held && !entry->acquired)
			text = "the policy knows an adapter as used that is not in use";
		if (entry && residency_warm(lora->residency, i) == RESIDENCY_COPYING && !lora->copying &&
			TAILQ_EMPTY(&lora->later) && !residency_has_next(lora->residency))
			text = "the policy waits for a copy that no thread makes";
	}
	return text;
}

/* Return true if all decisions were executed, and no load is in progress. */
static bool is_quiet(void)
{
	bool is;

	pthread_mutex_lock(&lora->lock);
	is = !residency_has_next(lora->residency) && !lora->deciding && !lora->loads && TAILQ_EMPTY(&lora->queue) &&
		TAILQ_EMPTY(&lora->drafts) && TAILQ_EMPTY(&lora->surplus) && TAILQ_EMPTY(&lora->later) &&
		!lora->copying;
	pthread_mutex_unlock(&lora->lock);
	return is;
}

static void check(void)
{
	const char *text;

	AWAIT(is_quiet());
	pthread_mutex_lock(&lora->lock);
	text = wrong();
	pthread_mutex_unlock(&lora->lock);
	if (text)
		fail_msg("%s", text);
}

static int engine_stop(void **state)
{
	int error = gpool_lora_destroy(lora) | gpool_lora_destroy(lora_of_other);

	lora = lora_of_other = NULL;
	gpool_close(one);
	gpool_close(other);
	gpool_close(warm);
	return error | engine_adapters_end() | stop(state);
}

static struct gpool_lora_info info_of(uint32_t id)
{
	struct gpool_lora_info info = {.size = sizeof(info)};

	assert_int_equal(gpool_lora_info(lora, id, &info), 0);
	return info;
}

static struct gpool_lora_stats stats(void)
{
	struct gpool_lora_stats read = {.size = sizeof(read)};

	assert_int_equal(gpool_lora_stats(lora, &read), 0);
	return read;
}

static bool is_here(uint32_t id)
{
	return info_of(id).tier == GPOOL_LORA_TIER_HOT;
}

static void acquired(uint32_t id)
{
	assert_int_equal(gpool_lora_acquire(lora, id, -1), 0);
}

static void released(uint32_t id)
{
	assert_int_equal(gpool_lora_release(lora, id, GPOOL_FENCE_NONE), 0);
}

static void used(uint32_t id, int times)
{
	while (times--) {
		acquired(id);
		released(id);
	}
}

static void refused(uint32_t id)
{
	char why[GPOOL_LORA_REASON_BYTES];

	assert_int_equal(gpool_lora_acquire(lora, id, -1), -ENOSPC);
	assert_int_equal(gpool_lora_last_error(lora, id, why), 0);
	assert_non_null(strstr(why, "hot_bytes"));
}

/* ---- evictions ---- */

static void test_lowest_worth_is_evicted(void **state)
{
	(void)state;
	engine_start(2, UINT32_MAX);
	used(ids[0], 3);
	used(ids[1], 1);
	assert_int_equal(stats().evicted, 0);
	used(ids[2], 1);
	AWAIT(stats().evicted == 1);
	assert_true(is_here(ids[0]) && !is_here(ids[1]) && is_here(ids[2]));
	assert_int_equal(info_of(ids[0]).loads, 1);
	check();
	/* It is loaded again, and again the one with the most uses stays. */
	used(ids[1], 2);
	AWAIT(stats().evicted == 2);
	assert_true(is_here(ids[0]) && is_here(ids[1]) && !is_here(ids[2]));
	assert_int_equal(stats().lost, 0);
	check();
}

static void test_all_in_use(void **state)
{
	(void)state;
	engine_start(2, UINT32_MAX);
	acquired(ids[0]);
	acquired(ids[1]);
	acquired(ids[1]);
	refused(ids[2]);
	refused(ids[2]);
	released(ids[1]);
	refused(ids[2]);
	released(ids[1]);
	acquired(ids[2]);
	AWAIT(stats().evicted == 1);
	assert_true(is_here(ids[0]) && !is_here(ids[1]));
	released(ids[0]);
	released(ids[2]);
	check();
}

static void test_bytes(void **state)
{
	struct gpool_lora *limited;
	char why[GPOOL_LORA_REASON_BYTES];
	uint64_t bytes;
	uint32_t first, second;

	(void)state;
	engine_start(0, UINT32_MAX);
	assert_null(lora->residency);
	acquired(ids[0]);
	bytes = info_of(ids[0]).pages * gpool_page_bytes(one);
	released(ids[0]);
	limited = set_made(one, 0, bytes - 1, UINT32_MAX);
	assert_int_equal(try_register(limited, 0, &first, why), -EINVAL);
	assert_non_null(strstr(why, "hot_bytes"));
	assert_int_equal(gpool_lora_find(limited, "0", &first), -ENOENT);
	assert_int_equal(gpool_lora_destroy(limited), 0);
	assert_int_equal(gpool_lora_destroy(lora), 0);
	lora = set_made(one, 0, bytes, UINT32_MAX);
	first = registered(lora, 0);
	second = registered(lora, 2);
	acquired(first);
	refused(second);
	released(first);
	acquired(second);
	AWAIT(stats().evicted == 1);
	released(second);
	check();
}

static void test_fence(void **state)
{
	struct gpool_fence fence;
	uint32_t stream;

	(void)state;
	engine_start(1, UINT32_MAX);
	assert_int_equal(gpool_stream_open(one, NULL, GPOOL_STREAM_HOST_SIGNALED, &stream), 0);
	assert_int_equal(gpool_fence_record(one, stream, &fence), 0);
	acquired(ids[0]);
	assert_int_equal(gpool_lora_release(lora, ids[0], fence), 0);
	refused(ids[1]);
	/* It is not evicted, and can be acquired again. */
	used(ids[0], 1);
	refused(ids[1]);
	assert_int_equal(gpool_fence_signal(one, fence), 0);
	acquired(ids[1]);
	AWAIT(stats().evicted == 1);
	released(ids[1]);
	check();
	gpool_stream_close(one, stream);
}

static void decisions_hold(bool hold)
{
	pthread_mutex_lock(&lora->lock);
	lora->deciding = hold;
	pthread_cond_broadcast(&lora->queued);
	pthread_mutex_unlock(&lora->lock);
}

/* An adapter that is acquired again between the decision and its eviction is evicted after its release. */
static void test_acquired_before_its_eviction(void **state)
{
	(void)state;
	engine_start(1, UINT32_MAX);
	used(ids[0], 1);
	check();
	decisions_hold(true);
	assert_int_equal(gpool_lora_prefetch(lora, ids[1]), 0);
	acquired(ids[0]);
	decisions_hold(false);
	AWAIT(is_here(ids[1]));
	assert_true(is_here(ids[0]));
	assert_int_equal(stats().evicted, 0);
	released(ids[0]);
	AWAIT(stats().evicted == 1);
	assert_true(!is_here(ids[0]) && is_here(ids[1]));
	check();
}

/* Each call without a timeout asks once; the adapter stays until another one is asked for. */
static void test_without_waiting(void **state)
{
	int error;

	(void)state;
	engine_start(1, UINT32_MAX);
	used(ids[0], 1);
	assert_int_equal(gpool_lora_acquire(lora, ids[1], 0), -EAGAIN);
	AWAIT((error = gpool_lora_acquire(lora, ids[1], 0)) != -EAGAIN);
	assert_int_equal(error, 0);
	assert_int_equal(gpool_lora_acquire(lora, ids[0], 0), -ENOSPC);
	released(ids[1]);
	check();
}

static void test_number_is_used_again(void **state)
{
	(void)state;
	engine_start(1, UINT32_MAX);
	used(ids[0], 1);
	assert_int_equal(gpool_lora_unregister(lora, ids[0]), 0);
	assert_int_equal(registered(lora, 0), ids[0]);
	used(ids[1], 1);
	used(ids[0], 1);
	check();
	assert_true(is_here(ids[0]));
}

static void test_failed_load(void **state)
{
	char path[128];
	int fd;

	(void)state;
	engine_start(1, UINT32_MAX);
	snprintf(path, sizeof(path), "%s/0/adapter_model.safetensors", engine_folder);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	assert_int_equal(pwrite(fd, "x", 1, 0), 1);
	close(fd);
	assert_int_equal(gpool_lora_acquire(lora, ids[0], -1), -EINVAL);
	used(ids[1], 1);
	assert_int_equal(gpool_lora_acquire(lora, ids[0], -1), -EINVAL);
	used(ids[2], 1);
	check();
}

/* ---- other processes ---- */

/* An adapter that another engine has open stays in the pool, and this engine opens it again without a load. */
static void test_other_engine(void **state)
{
	uint32_t id;

	(void)state;
	engine_start(1, UINT32_MAX);
	lora_of_other = set_made(other, 0, 0, UINT32_MAX);
	id = registered(lora_of_other, 0);
	used(ids[0], 1);
	assert_int_equal(gpool_lora_acquire(lora_of_other, id, -1), 0);
	used(ids[1], 1);
	AWAIT(stats().evicted == 1);
	assert_int_equal(gpool_lora_release(lora_of_other, id, GPOOL_FENCE_NONE), 0);
	assert_int_equal(gpool_lora_acquire(lora_of_other, id, 0), 0);
	assert_int_equal(gpool_lora_release(lora_of_other, id, GPOOL_FENCE_NONE), 0);
	used(ids[0], 1);
	assert_int_equal(info_of(ids[0]).loads, 1);
	assert_int_equal(info_of(ids[0]).shared, 1);
	check();
}

/* The agent evicts adapters although they are within the limits. */
static void test_evicted_by_the_agent(void **state)
{
	(void)state;
	engine_start(2, UINT32_MAX);
	used(ids[0], 1);
	used(ids[1], 1);
	alloc(other, PAGES);
	AWAIT(!is_here(ids[0]) && !is_here(ids[1]));
	gpool_close(other);
	other = open_worker();
	used(ids[0], 1);
	assert_int_equal(info_of(ids[0]).lost, 1);
	/* The policy evicts the other adapter, which the agent has already evicted. */
	used(ids[2], 1);
	AWAIT(info_of(ids[1]).lost == 1);
	assert_int_equal(stats().evicted, 0);
	used(ids[0], 1);
	assert_true(is_here(ids[0]) && is_here(ids[2]));
	assert_int_equal(info_of(ids[0]).loads, 2);
}

/* An idle thread finds that an adapter was evicted. */
static void test_loss_is_found(void **state)
{
	(void)state;
	engine_start(2, 1);
	used(ids[0], 1);
	alloc(other, PAGES);
	AWAIT(info_of(ids[0]).lost == 1);
	check();
}

/* ---- loads ahead ---- */

static void test_prefetch(void **state)
{
	(void)state;
	engine_start(2, UINT32_MAX);
	used(ids[5], 9);
	for (int i = 0; i < 2; i++)
		assert_int_equal(gpool_lora_prefetch(lora, ids[i]), 0);
	AWAIT(is_here(ids[0]) && is_here(ids[1]));
	check();
	/* Only an acquired adapter displaces one that is expected. */
	assert_int_equal(gpool_lora_prefetch(lora, ids[2]), 0);
	check();
	assert_int_equal(info_of(ids[2]).loads, 0);
	assert_true(is_here(ids[0]) && is_here(ids[1]));
	used(ids[2], 1);
	AWAIT(is_here(ids[0]) != is_here(ids[1]));
	check();
}

/* An adapter that is worth more than the resident one replaces it without a request. */
static void test_rebalancing(void **state)
{
	(void)state;
	engine_start(1, 1);
	acquired(ids[0]);
	for (int i = 0; i < 9; i++)
		acquired(ids[0]);
	for (int i = 0; i < 10; i++)
		released(ids[0]);
	used(ids[1], 1);
	AWAIT(info_of(ids[0]).rebalanced == 1);
	AWAIT(is_here(ids[0]) && !is_here(ids[1]));
	assert_int_equal(stats().evicted, 2);
	check();
}

static void test_layer_by_layer(void **state)
{
	(void)state;
	engine_start(1, UINT32_MAX);
	for (int i = 0; i < 20; i++) {
		assert_int_equal(gpool_lora_acquire_async(lora, ids[i % SMALL_ONES], -1), 0);
		if (i % 3)
			assert_int_equal(gpool_lora_wait_layer(lora, ids[i % SMALL_ONES], -1, -1), 0);
		released(ids[i % SMALL_ONES]);
		/* A draft is in use until it is published. */
		AWAIT(is_quiet());
	}
	check();
}

/* ---- copies in host memory ---- */

static bool has_copy(uint32_t id)
{
	const char *name = lora->entries[id]->adapter->warm_name;

	return gpool_object_find(warm, &name, 1) == 1;
}

static uint32_t copies(void)
{
	struct gpool_object_info info = {.size = sizeof(info)};
	uint32_t cursor = 0, count = 0;

	while (gpool_object_next(warm, &cursor, &info) == 0)
		count++;
	return count;
}

static enum residency_warm warm_state(uint32_t id)
{
	enum residency_warm state;

	pthread_mutex_lock(&lora->lock);
	state = residency_warm(lora->residency, id);
	pthread_mutex_unlock(&lora->lock);
	return state;
}

/* Only an idle adapter is copied. The next load uses the copy. */
static void test_copy_of_an_idle_adapter(void **state)
{
	(void)state;
	engine_start_warm(0, 100, 1);
	acquired(ids[0]);
	used(ids[1], 1);
	AWAIT(has_copy(ids[1]));
	assert_false(has_copy(ids[0]));
	assert_int_equal(warm_state(ids[0]), RESIDENCY_NO_COPY);
	released(ids[0]);
	AWAIT(has_copy(ids[0]));
	check();
	assert_int_equal(stats().warm_made, 2);
	assert_int_equal(gpool_lora_unload(lora, ids[0]), 0);
	used(ids[0], 1);
	assert_int_equal(info_of(ids[0]).from_warm, 1);
	check();
	assert_int_equal(stats().warm_made, 2);
	assert_int_equal(warm_state(ids[0]), RESIDENCY_COPY);
}

/* An adapter that is evicted before it was idle long enough is copied when it is evicted. No load waits for this. */
static void test_copy_at_an_eviction(void **state)
{
	(void)state;
	engine_start_warm(1, 0, HOUR_MS);
	used(ids[0], 1);
	check();
	assert_int_equal(copies(), 0);
	pthread_mutex_lock(&lora->lock);
	lora->copying = true; /* no thread makes copies */
	pthread_mutex_unlock(&lora->lock);
	used(ids[1], 1);
	AWAIT(stats().evicted == 1);
	used(ids[0], 1);
	AWAIT(stats().evicted == 2);
	assert_int_equal(copies(), 0);
	pthread_mutex_lock(&lora->lock);
	lora->copying = false;
	pthread_cond_broadcast(&lora->queued);
	pthread_mutex_unlock(&lora->lock);
	AWAIT(has_copy(ids[0]) && has_copy(ids[1]));
	check();
	used(ids[1], 1);
	assert_int_equal(info_of(ids[1]).from_warm, 1);
	check();
}

/* Of two adapters in the pool, the one with more uses has the copy. */
static void test_copies_of_higher_worth(void **state)
{
	(void)state;
	engine_start_warm(0, 1, 1);
	used(ids[0], 3);
	AWAIT(has_copy(ids[0]));
	check();
	used(ids[1], 1);
	check();
	for (int i = 0; i < 20; i++)
		acquired(ids[1]);
	for (int i = 0; i < 20; i++)
		released(ids[1]);
	AWAIT(has_copy(ids[1]));
	check();
	assert_false(has_copy(ids[0]));
	assert_int_equal(stats().dropped, 1);
	assert_int_equal(copies(), 1);
}

static void test_no_copy_fits(void **state)
{
	struct gpool_lora_options options = GPOOL_LORA_OPTIONS_INIT;
	struct gpool_lora *none;

	(void)state;
	options.hot_adapters = 1;
	options.warm_bytes = 1;
	options.idle_ms = 1;
	options.rebalance_ms = UINT32_MAX;
	engine_start_with(with_copies, &options);
	used(ids[0], 1);
	used(ids[1], 1);
	AWAIT(stats().evicted == 1);
	check();
	assert_int_equal(copies(), 0);
	assert_int_equal(gpool_lora_create(one, &options, &none), -EINVAL);
}

/* A copy of another engine is found by a load, and is only forgotten. A lost copy is made again. */
static void test_copies_of_other_engines(void **state)
{
	struct gpool_lora_options options = GPOOL_LORA_OPTIONS_INIT;
	struct gpool_block block;
	uint32_t its;

	(void)state;
	engine_start_warm(0, 1, 1);
	options.warm = warm;
	options.rebalance_ms = UINT32_MAX;
	assert_int_equal(gpool_lora_create(other, &options, &lora_of_other), 0);
	its = registered(lora_of_other, 0);
	assert_int_equal(gpool_lora_acquire(lora_of_other, its, -1), 0);
	assert_int_equal(gpool_lora_release(lora_of_other, its, GPOOL_FENCE_NONE), 0);
	AWAIT(copies() == 1);
	assert_int_equal(gpool_lora_unload(lora_of_other, its), 0);
	used(ids[0], 1);
	assert_int_equal(info_of(ids[0]).from_warm, 1);
	check();
	assert_int_equal(warm_state(ids[0]), RESIDENCY_COPY);
	for (int i = 0; i < 20; i++)
		acquired(ids[1]);
	for (int i = 0; i < 20; i++)
		released(ids[1]);
	AWAIT(has_copy(ids[1]));
	check();
	assert_true(has_copy(ids[0]));
	assert_int_equal(stats().dropped, 0);
	assert_int_equal(stats().warm_made, 1);
	/* The agent evicts the copies, which the next load finds. */
	block = alloc(warm, 16);
	AWAIT(copies() == 0);
	assert_int_equal(gpool_free(warm, &block), 0);
	assert_int_equal(gpool_lora_unload(lora, ids[1]), 0);
	used(ids[1], 1);
	assert_int_equal(info_of(ids[1]).from_warm, 0);
	AWAIT(has_copy(ids[1]));
	check();
}

/* An adapter can be unregistered before its copy is made, and its number used again. */
static void test_unregistered_before_its_copy(void **state)
{
	(void)state;
	engine_start_warm(0, 100, 1);
	pthread_mutex_lock(&lora->lock);
	lora->copying = true;
	pthread_mutex_unlock(&lora->lock);
	used(ids[0], 1);
	AWAIT(warm_state(ids[0]) == RESIDENCY_COPYING);
	assert_int_equal(gpool_lora_unregister(lora, ids[0]), 0);
	assert_int_equal(registered(lora, engine_adapter(24, SAFETENSORS_F16)), ids[0]);
	used(ids[0], 1);
	AWAIT(warm_state(ids[0]) == RESIDENCY_COPYING);
	pthread_mutex_lock(&lora->lock);
	lora->copying = false;
	pthread_cond_broadcast(&lora->queued);
	pthread_mutex_unlock(&lora->lock);
	AWAIT(copies() == 2);
	check();
	assert_int_equal(warm_state(ids[0]), RESIDENCY_COPY);
}

/* An adapter that only a fence holds is copied after the fence is signaled. */
static void test_copy_after_a_fence(void **state)
{
	struct gpool_fence fence;
	uint32_t stream;

	(void)state;
	engine_start_warm(0, 100, 1);
	assert_int_equal(gpool_stream_open(one, NULL, GPOOL_STREAM_HOST_SIGNALED, &stream), 0);
	assert_int_equal(gpool_fence_record(one, stream, &fence), 0);
	acquired(ids[0]);
	assert_int_equal(gpool_lora_release(lora, ids[0], fence), 0);
	used(ids[1], 1);
	AWAIT(has_copy(ids[1]));
	assert_false(has_copy(ids[0]));
	assert_int_equal(gpool_fence_signal(one, fence), 0);
	AWAIT(has_copy(ids[0]));
	check();
	gpool_stream_close(one, stream);
}

/* ---- schedulers and threads ---- */

static void test_scheduler(void **state)
{
	struct gpool_lora_scheduler_options options = GPOOL_LORA_SCHEDULER_OPTIONS_INIT;
	struct gpool_lora_scheduler *scheduler;
	struct gpool_lora_schedule schedule = {.size = sizeof(schedule)};
	uint32_t request, served = 0;

	(void)state;
	engine_start(2, UINT32_MAX);
	options.batch_adapters = 2;
	assert_int_equal(gpool_lora_scheduler_create(lora, &options, &scheduler), 0);
	for (uint32_t i = 0; i < 30; i++)
		assert_int_equal(gpool_lora_scheduler_add(scheduler, ids[i % SMALL_ONES], 1, &request), 0);
	while (served < 30) {
		int started = gpool_lora_scheduler_schedule(scheduler, -1, &schedule);

		assert_true(started >= 0);
		assert_int_equal(schedule.failed_count, 0);
		for (uint32_t i = 0; i < schedule.start_count; i++, served++)
			assert_int_equal(
				gpool_lora_scheduler_finish(scheduler, schedule.starts[i], GPOOL_FENCE_NONE), 0);
	}
	assert_int_equal(gpool_lora_scheduler_destroy(scheduler), 0);
	check();
}

enum { THREADS = 4, ROUNDS = 60 };

static void *thread_run(void *argument)
{
	uintptr_t seed = (uintptr_t)argument, failed = 0;

	for (int i = 0; i < ROUNDS; i++) {
		uint32_t id = ids[(seed * 7 + (uintptr_t)i * (2 * seed + 1)) % SMALL_ONES];
		int timeout = i % 4 == 0 ? 0 : i % 4 == 1 ? 20 : -1, error;

		error = i % 5 == 4 ? gpool_lora_acquire_async(lora, id, timeout)
				   : gpool_lora_acquire(lora, id, timeout);
		if (!error)
			failed += gpool_lora_release(lora, id, GPOOL_FENCE_NONE) != 0;
		else
			failed += error != -ENOSPC && error != -EAGAIN && error != -ETIMEDOUT;
		if (i % 7 == 6)
			gpool_lora_prefetch(lora, id);
		if (i % 11 == 10)
			gpool_lora_unload(lora, id);
	}
	return (void *)failed;
}

static void threads_run(void)
{
	pthread_t threads[THREADS];
	void *failed;

	for (uintptr_t i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, thread_run, (void *)i), 0);
	for (int i = 0; i < THREADS; i++) {
		pthread_join(threads[i], &failed);
		assert_ptr_equal(failed, NULL);
	}
	pthread_mutex_lock(&lora->lock);
	lora->rebalance_ms = UINT32_MAX;
	pthread_mutex_unlock(&lora->lock);
	check();
	for (int i = 0; i < SMALL_ONES; i++)
		used(ids[i], 1);
	check();
}

static void test_threads(void **state)
{
	(void)state;
	engine_start(2, 1);
	threads_run();
}

static void test_threads_and_copies(void **state)
{
	struct gpool_lora_options limits = GPOOL_LORA_OPTIONS_INIT;

	(void)state;
	limits.hot_adapters = 2;
	limits.warm_adapters = 3;
	limits.idle_ms = 1;
	limits.rebalance_ms = 1;
	engine_start_with(with_copies, &limits);
	threads_run();
	assert_true(stats().warm_made > 0);
}

int main(int argc, char **argv)
{
#define TEST(name) cmocka_unit_test_teardown(test_##name, engine_stop)
	const struct CMUnitTest tests[] = {
		TEST(lowest_worth_is_evicted),
		TEST(all_in_use),
		TEST(bytes),
		TEST(fence),
		TEST(acquired_before_its_eviction),
		TEST(without_waiting),
		TEST(number_is_used_again),
		TEST(failed_load),
		TEST(other_engine),
		TEST(evicted_by_the_agent),
		TEST(loss_is_found),
		TEST(prefetch),
		TEST(rebalancing),
		TEST(layer_by_layer),
		TEST(copy_of_an_idle_adapter),
		TEST(copy_at_an_eviction),
		TEST(copies_of_higher_worth),
		TEST(no_copy_fits),
		TEST(copies_of_other_engines),
		TEST(unregistered_before_its_copy),
		TEST(copy_after_a_fence),
		TEST(scheduler),
		TEST(threads),
		TEST(threads_and_copies),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
