/*
 * offer_reclaim.pml - a process offers, reclaims and frees blocks with fences; the agent takes unpinned blocks.
 *
 * Two threads of one process allocate, offer and free blocks of one page with fences of GPU work. They reclaim
 * offered blocks, and claim freed blocks that wait for a fence. GPU work ends at any later time, without a call by the
 * process. The agent evicts, takes idle pages, grants pages, and lends them to another session, which overwrites them.
 * With STREAMS=2, both threads launch GPU work. A page may then wait for two streams with a joint fence, and entries of
 * the join table are reused. With -DDEATH, the process dies at any step. The agent dies KILLS times.
 *
 * Proved: content that a reclaim reports as kept is the offered content, and content that it reports as lost is lost.
 * GPU work before a fence never sees its page with another owner. Exactly one of claim and take succeeds. At the end,
 * each leased page is in one place. A query of a signaled fence reports it as signaled. Once the GPU work has ended,
 * the agent can take each page that no caller has pinned.
 *
 * Planted bugs:
 *   BUG_EARLY_UNPIN       offer drops the pin before it stores the fence
 *   BUG_CLAIM_NO_TAG      claim ignores the tag
 *   BUG_CLAIM_NO_WORD     claim ignores the page word
 *   BUG_CLAIM_PINNED      claim ignores other pins
 *   BUG_CLAIM_NO_FENCE    claim ignores the fence
 *   BUG_CLAIM_FENCE_FIRST claim reads the fence before its pin is visible
 *   BUG_TAG_FIRST         the agent reads the tag before pins and fence
 *   BUG_FENCE_FIRST       the agent reads the fence before the pins
 *   BUG_TAKE_NO_FENCE     the agent takes a freed block before its fence is signaled
 *   BUG_SKIP_DYING        the agent takes no freed blocks
 *   BUG_KEEP_PIN          a free that waits for a fence keeps its pin
 *   BUG_SAME_TAG          a new block has the tag of an earlier one
 *   BUG_NEW_GENERATION    recovery restores a marked word with a new generation; with KILLS
 * and with STREAMS=2:
 *   BUG_PLAIN_FENCE       the fence is combined with a load and a store instead of a compare-and-swap
 *   BUG_ONE_FENCE         the fence of the second stream replaces that of the first
 *   BUG_RECYCLE_EARLY     a join entry is reused before its members are signaled
 *   BUG_PUBLISH_LATE      the block entry refers to the join entry before that is published
 *   BUG_CHANGED_BUSY      a join entry with another serial counts as unsignaled
 *   BUG_ONE_LOOK          the serial is not read again after the members
 *   BUG_MEMBERS_FIRST     members are stored while the old serial is still valid
 *
 * Requirements: U16.
 */
#ifndef PAGES
#define PAGES 1
#endif
#ifndef STREAMS
#define STREAMS 1         /* threads that launch GPU work */
#endif
#ifndef JOINS
#define JOINS 1
#endif
#ifndef OPS
#define OPS 2             /* operations of thread 0 */
#endif
#ifndef OTHER_OPS
#define OTHER_OPS 2       /* operations of thread 1 */
#endif
#ifndef AGENT_OPS
#define AGENT_OPS 2
#endif
#ifndef KILLS
#define KILLS 0
#endif
#ifndef EXACT
#define EXACT 1           /* 0: a query may report a signaled fence as unsignaled */
#endif
#define LIMIT(t) ((t) == 0 -> OPS : OTHER_OPS)

/*
 * Stores are visible at once. Modeling x86 store buffers (tso.h) would add nothing: in this protocol, a locked
 * instruction always separates a thread's plain store from its next load, and stores stay in order. pin_evict.pml and
 * allocate_free.pml cover the other cases.
 */

/* A page word is state + 4 * generation. */
#define FREE      0
#define LEASED    1       /* leased to the process */
#define EVICTING  2
#define OTHER     3       /* leased to another session */
#define STATE(w)  ((w) & 3)
#define MAKE(s, w) (((w) & 252) | (s))
#define NEXT_GEN  4

#define DYING     16      /* bit of a tag; the lower bits are the sequence */

/*
 * A fence is 0 (none), stream * 8 + number, or 64 + serial * 2 + join entry. The serial is odd while the entry is being
 * written.
 */
