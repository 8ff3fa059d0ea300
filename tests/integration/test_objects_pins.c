/*
 * test_objects_pins.c - objects that only pins protect.
 *
 * Goal: a pinned object keeps its content under pressure and after any change of its name. An unpinned object is
 * evicted even if it is open, and its readers get an error when they pin it again. The object with the lowest worth is
 * evicted first, whether bytes or the number of objects are limited. Pins end with their process, and survive the death
 * of the agent.
 *
 * Method: a gpoold with one pool of 64 pages, sessions of this process and separate processes.
 */
#include "client/core/pool.h"
#include "client/object/object.h"
#include "tests/integration/life.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>

enum { OBJECT_PAGES = 8, PAGE_WORDS = (512 << 10) / 8 };

static struct gpool *writer, *reader;

/* ---- objects ---- */

/* Write or check the first and last word of each page. */
static void content(struct gpool_object *object, uint64_t value, bool write, uint64_t *wrong)
{
	uint64_t address, bytes;

	assert_int_equal(gpool_object_address(object, 0, &address, &bytes), 0);
	for (uint64_t i = 0; i < bytes / 8; i += PAGE_WORDS) {
		volatile uint64_t *words = (volatile uint64_t *)(uintptr_t)address + i;

		if (write)
			words[0] = words[PAGE_WORDS - 1] = value + i;
		else
			*wrong += (words[0] != value + i) + (words[PAGE_WORDS - 1] != value + i);
	}
}

static bool is(struct gpool_object *object, uint64_t value)
{
	uint64_t wrong = 0;

	content(object, value, false, &wrong);
	return !wrong;
}

static struct gpool_object *published_at(
	struct gpool *pool, const char *name, uint32_t memory_class, uint64_t value, uint32_t cost_us)
{
	struct gpool_object_options options = GPOOL_OBJECT_OPTIONS_INIT;
	struct gpool_object *object;
	uint64_t version;
	uint32_t index;

	options.memory_class = memory_class;
	options.cost_us = cost_us;
	assert_int_equal(gpool_object_create(pool, name, &options, &object), 0);
	assert_int_equal(gpool_object_alloc(object, OBJECT_PAGES, NULL, &index), 0);
	content(object, value, true, NULL);
	assert_int_equal(gpool_object_publish(object, &version), 0);
	return object;
}

static struct gpool_object *published_as(struct gpool *pool, const char *name, uint32_t memory_class, uint64_t value)
{
	return published_at(pool, name, memory_class, value, 0);
}

static struct gpool_object *published(struct gpool *pool, const char *name, uint64_t value)
{
	return published_as(pool, name, GPOOL_OBJECT_PINNABLE, value);
}

static struct gpool_object *opened(struct gpool *pool, const char *name)
{
	struct gpool_object *object;

	assert_int_equal(gpool_object_open(pool, name, NULL, &object), 0);
	return object;
}

static bool is_there(const char *name)
{
	struct gpool_object_info info = {.size = sizeof(info)};
	uint32_t cursor = 0;

	while (gpool_object_next(admin, &cursor, &info) == 0)
		if (!strcmp(info.name, name))
			return true;
	return false;
}

/* Return true if that number of pages can be allocated now. They are freed again. */
static bool can_have(struct gpool *pool, uint32_t pages)
{
	struct gpool_block block;

	if (gpool_alloc(pool, pages, NULL, &block))
		return false;
	assert_int_equal(gpool_free(pool, &block), 0);
	return true;
}

static void sessions_start_with(const char *pool)
{
	start((const char *const[]){"--pool", pool, QUIET, "--set", "lease.initial_pages=0", "--set",
		"lease.batch_pages=1", "--set", "lease.batch_most=1", NULL});
	writer = open_worker();
	reader = open_worker();
}

static void sessions_start(void)
{
	sessions_start_with(POOL);
}

static int sessions_stop(void **state)
{
	gpool_close(reader);
	gpool_close(writer);
	writer = reader = NULL;
	return stop(state);
}

/* ---- one session, or two ---- */

