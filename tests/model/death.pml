/*
 * death.pml - a worker dies at any step, or disconnects and keeps running, while the agent grants, reclaims and evicts,
 * and lends freed pages to another worker.
 *
 * Proved: two workers never use the same page, not even through the GPU work of a dead process. Once the agent has
 * handled the death, every page is free or leased to a living worker.
 *
 * Planted bugs:
 *   BUG_FREE_ON_CLOSE   the agent frees the pages when the connection closes, not when the pidfd is signaled
 *   BUG_NO_QUARANTINE   it frees them at the pidfd, while the driver still runs the dead worker's GPU work
 *   BUG_TRUST_SEGMENT   it frees only the pages of the session segment: free bits and block entries
 *   BUG_LATE_ANSWER     it answers a request that it read before the burial
 *   BUG_EARLY_UNPIN     it ignores the pins of a closed session during an eviction
 *
 * Requirements: S1.
 */
#define CPUS   1
#define WORKER 0          /* the mortal worker; the agent's stores are visible at once */

#ifndef PAGES
#define PAGES 1
#endif
#define TAG(p) (p)        /* block entry: 0 or BLOCK, GPU work pending or not */
#define CELLS  PAGES
#include "tso.h"

/* A page word is state + 16 * generation; the owner is part of the state here. */
#define FREE        0
#define OURS        1     /* leased to the mortal worker */
#define THEIRS      2     /* leased to the other worker */
#define EVICTING    3
#define QUARANTINED 4
#define STATE(w)    ((w) & 15)
#define MAKE(s, w)  (((w) & 240) | (s))
#define NEXT_GEN    16

#define BLOCK    1

#define IDLE      0
#define REQUESTED 1
#define DONE      2
#define CANCELLED 3

#ifndef OPS
#define OPS 3
#endif
#ifndef AGENT_OPS
#define AGENT_OPS 3
#endif

byte word[PAGES];
byte bits;                /* the mortal worker's session segment: bits, pins, slot; entries are in mem[] */
byte pins[PAGES];
byte slot, answer;

/* Ghosts. */
bool ours[PAGES];         /* the mortal worker is using page p */
bool theirs[PAGES];       /* the other worker is using page p */
byte gpu;                 /* page + 1 that the GPU uses for the mortal worker; 0: none */
bool kill;                /* dies at its next step */
bool dead;                /* the pidfd is readable */
bool closed;              /* the connection has ended, seen by the agent's epoll */
byte finished;

#define ALONE(p) assert(!theirs[p])

