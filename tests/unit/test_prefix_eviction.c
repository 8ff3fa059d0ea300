/*
 * test_prefix_eviction.c - the choice of the node to evict from a prefix tree: the tree, and both policies.
 *
 * Goal: a victim never has a pin or a kept child, and one is found whenever a candidate exists. Counts are exact, and
 * the history is bounded. `lru` selects the candidate touched longest ago; `adaptive` keeps reused content where LRU
 * loses it.
 *
 * Method: random insertions, touches, pins, evictions and removals compared with plain arrays, and small workloads
 * whose outcome is known.
 */
#include "shm/policy/eviction.h"
#include "tests/lib/scale.h"
#include "tests/lib/seed.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { NODES = 300, KEYS = 5000, USES = 100000 };

static uint32_t steps(void)
{
	seed_begin();
	return test_scaled(200000);
}

/* ---- random steps compared with plain arrays ---- */

static struct {
	struct {
		bool kept;
		uint32_t parent, children, pins;
		uint64_t key, touched;
	} nodes[NODES];
	uint64_t clock;
	struct eviction_stats stats;
} model;

static bool model_candidate(uint32_t node)
{
	return model.nodes[node].kept && model.nodes[node].children == 0 && model.nodes[node].pins == 0;
}

static uint32_t model_oldest(void)
{
	uint32_t oldest = EVICTION_NONE;

	for (uint32_t node = 0; node < NODES; node++)
		if (model_candidate(node) &&
			(oldest == EVICTION_NONE || model.nodes[node].touched < model.nodes[oldest].touched))
			oldest = node;
	return oldest;
}

/* Return any kept node, or EVICTION_NONE. */
static uint32_t model_any(void)
{
	uint32_t node = any(NODES);

	for (uint32_t i = 0; i < NODES; i++, node = (node + 1) % NODES)
		if (model.nodes[node].kept)
			return node;
	return EVICTION_NONE;
}

static void model_insert(struct eviction *eviction)
{
	uint32_t parent = any(4) ? model_any() : EVICTION_NONE, node = EVICTION_NONE;
	uint64_t key = any(KEYS);

	if (model.stats.kept == NODES) {
		assert_int_equal(eviction_insert(eviction, parent, key, &node), -ENOSPC);
		assert_int_equal(node, EVICTION_NONE);
		return;
	}
	assert_int_equal(eviction_insert(eviction, parent, key, &node), 0);
	assert_true(node < NODES && !model.nodes[node].kept);
	memset(&model.nodes[node], 0, sizeof(model.nodes[node]));
	model.nodes[node].kept = true;
	model.nodes[node].parent = parent;
	model.nodes[node].key = key;
	model.nodes[node].touched = ++model.clock;
	if (parent != EVICTION_NONE)
		model.nodes[parent].children++;
	model.stats.kept++;
	model.stats.insertions++;
}

static void model_drop(uint32_t node)
{
	model.nodes[node].kept = false;
	if (model.nodes[node].parent != EVICTION_NONE)
		model.nodes[model.nodes[node].parent].children--;
	model.stats.kept--;
}

static void model_evict(struct eviction *eviction, bool is_lru)
{
	uint32_t node = eviction_victim(eviction), oldest = model_oldest();

	if (oldest == EVICTION_NONE) {
		assert_int_equal(node, EVICTION_NONE);
		return;
	}
	assert_true(node < NODES && model_candidate(node));
	if (is_lru)
		assert_int_equal(node, oldest);
	eviction_evict(eviction, node);
	model_drop(node);
	model.stats.evictions++;
}

static void model_touch_or_pin(struct eviction *eviction, uint32_t what)
{
	uint32_t node = model_any();

	if (node == EVICTION_NONE)
		return;
	if (what == 0) {
		eviction_touch(eviction, node);
		model.nodes[node].touched = ++model.clock;
		model.stats.touches++;
	} else if (what == 1) {
		eviction_pin(eviction, node);
		model.stats.pinned += model.nodes[node].pins++ == 0;
	} else if (model.nodes[node].pins) {
		if (model.nodes[node].pins == 1) {
			eviction_used(eviction, node);
			model.nodes[node].touched = ++model.clock;
		}
		eviction_unpin(eviction, node);
		model.stats.pinned -= --model.nodes[node].pins == 0;
	} else if (model_candidate(node)) {
		eviction_remove(eviction, node);
		model_drop(node);
		model.stats.removals++;
	}
}

