/*
 * chrome_trace.h - a log of the flight recorder as a Chrome trace: a JSON array of events, for Perfetto and
 * chrome://tracing.
 *
 *   pid   the pool, from 1 on
 *   tid   0: the agent; otherwise the session, plus 4,096 for each further track of the session
 *   ph    X: an event with a duration; i: an instant; M: the name of a process or a thread
 *   ts    microseconds since the first record, with three decimals; args.labels of the process has the time of ts 0
 *
 * Slices on one track must be nested or disjoint. Those of a process with several threads can overlap, so a session has
 * as many tracks as it had concurrent actions. The agent's work is nested in the slice of the session that waited for
 * it, if there is one.
 */
#ifndef GPOOL_TOOLS_CHROME_TRACE_H
#define GPOOL_TOOLS_CHROME_TRACE_H

#include "tools/lib/flight_log.h"

#include <stdio.h>

enum { CHROME_NAME_BYTES = 192 };

/* Names that the records do not contain. They are clean text. */
struct chrome_names {
	const void *context;
	void (*pool)(const void *context, uint32_t pool, char name[CHROME_NAME_BYTES]);
	void (*session)(const void *context, uint32_t pool, uint32_t session, char name[CHROME_NAME_BYTES]);
	const char *(*event)(uint32_t kind); /* for kinds below FLIGHT_KINDS_FIRST; never NULL */
	const char *start;                   /* the date and time of ts 0, as text */
};

/* chrome_trace_write() - write the sorted log. Return: 0, -ENOMEM, or -EIO (see the file's errno). */
int chrome_trace_write(FILE *file, const struct flight_log *log, const struct chrome_names *names);

#endif
