/*
 * sandbox.h - gives up what the front process does not need: user, groups, capabilities, and system calls.
 */
#ifndef GPOOL_AGENT_FRONT_SANDBOX_H
#define GPOOL_AGENT_FRONT_SANDBOX_H

#include <sys/types.h>

/*
 * sandbox_drop() - become uid and gid ((uid_t)-1, (gid_t)-1: stay), without other groups or capabilities, for good; and
 * die with the parent. Call it before the process has a second thread or has read anything.
 *
 * @parent: who the parent should be; 0: do not check
 *
 * Return: 0, or -ESRCH (the parent is gone already), or what setresuid(2) and its friends say.
 */
int sandbox_drop(uid_t uid, gid_t gid, pid_t parent);

/*
 * sandbox_filter() - from now on any system call that a running front does not need kills the process, in all its
 * threads.
 *
 * Return: 0, or a negative errno from libseccomp.
 */
int sandbox_filter(void);

#endif
