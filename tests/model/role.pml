/*
 * role.pml - two or three processes acquire a role, wait for it, time out, and release it. Each may die at any step, or
 * disconnect and keep running. The agent may die between any two of its stores; its successor continues from the two
 * tables.
 *
 * Proved: a process acts as the holder only while no other process that does so can still run. Each holder has a higher
 * token than all before it, and finds itself and its token in the record as long as it holds the role. A refused
 * process does not hold the role. No process waits forever: waits have no limit except the timeout, so that would be an
 * invalid end state.
 *
 * Planted bugs:
 *   BUG_FREE_ON_CLOSE    the role is granted to the next process when the connection closes
 *   BUG_HOLDER_FIRST     the holder is stored before the token
 *   BUG_SAME_TOKEN       a grant does not increase the token
 *   BUG_BLIND_WITHDRAW   the agent answers a withdrawal without checking for a grant in the meantime
 *   BUG_DEAF_WITHDRAW    the standby ignores the answer to its withdrawal
 *   BUG_ROW_KEPT         a grant leaves the new holder among the standbys
 *   BUG_SWEEP_NOT        a new agent does not check whether the holder is a standby
 *   BUG_NO_BURIAL        a new agent does not check whether the holder is alive
 *   BUG_EMPTY_CHAIR      a new agent does not grant a role that has no holder
 *   BUG_QUEUE_LOST       a new agent forgets the standbys
 *   BUG_NO_WAKE          a new agent does not wake a process that sleeps on the record
 *   BUG_NO_SEQUENCE      an answer is mistaken for that of the last request
 *   BUG_ASK_ONCE         a request that was lost with an agent is not sent again
 *
 * Requirements: S7.
 */
#ifndef WORKERS
#define WORKERS 2
#endif
#ifndef DEATHS
#define DEATHS 1     /* killed; a finished process dies, too */
#endif
#ifndef CLOSES
#define CLOSES 1
#endif
#ifndef CRASHES
#define CRASHES 1    /* of the agent */
#endif
#ifndef OPS
#define OPS 1
#endif

#define WAIT     1
#define WITHDRAW 2
#define RELEASE  3

#define NEITHER 0
#define HOLDER  1
#define STANDBY 2

#define LIVE   0
#define CLOSED 1
#define GONE   2

/* State that survives an agent: the record, the row of the ledger, the sockets, the incarnation. */
byte holder;                  /* worker + 1; 0: none */
byte token;
byte row[WORKERS];            /* order of arrival; 0: not waiting */
byte arrivals, waiters;
byte incarnation;
chan ask[WORKERS] = [CRASHES + 1] of { byte, byte, byte };      /* verb, token, sequence */
chan answers[WORKERS] = [2 * CRASHES + 2] of { byte, byte, byte }; /* sequence, standing, token */

bool sleeping[WORKERS];       /* on the futex */
bool dead[WORKERS];           /* ended; the pidfd is readable */
bool closed[WORKERS];         /* the connection has ended */

/* Ghosts. */
byte inside;                  /* worker + 1 that acts as the holder, or died as the holder */
byte last;                    /* token of the last holder */
bool kill[WORKERS], crash;
byte deaths, closes, crashes;

/* ---- workers ---- */

/* Send a request, and again if the agent has changed. Skip answers to other requests. */
inline call(verb, t)
{
	atomic { sequence++; asked = incarnation; ask[s]!verb, t, sequence };
	do
#ifdef BUG_NO_SEQUENCE
	:: atomic { answers[s]?_, standing, tok -> asked = 0; break }
#else
	:: atomic { answers[s]?eval(sequence), standing, tok -> asked = 0; break }
	:: atomic { nempty(answers[s]) && !answers[s]?[eval(sequence), _, _] -> answers[s]?_, _, _ }
#endif
#ifndef BUG_ASK_ONCE
	:: atomic { incarnation != asked -> asked = incarnation; ask[s]!verb, t, sequence }
#endif
	:: atomic { closed[s] -> goto over }
	od
}

