/* dependent.h - start child processes that end with this process, and prepare child processes for exec. */
#ifndef GPOOL_TOOLS_LIB_DEPENDENT_H
#define GPOOL_TOOLS_LIB_DEPENDENT_H

#include <sys/types.h>

/*
 * dependent_fork() - start a child process that depends on this one; otherwise as fork(2). The child has the default
 * action of the signal, and receives it when this process ends. If this process ends before the child first runs, the
 * child exits.
 */
pid_t dependent_fork(int signal_number);

/*
 * child_prepare() - prepare a child for exec: set default signal actions, and close all descriptors but 0 to 2 and
 * `keep` (-1: none). Async-signal-safe.
 */
void child_prepare(int keep);

#endif
