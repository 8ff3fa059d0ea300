#include "tools/demo/conductor.h"

#include "shm/monotonic.h"
#include "shm/plural.h"
#include "tools/demo/monitor.h"
#include "tools/demo/progress.h"
#include "tools/lib/dependent.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
	SAMPLE_US = 100 * 1000,
	LOOK_US = 20 * 1000, /* interval for kills, samples and progress; the end of a process wakes the conductor at
			      * once */
	AGENT_TIMEOUT_MS = 30 * 1000,
	AGENT_POLL_MS = 100,
	STALL_US = 60 * 1000 * 1000, /* the run is aborted if nothing is written for this time */
	CRASHES_MAX = 3,             /* maximum number of restarts of an engine that ends by itself */
};

struct conductor {
	const struct plan *plan;
	struct run *run;
	struct board board;
	struct agent_process agent;
	struct monitor monitor;
	struct progress progress;
	pid_t engines[BOARD_ENGINES]; /* 0: not running */
	uint32_t crashes;
	uint64_t random;
	uint64_t last_arrival_us;
	uint64_t next_kill_us; /* time of the run */
	uint64_t start_us;     /* this and the following times are real time */
	uint64_t next_sample_us;
	uint64_t moved_us, moved_bytes; /* time at which the written bytes last changed, and their number */
	bool stop;
};

static sigset_t watched;

void conductor_signals(void)
{
	sigemptyset(&watched);
	sigaddset(&watched, SIGINT);
	sigaddset(&watched, SIGTERM);
	sigaddset(&watched, SIGQUIT);
	sigaddset(&watched, SIGALRM);
	sigaddset(&watched, SIGHUP);
	sigaddset(&watched, SIGPIPE); /* standard output was closed */
	sigaddset(&watched, SIGCHLD);
	sigprocmask(SIG_BLOCK, &watched, NULL);
}

/* xorshift64*: a seed selects the same kills on any machine. */
static uint64_t random_next(struct conductor *conductor)
{
	uint64_t x = conductor->random;

	x ^= x >> 12;
	x ^= x << 25;
	x ^= x >> 27;
	conductor->random = x;
	return x * UINT64_C(0x2545f4914f6cdd1d);
}

/* Return the time until the next kill: exponentially distributed, within bounds. */
static uint64_t random_interval_us(struct conductor *conductor)
{
	double u = ((double)(random_next(conductor) >> 11) + 0.5) / 9007199254740992.0; /* 2^53 */
	double factor = -log(u);

	factor = factor < 0.25 ? 0.25 : factor > 2 ? 2 : factor;
	return (uint64_t)(conductor->plan->kill_every_s * factor * 1e6);
}

/* ---- the board ---- */

static void fill_requests(struct conductor *conductor)
{
	const struct plan *plan = conductor->plan;
	int64_t first_us, last_us;
	uint32_t n = 0;

	trace_span(plan->traces, BOARD_ENGINES, &first_us, &last_us);
	for (int e = 0; e < BOARD_ENGINES; e++)
		for (uint32_t i = 0; i < plan->traces[e].count; i++) {
			const struct trace_request *from = &plan->traces[e].requests[i];

			conductor->board.requests[n++] = (struct board_request){
				.arrival_us =
					plan_arrival_us(plan, (uint32_t)e, (uint64_t)(from->arrival_us - first_us)),
				.context_tokens = from->context_tokens,
				.generated_tokens = from->generated_tokens,
			};
		}
	conductor->last_arrival_us = (uint64_t)((double)(last_us - first_us) / plan->speed);
}

static int board_fill(struct conductor *conductor)
{
	const struct plan *plan = conductor->plan;
	struct board_header *header;
	uint32_t first = 0, count = 0;
	int error;

	for (int e = 0; e < BOARD_ENGINES; e++)
		count += plan->traces[e].count;
	error = board_create(count, &conductor->board);
	if (error)
		return error;
	header = conductor->board.header;
	header->conductor = (uint32_t)getpid();
	snprintf(header->directory, sizeof header->directory, "%s", conductor->agent.directory);
	header->page_bytes = (uint32_t)plan->page_bytes;
	header->token_bytes = (uint32_t)plan->model.token_bytes;
	header->tokens_per_page = plan->tokens_per_page;
	header->step_us = plan->step_us;
	header->prefill_tokens = PLAN_PREFILL_TOKENS;
	header->reuse_every = PLAN_REUSE_EVERY;
	header->cache_us = (uint64_t)(PLAN_CACHE_S * 1e6 / plan->speed);
	header->seed = plan->seed;
	header->corrupt_at = plan->corrupt_at;
	for (int e = 0; e < BOARD_ENGINES; e++) {
		struct board_engine *engine = &header->engines[e];

		snprintf(engine->name, sizeof engine->name, "%s", plan->traces[e].name);
		snprintf(
			engine->pool, sizeof engine->pool, "%s", conductor->run->split ? plan->traces[e].name : "gpu0");
		engine->first_request = first;
		engine->request_count = plan->traces[e].count;
		first += engine->request_count;
	}
	fill_requests(conductor);
	return 0;
}

