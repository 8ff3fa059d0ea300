/*
 * verb_lora.c - gpool-replay lora: requests with LoRA adapters, served in simulated time with several strategies and at
 * several rates of arrival.
 */
#include "tools/replay/replay.h"

#include "shm/monotonic.h"
#include "tools/lib/chart.h"
#include "tools/lib/text.h"
#include "tools/replay/lora_report.h"
#include "tools/replay/lora_tables.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
	PROGRESS_MS = 100,        /* interval of the progress line on a terminal, where it is rewritten */
	PROGRESS_PLAIN_MS = 5000, /* elsewhere, where each is a new line */
	/* bisections of the rate of arrivals: accurate to 1/10000 of the initial interval */
	SPEED_STEPS = 14,
};

static const struct lora_strategy strategies[LORA_STRATEGIES] = {
	{
		.name = "fifo",
		.text = "in order of arrival: a request that waits for its adapter delays all later requests, while "
			"running requests continue; the adapters of all requests for which the batch has room are "
			"loaded at once, and the least recently used adapter is evicted",
		.order = LORA_IN_ORDER,
		.lru = true,
	},
	{
		.name = "around",
		.text = "the same, but no request waits for the adapter of another request",
		.order = LORA_AROUND,
		.lru = true,
	},
	{
		.name = "resident",
		.text = "requests whose adapter is resident start first, within the bound; the adapter with the lowest "
			"worth is evicted",
		.order = LORA_RESIDENT_FIRST,
	},
	{
		.name = "prefetch",
		.text = "the same, and the adapters of the next requests are loaded ahead (--look-ahead)",
		.order = LORA_RESIDENT_FIRST,
		.look_ahead = true,
	},
	{
		.name = "limit",
		.text = "the same, with a limited number of different adapters in a batch (--batch-adapters)",
		.order = LORA_RESIDENT_FIRST,
		.look_ahead = true,
		.limit = true,
	},
	{
		.name = "single",
		.text = "all running requests have the same adapter: those of other adapters wait until they have "
			"ended",
		.order = LORA_RESIDENT_FIRST,
		.look_ahead = true,
		.single = true,
	},
};

enum { PREFETCH = 3, SINGLE = 5 }; /* in strategies[] */

struct replay {
	bool progress, terminal, shown;
	struct number_list busy, chosen;
	struct lora_recipe recipe;
	struct trace trace; /* without requests if no trace was given */
	struct lora_workload workload;
	struct lora_plan plan;
	struct lora_load loads[LIST_MAX];
	int law_count; /* popularities of --tables; otherwise 1 */
	struct lora_law laws[LORA_LAWS_MAX];
	uint64_t shown_ms;
	const char *doing;
};

/* ---- options ---- */

static bool decimal(const char *text, char end, double most, double *value)
{
	char *rest;

	if (strspn(text, "0123456789.") == 0)
		return false;
	*value = strtod(text, &rest);
	return *rest == end && strspn(text, "0123456789.") == (size_t)(rest - text) && *value <= most;
}

static bool law_read(const char *text, struct lora_recipe *recipe)
{
	recipe->zipf = !strncmp(text, "zipf:", 5);
	return decimal(recipe->zipf ? text + 5 : text, '\0', 10, &recipe->exponent) &&
		(recipe->zipf || recipe->exponent > 0);
}

static bool popularity_read(const struct command *command, struct replay *replay)
{
	const char *given = command->values[OPTION_POPULARITY];
	bool tables = command->values[OPTION_TABLES];
	char text[256], *rest = text, *law;

	snprintf(text, sizeof(text), "%s", given ? given : tables ? "zipf:1.0,0.1,0.3" : "zipf:1.0");
	while ((law = tables ? strsep(&rest, ",") : replay->law_count ? NULL : text)) {
		if (replay->law_count == LORA_LAWS_MAX || strlen(law) >= LORA_LAW_BYTES ||
			!law_read(law, &replay->recipe))
			return option_refuse(command, OPTION_POPULARITY,
				"is neither an exponent above 0, such as 0.1, nor zipf: and an exponent, such as "
				"zipf:1.0; the maximum is 10");
		strcpy(replay->laws[replay->law_count++].text, law);
	}
	return true;
}

