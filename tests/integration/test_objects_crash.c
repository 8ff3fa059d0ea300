/*
 * test_objects_crash.c - named objects while the agent dies after each of its stores in turn.
 *
 * Goal: each call takes effect once and returns as if no death had happened. A name refers to one complete version at
 * any time. No page is lost. Method: that of test_crash_points.c, with its module. Each scenario runs for the n-th
 * store, n = 1, 2, 3, ..., until it ends before that store.
 *
 * Requirements: S5.
 */
#include "client/object/object.h"
#include "tests/integration/crash_points.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

static struct gpool *writer, *reader;
static uint64_t last_version;
static uint64_t page_words;

/* ---- objects ---- */

static struct gpool *worker(const char *name)
{
	struct gpool_options options = harness_options(&harness);
	struct gpool *pool = NULL;

	options.name = name;
	options.timeout_ms = ANSWER_MS;
	options.magazine = 1;
	assert_int_equal(gpool_open(&options, &pool), 0);
	page_words = gpool_page_bytes(pool) / 8;
	return pool;
}

static volatile uint64_t *words_of(struct gpool_object *object, uint32_t index, uint64_t *count)
{
	uint64_t address = 0, bytes = 0;

	assert_int_equal(gpool_object_address(object, index, &address, &bytes), 0);
	*count = bytes / 8;
	return (volatile uint64_t *)(uintptr_t)address;
}

static bool is(struct gpool_object *object, uint64_t value)
{
	const void *metadata;
	size_t bytes;

	for (uint32_t index = 0; index < 3; index++) {
		uint64_t count;
		volatile uint64_t *at = words_of(object, index, &count);

		for (uint64_t i = 0; i < count; i += page_words)
			if (at[i] != value * 100 + index * 10 + i / page_words)
				return false;
	}
	return gpool_object_get(object, "value", &metadata, &bytes) == 0 && bytes == sizeof(value) &&
		*(const uint64_t *)metadata == value;
}

/* Create an object with three allocations of 1, 4 and 2 pages. */
static struct gpool_object *build(uint64_t value, uint32_t memory_class, uint64_t expect)
{
	static const uint32_t sizes[] = {1, 4, 2};
	struct gpool_object_options options = GPOOL_OBJECT_OPTIONS_INIT;
	struct gpool_alloc_options wait = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_object *object = NULL;

	options.memory_class = memory_class;
	options.expect_version = expect;
	wait.timeout_ms = ANSWER_MS;
	assert_int_equal(gpool_object_create(writer, "name", &options, &object), 0);
	for (uint32_t i = 0; i < 3; i++) {
		uint64_t count;
		volatile uint64_t *at;
		uint32_t index;

		assert_int_equal(gpool_object_alloc(object, sizes[i], &wait, &index), 0);
		at = words_of(object, index, &count);
		for (uint64_t word = 0; word < count; word += page_words)
			at[word] = value * 100 + index * 10 + word / page_words;
	}
	assert_int_equal(gpool_object_set(object, "value", &value, sizeof(value)), 0);
	return object;
}

static struct gpool_object *publish(struct gpool_object *object)
{
	uint64_t version = 0;

	assert_int_equal(gpool_object_publish(object, &version), 0);
	assert_true(version > last_version);
	last_version = version;
	return object;
}

static struct gpool_object *open_named(struct gpool *pool)
{
	struct gpool_object *object = NULL;

	assert_int_equal(gpool_object_open(pool, "name", NULL, &object), 0);
	return object;
}

static uint32_t versions(void)
{
	struct gpool_object_info info = {.size = sizeof(info)};
	uint32_t cursor = 0, count = 0;

	while (gpool_object_next(admin, &cursor, &info) == 0)
		count++;
	return count;
}

/* ---- a scenario, with a death at each point ---- */

static struct gpool_object *old, *building;

