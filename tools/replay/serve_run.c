/*
 * serve_run.c - one run: an agent, engine processes, and their turns.
 *
 * The engine with the earliest simulated clock executes a step while the others wait, so engines never compute
 * concurrently. If an engine dies, that is reported, and the others continue.
 */
#include "tools/replay/serve.h"

#include "shm/monotonic.h"
#include "tools/lib/dependent.h"
#include "tools/lib/text.h"
#include "tools/replay/pool.h"
#include "tools/replay/replay.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
	ANSWER_MS = 120000, /* for a step, even on a loaded machine */
	/*
	 * consecutive turns without a computation in any engine, after which the agent is assumed to have no more
	 * memory
	 */
	STUCK_TURNS = 2000,
	PROGRESS_MS = 250,        /* interval of the progress line on a terminal, where it is rewritten */
	PROGRESS_PLAIN_MS = 2000, /* elsewhere, where each is a new line */
};

const char *const serve_growths[] = {"incremental", "mean", "oracle", NULL};
const char *const serve_policies[] = {"lru", "adaptive", NULL};
#define SERVE_COUNT_NAME(name) #name,
const char *const serve_count_names[SERVE_COUNT_END] = {SERVE_COUNTS(SERVE_COUNT_NAME)};
#undef SERVE_COUNT_NAME

struct part {
	pid_t pid;
	int channel; /* -1: the engine has ended */
	struct serve_answer answer;
};

struct run {
	const struct serve_setup *setup;
	struct serve_result *result;
	struct replay_pool pool;
	struct part parts[SERVE_ENGINES_MAX];
	uint32_t idle_turns; /* turns after the last computation */
	uint64_t begin_ns, shown_ns;
	bool terminal, shown;
};

/* ---- results ---- */

static void curve_add(struct serve_curve *curve, double x, double y)
{
	if (curve->count && x < curve->x[curve->count - 1] + curve->step)
		return;
	if (curve->count == SERVE_CURVE_POINTS) {
		for (curve->count = 0; curve->count < SERVE_CURVE_POINTS / 2; curve->count++) {
			curve->x[curve->count] = curve->x[2 * curve->count];
			curve->y[curve->count] = curve->y[2 * curve->count];
		}
		curve->step = 2 * x / SERVE_CURVE_POINTS;
	}
	curve->x[curve->count] = x;
	curve->y[curve->count++] = y;
}

/* Evaluate an answer. The previous answer is valid until this one. */
static void answer_take(struct run *run, uint32_t index, const struct serve_answer *answer)
{
	struct serve_engine_result *engine = &run->result->engines[index];
	struct part *part = &run->parts[index];
	uint32_t pages = 0;

	engine->page_us += (double)(answer->clock_us - part->answer.clock_us) * answer->used_pages;
	part->answer = *answer;
	engine->clock_us = answer->clock_us;
	memcpy(engine->counts, answer->counts, sizeof(engine->counts));
	if (answer->used_pages > engine->peak_pages)
		engine->peak_pages = answer->used_pages;
	if (answer->lent_pages > run->result->peak_lent_pages)
		run->result->peak_lent_pages = answer->lent_pages;
	for (uint32_t i = 0; i < run->setup->engines; i++)
		pages += run->parts[i].answer.used_pages;
	if (pages > run->result->peak_pages)
		run->result->peak_pages = pages;
	curve_add(&engine->curve, (double)answer->clock_us / 1e6, answer->used_pages);
	run->idle_turns = answer->went ? 0 : run->idle_turns + 1;
}

static void result_sum(struct run *run)
{
	struct serve_result *result = run->result;
	double page_us = 0;

	for (uint32_t i = 0; i < run->setup->engines; i++) {
		const struct serve_engine_result *engine = &result->engines[i];

		if (engine->clock_us > result->duration_us)
			result->duration_us = engine->clock_us;
		page_us += engine->page_us;
		for (int count = 0; count < SERVE_COUNT_END; count++)
			result->counts[count] += engine->counts[count];
	}
	result->mean_pages = result->duration_us ? page_us / (double)result->duration_us : 0;
	result->real_ns = monotonic_ns() - run->begin_ns;
}