static bool gamma_read(const struct command *command, struct lora_recipe *recipe)
{
	const char *text = command->values[OPTION_GAMMA], *comma = text ? strchr(text, ',') : NULL;

	if (!text)
		return true;
	return (comma && decimal(text, ',', 1e5, &recipe->gamma_rate) &&
		       decimal(comma + 1, '\0', 100, &recipe->gamma_cv) && recipe->gamma_rate >= 0.001 &&
		       recipe->gamma_cv >= 0.01) ||
		option_refuse(command, OPTION_GAMMA,
			"is not RATE,CV, such as 2.5,1: requests per second from 0.001 to 100000, and a coefficient of "
			"variation from 0.01 to 100");
}

static bool costs_read(const struct command *command, struct lora_costs *costs)
{
	const struct {
		const char *name;
		double *value;
	} all[] = {{"step", &costs->step_us}, {"prefill", &costs->prefill_us}, {"decode", &costs->decode_us},
		{"adapter", &costs->adapter_us}, {"load", &costs->load_us}, {"disk", &costs->disk},
		{"bus", &costs->bus}, {"save", &costs->save}};
	char text[256], *rest = text, *item;

	snprintf(text, sizeof(text), "%s", command->values[OPTION_COST] ? command->values[OPTION_COST] : "");
	while (*text && (item = strsep(&rest, ","))) {
		size_t i = 0, length = strcspn(item, "=");

		while (i < sizeof(all) / sizeof(all[0]) &&
			(strlen(all[i].name) != length || strncmp(all[i].name, item, length) != 0))
			i++;
		if (i == sizeof(all) / sizeof(all[0]) || item[length] != '=' ||
			!decimal(item + length + 1, '\0', 1e6, all[i].value))
			return option_refuse(command, OPTION_COST,
				"is not a list of NAME=NUMBER, separated by commas; the names are step, prefill, "
				"decode, adapter, load, disk, bus, save");
	}
	return (costs->step_us >= 1 && costs->disk >= 0.001 && costs->bus >= 0.001 &&
		       (costs->save == 0 || costs->save >= 0.001)) ||
		option_refuse(command, OPTION_COST, "has a step below 1 us, or a disk, bus or save below 0.001 GB/s");
}

static bool strategies_read(const struct command *command, struct replay *replay)
{
	const char *names[LORA_STRATEGIES + 1] = {NULL};

	for (int i = 0; i < LORA_STRATEGIES; i++)
		names[i] = strategies[i].name;
	return command_names(command, OPTION_STRATEGY,
		command->values[OPTION_TABLES] ? "fifo,around,resident,prefetch"
					       : "fifo,around,resident,prefetch,limit",
		names, &replay->chosen);
}

static bool recipe_read(const struct command *command, struct replay *replay)
{
	struct lora_recipe *recipe = &replay->recipe;
	struct number_list ranks = {.least = 1, .most = 1024};
	uint64_t adapters, tenants, requests;

	if (!command_number(command, OPTION_ADAPTERS, 1, LORA_ADAPTERS_MAX, 1000, &adapters) ||
		!command_number(command, OPTION_TENANTS, 1, LORA_TENANTS_MAX, 10, &tenants) ||
		!command_number(command, OPTION_REQUESTS, 1, 1000000, 10000, &requests) ||
		!command_number(command, OPTION_SEED, 0, UINT64_MAX, 1, &recipe->seed) ||
		!command_list(command, OPTION_RANKS, "8,16,32,64", &ranks) || !popularity_read(command, replay) ||
		!gamma_read(command, recipe))
		return false;
	recipe->adapters = (uint32_t)adapters;
	recipe->tenants = (uint32_t)tenants;
	recipe->requests = (uint32_t)requests;
	recipe->rank_count = ranks.count;
	memcpy(recipe->ranks, ranks.numbers, sizeof(recipe->ranks));
	return true;
}

