/*
 * doorbell.pml - two workers write requests and ring; the agent answers and wakes them.
 *
 * The doorbell of the agent is an eventfd in an edge-triggered epoll set, and is never read. Workers ring it only while
 * a word states that the agent is about to sleep; with -DALWAYS_RING, they always do. A worker waits on a futex in its
 * request slot.
 *
 * Proved: no wake-up is lost. Since no wait has a timeout, a lost wake-up would leave a worker waiting forever, which
 * is an invalid end state.
 *
 * Planted bugs:
 *   BUG_CHECK_FIRST     the agent checks for requests only before it states that it will sleep
 *   BUG_WAKE_FIRST      the agent wakes the worker before it writes the answer
 *   BUG_NO_FENCE        the worker's request is a plain store, which may still be in the buffer when it reads the
 *                       agent's state
 *   BUG_AGENT_NO_FENCE  the agent states that it will sleep with a plain store
 *   BUG_NO_COMPARE      the worker sleeps without comparing the slot
 *   BUG_STALE_COMPARE   the worker compares with a value that it has loaded again and not checked
 */
#define WORKERS 2
#define AGENT   2         /* CPU numbers: 0 and 1 are the workers */
#define CPUS    3

#define SLOT(c)    (c)
#define WAITING(c) (2 + (c)) /* worker c may be asleep on its slot */
#define ASLEEP     4         /* the agent may be asleep in epoll_wait */
#define CELLS      5
#include "tso.h"

#define IDLE      0
#define REQUESTED 1
#define DONE      2

#ifndef ROUNDS
#define ROUNDS 3
#endif

bool sleeping[WORKERS];   /* in the kernel, on the futex */
bool edge[WORKERS];       /* of the worker's eventfd, in the agent's epoll set */

/* For a waker, the kernel compares and sleeps in one step. The system call drains the store buffer. */
inline futex_wait(c, expected)
{
	d_step {
		DRAINED(c) ->
		if
#ifdef BUG_NO_COMPARE
		:: true -> sleeping[c] = true
#else
		:: mem[SLOT(c)] == expected -> sleeping[c] = true
		:: else
#endif
		fi
	};
	!sleeping[c]
}

proctype worker(byte c)
{
	byte round, seen;

	do
	:: round < ROUNDS ->
		round++;
		store(c, SLOT(c), REQUESTED);
#ifndef BUG_NO_FENCE
		(DRAINED(c));
#endif
		if
#ifdef ALWAYS_RING
		:: (DRAINED(c)) -> edge[c] = true            /* a system call drains the buffer */
#else
		:: LOAD(c, ASLEEP) -> edge[c] = true
		:: else
#endif
		fi;
		do
		:: seen = LOAD(c, SLOT(c));
		   if
		   :: seen == DONE -> break
		   :: else
		   fi;
		   LOCKED(c, mem[WAITING(c)] = true);
#ifdef BUG_STALE_COMPARE
		   seen = LOAD(c, SLOT(c));
#endif
		   futex_wait(c, seen)
		od;
		store(c, WAITING(c), false)
	:: else -> break
	od
}

inline wake(c)
{
	if
	:: mem[WAITING(c)] -> sleeping[c] = false
	:: else
	fi
}

inline look(c)
{
	if
	:: mem[SLOT(c)] == REQUESTED ->
		found = true;
#ifdef BUG_WAKE_FIRST
		wake(c);
		LOCKED(AGENT, mem[SLOT(c)] = DONE)
#else
		LOCKED(AGENT, mem[SLOT(c)] = DONE);
		wake(c)
#endif
	:: else
	fi
}

proctype agent()
{
	bool found;

	do
	:: found = false;
	   look(0);
	   look(1);
	   if
	   :: found -> goto next
	   :: else
	   fi;
#ifdef BUG_AGENT_NO_FENCE
	   store(AGENT, ASLEEP, true);
#else
	   LOCKED(AGENT, mem[ASLEEP] = true);
#endif
#ifndef BUG_CHECK_FIRST
	   look(0);
	   look(1);
#endif
	   if
	   :: found
	   :: else ->
end:		if                                           /* epoll_wait */
		:: edge[0] || edge[1]
		fi
	   fi;
	   d_step { edge[0] = false; edge[1] = false };
	   store(AGENT, ASLEEP, false);
next:	   skip
	od
}

init {
	atomic { run worker(0); run worker(1); run agent() }
}
