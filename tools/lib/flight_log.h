/*
 * flight_log.h - records of the flight recorder's rings (shm/flight.h), merged and sorted.
 *
 * Records in a session's ring are attributed to that session, whatever they state, and only the kinds that sessions may
 * record are used. The log allocates 64 bytes per record, plus the texts.
 */
#ifndef GPOOL_TOOLS_FLIGHT_LOG_H
#define GPOOL_TOOLS_FLIGHT_LOG_H

#include "shm/flight.h"

struct flight_row {
	struct flight_entry entry;
	uint32_t pool; /* the caller's number for the pool */
	char *text;    /* text of an event, as clean text; otherwise NULL */
};

struct flight_log {
	/* Set by the caller before the first flight_log_add(); the other fields are zero. */
	uint64_t now_ns;   /* flight_now(), or the time of the copy */
	uint64_t since_ns; /* include only records that ended later */
	uint32_t session;  /* include only records of this session; 0: all */
	/* Set by the log. */
	struct flight_row *rows;
	uint32_t count, capacity;
	uint32_t damaged; /* number of invalid records, which are omitted */
};

/* flight_log_add() - add the records of one ring. session: owner of the ring; 0: the agent. Return: 0 or -ENOMEM. */
int flight_log_add(struct flight_log *log, uint32_t pool, uint32_t session, const struct flight_ring *ring);

/* flight_log_sort() - sort by start, then longer ones first, and remove duplicates of sessions' records. */
void flight_log_sort(struct flight_log *log);

void flight_log_fini(struct flight_log *log);

static inline uint64_t flight_row_begin(const struct flight_row *row)
{
	return row->entry.time_ns - row->entry.duration_ns;
}

#endif
