/*
 * test_keeper.c - the processes of gpoold die, each in turn and repeatedly.
 *
 * Goal: a process that dies is restarted, each time, and the pool is unchanged. Each child has the resources that it
 * needs and no others. The end leaves nothing behind. Without free descriptors, sessions and objects are refused with a
 * reason.
 *
 * Method: the real processes are found in /proc and killed with SIGKILL, and tools attach again. The mappings and open
 * files of a child are read in /proc.
 */
#include "tests/integration/keeper.h"
#include "tests/lib/temporary.h"

#include "agent/keeper/child.h"
#include "client/core/request.h"
#include "client/gpool.h"
#include "proto/codec.h"
#include "shm/monotonic.h"

#include <errno.h>
#include <linux/capability.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>

enum { SILENCE_MS = 100 }; /* time that a process has for a message that nothing answers */

static struct gpool *asker;
static const char *const usual[] = {"--pool", POOL, NULL};

static void start(const char *const *arguments)
{
	alarm(STUCK_SECONDS);
	harness_start(&harness, arguments);
}

static void test_a_killed_agent_is_replaced(void **state)
{
	struct agent_seen first, second;

	(void)state;
	start(usual);
	first = agent_seen();
	pool_is_whole(PAGES);
	kill_and_await(first.pid, SIGKILL);
	second = agent_seen();
	assert_int_not_equal(second.pid, first.pid);
	assert_true(second.incarnation == first.incarnation + 1);
	pool_is_whole(PAGES);
	assert_true(log_has("agent ended (signal 9); restarting it"));
}

/*
 * After a number of quick deaths of the agent, the keeper pauses before each restart. On a busy machine, a kill may
 * come too late to count as a quick death.
 */
static void test_an_agent_that_keeps_dying_is_restarted(void **state)
{
	enum { QUICK = CHILD_QUICK_DEATHS + 3, MOST = 10 * QUICK };
	struct agent_seen first, last;
	uint64_t since, now;
	int kills = 0, quick = 0;

	(void)state;
	start(usual);
	first = agent_seen();
	for (since = monotonic_ms(); quick < QUICK && kills < MOST; kills++, since = now) {
		kill_and_await(child_awaited(harness.pid, "gpoold-agent"), SIGKILL);
		now = monotonic_ms();
		quick = now - since < CHILD_YOUNG_MS ? quick + 1 : 0;
	}
	last = agent_seen();
	assert_true(last.incarnation >= first.incarnation + (uint32_t)kills);
	assert_true(quick < QUICK || log_has("restarting it after a pause"));
	pool_is_whole(PAGES);
	assert_int_equal(child_named(harness.pid, "gpoold-agent"), last.pid);
	assert_true(child_named(harness.pid, "gpoold-front") > 0);
}

/* A process that is started after the agent's death uses the same memory, identified by its inode. Requirements: C1. */
static void test_memory_outlives_the_agent(void **state)
{
	struct gpool_options options;
	struct gpool_block block;
	uint64_t address;
	struct gpool *pool;

	(void)state;
	start(usual);
	pool = harness_open(&harness);
	assert_int_equal(gpool_alloc(pool, PAGES, NULL, &block), 0);
	assert_int_equal(gpool_address(pool, &block, &address), 0);
	memset((void *)(uintptr_t)address, 0x5a, PAGES * gpool_page_bytes(pool));
	assert_int_equal(gpool_free(pool, &block), 0);
	gpool_close(pool);
	kill_and_await(agent_seen().pid, SIGKILL);
	options = harness_options(&harness);
	assert_int_equal(gpool_open(&options, &pool), 0);
	assert_int_equal(gpool_alloc(pool, PAGES, NULL, &block), 0);
	assert_int_equal(gpool_address(pool, &block, &address), 0);
	for (uint32_t page = 0; page < PAGES; page++)
		assert_int_equal(*(uint8_t *)(uintptr_t)(address + page * gpool_page_bytes(pool)), 0x5a);
	assert_int_equal(gpool_free(pool, &block), 0);
	gpool_close(pool);
	pool_is_whole(PAGES);
}

/*
 * A configuration file that became invalid after the start does not prevent a restart. Only a reload applies or refuses
 * it.
 */
