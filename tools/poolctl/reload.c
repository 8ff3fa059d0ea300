/* reload.c - make the agent read its configuration again. */
#include "tools/poolctl/agent.h"
#include "tools/poolctl/output.h"

AGENT_DOER(reload)

int reload_run(const struct command *command)
{
	static const struct msg_reload_request request;
	struct msg_done_reply reply;
	struct gpool *pool;
	int code = agent_open(command, GPOOL_OPEN_ADMIN, &pool);

	if (code)
		return code;
	code = agent_do_reload(command, pool, &request, &reply);
	gpool_close(pool);
	if (code)
		return code;
	print_done(command, "reload", reply.text[0] ? reply.text : "reloaded");
	return CODE_OK;
}
