/*
 * reclaim_restart.pml - the agent takes idle pages out of the free bits. It may be killed before it has recorded which
 * ones it got.
 *
 * After a kill, a page in the journal's mask whose bit is clear is in doubt: either the agent or a thread of the worker
 * took it. The page stays LEASED, with a flag in the ledger, and the next agent decides. Each thread has a counter that
 * is odd while it holds pages. The thread makes the counter odd before it takes bits, and before it clears a tag to set
 * bits. It makes the counter even when all pages are in an entry or in the bits. The decision reads all counters, then
 * bits and entries, then all counters again. If all counters are even and unchanged, no thread held a page in between,
 * and a page that is in no place belongs to the agent.
 *
 * Proved: the agent frees no page that a thread holds. At the end, no page is lost and no flag is set.
 *
 * Planted bugs:
 *   BUG_NO_COUNTERS     the decision checks bits and entries only
 *   BUG_EVEN_SINCE      it waits until each counter was even once, or has changed, since the agent began
 *   BUG_BEFORE_ONLY     it reads the counters before, and not again
 *   BUG_AFTER_ONLY      it reads the counters afterwards only
 *   BUG_PARITY_ONLY     it checks again that they are even, not that they are unchanged
 *   BUG_ONE_BY_ONE      it checks bits and entries between the two reads of each counter separately
 *   BUG_LATE_ODD        a thread makes its counter odd after it takes the bits
 *   BUG_ODD_AFTER_TAG   a thread makes its counter odd after it clears the tag
 *   BUG_EARLY_EVEN      a thread makes its counter even before it writes the entry
 *   BUG_NO_HEAD         the decision does not check the runs that begin before the page; with PAGES=2
 *   BUG_JOURNAL_LATE    the bits are taken before the journal is written
 *   BUG_REST_FIRST      recovery clears the journal before it has set the flags
 *   BUG_FLAG_FIRST      the flag is cleared before the page word
 *   BUG_STALE_FLAG      an eviction leaves the flag, and the page is lent again
 *
 * Requirements: S2.
 */
#define CPUS  2           /* the two threads; stores of the agent are visible at once, also those of a dead one */
#ifndef PAGES
#define PAGES 1
#endif
#define TAG(p) (p)
#define CTR(t) (PAGES + (t))
#define CELLS  (PAGES + 2)
#include "tso.h"

/* A block entry: tag and length in one cell. */
#define DYING     16
#define TWO_PAGES 32
#define SET(p, e) ((((e) & TWO_PAGES) -> 3 : 1) << (p))

/* Numbers of operations of thread 0, of thread 1 and of the agent, and of deaths of the agent. */
#ifdef SMALL
#define OPS       2
#define OTHER_OPS 1
#define AGENT_OPS 2
#define KILLS     1
#else
#define OPS       3
#define OTHER_OPS 2
#define AGENT_OPS 3
#define KILLS     2
#endif
#define LIMIT(t) ((t) == 0 -> OPS : OTHER_OPS)

/* Bit sets of pages. */
byte leased;              /* the page words: pages whose word is LEASED; the others are FREE */
byte bits;
byte handed;              /* pages of an answer that no thread has read yet */
byte next_id = 1;
byte finished;

/* The ledger. */
bool j_reclaim;
byte j_mask, doubt;

/* Ghosts. */
byte owned;               /* pages that the agent has taken from the bits and not yet made FREE */

byte kills = KILLS;
#define STEP(...) if :: __VA_ARGS__ :: kills > 0 -> kills--; goto dead fi

