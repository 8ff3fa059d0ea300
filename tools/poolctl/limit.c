/*
 * limit.c - change the limits of a tenant or a session.
 */
#include "shm/plural.h"
#include "tools/poolctl/agent.h"
#include "tools/poolctl/output.h"

#include "shm/page_word.h"

#include <inttypes.h>
#include <string.h>

AGENT_DOER(limit)

enum { KEEP = UINT32_MAX };

static void limit_print(
	const struct command *command, const struct msg_limit_request *request, const struct msg_done_reply *reply)
{
	cJSON *document;

	if (command->json) {
		document = json_document("limit");
		json_text(document, "pool", request->pool);
		if (request->tenant[0])
			json_text(document, "tenant", request->tenant);
		else
			json_number(document, "session", request->session);
		if (request->limit_pages != KEEP)
			json_number(document, "limit_pages", request->limit_pages);
		if (request->minimum_pages != KEEP)
			json_number(document, "minimum_pages", request->minimum_pages);
		json_text(document, "text", reply->text);
		json_print(command, document, false);
		return;
	}
	if (request->tenant[0])
		print(command, "pool '%s', tenant '%s'", request->pool, request->tenant);
	else
		print(command, "pool '%s', session %" PRIu32, request->pool, request->session);
	if (request->limit_pages != KEEP)
		print(command, ", limit %" PRIu32 " page%s", request->limit_pages, plural(request->limit_pages));
	if (request->minimum_pages != KEEP)
		print(command, ", minimum %" PRIu32 " page%s", request->minimum_pages, plural(request->minimum_pages));
	print(command, "%s%s\n", reply->text[0] ? ": " : "", reply->text);
}

static int limit_ask(const struct command *command, struct gpool *pool, struct msg_limit_request *request)
{
	const char *limit = command->values[OPTION_LIMIT], *minimum = command->values[OPTION_MINIMUM];
	uint64_t page_bytes = gpool_page_bytes(pool);
	uint32_t page_count = gpool_page_count(pool);
	struct msg_done_reply reply;
	int code;

	agent_pool_name(pool, request->pool);
	request->limit_pages = request->minimum_pages = KEEP;
	if (limit && !pages_parse("--limit", limit, page_bytes, page_count, &request->limit_pages))
		return CODE_USAGE;
	if (minimum && !pages_parse("--minimum", minimum, page_bytes, page_count, &request->minimum_pages))
		return CODE_USAGE;
	code = agent_do_limit(command, pool, request, &reply);
	if (!code)
		limit_print(command, request, &reply);
	return code;
}

int limit_run(const struct command *command)
{
	struct msg_limit_request request = {.pool = ""};
	struct gpool *pool;
	uint64_t session;
	int code;

	if (!command_number(command, OPTION_SESSION, 1, PAGE_SESSION_MAX, 0, &session))
		return CODE_USAGE;
	if ((session != 0) == (command->argument_count == 1))
		return complain_usage(command->verb, "'limit' needs either the name of a tenant or --session");
	if (!command->values[OPTION_LIMIT] && !command->values[OPTION_MINIMUM])
		return complain_usage(command->verb, "'limit' needs --limit, --minimum or both");
	if (session && command->values[OPTION_MINIMUM])
		return complain_usage(command->verb, "a session has no minimum; set the minimum of its tenant");
	request.session = (uint32_t)session;
	if (!session) {
		if (!command->arguments[0][0] || strlen(command->arguments[0]) >= sizeof(request.tenant))
			return complain_usage(command->verb, "there is no tenant '%s'", command->arguments[0]);
		strcpy(request.tenant, command->arguments[0]);
	}
	code = agent_open(command, GPOOL_OPEN_ADMIN, &pool);
	if (code)
		return code;
	code = limit_ask(command, pool, &request);
	gpool_close(pool);
	return code;
}
