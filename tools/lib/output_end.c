#include "tools/lib/output_end.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

int output_end(const char *program, int status)
{
	errno = 0;
	if (!fflush(stdout) && !ferror(stdout))
		return status;
	fprintf(stderr, "%s: cannot write to standard output: %s\n", program, strerror(errno ? errno : EIO));
	return status ? status : 1;
}