proctype mortal()
{
	byte op, page, w, seen;

	{
		skip;
again:
		if
		:: op == OPS -> goto leave
		:: op < OPS && bits -> op++; goto take
		:: op < OPS && slot != REQUESTED -> op++; goto request
		:: op < OPS && mem[TAG(0)] == BLOCK -> op++; page = 0; goto pin
#if PAGES == 2
		:: op < OPS && mem[TAG(1)] == BLOCK -> op++; page = 1; goto pin
#endif
		:: op < OPS -> goto leave
		fi;
take:
		if
		:: page = 0
#if PAGES == 2
		:: page = 1
#endif
		fi;
		LOCKED(WORKER, seen = bits & (1 << page); bits = bits & ~(1 << page));
		if
		:: seen == 0 -> goto over
		:: else
		fi;
own:    /* The page belongs to this worker, which makes it a block. */
		pins[page]++;
		w = word[page];
		if
		:: STATE(w) == OURS
		:: STATE(w) == EVICTING -> pins[page]--; STATE(word[page]) != EVICTING; goto own
		:: else -> pins[page]--; goto over       /* quarantined: the session has ended */
		fi;
		atomic { ALONE(page); ours[page] = true };
		store(WORKER, TAG(page), BLOCK);
		goto use;
pin:
		w = word[page];                          /* the handle, which a pin requires */
		if
		:: STATE(w) == OURS
		:: else -> goto over
		fi;
		pins[page]++;
		if
		:: word[page] == w && mem[TAG(page)] == BLOCK -> atomic { ALONE(page); ours[page] = true }
		:: else -> LOCKED(WORKER, pins[page]--); goto over
		fi;
use:
		ALONE(page);
		if
		:: gpu == 0 -> gpu = page + 1            /* launch GPU work */
		:: true
		fi;
		ALONE(page);
		if
		:: ours[page] = false;
		   LOCKED(WORKER, pins[page]--)
		:: gpu != page + 1 ->                    /* free; a block with pending GPU work would wait */
			ours[page] = false;
			store(WORKER, TAG(page), 0);
			LOCKED(WORKER, pins[page]--);
			LOCKED(WORKER, bits = bits | (1 << page))
		fi;
		goto over;
request:
		atomic { DRAINED(WORKER) -> slot = REQUESTED };
		if
		:: slot == DONE -> seen = DONE
		:: true ->
			d_step { DRAINED(WORKER) ->
				seen = slot;
				if
				:: slot == REQUESTED -> slot = CANCELLED
				:: else
				fi }
		fi;
		if
		:: seen == DONE && answer -> page = answer - 1; goto own
		:: else
		fi;
over:
		atomic { page = 0; w = 0; seen = 0 };
		goto again;
leave:
		skip                                     /* an exit without a detach is also a death */
	} unless { kill };
	atomic {
		ours[0] = false;
#if PAGES == 2
		ours[1] = false;
#endif
		op = 0; page = 0; w = 0; seen = 0
	};
	/*
	 * The kernel ends the process. Its stores become visible, its connection closes and its pidfd is signaled, in
	 * any order.
	 */
	DRAINED(WORKER);
	if
	:: closed = true; dead = true
	:: dead = true; closed = true
	fi
}

proctype killer()
{
	kill = true
}

/* The connection may also end on its own, by a shutdown or a mistaken close. */
proctype hangup()
{
	if
	:: closed = true
	:: true
	fi
}

/* GPU work finishes, for running processes, and for dead ones until the driver has released them. */
proctype device()
{
end:	do
	:: d_step { gpu != 0 -> assert(!theirs[gpu - 1]); gpu = 0 }
	od
}

/* The other worker uses the pages that the agent leases to it. */
proctype other()
{
	byte page;

end:	do
	:: page = 0; goto look
#if PAGES == 2
	:: page = 1; goto look
#endif
	od;
look:
end2:	STATE(word[page]) == THEIRS;
	atomic { assert(!ours[page] && gpu != page + 1); theirs[page] = true };
	assert(!ours[page] && gpu != page + 1)
}

/* Free or quarantine page p of the ended session. */
inline end_page(p, new_state)
{
	if
#ifdef BUG_TRUST_SEGMENT
	:: (STATE(word[p]) == OURS || STATE(word[p]) == QUARANTINED) && (((bits >> p) & 1) || mem[TAG(p)]) ->
#else
	:: STATE(word[p]) == OURS || STATE(word[p]) == QUARANTINED ->
#endif
		word[p] = MAKE(new_state, word[p]) + NEXT_GEN
	:: else
	fi
}

inline end_pages(new_state)
{
	end_page(0, new_state);
#if PAGES == 2
	end_page(1, new_state)
#endif
}

