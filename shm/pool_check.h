/*
 * pool_check.h - check the invariants of a pool segment and its session segments. Used by tests and `poolctl check`.
 *
 *   1  every page word has a known state; FREE, RESERVED and RETIRED pages have no owner, LEASED ones an attached one
 *   2  the published page counts of the states add up to page_count and agree with the page words
 *   3  a free bit, a block entry or a cached page exists only for a page leased to that session
 *   4  no page is in two blocks, or in a block and idle; every extent of a scattered block has exactly one head
 *   5  with `quiescent`: every leased page is idle, cached or in a block (none in transit), and every pin is on a
 *      block's head
 *
 * In a running pool, a page may be in transit for some nanoseconds. Such pages are counted in `in_transit`; a caller
 * that needs certainty checks again.
 */
#ifndef GPOOL_SHM_POOL_CHECK_H
#define GPOOL_SHM_POOL_CHECK_H

#include "shm/session_segment.h"

struct pool_check_session {
	uint32_t id;
	const struct session_segment *segment;
};

struct pool_finding {
	uint32_t session; /* the session whose segment is invalid; 0: the pool segment is invalid */
	uint32_t page;
	char text[160];
};

struct pool_check {
	/* input */
	bool quiescent;
	void (*found)(void *context, const struct pool_finding *finding); /* may be NULL */
	void *context;
	/* output */
	uint32_t findings;
	uint32_t in_transit;
	uint32_t state_pages[PAGE_STATES];
	uint32_t idle_pages, block_pages, cached_pages, pinned_pages;
};

/*
 * pool_check() - check the invariants.
 * Return: 0 (no findings), 1 (findings), -ENOMEM.
 * Cost: one pass over the page words, and one over the bitmap and blocks of each session.
 */
int pool_check(const struct pool_segment *pool, const struct pool_check_session *sessions, uint32_t session_count,
	struct pool_check *check);

#endif
