/*
 * main.c - gpool-demo: two engines that replay real request traces on one pool of GPU memory and verify every byte; see
 * gpool-demo(1).
 *
 *   main              options and values derived from them
 *   conductor         one run: agent, engines, kills, samples
 *   board             shared memory of the processes
 *   engine            one engine: queue, steps, preemption
 *   kv, prefix_cache  the KV of a request, and of finished ones
 *   model, pattern    bytes per token, content of the KV
 *   run               results
 *   summary, report   table and JSON, HTML
 *   monitor           state of the agent
 *   progress          the line with the progress
 */
#include "shm/plural.h"
#include "tools/demo/conductor.h"
#include "tools/demo/engine.h"
#include "tools/demo/report.h"
#include "tools/demo/summary.h"
#include "tools/lib/agent_process.h"
#include "tools/lib/cli.h"
#include "tools/lib/machine.h"
#include "tools/lib/replace.h"
#include "tools/lib/text.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifndef GPOOL_DATADIR
#define GPOOL_DATADIR "/usr/local/share/gpool"
#endif

enum {
	STATUS_INTERRUPTED = 130,
	LONG_SPAN_S = 1500, /* longer traces are compressed to LONG_RUN_S */
	LONG_RUN_S = 150,
	SHORT_SPEED = 6,
};

struct settings {
	const char *traces[BOARD_ENGINES];
	int trace_count;
	const char *report;
	uint64_t pool_bytes; /* 0: depends on the machine */
	uint64_t duration_us, limit;
	bool no_split, steady, json;
	struct plan plan;
	char command[1024];
	char program[4096], gpoold[4096];
};

enum option_id {
	OPTION_TRACE = OPTION_COMMON,
	OPTION_MODEL,
	OPTION_BACKEND,
	OPTION_POOL_SIZE,
	OPTION_PAGE_SIZE,
	OPTION_SPEED,
	OPTION_LOAD,
	OPTION_DURATION,
	OPTION_LIMIT,
	OPTION_KILL_EVERY,
	OPTION_SEED,
	OPTION_NO_SPLIT,
	OPTION_STEADY,
	OPTION_REPORT,
	OPTION_KEEP,
	OPTION_CORRUPT,
};

static const struct option_spec options[] = {
	OPTION(OPTION_TRACE, 0, "trace", "PATH",
		"Directory with azure_code.csv and azure_conv.csv or, if given twice, two files. The default is the "
		"excerpts that are installed with gpool."),
	OPTION(OPTION_MODEL, 0, "model", "SHAPE",
		"Name of a model, or layers=N,kv_heads=N,head_dim=N,dtype=T. The default is " MODEL_DEFAULT "."),
	OPTION(OPTION_BACKEND, 0, "backend", "NAME",
		"Back end of the pool: host, or cuda with its first device. The default is host."),
	OPTION(OPTION_POOL_SIZE, 0, "pool-size", "SIZE",
		"Size of the shared pool. The default is 2GiB, but at most a quarter of the available memory."),
	OPTION(OPTION_PAGE_SIZE, 0, "page-size", "SIZE",
		"Page size: 512KiB, 1MiB, 2MiB or 4MiB. The default is 512KiB."),
	OPTION(OPTION_SPEED, 0, "speed", "X",
		"Replay arrivals X times as fast as in the traces. The default is 6; traces of more than 1500 s are "
		"replayed in 150 s."),
	OPTION(OPTION_LOAD, 0, "load", "Y",
		"Keep Y times as many requests in flight as at the original rate of the traces. The default is 1.5."),
	OPTION(OPTION_DURATION, 0, "duration", "SECONDS", "Use only the first SECONDS of the traces, in their time."),
	OPTION(OPTION_LIMIT, 0, "limit", "N", "Use only the first N requests of both traces together."),
	OPTION(OPTION_KILL_EVERY, 0, "kill-every", "SECONDS",
		"Mean interval between kills (SIGKILL) of an engine; 0 disables kills. The default is 4."),
	OPTION(OPTION_SEED, 0, "seed", "N",
		"Random seed of the kills and of the choice of prefixes. The default is different each time."),
	OPTION(OPTION_NO_SPLIT, 0, "no-split", NULL, "Run only on the shared pool, not on two halves."),
	OPTION(OPTION_STEADY, 0, "steady", NULL, "Keep the arrivals of the traces; no engine is made idle."),
	OPTION(OPTION_REPORT, 0, "report", "PATH",
		"File of the HTML report. It is replaced atomically, and must be a regular file if it exists. The "
		"default is ./gpool-demo.html."),
	OPTION_ROW_OUTPUT,
	OPTION(OPTION_KEEP, 0, "keep", NULL, "Keep the agent of the shared pool running, and print its directory."),
	OPTION_ROW_QUIET,
	OPTION_ROW_HELP,
	OPTION_ROW_VERSION,
	OPTION(OPTION_CORRUPT, 0, "corrupt", "N", NULL), /* lets a test observe a verification failure */
	OPTIONS_END,
};

