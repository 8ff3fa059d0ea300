/*
 * bench.h - what the groups of gpool-bench share: samples out, an agent of their own, processes that race.
 *
 * Every group runs in a process of its own, so that whatever ends it (a nanomsg assert, an agent that does not come up)
 * ends that group alone. It measures, and hands each sample to the parent, which knows about medians and tables.
 * Groups are in bench_NAME.c; figures and goals in figures.def.
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
	FIGURE_PROGRESS = FIGURES /* no figure: how much of a run is done, percent */
};

struct bench {
	const char *group;
	const char *folder; /* exists, is empty, and is removed by the parent */
	unsigned runs;
	int results;           /* where samples go */
	pid_t agent;           /* the gpoold that was started, its keeper; 0: none */
	struct gpool *control; /* an admin's session of the first pool */
};

/* A sample on its way from a group's process to the parent. */
struct bench_result {
	uint32_t figure;
	double value;
};

/*
 * Every group: samples `bench->runs` times each figure of its own. Return: 0, or negative errno after bench_complain().
 */
#define GROUP(name, runs, text) int bench_##name(struct bench *bench);
#include "tools/bench/figures.def"

void bench_sample(struct bench *bench, enum figure figure, double value);
/* bench_progress() - for runs of many seconds: says so now and then. */
void bench_progress(struct bench *bench, uint64_t done, uint64_t all);
/* One line to stderr, `NAME: ...: what the error means`; returns `error`. */
int __attribute__((format(printf, 3, 4))) bench_complain(const struct bench *bench, int error, const char *format, ...);

/*
 * own_time_ns() - the same clock less the time for which this thread was ready and other programs had its core: sleep
 * counts, a busy machine does not. Microseconds dear.
 */
uint64_t own_time_ns(void);
/* process_time() - add the CPU time of a process, with threads that have ended, to *ns. Return: 0 or negative errno. */
int process_time(pid_t pid, uint64_t *ns);
double median(double *values, size_t count);
/* percentile() - sorts; share 0..1. */
double percentile(double *values, size_t count, double share);

/* xorshift; the state must not be 0. */
uint32_t random_next(uint64_t *state);

/* ---- an agent on the host back end (daemon.c) ---- */

/*
 * daemon_start() - start gpoold with one pool of `pages` pages of 512 KiB, none reserved, and wait until it serves.
 * @settings: `key=value` for --set, up to NULL; may be NULL
 */
int daemon_start(struct bench *bench, uint32_t pages, const char *const *settings);
/* daemon_start_huge() - with pages of 2 MiB, huge ones of the kernel (huge_pages of gpoold.conf). */
int daemon_start_huge(struct bench *bench, uint32_t pages, const char *const *settings);
/* daemon_start_with() - the same, with more keys of the pool: ",key=value". */
int daemon_start_with(struct bench *bench, uint32_t pages, const char *more, const char *const *settings);
/*
 * daemon_start_device() - the same on a device that seems to have `bytes`, all of them the pool's; none is used that
 * is not written.
 */
int daemon_start_device(struct bench *bench, uint64_t bytes, uint64_t page_bytes, const char *const *settings);
/* daemon_open() - another session with it: a worker's, unless flags say otherwise. */
int daemon_open(const struct bench *bench, uint32_t flags, struct gpool **pool);
/* daemon_evict() - take `pages` pages of unpinned blocks now; returns how many, or negative errno. */
int64_t daemon_evict(const struct bench *bench, uint32_t pages);
/* daemon_wait_free() - until all pages of the pool are FREE, at most 30 s; *when (may be NULL) receives the time. */
int daemon_wait_free(const struct bench *bench, uint64_t *when);
/* daemon_time() - report the CPU time of all processes of gpoold, ns. Return: 0 or negative errno. */
int daemon_time(const struct bench *bench, uint64_t *ns);
void daemon_stop(struct bench *bench);
/* socket_folder() - report where the agent's sockets are. */
void socket_folder(const struct bench *bench, char path[PATH_MAX]);
/* program_beside() - report the path of another program in this program's folder. Return: 0 or negative errno. */
int program_beside(const char *name, char path[PATH_MAX]);

/* ---- processes that race (crew.c) ---- */

enum { CREW_MAX = 2 };

struct crew_plan {
	unsigned count;
	void *context;
	/* In the new process: make ready. Return: 0 or negative errno. */
	int (*open)(void *context, unsigned member, void **state);
	/* In the new process: do some work, microseconds long; how many operations it was, or negative errno. */
	int64_t (*step)(void *state);
};

struct crew;
int crew_start(const struct crew_plan *plan, struct crew **crew);
/*
 * crew_race() - let the members in the bit mask work for duration_ns at the same time.
 * @rates: [count] receives operations a second of own_time_ns(); 0 for those that rest
 */
int crew_race(struct crew *crew, unsigned members, uint64_t duration_ns, double *rates);
void crew_stop(struct crew *crew);

#endif
