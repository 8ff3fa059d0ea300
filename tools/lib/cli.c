#include "tools/lib/cli.h"

#include "client/gpool.h"
#include "shm/standard_files.h"
#include "tools/lib/text.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HELP_COLUMNS = 100, HELP_INDENT = 29, LONG_VALUE = 256 /* added to an option's id, for getopt */ };

struct parser {
	struct option longs[OPTIONS_MAX + 1];
	char shorts[OPTIONS_MAX * 2 + 3];
	const struct option_spec *specs[OPTIONS_MAX];
	uint32_t count;
};

static const struct program *running; /* for error messages */
static struct {
	char *text;
	size_t bytes;
} complaints;
static int output_error; /* the first error of standard output, as a positive errno; 0: none is known */

/* ---- standard output ---- */

int output_failed(int error)
{
	if (!output_error)
		output_error = -error;
	return CODE_FAILED;
}

void output_flush(void)
{
	if (fflush(stdout))
		output_failed(-errno);
}

/* ---- error messages ---- */

void complaints_to(char *text, size_t bytes)
{
	complaints.text = text;
	complaints.bytes = bytes;
}

static void __attribute__((format(printf, 1, 0))) complain_list(const char *format, va_list arguments)
{
	if (complaints.text) {
		vsnprintf(complaints.text, complaints.bytes, format, arguments);
		return;
	}
	output_flush();
	flockfile(stderr);
	fprintf(stderr, "%s: ", running->name);
	vfprintf(stderr, format, arguments);
	fputc('\n', stderr);
	funlockfile(stderr);
}

void complain(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	complain_list(format, arguments);
	va_end(arguments);
}

int complain_usage(const struct verb *verb, const char *format, ...)
{
	char text[512];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	complain("%s; see '%s %s%s--help'", text, running->name, verb ? verb->name : "", verb ? " " : "");
	return CODE_USAGE;
}

void *memory_or_exit(void *pointer)
{
	if (pointer)
		return pointer;
	complain("out of memory");
	exit(CODE_FAILED);
}

/*
 * Flush standard output at the end of a program. Return: `status`. If the output could not be written, an error message
 * is printed, and CODE_OK and CODE_FOUND become CODE_FAILED.
 */
static int output_end(int status)
{
	output_flush();
	if (!output_error && !ferror(stdout))
		return status;
	complain("cannot write to standard output: %s", strerror(output_error ? output_error : EIO));
	return status == CODE_OK || status == CODE_FOUND ? CODE_FAILED : status;
}

/* ---- parsing ---- */

const struct verb *verb_find(const struct program *program, const char *name)
{
	for (const struct verb *verb = program->verbs; verb && verb->name; verb++)
		if (!strcmp(verb->name, name))
			return verb;
	return NULL;
}

/* The letters begin with '+' (stop at the verb) and ':' (distinguish a missing argument from an unknown option). */
static void parser_init(struct parser *parser, bool stop_early)
{
	memset(parser, 0, sizeof(*parser));
	strcpy(parser->shorts, stop_early ? "+:" : ":");
}

static void parser_add(struct parser *parser, const struct option_spec *specs)
{
	for (; specs->name && parser->count < OPTIONS_MAX; specs++) {
		struct option *option = &parser->longs[parser->count];

		parser->specs[parser->count++] = specs;
		option->name = specs->name;
		option->has_arg = !specs->argument  ? no_argument
			: specs->argument[0] == '[' ? optional_argument
						    : required_argument;
		option->val = LONG_VALUE + specs->id;
		if (specs->letter) {
			char letter[] = {specs->letter, specs->argument ? ':' : '\0', '\0'};

			strcat(parser->shorts, letter);
		}
	}
}

static const struct option_spec *parser_find(const struct parser *parser, int value)
{
	for (uint32_t i = 0; i < parser->count; i++)
		if (value == LONG_VALUE + parser->specs[i]->id ||
			(parser->specs[i]->letter && value == parser->specs[i]->letter))
			return parser->specs[i];
	return NULL;
}

/*
 * getopt accepts an optional argument only after '='. Also accept the next word, unless it is an option or a verb:
 * `poolctl status --offline FILE`.
 */
static const char *optional_value(int argc, char **argv)
{
	if (optarg)
		return optarg;
	if (optind < argc && argv[optind][0] != '-' && argv[optind][0] && !verb_find(running, argv[optind]))
		return argv[optind++];
	return "";
}

