/*
 * allocate_free.pml - two threads of one worker allocate, pin and free while the agent evicts, reclaims and grants.
 *
 * Proved: a page is in one block at a time and has one owner. Contents never change under a valid pin. Exactly one of
 * two concurrent frees succeeds. The agent takes no page that is in use. At the end, each leased page is in exactly one
 * place: a free bit, a block, or a thread's magazine.
 *
 * A free that finds other pins is deferred: it drops its own pin. Once such a block has no pins, the agent may take it,
 * or a thread claims it. With -DPAGES=2, blocks may span two pages; the second one is an interior page, without pin or
 * entry.
 *
 * Planted bugs:
 *   BUG_PLAIN_FREE         free claims the entry with a store instead of a compare-and-swap: two frees succeed
 *   BUG_CHECK_BEFORE_CLAIM free reads the pin count before it clears the tag
 *   BUG_BIT_IF_LAST        free sets the bits only if its own unpin was the last one: a temporary pin loses pages
 *   BUG_BIT_FIRST          free sets the bits before it clears the tag
 *   BUG_LOOSE_TAG          pin ignores DYING in the tag
 *   BUG_CLAIM_PINNED       a deferred free is completed without a check of the pins
 *   BUG_CLAIM_NO_WORD      a deferred free is completed without a check of the page word
 *   BUG_EARLY_TAG          pin loads the tag before the pin is visible
 *   BUG_NO_WORD_CHECK      an allocation from the magazine does not check the page word
 *   BUG_DROP_EVICTING      allocate loses a page whose word is EVICTING
 *   BUG_EVICT_UNTAGGED     the agent evicts a page without a block
 *   BUG_FLUSH_NO_PIN       a thread empties its magazine without a pin
 *   BUG_TAG_FIRST          the agent reads the tag before the pins: a free that ends in between is missed
 *
 * Requirements: U5.
 */
#define CPUS  2           /* the two threads; the agent's stores are visible at once (pin_evict.pml buffers them) */
#ifndef PAGES
#define PAGES 1
#endif
#define TAG(p) (p)        /* the only plain stores are stores to block entries */
#define CELLS PAGES
#include "tso.h"

/* A page word is state + 4 * generation. */
#define FREE      0
#define LEASED    1       /* leased to the worker */
#define EVICTING  2
#define STATE(w)  ((w) & 3)
#define MAKE(s, w) (((w) & 252) | (s))
#define NEXT_GEN  4

/* A block entry is one cell here: the tag, and the page count, which is written before the tag. */
#define CACHED    15
#define DYING     16
#define TWO_PAGES 32
#define ID(e)     ((e) & 15)
/* true if page q belongs to the block of entry e at page p */
#define HAS(p, e, q) ((q) == (p) || (((e) & TWO_PAGES) && (q) == (p) + 1))
#define BITS(p, e) ((((e) & TWO_PAGES) -> 3 : 1) << (p))

#ifndef OPS
#define OPS 3             /* operations of thread 0 */
#endif
#ifndef OTHER_OPS
#define OTHER_OPS OPS     /* operations of thread 1 */
#endif
#define LIMIT(t) ((t) == 0 -> OPS : OTHER_OPS)
#ifndef AGENT_OPS
#define AGENT_OPS 2
#endif

byte word[PAGES];
byte bits;
byte pins[PAGES];
byte next_id = 1;

/* State of the threads. A magazine holds one page or run; the list of deferred frees holds one block. */
byte mag_entry[CPUS], mag_page[CPUS], mag_word[CPUS];
byte dying_entry[CPUS], dying_page[CPUS], dying_word[CPUS];

/* A handle that the threads share, and a handle whose pin was left behind, which either thread may use. */
byte shared_entry, shared_page, shared_word;
byte left_entry, left_page, left_word;

/* Ghosts: the block that has page p, and the number of valid pins of the block at p. */
byte claim[PAGES];
byte held[PAGES];
byte finished;

inline set_claim(p, e, v)
{
	claim[p] = v;
	if
	:: (e) & TWO_PAGES -> claim[(p) + 1] = v
	:: else
	fi
}

inline check_claim(p, e, v)
{
	assert(claim[p] == (v));
	assert(!((e) & TWO_PAGES) || claim[(p + 1) % PAGES] == (v))
}

/*
 * Write the entry of block e at page p, which belongs to this thread and is pinned by it. The caller stores the handle
 * in page, w, entry.
 */
inline write_entry()
{
	d_step {
		check_claim(page, entry, 0);
		entry = (entry & TWO_PAGES) | next_id;
		next_id++;
		set_claim(page, entry, ID(entry));
		held[page]++
	};
	store(t, TAG(page), entry)
}

