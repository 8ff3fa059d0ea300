/*
 * torture.c - everything at once: workers are killed and stopped at any instruction, and agent, movers and front are killed too, while
 * the others go on.
 *
 * Goal: whatever happens to whom, no page is lost, no page belongs to two, every content that can be pinned is right, and no worker
 * sees an error that is not in its contract.
 * Method: a pool that is too small for what the workers (two threads each) want, so that the agent evicts blocks and takes idle
 * pages back all the time. Each block holds words that only it can hold; they are verified under every pin. Threads of a worker
 * pass each other handles, so that both pin, unpin and free the same blocks. One worker is killed every 50 ms on average and a
 * new one started in its place; others are stopped for a while; about once a second one of gpoold's own processes is killed, but for
 * the keeper. With odd seeds eviction is adaptive. Stale handles are fine, wrong contents never. In the end the
 * workers stand still and the agent's check must find nothing; then they leave, half of them by death, and every page must be
 * free again.
 *
 * With --broken workers verify without a pin: then wrong contents must be found, or this test could not fail.
 *
 * usage: torture [SECONDS [SEED]] [--workers N] [--broken] [--spare-gpoold]
 */
#include "tests/stress/stress.h"
#include "tests/stress/stress_agent.h"
#include "tests/stress/torture_worker.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	PAGES = 512,
	KILL_MEAN_MS = 50,
	STOP_MEAN_MS = 40,
	STOP_MOST_MS = 150,
	GPOOLD_KILL_MEAN_MS = 1000,
};

/* ---- the tormentor ---- */

struct victim {
	pid_t pid;
	int pidfd;
	uint64_t stopped_until; /* 0: it runs */
};

struct tormentor {
	struct stress_arguments arguments;
	const char *directory;
	int stage_fd;
	uint64_t random;
	struct victim victims[WORKERS_MAX];
	uint64_t kills, stops;
	pid_t keeper;
	uint64_t agent_kills, mover_kills, front_kills;
};

