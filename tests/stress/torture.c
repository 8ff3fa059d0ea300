/*
 * torture.c - workers, agent, movers and front are killed at any instruction, and workers are also stopped, while the
 * others continue.
 *
 * Goal: whichever process is killed or stopped, no page is lost and no page has two owners. All content that can be
 * pinned is correct. No worker gets an error that its call does not document.
 *
 * Method: the pool is too small for the workers, which have two threads each, so the agent evicts blocks and reclaims
 * idle pages all the time. Each block holds words that are unique to it, which are verified under every pin. Threads of
 * a worker exchange handles, so that both pin, unpin and free the same blocks. Each thread also has an elastic range
 * whose pages it offers and reclaims, and allocations on a stream. A worker is killed every 50 ms on average (250 ms on
 * `cuda`) and replaced by a new one; others are stopped for some time. About once per second, one of gpoold's own
 * processes except the keeper is killed. On the double of the driver with `faults`, devices of workers and movers also
 * fail at random; a worker whose device has failed must end by itself, since no call may hang, and gpool_pin() may
 * return -EIO for spilled content after the failure of movers. With odd seeds, eviction is adaptive. Stale handles are
 * permitted, wrong contents never. At the end, the workers pause, and the agent's check must have no findings. Then
 * they end, half of them by a kill, and every page must be free.
 *
 * With --broken, workers use contents that they have unpinned. Wrong contents must then be found within the default
 * time; otherwise the test could not fail. Such a run ends with the first violation, its last line states the violation
 * or that none was found, and its exit status is 0 if it was found. Without --broken, such a run comes first, in a
 * separate process.
 *
 * usage: torture [SECONDS [SEED]] [--workers N] [--broken] [--spare-gpoold]
 *
 * Requirements: C7, U5, S1, S2, S3.
 */
#include "tests/stress/stress_agent.h"
#include "tests/stress/torture_ranges.h"

enum { PAGES = 512, GPOOLD_KILL_MEAN_MS = 1000 };

static void judge(struct tormentor *tormentor, const struct stress_agent *agent)
{
	const struct counters *c = &stage->counters;
	const struct pool_header *header = agent->header;

	tormentor_show(tormentor);
	printf("%" PRIu64 " agents started; %" PRIu64 " evictions of %" PRIu64 " pages, %" PRIu64 " reclaims, %" PRIu64
	       " refills, %" PRIu64 " deaths\n",
		atomic_load(&header->counters[POOL_COUNT_AGENT_STARTS]),
		atomic_load(&header->counters[POOL_COUNT_EVICTIONS]),
		atomic_load(&header->counters[POOL_COUNT_EVICTED_PAGES]),
		atomic_load(&header->counters[POOL_COUNT_RECLAIMS]), atomic_load(&header->counters[POOL_COUNT_REFILLS]),
		atomic_load(&header->counters[POOL_COUNT_DEATHS]));
	printf("%" PRIu64 " pages spilled, %" PRIu64 " restored, %" PRIu64 " lost\n",
		atomic_load(&header->counters[POOL_COUNT_SPILLED_PAGES]),
		atomic_load(&header->counters[POOL_COUNT_RESTORED_PAGES]),
		atomic_load(&header->counters[POOL_COUNT_SPILL_ERRORS]));
	printf("%" PRIu64 " allocations of %" PRIu64 " pages, %" PRIu64 " refused; %" PRIu64 " contents and %" PRIu64
	       " bytes verified, %" PRIu64 " stale, %" PRIu64 " late\n",
		c->allocations, c->pages, c->refusals, c->verified, c->verified_bytes, c->stale, c->late);
	printf("%" PRIu64 " frees, %" PRIu64 " lost to another, %" PRIu64 " fences, %" PRIu64 " prepared, %" PRIu64
	       " scopes, %" PRIu64 " spans; %u violations\n",
		c->frees, c->lost_frees, c->fences, c->prepared, c->scopes, c->spans, atomic_load(&stage->wrong));
	printf("%" PRIu64 " offers of pages, %" PRIu64 " reclaimed with their content, %" PRIu64 " lost; %" PRIu64
	       " calls of gpool_malloc_async() and gpool_free_async()\n",
		c->offers, c->reclaimed, c->offers_lost, c->mallocs);
	printf("%" PRIu64 " pages published in ranges, %" PRIu64 " mapped by other threads, %" PRIu64 " lost; %" PRIu64
	       " copies by the device; %" PRIu64 " devices lost\n",
		c->published, c->mapped, c->unmapped_lost, c->copies, atomic_load(&stage->devices_lost));
}