static void model_forget(struct eviction *eviction)
{
	uint32_t forgotten = model_any();

	if (forgotten == EVICTION_NONE)
		return;
	eviction_forget(eviction, forgotten);
	for (uint32_t node = 0; node < NODES; node++)
		if (model.nodes[node].kept && model.nodes[node].parent == forgotten) {
			model.nodes[node].parent = model.nodes[forgotten].parent;
			if (model.nodes[node].parent != EVICTION_NONE)
				model.nodes[model.nodes[node].parent].children++;
		}
	model.stats.pinned -= model.nodes[forgotten].pins != 0;
	model_drop(forgotten);
	model.stats.removals++;
}

static void model_clear(struct eviction *eviction)
{
	eviction_clear(eviction);
	model.stats.removals += model.stats.kept;
	model.stats.kept = model.stats.pinned = 0;
	memset(model.nodes, 0, sizeof(model.nodes));
}

static void compare(const struct eviction *eviction)
{
	struct eviction_stats stats;
	uint32_t candidates = 0;

	for (uint32_t node = 0; node < NODES; node++) {
		candidates += model_candidate(node);
		if (!model.nodes[node].kept)
			continue;
		assert_int_equal(eviction_parent(eviction, node), model.nodes[node].parent);
		assert_int_equal(eviction_children(eviction, node), model.nodes[node].children);
		assert_int_equal(eviction_key(eviction, node), model.nodes[node].key);
		assert_int_equal(eviction_is_candidate(eviction, node), model_candidate(node));
	}
	eviction_get_stats(eviction, &stats);
	assert_int_equal(stats.kept, model.stats.kept);
	assert_int_equal(stats.pinned, model.stats.pinned);
	assert_int_equal(stats.candidates, candidates);
	assert_int_equal(stats.insertions, model.stats.insertions);
	assert_int_equal(stats.touches, model.stats.touches);
	assert_int_equal(stats.evictions, model.stats.evictions);
	assert_int_equal(stats.removals, model.stats.removals);
	assert_true(stats.ghosts <= NODES * EVICTION_GHOSTS && stats.returns <= stats.insertions);
}

static void random_steps(const char *policy)
{
	struct eviction *eviction;
	uint32_t count = steps();

	memset(&model, 0, sizeof(model));
	assert_int_equal(eviction_create(eviction_policy_named(policy), NODES, &eviction), 0);
	for (uint32_t i = 0; i < count; i++) {
		/* Alternate between more insertions and more removals, so that the tree is full and empty at times. */
		uint32_t chance = i / 2000 % 3 == 0 ? 30 : i / 2000 % 3 == 1 ? 45 : 60, what = any(100);

		if (i % 20000 == 19999)
			model_clear(eviction);
		else if (i % 97 == 0)
			model_forget(eviction);
		else if (what < chance)
			model_evict(eviction, !strcmp(policy, "lru"));
		else if (what < 85)
			model_insert(eviction);
		else
			model_touch_or_pin(eviction, any(7) / 3);
		if (i % 100 == 0)
			compare(eviction);
	}
	eviction_destroy(eviction);
}

static void test_lru_against_arrays(void **state)
{
	(void)state;
	random_steps("lru");
}

static void test_adaptive_against_arrays(void **state)
{
	(void)state;
	random_steps("adaptive");
}

/* ---- the history ---- */

static void test_return_is_counted_once(void **state)
{
	struct eviction *eviction;
	struct eviction_stats stats;
	uint32_t node;

	(void)state;
	assert_int_equal(eviction_create(eviction_policy_named("adaptive"), 10, &eviction), 0);
	assert_int_equal(eviction_insert(eviction, EVICTION_NONE, 7, &node), 0);
	eviction_evict(eviction, node);
	assert_int_equal(eviction_insert(eviction, EVICTION_NONE, 7, &node), 0);
	eviction_get_stats(eviction, &stats);
	assert_int_equal(stats.returns, 1);
	assert_int_equal(stats.ghosts, 0);
	eviction_remove(eviction, node);
	assert_int_equal(eviction_insert(eviction, EVICTION_NONE, 7, &node), 0);
	eviction_get_stats(eviction, &stats);
	assert_int_equal(stats.returns, 1);
	eviction_destroy(eviction);
}

