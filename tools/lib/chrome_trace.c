#include "tools/lib/chrome_trace.h"

#include "client/gpool.h"
#include "shm/page_word.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

enum { SESSIONS = PAGE_SESSION_MAX + 1, POOLS = 32 };

/* Ends of the last slice of a track, and of the agent's last slice inside it. */
struct track {
	uint64_t end_ns, inner_ns;
};

/* The tracks of one session. */
struct tracks {
	struct track *list;
	uint32_t count;
};

struct writer {
	FILE *file;
	const struct flight_log *log;
	const struct chrome_names *names;
	struct tracks *tracks[POOLS]; /* [SESSIONS]; NULL: no records of this pool yet */
	bool begun;
};

static void element(struct writer *writer)
{
	fputs(writer->begun ? ",\n" : "\n", writer->file);
	writer->begun = true;
}

/* Only for clean text, which has no control characters. */
static void put_text(FILE *file, const char *text)
{
	putc('"', file);
	for (; *text; text++) {
		if (*text == '"' || *text == '\\')
			putc('\\', file);
		putc(*text, file);
	}
	putc('"', file);
}

static void put_microseconds(FILE *file, const char *name, uint64_t ns)
{
	fprintf(file, ", \"%s\": %" PRIu64 ".%03u", name, ns / 1000, (unsigned)(ns % 1000));
}

/*
 * Put a slice on a track if there is no conflict. The records do not state which actions of a session were concurrent,
 * so slices of a session are never nested. A slice of the agent's work is nested in the session's slice that contains
 * it.
 */
static bool track_take(struct track *track, const struct flight_row *row)
{
	uint64_t begin = flight_row_begin(row), end = row->entry.time_ns;

	if (track->end_ns <= begin) {
		track->end_ns = end;
		track->inner_ns = row->entry.self_reported ? begin : end;
		return true;
	}
	if (row->entry.self_reported || end > track->end_ns || track->inner_ns > begin)
		return false;
	track->inner_ns = end;
	return true;
}

/* Return the track of this row, or -ENOMEM. An instant fits on any track. */
static int64_t track_of(struct writer *writer, const struct flight_row *row)
{
	struct tracks *tracks;
	struct track *list;
	uint32_t i = 0;

	if (!writer->tracks[row->pool])
		writer->tracks[row->pool] = calloc(SESSIONS, sizeof(*tracks));
	if (!writer->tracks[row->pool])
		return -ENOMEM;
	tracks = &writer->tracks[row->pool][row->entry.session];
	while (i < tracks->count && row->entry.duration_ns && !track_take(&tracks->list[i], row))
		i++;
	if (i < tracks->count)
		return i;
	list = realloc(tracks->list, (i + 1) * sizeof(*list));
	if (!list)
		return -ENOMEM;
	list[i] = (struct track){.end_ns = 0};
	if (row->entry.duration_ns)
		track_take(&list[i], row);
	tracks->list = list;
	tracks->count++;
	return i;
}

static uint64_t thread_of(uint32_t session, uint32_t track)
{
	return (uint64_t)track * SESSIONS + session;
}

static void put_errno(FILE *file, uint64_t value)
{
	if (!value)
		return;
	fprintf(file, ", \"errno\": %" PRIu64 ", \"error\": ", value);
	put_text(file, value <= 4095 ? gpool_strerror(-(int)value) : "unknown");
}

static void put_value(FILE *file, const struct flight_entry *entry)
{
	switch (entry->kind) {
	case FLIGHT_REFUSAL:
	case FLIGHT_SPILL:
	case FLIGHT_LOAD:
	case FLIGHT_REFILL:
	case FLIGHT_PIN_WAIT:
	case FLIGHT_RESTORE: put_errno(file, entry->value); break;
	case FLIGHT_EVICT:
	case FLIGHT_ALLOCATE:
	case FLIGHT_FREE: fprintf(file, ", \"owner\": \"%" PRIu64 "\"", entry->value); break;
	case FLIGHT_OBJECT_OPEN:
		fprintf(file, ", \"object\": %" PRIu32 ", \"version\": \"%" PRIu64 "\"", entry->page, entry->value);
		break;
	default:
		if (entry->kind < FLIGHT_KINDS_FIRST)
			fprintf(file, ", \"value\": \"%" PRIu64 "\"", entry->value);
	}
}

