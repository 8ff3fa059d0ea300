/*
 * poolctl.h - what the verbs of poolctl share: the command line as parsed, exit codes, complaints.
 *
 * tools/poolctl/ is one program. main.c holds the table of verbs, from which parser, --help, man page and completion
 * come; each verb is a file of its name; output.c prints, agent.c asks the agent, offline.c reads the tables without
 * it. Nothing here changes a pool: the agent does, on request.
 */
#ifndef GPOOL_TOOLS_POOLCTL_H
#define GPOOL_TOOLS_POOLCTL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum exit_code {
	CODE_OK,
	CODE_FAILED,   /* the request was understood and did not succeed */
	CODE_USAGE,    /* the command line is wrong, or names what does not exist */
	CODE_NO_AGENT, /* no agent answers */
	CODE_FOUND,    /* check or doctor found something */
	CODES
};

/* Every option of every verb: where its value stands in command.values. */
enum option_id {
	OPTION_DIR,
	OPTION_POOL,
	OPTION_OUTPUT,
	OPTION_TIMEOUT,
	OPTION_OFFLINE,
	OPTION_QUIET,
	OPTION_NO_COLOR,
	OPTION_HELP,
	OPTION_VERSION,
	OPTION_FIRST,
	OPTION_COUNT,
	OPTION_STATE,
	OPTION_OWNER,
	OPTION_EACH,
	OPTION_MAP,
	OPTION_LEAKED,
	OPTION_KIND,
	OPTION_SESSION,
	OPTION_CONTENT,
	OPTION_LIMIT,
	OPTION_MINIMUM,
	OPTION_QUIESCENT,
	OPTION_OBJECT_VERSION,
	OPTION_SINCE,
	OPTION_FILE,
	OPTION_OFF,
	OPTION_EVICT,
	OPTION_NO_WAIT,
	OPTION_INTERVAL,
	OPTION_MAN,
	OPTION_COMPLETION,
	OPTIONS
};

struct option_spec {
	const char *name;     /* NULL ends a list */
	const char *argument; /* as shown; NULL: none; in brackets: may be missing */
	const char *help;     /* sentences; NULL: hidden */
	const char *words;    /* what completion offers, separated by blanks; NULL: files or nothing */
	enum option_id id;
	char letter; /* 0: none */
};

struct command;

struct verb {
	const char *name;
	const char *arguments;    /* as shown; "" for none */
	const char *summary;      /* one line */
	const char *text;         /* sentences */
	const char *example;      /* a command line, words separated by blanks */
	const char *example_text; /* what that one does: a sentence */
	const struct option_spec *options;
	uint32_t arguments_least, arguments_most;
	bool offline; /* works without an agent, by --offline */
	int (*run)(const struct command *command);
};

enum output_format { OUTPUT_TABLE, OUTPUT_JSON };

/* The command line, checked. */
struct command {
	const struct verb *verb;
	const char *directory; /* of the agent's sockets; never NULL */
	const char *pool;      /* NULL: the first, or all */
	enum output_format output;
	int timeout_ms;
	bool offline;
	const char *snapshot; /* NULL: the keeper's descriptors */
	bool quiet;
	bool color;
	const char *values[OPTIONS]; /* NULL: not given; "" for one without an argument */
	char **arguments;
	uint32_t argument_count;
};

/* main.c: the tables. */
extern const struct verb verbs[]; /* ends with name NULL */
extern const struct option_spec global_options[];
extern const char *const code_texts[CODES];
const struct verb *verb_find(const char *name);

/* options.c */
/*
 * command_parse() - CODE_OK, or CODE_USAGE after a complaint. No verb is verb NULL; --help and --version stand in
 * values.
 */
int command_parse(int argc, char **argv, struct command *command);
/* number_parse() - decimal digits alone, least..most; false: anything else. */
bool number_parse(const char *text, uint64_t least, uint64_t most, uint64_t *value);
/* command_number() - the value of an option, `otherwise` when it is not given. False after a complaint. */
bool command_number(const struct command *command, enum option_id id, uint64_t least, uint64_t most, uint64_t otherwise,
	uint64_t *value);
/* command_seconds() - the same of an option in seconds, whose fractions are fine, in milliseconds. */
bool command_seconds(
	const struct command *command, enum option_id id, int least_ms, int most_ms, int otherwise_ms, int *ms);
/* command_since() - OPTION_SINCE, a duration ("90s", "5m"), in nanoseconds; 0: not given. False after a complaint. */
bool command_since(const struct command *command, uint64_t *since_ns);
/*
 * pages_parse() - an amount of pages: "64", "128MiB", "10%". Sizes round up to whole pages, percent of page_count.
 * False after a complaint that begins with `what`.
 */
bool pages_parse(const char *what, const char *text, uint64_t page_bytes, uint32_t page_count, uint32_t *pages);

/* help.c */
void help_print(const struct verb *verb); /* NULL: the whole program */
int help_run(const struct command *command);

/* completion.c: completion_print() - the script for the shell of OPTION_COMPLETION: an exit code. */
int completion_print(const struct command *command);

/* complain() - "poolctl: ..." on standard error. */
void __attribute__((format(printf, 1, 2))) complain(const char *format, ...);
/*
 * complaints_to() - from now on they go here instead, without "poolctl: ", each in the place of the last; NULL: there
 * again.
 */
void complaints_to(char *text, size_t bytes);
/* complain_usage() - the same, with a hint at --help. Returns CODE_USAGE. */
int __attribute__((format(printf, 2, 3))) complain_usage(const struct verb *verb, const char *format, ...);
void *memory_or_exit(void *pointer);

/* The verbs. */
int status_run(const struct command *command);
int top_run(const struct command *command);
int pages_run(const struct command *command);
int pins_run(const struct command *command);
int clients_run(const struct command *command);
int regions_run(const struct command *command);
int tenants_run(const struct command *command);
int roles_run(const struct command *command);
int transfers_run(const struct command *command);
int events_run(const struct command *command);
int trace_run(const struct command *command);
int evict_run(const struct command *command);
int drain_run(const struct command *command);
int limit_run(const struct command *command);
int objects_run(const struct command *command);
int adapters_run(const struct command *command);
int object_run(const struct command *command);
int reload_run(const struct command *command);
int check_run(const struct command *command);
int bench_run(const struct command *command);
int doctor_run(const struct command *command);
int dump_run(const struct command *command);
int upgrade_run(const struct command *command);
int version_run(const struct command *command);

#endif
