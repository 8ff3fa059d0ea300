/*
 * replay.h - what the verbs of gpool-replay share: the command line as parsed, exit codes, complaints.
 *
 * main.c holds the table of verbs, from which the parser and --help come; a verb is a file verb_NAME.c.
 */
#ifndef GPOOL_REPLAY_H
#define GPOOL_REPLAY_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum exit_code {
	CODE_OK,
	CODE_FAILED, /* it could not be replayed to its end */
	CODE_USAGE,  /* the command line or the trace is wrong */
	CODES,
};

/* Every option of every verb: where its value stands in command.values. */
enum option_id {
	OPTION_ALLOCATOR,
	OPTION_OUTPUT,
	OPTION_PICTURE,
	OPTION_SPEED,
	OPTION_IN_ORDER,
	OPTION_FILL,
	OPTION_POOL_SIZE,
	OPTION_PAGE_SIZE,
	OPTION_DIR,
	OPTION_POOL,
	OPTION_INCOMPLETE,
	OPTION_QUIET,
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
	OPTION_PATIENCE,
	OPTION_POPULARITY,
	OPTION_RANKS,
	OPTION_STRATEGY,
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
	OPTION_HELP,
	OPTION_VERSION,
	OPTIONS
};

struct option_spec {
	const char *name;     /* NULL ends a list */
	const char *argument; /* as shown; NULL: none */
	const char *help;     /* with the default, where there is one; NULL: hidden */
	enum option_id id;
	char letter; /* 0: none */
};

struct command;

struct verb {
	const char *name, *arguments, *summary;
	const char *text; /* sentences */
	const struct option_spec *options;
	int arguments_least, arguments_most;
	int (*run)(const struct command *command);
};

/* The command line, checked. */
struct command {
	const struct verb *verb;
	const char *values[OPTIONS]; /* NULL: not given; "" for one without an argument */
	char **arguments;
	int argument_count;
};

/* main.c */
extern const struct verb verbs[]; /* ends with name NULL */
extern const struct option_spec common_options[];
extern const char *const code_texts[CODES];
extern volatile sig_atomic_t interrupted; /* the signal */
/*
 * interrupts_catch() - set it at SIGINT, SIGTERM and SIGHUP from now on. Until then they end the process: a trace may
 * take long to read, or not end.
 */
void interrupts_catch(void);

/* options.c */
/* command_parse() - CODE_OK, or CODE_USAGE after a complaint. Without a verb, --help and --version stand in values. */
int command_parse(int argc, char **argv, struct command *command);
/* Values of options; `otherwise` when one is not given. False after a complaint. */
bool command_number(const struct command *command, enum option_id id, uint64_t least, uint64_t most, uint64_t otherwise,
	uint64_t *value);

/* Values of one option, in the order in which they were given. */
enum { LIST_MAX = 16 };
struct number_list {
	uint32_t least, most; /* set by the caller of command_list() */
	uint32_t numbers[LIST_MAX];
	int count;
};

/* command_list() - numbers with commas between. */
bool command_list(const struct command *command, enum option_id id, const char *otherwise, struct number_list *list);
/* command_block_tokens() - of --tokens: sizes of blocks, powers of two up to 1024. */
bool command_block_tokens(const struct command *command, const char *otherwise, struct number_list *list);
/*
 * command_names() - names with commas between, none twice; numbers: their places in `names`, LIST_MAX at most, which
 * NULL ends.
 */
bool command_names(const struct command *command, enum option_id id, const char *otherwise, const char *const *names,
	struct number_list *list);
/* command_factor() - a decimal number, 0.001 to 1000000. */
bool command_factor(const struct command *command, enum option_id id, double otherwise, double *value);
bool command_size(const struct command *command, enum option_id id, uint64_t otherwise, uint64_t *bytes);
/* command_page_size() - of --page-size: what pools can have. */
bool command_page_size(const struct command *command, uint64_t otherwise, uint64_t *bytes);
/* command_json() - table, the default, or json. */
bool command_json(const struct command *command, bool *json);
/* option_refuse() - false, after a complaint that --NAME of the verb is `why`. */
bool option_refuse(const struct command *command, enum option_id id, const char *why);
void help_print(const struct verb *verb); /* NULL: the whole program */

/* complain() - "gpool-replay: ..." on standard error. */
void __attribute__((format(printf, 1, 2))) complain(const char *format, ...);

/* The verbs. */
int malloc_run(const struct command *command);
int make_run(const struct command *command);
int kv_run(const struct command *command);
int kv_engines_run(const struct command *command);
int make_kv_run(const struct command *command);
int waste_run(const struct command *command);
int lora_run(const struct command *command);

#endif
