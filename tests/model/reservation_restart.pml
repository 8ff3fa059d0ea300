/*
 * reservation_restart.pml - a session takes over pages of a reservation, which the session that made it may release, or
 * end. The agent may be killed between any two stores; its successor continues.
 *
 * The pages of the reservation are leased to the maker, and the ledger marks them. To pass pages, the agent writes the
 * runs and the word of the request slot to its journal, sets the owners, writes the answer, commits with one
 * compare-and-swap of the slot, and clears the marks. Only the answer gives the pages to the taker. Stores are visible
 * at once: grant_restart.pml models their order for the same slot.
 *
 * Proved: no page has two users. No other session gets a page of the reservation before the reservation is released or
 * its maker has ended. A page that the maker leases for itself is not passed. At the end, no page is lost.
 *
 * Planted bugs:
 *   BUG_NO_JOURNAL   no journal is written
 *   BUG_REST_FIRST   the journal is cleared before the answer
 *   BUG_MARK_FIRST   the marks are cleared before the answer
 *   BUG_ALWAYS_BACK  recovery does not check the slot
 *   BUG_TAKE_BACK    pages that are not passed become free
 *   BUG_FREE_UNMARKS a release clears the mark of a page before it frees the page
 *   BUG_LEND_KEEPS   a mark is kept when a free page is leased
 *
 * Requirements: E11.
 */
#define FREE  0
#define MAKER 1
#define TAKER 2
#define OTHER 3

#define IDLE      0
#define REQUESTED 1
#define DONE      2
#define CANCELLED 3
#define SLOT_WORD(s, n) ((s) + 4 * (n))
#define SLOT_STATE(w) ((w) & 3)
#define SAME_SERIAL(v, w) (((v) >> 2) == ((w) >> 2))

#define LIVE   0
#define ENDING 1
#define NONE   2

#ifndef ROUNDS
#define ROUNDS 2
#endif

byte word[2] = MAKER;
byte slot, answer, bits;

/* The ledger. */
bool mark[2] = true;
bool record = true;
bool j_pass;
byte j_expected, j_runs;
byte maker;               /* LIVE, ENDING or NONE */

/* Ghosts: sets of pages, one bit each. */
byte used;                /* by the taker */
byte own;                 /* by the maker, for itself */
byte promised = 3;        /* reserved, not taken over, and the reservation has not ended */
bool maker_dead, taker_done;

byte kills = 2;
byte releases = 1;
byte lends = 3;

#define BIT(p) (1 << (p))
#define IS_LEFT(p) (record && mark[p] && word[p] == MAKER)
/* One store of the agent, or its death before the store. */
#define STEP(...) if :: __VA_ARGS__ :: kills > 0 -> kills--; goto dead fi

proctype taker()
{
	byte round, seen;

	do
	:: round < ROUNDS && SLOT_STATE(slot) == IDLE ->
		round++;
		slot = SLOT_WORD(REQUESTED, round);
		if
		:: SLOT_STATE(slot) == DONE
		:: d_step { SLOT_STATE(slot) == REQUESTED -> slot = SLOT_WORD(CANCELLED, round) }
		fi;
		if
		:: SLOT_STATE(slot) == DONE ->
			d_step {
				assert((used & answer) == 0 && (own & answer) == 0 && (bits & answer) == 0);
				assert(!(answer & 1) || word[0] == TAKER);
				assert(!(answer & 2) || word[1] == TAKER);
				used = used | answer
			};
			slot = SLOT_WORD(IDLE, round)
		:: else
		fi
	:: used != 0 -> d_step { bits = bits | used; used = 0 }
	:: true -> break
	od;
	atomic { round = 0; taker_done = true }
}

proctype maker_ends()
{
	if
	:: d_step { maker_dead = true; own = 0; promised = 0 }
	:: true
	fi
}

/* Return page p to the pool. No process may be using it. */
inline take_back(p)
{
	d_step { assert(((used | own | bits) & BIT(p)) == 0); word[p] = FREE }
}

inline pass_back(p)
{
	if
	:: (j_runs & BIT(p)) && word[p] == TAKER ->
		/* A step is completed or undone before the maker is ended. */
		assert(maker == LIVE);
#ifdef BUG_TAKE_BACK
		STEP(take_back(p))
#else
		STEP(d_step { assert(((used | bits) & BIT(p)) == 0); word[p] = MAKER })
#endif
	:: else
	fi
}

inline unmark(p)
{
	if
	:: j_runs & BIT(p) -> STEP(mark[p] = false)
	:: else
	fi
}

inline pass(p)
{
	if
	:: set & BIT(p) -> STEP(word[p] = TAKER)
	:: else
	fi
}

inline record_end()
{
	if
	:: record && !IS_LEFT(0) && !IS_LEFT(1) -> STEP(record = false)
	:: else
	fi
}

inline release(p)
{
	if
	:: IS_LEFT(p) ->
		promised = promised & ~BIT(p);
#ifdef BUG_FREE_UNMARKS
		STEP(mark[p] = false);
#endif
		STEP(take_back(p))
	:: else
	fi
}

