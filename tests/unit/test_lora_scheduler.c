/*
 * test_lora_scheduler.c - the order in which waiting requests start.
 *
 * Goal: no request is bypassed for longer than the limit, in any order of arrival. Batches observe their limits. Each
 * order is as documented. Adapters to load are reported, and every request is served eventually.
 *
 * Method: small queues whose batches are known, and random arrivals, loads and ends, compared with a model that keeps
 * lists.
 *
 * Requirements: L10.
 */
#include "client/lora/serve/scheduler.h"
#include "tests/lib/scale.h"
#include "tests/lib/seed.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { REQUESTS = 300, ADAPTERS = 80, MS = 1000 };

static struct lora_scheduler *scheduler;
static struct lora_schedule batch;
static enum lora_place places[ADAPTERS];
static uint64_t now;

static enum lora_place place(void *context, uint32_t adapter)
{
	assert_null(context);
	assert_true(adapter < ADAPTERS);
	return places[adapter];
}

static const struct lora_view view = {.place = place};

static void begin(const struct lora_options *options)
{
	now = 1000 * MS;
	for (int i = 0; i < ADAPTERS; i++)
		places[i] = LORA_ABSENT;
	assert_int_equal(lora_scheduler_create(options, REQUESTS, ADAPTERS, &scheduler), 0);
}

static void check(void)
{
	const char *wrong = lora_scheduler_check(scheduler);

	if (wrong)
		fail_msg("%s", wrong);
}

static void end(void)
{
	check();
	lora_scheduler_destroy(scheduler);
}

static uint32_t add(uint32_t adapter, uint32_t tokens)
{
	uint32_t request;

	assert_in_range(lora_scheduler_add(scheduler, adapter, tokens, now, &request), 0, 1);
	return request;
}

static void form(void)
{
	lora_scheduler_schedule(scheduler, &view, now, &batch);
	check();
}

static void expect(const uint32_t *list, uint32_t count, const uint32_t *wanted, uint32_t wanted_count)
{
	assert_int_equal(count, wanted_count);
	for (uint32_t i = 0; i < count; i++)
		assert_int_equal(list[i], wanted[i]);
}
#define EXPECT(list, count, ...) \
	expect(list, count, (const uint32_t[]){__VA_ARGS__}, sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t))

static struct lora_scheduler_stats stats(void)
{
	struct lora_scheduler_stats all;

	lora_scheduler_get_stats(scheduler, &all);
	return all;
}

/* ---- small queues ---- */

static void test_in_order(void **state)
{
	struct lora_options options = LORA_OPTIONS_INIT;
	uint32_t a, b, c;

	(void)state;
	options.order = LORA_IN_ORDER;
	options.look_ahead = 0;
	begin(&options);
	places[0] = LORA_RESIDENT;
	a = add(0, 10);
	b = add(1, 10);
	c = add(0, 10);
	form();
	EXPECT(batch.starts, batch.start_count, a);
	EXPECT(batch.wanted, batch.wanted_count, 1);
	now += 10000 * MS; /* max_bypass_ms has no effect */
	form();
	assert_int_equal(batch.start_count, 0);
	places[1] = LORA_RESIDENT;
	form();
	EXPECT(batch.starts, batch.start_count, b, c);
	assert_int_equal(batch.adapters, 2);
	assert_int_equal(stats().cold_starts, 1);
	assert_int_equal(stats().bypassed, 0);
	end();
}

static void test_around(void **state)
{
	struct lora_options options = LORA_OPTIONS_INIT;
	uint32_t a, b, c;

	(void)state;
	options.order = LORA_AROUND;
	options.batch_requests = 2;
	begin(&options);
	places[0] = LORA_RESIDENT;
	a = add(1, 10);
	b = add(0, 10);
	c = add(0, 10);
	form();
	EXPECT(batch.starts, batch.start_count, b); /* the other place is used by a */
	EXPECT(batch.wanted, batch.wanted_count, 1);
	EXPECT(batch.ahead, batch.ahead_count, 0);
	places[1] = LORA_RESIDENT;
	form();
	EXPECT(batch.starts, batch.start_count, a);
	assert_int_equal(lora_scheduler_finish(scheduler, b), 0);
	form();
	EXPECT(batch.starts, batch.start_count, c);
	end();
}