#define PLAIN(s, n)   ((s) * 8 + (n))
#define JOINT(j, n)   (64 + (n) * 2 + (j))
#define IS_JOINT(f)   ((f) >= 64)
#define JOIN_OF(f)    ((f) & 1)
#define SERIAL_OF(f)  (((f) - 64) >> 1)
#define REACHED(f)    (reached[(f) >> 3] >= ((f) & 7))
#define USE(f)        ((SERIAL_OF(f) >> 1) * 2 + JOIN_OF(f))
#define USES          16
#define TRULY_REACHED(f) (IS_JOINT(f) -> (REACHED(use[USE(f)].on[0]) && REACHED(use[USE(f)].on[1])) : REACHED(f))

byte word[PAGES];
byte entry_tag[PAGES], entry_fence[PAGES];
typedef join_entry { byte serial; byte member[2] }
join_entry joins[JOINS];
#define TAG(p)       entry_tag[p]
#define FENCE(p)     entry_fence[p]
#define SERIAL(j)    joins[j].serial
#define MEMBER(j, s) joins[j].member[s] /* a fence of stream s */

byte bits;                /* free bits */
byte pins[PAGES];
byte reached[2];          /* the timeline */
byte launched[2];         /* the last fences that the process has launched on its streams */
byte next_id = PAGES + 1;
bool join_lock;           /* taken by threads of the process */
byte finished;

/* Memory of the process: the last block made at page p, and a freed block that waits for its fence. */
byte h_word[PAGES], h_tag[PAGES], h_id[PAGES];
byte dying_word[PAGES], dying_tag[PAGES], dying_id[PAGES];

/* Ghosts. */
byte block[PAGES];        /* number of the block that has page p, 0: none */
byte content[PAGES];      /* number of the block whose bytes are in page p */
#define OTHERS 15
byte held[PAGES];         /* valid pins */
byte gpu_page[2], gpu_id[2]; /* running GPU work uses page gpu_page - 1; a number beyond the last page: some other
			      * page */
typedef members { byte on[2] }
members use[USES];        /* members of each use of a join entry */
#define GPU_ON(p) (gpu_page[0] == (p) + 1 || gpu_page[1] == (p) + 1)

bool buried;
#ifdef DEATH
bool killed;
#define DEAD (killed && finished == 2)
#else
#define DEAD false
#endif

/*
 * LOOK() - query fence f; used by both threads and the agent. The result is in r; `other` is the joint fence's member
 * of the other stream. Asserted: a fence that is reported as signaled is signaled, and one that was signaled before the
 * query is reported as signaled.
 */
#define LOOK(t, f) \
	truly = TRULY_REACHED(f); \
	if \
	:: !IS_JOINT(f) -> r = REACHED(f) \
	:: else -> \
		seen = SERIAL(JOIN_OF(f)); \
		if \
		:: seen != SERIAL_OF(f) -> r = CHANGED \
		:: else -> \
			d_step { m = MEMBER(JOIN_OF(f), 0); r = REACHED(m); if :: (t) != 0 -> other = m :: else fi; m = 0 }; \
			d_step { m = MEMBER(JOIN_OF(f), 1); r = r && REACHED(m); if :: (t) == 0 -> other = m :: else fi; m = 0 }; \
			SECOND_LOOK(t, f) \
		fi; \
	fi; \
	d_step { \
		assert(!r || TRULY_REACHED(f)); \
		assert(r || !truly || !EXACT); \
		seen = 0; truly = false \
	}
#ifdef BUG_CHANGED_BUSY
#define CHANGED false
#else
#define CHANGED true
#endif
#ifdef BUG_ONE_LOOK
#define SECOND_LOOK(t, f) skip
#else
#define SECOND_LOOK(t, f) \
	if \
	:: SERIAL(JOIN_OF(f)) != SERIAL_OF(f) -> r = CHANGED \
	:: else \
	fi
#endif

/*
 * join() - make a joint fence in f from a fence of each stream. An entry is unused when all members of its last use are
 * signaled. This test is one step: only the holder of the lock writes entries, and signaled fences stay signaled.
 */
