/* events.c - print past events, and follow new ones. */
#include "tools/poolctl/agent.h"
#include "tools/poolctl/flight.h"
#include "tools/poolctl/output.h"
#include "tools/poolctl/pieces.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LOOK_MS = 250 }; /* maximum delay in handling a signal */

static volatile sig_atomic_t interrupted;

static void on_signal(int signal)
{
	(void)signal;
	interrupted = 1;
}

static const char *const kind_names[] = {
	[GPOOL_EVENT_PRESSURE] = "pressure",
	[GPOOL_EVENT_EVICTION] = "eviction",
	[GPOOL_EVENT_RECLAIM] = "reclaim",
	[GPOOL_EVENT_TENANT_LIMIT] = "tenant-limit",
	[GPOOL_EVENT_AGENT_START] = "agent-start",
	[GPOOL_EVENT_SESSION_START] = "session-start",
	[GPOOL_EVENT_SESSION_END] = "session-end",
	[GPOOL_EVENT_LEAKED_PIN] = "leaked-pin",
	[GPOOL_EVENT_RELOAD] = "reload",
	[GPOOL_EVENT_FRONT_RESTART] = "front-restart",
	[GPOOL_EVENT_DAMAGE] = "damaged-session",
	[GPOOL_EVENT_OBJECT_PUBLISHED] = "object-published",
	[GPOOL_EVENT_OBJECT_DELETED] = "object-deleted",
	[GPOOL_EVENT_OBJECT_EVICTED] = "object-evicted",
	[GPOOL_EVENT_ROLE_GRANTED] = "role-granted",
	[GPOOL_EVENT_ROLE_FREED] = "role-freed",
	[GPOOL_EVENT_TAKEOVER] = "takeover",
	[GPOOL_EVENT_RETIRED] = "retired",
	[GPOOL_EVENT_SPILL_ERROR] = "spill-error",
	[GPOOL_EVENT_MOVER] = "mover",
	[GPOOL_EVENT_DRAIN] = "drain",
};
enum { KINDS = sizeof(kind_names) / sizeof(kind_names[0]) };

const char *event_kind_name(uint32_t kind)
{
	return kind && kind < KINDS && kind_names[kind] ? kind_names[kind] : "unknown";
}

static int kind_parse(const struct command *command, uint32_t *kind)
{
	const char *text = command->values[OPTION_KIND];

	*kind = 0;
	if (!text)
		return CODE_OK;
	for (uint32_t i = 1; i < KINDS; i++)
		if (kind_names[i] && !strcmp(text, kind_names[i]))
			*kind = i;
	return *kind ? CODE_OK : complain_usage(command->verb, "unknown event kind '%s'", text);
}

static void event_print(const struct command *command, const struct gpool_event *event)
{
	cJSON *document;

	if (command->json) {
		document = json_document("event");
		json_text(document, "event", event_kind_name(event->kind));
		json_number(document, "time_ms", event->time_ms);
		json_text(document, "pool", event->pool);
		json_number(document, "session", event->session);
		json_number(document, "value", event->value);
		json_text(document, "text", event->text);
		json_print(command, document, true);
		return;
	}
	print(command, "%s  %-15s  %-12s  %s\n", time_text(event->time_ms).text, event_kind_name(event->kind),
		event->pool[0] ? event->pool : "-", event->text);
	output_flush();
}

static bool event_wanted(const struct command *command, uint32_t kind, const struct gpool_event *event)
{
	return (!kind || event->kind == kind) &&
		(!command->pool || !event->pool[0] || !strcmp(event->pool, command->pool));
}

/*
 * Return true if gpoold has ended. Events continue after a restart of the agent or the front, so a pause is not the
 * end. The end of gpoold is not detected if its process was not visible at the start (another pid namespace).
 */
static bool gpoold_ended(const struct command *command)
{
	pid_t keeper = keeper_pid(command->directory);

	return keeper == -ENOENT || keeper == -ESRCH;
}

/* ---- recorded events ---- */

static struct gpool_event event_of(const struct offline *offline, const struct flight_row *row)
{
	struct gpool_event event = {
		.size = sizeof(event),
		.kind = row->entry.kind,
		.session = row->entry.session,
		.time_ms = row->entry.time_ns / 1000000,
		.value = row->entry.value,
	};

	if (!row->entry.everywhere)
		snprintf(event.pool, sizeof(event.pool), "%s", offline_pool_name(offline, row->pool));
	snprintf(event.text, sizeof(event.text), "%s", row->text ? row->text : "");
	return event;
}

