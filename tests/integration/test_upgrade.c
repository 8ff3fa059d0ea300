/*
 * test_upgrade.c - `poolctl upgrade`: the agent continues with another file, or with its former code if the file does
 * not fit.
 *
 * Goal: a file of any version with the same layout is accepted, in either direction, and engines keep their pages,
 * objects and roles. A file that does not fit changes nothing, whatever is wrong with it. Each refusal names the file,
 * the error and the remedy.
 *
 * Method: a real gpoold runs with a copy of its module as its file, which the test replaces. The replacements are the
 * same build, two other builds of the module (tools/build/tests.mk: tests/next has another version, tests/other another
 * layout), and modules made for this test (tests/modules). Engines are separate processes, which check their memory
 * between the steps.
 *
 * Requirements: S4.
 */
#include "tests/integration/keeper.h"
#include "tests/lib/temporary.h"

#include "agent/base/layout.h"
#include "agent/base/module.h"
#include "client/core/request.h"
#include "proto/codec.h"
#include "shm/pool_segment.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define NEXT "next/gpoold-agent.so"
#define OTHER "other/gpoold-agent.so"
#define OWN "../gpoold-agent.so"

enum { ENGINES = 3, BLOCK_PAGES = 6, OBJECT_PAGES = 4, MORE_PAGES = 8 };

static char folder[TEMPORARY_PATH_BYTES], module[64];

/* ---- engines ---- */

struct engine {
	pid_t pid;
	int ask, answer;
};
static struct engine engines[ENGINES];

/* State of an engine process. The first engine publishes the object and holds the role. */
struct own {
	uint32_t number;
	struct gpool *pool;
	struct gpool_block block;
	struct gpool_object *object;
	struct gpool_role role;
};

/* If the condition does not hold, return its line for the parent's message. */
#define NEED(condition) \
	do { \
		if (!(condition)) \
			return __LINE__; \
	} while (0)

static void bytes_write(uint64_t address, size_t bytes, uint32_t seed)
{
	for (size_t i = 0; i < bytes / 4; i += 64)
		((uint32_t *)(uintptr_t)address)[i] = seed ^ (uint32_t)i;
}

static bool bytes_right(uint64_t address, size_t bytes, uint32_t seed)
{
	for (size_t i = 0; i < bytes / 4; i += 64)
		if (((uint32_t *)(uintptr_t)address)[i] != (seed ^ (uint32_t)i))
			return false;
	return true;
}

static int engine_begin(struct own *own)
{
	uint64_t address, bytes, version;
	uint32_t index;

	own->pool = harness_open(&harness);
	NEED(!gpool_alloc(own->pool, BLOCK_PAGES, NULL, &own->block));
	NEED(!gpool_address(own->pool, &own->block, &address));
	bytes_write(address, BLOCK_PAGES * (size_t)gpool_page_bytes(own->pool), own->number);
	if (own->number) {
		NEED(!gpool_object_open(own->pool, "weights", NULL, &own->object));
		return 0;
	}
	NEED(!gpool_object_create(own->pool, "weights", NULL, &own->object));
	NEED(!gpool_object_alloc(own->object, OBJECT_PAGES, NULL, &index));
	NEED(!gpool_object_address(own->object, index, &address, &bytes));
	bytes_write(address, (size_t)bytes, 0xabcdef);
	NEED(!gpool_object_publish(own->object, &version));
	own->role.size = sizeof(own->role);
	NEED(!gpool_role_acquire(own->pool, "main", 0, &own->role));
	return 0;
}

/*
 * Check that all memory of the engine is unchanged, by its bytes and by its page words, which a pin compares. Check
 * that the agent serves the engine.
 */
static int engine_check(struct own *own)
{
	struct gpool_block more;
	uint64_t address, bytes;

	NEED(!gpool_pin(own->pool, &own->block));
	NEED(!gpool_address(own->pool, &own->block, &address));
	NEED(bytes_right(address, BLOCK_PAGES * (size_t)gpool_page_bytes(own->pool), own->number));
	NEED(!gpool_unpin(own->pool, &own->block));
	NEED(!gpool_object_address(own->object, 0, &address, &bytes));
	NEED(bytes_right(address, (size_t)bytes, 0xabcdef));
	NEED(own->number || !gpool_role_check(own->pool, &own->role));
	NEED(!gpool_alloc(own->pool, MORE_PAGES, NULL, &more));
	NEED(!gpool_address(own->pool, &more, &address));
	bytes_write(address, MORE_PAGES * (size_t)gpool_page_bytes(own->pool), ~own->number);
	NEED(bytes_right(address, MORE_PAGES * (size_t)gpool_page_bytes(own->pool), ~own->number));
	NEED(!gpool_free(own->pool, &more));
	return 0;
}

