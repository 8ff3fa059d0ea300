/*
 * test_client_lora_scheduler.c - requests that wait for real adapters, on a real agent.
 *
 * Goal: requests with a resident adapter start at once, and others when it is loaded, in spite of lack of memory, wrong
 * files or an unload. A running request has its adapter, and an ended one has released it. In the last test, two
 * engines with more adapters than fit serve a thousand requests, and every output is correct.
 *
 * Method: small queues whose batches are known, and outputs that are compared with float64.
 *
 * Requirements: L10.
 */
#include "tests/integration/lora_engine.h"

#include <pthread.h>

enum { SHARED = 36, REQUESTS = 500, RUNNING = 12, STEPS = 3, WAIT_MS = AWAIT_MS };

static const char *const calm[] = {"--pool", POOL, QUIET, "--set", "lease.initial_pages=0", "--set",
	"lease.batch_pages=1", "--set", "lease.batch_most=1", NULL};

static struct engine one, other;
static struct gpool_lora_scheduler *scheduler;
static struct gpool_lora_schedule schedule = {.size = sizeof(schedule)};

static struct gpool_lora_scheduler *scheduler_opened(
	struct engine *engine, const struct gpool_lora_scheduler_options *options)
{
	struct gpool_lora_scheduler *made;

	assert_int_equal(gpool_lora_scheduler_create(engine->lora, options, &made), 0);
	return made;
}

/* Start two engines with `count` adapters of rank 16 and more. */
static void engines_start(uint32_t count, const struct gpool_lora_scheduler_options *options)
{
	start(calm);
	engine_adapters_begin();
	for (uint32_t i = 0; i < count; i++)
		engine_adapter(16 + i, SAFETENSORS_F16);
	engine_open(&one, GPOOL_LORA_F16);
	engine_open(&other, GPOOL_LORA_F16);
	scheduler = scheduler_opened(&one, options);
}

static int engines_stop(void **state)
{
	int error = gpool_lora_scheduler_destroy(scheduler);

	scheduler = NULL;
	error |= engine_close(&one);
	error |= engine_close(&other);
	error |= engine_adapters_end();
	return error | stop(state);
}

static struct gpool_lora_info info_of(struct engine *engine, uint32_t adapter)
{
	struct gpool_lora_info info = {.size = sizeof(info)};

	assert_int_equal(gpool_lora_info(engine->lora, engine->ids[adapter], &info), 0);
	return info;
}

static uint32_t added(uint32_t adapter)
{
	uint32_t request;

	assert_int_equal(gpool_lora_scheduler_add(
				 scheduler, adapter == GPOOL_LORA_NONE ? adapter : one.ids[adapter], 10, &request),
		0);
	return request;
}

static int formed(int timeout_ms)
{
	return gpool_lora_scheduler_schedule(scheduler, timeout_ms, &schedule);
}

static void finish(uint32_t request)
{
	assert_int_equal(gpool_lora_scheduler_finish(scheduler, request, GPOOL_FENCE_NONE), 0);
}

static struct gpool_lora_scheduler_stats statistics(void)
{
	struct gpool_lora_scheduler_stats all = {.size = sizeof(all)};

	assert_int_equal(gpool_lora_scheduler_stats(scheduler, &all), 0);
	return all;
}

/* ---- starting ---- */

static void test_resident_first(void **state)
{
	uint32_t cold, base, there, again;

	(void)state;
	engines_start(2, NULL);
	assert_int_equal(formed(0), 0);
	assert_int_equal(gpool_lora_acquire(one.lora, one.ids[1], -1), 0);
	assert_int_equal(gpool_lora_release(one.lora, one.ids[1], GPOOL_FENCE_NONE), 0);
	cold = added(0);
	base = added(GPOOL_LORA_NONE);
	there = added(1);
	assert_int_equal(gpool_lora_unregister(one.lora, one.ids[0]), -EBUSY);
	/* An adapter near the front is prefetched when its request is added, so it may be resident already. */
	assert_in_range(formed(0), 2, 3);
	if (schedule.start_count == 2) {
		assert_int_equal(schedule.starts[0], base);
		assert_int_equal(schedule.starts[1], there);
		assert_int_equal(schedule.awaited, 1);
		assert_int_equal(formed(-1), 1);
		assert_int_equal(schedule.starts[0], cold);
	}
	assert_int_equal(schedule.adapters, 2);
	assert_int_equal(schedule.awaited, 0);
	again = added(1);
	assert_int_equal(formed(0), 1);
	assert_int_equal(info_of(&one, 0).acquired, 1);
	assert_int_equal(info_of(&one, 1).acquired, 1);
	finish(there);
	assert_int_equal(info_of(&one, 1).acquired, 1);
	finish(again);
	assert_int_equal(info_of(&one, 1).acquired, 0);
	finish(base);
	finish(cold);
	assert_int_equal(info_of(&one, 0).acquired, 0);
	assert_int_equal(gpool_lora_scheduler_finish(scheduler, cold, GPOOL_FENCE_NONE), -ENOENT);
	assert_int_equal(gpool_lora_unregister(one.lora, one.ids[0]), 0);
	assert_int_equal(statistics().finished, 4);
	assert_int_equal(statistics().started, 4);
}

