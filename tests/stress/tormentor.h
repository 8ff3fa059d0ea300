/*
 * tormentor.h - kill and stop worker processes, and gpoold's processes, at any instruction while they work.
 *
 * A stress program includes this file once, after its struct counters. It executes itself again for each of its
 * workers: NAME --worker SLOT FD DIRECTORY SEED. All of these processes share the stage, which contains orders, counts
 * and the first error.
 */
#ifndef GPOOL_TESTS_STRESS_TORMENTOR_H
#define GPOOL_TESTS_STRESS_TORMENTOR_H

#include "shm/doorbell.h"
#include "tests/stress/stress.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	THREADS = 2, /* per worker */
	WORKERS_MAX = 32,
	PATIENCE_MS = AWAIT_MS,
	STAND_LOOK_MS = 100,
	TEXTS = 8,
	KILL_MEAN_MS = 50,
	CUDA_KILL_MEAN_MS = 250, /* with a driver, a worker starts more slowly */
	STOP_MEAN_MS = 40,
	STOP_MOST_MS = 150,
	LOST_STATUS = 3, /* exit status of a worker whose device has failed */
};

enum command { RUN, STAND_STILL, LEAVE };

/* Shared by all processes. */
struct stage {
	_Atomic uint32_t command;
	_Atomic uint32_t standing[WORKERS_MAX]; /* number of paused threads of each worker; reset when the worker is
						 * started */
	_Atomic uint32_t lost[WORKERS_MAX];     /* the worker's device has failed, and it ends by itself */
	_Atomic uint64_t devices_lost;
	_Atomic uint32_t wrong; /* number of violations */
	char texts[TEXTS][256];
	struct counters counters;
	bool broken;
};

static struct stage *stage;

#define COUNT(what, add) atomic_fetch_add_explicit(&stage->counters.what, (add), memory_order_relaxed)

static void __attribute__((format(printf, 1, 2))) violation(const char *format, ...)
{
	uint32_t at = atomic_fetch_add(&stage->wrong, 1);
	va_list arguments;

	if (at >= TEXTS)
		return;
	va_start(arguments, format);
	vsnprintf(stage->texts[at], sizeof(stage->texts[at]), format, arguments);
	va_end(arguments);
}

/* ---- in a worker ---- */