static void test_open_does_not_keep(void **state)
{
	struct gpool_object *object, *again;

	(void)state;
	sessions_start();
	object = published(writer, "a", 1);
	again = opened(reader, "a");
	assert_true(is(again, 1));
	/* The object is not evicted while other pages are available. */
	assert_true(can_have(reader, PAGES - OBJECT_PAGES));
	assert_int_equal(gpool_object_pin(object), 0);
	assert_int_equal(gpool_object_unpin(object), 0);
	assert_true(can_have(reader, PAGES - OBJECT_PAGES + 1));
	assert_false(is_there("a"));
	assert_int_equal(gpool_object_pin(object), -ESTALE);
	assert_int_equal(gpool_object_pin(again), -ESTALE);
	assert_int_equal(gpool_object_unpin(again), -ESTALE);
	assert_int_equal(gpool_object_close(object), 0);
	assert_int_equal(gpool_object_close(again), 0);
	/* Publish another object with the same pages and the same name. */
	object = published(reader, "a", 2);
	assert_int_equal(gpool_object_pin(object), 0);
	assert_true(is(object, 2));
	assert_int_equal(gpool_object_unpin(object), 0);
	assert_int_equal(gpool_object_close(object), 0);
	assert_true(is_there("a"));
}

static void test_a_pin_keeps(void **state)
{
	struct gpool_object *object, *again;
	uint32_t taken = 77;

	(void)state;
	sessions_start();
	object = published(writer, "a", 1);
	again = opened(reader, "a");
	assert_int_equal(gpool_object_pin(again), 0);
	assert_int_equal(gpool_object_pin(again), 0);
	assert_false(can_have(writer, PAGES - OBJECT_PAGES + 1));
	assert_int_equal(gpool_object_unpin(again), 0);
	assert_false(can_have(writer, PAGES - OBJECT_PAGES + 1));
	assert_int_equal(try_evict(admin, "p0", PAGES, &taken), 0);
	assert_int_equal(taken, 0);
	assert_true(is(again, 1) && is(object, 1));
	assert_int_equal(gpool_object_unpin(again), 0);
	assert_int_equal(try_evict(admin, "p0", PAGES, &taken), 0);
	assert_int_equal(taken, OBJECT_PAGES);
	assert_false(is_there("a"));
	assert_int_equal(gpool_object_close(object), 0);
	assert_int_equal(gpool_object_close(again), 0);
}

/* The agent has opened the object for the session and evicts it before the session has mapped it. */
static void test_evicted_while_it_is_opened(void **state)
{
	struct gpool_object_open_options options = GPOOL_OBJECT_OPEN_OPTIONS_INIT;
	struct gpool_object *object, *again;
	uint32_t taken = 77;

	(void)state;
	sessions_start();
	object = published(writer, "a", 1);
	assert_int_equal(object_open(reader, "a", &options, false, &again), 0);
	assert_int_equal(try_evict(admin, "p0", PAGES, &taken), 0);
	assert_int_equal(taken, OBJECT_PAGES);
	assert_int_equal(object_map(again), -ENOENT);
	assert_int_equal(gpool_object_close(object), 0);
	assert_int_equal(gpool_object_close(again), 0);
	assert_int_equal(gpool_object_open(reader, "a", NULL, &again), -ENOENT);
}

static void test_wrong_arguments(void **state)
{
	struct gpool_object *object, *plain, *building;

	(void)state;
	sessions_start();
	object = published(writer, "a", 1);
	plain = published_as(writer, "plain", GPOOL_OBJECT_IMMUTABLE, 1);
	assert_int_equal(gpool_object_create(writer, "b", NULL, &building), 0);
	assert_int_equal(gpool_object_pin(plain), -EINVAL);
	assert_int_equal(gpool_object_unpin(plain), -EINVAL);
	assert_int_equal(gpool_object_pin(building), -EINVAL);
	assert_int_equal(gpool_object_unpin(object), -EINVAL);
	assert_int_equal(gpool_object_unpin_after(object, (struct gpool_fence){.value = UINT64_MAX}), -EINVAL);
	assert_int_equal(gpool_object_pin(object), 0);
	assert_int_equal(gpool_object_unpin_after(object, (struct gpool_fence){.value = UINT64_MAX}), -EINVAL);
	assert_int_equal(gpool_object_unpin(object), 0);
	assert_int_equal(gpool_object_unpin(object), -EINVAL);
	assert_int_equal(gpool_object_close(building), 0);
	assert_int_equal(gpool_object_close(plain), 0);
	assert_int_equal(gpool_object_close(object), 0);
}

