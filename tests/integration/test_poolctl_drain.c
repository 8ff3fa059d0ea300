/*
 * test_poolctl_drain.c - a pool that is being drained.
 *
 * Goal: while a pool is drained, new workers are refused with a reason that names the pool. Other sessions can attach;
 * attached workers continue and are notified. The verb waits for them and lists those that remain. The state survives
 * the agent's death and an upgrade, and ends with --off.
 *
 * Method: the program of this build, with a gpoold on the back end `host` and workers of this process and its children.
 */
#include "tests/integration/poolctl_process.h"
#include "tests/lib/harness.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/prctl.h>

enum { END_MS = AWAIT_MS };

static struct harness harness;

#define AGENT(...) poolctl("-d", harness.directory, __VA_ARGS__, NULL)

static int start(void **state)
{
	static const char *const arguments[] = {
		"--pool",
		HARNESS_POOL,
		"--pool",
		"name=p1,backend=host,size=32MiB,page_size=512KB,reserved=0",
		NULL,
	};

	(void)state;
	harness_start(&harness, arguments);
	return 0;
}

static int stop(void **state)
{
	(void)state;
	return harness_stop(&harness);
}

static char said[256];

static void log_keep(void *context, int level, const char *text)
{
	(void)context;
	if (level == 0)
		snprintf(said, sizeof(said), "%s", text);
}

/* Attach and detach. Return the result of gpool_open(). */
static int attach(uint32_t kind, const char *pool_name)
{
	struct gpool_options options = harness_options(&harness);
	struct gpool *pool = NULL;
	int error;

	options.flags = kind;
	options.pool = pool_name;
	options.log = log_keep;
	error = gpool_open(&options, &pool);
	gpool_close(pool);
	return error;
}

/* Check the status in both formats. */
static void expect_draining(const char *pool, bool draining)
{
	struct result json = AGENT("status", "-p", pool, "-o", "json"), table = AGENT("status", "-p", pool);

	expect(&json, OK);
	expect(&table, OK);
	assert_int_equal(cJSON_IsTrue(cJSON_GetObjectItem(list(&json, "pools")->child, "draining")), draining);
	assert_int_equal(strstr(table.out, "out of service") != NULL, draining);
	result_free(&json);
	result_free(&table);
}

static void drain(const char *option)
{
	struct result result = AGENT("drain", option, "-o", "json");

	expect(&result, OK);
	expect_document(&result, "drain");
	result_free(&result);
}

static void test_new_workers_are_refused(void **state)
{
	struct result result;

	(void)state;
	expect_draining("p0", false);
	result = AGENT("drain");
	assert_int_equal(result.code, OK);
	assert_string_equal(result.err, ""); /* no worker was attached */
	expect_text(result.out, "pool 'p0': the pool is out of service; remaining: 0 workers with 0 pages");
	result_free(&result);
	expect_draining("p0", true);
	expect_draining("p1", false);
	assert_int_equal(attach(0, "p0"), -ESHUTDOWN);
	expect_text(said, "pool 'p0' is out of service (poolctl drain)");
	assert_int_equal(attach(0, NULL), -ESHUTDOWN);
	assert_int_equal(attach(0, "p1"), 0);
	assert_int_equal(attach(GPOOL_OPEN_OBSERVER, "p0"), 0);
	assert_int_equal(attach(GPOOL_OPEN_ADMIN, "p0"), 0);
	result = AGENT("drain");
	expect(&result, OK);
	expect_text(result.out, "was already out of service");
	result_free(&result);
	result = AGENT("drain", "--off", "-o", "json");
	expect(&result, OK);
	expect_document(&result, "drain");
	assert_true(cJSON_IsFalse(cJSON_GetObjectItem(result.json, "draining")));
	result_free(&result);
	expect_draining("p0", false);
	assert_int_equal(attach(0, "p0"), 0);
	result = AGENT("drain", "--off");
	expect(&result, OK);
	expect_text(result.out, "was already in service");
	result_free(&result);
}

static void expect_event(struct gpool *pool, uint64_t value)
{
	struct gpool_event event = GPOOL_EVENT_INIT;

	while (event.kind != GPOOL_EVENT_DRAIN)
		assert_int_equal(gpool_event_next(pool, END_MS, &event), 0);
	assert_int_equal(event.value, value);
	assert_string_equal(event.pool, "p0");
}

