/*
 * gpool-demo - two engines replay real request traces on one pool of GPU memory and verify every byte; see
 * gpool-demo(1).
 *
 *   main       options and what follows from them            trace, model, pattern   requests, bytes a token, bytes of
 *              KV
 *   conductor  one run: agent, engines, kills, samples       engine                  one engine: queue, steps,
 *              preemption
 *   board      what they share                               kv, prefix_cache        the KV of a request, and of
 *              finished ones
 *   run        results                                       summary, report         table, JSON, HTML
 *   monitor    what the agent says                           progress
 */
#include "tools/demo/conductor.h"
#include "tools/demo/engine.h"
#include "tools/demo/report.h"
#include "tools/demo/summary.h"
#include "tools/lib/agent_process.h"
#include "tools/lib/machine.h"
#include "tools/lib/output_end.h"
#include "tools/lib/text.h"

#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifndef GPOOL_VERSION
#define GPOOL_VERSION "unknown"
#endif
#ifndef GPOOL_DATADIR
#define GPOOL_DATADIR "/usr/local/share/gpool"
#endif

enum {
	STATUS_OK = 0,
	STATUS_FAILED = 1,
	STATUS_USAGE = 2,
	STATUS_INTERRUPTED = 130,
	LONG_SPAN_S = 1500, /* from here on a trace is compressed into LONG_RUN_S */
	LONG_RUN_S = 150,
	SHORT_SPEED = 6,
};

struct settings {
	const char *traces[BOARD_ENGINES];
	int trace_count;
	const char *report;
	uint64_t pool_bytes; /* 0: by the machine */
	uint64_t duration_us, limit;
	bool no_split, steady, json;
	struct plan plan;
	char command[1024];
	char program[4096], gpoold[4096];
};

/* One table for parsing, --help and the defaults it tells. */
enum option_id {
	OPT_TRACE = 256,
	OPT_MODEL,
	OPT_POOL_SIZE,
	OPT_PAGE_SIZE,
	OPT_SPEED,
	OPT_LOAD,
	OPT_DURATION,
	OPT_LIMIT,
	OPT_KILL_EVERY,
	OPT_SEED,
	OPT_NO_SPLIT,
	OPT_STEADY,
	OPT_REPORT,
	OPT_OUTPUT,
	OPT_KEEP,
	OPT_QUIET,
	OPT_HELP,
	OPT_VERSION,
	OPT_CORRUPT,
};

/* clang-format off */
static const struct option_text {
	enum option_id id;
	const char *name, *argument, *help; /* help NULL: not told */
} options[] = {
	{ OPT_TRACE, "trace", "PATH", "folder with azure_code.csv and azure_conv.csv, or a file, twice (excerpts)" },
	{ OPT_MODEL, "model", "SHAPE", "a model, or layers=N,kv_heads=N,head_dim=N,dtype=T (" MODEL_DEFAULT ")" },
	{ OPT_POOL_SIZE, "pool-size", "SIZE", "of the shared pool (2GiB, but at most a quarter of the free memory)" },
	{ OPT_PAGE_SIZE, "page-size", "SIZE", "512KiB, 1MiB, 2MiB or 4MiB (512KiB)" },
	{ OPT_SPEED, "speed", "X", "arrivals come X times as fast (6, or what makes a long trace last 150 s)" },
	{ OPT_LOAD, "load", "Y", "Y times as many requests in flight as at the trace's pace (1.5)" },
	{ OPT_DURATION, "duration", "SECONDS", "only the first seconds of the traces, at their pace" },
	{ OPT_LIMIT, "limit", "N", "only the first N requests" },
	{ OPT_KILL_EVERY, "kill-every", "SECONDS", "kill -9 an engine so often on average; 0: never (4)" },
	{ OPT_SEED, "seed", "N", "of kills and choices (a new one each time)" },
	{ OPT_NO_SPLIT, "no-split", NULL, "only the shared pool, not also two halves" },
	{ OPT_STEADY, "steady", NULL, "arrivals as in the traces, without a time in which an engine has no requests" },
	{ OPT_REPORT, "report", "PATH", "where the HTML report goes (./gpool-demo.html)" },
	{ OPT_OUTPUT, "output", "FORMAT", "also -o: table or json (table)" },
	{ OPT_KEEP, "keep", NULL, "leave the agent of the shared pool running, and say where" },
	{ OPT_QUIET, "quiet", NULL, "no progress" },
	{ OPT_HELP, "help", NULL, "this text" },
	{ OPT_VERSION, "version", NULL, "version" },
	{ OPT_CORRUPT, "corrupt", "N", NULL }, /* lets a test see verification fail */
};
/* clang-format on */
enum { OPTIONS = sizeof options / sizeof options[0] };

