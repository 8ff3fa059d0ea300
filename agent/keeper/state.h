/*
 * state.h - the state of the keeper. For this directory only.
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
	STOP_PATIENCE_MS = 10000, /* time for a child to end after it was asked to */
	FRONT_PATIENCE_MS = 200,  /* time for the front of a dead agent to end */
};

struct keeper {
	const struct recipe *recipe;
	const struct config *config;
	struct directory directory;
	struct module_pool pools[MODULE_POOLS_MAX];
	struct module_start start;
	struct child_shed shed;
	struct held_table held;
	/* the current module, and until the new agent of an upgrade serves, the previous one */
	struct loader loader, before;
	struct probe probe; /* check of a module for an upgrade */
	int channel;        /* to the agent; -1: none */
	struct child agent, front, movers[MODULE_POOLS_MAX];
	/* movers that still run the module from before the upgrade, until they are reaped; 0: none */
	pid_t old_movers[MODULE_POOLS_MAX];
	/* front of a dead agent, and the time at which it is killed unless it has ended */
	pid_t old_front;
	uint64_t old_front_ms;
	bool ready; /* the agent serves */
	bool ever_ready;
	bool leaving;              /* the agent was asked to exit for its successor */
	uint64_t stop_deadline_ms; /* time at which processes that were asked to end are killed; 0: none */
	int watchdog_ms;           /* interval of messages to the service manager; 0: never */
	uint64_t watchdog_due_ms;
	bool stopping;
	int exit_status;
};

/* ---- children.c ---- */
/* agent_start() - start an agent, or plan another attempt. Return: 0 or a negative errno. */
int agent_start(struct keeper *keeper);
/* children_reap() - reap the children that have ended, and plan their restarts. */
void children_reap(struct keeper *keeper);
void children_start_due(struct keeper *keeper);
int children_wait_ms(const struct keeper *keeper);
/* movers_begin() - start the movers when the agent serves. Movers with older code are asked to end. */
void movers_begin(struct keeper *keeper);
/* children_stop() - stop all children in order. `leave`: the agent exits without changing anything. */
void children_stop(struct keeper *keeper, bool leave);

/* ---- messages.c ---- */
/*
 * channel_read() - process one message of the agent. Return: 0; -EAGAIN: no message; -EPIPE: the agent closed the
 * channel.
 */
int channel_read(struct keeper *keeper);
/* channel_drain() - process the remaining messages of a dead agent, and close the channel. */
void channel_drain(struct keeper *keeper);
/* upgrade_go_on() - send the result of the check to the agent. If the module is compatible, ask the agent to exit. */
void upgrade_go_on(struct keeper *keeper);

#endif
