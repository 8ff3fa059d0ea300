/*
 * test_residency.c - the choice of hot, warm and cold adapters.
 *
 * Goal: no limit is ever exceeded. Only idle adapters are evicted. An acquired adapter is loaded whenever room can be
 * made. The adapter with the lowest worth is evicted. Copies are evicted in their order. Rebalancing moves no more
 * adapters than stated.
 *
 * Method: small cases whose outcome is known, and random events compared with a slow model that keeps plain arrays and
 * computes worths with the mathematical library.
 *
 * Requirements: L5.
 */
#include "client/lora/residency/residency.h"
#include "tests/lib/scale.h"
#include "tests/lib/seed.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MB = 1 << 20, SECOND = 1000000, ADAPTERS = 60, MANY = 10000, RUN_STEPS = 500 };

static struct residency *all;
static uint64_t now;

static void begin(const struct residency_limits *limits, uint32_t adapters)
{
	now = SECOND;
	assert_int_equal(residency_create(limits, adapters, &all), 0);
}

static void check(void)
{
	const char *wrong = residency_check(all);

	if (wrong)
		fail_msg("%s", wrong);
}

static void end(void)
{
	check();
	residency_destroy(all);
}

/* ---- small cases ---- */

static void expect(enum residency_action action, uint32_t adapter)
{
	struct residency_decision decision = {.adapter = UINT32_MAX};

	assert_true(residency_next(all, &decision));
	assert_int_equal(decision.action, action);
	assert_int_equal(decision.adapter, adapter);
}

static void expect_nothing(void)
{
	struct residency_decision decision;

	assert_false(residency_next(all, &decision));
	check();
}

static void done(enum residency_action action, uint32_t adapter, bool ok)
{
	const struct residency_decision decision = {.adapter = adapter, .action = action};

	assert_int_equal(residency_done(all, &decision, ok, now), 0);
}

static void add(uint32_t adapter, uint64_t megabytes)
{
	assert_int_equal(residency_register(all, adapter, megabytes * MB, megabytes * MB / 2, now), 0);
}

/* Load an adapter from disk, for one use. */
static void use_cold(uint32_t adapter)
{
	assert_int_equal(residency_acquire(all, adapter, now), 0);
	expect(RESIDENCY_LOAD_COLD, adapter);
	done(RESIDENCY_LOAD_COLD, adapter, true);
	residency_release(all, adapter, now);
	expect_nothing();
}

static void use_hot(uint32_t adapter, int times)
{
	for (int i = 0; i < times; i++) {
		assert_int_equal(residency_acquire(all, adapter, now), 1);
		residency_release(all, adapter, now);
	}
	expect_nothing();
}

static struct residency_limits limits_of(uint64_t hot_megabytes, uint64_t warm_megabytes)
{
	struct residency_limits limits = RESIDENCY_LIMITS_INIT;

	limits.hot_bytes = hot_megabytes * MB;
	limits.warm_bytes = warm_megabytes * MB;
	limits.rebalance_us = 0;
	return limits;
}

static void test_loaded_at_once_and_evicted_by_worth(void **state)
{
	const struct residency_limits limits = limits_of(30, 100);

	(void)state;
	begin(&limits, 4);
	for (uint32_t i = 0; i < 4; i++)
		add(i, 10);
	for (uint32_t i = 0; i < 3; i++)
		use_cold(i);
	use_hot(0, 3);
	now += SECOND;
	use_hot(2, 2);
	/* Adapter 1 is the least used. It is copied when it is evicted, and 3 is loaded afterwards. */
	assert_int_equal(residency_acquire(all, 3, now), 0);
	expect(RESIDENCY_SAVE, 1);
	expect_nothing();
	assert_int_equal(residency_hot(all, 3), RESIDENCY_QUEUED);
	done(RESIDENCY_SAVE, 1, true);
	expect(RESIDENCY_LOAD_COLD, 3);
	done(RESIDENCY_LOAD_COLD, 3, true);
	/* Adapter 1 is loaded from its copy, which is kept. 2 has fewer accesses than 0, and 3 is in use. */
	assert_int_equal(residency_acquire(all, 1, now), 0);
	expect(RESIDENCY_SAVE, 2);
	done(RESIDENCY_SAVE, 2, true);
	expect(RESIDENCY_LOAD_WARM, 1);
	done(RESIDENCY_LOAD_WARM, 1, true);
	assert_int_equal(residency_warm(all, 1), RESIDENCY_COPY);
	/* The next time, the adapter is evicted at once. */
	residency_release(all, 1, now);
	use_hot(0, 20);
	assert_int_equal(residency_acquire(all, 2, now), 0);
	expect(RESIDENCY_EVICT, 1);
	expect(RESIDENCY_LOAD_WARM, 2);
	expect_nothing();
	end();
}

static void test_counts_are_a_limit_too(void **state)
{
	struct residency_limits limits = limits_of(1000, 0);

	(void)state;
	limits.hot_count = 2;
	begin(&limits, 3);
	for (uint32_t i = 0; i < 3; i++)
		add(i, 1);
	use_cold(0);
	use_cold(1);
	assert_int_equal(residency_acquire(all, 2, now), 0);
	expect(RESIDENCY_EVICT, 0);
	expect(RESIDENCY_LOAD_COLD, 2);
	end();
}