static uint32_t engine_open_requests(const struct conductor *conductor, int index)
{
	const struct board_engine *engine = &conductor->board.header->engines[index];
	uint32_t open = 0;

	for (uint32_t i = engine->first_request; i < engine->first_request + engine->request_count; i++)
		open += atomic_load(&conductor->board.marks[i].state) < BOARD_DONE;
	return open;
}

/* ---- processes ---- */

static int engine_start(struct conductor *conductor, int index)
{
	char fd[16], number[16];
	pid_t child = dependent_fork(SIGKILL);

	if (child < 0)
		return -errno;
	if (child > 0) {
		conductor->engines[index] = child;
		return 0;
	}
	setpgid(0, 0);
	child_prepare(conductor->board.fd);
	snprintf(fd, sizeof fd, "%d", conductor->board.fd);
	snprintf(number, sizeof number, "%d", index);
	execl(conductor->plan->program, "gpool-demo", "engine", fd, number, (char *)NULL);
	dprintf(2, "gpool-demo: cannot run '%s': %s\n", conductor->plan->program, strerror(errno));
	_exit(127);
}

/*
 * Record the end of a process. The other engine must not wait for it, and its successor serves its running requests
 * again.
 */
static void engine_lost(struct conductor *conductor, int index)
{
	struct board_engine *engine = &conductor->board.header->engines[index];

	atomic_store(&engine->active, 0);
	atomic_store(&engine->running, 0);
	for (uint32_t i = engine->first_request; i < engine->first_request + engine->request_count; i++) {
		struct board_mark *mark = &conductor->board.marks[i];

		if (atomic_load(&mark->state) != BOARD_RUNNING)
			continue;
		atomic_store(&mark->state, BOARD_OPEN);
		conductor->run->engines[index].restarted++;
	}
}

static void engine_ended(struct conductor *conductor, int index, int status)
{
	bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
	const char *name = conductor->plan->traces[index].name;
	int error;

	conductor->engines[index] = 0;
	engine_lost(conductor, index);
	if (!killed && WIFSIGNALED(status))
		run_error(conductor->run, "engine '%s' was killed by signal %d", name, WTERMSIG(status));
	if (!killed && WIFEXITED(status) && WEXITSTATUS(status) != 0)
		run_error(conductor->run, "engine '%s' ended with status %d", name, WEXITSTATUS(status));
	if (conductor->stop || engine_open_requests(conductor, index) == 0)
		return;
	if (!killed && ++conductor->crashes > CRASHES_MAX) {
		run_error(conductor->run, "engine '%s' ends repeatedly", name);
		conductor->stop = true;
		return;
	}
	error = engine_start(conductor, index);
	if (error) {
		run_error(conductor->run, "cannot restart engine '%s': %s", name, strerror(-error));
		conductor->stop = true;
	}
}

