/*
 * state.h - all that the keeper knows; for the files of this folder alone.
 */
#ifndef GPOOL_AGENT_KEEPER_STATE_H
#define GPOOL_AGENT_KEEPER_STATE_H

#include "agent/config/config.h"
#include "agent/keeper/child.h"
#include "agent/keeper/directory.h"
#include "agent/keeper/held.h"
#include "agent/keeper/loader.h"
#include "agent/base/module.h"
#include "agent/config/recipe.h"

enum {
	STOP_PATIENCE_MS = 10000, /* for a child that was asked to end */
	FRONT_PATIENCE_MS = 200,  /* for a front whose agent is gone: it has nothing to do but end */
};

struct keeper {
	const struct recipe *recipe;
	const struct config *config;
	struct directory directory;
	struct module_pool pools[MODULE_POOLS_MAX];
	struct module_start start;
	struct child_shed shed;
	struct held_table held;
	struct loader loader, before; /* what runs; what ran before an upgrade, until the new agent serves */
	struct probe probe;           /* of an upgrade */
	int channel;                  /* towards the agent; -1: none */
	struct child agent, front, movers[MODULE_POOLS_MAX];
	/* of an agent that is gone: it ends by itself, or is killed when this time is over */
	pid_t old_front;
	uint64_t old_front_ms;
	bool ready; /* this agent serves */
	bool ever_ready;
	bool leaving;              /* this agent was told to make room for its successor */
	bool movers_old;           /* these movers run code from before an upgrade */
	uint64_t stop_deadline_ms; /* when processes that were asked to end are killed; 0: none was asked */
	int watchdog_ms;           /* how often the service manager wants to hear of us; 0: never */
	uint64_t watchdog_due_ms;
	bool stopping;
	int exit_status;
};

/* children.c */
/* agent_start() - or plan another try. 0 or negative errno. */
int agent_start(struct keeper *keeper);
/* children_reap() - look which ended, and plan for them. */
void children_reap(struct keeper *keeper);
/* children_start_due() - start whoever's time has come. */
void children_start_due(struct keeper *keeper);
int children_wait_ms(const struct keeper *keeper);
/* movers_begin() - the agent serves: movers may, and those of older code make room. */
void movers_begin(struct keeper *keeper);
/* children_stop() - all of them, in order. `leave`: the agent is told to leave everything as it is. */
void children_stop(struct keeper *keeper, bool leave);

/* messages.c */
/* channel_read() - one message of the agent. -EAGAIN: there is none; -EPIPE: its end is closed. */
int channel_read(struct keeper *keeper);
/* channel_drain() - all that a dead agent has said, and the end of the channel. */
void channel_drain(struct keeper *keeper);
/* upgrade_go_on() - what the probe found, told to the agent; when it fits, the agent leaves. */
void upgrade_go_on(struct keeper *keeper);

#endif
