/* page_facts.h - the use of a pool's pages according to the session segments, for requests that inspect pages. */
#ifndef GPOOL_AGENT_PAGE_FACTS_H
#define GPOOL_AGENT_PAGE_FACTS_H

#include "agent/session/session.h"
#include "shm/page_map.h"

/*
 * facts_of() - scan all sessions, and return an array with one entry for each page of the pool, which the caller frees.
 * Return NULL if out of memory.
 */
struct page_fact *facts_of(const struct pool *pool);
/*
 * uses_of() - count the pages of each session, indexed by session id, as page_map_uses() does. The array is valid until
 * the next call. Return NULL if out of memory.
 */
const struct page_uses *uses_of(const struct pool *pool);
/* session_of_fact() - return the session that leases the page, or NULL if none does. */
const struct session *session_of_fact(const struct pool *pool, const struct page_fact *fact);
/* pins_of_fact() - return the pins of the block that contains the page; 0: no block. */
uint32_t pins_of_fact(const struct pool *pool, const struct page_fact *fact);
/* idle_ms_of() - return the time in milliseconds since the last use of the block that begins at this page. */
uint32_t idle_ms_of(const struct session *session, uint32_t page);

#endif
