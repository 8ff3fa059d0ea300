/*
 * options.c - the command line: getopt_long over the option tables of main.c, the values that people write, and --help.
 */
#include "tools/replay/replay.h"

#include "tools/lib/option_help.h"
#include "tools/lib/text.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SPECS_MAX = 32, HELP_INDENT = 26, LONG_VALUE = 256 /* getopt's values: this plus the id */ };

struct parser {
	struct option longs[SPECS_MAX + 1];
	char shorts[2 * SPECS_MAX + 3];
	const struct option_spec *specs[SPECS_MAX];
	int count;
};

void complain(const char *format, ...)
{
	va_list arguments;

	fputs("gpool-replay: ", stderr);
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
}

/* ---- parsing ---- */

/* '+' (stop at the verb) and ':' (tell a missing argument from an unknown option) stand before the letters. */
static void parser_init(struct parser *parser, bool stop_early)
{
	memset(parser, 0, sizeof(*parser));
	strcpy(parser->shorts, stop_early ? "+:" : ":");
}

static void parser_add(struct parser *parser, const struct option_spec *specs)
{
	for (; specs->name && parser->count < SPECS_MAX; specs++) {
		struct option *option = &parser->longs[parser->count];

		parser->specs[parser->count++] = specs;
		option->name = specs->name;
		option->has_arg = specs->argument ? required_argument : no_argument;
		option->val = LONG_VALUE + (int)specs->id;
		if (specs->letter) {
			char letter[] = {specs->letter, specs->argument ? ':' : '\0', '\0'};

			strcat(parser->shorts, letter);
		}
	}
}

static const struct option_spec *parser_find(const struct parser *parser, int value)
{
	for (int i = 0; i < parser->count; i++)
		if (value == LONG_VALUE + (int)parser->specs[i]->id ||
			(parser->specs[i]->letter && value == parser->specs[i]->letter))
			return parser->specs[i];
	return NULL;
}

static int __attribute__((format(printf, 2, 3))) complain_usage(const struct command *command, const char *format, ...)
{
	char text[256];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	complain("%s; see 'gpool-replay %s%s--help'", text, command->verb ? command->verb->name : "",
		command->verb ? " " : "");
	return CODE_USAGE;
}

static int parse_some(struct parser *parser, int argc, char **argv, struct command *command)
{
	int value;

	opterr = 0;
	while ((value = getopt_long(argc, argv, parser->shorts, parser->longs, NULL)) != -1) {
		const struct option_spec *spec = parser_find(parser, value);

		if (spec)
			command->values[spec->id] = spec->argument ? optarg : "";
		else if (value == ':')
			return complain_usage(command, "option '%s' needs a value", argv[optind - 1]);
		else if (optopt >= LONG_VALUE || parser_find(parser, optopt))
			return complain_usage(command, "option '%s' takes no value", argv[optind - 1]);
		else if (optopt)
			return complain_usage(command, "unknown option '-%c'", optopt);
		else
			return complain_usage(command, "unknown option '%s'", argv[optind - 1]);
	}
	return CODE_OK;
}

static int command_check(const struct command *command)
{
	const struct verb *verb = command->verb;

	if (command->values[OPTION_HELP] || command->values[OPTION_VERSION])
		return CODE_OK;
	if (command->argument_count < verb->arguments_least)
		return complain_usage(command, "'%s' needs %s", verb->name, verb->arguments);
	if (command->argument_count > verb->arguments_most)
		return complain_usage(
			command, "'%s' does not take '%s'", verb->name, command->arguments[verb->arguments_most]);
	return CODE_OK;
}

int command_parse(int argc, char **argv, struct command *command)
{
	struct parser parser;
	int code;

	memset(command, 0, sizeof(*command));
	parser_init(&parser, true);
	parser_add(&parser, common_options);
	code = parse_some(&parser, argc, argv, command);
	if (code || command->values[OPTION_HELP] || command->values[OPTION_VERSION])
		return code;
	if (optind == argc)
		return complain_usage(command, "which verb?");
	for (const struct verb *verb = verbs; verb->name; verb++)
		if (!strcmp(verb->name, argv[optind]))
			command->verb = verb;
	if (!command->verb)
		return complain_usage(command, "unknown verb '%s'", argv[optind]);
	argc -= optind;
	argv += optind;
	optind = 0;
	parser_init(&parser, false);
	parser_add(&parser, common_options);
	parser_add(&parser, command->verb->options);
	code = parse_some(&parser, argc, argv, command);
	command->arguments = argv + optind;
	command->argument_count = argc - optind;
	return code ? code : command_check(command);
}

/* ---- values ---- */

bool option_refuse(const struct command *command, enum option_id id, const char *why)
{
	const struct option_spec *spec = command->verb->options;

	while (spec->id != id)
		spec++;
	if (spec->argument)
		complain_usage(command, "--%s '%s' %s", spec->name, command->values[id], why);
	else
		complain_usage(command, "--%s %s", spec->name, why);
	return false;
}

bool command_number(const struct command *command, enum option_id id, uint64_t least, uint64_t most, uint64_t otherwise,
	uint64_t *value)
{
	const char *text = command->values[id];
	uint64_t number = 0;
	char why[96];

	*value = otherwise;
	if (!text)
		return true;
	snprintf(why, sizeof(why), "is not a number from %" PRIu64 " to %" PRIu64, least, most);
	for (const char *at = text; *at || at == text; at++) {
		if (*at < '0' || *at > '9' || number > (UINT64_MAX - 9) / 10)
			return option_refuse(command, id, why);
		number = number * 10 + (uint64_t)(*at - '0');
	}
	if (number < least || number > most)
		return option_refuse(command, id, why);
	*value = number;
	return true;
}

