/*
 * grant_reclaim.pml - the agent grants pages to a worker, with and without a request, and reclaims idle ones.
 *
 * The request slot is one word with a state and a sequence number. The worker writes REQUESTED, the agent answers with
 * a compare-and-swap to DONE, and the worker cancels with a compare-and-swap to CANCELLED. The pages of an answer are
 * passed directly and never appear in the free bits.
 *
 * Proved: worker and agent never both use a page, and each answer belongs to its request. At the end no page is lost:
 * each leased page is in a free bit, in a block or held by the worker.
 *
 * Planted bugs:
 *   BUG_KEEP_LOST        the agent does not take the pages back if its answer is too late
 *   BUG_BIT_BEFORE_WORD  the grant sets the free bit first
 *   BUG_RECLAIM_BLIND    reclaim frees the page without winning the bit
 *   BUG_NO_SEQUENCE      the slot's word has no sequence number: an old answer is mistaken for that of a new request
 *   BUG_IGNORE_DONE      a worker whose cancel fails ignores the pages
 *   BUG_PLAIN_CANCEL     cancel is a plain store
 *   BUG_READ_TWICE       the agent reads the slot again after it has checked the state
 *   BUG_WORD_AFTER_DONE  the page word is written after the answer
 */
#define CPUS   2
#define WORKER 0
#define AGENT  1

#define WORD(p)  (p)     /* two pages */
#define SLOT     2        /* state + 8 * sequence */
#define WANT     3        /* the request */
#define ANSWER   4        /* the page, NONE: no page */
#define ANSWERS  5        /* the request that it answers, for the check only */
#define BITS     6
#define CELLS    7
#include "tso.h"

#define FREE     0
#define LEASED   1
#define EVICTING 2
#define STATE(w) ((w) & 3)
#define MAKE(s, w) (((w) & 252) | (s))
#define NEXT_GEN 4

#define IDLE      0
#define REQUESTED 1
#define DONE      2
#define CANCELLED 3
#ifdef BUG_NO_SEQUENCE
#define SLOT_WORD(s, n) (s)
#else
#define SLOT_WORD(s, n) ((s) + 8 * (n))
#endif
#define SLOT_STATE(w) ((w) & 7)
#define SLOT_NUMBER(w) ((w) >> 3)
#define NONE 9

#ifndef ROUNDS
#define ROUNDS 3
#endif
#ifndef AGENT_OPS
#define AGENT_OPS 4
#endif

byte taken;               /* ghost: bit set of the pages that the worker holds */
byte finished;

inline use(p) /* the worker has page p: check the word under a pin, and that no other owner has the page */
{
	d_step { assert((taken & (1 << (p))) == 0); taken = taken | (1 << (p)) };
	w = LOAD(WORKER, WORD(p));
	do
	:: STATE(w) != EVICTING -> break
	:: else -> STATE(mem[WORD(p)]) != EVICTING; w = LOAD(WORKER, WORD(p))
	od;
	if
	:: STATE(w) == LEASED ->
		assert(STATE(mem[WORD(p)]) != FREE)
	:: else -> taken = taken & ~(1 << (p))   /* it belongs to another owner: drop it, the only option */
	fi
}

inline give_back(p)       /* free: the page is idle again */
{
	taken = taken & ~(1 << (p));
	LOCKED(WORKER, mem[BITS] = mem[BITS] | (1 << (p)))
}

proctype worker()
{
	byte round, w, page, seen;

	do
	:: round < ROUNDS ->
		round++;
		if
		:: mem[BITS] != 0 ->              /* allocate from the free bits */
			if
			:: page = 0
			:: page = 1
			fi;
			LOCKED(WORKER, seen = mem[BITS] & (1 << page); mem[BITS] = mem[BITS] & ~(1 << page));
			if
			:: seen != 0 -> use(page)
			:: else
			fi
		:: taken != 0 ->                  /* free */
			if
			:: taken & 1 -> page = 0
			:: taken & 2 -> page = 1
			fi;
			give_back(page)
		:: true ->                        /* send a request to the agent */
			store(WORKER, WANT, round);
			store(WORKER, SLOT, SLOT_WORD(REQUESTED, round));
			if
			:: SLOT_STATE(LOAD(WORKER, SLOT)) == DONE -> seen = DONE
			:: true ->                /* the timeout expires */
#ifdef BUG_PLAIN_CANCEL
				seen = SLOT_STATE(LOAD(WORKER, SLOT));
				store(WORKER, SLOT, SLOT_WORD(CANCELLED, round))
#else
				d_step { DRAINED(WORKER) ->
					seen = SLOT_STATE(mem[SLOT]);
					if
					:: seen == REQUESTED -> mem[SLOT] = SLOT_WORD(CANCELLED, round)
					:: else
					fi };
#ifdef BUG_IGNORE_DONE
				seen = REQUESTED
#endif
#endif
			fi;
			if
			:: seen == DONE ->
				assert(LOAD(WORKER, ANSWERS) == round);
				page = LOAD(WORKER, ANSWER);
				if
				:: page != NONE -> use(page)
				:: else
				fi
			:: else
			fi
		fi;
		d_step { w = 0; page = 0; seen = 0 }
	:: true -> break
	od;
	atomic { DRAINED(WORKER) -> round = 0; finished++ }
}

