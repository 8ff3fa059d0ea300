/*
 * Goal: every system call on the way of start, attach, lease, control and death may fail, in the agent or in the worker, and then:
 * nobody crashes, the error is one that the call documents, nothing is lost, and the next try works.
 * Method: strace makes the n-th call of a kind fail in a real gpoold or in a real worker; driver calls fail through the back end's
 * own fault plan. After each fault a clean worker does the whole round, the pool is checked and is all free, and gpoold ends in
 * order, with nothing left behind.
 */
#include "client/gpool.h"
#include "client/pool.h"
#include "client/request.h"
#include "cuda/gpu.h"
#include "proto/codec.h"
#include "shm/pool_segment.h"

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
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { PAGES = 64, WAIT_MS = 20000 };

struct fault {
	const char *call;
	const char *error;
	int from, to; /* which invocations, in turn */
	int step;
};

static char self[512], gpoold[512], directory[128];
static char now_testing[160] = "no fault";
static int looks, looks_without_check, served, ended;

/* What a public call may answer when the system says no. */
static int documented(int error)
{
	static const int codes[] = { 0, -ENOSPC, -EDQUOT, -ENOMEM, -EPIPE, -ENOENT, -ETIMEDOUT, -EACCES, -ENXIO, -EUSERS, -EPROTO,
		-ENODEV, -EMFILE, -ESTALE, -EIO };

	for (size_t i = 0; i < sizeof(codes) / sizeof(*codes); i++)
		if (codes[i] == error)
			return 1;
	return 0;
}

/* ---- what a worker does ---- */

static int fill_and_verify(struct gpool *pool, const struct gpool_block *block, uint64_t seed)
{
	uint64_t address, *words;
	size_t count = block->page_count * gpool_page_bytes(pool) / sizeof(*words);
	int error = gpool_address(pool, block, &address);

	if (error)
		return error;
	words = (uint64_t *)(uintptr_t)address;
	for (size_t i = 0; i < count; i += 512)
		words[i] = seed + i;
	for (size_t i = 0; i < count; i += 512)
		if (words[i] != seed + i)
			return -EBADMSG;
	return 0;
}

/* Allocate in a way that needs the agent, a stitched block among it; pin, unpin, free. The first error met. */
static int round_of_work(const char *where, int timeout_ms)
{
	struct gpool_options options = GPOOL_OPTIONS_INIT;
	struct gpool_block blocks[PAGES], large;
	struct gpool *pool;
	uint32_t count = 0;
	int error;

	options.directory = where;
	options.timeout_ms = timeout_ms;
	error = gpool_open(&options, &pool);
	if (error)
		return error;
	while (count < PAGES && !(error = gpool_alloc(pool, 1, NULL, &blocks[count])))
		count++;
	for (uint32_t i = 0; i < count && !error; i++)
		error = fill_and_verify(pool, &blocks[i], i);
	/* Every second page goes, so that a long block must be stitched. */
	for (uint32_t i = 0; i < count && !error; i += 2)
		error = gpool_free(pool, &blocks[i]);
	if (!error)
		error = gpool_alloc(pool, PAGES / 4, NULL, &large);
	if (!error)
		error = fill_and_verify(pool, &large, 1000);
	if (!error)
		error = gpool_unpin(pool, &large);
	if (!error)
		error = gpool_pin(pool, &large);
	if (!error)
		error = gpool_free(pool, &large);
	gpool_close(pool);
	return error;
}

/* ---- gpoold, under strace or not ---- */

