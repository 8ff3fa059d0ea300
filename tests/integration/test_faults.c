/*
 * test_faults.c - system calls and driver calls that fail in each process.
 *
 * Goal: every system call of start, attach, lease, spill, roles, exported fences, objects, control and death may fail,
 * in keeper, agent, front, mover or worker. No process may crash. The error must be one that the call documents, no
 * page may be lost, and the next attempt must succeed.
 *
 * Method: strace makes the n-th call of a kind fail in a real gpoold or a real worker. Driver calls fail through the
 * back end's fault plan. After each fault a new worker runs the whole round, and the pool is checked. All pages must be
 * free, no slot of spilled pages may be in use, and gpoold must end normally, with nothing left behind. Each process of
 * gpoold counts its own calls.
 *
 * With --sites, tests/faults/sites makes call sites fail in one scenario, without strace.
 *
 * Most of the time is spent waiting. Several faults are therefore tried at once, each by a separate process: this
 * program, with the fault as arguments. GPOOL_TEST_SCALE below 1 tries fewer of them.
 *
 * Requirements: S11.
 */
#include "client/gpool.h"
#include "client/core/pool.h"
#include "client/core/request.h"
#include "cuda/gpu.h"
#include "proto/codec.h"
#include "shm/pool_segment.h"
#include "tests/lib/await.h"
#include "tests/integration/fault_rounds.h"
#include "tests/lib/scale.h"
#include "tests/lib/temporary.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { AT_ONCE = 4 };

/* The exit status of the process that tries one fault. */
enum { TRIED_SERVED = 10, TRIED_SERVED_WITHOUT_CHECK, TRIED_ENDED };

struct fault {
	const char *call;
	const char *error;
	int from, to; /* the first and the last call that fails, in turn */
	int step;
	const char *environment; /* name of a variable that is set to 1; NULL: none */
};

static char self[512], gpoold[512], base[64], directory[128];
static char now_testing[160] = "no fault";
static int looks, looks_without_check, served, ended, failed;

/* The work of gpoold and its workers while a call site fails; see fault_rounds.h. */
static const char *scenario = "base";
static char *worker = self; /* the program that runs rounds */
static int stored = -1;     /* the descriptor that gpoold has given to its service manager */

/* Return true if a public call may return this error when a system call fails. */
static int documented(int error)
{
	static const int codes[] = {0, -ENOSPC, -EDQUOT, -ENOMEM, -EPIPE, -ENOENT, -ETIMEDOUT, -EACCES, -ENXIO, -EUSERS,
		-EPROTO, -ENODEV, -EMFILE, -ESTALE, -EIO, -ESRCH};

	for (size_t i = 0; i < sizeof(codes) / sizeof(*codes); i++)
		if (codes[i] == error)
			return 1;
	return 0;
}

/* ---- gpoold, with or without strace ---- */

/* Pass the stored descriptor to the program that this process will execute, as in sd_listen_fds(3). */
static void stored_give(void)
{
	char pid[16];

	if (stored == 3)
		fcntl(3, F_SETFD, 0);
	else
		dup2(stored, 3);
	snprintf(pid, sizeof(pid), "%d", (int)getpid());
	setenv("LISTEN_PID", pid, 1);
	setenv("LISTEN_FDS", "1", 1);
	setenv("LISTEN_FDNAMES", "gpool", 1);
}

static pid_t spawn(char *const argv[])
{
	pid_t child = fork();

	if (child == 0) {
		int null = open("/dev/null", O_WRONLY);

		/* Workers print an error that is not documented. */
		if (argv[0] != worker)
			dup2(null, STDERR_FILENO);
		dup2(null, STDOUT_FILENO);
		if (stored >= 0 && argv[0] == gpoold)
			stored_give();
		execvp(argv[0], argv);
		_exit(127);
	}
	assert_true(child > 0);
	return child;
}

static void inject_text(char *text, size_t bytes, const struct fault *fault, int nth)
{
	snprintf(text, bytes, "inject=%s:error=%s:when=%d", fault->call, fault->error, nth);
}

static pid_t running; /* process left by a failed test */

/* Remove the folder with the runtime directory, which must not exist any more. */
static void folder_remove(void)
{
	char command[128];

	snprintf(command, sizeof(command), "rm -rf %s", base);
	assert_int_equal(system(command), 0);
}

