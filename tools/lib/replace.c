#include "tools/lib/replace.h"

#include "tools/lib/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool replaceable(const char *path)
{
	char link[sizeof("/proc/")] = "";
	struct stat stat_of;

	if (!strcmp(path, "-")) {
		complain("cannot write to '-': it is not standard output here; choose the path of a regular file");
		return false;
	}
	/* A link such as /dev/stdout, which may lead to a regular file */
	if (readlink(path, link, sizeof(link) - 1) < 0 || strcmp(link, "/proc/")) {
		if (stat(path, &stat_of) < 0 || S_ISREG(stat_of.st_mode))
			return true;
	}
	complain("cannot replace '%s': it exists and is not a regular file; choose another path", path);
	return false;
}

int replacement_open(const char *path, struct replacement *replacement)
{
	int fd, error;

	if (!replaceable(path))
		return -EINVAL;
	if (asprintf(&replacement->temporary, "%s.XXXXXX", path) < 0)
		memory_or_exit(NULL);
	fd = mkostemp(replacement->temporary, O_CLOEXEC);
	if (fd < 0) {
		error = -errno;
		complain("cannot create '%s': %s", replacement->temporary, strerror(errno));
		free(replacement->temporary);
		return error;
	}
	replacement->file = memory_or_exit(fdopen(fd, "w"));
	return 0;
}

int replacement_end(struct replacement *replacement, const char *path, int error)
{
	if (fclose(replacement->file) && !error)
		error = -errno;
	if (!error && rename(replacement->temporary, path) < 0)
		error = -errno;
	if (error)
		unlink(replacement->temporary);
	free(replacement->temporary);
	return error;
}
