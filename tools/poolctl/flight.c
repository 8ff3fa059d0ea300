#include "tools/poolctl/flight.h"

#include "shm/session_segment.h"

/* Return the time of reading. Records of events that occur during the reading end later. */
static uint64_t look_ns(const struct command *command, const struct offline *offline)
{
	return command->snapshot ? (offline_time_ms(offline) + 60000) * 1000000 : flight_now() + UINT64_C(1000000000);
}

static int pool_gather(const struct offline *offline, uint32_t pool, bool events, struct flight_log *log)
{
	const struct pool_segment *segment = offline_pool(offline, pool);
	int error = flight_log_add(log, pool, 0, &segment->events);

	if (!events && !error)
		error = flight_log_add(log, pool, 0, &segment->flight);
	for (uint32_t session = 1; !events && !error && session < POOL_SESSIONS; session++)
		if (offline_session(offline, pool, session))
			error = flight_log_add(log, pool, session, &offline_session(offline, pool, session)->flight);
	return error;
}

static bool recorded(const struct offline *offline, uint32_t first, uint32_t count)
{
	for (uint32_t pool = first; pool < first + count; pool++)
		if (offline_pool(offline, pool)->flight.count)
			return true;
	return false;
}

int flight_gather(const struct command *command, const struct offline *offline, bool events, struct flight_log *log)
{
	uint32_t first, count;
	uint64_t since_ns;
	int code = offline_pools(command, offline, &first, &count);

	if (code)
		return code;
	if (!command_since(command, &since_ns))
		return CODE_USAGE;
	log->now_ns = look_ns(command, offline);
	log->since_ns = since_ns && since_ns < log->now_ns ? log->now_ns - since_ns : 0;
	if (!recorded(offline, first, count)) {
		complain(
			"the flight recorder is off; set flight_records of the pool in gpoold.conf and restart gpoold");
		return CODE_FAILED;
	}
	for (uint32_t pool = first; pool < first + count; pool++)
		if (pool_gather(offline, pool, events, log))
			memory_or_exit(NULL);
	flight_log_sort(log);
	return CODE_OK;
}