/* Requirements: L3. */
static void test_all_in_use(void **state)
{
	const struct residency_limits limits = limits_of(20, 0);

	(void)state;
	begin(&limits, 4);
	for (uint32_t i = 0; i < 4; i++)
		add(i, 10);
	assert_int_equal(residency_acquire(all, 0, now), 0);
	assert_int_equal(residency_acquire(all, 0, now), 0);
	assert_int_equal(residency_pin(all, 2, now), 0);
	assert_int_equal(residency_acquire(all, 1, now), -ENOSPC);
	assert_int_equal(residency_prefetch(all, 1, now), -ENOSPC);
	expect(RESIDENCY_LOAD_COLD, 0);
	expect(RESIDENCY_LOAD_COLD, 2);
	done(RESIDENCY_LOAD_COLD, 0, true);
	done(RESIDENCY_LOAD_COLD, 2, true);
	assert_int_equal(residency_acquire(all, 1, now), -ENOSPC);
	residency_release(all, 0, now);
	assert_int_equal(residency_acquire(all, 1, now), -ENOSPC);
	residency_unpin(all, 2, now);
	assert_int_equal(residency_acquire(all, 1, now), 0);
	expect(RESIDENCY_EVICT, 2);
	expect(RESIDENCY_LOAD_COLD, 1);
	expect_nothing();
	end();
}

static void test_queued_for_room_that_others_make(void **state)
{
	const struct residency_limits limits = limits_of(20, 100);

	(void)state;
	begin(&limits, 4);
	for (uint32_t i = 0; i < 4; i++)
		add(i, 10);
	use_cold(0);
	use_cold(1);
	assert_int_equal(residency_acquire(all, 2, now), 0);
	assert_int_equal(residency_acquire(all, 3, now), 0);
	expect(RESIDENCY_SAVE, 0);
	done(RESIDENCY_SAVE, 0, true);
	expect(RESIDENCY_LOAD_COLD, 2);
	expect(RESIDENCY_SAVE, 1);
	/*
	 * Adapter 1 is acquired while it is being evicted. Its memory is used for adapter 3, which was requested
	 * first. Adapter 1 remains queued until adapter 2 has been evicted.
	 */
	assert_int_equal(residency_acquire(all, 1, now), 0);
	done(RESIDENCY_SAVE, 1, true);
	expect(RESIDENCY_LOAD_COLD, 3);
	expect_nothing();
	assert_int_equal(residency_hot(all, 1), RESIDENCY_QUEUED);
	done(RESIDENCY_LOAD_COLD, 2, true);
	residency_release(all, 2, now);
	expect(RESIDENCY_SAVE, 2);
	done(RESIDENCY_SAVE, 2, false);
	expect(RESIDENCY_LOAD_WARM, 1);
	assert_int_equal(residency_warm(all, 2), RESIDENCY_NO_COPY);
	end();
}

static void test_a_load_that_fails(void **state)
{
	const struct residency_limits limits = limits_of(20, 100);
	struct residency_decision stray = {.adapter = 0, .action = RESIDENCY_LOAD_COLD};

	(void)state;
	begin(&limits, 2);
	add(0, 10);
	assert_int_equal(residency_done(all, &stray, true, now), -EINVAL);
	assert_int_equal(residency_acquire(all, 0, now), 0);
	expect(RESIDENCY_LOAD_COLD, 0);
	done(RESIDENCY_LOAD_COLD, 0, false);
	assert_int_equal(residency_hot(all, 0), RESIDENCY_ABSENT);
	/* The next acquire tries again. */
	assert_int_equal(residency_acquire(all, 0, now), 0);
	expect(RESIDENCY_LOAD_COLD, 0);
	done(RESIDENCY_LOAD_COLD, 0, true);
	residency_release(all, 0, now);
	residency_release(all, 0, now);
	/* Adapter 1 needs the memory of 0, and is not loaded in the end. */
	add(1, 20);
	assert_int_equal(residency_acquire(all, 1, now), 0);
	expect(RESIDENCY_SAVE, 0);
	done(RESIDENCY_SAVE, 0, true);
	expect(RESIDENCY_LOAD_COLD, 1);
	done(RESIDENCY_LOAD_COLD, 1, false);
	residency_release(all, 1, now);
	/* A warm copy that cannot be read is dropped. */
	assert_int_equal(residency_acquire(all, 0, now), 0);
	expect(RESIDENCY_LOAD_WARM, 0);
	done(RESIDENCY_LOAD_WARM, 0, false);
	expect(RESIDENCY_DROP, 0);
	assert_int_equal(residency_acquire(all, 0, now), 0);
	expect(RESIDENCY_LOAD_COLD, 0);
	expect_nothing();
	end();
}

/* An adapter that was evicted without a decision frees its place, and its holder loads it again. */
static void test_lost(void **state)
{
	struct residency_limits limits = limits_of(20, 0);

	(void)state;
	begin(&limits, 3);
	for (uint32_t i = 0; i < 3; i++)
		add(i, 10);
	use_cold(0);
	assert_int_equal(residency_acquire(all, 1, now), 0);
	residency_lost(all, 1); /* its load has not ended, so there is nothing to lose */
	assert_int_equal(residency_hot(all, 1), RESIDENCY_LOADING);
	expect(RESIDENCY_LOAD_COLD, 1);
	done(RESIDENCY_LOAD_COLD, 1, true);
	residency_lost(all, 0);
	residency_lost(all, 0);
	residency_lost(all, 2);
	assert_int_equal(residency_hot(all, 0), RESIDENCY_ABSENT);
	assert_int_equal(residency_acquire(all, 2, now), 0);
	expect(RESIDENCY_LOAD_COLD, 2);
	done(RESIDENCY_LOAD_COLD, 2, true);
	/* 1 is in use and is lost: it is loaded when it is acquired again, and its reference counts. */
	residency_lost(all, 1);
	expect_nothing();
	assert_int_equal(residency_acquire(all, 1, now), 0);
	expect(RESIDENCY_LOAD_COLD, 1);
	done(RESIDENCY_LOAD_COLD, 1, true);
	residency_release(all, 1, now);
	assert_int_equal(residency_acquire(all, 0, now), -ENOSPC);
	residency_release(all, 1, now);
	assert_int_equal(residency_acquire(all, 0, now), 0);
	expect(RESIDENCY_EVICT, 1);
	expect(RESIDENCY_LOAD_COLD, 0);
	end();
}