static void play(void (*prepare)(void), void (*act)(void), void (*verify)(void))
{
	const char *stride_text = getenv("GPOOL_CRASH_STRIDE");
	int stride = stride_text ? atoi(stride_text) : 1;
	int64_t left = 0, at;
	uint32_t deaths = 0;

	for (at = 1; left == 0; at += stride > 0 ? stride : 1) {
		alarm(STUCK_SECONDS);
		writer = worker("writer");
		reader = worker("reader");
		prepare();
		atomic_store(countdown, at);
		act();
		left = atomic_exchange(countdown, 0);
		deaths += left == 0;
		verify();
		AWAIT(harness_check(&harness) == 0);
		gpool_close(reader);
		gpool_close(writer);
		old = building = NULL;
		if (versions())
			assert_int_equal(gpool_object_delete(admin, "name", 0), 0);
		AWAIT(harness_free_pages(&harness) == PAGES);
		AWAIT(harness_check(&harness) == 0);
		assert_int_equal(versions(), 0);
	}
	print_message("%u deaths at %lld points\n", deaths, (long long)(at - left));
	assert_true(deaths > 0);
}

/* ---- publishing ---- */

static void old_and_new(void)
{
	assert_int_equal(gpool_object_close(publish(build(1, GPOOL_OBJECT_IMMUTABLE, GPOOL_OBJECT_NONE))), 0);
	building = build(2, GPOOL_OBJECT_IMMUTABLE, last_version);
}

static void old_is_read(void)
{
	old_and_new();
	old = open_named(reader);
}

static void publish_new(void)
{
	publish(building);
}

static void new_is_there(void)
{
	struct gpool_object *now = open_named(reader);

	assert_true(is(now, 2) && is(building, 2));
	assert_true(!old || is(old, 1));
	assert_int_equal(versions(), old ? 2 : 1);
	assert_int_equal(gpool_object_close(now), 0);
	if (old)
		assert_int_equal(gpool_object_close(old), 0);
	assert_int_equal(versions(), 1);
}

static void test_publish(void **state)
{
	(void)state;
	play(old_and_new, publish_new, new_is_there);
}

static void test_publish_over_a_reader(void **state)
{
	(void)state;
	play(old_is_read, publish_new, new_is_there);
}

/* A refused publication changes nothing, even if the agent dies during the refusal. */
static void publish_refused(void)
{
	uint64_t version;

	assert_int_equal(gpool_object_publish(building, &version), -ESTALE);
}

static void old_and_unexpected(void)
{
	assert_int_equal(gpool_object_close(publish(build(1, GPOOL_OBJECT_IMMUTABLE, 0))), 0);
	building = build(2, GPOOL_OBJECT_IMMUTABLE, GPOOL_OBJECT_NONE);
}

static void old_is_there(void)
{
	uint64_t count;

	old = open_named(reader);
	assert_true(is(old, 1));
	assert_int_equal(versions(), 1);
	words_of(building, 1, &count)[0] = 5;
	gpool_object_abort(building);
	assert_int_equal(gpool_object_close(old), 0);
}

static void test_refusal(void **state)
{
	(void)state;
	play(old_and_unexpected, publish_refused, old_is_there);
}

/* ---- opening, closing, deleting ---- */

static void one_published(void)
{
	assert_int_equal(gpool_object_close(publish(build(1, GPOOL_OBJECT_IMMUTABLE, 0))), 0);
}

static void open_and_close(void)
{
	old = open_named(reader);
	assert_true(is(old, 1));
	assert_int_equal(gpool_object_close(old), 0);
	old = NULL;
}

static void no_reader_is_left(void)
{
	struct gpool_object_info info = {.size = sizeof(info)};
	uint32_t cursor = 0;

	assert_int_equal(gpool_object_next(admin, &cursor, &info), 0);
	assert_int_equal(info.readers, 0);
	assert_int_equal(info.state, GPOOL_OBJECT_CURRENT);
}

static void test_open_and_close(void **state)
{
	(void)state;
	play(one_published, open_and_close, no_reader_is_left);
}