/* The scheduler looks ahead only after the requests that are due. */
static void test_looks_ahead(void **state)
{
	struct gpool_lora_scheduler_options options = GPOOL_LORA_SCHEDULER_OPTIONS_INIT;
	uint32_t first, second;

	(void)state;
	options.batch_requests = 1;
	options.look_ahead = 1;
	engines_start(3, &options);
	first = added(GPOOL_LORA_NONE);
	second = added(1);
	added(2);
	assert_int_equal(formed(0), 1);
	assert_int_equal(schedule.starts[0], first);
	/* Only the adapter of the first waiting request is loaded next. */
	AWAIT(info_of(&one, 1).state == GPOOL_LORA_RESIDENT);
	assert_int_equal(info_of(&one, 1).acquired, 0);
	assert_int_equal(info_of(&one, 2).state, GPOOL_LORA_COLD);
	finish(first);
	assert_int_equal(formed(0), 1);
	assert_int_equal(schedule.starts[0], second);
	finish(second);
}

/* A claimed adapter remains resident until its request runs or is removed. A removed request leaves nothing behind. */
static void test_removed(void **state)
{
	uint32_t request, running;

	(void)state;
	engines_start(2, NULL);
	running = added(GPOOL_LORA_NONE);
	assert_int_equal(formed(0), 1);
	request = added(0);
	assert_in_range(formed(0), 0, 1);
	if (schedule.start_count) {
		finish(request); /* the prefetch was faster */
	} else {
		assert_int_equal(gpool_lora_scheduler_remove(scheduler, request), 0);
		assert_int_equal(gpool_lora_scheduler_remove(scheduler, request), -ENOENT);
		AWAIT(info_of(&one, 0).state == GPOOL_LORA_RESIDENT);
		assert_int_equal(formed(0), 0);
		assert_int_equal(schedule.awaited, 0);
	}
	assert_int_equal(info_of(&one, 0).acquired, 0);
	assert_int_equal(gpool_lora_unregister(one.lora, one.ids[0]), 0);
	assert_int_equal(gpool_lora_scheduler_remove(scheduler, running), -ENOENT);
	finish(running);
	/* Closing the scheduler with requests in any state releases all of them. */
	added(1);
	assert_int_equal(formed(-1), 1);
	added(1);
	added(GPOOL_LORA_NONE);
}

/* ---- obstacles ---- */

static void test_cannot_be_loaded(void **state)
{
	char path[128], why[GPOOL_LORA_REASON_BYTES];
	uint32_t bad, good, next;

	(void)state;
	engines_start(2, NULL);
	snprintf(path, sizeof(path), "%s/0/adapter_model.safetensors", engine_folder);
	assert_int_equal(truncate(path, 1000), 0);
	bad = added(0);
	next = added(0);
	good = added(1);
	for (uint32_t started = 0, failed = 0; started < 1 || failed < 2;
		started += schedule.start_count, failed += schedule.failed_count) {
		assert_in_range(formed(WAIT_MS), 0, 1);
		if (schedule.start_count)
			assert_int_equal(schedule.starts[0], good);
		if (schedule.failed_count) {
			assert_int_equal(schedule.failed_count, 2);
			assert_int_equal(schedule.failed[0], bad);
			assert_int_equal(schedule.failed[1], next);
			assert_int_equal(schedule.errors[0], -EINVAL);
		}
	}
	assert_int_equal(gpool_lora_last_error(one.lora, one.ids[0], why), 0);
	assert_non_null(strstr(why, "adapter_model.safetensors in '"));
	/* Requests keep their numbers until they are removed, and their adapter stays registered. */
	assert_int_not_equal(added(GPOOL_LORA_NONE), bad);
	assert_int_equal(gpool_lora_unregister(one.lora, one.ids[0]), -EBUSY);
	assert_int_equal(gpool_lora_scheduler_finish(scheduler, bad, GPOOL_FENCE_NONE), -ENOENT);
	assert_int_equal(gpool_lora_scheduler_remove(scheduler, bad), 0);
	assert_int_equal(gpool_lora_scheduler_remove(scheduler, next), 0);
	assert_int_equal(gpool_lora_unregister(one.lora, one.ids[0]), 0);
	assert_int_equal(statistics().failed, 2);
}