/* A number can be registered again, without the uses, the copy and the place of its former adapter. */
static void test_unregistered(void **state)
{
	const struct residency_limits limits = limits_of(20, 100);
	struct residency_stats stats;

	(void)state;
	begin(&limits, 3);
	for (uint32_t i = 0; i < 3; i++)
		add(i, 10);
	assert_int_equal(residency_unregister(all, 3), -ENOENT);
	assert_int_equal(residency_acquire(all, 0, now), 0);
	assert_int_equal(residency_unregister(all, 0), -EBUSY);
	assert_true(residency_has_next(all));
	expect(RESIDENCY_LOAD_COLD, 0);
	assert_false(residency_has_next(all));
	done(RESIDENCY_LOAD_COLD, 0, true);
	assert_int_equal(residency_unregister(all, 0), -EBUSY);
	residency_release(all, 0, now);
	now += 60 * SECOND;
	residency_tick(all, now);
	expect(RESIDENCY_COMPRESS, 0);
	assert_int_equal(residency_unregister(all, 0), -EBUSY);
	done(RESIDENCY_COMPRESS, 0, true);
	assert_int_equal(residency_unregister(all, 0), 0);
	assert_int_equal(residency_unregister(all, 0), -ENOENT);
	expect_nothing();
	residency_get_stats(all, &stats);
	assert_int_equal(stats.registered, 2);
	assert_int_equal(stats.hot_bytes + stats.warm_bytes + stats.copies, 0);
	add(0, 20);
	assert_int_equal(residency_warm(all, 0), RESIDENCY_NO_COPY);
	use_cold(0);
	end();
}

static void test_idle_adapters_get_copies(void **state)
{
	const struct residency_limits limits = limits_of(100, 100);

	(void)state;
	begin(&limits, 3);
	add(0, 10);
	add(1, 10);
	add(2, 100);
	use_cold(0);
	now += 30 * SECOND;
	use_cold(1);
	residency_tick(all, now);
	expect_nothing();
	now += 30 * SECOND;
	residency_tick(all, now);
	expect(RESIDENCY_COMPRESS, 0);
	expect_nothing();
	/* During the compression the adapter may be used, but is not evicted. */
	assert_int_equal(residency_acquire(all, 0, now), 1);
	residency_release(all, 0, now);
	assert_int_equal(residency_acquire(all, 2, now), -ENOSPC);
	done(RESIDENCY_COMPRESS, 0, true);
	assert_int_equal(residency_hot(all, 0), RESIDENCY_RESIDENT);
	assert_int_equal(residency_warm(all, 0), RESIDENCY_COPY);
	/* If an adapter is not suitable for int8, the conversion is not tried again. */
	now += 30 * SECOND;
	residency_tick(all, now);
	expect(RESIDENCY_COMPRESS, 1);
	done(RESIDENCY_COMPRESS, 1, false);
	now += 100 * SECOND;
	residency_tick(all, now);
	expect_nothing();
	end();
}

static void test_copies_of_hot_adapters_are_evicted_first(void **state)
{
	struct residency_limits limits = limits_of(20, 15);

	(void)state;
	begin(&limits, 5);
	for (uint32_t i = 0; i < 5; i++)
		add(i, 10);
	use_cold(0);
	use_hot(0, 9);
	use_cold(1);
	now += 60 * SECOND;
	residency_tick(all, now);
	for (uint32_t i = 0; i < 2; i++) { /* both are hot and have copies */
		struct residency_decision decision;

		assert_true(residency_next(all, &decision));
		assert_int_equal(decision.action, RESIDENCY_COMPRESS);
		assert_int_equal(residency_done(all, &decision, true, now), 0);
		residency_tick(all, now);
	}
	/* Adapter 1 is evicted, which makes one place free. */
	assert_int_equal(residency_acquire(all, 2, now), 0);
	expect(RESIDENCY_EVICT, 1);
	expect(RESIDENCY_LOAD_COLD, 2);
	done(RESIDENCY_LOAD_COLD, 2, true);
	residency_release(all, 2, now);
	assert_int_equal(residency_acquire(all, 3, now), 0);
	expect(RESIDENCY_SAVE, 2);
	done(RESIDENCY_SAVE, 2, true);
	expect(RESIDENCY_LOAD_COLD, 3);
	done(RESIDENCY_LOAD_COLD, 3, true);
	residency_release(all, 3, now);
	expect_nothing();
	/* 0 is used most of all, but its copy can be made again. */
	now += SECOND;
	assert_int_equal(residency_acquire(all, 4, now), 0);
	expect(RESIDENCY_DROP, 0);
	expect(RESIDENCY_SAVE, 3);
	done(RESIDENCY_SAVE, 3, true);
	expect(RESIDENCY_LOAD_COLD, 4);
	done(RESIDENCY_LOAD_COLD, 4, true);
	expect_nothing();
	end();
}

