/*
 * page_word.h - one 64-bit word of state for each page of a pool.
 *
 *   bits 63..60 state | 59..44 owner (0: none; the object of a SHARED page, otherwise a session) | 43..0 generation
 *
 * Writer: the agent. Readers: every worker and poolctl, even when the agent is dead. The agent raises the generation
 * with each change of the page's purpose. At 10,000 changes per second, 44 bits last 55 years.
 */
#ifndef GPOOL_SHM_PAGE_WORD_H
#define GPOOL_SHM_PAGE_WORD_H

#include <stdint.h>

enum page_state {
	PAGE_FREE,   /* not leased */
	PAGE_LEASED, /* leased to its owner */
	PAGE_SHARED, /* part of a named object; any permitted session may open it */
	/*
	 * the agent is checking whether the page can be evicted, which takes less than 1 us unless the agent is
	 * preempted
	 */
	PAGE_EVICTING,
	PAGE_MOVING, /* its content is being moved; pins wait */
	/*
	 * the owner has ended or disconnected, but its process may still use the page; without an owner: in transfer to
	 * another trust domain
	 */
	PAGE_QUARANTINED,
	PAGE_RESERVED, /* free; for critical requests only */
	/* out of use: a process of another trust domain may have it mapped, or the mover may be writing to it */
	PAGE_RETIRED,
	PAGE_STATES
};

enum { PAGE_OWNER_MAX = 65535, PAGE_SESSION_MAX = 4095 };

#define PAGE_GENERATION_MASK ((UINT64_C(1) << 44) - 1)

static inline uint64_t page_word_make(enum page_state state, uint32_t owner, uint64_t generation)
{
	return (uint64_t)state << 60 | (uint64_t)(owner & PAGE_OWNER_MAX) << 44 | (generation & PAGE_GENERATION_MASK);
}

static inline enum page_state page_word_state(uint64_t word)
{
	return (enum page_state)(word >> 60);
}

static inline uint32_t page_word_owner(uint64_t word)
{
	return (uint32_t)(word >> 44) & PAGE_OWNER_MAX;
}

/*
 * page_word_session() - return the session to which the page is or was lent; 0: none. The result is a valid index for
 * any word.
 */
static inline uint32_t page_word_session(uint64_t word)
{
	uint32_t owner = page_word_owner(word);

	return page_word_state(word) == PAGE_SHARED || owner > PAGE_SESSION_MAX ? 0 : owner;
}

static inline uint64_t page_word_generation(uint64_t word)
{
	return word & PAGE_GENERATION_MASK;
}

/* page_word_in_motion() - return true if the page is being evicted or moved; a pin then waits instead of failing. */
static inline int page_word_in_motion(uint64_t word)
{
	return page_word_state(word) == PAGE_EVICTING || page_word_state(word) == PAGE_MOVING;
}

const char *page_state_name(enum page_state state);

#endif