static const char *const codes[] = {
	[CODE_OK] = "All requests finished and every byte was verified.",
	[CODE_FAILED] = "A verification or a run failed.",
	[CODE_USAGE] = "The command line or a trace is invalid.",
	NULL,
};

static void models_print(void)
{
	printf("\nModels:");
	for (size_t i = 0; model_list(i); i++)
		printf(" %s (%llu byte%s per token)%s", model_list(i)->name,
			(unsigned long long)model_list(i)->token_bytes, plural(model_list(i)->token_bytes),
			model_list(i + 1) ? "," : "\n");
}

static bool options_read(struct settings *settings, const struct command *command)
{
	const char *const *values = command->values;
	struct plan *plan = &settings->plan;
	char error[MODEL_ERROR_BYTES];
	double seconds;

	settings->traces[0] = command->before[OPTION_TRACE] ? command->before[OPTION_TRACE] : values[OPTION_TRACE];
	settings->traces[1] = values[OPTION_TRACE];
	settings->trace_count = (int)command->times[OPTION_TRACE];
	if (settings->trace_count > BOARD_ENGINES)
		return option_refuse(command, OPTION_TRACE, "is given more than twice");
	if (model_parse(values[OPTION_MODEL] ? values[OPTION_MODEL] : MODEL_DEFAULT, &plan->model, error))
		return option_refuse(command, OPTION_MODEL, "%s", error);
	if (!command_size(command, OPTION_POOL_SIZE, 0, &settings->pool_bytes) ||
		!command_page_size(command, OPTION_PAGE_SIZE, 512 << 10, &plan->page_bytes) ||
		!command_factor(command, OPTION_SPEED, 0.1, 10000, 0, &plan->speed) ||
		!command_factor(command, OPTION_LOAD, 0.01, 10000, 1.5, &plan->load) ||
		!command_factor(command, OPTION_DURATION, 0.001, 1e7, 0, &seconds) ||
		!command_number(command, OPTION_LIMIT, 1, UINT64_MAX, 0, &settings->limit) ||
		!command_factor(command, OPTION_KILL_EVERY, 0, 1e6, 4, &plan->kill_every_s) ||
		!command_number(command, OPTION_SEED, 0, UINT64_MAX, plan->seed, &plan->seed) ||
		!command_number(command, OPTION_CORRUPT, 0, UINT64_MAX, 0, &plan->corrupt_at))
		return false;
	plan->backend = values[OPTION_BACKEND] ? values[OPTION_BACKEND] : "host";
	if (strcmp(plan->backend, "host") && strcmp(plan->backend, "cuda"))
		return option_refuse(command, OPTION_BACKEND, "'%s' is not host or cuda", plan->backend);
	settings->duration_us = (uint64_t)(seconds * 1e6);
	settings->report = values[OPTION_REPORT] ? values[OPTION_REPORT] : "gpool-demo.html";
	if (!replaceable(settings->report))
		return false;
	settings->json = command->json;
	settings->no_split = values[OPTION_NO_SPLIT] != NULL;
	settings->steady = values[OPTION_STEADY] != NULL;
	plan->keep = values[OPTION_KEEP] != NULL;
	plan->quiet = command->quiet;
	return true;
}

/* ---- values derived from the options ---- */

