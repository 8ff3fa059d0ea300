/*
 * conductor.h - one run: an agent, two engines, and kills at intervals.
 */
#ifndef GPOOL_DEMO_CONDUCTOR_H
#define GPOOL_DEMO_CONDUCTOR_H

#include "tools/lib/agent_process.h"
#include "tools/demo/run.h"

/*
 * conductor_signals() - block SIGINT, SIGTERM and SIGCHLD, which the conductor then waits for. Call it before a thread
 * is started.
 */
void conductor_signals(void);

/*
 * conductor_run() - replay both traces, on one shared pool or on two halves, and store the results in *run, for
 * run_destroy(). All processes have ended afterwards, except the agent if `leave` is not NULL: it then receives the
 * agent.
 *
 * Return: 0 if the run was possible, with verification failures and other errors in run->errors. Otherwise negative
 * errno, with run->error_text.
 */
int conductor_run(const struct plan *plan, bool split, struct run *run, struct agent_process *leave);

#endif
