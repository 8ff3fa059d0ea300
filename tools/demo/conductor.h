/*
 * conductor.h - one run: an agent, two engines, and somebody who kills them now and then.
 */
#ifndef GPOOL_DEMO_CONDUCTOR_H
#define GPOOL_DEMO_CONDUCTOR_H

#include "tools/lib/agent_process.h"
#include "tools/demo/run.h"

/* conductor_signals() - from now on SIGINT, SIGTERM and SIGCHLD wait until the conductor asks for them. Before any
 * thread starts.
 */
void conductor_signals(void);

/*
 * conductor_run() - replay both traces, on one shared pool or on two halves, and gather what happened in *run;
 * run_destroy() it. All processes have ended afterwards, but for the agent when `leave` is given: it then receives the
 * agent.
 * Return: 0 when it could be run at all; verification failures and the like are run->errors. Else negative errno, with
 * run->error_text.
 */
int conductor_run(const struct plan *plan, bool split, struct run *run, struct agent_process *leave);

#endif