static void value_set(struct command *command, const struct option_spec *spec, const char *value)
{
	command->before[spec->id] = command->values[spec->id];
	command->values[spec->id] = value;
	command->times[spec->id]++;
}

static int parse_some(struct parser *parser, int argc, char **argv, struct command *command)
{
	int value;

	opterr = 0;
	while ((value = getopt_long(argc, argv, parser->shorts, parser->longs, NULL)) != -1) {
		const struct option_spec *spec = parser_find(parser, value);

		if (spec && spec->argument && spec->argument[0] == '[')
			value_set(command, spec, optional_value(argc, argv));
		else if (spec)
			value_set(command, spec, spec->argument ? optarg : "");
		else if (value == ':')
			return complain_usage(command->verb, "option '%s' needs a value", argv[optind - 1]);
		else if (optopt >= LONG_VALUE || parser_find(parser, optopt))
			return complain_usage(command->verb, "option '%s' takes no value", argv[optind - 1]);
		else if (optopt)
			return complain_usage(command->verb, "unknown option '-%c'", optopt);
		else
			return complain_usage(command->verb, "unknown option '%s'", argv[optind - 1]);
	}
	command->arguments = argv + optind;
	command->argument_count = (uint32_t)(argc - optind);
	return CODE_OK;
}

/* Set the values of common options, and $GPOOL_DIR. */
static int command_take_common(struct command *command)
{
	const char *output = command->values[OPTION_OUTPUT];

	command->directory = command->values[OPTION_DIR] ? command->values[OPTION_DIR] : getenv("GPOOL_DIR");
	if (!command->directory || !command->directory[0])
		command->directory = "/run/gpool";
	command->pool = command->values[OPTION_POOL];
	if (command->pool && !command->pool[0])
		return complain_usage(command->verb, "--pool needs the name of a pool");
	command->json = output && !strcmp(output, "json");
	if (output && !command->json && strcmp(output, "table"))
		return option_refuse(command, OPTION_OUTPUT, "is neither table nor json") ? CODE_OK : CODE_USAGE;
	command->quiet = command->values[OPTION_QUIET] != NULL;
	return running->check ? running->check(command) : CODE_OK;
}

static int command_check_arguments(const struct command *command)
{
	const struct verb *verb = command->verb;
	uint32_t most = verb ? verb->arguments_most : running->arguments_most;

	if (command->values[OPTION_HELP] || command->values[OPTION_VERSION])
		return CODE_OK;
	if (!verb && running->verbs)
		return complain_usage(NULL, "a verb is missing");
	if (verb && command->argument_count < verb->arguments_least)
		return complain_usage(verb, "'%s' needs %s", verb->name, verb->arguments);
	if (command->argument_count > most)
		return complain_usage(verb, "'%s' does not take the argument '%s'", verb ? verb->name : running->name,
			command->arguments[most]);
	if (command->offline && !verb->offline)
		return complain_usage(verb, "'%s' does not work with --offline", verb->name);
	return CODE_OK;
}

/* Parse the command line. Return: CODE_OK, or CODE_USAGE after an error message. */
static int command_parse(const struct program *program, int argc, char **argv, struct command *command)
{
	struct parser parser;
	int code;

	running = program;
	memset(command, 0, sizeof(*command));
	parser_init(&parser, program->verbs != NULL);
	parser_add(&parser, program->options);
	code = parse_some(&parser, argc, argv, command);
	if (!code && program->verbs && command->argument_count) {
		command->verb = verb_find(program, command->arguments[0]);
		if (!command->verb)
			return complain_usage(NULL, "unknown verb '%s'", command->arguments[0]);
		/* Options may appear anywhere among the verb's arguments. */
		argc -= optind;
		argv += optind;
		optind = 0;
		parser_init(&parser, false);
		parser_add(&parser, program->options);
		parser_add(&parser, command->verb->options);
		code = parse_some(&parser, argc, argv, command);
	}
	if (!code)
		code = command_take_common(command);
	return code ? code : command_check_arguments(command);
}

int command_run(const struct program *program, int argc, char **argv, int (*main)(const struct command *command))
{
	struct command command;
	int code;

	standard_files_open();
	code = command_parse(program, argc, argv, &command);
	if (code)
		return code;
	if (command.values[OPTION_HELP])
		help_print(program, command.verb);
	else if (command.values[OPTION_VERSION])
		printf("%s %s\n", program->name, gpool_version());
	else
		code = command.verb ? command.verb->run(&command) : main(&command);
	return output_end(code);
}

