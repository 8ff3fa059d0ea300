/*
 * test_evict_policy.c - the eviction policy `lru_size_aware`.
 *
 * Goal: the policy orders blocks as documented: least recently used first, larger before smaller, TEMP before
 * ACTIVATION before cold LORA before warm LORA before KV. It uses its configured weights. Method: compare the scores of
 * pairs of candidates that differ in one property.
 *
 * Requirements: U7.
 */
#include "agent/config/config.h"
#include "agent/pages/evict.h"
#include "client/gpool.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

static void *policy_state;

static void configure(double recency, double size, double priority)
{
	struct config *config = calloc(1, sizeof(*config));

	config->eviction.recency = recency;
	config->eviction.size = size;
	config->eviction.priority = priority;
	evict_lru_size_aware.configure(policy_state, config);
	free(config);
}

static int setup(void **state)
{
	(void)state;
	assert_int_equal(evict_lru_size_aware.create(100, &policy_state), 0);
	configure(0.6, 0.2, 0.2);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	evict_lru_size_aware.destroy(policy_state);
	return 0;
}

/* Return true if `first` is evicted before `second`. */
static bool before(struct evict_candidate first, struct evict_candidate second)
{
	struct evict_candidate both[] = {first, second};

	evict_lru_size_aware.score(policy_state, both, 2);
	return both[0].score < both[1].score;
}

static void test_the_longer_unused_is_evicted_first(void **state)
{
	struct evict_candidate old = {.pages = 1, .idle_ms = 5000}, fresh = {.pages = 1, .idle_ms = 100};

	(void)state;
	assert_true(before(old, fresh));
	assert_false(before(fresh, old));
}

static void test_the_larger_is_evicted_first(void **state)
{
	struct evict_candidate large = {.pages = 50, .idle_ms = 10}, small = {.pages = 1, .idle_ms = 10};

	(void)state;
	assert_true(before(large, small));
}

static void test_content_order(void **state)
{
	const struct evict_candidate order[] = {
		{.pages = 1, .idle_ms = 61000, .usage = GPOOL_USAGE_TEMP_BUFFER},
		{.pages = 1, .idle_ms = 61000, .usage = GPOOL_USAGE_ACTIVATION},
		{.pages = 1, .idle_ms = 61000, .usage = GPOOL_USAGE_GRADIENT},
		{.pages = 1, .idle_ms = 61000, .usage = GPOOL_USAGE_LORA_WEIGHT},
		{.pages = 1, .idle_ms = 61000, .usage = GPOOL_USAGE_KV_CACHE},
	};

	(void)state;
	for (size_t i = 0; i + 1 < sizeof(order) / sizeof(*order); i++)
		assert_true(before(order[i], order[i + 1]));
}

static void test_warm_lora_stays_longer_than_cold(void **state)
{
	struct evict_candidate cold = {.pages = 1, .idle_ms = 60000, .usage = GPOOL_USAGE_LORA_WEIGHT};
	struct evict_candidate warm = {.pages = 1, .idle_ms = 59999, .usage = GPOOL_USAGE_LORA_WEIGHT};
	struct evict_candidate gradient = {.pages = 1, .idle_ms = 60000, .usage = GPOOL_USAGE_GRADIENT};

	(void)state;
	configure(0, 0, 1);
	assert_true(before(cold, warm));
	assert_true(before(gradient, cold));
}

static void test_priority_orders_within_a_class_only(void **state)
{
	struct evict_candidate low = {.pages = 1, .usage = GPOOL_USAGE_ACTIVATION, .priority = 0};
	struct evict_candidate high = {.pages = 1, .usage = GPOOL_USAGE_ACTIVATION, .priority = 3};
	struct evict_candidate kv = {.pages = 1, .usage = GPOOL_USAGE_KV_CACHE, .priority = 0};

	(void)state;
	assert_true(before(low, high));
	assert_true(before(high, kv));
}

static void test_weights_decide(void **state)
{
	struct evict_candidate old_small = {.pages = 1, .idle_ms = 9000}, fresh_large = {.pages = 64, .idle_ms = 1};

	(void)state;
	assert_true(before(old_small, fresh_large));
	configure(0.1, 0.9, 0);
	assert_true(before(fresh_large, old_small));
}

static void test_unknown_content_is_worth_least(void **state)
{
	struct evict_candidate unknown = {.pages = 1, .usage = 15},
			       temp = {.pages = 1, .usage = GPOOL_USAGE_ACTIVATION};

	(void)state;
	assert_true(before(unknown, temp));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_the_longer_unused_is_evicted_first, setup, teardown),
		cmocka_unit_test_setup_teardown(test_the_larger_is_evicted_first, setup, teardown),
		cmocka_unit_test_setup_teardown(test_content_order, setup, teardown),
		cmocka_unit_test_setup_teardown(test_warm_lora_stays_longer_than_cold, setup, teardown),
		cmocka_unit_test_setup_teardown(test_priority_orders_within_a_class_only, setup, teardown),
		cmocka_unit_test_setup_teardown(test_weights_decide, setup, teardown),
		cmocka_unit_test_setup_teardown(test_unknown_content_is_worth_least, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