static pid_t gpoold_start(const struct fault *fault, int nth)
{
	char trace[64], inject[128], pool[192], config[96];
	char *plain[] = {gpoold, "--dir", directory, "--pool", pool, NULL, NULL, NULL, NULL, NULL};
	char *traced[] = {"strace", "-f", "-qq", "-o", "/dev/null", "-e", trace, "-e", inject, gpoold, "--dir",
		directory, "--pool", pool, "--set", "mover.patience=500ms", NULL};

	/* Use a new folder: pids are reused, and the files of an earlier test that was killed may still exist. */
	if (!*base || access(base, F_OK)) {
		snprintf(base, sizeof(base), "%s/gpool-faults-XXXXXX", temporary_folder());
		assert_non_null(mkdtemp(base));
		assert_int_equal(chmod(base, 0755), 0);
		snprintf(directory, sizeof(directory), "%s/run", base);
	}
	snprintf(pool, sizeof(pool),
		"name=p0,backend=%s,size=%d "
		"pages,page_size=%s,reserved=0,spill_memory=2MiB,spill_file=8MiB,spill_directory=/tmp",
		strcmp(scenario, "driver") ? "host" : "cuda", PAGES, strcmp(scenario, "huge") ? "512KB" : "2MB");
	snprintf(config, sizeof(config), "%s/conf", base);
	if (!strcmp(scenario, "adapters") || !strcmp(scenario, "sets")) {
		plain[5] = "--pool";
		plain[6] = "name=warm,backend=host,size=32 pages,page_size=512KB,reserved=0";
	} else if (!strcmp(scenario, "policies")) {
		plain[5] = plain[7] = "--set";
		plain[6] = "eviction.policy=adaptive";
		plain[8] = "pins.max_duration=10ms";
		strcat(pool, ",handle_size=2MB");
	} else if (!strcmp(scenario, "huge")) {
		strcat(pool, ",huge_pages=yes");
	} else if (!strcmp(scenario, "store")) {
		plain[5] = "--set";
		plain[6] = "keep_over_restart=yes";
	} else if (!strcmp(scenario, "domains")) {
		domains_write(config);
		plain[3] = "--config";
		plain[4] = config;
	}
	if (fault) {
		if (fault->environment)
			setenv(fault->environment, "1", 1);
		snprintf(trace, sizeof(trace), "trace=%s", fault->call);
		inject_text(inject, sizeof(inject), fault, nth);
	}
	return running = spawn(fault ? traced : plain);
}

/* Wait at most WAIT_MS for a child's end. */
static int wait_end(pid_t child)
{
	int pidfd = (int)syscall(SYS_pidfd_open, child, 0), status = 0;
	struct pollfd look = {pidfd, POLLIN, 0};

	if (poll(&look, 1, WAIT_MS) != 1) {
		kill(child, SIGKILL);
		waitpid(child, &status, 0);
		close(pidfd);
		fail_msg("%s: a child did not end within %d ms", now_testing, WAIT_MS);
	}
	close(pidfd);
	waitpid(child, &status, 0);
	return status;
}

/* The keeper's pid is in its file. strace may be the keeper's parent. */
static void gpoold_end(pid_t child)
{
	pid_t keeper = keeper_pid(directory), front = 0;
	int status;

	if (keeper <= 1)
		keeper = child; /* not written yet */
	/* Let the keeper kill the front. If the kill fails, the front remains. */
	if (!strcmp(scenario, "hanging"))
		front = keeper_child(keeper, "gpoold-front");
	if (front)
		kill(front, SIGSTOP);
	kill(keeper, SIGTERM);
	status = wait_end(child);
	if (front)
		kill(front, SIGKILL);
	if (!WIFEXITED(status) || WEXITSTATUS(status) > 1)
		fail_msg("%s: gpoold ended with status 0x%x", now_testing, status);
}

static void gpoold_stop(pid_t child)
{
	gpoold_end(child);
	if (access(directory, F_OK) == 0)
		fail_msg("%s: gpoold left '%s' behind", now_testing, directory);
	folder_remove();
}

/* A failed test must not affect the next one. */
static int clean_up(void **state)
{
	(void)state;
	/* strace does not terminate the processes that it traces when it ends itself, so both are terminated. */
	if (running && kill(running, 0) == 0) {
		char command[400];

		kill(running, SIGKILL);
		waitpid(running, NULL, 0);
		snprintf(command, sizeof(command), "kill -KILL $(cat %s/gpoold.pid 2>/dev/null) 2>/dev/null; rm -rf %s",
			directory, base);
		if (system(command) < 0)
			return 0;
	}
	running = 0;
	return 0;
}