static bool is_directory(const char *path)
{
	struct stat status;

	return stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

/*
 * Find the folder of the trace excerpts: in the source tree, next to the installed program, or in GPOOL_DATADIR.
 * Return: 0 or -ENOENT.
 */
static int find_excerpts(const struct settings *settings, char *path, size_t path_bytes)
{
	static const char *const places[] = {
		"../tools/demo/traces", "../../tools/demo/traces", "../share/gpool/traces"};
	int directory_length = (int)(strrchr(settings->program, '/') - settings->program);

	for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
		snprintf(path, path_bytes, "%.*s/%s", directory_length, settings->program, places[i]);
		if (is_directory(path))
			return 0;
	}
	snprintf(path, path_bytes, "%s/traces", GPOOL_DATADIR);
	return is_directory(path) ? 0 : -ENOENT;
}

static int traces_read(struct settings *settings)
{
	static const char *const names[BOARD_ENGINES] = {"azure_code.csv", "azure_conv.csv"};
	struct plan *plan = &settings->plan;
	char directory[4200] = "", paths[BOARD_ENGINES][4300], error[TRACE_ERROR_BYTES];

	if (settings->trace_count == 0 && find_excerpts(settings, directory, sizeof directory)) {
		complain("cannot find the installed trace excerpts; specify --trace PATH");
		return -ENOENT;
	}
	if (settings->trace_count == 1)
		snprintf(directory, sizeof directory, "%s", settings->traces[0]);
	for (int i = 0; i < BOARD_ENGINES; i++) {
		if (*directory)
			snprintf(paths[i], sizeof paths[i], "%s/%s", directory, names[i]);
		else
			snprintf(paths[i], sizeof paths[i], "%s", settings->traces[i]);
		if (trace_load(paths[i], &plan->traces[i], error)) {
			complain("%s", error);
			return -EINVAL;
		}
	}
	if (strcmp(plan->traces[0].name, plan->traces[1].name) == 0) {
		complain("both traces have the name '%s', after which an engine is named; rename one file",
			plan->traces[0].name);
		return -EINVAL;
	}
	if (settings->trace_count == 0)
		snprintf(plan->trace_source, sizeof plan->trace_source, "the excerpts that are part of gpool");
	else
		snprintf(plan->trace_source, sizeof plan->trace_source, "%.*s", (int)sizeof plan->trace_source - 1,
			*directory ? directory : paths[0]);
	trace_cut(plan->traces, BOARD_ENGINES, settings->duration_us, settings->limit);
	return 0;
}

/* Check that every request fits into the pool. A request that does not fit would wait forever. */
static int largest_request_fits(const struct settings *settings)
{
	const struct plan *plan = &settings->plan;
	uint32_t room = settings->no_split ? plan->page_count : plan->page_count / BOARD_ENGINES;

	for (int e = 0; e < BOARD_ENGINES; e++)
		for (uint32_t i = 0; i < plan->traces[e].count; i++) {
			const struct trace_request *request = &plan->traces[e].requests[i];
			/* A prefix whose end is not used needs one more page. */
			uint32_t pages = 1 +
				model_pages((uint64_t)request->context_tokens + request->generated_tokens,
					plan->tokens_per_page);

			if (pages <= room)
				continue;
			complain("request %u of '%s' needs %u page%s, but an engine can have at most %u; use a larger "
				 "--pool-size or a smaller --model",
				i + 1, plan->traces[e].name, pages, plural(pages), room);
			return -EINVAL;
		}
	return 0;
}

static int pool_choose(struct settings *settings)
{
	struct plan *plan = &settings->plan;
	uint64_t available = machine_available_bytes(), bytes = settings->pool_bytes;

	if (bytes == 0) {
		bytes = UINT64_C(2) << 30;
		if (available > 0 && bytes > available / 4)
			bytes = available / 4;
	}
	plan->page_count = (uint32_t)(bytes / plan->page_bytes) / BOARD_ENGINES * BOARD_ENGINES;
	plan->tokens_per_page = model_tokens_per_page(&plan->model, plan->page_bytes);
	if (plan->tokens_per_page == 0) {
		complain("a token of this model needs %llu byte%s, more than a page; use a larger --page-size",
			(unsigned long long)plan->model.token_bytes, plural(plan->model.token_bytes));
		return -EINVAL;
	}
	if (plan->page_count < 16) {
		complain("a pool of %u page%s is too small; use a --pool-size of at least 16 pages", plan->page_count,
			plural(plan->page_count));
		return -EINVAL;
	}
	return largest_request_fits(settings);
}

