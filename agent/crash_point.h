/*
 * crash_point.h - places where a test has the agent die: after each store that others or the next agent can see.
 *
 * Only in the module that tests build with GPOOL_CRASH_POINTS; elsewhere it is nothing. There the environment says which: the
 * GPOOL_CRASH_AT'th point after GPOOL_CRASH_ARMED exists as a file, once in a run of gpoold.
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
