/*
 * evict_scan.h - list the blocks and objects that may be evicted, in order.
 */
#ifndef GPOOL_AGENT_EVICT_SCAN_H
#define GPOOL_AGENT_EVICT_SCAN_H

#include "agent/pages/session_state.h"

/*
 * evict_wanted() - return true if a request may evict a block with this tag. `pages` is the number of pages that the
 * tenant then loses to it in total.
 */
bool evict_wanted(const struct evict_request *request, const struct session *session, uint64_t tag, uint32_t pages);
/*
 * evict_scan() - fill pool->evict.queue with the blocks in order, and score the objects. Cost: a pass over the pages.
 */
void evict_scan(struct pool *pool, const struct evict_request *request);

#endif