static void help_print(void)
{
	printf("usage: gpool-demo [OPTION ...]\n\n"
	       "Two engines replay request traces on one gpool agent, write and verify every byte of their KV, and are "
	       "killed\n"
	       "now and then. Then the same on two fixed halves of the memory. Exit status 0 only when everything "
	       "verified.\n\n");
	for (int i = 0; i < OPTIONS; i++) {
		char left[32];

		if (!options[i].help)
			continue;
		snprintf(left, sizeof left, "--%s%s%s", options[i].name, options[i].argument ? " " : "",
			options[i].argument ? options[i].argument : "");
		printf("  %-22s %s\n", left, options[i].help);
	}
	printf("\nmodels:");
	for (size_t i = 0; model_list(i); i++)
		printf(" %s (%llu bytes a token)%s", model_list(i)->name,
			(unsigned long long)model_list(i)->token_bytes, model_list(i + 1) ? "," : "\n");
}

/* ---- values ---- */

static int bad_value(const char *option, const char *value, const char *wanted)
{
	fprintf(stderr, "gpool-demo: --%s %s: %s\n", option, value, wanted);
	return -EINVAL;
}

static int number_value(const char *option, const char *text, double least, double most, double *value)
{
	char *end, wanted[96];

	errno = 0;
	*value = strtod(text, &end);
	if (end != text && *end == '\0' && errno == 0 && *value >= least && *value <= most)
		return 0;
	snprintf(wanted, sizeof wanted, "a number from %g to %g is needed", least, most);
	return bad_value(option, text, wanted);
}

static int count_value(const char *option, const char *text, uint64_t *value)
{
	char *end;

	errno = 0;
	*value = strtoull(text, &end, 10);
	if (*text >= '0' && *text <= '9' && *end == '\0' && errno == 0)
		return 0;
	return bad_value(option, text, "a whole number is needed");
}

static int size_value(const char *option, const char *text, uint64_t *value)
{
	return text_size(text, value) ? 0 : bad_value(option, text, "a size such as 512KiB or 2GiB is needed");
}

static int option_set(struct settings *settings, enum option_id id, const char *name, const char *value)
{
	struct plan *plan = &settings->plan;
	char error[MODEL_ERROR_BYTES];

	switch (id) {
	case OPT_TRACE:
		if (settings->trace_count == BOARD_ENGINES)
			return bad_value(name, value, "at most two");
		settings->traces[settings->trace_count++] = value;
		return 0;
	case OPT_MODEL: return model_parse(value, &plan->model, error) ? bad_value(name, value, error) : 0;
	case OPT_POOL_SIZE: return size_value(name, value, &settings->pool_bytes);
	case OPT_PAGE_SIZE:
		if (size_value(name, value, &plan->page_bytes))
			return -EINVAL;
		for (uint64_t bytes = 512 << 10; bytes <= 4 << 20; bytes *= 2)
			if (plan->page_bytes == bytes)
				return 0;
		return bad_value(name, value, "512KiB, 1MiB, 2MiB or 4MiB");
	case OPT_SPEED: return number_value(name, value, 0.1, 10000, &plan->speed);
	case OPT_LOAD: return number_value(name, value, 0.01, 10000, &plan->load);
	case OPT_DURATION: {
		double seconds;

		if (number_value(name, value, 0.001, 1e7, &seconds))
			return -EINVAL;
		settings->duration_us = (uint64_t)(seconds * 1e6);
		return 0;
	}
	case OPT_LIMIT:
		if (count_value(name, value, &settings->limit))
			return -EINVAL;
		return settings->limit > 0 ? 0 : bad_value(name, value, "at least 1");
	case OPT_KILL_EVERY: return number_value(name, value, 0, 1e6, &plan->kill_every_s);
	case OPT_SEED: return count_value(name, value, &plan->seed);
	case OPT_CORRUPT: return count_value(name, value, &plan->corrupt_at);
	case OPT_REPORT: settings->report = value; return 0;
	case OPT_OUTPUT:
		settings->json = strcmp(value, "json") == 0;
		return settings->json || strcmp(value, "table") == 0 ? 0 : bad_value(name, value, "table or json");
	case OPT_NO_SPLIT: settings->no_split = true; return 0;
	case OPT_STEADY: settings->steady = true; return 0;
	case OPT_KEEP: plan->keep = true; return 0;
	case OPT_QUIET: plan->quiet = true; return 0;
	case OPT_HELP: help_print(); exit(output_end("gpool-demo", STATUS_OK));
	case OPT_VERSION: printf("gpool-demo %s\n", GPOOL_VERSION); exit(output_end("gpool-demo", STATUS_OK));
	}
	return -EINVAL;
}

