/* bench_life.c - the start and the end of a worker, in a pool of 40,960 pages (20 GiB, none of which is written). */
#include "tools/bench/bench.h"

#include "tools/lib/dependent.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { POOL_PAGES = 40960, PATIENCE_MS = 60000 };

/* ---- attach ---- */

/* In the child: attach and allocate. Return: 0 and the time, or negative errno. */
static int attach_and_allocate(const struct bench *bench, double *ms)
{
	uint64_t begin = monotonic_ns();
	struct gpool_block block;
	struct gpool *pool;
	int error;

	error = daemon_open(bench, 0, &pool);
	if (!error)
		error = gpool_alloc(pool, 1, NULL, &block);
	*ms = (double)(monotonic_ns() - begin) / 1e6;
	if (!error)
		gpool_close(pool);
	return error;
}

static int sample_attach(struct bench *bench)
{
	int ends[2], error, status;
	double ms = 0;
	pid_t pid;

	if (pipe(ends) < 0)
		return -errno;
	pid = dependent_fork(SIGKILL);
	if (pid == 0) {
		error = attach_and_allocate(bench, &ms);
		if (!error && write(ends[1], &ms, sizeof(ms)) != sizeof(ms))
			error = -EIO;
		_exit(-error);
	}
	close(ends[1]);
	error = pid < 0 ? -errno : read(ends[0], &ms, sizeof(ms)) == sizeof(ms) ? 0 : -EPIPE;
	close(ends[0]);
	if (pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status))
		error = -WEXITSTATUS(status);
	if (!error)
		bench_sample(bench, FIGURE_attach_40960, ms);
	return error;
}

int bench_attach(struct bench *bench)
{
	int error;

	error = daemon_start(bench, POOL_PAGES, NULL);
	if (error)
		return error;
	for (unsigned run = 0; run < bench->runs && !error; run++) {
		error = sample_attach(bench);
		if (!error)
			error = daemon_wait_free(bench, NULL);
	}
	if (error)
		bench_complain(bench, error, "a worker did not start");
	daemon_stop(bench);
	return error;
}

/* ---- death ---- */

/* In the child: allocate every page, one per block, report that, and wait to be killed. */
static _Noreturn void take_everything(const struct bench *bench, int say)
{
	struct gpool *pool;
	int error;

	error = daemon_open(bench, 0, &pool);
	for (unsigned i = 0; i < POOL_PAGES && !error; i++) {
		struct gpool_block block;

		error = gpool_alloc(pool, 1, NULL, &block);
	}
	if (write(say, &error, sizeof(error)) == sizeof(error))
		for (;;)
			pause();
	_exit(1);
}

/*
 * Kill the child, which has all pages. Measure the time until the kernel reports its end, and until its session has
 * ended.
 */
static int time_death(struct bench *bench, pid_t pid)
{
	struct pollfd ended = {.events = POLLIN};
	uint64_t killed, reported, freed;
	int error;

	ended.fd = (int)syscall(SYS_pidfd_open, pid, 0);
	if (ended.fd < 0)
		return -errno;
	killed = monotonic_ns();
	kill(pid, SIGKILL);
	error = poll(&ended, 1, PATIENCE_MS) == 1 ? 0 : -ETIMEDOUT;
	reported = monotonic_ns();
	if (!error)
		error = daemon_wait_free(bench, &freed);
	if (!error) {
		bench_sample(bench, FIGURE_death_40960, (double)(freed - reported) / 1e6);
		bench_sample(bench, FIGURE_death_40960_total, (double)(freed - killed) / 1e6);
	}
	close(ended.fd);
	return error;
}

static int sample_death(struct bench *bench)
{
	int ends[2], error, said;
	pid_t pid;

	if (pipe(ends) < 0)
		return -errno;
	pid = dependent_fork(SIGKILL);
	if (pid == 0)
		take_everything(bench, ends[1]);
	close(ends[1]);
	error = pid < 0 ? -errno : read(ends[0], &said, sizeof(said)) == sizeof(said) ? said : -EPIPE;
	close(ends[0]);
	if (pid < 0)
		return error;
	if (!error)
		error = time_death(bench, pid);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	return error;
}

int bench_death(struct bench *bench)
{
	int error;

	error = daemon_start(bench, POOL_PAGES, NULL);
	if (error)
		return error;
	for (unsigned run = 0; run < bench->runs && !error; run++)
		error = sample_death(bench);
	if (error)
		bench_complain(bench, error, "a call failed");
	daemon_stop(bench);
	return error;
}
