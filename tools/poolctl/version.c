/* version.c - print the versions of poolctl, the library and the agent. */
#include "tools/poolctl/agent.h"
#include "tools/poolctl/output.h"

#include "shm/pool_segment.h"

#include <inttypes.h>

AGENT_GETTER(version)

static int version_ask(const struct command *command, struct msg_version_reply *reply)
{
	static const struct msg_version_request request;
	struct gpool *pool;
	int code = agent_open(command, GPOOL_OPEN_OBSERVER, &pool);

	if (code)
		return code;
	code = agent_get_version(command, pool, &request, reply);
	gpool_close(pool);
	return code;
}

static void version_json(const struct command *command, const struct msg_version_reply *reply)
{
	cJSON *document = json_document("version"), *agent;

	json_text(document, "poolctl", GPOOL_VERSION);
	json_text(document, "library", gpool_version());
	json_number(document, "layout_version", POOL_LAYOUT_VERSION);
	if (reply) {
		agent = json_object(document, "agent");
		json_text(agent, "version", reply->version);
		json_number(agent, "layout_version", reply->layout_version);
		json_number(agent, "pid", reply->pid);
		json_number(agent, "incarnation", reply->incarnation);
	} else {
		json_null(document, "agent");
	}
	json_print(command, document, false);
}

int version_run(const struct command *command)
{
	struct msg_version_reply reply;
	int code = version_ask(command, &reply);

	if (command->json) {
		version_json(command, code ? NULL : &reply);
		return code;
	}
	print(command, "poolctl %s, libgpool %s, layout %d\n", GPOOL_VERSION, gpool_version(), POOL_LAYOUT_VERSION);
	if (!code)
		print(command, "agent %s, layout %" PRIu32 ", process %" PRIu32 ", incarnation %" PRIu64 "\n",
			reply.version, reply.layout_version, reply.pid, reply.incarnation);
	return code;
}
