/*
 * flight_log.h - what rings of the flight recorder (shm/flight.h) hold, gathered and in order.
 *
 * Records in a session's ring are attributed to that session, whatever they state, and only kinds that sessions may
 * record are used. Memory
 * is the log's: 64 bytes a record, and what their texts take.
 */
#ifndef GPOOL_TOOLS_FLIGHT_LOG_H
#define GPOOL_TOOLS_FLIGHT_LOG_H

#include "shm/flight.h"

struct flight_row {
	struct flight_entry entry;
	uint32_t pool; /* its number with the caller */
	char *text;    /* of an event: clean text; else NULL */
};

struct flight_log {
	/* The caller's, before the first flight_log_add(); the rest is zero. */
	uint64_t now_ns;   /* flight_now(), or when a copy was made */
	uint64_t since_ns; /* only what ended later */
	uint32_t session;  /* only what concerns this one; 0: all */
	/* The log's. */
	struct flight_row *rows;
	uint32_t count, capacity;
	uint32_t damaged; /* records that cannot be, left out */
};

/* flight_log_add() - the records of one ring. session: whose it is; 0: the agent's. Return: 0 or -ENOMEM. */
int flight_log_add(struct flight_log *log, uint32_t pool, uint32_t session, const struct flight_ring *ring);

/* flight_log_sort() - by their beginnings, longer ones first, without duplicates. */
void flight_log_sort(struct flight_log *log);

void flight_log_fini(struct flight_log *log);

static inline uint64_t flight_row_begin(const struct flight_row *row)
{
	return row->entry.time_ns - row->entry.duration_ns;
}

#endif