#ifdef BUG_RECYCLE_EARLY
#define UNUSED(j) true
#else
#define UNUSED(j) (REACHED(MEMBER(j, 0)) && REACHED(MEMBER(j, 1)))
#endif
inline join(t, f0, f1)
{
	atomic {
		if
		:: !join_lock && UNUSED(0) -> j = 0
#if JOINS == 2
		:: !join_lock && UNUSED(1) -> j = 1
#endif
		fi;
		join_lock = true;
		f = JOINT(j, SERIAL(j) + 2);
		use[USE(f)].on[0] = f0;
		use[USE(f)].on[1] = f1
	};
#ifdef BUG_PUBLISH_LATE
	d_step { FENCE(page) = f };
#endif
#ifndef BUG_MEMBERS_FIRST
	SERIAL(j) = SERIAL_OF(f) - 1;
#endif
	MEMBER(j, 0) = f0;
	MEMBER(j, 1) = f1;
	SERIAL(j) = SERIAL_OF(f);
	atomic { join_lock = false; j = 0 }
}

#define FORGET \
	page = 0; w = 0; tag = 0; id = 0; f = 0; old = 0; seen = 0; m = 0; j = 0; other = 0; n = 0; \
	r = false; truly = false; freeing = false

proctype thread(byte t)
{
	byte op, page, w, tag, id, f, old, seen, m, j, other, n;
	bool r, truly, freeing;

#ifdef DEATH
{
	op = 0;
#endif
again:
	if
	:: goto done
	:: op < LIMIT(t) && bits -> op++; goto take
	:: op < LIMIT(t) -> op++; goto reclaim
#if STREAMS == 2
	:: t == 0 && op < LIMIT(t) -> op++; goto elsewhere
	:: t == 0 && op < LIMIT(t) -> op++; goto claim
#else
	:: op < LIMIT(t) -> op++; goto claim
#endif
	fi;

take:   /* Allocate a page from the free bits. */
	if
	:: page = 0
#if PAGES == 2
	:: page = 1
#endif
	fi;
	d_step { r = (bits >> page) & 1; bits = bits & ~(1 << page) };
	if
	:: r
	:: else -> goto over
	fi;
wait:
	atomic { pins[page]++ };
	w = word[page];
	if
	:: STATE(w) == LEASED
	:: STATE(w) == EVICTING ->
		d_step { pins[page]-- };
		STATE(word[page]) != EVICTING;
		goto wait
	:: else -> assert(false)
	fi;
	d_step {
		assert(block[page] == 0);
		assert(!GPU_ON(page));
		id = next_id;
		next_id++;
#ifdef BUG_SAME_TAG
		tag = page + 1;
#else
		tag = id;
#endif
		block[page] = id;
		content[page] = id;
		held[page]++
	};
	TAG(page) = tag;
	atomic { h_word[page] = w; h_tag[page] = tag; h_id[page] = id };
	goto using;

reclaim: /* Pin an offered block. */
	if
	:: atomic { page = 0; w = h_word[0]; tag = h_tag[0]; id = h_id[0] }
#if PAGES == 2
	:: atomic { page = 1; w = h_word[1]; tag = h_tag[1]; id = h_id[1] }
#endif
	fi;
	d_step { pins[page]++ };
	n = word[page];
	if
	:: n == w
	:: n == MAKE(EVICTING, w) -> goto let_go            /* try again later */
	:: else -> assert(block[page] != id); goto let_go   /* lost */
	fi;
	seen = TAG(page);
	if
	:: seen == tag
	:: else -> assert(block[page] != id || (seen & DYING)); goto let_go  /* lost */
	fi;
	d_step { seen = 0; assert(block[page] == id && content[page] == id); held[page]++ };

using:  /* Held: the content is kept. GPU work may end after the unpin. */
	if
	:: t < STREAMS && gpu_page[t] == 0 ->
		d_step { launched[t]++; f = PLAIN(t, launched[t]); gpu_page[t] = page + 1; gpu_id[t] = id }
	:: true
	fi;
	assert(block[page] == id && content[page] == id);
	if
	:: freeing = false
	:: freeing = true
	:: goto done                                        /* held until the end */
	fi;
	if
	:: freeing ->
		d_step { r = (TAG(page) == tag); if :: r -> TAG(page) = tag | DYING :: else fi };
		if
		:: r
		:: else -> freeing = false                  /* another thread has freed it: unpin with the fence */
		fi
	:: else
	fi;
	d_step { r = false };
	if
	:: f == 0 -> goto fenced
	:: else
	fi;
#ifdef BUG_EARLY_UNPIN
	if
	:: !freeing -> d_step { held[page]-- }; d_step { pins[page]-- }
	:: else
	fi;
#endif
combine:                                                    /* Add this thread's fence to the one in the entry. */
	old = FENCE(page);
	LOOK(t, old);
#ifdef BUG_ONE_FENCE
	r = true;
#endif
	if
	:: r || (!IS_JOINT(old) && (old >> 3) == t) -> n = f
	:: else ->
		if
		:: IS_JOINT(old)
		:: else -> other = old
		fi;
		n = f;                                      /* n: this thread's fence, since join() sets f */
#if JOINS == 1
		if
		:: IS_JOINT(old) -> TRULY_REACHED(old) || FENCE(page) != old; goto combine
		:: else
		fi;
#endif
		if
		:: t == 0 -> join(t, n, other)
		:: else -> join(t, other, n)
		fi;
		d_step { m = f; f = n; n = m; m = 0 }       /* f: this thread's fence; n: the joint one */
	fi;
#ifdef BUG_PLAIN_FENCE
	FENCE(page) = n;
	r = true;
#else
	d_step { r = (FENCE(page) == old); if :: r -> FENCE(page) = n :: else fi };
#endif
	d_step { old = 0; n = 0; other = 0 };
	if
	:: r
	:: else -> goto combine
	fi;
fenced:
	if
	:: freeing -> goto free
	:: else
	fi;
#ifdef BUG_EARLY_UNPIN
	if
	:: f != 0 -> goto over
	:: else
	fi;
#endif
	d_step { held[page]-- };
	d_step { pins[page]-- };
	goto over;

free:   /* The tag is DYING. */
	n = pins[page];
	if
	:: n == 1 ->                                        /* only this thread's pin: no other can succeed */
		old = FENCE(page);
		LOOK(t, old);
		if
		:: r -> d_step { held[page]-- }; goto finish
		:: else
		fi
	:: else
	fi;
	/*
	 * Store it in the list before the unpin. If the list has an earlier block for this page, the agent has taken
	 * that block.
	 */
	d_step { dying_word[page] = w; dying_tag[page] = tag; dying_id[page] = id; held[page]-- };
#ifndef BUG_KEEP_PIN
	d_step { pins[page]-- };
#endif
	goto over;

claim:  /* Complete a deferred free. */
	if
	:: atomic { page = 0; w = dying_word[0]; tag = dying_tag[0]; id = dying_id[0] }
#if PAGES == 2
	:: atomic { page = 1; w = dying_word[1]; tag = dying_tag[1]; id = dying_id[1] }
#endif
	fi;
	if
	:: tag == 0 -> goto over
	:: else
	fi;
#ifdef BUG_CLAIM_FENCE_FIRST
	old = FENCE(page);
	LOOK(t, old);
	truly = r;
#endif
	d_step { n = pins[page]; pins[page]++ };
#ifdef BUG_KEEP_PIN
	if
	:: n <= 1
#else
	if
#ifdef BUG_CLAIM_PINNED
	:: true
#else
	:: n == 0
#endif
#endif
	:: else -> goto let_go                              /* pinned, or being claimed by another thread */
	fi;
	n = word[page];
	if
#ifdef BUG_CLAIM_NO_WORD
	:: true
#else
	:: n == w
#endif
	:: else -> goto let_go
	fi;
	seen = TAG(page);
	if
#ifdef BUG_CLAIM_NO_TAG
	:: seen != 0
#else
	:: seen == (tag | DYING)
#endif
	:: else -> goto let_go
	fi;
	seen = 0;
#ifdef BUG_CLAIM_FENCE_FIRST
	r = truly;
	truly = false;
#else
	old = FENCE(page);
	LOOK(t, old);
#endif
#ifdef BUG_CLAIM_NO_FENCE
	r = true;
#endif
	if
	:: r
	:: else -> goto let_go
	fi;
#ifdef BUG_KEEP_PIN
	d_step { pins[page]-- };
#endif
finish:                                                     /* This thread's pin is the only one. */
	atomic {
		assert(held[page] == 0);
		assert(!GPU_ON(page));
		assert(block[page] == id);
		block[page] = 0
	};
	TAG(page) = 0;
	d_step { pins[page]-- };
	d_step { bits = bits | (1 << page) };
	goto over;

#if STREAMS == 2
elsewhere: skip; /* Make a joint fence for another page. */
	d_step {
		do
		:: j < 2 ->
			if
			:: gpu_page[j] == 0 -> launched[j]++; gpu_page[j] = PAGES + 1
			:: else
			fi;
			j++
		:: else -> break
		od;
		j = 0; n = PLAIN(0, launched[0]); m = PLAIN(1, launched[1])
	};
	join(t, n, m);
	goto over;
#endif

let_go:
	atomic { pins[page]-- };
over:
	atomic { FORGET };
	goto again;
done:
	skip;
#ifdef DEATH
} unless { killed };
#endif
	atomic { FORGET; op = 0; finished++ }
}

