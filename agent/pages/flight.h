/*
 * flight.h - what the agent notes in the flight recorder (shm/flight.h), beside the events that event_publish() puts
 * there.
 */
#ifndef GPOOL_AGENT_FLIGHT_H
#define GPOOL_AGENT_FLIGHT_H

#include "shm/flight.h"

struct pool;

/* flight_stamp() - it ends now. begun_ns: clock_ns() when it began; 0: an instant. */
void flight_stamp(struct flight_entry *entry, uint64_t begun_ns);

/* flight_note() - one record: as it was stamped, else of now. */
void flight_note(const struct pool *pool, const struct flight_entry *entry, uint64_t begun_ns);

#endif
