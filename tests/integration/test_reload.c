/*
 * test_reload.c - the configuration: an invalid one at the start, and changes later.
 *
 * Goal: an invalid configuration is refused at the start with file and line. A reload, by SIGHUP or by request, applies
 * the changes that it reports and lists those that need a restart. An invalid file changes nothing. No value that is
 * not applied yet is used. Tenants do not exclude observers and admins.
 *
 * Method: a real gpoold with a configuration file that is rewritten during the run. The reports are read from the
 * reply, the event or the log.
 *
 * Requirements: U15.
 */
#include "client/gpool.h"
#include "proto/codec.h"
#include "tests/integration/life.h"
#include "tests/lib/harness.h"
#include "tests/lib/temporary.h"

#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <cmocka.h>

static char config_path[64];

#define POOLS_OF(size) \
	"pools = ( { name = \"p0\"; backend = \"host\"; size = \"" size \
	"\"; page_size = \"512KB\"; reserved = \"0 pages\"; } );\n"

static void test_a_wrong_configuration_starts_nothing(void **state)
{
	static const struct {
		const char *text;
		int line;
	} wrongs[] = {
		{POOLS_OF("32MiB") "eviction = { start = 90; stop = 80; begin = 3; };\n", 2},
		{POOLS_OF("32MiB") "\nlease = {\n	idle = \"2 parsecs\";\n};\n", 4},
		{POOLS_OF("32MiB") "eviction = {\n	start = 101;\n};\n", 3},
		{POOLS_OF("32MiB") "adapters = {\n	compression_threshold = 60;\n};\n", 3},
		{POOLS_OF("32MiB") "access = { admins = {\n	users = [ \"nobody-of-that-name\" ]; }; };\n", 3},
	};
	char base[TEMPORARY_PATH_BYTES], directory[64], log[64], place[96], text[2048];
	struct stat stat_of;

	(void)state;
	alarm(STUCK_SECONDS);
	assert_non_null(mkdtemp(temporary_path(base, "gpool-test-XXXXXX")));
	assert_int_equal(chmod(base, 0711), 0); /* the front runs as another user */
	snprintf(directory, sizeof(directory), "%s/run", base);
	snprintf(log, sizeof(log), "%s/log", base);
	snprintf(config_path, sizeof(config_path), "%s/conf", base);
	for (size_t i = 0; i < sizeof(wrongs) / sizeof(*wrongs); i++) {
		const char *const arguments[] = {"--config", config_path, "--dir", directory, NULL};
		pid_t pid;

		harness_config_write(config_path, wrongs[i].text);
		pid = gpoold_spawn(log, arguments);
		assert_int_equal(status_of(pid), 2 << 8);
		assert_int_equal(group_count(pid), 0);
		assert_int_equal(stat(directory, &stat_of), -1);
		file_read(log, text, sizeof(text));
		snprintf(place, sizeof(place), "%s:%d", config_path, wrongs[i].line);
		if (!strstr(text, place))
			print_message("expected '%s' in: %s\n", place, text);
		assert_non_null(strstr(text, place));
	}
	unlink(config_path);
	unlink(log);
	assert_int_equal(rmdir(base), 0);
}

/*
 * The size of a pool in percent is known only when the pool is created. Minima that do not fit are refused then, and
 * nothing is left behind.
 * Requirements: U12.
 */
static void test_minima_that_do_not_fit_a_pool_in_percent(void **state)
{
	char base[TEMPORARY_PATH_BYTES], directory[64], log[64], text[4096];
	const char *const arguments[] = {"--config", config_path, "--dir", directory, NULL};
	struct stat stat_of;
	pid_t pid;

	(void)state;
	assert_non_null(mkdtemp(temporary_path(base, "gpool-test-XXXXXX")));
	assert_int_equal(chmod(base, 0711), 0); /* the front runs as another user */
	snprintf(directory, sizeof(directory), "%s/run", base);
	snprintf(log, sizeof(log), "%s/log", base);
	snprintf(config_path, sizeof(config_path), "%s/conf", base);
	harness_config_write(config_path,
		"pools = ( { name = \"p0\"; backend = \"host\"; size = \"1%\"; page_size = \"512KB\"; } );\n"
		"tenants = ( { name = \"one\"; users = [ \"1\" ]; minimum = \"900GiB\"; limit = \"2000GiB\"; } );\n");
	pid = gpoold_spawn(log, arguments);
	assert_int_equal(status_of(pid), 1 << 8);
	assert_int_equal(group_count(pid), 0);
	assert_int_equal(stat(directory, &stat_of), -1);
	file_read(log, text, sizeof(text));
	if (!strstr(text, "minim"))
		fail_msg("no word of the minima in: %s", text);
	unlink(config_path);
	unlink(log);
	assert_int_equal(rmdir(base), 0);
}

