/*
 * chrome_trace.h - a log of the flight recorder as a Chrome trace: a JSON array of events, for Perfetto and
 * chrome://tracing.
 *
 *   pid   the pool, from 1 on               tid   0: the agent; else the session, and 4,096 more for each further track
 *         of it
 *   ph    X: has a duration; i: an instant; M: names a process or a thread
 *   ts    microseconds since the first record, with three decimals; args.labels of the process says when that was
 *
 * Slices of one thread must lie in each other or apart, and those of a process with several threads do neither: so a
 * session has as many tracks as it did things at a time. Work of the agent is in the slice of the session that waited
 * for
 * it, where there is one.
 */
#ifndef GPOOL_TOOLS_CHROME_TRACE_H
#define GPOOL_TOOLS_CHROME_TRACE_H

#include "tools/lib/flight_log.h"

#include <stdio.h>

enum { CHROME_NAME_BYTES = 192 };

/* What the records do not say. Names are clean text. */
struct chrome_names {
	const void *context;
	void (*pool)(const void *context, uint32_t pool, char name[CHROME_NAME_BYTES]);
	void (*session)(const void *context, uint32_t pool, uint32_t session, char name[CHROME_NAME_BYTES]);
	const char *(*event)(uint32_t kind); /* of kinds below FLIGHT_KINDS_FIRST; never NULL */
	const char *start;                   /* the moment of ts 0, for people */
};

/* chrome_trace_write() - the sorted log. Return: 0, -ENOMEM, or -EIO (see the file's errno). */
int chrome_trace_write(FILE *file, const struct flight_log *log, const struct chrome_names *names);

#endif