static pid_t spawn(char *const argv[])
{
	pid_t child = fork();

	if (child == 0) {
		int null = open("/dev/null", O_WRONLY);

		dup2(null, STDERR_FILENO);
		dup2(null, STDOUT_FILENO);
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

static pid_t running; /* what a failed test leaves */

static pid_t gpoold_start(const struct fault *fault, int nth)
{
	char trace[64], inject[128], pool[128];
	char *plain[] = { gpoold, "--dir", directory, "--pool", pool, NULL };
	char *traced[] = { "strace", "-f", "-qq", "-o", "/dev/null", "-e", trace, "-e", inject, gpoold, "--dir", directory, "--pool", pool,
		NULL };

	snprintf(directory, sizeof(directory), "/tmp/gpool-faults-%d", (int)getpid());
	snprintf(pool, sizeof(pool), "name=p0,backend=host,size=%d pages,page_size=512KB,reserved=0", PAGES);
	if (fault) {
		snprintf(trace, sizeof(trace), "trace=%s", fault->call);
		inject_text(inject, sizeof(inject), fault, nth);
	}
	return running = spawn(fault ? traced : plain);
}

/* Wait for a child's end, no longer than WAIT_MS. */
static int wait_end(pid_t child)
{
	int pidfd = (int)syscall(SYS_pidfd_open, child, 0), status = 0;
	struct pollfd look = { pidfd, POLLIN, 0 };

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

/* The keeper's pid stands in its file; strace may stand between. */
static void gpoold_stop(pid_t child)
{
	char path[160], text[32] = "";
	pid_t keeper = child;
	int fd, status;

	snprintf(path, sizeof(path), "%s/gpoold.pid", directory);
	fd = open(path, O_RDONLY);
	if (fd >= 0) {
		if (read(fd, text, sizeof(text) - 1) > 0)
			keeper = atoi(text) > 1 ? (pid_t)atoi(text) : child; /* it may not have got so far */
		close(fd);
	}
	kill(keeper, SIGTERM);
	status = wait_end(child);
	if (!WIFEXITED(status) || WEXITSTATUS(status) > 1)
		fail_msg("%s: gpoold ended with status 0x%x", now_testing, status);
	if (access(directory, F_OK) == 0)
		fail_msg("%s: gpoold left '%s' behind", now_testing, directory);
}

/* A test that failed half-way must not disturb the next. */
static int clean_up(void **state)
{
	(void)state;
	/* strace passes its own end on to what it traces only when it is asked to: so both are asked. */
	if (running && kill(running, 0) == 0) {
		char command[400];

		kill(running, SIGKILL);
		waitpid(running, NULL, 0);
		snprintf(command, sizeof(command), "kill -KILL $(cat %s/gpoold.pid 2>/dev/null) 2>/dev/null; rm -rf %s", directory, directory);
		if (system(command) < 0)
			return 0;
	}
	running = 0;
	return 0;
}

/* Ask the agent to check itself, then wait until all pages are free. 0, or the error that kept it from asking. */
static int look_whether_whole(void)
{
	static uint8_t request[256], reply[MSG_BYTES_MAX];
	static struct msg_check_reply check;
	struct gpool_options options = GPOOL_OPTIONS_INIT;
	struct gpool *pool;
	int length, tries = 0, error;

	options.directory = directory;
	options.flags = GPOOL_OPEN_OBSERVER;
	options.timeout_ms = 5000;
	error = gpool_open(&options, &pool);
	if (error)
		return error;
	length = msg_encode_check_request(&(struct msg_check_request){ 0 }, 0, NULL, request, sizeof(request));
	length = pool_request(pool, request, (size_t)length, reply, sizeof(reply), 700, NULL);
	if (length > 0 && !msg_decode_check_reply(&check, reply, (size_t)length)) {
		if (check.found)
			fail_msg("%s: %u findings: %s", now_testing, check.found, check.findings[0].text);
		error = 0;
	} else {
		error = -EAGAIN;
	}
	/* A worker that ended without a detach is cleaned up when its death is seen; its end was waited for. */
	for (tries = 0; tries < 200 && atomic_load(&pool_view(pool)->header->state_pages[PAGE_FREE]) != PAGES; tries++)
		poll(NULL, 0, 10);
	if (tries == 200)
		fail_msg("%s: %u of %d pages are free", now_testing, atomic_load(&pool_view(pool)->header->state_pages[PAGE_FREE]), PAGES);
	gpool_close(pool);
	return error;
}

/*
 * The look itself may meet the fault, once in the agent and once in the front. A front is started again when it dies of it, and
 * strace lets each new one meet the fault anew: then nobody answers requests, as it should be, and the free pages must do.
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

/* ---- the agent's side ---- */

/*
 * A round in a process of its own, since a session whose connection breaks keeps its pages until its process is dead. 0, or -1: it
 * failed with a documented error.
 */
static int round_in_child(void)
{
	char *argv[] = { self, "--round", directory, NULL };
	int status = wait_end(spawn(argv));

	if (!WIFEXITED(status) || (WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != 3))
		fail_msg("%s: a worker ended with status 0x%x", now_testing, status);
	return WEXITSTATUS(status) == 0 ? 0 : -1;
}

/* A look, which leaves its status to be read. */
static int has_ended(pid_t child)
{
	siginfo_t info = { 0 };

	return waitid(P_PID, (id_t)child, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == child;
}

static void agent_fault(const struct fault *fault, int nth)
{
	pid_t child = gpoold_start(fault, nth);
	int again, status;

	snprintf(now_testing, sizeof(now_testing), "agent: %s %s at call %d", fault->call, fault->error, nth);
	round_in_child();
	/* Each process has its own n-th call, so a second round may meet one more fault; a third must not. */
	again = has_ended(child) ? -1 : round_in_child();
	if (again)
		again = has_ended(child) ? -1 : round_in_child();
	if (again) {
		/* It refused to start, or stopped: then it ends by itself, says so, and leaves nothing. */
		status = wait_end(child);
		running = 0;
		/* 127: it was the loader's own call */
		if (!WIFEXITED(status) || (WEXITSTATUS(status) != 1 && WEXITSTATUS(status) != 127))
			fail_msg("%s: later rounds fail, and gpoold ends with status 0x%x", now_testing, status);
		if (access(directory, F_OK) == 0)
			fail_msg("%s: gpoold left '%s' behind", now_testing, directory);
		ended++;
		return;
	}
	served++;
	pool_is_whole();
	gpoold_stop(child);
}

static void run_agent_faults(const struct fault *faults, size_t count)
{
	served = ended = 0;
	for (size_t i = 0; i < count; i++)
		for (int nth = faults[i].from; nth <= faults[i].to; nth += faults[i].step)
			agent_fault(&faults[i], nth);
	print_message("%d faults survived, %d ended gpoold in order\n", served, ended);
	assert_true(served > ended / 2);
}

static void test_agent_segments_and_descriptors(void **state)
{
	static const struct fault faults[] = {
		{ "memfd_create", "ENFILE", 1, 5, 1 },
		{ "ftruncate", "ENOSPC", 1, 5, 1 },
		{ "eventfd2", "EMFILE", 1, 3, 1 },
		{ "fcntl", "EINVAL", 1, 10, 3 },
		{ "mmap", "ENOMEM", 34, 70, 4 },
	};

	(void)state;
	run_agent_faults(faults, sizeof(faults) / sizeof(*faults));
}

static void test_agent_sockets(void **state)
{
	static const struct fault faults[] = {
		{ "accept4", "EMFILE", 1, 2, 1 },
		{ "getsockopt", "ENOMEM", 1, 4, 1 },
		{ "sendmsg", "ENOBUFS", 1, 13, 2 },
		{ "recvmsg", "ECONNRESET", 1, 9, 2 },
		{ "socketpair", "EMFILE", 1, 2, 1 },
		{ "bind", "EACCES", 1, 2, 1 },
		{ "listen", "EADDRINUSE", 1, 2, 1 },
	};

	(void)state;
	run_agent_faults(faults, sizeof(faults) / sizeof(*faults));
}

static void test_agent_events_and_processes(void **state)
{
	static const struct fault faults[] = {
		{ "epoll_ctl", "ENOMEM", 1, 15, 2 },
		{ "epoll_create1", "EMFILE", 1, 1, 1 },
		{ "epoll_wait", "EINTR", 1, 5, 2 },
		{ "timerfd_settime", "EINVAL", 1, 3, 1 },
		{ "signalfd4", "EMFILE", 1, 2, 1 },
		{ "pipe2", "EMFILE", 1, 2, 1 },
		{ "clone", "EAGAIN", 1, 4, 1 },
		{ "mkdir", "EACCES", 1, 2, 1 },
		{ "flock", "EINTR", 1, 1, 1 },
		{ "getrandom", "EAGAIN", 1, 3, 1 },
	};

	(void)state;
	run_agent_faults(faults, sizeof(faults) / sizeof(*faults));
}

/* ---- the worker's side ---- */

static void worker_fault(const struct fault *fault, int nth)
{
	char trace[64], inject[128];
	char *traced[] = { "strace", "-f", "-qq", "-o", "/dev/null", "-e", trace, "-e", inject, self, "--round", directory, NULL };
	int status;

	snprintf(now_testing, sizeof(now_testing), "worker: %s %s at call %d", fault->call, fault->error, nth);
	snprintf(trace, sizeof(trace), "trace=%s", fault->call);
	inject_text(inject, sizeof(inject), fault, nth);
	status = wait_end(spawn(traced));
	/* 0: it went well all the same; 3: a documented error; 127 and others: the loader could not even start it */
	if (WIFSIGNALED(status) || (WIFEXITED(status) && WEXITSTATUS(status) == 4))
		fail_msg("%s: the worker ended with status 0x%x", now_testing, status);
}

static void test_worker_faults(void **state)
{
	static const struct fault faults[] = {
		{ "socket", "EMFILE", 1, 2, 1 },
		{ "connect", "ECONNREFUSED", 1, 2, 1 },
		{ "sendmsg", "ENOBUFS", 1, 4, 1 },
		{ "recvmsg", "ECONNRESET", 1, 4, 1 },
		{ "fcntl", "ENOMEM", 1, 8, 1 },
		{ "mmap", "ENOMEM", 30, 90, 4 },
		{ "mprotect", "ENOMEM", 8, 30, 2 },
		{ "madvise", "EINVAL", 1, 6, 1 },
		{ "munmap", "EINVAL", 1, 8, 2 },
		{ "write", "EAGAIN", 1, 3, 1 },
	};
	pid_t child = gpoold_start(NULL, 0);

	(void)state;
	assert_int_equal(round_in_child(), 0);
	for (size_t i = 0; i < sizeof(faults) / sizeof(*faults); i++) {
		for (int nth = faults[i].from; nth <= faults[i].to; nth += faults[i].step)
			worker_fault(&faults[i], nth);
		assert_int_equal(round_in_child(), 0);
		pool_is_whole();
	}
	gpoold_stop(child);
	/* Most looks were complete: what follows from "nobody answers" must not hide a front that is simply broken. */
	assert_true(looks_without_check * 2 < looks);
}

/* Each kind of driver call fails at its first and at later uses, in a worker that is attached, or while it attaches. */
static void test_driver_faults(void **state)
{
	static const enum gpu_call kinds[] = { GPU_CALL_IMPORT, GPU_CALL_RESERVE, GPU_CALL_MAP, GPU_CALL_ACCESS, GPU_CALL_UNMAP,
		GPU_CALL_UNRESERVE };
	pid_t child = gpoold_start(NULL, 0);

	(void)state;
	for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
		for (uint64_t nth = 1; nth <= 20; nth += nth < 4 ? 1 : 5) {
			struct gpool_options options = GPOOL_OPTIONS_INIT;
			struct gpool_block block;
			struct gpool *pool;
			int error;

			options.directory = directory;
			options.timeout_ms = 5000;
			error = gpool_open(&options, &pool);
			assert_int_equal(error, 0);
			gpu_fault_set(pool->gpu, kinds[i], nth, -ENOMEM);
			for (int tries = 0; tries < 40; tries++) {
				error = gpool_alloc(pool, 1 + (uint32_t)tries % 9, NULL, &block);
				if (error && error != -ENOMEM && error != -ENOSPC)
					fail_msg("driver call %s, use %d: gpool_alloc() says %d", gpu_call_name(kinds[i]), (int)nth, error);
				if (!error)
					assert_int_equal(fill_and_verify(pool, &block, nth), 0);
				if (!error && tries % 3 == 0)
					assert_int_equal(gpool_free(pool, &block), 0);
			}
			gpool_close(pool);
			pool_is_whole();
		}
	/* gpool_open() itself: the next device that this process opens. */
	for (int nth = 1; nth <= 2; nth++) {
		gpu_fault_set(NULL, GPU_CALL_OPEN, 1, -ENODEV);
		assert_int_equal(round_of_work(directory, 3000), -ENODEV);
		assert_int_equal(round_of_work(directory, 3000), 0);
	}
	pool_is_whole();
	gpoold_stop(child);
}

static int have_strace(void)
{
	char *argv[] = { "strace", "-qq", "-o", "/dev/null", "-e", "trace=getpid", "true", NULL };
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
		cmocka_unit_test_teardown(test_worker_faults, clean_up),
	};
	ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
	char *slash;

	if (length < 0)
		return 1;
	self[length] = '\0';
	if (argc == 3 && !strcmp(argv[1], "--round")) {
		int error = round_of_work(argv[2], 1500);

		if (!documented(error))
			fprintf(stderr, "the worker got %d (%s)\n", error, gpool_strerror(error));
		return error == 0 ? 0 : documented(error) ? 3 : 4;
	}
	snprintf(gpoold, sizeof(gpoold), "%s", self);
	slash = strrchr(gpoold, '/');
	snprintf(slash, sizeof(gpoold) - (size_t)(slash - gpoold), "/../gpoold");
	if (getenv("GPOOLD"))
		snprintf(gpoold, sizeof(gpoold), "%s", getenv("GPOOLD"));
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