static void start_config(const char *text)
{
	const char *arguments[] = {"--config", config_path, NULL};

	snprintf(config_path, sizeof(config_path), "%s/gpool-test-%d.conf", temporary_folder(), (int)getpid());
	harness_config_write(config_path, text);
	start(arguments);
}

static int stop_config(void **state)
{
	unlink(config_path);
	return stop(state);
}

static int reload(char *text)
{
	const struct msg_reload_request request = {0};
	struct msg_done_reply done;
	int error = ASK_FROM(admin, reload_request, &request, done_reply, &done);

	strcpy(text, error ? error_text : done.text);
	return error;
}

/* Subscribe to events, and trigger events until one is received. */
static void events_listen(void)
{
	struct gpool_event event = GPOOL_EVENT_INIT;

	do
		gpool_close(harness_open(&harness));
	while (gpool_event_next(admin, 20, &event));
}

static void await_reload_event(char *text)
{
	struct gpool_event event = GPOOL_EVENT_INIT;

	do
		assert_int_equal(gpool_event_next(admin, ANSWER_MS, &event), 0);
	while (event.kind != GPOOL_EVENT_RELOAD);
	strcpy(text, event.text);
}

#define CALM "eviction = { start = 100; stop = 99; };\n"
#define EAGER "eviction = { start = 50; stop = 25; };\n"
#define ONE "{ name = \"one\"; users = [ \"1\" ]; limit = \"40 pages\"; }"
#define TWO "{ name = \"two\"; users = [ \"2\" ]; }"
#define OTHERS "{ name = \"others\"; }"

static void test_a_reload_changes_the_keys_it_can(void **state)
{
	struct gpool_block blocks[40];
	struct gpool *pool, *joined;
	char text[1024];
	pid_t agent;

	(void)state;
	start_config(POOLS_OF("32MiB") CALM "tenants = ( " ONE ", " OTHERS " );\n");
	agent = (pid_t)status()->agent_pid;
	events_listen();
	pool = open_as(0, NULL, "others");
	alloc_unpinned(pool, blocks, 40);
	assert_int_equal(status()->pools[0].evicted_pages, 0);

	/* Reload by signal: the watermarks, a limit and a new tenant are applied, the size is not. */
	harness_config_write(config_path,
		POOLS_OF("64MiB") EAGER
		"tenants = ( { name = \"one\"; users = [ \"1\" ]; limit = \"30 pages\"; }, " OTHERS ", " TWO " );\n");
	assert_int_equal(kill(harness.pid, SIGHUP), 0);
	await_reload_event(text);
	assert_non_null(strstr(text, "eviction.start"));
	assert_non_null(strstr(text, "tenants.one.limit"));
	assert_non_null(strstr(text, "tenants.two"));
	assert_non_null(strstr(text, "requires a restart: pools.p0.size"));
	assert_int_equal(status()->pools[0].page_count, PAGES);
	assert_int_equal(tenant("one")->limit_pages, 30);
	assert_non_null(tenant("two"));
	joined = open_as(0, NULL, "two");
	gpool_close(joined);
	AWAIT(status()->pools[0].evicted_pages > 0);
	assert_true(count_there(pool, blocks, 40) < 40);

	/* Reload by request: nothing has changed, and tenants in another order keep their state and names. */
	harness_config_write(config_path,
		POOLS_OF("32MiB") EAGER "tenants = ( " OTHERS
					", { name = \"one\"; users = [ \"1\" ]; limit = \"20 pages\"; } );\n");
	assert_int_equal(reload(text), 0);
	assert_non_null(strstr(strstr(text, "requires a restart"), "tenants"));
	assert_int_equal(tenant("one")->limit_pages, 30);
	assert_non_null(tenant("two"));
	assert_int_equal(status()->agent_pid, agent);
	gpool_close(pool);
}