static void test_memory_is_bounded(void **state)
{
	struct eviction *eviction;
	struct eviction_stats stats;
	uint32_t node;

	(void)state;
	assert_int_equal(eviction_create(eviction_policy_named("adaptive"), 100, &eviction), 0);
	for (uint64_t key = 0; key < 100000; key++) {
		if (key >= 100)
			eviction_evict(eviction, eviction_victim(eviction));
		assert_int_equal(eviction_insert(eviction, EVICTION_NONE, key, &node), 0);
	}
	eviction_get_stats(eviction, &stats);
	assert_true(stats.ghosts <= 100 * EVICTION_GHOSTS && stats.ghosts > 100);
	eviction_destroy(eviction);
}

/* The cost of insertions must not depend on how many nodes were kept before most were evicted. */
static void test_visits_are_bounded_after_a_drain(void **state)
{
	enum { NODES_MANY = 20000, ROUNDS = 3, VISITS = 30 /* 8 nodes and 16 ghosts, and some at the beginning */ };
	struct eviction *eviction;
	struct eviction_stats stats;
	uint32_t node;

	(void)state;
	assert_int_equal(eviction_create(eviction_policy_named("adaptive"), NODES_MANY, &eviction), 0);
	for (uint64_t key = 0; key < NODES_MANY * ROUNDS; key++) {
		while (key % NODES_MANY == 0 && (node = eviction_victim(eviction)) != EVICTION_NONE)
			eviction_evict(eviction, node);
		assert_int_equal(eviction_insert(eviction, EVICTION_NONE, key, &node), 0);
	}
	eviction_get_stats(eviction, &stats);
	assert_in_range(stats.visits, stats.insertions, stats.insertions * VISITS);
	eviction_destroy(eviction);
}

static void test_create_refuses(void **state)
{
	struct eviction *eviction = NULL;

	(void)state;
	assert_null(eviction_policy_named("fifo"));
	assert_int_equal(eviction_create(NULL, 10, &eviction), -EINVAL);
	assert_int_equal(eviction_create(eviction_policy_named("lru"), 0, &eviction), -EINVAL);
	assert_int_equal(eviction_create(eviction_policy_named("lru"), EVICTION_NODES_MAX + 1, &eviction), -EINVAL);
	assert_null(eviction);
	eviction_destroy(NULL);
	for (size_t i = 0; eviction_policies[i]; i++)
		assert_ptr_equal(
			eviction_policy_named(eviction_policy_name(eviction_policies[i])), eviction_policies[i]);
}

/* ---- workloads ---- */

/* A cache of single nodes, indexed by key. */
struct cache {
	struct eviction *eviction;
	uint32_t capacity, kept;
	uint32_t nodes[USES]; /* node of each key; EVICTION_NONE: not kept */
};

static void cache_init(struct cache *cache, const char *policy, uint32_t capacity, uint32_t nodes)
{
	assert_int_equal(eviction_create(eviction_policy_named(policy), nodes, &cache->eviction), 0);
	cache->capacity = capacity;
	cache->kept = 0;
	memset(cache->nodes, 0xff, sizeof(cache->nodes));
}

static void cache_evict(struct cache *cache)
{
	uint32_t victim = eviction_victim(cache->eviction);

	cache->nodes[eviction_key(cache->eviction, victim)] = EVICTION_NONE;
	eviction_evict(cache->eviction, victim);
	cache->kept--;
}

static bool cache_use(struct cache *cache, uint32_t key)
{
	if (cache->nodes[key] != EVICTION_NONE) {
		eviction_touch(cache->eviction, cache->nodes[key]);
		return true;
	}
	if (cache->kept == cache->capacity)
		cache_evict(cache);
	assert_int_equal(eviction_insert(cache->eviction, EVICTION_NONE, key, &cache->nodes[key]), 0);
	cache->kept++;
	return false;
}