proctype thread(byte t)
{
	byte op, page, entry, seen, counter;
	byte my_page, my_entry;

again:
	if
	:: goto done
	:: op < LIMIT(t) && bits && !my_entry -> op++; goto take
	:: op < LIMIT(t) && handed && !my_entry -> op++; goto accept
	:: op < LIMIT(t) && my_entry -> op++; goto free
	fi;

take:
	if
	:: page = 0
#if PAGES == 2
	:: page = 1
	:: entry = TWO_PAGES
#endif
	fi;
#ifndef BUG_LATE_ODD
	counter++;
	store(t, CTR(t), counter);
#endif
	LOCKED(t, seen = bits & SET(page, entry); bits = bits & ~SET(page, entry));
#ifdef BUG_LATE_ODD
	counter++;
	store(t, CTR(t), counter);
#endif
	if
	:: seen != SET(page, entry) -> LOCKED(t, bits = bits | seen); goto even
	:: else
	fi;
	d_step { assert((leased & seen) == seen); assert((owned & seen) == 0) };
#ifdef BUG_EARLY_EVEN
	counter++;
	store(t, CTR(t), counter);
#endif
	atomic { entry = entry | next_id; next_id++; my_page = page; my_entry = entry };
	store(t, TAG(page), entry);
#ifdef BUG_EARLY_EVEN
	goto over;
#endif
	goto even;

accept: /* The pages of an answer were never idle and cannot be in doubt, so the counter stays even. */
	atomic { DRAINED(t) -> page = ((handed & 1) -> 0 : 1); seen = handed & (1 << page); handed = handed & ~seen };
	if
	:: seen -> atomic { entry = next_id; next_id++; my_page = page; my_entry = entry };
		store(t, TAG(page), entry)
	:: else
	fi;
	goto over;

free:   /* Claim the entry. If that fails, the agent has the block. */
	atomic { DRAINED(t) ->
		page = my_page; entry = my_entry; my_page = 0; my_entry = 0;
		seen = mem[TAG(page)];
		if
		:: seen == entry -> mem[TAG(page)] = entry | DYING
		:: else
		fi };
	if
	:: seen == entry
	:: else -> goto over
	fi;
#ifndef BUG_ODD_AFTER_TAG
	counter++;
	store(t, CTR(t), counter);
#endif
	store(t, TAG(page), 0);
#ifdef BUG_ODD_AFTER_TAG
	counter++;
	store(t, CTR(t), counter);
#endif
	LOCKED(t, bits = bits | SET(page, entry));
even:
	counter++;
	store(t, CTR(t), counter);
over:
	atomic { page = 0; entry = 0; seen = 0 };
	goto again;
done:
	atomic { DRAINED(t) -> op = 0; my_page = 0; my_entry = 0; counter = 0; finished++ }
}

/* Return page p to the pool. */
#define MAKE_FREE(p) d_step { \
	assert(owned & (1 << (p))); \
	owned = owned & ~(1 << (p)); \
	leased = leased & ~(1 << (p)) }

#define COVERED(p) (mem[TAG(p)] || ((p) == 1 && (mem[TAG(0)] & TWO_PAGES)))

inline look()             /* one load at a time; the order does not matter while the counters are unchanged */
{
	found = (bits >> page) & 1;
	found = found || mem[TAG(page)];
#if PAGES == 2 && !defined(BUG_NO_HEAD)
	found = found || (page == 1 && (mem[TAG(0)] & TWO_PAGES))
#endif
}