/* All workers have ended, so no content is kept. Some of it may still be moving. */
static int look_for_spilled(struct gpool *pool)
{
	static uint8_t request[256], reply[MSG_BYTES_MAX];
	static struct msg_status_reply status;
	uint64_t kept = 1;

	for (int tries = 0; tries < 6000 && kept; tries++) {
		int length =
			msg_encode_status_request(&(struct msg_status_request){0}, 0, NULL, request, sizeof(request));

		length = pool_request(pool, request, (size_t)length, reply, sizeof(reply), 2000, NULL);
		if (length <= 0 || msg_decode_status_reply(&status, reply, (size_t)length))
			return -EAGAIN;
		kept = status.pools[0].spill_memory_bytes + status.pools[0].spill_file_bytes +
			status.pools[0].moving_pages;
		if (kept)
			poll(NULL, 0, 10);
	}
	if (kept)
		fail_msg("%s: %llu bytes are kept for blocks without an owner", now_testing, (unsigned long long)kept);
	return 0;
}

/* Let the agent check itself, then wait until all pages are free. Return 0, or the error that prevented the check. */
static int look_whether_whole(void)
{
	static uint8_t request[256], reply[MSG_BYTES_MAX];
	static struct msg_check_reply check;
	struct gpool_options options = GPOOL_OPTIONS_INIT;
	struct gpool *pool;
	int length, tries = 0, error;

	options.directory = directory;
	options.flags = GPOOL_OPEN_OBSERVER;
	options.timeout_ms = WAIT_MS;
	error = gpool_open(&options, &pool);
	if (error)
		return error;
	length = msg_encode_check_request(&(struct msg_check_request){0}, 0, NULL, request, sizeof(request));
	length = pool_request(pool, request, (size_t)length, reply, sizeof(reply), 2000, NULL);
	if (length > 0 && !msg_decode_check_reply(&check, reply, (size_t)length)) {
		if (check.found)
			fail_msg("%s: %u findings: %s", now_testing, check.found, check.findings[0].text);
		error = 0;
	} else {
		error = -EAGAIN;
	}
	if (!error)
		error = look_for_spilled(pool);
	/* The agent frees the pages of a worker that ended without a detach when it detects its death. */
	for (tries = 0; tries < 6000 && atomic_load(&pool_view(pool)->header->state_pages[PAGE_FREE]) != PAGES; tries++)
		poll(NULL, 0, 10);
	if (tries == 6000)
		fail_msg("%s: %u of %d pages are free", now_testing,
			atomic_load(&pool_view(pool)->header->state_pages[PAGE_FREE]), PAGES);
	gpool_close(pool);
	return error;
}

/*
 * The fault may hit the check itself, once in the agent and once in the front. A front that dies of it is restarted,
 * and strace injects the fault into each new front. As expected, no request is then answered, and only the free pages
 * are checked.
 */
static void pool_is_whole(void)
{
	int error = look_whether_whole();
	if (error && error != -EAGAIN)
		error = look_whether_whole();
	looks++;
	looks_without_check += error == -EAGAIN;
	if (error && error != -EAGAIN)
		fail_msg("%s: cannot look: %d (%s)", now_testing, error, gpool_strerror(error));
}

/* ---- faults in gpoold ---- */

/*
 * Run a round in its own process, because a session whose connection breaks keeps its pages until its process has died.
 * Return 0, or -1 if the round failed with a documented error.
 */
static int round_in_child(const char *name, int timeout_ms)
{
	char milliseconds[16];
	char *argv[] = {worker, "--round", directory, (char *)(uintptr_t)name, milliseconds, NULL};
	int status;

	snprintf(milliseconds, sizeof(milliseconds), "%d", timeout_ms);
	status = wait_end(spawn(argv));

	if (!WIFEXITED(status) || (WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != 3))
		fail_msg("%s: a worker ended with status 0x%x", now_testing, status);
	return WEXITSTATUS(status) == 0 ? 0 : -1;
}

