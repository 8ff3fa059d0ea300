/*
 * crash_point.h - places at which a test can end the agent: after each store that another process or the next agent can
 * see.
 *
 * The call is empty except in the module that tests build with GPOOL_CRASH_POINTS. There, $GPOOL_CRASH_FILE names a
 * file with two 64-bit numbers. Each crash point decrements the first while it is above 0; when it becomes 0, the agent
 * sends itself the signal that the second number names, SIGKILL if that is 0.
 */
#ifndef GPOOL_AGENT_CRASH_POINT_H
#define GPOOL_AGENT_CRASH_POINT_H

#ifdef GPOOL_CRASH_POINTS
void crash_point(void);
#else
static inline void crash_point(void)
{
}
#endif

#endif
