/* replace.h - replace a file atomically: write a temporary file next to it, and rename it when it is complete. */
#ifndef GPOOL_TOOLS_LIB_REPLACE_H
#define GPOOL_TOOLS_LIB_REPLACE_H

#include <stdbool.h>
#include <stdio.h>

struct replacement {
	FILE *file; /* open for writing; readable only by its owner */
	char *temporary;
};

/*
 * replaceable() - check the file that will be replaced. A rename would also replace a device node, FIFO or socket, and
 * root may do that in /dev. '-' is refused, too. Return: false after an error message.
 */
bool replaceable(const char *path);

/* replacement_open() - create the temporary file. Return: 0, or negative errno after an error message. */
int replacement_open(const char *path, struct replacement *replacement);

/*
 * replacement_end() - rename the temporary file. If `error` is not 0 or an error occurs, the old file is kept instead.
 * Return: that error, or 0.
 */
int replacement_end(struct replacement *replacement, const char *path, int error);

#endif
