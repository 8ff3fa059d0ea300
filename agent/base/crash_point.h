/*
 * crash_point.h - places at which a test can end the agent: after each store that another process or the next agent can
 * see.
 *
 * The call is empty except in the module that tests build with GPOOL_CRASH_POINTS. There, $GPOOL_CRASH_FILE names a
 * file with a struct crash_file. Each crash point decrements the countdown while it is above 0; when it becomes 0, the
 * agent sends itself the signal. If the file names a function, only the crash points of this function count.
 */
#ifndef GPOOL_AGENT_CRASH_POINT_H
#define GPOOL_AGENT_CRASH_POINT_H

#include <stdint.h>

struct crash_file {
	_Atomic int64_t countdown;
	int64_t signal; /* 0: SIGKILL */
	char function[48];
};

#ifdef GPOOL_CRASH_POINTS
#define crash_point() crash_point_in(__func__)
void crash_point_in(const char *function);
#else
static inline void crash_point(void)
{
}
#endif

#endif
