/* malloc_trace.c - see malloc_trace.h. */
#include "tools/lib/malloc_trace.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum {
	LINE_BYTES = 160, /* the longest valid line has 112 */
	FIELDS = 6,
	QUOTE_BYTES = 40, /* of an invalid field in an error message */
};

enum field { FIELD_TIME, FIELD_THREAD, FIELD_STREAM, FIELD_OP, FIELD_SIZE, FIELD_ID };
static const char *const field_names[FIELDS] = {"time_ns", "thread", "stream", "op", "size", "id"};

/* The fields of an event's line that struct malloc_event does not have. */
struct names {
	uint64_t thread, stream, id;
};

struct reader {
	FILE *file;
	const char *name;
	bool incomplete; /* an incomplete trace is accepted */
	uint64_t line;
	bool cut_off; /* this line does not end with a newline */
	char *error;
	char text[LINE_BYTES];
	char *fields[FIELDS];
	struct malloc_trace *trace;
	uint32_t capacity;
	struct names *names; /* [capacity] */
	uint64_t first_ns;
};

static int __attribute__((format(printf, 2, 3))) refuse(const struct reader *reader, const char *format, ...)
{
	va_list arguments;
	int length =
		snprintf(reader->error, MALLOC_TRACE_ERROR_BYTES, "%.200s:%" PRIu64 ": ", reader->name, reader->line);

	va_start(arguments, format);
	vsnprintf(reader->error + length, MALLOC_TRACE_ERROR_BYTES - (size_t)length, format, arguments);
	va_end(arguments);
	return -EINVAL;
}

/* Quote a field for an error message, escaped for a terminal. */
static const char *quoted(char quote[QUOTE_BYTES], const char *text)
{
	size_t length = 0;

	for (; text[length] && length < QUOTE_BYTES - 4; length++)
		quote[length] = text[length] >= ' ' && text[length] <= '~' ? text[length] : '?';
	strcpy(quote + length, text[length] ? "..." : "");
	return quote;
}

/* ---- lines ---- */

/* Return: 1, 0 at the end of the file, or an error. */
static int line_read(struct reader *reader)
{
	size_t length = 0;
	int c;

	reader->line++;
	while ((c = getc_unlocked(reader->file)) != EOF && c != '\n') {
		if (c == '\0')
			return refuse(reader, "the line contains a NUL byte");
		if (length == LINE_BYTES - 1)
			return refuse(reader, "the line is longer than any event");
		reader->text[length++] = (char)c;
	}
	if (c == EOF && ferror_unlocked(reader->file))
		return refuse(reader, "cannot be read: %s", strerror(errno)), -EIO;
	if (c == EOF && length == 0)
		return 0;
	reader->cut_off = c == EOF;
	if (length && reader->text[length - 1] == '\r')
		length--;
	reader->text[length] = '\0';
	return 1;
}

static int line_split(struct reader *reader)
{
	char *at = reader->text;
	int count = 0;

	for (;;) {
		char *comma = strchr(at, ',');

		if (count == FIELDS)
			return refuse(reader, "the line has more fields than " MALLOC_TRACE_HEADER);
		reader->fields[count++] = at;
		if (!comma)
			break;
		*comma = '\0';
		at = comma + 1;
	}
	return count == FIELDS ? 0 : refuse(reader, "the field '%s' is missing", field_names[count]);
}

/* Accept only decimal digits. */
static int field_number(const struct reader *reader, enum field field, uint64_t least, uint64_t most, uint64_t *value)
{
	char quote[QUOTE_BYTES];
	uint64_t number = 0;
	const char *at = reader->fields[field];
	bool good = *at != '\0';

	for (; *at && good; at++) {
		good = *at >= '0' && *at <= '9' && number <= (UINT64_MAX - 9) / 10;
		number = number * 10 + (uint64_t)(*at - '0');
	}
	if (!good || number < least || number > most)
		return refuse(reader, "%s: '%s' is not a number from %" PRIu64 " to %" PRIu64, field_names[field],
			quoted(quote, reader->fields[field]), least, most);
	*value = number;
	return 0;
}