proctype worker(byte s)
{
	byte sequence, asked, standing, tok, mine, seen, op;

	{
		skip;
again:
		if
		:: op == OPS -> goto over
		:: else -> op++
		fi;
		call(WAIT, 0);
		if
		:: atomic { standing == HOLDER -> mine = tok; goto enter }
		:: atomic { else -> assert(standing == STANDBY) }
		fi;
wait:
		seen = holder;
		if
		:: atomic { seen == s + 1 -> seen = 0; mine = token; goto enter }
		:: atomic { seen != s + 1 && closed[s] -> goto over }
		:: atomic { seen != s + 1 -> seen = 0; goto impatient }
		:: atomic { seen != s + 1 ->                     /* the kernel compares and sleeps in one step */
			sleeping[s] = (holder == seen);
			seen = 0
		   };
		   atomic { !sleeping[s] || closed[s] -> goto wait }
		fi;
impatient:
		call(WITHDRAW, 0);
#ifndef BUG_DEAF_WITHDRAW
		if
		:: atomic { standing == HOLDER -> mine = tok; goto enter }
		:: else
		fi;
#endif
		atomic { assert(holder != s + 1); goto again };
enter:
		atomic {
			assert(inside == 0 || dead[inside - 1]);
			assert(mine > last);
			inside = s + 1;
			last = mine;
			standing = 0;
			tok = 0
		};
		atomic { assert(inside == s + 1); assert(holder == s + 1 && token == mine); inside = 0 };
		call(RELEASE, mine);
		atomic { assert(holder != s + 1); mine = 0; goto again };
over:
		skip
	} unless { kill[s] };
	/*
	 * The connection may close while the process is the holder. It then keeps the role, and releases it at any
	 * time.
	 */
	atomic {
		if
		:: inside == s + 1 && !kill[s] -> inside = 0
		:: else
		fi;
		dead[s] = true;
		sleeping[s] = false;
		sequence = 0; asked = 0; standing = 0; tok = 0; mine = 0; seen = 0; op = 0;
		do
		:: answers[s]?_, _, _
		:: empty(answers[s]) -> break
		od
	}
}

/* ---- the agent ---- */

inline wake_all()
{
	d_step {
		i = 0;
		do
		:: i < WORKERS -> sleeping[i] = false; i++
		:: else -> break
		od;
		i = 0
	}
}

inline leave(n)
{
	if
	:: row[n] -> row[n] = 0; waiters--
	:: else
	fi
}

inline grant(n)
{
#ifdef BUG_HOLDER_FIRST
	holder = n + 1;
	token++;
#else
#ifndef BUG_SAME_TOKEN
	token++;
#endif
	holder = n + 1;
#endif
#ifndef BUG_ROW_KEPT
	leave(n);
#endif
	wake_all()
}

inline pass_on()
{
	d_step {
		next = WORKERS;
		i = 0;
		do
		:: i < WORKERS && waiters && row[i] && state[i] == LIVE && (next == WORKERS || row[i] < row[next]) -> next = i; i++
		:: i < WORKERS && !(waiters && row[i] && state[i] == LIVE && (next == WORKERS || row[i] < row[next])) -> i++
		:: i == WORKERS -> break
		od;
		i = 0
	};
	if
	:: next < WORKERS -> grant(next)
	:: else
	fi;
	next = 0
}

inline vacate()
{
	holder = 0;
	pass_on()
}

inline answer(w)
{
	d_step {
		if
		:: holder == w + 1 -> standing = HOLDER
		:: holder != w + 1 && row[w] -> standing = STANDBY
		:: else -> standing = NEITHER
		fi
	};
#ifdef BUG_BLIND_WITHDRAW
	if
	:: verb == WITHDRAW -> standing = NEITHER
	:: else
	fi;
#endif
	atomic {
		if
		:: dead[w]
		:: else -> answers[w]!sequence, standing, (standing == HOLDER -> token : 0)
		fi;
		verb = 0; t = 0; sequence = 0; standing = 0
	}
}

inline serve(w)
{
	ask[w]?verb, t, sequence;
	if
	:: verb == WAIT && holder == 0 -> grant(w)
	:: verb == WAIT && holder != 0 && holder != w + 1 && !row[w] ->
		arrivals++;
		row[w] = arrivals;
		waiters++
	:: verb == WITHDRAW -> leave(w)
	:: verb == RELEASE && holder == w + 1 && token == t -> vacate()
	:: else
	fi;
	answer(w)
}