/* Copies from files delay neither an eviction nor a load, and a failed load says nothing about them. */
static void test_copies_from_files(void **state)
{
	struct residency_limits limits = limits_of(10, 100);
	struct residency_decision late = {.adapter = 0, .action = RESIDENCY_COMPRESS};

	(void)state;
	limits.from_files = true;
	limits.idle_us = 0;
	begin(&limits, 3);
	for (uint32_t i = 0; i < 3; i++)
		add(i, 10);
	use_cold(0);
	assert_true(residency_due_us(all) <= now);
	residency_tick(all, now);
	expect(RESIDENCY_COMPRESS, 0);
	assert_true(residency_due_us(all) == UINT64_MAX);
	/* 0 is evicted while its copy is made, 1 when it has none. */
	assert_int_equal(residency_acquire(all, 1, now), 0);
	expect(RESIDENCY_EVICT, 0);
	expect(RESIDENCY_LOAD_COLD, 1);
	done(RESIDENCY_LOAD_COLD, 1, true);
	residency_release(all, 1, now);
	done(RESIDENCY_COMPRESS, 0, true);
	assert_int_equal(residency_acquire(all, 0, now), 0);
	expect(RESIDENCY_EVICT, 1);
	expect(RESIDENCY_COMPRESS, 1);
	expect(RESIDENCY_LOAD_WARM, 0);
	done(RESIDENCY_LOAD_WARM, 0, false);
	residency_release(all, 0, now);
	expect_nothing();
	assert_int_equal(residency_warm(all, 0), RESIDENCY_COPY);
	/* 1 is forgotten while its copy is made. A decision for its number is then not pending. */
	assert_int_equal(residency_unregister(all, 1), 0);
	late.adapter = 1;
	assert_int_equal(residency_done(all, &late, true, now), -EINVAL);
	add(1, 10);
	use_cold(1);
	/* Only one idle adapter is copied at a time. It is unregistered meanwhile, and the next one can be copied. */
	residency_tick(all, now);
	expect(RESIDENCY_COMPRESS, 1);
	assert_int_equal(residency_unregister(all, 1), 0);
	use_cold(2);
	residency_tick(all, now);
	expect(RESIDENCY_COMPRESS, 2);
	end();
}

/* A copy for which there was no room is tried again after a time, or after a use, even if the idle time is 0. */
static void test_no_room_for_a_copy(void **state)
{
	struct residency_limits limits = limits_of(100, 5);

	(void)state;
	limits.from_files = true;
	limits.idle_us = 0;
	begin(&limits, 3);
	for (uint32_t i = 0; i < 2; i++)
		add(i, 10);
	use_cold(0);
	use_hot(0, 2);
	residency_tick(all, now);
	expect(RESIDENCY_COMPRESS, 0);
	done(RESIDENCY_COMPRESS, 0, true);
	use_cold(1);
	residency_tick(all, now);
	expect_nothing();
	assert_true(residency_due_us(all) > now && residency_due_us(all) < UINT64_MAX);
	now = residency_due_us(all);
	residency_tick(all, now);
	expect_nothing();
	use_hot(1, 20);
	residency_tick(all, now);
	expect(RESIDENCY_DROP, 0);
	expect(RESIDENCY_COMPRESS, 1);
	end();
}

/* A load finds copies of other processes, and finds that copies are lost. */
static void test_copies_of_other_processes(void **state)
{
	struct residency_limits limits = limits_of(100, 10);
	struct residency_stats stats;

	(void)state;
	limits.from_files = true;
	limits.warm_count = 2;
	begin(&limits, 4);
	for (uint32_t i = 0; i < 4; i++)
		add(i, 10);
	for (uint32_t i = 0; i < 3; i++)
		residency_copy_seen(all, i, true, 5 * MB);
	residency_copy_seen(all, 3, true, 6 * MB);
	check();
	/* There is no room for the third copy, until another copy turns out to be smaller. */
	assert_int_equal(residency_warm(all, 1), RESIDENCY_COPY);
	assert_int_equal(residency_warm(all, 2), RESIDENCY_NO_COPY);
	assert_int_equal(residency_warm(all, 3), RESIDENCY_NO_COPY);
	residency_copy_seen(all, 0, true, 2 * MB);
	residency_copy_seen(all, 0, true, 9 * MB);
	residency_get_stats(all, &stats);
	assert_int_equal(stats.warm_bytes, 7 * MB);
	residency_copy_seen(all, 0, false, 2 * MB);
	residency_copy_seen(all, 2, true, 5 * MB);
	check();
	assert_int_equal(residency_warm(all, 0), RESIDENCY_NO_COPY);
	assert_int_equal(residency_warm(all, 2), RESIDENCY_COPY);
	/* An adapter whose copy has failed is copied again after its next load. */
	residency_copy_seen(all, 2, false, 5 * MB);
	use_cold(0);
	now += 60 * SECOND;
	residency_tick(all, now);
	expect(RESIDENCY_COMPRESS, 0);
	done(RESIDENCY_COMPRESS, 0, false);
	residency_set_idle(all, SECOND);
	now += 60 * SECOND;
	residency_tick(all, now);
	expect_nothing();
	residency_copy_seen(all, 0, false, 2 * MB);
	residency_tick(all, now);
	expect(RESIDENCY_COMPRESS, 0);
	end();
}

