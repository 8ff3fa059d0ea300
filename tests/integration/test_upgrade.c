/*
 * test_upgrade.c - 'poolctl upgrade': the agent goes on with another file, or with what it was when the file does not fit.
 *
 * Goal: a file that fits runs afterwards, and one that does not changes nothing, whatever is wrong with it; each refusal names the file,
 * what is wrong, and the way out. Method: a real gpoold with a copy of its module as its file, which the test replaces: by the same, and
 * by modules made for this (tests/modules).
 */
#include "tests/integration/keeper.h"

#include <errno.h>
#include <sys/stat.h>

static char folder[32], module[64];

static void start(void)
{
	const char *const arguments[] = { "--module", module, "--pool", POOL, NULL };

	alarm(STUCK_SECONDS);
	strcpy(folder, "/tmp/gpool-upgrade-XXXXXX");
	assert_non_null(mkdtemp(folder));
	snprintf(module, sizeof(module), "%s/gpoold-agent.so", folder);
	install("../gpoold-agent.so", module);
	harness_start(&harness, arguments);
}

static int stop_and_remove(void **state)
{
	int result = stop(state);

	unlink(module);
	rmdir(folder);
	return result;
}

static struct result upgrade(void)
{
	return poolctl("--dir", harness.directory, "--timeout", "20", "upgrade", NULL);
}

/* It says so, and the agent is who it was. */
static void is_refused(const char *what, const char *way_out)
{
	struct agent_seen before = agent_seen(), after;
	struct result result = upgrade();

	expect(&result, FAILED);
	expect_text(result.err, module);
	expect_text(result.err, what);
	expect_text(result.err, way_out);
	result_free(&result);
	after = agent_seen();
	assert_int_equal(after.pid, before.pid);
	assert_true(after.incarnation == before.incarnation);
	pool_is_whole(PAGES);
}

static void is_taken(void)
{
	struct agent_seen before = agent_seen(), after;
	struct result result = upgrade();

	expect(&result, OK);
	expect_text(result.out, module);
	expect_text(result.out, "0.1");
	result_free(&result);
	after = agent_seen();
	assert_int_not_equal(after.pid, before.pid);
	assert_true(after.incarnation == before.incarnation + 1);
	pool_is_whole(PAGES);
}

static bool runs_file(pid_t pid, const char *path)
{
	char maps[64], line[600], inode[32];
	struct stat status;
	bool has = false;
	FILE *file;

	assert_int_equal(stat(path, &status), 0);
	snprintf(inode, sizeof(inode), " %llu ", (unsigned long long)status.st_ino);
	snprintf(maps, sizeof(maps), "/proc/%d/maps", (int)pid);
	file = fopen(maps, "re");
	assert_non_null(file);
	while (!has && fgets(line, sizeof(line), file))
		has = strstr(line, inode) && strstr(line, path);
	fclose(file);
	return has;
}

static void test_the_same_version_is_taken(void **state)
{
	(void)state;
	start();
	is_taken();
	install("../gpoold-agent.so", module);
	assert_false(runs_file(agent_seen().pid, module));
	is_taken();
	assert_true(runs_file(agent_seen().pid, module));
	assert_true(runs_file(child_awaited(harness.pid, "gpoold-front"), module));
	/* It was no crash. */
	assert_false(log_has("agent ended"));
}

