/* trace.c - write the flight recorder's log as a Chrome trace. */
#include "tools/poolctl/flight.h"
#include "tools/poolctl/output.h"
#include "tools/lib/replace.h"

#include "tools/lib/chrome_trace.h"

#include "client/gpool.h"
#include "shm/page_word.h"
#include "shm/plural.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

struct source {
	const struct offline *offline;
	const struct flight_log *log;
};

static void pool_name(const void *context, uint32_t pool, char name[CHROME_NAME_BYTES])
{
	const struct source *source = context;

	snprintf(name, CHROME_NAME_BYTES, "%s", offline_pool_name(source->offline, pool));
}

/* Return the event of a session's start, "'NAME' attached"; NULL if it has been overwritten. */
static const struct flight_row *attached(const struct flight_log *log, uint32_t pool, uint32_t session)
{
	for (uint32_t i = log->count; i-- > 0;) {
		const struct flight_row *row = &log->rows[i];

		if (row->entry.kind == GPOOL_EVENT_SESSION_START && row->pool == pool &&
			row->entry.session == session && row->text)
			return row;
	}
	return NULL;
}

static void session_name(const void *context, uint32_t pool, uint32_t session, char name[CHROME_NAME_BYTES])
{
	const struct source *source = context;
	const struct flight_row *begun;
	char of[64];
	uint32_t pid;

	if (offline_session_name(source->offline, pool, session, of, &pid)) {
		snprintf(name, CHROME_NAME_BYTES, "session %" PRIu32 " '%s', pid %" PRIu32, session, of, pid);
		return;
	}
	begun = attached(source->log, pool, session);
	if (begun)
		snprintf(name, CHROME_NAME_BYTES, "session %" PRIu32 " %.100s as pid %" PRIu64 ", ended", session,
			begun->text, begun->entry.value);
	else
		snprintf(name, CHROME_NAME_BYTES, "session %" PRIu32 ", ended", session);
}

static int write_to(FILE *file, const struct offline *offline, const struct flight_log *log)
{
	struct text start =
		log->count ? time_text(flight_row_begin(&log->rows[0]) / 1000000) : (struct text){.text = ""};
	const struct source source = {offline, log};
	const struct chrome_names names = {
		.context = &source,
		.pool = pool_name,
		.session = session_name,
		.event = event_kind_name,
		.start = start.text,
	};
	int error;

	errno = 0;
	error = chrome_trace_write(file, log, &names);
	return error == -EIO && errno ? -errno : error;
}

static void print_written(const struct command *command, const char *path, const struct flight_log *log)
{
	uint64_t span_ns = log->count ? log->rows[log->count - 1].entry.time_ns - flight_row_begin(&log->rows[0]) : 0;
	cJSON *document;

	if (command->json) {
		document = json_document("trace");
		json_text(document, "file", path);
		json_number(document, "records", log->count);
		json_number(document, "damaged", log->damaged);
		json_number(document, "span_ms", span_ns / 1000000);
		json_print(command, document, false);
		return;
	}
	print(command, "'%s': %" PRIu32 " record%s over %s\n", path, log->count, plural(log->count),
		age_text(span_ns / 1000000).text);
}

static int write_file(const struct command *command, const struct offline *offline, const struct flight_log *log)
{
	const char *path = command->values[OPTION_FILE];
	struct replacement replacement;
	int error;

	if (replacement_open(path, &replacement))
		return CODE_FAILED;
	error = replacement_end(&replacement, path, write_to(replacement.file, offline, log));
	if (error) {
		complain("cannot write the trace '%s': %s", path, strerror(-error));
		return CODE_FAILED;
	}
	print_written(command, path, log);
	return CODE_OK;
}

static int write_output(const struct command *command, const struct offline *offline, const struct flight_log *log)
{
	int error = command->quiet ? 0 : write_to(stdout, offline, log);

	/* -EPIPE: the reader has closed the output */
	return !error || error == -EPIPE ? CODE_OK : output_failed(error);
}

int trace_run(const struct command *command)
{
	struct flight_log log = {.now_ns = 0};
	struct offline *offline;
	uint64_t session, since;
	int code;

	if (!command_number(command, OPTION_SESSION, 1, PAGE_SESSION_MAX, 0, &session) ||
		!command_since(command, &since))
		return CODE_USAGE;
	code = offline_open(command, &offline);
	if (code)
		return code;
	log.session = (uint32_t)session;
	code = flight_gather(command, offline, false, &log);
	if (!code && log.damaged)
		complain("skipping %" PRIu32 " invalid record%s", log.damaged, plural(log.damaged));
	if (!code)
		code = command->values[OPTION_FILE] ? write_file(command, offline, &log)
						    : write_output(command, offline, &log);
	flight_log_fini(&log);
	offline_close(offline);
	return code;
}