static void test_a_broken_file_changes_nothing(void **state)
{
	char text[1024], place[96], log[16384];

	(void)state;
	start_config(POOLS_OF("32MiB") CALM "tenants = ( " ONE ", " OTHERS " );\n");
	harness_config_write(config_path,
		POOLS_OF("32MiB") "tenants = ( { name = \"one\"; users = [ \"1\" ]; limit = \"20 pages\"; }, " OTHERS
				  " );\n"
				  "eviction = { start = \"often\"; };\n");
	assert_int_not_equal(reload(text), 0);
	snprintf(place, sizeof(place), "%s:3", config_path);
	assert_non_null(strstr(text, place));
	assert_int_equal(tenant("one")->limit_pages, 40);
	/* After a signal the log contains the report. */
	assert_int_equal(truncate(harness.log, 0), 0);
	assert_int_equal(kill(harness.pid, SIGHUP), 0);
	do {
		file_read(harness.log, log, sizeof(log));
		poll(NULL, 0, AWAIT_STEP_MS);
	} while (!strstr(log, "the configuration is unchanged"));
	assert_non_null(strstr(log, place));
	assert_int_equal(tenant("one")->limit_pages, 40);
	/* A missing file is refused as well. */
	unlink(config_path);
	assert_int_not_equal(reload(text), 0);
	assert_int_equal(tenant("one")->limit_pages, 40);
	harness_config_write(config_path, POOLS_OF("32MiB") CALM "tenants = ( " ONE ", " OTHERS " );\n");
	assert_int_equal(reload(text), 0);
}

/* A size that needs a restart is not in effect yet: minima that fit only the pool of the next start are refused. */
static void test_minima_are_measured_by_the_pool_that_runs(void **state)
{
	uint32_t minima;
	struct gpool_block block;
	struct gpool *pool;
	char text[1024];

	(void)state;
	start_config(POOLS_OF("32MiB") CALM "tenants = ( " ONE ", " OTHERS " );\n");
	harness_config_write(config_path,
		POOLS_OF("64MiB") CALM
		"tenants = ( { name = \"one\"; users = [ \"1\" ]; minimum = \"100 pages\"; }, " OTHERS " );\n");
	reload(text);
	minima = tenant("one")->minimum_pages;
	minima += tenant("others")->minimum_pages;
	assert_true(minima <= PAGES);
	pool = open_as(0, NULL, "others");
	block = alloc(pool, 1);
	assert_int_equal(gpool_free(pool, &block), 0);
	gpool_close(pool);
}

/*
 * Tenants determine which users lease pages. Observers and admins lease none, so they may attach even if all tenants
 * name their users.
 */
static void test_an_admin_needs_no_tenant(void **state)
{
	const char *const arguments[] = {"--config", config_path, NULL};
	struct gpool_options options;
	struct gpool *pool = NULL;

	(void)state;
	alarm(STUCK_SECONDS);
	snprintf(config_path, sizeof(config_path), "%s/gpool-test-%d.conf", temporary_folder(), (int)getpid());
	harness_config_write(config_path, POOLS_OF("32MiB") CALM "tenants = ( " ONE ", " TWO " );\n");
	harness_start(&harness, arguments);
	unlink(config_path);
	options = harness_options(&harness);
	options.flags = GPOOL_OPEN_OBSERVER;
	assert_int_equal(gpool_open(&options, &pool), 0);
	gpool_close(pool);
	options.flags = GPOOL_OPEN_ADMIN;
	assert_int_equal(gpool_open(&options, &pool), 0);
	gpool_close(pool);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_wrong_configuration_starts_nothing),
		cmocka_unit_test(test_minima_that_do_not_fit_a_pool_in_percent),
		cmocka_unit_test_teardown(test_a_reload_changes_the_keys_it_can, stop_config),
		cmocka_unit_test_teardown(test_a_broken_file_changes_nothing, stop_config),
		cmocka_unit_test_teardown(test_minima_are_measured_by_the_pool_that_runs, stop_config),
		cmocka_unit_test_teardown(test_an_admin_needs_no_tenant, clean),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
