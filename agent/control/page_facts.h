/*
 * page_facts.h - what sessions say about a pool's pages, for requests that look.
 */
#ifndef GPOOL_AGENT_PAGE_FACTS_H
#define GPOOL_AGENT_PAGE_FACTS_H

#include "agent/session/session.h"
#include "shm/page_map.h"

/* facts_of() - of all pages, in one look at all sessions; free() it. NULL: out of memory. */
struct page_fact *facts_of(const struct pool *pool);
/*
 * uses_of() - the pages of each session of facts_of(), by id, as page_map_count() has them; valid until the next call.
 */
const struct page_uses *uses_of(const struct pool *pool, const struct page_fact *facts);
/* session_of_fact() - whose page it is; NULL: nobody's any more. */
const struct session *session_of_fact(const struct pool *pool, const struct page_fact *fact);
/* pins_of_fact() - of the block that it is of; 0 where it is of none. */
uint32_t pins_of_fact(const struct pool *pool, const struct page_fact *fact);
/* idle_ms_of() - since a block's first page was used last. */
uint32_t idle_ms_of(const struct session *session, uint32_t page);

#endif
