/* crew.c - processes that start together, run for some time, and report the number of their operations. */
#include "tools/bench/bench.h"

#include "shm/doorbell.h"
#include "tools/lib/dependent.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* Time without an answer after which a member is considered dead: far above the pauses of a loaded machine. */
#define CREW_PATIENCE_NS INT64_C(60000000000)

struct crew_shared {
	_Atomic uint32_t round;   /* increased when there is work */
	_Atomic uint32_t arrived; /* number of members that have completed opening, or this round */
	_Atomic int32_t error;
	uint32_t members;
	uint64_t start_ns, duration_ns;
	double rates[CREW_MAX];
};

struct crew {
	struct crew_shared *shared;
	unsigned count;
	pid_t pids[CREW_MAX];
};

/* Run each member on its own core; if there is only one core, they share it. */
static void settle(unsigned member)
{
	cpu_set_t allowed, own;
	int cpus, cpu = -1;

	if (sched_getaffinity(0, sizeof(allowed), &allowed) < 0)
		return;
	cpus = CPU_COUNT(&allowed);
	for (int left = (int)member % cpus; left >= 0; left--)
		do
			cpu++;
		while (!CPU_ISSET(cpu, &allowed));
	CPU_ZERO(&own);
	CPU_SET(cpu, &own);
	sched_setaffinity(0, sizeof(own), &own);
}

static void arrive(struct crew_shared *shared, int error)
{
	if (error)
		atomic_store(&shared->error, error);
	atomic_fetch_add(&shared->arrived, 1);
	futex_wake(&shared->arrived, 1);
}

static int member_race(struct crew_shared *shared, unsigned member, const struct crew_plan *plan, void *state)
{
	uint64_t end = shared->start_ns + shared->duration_ns, begin;
	int64_t operations = 0, made;

	/* Let all begin in the same microsecond. The wait is short, and keeps both cores busy. */
	while (monotonic_ns() < shared->start_ns)
		;
	begin = own_time_ns();
	do {
		made = plan->step(state);
		if (made < 0)
			return (int)made;
		operations += made;
	} while (monotonic_ns() < end);
	shared->rates[member] = (double)operations * 1e9 / (double)(own_time_ns() - begin);
	return 0;
}

static _Noreturn void member_live(struct crew_shared *shared, unsigned member, const struct crew_plan *plan)
{
	uint32_t round = 0;
	void *state = NULL;

	settle(member);
	arrive(shared, plan->open(plan->context, member, &state));
	for (;;) {
		while (atomic_load(&shared->round) == round)
			futex_wait(&shared->round, round, -1);
		round = atomic_load(&shared->round);
		arrive(shared, shared->members >> member & 1 ? member_race(shared, member, plan, state) : 0);
	}
}

static int crew_wait(struct crew *crew)
{
	uint32_t arrived;

	while ((arrived = atomic_load(&crew->shared->arrived)) < crew->count) {
		for (unsigned i = 0; i < crew->count; i++)
			if (waitpid(crew->pids[i], NULL, WNOHANG) == crew->pids[i]) {
				crew->pids[i] = 0;
				return -EPIPE;
			}
		if (futex_wait(&crew->shared->arrived, arrived, CREW_PATIENCE_NS) == -ETIMEDOUT)
			return -ETIMEDOUT;
	}
	atomic_store(&crew->shared->arrived, 0);
	return atomic_load(&crew->shared->error);
}

int crew_start(const struct crew_plan *plan, struct crew **out)
{
	struct crew *crew = calloc(1, sizeof(*crew));
	int error;

	if (!crew)
		return -ENOMEM;
	crew->count = plan->count;
	crew->shared = mmap(NULL, sizeof(*crew->shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (crew->shared == MAP_FAILED) {
		free(crew);
		return -ENOMEM;
	}
	for (unsigned i = 0; i < plan->count; i++) {
		pid_t pid = dependent_fork(SIGKILL);

		if (pid == 0)
			member_live(crew->shared, i, plan);
		if (pid < 0) {
			error = -errno;
			crew_stop(crew);
			return error;
		}
		crew->pids[i] = pid;
	}
	error = crew_wait(crew);
	if (error) {
		crew_stop(crew);
		return error;
	}
	*out = crew;
	return 0;
}

int crew_race(struct crew *crew, unsigned members, uint64_t duration_ns, double *rates)
{
	struct crew_shared *shared = crew->shared;
	int error;

	shared->members = members;
	shared->duration_ns = duration_ns;
	shared->start_ns = monotonic_ns() + 2000000; /* enough for every member to wake up */
	for (unsigned i = 0; i < crew->count; i++)
		shared->rates[i] = 0;
	atomic_fetch_add(&shared->round, 1);
	futex_wake(&shared->round, CREW_MAX);
	error = crew_wait(crew);
	if (error)
		return error;
	for (unsigned i = 0; i < crew->count; i++)
		rates[i] = shared->rates[i];
	return 0;
}

void crew_stop(struct crew *crew)
{
	if (!crew)
		return;
	for (unsigned i = 0; i < crew->count; i++) {
		if (crew->pids[i] <= 0)
			continue;
		kill(crew->pids[i], SIGKILL);
		waitpid(crew->pids[i], NULL, 0);
	}
	munmap(crew->shared, sizeof(*crew->shared));
	free(crew);
}