/* Return true if the child has ended, without reaping it. */
static int has_ended(pid_t child)
{
	siginfo_t info = {0};

	return waitid(P_PID, (id_t)child, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == child;
}

/*
 * A gpoold whose call to remove or lock a file has failed leaves files behind. The next one must remove them. A fault
 * at a call site, unlike one that strace injects, happens only once, so the next gpoold has no fault.
 */
static void remains_are_removed(void)
{
	pid_t child;

	if (!getenv("GPOOL_FAULT_FILE"))
		fail_msg("%s: gpoold left '%s' behind", now_testing, directory);
	child = gpoold_start(NULL, 0);
	assert_int_equal(round_in_child(scenario, WAIT_MS), 0);
	gpoold_end(child);
	/* A folder that existed when gpoold started is kept, without files. */
	if (access(directory, F_OK) == 0 && rmdir(directory))
		fail_msg("%s: gpoold and the next one left files in '%s' behind", now_testing, directory);
}

/*
 * Return the scenario that must succeed after a fault: all of `base`, or one with a configuration of its own. Without a
 * fault, only the call sites that one scenario reaches are of interest.
 */
static const char *whole(void)
{
	static const char *const own[] = {
		"adapters", "domains", "driver", "hanging", "huge", "policies", "sets", "upgrade", "store"};
	const struct fault_file *sites = fault_file();

	if (!sites || !sites->trials)
		return scenario;
	for (size_t i = 0; i < sizeof(own) / sizeof(*own); i++)
		if (!strcmp(scenario, own[i]))
			return scenario;
	return "base";
}

/* Wait until a worker can attach. Return false if gpoold has ended instead. */
static bool serves(pid_t child)
{
	struct gpool_options options = options_of(directory, SOON_MS);
	struct gpool *pool;

	options.flags = GPOOL_OPEN_OBSERVER;
	for (int tries = 0; !has_ended(child); tries++) {
		if (gpool_open(&options, &pool) == 0) {
			gpool_close(pool);
			return true;
		}
		if (tries == WAIT_MS / SOON_MS)
			fail_msg("%s: gpoold neither serves nor ends", now_testing);
	}
	return false;
}

static void agent_fault(const struct fault *fault, int nth)
{
	pid_t child = gpoold_start(*fault->error ? fault : NULL, nth);
	int again, status;

	if (*fault->error)
		snprintf(now_testing, sizeof(now_testing), "agent: %s %s at call %d", fault->call, fault->error, nth);
	round_in_child(scenario, SOON_MS);
	if (fault_file() && fault_file()->trials && !fault_has_happened() &&
		!has_ended(child)) /* a wait was too short */
		round_in_child(scenario, LATE_MS);
	/* Each process counts its own calls, so the fault may hit a second round, but not a third. */
	again = has_ended(child) ? -1 : round_in_child(whole(), SOON_MS);
	if (again)
		again = serves(child) ? round_in_child(whole(), WAIT_MS) : -1;
	if (again) {
		/*
		 * gpoold has refused to start, or stopped. It must end by itself, log the cause, and leave nothing
		 * behind.
		 */
		status = wait_end(child);
		running = 0;
		/* 2: the configuration could not be read; 127: the failed call was the loader's */
		if (!WIFEXITED(status) ||
			(WEXITSTATUS(status) != 1 && WEXITSTATUS(status) != 2 && WEXITSTATUS(status) != 127))
			fail_msg("%s: later rounds fail, and gpoold ends with status 0x%x", now_testing, status);
		ended++;
	} else {
		served++;
		pool_is_whole();
		gpoold_end(child);
	}
	if (access(directory, F_OK) == 0)
		remains_are_removed();
	folder_remove();
}

/* ---- a fault at a call site ---- */

/* Receive the descriptor that gpoold sends to its service manager until it ends. */
static void manager_serve(int manager, pid_t child)
{
	struct pollfd look[] = {{manager, POLLIN, 0}, {(int)syscall(SYS_pidfd_open, child, 0), POLLIN, 0}};
	char text[512], control[CMSG_SPACE(sizeof(int))];

	while (poll(look, 2, WAIT_MS) > 0 && (look[0].revents || !look[1].revents)) {
		struct iovec part = {text, sizeof(text) - 1};
		struct msghdr message = {
			.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
		ssize_t length = recvmsg(manager, &message, MSG_CMSG_CLOEXEC);
		struct cmsghdr *entry = CMSG_FIRSTHDR(&message);
		int fd = -1;

		assert_true(length >= 0);
		text[length] = '\0';
		if (entry)
			memcpy(&fd, CMSG_DATA(entry), sizeof(fd));
		if (stored >= 0 && (strstr(text, "FDSTOREREMOVE=1") || strstr(text, "FDSTORE=1"))) {
			close(stored);
			stored = -1;
		}
		if (strstr(text, "FDSTORE=1"))
			stored = fd;
		else if (fd >= 0)
			close(fd);
	}
	close(look[1].fd);
}

static int manager_open(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int manager = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	snprintf(address.sun_path, sizeof(address.sun_path), "%s/gpool-faults-notify-%d", temporary_folder(),
		(int)getpid());
	unlink(address.sun_path);
	assert_int_equal(bind(manager, (const struct sockaddr *)&address, sizeof(address)), 0);
	setenv("NOTIFY_SOCKET", address.sun_path, 1);
	return manager;
}

/* Stop gpoold while this process is its service manager, which gets the pool's memory. */
static void gpoold_stop_storing(int manager, pid_t child)
{
	char path[160], text[32] = "";
	int fd;

	snprintf(path, sizeof(path), "%s/gpoold.pid", directory);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0 && read(fd, text, sizeof(text) - 1) > 0)
		kill((pid_t)atoi(text), SIGTERM);
	if (fd >= 0)
		close(fd);
	manager_serve(manager, child);
}

/*
 * Stop and start gpoold with its memory in the store, until a start without the fault has served. If a start is
 * refused, the next one begins with an empty pool, as if an administrator had discarded the memory.
 */
static void store_fault(void)
{
	int manager = manager_open();
	uint32_t good = 0;

	for (int starts = 0; good < 2; starts++) {
		pid_t child;
		int again;

		assert_true(starts < 6);
		child = gpoold_start(NULL, 0);
		again = round_in_child(scenario, SOON_MS);
		again = again && !has_ended(child) ? round_in_child(scenario, SOON_MS) : again;
		if (again && !serves(child)) {
			int status = wait_end(child);

			if (!WIFEXITED(status) || WEXITSTATUS(status) != 1)
				fail_msg("%s: gpoold ends with status 0x%x", now_testing, status);
			if (stored >= 0)
				close(stored);
			stored = -1;
			good = 0;
			continue;
		}
		if (again)
			assert_int_equal(round_in_child(scenario, WAIT_MS), 0);
		pool_is_whole();
		gpoold_stop_storing(manager, child);
		wait_end(child);
		good++;
	}
	running = 0;
	served++;
	close(manager);
	unlink(getenv("NOTIFY_SOCKET"));
	folder_remove();
}

/*
 * Let call sites of the worker fail, each in a process of its own, and all with one gpoold. After each fault another
 * worker must succeed.
 */
static void worker_sites(struct fault_file *sites)
{
	pid_t child = gpoold_start(NULL, 0);

	for (uint32_t i = 0; i < sites->trials; i++) {
		snprintf(now_testing, sizeof(now_testing), "scenario %s, trial %u", scenario, i);
		atomic_store(&sites->trial, i);
		round_in_child(scenario, SOON_MS);
		if (!fault_has_happened()) /* a wait was too short */
			round_in_child(scenario, LATE_MS);
		atomic_store(&sites->trial, sites->trials); /* no call fails */
		assert_int_equal(round_in_child(scenario, WAIT_MS), 0);
		pool_is_whole();
	}
	served++;
	gpoold_stop(child);
}

static void test_sites(void **state)
{
	static const struct fault site = {.call = "a call site", .error = ""};
	struct fault_file *sites = fault_file();

	(void)state;
	assert_non_null(sites);
	snprintf(now_testing, sizeof(now_testing), "scenario %s", scenario);
	causes_prepare(scenario);
	if (!strcmp(scenario, "store")) {
		setenv("GPOOL_NO_URING", "1", 1); /* the mover then reads and writes its file with threads */
		store_fault();
	} else if (sites->trials && sites->trial_of[0].site.module == FAULT_WORKER) {
		worker_sites(sites);
	} else {
		agent_fault(&site, 0);
	}
}

static int fail_at_sites(const char *name)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test_teardown(test_sites, clean_up)};

	scenario = name;
	if (getenv("GPOOL_FAULT_WORKER"))
		worker = getenv("GPOOL_FAULT_WORKER");
	if (cmocka_run_group_tests(tests, NULL, NULL))
		return 1;
	return ended ? TRIED_ENDED : looks_without_check ? TRIED_SERVED_WITHOUT_CHECK : TRIED_SERVED;
}

