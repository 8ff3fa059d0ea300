/*
 * replace.h - replace a file as a whole: write a temporary file next to it, and rename that when it is complete.
 */
#ifndef GPOOL_TOOLS_POOLCTL_REPLACE_H
#define GPOOL_TOOLS_POOLCTL_REPLACE_H

#include <stdio.h>

struct replacement {
	FILE *file; /* for writing; only its owner may read it */
	char *temporary;
};

/* replacement_open() - create the temporary file. 0; negative errno after a complaint. */
int replacement_open(const char *path, struct replacement *replacement);

/*
 * replacement_end() - rename it, unless `error` is not 0 or an error occurs: then the old file stays. Return: that
 * error.
 */
int replacement_end(struct replacement *replacement, const char *path, int error);

#endif