static void reap(struct conductor *conductor)
{
	int status;

	for (int i = 0; i < BOARD_ENGINES; i++)
		if (conductor->engines[i] != 0 &&
			waitpid(conductor->engines[i], &status, WNOHANG) == conductor->engines[i])
			engine_ended(conductor, i, status);
	if (agent_process_ended(&conductor->agent, &status)) {
		run_error(conductor->run, "gpoold ended during the run, with %s %d",
			WIFSIGNALED(status) ? "signal" : "status",
			WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
		conductor->stop = true;
	}
}

static void kill_one(struct conductor *conductor, uint64_t now_us)
{
	int victim = (int)(random_next(conductor) >> 63);

	conductor->next_kill_us = now_us + random_interval_us(conductor);
	if (conductor->engines[victim] == 0)
		victim = !victim;
	if (conductor->engines[victim] == 0)
		return;
	kill(conductor->engines[victim], SIGKILL);
	run_add_kill(conductor->run, &(struct run_kill){.time_us = now_us, .engine = (uint32_t)victim});
}

/* No engine is killed after the last arrival, so that the longest requests can finish. */
static bool kill_is_due(const struct conductor *conductor, uint64_t now_us)
{
	if (conductor->plan->kill_every_s <= 0 || now_us < conductor->next_kill_us)
		return false;
	return now_us < conductor->last_arrival_us || conductor->run->kill_count == 0;
}

static void engines_stop(struct conductor *conductor)
{
	for (int i = 0; i < BOARD_ENGINES; i++)
		if (conductor->engines[i] != 0)
			kill(conductor->engines[i], SIGKILL);
	for (int i = 0; i < BOARD_ENGINES; i++)
		if (conductor->engines[i] != 0) {
			waitpid(conductor->engines[i], NULL, 0);
			conductor->engines[i] = 0;
		}
}

/* ---- the agent ---- */

/* Attach as an observer when the agent serves. The agent ends instead if its configuration is invalid. */
static int agent_await(struct conductor *conductor, const char *const *names, uint32_t count)
{
	int status, error = -ETIMEDOUT;
	char said[768];

	for (int waited_ms = 0; waited_ms < AGENT_TIMEOUT_MS; waited_ms += AGENT_POLL_MS) {
		error = monitor_open(&conductor->monitor, conductor->agent.directory, names, count, AGENT_POLL_MS);
		if (error == 0)
			return 0;
		if (agent_process_ended(&conductor->agent, &status)) {
			error = -ESRCH;
			break;
		}
		if (error != -ENOENT && error != -ETIMEDOUT)
			break;
	}
	agent_process_log_tail(&conductor->agent, said, sizeof said);
	run_error(conductor->run, "cannot attach to gpoold: %s%s%s",
		error == -ESRCH ? "it has ended" : gpool_strerror(error), *said ? "; its log:\n" : "", said);
	return error;
}

static int agent_bring_up(struct conductor *conductor)
{
	const struct plan *plan = conductor->plan;
	bool split = conductor->run->split;
	uint32_t count = split ? BOARD_ENGINES : 1;
	const char *names[BOARD_ENGINES], *pools[BOARD_ENGINES];
	char text[BOARD_ENGINES][256];
	int error;

	for (uint32_t i = 0; i < count; i++) {
		names[i] = split ? plan->traces[i].name : "gpu0";
		snprintf(text[i], sizeof text[i], "name=%s,backend=%s,size=%lluB,page_size=%lluB,reserved=0", names[i],
			plan->backend, (unsigned long long)(plan->page_count / count * plan->page_bytes),
			(unsigned long long)plan->page_bytes);
		pools[i] = text[i];
	}
	error = agent_process_start(&conductor->agent, "gpool-demo", plan->gpoold, pools, count, NULL, plan->keep);
	if (error) {
		run_error(conductor->run, "cannot start '%s': %s", plan->gpoold, strerror(-error));
		return error;
	}
	return agent_await(conductor, names, count);
}

/* ---- the run ---- */

static void sample(struct conductor *conductor)
{
	const char *names[BOARD_ENGINES] = {conductor->plan->traces[0].name, conductor->plan->traces[1].name};
	struct run_sample taken = {.time_us = board_now_us(&conductor->board)};

	conductor->next_sample_us = monotonic_us() + SAMPLE_US;
	if (monitor_sample(&conductor->monitor, names, &taken) != 0) {
		conductor->run->missed_samples++;
		return;
	}
	for (int i = 0; i < BOARD_ENGINES; i++) {
		const struct board_engine *engine = &conductor->board.header->engines[i];

		taken.engines[i].running = atomic_load(&engine->running);
		taken.engines[i].waiting = atomic_load(&engine->waiting);
	}
	run_add_sample(conductor->run, &taken);
}

/*
 * Abort a run without progress: an error in the agent, the library or the demo may make all engines wait forever. A
 * long gap between arrivals is not counted, because no request waits during it.
 */
static void watch_for_stall(struct conductor *conductor, uint64_t now_us)
{
	const struct board_engine *engines = conductor->board.header->engines;
	uint64_t bytes = atomic_load(&engines[0].bytes_written) + atomic_load(&engines[1].bytes_written);
	uint32_t busy = engines[0].running + engines[1].running + engines[0].waiting + engines[1].waiting;

	if (bytes != conductor->moved_bytes || busy == 0) {
		conductor->moved_bytes = bytes;
		conductor->moved_us = now_us;
	} else if (now_us - conductor->moved_us > STALL_US) {
		run_error(conductor->run,
			"no engine made progress for %d s; requests running: %u and %u, waiting: %u and %u",
			STALL_US / 1000000, engines[0].running, engines[1].running, engines[0].waiting,
			engines[1].waiting);
		conductor->stop = true;
	}
}

/* Sleep until the next action may be due. Return false if a signal requests the end. */
static bool pause_for(uint64_t us)
{
	struct timespec timeout = {.tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000) * 1000};
	int signal_number = sigtimedwait(&watched, NULL, &timeout);

	return signal_number < 0 || signal_number == SIGCHLD;
}

