/*
 * fuzz_flight.c - arbitrary bytes as rings of the flight recorder, as read by poolctl trace and the agent.
 *
 * Method: the input is read as a session's ring and as the agent's ring of events, unchanged and with serials that
 * match their positions, to reach later checks. Checked: each read terminates. Records of a session are attributed to
 * that session. The trace is JSON in which every element has the required fields. The agent keeps only records of the
 * kinds that sessions may write.
 *
 * Requirements: S10.
 */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/lib/chrome_trace.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { PLACES = 16, SESSION = 5 };
static const uint64_t NOW = UINT64_C(2000000000000000000);

static void demand(int condition)
{
	if (!condition)
		abort();
}

static struct flight_ring ring_of(const uint8_t *data, size_t size, bool texts, bool fitting)
{
	size_t bytes = flight_bytes(PLACES, texts);
	struct flight_ring ring;
	void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);

	demand(memory != NULL);
	memset(memory, 0, bytes);
	if (size)
		memcpy(memory, data, size < bytes ? size : bytes);
	flight_over(memory, PLACES, texts, &ring);
	for (uint32_t i = 0; fitting && i < PLACES; i++) {
		struct flight_record *record = &ring.records[i];

		atomic_store(&record->serial, atomic_load(&record->serial) % 1000 * PLACES + i + 1);
		atomic_store(&record->time_ns, atomic_load(&record->time_ns) % NOW);
		atomic_store(&record->duration_ns, atomic_load(&record->duration_ns) % (1 << 20));
		atomic_store(&record->what, (atomic_load(&record->what) & ~UINT64_C(0xffffff80)));
	}
	if (fitting)
		atomic_store(&ring.head->begun, UINT64_MAX);
	return ring;
}

static void pool_name(const void *context, uint32_t pool, char name[CHROME_NAME_BYTES])
{
	(void)context;
	snprintf(name, CHROME_NAME_BYTES, "%u", pool);
}

static void session_name(const void *context, uint32_t pool, uint32_t session, char name[CHROME_NAME_BYTES])
{
	(void)context;
	snprintf(name, CHROME_NAME_BYTES, "%u \"\\ of %u", session, pool);
}

static const char *event_name(uint32_t kind)
{
	return kind % 2 ? "odd" : "even";
}

static void look_at(const cJSON *event)
{
	const cJSON *phase = cJSON_GetObjectItem(event, "ph");

	demand(cJSON_IsString(phase) && strchr("XiM", phase->valuestring[0]) && !phase->valuestring[1]);
	demand(cJSON_IsString(cJSON_GetObjectItem(event, "name")) && cJSON_IsNumber(cJSON_GetObjectItem(event, "ts")));
	demand(cJSON_IsNumber(cJSON_GetObjectItem(event, "pid")) && cJSON_IsNumber(cJSON_GetObjectItem(event, "tid")));
	demand(cJSON_IsObject(cJSON_GetObjectItem(event, "args")));
	demand((phase->valuestring[0] == 'X') == cJSON_IsNumber(cJSON_GetObjectItem(event, "dur")));
}

static void trace(const struct flight_log *log)
{
	static const struct chrome_names names = {
		.pool = pool_name, .session = session_name, .event = event_name, .start = "then"};
	char *text = NULL;
	size_t bytes = 0;
	FILE *file = open_memstream(&text, &bytes);
	cJSON *document;
	const cJSON *event;

	demand(file != NULL);
	demand(chrome_trace_write(file, log, &names) == 0);
	fclose(file);
	document = cJSON_ParseWithLength(text, bytes);
	demand(cJSON_IsArray(document) && (uint32_t)cJSON_GetArraySize(document) >= log->count);
	cJSON_ArrayForEach(event, document) look_at(event);
	cJSON_Delete(document);
	free(text);
}

static void keep(const struct flight_ring *from)
{
	struct flight_ring to = ring_of(NULL, 0, false, false);
	struct flight_entry entry;

	flight_keep(from, SESSION, &to);
	for (uint32_t place = 0; place < PLACES; place++)
		if (!flight_read(&to, place, UINT64_MAX, &entry, NULL))
			demand(entry.kind >= FLIGHT_WORKERS_FIRST && entry.session == SESSION && entry.self_reported);
	free(to.head);
}

static void look(const uint8_t *data, size_t size, bool fitting)
{
	struct flight_ring worker = ring_of(data, size, false, fitting), events = ring_of(data, size, true, fitting);
	struct flight_log log = {.now_ns = NOW};

	demand(flight_log_add(&log, 1, SESSION, &worker) == 0);
	for (uint32_t i = 0; i < log.count; i++)
		demand(log.rows[i].entry.session == SESSION && log.rows[i].entry.kind >= FLIGHT_WORKERS_FIRST);
	demand(flight_log_add(&log, 0, 0, &events) == 0);
	flight_log_sort(&log);
	trace(&log);
	flight_log_fini(&log);
	keep(&worker);
	free(worker.head);
	free(events.head);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	look(data, size, false);
	look(data, size, true);
	return 0;
}
