/* completion.c - print completion scripts for shells, from the tables in main.c. */
#include "tools/poolctl/poolctl.h"

#include <stdio.h>
#include <string.h>

/* ---- bash ---- */

static void bash_options(const struct option_spec *spec)
{
	for (; spec->name; spec++)
		if (spec->help)
			printf(" --%s", spec->name);
}

static void bash_words(const struct option_spec *spec)
{
	for (; spec->name; spec++) {
		if (!spec->help || !spec->words)
			continue;
		printf("\t--%s", spec->name);
		if (spec->letter)
			printf(" | -%c", spec->letter);
		printf(")\n\t\tCOMPREPLY=($(compgen -W \"%s\" -- \"$current\"))\n\t\treturn\n\t\t;;\n", spec->words);
	}
}

static void bash_print(void)
{
	printf("# bash completion for poolctl; written by poolctl help --completion bash from its table of verbs.\n"
	       "_poolctl() {\n"
	       "\tlocal current=\"${COMP_WORDS[COMP_CWORD]}\" previous=\"${COMP_WORDS[COMP_CWORD-1]}\" verb='' word\n"
	       "\tlocal verbs='");
	for (const struct verb *verb = poolctl.verbs; verb->name; verb++)
		printf("%s%s", verb == poolctl.verbs ? "" : " ", verb->name);
	printf("'\n\tlocal options='");
	for (const struct option_spec *spec = poolctl.options; spec->name; spec++)
		printf("%s--%s", spec == poolctl.options ? "" : " ", spec->name);
	printf("'\n\tCOMPREPLY=()\n"
	       "\tfor word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n"
	       "\t\tif [[ -z $verb && \" $verbs \" == *\" $word \"* ]]; then verb=$word; fi\n"
	       "\tdone\n"
	       "\tcase $previous in\n");
	bash_words(poolctl.options);
	for (const struct verb *verb = poolctl.verbs; verb->name; verb++)
		bash_words(verb->options);
	printf("\t--dir | -d)\n\t\tCOMPREPLY=($(compgen -d -- \"$current\"))\n\t\treturn\n\t\t;;\n"
	       "\tesac\n"
	       "\tcase $verb in\n"
	       "\t'')\n\t\tif [[ $current != -* ]]; then options=$verbs; fi\n\t\t;;\n");
	for (const struct verb *verb = poolctl.verbs; verb->name; verb++) {
		if (!verb->options->name || !verb->options->help)
			continue;
		printf("\t%s) options+='", verb->name);
		bash_options(verb->options);
		printf("' ;;\n");
	}
	printf("\thelp)\n\t\tif [[ $current != -* ]]; then options=$verbs; fi\n\t\t;;\n"
	       "\tdump)\n\t\tif [[ $current != -* ]]; then\n"
	       "\t\t\tCOMPREPLY=($(compgen -f -- \"$current\"))\n\t\t\treturn\n\t\tfi\n\t\t;;\n"
	       "\tesac\n"
	       "\tif [[ $previous == --offline && $current != -* ]]; then\n"
	       "\t\tCOMPREPLY=($(compgen -f -W \"$([[ -z $verb ]] && echo \"$verbs\")\" -- \"$current\"))\n"
	       "\t\treturn\n"
	       "\tfi\n"
	       "\tCOMPREPLY=($(compgen -W \"$options\" -- \"$current\"))\n"
	       "}\n"
	       "complete -F _poolctl poolctl\n");
}

/* ---- zsh ---- */

/* Print the first sentence of a help text, without the quotes, brackets and colons that _arguments interprets. */
static void zsh_text(const char *text)
{
	for (; *text && !(text[0] == '.' && (text[1] == ' ' || !text[1])); text++) {
		if (*text == '\'')
			fputs("'\\'", stdout);
		else if (strchr("[]:\\", *text))
			putchar('\\');
		putchar(*text);
	}
}

/* Print ":NAME:ACTION" for the value of an option. */
static void zsh_value(const struct option_spec *spec)
{
	bool optional = spec->argument && spec->argument[0] == '[';

	if (!spec->argument)
		return;
	printf(optional ? "::" : ":");
	zsh_text(spec->name);
	if (spec->words)
		printf(":(%s)", spec->words);
	else if (spec->id == OPTION_DIR)
		printf(":_files -/");
	else if (spec->id == OPTION_FILE || spec->id == OPTION_OFFLINE)
		printf(":_files");
	else
		printf(": ");
}

static void zsh_options(const struct option_spec *spec, const char *indent)
{
	for (; spec->name; spec++) {
		const char *glue = !spec->argument ? "" : spec->argument[0] == '[' ? "=-" : "=";

		if (!spec->help)
			continue;
		if (spec->letter)
			printf("%s'(-%c --%s)'{-%c%s,--%s%s}'[", indent, spec->letter, spec->name, spec->letter,
				spec->argument ? "+" : "", spec->name, glue);
		else
			printf("%s'--%s%s[", indent, spec->name, glue);
		zsh_text(spec->help);
		putchar(']');
		zsh_value(spec);
		printf("'\n");
	}
}

static void zsh_verb(const struct verb *verb)
{
	printf("\t\t%s)\n\t\t\twords_of=(\n", verb->name);
	zsh_options(verb->options, "\t\t\t\t");
	if (!strcmp(verb->name, "dump"))
		printf("\t\t\t\t'1:file:_files'\n");
	else if (!strcmp(verb->name, "help"))
		printf("\t\t\t\t'1:verb:_poolctl_verbs'\n");
	else if (verb->arguments_most)
		printf("\t\t\t\t'*:%s: '\n", verb->name);
	printf("\t\t\t)\n\t\t\t;;\n");
}

static void zsh_print(void)
{
	printf("#compdef poolctl\n"
	       "# zsh completion for poolctl; written by poolctl help --completion zsh from its table of verbs.\n"
	       "_poolctl_verbs() {\n"
	       "\tlocal -a verbs\n"
	       "\tverbs=(\n");
	for (const struct verb *verb = poolctl.verbs; verb->name; verb++) {
		printf("\t\t'%s:", verb->name);
		zsh_text(verb->summary);
		printf("'\n");
	}
	printf("\t)\n"
	       "\t_describe -t verbs verb verbs\n"
	       "}\n"
	       "_poolctl() {\n"
	       "\tlocal context state state_descr line\n"
	       "\ttypeset -A opt_args\n"
	       "\tlocal -a every words_of\n"
	       "\tevery=(\n");
	zsh_options(poolctl.options, "\t\t");
	printf("\t)\n"
	       "\t_arguments -C $every '1:verb:_poolctl_verbs' '*::argument:->rest'\n"
	       "\tif [[ $state == rest ]]; then\n"
	       "\t\tcase $line[1] in\n");
	for (const struct verb *verb = poolctl.verbs; verb->name; verb++)
		if (verb->arguments_most || (verb->options->name && verb->options->help))
			zsh_verb(verb);
	printf("\t\tesac\n"
	       "\t\t_arguments $every $words_of\n"
	       "\tfi\n"
	       "}\n"
	       "_poolctl \"$@\"\n");
}

int completion_print(const struct command *command)
{
	const char *shell = command->values[OPTION_COMPLETION];

	if (!strcmp(shell, "bash"))
		bash_print();
	else if (!strcmp(shell, "zsh"))
		zsh_print();
	else
		return complain_usage(command->verb, "there is no completion for '%s': bash or zsh", shell);
	return CODE_OK;
}