static bool options_read(const struct command *command, struct lora_options *options)
{
	uint64_t max_bypass_ms, look_ahead, adapters;

	*options = (struct lora_options)LORA_OPTIONS_INIT;
	if (!command_number(command, OPTION_MAX_BYPASS, 1, 3600000, options->max_bypass_us / 1000, &max_bypass_ms) ||
		!command_number(command, OPTION_LOOK_AHEAD, 0, LORA_LOOK_AHEAD_MAX, options->look_ahead, &look_ahead) ||
		!command_number(
			command, OPTION_BATCH_ADAPTERS, 1, LORA_BATCH_REQUESTS_MAX, options->batch_adapters, &adapters))
		return false;
	options->max_bypass_us = max_bypass_ms * 1000;
	options->look_ahead = (uint32_t)look_ahead;
	options->batch_adapters = (uint32_t)adapters;
	return true;
}

static bool replay_read(const struct command *command, struct replay *replay)
{
	replay->busy = (struct number_list){.least = 0, .most = 99};
	if (command->values[OPTION_TABLES] && command->values[OPTION_CHART])
		return option_refuse(command, OPTION_CHART, "cannot be combined with --tables");
	replay->plan.costs = (struct lora_costs){.step_us = 6000,
		.prefill_us = 40,
		.decode_us = 30,
		.adapter_us = 0.35,
		.load_us = 200,
		.disk = 3,
		.bus = 25,
		.save = 10};
	if (!recipe_read(command, replay) ||
		!command_list(command, OPTION_BUSY,
			command->values[OPTION_GAMMA]            ? "0"
				: command->values[OPTION_TABLES] ? "80"
								 : "60,80,95",
			&replay->busy) ||
		!options_read(command, &replay->plan.options) || !costs_read(command, &replay->plan.costs) ||
		!strategies_read(command, replay))
		return false;
	if (!command->argument_count && !command->values[OPTION_GAMMA]) {
		complain("'lora' needs TRACE or --gamma; see 'gpool-replay lora --help'");
		return false;
	}
	return true;
}

/* Set the limits to the bytes of `count` adapters of average size. */
static bool limits_read(const struct command *command, struct replay *replay)
{
	struct residency_limits *limits = &replay->plan.limits;
	double average = (double)replay->workload.adapter_bytes / replay->workload.adapter_count;
	uint64_t hot, warm;

	*limits = (struct residency_limits)RESIDENCY_LIMITS_INIT;
	if (!command_number(command, OPTION_HOT, 1, LORA_ADAPTERS_MAX, 76, &hot) ||
		!command_number(command, OPTION_WARM, 0, LORA_ADAPTERS_MAX, 300, &warm))
		return false;
	limits->hot_bytes = (uint64_t)((double)hot * average);
	limits->warm_bytes = (uint64_t)((double)warm * average / 2);
	limits->hot_count = limits->warm_count = UINT32_MAX; /* limit only the bytes */
	limits->from_files = replay->plan.costs.save == 0;
	limits->load_us = (uint32_t)replay->plan.costs.load_us;
	limits->warm_bytes_per_us = (uint32_t)(replay->plan.costs.bus * 1e3);
	limits->cold_bytes_per_us = (uint32_t)(replay->plan.costs.disk * 1e3);
	if (replay->workload.largest_bytes > limits->hot_bytes) {
		complain("room for %" PRIu64
			 " adapters of average size does not hold the largest one, which has %" PRIu64
			 " bytes; use a larger --hot",
			hot, replay->workload.largest_bytes);
		return false;
	}
	return true;
}

