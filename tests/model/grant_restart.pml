/*
 * grant_restart.pml - the agent grants pages in a request slot. It may be killed between any two stores; its successor
 * continues.
 *
 * The slot's word has a state and a serial number, which the worker increases with each request. The agent first writes
 * to its journal the pages that it is about to lend, and the slot's word that it has read. Then it marks the pages
 * LEASED, writes the answer, and commits with one compare-and-swap of the slot to DONE. Only this answer passes pages
 * to the worker, including those beyond its need. A new agent checks the slot to determine whether the pages in the
 * journal were granted. They were not if the slot is REQUESTED or CANCELLED with that serial.
 *
 * Proved: worker and agent never both have a page, and no page is lost. Each request is answered once, and a request
 * whose worker waits without a limit is eventually answered.
 *
 * Planted bugs:
 *   BUG_NO_SERIAL      the slot's word has no serial: recovery mistakes the next request for the one in the journal
 *   BUG_NO_JOURNAL     no journal is written
 *   BUG_JOURNAL_LATE   the journal is written after the page words
 *   BUG_WHAT_FIRST     the journal's `what` is stored before its runs
 *   BUG_REST_FIRST     the journal is cleared before the answer
 *   BUG_EXTRA_BITS     the agent sets the free bits of the pages beyond the need, before the answer
 *   BUG_ALWAYS_BACK    recovery does not check the slot
 *   BUG_NEVER_CANCELLED recovery mistakes CANCELLED for an answer
 *   BUG_IDLE_FIRST     a cancelled slot is returned before the pages are
 *   BUG_BACK_REST_FIRST recovery clears the journal before the pages are returned
 *   BUG_NOT_ANEW       a new agent waits for a doorbell instead of checking the slots
 *
 * Requirements: S2.
 */
#define CPUS   2
#define WORKER 0
#define AGENT  1

#define WORD(p)  (p)      /* two pages: FREE or LEASED */
#define SLOT     2        /* state + 4 * serial */
#define ANSWER   3        /* bit set of pages; none: refused */
#define ANSWERS  4        /* the serial that it answers; only for the check */
#define PENDING  5
#define BITS     6
#define CELLS    7
#include "tso.h"

#define FREE     0
#define LEASED   1

#define IDLE      0
#define REQUESTED 1
#define DONE      2
#define CANCELLED 3
#ifdef BUG_NO_SERIAL
#define SLOT_WORD(s, n) (s)
#else
#define SLOT_WORD(s, n) ((s) + 4 * (n))
#endif
#define SLOT_STATE(w) ((w) & 3)
#define SAME_SERIAL(v, w) (((v) >> 2) == ((w) >> 2))
#define PAGE_OF(set) ((set) & 1 -> 0 : 1) /* the lowest page of a non-empty set */

#ifndef ROUNDS
#define ROUNDS 4
#endif
#ifndef RECLAIMS
#define RECLAIMS 2
#endif
#ifndef KILLS
#define KILLS 2
#endif

byte taken;               /* ghost: bit set of the pages that the worker holds */
bool worker_done;
byte serial;              /* serial of the last request, for the check */

/* The ledger. Only the running agent accesses it. */
bool j_grant;
byte j_expected, j_runs;

byte kills = KILLS;
byte reclaims = RECLAIMS;
/* One store of the agent, or its death before the store. */
#define STEP(...) if :: __VA_ARGS__ :: kills > 0 -> kills--; goto dead fi

inline take_answer()
{
	assert(LOAD(WORKER, ANSWERS) == round);
	d_step {
		set = LOAD(WORKER, ANSWER);
		assert((taken & set) == 0);
		assert(set == 0 || LOAD(WORKER, WORD(PAGE_OF(set))) == LEASED);
		assert(set != 3 || LOAD(WORKER, WORD(1)) == LEASED)
	};
	if
	:: set == 0
	:: else ->
		taken = taken | (1 << PAGE_OF(set));
		set = set & ~(1 << PAGE_OF(set));
#ifndef BUG_EXTRA_BITS
		if
		:: set != 0 -> LOCKED(WORKER, mem[BITS] = mem[BITS] | set)
		:: else
		fi
#endif
	fi;
	store(WORKER, SLOT, SLOT_WORD(IDLE, round))
}