static bool worker_start(struct tormentor *tormentor, uint32_t slot)
{
	struct victim *victim = &tormentor->victims[slot];
	char slot_text[16], fd_text[16], seed_text[32];

	snprintf(slot_text, sizeof(slot_text), "%u", slot);
	snprintf(fd_text, sizeof(fd_text), "%d", tormentor->stage_fd);
	snprintf(seed_text, sizeof(seed_text), "%" PRIu64, chance(&tormentor->random));
	atomic_store(&stage->standing[slot], 0);
	victim->stopped_until = 0;
	/* A new program, not only a new process: nothing of ours may be in its way. */
	victim->pid = fork();
	if (victim->pid == 0) {
		execl("/proc/self/exe", "torture", "--worker", slot_text, fd_text, tormentor->directory, seed_text, (char *)NULL);
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

/* In an exponential distribution, as things that happen by themselves do. */
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

	kill(tormentor->victims[slot].pid, SIGKILL);
	worker_wait(&tormentor->victims[slot]);
	tormentor->kills++;
	return worker_start(tormentor, slot);
}

/* A child of the keeper, by what it is called. 0: there is none now. */
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

/* $TORTURE_GPOOLD_MS: another mean time between two deaths of gpoold's processes. */
static uint32_t gpoold_ms(void)
{
	const char *text = getenv("TORTURE_GPOOLD_MS");

	return text && atoi(text) > 0 ? (uint32_t)atoi(text) : GPOOLD_KILL_MEAN_MS;
}

static void torment_gpoold(struct tormentor *tormentor)
{
	static const char *const names[] = {"gpoold-agent", "gpoold-agent", "gpoold-mover", "gpoold-mover", "gpoold-front"};
	uint32_t which = chance_below(&tormentor->random, 5);
	pid_t pid = gpoold_child(tormentor->keeper, names[which]);

	if (pid <= 0 || kill(pid, SIGKILL) < 0)
		return;
	tormentor->agent_kills += which < 2;
	tormentor->mover_kills += which == 2 || which == 3;
	tormentor->front_kills += which == 4;
}

/* Sleeps until `until`; false when a worker ended that was not to. */
static bool watch(struct tormentor *tormentor, uint64_t until)
{
	struct pollfd ended[WORKERS_MAX];
	uint32_t count = tormentor->arguments.workers;
	uint64_t now = clock_ns();
	struct timespec wait = {0, 0};
	int status;

	if (until > now)
		wait = (struct timespec){(time_t)((until - now) / 1000000000), (long)((until - now) % 1000000000)};
	for (uint32_t i = 0; i < count; i++)
		ended[i] = (struct pollfd){.fd = tormentor->victims[i].pidfd, .events = POLLIN};
	if (ppoll(ended, count, &wait, NULL) <= 0)
		return true;
	for (uint32_t i = 0; i < count; i++)
		if (ended[i].revents) {
			status = worker_wait(&tormentor->victims[i]);
			violation("worker %u ended by itself: %s %d", i, WIFSIGNALED(status) ? "signal" : "status",
				WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
		}
	return false;
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static void torment(struct tormentor *tormentor)
{
	uint64_t now = clock_ns(), end = now + (uint64_t)(tormentor->arguments.seconds * 1e9);
	uint64_t next_kill = now + some_time(tormentor, KILL_MEAN_MS), next_stop = now;
	uint64_t next_gpoold = tormentor->keeper ? now + some_time(tormentor, gpoold_ms()) : UINT64_MAX;

	for (uint32_t slot = 0; slot < tormentor->arguments.workers; slot++)
		if (!worker_start(tormentor, slot))
			return;
	while ((now = clock_ns()) < end && !atomic_load(&stage->wrong)) {
		uint64_t next = least(least(next_kill, next_stop), least(next_gpoold, end));

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
			next_kill = now + some_time(tormentor, KILL_MEAN_MS);
		}
		if (now >= next_gpoold) {
			torment_gpoold(tormentor);
			next_gpoold = now + some_time(tormentor, gpoold_ms());
		}
	}
}

/* All threads of all workers finish what they are at, and stay. */
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
			if (futex_wait(&stage->standing[slot], standing, PATIENCE_MS * INT64_C(1000000)) == -ETIMEDOUT) {
				violation("worker %u: %u of %d threads stand still after 30 s", slot, standing, THREADS);
				break;
			}
	}
}

/* Every other worker leaves by itself, the rest by death. */
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

static void judge(struct tormentor *tormentor, const struct stress_agent *agent)
{
	const struct counters *c = &stage->counters;
	const struct pool_header *header = agent->header;

	printf("%" PRIu64 " kills of the agent, %" PRIu64 " of movers, %" PRIu64 " of fronts; %" PRIu64 " agents started\n", tormentor->agent_kills,
		tormentor->mover_kills, tormentor->front_kills, atomic_load(&header->counters[POOL_COUNT_AGENT_STARTS]));
	printf("%" PRIu64 " kills, %" PRIu64 " stops; %" PRIu64 " evictions of %" PRIu64 " pages, %" PRIu64 " reclaims, %" PRIu64
	       " refills, %" PRIu64 " deaths\n",
		tormentor->kills, tormentor->stops, atomic_load(&header->counters[POOL_COUNT_EVICTIONS]),
		atomic_load(&header->counters[POOL_COUNT_EVICTED_PAGES]), atomic_load(&header->counters[POOL_COUNT_RECLAIMS]),
		atomic_load(&header->counters[POOL_COUNT_REFILLS]), atomic_load(&header->counters[POOL_COUNT_DEATHS]));
	printf("%" PRIu64 " pages spilled, %" PRIu64 " restored, %" PRIu64 " lost\n", atomic_load(&header->counters[POOL_COUNT_SPILLED_PAGES]),
		atomic_load(&header->counters[POOL_COUNT_RESTORED_PAGES]), atomic_load(&header->counters[POOL_COUNT_SPILL_ERRORS]));
	printf("%" PRIu64 " allocations of %" PRIu64 " pages, %" PRIu64 " refused; %" PRIu64 " contents and %" PRIu64
	       " bytes verified, %" PRIu64 " stale, %" PRIu64 " late\n",
		c->allocations, c->pages, c->refusals, c->verified, c->verified_bytes, c->stale, c->late);
	printf("%" PRIu64 " frees, %" PRIu64 " lost to another, %" PRIu64 " fences, %" PRIu64 " prepared, %" PRIu64
	       " scopes, %" PRIu64 " spans; %u violations\n",
		c->frees, c->lost_frees, c->fences, c->prepared, c->scopes, c->spans, atomic_load(&stage->wrong));
	for (uint32_t i = 0; i < TEXTS && i < atomic_load(&stage->wrong); i++)
		printf("violation: %s\n", stage->texts[i]);
}

