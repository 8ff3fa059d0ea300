/* help.c - the verb help, and the generated part of the man page, from the tables in main.c. */
#include "tools/poolctl/output.h"

#include <stdio.h>
#include <string.h>

enum { MAN_COLUMNS = 78 };

/* ---- the man page ---- */

/* The man page contains these parts verbatim; a test compares them. */
#define MAN_BEGIN ".\\\" Begin of what poolctl help --man writes.\n"
#define MAN_END ".\\\" End of what poolctl help --man writes.\n"

/* Print mdoc text: each sentence begins a new line; lines have at most MAN_COLUMNS columns. */
static void man_text(const char *text)
{
	int at = 0;

	while (*text) {
		int length = (int)strcspn(text, " ");
		bool sentence = length && text[length - 1] == '.';

		if (at && at + length + 1 > MAN_COLUMNS) {
			putchar('\n');
			at = 0;
		}
		printf("%s%.*s", at ? " " : "", length, text);
		at += length + 1;
		text += length + (text[length] ? 1 : 0);
		if (sentence) {
			putchar('\n');
			at = 0;
		}
	}
	if (at)
		putchar('\n');
}

static void man_options(const struct option_spec *spec)
{
	char text[1024];

	printf(".Bl -tag -width Ds\n");
	for (; spec->name; spec++) {
		if (!spec->help)
			continue;
		printf(".It");
		if (spec->letter)
			printf(" Fl %c ,", spec->letter);
		printf(" Fl -%s", spec->name);
		if (spec->argument && spec->argument[0] == '[')
			printf(" Op Ar %.*s", (int)strlen(spec->argument) - 2, spec->argument + 1);
		else if (spec->argument)
			printf(" Ar %s", spec->argument);
		putchar('\n');
		man_text(option_help(spec, text, sizeof(text)));
	}
	printf(".El\n");
}

static void man_print(void)
{
	printf(MAN_BEGIN ".Sh OPTIONS\nOptions may be given before or after the verb.\n");
	man_options(poolctl.options);
	printf(".Sh VERBS\n.Bl -tag -width Ds\n");
	for (const struct verb *verb = poolctl.verbs; verb->name; verb++) {
		printf(".It Ic %s", verb->name);
		if (verb->arguments[0] == '[')
			printf(" Op Ar %.*s", (int)strlen(verb->arguments) - 2, verb->arguments + 1);
		else if (verb->arguments[0])
			printf(" Ar %s", verb->arguments);
		printf("\n%c", verb->summary[0] - ('a' - 'A'));
		printf("%s.\n", verb->summary + 1);
		man_text(verb->text);
		if (verb->offline)
			printf("Works with\n.Fl -offline .\n");
		if (verb->options->name && verb->options->help)
			man_options(verb->options);
		printf(".Pp\n");
		man_text(verb->example_text);
		printf(".Dl %s\n", verb->example);
	}
	printf(".El\n" MAN_END MAN_BEGIN ".Sh EXIT STATUS\n.Bl -tag -width Ds\n");
	for (int code = 0; poolctl.codes[code]; code++) {
		printf(".It %d\n", code);
		man_text(poolctl.codes[code]);
	}
	printf(".El\n" MAN_END);
}

int help_run(const struct command *command)
{
	const struct verb *verb = NULL;

	if (command->values[OPTION_MAN]) {
		man_print();
		return CODE_OK;
	}
	if (command->values[OPTION_COMPLETION])
		return completion_print(command);
	if (command->argument_count) {
		verb = verb_find(&poolctl, command->arguments[0]);
		if (!verb)
			return complain_usage(NULL, "unknown verb '%s'", command->arguments[0]);
	}
	help_print(&poolctl, verb);
	return CODE_OK;
}