/* Inject one fault into the process for which it is meant. */
static const struct fault *the_fault;
static int the_nth;

static void test_one_fault(void **state)
{
	(void)state;
	agent_fault(the_fault, the_nth);
}

static int one_fault(char **arguments)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test_teardown(test_one_fault, clean_up)};
	const struct fault fault = {arguments[0], arguments[1], 0, 0, 1, *arguments[3] ? arguments[3] : NULL};

	the_fault = &fault;
	the_nth = atoi(arguments[2]);
	if (cmocka_run_group_tests(tests, NULL, NULL))
		return 1;
	return ended ? TRIED_ENDED : looks_without_check ? TRIED_SERVED_WITHOUT_CHECK : TRIED_SERVED;
}

struct trial {
	pid_t child;
	int output;
	char name[96];
};

static void trial_start(struct trial *trial, const struct fault *fault, int nth)
{
	char number[16];
	char *argv[] = {self, "--fault", (char *)fault->call, (char *)fault->error, number,
		(char *)(fault->environment ? fault->environment : ""), NULL};

	snprintf(number, sizeof(number), "%d", nth);
	snprintf(trial->name, sizeof(trial->name), "%s %s at call %d", fault->call, fault->error, nth);
	trial->output = memfd_create("output", MFD_CLOEXEC);
	assert_true(trial->output >= 0);
	trial->child = fork();
	if (trial->child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		dup2(trial->output, STDOUT_FILENO);
		dup2(trial->output, STDERR_FILENO);
		execv(self, argv);
		_exit(127);
	}
	assert_true(trial->child > 0);
}

