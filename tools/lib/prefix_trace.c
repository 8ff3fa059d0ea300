/* prefix_trace.c - see prefix_trace.h. */
#include "tools/lib/prefix_trace.h"

#include "tools/lib/malloc_make.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define WHOLE_MAX 9007199254740992.0 /* 2^53: a double represents every integer up to here */
#define LENGTH_MAX 2147483648.0

/*
 * An edge of the tree, in a hash table. The hash mixes the file's number with a random one, so a file cannot provoke
 * collisions.
 */
struct edge {
	uint64_t id;
	uint32_t parent;
	uint32_t node; /* PREFIX_TRACE_NONE: an empty place */
};

struct reader {
	FILE *file;
	const char *name;
	uint64_t line;
	char *error;
	char *text; /* [PREFIX_TRACE_LINE_MAX] */
	size_t length;
	struct prefix_trace *trace;
	uint64_t first_ms, last_ms;
	struct edge *edges; /* [edge_room] hash table with open addressing, at most half full */
	uint32_t edge_room; /* a power of two */
	uint64_t secret;
};

static int __attribute__((format(printf, 2, 3))) refuse(const struct reader *reader, const char *format, ...)
{
	va_list arguments;
	int length =
		snprintf(reader->error, PREFIX_TRACE_ERROR_BYTES, "%.200s:%" PRIu64 ": ", reader->name, reader->line);

	va_start(arguments, format);
	vsnprintf(reader->error + length, PREFIX_TRACE_ERROR_BYTES - (size_t)length, format, arguments);
	va_end(arguments);
	return -EINVAL;
}

static int no_memory(const struct reader *reader)
{
	refuse(reader, "not enough memory for the trace");
	return -ENOMEM;
}

/* ---- lines ---- */

/* Return: 1, 0 at the end of the file, or an error. */
static int line_read(struct reader *reader)
{
	int c;

	reader->line++;
	reader->length = 0;
	while ((c = getc_unlocked(reader->file)) != EOF && c != '\n') {
		if (c == '\0')
			return refuse(reader, "the line contains a NUL byte");
		if (reader->length == PREFIX_TRACE_LINE_MAX - 1)
			return refuse(reader, "the line is longer than %d bytes", PREFIX_TRACE_LINE_MAX - 1);
		reader->text[reader->length++] = (char)c;
	}
	if (c == EOF && ferror_unlocked(reader->file)) {
		int error = -errno;

		refuse(reader, "cannot be read: %s", strerror(-error));
		return error;
	}
	if (reader->length && reader->text[reader->length - 1] == '\r')
		reader->length--;
	reader->text[reader->length] = '\0';
	return c != EOF || reader->length;
}

/* ---- the tree ---- */

static struct edge *edge_place(const struct reader *reader, uint32_t parent, uint64_t id)
{
	uint64_t mixed = reader->secret ^ id * UINT64_C(0xd6e8feb86659fd93) ^ parent;
	uint32_t place = (uint32_t)random_step(&mixed) & (reader->edge_room - 1);

	while (reader->edges[place].node != PREFIX_TRACE_NONE &&
		(reader->edges[place].parent != parent || reader->edges[place].id != id))
		place = (place + 1) & (reader->edge_room - 1);
	return &reader->edges[place];
}

static int edges_grow(struct reader *reader)
{
	struct edge *old = reader->edges;
	uint32_t old_room = reader->edge_room;

	reader->edge_room = old_room ? old_room * 2 : 4096;
	reader->edges = malloc(reader->edge_room * sizeof(*reader->edges));
	if (!reader->edges) {
		reader->edges = old;
		return no_memory(reader);
	}
	memset(reader->edges, 0xff, reader->edge_room * sizeof(*reader->edges));
	for (uint32_t i = 0; i < old_room; i++)
		if (old[i].node != PREFIX_TRACE_NONE)
			*edge_place(reader, old[i].parent, old[i].id) = old[i];
	free(old);
	return 0;
}

/* Return the node of a block after its parent; create it if necessary. */
static int node_find(struct reader *reader, uint32_t parent, uint64_t id, uint32_t *node)
{
	struct edge *edge;
	int error = reader->trace->node_count >= reader->edge_room / 2 ? edges_grow(reader) : 0;

	if (error)
		return error;
	edge = edge_place(reader, parent, id);
	if (edge->node == PREFIX_TRACE_NONE)
		*edge = (struct edge){.id = id, .parent = parent, .node = reader->trace->node_count++};
	*node = edge->node;
	return 0;
}

/* ---- requests ---- */

static bool is_whole(const cJSON *item, double most)
{
	return cJSON_IsNumber(item) && item->valuedouble >= 0 && item->valuedouble <= most &&
		item->valuedouble == floor(item->valuedouble);
}

static int whole_read(const struct reader *reader, const cJSON *object, const char *name, double most, uint64_t *value)
{
	const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

	if (!item)
		return refuse(reader, "the member '%s' is missing", name);
	if (!is_whole(item, most))
		return refuse(reader, "%s: not an integer from 0 to %.0f", name, most);
	*value = (uint64_t)item->valuedouble;
	return 0;
}

static int block_add(struct reader *reader, uint32_t node)
{
	struct prefix_trace *trace = reader->trace;

	if (trace->block_count == PREFIX_TRACE_BLOCKS_MAX)
		return refuse(reader, "hash_ids: more than %d in total", PREFIX_TRACE_BLOCKS_MAX);
	if (trace->block_count == trace->block_room) {
		uint32_t room = trace->block_room ? trace->block_room * 2 : 4096;
		uint32_t *grown = realloc(trace->blocks, room * sizeof(*grown));

		if (!grown)
			return no_memory(reader);
		trace->blocks = grown;
		trace->block_room = room;
	}
	trace->blocks[trace->block_count++] = node;
	return 0;
}