/* ---- events ---- */

static int event_op(const struct reader *reader, struct malloc_event *event)
{
	char quote[QUOTE_BYTES];

	if (!strcmp(reader->fields[FIELD_OP], "malloc"))
		event->op = MALLOC_OP_MALLOC;
	else if (!strcmp(reader->fields[FIELD_OP], "free"))
		event->op = MALLOC_OP_FREE;
	else
		return refuse(reader, "op: '%s' is neither malloc nor free", quoted(quote, reader->fields[FIELD_OP]));
	return 0;
}

static int event_read(struct reader *reader, struct malloc_event *event, struct names *names)
{
	int error = line_split(reader);

	if (!error)
		error = field_number(reader, FIELD_TIME, 0, INT64_MAX, &event->time_ns);
	if (!error)
		error = field_number(reader, FIELD_THREAD, 0, UINT64_MAX - 9, &names->thread);
	if (!error)
		error = field_number(reader, FIELD_STREAM, 0, UINT64_MAX - 9, &names->stream);
	if (!error)
		error = event_op(reader, event);
	if (!error)
		error = field_number(
			reader, FIELD_SIZE, event->op == MALLOC_OP_MALLOC, MALLOC_TRACE_BYTES_MAX, &event->bytes);
	if (!error)
		error = field_number(reader, FIELD_ID, 0, UINT64_MAX - 9, &names->id);
	if (!error && reader->cut_off)
		error = refuse(reader, "the line has no newline: the file is truncated");
	if (!error && (reader->trace->count == 0 || event->time_ns < reader->first_ns))
		reader->first_ns = event->time_ns;
	event->twin = MALLOC_TRACE_NONE;
	return error;
}

int malloc_trace_append(struct malloc_trace *trace, uint32_t *capacity, const struct malloc_event *event)
{
	if (trace->count == MALLOC_TRACE_EVENTS_MAX)
		return -EFBIG;
	if (trace->count == *capacity) {
		uint32_t more = *capacity ? *capacity * 2 : 1024;
		struct malloc_event *grown = realloc(trace->events, more * sizeof(*grown));

		if (!grown)
			return -ENOMEM;
		trace->events = grown;
		*capacity = more;
	}
	trace->events[trace->count++] = *event;
	return 0;
}

static int event_keep(struct reader *reader, const struct malloc_event *event, const struct names *names)
{
	uint32_t before = reader->capacity;
	int error = malloc_trace_append(reader->trace, &reader->capacity, event);

	if (error == -EFBIG)
		return refuse(reader, "more than %d events", MALLOC_TRACE_EVENTS_MAX);
	if (!error && reader->capacity != before) {
		struct names *grown = realloc(reader->names, reader->capacity * sizeof(*grown));

		if (grown)
			reader->names = grown;
		else
			error = -ENOMEM;
	}
	if (error)
		return refuse(reader, "not enough memory for the events"), error;
	reader->names[reader->trace->count - 1] = *names;
	return 0;
}

static int events_read(struct reader *reader)
{
	int error = line_read(reader);

	if (error == 0)
		return refuse(reader, "the file is empty");
	if (error < 0)
		return error;
	if (strcmp(reader->text, MALLOC_TRACE_HEADER))
		return refuse(reader, "the first line is not " MALLOC_TRACE_HEADER);
	while ((error = line_read(reader)) > 0) {
		struct malloc_event event = {0};
		struct names names;

		error = event_read(reader, &event, &names);
		if (error && reader->cut_off && reader->incomplete) {
			reader->trace->dropped++;
			error = 0;
			break;
		}
		if (!error)
			error = event_keep(reader, &event, &names);
		if (error)
			return error;
	}
	if (!error && reader->trace->count == 0)
		return refuse(reader, "the trace has no events");
	return error;
}

/* ---- related events ---- */

/* The sort key: one of the three names of each event. */
struct key {
	const struct names *names;
	size_t member; /* offset in struct names */
};

