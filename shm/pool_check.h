/*
 * pool_check.h - check the invariants of a pool segment and its session segments. Used by tests and `poolctl check`.
 *
 *   1  every page word has a known state; FREE, RESERVED and RETIRED pages have no owner, LEASED ones an attached one
 *   2  the published page counts of the states agree with the page words; EVICTING pages count as LEASED
 *   3  a free bit, a block entry or a cached page exists only for a page whose word names that session
 *   4  no page is in two blocks, or in a block and idle; no extent of a scattered block has two heads
 *   5  with `quiescent`: every leased page is idle, cached or in a block (none in transit), every extent has a head,
 *      and every pin is on a block's head
 *   6  every SHARED page belongs to an object, each object has as many pages as its record states, and a CURRENT one
 *      is found by its name
 *
 * In a running pool, a page may be in transit for a short time. Such pages are counted in `in_transit`; a caller that
 * needs certainty checks again. Pages of reservations are counted there, too, because only the ledger records them.
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
 * Cost: a pass over the page words and the objects, and some over the bitmap and blocks of each session.
 */
int pool_check(const struct pool_segment *pool, const struct pool_check_session *sessions, uint32_t session_count,
	struct pool_check *check);

#endif
