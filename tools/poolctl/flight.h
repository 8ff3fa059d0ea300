/*
 * flight.h - the flight recorder of the pools selected by --pool, for trace and events. Functions that fail print a
 * complaint and return an exit code.
 */
#ifndef GPOOL_TOOLS_POOLCTL_FLIGHT_H
#define GPOOL_TOOLS_POOLCTL_FLIGHT_H

#include "tools/poolctl/offline.h"

#include "tools/lib/flight_log.h"

/*
 * flight_gather() - read and sort the records of the rings; `events`: only those of the rings of events. The caller
 * sets the log's session; this function reads --since. Rows have the indexes of their pools in offline.h.
 */
int flight_gather(const struct command *command, const struct offline *offline, bool events, struct flight_log *log);

/* events.c: event_kind_name() - return "eviction"; "unknown" for an unknown number. */
const char *event_kind_name(uint32_t kind);

#endif
