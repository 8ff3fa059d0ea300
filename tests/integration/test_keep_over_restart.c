/*
 * test_keep_over_restart.c - memory that outlives gpoold in the store of a service manager.
 *
 * Goal: with keep_over_restart, a stop stores the complete state, and the next run continues with the same memory and
 * page words. Incompatible state is refused and stays in the store. Memory that cannot be stored is freed, and the
 * cause is logged.
 *
 * Method: this process acts as the service manager. It listens at $NOTIFY_SOCKET, keeps the received descriptor, and
 * passes it to the next gpoold.
 */
#include "tests/integration/keeper.h"
#include "tests/lib/temporary.h"

#include "agent/base/layout.h"
#include "client/gpool.h"
#include "client/core/pool.h"
#include "client/core/request.h"

#include <errno.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#define KEEP "--set", "keep_over_restart=yes"

static struct {
	char place[64];
	int socket;
	int stored; /* -1: none */
	bool deaf;  /* reads neither descriptors nor barriers */
	uint32_t readies, removals, beats;
} manager = {.socket = -1, .stored = -1};

static void manager_begin(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	snprintf(manager.place, sizeof(manager.place), "%s/gpool-notify-%d", temporary_folder(), (int)getpid());
	unlink(manager.place);
	manager.socket = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	assert_true(manager.socket >= 0);
	strcpy(address.sun_path, manager.place);
	assert_int_equal(bind(manager.socket, (const struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(setenv("NOTIFY_SOCKET", manager.place, 1), 0);
	manager.readies = manager.removals = manager.beats = 0;
}

static void manager_take(void)
{
	char text[512], control[CMSG_SPACE(sizeof(int))];
	struct iovec part = {text, sizeof(text) - 1};
	struct msghdr message = {
		.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
	ssize_t length = recvmsg(manager.socket, &message, MSG_CMSG_CLOEXEC);
	struct cmsghdr *entry = CMSG_FIRSTHDR(&message);
	int fd = -1;

	assert_true(length > 0);
	text[length] = '\0';
	if (entry)
		memcpy(&fd, CMSG_DATA(entry), sizeof(fd));
	manager.readies += strstr(text, "READY=1") != NULL;
	manager.beats += !strcmp(text, "WATCHDOG=1");
	if (strstr(text, "FDSTOREREMOVE=1")) {
		expect_text(text, "FDNAME=gpool");
		manager.removals++;
		close(manager.stored);
		manager.stored = -1;
	} else if (strstr(text, "FDSTORE=1") && fd >= 0) {
		expect_text(text, "FDNAME=gpool");
		expect_text(text, "FDPOLL=0");
		assert_int_equal(manager.stored, -1);
		manager.stored = fd;
		fd = -1;
	}
	if (fd >= 0)
		close(fd);
}

/* Collect gpoold's output until its end. Return its exit status. */
static int manager_await_end(pid_t pid)
{
	struct pollfd look[] = {{manager.socket, POLLIN, 0}, {(int)syscall(SYS_pidfd_open, pid, 0), POLLIN, 0}};
	int status;

	for (;;) {
		assert_true(poll(look, 2, END_MS) > 0);
		if (look[0].revents && !manager.deaf)
			manager_take();
		else if (look[1].revents)
			break;
	}
	close(look[1].fd);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return status;
}

static void manager_stop(void)
{
	pid_t pid = harness.pid;

	assert_int_equal(kill(pid, SIGTERM), 0);
	assert_int_equal(manager_await_end(pid), 0);
	harness.pid = 0;
	harness_kill(&harness);
}

static void manager_end(void)
{
	if (manager.stored >= 0)
		close(manager.stored);
	close(manager.socket);
	unlink(manager.place);
	unsetenv("NOTIFY_SOCKET");
	unsetenv("GPOOLD");
	manager.stored = manager.socket = -1;
	manager.deaf = false;
}

/* path of gpoold, relative to this program's folder */
static const char *program = "../gpoold";

/*
 * Write a shell script that starts gpoold with its own limits and passes the store as descriptor 3, as in
 * sd_listen_fds(3).
 */
static void give_stored(char script[64], const char *before)
{
	char text[900];
	int length;

	snprintf(script, 64, "%s/gpool-given-%d", temporary_folder(), (int)getpid());
	length = snprintf(text, sizeof(text), "#!/bin/sh\n%s\nexport LISTEN_PID=$$\n%sexec '%s' \"$@\" %s\n", before,
		manager.stored >= 0 ? "export LISTEN_FDS=1 LISTEN_FDNAMES=gpool\n" : "", beside(program),
		manager.stored >= 0 ? "3<&9" : "");
	file_write(script, text, (size_t)length);
	assert_int_equal(chmod(script, 0700), 0);
	assert_int_equal(setenv("GPOOLD", script, 1), 0);
	/* Descriptor 9 is inherited, because dup2() makes it without close-on-exec. */
	if (manager.stored >= 0)
		assert_int_equal(dup2(manager.stored, 9), 9);
}

static void start_given(const char *const *arguments)
{
	char script[64];

	alarm(STUCK_SECONDS);
	give_stored(script, "");
	harness_start(&harness, arguments);
	agent_seen();
	unlink(script);
	close(9);
}

/* Start a gpoold that refuses to start. Return its status, and its output in `said`. */
static int refused(const char *const *arguments, char *said, size_t bytes, const char *before)
{
	char script[64], command[1200];
	size_t length;
	FILE *output;
	int status;

	give_stored(script, before);
	length = (size_t)snprintf(
		command, sizeof(command), "timeout 20 %s --dir /tmp/gpool-refused-%d", script, (int)getpid());
	for (; *arguments; arguments++)
		length += (size_t)snprintf(command + length, sizeof(command) - length, " '%s'", *arguments);
	snprintf(command + length, sizeof(command) - length, " 2>&1");
	output = popen(command, "r");
	assert_non_null(output);
	length = fread(said, 1, bytes - 1, output);
	said[length] = '\0';
	status = pclose(output);
	unlink(script);
	close(9);
	return WEXITSTATUS(status);
}

static const char *const usual[] = {"--pool", POOL, KEEP, NULL};

static void fill(struct gpool *pool, uint8_t with)
{
	struct gpool_block block;
	uint64_t address;

	assert_int_equal(gpool_alloc(pool, PAGES, NULL, &block), 0);
	assert_int_equal(gpool_address(pool, &block, &address), 0);
	memset((void *)(uintptr_t)address, with, PAGES * gpool_page_bytes(pool));
	assert_int_equal(gpool_free(pool, &block), 0);
}

static void is_filled(struct gpool *pool, uint8_t with)
{
	struct gpool_block block;
	uint64_t address;

	assert_int_equal(gpool_alloc(pool, PAGES, NULL, &block), 0);
	assert_int_equal(gpool_address(pool, &block, &address), 0);
	for (uint32_t page = 0; page < PAGES; page++)
		assert_int_equal(*(uint8_t *)(uintptr_t)(address + page * gpool_page_bytes(pool)), with);
	assert_int_equal(gpool_free(pool, &block), 0);
}

/* Return the number of agent starts in this pool's flight recorder, which restarts of gpoold do not reset. */
static uint32_t starts_recorded(const struct gpool *pool)
{
	const struct flight_ring *events = &pool_view(pool)->events;
	struct flight_entry entry;
	uint32_t starts = 0;

	for (uint32_t place = 0; place < flight_used(events); place++)
		starts +=
			!flight_read(events, place, UINT64_MAX, &entry, NULL) && entry.kind == GPOOL_EVENT_AGENT_START;
	return starts;
}

/* gpoold gets the open file of spilled pages at a restart, so it keeps the pool even if the directory was removed. */
static void test_a_directory_may_disappear(void **state)
{
	char folder[TEMPORARY_PATH_BYTES], text[160];
	const char *const arguments[] = {"--pool", text, KEEP, NULL};
	struct gpool *pool;

	(void)state;
	assert_non_null(mkdtemp(temporary_path(folder, "gpool-spilled-XXXXXX")));
	snprintf(text, sizeof(text), POOL ",spill_directory=%s,spill_file=8MiB", folder);
	manager_begin();
	start_given(arguments);
	pool = harness_open(&harness);
	fill(pool, 0x5a);
	gpool_close(pool);
	manager_stop();
	assert_int_equal(rmdir(folder), 0);
	start_given(arguments);
	pool_is_whole(PAGES);
	pool = harness_open(&harness);
	is_filled(pool, 0x5a);
	gpool_close(pool);
	manager_stop();
	manager_end();
}

/*
 * Words, counters, records and content are unchanged after two restarts, and after an agent's death that follows a
 * restart.
 */
static void test_memory_outlives_gpoold(void **state)
{
	struct agent_seen first, second;
	struct gpool *pool;
	uint64_t word;

	(void)state;
	manager_begin();
	start_given(usual);
	first = agent_seen();
	pool = harness_open(&harness);
	fill(pool, 0x5a);
	word = atomic_load(&pool_view(pool)->pages[0]);
	gpool_close(pool);
	pool_is_whole(PAGES);
	manager_stop();
	assert_int_equal(manager.readies, 1);
	assert_true(manager.stored >= 0);
	assert_int_equal(manager.removals, 0);

	for (int i = 0; i < 2; i++) {
		start_given(usual);
		second = agent_seen();
		assert_true(second.incarnation > first.incarnation);
		pool_is_whole(PAGES);
		pool = harness_open(&harness);
		/* The generations continue, so that no old handle matches new content. */
		assert_true(
			page_word_generation(atomic_load(&pool_view(pool)->pages[0])) >= page_word_generation(word));
		is_filled(pool, 0x5a);
		assert_int_equal(starts_recorded(pool), i + 2);
		word = atomic_load(&pool_view(pool)->pages[0]);
		gpool_close(pool);
		if (i) {
			kill_and_await(second.pid, SIGKILL);
			agent_seen();
			pool = harness_open(&harness);
			is_filled(pool, 0x5a);
			gpool_close(pool);
		}
		manager_stop();
		assert_int_equal(manager.removals, i + 1);
		assert_true(manager.stored >= 0);
		first = second;
	}
	manager_end();
}

/*
 * The next run gets the segment and the pidfd of each session that exists at the stop. Its agent can therefore detect
 * when the pages of the session become free.
 */
static void test_sessions_are_held_until_their_process_is_dead(void **state)
{
	struct gpool *observer;
	struct gpool_options options;

	(void)state;
	manager_begin();
	start_given(usual);
	options = harness_options(&harness);
	options.flags = GPOOL_OPEN_OBSERVER;
	assert_int_equal(gpool_open(&options, &observer), 0);
	manager_stop();
	start_given(usual);
	/* The tool that checked the service detaches with a delay. */
	for (int tries = 0; fds_of(harness.pid, "anon_inode:[pidfd]") != 1; tries++) {
		assert_true(tries < END_MS / 5);
		poll(NULL, 0, 5);
	}
	assert_int_equal(fds_of(harness.pid, "/memfd:gpool-session-0-"), 1);
	gpool_close(observer);
	manager_stop();
	manager_end();
}

/* A drain ends with gpoold, even if the pool's memory is kept. */
static void test_a_drained_pool_serves_again(void **state)
{
	struct result result;

	(void)state;
	manager_begin();
	start_given(usual);
	result = poolctl("-d", harness.directory, "drain", "--no-wait", NULL);
	expect(&result, OK);
	result_free(&result);
	manager_stop();
	start_given(usual);
	gpool_close(harness_open(&harness));
	manager_stop();
	manager_end();
}

static bool agent_is(const char *version)
{
	struct result result = poolctl("-d", harness.directory, "version", NULL);
	char line[64];
	bool is;

	expect(&result, OK);
	snprintf(line, sizeof(line), "agent %s, process ", version);
	is = strstr(result.out, line);
	result_free(&result);
	return is;
}

/*
 * Start gpoold with this module. It must find `bytes` in the pages of the earlier run, and leaves `next_bytes` there.
 */
static void goes_on_with(const char *module, const char *version, uint8_t bytes, uint8_t next_bytes)
{
	char path[700];
	struct gpool *pool;

	snprintf(path, sizeof(path), "%s", beside(module));
	start_given((const char *const[]){"--module", path, "--pool", POOL, KEEP, NULL});
	assert_true(agent_is(version));
	pool = harness_open(&harness);
	is_filled(pool, bytes);
	fill(pool, next_bytes);
	gpool_close(pool);
	pool_is_whole(PAGES);
	manager_stop();
	assert_true(manager.stored >= 0);
}

/*
 * Another version with the same layout continues with the memory, and so does the earlier version after it. A version
 * with another layout leaves the memory in the store.
 */
static void test_another_version_continues(void **state)
{
	char said[4000], path[700], wanted[100], ours[LAYOUT_TEXT_BYTES];
	struct gpool *pool;

	(void)state;
	layout_text(POOL_LAYOUT_VERSION, layout_sum(&layout_own, LAYOUT_SHARED), ours);
	manager_begin();
	start_given(usual);
	pool = harness_open(&harness);
	fill(pool, 0x11);
	gpool_close(pool);
	manager_stop();
	goes_on_with("next/gpoold-agent.so", "9.9.9", 0x11, 0x22);
	/* Try a complete gpoold with another layout and its module first, then only the module. */
	program = "other/gpoold";
	assert_int_equal(refused(usual, said, sizeof(said), ""), 1);
	program = "../gpoold";
	expect_text(said, "cannot take over the memory kept by an earlier run: it has layout ");
	snprintf(wanted, sizeof(wanted), "it has layout %s, but this gpoold has %d.", ours, POOL_LAYOUT_VERSION);
	expect_text(said, wanted);
	snprintf(path, sizeof(path), "%s", beside("other/gpoold-agent.so"));
	assert_int_equal(
		refused((const char *const[]){"--module", path, "--pool", POOL, KEEP, NULL}, said, sizeof(said), ""),
		1);
	expect_text(said, "ledger_role.arrivals differs");
	expect_text(said, ours);
	assert_int_equal(manager.removals, 1);
	goes_on_with("../gpoold-agent.so", GPOOL_VERSION, 0x22, 0x33);
	goes_on_with("next/gpoold-agent.so", "9.9.9", 0x33, 0x44);
	manager_end();
}

static void test_incompatible_state_stays_in_the_store(void **state)
{
	static const char *const others[][8] = {
		{"--pool", "name=p1,backend=host,size=32MiB,page_size=512KB,reserved=0", KEEP, NULL},
		{"--pool", "name=p0,backend=host,size=64MiB,page_size=512KB,reserved=0", KEEP, NULL},
		{"--pool", "name=p0,backend=host,size=64MiB,page_size=1MB,reserved=0", KEEP, NULL},
		{"--pool", "name=p0,backend=host,size=32MiB,page_size=512KB,reserved=0,device=1", KEEP, NULL},
		{"--pool", POOL, "--pool", "name=p1,backend=host,size=32MiB,page_size=512KB,reserved=0", KEEP, NULL},
	};
	struct gpool *pool;
	char said[4000];

	(void)state;
	manager_begin();
	start_given(usual);
	pool = harness_open(&harness);
	fill(pool, 0x77);
	gpool_close(pool);
	manager_stop();
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
		assert_int_equal(refused(others[i], said, sizeof(said), ""), 1);
		expect_text(said, "cannot take over the memory kept by an earlier run");
		expect_text(said, "clean --what=fdstore");
		expect_text(said, "keep_over_restart");
	}
	/* A limit on descriptors that is too low is refused, and the state is kept. */
	prctl(PR_CAPBSET_DROP, CAP_SYS_RESOURCE, 0, 0, 0);
	assert_int_equal(refused(usual, said, sizeof(said), "ulimit -n 60"), 1);
	expect_text(said, "LimitNOFILE=");
	assert_int_equal(manager.removals, 0);
	start_given(usual);
	pool = harness_open(&harness);
	is_filled(pool, 0x77);
	gpool_close(pool);
	manager_stop();
	manager_end();
}

/* The suggested change of the key works, and the descriptors of the earlier state do not prevent the start. */
static void test_without_the_key_memory_is_freed(void **state)
{
	static const char *const without[] = {"--pool", POOL, NULL};
	struct gpool *pool;

	(void)state;
	manager_begin();
	start_given(usual);
	pool = harness_open(&harness);
	fill(pool, 0x33);
	gpool_close(pool);
	manager_stop();
	assert_true(manager.stored >= 0);
	start_given(without);
	assert_true(log_has("freeing the memory kept by an earlier run"));
	pool = harness_open(&harness);
	is_filled(pool, 0);
	gpool_close(pool);
	manager_stop();
	assert_int_equal(manager.removals, 1);
	assert_int_equal(manager.stored, -1);
	manager_end();
}

/* A running keeper reports in time, and a stopped one does not. Without WATCHDOG_USEC the keeper sends no report. */
static void test_the_watchdog_is_notified(void **state)
{
	struct pollfd look;

	(void)state;
	manager_begin();
	look = (struct pollfd){manager.socket, POLLIN, 0};
	assert_int_equal(setenv("WATCHDOG_USEC", "40000", 1), 0);
	start_given(usual);
	while (manager.beats < 5) {
		assert_int_equal(poll(&look, 1, END_MS), 1);
		manager_take();
	}
	assert_int_equal(kill(harness.pid, SIGSTOP), 0);
	assert_int_equal(waitid(P_PID, (id_t)harness.pid, &(siginfo_t){0}, WSTOPPED), 0);
	while (poll(&look, 1, 0) == 1)
		manager_take();
	assert_int_equal(poll(&look, 1, 200), 0);
	assert_int_equal(kill(harness.pid, SIGCONT), 0);
	assert_int_equal(poll(&look, 1, END_MS), 1);
	assert_int_equal(unsetenv("WATCHDOG_USEC"), 0);
	manager_stop();

	manager.beats = 0;
	start_given(usual);
	manager_stop();
	assert_int_equal(manager.beats, 0);
	manager_end();
}

static void test_a_manager_that_takes_nothing(void **state)
{
	pid_t pid;

	(void)state;
	manager_begin();
	start_given(usual);
	/* Without a reader the barrier is not passed, and the log reports that. */
	manager.deaf = true;
	pid = harness.pid;
	assert_int_equal(kill(pid, SIGTERM), 0);
	assert_int_equal(manager_await_end(pid), 0);
	log_await("memory is not kept over the restart");
	harness.pid = 0;
	harness_kill(&harness);
	manager_end();
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_memory_outlives_gpoold),
		cmocka_unit_test(test_a_directory_may_disappear),
		cmocka_unit_test(test_sessions_are_held_until_their_process_is_dead),
		cmocka_unit_test(test_without_the_key_memory_is_freed),
		cmocka_unit_test(test_the_watchdog_is_notified),
		cmocka_unit_test(test_a_manager_that_takes_nothing),
		cmocka_unit_test(test_a_drained_pool_serves_again),
		cmocka_unit_test(test_another_version_continues),
		cmocka_unit_test(test_incompatible_state_stays_in_the_store),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
