/*
 * agent.h - the policy process. After the keeper has created the pool segments, only the agent writes them. It has one
 * thread, one event loop, no locks and no CUDA context.
 *
 * agent_run() is called in a child of the keeper, which was forked without exec and so inherits the writable mappings
 * of the sealed pool segments. All input of the child is in struct module_start; a restarted agent starts in the same
 * way.
 */
#ifndef GPOOL_AGENT_AGENT_H
#define GPOOL_AGENT_AGENT_H

#include "agent/base/clock.h"
#include "agent/base/keep.h"
#include "agent/base/later.h"
#include "agent/base/loop.h"
#include "agent/base/module.h"
#include "agent/config/config.h"
#include "agent/config/recipe.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct connection;
struct pool;
struct session;

struct agent {
	struct config config;
	const struct recipe *recipe;
	const struct module_start *start;
	uint64_t incarnation;
	uint64_t start_ms;
	int epoll;
	bool stopping;
	bool listener_rests; /* accept() failed; the next tick watches the listener again */
	struct event_source listener, keeper, front, signals, timer;
	uint32_t timer_ms; /* 0: not armed */
	pid_t front_pid;
	uint32_t front_restarts;
	struct pool *pools[CONFIG_POOLS_MAX];
	uint32_t pool_count;
	struct connection *connections; /* accepted, and without a first message */
	uint32_t connection_count;
	uint64_t refused_ms; /* time of the last refused connection */
	/*
	 * The first token that has not been announced to the front yet (session/tokens.h). token_pool is pool_count if
	 * none is left.
	 */
	uint32_t token_pool, token_session;
	bool tokens_follow;                  /* the front knows that it does not have all tokens */
	struct exchange_later upgrade_asker; /* the upgrade request that waits for the keeper, if any */
	struct session *graveyard;           /* ended in this pass of the loop; freed at the end of the pass */
};

int agent_run(const struct module_start *start);

#endif
