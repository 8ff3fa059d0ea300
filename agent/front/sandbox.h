/*
 * sandbox.h - remove the privileges and system calls that the front process does not need.
 */
#ifndef GPOOL_AGENT_FRONT_SANDBOX_H
#define GPOOL_AGENT_FRONT_SANDBOX_H

#include <sys/types.h>

/*
 * sandbox_drop() - change permanently to uid and gid ((uid_t)-1, (gid_t)-1: do not change), drop all other groups and
 * all capabilities, and request SIGKILL when the parent dies. Call it before the process has a second thread or has
 * read any input.
 *
 * @parent: the expected parent; 0: do not check
 *
 * Return: 0, -ESRCH (the parent is dead), or the errno of setresuid(2) and related calls.
 */
int sandbox_drop(uid_t uid, gid_t gid, pid_t parent);

/*
 * sandbox_filter() - have the process killed when any of its threads makes a system call that a running front does not
 * need.
 *
 * Return: 0, or a negative errno from libseccomp.
 */
int sandbox_filter(void);

#endif