/* Wait until the pool's clock has advanced. */
static void clock_moves(void)
{
	uint32_t now = pool_clock(writer);

	AWAIT(pool_clock(writer) != now);
}

static void test_least_recently_used_is_evicted_first(void **state)
{
	static const char *const names[] = {"a", "b", "c"};
	struct gpool_object *objects[3], *again;

	(void)state;
	sessions_start();
	for (int i = 0; i < 3; i++) {
		objects[i] = published(writer, names[i], (uint64_t)i);
		clock_moves();
	}
	/* A use by the other session counts as well. */
	again = opened(reader, "a");
	assert_int_equal(gpool_object_pin(again), 0);
	assert_int_equal(gpool_object_unpin(again), 0);
	assert_true(can_have(writer, PAGES - 3 * OBJECT_PAGES + 1));
	assert_true(is_there("a") && !is_there("b") && is_there("c"));
	assert_true(can_have(writer, PAGES - 2 * OBJECT_PAGES + 1));
	assert_true(is_there("a") && !is_there("c"));
	for (int i = 0; i < 3; i++)
		assert_int_equal(gpool_object_close(objects[i]), 0);
	assert_int_equal(gpool_object_close(again), 0);
}

static void use(struct gpool_object *object, int times)
{
	for (int i = 0; i < times; i++) {
		assert_int_equal(gpool_object_pin(object), 0);
		assert_int_equal(gpool_object_unpin(object), 0);
	}
}

enum { SCANNED = 20 };

/* Publish many objects that are used once, far more than fit. */
static void scan(void)
{
	char name[24];

	for (int i = 0; i < SCANNED; i++) {
		struct gpool_object *object;

		snprintf(name, sizeof(name), "scan-%d", i);
		object = published_at(reader, name, GPOOL_OBJECT_PINNABLE, 1, 1000);
		use(object, 1);
		assert_int_equal(gpool_object_close(object), 0);
	}
}

/* A scan of other objects does not evict the expensive and the frequently used object, even with the next agent. */
static void test_worth(void **state)
{
	struct gpool_object *dear, *often, *plain;
	uint64_t agents;

	(void)state;
	sessions_start();
	agents = status()->incarnation;
	dear = published_at(writer, "dear", GPOOL_OBJECT_PINNABLE, 1, 50000);
	often = published_at(writer, "often", GPOOL_OBJECT_PINNABLE, 2, 1000);
	plain = published_at(writer, "plain", GPOOL_OBJECT_PINNABLE, 3, 1000);
	use(dear, 1);
	use(plain, 1);
	use(often, 100);
	scan();
	assert_true(is_there("dear") && is_there("often") && !is_there("plain"));
	assert_int_equal(kill(process_of("gpoold-agent"), SIGKILL), 0);
	AWAIT(status()->incarnation > agents);
	scan();
	assert_true(is_there("dear") && is_there("often"));
	assert_true(is(dear, 1) && is(often, 2));
	/* A request for all pages evicts the object nevertheless. */
	assert_true(can_have(reader, PAGES));
	assert_int_equal(gpool_object_close(dear), 0);
	assert_int_equal(gpool_object_close(often), 0);
	assert_int_equal(gpool_object_close(plain), 0);
}

/*
 * An object that was evicted and is published again is worth its uses before, and not that of a new object.
 * Requirements: L17.
 */