proctype thread(byte t)
{
	byte op, page, entry, w, seen, n;
	bool own;                 /* the pin is this thread's, not the one left behind */

again:
	if
	:: op == LIMIT(t) -> goto done
	:: op < LIMIT(t) -> goto done
	:: op < LIMIT(t) && mag_entry[t] -> op++; goto pop
	:: op < LIMIT(t) && mag_entry[t] -> op++; goto flush
	:: op < LIMIT(t) && bits -> op++; goto take
	:: op < LIMIT(t) && shared_entry -> op++; goto pin
	:: op < LIMIT(t) && left_entry && !dying_entry[t] ->
		op++;
		d_step { page = left_page; w = left_word; entry = left_entry };
		goto free
	:: op < LIMIT(t) && dying_entry[t] -> op++; goto finish_dying
	fi;

take:   /* Take one page or a run of two from the free bits. */
	if
	:: page = 0
#if PAGES == 2
	:: page = 1
	:: entry = TWO_PAGES
#endif
	fi;
	LOCKED(t, seen = bits & BITS(page, entry); bits = bits & ~BITS(page, entry));
	if
	:: seen != BITS(page, entry) ->  /* only part of the run was free: return it */
		LOCKED(t, bits = bits | seen);
		goto over
	:: else
	fi;
	d_step { own = true; seen = 0 };
wait:
	atomic { DRAINED(t) -> pins[page]++ };
	w = word[page];
	if
	:: STATE(w) == LEASED
	:: STATE(w) == EVICTING ->       /* the agent inspects it, finds no block, and restores the word */
		LOCKED(t, pins[page]--);
#ifdef BUG_DROP_EVICTING
		goto over;
#endif
		STATE(word[page]) != EVICTING;
		goto wait
	:: else -> assert(false)         /* a free bit of a page of another owner */
	fi;
	write_entry();
	goto share;

pop:    /* Allocate from the magazine. */
	atomic { page = mag_page[t]; entry = mag_entry[t] };
	LOCKED(t, pins[page]++);
	w = word[page];
	if
#ifdef BUG_NO_WORD_CHECK
	:: true
#else
	:: w == mag_word[t]
#endif
	:: else ->
		if
		:: w == MAKE(EVICTING, mag_word[t])      /* keep it for later */
		:: else -> d_step { mag_page[t] = 0; mag_word[t] = 0; mag_entry[t] = 0 }
		fi;
		LOCKED(t, pins[page]--);
		goto over
	fi;
	d_step { w = mag_word[t]; mag_page[t] = 0; mag_word[t] = 0; mag_entry[t] = 0; own = true };
	write_entry();
	goto share;

flush:  /* Return the pages of the magazine to the free bits. */
	atomic { page = mag_page[t]; entry = mag_entry[t] };
#ifdef BUG_FLUSH_NO_PIN
	w = word[page];
	if
	:: w == mag_word[t] ->
		store(t, TAG(page), 0);
		LOCKED(t, bits = bits | BITS(page, entry))
	:: else
	fi;
	d_step { mag_page[t] = 0; mag_word[t] = 0; mag_entry[t] = 0 };
#else
	LOCKED(t, pins[page]++);
	w = word[page];
	if
	:: w == mag_word[t] ->
		store(t, TAG(page), 0);
		LOCKED(t, pins[page]--);
		LOCKED(t, bits = bits | BITS(page, entry));
		d_step { mag_page[t] = 0; mag_word[t] = 0; mag_entry[t] = 0 }
	:: w != mag_word[t] && w == MAKE(EVICTING, mag_word[t]) ->
		LOCKED(t, pins[page]--)
	:: else ->
		LOCKED(t, pins[page]--);
		d_step { mag_page[t] = 0; mag_word[t] = 0; mag_entry[t] = 0 }
	fi;
#endif
	goto over;

pin:    /* Pin the handle that the other thread, or this one, has shared. */
	atomic { page = shared_page; w = shared_word; entry = shared_entry };
#ifdef BUG_EARLY_TAG
	n = LOAD(t, TAG(page));
#endif
	LOCKED(t, pins[page]++);
	seen = word[page];
	if
	:: seen == w
	:: else -> goto not_pinned       /* if EVICTING, the caller may try again; otherwise stale */
	fi;
#ifdef BUG_EARLY_TAG
	seen = n;
#else
	seen = LOAD(t, TAG(page));
#endif
	if
#ifdef BUG_LOOSE_TAG
	:: (seen & ~DYING) == entry
#else
	:: seen == entry
#endif
	:: else -> goto not_pinned
	fi;
	d_step { seen = 0; n = 0; own = true; check_claim(page, entry, ID(entry)); held[page]++ };
	goto use;
not_pinned:
	atomic { DRAINED(t) -> pins[page]-- };
	goto over;

share:  /* Share the handle. Other threads see it only after the entry, so the store buffer must be empty. */
	atomic { DRAINED(t) -> shared_page = page; shared_word = w; shared_entry = entry };
use:    /* The contents belong to this thread until the unpin. */
	check_claim(page, entry, ID(entry));
	if
	:: d_step { held[page]-- }; LOCKED(t, pins[page]--); goto over
	:: !dying_entry[t] -> goto free
	:: !left_entry -> d_step { left_page = page; left_word = w; left_entry = entry }; goto over
	fi;

free:
#if defined(BUG_CHECK_BEFORE_CLAIM)
	n = pins[page];
	if
	:: n == 1 ->
		if
		:: atomic { DRAINED(t) && mem[TAG(page)] == entry -> mem[TAG(page)] = 0 }; goto finish_unclaimed
		:: atomic { DRAINED(t) && mem[TAG(page)] != entry }; goto free_lost
		fi
	:: else
	fi;
#endif
#ifdef BUG_PLAIN_FREE
	seen = LOAD(t, TAG(page));
	if
	:: seen == entry -> store(t, TAG(page), entry | DYING)
	:: else -> goto free_lost
	fi;
	(DRAINED(t));
#else
	atomic { DRAINED(t) ->
		seen = mem[TAG(page)];
		if
		:: seen == entry -> mem[TAG(page)] = entry | DYING
		:: else
		fi };
	if
	:: seen == entry
	:: else -> goto free_lost
	fi;
#endif
	seen = 0;
	/* This thread has claimed the block: no further pin can succeed, and earlier pins are in the count. */
	n = pins[page];
	if
	:: n == 1 -> n = 0; goto finish
	:: else ->                           /* others have pinned it: defer the free, and drop the pin */
		d_step { n = 0; dying_page[t] = page; dying_word[t] = w; dying_entry[t] = entry; held[page]-- };
		LOCKED(t, pins[page]--);
		goto over
	fi;
free_lost:                               /* -ESTALE: a failed free does not consume the caller's pin */
	if
	:: own -> d_step { held[page]-- }; LOCKED(t, pins[page]--)
	:: else
	fi;
	goto over;

finish_dying: /* claim a deferred free, unless others still have it pinned or the agent has taken it */
	atomic { page = dying_page[t]; w = dying_word[t]; entry = dying_entry[t] };
	LOCKED(t, n = pins[page]; pins[page]++);
	if
#ifdef BUG_CLAIM_PINNED
	:: true
#else
	:: n == 0
#endif
	:: else -> goto not_pinned
	fi;
	n = 0;
	seen = word[page];
	if
#ifdef BUG_CLAIM_NO_WORD
	:: true
#else
	:: seen == w
#endif
	:: seen == MAKE(EVICTING, w) -> goto not_pinned
	:: seen != w && seen != MAKE(EVICTING, w) -> d_step { dying_page[t] = 0; dying_word[t] = 0; dying_entry[t] = 0 }; goto not_pinned
	fi;
	seen = LOAD(t, TAG(page));
	if
	:: seen == (entry | DYING)
	:: else -> d_step { dying_page[t] = 0; dying_word[t] = 0; dying_entry[t] = 0 }; goto not_pinned
	fi;
	d_step { seen = 0; held[page]++; dying_page[t] = 0; dying_word[t] = 0; dying_entry[t] = 0 };
	goto finish_to_bits;

finish:
	if
	:: !mag_entry[t] ->                  /* to the magazine */
		d_step { assert(held[page] == 1); check_claim(page, entry, ID(entry)); held[page]--; set_claim(page, entry, 0) };
		store(t, TAG(page), (entry & TWO_PAGES) | CACHED);
		LOCKED(t, pins[page]--);
		d_step { mag_page[t] = page; mag_word[t] = w; mag_entry[t] = (entry & TWO_PAGES) | CACHED };
		goto over
	:: true
	fi;
finish_to_bits:
	atomic { assert(held[page] == 1); check_claim(page, entry, ID(entry)); held[page]--; set_claim(page, entry, 0) };
#ifdef BUG_CHECK_BEFORE_CLAIM
	goto finish_rest;
finish_unclaimed:
	atomic { assert(held[page] == 1); check_claim(page, entry, ID(entry)); held[page]--; set_claim(page, entry, 0) };
finish_rest:
	skip;
#endif
#if defined(BUG_BIT_FIRST)
	LOCKED(t, bits = bits | BITS(page, entry));
	store(t, TAG(page), 0);
	LOCKED(t, pins[page]--);
#elif defined(BUG_BIT_IF_LAST)
	store(t, TAG(page), 0);
	LOCKED(t, pins[page]--; n = pins[page]);
	if
	:: n == 0 -> LOCKED(t, bits = bits | BITS(page, entry))
	:: else
	fi;
#else
	store(t, TAG(page), 0);
	LOCKED(t, pins[page]--);
	LOCKED(t, bits = bits | BITS(page, entry));
#endif

over:
	atomic { page = 0; entry = 0; w = 0; seen = 0; n = 0; own = false };
	goto again;
done:
	atomic { DRAINED(t) -> op = 0; finished++ }
}