static void test_prefetched_adapters_are_expected(void **state)
{
	const struct residency_limits limits = limits_of(20, 0);
	struct residency_stats stats;

	(void)state;
	begin(&limits, 5);
	for (uint32_t i = 0; i < 5; i++)
		add(i, 10);
	use_cold(0);
	use_cold(1);
	use_hot(1, 5);
	assert_int_equal(residency_prefetch(all, 2, now), 0);
	expect(RESIDENCY_EVICT, 0);
	expect(RESIDENCY_LOAD_COLD, 2);
	done(RESIDENCY_LOAD_COLD, 2, true);
	/* Another prefetch evicts an adapter that is not expected; there is no room for a third one. */
	assert_int_equal(residency_prefetch(all, 3, now), 0);
	expect(RESIDENCY_EVICT, 1);
	expect(RESIDENCY_LOAD_COLD, 3);
	done(RESIDENCY_LOAD_COLD, 3, true);
	assert_int_equal(residency_prefetch(all, 4, now), -ENOSPC);
	/* An acquire evicts the expected adapter. */
	assert_int_equal(residency_acquire(all, 2, now), 1);
	assert_int_equal(residency_acquire(all, 4, now), 0);
	expect(RESIDENCY_EVICT, 3);
	expect(RESIDENCY_LOAD_COLD, 4);
	done(RESIDENCY_LOAD_COLD, 4, true);
	residency_release(all, 4, now);
	assert_int_equal(residency_prefetch(all, 4, now), 1);
	assert_int_equal(residency_prefetch(all, 1, now), -ENOSPC);
	/* The expectation expires after this time. */
	now += 60 * SECOND;
	residency_tick(all, now);
	assert_int_equal(residency_prefetch(all, 1, now), 0);
	expect(RESIDENCY_EVICT, 4);
	expect(RESIDENCY_LOAD_COLD, 1);
	residency_get_stats(all, &stats);
	assert_int_equal(stats.prefetches, 3);
	assert_int_equal(stats.prefetches_used, 1);
	end();
}

/* Ten accesses within 60 seconds raise the estimate at once. */
static void test_ten_accesses_are_a_boost(void **state)
{
	const struct residency_limits limits = limits_of(20, 0);

	(void)state;
	for (int uses = 9; uses <= 10; uses++) {
		begin(&limits, 3);
		for (uint32_t i = 0; i < 3; i++)
			add(i, 10);
		use_cold(0);
		for (int i = 1; i < 30; i++) { /* not ten in any window */
			now += 10 * SECOND;
			use_hot(0, 1);
		}
		use_cold(1);
		use_hot(1, uses - 1);
		assert_int_equal(residency_acquire(all, 2, now), 0);
		expect(RESIDENCY_EVICT, uses < 10 ? 1 : 0);
		end();
	}
}

static void test_rebalancing_ends(void **state)
{
	struct residency_limits limits = limits_of(100, 1000);
	struct residency_decision decision;
	struct residency_stats stats;
	uint64_t last_us = 0;

	(void)state;
	limits.rebalance_us = SECOND;
	begin(&limits, 40);
	for (uint32_t i = 0; i < 40; i++)
		add(i, 10);
	/* Many requests that got no place access these adapters. 0 has the most accesses. */
	for (uint32_t i = 30; i < 40; i++)
		use_cold(i);
	for (uint32_t i = 0; i < 30; i++)
		residency_access(all, i, 40 - i, now);
	for (int tick = 0; tick < 3000; tick++) {
		now += SECOND / 10;
		residency_tick(all, now);
		while (residency_next(all, &decision)) {
			if (decision.action == RESIDENCY_LOAD_COLD || decision.action == RESIDENCY_LOAD_WARM) {
				assert_true(now - last_us >= SECOND);
				last_us = now;
			}
			if (decision.action != RESIDENCY_EVICT && decision.action != RESIDENCY_DROP)
				assert_int_equal(residency_done(all, &decision, true, now), 0);
		}
		check();
	}
	residency_get_stats(all, &stats);
	assert_int_equal(stats.moves, 10); /* each place once */
	for (uint32_t i = 0; i < 10; i++)
		assert_int_equal(residency_hot(all, i), RESIDENCY_RESIDENT);
	end();
}

/*
 * Two adapters with equal use do not replace each other in one place, except when the first of them has had its ten
 * accesses.
 */
static void test_rebalancing_does_not_thrash(void **state)
{
	struct residency_limits limits = limits_of(10, 1000);
	struct residency_decision decision;
	struct residency_stats stats;

	(void)state;
	limits.rebalance_us = SECOND;
	begin(&limits, 2);
	add(0, 10);
	add(1, 10);
	use_cold(0);
	for (int i = 0; i < 1000; i++) {
		now += SECOND;
		residency_access(all, (uint32_t)i % 2, 1, now);
		residency_tick(all, now);
		while (residency_next(all, &decision))
			if (decision.action != RESIDENCY_EVICT && decision.action != RESIDENCY_DROP)
				assert_int_equal(residency_done(all, &decision, true, now), 0);
	}
	residency_get_stats(all, &stats);
	assert_in_range(stats.moves, 0, 1);
	end();
}

static uint64_t moves(void)
{
	struct residency_decision decision;
	struct residency_stats stats;

	residency_tick(all, now);
	while (residency_next(all, &decision))
		if (decision.action != RESIDENCY_EVICT && decision.action != RESIDENCY_DROP)
			assert_int_equal(residency_done(all, &decision, true, now), 0);
	residency_get_stats(all, &stats);
	return stats.moves;
}

