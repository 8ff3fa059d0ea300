/*
 * test_objects_many.c - thousands of named objects.
 *
 * Goal: the configured number of objects can be published, found by name, in the directory and after the agent's death,
 * and deleted. One more object is refused with an error that names the limit and the setting. Without the setting, the
 * limit is one object per page.
 *
 * Method: objects of one page that are never written, so their memory is never allocated. On the double of the driver,
 * four pages share a handle, because each handle has descriptors.
 */
#include "client/gpool.h"
#include "client/object/object.h"
#include "client/core/pool.h"
#include "tests/lib/await.h"
#include "tests/lib/harness.h"

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

enum { MANY = 6000, PAGES = 8192, STUCK_SECONDS = 1000 };

static struct harness harness;
static struct gpool *pool;
static uint64_t versions[MANY];
static char said[1024];

static void note(void *context, int level, const char *text)
{
	(void)context;
	(void)level;
	snprintf(said, sizeof(said), "%s", text);
}

static void start(const char *pool_text)
{
	const char *const arguments[] = {"--pool", pool_text, NULL};
	struct gpool_options options;

	alarm(STUCK_SECONDS);
	harness_start(&harness, arguments);
	options = harness_options(&harness);
	options.log = note;
	assert_int_equal(gpool_open(&options, &pool), 0);
}

static int stop(void **state)
{
	uint32_t findings = pool ? harness_check(&harness) : 0;

	(void)state;
	gpool_close(pool);
	pool = NULL;
	alarm(0);
	return harness_stop(&harness) || findings ? -1 : 0;
}

static int publish(uint32_t number, uint64_t *version)
{
	struct gpool_object_options options = GPOOL_OBJECT_OPTIONS_INIT;
	struct gpool_object *object;
	char name[32];
	uint32_t index;
	int error;

	snprintf(name, sizeof(name), "one/of/many/%u", number);
	assert_int_equal(gpool_object_create(pool, name, &options, &object), 0);
	assert_int_equal(gpool_object_alloc(object, 1, NULL, &index), 0);
	error = gpool_object_publish(object, version);
	assert_int_equal(gpool_object_close(object), 0);
	return error;
}

static bool is_found(uint32_t number)
{
	struct gpool_object_info info = {.size = sizeof(info)};
	char name[32];

	snprintf(name, sizeof(name), "one/of/many/%u", number);
	return object_look_up(pool, name, &info) && info.version == versions[number];
}

static uint32_t listed(void)
{
	struct gpool_object_info info = {.size = sizeof(info)};
	uint32_t count = 0, cursor = 0;

	while (gpool_object_next(pool, &cursor, &info) == 0)
		count++;
	return count;
}

static void opened(uint32_t number)
{
	struct gpool_object *object;
	struct gpool_object_info info = {.size = sizeof(info)};
	char name[32];

	snprintf(name, sizeof(name), "one/of/many/%u", number);
	assert_int_equal(gpool_object_open(pool, name, NULL, &object), 0);
	assert_int_equal(gpool_object_info(object, &info), 0);
	assert_true(info.version == versions[number]);
	assert_int_equal(gpool_object_close(object), 0);
}

static pid_t agent_pid(void)
{
	char line[64];
	FILE *list;
	long pid;

	snprintf(line, sizeof(line), "/proc/%d/task/%d/children", (int)harness.pid, (int)harness.pid);
	list = fopen(line, "re");
	assert_non_null(list);
	while (fscanf(list, "%ld", &pid) == 1) {
		FILE *comm;
		bool is_agent;

		snprintf(line, sizeof(line), "/proc/%ld/comm", pid);
		comm = fopen(line, "re");
		if (!comm)
			continue;
		is_agent = fgets(line, sizeof(line), comm) && !strcmp(line, "gpoold-agent\n");
		fclose(comm);
		if (is_agent) {
			fclose(list);
			return (pid_t)pid;
		}
	}
	fail_msg("there is no agent");
	return -1;
}

static void agent_killed(void)
{
	uint64_t before = atomic_load(&pool->header->incarnation);

	assert_int_equal(kill(agent_pid(), SIGKILL), 0);
	for (int tries = 0; atomic_load(&pool->header->incarnation) == before; tries++) {
		assert_true(tries < AWAIT_TRIES);
		poll(NULL, 0, AWAIT_STEP_MS);
	}
}