/* ---- progress ---- */

static void progress(void *context, uint32_t finished)
{
	struct replay *replay = context;
	uint64_t now_ms = monotonic_ms();

	if (now_ms - replay->shown_ms < (replay->terminal ? PROGRESS_MS : PROGRESS_PLAIN_MS))
		return;
	if (replay->shown_ms) {
		fprintf(stderr, "%s%s: %.0f %% of %" PRIu32 " requests%s", replay->terminal ? "\r\033[K" : "",
			replay->doing, 100.0 * finished / replay->workload.count, replay->workload.count,
			replay->terminal ? "" : "\n");
		replay->shown = true;
	}
	replay->shown_ms = now_ms;
}

static int serve(struct replay *replay, const struct lora_strategy *strategy, struct lora_result *result)
{
	replay->plan.strategy = strategy;
	replay->doing = strategy ? strategy->name : "finding the arrival rate";
	return lora_serve(&replay->plan, result);
}

/* ---- the verb ---- */

/* Find the factor of arrivals at which the engine is busy for this share of the time, with all adapters resident. */
static int find_speed(struct replay *replay, double busy, struct lora_result *alone)
{
	double low = 1e-3, high = 1e3;

	for (int i = 0; i < 2 * SPEED_STEPS && busy > 0; i++) {
		int error;

		replay->plan.speed = sqrt(low * high);
		error = serve(replay, NULL, alone);
		if (error)
			return error;
		*(alone->busy < busy ? &low : &high) = replay->plan.speed;
	}
	replay->plan.speed = busy > 0 ? high : 1;
	return serve(replay, NULL, alone);
}

static int load_run(struct replay *replay, struct lora_load *load)
{
	int error = find_speed(replay, load->busy_percent / 100.0, &load->alone);

	load->speed = replay->plan.speed;
	for (int i = 0; i < replay->chosen.count && !error; i++)
		error = serve(replay, &strategies[replay->chosen.numbers[i]], &load->results[i]);
	if (error && error != -EINTR)
		complain("cannot serve the requests: %s", strerror(-error));
	return error;
}

static int report_write(const struct command *command, const struct replay *replay)
{
	struct lora_report report = {.trace_name = command->argument_count ? command->arguments[0] : NULL,
		.recipe = &replay->recipe,
		.plan = &replay->plan,
		.loads = replay->loads,
		.load_count = replay->busy.count,
		.strategy_count = replay->chosen.count};
	int error = lora_fixed_loads(&replay->plan, &report.fixed_loads);

	const char *path = command->values[OPTION_CHART];

	if (error) {
		complain("cannot write the result: %s", strerror(-error));
		return error;
	}
	if (command->json)
		lora_report_json(&report);
	else
		lora_report_print(&report);
	return path ? chart_file(path, lora_report_draw, &report) : 0;
}

static void plan_begin(const struct command *command, struct replay *replay)
{
	replay->plan.workload = &replay->workload;
	replay->plan.interrupted = &interrupted;
	replay->plan.progress = command->values[OPTION_QUIET] ? NULL : progress;
	replay->plan.context = replay;
	replay->terminal = isatty(STDERR_FILENO);
}

static int replay_all(const struct command *command, struct replay *replay)
{
	int error = 0;

	for (int i = 0; i < replay->busy.count && !error; i++) {
		replay->loads[i].busy_percent = replay->busy.numbers[i];
		error = load_run(replay, &replay->loads[i]);
	}
	if (replay->shown && replay->terminal)
		fputs("\r\033[K", stderr);
	return error ? error : report_write(command, replay);
}

/* ---- tables ---- */