/* A moved adapter is not moved again within a window, in either direction. */
static void test_rebalancing_leaves_the_moved_alone(void **state)
{
	struct residency_limits limits = limits_of(10, 1000);

	(void)state;
	limits.rebalance_us = SECOND;
	limits.worth.promote_uses = UINT32_MAX;
	limits.idle_us = 1000 * SECOND;
	begin(&limits, 3);
	for (uint32_t i = 0; i < 3; i++)
		add(i, 10);
	use_cold(0);
	residency_access(all, 1, 10, now);
	assert_int_equal(moves(), 1);
	assert_int_equal(residency_hot(all, 1), RESIDENCY_RESIDENT);
	now += 2 * SECOND;
	residency_access(all, 2, 100, now);
	assert_int_equal(moves(), 1); /* 1 was moved just now */
	now += 60 * SECOND;
	assert_int_equal(moves(), 2);
	assert_int_equal(residency_hot(all, 2), RESIDENCY_RESIDENT);
	now += 2 * SECOND;
	residency_lost(all, 2);
	assert_int_equal(moves(), 2); /* 2 was moved just now */
	now += 60 * SECOND;
	assert_int_equal(moves(), 3);
	assert_int_equal(residency_hot(all, 2), RESIDENCY_RESIDENT);
	end();
}

static void test_refuses(void **state)
{
	struct residency_limits limits = limits_of(20, 0), wrong = limits;
	struct residency *none = NULL;

	(void)state;
	wrong.hot_bytes = 0;
	assert_int_equal(residency_create(&wrong, 1, &none), -EINVAL);
	assert_int_equal(residency_create(&limits, 0, &none), -EINVAL);
	assert_int_equal(residency_create(&limits, RESIDENCY_ADAPTERS_MAX + 1, &none), -EINVAL);
	assert_null(none);
	residency_destroy(NULL);
	begin(&limits, 2);
	assert_int_equal(residency_register(all, 2, 1, 1, now), -EINVAL);
	assert_int_equal(residency_register(all, 0, 0, 0, now), -EINVAL);
	assert_int_equal(residency_register(all, 0, 21 * MB, 0, now), -EFBIG);
	add(0, 20);
	assert_int_equal(residency_register(all, 0, 1, 1, now), -EEXIST);
	assert_int_equal(residency_acquire(all, 1, now), -ENOENT);
	assert_int_equal(residency_pin(all, 7, now), -ENOENT);
	assert_int_equal(residency_prefetch(all, 1, now), -ENOENT);
	residency_access(all, 1, 1, now);
	use_cold(0);
	end();
}

/* ---- random events compared with a slow model ---- */

struct slow_adapter {
	uint64_t bytes, warm_bytes, accessed;
	uint32_t references, pins;
	double accesses; /* as of `accessed` */
	enum residency_hot hot;
	enum residency_warm warm;
	bool copyable, expected;
	uint64_t expected_until;
};

static struct {
	struct slow_adapter adapters[ADAPTERS];
	struct residency_limits limits;
	struct residency_decision pending[2 * ADAPTERS];
	uint32_t pending_count;
	uint64_t hot_bytes, warm_bytes;
	uint32_t hot, warm;
} slow;

static double slow_us(const struct slow_adapter *adapter, bool warm)
{
	return slow.limits.load_us +
		(warm ? (double)adapter->warm_bytes / slow.limits.warm_bytes_per_us
		      : (double)adapter->bytes / slow.limits.cold_bytes_per_us);
}

static double slow_worth(const struct slow_adapter *adapter)
{
	double rate =
		adapter->accesses * exp2(-(double)(now - adapter->accessed) / (double)slow.limits.worth.half_life_us);
	double us = adapter->warm != RESIDENCY_NO_COPY ? slow_us(adapter, true)
		: adapter->copyable                    ? 2 * slow_us(adapter, true)
						       : slow_us(adapter, false);

	return log2(rate * us / (double)adapter->bytes);
}

static bool slow_idle(const struct slow_adapter *adapter)
{
	return adapter->hot == RESIDENCY_RESIDENT && !adapter->references && !adapter->pins &&
		(adapter->warm != RESIDENCY_COPYING || slow.limits.from_files);
}

/*
 * Check the choice: no evictable adapter has a lower worth, and no unexpected adapter is kept in place of an expected
 * one.
 */
static void slow_leaves(const struct slow_adapter *leaving)
{
	assert_true(slow_idle(leaving));
	for (uint32_t i = 0; i < ADAPTERS; i++) {
		const struct slow_adapter *other = &slow.adapters[i];

		if (other == leaving || !slow_idle(other) || (other->expected && !leaving->expected))
			continue;
		assert_false(leaving->expected && !other->expected);
		assert_true(slow_worth(leaving) < slow_worth(other) + 1e-3);
	}
}

static void slow_pend(const struct residency_decision *decision)
{
	assert_true(slow.pending_count < 2 * ADAPTERS);
	slow.pending[slow.pending_count++] = *decision;
}

static void slow_copy(struct slow_adapter *adapter)
{
	assert_int_equal(adapter->warm, RESIDENCY_NO_COPY);
	assert_true(adapter->copyable);
	adapter->warm = RESIDENCY_COPYING;
	slow.warm_bytes += adapter->warm_bytes;
	slow.warm++;
}