/* Print numbers that may exceed 2^53 as strings, because readers convert numbers to doubles. */
static void put_args(FILE *file, const struct flight_row *row)
{
	const struct flight_entry *entry = &row->entry;

	fprintf(file, ", \"args\": {\"session\": %u", entry->session);
	if (entry->pages)
		fprintf(file, ", \"page\": %" PRIu32 ", \"pages\": %" PRIu32, entry->page, entry->pages);
	if (entry->tag)
		fprintf(file, ", \"tag\": \"%#" PRIx64 "\"", entry->tag);
	put_value(file, entry);
	if (row->text) {
		fputs(", \"text\": ", file);
		put_text(file, row->text);
	}
	fputs("}}", file);
}

static int put_row(struct writer *writer, const struct flight_row *row)
{
	const struct flight_entry *entry = &row->entry;
	const char *name = flight_kind_name(entry->kind);
	uint64_t origin = flight_row_begin(&writer->log->rows[0]);
	int64_t track = track_of(writer, row);
	FILE *file = writer->file;

	if (track < 0)
		return (int)track;
	element(writer);
	fputs("{\"name\": ", file);
	put_text(file, name ? name : writer->names->event(entry->kind));
	fprintf(file, ", \"cat\": \"%s\", \"ph\": \"%s\", \"pid\": %" PRIu32 ", \"tid\": %" PRIu64,
		!name                          ? "event"
			: entry->self_reported ? "worker"
					       : "agent",
		entry->duration_ns ? "X" : "i", row->pool + 1, thread_of(entry->session, (uint32_t)track));
	put_microseconds(file, "ts", flight_row_begin(row) - origin);
	if (entry->duration_ns)
		put_microseconds(file, "dur", entry->duration_ns);
	else
		fprintf(file, ", \"s\": \"%s\"", entry->everywhere ? "g" : entry->session ? "t" : "p");
	put_args(file, row);
	return 0;
}

static void put_metadata(
	struct writer *writer, const char *what, uint32_t pool, uint64_t thread, const char *key, const char *text)
{
	element(writer);
	fprintf(writer->file,
		"{\"name\": \"%s\", \"ph\": \"M\", \"ts\": 0, \"pid\": %" PRIu32 ", \"tid\": %" PRIu64
		", \"args\": {\"%s\": ",
		what, pool + 1, thread, key);
	put_text(writer->file, text);
	fputs("}}", writer->file);
}

static void put_track_names(struct writer *writer, uint32_t pool, uint32_t session, uint32_t tracks)
{
	char name[CHROME_NAME_BYTES], numbered[CHROME_NAME_BYTES + 16];

	if (session)
		writer->names->session(writer->names->context, pool, session, name);
	else
		snprintf(name, sizeof(name), "agent");
	for (uint32_t i = 0; i < tracks; i++) {
		snprintf(numbered, sizeof(numbered), i ? "%s (%" PRIu32 ")" : "%s", name, i + 1);
		put_metadata(writer, "thread_name", pool, thread_of(session, i), "name", numbered);
	}
}

static void put_names(struct writer *writer, uint32_t pool)
{
	char name[CHROME_NAME_BYTES], title[CHROME_NAME_BYTES + 16];

	writer->names->pool(writer->names->context, pool, name);
	snprintf(title, sizeof(title), "pool %s", name);
	put_metadata(writer, "process_name", pool, 0, "name", title);
	put_metadata(writer, "process_labels", pool, 0, "labels", writer->names->start);
	/* The names above apply to thread 0, too. */
	put_track_names(writer, pool, 0, writer->tracks[pool][0].count ? writer->tracks[pool][0].count : 1);
	for (uint32_t session = 1; session < SESSIONS; session++)
		put_track_names(writer, pool, session, writer->tracks[pool][session].count);
}

static void writer_fini(struct writer *writer)
{
	for (uint32_t pool = 0; pool < POOLS; pool++) {
		for (uint32_t session = 0; writer->tracks[pool] && session < SESSIONS; session++)
			free(writer->tracks[pool][session].list);
		free(writer->tracks[pool]);
	}
}

int chrome_trace_write(FILE *file, const struct flight_log *log, const struct chrome_names *names)
{
	struct writer writer = {.file = file, .log = log, .names = names};
	int error = 0;

	putc('[', file);
	for (uint32_t i = 0; i < log->count && !error; i++)
		error = log->rows[i].pool < POOLS ? put_row(&writer, &log->rows[i]) : 0;
	for (uint32_t pool = 0; pool < POOLS && !error; pool++)
		if (writer.tracks[pool])
			put_names(&writer, pool);
	fputs("\n]\n", file);
	writer_fini(&writer);
	if (fflush(file) || ferror(file))
		error = error ? error : -EIO;
	return error;
}