proctype worker()
{
	byte ops, round, set, seen;

	do
	:: ops < ROUNDS ->
		ops++;
		if
		:: mem[BITS] != 0 ->              /* allocate from the free bits */
			d_step { set = 1 << PAGE_OF(mem[BITS]) };
			LOCKED(WORKER, seen = mem[BITS] & set; mem[BITS] = mem[BITS] & ~set);
			d_step {
				assert((taken & seen) == 0);
				assert(seen == 0 || mem[WORD(PAGE_OF(set))] == LEASED);
				taken = taken | seen
			}
		:: taken != 0 ->                  /* free */
			d_step { set = 1 << PAGE_OF(taken); taken = taken & ~set };
			LOCKED(WORKER, mem[BITS] = mem[BITS] | set)
		:: SLOT_STATE(LOAD(WORKER, SLOT)) == IDLE ->
			d_step { round++; serial = round };
			store(WORKER, SLOT, SLOT_WORD(REQUESTED, round));
			LOCKED(WORKER, mem[PENDING] = 1);
			if
			:: SLOT_STATE(LOAD(WORKER, SLOT)) == DONE -> take_answer()
			:: true ->                /* the timeout expires */
				d_step { DRAINED(WORKER) ->
					seen = SLOT_STATE(mem[SLOT]);
					if
					:: seen == REQUESTED -> mem[SLOT] = SLOT_WORD(CANCELLED, round)
					:: else
					fi };
				if
				:: seen == REQUESTED -> LOCKED(WORKER, mem[PENDING] = 1)
				:: else -> take_answer()
				fi
			:: true ->                /* wait without a limit */
				SLOT_STATE(LOAD(WORKER, SLOT)) == DONE;
				take_answer()
			fi
		fi;
		d_step { set = 0; seen = 0 }
	:: true -> break
	od;
	atomic { DRAINED(WORKER) -> ops = 0; round = 0; worker_done = true }
}

/* Return page p to the pool. No process may be using it or be able to take it. */
inline take_back(p)
{
	d_step { DRAINED(AGENT) ->
		assert((taken & (1 << (p))) == 0);
		assert((mem[BITS] & (1 << (p))) == 0);
		mem[WORD(p)] = FREE
	}
}

inline take_back_runs()
{
	if
	:: (j_runs & 1) && LOAD(AGENT, WORD(0)) == LEASED -> STEP(take_back(0))
	:: else
	fi;
	if
	:: (j_runs & 2) && LOAD(AGENT, WORD(1)) == LEASED -> STEP(take_back(1))
	:: else
	fi
}

inline write_words()
{
	if
	:: set & 1 -> STEP(store(AGENT, WORD(0), LEASED))
	:: else
	fi;
	if
	:: set & 2 -> STEP(store(AGENT, WORD(1), LEASED))
	:: else
	fi
}

inline write_journal()
{
#ifdef BUG_WHAT_FIRST
	STEP(d_step { j_expected = slot; j_grant = true });
	STEP(j_runs = set)
#else
	STEP(d_step { j_expected = slot; j_runs = set });
	STEP(j_grant = true)
#endif
}