#ifdef AGENT
#include AGENT
#else
proctype agent()
{
	byte k, page, entry;
	bool got;

	do
	:: k < AGENT_OPS ->
		k++;
		if
		:: page = 0
#if PAGES == 2
		:: page = 1
#endif
		fi;
		if
		:: STATE(word[page]) == LEASED ->            /* evict the block that begins here */
			word[page] = MAKE(EVICTING, word[page]);
#ifdef BUG_TAG_FIRST
			entry = mem[TAG(page)];
#endif
			if
			:: pins[page] == 0 ->
#ifndef BUG_TAG_FIRST
				entry = mem[TAG(page)];
#endif
				if
#ifdef BUG_EVICT_UNTAGGED
				:: entry == 0 && ((bits >> page) & 1) ->
#else
				:: entry == 0 ->             /* no block begins here, or a thread holds the page */
#endif
					word[page] = MAKE(LEASED, word[page])
				:: else ->
					d_step {
						assert(held[page] == 0);
						check_claim(page, entry, (ID(entry) == CACHED -> 0 : ID(entry)));
						set_claim(page, entry, 0)
					};
					mem[TAG(page)] = 0;
#if PAGES == 2
					if
					:: entry & TWO_PAGES ->
						assert(STATE(word[1]) == LEASED);
						word[1] = MAKE(FREE, word[1]) + NEXT_GEN
					:: else
					fi;
#endif
					word[page] = MAKE(FREE, word[page]) + NEXT_GEN
				fi
			:: else -> word[page] = MAKE(LEASED, word[page])
			fi
		:: STATE(word[page]) == LEASED ->            /* reclaim the page if it is idle */
			d_step { got = (bits >> page) & 1; bits = bits & ~(1 << page) };
			if
			:: got ->
				d_step {
					assert(claim[page] == 0);
					word[page] = MAKE(FREE, word[page]) + NEXT_GEN
				}
			:: else
			fi
		:: STATE(word[page]) == FREE ->              /* grant */
			word[page] = MAKE(LEASED, word[page]) + NEXT_GEN;
			d_step {
				assert(((bits >> page) & 1) == 0);
				bits = bits | (1 << page)
			}
		fi;
		d_step { page = 0; entry = 0; got = false }
	:: true -> break
	od;
	atomic { k = 0; finished++ }
}
#endif