static void test_resident_first_then_loading(void **state)
{
	struct lora_options options = LORA_OPTIONS_INIT;
	uint32_t a, b, c, d, e, queue[8];

	(void)state;
	begin(&options);
	places[0] = LORA_RESIDENT;
	places[1] = LORA_LOADING;
	a = add(2, 10);
	b = add(1, 10);
	c = add(0, 10);
	d = add(LORA_NO_ADAPTER, 10);
	e = add(0, 10);
	EXPECT(queue, lora_scheduler_queue(scheduler, &view, now, queue, 8), c, d, e, b, a);
	EXPECT(queue, lora_scheduler_queue(scheduler, &view, now, queue, 2), c, d);
	assert_int_equal(lora_scheduler_adapter(scheduler, d), LORA_NO_ADAPTER);
	form();
	EXPECT(batch.starts, batch.start_count, c, d, e);
	EXPECT(batch.wanted, batch.wanted_count, 2, 1);
	assert_int_equal(batch.adapters, 1);
	assert_int_equal(stats().bypassed, 2);
	end();
}

/* Requirements: L9. */
static void test_adapters_by_waiting_count(void **state)
{
	struct lora_options options = LORA_OPTIONS_INIT;
	uint32_t runs, a, b, c, d, e, f;

	(void)state;
	options.batch_adapters = 3;
	begin(&options);
	for (int i = 0; i < 6; i++)
		places[i] = LORA_RESIDENT;
	runs = add(5, 1);
	form();
	EXPECT(batch.starts, batch.start_count, runs);
	a = add(0, 1);
	b = add(1, 1);
	c = add(2, 1);
	d = add(2, 1);
	e = add(5, 1);
	f = add(3, 1);
	form();
	/* Adapter 5 is running already, 2 has the most requests, and of the others 0 arrived first. */
	EXPECT(batch.starts, batch.start_count, a, c, d, e);
	assert_int_equal(batch.adapters, 3);
	assert_int_equal(lora_scheduler_finish(scheduler, a), 0);
	form();
	EXPECT(batch.starts, batch.start_count, b);
	assert_int_equal(lora_scheduler_finish(scheduler, c), 0);
	assert_int_equal(lora_scheduler_finish(scheduler, d), 0);
	form();
	EXPECT(batch.starts, batch.start_count, f);
	end();
}

static void test_tokens(void **state)
{
	struct lora_options options = LORA_OPTIONS_INIT;
	uint32_t a, b, c, d, e;

	(void)state;
	options.batch_tokens = 100;
	begin(&options);
	places[0] = places[1] = LORA_RESIDENT;
	a = add(0, 60);
	b = add(1, 41);
	c = add(0, 1);
	d = add(0, 1000);
	e = add(0, 1);
	form();
	EXPECT(batch.starts, batch.start_count, a); /* c is small enough, but would use b's place */
	form();
	EXPECT(batch.starts, batch.start_count, b, c);
	form();
	EXPECT(batch.starts, batch.start_count, d); /* alone */
	form();
	EXPECT(batch.starts, batch.start_count, e);
	end();
}

static void test_looks_ahead(void **state)
{
	struct lora_options options = LORA_OPTIONS_INIT;

	(void)state;
	options.batch_requests = 2;
	options.look_ahead = 4;
	begin(&options);
	for (uint32_t i = 0; i < 3; i++)
		add(i, 10);
	add(LORA_NO_ADAPTER, 10);
	add(2, 10);
	for (uint32_t i = 3; i < 9; i++)
		add(i, 10);
	form();
	EXPECT(batch.wanted, batch.wanted_count, 0, 1);
	EXPECT(batch.ahead, batch.ahead_count, 2, 3);
	end();
}