static int engine_run(uint32_t number, int ask, int answer)
{
	struct own own = {.number = number};
	int line = engine_begin(&own);
	char byte;

	while (write(answer, &line, sizeof(line)) == sizeof(line) && read(ask, &byte, 1) == 1)
		line = engine_check(&own);
	gpool_close(own.pool);
	return 0;
}

static void engine_hear(uint32_t number)
{
	int line;

	assert_int_equal(read(engines[number].answer, &line, sizeof(line)), sizeof(line));
	if (line)
		fail_msg("engine %u: line %d does not hold", number, line);
}

static void engines_start(void)
{
	for (uint32_t i = 0; i < ENGINES; i++) {
		int ask[2], answer[2];

		assert_int_equal(pipe2(ask, O_CLOEXEC), 0);
		assert_int_equal(pipe2(answer, O_CLOEXEC), 0);
		fflush(NULL);
		engines[i].pid = fork();
		assert_true(engines[i].pid >= 0);
		if (!engines[i].pid) {
			for (uint32_t other = 0; other < i; other++)
				close(engines[other].ask);
			close(ask[1]);
			close(answer[0]);
			_exit(engine_run(i, ask[0], answer[1]));
		}
		close(ask[0]);
		close(answer[1]);
		engines[i].ask = ask[1];
		engines[i].answer = answer[0];
		engine_hear(i);
	}
}

static void engines_check(void)
{
	for (uint32_t i = 0; i < ENGINES; i++)
		assert_int_equal(write(engines[i].ask, "c", 1), 1);
	for (uint32_t i = 0; i < ENGINES; i++)
		engine_hear(i);
}

static void engines_end(void)
{
	for (uint32_t i = 0; i < ENGINES; i++) {
		int status;

		if (engines[i].pid <= 0)
			continue;
		close(engines[i].ask);
		close(engines[i].answer);
		assert_int_equal(waitpid(engines[i].pid, &status, 0), engines[i].pid);
		engines[i].pid = 0;
		assert_int_equal(status, 0);
	}
}

/* ---- gpoold ---- */

static void start_with(const char *second)
{
	const char *const arguments[] = {"--module", module, "--pool", POOL, second ? "--pool" : NULL, second, NULL};

	alarm(STUCK_SECONDS);
	snprintf(folder, sizeof(folder), "%s/gpool-upgrade-XXXXXX", temporary_folder());
	assert_non_null(mkdtemp(folder));
	snprintf(module, sizeof(module), "%s/gpoold-agent.so", folder);
	install(OWN, module);
	harness_start(&harness, arguments);
}

static void start(void)
{
	start_with(NULL);
}

static int stop_and_remove(void **state)
{
	int result;

	engines_end();
	result = stop(state);

	unlink(module);
	rmdir(folder);
	return result;
}

/* Wait until the agent has noticed the end of all engines. The object is freed with its name. */
static void pool_is_free(void)
{
	struct gpool *pool = harness_open(&harness);

	assert_int_equal(gpool_object_delete(pool, "weights", 0), 0);
	gpool_close(pool);
	for (int tries = 0; harness_free_pages(&harness) != PAGES; tries++) {
		assert_true(tries < END_MS / 5);
		poll(NULL, 0, 5);
	}
	pool_is_whole(PAGES);
}

static struct result upgrade(void)
{
	return poolctl("--dir", harness.directory, "--timeout", "20", "upgrade", NULL);
}

/* Check that the agent finds no inconsistency in the pool's tables, and that without engines the whole pool is free. */
static void pool_is_right(void)
{
	struct result result;

	if (!engines[0].pid) {
		pool_is_whole(PAGES);
		return;
	}
	result = poolctl("--dir", harness.directory, "--timeout", "20", "check", NULL);
	expect(&result, OK);
	result_free(&result);
}