static void test_uses_before_an_eviction(void **state)
{
	struct gpool_object *often, *new;

	(void)state;
	sessions_start();
	often = published_at(writer, "often", GPOOL_OBJECT_PINNABLE, 1, 1000);
	use(often, 50);
	assert_true(can_have(reader, PAGES));
	assert_false(is_there("often"));
	assert_int_equal(gpool_object_close(often), 0);
	often = published_at(writer, "often", GPOOL_OBJECT_PINNABLE, 1, 1000);
	new = published_at(writer, "new", GPOOL_OBJECT_PINNABLE, 2, 1000);
	use(often, 1);
	use(new, 5);
	assert_true(can_have(reader, PAGES - 2 * OBJECT_PAGES + 1));
	assert_true(is_there("often") && !is_there("new"));
	assert_int_equal(gpool_object_close(often), 0);
	assert_int_equal(gpool_object_close(new), 0);
}

/* At the same reload cost, a larger object has a lower worth. */
static void test_cost_is_by_size(void **state)
{
	struct gpool_object_options options = GPOOL_OBJECT_OPTIONS_INIT;
	struct gpool_object *large, *small;
	uint64_t version;
	uint32_t index;

	(void)state;
	sessions_start();
	options.memory_class = GPOOL_OBJECT_PINNABLE;
	options.cost_us = 4000;
	assert_int_equal(gpool_object_create(writer, "large", &options, &large), 0);
	assert_int_equal(gpool_object_alloc(large, 3 * OBJECT_PAGES, NULL, &index), 0);
	assert_int_equal(gpool_object_publish(large, &version), 0);
	small = published_at(writer, "small", GPOOL_OBJECT_PINNABLE, 1, 3000);
	clock_moves();
	use(large, 1);
	use(small, 1);
	assert_true(can_have(reader, PAGES - 4 * OBJECT_PAGES + 1));
	assert_true(is_there("small") && !is_there("large"));
	assert_int_equal(gpool_object_close(large), 0);
	assert_int_equal(gpool_object_close(small), 0);
	options.memory_class = GPOOL_OBJECT_IMMUTABLE;
	assert_int_equal(gpool_object_create(writer, "a", &options, &small), -EINVAL);
}

/*
 * A publication at the limit evicts as many objects as possible. Objects that were pinned at that time are evicted at
 * the next tick.
 */
static void test_no_more_than_may_be(void **state)
{
	struct gpool_object *objects[3];
	char name[16];

	(void)state;
	sessions_start_with(POOL ",pinnable_objects=2");
	for (int i = 0; i < 3; i++) {
		snprintf(name, sizeof(name), "o%d", i);
		objects[i] = published(writer, name, (uint64_t)i);
		use(objects[i], 3 - i);
	}
	/* The object that is being published is not a candidate. */
	assert_true(is_there("o0") && !is_there("o1") && is_there("o2"));
	assert_int_equal(gpool_object_close(objects[1]), 0);
	assert_int_equal(gpool_object_close(objects[2]), 0);
	assert_int_equal(gpool_object_pin(objects[0]), 0);
	objects[1] = published(writer, "p1", 1);
	assert_int_equal(gpool_object_pin(objects[1]), 0);
	objects[2] = published(writer, "p2", 2);
	assert_int_equal(gpool_object_pin(objects[2]), 0);
	assert_int_equal(harness_free_pages(&harness), PAGES - 3 * OBJECT_PAGES);
	for (int i = 0; i < 3; i++)
		assert_int_equal(gpool_object_unpin(objects[i]), 0);
	AWAIT(harness_free_pages(&harness) == PAGES - 2 * OBJECT_PAGES);
	assert_true(is_there("o0"));
	for (int i = 0; i < 3; i++)
		assert_int_equal(gpool_object_close(objects[i]), 0);
}

/* For adjacent pages, an object is evicted like a block, but not while it is pinned. */
static void test_room_in_a_row(void **state)
{
	struct gpool_alloc_options row = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_object *objects[4];
	struct gpool_block block;
	char name[16];

	(void)state;
	sessions_start();
	for (int i = 0; i < 4; i++) {
		snprintf(name, sizeof(name), "o%d", i);
		objects[i] = published(writer, name, (uint64_t)i);
	}
	assert_int_equal(gpool_object_pin(objects[1]), 0);
	row.flags = GPOOL_ALLOC_CONTIGUOUS;
	assert_int_equal(gpool_alloc(reader, PAGES - 2 * OBJECT_PAGES, &row, &block), 0);
	assert_true(is_there("o1") && !is_there("o2") && !is_there("o3"));
	assert_true(is(objects[1], 1));
	assert_int_equal(gpool_free(reader, &block), 0);
	assert_int_equal(gpool_alloc(reader, PAGES - OBJECT_PAGES, &row, &block), -ENOSPC);
	assert_int_equal(gpool_object_unpin(objects[1]), 0);
	for (int i = 0; i < 4; i++)
		assert_int_equal(gpool_object_close(objects[i]), 0);
}