proctype agent()
{
	byte k, page, got, c0, c1;
	bool found;
#ifdef BUG_EVEN_SINCE
	byte s0, s1;
	bool ok0, ok1;
#endif

start:
	/* Recover, before anything else. */
	if
	:: j_reclaim ->
#ifdef BUG_REST_FIRST
		STEP(j_reclaim = false);
#endif
		page = 0;
		do
		:: page < PAGES ->
			if
			:: (j_mask & leased) >> page & 1 && !(bits >> page & 1) -> STEP(doubt = doubt | (1 << page))
			:: else
			fi;
			page++
		:: else -> break
		od;
		STEP(j_reclaim = false)
	:: else
	fi;
	STEP(doubt = doubt & leased);            /* the last agent died between word and flag */
#ifdef BUG_EVEN_SINCE
	s0 = mem[CTR(0)];
	s1 = mem[CTR(1)];
	atomic { ok0 = !(s0 & 1); ok1 = !(s1 & 1) };
#endif

again:
	atomic { page = 0; got = 0; c0 = 0; c1 = 0; found = false };
	if
	/* Reclaim. */
	:: k < AGENT_OPS && bits -> k++;
#ifdef BUG_JOURNAL_LATE
		d_step { got = bits; j_mask = bits; owned = owned | bits; bits = 0 };
		if
		:: kills > 0 -> kills--; goto dead
		:: true
		fi;
		STEP(j_reclaim = true);
#else
		STEP(j_mask = bits);
		STEP(j_reclaim = true);
		STEP(d_step { got = bits & j_mask; bits = bits & ~j_mask; owned = owned | got });
#endif
		do
		:: got ->
			page = ((got & 1) -> 0 : 1);
			STEP(MAKE_FREE(page));
			STEP(doubt = doubt & ~(1 << page));
			got = got & ~(1 << page)
		:: else -> break
		od;
		STEP(j_reclaim = false);
		goto again
	/* Evict a block; allocate_free and take_restart model the details. */
	:: k < AGENT_OPS && mem[TAG(0)] && !(mem[TAG(0)] & DYING) -> k++;
		d_step {
			if
			:: mem[TAG(0)] && !(mem[TAG(0)] & DYING) ->
				got = SET(0, mem[TAG(0)]);
				mem[TAG(0)] = 0;
				assert((leased & got) == got && (owned & got) == 0);
				leased = leased & ~got;
#ifndef BUG_STALE_FLAG
				doubt = doubt & ~got
#endif
			:: else
			fi
		};
		goto again
	/* Grant: pass the page to the worker, without a bit. */
	:: k < AGENT_OPS && !(leased & 1) -> k++;
		d_step { leased = leased | 1; handed = handed | 1 };
		goto again
	/* Decide. The last decision is made when the threads have ended. */
	:: doubt && (k < AGENT_OPS || finished == 2) ->
		if
		:: k < AGENT_OPS -> k++
		:: else -> finished == 2
		fi;
		page = ((doubt & 1) -> 0 : 1);
		if
		:: (bits >> page) & 1 -> STEP(doubt = doubt & ~(1 << page)); goto again
		:: else
		fi;
#if defined(BUG_NO_COUNTERS)
		look();
#elif defined(BUG_EVEN_SINCE)
		ok0 = ok0 || mem[CTR(0)] != s0;
		ok1 = ok1 || mem[CTR(1)] != s1;
		if
		:: !ok0 || !ok1 -> goto again
		:: else
		fi;
		look();
#elif defined(BUG_ONE_BY_ONE)
		c0 = mem[CTR(0)];
		look();
		if
		:: (c0 & 1) || mem[CTR(0)] != c0 -> goto again
		:: else
		fi;
		if
		:: found -> goto keep
		:: else
		fi;
		c1 = mem[CTR(1)];
		look();
		if
		:: (c1 & 1) || mem[CTR(1)] != c1 -> goto again
		:: else
		fi;
keep:
#else
#ifndef BUG_AFTER_ONLY
		c0 = mem[CTR(0)];
		c1 = mem[CTR(1)];
		if
		:: (c0 | c1) & 1 -> goto again   /* later */
		:: else
		fi;
#endif
		look();
#if defined(BUG_AFTER_ONLY) || defined(BUG_PARITY_ONLY)
		c0 = mem[CTR(0)];
		c1 = mem[CTR(1)];
		if
		:: (c0 | c1) & 1 -> goto again
		:: else
		fi;
#elif !defined(BUG_BEFORE_ONLY)
		if
		:: mem[CTR(0)] != c0 -> goto again
		:: else
		fi;
		if
		:: mem[CTR(1)] != c1 -> goto again
		:: else
		fi;
#endif
#endif
#ifdef BUG_FLAG_FIRST
		STEP(doubt = doubt & ~(1 << page));
#endif
		if
		:: found
		:: else -> STEP(MAKE_FREE(page))
		fi;
		STEP(doubt = doubt & ~(1 << page));
		goto again
	:: !doubt -> goto done
	fi;
dead:
	atomic {
		page = 0; got = 0; c0 = 0; c1 = 0; found = false;
#ifdef BUG_EVEN_SINCE
		s0 = 0; s1 = 0; ok0 = false; ok1 = false;
#endif
	};
	goto start;
done:
	skip
}

init {
	byte p;

	atomic {
		d_step { leased = (1 << PAGES) - 1; bits = leased };
		run thread(0); run thread(1); run agent()
	};
	_nr_pr == CPUS + 1;
	d_step {
		assert(!doubt && !j_reclaim);
		assert(owned == 0);
		p = 0;
		do
		:: p < PAGES ->
			assert((bits >> p & 1) + (handed >> p & 1) + (COVERED(p) != 0) == (leased >> p & 1));
			p++
		:: else -> break
		od;
		p = 0
	}
}
