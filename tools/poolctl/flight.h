/*
 * flight.h - the flight recorder of all pools that --pool lets through, for trace and events.
 *
 * Functions that fail have complained already and return an exit code.
 */
#ifndef GPOOL_TOOLS_POOLCTL_FLIGHT_H
#define GPOOL_TOOLS_POOLCTL_FLIGHT_H

#include "tools/poolctl/offline.h"

#include "tools/lib/flight_log.h"

/*
 * flight_gather() - the records of the rings, sorted; `events`: in those of events alone. The log's session is the
 * caller's to set; --since is read here. Rows have the indices of their pools as offline.h knows them.
 */
int flight_gather(const struct command *command, const struct offline *offline, bool events, struct flight_log *log);

/* events.c: event_kind_name() - "eviction"; "unknown" for a number that is none. */
const char *event_kind_name(uint32_t kind);

#endif
