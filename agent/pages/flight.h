/*
 * flight.h - records of the agent in the flight recorder (shm/flight.h), in addition to those of event_publish().
 */
#ifndef GPOOL_AGENT_FLIGHT_H
#define GPOOL_AGENT_FLIGHT_H

#include "shm/flight.h"

struct pool;

/* flight_stamp() - set the time of an entry that ends now. begun_ns: clock_ns() at its start; 0: instantaneous. */
void flight_stamp(struct flight_entry *entry, uint64_t begun_ns);

/* flight_note() - write a record, with the time that flight_stamp() has set or otherwise with the current time. */
void flight_note(const struct pool *pool, const struct flight_entry *entry, uint64_t begun_ns);

#endif
