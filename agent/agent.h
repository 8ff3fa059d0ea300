/*
 * agent.h - the policy process: sole writer of the pool segments, one thread, one event loop, no locks, no CUDA
 * context.
 *
 * agent_run() is called in a child that the keeper forked without exec, since only so it inherits the writable mappings
 * of the sealed pool segments. Everything it needs comes in struct module_start, so that a restarted agent starts the
 * same way.
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
	bool listener_rests; /* accept failed; taken up again by the clock */
	struct event_source listener, keeper, front, signals, timer;
	uint32_t timer_ms; /* 0: not armed */
	pid_t front_pid;
	uint32_t front_restarts;
	struct pool *pools[CONFIG_POOLS_MAX];
	uint32_t pool_count;
	struct connection *connections; /* accepted, first message not there yet */
	uint32_t connection_count;
	uint64_t refused_ms; /* when one was last turned away */
	/* The first token that is still to be announced to the front (session/tokens.h); pool_count: none. */
	uint32_t token_pool, token_session;
	struct exchange_later upgrade_asker; /* of the upgrade that the keeper is asked for, one at a time */
	struct session *graveyard;           /* ended within this pass of the loop; freed at its end */
};

/* Returns the exit status. */
int agent_run(const struct module_start *start);

#endif