inline bury(p)
{
	if
	:: word[p] == MAKER -> STEP(take_back(p))
	:: else
	fi
}

/* Lease free page p to another session, or to the maker for itself. */
inline lend(p)
{
	assert((promised & BIT(p)) == 0);
#ifndef BUG_LEND_KEEPS
	STEP(mark[p] = false);
#endif
	if
	:: STEP(word[p] = OTHER)
	:: maker == LIVE ->
		STEP(d_step {
			word[p] = MAKER;
			if
			:: !maker_dead -> own = own | BIT(p)
			:: else
			fi })
	fi
}

proctype agent()
{
	byte seen, set;
	bool got;

start:
	if
	:: maker == ENDING -> goto end_maker
	:: else
	fi;
settle:
	if
	:: j_pass ->
		if
#ifdef BUG_ALWAYS_BACK
		:: true ->
#else
		:: SAME_SERIAL(slot, j_expected) && (SLOT_STATE(slot) == REQUESTED || SLOT_STATE(slot) == CANCELLED) ->
#endif
			pass_back(0);
			pass_back(1)
#ifndef BUG_ALWAYS_BACK
		:: else ->
			unmark(0);
			unmark(1)
#endif
		fi;
		STEP(j_pass = false)
	:: else
	fi;
	record_end();
again:
	atomic { seen = 0; set = 0; got = false };
	if
	:: SLOT_STATE(slot) == CANCELLED -> STEP(slot = slot - CANCELLED + IDLE); goto again
	:: SLOT_STATE(slot) == REQUESTED -> goto serve
	:: bits != 0 ->                          /* reclaim; reclaim_restart.pml models deaths during this */
		d_step {
			if
			:: bits & 1 -> word[0] = FREE
			:: else
			fi;
			if
			:: bits & 2 -> word[1] = FREE
			:: else
			fi;
			bits = 0
		};
		goto again
	:: record && releases > 0 -> releases--; goto end_reservation
	:: maker_dead && maker == LIVE -> STEP(maker = ENDING); goto end_maker
	:: lends > 0 && word[0] == FREE -> lends--; lend(0); goto again
	:: lends > 0 && word[1] == FREE -> lends--; lend(1); goto again
	:: taker_done && SLOT_STATE(slot) != REQUESTED && SLOT_STATE(slot) != CANCELLED && !(maker_dead && maker == LIVE) ->
		goto done
	:: kills > 0 -> kills--; goto dead       /* dies while asleep */
	fi;
serve:
	seen = slot;
	if
	:: SLOT_STATE(seen) != REQUESTED -> goto again
	:: else
	fi;
	/* Pass one page or both, or refuse. */
	if
	:: maker == LIVE && IS_LEFT(0) -> set = 1
	:: maker == LIVE && IS_LEFT(1) -> set = 2
	:: maker == LIVE && IS_LEFT(0) && IS_LEFT(1) -> set = 3
	:: !(IS_LEFT(0) || IS_LEFT(1)) || maker != LIVE
	fi;
	if
	:: set != 0 ->
#ifndef BUG_NO_JOURNAL
		STEP(d_step { j_expected = seen; j_runs = set });
		STEP(j_pass = true);
#else
		j_runs = set;
#endif
		pass(0);
		pass(1)
	:: else
	fi;
#ifdef BUG_MARK_FIRST
	if
	:: set != 0 ->
		unmark(0);
		unmark(1)
	:: else
	fi;
#endif
	STEP(answer = set);
#ifdef BUG_REST_FIRST
	STEP(j_pass = false);
#endif
	STEP(d_step {
		got = (slot == seen);
		if
		:: got -> slot = seen - REQUESTED + DONE; promised = promised & ~set
		:: else
		fi });
	if
	:: set != 0 && got ->
		unmark(0);
		unmark(1);
		record_end()
	:: set != 0 && !got ->
		pass_back(0);
		pass_back(1)
	:: else
	fi;
	STEP(j_pass = false);
	if
	:: got
	:: else -> STEP(slot = seen - REQUESTED + IDLE)
	fi;
	goto again;
end_reservation:
	release(0);
	release(1);
	STEP(record = false);
	goto again;
end_maker:
	bury(0);
	bury(1);
	STEP(record = false);
	STEP(maker = NONE);
	goto settle;
dead:
	atomic { seen = 0; set = 0; got = false };
	goto start;
done:
	skip
}

init {
	byte p;

	atomic {
		run taker(); run maker_ends(); run agent()
	};
	_nr_pr == 1;
	d_step {
		p = 0;
		assert(!j_pass);
		do
		:: p < 2 ->
			assert(word[p] != FREE || ((used | own | bits) & BIT(p)) == 0);
			assert(word[p] != TAKER || ((used | bits) & BIT(p)));
			assert(word[p] != MAKER || maker == NONE || (own & BIT(p)) || IS_LEFT(p) || maker_dead);
			assert(word[p] != MAKER || maker != NONE);
			p++
		:: else -> break
		od;
		p = 0
	}
}