static uint64_t key_of(const struct key *key, uint32_t event)
{
	return *(const uint64_t *)(const void *)((const char *)&key->names[event] + key->member);
}

static int compare_keys(const void *a, const void *b, void *context)
{
	uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
	uint64_t x = key_of(context, i), y = key_of(context, j);

	return x != y ? (x > y) - (x < y) : (i > j) - (i < j);
}

/* Return the events sorted by name, and in trace order for the same name. NULL: out of memory. */
static uint32_t *events_sort(const struct malloc_trace *trace, struct key *key)
{
	uint32_t *order = malloc(trace->count * sizeof(*order));

	for (uint32_t i = 0; order && i < trace->count; i++)
		order[i] = i;
	if (order)
		qsort_r(order, trace->count, sizeof(*order), compare_keys, key);
	return order;
}

/*
 * Slots for threads or streams. A thread or stream has a slot from its first event to its last, because the limit
 * applies to concurrent threads and streams.
 */
struct places {
	struct key key;
	enum field field;
	uint32_t most, used;
	size_t member;  /* offset of the slot number in struct malloc_event */
	uint32_t first; /* the number of the first slot */
	uint32_t *order;
	uint8_t *ends;    /* [count] flags: EVENT_FIRST or EVENT_LAST event of its name */
	uint32_t *groups; /* [count] index of the name, from 0 */
	uint8_t *group_places;
};
enum { EVENT_FIRST = 1, EVENT_LAST = 2 };

static void places_group(struct places *places, uint32_t count)
{
	uint32_t group = 0;

	for (uint32_t i = 0; i < count; i++) {
		uint32_t at = places->order[i];
		bool first = i == 0 || key_of(&places->key, places->order[i - 1]) != key_of(&places->key, at);
		bool last = i + 1 == count || key_of(&places->key, places->order[i + 1]) != key_of(&places->key, at);

		group += first && i > 0;
		places->ends[at] = (uint8_t)((first ? EVENT_FIRST : 0) | (last ? EVENT_LAST : 0));
		places->groups[at] = group;
	}
}

static int places_give(struct reader *reader, struct places *places)
{
	struct malloc_trace *trace = reader->trace;
	bool taken[MALLOC_TRACE_THREADS_MAX] = {false};
	/* time of the slot's last event: time never decreases within a slot either */
	uint64_t until_ns[MALLOC_TRACE_THREADS_MAX] = {0};

	static_assert(MALLOC_TRACE_STREAMS_MAX <= MALLOC_TRACE_THREADS_MAX, "places for both");
	for (uint32_t i = 0; i < trace->count; i++) {
		uint8_t *place = &places->group_places[places->groups[i]];

		/* Stream 0 is none. */
		if (places->first && key_of(&places->key, i) == 0)
			continue;
		if (places->ends[i] & EVENT_FIRST) {
			uint32_t lowest = 0;

			while (lowest < places->most && (taken[lowest] || until_ns[lowest] > trace->events[i].time_ns))
				lowest++;
			reader->line = (uint64_t)i + 2;
			if (lowest == places->most)
				return refuse(reader, "%s: more than %" PRIu32 " in use at a time",
					field_names[places->field], places->most);
			*place = (uint8_t)lowest;
			places->used = lowest + 1 > places->used ? lowest + 1 : places->used;
		}
		taken[*place] = !(places->ends[i] & EVENT_LAST);
		until_ns[*place] = trace->events[i].time_ns;
		*((uint8_t *)&trace->events[i] + places->member) = (uint8_t)(*place + places->first);
	}
	return 0;
}

/* Assign a slot number to each event. `order` is sorted by the same key. */
static int events_place(struct reader *reader, struct places *places)
{
	uint32_t count = reader->trace->count;
	int error;

	places->ends = malloc(count);
	places->groups = malloc(count * sizeof(*places->groups));
	places->group_places = malloc(count);
	if (places->order && places->ends && places->groups && places->group_places) {
		places_group(places, count);
		error = places_give(reader, places);
	} else {
		refuse(reader, "not enough memory to sort the events");
		error = -ENOMEM;
	}
	free(places->group_places);
	free(places->groups);
	free(places->ends);
	return error;
}