/* A request is bypassed up to the limit and no longer, although all others could start. */
static void test_overdue_stops_all_others(void **state)
{
	struct lora_options options = LORA_OPTIONS_INIT;
	uint32_t last, b, c, d;

	(void)state;
	begin(&options);
	places[0] = LORA_RESIDENT;
	now += 5000 * MS;
	last = add(1, 10);
	now += 5000 * MS; /* waiting alone does not count as bypassed */
	for (uint64_t from = now; now < from + options.max_bypass_us; now += 100 * MS) {
		b = add(0, 10);
		form();
		EXPECT(batch.starts, batch.start_count, b);
		assert_int_equal(lora_scheduler_finish(scheduler, b), 0);
	}
	c = add(0, 10);
	form();
	assert_int_equal(batch.start_count, 0);
	EXPECT(batch.wanted, batch.wanted_count, 1);
	EXPECT(&b, lora_scheduler_queue(scheduler, &view, now, &b, 1), last);
	places[1] = LORA_RESIDENT;
	d = add(1, 10);
	form();
	EXPECT(batch.starts, batch.start_count, last, c, d);
	assert_int_equal(stats().overdue, 1);
	assert_int_equal(stats().longest_bypass_us, options.max_bypass_us - 100 * MS);
	end();
}

/*
 * More adapters are added while requests wait and run. An adapter with waiting requests is reported in arrival order.
 */
static void test_grows(void **state)
{
	struct lora_options options = LORA_OPTIONS_INIT;
	uint32_t a, b, c, found = 77;

	(void)state;
	now = 1000 * MS;
	memset(places, 0, sizeof(places)); /* LORA_RESIDENT */
	places[1] = LORA_ABSENT;
	assert_int_equal(lora_scheduler_create(&options, REQUESTS, 1, &scheduler), 0);
	a = add(0, 10);
	b = add(LORA_NO_ADAPTER, 10);
	assert_int_equal(lora_scheduler_add(scheduler, 1, 10, now, &c), -EINVAL);
	form();
	EXPECT(batch.starts, batch.start_count, a, b);
	assert_int_equal(lora_scheduler_grow(scheduler, ADAPTERS), 0);
	assert_int_equal(lora_scheduler_grow(scheduler, 1), 0);
	assert_int_equal(lora_scheduler_grow(scheduler, LORA_NO_ADAPTER), -EINVAL);
	add(ADAPTERS - 1, 10);
	b = add(1, 10);
	c = add(1, 10);
	check();
	assert_int_equal(lora_scheduler_waiting(scheduler, 1, &found), 2);
	assert_int_equal(found, b);
	form();
	EXPECT(batch.wanted, batch.wanted_count, 1);
	assert_int_equal(lora_scheduler_remove(scheduler, b), 0);
	assert_int_equal(lora_scheduler_waiting(scheduler, 1, &found), 1);
	assert_int_equal(found, c);
	/* The scheduler does not wait for a cancelled request. The request keeps its number until it is removed. */
	b = add(1, 10);
	assert_int_equal(lora_scheduler_give_up(scheduler, b), 0);
	assert_int_equal(lora_scheduler_give_up(scheduler, b), -ENOENT);
	assert_int_equal(lora_scheduler_finish(scheduler, b), -ENOENT);
	assert_int_equal(lora_scheduler_waiting(scheduler, 1, NULL), 1);
	assert_int_not_equal(add(2, 10), b);
	assert_int_equal(lora_scheduler_remove(scheduler, b), 0);
	assert_int_equal(lora_scheduler_remove(scheduler, b), -ENOENT);
	assert_int_equal(add(3, 10), b);
	assert_true(lora_scheduler_runs(scheduler, a));
	assert_false(lora_scheduler_runs(scheduler, b));
	assert_int_equal(lora_scheduler_waiting(scheduler, ADAPTERS - 1, NULL), 0);
	assert_int_equal(lora_scheduler_waiting(scheduler, ADAPTERS, &found), 0);
	assert_int_equal(lora_scheduler_finish(scheduler, a), 0);
	places[1] = LORA_RESIDENT;
	form();
	assert_int_equal(batch.start_count, 3);
	assert_int_equal(batch.starts[0], c);
	end();
}

