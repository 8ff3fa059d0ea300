#include "agent/pages/flight.h"

#include "agent/base/crash_point.h"
#include "agent/pages/pool.h"

void flight_stamp(struct flight_entry *entry, uint64_t begun_ns)
{
	entry->time_ns = flight_now();
	entry->duration_ns = begun_ns ? clock_ns() - begun_ns : 0;
}

void flight_note(const struct pool *pool, const struct flight_entry *entry, uint64_t begun_ns)
{
	struct flight_entry noted = *entry;

	if (!pool->segment.flight.count)
		return;
	if (!noted.time_ns)
		flight_stamp(&noted, begun_ns);
	flight_write(&pool->segment.flight, &noted, NULL);
	crash_point();
}
