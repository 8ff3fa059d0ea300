/*
 * drain.c - take a pool out of service: admit no further workers, and wait until the attached ones have detached
 * (unless --no-wait is given), or put it back in service.
 */
#include "shm/plural.h"
#include "tools/poolctl/agent.h"
#include "shm/monotonic.h"
#include "tools/poolctl/output.h"
#include "tools/poolctl/view.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

AGENT_DOER(drain)
AGENT_DOER(evict)

enum {
	ANSWER_MS = 5000, /* --timeout limits the wait for workers, but not for the agent */
	LOOK_MS = 1000,   /* workers that detach are reported by events; polling covers lost events */
	KIND_WORKER = 0,  /* client_entry.kind */
};

struct left {
	uint32_t workers, pages;
};

static int left_ask(const struct command *command, struct gpool *pool, struct left *left)
{
	struct clients_view view = {.clients = NULL};
	int code = agent_clients(command, pool, &view);

	*left = (struct left){0};
	for (uint32_t i = 0; i < view.count; i++) {
		if (view.clients[i].kind != KIND_WORKER)
			continue;
		left->workers++;
		left->pages += view.clients[i].leased_pages;
	}
	free(view.clients);
	return code;
}

static struct text left_text(const struct left *left)
{
	struct text text;

	snprintf(text.text, sizeof(text.text), "%" PRIu32 " worker%s with %" PRIu32 " page%s", left->workers,
		plural(left->workers), left->pages, plural(left->pages));
	return text;
}

/* Wait until no worker is left. Return CODE_FAILED if `until_ms` (0: never) passes before; the caller reports that. */
static int drain_wait(
	const struct command *command, struct gpool *pool, const char *name, uint64_t until_ms, struct left *left)
{
	struct left printed = {UINT32_MAX, UINT32_MAX};
	struct gpool_event event = GPOOL_EVENT_INIT;

	gpool_event_next(pool, 0, &event); /* subscribe to events */
	for (;;) {
		uint64_t now, wait_ms = LOOK_MS;
		int code = left_ask(command, pool, left);

		if (code || !left->workers)
			return code;
		if (!command->quiet && (left->workers != printed.workers || left->pages != printed.pages))
			complain("pool '%s': waiting for %s", name, left_text(left).text);
		printed = *left;
		now = monotonic_ms();
		if (until_ms && now >= until_ms)
			return CODE_FAILED;
		if (until_ms && until_ms - now < wait_ms)
			wait_ms = until_ms - now;
		gpool_event_next(pool, (int)wait_ms, &event);
	}
}

static void drain_print(const struct command *command, const char *name, bool on, uint64_t evicted,
	const struct left *left, const char *text)
{
	cJSON *document;

	if (!command->json) {
		print(command, "pool '%s': %s", name, text);
		if (command->values[OPTION_EVICT])
			print(command, "; %" PRIu64 " page%s evicted", evicted, plural(evicted));
		if (on)
			print(command, "; remaining: %s", left_text(left).text);
		print(command, "\n");
		return;
	}
	document = json_document("drain");
	json_text(document, "pool", name);
	json_bool(document, "draining", on);
	json_number(document, "workers", left->workers);
	json_number(document, "leased_pages", left->pages);
	json_number(document, "evicted_pages", evicted);
	json_text(document, "text", text);
	json_print(command, document, false);
}

static int drain_ask(const struct command *command, struct gpool *pool, uint64_t until_ms)
{
	struct msg_drain_request request = {.on = !command->values[OPTION_OFF]};
	struct msg_evict_request evict = {.pages = gpool_page_count(pool)};
	struct msg_done_reply reply, evicted = {.value = 0};
	struct left left;
	int code;

	agent_pool_name(pool, request.pool);
	memcpy(evict.pool, request.pool, sizeof(evict.pool));
	code = agent_do_drain(command, pool, &request, &reply);
	if (!code && command->values[OPTION_EVICT])
		code = agent_do_evict(command, pool, &evict, &evicted);
	if (!code)
		code = left_ask(command, pool, &left);
	if (code)
		return code;
	if (request.on && !command->values[OPTION_NO_WAIT])
		code = drain_wait(command, pool, request.pool, until_ms, &left);
	if (code > CODE_FAILED)
		return code;
	drain_print(command, request.pool, request.on, evicted.value, &left, reply.text);
	if (code)
		complain("pool '%s' is out of service; still attached after %s s: %s; 'poolctl clients' lists the "
			 "workers, 'poolctl drain --off' returns the pool to service",
			request.pool, command->values[OPTION_TIMEOUT], left_text(&left).text);
	return code;
}

int drain_run(const struct command *command)
{
	struct command asking = *command;
	struct gpool *pool;
	uint64_t until_ms;
	int code;

	if (command->values[OPTION_OFF] && (command->values[OPTION_EVICT] || command->values[OPTION_NO_WAIT]))
		return complain_usage(command->verb, "--off cannot be combined with --evict or --no-wait");
	until_ms = command->values[OPTION_TIMEOUT] ? monotonic_ms() + (uint64_t)command->timeout_ms : 0;
	asking.timeout_ms = ANSWER_MS;
	code = agent_open(&asking, GPOOL_OPEN_ADMIN, &pool);
	if (code)
		return code;
	/* not NULL, so that agent_clients() lists one pool only */
	asking.pool = command->pool ? command->pool : "";
	code = drain_ask(&asking, pool, until_ms);
	gpool_close(pool);
	return code;
}
