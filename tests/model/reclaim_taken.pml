/*
 * reclaim_taken.pml - another way to reclaim, in which a death leaves nothing in doubt.
 *
 * Each page has two bits in one word: idle, and taken by the agent. Worker threads set and clear idle bits; the agent takes by
 * one compare-and-swap that clears idle bits and sets the taken ones of the same pages. Then come the page words, then the taken
 * bits go. So the word tells the next agent what the last one got, and it finishes that: no journal, no counters in the workers.
 * Proved: worker and agent never both have a page, and no page is lost.
 * Planted bugs:
 *   BUG_TWO_STEPS     idle bits and taken bits change by two instructions: what was cleared is lost
 *   BUG_MARK_FIRST    by two, the taken bits first: a worker may have the page
 *   BUG_PLAIN_TAKE    the agent writes the word without comparing: bits that a worker took meanwhile count as its own
 *   BUG_WORD_LAST     the taken bit is cleared before the page word
 *   BUG_NOT_FINISHED  the next agent clears the taken bits and leaves the words
 *   BUG_GRANT_FIRST   the next agent lends pages before it has finished: the bit of a page just lent is taken for its own
 */
#ifndef PAGES
#define PAGES 2
#endif
#define ALL   ((1 << PAGES) - 1)
#ifndef OPS
#define OPS 3
#endif
#ifndef AGENT_OPS
#define AGENT_OPS 4
#endif
#ifndef KILLS
#define KILLS 2
#endif

/* Sets of pages. Who clears or sets bits does it by a locked instruction, so no store buffers are needed here. */
byte leased;              /* pages whose word is LEASED; the others are FREE */
byte bits;                /* low half: idle; high half: taken */
#define IDLE(v)  ((v) & ALL)
#define TAKEN(v) (((v) >> 4) & ALL)

byte hands;               /* ghost: pages that threads have, in blocks or in transit */
byte finished;

byte kills = KILLS;
#define STEP(...) if :: __VA_ARGS__ :: kills > 0 -> kills--; goto dead fi

proctype thread()
{
	byte op, mine, want, got;

	do
	:: op < OPS && !mine && IDLE(bits) -> op++;
		if
		:: want = 1
#if PAGES == 2
		:: want = 2
		:: want = 3
#endif
		fi;
		d_step { got = IDLE(bits) & want; bits = bits & ~want };
		if
		:: got == want ->
			d_step {
				assert((leased & got) == got && (hands & got) == 0);
				hands = hands | got;
				mine = got
			}
		:: got != want && got -> d_step { bits = bits | got }
		:: else
		fi;
		d_step { want = 0; got = 0 }
	:: op < OPS && mine -> op++;
		d_step { hands = hands & ~mine };
		d_step { bits = bits | mine; mine = 0 }
	:: true -> break
	od;
	atomic { op = 0; mine = 0; finished++ }
}

inline finish(set)        /* words, then bits */
{
	page = 0;
	do
	:: page < PAGES ->
		if
		:: ((set) & leased) >> page & 1 ->
			STEP(d_step { assert((hands & (1 << page)) == 0); assert((IDLE(bits) & (1 << page)) == 0); leased = leased & ~(1 << page) })
		:: else
		fi;
		page++
	:: else -> break
	od;
	page = 0
}

proctype agent()
{
	byte k, old, want, got, page;

start:
#ifdef BUG_GRANT_FIRST
	if
	:: leased != ALL ->
		STEP(d_step { got = ALL & ~leased; leased = ALL; hands = hands | got }); /* handed over by an answer */
		STEP(d_step { hands = hands & ~got; bits = bits | got; got = 0 })        /* and freed by the worker */
	:: else
	fi;
#endif
	got = TAKEN(bits);
	if
	:: got ->
#ifndef BUG_NOT_FINISHED
		finish(got);
#endif
		STEP(d_step { bits = bits & ~(got << 4) })
	:: else
	fi;
again:
	atomic { old = 0; want = 0; got = 0 };
	if
	:: k < AGENT_OPS && IDLE(bits) -> k++;
		old = bits;
		want = IDLE(old);
#if defined(BUG_TWO_STEPS)
		STEP(d_step { got = IDLE(bits) & want; bits = bits & ~want });
		STEP(d_step { bits = bits | (got << 4) });
#elif defined(BUG_MARK_FIRST)
		STEP(d_step { bits = bits | (want << 4) });
		STEP(d_step { got = IDLE(bits) & want; bits = bits & ~want });
		STEP(d_step { bits = bits & ~((want & ~got) << 4) });
#elif defined(BUG_PLAIN_TAKE)
		STEP(d_step { got = want; bits = (bits & ~want) | (want << 4) });
#else
		STEP(d_step {
			if
			:: bits == old -> bits = (bits & ~want) | (want << 4); got = want
			:: else
			fi });
#endif
#ifdef BUG_WORD_LAST
		STEP(d_step { bits = bits & ~(got << 4) });
		finish(got);
#else
		finish(got);
		STEP(d_step { bits = bits & ~(got << 4) });
#endif
		goto again
	/* Grant: handed over, and at some time freed. */
	:: k < AGENT_OPS && leased != ALL -> k++;
		d_step { got = ALL & ~leased; leased = ALL; hands = hands | got };
		d_step { hands = hands & ~got; bits = bits | got };
		goto again
	:: goto done
	fi;
dead:
	atomic { old = 0; want = 0; got = 0; page = 0 };
	goto start;
done:
	skip
}

init {
	atomic {
		d_step { leased = ALL; bits = ALL };
		run thread(); run thread(); run agent()
	};
	_nr_pr == 1;
	d_step {
		assert(TAKEN(bits) == 0);
		assert((IDLE(bits) & hands) == 0);
		assert((IDLE(bits) | hands) == leased)
	}
}