static void slow_do(const struct residency_decision *decision)
{
	struct slow_adapter *adapter = &slow.adapters[decision->adapter];

	switch (decision->action) {
	case RESIDENCY_LOAD_WARM:
	case RESIDENCY_LOAD_COLD:
		assert_int_equal(adapter->hot, RESIDENCY_ABSENT);
		assert_int_equal(adapter->warm == RESIDENCY_COPY, decision->action == RESIDENCY_LOAD_WARM);
		adapter->hot = RESIDENCY_LOADING;
		slow.hot_bytes += adapter->bytes;
		slow.hot++;
		slow_pend(decision);
		break;
	case RESIDENCY_EVICT:
		slow_leaves(adapter);
		adapter->hot = RESIDENCY_ABSENT;
		slow.hot_bytes -= adapter->bytes;
		slow.hot--;
		break;
	case RESIDENCY_SAVE:
		assert_false(slow.limits.from_files);
		slow_leaves(adapter);
		adapter->hot = RESIDENCY_LEAVING;
		slow_copy(adapter);
		slow_pend(decision);
		break;
	case RESIDENCY_COMPRESS:
		assert_true(slow_idle(adapter) || (slow.limits.from_files && adapter->hot == RESIDENCY_ABSENT));
		slow_copy(adapter);
		slow_pend(decision);
		break;
	case RESIDENCY_DROP:
		assert_int_equal(adapter->warm, RESIDENCY_COPY);
		assert_int_not_equal(adapter->hot, RESIDENCY_LOADING);
		adapter->warm = RESIDENCY_NO_COPY;
		slow.warm_bytes -= adapter->warm_bytes;
		slow.warm--;
		break;
	}
	assert_true(slow.hot_bytes <= slow.limits.hot_bytes && slow.hot <= slow.limits.hot_count);
	assert_true(slow.warm_bytes <= slow.limits.warm_bytes && slow.warm <= slow.limits.warm_count);
}

static void slow_take(void)
{
	struct residency_decision decision;

	while (residency_next(all, &decision))
		slow_do(&decision);
}

static void slow_finish(void)
{
	uint32_t place = any(slow.pending_count);
	const struct residency_decision decision = slow.pending[place];
	struct slow_adapter *adapter = &slow.adapters[decision.adapter];
	bool ok = any(8) > 0;
	enum residency_hot before = adapter->hot;

	slow.pending[place] = slow.pending[--slow.pending_count];
	if (decision.action == RESIDENCY_LOAD_WARM || decision.action == RESIDENCY_LOAD_COLD) {
		adapter->hot = ok ? RESIDENCY_RESIDENT : RESIDENCY_ABSENT;
	} else {
		adapter->warm = ok ? RESIDENCY_COPY : RESIDENCY_NO_COPY;
		adapter->copyable = ok;
		slow.warm_bytes -= ok ? 0 : adapter->warm_bytes;
		slow.warm -= !ok;
		adapter->hot = decision.action == RESIDENCY_SAVE ? RESIDENCY_ABSENT : adapter->hot;
	}
	if (adapter->hot == RESIDENCY_ABSENT && before != RESIDENCY_ABSENT) {
		slow.hot_bytes -= adapter->bytes;
		slow.hot--;
	}
	assert_int_equal(residency_done(all, &decision, ok, now), 0);
}

/* Return true if the adapter would fit if all idle adapters were evicted, after those that already wait for room. */
static bool slow_could_come(uint32_t number)
{
	uint64_t needed = 0, room = slow.limits.hot_bytes - slow.hot_bytes;
	uint32_t count = 0, places = slow.limits.hot_count - slow.hot;

	for (uint32_t i = 0; i < ADAPTERS; i++) {
		const struct slow_adapter *adapter = &slow.adapters[i];

		if (residency_hot(all, i) == RESIDENCY_QUEUED || i == number) {
			needed += adapter->bytes;
			count++;
		}
		if (slow_idle(adapter) || adapter->hot == RESIDENCY_LEAVING) {
			room += adapter->bytes;
			places++;
		}
	}
	return needed <= room && count <= places;
}

static void slow_access(struct slow_adapter *adapter)
{
	adapter->accesses =
		adapter->accesses * exp2(-(double)(now - adapter->accessed) / (double)slow.limits.worth.half_life_us) +
		1;
	adapter->accessed = now;
}

static void slow_acquire(uint32_t number)
{
	struct slow_adapter *adapter = &slow.adapters[number];
	bool could = adapter->hot != RESIDENCY_ABSENT || residency_hot(all, number) == RESIDENCY_QUEUED ||
		slow_could_come(number);
	bool resident = adapter->hot == RESIDENCY_RESIDENT, pin = any(6) == 0;
	int result = pin ? residency_pin(all, number, now) : residency_acquire(all, number, now);

	if (result == -ENOSPC) {
		assert_true(!could || residency_hot(all, number) == RESIDENCY_QUEUED);
		return;
	}
	assert_true(could);
	assert_int_equal(result, resident);
	adapter->references += !pin;
	adapter->pins += pin;
	adapter->expected = false;
	if (!pin)
		slow_access(adapter);
}

/* Release the next held adapter: once, or all holds of it. */
static void slow_let_go(uint32_t number)
{
	struct slow_adapter *adapter = &slow.adapters[number];
	bool wholly = any(2);

	for (uint32_t i = 0; i < ADAPTERS && !adapter->references && !adapter->pins; i++) {
		number = (number + 1) % ADAPTERS;
		adapter = &slow.adapters[number];
	}
	for (bool more = true; more; more = wholly) {
		if (adapter->references) {
			adapter->references--;
			residency_release(all, number, now);
		} else if (adapter->pins) {
			adapter->pins--;
			residency_unpin(all, number, now);
		} else {
			break;
		}
	}
}

static void slow_register(uint32_t number)
{
	struct slow_adapter *adapter = &slow.adapters[number];
	uint64_t bytes = (1 + any(8)) * MB, warm_bytes = any(5) ? bytes / 2 : 0;

	assert_int_equal(residency_register(all, number, bytes, warm_bytes, now), 0);
	*adapter = (struct slow_adapter){.bytes = bytes,
		.warm_bytes = warm_bytes,
		.copyable = warm_bytes > 0,
		.accesses = exp2(-6),
		.accessed = now};
}

