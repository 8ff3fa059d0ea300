/*
 * page_map.h - what the sessions claim about each page of a pool: idle, cached, or in which block. For tools, and for
 * the agent's replies to them. It is a snapshot of changing data; every field is bounds-checked, so the pages of a
 * damaged session appear as USE_NONE.
 */
#ifndef GPOOL_SHM_PAGE_MAP_H
#define GPOOL_SHM_PAGE_MAP_H

#include "shm/pool_check.h"

/* CACHED: in a thread's magazine, or of a freed block without a pin, which waits for its fence: it has no content. */
enum page_use { PAGE_USE_NONE, PAGE_USE_IDLE, PAGE_USE_CACHED, PAGE_USE_HEAD, PAGE_USE_INSIDE };

/*
 * A session's claim about a page that it leases; each leased page has one of the three. A page behind an unsignaled
 * fence has the same value as afterwards.
 *
 *   NEEDED   pinned, prepared, held by a thread, or of a session that disconnected but is still running: the agent
 *            does not take it
 *   OFFERED  in a block without a pin: the content is kept until the page is needed elsewhere
 *   IDLE     without content: the agent takes it before any page with content
 */
enum page_demand { PAGE_DEMAND_NEEDED, PAGE_DEMAND_OFFERED, PAGE_DEMAND_IDLE };

enum { PAGE_MAP_USAGES = 5 };

struct page_fact {
	uint8_t use;      /* enum page_use */
	uint8_t demand;   /* enum page_demand */
	uint8_t usage;    /* of the block */
	uint8_t state;    /* enum page_state of its word */
	uint8_t pinned;   /* the block is pinned */
	uint16_t session; /* the session that leases it; 0: none of the given ones */
	uint32_t head;    /* first page of the block */
	uint32_t pages;   /* of the block, with all extents of a scattered block; set for all its pages */
};

/*
 * Pages of a session. needed + offered + idle is the number of leased pages; used and pinned count those in blocks, and
 * in pinned blocks.
 */
struct page_uses {
	uint32_t needed, offered, idle;
	uint32_t used, pinned;
	uint32_t usages[PAGE_MAP_USAGES]; /* of used, by the block's usage */
};

/*
 * page_map_fill() - fill in facts[page_count]. Cost: one pass over the pages, independent of the number of sessions.
 * Pages that do not belong to the session that claims them, by their page word, are left unchanged.
 */
void page_map_fill(const struct pool_segment *pool, const struct pool_check_session *sessions, uint32_t session_count,
	struct page_fact *facts);

/*
 * page_map_count() - count the pages of each session: uses[POOL_SESSIONS], by id. uses[0] is the sum of all sessions,
 * without those that disconnected but are still running. Cost: one pass over the pages.
 */
void page_map_count(const struct page_fact *facts, uint32_t page_count, struct page_uses *uses);

#endif