static void test_as_many_as_may_be(void **state)
{
	uint64_t version;
	char name[32];

	(void)state;
	start("name=p0,backend=host,size=4GiB,page_size=512KB,reserved=0,objects=6000");
	for (uint32_t i = 0; i < MANY; i++)
		assert_int_equal(publish(i, &versions[i]), 0);
	assert_int_equal(publish(MANY, &version), -EUSERS);
	print_message("%s\n", said);
	assert_non_null(strstr(said, "6000 versions"));
	assert_non_null(strstr(said, "'objects'"));
	for (uint32_t i = 0; i < MANY; i++)
		assert_true(is_found(i));
	assert_int_equal(listed(), MANY);

	/*
	 * While a successor rebuilds the directory a lookup may fail. Once a lookup succeeds, the directory is
	 * complete.
	 */
	agent_killed();
	opened(0);
	for (uint32_t i = 0; i < MANY; i++)
		assert_true(is_found(i));
	assert_int_equal(listed(), MANY);
	for (uint32_t i = 0; i < MANY; i += 7)
		opened(i);
	assert_int_equal(harness_check(&harness), 0);

	/* Delete the records at the end, which shortens a search, and every second one of the others. */
	for (uint32_t i = 0; i < MANY; i++) {
		if (i % 2 && i < MANY / 2)
			continue;
		snprintf(name, sizeof(name), "one/of/many/%u", i);
		assert_int_equal(gpool_object_delete(pool, name, versions[i]), 0);
		assert_false(is_found(i));
	}
	assert_int_equal(listed(), MANY / 4);
	assert_int_equal(atomic_load(&pool->header->object_end), MANY / 2 + 1);
	agent_killed();
	opened(1);
	for (uint32_t i = 0; i < MANY; i++)
		assert_int_equal(is_found(i), i % 2 && i < MANY / 2);
	for (uint32_t i = 0; i < MANY; i += 2)
		assert_int_equal(publish(i, &versions[i]), 0);
	assert_true(is_found(MANY - 2) && is_found(1));
}

/* A session that had many objects open ends, and another one continues. */
static void test_a_reader_of_many_objects_ends(void **state)
{
	struct gpool_options options;
	struct gpool_object *objects[500];
	struct gpool_object_info info = {.size = sizeof(info)};
	struct gpool *other;
	char name[32];
	uint32_t cursor = 0, readers = 0;

	(void)state;
	start("name=p0,backend=host,size=4GiB,page_size=512KB,reserved=0");
	options = harness_options(&harness);
	assert_int_equal(pool->header->object_count, PAGES + 1);
	assert_int_equal(gpool_open(&options, &other), 0);
	for (uint32_t i = 0; i < 500; i++) {
		assert_int_equal(publish(i, &versions[i]), 0);
		snprintf(name, sizeof(name), "one/of/many/%u", i);
		assert_int_equal(gpool_object_open(other, name, NULL, &objects[i]), 0);
		if (i % 2)
			assert_int_equal(gpool_object_delete(pool, name, versions[i]), 0);
	}
	assert_int_equal(listed(), 500);
	agent_killed();
	gpool_close(other);
	while (gpool_object_next(pool, &cursor, &info) == 0)
		readers += info.readers;
	assert_int_equal(readers, 0);
	assert_int_equal(listed(), 250);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_as_many_as_may_be, stop),
		cmocka_unit_test_teardown(test_a_reader_of_many_objects_ends, stop),
	};
	const char *settings = getenv("GPU_DOUBLE");
	struct rlimit limit;
	char large[512];

	if (settings) {
		snprintf(large, sizeof(large), "%s granularity=2m", settings);
		setenv("GPU_DOUBLE", large, 1);
	}
	/* The keeper and the agent each need one descriptor per object. */
	if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_max < MANY + 1000) {
		printf("%d descriptors are needed, RLIMIT_NOFILE allows %llu\n", MANY + 1000,
			(unsigned long long)limit.rlim_max);
		return 77;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