static void test_a_restart_keeps_the_configuration(void **state)
{
	static const char text[] = "pools = ( { name = \"p0\"; backend = \"host\"; size = \"32MiB\"; page_size = "
				   "\"512KB\"; reserved = \"0 pages\"; } );\n";
	char path[TEMPORARY_PATH_BYTES];
	int fd = mkstemp(temporary_path(path, "gpool-keeper-XXXXXX"));
	const char *const arguments[] = {"--config", path, NULL};
	struct result result;

	(void)state;
	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, sizeof(text) - 1), (ssize_t)sizeof(text) - 1);
	close(fd);
	start(arguments);
	kill_and_await(agent_seen().pid, SIGKILL);
	agent_seen();
	file_write(path, "pools = nonsense", 16);
	result = poolctl("--dir", harness.directory, "reload", NULL);
	expect(&result, FAILED);
	result_free(&result);
	kill_and_await(agent_seen().pid, SIGKILL);
	agent_seen();
	pool_is_whole(PAGES);
	unlink(path);
}

static void test_the_front_ends_with_its_agent(void **state)
{
	pid_t agent, front, next;

	(void)state;
	start(usual);
	agent = agent_seen().pid;
	front = child_awaited(harness.pid, "gpoold-front");
	kill_and_await(agent, SIGKILL);
	agent_seen();
	for (int tries = 0; (next = child_named(harness.pid, "gpoold-front")) == front || !next; tries++) {
		assert_true(tries < END_MS / 5);
		poll(NULL, 0, 5);
	}
	/* The successor waited for the end of the old front. */
	assert_int_equal(kill(front, 0), -1);
}

static void *version_asked(void *argument)
{
	const struct msg_version_request request = {0};
	static uint8_t message[MSG_ENVELOPE_BYTES], reply[MSG_BYTES_MAX];
	int *result = argument, length = msg_encode_version_request(&request, 0, NULL, message, sizeof(message));

	*result = pool_request(asker, message, (size_t)length, reply, sizeof(reply), AWAIT_MS, NULL);
	return NULL;
}

/*
 * The front does not read its socket for a while, and events fill it, so that the token of a new session does not reach
 * the front before the session's first request. The front must not refuse the request.
 */
