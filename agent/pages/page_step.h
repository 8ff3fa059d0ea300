/*
 * page_step.h - the steps of a page word, with the states before and after each step.
 *
 * The agent is the only writer of page words, and each of its stores is one of these steps. page_steps[] is the
 * complete list of permitted transitions; debug builds check each store (pool_word_set() in pool.h).
 *
 * An agent that dies between two stores may leave any of these states. The next agent uses the same steps:
 *   UNMARK, UNMOVE   end a check or a move that was not decided (agent/control/recover.c, agent/spill/spill_recover.c)
 *   SHARE, UNSHARE   complete or undo a publication, page by page (agent/object/objects_recover.c)
 *   QUARANTINE       quarantine all pages of a closed session, including quarantined ones
 *   PUT_ASIDE        change a page that was put aside from QUARANTINED to RETIRED, or back
 *   PASS             complete or undo a request for pages of a reservation
 * Only QUARANTINE and PASS may lead from a state to the same state. TAKE_BACK does not apply to a free page.
 */
#ifndef GPOOL_AGENT_PAGE_STEP_H
#define GPOOL_AGENT_PAGE_STEP_H

#include "shm/page_word.h"

#include <stdbool.h>

enum page_step {
	STEP_LEND,       /* lease a free page to a session */
	STEP_MARK,       /* begin to check whether a page may be taken */
	STEP_UNMARK,     /* end the check: the page is not evicted */
	STEP_MOVE,       /* begin to save or restore the content */
	STEP_UNMOVE,     /* end the move: the page belongs to the session again */
	STEP_SHARE,      /* publish the page as part of an object */
	STEP_UNSHARE,    /* undo the publication */
	STEP_QUARANTINE, /* the session has ended or disconnected, but its process may still use the page */
	STEP_SET_ASIDE,  /* the session has ended, but the mover may still write to the page */
	STEP_PUT_ASIDE,  /* transfer a free page to another trust domain */
	STEP_TAKE_BACK,  /* the page becomes free */
	STEP_PASS,       /* lease a page of a reservation to another session */
	PAGE_STEPS
};

enum page_step_owner {
	STEP_OWNER_NONE,
	STEP_OWNER_SAME,
	STEP_OWNER_SESSION, /* passed by the caller */
	STEP_OWNER_OBJECT,  /* passed by the caller */
};

struct page_step_rule {
	const char *name;
	uint32_t from, to; /* bit sets of states */
	enum page_step_owner owner;
	bool same_generation; /* false: the generation is raised by 1 */
};

#define IN(state) (1u << PAGE_##state)

static const struct page_step_rule page_steps[PAGE_STEPS] = {
	[STEP_LEND] = {"lend", IN(FREE) | IN(RESERVED), IN(LEASED), STEP_OWNER_SESSION, false},
	[STEP_MARK] = {"mark", IN(LEASED), IN(EVICTING), STEP_OWNER_SAME, true},
	[STEP_UNMARK] = {"unmark", IN(EVICTING), IN(LEASED), STEP_OWNER_SAME, true},
	[STEP_MOVE] = {"move", IN(LEASED) | IN(EVICTING), IN(MOVING), STEP_OWNER_SAME, true},
	[STEP_UNMOVE] = {"unmove", IN(MOVING), IN(LEASED), STEP_OWNER_SAME, true},
	[STEP_SHARE] = {"share", IN(LEASED), IN(SHARED), STEP_OWNER_OBJECT, false},
	[STEP_UNSHARE] = {"unshare", IN(SHARED), IN(LEASED), STEP_OWNER_SESSION, false},
	[STEP_QUARANTINE] = {"quarantine", IN(LEASED) | IN(EVICTING) | IN(MOVING) | IN(QUARANTINED), IN(QUARANTINED),
		STEP_OWNER_SAME, false},
	[STEP_SET_ASIDE] = {"set aside", IN(LEASED) | IN(MOVING) | IN(QUARANTINED), IN(RETIRED), STEP_OWNER_NONE,
		false},
	[STEP_PUT_ASIDE] = {"put aside", IN(FREE) | IN(RESERVED) | IN(RETIRED) | IN(QUARANTINED),
		IN(RETIRED) | IN(QUARANTINED), STEP_OWNER_NONE, false},
	[STEP_TAKE_BACK] = {"take back",
		IN(LEASED) | IN(EVICTING) | IN(MOVING) | IN(SHARED) | IN(QUARANTINED) | IN(RETIRED),
		IN(FREE) | IN(RESERVED), STEP_OWNER_NONE, false},
	[STEP_PASS] = {"pass", IN(LEASED), IN(LEASED), STEP_OWNER_SESSION, false},
};

#undef IN

/* Return true if the owner is valid for the state of the word. */
static inline bool page_word_owner_fits(uint64_t word)
{
	uint32_t owner = page_word_owner(word);

	switch (page_word_state(word)) {
	case PAGE_FREE:
	case PAGE_RESERVED:
	case PAGE_RETIRED: return !owner;
	case PAGE_LEASED:
	case PAGE_EVICTING:
	case PAGE_MOVING: return owner && owner <= PAGE_SESSION_MAX;
	case PAGE_SHARED: return owner != 0;
	case PAGE_QUARANTINED: return owner <= PAGE_SESSION_MAX;
	default: return false;
	}
}

static inline bool page_step_allowed(enum page_step step, uint64_t from, uint64_t to)
{
	const struct page_step_rule *rule = &page_steps[step];
	uint64_t generation = page_word_generation(from) + (rule->same_generation ? 0 : 1);

	if (page_word_state(from) == page_word_state(to) && step != STEP_QUARANTINE && step != STEP_PASS)
		return false;
	if (!(rule->from >> page_word_state(from) & 1) || !(rule->to >> page_word_state(to) & 1))
		return false;
	/* Only a page without an owner is put aside. */
	if (!page_word_owner_fits(from) || (step == STEP_PUT_ASIDE && page_word_owner(from)))
		return false;
	return page_word_owner_fits(to) && page_word_generation(to) == (generation & PAGE_GENERATION_MASK) &&
		(rule->owner != STEP_OWNER_NONE || !page_word_owner(to)) &&
		(rule->owner != STEP_OWNER_SAME || page_word_owner(to) == page_word_owner(from));
}

#endif