inline bury(w)
{
	atomic {
		state[w] = GONE;
		do
		:: ask[w]?_, _, _
		:: empty(ask[w]) -> break
		od
	};
	leave(w);
	if
	:: holder == w + 1 -> vacate()
	:: else
	fi
}

inline close_of(w)
{
	state[w] = CLOSED;
	leave(w);
#ifdef BUG_FREE_ON_CLOSE
	if
	:: holder == w + 1 -> vacate()
	:: else
	fi
#endif
}

/* Remove a dead standby in one row of the table. */
inline sweep(w)
{
	if
#ifdef BUG_QUEUE_LOST
	:: row[w] -> row[w] = 0
#endif
	:: row[w] && (state[w] != LIVE
#ifndef BUG_SWEEP_NOT
		|| holder == w + 1
#endif
		) -> row[w] = 0
	:: else -> d_step { next = next + (row[w] -> 1 : 0) }
	fi
}

inline recover()
{
	d_step {
		state[0] = (dead[0] -> GONE : (closed[0] -> CLOSED : LIVE));
		state[1] = (dead[1] -> GONE : (closed[1] -> CLOSED : LIVE));
#if WORKERS == 3
		state[2] = (dead[2] -> GONE : (closed[2] -> CLOSED : LIVE));
#endif
		next = 0
	};
	sweep(0);
	sweep(1);
#if WORKERS == 3
	sweep(2);
#endif
	d_step { waiters = next; next = 0 };
	if
#ifndef BUG_NO_BURIAL
	:: holder && state[holder - 1] == GONE -> vacate()
#endif
#ifndef BUG_EMPTY_CHAIR
	:: holder == 0 -> pass_on()
#endif
	:: else
	fi;
#ifndef BUG_NO_WAKE
	wake_all()
#endif
}

proctype agent()
{
	byte verb, t, sequence, standing, next, i;
	byte state[WORKERS];

start:
	{
		recover();
		skip;
end:		do
		:: state[0] == LIVE && nempty(ask[0]) -> serve(0)
		:: state[1] == LIVE && nempty(ask[1]) -> serve(1)
#if WORKERS == 3
		:: state[2] == LIVE && nempty(ask[2]) -> serve(2)
#endif
		:: state[0] == LIVE && closed[0] && !dead[0] -> close_of(0)
		:: state[1] == LIVE && closed[1] && !dead[1] -> close_of(1)
#if WORKERS == 3
		:: state[2] == LIVE && closed[2] && !dead[2] -> close_of(2)
#endif
		:: state[0] != GONE && dead[0] -> bury(0)
		:: state[1] != GONE && dead[1] -> bury(1)
#if WORKERS == 3
		:: state[2] != GONE && dead[2] -> bury(2)
#endif
		od
	} unless { crash };
	d_step {
		crash = false;
		verb = 0; t = 0; sequence = 0; standing = 0; next = 0; i = 0;
		state[0] = LIVE; state[1] = LIVE;
#if WORKERS == 3
		state[2] = LIVE;
#endif
		incarnation++
	};
	goto start
}

/* ---- deaths and disconnections ---- */

proctype fate()
{
end:	do
	:: atomic { crashes < CRASHES && !crash -> crashes++; crash = true }
	:: atomic { deaths < DEATHS && !dead[0] && !kill[0] -> deaths++; kill[0] = true }
	:: atomic { deaths < DEATHS && !dead[1] && !kill[1] -> deaths++; kill[1] = true }
	:: atomic { closes < CLOSES && !dead[0] && !closed[0] -> closes++; closed[0] = true }
	:: atomic { closes < CLOSES && !dead[1] && !closed[1] -> closes++; closed[1] = true }
#if WORKERS == 3
	:: atomic { deaths < DEATHS && !dead[2] && !kill[2] -> deaths++; kill[2] = true }
	:: atomic { closes < CLOSES && !dead[2] && !closed[2] -> closes++; closed[2] = true }
#endif
	od
}

init {
	atomic {
		run worker(0);
		run worker(1);
#if WORKERS == 3
		run worker(2);
#endif
		run agent();
		run fate()
	}
}