proctype agent()
{
	byte k, page;
	bool pending, got;

again:
	if
	:: k < AGENT_OPS && !closed && !dead -> k++; goto serve
	:: k < AGENT_OPS && STATE(word[0]) == FREE -> k++; goto lend
	:: closed && !dead -> goto hung_up
	:: dead -> goto bury
	fi;
lend:   /* to the other worker */
	if
	:: STATE(word[0]) == FREE -> word[0] = MAKE(THEIRS, word[0]) + NEXT_GEN
#if PAGES == 2
	:: STATE(word[1]) == FREE -> word[1] = MAKE(THEIRS, word[1]) + NEXT_GEN
#endif
	:: else
	fi;
	goto again;
serve:
	if
	:: page = 0
#if PAGES == 2
	:: page = 1
#endif
	fi;
	if
	:: STATE(word[page]) == FREE ->                              /* grant */
		word[page] = MAKE(OURS, word[page]) + NEXT_GEN;
		bits = bits | (1 << page)
	:: STATE(word[page]) == FREE && slot == REQUESTED -> goto answer_it
	:: STATE(word[page]) == OURS ->                              /* reclaim */
		d_step { got = (bits >> page) & 1; bits = bits & ~(1 << page) };
		if
		:: got -> word[page] = MAKE(FREE, word[page]) + NEXT_GEN
		:: else
		fi
	:: STATE(word[page]) == OURS ->                              /* evict */
		word[page] = MAKE(EVICTING, word[page]);
		if
#ifdef BUG_EARLY_UNPIN
		:: (pins[page] == 0 || closed) && gpu != page + 1 && mem[TAG(page)] != 0 ->
#else
		:: pins[page] == 0 && gpu != page + 1 && mem[TAG(page)] != 0 ->
#endif
			mem[TAG(page)] = 0;
			word[page] = MAKE(FREE, word[page]) + NEXT_GEN
		:: else -> word[page] = MAKE(OURS, word[page])
		fi
	:: else
	fi;
	atomic { page = 0; got = false };
	goto again;
answer_it:
	word[page] = MAKE(OURS, word[page]) + NEXT_GEN;
	answer = page + 1;
	d_step {
		got = (slot == REQUESTED);
		if
		:: got -> slot = DONE
		:: else
		fi
	};
	if
	:: !got -> word[page] = MAKE(FREE, word[page]) + NEXT_GEN
	:: else
	fi;
	atomic { page = 0; got = false };
	goto again;

hung_up: /* The session ends. The process may keep running, with its mappings and its pins. */
#ifdef BUG_FREE_ON_CLOSE
	end_pages(FREE);
#else
	end_pages(QUARANTINED);
#endif
	do
	:: k < AGENT_OPS && STATE(word[0]) == FREE -> k++; word[0] = MAKE(THEIRS, word[0]) + NEXT_GEN
#if PAGES == 2
	:: k < AGENT_OPS && STATE(word[1]) == FREE -> k++; word[1] = MAKE(THEIRS, word[1]) + NEXT_GEN
#endif
	:: dead -> break
	od;

bury:   /* Discard the session segment, with its pins. */
#ifdef BUG_LATE_ANSWER
	pending = (slot == REQUESTED);
#endif
#ifndef BUG_NO_QUARANTINE
	end_pages(QUARANTINED);
	gpu == 0;                                                    /* the driver has released the dead process */
#endif
	end_pages(FREE);
	atomic { bits = 0; pins[0] = 0; mem[TAG(0)] = 0 };
#if PAGES == 2
	atomic { pins[1] = 0; mem[TAG(1)] = 0 };
#endif
	if
	:: pending && STATE(word[0]) == FREE -> word[0] = MAKE(OURS, word[0]) + NEXT_GEN
	:: else
	fi;
	do
	:: k < AGENT_OPS && STATE(word[0]) == FREE -> k++; word[0] = MAKE(THEIRS, word[0]) + NEXT_GEN
#if PAGES == 2
	:: k < AGENT_OPS && STATE(word[1]) == FREE -> k++; word[1] = MAKE(THEIRS, word[1]) + NEXT_GEN
#endif
	:: true -> break
	od;
	assert(STATE(word[0]) == FREE || STATE(word[0]) == THEIRS);
#if PAGES == 2
	assert(STATE(word[1]) == FREE || STATE(word[1]) == THEIRS)
#endif
}

init {
	atomic {
		word[0] = OURS;
		bits = 1;
		run mortal(); run killer(); run hangup(); run device(); run other(); run agent()
	}
}
