/*
 * recover.h - take over the pool of an agent that died between any two of its stores.
 */
#ifndef GPOOL_AGENT_RECOVER_H
#define GPOOL_AGENT_RECOVER_H

#include "agent/pages/pool.h"

/*
 * recover_pool() - restore sessions, accounts and incomplete steps from page words, session segments and ledger. Call
 * it after the index of free pages and the published counts are built. No request is served before recover_resume(). 0,
 * or -ENOMEM.
 */
int recover_pool(struct pool *pool);
void recover_resume(struct pool *pool);

/*
 * recover_doubts() - decide about pages for which it is unknown whether the session or a dead agent took them. If
 * threads of the worker have pages in transit during the check, those pages remain undecided until the next tick.
 */
void recover_doubts(struct session *session);

#endif
