/* option_help.c - see option_help.h. */
#include "tools/lib/option_help.h"

#include <stdio.h>
#include <string.h>

enum { COLUMNS = 100 };

void help_wrap(const char *text, int at, int indent)
{
	const char *separator = "";

	while (*text) {
		int length = (int)strcspn(text, " ");

		if (separator[0] && at + 1 + length > COLUMNS) {
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

void help_option(char letter, const char *name, const char *argument, const char *help, int indent)
{
	char text[64];

	snprintf(text, sizeof(text), "  %c%c%s--%s%s%s", letter ? '-' : ' ', letter ? letter : ' ',
		letter ? ", " : "  ", name, argument ? " " : "", argument ? argument : "");
	if (printf("%-*s", indent, text) > indent)
		printf("\n%*s", indent, "");
	help_wrap(help, indent, indent);
}
