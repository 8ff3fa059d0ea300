/*
 * page_map.h - what the sessions say about each page of a pool: idle, cached, or in which block. For tools and for the agent's
 * answers to them; a snapshot of a moving target, every field bounds-checked, so a damaged session shows as USE_NONE.
 */
#ifndef GPOOL_SHM_PAGE_MAP_H
#define GPOOL_SHM_PAGE_MAP_H

#include "shm/pool_check.h"

enum page_use { PAGE_USE_NONE, PAGE_USE_IDLE, PAGE_USE_CACHED, PAGE_USE_HEAD, PAGE_USE_INSIDE };

struct page_fact {
	uint8_t use;        /* enum page_use */
	uint8_t content;    /* of the block */
	uint16_t session;   /* of the block or free bit, 0: none */
	uint32_t head;      /* first page of the block */
	uint32_t pages;     /* of the block, extents of a stitched one together; at heads and inside */
};

/*
 * page_map_fill() - facts[page_count]. Cost: one pass over the pages, and over each session's bitmap.
 * Pages that a word does not give to the session that claims them stay as they are.
 */
void page_map_fill(const struct pool_segment *pool, const struct pool_check_session *sessions, uint32_t session_count,
	struct page_fact *facts);

#endif
