/*
 * cli.h - the command line of the programs in tools/. The parser, --help and error messages are generated from tables
 * of options and verbs.
 *
 * A program describes itself in a struct program and numbers its options from OPTION_COMMON on. command_parse() checks
 * the command line. The functions below it read the values of options and report invalid ones.
 */
#ifndef GPOOL_TOOLS_CLI_H
#define GPOOL_TOOLS_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum exit_code {
	CODE_OK,
	CODE_FAILED,   /* the request was valid, but failed */
	CODE_USAGE,    /* the command line is invalid, or names an object that does not exist */
	CODE_NO_AGENT, /* no agent answers */
	CODE_FOUND,    /* poolctl: check or doctor has findings */
};

/* Options that several programs have; struct command also has their values. */
enum {
	OPTION_HELP,
	OPTION_VERSION,
	OPTION_OUTPUT,
	OPTION_QUIET,
	OPTION_DIR,
	OPTION_POOL,
	OPTION_OFFLINE,
	OPTION_COMMON,
	OPTIONS_MAX = 64
};

struct option_spec {
	int id;
	char letter;          /* 0: none */
	const char *name;     /* NULL ends the list */
	const char *argument; /* as shown in the help; NULL: none; in brackets: optional */
	const char *help;     /* one or more sentences; NULL: hidden */
	const char *words;    /* the values, separated by blanks, for --help and completion; NULL: any */
};

#define OPTION(id, letter, name, argument, help) \
	{ \
		id, letter, name, argument, help, NULL \
	}
#define OPTION_WORDS(id, letter, name, argument, words, help) \
	{ \
		id, letter, name, argument, help, words \
	}
#define OPTIONS_END \
	{ \
		0, 0, NULL, NULL, NULL, NULL \
	}
#define OPTION_ROW_HELP OPTION(OPTION_HELP, 'h', "help", NULL, "Print this help.")
#define OPTION_ROW_VERSION OPTION(OPTION_VERSION, 0, "version", NULL, "Print the version.")
#define OPTION_ROW_OUTPUT \
	OPTION_WORDS(OPTION_OUTPUT, 'o', "output", "FORMAT", "table json", \
		"Output format: a table for people, or JSON for programs. The default is table.")
#define OPTION_ROW_QUIET OPTION(OPTION_QUIET, 'q', "quiet", NULL, "Print no progress.")

struct command;

struct verb {
	const char *name;      /* NULL ends the list */
	const char *arguments; /* as shown in the help; "": none */
	uint32_t arguments_least, arguments_most;
	const struct option_spec *options;
	int (*run)(const struct command *command);
	bool offline;             /* works without an agent, with --offline */
	const char *summary;      /* one line */
	const char *text;         /* one or more sentences */
	const char *example;      /* a command line, words separated by blanks; NULL: none */
	const char *example_text; /* a sentence that explains the example */
};

#define VERBS_END \
	{ \
		NULL, NULL, 0, 0, NULL, NULL, false, NULL, NULL, NULL, NULL \
	}

struct program {
	const char *name;
	const char *usage;   /* as shown after the program's name */
	const char *summary; /* one or more sentences */
	const struct option_spec *options;
	const struct verb *verbs; /* NULL: none; the program itself takes up to arguments_most arguments */
	uint32_t arguments_most;
	const char *const *codes;              /* a sentence for each exit status, from 0 on; NULL ends the list */
	void (*help_end)(void);                /* prints more help; NULL: none */
	int (*check)(struct command *command); /* checks the program's own options and returns an exit code; may be
					        * NULL */
};

/* The checked command line. */
struct command {
	const struct verb *verb;         /* NULL: none */
	const char *values[OPTIONS_MAX]; /* by id; NULL: not given; "" for an option without an argument */
	const char *before[OPTIONS_MAX]; /* the previous value of an option that was given more than once */
	uint32_t times[OPTIONS_MAX];     /* number of times that the option was given */
	char **arguments;
	uint32_t argument_count;
	const char *directory; /* --dir, else $GPOOL_DIR, else /run/gpool; never NULL */
	const char *pool;      /* --pool; NULL: not given */
	bool json;             /* --output json */
	bool quiet;            /* --quiet */
	/* of poolctl */
	bool offline, color;
	const char *snapshot; /* NULL: use the keeper's descriptors */
	int timeout_ms;
};

