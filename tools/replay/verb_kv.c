/*
 * verb_kv.c - gpool-replay kv: prefixes of prompts in caches of several sizes, with several policies. For --engines see
 * verb_kv_engines.c.
 */
#include "tools/lib/chart.h"
#include "tools/replay/replay.h"

#include "tools/replay/prefix_optimum.h"
#include "tools/replay/prefix_report.h"
#include "tools/replay/prefix_simple.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { POLICIES_MAX = 8, HISTORY_MAX = 1000 };

struct replay {
	const char *chart;       /* NULL: none */
	uint64_t limit, history; /* 0: no limit */
	struct number_list sizes;
	const struct eviction_policy *policies[POLICIES_MAX];
	int policy_count;
	struct prefix_trace trace;
	struct prefix_result results[LIST_MAX * POLICIES_MAX];
};

/* ---- options ---- */

static bool policies_read(const struct command *command, struct replay *replay)
{
	static const char *const names[] = {
		"lru", "adaptive", "optimum", "fifo", "lfu", "lru2", "gdsf", "s3fifo", NULL};
	const struct eviction_policy *const policies[] = {eviction_policy_named("lru"),
		eviction_policy_named("adaptive"), &prefix_optimum, &prefix_fifo, &prefix_lfu, &prefix_lru2,
		&prefix_gdsf, &prefix_s3fifo};
	struct number_list list;

	if (!command_names(command, OPTION_POLICY, "lru,adaptive,optimum", names, &list))
		return false;
	replay->policy_count = list.count;
	for (int i = 0; i < list.count; i++)
		replay->policies[i] = policies[list.numbers[i]];
	return true;
}

static bool replay_read(const struct command *command, struct replay *replay)
{
	replay->chart = command->values[OPTION_CHART];
	replay->sizes = (struct number_list){.least = 1, .most = PREFIX_CAPACITY_MAX};
	return command_list(command, OPTION_BLOCKS, "1000,2000,5000,10000,20000", &replay->sizes) &&
		policies_read(command, replay) &&
		command_number(command, OPTION_HISTORY, 1, HISTORY_MAX, 0, &replay->history) &&
		command_number(command, OPTION_LIMIT, 1, UINT32_MAX, 0, &replay->limit);
}

/* ---- the verb ---- */

static int report_write(const struct command *command, const struct replay *replay)
{
	struct prefix_report report = {.trace_name = command->arguments[0],
		.trace = &replay->trace,
		.results = replay->results,
		.sizes = replay->sizes.count,
		.policies = replay->policy_count};

	if (command->json)
		prefix_report_json(&report);
	else
		prefix_report_print(&report);
	return replay->chart ? chart_file(replay->chart, prefix_report_draw, &report) : 0;
}

static int replay_all(const struct command *command, struct replay *replay)
{
	struct prefix_plan plan = {.trace = &replay->trace,
		.history = (uint32_t)replay->history,
		.progress = !command->values[OPTION_QUIET],
		.interrupted = &interrupted};

	for (int i = 0; i < replay->sizes.count * replay->policy_count; i++) {
		int error;

		plan.capacity = replay->sizes.numbers[i / replay->policy_count];
		plan.policy = replay->policies[i % replay->policy_count];
		error = prefix_play(&plan, &replay->results[i]);
		if (error == -EFBIG)
			complain("a cache of %" PRIu32 " blocks and a request of %" PRIu32 " blocks exceed %" PRIu32
				 " blocks in total",
				plan.capacity, replay->trace.longest, (uint32_t)EVICTION_NODES_MAX);
		else if (error && error != -EINTR)
			complain("cannot replay with %" PRIu32 " blocks: %s", plan.capacity, strerror(-error));
		if (error)
			return error;
	}
	return report_write(command, replay);
}

/* Reject options that belong to the other form of the verb. */
static bool is_for(const struct command *command, const int *ids, const char *why)
{
	for (; *ids != OPTION_HELP; ids++)
		if (command->values[*ids])
			return option_refuse(command, *ids, "%s", why);
	return true;
}

static int model_run(const struct command *command)
{
	char text[PREFIX_TRACE_ERROR_BYTES];
	struct replay *replay = calloc(1, sizeof(*replay));
	int error, code = CODE_USAGE;

	if (!replay) {
		complain("out of memory");
		return CODE_FAILED;
	}
	if (!replay_read(command, replay))
		goto free_replay;
	error = prefix_trace_load(command->arguments[0], replay->limit, &replay->trace, text);
	if (error) {
		complain("%s", text);
		goto free_replay;
	}
	interrupts_catch(NULL);
	error = replay_all(command, replay);
	code = interrupted ? 128 + interrupted : error ? CODE_FAILED : CODE_OK;
	prefix_trace_free(&replay->trace);
free_replay:
	free(replay);
	return code;
}

int kv_run(const struct command *command)
{
	static const int of_model[] = {OPTION_BLOCKS, OPTION_HISTORY, OPTION_HELP},
			 of_engines[] = {OPTION_TOKENS, OPTION_GROWTH, OPTION_WATERMARK, OPTION_OFFLOAD, OPTION_APART,
				 OPTION_IDLE, OPTION_SPEED, OPTION_POOL_SIZE, OPTION_PAGE_SIZE, OPTION_CORRUPT,
				 OPTION_HELP};

	if (command->values[OPTION_ENGINES])
		return is_for(command, of_model, "cannot be used with --engines") ? kv_engines_run(command)
										  : CODE_USAGE;
	return is_for(command, of_engines, "requires --engines") ? model_run(command) : CODE_USAGE;
}