/* Return true if the run included evictions, kills and the other events, or was too short for them. */
static bool was_real(const struct tormentor *tormentor)
{
	const struct counters *c = &stage->counters;

	return tormentor->arguments.seconds < 2 ||
		(tormentor->kills &&
			(!tormentor->keeper || tormentor->arguments.seconds < 10 || tormentor->agent_kills) &&
			tormentor->stops && c->verified && c->stale && c->fences && c->lost_frees && c->prepared &&
			c->spans && c->copies && (!devices_fail() || atomic_load(&stage->devices_lost)) &&
			c->reclaimed && c->offers_lost && c->mallocs && c->published && c->mapped &&
			atomic_load(&tormentor->agent->header->counters[POOL_COUNT_EVICTIONS]) &&
			atomic_load(&tormentor->agent->header->counters[POOL_COUNT_RECLAIMS]));
}

/* On a busy machine, a mover may need long to start; gpool_pin() then waits, and fails only with the mover's device. */
#define PATIENCE "mover.patience=10min"
static const char *const lru[] = {PATIENCE, NULL}, *const adaptive[] = {PATIENCE, "eviction.policy=adaptive", NULL};

/* Check that the planted bug was found, and print the violation. */
static bool broken_was_found(void)
{
	for (uint32_t i = 0; i < TEXTS && i < atomic_load(&stage->wrong); i++)
		if (strstr(stage->texts[i], NOT_PINNED)) {
			printf("the planted bug was found: %s\n", stage->texts[i]);
			return true;
		}
	printf("the planted bug was not found\n");
	return false;
}

static bool broken_is_found(void)
{
	pid_t pid = fork();
	int status;

	if (pid == 0) {
		execl("/proc/self/exe", "torture", "--broken", (char *)NULL);
		_exit(1);
	}
	return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int main(int argc, char **argv)
{
	struct tormentor tormentor = {.arguments = {.seconds = 10,
					      .workers = 8,
					      .usage = "[SECONDS [SEED]] [--workers N] [--broken] [--spare-gpoold]"},
		.was_real = was_real};
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
	if (!tormentor.arguments.broken && !broken_is_found()) {
		fprintf(stderr,
			"contents that were relied on without a pin were not found to be wrong: this test proves "
			"nothing\n");
		return 1;
	}
	tormentor.random = tormentor.arguments.seed;
	if (!stress_agent_start(&agent, PAGES, tormentor.arguments.seed % 2 ? adaptive : lru))
		return 1;
	tormentor.stage_fd = stage_create();
	if (tormentor.stage_fd < 0)
		return 1;
	tormentor.agent = &agent;
	tormentor.directory = agent.directory;
	tormentor.keeper = spare ? 0 : agent.keeper;
	tormentor.kill_ms = worker_kill_ms();
	tormentor.gpoold_ms = gpoold_ms(GPOOLD_KILL_MEAN_MS);
	stage->broken = tormentor.arguments.broken;
	torment(&tormentor);
	stand_still(&tormentor);
	clean = stress_agent_check(&agent, true);
	leave(&tormentor);
	clean = objects_delete(&agent) && stress_agent_wait_free(&agent) && clean;
	clean = stress_agent_check(&agent, true) && clean;
	judge(&tormentor, &agent);
	clean = clean && !atomic_load(&stage->wrong);
	if (!tormentor.arguments.broken && !was_real(&tormentor)) {
		printf("something this test is about did not happen\n");
		clean = false;
	}
	clean = stress_agent_stop(&agent, clean || tormentor.arguments.broken);
	if (tormentor.arguments.broken)
		return broken_was_found() ? 0 : 1;
	return clean ? 0 : 1;
}