/* ---- values ---- */

bool option_refuse(const struct command *command, int id, const char *why, ...)
{
	const struct option_spec *spec = command->verb ? command->verb->options : running->options;
	char text[256];
	va_list arguments;

	while (spec->name && spec->id != id)
		spec++;
	for (spec = spec->name ? spec : running->options; spec->id != id; spec++)
		;
	va_start(arguments, why);
	vsnprintf(text, sizeof(text), why, arguments);
	va_end(arguments);
	if (spec->argument)
		complain_usage(command->verb, "--%s '%s' %s", spec->name, command->values[id], text);
	else
		complain_usage(command->verb, "--%s %s", spec->name, text);
	return false;
}

bool number_parse(const char *text, uint64_t least, uint64_t most, uint64_t *value)
{
	uint64_t number = 0;

	if (!text[0])
		return false;
	for (; *text; text++) {
		if (*text < '0' || *text > '9' || number > (UINT64_MAX - 9) / 10)
			return false;
		number = number * 10 + (uint64_t)(*text - '0');
	}
	if (number < least || number > most)
		return false;
	*value = number;
	return true;
}

/* strtod() also accepts "nan", "inf", "0x1p3" and leading blanks. */
static bool decimal_parse(const char *text, double *value)
{
	char *end;

	if (!text[0] || strspn(text, "0123456789.") != strlen(text))
		return false;
	*value = strtod(text, &end);
	return end != text && !*end;
}

bool command_number(
	const struct command *command, int id, uint64_t least, uint64_t most, uint64_t otherwise, uint64_t *value)
{
	*value = otherwise;
	return !command->values[id] || number_parse(command->values[id], least, most, value) ||
		option_refuse(command, id, "is not a number from %" PRIu64 " to %" PRIu64, least, most);
}

bool command_seconds(const struct command *command, int id, int least_ms, int most_ms, int otherwise_ms, int *ms)
{
	double seconds;

	*ms = otherwise_ms;
	if (!command->values[id])
		return true;
	if (!decimal_parse(command->values[id], &seconds) || seconds * 1000 < least_ms || seconds * 1000 > most_ms)
		return option_refuse(
			command, id, "is not a number of seconds from %g to %g", least_ms / 1000.0, most_ms / 1000.0);
	*ms = (int)(seconds * 1000);
	return true;
}

bool command_factor(const struct command *command, int id, double least, double most, double otherwise, double *value)
{
	*value = otherwise;
	if (!command->values[id])
		return true;
	return (decimal_parse(command->values[id], value) && *value >= least && *value <= most) ||
		option_refuse(command, id, "is not a number from %.10g to %.10g", least, most);
}

bool command_size(const struct command *command, int id, uint64_t otherwise, uint64_t *bytes)
{
	*bytes = otherwise;
	return !command->values[id] || text_size(command->values[id], bytes) ||
		option_refuse(command, id, "is not a size such as 64MiB or 80GiB");
}

bool command_page_size(const struct command *command, int id, uint64_t otherwise, uint64_t *bytes)
{
	if (!command_size(command, id, otherwise, bytes))
		return false;
	for (uint64_t size = UINT64_C(512) << 10; size <= UINT64_C(4) << 20; size *= 2)
		if (*bytes == size)
			return true;
	return option_refuse(command, id, "is not one of 512KiB, 1MiB, 2MiB, 4MiB");
}

bool command_list(const struct command *command, int id, const char *otherwise, struct number_list *list)
{
	const char *at = command->values[id] ? command->values[id] : otherwise;

	for (list->count = 0;; at++) {
		uint64_t number = 0;
		const char *digits = at;

		for (; *at >= '0' && *at <= '9' && number <= list->most; at++)
			number = number * 10 + (uint64_t)(*at - '0');
		if (at == digits || (*at && *at != ',') || number < list->least || number > list->most)
			return option_refuse(command, id,
				"is not a list of numbers from %" PRIu32 " to %" PRIu32 ", separated by commas",
				list->least, list->most);
		if (list->count == LIST_MAX)
			return option_refuse(command, id, "contains more than %d numbers", LIST_MAX);
		list->numbers[list->count++] = (uint32_t)number;
		if (!*at)
			return true;
	}
}