static void trial_end(struct trial *trial, int status)
{
	char text[4096] = "";
	int code = WIFEXITED(status) ? WEXITSTATUS(status) : 1;

	served += code == TRIED_SERVED || code == TRIED_SERVED_WITHOUT_CHECK;
	looks += code == TRIED_SERVED || code == TRIED_SERVED_WITHOUT_CHECK;
	looks_without_check += code == TRIED_SERVED_WITHOUT_CHECK;
	ended += code == TRIED_ENDED;
	if (code < TRIED_SERVED || code > TRIED_ENDED) {
		if (pread(trial->output, text, sizeof(text) - 1, 0) < 0)
			text[0] = '\0';
		print_message("%s:\n%s\n", trial->name, text);
		failed++;
	}
	close(trial->output);
	trial->child = 0;
}

static void trials_wait(struct trial *trials)
{
	int status;
	pid_t child = waitpid(-1, &status, 0);

	assert_true(child > 0);
	for (int i = 0; i < AT_ONCE; i++)
		if (trials[i].child == child)
			trial_end(&trials[i], status);
}

static struct trial *trial_free(struct trial *trials)
{
	for (int i = 0; i < AT_ONCE; i++)
		if (!trials[i].child)
			return &trials[i];
	return NULL;
}

/* Return the stride: only every n-th fault is tried. */
static int thinned(void)
{
	return test_scale() < 1 ? (int)(1 / test_scale() + 0.5) : 1;
}

static void run_agent_faults(const struct fault *faults, size_t count)
{
	struct trial trials[AT_ONCE] = {0}, *trial;
	int number = 0;

	served = ended = failed = 0;
	for (size_t i = 0; i < count; i++)
		for (int nth = faults[i].from; nth <= faults[i].to; nth += faults[i].step) {
			if (number++ % thinned())
				continue;
			while (!(trial = trial_free(trials)))
				trials_wait(trials);
			trial_start(trial, &faults[i], nth);
		}
	for (int i = 0; i < AT_ONCE; i++)
		while (trials[i].child)
			trials_wait(trials);
	print_message("%d faults survived, %d ended gpoold in order\n", served, ended);
	assert_int_equal(failed, 0);
	assert_true(served > ended / 2);
}

static void test_agent_segments_and_descriptors(void **state)
{
	static const struct fault faults[] = {
		{"memfd_create", "ENFILE", 1, 12, 1, NULL},
		{"ftruncate", "ENOSPC", 1, 5, 1, NULL},
		{"eventfd2", "EMFILE", 1, 4, 1, NULL},
		{"fchmod", "EPERM", 1, 3, 1, NULL},
		{"openat", "EMFILE", 8, 80, 9, NULL},
		{"fcntl", "EINVAL", 1, 10, 3, NULL},
		{"mmap", "ENOMEM", 34, 70, 4, NULL},
	};

	(void)state;
	run_agent_faults(faults, sizeof(faults) / sizeof(*faults));
}

static void test_agent_sockets(void **state)
{
	static const struct fault faults[] = {
		{"accept4", "EMFILE", 1, 2, 1, NULL},
		{"getsockopt", "ENOMEM", 1, 4, 1, NULL},
		{"sendmsg", "ENOBUFS", 1, 31, 2, NULL},
		{"recvmsg", "ECONNRESET", 1, 25, 2, NULL},
		{"socketpair", "EMFILE", 1, 2, 1, NULL},
		{"bind", "EACCES", 1, 2, 1, NULL},
		{"listen", "EADDRINUSE", 1, 2, 1, NULL},
	};

	(void)state;
	run_agent_faults(faults, sizeof(faults) / sizeof(*faults));
}

