/*
 * confgen.c - print documents from config_keys.def: the example file (--example), or gpoold.conf(5) (--man FRAME), in
 * which the keys replace the line "@KEYS@" of the frame.
 *
 * Both are committed. `make docs` updates them; tests/unit/test_config_doc.c includes this file and fails if they are
 * out of date.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "agent/config/config.h"

/* Copy the frame to fd, with the keys instead of the mark. Return: 0, or -1 if a read or write fails. */
static int print_man(FILE *frame, int fd)
{
	char line[1024];

	while (fgets(line, sizeof(line), frame)) {
		size_t length = strlen(line);

		if (!strcmp(line, "@KEYS@\n")) {
			if (config_print(NULL, CONFIG_PRINT_MAN, fd))
				return -1;
		} else if (write(fd, line, length) != (ssize_t)length) {
			return -1;
		}
	}
	return ferror(frame) ? -1 : 0;
}

#ifndef CONFGEN_NO_MAIN
int main(int argc, char **argv)
{
	FILE *frame;
	int rc;

	if (argc == 2 && !strcmp(argv[1], "--example"))
		return config_print(NULL, CONFIG_PRINT_EXAMPLE, STDOUT_FILENO) ? 1 : 0;
	if (argc != 3 || strcmp(argv[1], "--man") != 0) {
		fprintf(stderr, "usage: confgen --example | --man FRAME\n");
		return 2;
	}
	frame = fopen(argv[2], "r");
	if (!frame) {
		perror(argv[2]);
		return 1;
	}
	rc = print_man(frame, STDOUT_FILENO);
	fclose(frame);
	return rc ? 1 : 0;
}
#endif