static void test_attached_workers_continue(void **state)
{
	struct gpool *pool = harness_open(&harness);
	struct gpool_block kept, loose;
	struct gpool_event event = GPOOL_EVENT_INIT;
	struct result result;

	(void)state;
	assert_int_equal(gpool_alloc(pool, 4, NULL, &kept), 0);
	assert_int_equal(gpool_alloc(pool, 8, NULL, &loose), 0);
	assert_int_equal(gpool_unpin(pool, &loose), 0);
	while (gpool_event_next(pool, 0, &event) == 0)
		;
	/*
	 * workers are notified; only unpinned blocks are evicted, and attached workers can allocate more
	 */
	result = AGENT("drain", "--no-wait", "--evict", "-o", "json");
	expect(&result, OK);
	assert_int_equal(number(result.json, "evicted_pages"), 8);
	assert_int_equal(number(result.json, "workers"), 1);
	assert_true(cJSON_IsTrue(cJSON_GetObjectItem(result.json, "draining")));
	result_free(&result);
	expect_event(pool, 1);
	assert_int_equal(gpool_pin(pool, &loose), -ESTALE);
	assert_int_equal(gpool_alloc(pool, 64, NULL, &loose), 0);
	/* no worker detaches in time */
	result = AGENT("drain", "--timeout", "0.05");
	assert_int_equal(result.code, FAILED);
	expect_text(result.err, "pool 'p0': waiting for 1 worker with");
	expect_text(result.err, "still attached after 0.05 s: 1 worker with");
	result_free(&result);
	result = AGENT("drain", "--timeout", "0.05", "--quiet");
	assert_int_equal(result.code, FAILED);
	assert_null(strstr(result.err, "waiting for"));
	result_free(&result);
	drain("--off");
	expect_event(pool, 0);
	gpool_close(pool);
}

/* Read output that is still being written, up to and including the line that contains `part`. */
static void await_text(int fd, const char *part)
{
	char text[4096] = "";
	size_t length = 0;

	while (!strstr(text, part)) {
		struct pollfd wait = {.fd = fd, .events = POLLIN};

		assert_true(length + 1 < sizeof(text));
		assert_true(poll(&wait, 1, END_MS) == 1);
		assert_int_equal(read(fd, text + length, 1), 1);
		text[++length] = '\0';
	}
}

/* The verb waits for each attached worker in turn, even if a worker's process dies. */
static void test_it_waits_for_the_last_one(void **state)
{
	const char *line[] = {"poolctl", "drain", "-d", harness.directory, NULL};
	struct gpool *pool = harness_open(&harness);
	struct running running;
	struct result result;
	int ready[2];
	pid_t child;
	char byte;

	(void)state;
	assert_int_equal(pipe(ready), 0);
	child = fork();
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		harness_open(&harness);
		assert_int_equal(write(ready[1], "", 1), 1);
		pause();
		_exit(0);
	}
	assert_int_equal(read(ready[0], &byte, 1), 1);
	running = poolctl_start((char *const *)(uintptr_t)line);
	await_text(running.err, "waiting for 2 workers");
	gpool_close(pool);
	await_text(running.err, "waiting for 1 worker with");
	assert_int_equal(kill(child, SIGKILL), 0);
	assert_int_equal(waitpid(child, NULL, 0), child);
	result = poolctl_finish(running);
	assert_int_equal(result.code, OK);
	expect_text(result.out, "remaining: 0 workers with 0 pages");
	result_free(&result);
	close(ready[0]);
	close(ready[1]);
	drain("--off");
}

static uint64_t incarnation(pid_t *pid)
{
	struct result result = AGENT("version", "-o", "json");
	const cJSON *agent;
	uint64_t value;

	expect(&result, OK);
	agent = cJSON_GetObjectItem(result.json, "agent");
	*pid = (pid_t)number(agent, "pid");
	value = (uint64_t)number(agent, "incarnation");
	result_free(&result);
	return value;
}

static void test_it_outlives_the_agent(void **state)
{
	struct result result;
	pid_t first, second;

	(void)state;
	drain("--no-wait");
	incarnation(&first);
	assert_int_equal(kill(first, SIGKILL), 0);
	do
		incarnation(&second);
	while (first == second);
	expect_draining("p0", true);
	assert_int_equal(attach(0, "p0"), -ESHUTDOWN);
	result = AGENT("upgrade", "--timeout", "20");
	expect(&result, OK);
	result_free(&result);
	expect_draining("p0", true);
	assert_int_equal(attach(0, "p0"), -ESHUTDOWN);
	drain("--off");
	assert_int_equal(attach(0, "p0"), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_new_workers_are_refused),
		cmocka_unit_test(test_attached_workers_continue),
		cmocka_unit_test(test_it_waits_for_the_last_one),
		cmocka_unit_test(test_it_outlives_the_agent),
	};

	unsetenv("NO_COLOR");
	return cmocka_run_group_tests(tests, start, stop);
}
