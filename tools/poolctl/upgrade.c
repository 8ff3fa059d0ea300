/* upgrade.c - make the agent continue with the newly installed program. */
#include "tools/poolctl/agent.h"
#include "tools/poolctl/output.h"

AGENT_DOER(upgrade)

int upgrade_run(const struct command *command)
{
	static const struct msg_upgrade_request request;
	struct msg_done_reply reply;
	struct gpool *pool;
	int code = agent_open(command, GPOOL_OPEN_ADMIN, &pool);

	if (code)
		return code;
	code = agent_do_upgrade(command, pool, &request, &reply);
	gpool_close(pool);
	if (code)
		return code;
	print_done(command, "upgrade", reply.text);
	return CODE_OK;
}