/* GPU work ends, and the stream writes its timeline. */
proctype device(byte s)
{
end:	do
	:: d_step { gpu_page[s] != 0 ->
		if
		:: gpu_page[s] <= PAGES -> assert(content[gpu_page[s] - 1] == gpu_id[s])
		:: else
		fi;
		reached[s] = launched[s];
		gpu_page[s] = 0; gpu_id[s] = 0 }
	od
}

#define IDLE (gpu_page[0] == 0 && gpu_page[1] == 0)

/* The agent; see take_agent.h. */
bool j_take;
byte j_page;
byte kills = KILLS;
#if KILLS
#define STEP(...) if :: __VA_ARGS__ :: kills > 0 -> kills--; goto dead_agent fi
#else
#define STEP(...) __VA_ARGS__
#endif
#define OWNED(p) (STATE(word[p]) == LEASED || STATE(word[p]) == EVICTING)

inline put_back(p)
{
	if
	:: STATE(word[p]) == EVICTING ->
#ifdef BUG_NEW_GENERATION
		STEP(word[p] = MAKE(LEASED, word[p]) + NEXT_GEN)
#else
		STEP(word[p] = MAKE(LEASED, word[p]))
#endif
	:: else
	fi
}

inline look_at_fence()
{
	atomic { f = FENCE(page); truly = TRULY_REACHED(f) };
	LOOK(0, f);
	f = 0
}

