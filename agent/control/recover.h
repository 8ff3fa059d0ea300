/*
 * recover.h - take over the pool of an agent that died between any two of its stores.
 */
#ifndef GPOOL_AGENT_RECOVER_H
#define GPOOL_AGENT_RECOVER_H

#include "agent/pages/pool.h"

/*
 * recover_pool() - restore sessions, accounts and incomplete steps from page words, session segments and ledger. The
 * index of free pages and the published counts must be built before. No request is served before recover_resume().
 * Return: 0, or -ENOMEM.
 */
int recover_pool(struct pool *pool);
void recover_resume(struct pool *pool);

/*
 * recover_doubts() - determine whether a session or a dead agent took the doubtful pages. If threads of the worker have
 * pages in transit during the check, the decision is left to the next tick.
 */
void recover_doubts(struct session *session);

#endif
