/*
 * log.h - write log lines to stderr or to the journal, which reads the level from a prefix such as "<6>". A line is in
 * lower case without a full stop and contains the failure, the object in quotes, values with units, and the
 * consequence.
 */
#ifndef GPOOL_AGENT_LOG_H
#define GPOOL_AGENT_LOG_H

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARNING, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

/* log_setup() - set `process`, the name at the beginning of each line: "keeper", "agent", "front". */
void log_setup(const char *process, int level, int journal);

void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
#define log_error(...) log_line(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warning(...) log_line(LOG_LEVEL_WARNING, __VA_ARGS__)
#define log_info(...) log_line(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_LEVEL_DEBUG, __VA_ARGS__)

#endif