/* Return true if this build of gpoold has the layouts of the running one, as an operator compares them. */
static bool has_our_layouts(const char *program)
{
	struct result result = poolctl("--dir", harness.directory, "version", NULL);
	char command[PATH_MAX + 16], line[200];
	bool same = false;
	FILE *out;

	expect(&result, OK);
	snprintf(command, sizeof(command), "'%s' --version", beside(program));
	out = popen(command, "r");
	assert_non_null(out);
	while (fgets(line, sizeof(line), out))
		same = same || (!strncmp(line, "layout ", 7) && strstr(result.out, line));
	assert_int_equal(pclose(out), 0);
	result_free(&result);
	return same;
}

/* Check that the upgrade is refused with these texts, and that no process has changed. */
static void is_refused(const char *what, const char *way_out)
{
	pid_t front = child_awaited(harness.pid, "gpoold-front"), mover = child_awaited(harness.pid, "gpoold-mover");
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
	assert_int_equal(child_awaited(harness.pid, "gpoold-front"), front);
	assert_int_equal(child_awaited(harness.pid, "gpoold-mover"), mover);
	pool_is_right();
}

static void is_taken_as(const char *version)
{
	struct agent_seen before = agent_seen(), after;
	struct result result = upgrade();

	expect(&result, OK);
	expect_text(result.out, module);
	expect_text(result.out, version);
	result_free(&result);
	after = agent_seen();
	assert_int_not_equal(after.pid, before.pid);
	assert_true(after.incarnation == before.incarnation + 1);
	pool_is_right();
}

static void is_taken(void)
{
	is_taken_as(GPOOL_VERSION);
}

/* Check the version of the running agent. */
static void serves(const char *version)
{
	struct result result = poolctl("--dir", harness.directory, "--timeout", "20", "version", NULL);
	char line[64];

	expect(&result, OK);
	snprintf(line, sizeof(line), "agent %s, process ", version);
	expect_text(result.out, line);
	result_free(&result);
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
	install(OWN, module);
	assert_false(runs_file(agent_seen().pid, module));
	is_taken();
	assert_true(runs_file(agent_seen().pid, module));
	assert_true(runs_file(child_awaited(harness.pid, "gpoold-front"), module));
	assert_false(log_has("agent ended"));
}

/* Wait until each of the first `count` pools has a mover, and other ones than `before` (NULL: any). */
static void movers_await(const pid_t *before, int count, pid_t *movers)
{
	int seen = 0;

	for (int tries = 0; seen < count; tries++) {
		struct result result =
			poolctl("--dir", harness.directory, "--timeout", "20", "-o", "json", "status", NULL);

		expect(&result, OK);
		for (seen = 0; seen < count; seen++) {
			movers[seen] = (pid_t)number(cJSON_GetArrayItem(list(&result, "pools"), seen), "mover_pid");
			if (!movers[seen] || (before && movers[seen] == before[seen]))
				break;
		}
		result_free(&result);
		assert_true(tries < END_MS / 5);
		poll(NULL, 0, 5);
	}
}

/* A mover ends after the successor of another one has started: only movers of the previous code are replaced. */
static void test_each_mover_is_replaced_once(void **state)
{
	pid_t before[2], after[2], now[2];

	(void)state;
	start_with("name=p1,backend=host,size=32MiB,page_size=512KB,reserved=0");
	movers_await(NULL, 2, before);
	assert_int_equal(kill(before[1], SIGSTOP), 0);
	is_taken();
	movers_await(before, 1, after);
	assert_int_equal(kill(before[1], SIGCONT), 0);
	movers_await(before, 2, after);
	kill_and_await(agent_seen().pid, SIGKILL);
	movers_await(NULL, 2, now);
	assert_memory_equal(now, after, sizeof(now));
}

/* Attached workers do not notice the upgrade: they keep their pages, and the new agent grants more. */
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
		install(OWN, module);
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

/*
 * Upgrade to another version with the same layout and back while engines run, and after the death of either version's
 * agent.
 */
static void test_another_version_is_taken(void **state)
{
	(void)state;
	start();
	engines_start();
	for (int i = 0; i < 3; i++) {
		install(NEXT, module);
		is_taken_as("9.9.9");
		serves("9.9.9");
		assert_true(runs_file(agent_seen().pid, module));
		assert_true(runs_file(child_awaited(harness.pid, "gpoold-front"), module));
		engines_check();
		kill_and_await(agent_seen().pid, SIGKILL);
		serves("9.9.9");
		engines_check();
		install(OWN, module);
		is_taken();
		serves(GPOOL_VERSION);
		engines_check();
		kill_and_await(agent_seen().pid, SIGKILL);
		serves(GPOOL_VERSION);
		engines_check();
	}
	engines_end();
	pool_is_free();
}