static int request_add(struct reader *reader, const struct prefix_request *request)
{
	struct prefix_trace *trace = reader->trace;

	if (trace->request_count == PREFIX_TRACE_REQUESTS_MAX)
		return refuse(reader, "more than %d requests", PREFIX_TRACE_REQUESTS_MAX);
	if (trace->request_count == trace->request_room) {
		uint32_t room = trace->request_room ? trace->request_room * 2 : 1024;
		struct prefix_request *grown = realloc(trace->requests, room * sizeof(*grown));

		if (!grown)
			return no_memory(reader);
		trace->requests = grown;
		trace->request_room = room;
	}
	trace->requests[trace->request_count++] = *request;
	return 0;
}

static int blocks_read(struct reader *reader, const cJSON *ids, struct prefix_request *request)
{
	struct prefix_trace *trace = reader->trace;
	uint32_t node = PREFIX_TRACE_NONE;
	const cJSON *id;
	int error;

	if (!ids)
		return refuse(reader, "the member 'hash_ids' is missing");
	if (!cJSON_IsArray(ids))
		return refuse(reader, "hash_ids: not an array");
	request->first = trace->block_count;
	cJSON_ArrayForEach(id, ids)
	{
		if (!is_whole(id, WHOLE_MAX))
			return refuse(reader, "hash_ids: element %" PRIu32 " is not an integer from 0 to %.0f",
				trace->block_count - request->first + 1, WHOLE_MAX);
		error = node_find(reader, node, (uint64_t)id->valuedouble, &node);
		if (!error)
			error = block_add(reader, node);
		if (error)
			return error;
	}
	request->count = trace->block_count - request->first;
	trace->longest = request->count > trace->longest ? request->count : trace->longest;
	return 0;
}

static int request_read(struct reader *reader, const cJSON *object)
{
	struct prefix_trace *trace = reader->trace;
	struct prefix_request request = {0};
	uint64_t input, output, time_ms;
	int error;

	if (!cJSON_IsObject(object))
		return refuse(reader, "the line is not a JSON object");
	error = whole_read(reader, object, "timestamp", WHOLE_MAX, &time_ms);
	if (!error)
		error = whole_read(reader, object, "input_length", LENGTH_MAX, &input);
	if (!error)
		error = whole_read(reader, object, "output_length", LENGTH_MAX, &output);
	if (!error)
		error = blocks_read(reader, cJSON_GetObjectItemCaseSensitive(object, "hash_ids"), &request);
	if (error)
		return error;
	if (trace->request_count == 0)
		reader->first_ms = reader->last_ms = time_ms;
	if (time_ms < reader->last_ms)
		return refuse(reader, "timestamp: it is lower than that of the previous request");
	reader->last_ms = time_ms;
	request.time_ms = time_ms - reader->first_ms;
	request.input_tokens = (uint32_t)input;
	request.output_tokens = (uint32_t)output;
	return request_add(reader, &request);
}

static int line_take(struct reader *reader)
{
	const char *end = NULL;
	cJSON *object;
	int error;

	if (reader->text[strspn(reader->text, " \t")] == '\0')
		return 0;
	object = cJSON_ParseWithLengthOpts(reader->text, reader->length + 1, &end, true);
	if (!object)
		return refuse(
			reader, "the line is not JSON: error at byte %zu", end ? (size_t)(end - reader->text) + 1 : 1);
	error = request_read(reader, object);
	cJSON_Delete(object);
	return error;
}

static int requests_read(struct reader *reader, uint64_t limit)
{
	int error;

	while ((limit == 0 || reader->trace->request_count < limit) && (error = line_read(reader)) != 0) {
		if (error > 0)
			error = line_take(reader);
		if (error)
			return error;
	}
	return reader->trace->block_count ? 0 : refuse(reader, "the trace has no request with a block");
}

int prefix_trace_read(FILE *file, const char *name, uint64_t limit, struct prefix_trace *trace, char *error)
{
	struct reader reader = {.file = file, .name = name, .error = error, .trace = trace};
	int result;

	memset(trace, 0, sizeof(*trace));
	if (getrandom(&reader.secret, sizeof(reader.secret), 0) != sizeof(reader.secret))
		reader.secret = (uint64_t)(uintptr_t)&reader;
	reader.text = malloc(PREFIX_TRACE_LINE_MAX);
	result = reader.text ? requests_read(&reader, limit) : no_memory(&reader);
	free(reader.text);
	free(reader.edges);
	if (result)
		prefix_trace_free(trace);
	return result;
}

int prefix_trace_load(const char *path, uint64_t limit, struct prefix_trace *trace, char *error)
{
	bool standard = !strcmp(path, "-");
	FILE *file = standard ? stdin : fopen(path, "re");
	int result;

	memset(trace, 0, sizeof(*trace));
	if (!file) {
		result = -errno;
		snprintf(error, PREFIX_TRACE_ERROR_BYTES, "cannot open trace '%.200s': %s", path, strerror(-result));
		return result;
	}
	result = prefix_trace_read(file, standard ? "standard input" : path, limit, trace, error);
	if (!standard)
		fclose(file);
	return result;
}

void prefix_trace_free(struct prefix_trace *trace)
{
	free(trace->requests);
	free(trace->blocks);
	memset(trace, 0, sizeof(*trace));
}
