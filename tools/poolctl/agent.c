/*
 * agent.c - attach, send requests, and explain errors.
 */
#include "tools/poolctl/agent.h"
#include "tools/poolctl/pieces.h"
#include "tools/poolctl/view.h"

#include "client/core/request.h"
#include "shm/pool_segment.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct log_text {
	char *text;
	size_t bytes;
};

/* Keep the library's most important message about a failure, which may be the agent's text. */
static void log_keep(void *context, int level, const char *text)
{
	struct log_text *keep = context;

	if (level == 0)
		snprintf(keep->text, keep->bytes, "%s", text);
}

/*
 * Return true if waiting is useless because there is no socket: gpoold keeps the socket while its agent restarts. If
 * there is a socket, the library waits for the agent.
 */
static bool attach_missing(const struct command *command)
{
	char path[PATH_MAX];

	return snprintf(path, sizeof(path), "%s/attach", command->directory) < (int)sizeof(path) &&
		access(path, F_OK) < 0 && errno == ENOENT;
}

int agent_try(const struct command *command, uint32_t kind, struct gpool **pool, char *text, size_t text_bytes)
{
	/* static: it must outlive the handle, which continues to log */
	static struct log_text keep;
	static char kept[512];
	struct gpool_options options = GPOOL_OPTIONS_INIT;
	int error;

	keep = (struct log_text){kept, sizeof(kept)};
	kept[0] = '\0';
	options.flags = kind;
	options.directory = command->directory;
	options.pool = command->pool;
	options.name = "poolctl";
	options.timeout_ms = command->timeout_ms;
	options.log = log_keep;
	options.log_context = &keep;
	error = attach_missing(command) ? -ENOENT : gpool_open(&options, pool);
	snprintf(text, text_bytes, "%s", kept);
	return error;
}

static int open_complain(const struct command *command, uint32_t kind, int error, const char *why)
{
	const char *colon = why[0] ? ": " : "";

	switch (error) {
	case -ENOENT:
	case -ECONNREFUSED:
	case -ETIMEDOUT:
	case -EPIPE:
	case -EAGAIN:
		if (keeper_pid(command->directory) == -ESRCH)
			complain("no agent answers in '%s': the gpoold that created the sockets has ended; start "
				 "gpoold again",
				command->directory);
		else if (error == -ENOENT || error == -ECONNREFUSED)
			complain("no agent answers in '%s': is gpoold running? start gpoold, or set its directory with "
				 "--dir",
				command->directory);
		else
			complain("the agent in '%s' does not answer in time: it may be stopped or hung; use a longer "
				 "--timeout, or as root --offline, which reads the tables without the agent",
				command->directory);
		return CODE_NO_AGENT;
	case -ENXIO:
		complain("the agent in '%s' has no pool '%s'; 'poolctl status' lists its pools", command->directory,
			command->pool ? command->pool : "");
		return CODE_USAGE;
	case -EACCES:
		complain("you may not attach in '%s' as %s%s%s; run poolctl as root, or add your user or group to "
			 "access.%s of "
			 "gpoold.conf",
			command->directory,
			kind == GPOOL_OPEN_ADMIN ? "an admin"
				: kind           ? "an observer"
						 : "a worker",
			colon, why,
			kind == GPOOL_OPEN_ADMIN ? "admins"
				: kind           ? "observers"
						 : "workers");
		return CODE_FAILED;
	case -EPROTO:
		complain("the agent in '%s' and this poolctl (%s) have different layouts of shared memory%s%s; use the "
			 "poolctl of the agent's version",
			command->directory, gpool_version(), colon, why);
		return CODE_FAILED;
	default:
		complain("cannot attach to the agent in '%s': %s%s%s", command->directory, gpool_strerror(error), colon,
			why);
		return CODE_FAILED;
	}
}

int agent_open(const struct command *command, uint32_t kind, struct gpool **pool)
{
	char why[512];
	int error = agent_try(command, kind, pool, why, sizeof(why));

	return error ? open_complain(command, kind, error, why) : CODE_OK;
}

int agent_ask(
	const struct command *command, struct gpool *pool, uint8_t *request, int length, struct agent_answer *answer)
{
	char text[512] = "";

	if (length < 0) {
		complain("cannot send the request of '%s': a name on the command line is too long, or is not UTF-8 "
			 "text without control characters",
			command->verb->name);
		return CODE_USAGE;
	}
	answer->length = pool_request(
		pool, request, (size_t)length, answer->bytes, sizeof(answer->bytes), command->timeout_ms, text);
	if (answer->length >= 0)
		return CODE_OK;
	switch (answer->length) {
	case -ETIMEDOUT:
		complain("the agent in '%s' did not answer '%s' within %g s: the request may still take effect; use a "
			 "longer --timeout",
			command->directory, command->verb->name, command->timeout_ms / 1000.0);
		return CODE_NO_AGENT;
	case -EPIPE:
		complain("the agent in '%s' ended the session during '%s': it may be restarting; try again",
			command->directory, command->verb->name);
		return CODE_NO_AGENT;
	case -ENXIO:
	case -ENOENT:
	case -ESRCH:
		complain("%s: %s", command->verb->name, text[0] ? text : gpool_strerror(answer->length));
		return CODE_USAGE;
	default:
		complain("%s failed: %s", command->verb->name, text[0] ? text : gpool_strerror(answer->length));
		return CODE_FAILED;
	}
}

int agent_bad_answer(const struct command *command)
{
	complain("the agent in '%s' sent a reply to '%s' that poolctl %s cannot decode; 'poolctl version' prints both "
		 "versions",
		command->directory, command->verb->name, gpool_version());
	return CODE_FAILED;
}

void agent_pool_name(const struct gpool *pool, char name[64])
{
	char raw[POOL_NAME_BYTES + 1] = "";

	memcpy(raw, pool_view(pool)->header->name, POOL_NAME_BYTES);
	msg_text_copy(name, 64, raw);
}

AGENT_GETTER(clients)

int agent_clients(const struct command *command, struct gpool *pool, struct clients_view *view)
{
	static struct msg_clients_reply reply;
	struct msg_clients_request request = {.first = 0};
	int code;

	if (command->pool)
		agent_pool_name(pool, request.pool);
	do {
		code = agent_get_clients(command, pool, &request, &reply);
		if (code)
			break;
		for (uint32_t i = 0; i < reply.clients_count; i++) {
			view->clients = list_grow(view->clients, view->count, &view->capacity, sizeof(*view->clients));
			view->clients[view->count++] = reply.clients[i];
		}
		/* each part must begin after the previous part; otherwise the loop might not end */
		if (reply.next && reply.next <= request.first)
			code = agent_bad_answer(command);
		request.first = reply.next;
	} while (!code && reply.next);
	return code;
}

AGENT_GETTER(status)

int agent_status(const struct command *command, struct gpool *pool, struct msg_status_reply *reply)
{
	static const struct msg_status_request request;
	int code = agent_get_status(command, pool, &request, reply);

	for (uint32_t i = 0; !code && command->pool && i < reply->pools_count; i++) {
		if (!strcmp(reply->pools[i].name, command->pool)) {
			reply->pools[0] = reply->pools[i];
			reply->pools_count = 1;
		}
	}
	return code;
}