static bool stage_map(int fd)
{
	stage = mmap(NULL, sizeof(*stage), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	return stage != MAP_FAILED;
}

static bool told_to_run(void)
{
	return atomic_load_explicit(&stage->command, memory_order_relaxed) == RUN;
}

/*
 * Count `threads` threads of a worker as paused, and sleep until the command is LEAVE, or another thread finds that the
 * device has failed. The caller is one of these threads; the others have ended.
 */
static void stand(uint32_t slot, uint32_t threads)
{
	atomic_fetch_add(&stage->standing[slot], threads);
	futex_wake(&stage->standing[slot], 1);
	while (atomic_load(&stage->command) != LEAVE && !atomic_load(&stage->lost[slot]))
		futex_wait(&stage->command, STAND_STILL, STAND_LOOK_MS * INT64_C(1000000));
}

/* ---- killing and stopping ---- */

struct victim {
	pid_t pid;
	int pidfd;
	uint64_t stopped_until; /* 0: it is not stopped */
};

struct tormentor {
	struct stress_arguments arguments;
	const char *directory;
	int stage_fd;
	uint64_t random;
	struct victim victims[WORKERS_MAX];
	uint64_t kills, stops;
	uint32_t kill_ms;   /* mean time between two kills of workers */
	pid_t keeper;       /* 0: do not kill gpoold's processes */
	uint32_t gpoold_ms; /* mean time between two kills of gpoold's processes */
	uint64_t agent_kills, mover_kills, front_kills;
	/* Return true if each event that the run must include has happened. */
	bool (*was_real)(const struct tormentor *tormentor);
	const struct stress_agent *agent;
};

/* Create a descriptor that workers inherit, before they are started. Return -1 on failure. */
static int stage_create(void)
{
	int fd = memfd_create("stage", 0);

	return fd < 0 || ftruncate(fd, sizeof(*stage)) < 0 || !stage_map(fd) ? -1 : fd;
}

static bool worker_start(struct tormentor *tormentor, uint32_t slot)
{
	struct victim *victim = &tormentor->victims[slot];
	char slot_text[16], fd_text[16], seed_text[32];

	snprintf(slot_text, sizeof(slot_text), "%u", slot);
	snprintf(fd_text, sizeof(fd_text), "%d", tormentor->stage_fd);
	snprintf(seed_text, sizeof(seed_text), "%" PRIu64, chance(&tormentor->random));
	atomic_store(&stage->standing[slot], 0);
	atomic_store(&stage->lost[slot], 0);
	victim->stopped_until = 0;
	/* The worker executes the program again, so that it has no state of this process. */
	victim->pid = fork();
	if (victim->pid == 0) {
		execl("/proc/self/exe", "worker", "--worker", slot_text, fd_text, tormentor->directory, seed_text,
			(char *)NULL);
		_exit(127);
	}
	victim->pidfd = victim->pid < 0 ? -1 : (int)syscall(SYS_pidfd_open, victim->pid, 0);
	if (victim->pidfd < 0)
		violation("cannot start worker %u: %s", slot, strerror(errno));
	return victim->pidfd >= 0;
}

static int worker_wait(struct victim *victim)
{
	int status = 0;

	waitpid(victim->pid, &status, 0);
	close(victim->pidfd);
	victim->pid = 0;
	victim->pidfd = -1;
	return status;
}

/* Return a random time with an exponential distribution, as between independent events. */
static uint64_t some_time(struct tormentor *tormentor, uint32_t mean_ms)
{
	double uniform = ((double)(chance(&tormentor->random) >> 11) + 1) / 9007199254740993.0;

	return (uint64_t)(-log(uniform) * mean_ms * 1e6);
}

static void stop_and_continue(struct tormentor *tormentor, uint64_t now, bool stop)
{
	uint32_t slot = chance_below(&tormentor->random, tormentor->arguments.workers);
	struct victim *victim;

	for (uint32_t i = 0; i < tormentor->arguments.workers; i++) {
		victim = &tormentor->victims[i];
		if (victim->stopped_until && victim->stopped_until <= now) {
			kill(victim->pid, SIGCONT);
			victim->stopped_until = 0;
		}
	}
	victim = &tormentor->victims[slot];
	if (!stop || victim->stopped_until)
		return;
	kill(victim->pid, SIGSTOP);
	victim->stopped_until = now + (1 + chance_below(&tormentor->random, STOP_MOST_MS)) * UINT64_C(1000000);
	tormentor->stops++;
}

static bool torment_one(struct tormentor *tormentor)
{
	uint32_t slot = chance_below(&tormentor->random, tormentor->arguments.workers);

	if (atomic_load(&stage->lost[slot]))
		return true; /* it must end by itself */
	kill(tormentor->victims[slot].pid, SIGKILL);
	worker_wait(&tormentor->victims[slot]);
	tormentor->kills++;
	return worker_start(tormentor, slot);
}

/* Return the keeper's child with this name; 0: none at present. */
static pid_t gpoold_child(pid_t keeper, const char *name)
{
	char path[64], comm[32];
	long child;
	pid_t found = 0;
	FILE *list;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)keeper, (int)keeper);
	list = fopen(path, "re");
	while (list && !found && fscanf(list, "%ld", &child) == 1) {
		FILE *file;

		snprintf(path, sizeof(path), "/proc/%ld/comm", child);
		file = fopen(path, "re");
		if (file && fgets(comm, sizeof(comm), file) && !strncmp(comm, name, strlen(name)))
			found = (pid_t)child;
		if (file)
			fclose(file);
	}
	if (list)
		fclose(list);
	return found;
}

static uint32_t worker_kill_ms(void)
{
	return strcmp(harness_backend(), "cuda") ? KILL_MEAN_MS : CUDA_KILL_MEAN_MS;
}

/* Return the mean time between two kills of gpoold's processes: $TORTURE_GPOOLD_MS, or `otherwise`. */
static uint32_t gpoold_ms(uint32_t otherwise)
{
	const char *text = getenv("TORTURE_GPOOLD_MS");

	return text && atoi(text) > 0 ? (uint32_t)atoi(text) : otherwise;
}

static void torment_gpoold(struct tormentor *tormentor)
{
	static const char *const names[] = {
		"gpoold-agent", "gpoold-agent", "gpoold-mover", "gpoold-mover", "gpoold-front"};
	uint32_t which = chance_below(&tormentor->random, 5);
	pid_t pid = gpoold_child(tormentor->keeper, names[which]);

	if (pid <= 0 || kill(pid, SIGKILL) < 0)
		return;
	tormentor->agent_kills += which < 2;
	tormentor->mover_kills += which == 2 || which == 3;
	tormentor->front_kills += which == 4;
}

