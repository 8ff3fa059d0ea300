/* conductor.h - one run: an agent, two engines, and kills at random intervals. */
#ifndef GPOOL_DEMO_CONDUCTOR_H
#define GPOOL_DEMO_CONDUCTOR_H

#include "tools/lib/agent_process.h"
#include "tools/demo/run.h"

/*
 * conductor_signals() - block SIGCHLD and the signals that request an end, for which the conductor waits. Call it
 * before starting any thread.
 */
void conductor_signals(void);

/*
 * conductor_run() - replay both traces, on one shared pool or on two halves, and store the results in *run, for
 * run_destroy(). All processes have ended on return. If `leave` is not NULL, the agent keeps running and is returned
 * there.
 *
 * Return: 0 if the run could be made; run->errors counts verification failures and other errors. Otherwise a negative
 * errno, with a text in run->error_text.
 */
int conductor_run(const struct plan *plan, bool split, struct run *run, struct agent_process *leave);

#endif