static void pace_choose(struct plan *plan, bool steady)
{
	int64_t first_us, last_us;
	double span;

	trace_span(plan->traces, BOARD_ENGINES, &first_us, &last_us);
	span = (double)(last_us - first_us) / 1e6;
	if (plan->speed <= 0)
		plan->speed = span > LONG_SPAN_S ? span / LONG_RUN_S : SHORT_SPEED;
	plan->step_us = (uint32_t)(PLAN_STEP_US * plan->load / plan->speed);
	if (plan->step_us == 0)
		plan->step_us = 1;
	if (!steady)
		plan->idle_from_us = plan->idle_us = (uint64_t)(span * 1e6 / plan->speed / PLAN_IDLE_PARTS);
}

static int plan_make(struct settings *settings)
{
	struct plan *plan = &settings->plan;
	int error;

	if (!*settings->program) {
		complain("cannot read /proc/self/exe");
		return -ENOENT;
	}
	if (agent_process_program(settings->gpoold, sizeof settings->gpoold)) {
		complain("cannot find gpoold in the directory of this program or in ../sbin; set GPOOLD to its path");
		return -ENOENT;
	}
	plan->program = settings->program;
	plan->gpoold = settings->gpoold;
	error = traces_read(settings);
	if (!error)
		error = pool_choose(settings);
	if (!error)
		pace_choose(plan, settings->steady);
	return error;
}

/* ---- the program ---- */

static void header_print(const struct settings *settings)
{
	const struct plan *plan = &settings->plan;
	uint64_t tokens = trace_tokens(&plan->traces[0]) + trace_tokens(&plan->traces[1]);
	int64_t first_us, last_us;
	char a[TEXT_BYTES], b[TEXT_BYTES], c[TEXT_BYTES];

	trace_span(plan->traces, BOARD_ENGINES, &first_us, &last_us);
	printf("traces  %s %s, %s %s requests of %s; ", plan->traces[0].name, text_count(a, plan->traces[0].count),
		plan->traces[1].name, text_count(b, plan->traces[1].count),
		text_seconds(c, (uint64_t)(last_us - first_us)));
	printf("%s tokens; %s\n", text_rate(a, (double)tokens), plan->trace_source);
	printf("model   %s: %u layer%s, %u KV heads of %u, %s: %s bytes of KV per token, %u token%s per page\n",
		plan->model.name, plan->model.layers, plural(plan->model.layers), plan->model.kv_heads,
		plan->model.head_dim, plan->model.dtype, text_count(a, plan->model.token_bytes), plan->tokens_per_page,
		plural(plan->tokens_per_page));
	printf("pool    %s pages of %s, %s on the %s back end, room for %s tokens\n", text_count(a, plan->page_count),
		text_bytes(b, plan->page_bytes), text_bytes(c, plan->page_count * plan->page_bytes), plan->backend,
		text_rate((char[TEXT_BYTES]){0}, (double)plan->page_count * plan->tokens_per_page));
	printf("pace    arrivals %.3g times as fast as in the traces, one step of all running requests every %s: %.3g "
	       "times the original load\n",
		plan->speed, text_seconds(a, plan->step_us), plan->load);
	if (plan->idle_us > 0)
		printf("idle    no requests arrive for %s from %.1f s on, and for %s from %.1f s on, for %.1f s each; "
		       "meanwhile twice as many arrive for the other engine\n",
			plan->traces[0].name, (double)plan_idle_from_us(plan, 0) / 1e6, plan->traces[1].name,
			(double)plan_idle_from_us(plan, 1) / 1e6, (double)plan->idle_us / 1e6);
	printf("work    at least %s of KV are written and verified in each run\n",
		text_bytes(a, tokens * plan->model.token_bytes));
	if (plan->kill_every_s > 0)
		printf("kills   an engine every %.3g s on average, until the last request has arrived; seed %llu\n",
			plan->kill_every_s, (unsigned long long)plan->seed);
	else
		printf("kills   none; seed %llu\n", (unsigned long long)plan->seed);
	output_flush();
}