static void progress_show(struct run *run)
{
	uint64_t now_ns = monotonic_ns(), done = 0, clock_us = 0;
	char now[TEXT_BYTES], all[TEXT_BYTES];

	if (!run->setup->progress ||
		now_ns - run->shown_ns < (run->terminal ? PROGRESS_MS : PROGRESS_PLAIN_MS) * UINT64_C(1000000))
		return;
	for (uint32_t i = 0; i < run->setup->engines; i++) {
		done += run->parts[i].answer.counts[SERVE_finished] + run->parts[i].answer.counts[SERVE_refused];
		if (run->parts[i].answer.clock_us > clock_us)
			clock_us = run->parts[i].answer.clock_us;
	}
	fprintf(stderr, "%s%s of %s requests, %.0f simulated seconds%s", run->terminal ? "\r\033[K" : "",
		text_count(now, done), text_count(all, run->setup->trace->request_count), (double)clock_us / 1e6,
		run->terminal ? "" : "\n");
	run->shown = true;
	run->shown_ns = now_ns;
}

/* ---- engines ---- */

static int engine_start(struct run *run, uint32_t index)
{
	struct part *part = &run->parts[index];
	int ends[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends))
		return -errno;
	fflush(NULL);
	part->pid = dependent_fork(SIGKILL);
	if (part->pid == 0) {
		for (uint32_t i = 0; i < index; i++)
			close(run->parts[i].channel);
		close(ends[0]);
		_exit(serve_engine(run->setup, index, run->pool.agent.directory, ends[1]));
	}
	close(ends[1]);
	part->channel = part->pid < 0 ? -1 : ends[0];
	run->result->engines[index].pid = part->pid;
	if (part->pid > 0)
		return 0;
	close(ends[0]);
	return -EAGAIN;
}

static void engine_stop(struct part *part, int *status)
{
	struct pollfd end = {.fd = part->channel};

	shutdown(part->channel, SHUT_WR);
	if (poll(&end, 1, ANSWER_MS) == 0)
		kill(part->pid, SIGKILL);
	close(part->channel);
	part->channel = -1;
	waitpid(part->pid, status, 0);
}

static void engine_failed(struct run *run, uint32_t index, const char *why)
{
	struct serve_engine_result *engine = &run->result->engines[index];
	struct part *part = &run->parts[index];
	int status = 0;

	engine->failed = true;
	part->answer.used_pages = 0;
	engine_stop(part, &status);
	if (*why)
		snprintf(engine->text, sizeof(engine->text), "%s", why);
	else if (WIFSIGNALED(status))
		snprintf(engine->text, sizeof(engine->text), "was killed by signal %d", WTERMSIG(status));
	else
		snprintf(engine->text, sizeof(engine->text), "ended with status %d", WEXITSTATUS(status));
	if (run->shown && run->terminal)
		fputs("\r\033[K", stderr);
	complain("engine %" PRIu32 " (process %d) %s, with %" PRIu64 " of its %" PRIu64 " requests finished", index,
		(int)part->pid, engine->text, engine->counts[SERVE_finished], engine->counts[SERVE_requests]);
}

/* Receive an engine's next answer. Return: 0 or -EINTR. An engine that does not answer is excluded. */
static int engine_hear(struct run *run, uint32_t index)
{
	struct part *part = &run->parts[index];
	struct pollfd look = {.fd = part->channel, .events = POLLIN};
	struct serve_answer answer;
	int ready = poll(&look, 1, ANSWER_MS);

	if (ready < 0)
		return -errno;
	if (!ready) {
		kill(part->pid, SIGKILL);
		engine_failed(run, index, "did not answer for two minutes");
	} else if (recv(part->channel, &answer, sizeof(answer), 0) != sizeof(answer)) {
		engine_failed(run, index, "");
	} else {
		answer_take(run, index, &answer);
		if (answer.state == SERVE_FAILED)
			engine_failed(run, index, answer.text);
	}
	return 0;
}