static void test_agent_events_and_processes(void **state)
{
	static const struct fault faults[] = {
		{"epoll_ctl", "ENOMEM", 1, 15, 2, NULL},
		{"epoll_create1", "EMFILE", 1, 1, 1, NULL},
		{"epoll_wait", "EINTR", 1, 5, 2, NULL},
		{"timerfd_settime", "EINVAL", 1, 3, 1, NULL},
		{"signalfd4", "EMFILE", 1, 2, 1, NULL},
		{"pipe2", "EMFILE", 1, 2, 1, NULL},
		{"clone", "EAGAIN", 1, 6, 1, NULL},
		{"wait4", "EINTR", 1, 5, 2, NULL},
		{"poll", "EINTR", 1, 9, 2, NULL},
		{"prctl", "EPERM", 1, 3, 1, NULL},
		{"seccomp", "EINVAL", 1, 3, 1, NULL},
		{"close_range", "ENOSYS", 1, 1, 1, NULL},
		{"mkdir", "EACCES", 1, 2, 1, NULL},
		{"flock", "EINTR", 1, 1, 1, NULL},
		{"getrandom", "EAGAIN", 1, 3, 1, NULL},
	};

	(void)state;
	run_agent_faults(faults, sizeof(faults) / sizeof(*faults));
}

static void test_mover_and_tiers(void **state)
{
	static const struct fault faults[] = {
		{"io_uring_setup", "EPERM", 1, 2, 1, NULL},
		{"io_uring_register", "ENOMEM", 1, 3, 1, NULL},
		{"io_uring_enter", "EAGAIN", 1, 3, 1, NULL},
		{"fallocate", "EOPNOTSUPP", 1, 2, 1, NULL},
		{"pwrite64", "ENOSPC", 1, 4, 1, "GPOOL_NO_URING"},
		{"pwrite64", "EIO", 1, 1, 1, "GPOOL_NO_URING"},
		{"pread64", "EIO", 1, 4, 1, "GPOOL_NO_URING"},
		/*
		 * The stream and the thread of the first lane are the 1st and the 5th call. Without them no mover ever
		 * serves.
		 */
		{"clone3", "EAGAIN", 1, 4, 1, NULL},
		{"clone3", "EAGAIN", 5, 8, 1, "GPOOL_NO_URING"},
		{"mlock", "ENOMEM", 1, 1, 1, NULL},
	};

	(void)state;
	run_agent_faults(faults, sizeof(faults) / sizeof(*faults));
}

/* ---- faults in the worker ---- */

static void worker_fault(const struct fault *fault, int nth)
{
	char trace[64], inject[128];
	char *traced[] = {"strace", "-f", "-qq", "-o", "/dev/null", "-e", trace, "-e", inject, self, "--round",
		directory, "base", "1500", NULL};
	int status;

	snprintf(now_testing, sizeof(now_testing), "worker: %s %s at call %d", fault->call, fault->error, nth);
	snprintf(trace, sizeof(trace), "trace=%s", fault->call);
	inject_text(inject, sizeof(inject), fault, nth);
	status = wait_end(spawn(traced));
	/* 0: the round succeeded; 3: a documented error; 127 and others: the loader could not start the worker */
	if (WIFSIGNALED(status) || (WIFEXITED(status) && WEXITSTATUS(status) == 4))
		fail_msg("%s: the worker ended with status 0x%x", now_testing, status);
}

static void test_worker_faults(void **state)
{
	static const struct fault faults[] = {
		{"socket", "EMFILE", 1, 2, 1, NULL},
		{"connect", "ECONNREFUSED", 1, 2, 1, NULL},
		{"sendmsg", "ENOBUFS", 1, 14, 1, NULL},
		{"recvmsg", "ECONNRESET", 1, 14, 1, NULL},
		{"fcntl", "ENOMEM", 1, 8, 1, NULL},
		{"mmap", "ENOMEM", 30, 90, 4, NULL},
		{"mprotect", "ENOMEM", 8, 30, 2, NULL},
		{"madvise", "EINVAL", 1, 6, 1, NULL},
		{"munmap", "EINVAL", 1, 8, 2, NULL},
		{"write", "EAGAIN", 1, 3, 1, NULL},
		{"memfd_create", "EMFILE", 1, 1, 1, NULL},
		{"fchmod", "EPERM", 1, 1, 1, NULL},
		{"getrandom", "EAGAIN", 1, 2, 1, NULL},
		{"clone3", "EAGAIN", 1, 3, 1, NULL},
	};
	pid_t child = gpoold_start(NULL, 0);

	(void)state;
	assert_int_equal(round_in_child("base", WAIT_MS), 0);
	for (size_t i = 0; i < sizeof(faults) / sizeof(*faults); i++) {
		for (int nth = faults[i].from; nth <= faults[i].to; nth += faults[i].step * thinned())
			worker_fault(&faults[i], nth);
		assert_int_equal(round_in_child("base", WAIT_MS), 0);
		pool_is_whole();
	}
	gpoold_stop(child);
	/* Most checks must have been complete: a front that never answers must not pass. */
	assert_true(looks_without_check * 2 < looks);
}

