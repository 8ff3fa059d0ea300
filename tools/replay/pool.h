/*
 * pool.h - the agent on whose pool a trace is replayed: one that serves already, or one of our own on host memory.
 */
#ifndef GPOOL_REPLAY_POOL_H
#define GPOOL_REPLAY_POOL_H

#include "client/gpool.h"
#include "tools/lib/agent_process.h"

struct replay_pool {
	const char *directory;      /* of an agent that serves; NULL: one of our own */
	const char *name;           /* NULL: its first pool */
	uint64_t bytes, page_bytes; /* of our own */
	const char *setting;        /* likewise, as after --set; NULL: none */
	struct agent_process agent;
};

/* replay_pool_start() - our own agent, where it is wanted. 0, or an error after a complaint. */
int replay_pool_start(struct replay_pool *pool);
/*
 * replay_pool_open() - a new session: what the last one allocated is gone, and its mappings too. 0, or an error after a
 * complaint.
 */
int replay_pool_open(struct replay_pool *pool, struct gpool **handle);
/* replay_pool_stop() - our own agent ends; complains about what it leaves behind. */
void replay_pool_stop(struct replay_pool *pool);

#endif