/*
 * Without memory for an adapter, the engine continues with its other adapters, and the request starts when memory is
 * free.
 */
static void test_no_room(void **state)
{
	char why[GPOOL_LORA_REASON_BYTES];
	struct gpool_block block;
	uint32_t request, base;

	(void)state;
	engines_start(1, NULL);
	for (uint32_t pages = PAGES; gpool_alloc(other.pool, pages, NULL, &block); pages--)
		assert_true(pages > 1);
	request = added(0);
	base = added(GPOOL_LORA_NONE);
	assert_int_equal(formed(0), 1);
	assert_int_equal(schedule.starts[0], base);
	AWAIT(!gpool_lora_last_error(one.lora, one.ids[0], why) && strstr(why, "pool: the adapter needs"));
	assert_int_equal(formed(30), 0);
	assert_int_equal(schedule.failed_count, 0);
	assert_int_equal(gpool_free(other.pool, &block), 0);
	assert_int_equal(formed(-1), 1);
	assert_int_equal(schedule.starts[0], request);
}

/*
 * The first request needs all the memory. The adapter of a later request was loaded in the meantime and is kept until
 * that request is due. Because the first request is due earlier, that adapter is evicted.
 */
static void test_kept_adapter_is_evicted(void **state)
{
	struct gpool_lora_scheduler_options options = GPOOL_LORA_SCHEDULER_OPTIONS_INIT;
	uint32_t large, small, first, base, before, need;
	struct gpool_block block, rest;

	(void)state;
	options.max_bypass_ms = 1;
	start(calm);
	engine_adapters_begin();
	small = engine_adapter(16, SAFETENSORS_F16);
	large = engine_adapter(128, SAFETENSORS_F16);
	engine_open(&one, GPOOL_LORA_F16);
	engine_open(&other, GPOOL_LORA_F16);
	scheduler = scheduler_opened(&one, &options);
	before = harness_free_pages(&harness);
	assert_int_equal(gpool_lora_acquire(one.lora, one.ids[large], -1), 0);
	need = before - harness_free_pages(&harness);
	assert_int_equal(gpool_lora_release(one.lora, one.ids[large], GPOOL_FENCE_NONE), 0);
	assert_int_equal(gpool_lora_unload(one.lora, one.ids[large]), 0);
	need -= before - harness_free_pages(&harness); /* the part that stays for the next round */
	assert_true(need > 1);
	rest = alloc(other.pool, need - 1);
	block = alloc(other.pool, harness_free_pages(&harness) - 1);
	/* One page remains for the small adapter. */
	first = added(large);
	base = added(GPOOL_LORA_NONE);
	assert_int_equal(formed(0), 1);
	assert_int_equal(schedule.starts[0], base);
	assert_int_equal(formed(5), 0); /* longer than any request may be bypassed */
	added(small);
	AWAIT(formed(1) == 0 && info_of(&one, small).state == GPOOL_LORA_RESIDENT && info_of(&one, small).acquired);
	assert_int_equal(gpool_free(other.pool, &rest), 0);
	for (int tries = 0; formed(WAIT_MS / 100) == 0; tries++)
		assert_true(tries < 100);
	assert_int_equal(schedule.starts[0], first);
	assert_int_equal(gpool_free(other.pool, &block), 0);
}

/* Another engine unloads the adapter after its load and before the request starts. */
static void test_unloaded_meanwhile(void **state)
{
	uint32_t request;

	(void)state;
	engines_start(1, NULL);
	request = added(0);
	assert_in_range(formed(0), 0, 1);
	if (!schedule.start_count) {
		AWAIT(info_of(&one, 0).state == GPOOL_LORA_RESIDENT);
		assert_int_equal(gpool_lora_acquire(other.lora, other.ids[0], -1), 0);
		assert_int_equal(gpool_lora_release(other.lora, other.ids[0], GPOOL_FENCE_NONE), 0);
		assert_in_range(-gpool_lora_unload(other.lora, other.ids[0]), 0, EBUSY);
		assert_int_equal(formed(-1), 1);
	}
	assert_int_equal(schedule.starts[0], request);
	assert_int_equal(info_of(&one, 0).acquired, 1);
	finish(request);
}

