#include "tools/poolctl/replace.h"
#include "tools/poolctl/poolctl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int replacement_open(const char *path, struct replacement *replacement)
{
	int fd, error;

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
