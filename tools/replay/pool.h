/*
 * pool.h - the agent on whose pool a trace is replayed: a running agent, or one that this program starts with host
 * memory.
 */
#ifndef GPOOL_REPLAY_POOL_H
#define GPOOL_REPLAY_POOL_H

#include "client/gpool.h"
#include "tools/lib/agent_process.h"

struct replay_pool {
	const char *directory;      /* sockets of a running agent; NULL: start one */
	const char *name;           /* name of the pool; NULL: the first one */
	uint64_t bytes, page_bytes; /* size of the pool and its pages, for a started agent */
	bool huge;                  /* huge pages, likewise */
	const char *setting;        /* argument of --set for a started agent; NULL: none */
	struct agent_process agent;
};

/* replay_pool_start() - start an agent if necessary. Return: 0, or negative errno after printing the error. */
int replay_pool_start(struct replay_pool *pool);
/* replay_pool_open() - open a new session. Return: 0, or negative errno after printing the error. */
int replay_pool_open(struct replay_pool *pool, struct gpool **handle);
/* replay_pool_stop() - stop the started agent, and print errors of its shutdown. */
void replay_pool_stop(struct replay_pool *pool);

#endif