/* A new request wakes a waiting thread. */
static void *add_later(void *unused)
{
	(void)unused;
	AWAIT(statistics().batches == 1);
	added(GPOOL_LORA_NONE);
	return NULL;
}

static void test_woken(void **state)
{
	pthread_t thread;

	(void)state;
	engines_start(0, NULL);
	added(GPOOL_LORA_NONE);
	assert_int_equal(formed(-1), 1);
	assert_int_equal(pthread_create(&thread, NULL, add_later, NULL), 0);
	assert_int_equal(formed(-1), 1);
	pthread_join(thread, NULL);
}

static void test_wrong_arguments(void **state)
{
	struct gpool_lora_scheduler_options options = GPOOL_LORA_SCHEDULER_OPTIONS_INIT;
	struct gpool_lora_scheduler *made;
	uint32_t request, queue[4], first;

	(void)state;
	options.requests = 3;
	engines_start(1, &options);
#define WRONG(field, value) \
	options = (struct gpool_lora_scheduler_options)GPOOL_LORA_SCHEDULER_OPTIONS_INIT; \
	options.field = value; \
	assert_int_equal(gpool_lora_scheduler_create(one.lora, &options, &made), -EINVAL)
	WRONG(size, 3);
	WRONG(flags, 1);
	WRONG(requests, (1 << 20) + 1);
	WRONG(batch_requests, 257);
	WRONG(look_ahead, 65);
	assert_int_equal(gpool_lora_scheduler_destroy(NULL), 0);
	assert_int_equal(gpool_lora_scheduler_add(scheduler, 1, 1, &request), -ENOENT);
	first = added(0);
	added(GPOOL_LORA_NONE);
	added(0);
	assert_int_equal(gpool_lora_scheduler_add(scheduler, one.ids[0], 1, &request), -ENOSPC);
	assert_int_equal(gpool_lora_scheduler_remove(scheduler, 3), -ENOENT);
	assert_int_equal(gpool_lora_scheduler_finish(scheduler, first, GPOOL_FENCE_NONE), -ENOENT);
	AWAIT(info_of(&one, 0).state == GPOOL_LORA_RESIDENT);
	assert_int_equal(gpool_lora_scheduler_queue(scheduler, queue, 4), 3);
	assert_int_equal(queue[0], first);
	assert_int_equal(info_of(&one, 0).acquired, 0);
	assert_int_equal(formed(-2), -EINVAL);
	schedule.size--;
	assert_int_equal(formed(0), -EINVAL);
	schedule.size++;
	assert_int_equal(gpool_lora_destroy(one.lora), -EBUSY);
}

/* ---- a service of two engines ---- */

struct service {
	struct engine *engine;
	struct gpool_lora_scheduler *scheduler;
	uint32_t adapter_of[REQUESTS], steps_of[REQUESTS]; /* indexed by request number */
	uint32_t running[ENGINE_TOKENS], running_count;
	uint32_t arrived, finished, wrong;
	int error;
};

/* Add a few requests, most of them with an adapter. */
static int requests_come(struct service *service)
{
	struct engine *engine = service->engine;
	int error = 0;

	for (uint32_t i = 0; i < 10 && service->arrived < REQUESTS && !error; i++) {
		uint32_t request, any = engine_random(engine, SHARED),
				  adapter = any * (1 + engine_random(engine, SHARED)) / SHARED;
		bool base = engine_random(engine, 20) == 0;

		error = gpool_lora_scheduler_add(
			service->scheduler, base ? GPOOL_LORA_NONE : engine->ids[adapter], 1 + any, &request);
		if (error)
			return error;
		service->adapter_of[request] = base ? GPOOL_LORA_NONE : adapter;
		service->steps_of[request] = 1 + engine_random(engine, STEPS) / 2;
		service->arrived++;
	}
	return 0;
}