static void run_complain(const struct run *run)
{
	if (run->errors > 0)
		complain("%llu error%s on %s; the first: %s", (unsigned long long)run->errors, plural(run->errors),
			run->split ? "two halves" : "the shared pool", run->error_text);
}

static int results_show(const struct settings *settings, const struct run *shared, const struct run *split)
{
	char machine[256], date[64];
	time_t now = time(NULL);
	struct summary_frame frame = {&settings->plan, settings->command, machine, date, settings->report};
	struct tm local;
	int error;

	machine_describe(machine, sizeof machine);
	strftime(date, sizeof date, "%Y-%m-%d %H:%M:%S %z", localtime_r(&now, &local));
	error = report_write(&frame, shared, split);
	if (error)
		complain("cannot write the report '%s': %s", settings->report, strerror(-error));
	if (settings->json) {
		summary_json(stdout, &frame, shared, split);
	} else {
		fputc('\n', stdout);
		summary_print(stdout, shared, split);
		if (!error)
			printf("\nreport  %s\n", settings->report);
	}
	return error;
}

static void kept_tell(const struct agent_process *agent)
{
	complain("the agent continues to run as process %d\n            inspect it:  poolctl --dir %s status\n         "
		 "   end it:  kill %d; then remove %s",
		(int)agent->pid, agent->directory, (int)agent->pid, agent->root);
}

static int demo_run(const struct settings *settings)
{
	struct run shared = {0}, split = {0};
	struct agent_process kept = {0};
	bool with_split = !settings->no_split;
	int error, status = CODE_OK;

	conductor_signals();
	if (!settings->json)
		header_print(settings);
	error = conductor_run(&settings->plan, false, &shared, settings->plan.keep ? &kept : NULL);
	if (!error && !shared.interrupted && with_split) {
		struct plan plan = settings->plan;

		plan.keep = false;
		error = conductor_run(&plan, true, &split, NULL);
	}
	run_complain(&shared);
	run_complain(&split);
	if (shared.interrupted || split.interrupted) {
		complain("interrupted; all processes have ended");
		status = STATUS_INTERRUPTED;
	} else if (error || results_show(settings, &shared, with_split ? &split : NULL)) {
		status = CODE_FAILED;
	}
	if (status == CODE_OK && (shared.errors > 0 || split.errors > 0))
		status = CODE_FAILED;
	if (kept.pid)
		kept_tell(&kept);
	run_destroy(&shared);
	run_destroy(&split);
	return status;
}

static struct settings settings;

static void command_note(int argc, char **argv)
{
	size_t length = (size_t)snprintf(settings.command, sizeof settings.command, "gpool-demo");

	for (int i = 1; i < argc && length < sizeof settings.command; i++)
		length += (size_t)snprintf(settings.command + length, sizeof settings.command - length, " %s", argv[i]);
}

static int run(const struct command *command)
{
	struct timespec now;
	int code;

	clock_gettime(CLOCK_REALTIME, &now);
	settings.plan.seed = (uint64_t)now.tv_nsec ^ (uint64_t)now.tv_sec << 8 ^ (uint64_t)getpid() << 32;
	settings.plan.seed &= 0x7fffffff; /* short enough to type */
	if (readlink("/proc/self/exe", settings.program, sizeof settings.program - 1) < 0)
		settings.program[0] = '\0';
	if (!options_read(&settings, command) || plan_make(&settings))
		return CODE_USAGE;
	code = demo_run(&settings);
	trace_free(&settings.plan.traces[0]);
	trace_free(&settings.plan.traces[1]);
	return code;
}

int main(int argc, char **argv)
{
	static const struct program demo = {
		.name = "gpool-demo",
		.usage = "[OPTION]...",
		.summary = "Replays request traces with two engines on one gpool agent. The engines write and verify "
			   "every byte of their KV, and are killed at random times. The run is then repeated on two "
			   "fixed halves of the memory.",
		.options = options,
		.codes = codes,
		.help_end = models_print,
	};

	if (argc == 4 && strcmp(argv[1], "engine") == 0)
		return engine_main(atoi(argv[2]), (uint32_t)atoi(argv[3]));
	command_note(argc, argv);
	return command_run(&demo, argc, argv, run);
}