/* Use 1,500 keys in a loop, with room for 1,000. The best possible result is to keep the same 999. */
static uint32_t loop_hits(const char *policy, uint32_t nodes)
{
	static struct cache cache;
	uint32_t hits = 0;

	cache_init(&cache, policy, 1000, nodes);
	for (uint32_t i = 0; i < USES; i++)
		hits += cache_use(&cache, i % 1500);
	eviction_destroy(cache.eviction);
	return hits;
}

static void test_loop_larger_than_the_cache(void **state)
{
	(void)state;
	assert_int_equal(loop_hits("lru", 1000), 0);
	assert_true(loop_hits("adaptive", 1000) > USES / 3);
}

/* The tree has many more nodes than there is ever room for, and the policy must adapt to the room. */
static void test_loop_with_nodes_to_spare(void **state)
{
	(void)state;
	assert_true(loop_hits("adaptive", 1 << 16) > USES / 3);
}

/*
 * Run the same loop, with the room sometimes reduced to a tenth. Afterwards the earlier statistics must still be used.
 */
static void test_loop_with_varying_room(void **state)
{
	static struct cache cache;
	uint32_t hits = 0;

	(void)state;
	cache_init(&cache, "adaptive", 1000, 1 << 16);
	for (uint32_t i = 0; i < USES; i++) {
		uint32_t room = i / 10000 % 2 ? 100 : 1000;

		for (cache.capacity = room; cache.kept > room;)
			cache_evict(&cache);
		hits += cache_use(&cache, i % 1500) && room == 1000;
	}
	eviction_destroy(cache.eviction);
	assert_true(hits > USES / 2 / 3);
}

/* Every tenth use is of one of 500 recurring keys. The other uses are of keys that are used only once. */
static uint32_t scan_hits(const char *policy)
{
	static struct cache cache;
	uint32_t hits = 0, scan = 0;

	cache_init(&cache, policy, 1000, 1000);
	for (uint32_t i = 0; i < USES; i++)
		hits += i % 10 == 0 ? cache_use(&cache, i / 10 % 500) : (cache_use(&cache, 500 + scan++), 0);
	eviction_destroy(cache.eviction);
	return hits;
}

static void test_scan_does_not_flush(void **state)
{
	(void)state;
	assert_int_equal(scan_hits("lru"), 0);
	assert_true(scan_hits("adaptive") > 7000);
}

/* ---- popularity ---- */

enum { POPULAR = 20000 };

static double shares[POPULAR]; /* of the uses: those of the first keys together, by Zipf's law */

static void shares_make(void)
{
	double sum = 0;

	for (uint32_t key = 0; key < POPULAR; key++)
		sum += 1.0 / (key + 1);
	for (uint32_t key = 0; key < POPULAR; key++)
		shares[key] = (key ? shares[key - 1] : 0) + 1.0 / (key + 1) / sum;
}

/* Return a number from 0 to 1. */
static double fraction_any(uint64_t *random)
{
	*random = *random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (double)(*random >> 11) / 9007199254740992.0;
}