static int options_read(struct settings *settings, int argc, char **argv)
{
	struct option table[OPTIONS + 1] = {{0}};
	int id;

	for (int i = 0; i < OPTIONS; i++)
		table[i] = (struct option){options[i].name, options[i].argument ? required_argument : no_argument, NULL,
			(int)options[i].id};
	while ((id = getopt_long(argc, argv, "ho:", table, NULL)) >= 0) {
		enum option_id known = id == 'h' ? OPT_HELP : id == 'o' ? OPT_OUTPUT : (enum option_id)id;

		if (id == '?')
			return -EINVAL;
		if (option_set(
			    settings, known, known == OPT_OUTPUT ? "output" : options[known - OPT_TRACE].name, optarg))
			return -EINVAL;
	}
	if (optind < argc) {
		fprintf(stderr, "gpool-demo: what is '%s'? See --help\n", argv[optind]);
		return -EINVAL;
	}
	return 0;
}

/* ---- what follows from the options ---- */

static bool is_directory(const char *path)
{
	struct stat status;

	return stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

/* The folder of the excerpts: in the source tree, beside the installed program, or where the build says. */
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
		fprintf(stderr, "gpool-demo: cannot find the excerpts of the traces; give --trace PATH\n");
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
			fprintf(stderr, "gpool-demo: %s\n", error);
			return -EINVAL;
		}
	}
	if (strcmp(plan->traces[0].name, plan->traces[1].name) == 0) {
		fprintf(stderr, "gpool-demo: both traces are called '%s', and so would their engines\n",
			plan->traces[0].name);
		return -EINVAL;
	}
	if (settings->trace_count == 0)
		snprintf(plan->trace_source, sizeof plan->trace_source, "the excerpts shipped with gpool");
	else
		snprintf(plan->trace_source, sizeof plan->trace_source, "%.*s", (int)sizeof plan->trace_source - 1,
			*directory ? directory : paths[0]);
	trace_cut(plan->traces, BOARD_ENGINES, settings->duration_us, settings->limit);
	return 0;
}

