/*
 * flight.h - the flight recorder of the pools selected by --pool, for the verbs trace and events. Functions that fail
 * print an error message and return an exit code.
 */
#ifndef GPOOL_TOOLS_POOLCTL_FLIGHT_H
#define GPOOL_TOOLS_POOLCTL_FLIGHT_H

#include "tools/poolctl/offline.h"

#include "tools/lib/flight_log.h"

/*
 * flight_gather() - read and sort the records of all rings, or with `events` only of the rings of events. The function
 * applies --since. The caller sets the session of the log. The pool number of a row is its index in offline.h.
 */
int flight_gather(const struct command *command, const struct offline *offline, bool events, struct flight_log *log);

/* events.c: event_kind_name() - return a name such as "eviction", or "unknown" for an unknown number. */
const char *event_kind_name(uint32_t kind);

#endif
