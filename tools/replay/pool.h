/*
 * pool.h - the agent on whose pool a trace is replayed: a running one, or one that this program starts, on host memory.
 */
#ifndef GPOOL_REPLAY_POOL_H
#define GPOOL_REPLAY_POOL_H

#include "client/gpool.h"
#include "tools/lib/agent_process.h"

struct replay_pool {
	const char *directory;      /* of a running agent; NULL: start one */
	const char *name;           /* NULL: its first pool */
	uint64_t bytes, page_bytes; /* of the pool of a started agent */
	const char *setting;        /* also: as after --set; NULL: none */
	struct agent_process agent;
};

/* replay_pool_start() - start an agent, if necessary. 0, or an error after a complaint. */
int replay_pool_start(struct replay_pool *pool);
/*
 * replay_pool_open() - open a new session: the allocations and mappings of the previous one are freed. 0, or an error
 * after a complaint.
 */
int replay_pool_open(struct replay_pool *pool, struct gpool **handle);
/* replay_pool_stop() - stop the started agent; complain about errors at its end. */
void replay_pool_stop(struct replay_pool *pool);

#endif
