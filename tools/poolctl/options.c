/* options.c - the command line: getopt_long over the option tables of main.c, and the values people write. */
#include "tools/poolctl/poolctl.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SPECS_MAX = 32, LONG_VALUE = 256 /* getopt's values of options: this plus the id */ };

struct parser {
	struct option longs[SPECS_MAX + 1];
	char shorts[SPECS_MAX * 3 + 3];
	const struct option_spec *specs[SPECS_MAX];
	uint32_t count;
};

/* '+' (stop at the verb) and ':' (tell a missing argument from an unknown option) stand before the letters. */
static void parser_init(struct parser *parser, bool stop_early)
{
	memset(parser, 0, sizeof(*parser));
	strcpy(parser->shorts, stop_early ? "+:" : ":");
}

static void parser_add(struct parser *parser, const struct option_spec *specs)
{
	for (; specs && specs->name && parser->count < SPECS_MAX; specs++) {
		struct option *option = &parser->longs[parser->count];

		parser->specs[parser->count++] = specs;
		option->name = specs->name;
		option->has_arg = !specs->argument  ? no_argument
			: specs->argument[0] == '[' ? optional_argument
						    : required_argument;
		option->val = LONG_VALUE + (int)specs->id;
		if (specs->letter) {
			char letter[] = {specs->letter, specs->argument ? ':' : '\0', '\0'};

			strcat(parser->shorts, letter);
		}
	}
}

static const struct option_spec *parser_find(const struct parser *parser, int value)
{
	for (uint32_t i = 0; i < parser->count; i++)
		if (value == LONG_VALUE + (int)parser->specs[i]->id ||
			(parser->specs[i]->letter && value == parser->specs[i]->letter))
			return parser->specs[i];
	return NULL;
}

/*
 * getopt takes an optional argument only when it is glued on with '='. Here the next word is taken too, unless it is an
 * option or a verb, so that `poolctl status --offline FILE` does what it says.
 */
static const char *optional_value(int argc, char **argv)
{
	if (optarg)
		return optarg;
	if (optind < argc && argv[optind][0] != '-' && argv[optind][0] && !verb_find(argv[optind]))
		return argv[optind++];
	return "";
}

static int parse_some(struct parser *parser, int argc, char **argv, struct command *command)
{
	int value;

	opterr = 0;
	while ((value = getopt_long(argc, argv, parser->shorts, parser->longs, NULL)) != -1) {
		const struct option_spec *spec = parser_find(parser, value);

		if (spec && spec->argument && spec->argument[0] == '[')
			command->values[spec->id] = optional_value(argc, argv);
		else if (spec)
			command->values[spec->id] = spec->argument ? optarg : "";
		else if (value == ':')
			return complain_usage(command->verb, "option '%s' needs a value", argv[optind - 1]);
		else if (optopt >= LONG_VALUE || parser_find(parser, optopt))
			return complain_usage(command->verb, "option '%s' takes no value", argv[optind - 1]);
		else if (optopt)
			return complain_usage(command->verb, "unknown option '-%c'", optopt);
		else
			return complain_usage(command->verb, "unknown option '%s'", argv[optind - 1]);
	}
	return CODE_OK;
}

static int command_check_arguments(const struct command *command)
{
	const struct verb *verb = command->verb;

	if (command->argument_count < verb->arguments_least)
		return complain_usage(verb, "'%s' needs %s", verb->name, verb->arguments);
	if (command->argument_count > verb->arguments_most)
		return complain_usage(
			verb, "'%s' does not take '%s'", verb->name, command->arguments[verb->arguments_most]);
	if (command->offline && !verb->offline)
		return complain_usage(verb, "'%s' cannot be had with --offline", verb->name);
	return CODE_OK;
}

static bool seconds_parse(const char *text, int *ms)
{
	char *end;
	double seconds;

	/* strtod() also takes "nan", "inf" and leading blanks */
	if (text[0] != '.' && (text[0] < '0' || text[0] > '9'))
		return false;
	errno = 0;
	seconds = strtod(text, &end);
	if (errno || *end || !(seconds >= 0 && seconds <= 86400))
		return false;
	*ms = (int)(seconds * 1000);
	return true;
}

bool command_seconds(
	const struct command *command, enum option_id id, int least_ms, int most_ms, int otherwise_ms, int *ms)
{
	const struct option_spec *spec = command->verb->options;

	*ms = otherwise_ms;
	if (!command->values[id] || (seconds_parse(command->values[id], ms) && *ms >= least_ms && *ms <= most_ms))
		return true;
	while (spec->id != id)
		spec++;
	complain_usage(command->verb, "--%s '%s' is not a number of seconds from %g to %g", spec->name,
		command->values[id], least_ms / 1000.0, most_ms / 1000.0);
	return false;
}

