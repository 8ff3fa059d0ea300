/*
 * crash_point.h - places where a test has the agent die: after each store that others or the next agent can see.
 *
 * Only in the module that tests build with GPOOL_CRASH_POINTS; elsewhere it is nothing. There $GPOOL_CRASH_FILE names a
 * file of one 64-bit number: while it is above 0 each point takes one away, and where it becomes 0 the agent dies.
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
