/*
 * test_hot_path.c - a worker that has warmed up makes no driver call and no system call.
 *
 * Method: a child runs this program under strace. It attaches, warms up, and then allocates, pins, unpins and frees a
 * million times between two calls of getppid(), which mark the interval. strace may list no call between them from any
 * thread, and the back end's count of calls must not change. The test is skipped if strace is missing or may not trace.
 *
 * Requirements: U5.
 */
#include "client/gpool.h"
#include "cuda/gpu.h"
#include "tests/lib/harness.h"
#include "tests/lib/scale.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SKIP = 77, ROUNDS = 1000000, WARM_UP = 20000, HELD = 200, SHOWN = 20 };

static long rounds(void)
{
	return (long)(ROUNDS * (test_scale() < 1 ? test_scale() : 1));
}

/* ---- the worker ---- */

/* Allocate, use and free one block; occasionally use one block of many pages, or many blocks at the same time. */
static int round_trip(struct gpool *pool, uint32_t page_count)
{
	struct gpool_block block;
	int error = gpool_alloc(pool, page_count, NULL, &block);

	if (error)
		return error;
	error |= gpool_unpin(pool, &block);
	error |= gpool_pin(pool, &block);
	error |= gpool_touch(pool, &block);
	error |= gpool_free(pool, &block);
	return error ? -EIO : 0;
}

static int hold_many(struct gpool *pool)
{
	static struct gpool_block blocks[HELD];
	int error = 0;

	for (int i = 0; i < HELD && !error; i++)
		error = gpool_alloc(pool, 1, NULL, &blocks[i]);
	for (int i = 0; i < HELD && !error; i++)
		error = gpool_free(pool, &blocks[i]);
	return error;
}

static int work(struct gpool *pool, long count)
{
	int error = 0;

	for (long i = 0; i < count && !error; i++) {
		error = round_trip(pool, 1);
		if (!error && i % 16 == 0)
			error = round_trip(pool, 100);
		if (!error && i % 1024 == 0)
			error = hold_many(pool);
	}
	return error;
}

static int worker(const char *directory)
{
	struct gpool_options options = GPOOL_OPTIONS_INIT;
	struct gpool *pool;
	uint64_t before, after;
	int error;

	options.directory = directory;
	options.timeout_ms = AWAIT_MS;
	error = gpool_open(&options, &pool);
	if (!error)
		error = work(pool, WARM_UP);
	if (error) {
		fprintf(stderr, "the worker does not come up: %s\n", gpool_strerror(error));
		return 1;
	}
	before = gpu_thread_calls_total();
	syscall(SYS_getppid);
	error = work(pool, rounds());
	syscall(SYS_getppid);
	after = gpu_thread_calls_total();
	if (error)
		fprintf(stderr, "a call failed: %s\n", gpool_strerror(error));
	if (after != before || !before)
		fprintf(stderr, "driver calls: %llu before, %llu after\n", (unsigned long long)before,
			(unsigned long long)after);
	gpool_close(pool);
	return error || after != before || !before;
}

/* ---- the test ---- */

static bool strace_there(void)
{
	pid_t pid = fork();
	int status = 1, null;

	if (pid == 0) {
		null = open("/dev/null", O_RDWR | O_CLOEXEC);
		dup2(null, STDOUT_FILENO);
		dup2(null, STDERR_FILENO);
		execlp("strace", "strace", "-f", "-o", "/dev/null", "/bin/true", (char *)NULL);
		_exit(127);
	}
	return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
}

static int run_traced(const char *trace, const char *directory)
{
	char self[PATH_MAX];
	ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
	pid_t pid;
	int status = 1;

	if (length < 0)
		return 1;
	self[length] = '\0';
	pid = fork();
	if (pid == 0) {
		/* AddressSanitizer's search for leaks uses ptrace too. */
		setenv("ASAN_OPTIONS", "detect_leaks=0", 1);
		execlp("strace", "strace", "-f", "-o", trace, self, "--worker", directory, (char *)NULL);
		_exit(127);
	}
	return pid > 0 && waitpid(pid, &status, 0) == pid ? status : 1;
}

/*
 * Return the number of system calls between the two marks, or -1 if the marks are missing. The first few calls are
 * printed.
 */
static int count_between(const char *trace)
{
	char line[512];
	int marks = 0, calls = 0;
	FILE *file = fopen(trace, "re");

	while (file && fgets(line, sizeof(line), file)) {
		if (strstr(line, "getppid(")) {
			marks++;
		} else if (marks == 1) {
			if (calls++ < SHOWN)
				fprintf(stderr, "on the hot path: %s", line);
		}
	}
	if (file)
		fclose(file);
	return marks == 2 ? calls : -1;
}

int main(int argc, char **argv)
{
	/* The lease keeps the size that the worker needs, so that the steady state is measured. */
	static const char *const arguments[] = {"--pool", "name=p0,backend=host,size=1GiB,page_size=512KB,reserved=0",
		"--set", "lease.keep_pages=2048", "--set", "lease.idle=1h", NULL};
	struct harness harness;
	char trace[96];
	int status, calls;

	if (argc == 3 && !strcmp(argv[1], "--worker"))
		return worker(argv[2]);
	if (!strace_there()) {
		printf("strace is not installed, or may not trace here\n");
		return SKIP;
	}
	harness_start(&harness, arguments);
	snprintf(trace, sizeof(trace), "%s/trace", harness.base);
	status = run_traced(trace, harness.directory);
	calls = count_between(trace);
	if (status)
		fprintf(stderr, "the worker ended with status %x\n", (unsigned)status);
	if (calls < 0)
		fprintf(stderr, "the trace does not show the marks\n");
	printf("%d system calls in %ld rounds\n", calls, rounds());
	return harness_stop(&harness) || status || calls ? 1 : 0;
}