static void slow_prefetch(uint32_t number)
{
	struct slow_adapter *adapter = &slow.adapters[number];

	if (residency_prefetch(all, number, now) >= 0) {
		adapter->expected = true;
		adapter->expected_until = now + slow.limits.worth.window_us;
	}
}

static void slow_lose(uint32_t number)
{
	struct slow_adapter *adapter = &slow.adapters[number];

	if (adapter->hot == RESIDENCY_RESIDENT) {
		adapter->hot = RESIDENCY_ABSENT;
		slow.hot_bytes -= adapter->bytes;
		slow.hot--;
	}
	residency_lost(all, number);
}

static void slow_tick(void)
{
	for (uint32_t i = 0; i < ADAPTERS; i++)
		if (slow.adapters[i].expected && slow.adapters[i].expected_until <= now)
			slow.adapters[i].expected = false;
	residency_tick(all, now);
}

static void slow_step(void)
{
	uint32_t number = any(any(3) ? ADAPTERS / 4 : ADAPTERS);

	now += any(10) ? any(SECOND / 10) : any(20 * SECOND);
	switch (any(16)) {
	case 0:
	case 1: slow_prefetch(number); break;
	case 2: slow_tick(); break;
	case 3: slow_lose(number); break;
	case 4:
	case 5:
	case 6:
	case 7: slow_acquire(number); break;
	case 8:
	case 9:
	case 10:
	case 11: slow_let_go(number); break;
	default:
		if (slow.pending_count)
			slow_finish();
	}
}

/* Short runs, because an adapter whose copy has failed is not copied again. */
static void slow_run(bool rebalance, bool from_files)
{
	memset(&slow, 0, sizeof(slow));
	slow.limits = limits_of(60, 40);
	slow.limits.hot_count = 14;
	slow.limits.warm_count = 20;
	slow.limits.worth.promote_uses = UINT32_MAX; /* the boost is tested separately */
	slow.limits.worth.half_life_us = 100 * SECOND;
	slow.limits.rebalance_us = rebalance ? SECOND : 0;
	slow.limits.from_files = from_files;
	begin(&slow.limits, ADAPTERS);
	for (uint32_t i = 0; i < ADAPTERS; i++)
		slow_register(i);
	for (uint32_t i = 0; i < RUN_STEPS; i++) {
		slow_step();
		slow_take();
		check();
		for (uint32_t number = 0; number < ADAPTERS; number++) {
			enum residency_hot hot = residency_hot(all, number);

			assert_int_equal(hot == RESIDENCY_QUEUED ? RESIDENCY_ABSENT : hot, slow.adapters[number].hot);
			assert_int_equal(residency_warm(all, number), slow.adapters[number].warm);
		}
	}
	end();
}

static void test_random(void **state)
{
	uint32_t steps = test_scaled(100000);

	(void)state;
	seed_begin();
	for (uint32_t run = 0; run <= steps / RUN_STEPS; run++) {
		slow_run(false, run % 2);
		slow_run(true, run % 2);
	}
}

/*
 * Register ten thousand adapters, and acquire and release random ones: the sums stay correct, and no step is left
 * pending.
 */
static void test_many(void **state)
{
	const struct residency_limits limits = limits_of(76 * 100, 1000 * 50);
	struct residency_decision decision;
	struct residency_stats stats;

	(void)state;
	seed = 1;
	begin(&limits, MANY);
	for (uint32_t i = 0; i < MANY; i++)
		add(i, 1 + any(200));
	for (uint32_t i = 0; i < 2 * MANY; i++) {
		uint32_t number = any(MANY);

		now += SECOND / 100;
		assert_true(residency_acquire(all, number, now) >= 0);
		while (residency_next(all, &decision))
			if (decision.action != RESIDENCY_EVICT && decision.action != RESIDENCY_DROP)
				assert_int_equal(residency_done(all, &decision, true, now), 0);
		assert_int_equal(residency_hot(all, number), RESIDENCY_RESIDENT);
		residency_release(all, number, now);
	}
	residency_get_stats(all, &stats);
	assert_int_equal(stats.registered, MANY);
	assert_int_equal(stats.active + stats.loading + stats.queued + stats.leaving, 0);
	assert_int_equal(stats.hits + stats.misses, 2 * MANY);
	assert_int_equal(stats.misses, stats.loads_cold + stats.loads_warm);
	assert_int_equal(stats.loads_cold + stats.loads_warm, stats.evictions + stats.resident);
	end();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_loaded_at_once_and_evicted_by_worth),
		cmocka_unit_test(test_counts_are_a_limit_too),
		cmocka_unit_test(test_all_in_use),
		cmocka_unit_test(test_queued_for_room_that_others_make),
		cmocka_unit_test(test_a_load_that_fails),
		cmocka_unit_test(test_lost),
		cmocka_unit_test(test_unregistered),
		cmocka_unit_test(test_idle_adapters_get_copies),
		cmocka_unit_test(test_copies_of_hot_adapters_are_evicted_first),
		cmocka_unit_test(test_copies_from_files),
		cmocka_unit_test(test_no_room_for_a_copy),
		cmocka_unit_test(test_copies_of_other_processes),
		cmocka_unit_test(test_prefetched_adapters_are_expected),
		cmocka_unit_test(test_ten_accesses_are_a_boost),
		cmocka_unit_test(test_rebalancing_ends),
		cmocka_unit_test(test_rebalancing_does_not_thrash),
		cmocka_unit_test(test_rebalancing_leaves_the_moved_alone),
		cmocka_unit_test(test_refuses),
		cmocka_unit_test(test_random),
		cmocka_unit_test(test_many),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