/* Serve all requests as fast as possible: they all arrive at the beginning, and may be bypassed for any time. */
static int flood_run(struct replay *replay, struct lora_law *law)
{
	static const struct lora_strategy *const floods[LORA_FLOODS] = {
		[LORA_FLOOD_BATCH] = &strategies[PREFETCH], [LORA_FLOOD_SINGLE] = &strategies[SINGLE]};
	uint64_t max_bypass_us = replay->plan.options.max_bypass_us;
	int error = 0;

	replay->plan.options.max_bypass_us = UINT64_C(1) << 50;
	replay->plan.speed = 1e12;
	for (int i = 0; i < LORA_FLOODS && !error; i++)
		error = serve(replay, floods[i], &law->floods[i]);
	replay->plan.options.max_bypass_us = max_bypass_us;
	return error;
}

static int law_run(const struct command *command, struct replay *replay, struct lora_law *law)
{
	int error;

	lora_workload_fini(&replay->workload);
	law_read(law->text, &replay->recipe);
	error = lora_workload_make(&replay->recipe, &replay->trace, &replay->workload);
	if (error)
		return error;
	if (!limits_read(command, replay))
		return -EINVAL;
	law->requests = replay->workload.count;
	law->adapters = replay->workload.adapter_count;
	law->used_adapters = replay->workload.used_adapters;
	law->adapter_bytes = replay->workload.adapter_bytes;
	law->hot_bytes = replay->plan.limits.hot_bytes;
	law->load.busy_percent = replay->busy.numbers[0];
	error = lora_held_count(&replay->plan, &law->paged, &law->contiguous);
	if (!error)
		error = lora_fixed_loads(&replay->plan, &law->fixed_loads);
	if (!error)
		error = load_run(replay, &law->load);
	return error ? error : flood_run(replay, law);
}

static int tables_write(const struct command *command, struct replay *replay)
{
	struct lora_tables tables = {.trace_name = command->argument_count ? command->arguments[0] : NULL,
		.laws = replay->laws,
		.law_count = replay->law_count,
		.strategy_count = replay->chosen.count};
	int error = 0;

	for (int i = 0; i < replay->law_count && !error; i++)
		error = law_run(command, replay, &replay->laws[i]);
	if (replay->shown && replay->terminal)
		fputs("\r\033[K", stderr);
	if (!error)
		error = lora_times_measure(&tables.times);
	if (!error)
		(command->json ? lora_tables_json : lora_tables_print)(&tables);
	return error;
}

static int trace_read(const struct command *command, struct replay *replay)
{
	char text[TRACE_ERROR_BYTES];
	uint64_t limit;

	if (!command_number(command, OPTION_LIMIT, 1, UINT32_MAX, 0, &limit))
		return CODE_USAGE;
	if (!command->argument_count)
		return CODE_OK;
	if (trace_load(command->arguments[0], &replay->trace, text)) {
		complain("%s", text);
		return CODE_USAGE;
	}
	trace_cut(&replay->trace, 1, 0, limit);
	if (replay->trace.count)
		return CODE_OK;
	complain("'%s' has no requests", command->arguments[0]);
	return CODE_USAGE;
}

int lora_run(const struct command *command)
{
	struct replay *replay = calloc(1, sizeof(*replay));
	int error, code = CODE_USAGE;

	if (!replay) {
		complain("out of memory");
		return CODE_FAILED;
	}
	if (!replay_read(command, replay) || trace_read(command, replay) != CODE_OK)
		goto free_all;
	interrupts_catch(NULL);
	plan_begin(command, replay);
	if (lora_workload_make(&replay->recipe, &replay->trace, &replay->workload)) {
		complain("not enough memory for the requests");
		code = CODE_FAILED;
		goto free_all;
	}
	if (!limits_read(command, replay))
		goto free_all;
	error = command->values[OPTION_TABLES] ? tables_write(command, replay) : replay_all(command, replay);
	code = interrupted ? 128 + interrupted : error ? CODE_FAILED : CODE_OK;
free_all:
	lora_workload_fini(&replay->workload);
	trace_free(&replay->trace);
	free(replay);
	return code;
}
