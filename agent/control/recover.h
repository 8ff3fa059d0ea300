/*
 * recover.h - take over the pool of an agent that died between any two of its stores.
 */
#ifndef GPOOL_AGENT_RECOVER_H
#define GPOOL_AGENT_RECOVER_H

#include "agent/pages/pool.h"

/*
 * recover_pool() - restore sessions, accounts and incomplete steps from page words, session segments and ledger. The
 * index of free pages and the published counts must have been built.
 * Return: 0, -ENOMEM.
 * recover_resume() - resume the sessions and jobs. No request is served before this call.
 */
int recover_pool(struct pool *pool);
void recover_resume(struct pool *pool);

/*
 * recover_doubts() - determine whether the session or the previous agent took each doubtful page. If threads of the
 * worker have pages in transit during the check, the next tick repeats it for the undecided pages.
 */
void recover_doubts(struct session *session);

#endif
