/* version.c - print the versions of poolctl, the library and the agent. */
#include "tools/poolctl/agent.h"
#include "tools/poolctl/output.h"

#include "shm/pool_segment.h"

#include <inttypes.h>
#include <string.h>

AGENT_GETTER(version)
AGENT_GETTER(layout)

/* The reply of the agent. `layout` is empty if the agent is of a version that does not report it. */
struct answer {
	struct msg_version_reply version;
	struct msg_layout_reply layout;
};

static int version_ask(const struct command *command, struct answer *answer)
{
	static const struct msg_version_request request;
	static const struct msg_layout_request layout_request;
	char text[512];
	struct gpool *pool;
	int code = agent_open(command, GPOOL_OPEN_OBSERVER, &pool);

	if (code)
		return code;
	code = agent_get_version(command, pool, &request, &answer->version);
	complaints_to(text, sizeof(text));
	if (!code && agent_get_layout(command, pool, &layout_request, &answer->layout))
		memset(&answer->layout, 0, sizeof(answer->layout));
	complaints_to(NULL, 0);
	gpool_close(pool);
	return code;
}

static void version_json(const struct command *command, const struct answer *answer)
{
	cJSON *document = json_document("version"), *agent;

	json_text(document, "poolctl", GPOOL_VERSION);
	json_text(document, "library", gpool_version());
	json_number(document, "layout_version", POOL_LAYOUT_VERSION);
	if (answer) {
		agent = json_object(document, "agent");
		json_text(agent, "version", answer->version.version);
		json_number(agent, "layout_version", answer->version.layout_version);
		json_text(agent, "layout", answer->layout.layout);
		json_text(agent, "interface", answer->layout.interface);
		json_number(agent, "pid", answer->version.pid);
		json_number(agent, "incarnation", answer->version.incarnation);
	} else {
		json_null(document, "agent");
	}
	json_print(command, document, false);
}

int version_run(const struct command *command)
{
	struct answer answer = {0};
	int code = version_ask(command, &answer);

	if (command->json) {
		version_json(command, code ? NULL : &answer);
		return code;
	}
	print(command, "poolctl %s, libgpool %s, layout %d\n", GPOOL_VERSION, gpool_version(), POOL_LAYOUT_VERSION);
	if (code)
		return code;
	print(command, "agent %s, process %" PRIu32 ", incarnation %" PRIu64 "\n", answer.version.version,
		answer.version.pid, answer.version.incarnation);
	if (answer.layout.layout[0])
		print(command, "layout %s, interface %s\n", answer.layout.layout, answer.layout.interface);
	return code;
}