/* The recorded events. They are read before new events are followed, so that no event is printed twice. */
struct recorded {
	struct gpool_event *events;
	uint32_t count;
};

static int recorded_read(const struct command *command, struct recorded *recorded)
{
	struct flight_log log = {.now_ns = 0};
	struct offline *offline;
	int code = offline_open(command, &offline);

	if (code)
		return code;
	code = flight_gather(command, offline, true, &log);
	recorded->events = memory_or_exit(calloc(log.count + 1, sizeof(*recorded->events)));
	for (uint32_t i = 0; i < log.count; i++)
		recorded->events[i] = event_of(offline, &log.rows[i]);
	recorded->count = log.count;
	flight_log_fini(&log);
	offline_close(offline);
	return code;
}

static uint64_t recorded_print(
	const struct command *command, const struct recorded *recorded, uint32_t kind, uint64_t count)
{
	for (uint32_t i = 0; i < recorded->count && count && !ferror(stdout); i++) {
		if (!event_wanted(command, kind, &recorded->events[i]))
			continue;
		event_print(command, &recorded->events[i]);
		count--;
	}
	return count;
}

static bool recorded_has(const struct recorded *recorded, const struct gpool_event *event)
{
	for (uint32_t i = recorded->count; i-- > 0 && recorded->events[i].time_ms >= event->time_ms;) {
		const struct gpool_event *other = &recorded->events[i];

		if (other->time_ms == event->time_ms && other->kind == event->kind &&
			other->session == event->session && other->value == event->value &&
			!strcmp(other->pool, event->pool) && !strcmp(other->text, event->text))
			return true;
	}
	return false;
}

/* ---- new events ---- */

/*
 * Wait for the next event that the command selects. Return: an exit code. CODE_OK with event->kind 0: a signal arrived,
 * or the output was closed.
 */
static int event_await(const struct command *command, struct gpool *pool, bool seen, struct gpool_event *event)
{
	while (!interrupted && !ferror(stdout)) {
		int error = gpool_event_next(pool, LOOK_MS, event);

		if (!error)
			return CODE_OK;
		if (error == -ETIMEDOUT && seen && gpoold_ended(command)) {
			complain("no more events: gpoold in '%s' has ended", command->directory);
			return CODE_NO_AGENT;
		}
		if (error != -ETIMEDOUT) {
			complain("cannot receive more events: %s", gpool_strerror(error));
			return error == -EPIPE ? CODE_NO_AGENT : CODE_FAILED;
		}
	}
	event->kind = 0;
	return CODE_OK;
}

static int events_follow(const struct command *command, struct gpool *pool, uint32_t kind, uint64_t count)
{
	struct recorded recorded = {.events = NULL};
	bool seen = !gpoold_ended(command), early = false;
	struct gpool_event event = GPOOL_EVENT_INIT;
	int code = CODE_OK;

	if (command->values[OPTION_SINCE]) {
		/* Subscribe first, so that no event between the recorded and the new ones is missed. */
		early = gpool_event_next(pool, LOOK_MS, &event) == 0;
		code = recorded_read(command, &recorded);
		if (!code)
			count = recorded_print(command, &recorded, kind, count);
	}
	while (!code && count) {
		if (!early)
			code = event_await(command, pool, seen, &event);
		early = false;
		if (code || !event.kind)
			break;
		if (!event_wanted(command, kind, &event) || recorded_has(&recorded, &event))
			continue;
		event_print(command, &event);
		count--;
	}
	free(recorded.events);
	return code;
}

static int events_recorded(const struct command *command, uint32_t kind, uint64_t count)
{
	struct recorded recorded = {.events = NULL};
	int code = recorded_read(command, &recorded);

	if (!code)
		recorded_print(command, &recorded, kind, count);
	free(recorded.events);
	return code;
}

int events_run(const struct command *command)
{
	struct sigaction action = {.sa_handler = on_signal};
	struct gpool *pool;
	uint64_t count, since;
	uint32_t kind;
	int code = kind_parse(command, &kind);

	if (code)
		return code;
	if (!command_number(command, OPTION_COUNT, 1, UINT64_MAX, UINT64_MAX, &count) ||
		!command_since(command, &since))
		return CODE_USAGE;
	if (command->offline)
		return events_recorded(command, kind, count);
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	code = agent_open(command, GPOOL_OPEN_OBSERVER, &pool);
	if (code)
		return code;
	code = events_follow(command, pool, kind, count);
	gpool_close(pool);
	return code;
}