/*
 * A build with another layout and the same version numbers changes nothing, before and after the upgrade to another
 * version, and when that agent dies.
 */
static void test_another_layout_is_refused(void **state)
{
	char ours[LAYOUT_TEXT_BYTES], text[200];

	(void)state;
	start();
	engines_start();
	layout_text(POOL_LAYOUT_VERSION, layout_sum(&layout_own, LAYOUT_SHARED), ours);
	snprintf(text, sizeof(text), "but the running pools have %s: ledger_role.arrivals differs", ours);
	assert_true(has_our_layouts("../gpoold"));
	assert_false(has_our_layouts("other/gpoold"));
	for (int i = 0; i < 2; i++) {
		const char *version = i ? "9.9.9" : GPOOL_VERSION;

		install(OTHER, module);
		is_refused(text, "stop gpoold and start the gpoold of that version");
		assert_true(log_has("upgrade refused: "));
		serves(version);
		engines_check();
		kill_and_await(agent_seen().pid, SIGKILL);
		serves(version);
		engines_check();
		install(NEXT, module);
		is_taken_as("9.9.9");
		engines_check();
	}
	engines_end();
	pool_is_free();
}

/* The reason and the remedy are reported in full, even for a file with a long path. */
static void test_a_long_path_leaves_room_for_the_reason(void **state)
{
	enum { FOLDERS = 3 }; /* their names are longer than the part of a path that a message shows */
	char path[64 + FOLDERS * 50], ours[LAYOUT_TEXT_BYTES];
	struct result result;
	size_t length;

	(void)state;
	alarm(STUCK_SECONDS);
	snprintf(folder, sizeof(folder), "%s/gpool-upgrade-XXXXXX", temporary_folder());
	assert_non_null(mkdtemp(folder));
	strcpy(path, folder);
	for (int i = 0; i < FOLDERS; i++) {
		length = strlen(path);
		snprintf(path + length, sizeof(path) - length, "/%040d", i);
		assert_int_equal(mkdir(path, 0700), 0);
	}
	strcat(path, "/a.so");
	install(OWN, path);
	harness_start(&harness, (const char *const[]){"--module", path, "--pool", POOL, NULL});
	install(OTHER, path);
	result = upgrade();
	expect(&result, FAILED);
	expect_text(result.err, "2/a.so' has layout ");
	expect_text(result.err, layout_text(POOL_LAYOUT_VERSION, layout_sum(&layout_own, LAYOUT_SHARED), ours));
	expect_text(result.err, "ledger_role.arrivals");
	expect_text(result.err, "stop gpoold and start the gpoold of that version; the agent is unchanged");
	result_free(&result);
	pool_is_whole(PAGES);
	unlink(path);
	for (int i = 0; i < FOLDERS; i++) {
		*strrchr(path, '/') = '\0';
		assert_int_equal(rmdir(path), 0);
	}
	module[0] = '\0';
}

/* Only an upgrade changes the code. A restarted process runs its predecessor's code, whatever the file contains now. */
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

static void test_an_incompatible_module_is_refused(void **state)
{
	char ours[LAYOUT_TEXT_BYTES], text[200];

	(void)state;
	start();
	install("modules/layout.so", module);
	is_refused("layout", "stop gpoold and start the gpoold of that version");
	install("modules/interface.so", module);
	snprintf(text, sizeof(text), "interface %d, but this gpoold has %d", MODULE_ABI + 1, MODULE_ABI);
	is_refused(text, "stop gpoold and start the gpoold of that version");
	install("modules/recipe.so", module);
	layout_text(MODULE_ABI, layout_sum(&layout_own, LAYOUT_INTERFACE), ours);
	snprintf(text, sizeof(text), "but this gpoold has %s: recipe.directory differs", ours);
	is_refused(text, "stop gpoold and start the gpoold of that version");
	install("modules/undescribed.so", module);
	snprintf(text, sizeof(text), "has layout %d, but the running pools have %d.", POOL_LAYOUT_VERSION,
		POOL_LAYOUT_VERSION);
	is_refused(text, "stop gpoold and start the gpoold of that version");
	install("modules/stranger.so", module);
	is_refused("gpool_module", "install the file that belongs to this gpoold");
	install("modules/aborting.so", module);
	is_refused("initialization code ended with signal 6", module);
	file_write(module, "no such thing", 13);
	is_refused("cannot load", "install the file that belongs to this gpoold");
	file_write(module, "", 0);
	is_refused("cannot load", "install the file that belongs to this gpoold");
	unlink(module);
	is_refused("No such file", "--module");
	assert_int_equal(mkfifo(module, 0600), 0);
	is_refused("not a regular file", "--module");
	unlink(module);
	install(OWN, module);
	is_taken();
}