static void test_a_front_that_lags_refuses_no_new_session(void **state)
{
	static const char *const verbose[] = {"--pool", POOL, "--set", "log.level=debug", NULL};
	struct gpool_options options;
	struct gpool *pool;
	pthread_t thread;
	pid_t agent, front;
	int result = 0;

	(void)state;
	start(verbose);
	agent = agent_seen().pid;
	front = child_awaited(harness.pid, "gpoold-front");
	options = harness_options(&harness);
	assert_int_equal(kill(front, SIGSTOP), 0);
	for (int tries = 0; tries % 64 || !log_has("to the front: Resource temporarily unavailable"); tries++) {
		assert_true(tries < 64 * 1024);
		assert_int_equal(gpool_open(&options, &pool), 0);
		gpool_close(pool);
	}
	assert_int_equal(gpool_open(&options, &asker), 0);
	assert_int_equal(kill(agent, SIGSTOP), 0);
	assert_int_equal(pthread_create(&thread, NULL, version_asked, &result), 0);
	assert_int_equal(kill(front, SIGCONT), 0);
	/* The front processes the request, but sends no answer, so there is no event to wait for. */
	poll(NULL, 0, SILENCE_MS);
	assert_int_equal(kill(agent, SIGCONT), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_true(result > 0);
	gpool_close(asker);
	pool_is_whole(PAGES);
}

/*
 * An interrupt from a terminal and a stop by a service manager reach all processes at once. Only the keeper may act on
 * them.
 */
static void test_a_signal_to_all_stops_in_order(void **state)
{
	(void)state;
	for (int i = 0; i < 5; i++) {
		start(usual);
		agent_seen();
		assert_int_equal(kill(-harness.pid, SIGTERM), 0);
		assert_int_equal(harness_stop(&harness), 0);
		assert_true(harness.pid == 0);
	}
	start(usual);
	kill_and_await(agent_seen().pid, SIGKILL);
	assert_int_equal(harness_stop(&harness), 0);
	alarm(0);
}

static void test_a_missing_module_is_named(void **state)
{
	char command[900], line[600] = "";
	FILE *output;

	(void)state;
	snprintf(command, sizeof(command),
		"%s --module /nowhere/gpoold-agent.so --dir /tmp/gpool-none-%d --pool %s 2>&1", beside("../gpoold"),
		(int)getpid(), POOL);
	output = popen(command, "r");
	assert_non_null(output);
	assert_non_null(fgets(line, sizeof(line), output));
	expect_text(line, "/nowhere/gpoold-agent.so");
	expect_text(line, "--module");
	while (fgets(line, sizeof(line), output))
		;
	assert_int_equal(WEXITSTATUS(pclose(output)), 1);
}

/* ---- movers ---- */

static bool maps_have(pid_t pid, const char *text)
{
	char path[64], line[600];
	bool has = false;
	FILE *maps;

	snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
	maps = fopen(path, "re");
	assert_non_null(maps);
	while (!has && fgets(line, sizeof(line), maps))
		has = strstr(line, text) != NULL;
	fclose(maps);
	return has;
}

/* On `host`, the memory of a pool is one handle, and on `cuda`, each page is one. */
static void log_await_mover(const char *begin, int pages)
{
	char text[200];

	snprintf(text, sizeof(text),
		"%s%d handles, 0 sessions, segment read-only, ledger not mapped, channel -1, bells 1", begin,
		strcmp(harness_backend(), "host") ? pages : 1);
	log_await(text);
}

/* Requirements: C1. */
static void test_a_mover_has_its_pool_and_nothing_else(void **state)
{
	static char module[700];
	const char *const arguments[] = {"--module", module, "--pool", POOL, "--pool",
		"name=other,backend=host,size=8MiB,page_size=512KB,reserved=0", NULL};
	struct gpool *pool;
	pid_t mover, agent;

	(void)state;
	snprintf(module, sizeof(module), "%s", beside("modules/mover.so"));
	start(arguments);
	log_await_mover("mover of 'p0': start 0, before me 0, ", PAGES);
	log_await_mover("mover of 'other': start 0, before me 0, ", 16);
	pool = harness_open(&harness);
	mover = child_named(harness.pid, "gpoold-mover");
	/*
	 * With a session attached, the mover's successor inherits the descriptors of a keeper that holds the session.
	 */
	kill_and_await(mover, SIGKILL);
	log_await_mover("start 1, before me 1, ", PAGES);
	gpool_close(pool);
	mover = child_awaited(harness.pid, "gpoold-mover");
	agent = child_named(harness.pid, "gpoold-agent");
	assert_true(fds_of(harness.pid, "/memfd:gpool-ledger") == 2 && fds_of(agent, "/memfd:gpool-ledger") == 2);
	assert_int_equal(fds_of(mover, "/memfd:gpool-ledger"), 0);
	assert_int_equal(fds_of(mover, "/memfd:gpool-session"), 0);
	assert_int_equal(fds_of(mover, "/memfd:gpool-pool"), 1);
	assert_false(maps_have(mover, "gpool-ledger"));
	assert_true(maps_have(agent, "gpool-ledger"));
	assert_true(maps_have(mover, "gpool-pool"));
	/* The front continues when the agent dies. */
	kill_and_await(agent, SIGKILL);
	agent_seen();
	assert_int_equal(kill(mover, 0), 0);
	pool_is_whole(PAGES);
}

/* ---- few descriptors ---- */

enum { FEW = 256 };

/*
 * Write a shell script that starts gpoold with a lower limit. Root could raise the limit again, so the capability is
 * dropped here. On `cuda`, each page has a descriptor, and the double of the driver has another one in the agent, which
 * gpoold does not know.
 */
static void limits_low(char path[64], int most)
{
	char script[900];
	int length = snprintf(
		script, sizeof(script), "#!/bin/sh\nulimit -n %d && exec '%s' \"$@\"\n", most, beside("../gpoold"));

	prctl(PR_CAPBSET_DROP, CAP_SYS_RESOURCE, 0, 0, 0);
	snprintf(path, 64, "%s/gpool-few-%d", temporary_folder(), (int)getpid());
	file_write(path, script, (size_t)length);
	assert_int_equal(chmod(path, 0700), 0);
	assert_int_equal(setenv("GPOOLD", path, 1), 0);
}

struct crowd {
	pid_t pid;
	int channel; /* closing it ends the process */
	uint32_t count;
};

/* Start a process that attaches as many sessions as it can. A process may have 16. */
static struct crowd crowd_start(void)
{
	struct crowd crowd = {0};
	int ends[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
	crowd.pid = fork();
	assert_true(crowd.pid >= 0);
	if (crowd.pid == 0) {
		struct gpool_options options = harness_options(&harness);
		struct gpool *pools[FEW];
		uint32_t count = 0;
		char byte;

		close(ends[0]);
		options.flags = GPOOL_OPEN_OBSERVER;
		while (count < FEW && !gpool_open(&options, &pools[count]))
			count++;
		if (write(ends[1], &count, sizeof(count)) != sizeof(count))
			_exit(1);
		while (read(ends[1], &byte, 1) > 0)
			;
		while (count)
			gpool_close(pools[--count]);
		_exit(0);
	}
	close(ends[1]);
	crowd.channel = ends[0];
	assert_int_equal(read(crowd.channel, &crowd.count, sizeof(crowd.count)), sizeof(crowd.count));
	return crowd;
}

static void crowd_end(struct crowd *crowd)
{
	int status;

	/* Crowds that were started later have inherited this end. */
	shutdown(crowd->channel, SHUT_RDWR);
	close(crowd->channel);
	assert_int_equal(waitpid(crowd->pid, &status, 0), crowd->pid);
	assert_int_equal(status, 0);
}

/* Requirements: S12. */
static void test_few_descriptors_refuse_sessions_by_name(void **state)
{
	enum { CROWDS = 4, ON_CUDA = PAGES };
	const int most = strcmp(harness_backend(), "host") ? FEW + ON_CUDA : FEW;
	struct crowd crowds[CROWDS];
	struct result result;
	char script[64], limit[16];
	uint32_t count = 0;

	(void)state;
	alarm(STUCK_SECONDS);
	limits_low(script, most);
	start(usual);
	unlink(script);
	unsetenv("GPOOLD");
	for (int i = 0; i < CROWDS; i++) {
		crowds[i] = crowd_start();
		count += crowds[i].count;
	}
	assert_in_range(count, 32, CROWDS * 16 - 1);
	result = poolctl("--dir", harness.directory, "status", NULL);
	expect(&result, FAILED);
	expect_text(result.err, "RLIMIT_NOFILE");
	snprintf(limit, sizeof(limit), "%d", most);
	expect_text(result.err, limit);
	result_free(&result);
	/* A detached session makes room for the next one. */
	crowd_end(&crowds[0]);
	pool_is_whole(PAGES);
	crowds[0] = crowd_start();
	assert_true(crowds[0].count >= 15);
	for (int i = 0; i < CROWDS; i++)
		crowd_end(&crowds[i]);
	kill_and_await(agent_seen().pid, SIGKILL);
	agent_seen();
	pool_is_whole(PAGES);
}

/* Objects are refused before the agent lacks a descriptor for receiving a request, which would then get no answer. */
/* Requirements: S12. */
static void test_few_descriptors_refuse_objects_by_name(void **state)
{
	const int most = strcmp(harness_backend(), "host") ? 200 : 128;
	struct gpool_object *object;
	char script[64], name[16];
	uint32_t index, count = 0;
	struct gpool *pool;
	uint64_t version;
	int error;

	(void)state;
	alarm(STUCK_SECONDS);
	limits_low(script, most);
	start(usual);
	unlink(script);
	unsetenv("GPOOLD");
	pool = harness_open(&harness);
	do {
		snprintf(name, sizeof(name), "%u", count);
		assert_int_equal(gpool_object_create(pool, name, NULL, &object), 0);
		assert_int_equal(gpool_object_alloc(object, 1, NULL, &index), 0);
		error = gpool_object_publish(object, &version);
		if (error)
			expect_text(gpool_last_error(error), "RLIMIT_NOFILE");
		assert_int_equal(gpool_object_close(object), 0);
		count += !error;
	} while (!error);
	assert_int_equal(error, -EMFILE);
	assert_in_range(count, 8, PAGES - 1);
	gpool_close(pool);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_a_killed_agent_is_replaced, stop),
		cmocka_unit_test_teardown(test_an_agent_that_keeps_dying_is_restarted, stop),
		cmocka_unit_test_teardown(test_memory_outlives_the_agent, stop),
		cmocka_unit_test_teardown(test_a_restart_keeps_the_configuration, stop),
		cmocka_unit_test_teardown(test_the_front_ends_with_its_agent, stop),
		cmocka_unit_test_teardown(test_a_front_that_lags_refuses_no_new_session, stop),
		cmocka_unit_test(test_a_signal_to_all_stops_in_order),
		cmocka_unit_test(test_a_missing_module_is_named),
		cmocka_unit_test_teardown(test_a_mover_has_its_pool_and_nothing_else, stop),
		/* These tests are last, because their process permanently loses a capability. */
		cmocka_unit_test_teardown(test_few_descriptors_refuse_sessions_by_name, stop),
		cmocka_unit_test_teardown(test_few_descriptors_refuse_objects_by_name, stop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
