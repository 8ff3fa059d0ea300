/*
 * recover.h - what an agent makes of the pool that another agent has left: at any point, between any two of its stores.
 */
#ifndef GPOOL_AGENT_RECOVER_H
#define GPOOL_AGENT_RECOVER_H

#include "agent/pages/pool.h"

/*
 * recover_pool() - sessions, books and half-done steps, from page words, session segments and ledger. The index of free
 * pages and the published counts stand already. Nobody is served before recover_resume(). 0, or -ENOMEM.
 */
int recover_pool(struct pool *pool);
void recover_resume(struct pool *pool);

/*
 * recover_doubts() - decide about pages of which it is open whether the session or an agent that died has taken them; a
 * look that finds threads of the worker in the middle of something decides nothing and comes again with the next tick.
 */
void recover_doubts(struct session *session);

#endif