static void delete_while_read(void)
{
	struct gpool_object *other;

	old = open_named(reader);
	assert_int_equal(gpool_object_delete(writer, "name", 0), 0);
	assert_int_equal(gpool_object_open(writer, "name", NULL, &other), -ENOENT);
	assert_true(is(old, 1));
	assert_int_equal(gpool_object_close(old), 0);
}

static void nothing_is_there(void)
{
	assert_int_equal(versions(), 0);
}

static void test_delete(void **state)
{
	(void)state;
	play(one_published, delete_while_read, nothing_is_there);
}

/* A repeated delete must not apply to an object that was published under the name in the meantime. */
static void delete_and_publish(void)
{
	assert_int_equal(gpool_object_delete(reader, "name", 0), 0);
	publish(building);
}

static void test_delete_and_publish(void **state)
{
	(void)state;
	play(old_and_unexpected, delete_and_publish, new_is_there);
}

/* ---- ends ---- */

static void read_and_written(void)
{
	building = publish(build(1, GPOOL_OBJECT_MUTABLE, 0));
	old = open_named(reader);
}

static void both_close(void)
{
	gpool_close(writer);
	gpool_close(reader);
	writer = worker("writer");
	reader = worker("reader");
}

static void no_user_is_left(void)
{
	struct gpool_object_info info = {.size = sizeof(info)};
	uint32_t cursor = 0;

	AWAIT((cursor = 0, gpool_object_next(admin, &cursor, &info)) == 0 && info.readers == 0);
	assert_int_equal(info.writer, 0);
	old = open_named(reader);
	assert_true(is(old, 1));
}

static void test_sessions_end(void **state)
{
	(void)state;
	play(read_and_written, both_close, no_user_is_left);
}

static void ephemeral(void)
{
	struct gpool_alloc_options wait = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_block block;

	assert_int_equal(gpool_object_close(publish(build(1, GPOOL_OBJECT_EPHEMERAL, 0))), 0);
	wait.timeout_ms = ANSWER_MS;
	assert_int_equal(gpool_alloc(reader, PAGES - 8, &wait, &block), 0);
}

static void take_more(void)
{
	struct gpool_alloc_options wait = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_block block;

	wait.timeout_ms = ANSWER_MS;
	assert_int_equal(gpool_alloc(reader, 4, &wait, &block), 0);
	assert_int_equal(gpool_free(reader, &block), 0);
}

static void test_eviction(void **state)
{
	(void)state;
	play(ephemeral, take_more, nothing_is_there);
}

/* Publish an open, unpinned object, and allocate all other pages but one. The object may be evicted. */
static void pinnable(void)
{
	struct gpool_alloc_options wait = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_block block;

	old = publish(build(1, GPOOL_OBJECT_PINNABLE, 0));
	wait.timeout_ms = ANSWER_MS;
	assert_int_equal(gpool_alloc(reader, PAGES - 8, &wait, &block), 0);
}

static void it_has_gone(void)
{
	assert_int_equal(gpool_object_pin(old), -ESTALE);
	assert_int_equal(gpool_object_close(old), 0);
	nothing_is_there();
}

static void test_eviction_of_an_open_object(void **state)
{
	(void)state;
	play(pinnable, take_more, it_has_gone);
}

/*
 * The object is pinned, so the request cannot be satisfied. The agent examines the object and keeps it, whatever state
 * its predecessor left.
 */
static void pinned(void)
{
	pinnable();
	assert_int_equal(gpool_object_pin(old), 0);
}

static void cannot_take_more(void)
{
	struct gpool_block block;

	assert_int_not_equal(gpool_alloc(reader, 4, NULL, &block), 0);
}

