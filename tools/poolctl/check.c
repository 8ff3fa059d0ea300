/*
 * check.c - check the consistency of the tables.
 */
#include "shm/plural.h"
#include "tools/poolctl/agent.h"
#include "tools/poolctl/offline.h"
#include "tools/poolctl/output.h"

#include <inttypes.h>
#include <poll.h>
#include <string.h>

AGENT_GETTER(check)

enum {
	CHECK_TRIES = 4,     /* the first check and three retries */
	CHECK_AGAIN_MS = 20, /* much longer than a page is in transit, even if its thread has to wait for a CPU */
};

/* The pools to be checked: by requests to the agent, or in mapped tables. */
struct check_source {
	struct gpool *pool;
	struct offline *offline;
	bool quiescent;
	uint32_t first, count; /* indexes of the pools */
	struct msg_status_reply status;
};

static int check_ask(
	const struct command *command, const struct check_source *source, uint32_t index, struct check_view *view)
{
	static struct msg_check_reply reply;
	struct msg_check_request request = {.pool = ""};
	int code;

	if (source->offline)
		return offline_check(source->offline, index, source->quiescent, view);
	strcpy(request.pool, source->status.pools[index].name);
	code = agent_get_check(command, source->pool, &request, &reply);
	if (code)
		return code;
	memset(view, 0, sizeof(*view));
	strcpy(view->pool, request.pool);
	view->pages = reply.pages;
	view->sessions = reply.sessions;
	view->in_transit = reply.in_transit;
	view->found = reply.found;
	view->count = reply.findings_count;
	memcpy(view->findings, reply.findings, reply.findings_count * sizeof(reply.findings[0]));
	return CODE_OK;
}

/*
 * Return true if another check may have a different result. Workers change their tables during a check. The agent
 * changes its tables only between two requests, so its findings about its own tables are final. If the tables are read
 * without the agent, its tables may also change during a check.
 */
static bool check_may_change(const struct command *command, const struct check_view *view)
{
	if (command->snapshot || !view->found)
		return false;
	for (uint32_t i = 0; i < view->count; i++)
		if (view->findings[i].session == 0 && !command->offline)
			return false;
	return true;
}

static void check_print(const struct command *command, const struct check_view *view)
{
	struct table *table;

	print(command,
		"pool '%s': %" PRIu32 " page%s and %" PRIu32 " session%s checked, %" PRIu32
		" page%s in transit: %s%" PRIu32 " finding%s%s\n",
		view->pool, view->pages, plural(view->pages), view->sessions, plural(view->sessions), view->in_transit,
		plural(view->in_transit), color_code(command, view->found ? COLOR_RED : COLOR_GREEN), view->found,
		plural(view->found), color_code(command, COLOR_NONE));
	if (!view->count)
		return;
	table = table_create(">SESSION|>PAGE|FINDING");
	for (uint32_t i = 0; i < view->count; i++) {
		if (view->findings[i].session)
			table_cell(table, "%" PRIu32, view->findings[i].session);
		else
			table_cell(table, "-");
		table_cell(table, "%" PRIu32, view->findings[i].page);
		table_cell(table, "%s", view->findings[i].text);
	}
	table_print(command, table);
	table_destroy(table);
	if (view->found > view->count)
		print(command, "and %" PRIu32 " more\n", view->found - view->count);
}

static void check_json(cJSON *to, const struct check_view *view)
{
	cJSON *list;

	json_text(to, "pool", view->pool);
	json_number(to, "pages", view->pages);
	json_number(to, "sessions", view->sessions);
	json_number(to, "in_transit", view->in_transit);
	json_number(to, "found", view->found);
	list = json_array(to, "findings");
	for (uint32_t i = 0; i < view->count; i++) {
		cJSON *item = json_item(list);

		json_number(item, "session", view->findings[i].session);
		json_number(item, "page", view->findings[i].page);
		json_text(item, "text", view->findings[i].text);
	}
}

static int check_source_open(const struct command *command, struct check_source *source)
{
	int code;

	if (command->offline) {
		code = offline_open(command, &source->offline);
		return code ? code : offline_pools(command, source->offline, &source->first, &source->count);
	}
	code = agent_open(command, GPOOL_OPEN_OBSERVER, &source->pool);
	if (!code)
		code = agent_status(command, source->pool, &source->status);
	source->count = source->status.pools_count;
	return code;
}

/* Check one pool; repeat the check if that may change the result. */
static int check_pool(
	const struct command *command, const struct check_source *source, uint32_t index, struct check_view *view)
{
	int code = CODE_OK;

	for (int i = 0; !code && i < CHECK_TRIES; i++) {
		if (i)
			poll(NULL, 0, CHECK_AGAIN_MS);
		code = check_ask(command, source, index, view);
		if (!check_may_change(command, view))
			break;
	}
	return code;
}

int check_run(const struct command *command)
{
	static struct check_source source;
	static struct check_view view;
	cJSON *document = json_document("check"), *pools = NULL;
	uint64_t found = 0;
	int code;

	source.quiescent = command->values[OPTION_QUIESCENT] != NULL;
	if (source.quiescent && !command->offline) {
		cJSON_Delete(document);
		return complain_usage(command->verb,
			"--quiescent requires --offline: while an agent and its workers run, pages may be in transit");
	}
	json_bool(document, "offline", command->offline);
	pools = json_array(document, "pools");
	code = check_source_open(command, &source);
	for (uint32_t i = source.first; !code && i < source.first + source.count; i++) {
		code = check_pool(command, &source, i, &view);
		if (code)
			break;
		found += view.found;
		if (command->json)
			check_json(json_item(pools), &view);
		else
			check_print(command, &view);
	}
	offline_close(source.offline);
	gpool_close(source.pool);
	json_number(document, "found", found);
	if (!code && command->json)
		json_print(command, document, false);
	else
		cJSON_Delete(document);
	return code ? code : found ? CODE_FOUND : CODE_OK;
}