proctype agent()
{
	byte slot, set;
	bool got;

start:
	/* The keeper starts the next agent only when the last one is dead and its stores are visible. */
	(DRAINED(AGENT));
	if
	:: j_grant ->
		slot = mem[SLOT];
		if
#ifdef BUG_ALWAYS_BACK
		:: true ->
#elif defined(BUG_NEVER_CANCELLED)
		:: slot == j_expected ->
#else
		:: SAME_SERIAL(slot, j_expected) && (SLOT_STATE(slot) == REQUESTED || SLOT_STATE(slot) == CANCELLED) ->
#endif
#ifdef BUG_BACK_REST_FIRST
			STEP(j_grant = false);
#endif
			take_back_runs()
		:: else
		fi;
		STEP(j_grant = false)
	:: else
	fi;
#ifndef BUG_NOT_ANEW
	goto look;
#endif
again:
	atomic { slot = 0; set = 0; got = false };
	if
	:: mem[PENDING] != 0 -> STEP(LOCKED(AGENT, mem[PENDING] = 0))
	/* Reclaim idle pages. reclaim_restart.pml models deaths during this. */
	:: mem[BITS] != 0 && reclaims > 0 ->
		d_step { DRAINED(AGENT) ->
			reclaims--;
			set = mem[BITS];
			mem[BITS] = 0;
			assert((taken & set) == 0);
			if
			:: set & 1 -> mem[WORD(0)] = FREE
			:: else
			fi;
			if
			:: set & 2 -> mem[WORD(1)] = FREE
			:: else
			fi
		};
		goto again
	:: worker_done && mem[PENDING] == 0 -> goto done
	:: kills > 0 -> kills--; goto dead       /* dies while asleep */
	fi;
look:
	slot = mem[SLOT];
	if
	:: SLOT_STATE(slot) == CANCELLED ->
		STEP(store(AGENT, SLOT, slot - CANCELLED + IDLE));
		goto again
	:: SLOT_STATE(slot) == REQUESTED
	:: else -> goto again
	fi;
	/* Grant one page, both, or none. */
	if
	:: LOAD(AGENT, WORD(0)) == FREE && LOAD(AGENT, WORD(1)) == FREE -> set = 3
	:: LOAD(AGENT, WORD(0)) == FREE -> set = 1
	:: LOAD(AGENT, WORD(1)) == FREE -> set = 2
	:: LOAD(AGENT, WORD(0)) != FREE && LOAD(AGENT, WORD(1)) != FREE
	fi;
#if !defined(BUG_NO_JOURNAL) && !defined(BUG_JOURNAL_LATE)
	if
	:: set != 0 -> write_journal()
	:: else
	fi;
#endif
	write_words();
#ifdef BUG_JOURNAL_LATE
	if
	:: set != 0 -> write_journal()
	:: else
	fi;
#endif
#ifdef BUG_EXTRA_BITS
	if
	:: set == 3 -> STEP(LOCKED(AGENT, mem[BITS] = mem[BITS] | 2))
	:: else
	fi;
#endif
	STEP(store(AGENT, ANSWER, set));
	STEP(store(AGENT, ANSWERS, serial));
#ifdef BUG_REST_FIRST
	STEP(j_grant = false);
#endif
	STEP(d_step { DRAINED(AGENT) ->
		got = (mem[SLOT] == slot);
		if
		:: got -> mem[SLOT] = slot - REQUESTED + DONE
		:: else
		fi });
	if
	:: got
	:: else ->                               /* cancelled */
#ifdef BUG_IDLE_FIRST
		STEP(store(AGENT, SLOT, slot - REQUESTED + IDLE));
#endif
		if
		:: set != 0 -> take_back_runs()
		:: else                          /* a refusal writes no journal, whose runs are old */
		fi
	fi;
	STEP(j_grant = false);
#ifndef BUG_IDLE_FIRST
	if
	:: got
	:: else -> STEP(store(AGENT, SLOT, slot - REQUESTED + IDLE))
	fi;
#endif
	goto again;
dead:
	atomic { slot = 0; set = 0; got = false };
	goto start;
done:
	skip
}

init {
	byte p;

	atomic {
		run worker(); run agent()
	};
	_nr_pr == CPUS + 1 && DRAINED(WORKER) && DRAINED(AGENT);
	d_step {
		p = 0;
		assert(!j_grant);
		assert(SLOT_STATE(mem[SLOT]) == IDLE);
		do
		:: p < 2 ->
			assert(((mem[BITS] >> p) & 1) + ((taken >> p) & 1) == (mem[WORD(p)] == LEASED));
			p++
		:: else -> break
		od;
		p = 0
	}
}
