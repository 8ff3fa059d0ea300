/*
 * invariant.c - report a failed invariant; empty except in debug builds.
 */
#include "shm/invariant.h"

#ifdef GPOOL_DEBUG

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MESSAGE_BYTES = 1024 };

static void message_write(int fd, const char *text)
{
	/* Ignore the error: the process ends in any case. */
	if (write(fd, text, strlen(text)) < 0)
		return;
}

void invariant_failed(const char *file, int line, const char *condition, const char *format, ...)
{
	const char *path = getenv("GPOOL_INVARIANT_LOG");
	int fd = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666) : -1;
	char text[MESSAGE_BYTES], values[MESSAGE_BYTES / 2];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(values, sizeof(values), format, arguments);
	va_end(arguments);
	snprintf(text, sizeof(text), "%s:%d: invariant violated: %.300s: %s\n", file, line, condition, values);
	message_write(STDERR_FILENO, text);
	if (fd >= 0)
		message_write(fd, text);
	abort();
}

#endif
