/*
 * agent.h - the policy process: sole writer of the pool segments, one thread, one event loop, no locks, no CUDA context.
 *
 * agent_run() is called in a child that the keeper forked without exec, since only so it inherits the writable mappings of the
 * sealed pool segments. Everything it needs comes in struct module_start, so that a restarted agent starts the same way.
 */
#ifndef GPOOL_AGENT_AGENT_H
#define GPOOL_AGENT_AGENT_H

#include "agent/config/config.h"
#include "agent/base/module.h"
#include "agent/config/recipe.h"
#include "agent/control/upgrade.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct pool;
struct session;

/* What the event loop waits for: embedded in whatever owns the descriptor. */
struct event_source {
	int fd;
	void (*ready)(struct event_source *source, uint32_t events);
};

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
	/* Tokens that a new front has still to be told: from this pool and session on. Done when token_pool is pool_count. */
	uint32_t token_pool, token_session;
	struct upgrade upgrade;
	struct session *graveyard; /* ended within this pass of the loop; freed at its end */
};

/* Returns the exit status. */
int agent_run(const struct module_start *start);

int agent_watch(struct agent *agent, struct event_source *source, uint32_t events);
void agent_unwatch(struct agent *agent, struct event_source *source);
/* agent_tell_keeper() - 0, or negative errno, which is logged. */
int agent_tell_keeper(struct agent *agent, const struct keep_message *message, const int *fds, uint32_t fd_count);
/* agent_need_tick() - housekeeping is due within `ms` milliseconds. */
void agent_need_tick(struct agent *agent, uint32_t ms);

uint64_t clock_ms(void); /* CLOCK_MONOTONIC */
uint64_t clock_ns(void);
uint64_t wall_ms(void);

/* agent_announce_token() - to the front, now or when it reads again. */
void agent_announce_token(struct agent *agent, const struct session *session);

/* What must outlive the agent: the keeper gets duplicates of `fds`. `item` says what they are. */
int agent_hold(struct agent *agent, const struct held *item); /* 0, or negative errno, which is logged */
void agent_drop(struct agent *agent, uint32_t kind, uint32_t pool, uint32_t id);

/* agent_keep_config() - what is in force, to the keeper: for the next agent. */
void agent_keep_config(struct agent *agent);

#endif
