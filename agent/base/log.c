#include "agent/base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static struct {
	const char *process;
	int level;
	int journal;
} setup = {"gpoold", LOG_LEVEL_INFO, 0};

void log_setup(const char *process, int level, int journal)
{
	setup.process = process;
	setup.level = level;
	setup.journal = journal;
}

void log_line(enum log_level level, const char *format, ...)
{
	static const int priorities[] = {3, 4, 6, 7}; /* priorities of syslog(3) */
	static const char *const names[] = {"error", "warning", "info", "debug"};
	char line[1200];
	va_list arguments;
	int head, body;

	if ((int)level > setup.level)
		return;
	if (setup.journal) {
		head = snprintf(line, sizeof(line), "<%d>%s: ", priorities[level], setup.process);
	} else {
		struct timespec now;
		struct tm parts;

		clock_gettime(CLOCK_REALTIME, &now);
		localtime_r(&now.tv_sec, &parts);
		head = snprintf(line, sizeof(line), "%02d:%02d:%02d.%03ld gpoold %s %s: ", parts.tm_hour, parts.tm_min,
			parts.tm_sec, now.tv_nsec / 1000000, setup.process, names[level]);
	}
	va_start(arguments, format);
	body = vsnprintf(line + head, sizeof(line) - (size_t)head - 1, format, arguments);
	va_end(arguments);
	if (body < 0)
		return;
	if ((size_t)(head + body) > sizeof(line) - 2)
		body = (int)sizeof(line) - 2 - head;
	line[head + body] = '\n';
	/* A single write keeps lines of several processes apart. Errors are ignored. */
	if (write(STDERR_FILENO, line, (size_t)(head + body + 1)) < 0)
		return;
}
