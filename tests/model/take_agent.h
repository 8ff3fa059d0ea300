/* take_agent.h - the agent of take_restart.pml, in place of the agent of allocate_free.pml. */
#ifndef KILLS
#define KILLS 2
#endif

/* The ledger. */
bool j_take;
byte j_head, j_runs; /* a page, and a bit set of pages */

byte kills = KILLS;
#define STEP(...) \
	if \
		::__VA_ARGS__ ::kills > 0->kills--; \
	goto dead fi

#define OWNED(p) (STATE(word[p]) == LEASED || STATE(word[p]) == EVICTING)

inline write_journal()
{
#ifdef BUG_WHAT_FIRST
	STEP(j_take = true);
#endif
#ifdef BUG_HEAD_ONLY
	STEP(d_step {
		j_head = page;
		j_runs = 1 << page
	});
#else
	STEP(d_step {
		j_head = page;
		j_runs = BITS(page, entry)
	});
#endif
#ifndef BUG_WHAT_FIRST
	STEP(j_take = true)
#else
	skip
#endif
}

/* From here on the block belongs to the agent. */
inline check_taken()
{
	d_step
	{
		assert(held[page] == 0);
		check_claim(page, entry, (ID(entry) == CACHED->0 : ID(entry)));
		set_claim(page, entry, 0)
	}
}

inline free_words(runs) /* the head first, as pool_take_back() does */
{
	if
		::((runs)&1) && OWNED(0)->STEP(word[0] = MAKE(FREE, word[0]) + NEXT_GEN)::else fi;
#if PAGES == 2
	if
		::((runs)&2) && OWNED(1)->STEP(word[1] = MAKE(FREE, word[1]) + NEXT_GEN)::else fi
#else
	skip
#endif
}

inline put_back(p)
{
	if
		::STATE(word[p]) ==
			EVICTING->
#if defined(BUG_NEW_GENERATION)
			STEP(word[p] = MAKE(LEASED, word[p]) + NEXT_GEN)
#elif defined(BUG_BACK_FREE)
			STEP(d_step {
				word[p] = MAKE(FREE, word[p]) + NEXT_GEN;
				mem[TAG(p)] = 0
			})
#else
			STEP(word[p] = MAKE(LEASED, word[p]))
#endif
				::else fi
}

inline put_all_back()
{
	put_back(0);
#if PAGES == 2
	put_back(1)
#else
	skip
#endif
}

proctype agent()
{
	byte k, page, entry;
	bool got;

start:
#ifdef BUG_BACK_FIRST
	put_all_back();
#endif
	if
		::j_take->
#ifndef BUG_KEEP_TAG
			if ::OWNED(j_head)
				->STEP(mem[TAG(j_head)] = 0)::else fi;
#endif
	free_words(j_runs);
	STEP(j_take = false)
	::else fi;
#if !defined(BUG_BACK_FIRST) && !defined(BUG_LEAVE_EVICTING)
	put_all_back();
#endif

again:
	atomic
	{
		page = 0;
		entry = 0;
		got = false
	};
	if
		::goto done ::k < AGENT_OPS->k++ fi;
	if
		::page = 0
#if PAGES == 2
			::page = 1
#endif
			fi;
	if
		::STATE(word[page]) == LEASED->goto evict ::STATE(word[page]) ==
			LEASED->/* reclaim; reclaim_restart.pml models deaths during it */
			d_step
		{
			if
				::(bits >> page) & 1->bits = bits & ~(1 << page);
			assert(claim[page] == 0);
			word[page] = MAKE(FREE, word[page]) + NEXT_GEN ::else fi
		}
	::STATE(word[page]) == FREE->d_step
	{
		assert(((bits >> page) & 1) == 0);
		word[page] = MAKE(LEASED, word[page]) + NEXT_GEN;
		bits = bits | (1 << page)
	}
	fi;
	goto again;

evict:
	STEP(word[page] = MAKE(EVICTING, word[page]));
#ifdef BUG_JOURNAL_FIRST
	entry = mem[TAG(page)];
	write_journal();
#endif
	got = (pins[page] == 0);
	if
		::got->entry = mem[TAG(page)];
	got = (entry != 0)::else fi;
	if
		::!got->
#ifdef BUG_JOURNAL_FIRST
			STEP(j_take = false);
#endif
	STEP(word[page] = MAKE(LEASED, word[page]));
	goto again ::else fi;
#if !defined(BUG_JOURNAL_FIRST) && !defined(BUG_JOURNAL_LATE)
	write_journal();
#endif
	check_taken();
	STEP(mem[TAG(page)] = 0);
#ifdef BUG_JOURNAL_LATE
	write_journal();
#endif
#ifdef BUG_REST_FIRST
	STEP(j_take = false);
#endif
	free_words(BITS(page, entry));
	STEP(j_take = false);
	goto again;

dead:
	atomic
	{
		page = 0;
		entry = 0;
		got = false
	};
	goto start;
done:
	atomic
	{
		k = 0;
		finished++
	}
}