static void test_refuses(void **state)
{
	struct lora_options options = LORA_OPTIONS_INIT, wrong = options;
	struct lora_scheduler *none = NULL;
	uint32_t request;

	(void)state;
	wrong.batch_requests = LORA_BATCH_REQUESTS_MAX + 1;
	assert_int_equal(lora_scheduler_create(&wrong, 1, 1, &none), -EINVAL);
	wrong = options;
	wrong.look_ahead = LORA_LOOK_AHEAD_MAX + 1;
	assert_int_equal(lora_scheduler_create(&wrong, 1, 1, &none), -EINVAL);
	wrong = options;
	wrong.batch_tokens = 0;
	assert_int_equal(lora_scheduler_create(&wrong, 1, 1, &none), -EINVAL);
	assert_int_equal(lora_scheduler_create(&options, 0, 1, &none), -EINVAL);
	assert_int_equal(lora_scheduler_create(&options, 1, 0, &none), -EINVAL);
	assert_null(none);
	lora_scheduler_destroy(NULL);
	begin(&options);
	assert_int_equal(lora_scheduler_add(scheduler, ADAPTERS, 1, now, &request), -EINVAL);
	for (int i = 0; i < REQUESTS; i++)
		request = add(0, 1);
	assert_int_equal(lora_scheduler_add(scheduler, 0, 1, now, &request), -ENOSPC);
	assert_int_equal(lora_scheduler_finish(scheduler, request), -ENOENT);
	assert_int_equal(lora_scheduler_remove(scheduler, REQUESTS), -ENOENT);
	assert_int_equal(lora_scheduler_remove(scheduler, request), 0);
	assert_int_equal(lora_scheduler_remove(scheduler, request), -ENOENT);
	add(0, 1);
	end();
}

/* ---- random arrivals ---- */

static struct {
	struct {
		uint64_t arrival, bypassed_us; /* 0: never */
		uint32_t adapter, tokens;
		bool waits, runs;
	} requests[REQUESTS];
	uint64_t arrivals;
	uint32_t waiting, running, running_of[ADAPTERS];
} model;

static void model_add(void)
{
	uint32_t adapter = any(8) ? any(any(3) ? 10 : ADAPTERS) : LORA_NO_ADAPTER,
		 tokens = 1 + any(any(5) ? 100 : 1500), request;
	int result = lora_scheduler_add(scheduler, adapter, tokens, now, &request);

	if (model.waiting + model.running == REQUESTS) {
		assert_int_equal(result, -ENOSPC);
		return;
	}
	assert_int_equal(result, adapter != LORA_NO_ADAPTER && model.waiting < 10);
	assert_false(model.requests[request].waits || model.requests[request].runs);
	model.requests[request].arrival = ++model.arrivals;
	model.requests[request].bypassed_us = 0;
	model.requests[request].adapter = adapter;
	model.requests[request].tokens = tokens;
	model.requests[request].waits = true;
	model.waiting++;
}

/* Every waiting request that arrived before this one is bypassed now, but for no longer than the limit. */
static void model_pass(const struct lora_options *options, uint64_t arrival)
{
	for (uint32_t i = 0; i < REQUESTS; i++) {
		if (!model.requests[i].waits || model.requests[i].arrival > arrival)
			continue;
		assert_int_not_equal(options->order, LORA_IN_ORDER);
		if (!model.requests[i].bypassed_us)
			model.requests[i].bypassed_us = now;
		assert_true(now - model.requests[i].bypassed_us < options->max_bypass_us);
	}
}

static void model_start(const struct lora_options *options)
{
	uint64_t latest = 0;
	uint32_t tokens = model.running, adapters = 0;

	for (uint32_t i = 0; i < batch.start_count; i++) {
		uint32_t request = batch.starts[i], adapter = model.requests[request].adapter;

		assert_true(model.requests[request].waits);
		assert_true(adapter == LORA_NO_ADAPTER || places[adapter] == LORA_RESIDENT);
		model.requests[request].waits = false;
		model.requests[request].runs = true;
		model.waiting--;
		model.running++;
		tokens += model.requests[request].tokens;
		if (adapter != LORA_NO_ADAPTER)
			model.running_of[adapter]++;
		if (model.requests[request].arrival > latest)
			latest = model.requests[request].arrival;
	}
	for (int i = 0; i < ADAPTERS; i++)
		adapters += model.running_of[i] > 0;
	assert_int_equal(batch.adapters, adapters);
	assert_true(model.running <= options->batch_requests && adapters <= options->batch_adapters);
	assert_true(tokens <= options->batch_tokens || batch.start_count <= 1);
	model_pass(options, latest);
}