static void conduct(struct conductor *conductor)
{
	struct run *run = conductor->run;

	while (!conductor->stop && (conductor->engines[0] != 0 || conductor->engines[1] != 0)) {
		uint64_t now_us = monotonic_us(), run_us = board_now_us(&conductor->board);

		if (kill_is_due(conductor, run_us))
			kill_one(conductor, run_us);
		if (now_us >= conductor->next_sample_us)
			sample(conductor);
		progress_show(&conductor->progress, conductor->plan, run, &conductor->board, false);
		watch_for_stall(conductor, now_us);
		if (!pause_for(LOOK_US)) {
			run->interrupted = true;
			conductor->stop = true;
		}
		reap(conductor);
	}
}

static void take_errors(struct conductor *conductor)
{
	struct run *run = conductor->run;

	for (int i = 0; i < BOARD_ENGINES; i++) {
		struct board_engine *engine = &conductor->board.header->engines[i];
		uint64_t errors = atomic_load(&engine->errors);

		if (errors == 0)
			continue;
		run_error(run, "engine '%s': %s", engine->name,
			atomic_load(&engine->error_ready) ? engine->error_text
							  : "(killed before it reported the error)");
		run->errors += errors - 1;
	}
}

static void finish(struct conductor *conductor)
{
	struct run *run = conductor->run;
	int error;

	run->seconds = (double)board_now_us(&conductor->board) / 1e6;
	run->wall_seconds = (double)(monotonic_us() - conductor->start_us) / 1e6;
	sample(conductor);
	progress_show(&conductor->progress, conductor->plan, run, &conductor->board, true);
	if (run->missed_samples > run->sample_count)
		run_error(run, "gpoold did not answer %llu of %llu status request%s",
			(unsigned long long)run->missed_samples,
			(unsigned long long)(run->missed_samples + run->sample_count),
			plural(run->missed_samples + run->sample_count));
	take_errors(conductor);
	error = monitor_finish(&conductor->monitor, &run->agent);
	if (error)
		run_error(run, "cannot request the final state from gpoold: %s", gpool_strerror(error));
	if (!error && run->agent.findings > 0)
		run_error(run, "the check of the pool found %llu violated invariant%s; %s",
			(unsigned long long)run->agent.findings, plural(run->agent.findings), run->agent.finding);
	if (!error && run->agent.left_pages > 0)
		run_error(run, "%llu page%s %s still leased after all engines have ended",
			(unsigned long long)run->agent.left_pages, plural(run->agent.left_pages),
			be(run->agent.left_pages));
	run_add_up(run, conductor->plan, &conductor->board);
	if (!run->complete)
		run_error(run, "only %llu of %llu request%s finished", (unsigned long long)run->total.finished,
			(unsigned long long)run->total.requests, plural(run->total.requests));
}

static int run_engines(struct conductor *conductor)
{
	struct board_engine *engines = conductor->board.header->engines;
	int error = 0;

	conductor->start_us = monotonic_us();
	conductor->next_kill_us = random_interval_us(conductor);
	/* Set before either engine starts, so that the first one waits for the other. */
	for (int i = 0; i < BOARD_ENGINES; i++)
		atomic_store(&engines[i].active, engines[i].request_count > 0);
	for (int i = 0; !error && i < BOARD_ENGINES; i++)
		if (engines[i].request_count > 0)
			error = engine_start(conductor, i);
	if (error)
		run_error(conductor->run, "cannot start an engine: %s", strerror(-error));
	else
		conduct(conductor);
	engines_stop(conductor);
	if (!error && !conductor->run->interrupted)
		finish(conductor);
	return error;
}

int conductor_run(const struct plan *plan, bool split, struct run *run, struct agent_process *leave)
{
	struct conductor conductor = {.plan = plan, .run = run, .board.fd = -1};
	char complaint[256];
	int error;

	memset(run, 0, sizeof *run);
	run->split = split;
	conductor.random = plan->seed * 2 + 1; /* odd, so never 0 */
	progress_init(&conductor.progress);
	error = agent_bring_up(&conductor);
	if (!error) {
		error = board_fill(&conductor);
		if (error)
			run_error(run, "cannot create the board: %s", strerror(-error));
	}
	if (!error)
		error = run_engines(&conductor);
	progress_end(&conductor.progress);
	monitor_close(&conductor.monitor);
	board_close(&conductor.board);
	if (leave && !error && !run->interrupted) {
		*leave = conductor.agent;
	} else {
		agent_process_stop(&conductor.agent, complaint, sizeof complaint);
		if (*complaint)
			run_error(run, "%s", complaint);
	}
	return error;
}
