/*
 * bench.h - functions shared by the groups of gpool-bench: samples, agents, concurrent processes.
 *
 * Every group runs in a separate process, so a failure (an assertion in nanomsg, an agent that does not start) ends
 * only that group. The group measures and sends each sample to the parent, which computes medians and prints tables.
 * Groups are in bench_NAME.c; figures and goals are in figures.def.
 */
#ifndef GPOOL_BENCH_H
#define GPOOL_BENCH_H

#include "client/gpool.h"
#include "client/core/request.h"
#include "shm/monotonic.h"

#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum figure {
#define FIGURE(group, name, unit, goal, text) FIGURE_##name,
#include "tools/bench/figures.def"
	FIGURES,
	FIGURE_PROGRESS = FIGURES /* not a figure: the completed part of a run, in percent */
};

struct bench {
	const char *group;
	const char *folder; /* an existing empty folder, which the parent removes */
	const char *backend;
	unsigned runs;
	int results;           /* descriptor for samples */
	uint64_t begin_ns;     /* begin of the group */
	pid_t agent;           /* the keeper of the started gpoold; 0: none */
	struct gpool *control; /* an admin session of the first pool */
};

/* A sample sent from a group's process to the parent. */
struct bench_result {
	uint32_t figure;
	double value;
	double run_ms;    /* time since the figure's last sample, or the beginning of the group */
	double driver_ms; /* the driver's part of it, if the driver is a double with a cost model; otherwise -1 */
};

/*
 * Every group: add `bench->runs` samples of each of its figures. Return: 0, or negative errno after bench_complain().
 */
#define GROUP(name, runs, text) int bench_##name(struct bench *bench);
#include "tools/bench/figures.def"

void bench_sample(struct bench *bench, enum figure figure, double value);
/* bench_progress() - report the progress of a run that takes many seconds. */
void bench_progress(struct bench *bench, uint64_t done, uint64_t all);
/* bench_complain() - print one line to stderr, `NAME: ...: the error text`. Return: `error`. */
int __attribute__((format(printf, 3, 4))) bench_complain(const struct bench *bench, int error, const char *format, ...);

/*
 * own_time_ns() - return the time, excluding the time in which this thread was ready and waited for a CPU: sleep
 * counts, other load of the machine does not. Cost: microseconds.
 */
uint64_t own_time_ns(void);
/*
 * process_time() - add the CPU time of a process, including threads that have ended, to *ns. Return: 0 or negative
 * errno.
 */
int process_time(pid_t pid, uint64_t *ns);
double median(double *values, size_t count);
/* percentile() - sort the values and return a percentile; share: 0..1. */
double percentile(double *values, size_t count, double share);

/* random_next() - return the next number of a xorshift generator; the state must not be 0. */
uint32_t random_next(uint64_t *state);

/* ---- an agent (daemon.c) ---- */

/*
 * daemon_start() - start gpoold with one pool of `pages` pages of 512 KiB, none reserved, and wait until it serves.
 *
 * @settings: `key=value` for --set, terminated by NULL; may be NULL
 */
int daemon_start(struct bench *bench, uint32_t pages, const char *const *settings);
/* daemon_start_huge() - the same with pages of 2 MiB in huge pages (huge_pages in gpoold.conf). */
int daemon_start_huge(struct bench *bench, uint32_t pages, const char *const *settings);
/* daemon_start_with() - the same with more settings of the pool: ",key=value". */
int daemon_start_with(struct bench *bench, uint32_t pages, const char *more, const char *const *settings);
/*
 * daemon_start_device() - the same on a device that reports `bytes`, all of which belong to the pool. Memory that is
 * not written is not allocated.
 */
int daemon_start_device(struct bench *bench, uint64_t bytes, uint64_t page_bytes, const char *const *settings);
/* daemon_open() - attach another session, as a worker unless `flags` select another kind. */
int daemon_open(const struct bench *bench, uint32_t flags, struct gpool **pool);
/* daemon_evict() - evict unpinned blocks of `pages` pages. Return: the number of evicted pages, or negative errno. */
int64_t daemon_evict(const struct bench *bench, uint32_t pages);
/*
 * daemon_wait_free() - wait at most 30 s until all pages of the pool are FREE; *when (may be NULL) receives the time.
 */
int daemon_wait_free(const struct bench *bench, uint64_t *when);
/* daemon_time() - return the CPU time of all processes of gpoold in ns. Return: 0 or negative errno. */
int daemon_time(const struct bench *bench, uint64_t *ns);
void daemon_stop(struct bench *bench);
/* socket_folder() - return the folder of the agent's sockets. */
void socket_folder(const struct bench *bench, char path[PATH_MAX]);
/* program_beside() - return the path of another program in the folder of this one. Return: 0 or negative errno. */
int program_beside(const char *name, char path[PATH_MAX]);

/* ---- concurrent processes (crew.c) ---- */

enum { CREW_MAX = 2 };

struct crew_plan {
	unsigned count;
	void *context;
	/* Prepare, in the new process. Return: 0 or negative errno. */
	int (*open)(void *context, unsigned member, void **state);
	/* Work for some microseconds, in the new process. Return: the number of operations, or negative errno. */
	int64_t (*step)(void *state);
};

struct crew;
int crew_start(const struct crew_plan *plan, struct crew **crew);
/*
 * crew_race() - let the members in the bit mask work at the same time for duration_ns.
 *
 * @rates: [count] receives operations per second of own_time_ns(); 0 for the other members
 */
int crew_race(struct crew *crew, unsigned members, uint64_t duration_ns, double *rates);
void crew_stop(struct crew *crew);

#endif