static void it_has_stayed(void)
{
	assert_true(is(old, 1));
	assert_int_equal(gpool_object_pin(old), 0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(gpool_object_unpin(old), 0);
	assert_int_equal(gpool_object_close(old), 0);
	assert_int_equal(versions(), 1);
}

static void test_no_eviction_of_a_pinned_object(void **state)
{
	(void)state;
	play(pinned, cannot_take_more, it_has_stayed);
}

/* ---- fixture ---- */

static int publisher_start(void **state)
{
	last_version = 0;
	return crash_start(state);
}

/* ---- pages in doubt ---- */

static void *ask_for_what_is_idle(void *block)
{
	struct gpool_alloc_options wait = GPOOL_ALLOC_OPTIONS_INIT;

	wait.timeout_ms = ANSWER_MS;
	return gpool_alloc(reader, PAGES - 10, &wait, block) ? block : NULL;
}

static void *publish_in_a_thread(void *version)
{
	return gpool_object_publish(building, version) ? version : NULL;
}

static uint32_t idle_pages(void)
{
	return (uint32_t)__builtin_popcountll(atomic_load(&writer->session.free_bits[0]));
}

/*
 * The agent dies before it takes idle pages. While no agent runs, they become pages of an object. Only the publisher
 * knows about them when the next agent determines their owner.
 */
static void test_published_pages_have_one_owner(void **state)
{
	const struct pool_header *header = pool_view(admin)->header;
	struct gpool_alloc_options now = GPOOL_ALLOC_OPTIONS_INIT;
	struct gpool_block blocks[50], asked;
	uint64_t before = atomic_load(&header->incarnation), version = 0;
	pthread_t asker, publisher;
	uint32_t clock;
	void *failed;

	(void)state;
	writer = worker("writer");
	reader = worker("reader");
	for (int i = 0; i < 50; i++)
		assert_int_equal(gpool_alloc(writer, 1, &now, &blocks[i]), 0);
	for (int i = 0; i < 50; i++)
		assert_int_equal(gpool_free(writer, &blocks[i]), 0);
	assert_int_equal(gpool_object_create(writer, "name", NULL, &building), 0);
	kill(harness.pid, SIGSTOP);
	atomic_store(countdown, 1);
	assert_int_equal(pthread_create(&asker, NULL, ask_for_what_is_idle, &asked), 0);
	AWAIT(atomic_load(countdown) == 0);
	while (idle_pages()) {
		uint32_t index;

		assert_int_equal(gpool_object_alloc(building, 1, &now, &index), 0);
	}
	/* The publisher removes its pages from the table, and is stopped there. */
	pthread_mutex_lock(&writer->attach_lock);
	assert_int_equal(pthread_create(&publisher, NULL, publish_in_a_thread, &version), 0);
	AWAIT(atomic_load(&block_entry(writer, building->parts[building->part_count - 1].block.page)->tag) == 0);
	kill(harness.pid, SIGCONT);
	AWAIT(atomic_load(&header->incarnation) != before);
	for (int ticks = 0; ticks < 3; ticks++) {
		clock = atomic_load(&header->clock_ms);
		AWAIT(atomic_load(&header->clock_ms) != clock);
	}
	pthread_mutex_unlock(&writer->attach_lock);
	pthread_join(publisher, &failed);
	assert_null(failed);
	gpool_object_close(building);
	building = NULL;
	assert_int_equal(gpool_object_delete(writer, "name", 0), 0);
	gpool_close(writer);
	writer = NULL;
	pthread_join(asker, &failed);
	assert_null(failed);
	gpool_close(reader);
	reader = NULL;
	AWAIT(harness_free_pages(&harness) == PAGES);
}

int main(int argc, char **argv)
{
	/* Start a gpoold for each test, because the keeper delays the restart of agents that die repeatedly. */
#define TEST(name) cmocka_unit_test_setup_teardown(name, publisher_start, crash_stop)
	const struct CMUnitTest tests[] = {
		TEST(test_publish),
		TEST(test_publish_over_a_reader),
		TEST(test_refusal),
		TEST(test_open_and_close),
		TEST(test_delete),
		TEST(test_delete_and_publish),
		TEST(test_sessions_end),
		TEST(test_eviction),
		TEST(test_eviction_of_an_open_object),
		TEST(test_no_eviction_of_a_pinned_object),
		TEST(test_published_pages_have_one_owner),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, crash_end);
}
