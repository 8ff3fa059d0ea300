/* evict.c - evict unpinned content now. */
#include "shm/plural.h"
#include "tools/poolctl/agent.h"
#include "tools/poolctl/output.h"
#include "tools/poolctl/view.h"

#include "shm/page_word.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

AGENT_DOER(evict)

/* Parse a list such as "KV_CACHE,TEMP_BUFFER" to a bit mask; 0: not given. */
static int usages_parse(const struct command *command, uint32_t *usages)
{
	const char *text = command->values[OPTION_USAGE];
	char *list, *rest;
	int code = CODE_OK;

	*usages = 0;
	if (!text)
		return CODE_OK;
	list = rest = memory_or_exit(strdup(text));
	for (char *name = strsep(&rest, ","); name && !code; name = strsep(&rest, ",")) {
		uint32_t usage = 0;

		while (usage < GPOOL_USAGE_COUNT && strcasecmp(name, usage_name(usage)))
			usage++;
		if (usage == GPOOL_USAGE_COUNT)
			code = complain_usage(command->verb, "unknown usage '%s'", name);
		else
			*usages |= 1u << usage;
	}
	free(list);
	return code;
}

static void evict_print(const struct command *command, const struct msg_evict_request *request,
	const struct msg_done_reply *reply, uint64_t page_bytes)
{
	cJSON *document;

	if (command->json) {
		document = json_document("evict");
		json_text(document, "pool", request->pool);
		json_number(document, "asked_pages", request->pages);
		json_number(document, "evicted_pages", reply->value);
		json_number(document, "page_bytes", page_bytes);
		json_text(document, "text", reply->text);
		json_print(command, document, false);
		return;
	}
	print(command, "pool '%s': %" PRIu64 " page%s evicted, %s%s%s\n", request->pool, reply->value,
		plural(reply->value), bytes_text(reply->value * page_bytes).text, reply->text[0] ? ": " : "",
		reply->text);
}

static int evict_ask(const struct command *command, struct gpool *pool, struct msg_evict_request *request)
{
	uint64_t page_bytes = gpool_page_bytes(pool);
	struct msg_done_reply reply;
	int code;

	agent_pool_name(pool, request->pool);
	if (!pages_parse("PAGES", command->arguments[0], page_bytes, gpool_page_count(pool), &request->pages))
		return CODE_USAGE;
	if (!request->pages)
		return complain_usage(command->verb, "PAGES is 0; it must be at least 1");
	code = agent_do_evict(command, pool, request, &reply);
	if (code)
		return code;
	evict_print(command, request, &reply, page_bytes);
	if (reply.value >= request->pages)
		return CODE_OK;
	complain("%" PRIu64 " of %" PRIu32
		 " page%s evicted: no other unpinned block matches; 'poolctl pins' lists the pinned blocks",
		reply.value, request->pages, plural(request->pages));
	return CODE_FAILED;
}

int evict_run(const struct command *command)
{
	struct msg_evict_request request = {.pool = ""};
	struct gpool *pool;
	uint64_t session;
	int code = usages_parse(command, &request.usages);

	if (code)
		return code;
	if (!command_number(command, OPTION_SESSION, 1, PAGE_SESSION_MAX, 0, &session))
		return CODE_USAGE;
	request.session = (uint32_t)session;
	code = agent_open(command, GPOOL_OPEN_ADMIN, &pool);
	if (code)
		return code;
	code = evict_ask(command, pool, &request);
	gpool_close(pool);
	return code;
}
