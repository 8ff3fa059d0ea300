#include "tools/lib/flight_log.h"

#include "proto/codec.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Set the session of a record, whatever the record states. Return false if this ring cannot have such a record. */
static bool attribute(struct flight_entry *entry, uint32_t session)
{
	if (!session)
		return entry->self_reported == (entry->kind >= FLIGHT_WORKERS_FIRST);
	entry->session = (uint16_t)session;
	entry->self_reported = true;
	entry->everywhere = false;
	return entry->kind >= FLIGHT_WORKERS_FIRST;
}

static int push(struct flight_log *log, uint32_t pool, const struct flight_entry *entry, const char *text)
{
	struct flight_row row = {.entry = *entry, .pool = pool};
	char clean[FLIGHT_TEXT_BYTES];

	if (log->count == log->capacity) {
		uint32_t capacity = log->capacity ? 2 * log->capacity : 1024;
		struct flight_row *rows = realloc(log->rows, capacity * sizeof(*rows));

		if (!rows)
			return -ENOMEM;
		log->rows = rows;
		log->capacity = capacity;
	}
	if (text[0]) {
		msg_text_copy(clean, sizeof(clean), text);
		row.text = strdup(clean);
		if (!row.text)
			return -ENOMEM;
	}
	log->rows[log->count++] = row;
	return 0;
}

int flight_log_add(struct flight_log *log, uint32_t pool, uint32_t session, const struct flight_ring *ring)
{
	uint32_t places = flight_used(ring);
	char text[FLIGHT_TEXT_BYTES];
	int error = 0;

	for (uint32_t place = 0; place < places && !error; place++) {
		struct flight_entry entry;
		int got = flight_read(ring, place, log->now_ns, &entry, text);

		if (got == -ENOENT)
			continue;
		if (got || !attribute(&entry, session))
			log->damaged++;
		else if (entry.time_ns >= log->since_ns && (!log->session || entry.session == log->session))
			error = push(log, pool, &entry, text);
	}
	return error;
}

static int by_begin(const void *left, const void *right)
{
	const struct flight_row *a = left, *b = right;
	const uint64_t pairs[][2] = {
		{flight_row_begin(a), flight_row_begin(b)},
		{b->entry.duration_ns, a->entry.duration_ns},
		{a->pool, b->pool},
		{a->entry.session, b->entry.session},
		{a->entry.kind, b->entry.kind},
		{a->entry.page, b->entry.page},
		{a->entry.pages, b->entry.pages},
		{a->entry.tag, b->entry.tag},
		{a->entry.value, b->entry.value},
	};

	for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++)
		if (pairs[i][0] != pairs[i][1])
			return pairs[i][0] < pairs[i][1] ? -1 : 1;
	return 0;
}

void flight_log_sort(struct flight_log *log)
{
	uint32_t kept = 0;

	if (log->count)
		qsort(log->rows, log->count, sizeof(*log->rows), by_begin);
	for (uint32_t i = 0; i < log->count; i++) {
		if (kept && log->rows[i].entry.self_reported && !by_begin(&log->rows[kept - 1], &log->rows[i]))
			free(log->rows[i].text);
		else
			log->rows[kept++] = log->rows[i];
	}
	log->count = kept;
}

void flight_log_fini(struct flight_log *log)
{
	for (uint32_t i = 0; i < log->count; i++)
		free(log->rows[i].text);
	free(log->rows);
	log->rows = NULL;
	log->count = log->capacity = 0;
}