/* Each kind of driver call fails at its first and at later uses, in an attached worker, or during the attach. */
static void test_driver_faults(void **state)
{
	static const enum gpu_call kinds[] = {
		GPU_CALL_IMPORT, GPU_CALL_RESERVE, GPU_CALL_MAP, GPU_CALL_ACCESS, GPU_CALL_UNMAP, GPU_CALL_UNRESERVE};
	pid_t child = gpoold_start(NULL, 0);

	(void)state;
	for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
		for (uint64_t nth = 1; nth <= 20; nth += nth < 4 ? 1 : 5) {
			struct gpool_options options = GPOOL_OPTIONS_INIT;
			struct gpool_block block;
			struct gpool *pool;
			int error;

			options.directory = directory;
			options.timeout_ms = WAIT_MS;
			error = gpool_open(&options, &pool);
			assert_int_equal(error, 0);
			gpu_fault_set(pool->gpu, kinds[i], nth, -ENOMEM);
			for (int tries = 0; tries < 40; tries++) {
				error = gpool_alloc(pool, 1 + (uint32_t)tries % 9, NULL, &block);
				if (error && error != -ENOMEM && error != -ENOSPC)
					fail_msg("driver call %s, use %d: gpool_alloc() says %d",
						gpu_call_name(kinds[i]), (int)nth, error);
				if (!error)
					assert_int_equal(fill_and_verify(pool, &block, nth), 0);
				if (!error && tries % 3 == 0)
					assert_int_equal(gpool_free(pool, &block), 0);
			}
			gpool_close(pool);
			pool_is_whole();
		}
	/* Make gpool_open() itself fail, at the next device that this process opens. */
	for (int nth = 1; nth <= 2; nth++) {
		gpu_fault_set(NULL, GPU_CALL_OPEN, 1, -ENODEV);
		assert_int_equal(round_of("base", directory, 3000), -ENODEV);
		assert_int_equal(round_of("base", directory, 3000), 0);
	}
	pool_is_whole();
	gpoold_stop(child);
}

static int have_strace(void)
{
	char *argv[] = {"strace", "-qq", "-o", "/dev/null", "-e", "trace=getpid", "true", NULL};
	int status = wait_end(spawn(argv));

	return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_driver_faults, clean_up),
		cmocka_unit_test_teardown(test_agent_segments_and_descriptors, clean_up),
		cmocka_unit_test_teardown(test_agent_sockets, clean_up),
		cmocka_unit_test_teardown(test_agent_events_and_processes, clean_up),
		cmocka_unit_test_teardown(test_mover_and_tiers, clean_up),
		cmocka_unit_test_teardown(test_worker_faults, clean_up),
	};
	ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
	char *slash;

	if (length < 0)
		return 1;
	self[length] = '\0';
	if (argc == 5 && !strcmp(argv[1], "--round")) {
		int error = round_of(argv[3], argv[2], atoi(argv[4]));

		if (!documented(error))
			fprintf(stderr, "the worker got %d (%s)\n", error, gpool_strerror(error));
		return error == 0 ? 0 : documented(error) ? 3 : 4;
	}
	snprintf(gpoold, sizeof(gpoold), "%s", self);
	slash = strrchr(gpoold, '/');
	snprintf(slash, sizeof(gpoold) - (size_t)(slash - gpoold), "/../gpoold");
	if (getenv("GPOOLD"))
		snprintf(gpoold, sizeof(gpoold), "%s", getenv("GPOOLD"));
	if (argc == 6 && !strcmp(argv[1], "--fault"))
		return one_fault(argv + 2);
	if (argc == 3 && !strcmp(argv[1], "--sites"))
		return fail_at_sites(argv[2]);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	puts("the sanitizers' own system calls would be made to fail, and leaks cannot be looked for under strace");
	return 77;
#endif
	if (!have_strace()) {
		puts("strace is missing or may not trace here");
		return 77;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
