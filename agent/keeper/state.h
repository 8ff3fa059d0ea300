/*
 * state.h - the state of the keeper, private to this folder.
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
	STOP_PATIENCE_MS = 10000, /* time for a child to end after a request to stop */
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
	/* the current module; the module before an upgrade, until the new agent serves */
	struct loader loader, before;
	struct probe probe; /* the check of a module for an upgrade */
	int channel;        /* to the agent; -1: none */
	struct child agent, front, movers[MODULE_POOLS_MAX];
	/* the front of a dead agent, and the time at which it is killed if it has not ended */
	pid_t old_front;
	uint64_t old_front_ms;
	bool ready; /* this agent serves */
	bool ever_ready;
	bool leaving;              /* the keeper has asked this agent to exit for its successor */
	bool movers_old;           /* the running movers use the module from before an upgrade */
	uint64_t stop_deadline_ms; /* time at which processes that were asked to end are killed; 0: none was asked */
	int watchdog_ms;           /* interval at which the service manager expects a message; 0: never */
	uint64_t watchdog_due_ms;
	bool stopping;
	int exit_status;
};

/* children.c */
/* agent_start() - start an agent, or plan another attempt. 0 or negative errno. */
int agent_start(struct keeper *keeper);
/* children_reap() - reap the children that have ended, and plan their restarts. */
void children_reap(struct keeper *keeper);
/* children_start_due() - start the children whose planned start is due. */
void children_start_due(struct keeper *keeper);
int children_wait_ms(const struct keeper *keeper);
/* movers_begin() - start the movers once the agent serves; ask movers with older code to end. */
void movers_begin(struct keeper *keeper);
/* children_stop() - stop all children in order. `leave`: the agent exits and changes nothing. */
void children_stop(struct keeper *keeper, bool leave);

/* messages.c */
/* channel_read() - handle one message of the agent. -EAGAIN: no message; -EPIPE: the agent closed the channel. */
int channel_read(struct keeper *keeper);
/* channel_drain() - handle the remaining messages of a dead agent, and close the channel. */
void channel_drain(struct keeper *keeper);
/* upgrade_go_on() - send the result of the probe to the agent; if the module is compatible, ask the agent to exit. */
void upgrade_go_on(struct keeper *keeper);

#endif