/*
 * command_run() - parse the command line and call the verb, or `main` of a program without verbs. --help and --version
 * are handled here. Return: the exit status; it is not 0 if standard output could not be written.
 */
int command_run(const struct program *program, int argc, char **argv, int (*main)(const struct command *command));
/* help_print() - print the help of a verb, or of the program (NULL). */
void help_print(const struct program *program, const struct verb *verb);
const struct verb *verb_find(const struct program *program, const char *name);

/* help_wrap() - print text from column `at` on, wrapped to the width of help texts. Further lines begin at `indent`. */
void help_wrap(const char *text, int at, int indent);
/* option_help() - return the help of an option including its words, in `text`. */
const char *option_help(const struct option_spec *spec, char *text, size_t bytes);

/*
 * Return the value of an option, or `otherwise` if it is not given. Return: false after an error message.
 *
 * command_number()       an integer
 * command_seconds()      seconds with a fraction, in milliseconds
 * command_factor()       a decimal number
 * command_size()         a size such as 64MiB
 * command_page_size()    --page-size: a page size that pools can have
 * command_list()         integers, separated by commas
 * command_block_tokens() powers of two up to 1024, separated by commas
 * command_names()        names, separated by commas, each at most once; their indexes in `names`, which NULL ends
 */
bool command_number(
	const struct command *command, int id, uint64_t least, uint64_t most, uint64_t otherwise, uint64_t *value);
bool command_seconds(const struct command *command, int id, int least_ms, int most_ms, int otherwise_ms, int *ms);
bool command_factor(const struct command *command, int id, double least, double most, double otherwise, double *value);
bool command_size(const struct command *command, int id, uint64_t otherwise, uint64_t *bytes);
bool command_page_size(const struct command *command, int id, uint64_t otherwise, uint64_t *bytes);

enum { LIST_MAX = 16 };
struct number_list {
	uint32_t least, most; /* set by the caller of command_list() */
	uint32_t numbers[LIST_MAX];
	int count;
};

bool command_list(const struct command *command, int id, const char *otherwise, struct number_list *list);
bool command_block_tokens(const struct command *command, int id, const char *otherwise, struct number_list *list);
bool command_names(const struct command *command, int id, const char *otherwise, const char *const *names,
	struct number_list *list);

/*
 * number_parse() - parse decimal digits without a sign. Return: false if the text is anything else, or not in
 * least..most.
 */
bool number_parse(const char *text, uint64_t least, uint64_t most, uint64_t *value);

/*
 * option_refuse() - print an error message with an option, its value, and `why` it is invalid, such as "is neither
 * table nor json". Return: false.
 */
bool __attribute__((format(printf, 3, 4))) option_refuse(const struct command *command, int id, const char *why, ...);
/*
 * output_flush()  - flush standard output. A loop that prints calls this instead of fflush(), so that the end of the
 *                   program can report the first error.
 * output_failed() - keep an error of standard output, negative errno; the end of the program reports it. Return:
 *                   CODE_FAILED.
 */
void output_flush(void);
int output_failed(int error);
/* complain() - print "PROGRAM: ..." to standard error. */
void __attribute__((format(printf, 1, 2))) complain(const char *format, ...);
/* complain_usage() - print "PROGRAM: ..." with a reference to --help. Return: CODE_USAGE. */
int __attribute__((format(printf, 2, 3))) complain_usage(const struct verb *verb, const char *format, ...);
/*
 * complaints_to() - store each error message in `text`, in place of the last, instead of printing it. NULL: print
 * again.
 */
void complaints_to(char *text, size_t bytes);
/* memory_or_exit() - return the pointer, or exit with an error message if it is NULL. */
void *memory_or_exit(void *pointer);

#endif