/* Workers of before do not notice: what they have stays, and the new agent gives them more. */
static void test_workers_stay_attached(void **state)
{
	struct gpool_block kept, more;
	struct agent_seen before, after;
	struct result result;
	struct gpool *pool;
	uint64_t address;

	(void)state;
	start();
	pool = harness_open(&harness);
	assert_int_equal(gpool_alloc(pool, 8, NULL, &kept), 0);
	assert_int_equal(gpool_address(pool, &kept, &address), 0);
	memset((void *)(uintptr_t)address, 0x5a, 8 * (size_t)gpool_page_bytes(pool));
	for (int i = 0; i < 3; i++) {
		before = agent_seen();
		install("../gpoold-agent.so", module);
		result = upgrade();
		expect(&result, OK);
		result_free(&result);
		assert_int_equal(gpool_alloc(pool, PAGES / 2, NULL, &more), 0);
		assert_int_equal(gpool_free(pool, &more), 0);
		after = agent_seen();
		assert_int_not_equal(after.pid, before.pid);
		for (size_t at = 0; at < 8 * (size_t)gpool_page_bytes(pool); at += 4096)
			assert_int_equal(((uint8_t *)(uintptr_t)address)[at], 0x5a);
	}
	assert_int_equal(gpool_free(pool, &kept), 0);
	gpool_close(pool);
	pool_is_whole(PAGES);
}

/* Only an upgrade brings other code: who is started again runs what its predecessor ran, whatever the file is by now. */
static void test_a_restart_is_no_upgrade(void **state)
{
	struct agent_seen seen;

	(void)state;
	start();
	seen = agent_seen();
	assert_true(runs_file(seen.pid, module));
	install("modules/dying.so", module);
	kill_and_await(seen.pid, SIGKILL);
	seen = agent_seen();
	assert_false(runs_file(seen.pid, module));
	assert_int_equal(unlink(module), 0);
	kill_and_await(seen.pid, SIGKILL);
	agent_seen();
	pool_is_whole(PAGES);
}

static void test_what_does_not_fit_is_refused(void **state)
{
	(void)state;
	start();
	install("modules/layout.so", module);
	is_refused("layout", "stop gpoold and start the one that came with the file");
	install("modules/interface.so", module);
	is_refused("interface 2, this gpoold has 1", "stop gpoold and start the one that came with the file");
	install("modules/stranger.so", module);
	is_refused("gpool_module", "install the file of this version there");
	install("modules/aborting.so", module);
	is_refused("start-up code ended with signal 6", module);
	file_write(module, "no such thing", 13);
	is_refused("cannot load", "install the file of this version there");
	file_write(module, "", 0);
	is_refused("cannot load", "install the file of this version there");
	unlink(module);
	is_refused("No such file", "--module");
	assert_int_equal(mkfifo(module, 0600), 0);
	is_refused("it is no file", "--module");
	unlink(module);
	install("../gpoold-agent.so", module);
	is_taken();
}

/* It looked good, and its agent does not come up. */
static void test_one_that_does_not_serve_is_undone(void **state)
{
	struct agent_seen before, after;
	struct result result;

	(void)state;
	start();
	before = agent_seen();
	install("modules/dying.so", module);
	result = upgrade();
	expect(&result, OK);
	result_free(&result);
	after = agent_seen();
	assert_true(after.incarnation > before.incarnation);
	assert_true(log_has("the module from before the upgrade is started"));
	pool_is_whole(PAGES);
	install("../gpoold-agent.so", module);
	is_taken();
}

static void test_only_admins_may(void **state)
{
	struct agent_seen before;
	char *arguments[] = { "poolctl", "--dir", harness.directory, "upgrade", NULL };
	struct result result;

	(void)state;
	if (geteuid() != 0) {
		print_message("only root can become another user\n");
		skip();
	}
	start();
	before = agent_seen();
	result = poolctl_finish(poolctl_start_as(arguments, 65534));
	assert_int_not_equal(result.code, OK);
	result_free(&result);
	assert_true(agent_seen().pid == before.pid);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_the_same_version_is_taken, stop_and_remove),
		cmocka_unit_test_teardown(test_workers_stay_attached, stop_and_remove),
		cmocka_unit_test_teardown(test_a_restart_is_no_upgrade, stop_and_remove),
		cmocka_unit_test_teardown(test_what_does_not_fit_is_refused, stop_and_remove),
		cmocka_unit_test_teardown(test_one_that_does_not_serve_is_undone, stop_and_remove),
		cmocka_unit_test_teardown(test_only_admins_may, stop_and_remove),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
