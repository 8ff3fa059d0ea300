/*
 * replay.h - declarations shared by the verbs of gpool-replay: parsed command line, exit codes, error messages. main.c
 * has the table of verbs, from which the parser and --help are built. Each verb is in a file verb_NAME.c.
 */
#ifndef GPOOL_REPLAY_H
#define GPOOL_REPLAY_H

#include "tools/lib/cli.h"
#include "tools/lib/interrupt.h"

/* The options, in the order of command.values. */
enum option_id {
	OPTION_ALLOCATOR = OPTION_COMMON,
	OPTION_PICTURE,
	OPTION_SPEED,
	OPTION_IN_ORDER,
	OPTION_FILL,
	OPTION_POOL_SIZE,
	OPTION_PAGE_SIZE,
	OPTION_INCOMPLETE,
	OPTION_ALLOCATIONS,
	OPTION_THROUGH,
	OPTION_UP_TO,
	OPTION_CAP,
	OPTION_CHANCE,
	OPTION_THREADS,
	OPTION_STREAMS,
	OPTION_SEED,
	OPTION_BLOCKS,
	OPTION_POLICY,
	OPTION_CHART,
	OPTION_LIMIT,
	OPTION_ADAPTERS,
	OPTION_BATCH_ADAPTERS,
	OPTION_BUSY,
	OPTION_COST,
	OPTION_GAMMA,
	OPTION_HOT,
	OPTION_LOOK_AHEAD,
	OPTION_MAX_BYPASS,
	OPTION_POPULARITY,
	OPTION_RANKS,
	OPTION_STRATEGY,
	OPTION_TABLES,
	OPTION_TENANTS,
	OPTION_WARM,
	OPTION_REQUESTS,
	OPTION_TOKENS,
	OPTION_RESERVE,
	OPTION_ENGINES,
	OPTION_GROWTH,
	OPTION_WATERMARK,
	OPTION_OFFLOAD,
	OPTION_APART,
	OPTION_IDLE,
	OPTION_CORRUPT,
	OPTION_HISTORY,
};

/* The verbs. */
int malloc_run(const struct command *command);
int make_run(const struct command *command);
int kv_run(const struct command *command);
int kv_engines_run(const struct command *command);
int make_kv_run(const struct command *command);
int waste_run(const struct command *command);
int lora_run(const struct command *command);

#endif