static int engine_ask(struct run *run, uint32_t index, const struct serve_order *order)
{
	/* If the engine has died, receiving the answer detects it. */
	send(run->parts[index].channel, order, sizeof(*order), MSG_NOSIGNAL);
	return engine_hear(run, index);
}

/* ---- turns ---- */

static bool is_serving(const struct part *part)
{
	return part->channel >= 0 && part->answer.state != SERVE_DONE;
}

/* Return the engine with the earliest clock; NULL: all have finished. */
static struct part *turn_next(struct run *run)
{
	struct part *next = NULL;

	for (uint32_t i = 0; i < run->setup->engines; i++)
		if (is_serving(&run->parts[i]) && (!next || run->parts[i].answer.clock_us < next->answer.clock_us))
			next = &run->parts[i];
	return next;
}

static int turns_take(struct run *run)
{
	struct part *part;
	int error = 0;

	while (!error && !interrupted && (part = turn_next(run))) {
		const struct serve_order order = {.verb = run->idle_turns > STUCK_TURNS ? SERVE_GIVE_UP : SERVE_STEP};
		uint32_t index = (uint32_t)(part - run->parts);

		error = engine_ask(run, index, &order);
		if (order.verb == SERVE_GIVE_UP)
			run->idle_turns = 0;
		progress_show(run);
	}
	return interrupted ? -EINTR : error;
}

static int engines_start(struct run *run)
{
	int error = 0;

	for (uint32_t i = 0; i < run->setup->engines && !error; i++)
		error = engine_start(run, i);
	if (error)
		complain("cannot start an engine: %s", strerror(-error));
	for (uint32_t i = 0; i < run->setup->engines && !error; i++) {
		error = engine_hear(run, i);
		if (run->setup->progress && run->parts[i].channel >= 0)
			fprintf(stderr, "engine %" PRIu32 " is process %d\n", i, (int)run->parts[i].pid);
	}
	return error;
}

static void engines_stop(struct run *run)
{
	int status;

	for (uint32_t i = 0; i < run->setup->engines; i++)
		if (run->parts[i].channel >= 0)
			engine_stop(&run->parts[i], &status);
}

/* Check that the agent serves before the engines are started. */
static int pool_begin(struct run *run)
{
	struct gpool *handle;
	int error = replay_pool_start(&run->pool);

	if (!error)
		error = replay_pool_open(&run->pool, &handle);
	if (error)
		return error;
	run->result->pool_pages = gpool_page_count(handle);
	gpool_close(handle);
	return 0;
}

int serve_run(const struct serve_setup *setup, struct serve_result *result)
{
	struct run *run = calloc(1, sizeof(*run));
	int error;

	if (!run) {
		complain("no memory");
		return -ENOMEM;
	}
	memset(result, 0, sizeof(*result));
	*run = (struct run){.setup = setup, .result = result, .terminal = isatty(STDERR_FILENO)};
	run->pool = (struct replay_pool){.bytes = setup->pool_bytes, .page_bytes = setup->page_bytes};
	for (int i = 0; i < SERVE_ENGINES_MAX; i++)
		run->parts[i].channel = -1;
	/* The order of shared blocks is the agent's policy. */
	run->pool.setting = setup->adaptive ? "eviction.policy=adaptive" : NULL;
	run->begin_ns = run->shown_ns = monotonic_ns();
	error = pool_begin(run);
	if (!error)
		error = engines_start(run);
	if (!error)
		error = turns_take(run);
	if (run->shown && run->terminal)
		fputs("\r\033[K", stderr);
	engines_stop(run);
	replay_pool_stop(&run->pool);
	result_sum(run);
	free(run);
	return error;
}