bool command_list(const struct command *command, enum option_id id, const char *otherwise, struct number_list *list)
{
	const char *at = command->values[id] ? command->values[id] : otherwise;
	char why[96];

	snprintf(why, sizeof(why), "is not a list of numbers from %" PRIu32 " to %" PRIu32 ", with commas between",
		list->least, list->most);
	for (list->count = 0;; at++) {
		uint64_t number = 0;
		const char *digits = at;

		for (; *at >= '0' && *at <= '9' && number <= list->most; at++)
			number = number * 10 + (uint64_t)(*at - '0');
		if (at == digits || (*at && *at != ',') || number < list->least || number > list->most)
			return option_refuse(command, id, why);
		if (list->count == LIST_MAX)
			return option_refuse(command, id, "has more than 16 numbers");
		list->numbers[list->count++] = (uint32_t)number;
		if (!*at)
			return true;
	}
}

bool command_block_tokens(const struct command *command, const char *otherwise, struct number_list *list)
{
	*list = (struct number_list){.least = 1, .most = 1024};
	if (!command_list(command, OPTION_TOKENS, otherwise, list))
		return false;
	for (int i = 0; i < list->count; i++)
		if (list->numbers[i] & (list->numbers[i] - 1))
			return option_refuse(
				command, OPTION_TOKENS, "is not a list of powers of two, with commas between");
	return true;
}

static int name_find(const char *const *names, const char *name)
{
	for (int i = 0; names[i]; i++)
		if (!strcmp(names[i], name))
			return i;
	return -1;
}

bool command_names(const struct command *command, enum option_id id, const char *otherwise, const char *const *names,
	struct number_list *list)
{
	char text[128], why[96], *rest = text, *name;

	snprintf(text, sizeof(text), "%s", command->values[id] ? command->values[id] : otherwise);
	for (list->count = 0; (name = strsep(&rest, ","));) {
		int found = name_find(names, name);

		if (found < 0) {
			snprintf(why, sizeof(why), "has a name that is not there: 'gpool-replay %s --help' has them",
				command->verb->name);
			return option_refuse(command, id, why);
		}
		for (int i = 0; i < list->count; i++)
			if (list->numbers[i] == (uint32_t)found)
				return option_refuse(command, id, "names one twice");
		list->numbers[list->count++] = (uint32_t)found;
	}
	return true;
}

bool command_factor(const struct command *command, enum option_id id, double otherwise, double *value)
{
	const char *text = command->values[id];
	char *end;

	*value = otherwise;
	if (!text)
		return true;
	/* strtod() also takes "nan", "inf", "0x1p3" and leading blanks. */
	*value = strtod(text, &end);
	return (strspn(text, "0123456789.") == strlen(text) && end != text && !*end && *value >= 0.001 &&
		       *value <= 1e6) ||
		option_refuse(command, id, "is not a number from 0.001 to 1000000");
}

bool command_size(const struct command *command, enum option_id id, uint64_t otherwise, uint64_t *bytes)
{
	*bytes = otherwise;
	return !command->values[id] || text_size(command->values[id], bytes) ||
		option_refuse(command, id, "is not a size such as 64MiB or 80GiB");
}

bool command_page_size(const struct command *command, uint64_t otherwise, uint64_t *bytes)
{
	if (!command_size(command, OPTION_PAGE_SIZE, otherwise, bytes))
		return false;
	for (uint64_t size = UINT64_C(512) << 10; size <= UINT64_C(4) << 20; size *= 2)
		if (*bytes == size)
			return true;
	return option_refuse(command, OPTION_PAGE_SIZE, "is none of 512KiB, 1MiB, 2MiB, 4MiB");
}

bool command_json(const struct command *command, bool *json)
{
	const char *text = command->values[OPTION_OUTPUT];

	*json = text && !strcmp(text, "json");
	return !text || *json || !strcmp(text, "table") ||
		option_refuse(command, OPTION_OUTPUT, "is neither table nor json");
}

/* ---- help ---- */

static void options_print(const struct option_spec *spec)
{
	for (; spec->name; spec++)
		if (spec->help)
			help_option(spec->letter, spec->name, spec->argument, spec->help, HELP_INDENT);
}

void help_print(const struct verb *verb)
{
	if (verb) {
		printf("Usage: gpool-replay %s [OPTION]... %s\n%s: %s.\n\n", verb->name, verb->arguments, verb->name,
			verb->summary);
		help_wrap(verb->text, 0, 0);
		printf("\nOptions:\n");
		options_print(verb->options);
		options_print(common_options);
		return;
	}
	printf("Usage: gpool-replay VERB [OPTION]... [ARGUMENT]...\n"
	       "Replay traces of GPU memory on an agent, and tell and draw what came of it.\n\nVerbs:\n");
	for (verb = verbs; verb->name; verb++)
		printf("  %-8s %-16s %s\n", verb->name, verb->arguments, verb->summary);
	printf("\nOptions:\n");
	options_print(common_options);
	printf("\nExit status:\n");
	for (int code = 0; code < CODES; code++)
		printf("  %d  %s\n", code, code_texts[code]);
	printf("\n'gpool-replay VERB --help' tells more.\n");
}
