/*
 * verb_kv_engines.c - gpool-replay kv --engines: requests served by engines, in one run per combination of the options.
 */
#include "tools/replay/replay.h"

#include "tools/lib/chart.h"
#include "tools/lib/request_trace.h"
#include "tools/replay/prefix_optimum.h"
#include "tools/replay/prefix_play.h"
#include "tools/replay/serve_report.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RUNS_MAX = 64, MODEL_BLOCK_TOKENS = 512 /* of the trace's own blocks */, IDLE_S_MAX = 1000000 };

struct serving {
	uint64_t limit;
	struct serve_setup base;
	struct number_list tokens, growths, watermarks, policies;
	struct prefix_trace trace;
	struct serve_setup setups[RUNS_MAX];
	struct serve_result results[RUNS_MAX], one_engine[RUNS_MAX];
	struct serve_report report;
};

/* ---- options ---- */

static bool pool_read(const struct command *command, struct serve_setup *setup)
{
	return command_size(command, OPTION_POOL_SIZE, UINT64_C(1) << 30, &setup->pool_bytes) &&
		command_page_size(command, OPTION_PAGE_SIZE, UINT64_C(1) << 20, &setup->page_bytes) &&
		command_size(command, OPTION_OFFLOAD, 0, &setup->host_bytes);
}

static bool serving_read(const struct command *command, struct serving *serving)
{
	struct serve_setup *base = &serving->base;
	uint64_t engines, idle_s;

	serving->watermarks = (struct number_list){.least = 0, .most = 50};
	if (!command_number(command, OPTION_LIMIT, 1, UINT32_MAX, 0, &serving->limit) ||
		!command_number(command, OPTION_ENGINES, 1, SERVE_ENGINES_MAX, 1, &engines) ||
		!pool_read(command, base) || !command_number(command, OPTION_IDLE, 1, IDLE_S_MAX, 0, &idle_s) ||
		!command_number(command, OPTION_CORRUPT, 1, UINT64_MAX - 9, 0, &base->corrupt) ||
		!command_factor(command, OPTION_SPEED, 0.001, 1e6, 1, &base->speed) ||
		!command_block_tokens(command, OPTION_TOKENS, "16", &serving->tokens) ||
		!command_names(command, OPTION_GROWTH, "incremental", serve_growths, &serving->growths) ||
		!command_list(command, OPTION_WATERMARK, "1", &serving->watermarks) ||
		!command_names(command, OPTION_POLICY, "lru", serve_policies, &serving->policies))
		return false;
	if (idle_s && engines < 2)
		return option_refuse(command, OPTION_IDLE, "needs --engines 2 or more");
	base->engines = (uint32_t)engines;
	base->idle_ms = idle_s * 1000;
	base->apart = command->values[OPTION_APART] != NULL;
	base->progress = !command->values[OPTION_QUIET];
	base->trace = &serving->trace;
	return true;
}

static bool runs_plan(struct serving *serving)
{
	int *count = &serving->report.count;

	for (int g = 0; g < serving->growths.count; g++)
		for (int t = 0; t < serving->tokens.count; t++)
			for (int w = 0; w < serving->watermarks.count; w++)
				for (int p = 0; p < serving->policies.count; p++) {
					struct serve_setup *setup = &serving->setups[*count];

					if (*count == RUNS_MAX) {
						complain("the options select more than %d runs", RUNS_MAX);
						return false;
					}
					*setup = serving->base;
					setup->growth = (enum serve_growth)serving->growths.numbers[g];
					setup->block_tokens = serving->tokens.numbers[t];
					setup->watermark_percent = serving->watermarks.numbers[w];
					setup->adaptive = serving->policies.numbers[p] == 1;
					++*count;
				}
	return true;
}

/* ---- the trace ---- */

/* Load a CSV file. It has only lengths, so its requests have no blocks in common. */
static int lengths_load(const char *path, uint64_t limit, struct prefix_trace *trace, char error[TRACE_ERROR_BYTES])
{
	struct trace lengths;
	int code = trace_load(path, &lengths, error);

	if (code)
		return code;
	trace_cut(&lengths, 1, 0, limit);
	*trace = (struct prefix_trace){
		.requests = calloc(lengths.count, sizeof(*trace->requests)), .request_count = lengths.count};
	for (uint32_t i = 0; i < lengths.count && trace->requests; i++)
		trace->requests[i] = (struct prefix_request){
			.time_ms = (uint64_t)(lengths.requests[i].arrival_us - lengths.requests[0].arrival_us) / 1000,
			.input_tokens = lengths.requests[i].context_tokens,
			.output_tokens = lengths.requests[i].generated_tokens};
	if (!trace->requests)
		snprintf(error, TRACE_ERROR_BYTES, "%s: not enough memory for the trace", path);
	trace_free(&lengths);
	return trace->requests ? 0 : -ENOMEM;
}