/* ---- which sessions hold pins ---- */

static void test_a_refusal_names_the_object(void **state)
{
	struct gpool_oom_object most = {.size = sizeof(most)};
	struct gpool_object *small, *large, *again;
	struct gpool_object_options options = GPOOL_OBJECT_OPTIONS_INIT;
	struct gpool_oom_info shortage = {.size = sizeof(shortage)};
	uint64_t version;
	uint32_t index;

	(void)state;
	sessions_start();
	assert_int_equal(gpool_oom_object(writer, &most), -ENOENT);
	small = published(writer, "small", 1);
	options.memory_class = GPOOL_OBJECT_PINNABLE;
	assert_int_equal(gpool_object_create(writer, "large", &options, &large), 0);
	assert_int_equal(gpool_object_alloc(large, 2 * OBJECT_PAGES, NULL, &index), 0);
	assert_int_equal(gpool_object_publish(large, &version), 0);
	again = opened(reader, "large");
	assert_int_equal(gpool_object_pin(small), 0);
	assert_int_equal(gpool_object_pin(large), 0);
	for (int i = 0; i < 3; i++)
		assert_int_equal(gpool_object_pin(again), 0);
	assert_false(can_have(writer, PAGES));
	gpool_oom_info(writer, &shortage);
	assert_int_equal(shortage.pinned, 3 * OBJECT_PAGES);
	assert_int_equal(shortage.holder, gpool_session(writer));
	assert_int_equal(shortage.holder_pages, 3 * OBJECT_PAGES);
	assert_int_equal(gpool_oom_object(writer, &most), 0);
	assert_string_equal(most.name, "large");
	assert_int_equal(most.pages, 2 * OBJECT_PAGES);
	assert_int_equal(most.session, gpool_session(reader));
	assert_int_equal(most.pins, 3);
	assert_non_null(strstr(most.session_name, "test_objects_pins"));
	most.size = 0;
	assert_int_equal(gpool_oom_object(writer, &most), -EINVAL);
	for (int i = 0; i < 3; i++)
		assert_int_equal(gpool_object_unpin(again), 0);
	assert_int_equal(gpool_object_unpin(large), 0);
	assert_int_equal(gpool_object_unpin(small), 0);
	assert_int_equal(gpool_object_close(small), 0);
	assert_int_equal(gpool_object_close(large), 0);
	assert_int_equal(gpool_object_close(again), 0);
}

static const struct msg_pins_reply *pins_from(uint32_t page, uint32_t session)
{
	static struct msg_pins_reply reply;
	const struct msg_pins_request request = {.first = page, .first_session = session};

	ASK(pins_request, &request, pins_reply, &reply);
	return &reply;
}