/* Replace a worker whose device has failed, when it has ended. Return false if it ended otherwise. */
static bool lost_replace(struct tormentor *tormentor, uint32_t slot)
{
	int status = worker_wait(&tormentor->victims[slot]);

	if (atomic_load(&stage->lost[slot]) && WIFEXITED(status) && WEXITSTATUS(status) == LOST_STATUS) {
		atomic_fetch_add(&stage->devices_lost, 1);
		return worker_start(tormentor, slot);
	}
	violation("worker %u ended by itself: %s %d", slot, WIFSIGNALED(status) ? "signal" : "status",
		WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
	return false;
}

/* Sleep until `until`. Return false if a worker ended unexpectedly. */
static bool watch(struct tormentor *tormentor, uint64_t until)
{
	struct pollfd ended[WORKERS_MAX];
	uint32_t count = tormentor->arguments.workers;
	uint64_t now = clock_ns();
	struct timespec wait = {0, 0};

	if (until > now)
		wait = (struct timespec){(time_t)((until - now) / 1000000000), (long)((until - now) % 1000000000)};
	for (uint32_t i = 0; i < count; i++)
		ended[i] = (struct pollfd){.fd = tormentor->victims[i].pidfd, .events = POLLIN};
	if (ppoll(ended, count, &wait, NULL) <= 0)
		return true;
	for (uint32_t i = 0; i < count; i++)
		if (ended[i].revents && !lost_replace(tormentor, i))
			return false;
	return true;
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static void torment(struct tormentor *tormentor)
{
	uint64_t now = clock_ns(), length = (uint64_t)(tormentor->arguments.seconds * 1e9), end = now + length;
	uint64_t latest = now + length * STRESS_LONGEST;
	uint64_t next_kill = now + some_time(tormentor, tormentor->kill_ms), next_stop = now;
	uint64_t next_gpoold = tormentor->keeper ? now + some_time(tormentor, tormentor->gpoold_ms) : UINT64_MAX;

	for (uint32_t slot = 0; slot < tormentor->arguments.workers; slot++)
		if (!worker_start(tormentor, slot))
			return;
	while (!atomic_load(&stage->wrong)) {
		uint64_t next;

		now = clock_ns();
		if (now >= end) {
			if (now >= latest || tormentor->was_real(tormentor))
				return;
			end = now + UINT64_C(100000000);
		}
		next = least(least(next_kill, next_stop), least(next_gpoold, end));

		for (uint32_t i = 0; i < tormentor->arguments.workers; i++)
			if (tormentor->victims[i].stopped_until)
				next = least(next, tormentor->victims[i].stopped_until);
		if (!watch(tormentor, next))
			return;
		now = clock_ns();
		stop_and_continue(tormentor, now, now >= next_stop);
		if (now >= next_stop)
			next_stop = now + some_time(tormentor, STOP_MEAN_MS);
		if (now >= next_kill) {
			if (!torment_one(tormentor))
				return;
			next_kill = now + some_time(tormentor, tormentor->kill_ms);
		}
		if (now >= next_gpoold) {
			torment_gpoold(tormentor);
			next_gpoold = now + some_time(tormentor, tormentor->gpoold_ms);
		}
	}
}

/* Let all threads of all workers complete their steps and pause. */
static void stand_still(struct tormentor *tormentor)
{
	atomic_store(&stage->command, STAND_STILL);
	for (uint32_t slot = 0; slot < tormentor->arguments.workers; slot++) {
		struct victim *victim = &tormentor->victims[slot];
		uint32_t standing;

		if (victim->pid <= 0)
			continue;
		kill(victim->pid, SIGCONT);
		while ((standing = atomic_load(&stage->standing[slot])) < THREADS)
			if (futex_wait(&stage->standing[slot], standing, PATIENCE_MS * INT64_C(1000000)) ==
				-ETIMEDOUT) {
				violation("worker %u: %u of %d threads stand still after %d s", slot, standing, THREADS,
					PATIENCE_MS / 1000);
				break;
			}
		if (standing >= THREADS && atomic_load(&stage->lost[slot]) && lost_replace(tormentor, slot))
			slot--; /* the next one stops at once, or loses its device as well */
	}
}

/* Let every other worker end by itself, and kill the others. */
static void leave(struct tormentor *tormentor)
{
	int status;

	for (uint32_t slot = 1; slot < tormentor->arguments.workers; slot += 2)
		if (tormentor->victims[slot].pid > 0)
			kill(tormentor->victims[slot].pid, SIGKILL);
	atomic_store(&stage->command, LEAVE);
	futex_wake(&stage->command, INT32_MAX);
	for (uint32_t slot = 0; slot < tormentor->arguments.workers; slot++) {
		struct victim *victim = &tormentor->victims[slot];
		struct pollfd ended = {.fd = victim->pidfd, .events = POLLIN};

		if (victim->pid <= 0)
			continue;
		if (poll(&ended, 1, PATIENCE_MS) != 1) {
			violation("worker %u does not end", slot);
			kill(victim->pid, SIGKILL);
		}
		status = worker_wait(victim);
		if (slot % 2 == 0 && status)
			violation("worker %u ended with status %x", slot, (unsigned)status);
	}
}

static void tormentor_show(const struct tormentor *tormentor)
{
	printf("%" PRIu64 " kills, %" PRIu64 " stops; %" PRIu64 " kills of the agent, %" PRIu64 " of movers, %" PRIu64
	       " of fronts\n",
		tormentor->kills, tormentor->stops, tormentor->agent_kills, tormentor->mover_kills,
		tormentor->front_kills);
	for (uint32_t i = 0; i < TEXTS && i < atomic_load(&stage->wrong); i++)
		printf("violation: %s\n", stage->texts[i]);
}

#endif