inline take_back(p)
{
	d_step { assert((taken & (1 << (p))) == 0); assert((mem[BITS] & (1 << (p))) == 0) };
	store(AGENT, WORD(p), MAKE(FREE, w) + 2 * NEXT_GEN)
}

proctype agent()
{
	byte k, page, slot, want, got, w;

	do
	:: k < AGENT_OPS ->
		k++;
		if
		:: page = 0
		:: page = 1
		fi;
		w = LOAD(AGENT, WORD(page));      /* the only writer */
		slot = mem[SLOT];                 /* read once: the worker may change it at any time */
		if
		/* Answer a request. */
		:: SLOT_STATE(slot) == REQUESTED ->
#ifdef BUG_READ_TWICE
			slot = mem[SLOT];
#endif
			want = mem[WANT];
			if
			:: STATE(w) == FREE ->
#ifndef BUG_WORD_AFTER_DONE
				store(AGENT, WORD(page), MAKE(LEASED, w) + NEXT_GEN);
#endif
				store(AGENT, ANSWER, page)
			:: else -> page = NONE; store(AGENT, ANSWER, NONE)
			fi;
			store(AGENT, ANSWERS, want);
			d_step { DRAINED(AGENT) ->
				got = (mem[SLOT] == slot);
				if
				:: got -> mem[SLOT] = (slot - REQUESTED) + DONE
				:: else
				fi };
			if
#ifndef BUG_KEEP_LOST
			:: !got && page != NONE -> take_back(page)
#endif
#ifdef BUG_WORD_AFTER_DONE
			:: got && page != NONE ->
				store(AGENT, WORD(page), MAKE(LEASED, w) + NEXT_GEN)
#endif
			:: else
			fi
		/* Grant without a request. */
		:: STATE(w) == FREE ->
#ifdef BUG_BIT_BEFORE_WORD
			LOCKED(AGENT, mem[BITS] = mem[BITS] | (1 << page));
			store(AGENT, WORD(page), MAKE(LEASED, w) + NEXT_GEN)
#else
			store(AGENT, WORD(page), MAKE(LEASED, w) + NEXT_GEN);
			LOCKED(AGENT, mem[BITS] = mem[BITS] | (1 << page))
#endif
		/* Reclaim if idle. */
		:: STATE(w) == LEASED ->
			LOCKED(AGENT, got = mem[BITS] & (1 << page); mem[BITS] = mem[BITS] & ~(1 << page));
			if
#ifdef BUG_RECLAIM_BLIND
			:: true -> take_back(page)
#else
			:: got -> take_back(page)
			:: else
#endif
			fi
		/* Inspect the page as an eviction does, find no block, and restore the word. */
		:: STATE(w) == LEASED ->
			LOCKED(AGENT, mem[WORD(page)] = MAKE(EVICTING, mem[WORD(page)]));
			store(AGENT, WORD(page), MAKE(LEASED, w))
		fi;
		d_step { page = 0; slot = 0; want = 0; got = 0; w = 0 }
	:: true -> break
	od;
	atomic { DRAINED(AGENT) -> k = 0; finished++ }
}

init {
	byte p;

	atomic {
		mem[WORD(0)] = LEASED;
		mem[BITS] = 1;
		run worker(); run agent()
	};
	finished == 2;
	d_step {
		p = 0;
		do
		:: p < 2 ->
			assert(STATE(mem[WORD(p)]) != EVICTING);
			assert(((mem[BITS] >> p) & 1) + ((taken >> p) & 1) == (STATE(mem[WORD(p)]) == LEASED));
			p++
		:: else -> break
		od;
		p = 0
	}
}