proctype agent()
{
	byte k, page, f, entry, seen, m, other;
	bool r, truly, busy, last;

start:
	if
	:: j_take ->
		if
		:: OWNED(j_page) ->
			STEP(TAG(j_page) = 0);
			STEP(word[j_page] = MAKE(FREE, word[j_page]) + NEXT_GEN)
		:: else
		fi;
		STEP(j_take = false)
	:: else
	fi;
	put_back(0);
#if PAGES == 2
	put_back(1);
#endif

again:
	atomic { f = 0; entry = 0; seen = 0; m = 0; other = 0; r = false; truly = false; busy = false };
	if
	:: last -> goto next_last
	:: !last && k < AGENT_OPS -> k++
#ifdef DEATH
	:: DEAD && !buried && IDLE -> goto burial              /* the pidfd is signaled, so no GPU work remains */
#else
	:: !last && finished == 2 && IDLE -> goto end_of_all
#endif
	:: !last && buried -> goto done
	fi;
	if
	:: page = 0
#if PAGES == 2
	:: page = 1
#endif
	fi;
	if
	:: STATE(word[page]) == LEASED -> goto evict
	:: STATE(word[page]) == LEASED && ((bits >> page) & 1) -> /* take an idle page; reclaim_restart.pml models
								   * deaths */
		d_step {
			if
			:: (bits >> page) & 1 ->
				bits = bits & ~(1 << page);
				assert(block[page] == 0 && !GPU_ON(page));
				word[page] = MAKE(FREE, word[page]) + NEXT_GEN
			:: else
			fi
		}
	:: STATE(word[page]) == FREE ->                      /* lend to another session, which writes to the page */
		d_step {
			assert(block[page] == 0 && !GPU_ON(page));
			word[page] = MAKE(OTHER, word[page]) + NEXT_GEN;
			content[page] = OTHERS
		}
	:: STATE(word[page]) == OTHER ->
		d_step {
			assert(content[page] == OTHERS && !GPU_ON(page));
			word[page] = MAKE(FREE, word[page]) + NEXT_GEN
		}
	:: STATE(word[page]) == FREE && !DEAD ->             /* grant; grant_restart.pml models deaths */
		d_step {
			assert(((bits >> page) & 1) == 0);
			word[page] = MAKE(LEASED, word[page]) + NEXT_GEN;
			bits = bits | (1 << page)
		}
	:: else
	fi;
	goto again;

evict:
	STEP(word[page] = MAKE(EVICTING, word[page]));
#ifdef BUG_TAG_FIRST
	entry = TAG(page);
#endif
#ifdef BUG_FENCE_FIRST
	look_at_fence();
	busy = !r;
	busy = busy || pins[page] != 0;
#else
	busy = (pins[page] != 0);
	if
#ifdef BUG_TAKE_NO_FENCE
	:: !busy -> look_at_fence(); busy = !r && !(TAG(page) & DYING)
#else
	:: !busy -> look_at_fence(); busy = !r
#endif
	:: else
	fi;
#endif
#ifndef BUG_TAG_FIRST
	entry = TAG(page);
#endif
#ifdef BUG_SKIP_DYING
	busy = busy || (entry & DYING);
#endif
	if
	:: busy || entry == 0 ->
		STEP(word[page] = MAKE(LEASED, word[page]));
		goto again
	:: else
	fi;
	STEP(j_page = page);
	STEP(j_take = true);
	d_step {
		assert(held[page] == 0);
		assert(!GPU_ON(page));
#ifndef BUG_SAME_TAG
		assert(block[page] == (entry & ~DYING));
#endif
		block[page] = 0
	};
	STEP(TAG(page) = 0);
	STEP(word[page] = MAKE(FREE, word[page]) + NEXT_GEN);
	STEP(j_take = false);
	goto again;

end_of_all:                                                 /* All other processes have finished. */
	skip;
	d_step {
		last = true;
		kills = 0;
		k = AGENT_OPS;
		page = 0;
		do
		:: page < PAGES ->
#ifndef BUG_KEEP_PIN
			assert(pins[page] == held[page]);
#endif
			assert(STATE(word[page]) != EVICTING);
			assert(((bits >> page) & 1) + (TAG(page) != 0) == (STATE(word[page]) == LEASED));
#ifndef BUG_SAME_TAG
			assert(block[page] == (TAG(page) & ~DYING));
#endif
			page++
		:: else -> break
		od;
		page = 0;
		bits = 0                                    /* the agent may take idle pages at any time */
	};
	goto last_look;
next_last:
	assert(held[page] > 0 || STATE(word[page]) != LEASED);
	page++;
last_look:                                                  /* Take each page that is not pinned. */
	if
	:: page == PAGES -> goto done
	:: page < PAGES && STATE(word[page]) == LEASED && TAG(page) != 0 -> goto evict
	:: else -> page++; goto last_look
	fi;

burial:                                                     /* uses only page words */
	if
	:: OWNED(0) -> STEP(d_step { assert(!GPU_ON(0)); word[0] = MAKE(FREE, word[0]) + NEXT_GEN; block[0] = 0 })
	:: else
	fi;
#if PAGES == 2
	if
	:: OWNED(1) -> STEP(d_step { assert(!GPU_ON(1)); word[1] = MAKE(FREE, word[1]) + NEXT_GEN; block[1] = 0 })
	:: else
	fi;
#endif
	d_step { buried = true; bits = 0 };
	goto again;

#if KILLS
dead_agent:
	goto start;
#endif
done:
	atomic { k = 0; page = 0 }
}

#ifdef DEATH
proctype killer()
{
	killed = true
}
#endif

init {
	byte p;

	atomic {
		d_step {
			p = 0;
			do
			:: p < PAGES ->                     /* an offered block, without a fence */
				word[p] = LEASED;
				TAG(p) = p + 1; block[p] = p + 1; content[p] = p + 1;
				h_word[p] = LEASED; h_tag[p] = p + 1; h_id[p] = p + 1;
				p++
			:: else -> break
			od;
			p = 0
		};
		run thread(0); run thread(1); run device(0); run device(1); run agent();
#ifdef DEATH
		run killer()
#endif
	}
}