/* In any order, the first request that can start does. */
static void model_first_starts(const struct lora_options *options)
{
	uint32_t first = REQUESTS;

	for (uint32_t i = 0; i < REQUESTS; i++)
		if (model.requests[i].waits &&
			(first == REQUESTS || model.requests[i].arrival < model.requests[first].arrival))
			first = i;
	if (first == REQUESTS || model.running || batch.start_count)
		return;
	assert_true(model.requests[first].adapter != LORA_NO_ADAPTER &&
		places[model.requests[first].adapter] != LORA_RESIDENT);
	assert_int_equal(batch.wanted[0], model.requests[first].adapter);
	if (model.requests[first].bypassed_us && now - model.requests[first].bypassed_us >= options->max_bypass_us)
		assert_int_equal(batch.start_count, 0);
}

static void model_form(const struct lora_options *options)
{
	form();
	model_start(options);
	model_first_starts(options);
	for (uint32_t i = 0; i < batch.wanted_count; i++) {
		assert_int_not_equal(places[batch.wanted[i]], LORA_RESIDENT);
		places[batch.wanted[i]] = LORA_LOADING;
	}
	for (uint32_t i = 0; i < batch.ahead_count; i++)
		if (places[batch.ahead[i]] == LORA_ABSENT && any(2))
			places[batch.ahead[i]] = LORA_LOADING;
}

static void model_finish(uint32_t request)
{
	uint32_t adapter = model.requests[request].adapter;

	assert_int_equal(lora_scheduler_finish(scheduler, request), model.requests[request].runs ? 0 : -ENOENT);
	if (!model.requests[request].runs)
		return;
	model.requests[request].runs = false;
	model.running--;
	if (adapter != LORA_NO_ADAPTER)
		model.running_of[adapter]--;
}

/* Load an adapter, or drop one that has no users. */
static void model_move(uint32_t adapter)
{
	if (places[adapter] == LORA_LOADING)
		places[adapter] = LORA_RESIDENT;
	else if (places[adapter] == LORA_RESIDENT && !model.running_of[adapter])
		places[adapter] = LORA_ABSENT;
}

static void model_step(const struct lora_options *options, uint32_t load)
{
	uint32_t request = any(REQUESTS);

	now += any(30 * MS);
	for (uint32_t i = any(load); i; i--)
		model_add();
	for (uint32_t i = any(REQUESTS); i; i--)
		model_finish(any(REQUESTS));
	for (uint32_t i = any(4); i; i--)
		model_move(any(ADAPTERS));
	if (any(20) == 0 && model.requests[request].waits) {
		assert_int_equal(lora_scheduler_remove(scheduler, request), 0);
		model.requests[request].waits = false;
		model.waiting--;
	}
	model_form(options);
}

/* No more requests arrive, so every request is served. */
static void model_drain(const struct lora_options *options)
{
	for (uint32_t i = 0; model.waiting; i++) {
		assert_true(i < 3 * REQUESTS);
		now += MS;
		for (uint32_t request = 0; request < REQUESTS; request++)
			model_finish(request);
		for (uint32_t adapter = 0; adapter < ADAPTERS; adapter++)
			if (places[adapter] == LORA_LOADING)
				places[adapter] = LORA_RESIDENT;
		model_form(options);
	}
}

/* Requirements: L9. */
static void test_random(void **state)
{
	uint32_t steps = test_scaled(3000);

	(void)state;
	seed_begin();
	for (uint32_t round = 0; round < 9; round++) {
		struct lora_options options = LORA_OPTIONS_INIT;

		options.order = (enum lora_order)(round % 3);
		options.batch_requests = 40;
		options.batch_adapters = 8;
		options.batch_tokens = 1000;
		options.max_bypass_us = (1 + any(1000)) * MS;
		memset(&model, 0, sizeof(model));
		begin(&options);
		for (uint32_t i = 0; i < steps; i++)
			model_step(&options, 4 + round);
		model_drain(&options);
		assert_true(stats().longest_bypass_us < options.max_bypass_us);
		assert_int_equal(stats().started + stats().removed, stats().added);
		end();
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_in_order),
		cmocka_unit_test(test_around),
		cmocka_unit_test(test_resident_first_then_loading),
		cmocka_unit_test(test_adapters_by_waiting_count),
		cmocka_unit_test(test_tokens),
		cmocka_unit_test(test_looks_ahead),
		cmocka_unit_test(test_overdue_stops_all_others),
		cmocka_unit_test(test_grows),
		cmocka_unit_test(test_refuses),
		cmocka_unit_test(test_random),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