/* Compute one token for each running request. */
static int step(struct service *service)
{
	int32_t which[ENGINE_TOKENS];
	uint32_t kept = 0;
	int error;

	for (uint32_t i = 0; i < service->running_count; i++)
		which[i] = (int32_t)service->adapter_of[service->running[i]];
	error = engine_set(service->engine, which, service->running_count, NULL);
	if (!error)
		error = engine_apply(service->engine);
	if (error)
		return error;
	service->wrong += engine_wrong(service->engine, which);
	for (uint32_t i = 0; i < service->running_count && !error; i++) {
		uint32_t request = service->running[i];

		if (--service->steps_of[request]) {
			service->running[kept++] = request;
			continue;
		}
		error = gpool_lora_scheduler_finish(service->scheduler, request, GPOOL_FENCE_NONE);
		service->finished++;
	}
	service->running_count = kept;
	return error;
}

static void *serve(void *argument)
{
	struct service *service = argument;
	struct gpool_lora_schedule batch = {.size = sizeof(batch)};

	while (service->finished < REQUESTS && !service->error) {
		service->error = requests_come(service);
		if (service->error)
			break;
		service->error =
			gpool_lora_scheduler_schedule(service->scheduler, service->running_count ? 0 : WAIT_MS, &batch);
		if (service->error < 0)
			break;
		service->error = batch.failed_count                     ? batch.errors[0]
			: !batch.start_count && !service->running_count ? -ETIMEDOUT
									: 0;
		for (uint32_t i = 0; i < batch.start_count; i++)
			service->running[service->running_count++] = batch.starts[i];
		if (!service->error && service->running_count)
			service->error = step(service);
	}
	return NULL;
}

/* Adapters of ranks 8 to 128 do not fit together. Both engines load and evict them, one with fp16 and one with bf16. */
static void test_thousand(void **state)
{
	static struct service services[2];
	struct gpool_lora_scheduler_options options = GPOOL_LORA_SCHEDULER_OPTIONS_INIT;
	uint64_t lost = 0;
	pthread_t threads[2];

	(void)state;
	start(calm);
	engine_adapters_begin();
	for (uint32_t i = 0; i < SHARED; i++)
		engine_adapter(8 + i * 120 / (SHARED - 1), SAFETENSORS_F16);
	options.requests = REQUESTS;
	options.batch_requests = RUNNING;
	options.batch_adapters = ENGINE_SLOTS;
	options.max_bypass_ms = 200;
	engine_open(&one, GPOOL_LORA_F16);
	engine_open(&other, GPOOL_LORA_BF16);
	for (int i = 0; i < 2; i++) {
		services[i] = (struct service){.engine = i ? &other : &one};
		services[i].scheduler = scheduler_opened(services[i].engine, &options);
	}
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, serve, &services[i]), 0);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < 2; i++) {
		struct gpool_lora_scheduler_stats all = {.size = sizeof(all)};
		uint64_t loads = 0, lost_before = lost;

		assert_int_equal(gpool_lora_scheduler_stats(services[i].scheduler, &all), 0);
		for (uint32_t adapter = 0; adapter < SHARED; adapter++) {
			loads += info_of(services[i].engine, adapter).loads;
			lost += info_of(services[i].engine, adapter).lost;
			/* the batch may still have the adapter acquired */
			assert_in_range(info_of(services[i].engine, adapter).acquired, 0, 1);
		}
		print_message("%s: %u requests, %u cold, %u loads, %u came back, longest wait %u ms\n",
			i ? "bf16" : "fp16", services[i].finished, (unsigned)all.cold_starts, (unsigned)loads,
			(unsigned)(lost - lost_before), (unsigned)(all.longest_wait_us / 1000));
		assert_int_equal(services[i].error, 0);
		assert_int_equal(services[i].finished, REQUESTS);
		assert_int_equal(services[i].wrong, 0);
		assert_int_equal(all.waiting + all.running + all.awaited, 0);
		assert_int_equal(gpool_lora_scheduler_destroy(services[i].scheduler), 0);
	}
	/* An engine that finishes long before the other may lose no adapter. */
	assert_true(lost > 0);
}

int main(int argc, char **argv)
{
#define TEST(name) cmocka_unit_test_teardown(test_##name, engines_stop)
	const struct CMUnitTest tests[] = {
		TEST(resident_first),
		TEST(looks_ahead),
		TEST(removed),
		TEST(cannot_be_loaded),
		TEST(no_room),
		TEST(kept_adapter_is_evicted),
		TEST(unloaded_meanwhile),
		TEST(woken),
		TEST(wrong_arguments),
		TEST(thousand),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