static int threads_check(struct reader *reader, const struct places *places)
{
	const struct malloc_event *events = reader->trace->events;

	for (uint32_t i = 1; i < reader->trace->count; i++) {
		uint32_t at = places->order[i], before = places->order[i - 1];

		if (key_of(&places->key, at) != key_of(&places->key, before) ||
			events[at].time_ns >= events[before].time_ns)
			continue;
		reader->line = (uint64_t)at + 2;
		return refuse(reader, "time_ns: it decreases within thread %" PRIu64, key_of(&places->key, at));
	}
	return 0;
}

static int events_name(struct reader *reader)
{
	struct places threads = {.key = {reader->names, offsetof(struct names, thread)},
		.field = FIELD_THREAD,
		.most = MALLOC_TRACE_THREADS_MAX,
		.member = offsetof(struct malloc_event, thread)};
	struct places streams = {.key = {reader->names, offsetof(struct names, stream)},
		.field = FIELD_STREAM,
		.most = MALLOC_TRACE_STREAMS_MAX,
		.member = offsetof(struct malloc_event, stream),
		.first = 1};
	int error;

	threads.order = events_sort(reader->trace, &threads.key);
	error = events_place(reader, &threads);
	if (!error)
		error = threads_check(reader, &threads);
	free(threads.order);
	if (error)
		return error;
	streams.order = events_sort(reader->trace, &streams.key);
	error = events_place(reader, &streams);
	free(streams.order);
	reader->trace->threads = threads.used;
	reader->trace->streams = streams.used;
	return error;
}

/*
 * Join an event with the event before it that has the same id (MALLOC_TRACE_NONE: none). Return: NULL, or a description
 * of the error, with the field in *field. An invalid event gets no twin.
 */
static const char *pair_join(struct malloc_trace *trace, uint32_t at, uint32_t before, enum field *field)
{
	struct malloc_event *event = &trace->events[at];
	struct malloc_event *last = before == MALLOC_TRACE_NONE ? NULL : &trace->events[before];

	*field = FIELD_ID;
	if (event->op == MALLOC_OP_MALLOC)
		return last && last->op == MALLOC_OP_MALLOC ? "is already allocated" : NULL;
	if (!last || last->op == MALLOC_OP_FREE)
		return "is not allocated";
	*field = FIELD_SIZE;
	if (event->bytes && event->bytes != last->bytes)
		return "was allocated with a different size";
	event->bytes = last->bytes;
	event->twin = before;
	last->twin = at;
	return NULL;
}

/*
 * Sort by id, then by position, so that each free follows its malloc, and join them. Only the first of several errors
 * is reported.
 */
static int events_pair(struct reader *reader)
{
	struct key key = {reader->names, offsetof(struct names, id)};
	struct malloc_trace *trace = reader->trace;
	uint32_t *order = events_sort(trace, &key), worst = MALLOC_TRACE_NONE;
	enum field field, worst_field = FIELD_ID;
	const char *what = NULL;

	if (!order)
		return refuse(reader, "not enough memory to match the events"), -ENOMEM;
	for (uint32_t i = 0; i < trace->count; i++) {
		bool same = i > 0 && key_of(&key, order[i - 1]) == key_of(&key, order[i]);
		const char *wrong = pair_join(trace, order[i], same ? order[i - 1] : MALLOC_TRACE_NONE, &field);

		/* In an incomplete trace, the other half of this pair may be missing. */
		if (wrong && order[i] < worst && !(reader->incomplete && field == FIELD_ID)) {
			worst = order[i];
			worst_field = field;
			what = wrong;
		}
	}
	free(order);
	if (!what)
		return 0;
	reader->line = (uint64_t)worst + 2;
	return refuse(reader, "%s: id %" PRIu64 " %s", field_names[worst_field], reader->names[worst].id, what);
}

