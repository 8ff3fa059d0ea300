/* verb_kv.c - gpool-replay kv: prefixes of prompts through caches of several sizes, with several policies. */
#include "tools/replay/replay.h"

#include "tools/replay/prefix_optimum.h"
#include "tools/replay/prefix_report.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIZES_MAX = 16, POLICIES_MAX = 3 };

struct replay {
	bool json;
	const char *chart; /* NULL: none */
	uint64_t limit;
	uint32_t sizes[SIZES_MAX];
	const struct eviction_policy *policies[POLICIES_MAX];
	int size_count, policy_count;
	struct prefix_trace trace;
	struct prefix_result results[SIZES_MAX * POLICIES_MAX];
};

/* ---- options ---- */

static bool sizes_read(const struct command *command, struct replay *replay)
{
	const char *at = command->values[OPTION_BLOCKS] ? command->values[OPTION_BLOCKS] : "1000,2000,5000,10000,20000";

	for (;; at++) {
		uint64_t size = 0;
		const char *digits = at;

		for (; *at >= '0' && *at <= '9' && size <= PREFIX_CAPACITY_MAX; at++)
			size = size * 10 + (uint64_t)(*at - '0');
		if (at == digits || (*at && *at != ',') || size == 0 || size > PREFIX_CAPACITY_MAX)
			return option_refuse(
				command, OPTION_BLOCKS, "is not a list of numbers from 1 to 8388608, with commas between");
		if (replay->size_count == SIZES_MAX)
			return option_refuse(command, OPTION_BLOCKS, "has more than 16 sizes");
		replay->sizes[replay->size_count++] = (uint32_t)size;
		if (!*at)
			return true;
	}
}

static const struct eviction_policy *policy_find(const char *name)
{
	return !strcmp(name, eviction_policy_name(&prefix_optimum)) ? &prefix_optimum : eviction_policy_named(name);
}

static bool policies_read(const struct command *command, struct replay *replay)
{
	const char *text = command->values[OPTION_POLICY] ? command->values[OPTION_POLICY] : "lru,adaptive,optimum";
	char names[64], *rest = names, *name;

	if (strlen(text) >= sizeof(names))
		return option_refuse(command, OPTION_POLICY, "is longer than the names of all policies");
	strcpy(names, text);
	while ((name = strsep(&rest, ","))) {
		const struct eviction_policy *found = policy_find(name);

		if (!found)
			return option_refuse(
				command, OPTION_POLICY, "names a policy that is not there: 'gpool-replay kv --help' has them");
		for (int i = 0; i < replay->policy_count; i++)
			if (replay->policies[i] == found)
				return option_refuse(command, OPTION_POLICY, "names one twice");
		replay->policies[replay->policy_count++] = found;
	}
	return true;
}

static bool replay_read(const struct command *command, struct replay *replay)
{
	replay->chart = command->values[OPTION_CHART];
	return command_json(command, &replay->json) && sizes_read(command, replay) && policies_read(command, replay) &&
	       command_number(command, OPTION_LIMIT, 1, UINT32_MAX, 0, &replay->limit);
}

/* ---- the way through ---- */

static int chart_write(const struct prefix_report *report, const char *path)
{
	FILE *file = fopen(path, "we");
	int error = file ? prefix_report_draw(report, file) : -errno;

	if (file && fclose(file) != 0 && !error)
		error = -errno;
	if (error)
		complain("cannot draw '%s': %s", path, strerror(-error));
	return error;
}

static int report_write(const struct command *command, const struct replay *replay)
{
	struct prefix_report report = {.trace_name = command->arguments[0],
		.trace = &replay->trace,
		.results = replay->results,
		.sizes = replay->size_count,
		.policies = replay->policy_count};
	int error = 0;

	if (replay->json)
		error = prefix_report_json(&report);
	else
		prefix_report_print(&report);
	if (!error && fflush(stdout) != 0)
		error = -errno;
	if (error)
		complain("cannot write the result: %s", strerror(-error));
	if (!error && replay->chart)
		error = chart_write(&report, replay->chart);
	return error;
}

static int replay_all(const struct command *command, struct replay *replay)
{
	struct prefix_plan plan = {
		.trace = &replay->trace, .progress = !command->values[OPTION_QUIET], .interrupted = &interrupted};

	for (int i = 0; i < replay->size_count * replay->policy_count; i++) {
		int error;

		plan.capacity = replay->sizes[i / replay->policy_count];
		plan.policy = replay->policies[i % replay->policy_count];
		error = prefix_play(&plan, &replay->results[i]);
		if (error == -EFBIG)
			complain("a cache of %" PRIu32 " blocks and a request of %" PRIu32 " are together more than %" PRIu32,
				plan.capacity, replay->trace.longest, (uint32_t)EVICTION_NODES_MAX);
		else if (error && error != -EINTR)
			complain("cannot replay with %" PRIu32 " blocks: %s", plan.capacity, strerror(-error));
		if (error)
			return error;
	}
	return report_write(command, replay);
}

int kv_run(const struct command *command)
{
	char text[PREFIX_TRACE_ERROR_BYTES];
	struct replay *replay = calloc(1, sizeof(*replay));
	int error, code = CODE_USAGE;

	if (!replay) {
		complain("no memory");
		return CODE_FAILED;
	}
	if (!replay_read(command, replay))
		goto free_replay;
	error = prefix_trace_load(command->arguments[0], replay->limit, &replay->trace, text);
	if (error) {
		complain("%s", text);
		goto free_replay;
	}
	error = replay_all(command, replay);
	code = interrupted ? 128 + interrupted : error ? CODE_FAILED : CODE_OK;
	prefix_trace_free(&replay->trace);
free_replay:
	free(replay);
	return code;
}