bool command_block_tokens(const struct command *command, int id, const char *otherwise, struct number_list *list)
{
	*list = (struct number_list){.least = 1, .most = 1024};
	if (!command_list(command, id, otherwise, list))
		return false;
	for (int i = 0; i < list->count; i++)
		if (list->numbers[i] & (list->numbers[i] - 1))
			return option_refuse(command, id, "is not a list of powers of two, separated by commas");
	return true;
}

bool command_names(const struct command *command, int id, const char *otherwise, const char *const *names,
	struct number_list *list)
{
	char text[128], *rest = text, *name;

	snprintf(text, sizeof(text), "%s", command->values[id] ? command->values[id] : otherwise);
	for (list->count = 0; (name = strsep(&rest, ","));) {
		uint32_t found = 0;

		while (names[found] && strcmp(names[found], name))
			found++;
		if (!names[found])
			return option_refuse(command, id, "contains the unknown name '%s'", name);
		for (int i = 0; i < list->count; i++)
			if (list->numbers[i] == found)
				return option_refuse(command, id, "contains '%s' twice", name);
		list->numbers[list->count++] = found;
	}
	return true;
}

/* ---- help ---- */

void help_wrap(const char *text, int at, int indent)
{
	const char *separator = "";

	while (*text) {
		int length = (int)strcspn(text, " ");

		if (separator[0] && at + 1 + length > HELP_COLUMNS) {
			printf("\n%*s", indent, "");
			at = indent;
			separator = "";
		}
		printf("%s%.*s", separator, length, text);
		at += (int)strlen(separator) + length;
		separator = " ";
		text += length + (text[length] ? 1 : 0);
	}
	putchar('\n');
}

const char *option_help(const struct option_spec *spec, char *text, size_t bytes)
{
	size_t length = (size_t)snprintf(text, bytes, "%s%s", spec->help, spec->words ? " One of: " : "");

	for (const char *word = spec->words ? spec->words : ""; *word && length + 2 < bytes; word++) {
		if (*word == ' ')
			text[length++] = ',';
		text[length++] = *word;
	}
	if (spec->words)
		text[length++] = '.';
	text[length] = '\0';
	return text;
}

static void options_print(const struct option_spec *spec, bool offline)
{
	char text[1024];

	for (; spec->name; spec++) {
		if (!spec->help || (spec->id == OPTION_OFFLINE && !offline))
			continue;
		snprintf(text, sizeof(text), "  %c%c%s--%s%s%s", spec->letter ? '-' : ' ',
			spec->letter ? spec->letter : ' ', spec->letter ? ", " : "  ", spec->name,
			spec->argument ? " " : "", spec->argument ? spec->argument : "");
		if (printf("%-*s", HELP_INDENT, text) > HELP_INDENT)
			printf("\n%*s", HELP_INDENT, "");
		help_wrap(option_help(spec, text, sizeof(text)), HELP_INDENT, HELP_INDENT);
	}
}

static void program_help(const struct program *program)
{
	printf("Usage: %s %s\n", program->name, program->usage);
	help_wrap(program->summary, 0, 0);
	if (program->verbs)
		printf("\nVerbs:\n");
	for (const struct verb *verb = program->verbs; verb && verb->name; verb++)
		printf("  %-10s %-16s  %s\n", verb->name, verb->arguments, verb->summary);
	printf("\nOptions:\n");
	options_print(program->options, true);
	if (program->help_end)
		program->help_end();
	printf("\nExit status:\n");
	for (int code = 0; program->codes[code]; code++)
		printf("  %d  %s\n", code, program->codes[code]);
	if (program->verbs)
		printf("\n'%s VERB --help' describes a verb.\n", program->name);
}

void help_print(const struct program *program, const struct verb *verb)
{
	if (!verb) {
		program_help(program);
		return;
	}
	printf("Usage: %s [OPTION]... %s%s%s\n%s: %s.\n\n", program->name, verb->name, verb->arguments[0] ? " " : "",
		verb->arguments, verb->name, verb->summary);
	help_wrap(verb->text, 0, 0);
	if (verb->example)
		printf("\nExample: %s\n  %s\n", verb->example, verb->example_text);
	if (verb->options->name && verb->options->help) {
		printf("\nOptions of %s:\n", verb->name);
		options_print(verb->options, true);
	}
	printf("\nOptions of every verb:\n");
	options_print(program->options, verb->offline);
}
