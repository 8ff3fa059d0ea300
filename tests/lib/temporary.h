/*
 * temporary.h - paths in $TMPDIR. tests/run gives each program a folder of its own there, and removes it even if the
 * program was killed.
 */
#ifndef TESTS_LIB_TEMPORARY_H
#define TESTS_LIB_TEMPORARY_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * TEMPORARY_FOLDER_MOST: length of the longest $TMPDIR that is used, which is the one that tests/run makes in /tmp. A
 * longer one is not used, because the length of a socket's path is limited. TEMPORARY_PATH_BYTES: size of the path of a
 * file in the folder.
 */
enum { TEMPORARY_FOLDER_MOST = 19, TEMPORARY_PATH_BYTES = 48 };

/* temporary_folder() - return $TMPDIR, or /tmp if it is not set or is too long. */
static inline const char *temporary_folder(void)
{
	const char *folder = getenv("TMPDIR");

	return folder && *folder == '/' && strlen(folder) <= TEMPORARY_FOLDER_MOST ? folder : "/tmp";
}

/* temporary_path() - write the path of a file in this folder, such as "x-XXXXXX" for mkdtemp(), and return it. */
static inline char *temporary_path(char path[TEMPORARY_PATH_BYTES], const char *name)
{
	snprintf(path, TEMPORARY_PATH_BYTES, "%s/%s", temporary_folder(), name);
	return path;
}

#endif
