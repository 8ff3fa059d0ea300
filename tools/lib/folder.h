/* folder.h - choose the folder of temporary files, and remove a folder with everything in it. */
#ifndef GPOOL_TOOLS_LIB_FOLDER_H
#define GPOOL_TOOLS_LIB_FOLDER_H

/*
 * folder_remove() - remove a folder and its content, while processes that are ending may still create and remove
 * entries. Symbolic links are removed, not followed.
 *
 * Return: 0, also if the folder does not exist, or the negative errno of the first entry that cannot be removed.
 */
int folder_remove(const char *path);

/*
 * folder_temporary() - return $TMPDIR, or /tmp if $TMPDIR is not set, is relative, or is longer than
 * FOLDER_TEMPORARY_MOST bytes, because the length of a socket's path is limited.
 */
enum { FOLDER_TEMPORARY_MOST = 40 };
const char *folder_temporary(void);

#endif