/* Drop frees of allocations that are not in the trace. */
static int events_drop(struct reader *reader)
{
	struct malloc_trace *trace = reader->trace;
	uint32_t *places = malloc(trace->count * sizeof(*places)), kept = 0;

	if (!places)
		return refuse(reader, "not enough memory to drop events"), -ENOMEM;
	for (uint32_t i = 0; i < trace->count; i++) {
		struct malloc_event *event = &trace->events[i];

		if (event->op == MALLOC_OP_FREE && event->twin == MALLOC_TRACE_NONE)
			continue;
		places[i] = kept;
		if (event->op == MALLOC_OP_FREE) {
			event->twin = places[event->twin];
			trace->events[event->twin].twin = kept;
		}
		trace->events[kept++] = *event;
	}
	free(places);
	trace->dropped += trace->count - kept;
	trace->count = kept;
	return kept ? 0 : refuse(reader, "all events free memory that is not allocated");
}

void malloc_trace_finish(struct malloc_trace *trace)
{
	uint64_t live = 0;

	trace->mallocs = 0;
	for (uint32_t i = 0; i < trace->count; i++) {
		const struct malloc_event *event = &trace->events[i];

		if (event->time_ns > trace->span_ns)
			trace->span_ns = event->time_ns;
		if (event->op == MALLOC_OP_FREE) {
			live -= event->bytes;
			continue;
		}
		trace->mallocs++;
		live += event->bytes;
		if (live > trace->peak_bytes)
			trace->peak_bytes = live;
	}
}

/* ---- reading and writing ---- */

int malloc_trace_read(FILE *file, const char *name, bool incomplete, struct malloc_trace *trace, char *error_text)
{
	struct malloc_trace made = {0};
	struct reader *reader = calloc(1, sizeof(*reader));
	int error;

	if (!reader) {
		snprintf(error_text, MALLOC_TRACE_ERROR_BYTES, "%.200s: out of memory", name);
		return -ENOMEM;
	}
	reader->file = file;
	reader->name = name;
	reader->incomplete = incomplete;
	reader->error = error_text;
	reader->trace = &made;
	error = events_read(reader);
	if (!error)
		error = events_name(reader);
	if (!error)
		error = events_pair(reader);
	if (!error && incomplete)
		error = events_drop(reader);
	if (!error) {
		for (uint32_t i = 0; i < made.count; i++)
			made.events[i].time_ns -= reader->first_ns;
		malloc_trace_finish(&made);
		*trace = made;
	} else {
		malloc_trace_free(&made);
	}
	free(reader->names);
	free(reader);
	return error;
}

int malloc_trace_load(const char *path, bool incomplete, struct malloc_trace *trace, char *error_text)
{
	FILE *file;
	int error;

	if (!strcmp(path, "-"))
		return malloc_trace_read(stdin, "standard input", incomplete, trace, error_text);
	file = fopen(path, "re");
	if (!file) {
		error = -errno;
		snprintf(
			error_text, MALLOC_TRACE_ERROR_BYTES, "cannot open trace '%.200s': %s", path, strerror(-error));
		return error;
	}
	error = malloc_trace_read(file, path, incomplete, trace, error_text);
	fclose(file);
	return error;
}

int malloc_trace_write(const struct malloc_trace *trace, FILE *file)
{
	errno = 0; /* the first failed write, which ends the loop, sets it */
	fputs(MALLOC_TRACE_HEADER "\n", file);
	for (uint32_t i = 0; i < trace->count && !ferror(file); i++) {
		const struct malloc_event *event = &trace->events[i];
		bool is_free = event->op == MALLOC_OP_FREE;

		fprintf(file, "%" PRIu64 ",%u,%u,%s,%" PRIu64 ",%" PRIu32 "\n", event->time_ns, event->thread + 1u,
			event->stream, is_free ? "free" : "malloc", is_free ? 0 : event->bytes,
			(is_free ? event->twin : i) + 1);
	}
	return fflush(file) == 0 && !ferror(file) ? 0 : errno ? -errno : -EIO;
}

void malloc_trace_free(struct malloc_trace *trace)
{
	free(trace->events);
	memset(trace, 0, sizeof(*trace));
}
