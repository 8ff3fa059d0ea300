/*
 * replace.h - files that are replaced as a whole: written beside the old one, and renamed when they are.
 */
#ifndef GPOOL_TOOLS_POOLCTL_REPLACE_H
#define GPOOL_TOOLS_POOLCTL_REPLACE_H

#include <stdio.h>

struct replacement {
	FILE *file; /* to write to; only its owner may read it */
	char *temporary;
};

/* replacement_open() - 0; negative errno after a complaint, and nothing to end. */
int replacement_open(const char *path, struct replacement *replacement);

/*
 * replacement_end() - put it in its place; with an error (0: none) so far, or one now, the old file stays. Return: that
 * error.
 */
int replacement_end(struct replacement *replacement, const char *path, int error);

#endif