static uint32_t popular_any(uint64_t *random)
{
	uint32_t low = 0, high = POPULAR - 1;
	double share = fraction_any(random);

	while (low < high) {
		uint32_t middle = (low + high) / 2;

		if (shares[middle] < share)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* Return the hits of the second half of all uses. After each `phase` uses, other keys are the most popular. */
static uint32_t popular_hits(const char *policy, uint32_t phase)
{
	static struct cache cache;
	uint64_t random = 7;
	uint32_t hits = 0;

	shares_make();
	cache_init(&cache, policy, 1000, 1000);
	for (uint32_t i = 0; i < USES; i++) {
		uint32_t key = (popular_any(&random) + i / phase * (POPULAR / 3)) % POPULAR;

		hits += cache_use(&cache, key) && i >= USES / 2;
	}
	eviction_destroy(cache.eviction);
	return hits;
}

/* The best possible cache keeps the most popular keys. The number of uses says which ones they are. */
static void test_constant_popularity(void **state)
{
	double most;

	(void)state;
	shares_make();
	most = USES / 2 * shares[1000 - 1];
	assert_true(popular_hits("adaptive", USES) > 0.988 * most);
	assert_true(popular_hits("lru", USES) < 0.88 * most);
}

/* The number of uses misleads after each change. */
static void test_changing_popularity(void **state)
{
	(void)state;
	assert_true(popular_hits("adaptive", USES / 5) > 1.05 * popular_hits("lru", USES / 5));
}

/* ---- time since the first use ---- */

/*
 * Use a new key in 3 of 10 cases, otherwise one of the YOUNG newest keys: the newer, the more likely. A cache of YOUNG
 * keys that evicts the one whose first use is the oldest finds all keys that are not new.
 */
enum { YOUNG = 1000, NEW_PERCENT = 30 };

static uint32_t young_any(uint64_t *random, uint32_t *used)
{
	double back = fraction_any(random);
	uint32_t age = (uint32_t)(back * back * YOUNG);

	return fraction_any(random) < NEW_PERCENT / 100.0 || age >= *used ? (*used)++ : *used - 1 - age;
}

/* Return the share of the uses of known keys that are hits, in the second half of all uses. */
static double young_share(uint32_t nodes)
{
	static struct cache cache;
	uint64_t random = 7;
	uint32_t hits = 0, reused = 0, used = 0;

	cache_init(&cache, "adaptive", YOUNG, nodes);
	for (uint32_t i = 0; i < USES; i++) {
		uint32_t before = used, key = young_any(&random, &used);

		reused += used == before && i >= USES / 2;
		hits += cache_use(&cache, key) && i >= USES / 2;
	}
	eviction_destroy(cache.eviction);
	return (double)hits / reused;
}

static void test_first_use_decides(void **state)
{
	(void)state;
	assert_true(young_share(YOUNG) > 0.98);
	/* The policy must adapt to the room. */
	assert_true(young_share(1 << 16) > 0.98);
}

/*
 * Evict most keys, so that the policy adapts to less room several times. Return how many of the newest keys are among
 * the LEFT ones that are left.
 */
enum { LEFT = YOUNG / 16 };

static uint32_t newest_left(uint32_t uses)
{
	static struct cache cache;
	uint64_t random = 7;
	uint32_t used = 0, newest = 0;

	cache_init(&cache, "adaptive", YOUNG, YOUNG);
	for (uint32_t i = 0; i < uses; i++)
		cache_use(&cache, young_any(&random, &used));
	while (cache.kept > LEFT)
		cache_evict(&cache);
	for (uint32_t key = used - LEFT; key < used; key++)
		newest += cache.nodes[key] != EVICTION_NONE;
	eviction_destroy(cache.eviction);
	return newest;
}

static void test_first_use_decides_in_less_room(void **state)
{
	(void)state;
	for (uint32_t uses = USES / 4; uses < USES / 2; uses += 1000)
		assert_true(newest_left(uses) > LEFT * 0.9);
}

/* After the first half of the uses, the number of uses decides, and the time since the first use misleads. */
static void test_first_use_decides_no_more(void **state)
{
	static struct cache cache;
	uint64_t random = 7;
	uint32_t hits = 0, used = 0;

	(void)state;
	shares_make();
	cache_init(&cache, "adaptive", YOUNG, YOUNG);
	for (uint32_t i = 0; i < USES / 2; i++)
		cache_use(&cache, young_any(&random, &used));
	for (uint32_t i = 0; i < USES / 2; i++)
		hits += cache_use(&cache, USES - 1 - popular_any(&random)) && i >= USES / 4;
	eviction_destroy(cache.eviction);
	assert_true(hits > 0.9 * USES / 4 * shares[YOUNG - 1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_lru_against_arrays),
		cmocka_unit_test(test_adaptive_against_arrays),
		cmocka_unit_test(test_return_is_counted_once),
		cmocka_unit_test(test_memory_is_bounded),
		cmocka_unit_test(test_visits_are_bounded_after_a_drain),
		cmocka_unit_test(test_create_refuses),
		cmocka_unit_test(test_loop_larger_than_the_cache),
		cmocka_unit_test(test_loop_with_nodes_to_spare),
		cmocka_unit_test(test_loop_with_varying_room),
		cmocka_unit_test(test_scan_does_not_flush),
		cmocka_unit_test(test_constant_popularity),
		cmocka_unit_test(test_changing_popularity),
		cmocka_unit_test(test_first_use_decides),
		cmocka_unit_test(test_first_use_decides_in_less_room),
		cmocka_unit_test(test_first_use_decides_no_more),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