/* What the global options say, and $GPOOL_DIR and $NO_COLOR. */
static int command_take_globals(struct command *command)
{
	const char *output = command->values[OPTION_OUTPUT], *timeout = command->values[OPTION_TIMEOUT];
	const char *snapshot = command->values[OPTION_OFFLINE], *no_color = getenv("NO_COLOR");

	command->directory = command->values[OPTION_DIR] ? command->values[OPTION_DIR] : getenv("GPOOL_DIR");
	if (!command->directory || !command->directory[0])
		command->directory = "/run/gpool";
	command->pool = command->values[OPTION_POOL];
	if (command->pool && !command->pool[0])
		return complain_usage(command->verb, "--pool needs the name of a pool");
	if (output && !strcmp(output, "json"))
		command->output = OUTPUT_JSON;
	else if (output && strcmp(output, "table"))
		return complain_usage(command->verb, "unknown output format '%s': table or json", output);
	command->timeout_ms = 5000;
	if (timeout && !seconds_parse(timeout, &command->timeout_ms))
		return complain_usage(
			command->verb, "--timeout '%s' is not a number of seconds from 0 to 86400", timeout);
	command->offline = snapshot != NULL;
	command->snapshot = snapshot && snapshot[0] ? snapshot : NULL;
	command->quiet = command->values[OPTION_QUIET] != NULL;
	command->color = !command->values[OPTION_NO_COLOR] && !(no_color && no_color[0]) && isatty(STDOUT_FILENO);
	return CODE_OK;
}

int command_parse(int argc, char **argv, struct command *command)
{
	struct parser parser;
	int code;

	memset(command, 0, sizeof(*command));
	parser_init(&parser, true);
	parser_add(&parser, global_options);
	code = parse_some(&parser, argc, argv, command);
	if (code)
		return code;
	if (optind == argc)
		return command_take_globals(command);
	command->verb = verb_find(argv[optind]);
	if (!command->verb)
		return complain_usage(NULL, "unknown verb '%s'", argv[optind]);
	optind++;
	/* the verb's own arguments: options may stand anywhere among them */
	argc -= optind - 1;
	argv += optind - 1;
	optind = 0;
	parser_init(&parser, false);
	parser_add(&parser, global_options);
	parser_add(&parser, command->verb->options);
	code = parse_some(&parser, argc, argv, command);
	if (code)
		return code;
	command->arguments = argv + optind;
	command->argument_count = (uint32_t)(argc - optind);
	code = command_take_globals(command);
	if (code || command->values[OPTION_HELP] || command->values[OPTION_VERSION])
		return code;
	return command_check_arguments(command);
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

bool command_number(const struct command *command, enum option_id id, uint64_t least, uint64_t most, uint64_t otherwise,
	uint64_t *value)
{
	const struct option_spec *spec = command->verb->options;

	*value = otherwise;
	if (!command->values[id])
		return true;
	if (number_parse(command->values[id], least, most, value))
		return true;
	while (spec->id != id)
		spec++;
	complain_usage(command->verb, "--%s '%s' is not a number from %" PRIu64 " to %" PRIu64, spec->name,
		command->values[id], least, most);
	return false;
}

static bool duration_parse(const char *text, uint64_t *ns)
{
	static const struct {
		const char *name;
		uint64_t ns;
	} units[] = {
		{"ms", 1000000}, {"s", 1000000000}, {"m", 60000000000}, {"h", 3600000000000}, {"d", 86400000000000}};
	size_t length = strspn(text, "0123456789");
	char digits[8] = "";
	uint64_t number;

	if (length >= sizeof(digits))
		return false;
	memcpy(digits, text, length);
	if (!number_parse(digits, 1, 9999999, &number))
		return false;
	for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
		if (!strcmp(text + length, units[i].name)) {
			*ns = number * units[i].ns;
			return true;
		}
	}
	return false;
}

bool command_since(const struct command *command, uint64_t *since_ns)
{
	const char *text = command->values[OPTION_SINCE];

	*since_ns = 0;
	if (!text || duration_parse(text, since_ns))
		return true;
	complain_usage(command->verb,
		"--since '%s' is not a duration: write a number with ms, s, m, h or d, such as 5m", text);
	return false;
}

static bool unit_parse(const char *text, uint64_t *factor)
{
	static const struct {
		const char *name;
		uint64_t factor;
	} units[] = {
		{"KiB", UINT64_C(1) << 10},
		{"MiB", UINT64_C(1) << 20},
		{"GiB", UINT64_C(1) << 30},
		{"TiB", UINT64_C(1) << 40},
	};

	for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
		if (!strcmp(text, units[i].name)) {
			*factor = units[i].factor;
			return true;
		}
	}
	return false;
}

bool pages_parse(const char *what, const char *text, uint64_t page_bytes, uint32_t page_count, uint32_t *pages)
{
	char digits[24] = "";
	size_t length = strspn(text, "0123456789");
	const char *unit = text + length + strspn(text + length, " ");
	uint64_t number, factor;

	if (length < sizeof(digits))
		memcpy(digits, text, length);
	if (!number_parse(digits, 0, UINT64_C(1) << 40, &number))
		goto refuse;
	if (!strcmp(unit, "%") && number <= 100)
		number = (number * page_count + 99) / 100;
	else if (unit_parse(unit, &factor) && number <= (UINT64_C(1) << 62) / factor)
		number = (number * factor + page_bytes - 1) / page_bytes;
	else if (*unit && strcmp(unit, "pages"))
		goto refuse;
	if (number > page_count) {
		complain("%s '%s' is more than the pool has: %" PRIu32 " pages", what, text, page_count);
		return false;
	}
	*pages = (uint32_t)number;
	return true;
refuse:
	complain("%s '%s' is not an amount of pages: write a number of pages (64), a size (128MiB) or a percentage "
		 "(10%%)",
		what, text);
	return false;
}