/* The list has one entry for each session that pins the object, with the object's name. It may start at any entry. */
static void test_pins_are_listed(void **state)
{
	const struct msg_pins_reply *reply;
	struct gpool_object *object, *again;
	uint32_t page;

	(void)state;
	sessions_start();
	object = published(writer, "a", 1);
	again = opened(reader, "a");
	assert_int_equal(pins_from(0, 0)->pins_count, 0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(gpool_object_pin(object), 0);
	assert_int_equal(gpool_object_pin(again), 0);
	reply = pins_from(0, 0);
	assert_int_equal(reply->pins_count, 2);
	for (int i = 0; i < 2; i++) {
		assert_string_equal(reply->pins[i].object_name, "a");
		assert_true(reply->pins[i].object > 0);
		assert_int_equal(reply->pins[i].page_count, OBJECT_PAGES);
		assert_int_equal(reply->pins[i].pins, reply->pins[i].session == gpool_session(writer) ? 2 : 1);
	}
	assert_true(reply->pins[0].session < reply->pins[1].session);
	page = reply->pins[0].page;
	reply = pins_from(page, reply->pins[0].session + 1);
	assert_int_equal(reply->pins_count, 1);
	assert_int_equal(pins_from(page + 1, 0)->pins_count, 0);
	assert_int_equal(gpool_object_unpin(again), 0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(gpool_object_unpin(object), 0);
	assert_int_equal(gpool_object_close(object), 0);
	assert_int_equal(gpool_object_close(again), 0);
}

/* A pin that is not refreshed is detected and, in this test, revoked. Then the object may be evicted. */
static void test_a_leaked_pin(void **state)
{
	struct gpool_object *object;

	(void)state;
	start((const char *const[]){
		"--pool", POOL, QUIET, "--set", "pins.max_duration=200ms", "--set", "pins.leaked=unpin", NULL});
	writer = open_worker();
	reader = open_worker();
	object = published(writer, "a", 1);
	assert_int_equal(gpool_object_pin(object), 0);
	AWAIT(status()->pools[0].leaked_pins == 1);
	AWAIT(can_have(reader, PAGES));
	assert_false(is_there("a"));
	assert_int_equal(gpool_object_unpin(object), -ESTALE);
	assert_int_equal(gpool_object_close(object), 0);
}

/* ---- unpins with fences ---- */

static struct gpool_fence recorded(uint32_t stream)
{
	struct gpool_fence fence;

	assert_int_equal(gpool_fence_record(reader, stream, &fence), 0);
	return fence;
}

static void test_unpin_after(void **state)
{
	uint32_t one, other;
	struct gpool_fence first, second;
	struct gpool_object *object, *again;

	(void)state;
	sessions_start();
	assert_int_equal(gpool_stream_open(reader, NULL, GPOOL_STREAM_HOST_SIGNALED, &one), 0);
	assert_int_equal(gpool_stream_open(reader, NULL, GPOOL_STREAM_HOST_SIGNALED, &other), 0);
	object = published(writer, "a", 1);
	again = opened(reader, "a");
	for (int i = 0; i < 2; i++)
		assert_int_equal(gpool_object_pin(again), 0);
	first = recorded(one);
	second = recorded(other);
	/* The object has room for one fence only, so the other pin stays until the next check. */
	assert_int_equal(gpool_object_unpin_after(again, first), 0);
	assert_int_equal(gpool_object_unpin_after(again, second), 0);
	assert_false(can_have(writer, PAGES - OBJECT_PAGES + 1));
	assert_int_equal(gpool_fence_signal(reader, first), 0);
	assert_false(can_have(writer, PAGES - OBJECT_PAGES + 1));
	assert_true(is(again, 1));
	assert_int_equal(gpool_fence_signal(reader, second), 0);
	assert_int_equal(gpool_fence_wait(reader, second, ANSWER_MS), 0);
	AWAIT(can_have(writer, PAGES - OBJECT_PAGES + 1));
	assert_int_equal(gpool_object_pin(again), -ESTALE);
	/* The fence is signaled already. */
	assert_int_equal(gpool_object_close(object), 0);
	object = published(reader, "b", 1);
	assert_int_equal(gpool_object_pin(object), 0);
	assert_int_equal(gpool_object_unpin_after(object, second), 0);
	assert_true(can_have(writer, PAGES));
	assert_int_equal(gpool_object_close(object), 0);
	assert_int_equal(gpool_object_close(again), 0);
}

/* ---- names ---- */

static void test_a_newer_version(void **state)
{
	struct gpool_object *old, *now, *found;

	(void)state;
	sessions_start();
	old = published(writer, "a", 1);
	assert_int_equal(gpool_object_pin(old), 0);
	now = published(reader, "a", 2);
	assert_int_equal(gpool_object_pin(now), 0);
	assert_true(is(old, 1) && is(now, 2));
	assert_int_equal(gpool_object_pin(old), -ESTALE);
	found = opened(writer, "a");
	assert_true(is(found, 2));
	assert_int_equal(harness_free_pages(&harness), PAGES - 2 * OBJECT_PAGES);
	/* The object is freed with its last pin, even though it is open. */
	assert_int_equal(gpool_object_unpin(old), 0);
	AWAIT(harness_free_pages(&harness) == PAGES - OBJECT_PAGES);
	assert_int_equal(gpool_object_close(old), 0);
	assert_int_equal(gpool_object_unpin(now), 0);
	assert_int_equal(gpool_object_close(now), 0);
	assert_int_equal(gpool_object_close(found), 0);
}

static void test_deleted(void **state)
{
	struct gpool_object *object, *again;

	(void)state;
	sessions_start();
	object = published(writer, "a", 1);
	again = opened(reader, "a");
	assert_int_equal(gpool_object_pin(again), 0);
	assert_int_equal(gpool_object_delete(writer, "a", 0), 0);
	assert_int_equal(gpool_object_pin(object), -ESTALE);
	assert_true(is(again, 1));
	assert_int_equal(harness_free_pages(&harness), PAGES - OBJECT_PAGES);
	assert_int_equal(gpool_object_unpin(again), 0);
	AWAIT(harness_free_pages(&harness) == PAGES);
	/* An unpinned object is freed at once. */
	assert_int_equal(gpool_object_close(object), 0);
	assert_int_equal(gpool_object_close(again), 0);
	object = published(writer, "a", 1);
	assert_int_equal(gpool_object_delete(writer, "a", 0), 0);
	assert_int_equal(harness_free_pages(&harness), PAGES);
	assert_int_equal(gpool_object_close(object), 0);
}

/* ---- deaths ---- */

struct child {
	pid_t pid;
	int said; /* receives a byte when the process has pinned the object */
};

/* Start a process that pins the object and waits for its end. */
static struct child pinner(const char *name)
{
	struct child child;
	int pair[2];

	assert_int_equal(pipe2(pair, O_CLOEXEC), 0);
	fflush(NULL);
	child.pid = fork();
	assert_true(child.pid >= 0);
	if (!child.pid) {
		struct gpool *own;

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		setenv("CMOCKA_TEST_ABORT", "1", 1);
		own = open_worker();
		assert_int_equal(gpool_object_pin(opened(own, name)), 0);
		assert_int_equal(write(pair[1], "", 1), 1);
		for (;;)
			pause();
	}
	close(pair[1]);
	child.said = pair[0];
	return child;
}

static void test_a_dead_process_pins_nothing(void **state)
{
	struct gpool_object *object;
	struct child child;
	char byte;

	(void)state;
	sessions_start();
	object = published(writer, "a", 1);
	child = pinner("a");
	assert_int_equal(read(child.said, &byte, 1), 1);
	close(child.said);
	assert_false(can_have(writer, PAGES - OBJECT_PAGES + 1));
	assert_int_equal(kill(child.pid, SIGKILL), 0);
	status_of(child.pid);
	AWAIT(can_have(writer, PAGES - OBJECT_PAGES + 1));
	assert_int_equal(gpool_object_close(object), 0);
}

static void test_the_agent_dies(void **state)
{
	struct gpool_object *kept, *goes, *again;
	uint64_t agents;

	(void)state;
	sessions_start();
	agents = status()->incarnation;
	kept = published(writer, "kept", 1);
	goes = published(writer, "goes", 2);
	again = opened(reader, "kept");
	assert_int_equal(gpool_object_pin(again), 0);
	assert_int_equal(kill(process_of("gpoold-agent"), SIGKILL), 0);
	/* These calls send no request. */
	assert_int_equal(gpool_object_pin(goes), 0);
	assert_int_equal(gpool_object_unpin(goes), 0);
	AWAIT(status()->incarnation > agents);
	assert_true(can_have(writer, PAGES - 2 * OBJECT_PAGES + 1));
	assert_true(is_there("kept") && !is_there("goes"));
	assert_true(is(again, 1));
	assert_int_equal(gpool_object_unpin(again), 0);
	assert_true(can_have(writer, PAGES));
	assert_int_equal(gpool_object_close(kept), 0);
	assert_int_equal(gpool_object_close(goes), 0);
	assert_int_equal(gpool_object_close(again), 0);
}

/* ---- several threads ---- */

enum { RACES = 2, RACE_EVICTIONS = 400, RACE_PINS = 64 };

struct racer {
	pthread_t thread;
	struct gpool *pool;
	struct gpool_object *object;
	uint32_t pins, stale, wrong;
};

static _Atomic bool race_over;

static void race_publish(struct racer *racer)
{
	struct gpool_object_options options = GPOOL_OBJECT_OPTIONS_INIT;
	uint64_t version;
	uint32_t index;

	options.memory_class = GPOOL_OBJECT_PINNABLE;
	options.expect_version = GPOOL_OBJECT_NONE;
	assert_int_equal(gpool_object_create(racer->pool, "a", &options, &racer->object), 0);
	if (gpool_object_alloc(racer->object, OBJECT_PAGES, NULL, &index) == 0) {
		content(racer->object, 1, true, NULL);
		if (gpool_object_publish(racer->object, &version) == 0)
			return;
	}
	/* Another session has published the object first. */
	gpool_object_abort(racer->object);
	racer->object = NULL;
}

/* Create the object again whenever it was evicted. A pinned object must have the content that its name states. */
static void *race(void *argument)
{
	struct racer *racer = argument;

	while (!atomic_load(&race_over)) {
		if (!racer->object && gpool_object_open(racer->pool, "a", NULL, &racer->object)) {
			racer->object = NULL;
			race_publish(racer);
		} else if (gpool_object_pin(racer->object)) {
			racer->stale++;
			gpool_object_close(racer->object);
			racer->object = NULL;
		} else {
			racer->pins++;
			racer->wrong += !is(racer->object, 1);
			gpool_object_unpin(racer->object);
			/* Otherwise, on a busy machine, the agent would run while a racer is interrupted with a pin. */
			if (racer->pins % RACE_PINS == 0)
				sched_yield();
		}
	}
	gpool_object_close(racer->object);
	return NULL;
}

static void test_evicted_while_others_pin(void **state)
{
	struct racer racers[RACES] = {0};
	uint32_t evicted = 0, tries = 0, taken;

	(void)state;
	sessions_start();
	atomic_store(&race_over, false);
	for (int i = 0; i < RACES; i++) {
		racers[i].pool = i ? reader : writer;
		assert_int_equal(pthread_create(&racers[i].thread, NULL, race, &racers[i]), 0);
	}
	for (; evicted < RACE_EVICTIONS; tries++)
		if (try_evict(admin, "p0", PAGES, &taken) == 0)
			evicted += taken >= OBJECT_PAGES;
	atomic_store(&race_over, true);
	for (int i = 0; i < RACES; i++) {
		pthread_join(racers[i].thread, NULL);
		assert_int_equal(racers[i].wrong, 0);
	}
	print_message("%u evictions in %u tries, %u and %u pins, %u and %u too late\n", evicted, tries, racers[0].pins,
		racers[1].pins, racers[0].stale, racers[1].stale);
	assert_true(racers[0].stale + racers[1].stale > 0 && racers[0].pins + racers[1].pins > 0);
}

int main(int argc, char **argv)
{
#define TEST(name) cmocka_unit_test_teardown(test_##name, sessions_stop)
	const struct CMUnitTest tests[] = {
		TEST(open_does_not_keep),
		TEST(a_pin_keeps),
		TEST(evicted_while_it_is_opened),
		TEST(wrong_arguments),
		TEST(least_recently_used_is_evicted_first),
		TEST(worth),
		TEST(uses_before_an_eviction),
		TEST(cost_is_by_size),
		TEST(no_more_than_may_be),
		TEST(room_in_a_row),
		TEST(a_refusal_names_the_object),
		TEST(pins_are_listed),
		TEST(a_leaked_pin),
		TEST(unpin_after),
		TEST(a_newer_version),
		TEST(deleted),
		TEST(a_dead_process_pins_nothing),
		TEST(the_agent_dies),
		TEST(evicted_while_others_pin),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
