#include "tools/lib/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A process may add an entry after the others were removed. More rounds than a process that is ending has files. */
enum { ROUNDS = 100 };

static int tree_remove(int above, const char *name);

static int content_remove(int above, const char *name)
{
	int fd = openat(above, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), error = 0;
	DIR *folder = fd < 0 ? NULL : fdopendir(fd);
	const struct dirent *entry;

	if (!folder) {
		error = -errno;
		if (fd >= 0)
			close(fd);
		return error == -ENOENT ? 0 : error;
	}
	while ((entry = readdir(folder))) {
		int code = 0;

		if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
			continue;
		if (unlinkat(fd, entry->d_name, 0) < 0 && errno != ENOENT)
			code = errno == EISDIR ? tree_remove(fd, entry->d_name) : -errno;
		error = error ? error : code;
	}
	closedir(folder);
	return error;
}

static int tree_remove(int above, const char *name)
{
	int error = 0;

	for (int round = 0; !error; round++) {
		if (unlinkat(above, name, AT_REMOVEDIR) == 0 || errno == ENOENT)
			return 0;
		error = errno != ENOTEMPTY && errno != EEXIST ? -errno
			: round == ROUNDS                     ? -ENOTEMPTY
							      : content_remove(above, name);
	}
	return error;
}

int folder_remove(const char *path)
{
	return tree_remove(AT_FDCWD, path);
}

const char *folder_temporary(void)
{
	const char *given = getenv("TMPDIR");

	return given && *given == '/' && strlen(given) <= FOLDER_TEMPORARY_MOST ? given : "/tmp";
}
