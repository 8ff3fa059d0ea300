/*
 * sandbox.h - remove what the front process does not need: user, groups, capabilities, and system calls.
 */
#ifndef GPOOL_AGENT_FRONT_SANDBOX_H
#define GPOOL_AGENT_FRONT_SANDBOX_H

#include <sys/types.h>

/*
 * sandbox_drop() - change to uid and gid ((uid_t)-1, (gid_t)-1: do not change) permanently, without other groups or
 * capabilities, and die with the parent. Call it before the process has a second thread or has read any input.
 *
 * @parent: the expected parent; 0: do not check
 *
 * Return: 0, -ESRCH (the parent is dead), or the errno of setresuid(2) and related calls.
 */
int sandbox_drop(uid_t uid, gid_t gid, pid_t parent);

/*
 * sandbox_filter() - kill the process on any system call that a running front does not need, in all its threads.
 *
 * Return: 0, or a negative errno from libseccomp.
 */
int sandbox_filter(void);

#endif
