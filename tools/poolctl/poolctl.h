/*
 * poolctl.h - declarations shared by the verbs of poolctl: parsed command line, exit codes, error messages.
 *
 * main.c has the table of verbs, from which the parser, --help, the man page and the completion scripts are built. Each
 * verb is in the file with its name; the verb object is in objects.c. output.c prints, agent.c sends requests to the
 * agent, offline.c reads the tables without the agent. poolctl requests changes from the agent; only the verb bench
 * uses pages of a pool itself.
 */
#ifndef GPOOL_TOOLS_POOLCTL_H
#define GPOOL_TOOLS_POOLCTL_H

#include "tools/lib/cli.h"

/* The options, in the order of command.values. */
enum option_id {
	OPTION_TIMEOUT = OPTION_COMMON,
	OPTION_NO_COLOR,
	OPTION_FIRST,
	OPTION_COUNT,
	OPTION_STATE,
	OPTION_OWNER,
	OPTION_EACH,
	OPTION_MAP,
	OPTION_LEAKED,
	OPTION_KIND,
	OPTION_SESSION,
	OPTION_USAGE,
	OPTION_LIMIT,
	OPTION_MINIMUM,
	OPTION_QUIESCENT,
	OPTION_OBJECT_VERSION,
	OPTION_DOMAIN,
	OPTION_SINCE,
	OPTION_FILE,
	OPTION_OFF,
	OPTION_EVICT,
	OPTION_NO_WAIT,
	OPTION_INTERVAL,
	OPTION_MAN,
	OPTION_COMPLETION,
};

/* main.c */
extern const struct program poolctl;

/* amounts.c */
/*
 * command_since() - return the value of --since ("90s", "5m") in nanoseconds; 0: not given. Return false after an error
 * message.
 */
bool command_since(const struct command *command, uint64_t *since_ns);
/*
 * pages_parse() - parse a number of pages: "64", "128MiB", "10%". Sizes are rounded up to whole pages; a percentage is
 * a part of page_count. Return false after an error message, which begins with `what`.
 */
bool pages_parse(const char *what, const char *text, uint64_t page_bytes, uint32_t page_count, uint32_t *pages);

/*
 * completion.c: completion_print() - print the completion script for the shell that --completion names. Return an exit
 * code.
 */
int completion_print(const struct command *command);

/* The verbs. */
int help_run(const struct command *command);
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
int prefixes_run(const struct command *command);
int object_run(const struct command *command);
int reload_run(const struct command *command);
int check_run(const struct command *command);
int bench_run(const struct command *command);
int doctor_run(const struct command *command);
int dump_run(const struct command *command);
int upgrade_run(const struct command *command);
int version_run(const struct command *command);

#endif