/* A run of some length in which nothing was evicted or killed would prove nothing. */
static bool was_real(const struct tormentor *tormentor, const struct stress_agent *agent)
{
	const struct counters *c = &stage->counters;

	return tormentor->arguments.seconds < 2 ||
	       (tormentor->kills && (!tormentor->keeper || tormentor->arguments.seconds < 10 || tormentor->agent_kills) && tormentor->stops && c->verified && c->stale && c->fences && c->lost_frees && c->prepared &&
		       c->spans && atomic_load(&agent->header->counters[POOL_COUNT_EVICTIONS]) &&
		       atomic_load(&agent->header->counters[POOL_COUNT_RECLAIMS]));
}

static int stage_create(void)
{
	int fd = memfd_create("torture-stage", 0); /* inherited by the workers */

	if (fd < 0 || ftruncate(fd, sizeof(*stage)) < 0)
		return -1;
	stage = mmap(NULL, sizeof(*stage), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	return stage == MAP_FAILED ? -1 : fd;
}

static const char *const adaptive[] = {"eviction.policy=adaptive", NULL};

int main(int argc, char **argv)
{
	struct tormentor tormentor = {.arguments = {.seconds = 10, .workers = 8}};
	struct stress_agent agent;
	bool clean, spare = false;

	if (argc > 1 && !strcmp(argv[argc - 1], "--spare-gpoold")) {
		spare = true;
		argc--;
	}
	if (argc == 6 && !strcmp(argv[1], "--worker"))
		return worker_main(argv + 2);
	if (!stress_arguments_read(argc, argv, &tormentor.arguments) || tormentor.arguments.workers > WORKERS_MAX)
		return 2;
	tormentor.random = tormentor.arguments.seed;
	if (!stress_agent_start(&agent, PAGES, tormentor.arguments.seed % 2 ? adaptive : NULL))
		return 1;
	tormentor.stage_fd = stage_create();
	if (tormentor.stage_fd < 0)
		return 1;
	tormentor.directory = agent.directory;
	tormentor.keeper = spare ? 0 : agent.keeper;
	stage->broken = tormentor.arguments.broken;
	torment(&tormentor);
	stand_still(&tormentor);
	clean = stress_agent_check(&agent, true);
	leave(&tormentor);
	clean = stress_agent_wait_free(&agent) && clean;
	clean = stress_agent_check(&agent, true) && clean;
	judge(&tormentor, &agent);
	clean = clean && !atomic_load(&stage->wrong);
	if (!was_real(&tormentor, &agent)) {
		printf("something this test is about did not happen\n");
		clean = false;
	}
	clean = stress_agent_stop(&agent, clean || tormentor.arguments.broken);
	if (tormentor.arguments.broken)
		return atomic_load(&stage->wrong) ? 0 : 1;
	return clean ? 0 : 1;
}
