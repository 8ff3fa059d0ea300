#include "tools/replay/pool.h"

#include "tools/replay/replay.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ATTACH_STEP_MS = 100, ATTACH_MS = 30000 };

int replay_pool_start(struct replay_pool *pool)
{
	char program[4096], text[128], memory[32];
	const char *pools[] = {text};
	int error;

	if (pool->directory)
		return 0;
	error = agent_process_program(program, sizeof(program));
	if (error) {
		complain("cannot find gpoold in the directory of this program or in ../sbin; set GPOOLD to its path, "
			 "or use --dir");
		return error;
	}
	/* Set the memory of the simulated device of `host`. */
	snprintf(memory, sizeof(memory), "%" PRIu64, pool->bytes);
	setenv("GPOOL_HOST_MEMORY", memory, 0);
	snprintf(text, sizeof(text), "name=replay,backend=host,size=%" PRIu64 "B,page_size=%" PRIu64 "B,reserved=0%s",
		pool->bytes, pool->page_bytes, pool->huge ? ",huge_pages=yes" : "");
	error = agent_process_start(&pool->agent, "gpool-replay", program, pools, 1, pool->setting, false);
	if (error)
		complain("cannot start '%s': %s", program, strerror(-error));
	return error;
}

/* Attach with short timeouts, so that signals and the end of a started agent are detected quickly. */
int replay_pool_open(struct replay_pool *pool, struct gpool **handle)
{
	struct gpool_options options = GPOOL_OPTIONS_INIT;
	char said[768] = "";
	int error, status, waited = 0;

	options.directory = pool->directory ? pool->directory : pool->agent.directory;
	options.pool = pool->name;
	options.name = "gpool-replay";
	options.timeout_ms = pool->directory ? 0 : ATTACH_STEP_MS;
	do {
		error = gpool_open(&options, handle);
		if (error != -ENOENT && error != -ETIMEDOUT)
			break;
		waited += ATTACH_STEP_MS;
	} while (!pool->directory && !interrupted && waited < ATTACH_MS && !agent_process_ended(&pool->agent, &status));
	if (error && !interrupted) {
		if (!pool->directory)
			agent_process_log_tail(&pool->agent, said, sizeof(said));
		complain("cannot attach to the agent in '%s': %s%s%s", options.directory, gpool_strerror(error),
			*said ? "; its log:\n" : "", said);
	}
	return error;
}

void replay_pool_stop(struct replay_pool *pool)
{
	char text[256];

	if (pool->directory)
		return;
	agent_process_stop(&pool->agent, text, sizeof(text));
	if (*text)
		complain("%s", text);
}
