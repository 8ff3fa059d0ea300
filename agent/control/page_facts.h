/*
 * page_facts.h - the use of a pool's pages according to the session segments, for requests that inspect pages.
 *
 * A page does not refer to its block, so the facts about some pages need a scan of all of them. A list of all pages
 * consists of many replies. To keep the cost of a list proportional to its length, the requests that continue it use
 * the facts of its first request, for FACTS_MS at most.
 */
#ifndef GPOOL_AGENT_PAGE_FACTS_H
#define GPOOL_AGENT_PAGE_FACTS_H

#include "agent/session/session.h"
#include "shm/page_map.h"

enum { FACTS_MS = 1000 };

/* The number of pages that facts_of() and uses_of() have scanned. */
extern uint64_t facts_scanned;

/*
 * listing_continues() - return true if a session's request is the next one of its list.
 * listing_set() - record the next request of a session's list; all fields 0: the session has no list to continue.
 */
bool listing_continues(const struct session *session, struct listing asked);
void listing_set(struct session *session, struct listing next);
extern const struct session_part facts_session_part; /* ends the list of a session that ends */

/*
 * facts_of() - return an array with one entry for each page of the pool: an earlier one if the request continues a
 * list, or else that of a new scan of all sessions. It is valid until the next call for this pool. Read it with
 * fact_of(), because pages may have changed since. Return NULL if out of memory.
 */
const struct page_fact *facts_of(const struct pool *pool, bool continues);
/* fact_of() - return the facts about a page; if the page has another session now, only its state. */
struct page_fact fact_of(const struct pool *pool, const struct page_fact *facts, uint32_t page);
/* facts_done() - free the facts, unless a session has not finished a list. Call it when the reply is complete. */
void facts_done(const struct pool *pool);
/* facts_expire() - free the facts that are older than FACTS_MS. */
void facts_expire(const struct pool *pool, uint64_t now_ms);
/* facts_drop() - free the facts about the pool with this index. */
void facts_drop(uint32_t index);
/*
 * uses_of() - count the pages of each session, indexed by session id, as page_map_uses() does. If the request continues
 * a list, the counts may be up to FACTS_MS old. The array is valid until the next call. Return NULL if out of memory.
 */
const struct page_uses *uses_of(const struct pool *pool, bool continues);
/* session_of_fact() - return the session that leases the page, or NULL if none does. */
const struct session *session_of_fact(const struct pool *pool, const struct page_fact *fact);
/* pins_of_fact() - return the pins of the block that contains the page; 0: no block. */
uint32_t pins_of_fact(const struct pool *pool, const struct page_fact *fact);
/* idle_ms_of() - return the time in milliseconds since the last use of the block that begins at this page. */
uint32_t idle_ms_of(const struct session *session, uint32_t page);

#endif