/* The number of places that have page p. */
#define IN_BIT(p)    ((bits >> (p)) & 1)
#define IN_ENTRY(p)  (mem[TAG(p)] != 0)
#if PAGES == 2
#define IN_RUN(p)    ((p) == 1 && (mem[TAG(0)] & TWO_PAGES))
#else
#define IN_RUN(p)    0
#endif
#define IN_MAGAZINE(t, p) (ID(mag_entry[t]) == CACHED && mag_page[t] == (p) && mag_word[t] == word[p])

init {
	byte p;

	atomic {
		d_step {
			p = 0;
			do
			:: p < PAGES -> word[p] = LEASED; bits = bits | (1 << p); p++
			:: else -> break
			od;
			p = 0
		};
		run thread(0); run thread(1); run agent()
	};
	finished == 3;
	d_step {
		p = 0;
		do
		:: p < PAGES ->
			assert(pins[p] == held[p]);
			assert(STATE(word[p]) != EVICTING);
			assert(IN_BIT(p) + IN_ENTRY(p) + IN_RUN(p) == (STATE(word[p]) == LEASED));
			assert(ID(mem[TAG(p)]) != CACHED || IN_MAGAZINE(0, p) + IN_MAGAZINE(1, p) == 1);
			p++
		:: else -> break
		od;
		p = 0
	}
}