/* A request that could never have all its pages at once would wait for ever. */
static int largest_request_fits(const struct settings *settings)
{
	const struct plan *plan = &settings->plan;
	uint32_t room = settings->no_split ? plan->page_count : plan->page_count / BOARD_ENGINES;

	for (int e = 0; e < BOARD_ENGINES; e++)
		for (uint32_t i = 0; i < plan->traces[e].count; i++) {
			const struct trace_request *request = &plan->traces[e].requests[i];
			/* One page more: that of a prefix whose end is not used. */
			uint32_t pages = 1 +
				model_pages((uint64_t)request->context_tokens + request->generated_tokens,
					plan->tokens_per_page);

			if (pages <= room)
				continue;
			fprintf(stderr,
				"gpool-demo: request %u of '%s' needs %u pages, and an engine can have %u; give a "
				"larger --pool-size or a smaller --model\n",
				i + 1, plan->traces[e].name, pages, room);
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
		fprintf(stderr,
			"gpool-demo: a token of this model takes %llu bytes, more than a page; give a larger "
			"--page-size\n",
			(unsigned long long)plan->model.token_bytes);
		return -EINVAL;
	}
	if (plan->page_count < 16) {
		fprintf(stderr, "gpool-demo: a pool of %u pages is too small\n", plan->page_count);
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
		fprintf(stderr, "gpool-demo: cannot read /proc/self/exe\n");
		return -ENOENT;
	}
	if (agent_program(settings->gpoold, sizeof settings->gpoold)) {
		fprintf(stderr, "gpool-demo: cannot find gpoold beside this program; set GPOOLD to its path\n");
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

/* ---- the way through ---- */

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
	printf("model   %s: %u layers, %u KV heads of %u, %s: %s bytes of KV a token, %u tokens a page\n",
		plan->model.name, plan->model.layers, plan->model.kv_heads, plan->model.head_dim, plan->model.dtype,
		text_count(a, plan->model.token_bytes), plan->tokens_per_page);
	printf("pool    %s pages of %s, %s on the host back end, room for %s tokens\n", text_count(a, plan->page_count),
		text_bytes(b, plan->page_bytes), text_bytes(c, plan->page_count * plan->page_bytes),
		text_rate((char[TEXT_BYTES]){0}, (double)plan->page_count * plan->tokens_per_page));
	printf("pace    arrivals %.3g times as fast as in the trace, a step of all running requests every %s: %.3g "
	       "times its "
	       "load\n",
		plan->speed, text_seconds(a, plan->step_us), plan->load);
	if (plan->idle_us > 0)
		printf("idle    %s has no requests from %.1f s on, %s from %.1f s on, for %.1f s each; meanwhile twice "
		       "as many arrive for the other\n",
			plan->traces[0].name, (double)plan_idle_from_us(plan, 0) / 1e6, plan->traces[1].name,
			(double)plan_idle_from_us(plan, 1) / 1e6, (double)plan->idle_us / 1e6);
	printf("work    at least %s of KV to write, and as much to verify, in each run\n",
		text_bytes(a, tokens * plan->model.token_bytes));
	if (plan->kill_every_s > 0)
		printf("kills   an engine every %.3g s on average, until the last request has come; seed %llu\n",
			plan->kill_every_s, (unsigned long long)plan->seed);
	else
		printf("kills   none; seed %llu\n", (unsigned long long)plan->seed);
	fflush(stdout);
}

static void complain(const struct run *run)
{
	if (run->errors > 0)
		fprintf(stderr, "gpool-demo: %llu error%s on %s; the first: %s\n", (unsigned long long)run->errors,
			run->errors == 1 ? "" : "s", run->split ? "two halves" : "the shared pool", run->error_text);
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
		fprintf(stderr, "gpool-demo: cannot write the report '%s': %s\n", settings->report, strerror(-error));
	if (settings->json) {
		if (summary_json(stdout, &frame, shared, split))
			error = -ENOMEM;
	} else {
		fputc('\n', stdout);
		summary_print(stdout, shared, split);
		if (!error)
			printf("\nreport  %s\n", settings->report);
	}
	if (fflush(stdout) != 0)
		error = -errno;
	return error;
}

static void kept_tell(const struct agent_process *agent)
{
	fprintf(stderr,
		"gpool-demo: the agent runs on as process %d. Look at it:  poolctl --dir %s status\n"
		"            End it:  kill %d; then remove %s\n",
		(int)agent->pid, agent->directory, (int)agent->pid, agent->root);
}

static int demo_run(const struct settings *settings)
{
	struct run shared = {0}, split = {0};
	struct agent_process kept = {0};
	bool with_split = !settings->no_split;
	int error, status = STATUS_OK;

	conductor_signals();
	if (!settings->json)
		header_print(settings);
	error = conductor_run(&settings->plan, false, &shared, settings->plan.keep ? &kept : NULL);
	if (!error && !shared.interrupted && with_split) {
		struct plan plan = settings->plan;

		plan.keep = false;
		error = conductor_run(&plan, true, &split, NULL);
	}
	complain(&shared);
	complain(&split);
	if (shared.interrupted || split.interrupted) {
		fprintf(stderr, "gpool-demo: interrupted; all processes have ended\n");
		status = STATUS_INTERRUPTED;
	} else if (error || results_show(settings, &shared, with_split ? &split : NULL)) {
		status = STATUS_FAILED;
	}
	if (status == STATUS_OK && (shared.errors > 0 || split.errors > 0))
		status = STATUS_FAILED;
	if (kept.pid)
		kept_tell(&kept);
	run_destroy(&shared);
	run_destroy(&split);
	return status;
}

static void command_note(struct settings *settings, int argc, char **argv)
{
	size_t length = (size_t)snprintf(settings->command, sizeof settings->command, "gpool-demo");

	for (int i = 1; i < argc && length < sizeof settings->command; i++)
		length +=
			(size_t)snprintf(settings->command + length, sizeof settings->command - length, " %s", argv[i]);
}

int main(int argc, char **argv)
{
	static struct settings settings;
	struct timespec now;
	char error[MODEL_ERROR_BYTES];
	int status;

	if (argc == 4 && strcmp(argv[1], "engine") == 0)
		return engine_main(atoi(argv[2]), (uint32_t)atoi(argv[3]));
	clock_gettime(CLOCK_REALTIME, &now);
	settings.plan.seed = (uint64_t)now.tv_nsec ^ (uint64_t)now.tv_sec << 8 ^ (uint64_t)getpid() << 32;
	settings.plan.seed &= 0x7fffffff; /* short enough to type */
	settings.plan.page_bytes = 512 << 10;
	settings.plan.load = 1.5;
	settings.plan.kill_every_s = 4;
	settings.report = "gpool-demo.html";
	if (model_parse(MODEL_DEFAULT, &settings.plan.model, error))
		return STATUS_FAILED;
	if (readlink("/proc/self/exe", settings.program, sizeof settings.program - 1) < 0)
		settings.program[0] = '\0';
	command_note(&settings, argc, argv);
	if (options_read(&settings, argc, argv) || plan_make(&settings))
		return STATUS_USAGE;
	status = demo_run(&settings);
	trace_free(&settings.plan.traces[0]);
	trace_free(&settings.plan.traces[1]);
	return status;
}