static bool trace_read(const char *path, struct serving *serving)
{
	const char *dot = strrchr(path, '.');
	char text[PREFIX_TRACE_ERROR_BYTES + TRACE_ERROR_BYTES];
	int error = dot && !strcmp(dot, ".csv") ? lengths_load(path, serving->limit, &serving->trace, text)
						: prefix_trace_load(path, serving->limit, &serving->trace, text);

	if (!error && serving->trace.request_count)
		return true;
	complain("%s", error ? text : "the trace has no requests");
	return false;
}

/* ---- the verb ---- */

/* Play the trace on a simulated cache with the size of the pool, for comparison. */
static int model_play(struct serving *serving)
{
	const struct eviction_policy *policies[SERVE_MODELS] = {
		eviction_policy_named("lru"), eviction_policy_named("adaptive"), &prefix_optimum};
	struct prefix_plan plan = {.trace = &serving->trace, .interrupted = &interrupted};
	uint64_t blocks = serving->base.pool_bytes / SERVE_TOKEN_BYTES / MODEL_BLOCK_TOKENS;
	int error = 0;

	if (!serving->trace.block_count)
		return 0;
	plan.capacity = blocks > PREFIX_CAPACITY_MAX ? PREFIX_CAPACITY_MAX : blocks ? (uint32_t)blocks : 1;
	for (int i = 0; i < SERVE_MODELS && !error; i++) {
		struct prefix_result result;

		plan.policy = policies[i];
		error = prefix_play(&plan, &result);
		serving->report.model_rates[i] = prefix_rate(&result);
	}
	serving->report.model_blocks = plan.capacity;
	if (error && error != -EINTR)
		complain("cannot compute the hit rates of a single cache: %s", strerror(-error));
	return error;
}

static int report_write(const struct command *command, const struct serving *serving)
{
	const char *path = command->values[OPTION_CHART];

	if (command->json)
		serve_report_json(&serving->report);
	else
		serve_report_print(&serving->report);
	return path ? chart_file(path, serve_report_draw, &serving->report) : 0;
}

static bool has_failed(const struct serve_report *report)
{
	for (int i = 0; i < report->count; i++)
		for (uint32_t engine = 0; engine < report->setups[i].engines; engine++)
			if (report->results[i].engines[engine].failed ||
				(report->one_engine && report->one_engine[i].engines[0].failed))
				return true;
	return false;
}

static int setup_run(
	const struct serving *serving, int index, const struct serve_setup *setup, struct serve_result *result)
{
	if (setup->progress)
		fprintf(stderr, "run %d of %d: %s, blocks of %u tokens, watermark %u %%, %s, engines: %u\n", index + 1,
			serving->report.count, serve_growths[setup->growth], setup->block_tokens,
			setup->watermark_percent, serve_policies[setup->adaptive], setup->engines);
	return serve_run(setup, result);
}

static int serving_run(const struct command *command, struct serving *serving)
{
	struct serve_report *report = &serving->report;
	int error = model_play(serving);

	report->trace_name = command->arguments[0];
	report->setups = serving->setups;
	report->results = serving->results;
	report->one_engine = serving->base.idle_ms ? serving->one_engine : NULL;
	for (int i = 0; i < report->count && !error; i++) {
		error = setup_run(serving, i, &serving->setups[i], &serving->results[i]);
		if (!error && report->one_engine) {
			struct serve_setup alone = serving->setups[i];

			alone.engines = 1;
			error = setup_run(serving, i, &alone, &serving->one_engine[i]);
		}
	}
	if (!error)
		error = report_write(command, serving);
	return error ? error : has_failed(report) ? -EIO : 0;
}

int kv_engines_run(const struct command *command)
{
	struct serving *serving = calloc(1, sizeof(*serving));
	int error, code = CODE_USAGE;

	if (!serving) {
		complain("out of memory");
		return CODE_FAILED;
	}
	if (serving_read(command, serving) && runs_plan(serving) && trace_read(command->arguments[0], serving)) {
		interrupts_catch(NULL);
		error = serving_run(command, serving);
		code = interrupted ? 128 + interrupted : error ? CODE_FAILED : CODE_OK;
	}
	prefix_trace_free(&serving->trace);
	free(serving);
	return code;
}