/* The file was valid, but its agent does not start. */
static void test_an_upgrade_that_does_not_serve_is_undone(void **state)
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
	assert_true(log_has("starting the previous module"));
	pool_is_whole(PAGES);
	install(OWN, module);
	is_taken();
}

/* In a process of a user that may attach: request an upgrade as a worker, and then as an admin. */
static int worker_asks(uid_t uid)
{
	struct gpool_options options = harness_options(&harness);
	const struct msg_upgrade_request request = {0};
	uint8_t message[MSG_LARGEST_upgrade_request], reply[MSG_LARGEST_done_reply];
	int length = msg_encode_upgrade_request(&request, 0, NULL, message, sizeof(message));
	char text[512];
	struct gpool *pool;

	NEED(!setgroups(0, NULL) && !setgid(uid) && !setuid(uid));
	pool = harness_open(&harness);
	NEED(pool_request(pool, message, (size_t)length, reply, sizeof(reply), END_MS, text) == -EPERM);
	NEED(strstr(text, "access.admins"));
	gpool_close(pool);
	options.flags = GPOOL_OPEN_ADMIN;
	NEED(gpool_open(&options, &pool) == -EACCES);
	return 0;
}

static void test_only_admins_may(void **state)
{
	enum { USER = 65534 };
	char path[160], *version[] = {"poolctl", "--dir", harness.directory, "version", NULL},
			*arguments[] = {"poolctl", "--dir", harness.directory, "upgrade", NULL};
	struct agent_seen before;
	struct result result;
	int status;
	pid_t pid;

	(void)state;
	if (geteuid() != 0) {
		print_message("only root can become another user\n");
		skip();
	}
	start();
	engines_start();
	/* Permit every user to connect to the socket. */
	snprintf(path, sizeof(path), "%s/attach", harness.directory);
	assert_int_equal(chmod(path, 0666), 0);
	before = agent_seen();
	install(NEXT, module);
	result = poolctl_finish(poolctl_start_as(version, USER));
	expect(&result, OK);
	result_free(&result);
	result = poolctl_finish(poolctl_start_as(arguments, USER));
	expect(&result, FAILED);
	expect_text(result.err, "access.admins");
	result_free(&result);
	fflush(NULL);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		int line = worker_asks(USER);

		if (line)
			print_error("worker: line %d does not hold\n", line);
		fflush(NULL);
		_exit(line ? 1 : 0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_true(agent_seen().pid == before.pid);
	serves(GPOOL_VERSION);
	engines_check();
	/* Root may use the same file, so the refusal concerned the user. */
	is_taken_as("9.9.9");
	engines_check();
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		/*
		 * This test must be first. Its child sends a request, which nanomsg does not support in a child of a
		 * process that has used nanomsg.
		 */
		cmocka_unit_test_teardown(test_only_admins_may, stop_and_remove),
		cmocka_unit_test_teardown(test_the_same_version_is_taken, stop_and_remove),
		cmocka_unit_test_teardown(test_each_mover_is_replaced_once, stop_and_remove),
		cmocka_unit_test_teardown(test_workers_stay_attached, stop_and_remove),
		cmocka_unit_test_teardown(test_another_version_is_taken, stop_and_remove),
		cmocka_unit_test_teardown(test_another_layout_is_refused, stop_and_remove),
		cmocka_unit_test_teardown(test_a_long_path_leaves_room_for_the_reason, stop_and_remove),
		cmocka_unit_test_teardown(test_a_restart_is_no_upgrade, stop_and_remove),
		cmocka_unit_test_teardown(test_an_incompatible_module_is_refused, stop_and_remove),
		cmocka_unit_test_teardown(test_an_upgrade_that_does_not_serve_is_undone, stop_and_remove),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
