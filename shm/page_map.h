/*
 * page_map.h - the use of each page of a pool, as claimed by the sessions: idle, cached, or part of a block. A page map
 * is a snapshot of changing data. All fields of the segments are checked, so the pages of a damaged session appear as
 * PAGE_USE_NONE.
 */
#ifndef GPOOL_SHM_PAGE_MAP_H
#define GPOOL_SHM_PAGE_MAP_H

#include "shm/pool_check.h"

/*
 * A CACHED page has no content. It is in a thread's magazine, or in an unpinned block that was freed and may still wait
 * for its fence.
 */
enum page_use {
	PAGE_USE_NONE,
	PAGE_USE_IDLE,
	PAGE_USE_CACHED,
	PAGE_USE_HEAD,
	PAGE_USE_INSIDE,
	PAGE_USE_RESERVATION, /* left in a reservation of the session; known to the agent only, not in a page map */
};

/*
 * The demand for a leased page, as claimed by its session. An unsignaled fence does not change it.
 *
 *   NEEDED   pinned, prepared or held by a thread, or QUARANTINED: the agent does not take the page
 *   OFFERED  in an unpinned block: the content is kept until the page is needed elsewhere
 *   IDLE     without content: the agent takes it before any page with content
 */
enum page_demand { PAGE_DEMAND_NEEDED, PAGE_DEMAND_OFFERED, PAGE_DEMAND_IDLE };

enum { PAGE_MAP_USAGES = BLOCK_USAGES };

struct page_fact {
	uint8_t use;      /* enum page_use */
	uint8_t demand;   /* enum page_demand */
	uint8_t usage;    /* usage of the block */
	uint8_t state;    /* enum page_state of the page word */
	uint8_t pinned;   /* the block is pinned */
	uint16_t session; /* the session that leases the page; 0: not leased by any of the given sessions */
	uint32_t head;    /* first page of the block */
	uint32_t pages;   /* size of the block, all extents included; the same for all its pages */
};

/*
 * Page counts of a session. needed + offered + idle is the number of leased pages. `used` counts the pages in blocks,
 * `pinned` those in pinned blocks.
 */
struct page_uses {
	uint32_t needed, offered, idle;
	uint32_t used, pinned;
	uint32_t usages[PAGE_MAP_USAGES]; /* pages in blocks, by the block's usage */
};

/*
 * page_map_fill() - fill in facts[page_count]. A claim to a page whose page word names another session is ignored.
 * Cost: three passes over the pages, independent of the number of sessions.
 */
void page_map_fill(const struct pool_segment *pool, const struct pool_check_session *sessions, uint32_t session_count,
	struct page_fact *facts);

/*
 * page_map_count() - count the pages of each session: uses[POOL_SESSIONS], by session id. uses[0] is the sum over all
 * pages except quarantined ones.
 * Cost: one pass over the pages.
 */
void page_map_count(const struct page_fact *facts, uint32_t page_count, struct page_uses *uses);

/*
 * page_map_uses() - count like page_map_fill() and page_map_count(), without facts. seen: [(page_count + 63) / 64],
 * cleared by the caller.
 * Cost: one pass over the pages, and one over the pages of blocks.
 */
void page_map_uses(const struct pool_segment *pool, const struct pool_check_session *sessions, uint32_t session_count,
	uint64_t *seen, struct page_uses *uses);

#endif
