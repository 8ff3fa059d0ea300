/*
 * option_help.h - how --help lays out sentences and options.
 */
#ifndef GPOOL_TOOLS_LIB_OPTION_HELP_H
#define GPOOL_TOOLS_LIB_OPTION_HELP_H

/*
 * help_wrap() - words of `text` from column `at` on, broken before column 100, further lines indented; and the end of
 * the line.
 */
void help_wrap(const char *text, int at, int indent);

/* help_option() - one option, its help from column `indent` on. letter 0, argument NULL: none. */
void help_option(char letter, const char *name, const char *argument, const char *help, int indent);

#endif
