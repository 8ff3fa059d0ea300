/*
 * requests.h - the workers' request slots: requests for pages, waiting requests, and their answers.
 */
#ifndef GPOOL_AGENT_REQUESTS_H
#define GPOOL_AGENT_REQUESTS_H

#include "agent/pages/session_state.h"

/*
 * requests_doorbell() - serve the requests for which a worker has rung.
 *
 * Return: the number of requests that no library writes; each is damage of the session.
 */
uint32_t requests_doorbell(struct session *session);

/*
 * requests_restart() - serve every slot of a worker, after a restart of the agent: the doorbell does not ring again for
 * a request that the previous agent has read.
 * Return: as requests_doorbell().
 */
uint32_t requests_restart(struct session *session);

/*
 * requests_serve_waiters() - serve waiting requests, since pages may be free or a deadline has passed. They are ordered
 * by their tenants' priority, then by arrival. ringer: the session that rang; NULL: the clock, or the agent itself.
 */
void requests_serve_waiters(struct pool *pool, const struct session *ringer);

/* requests_pass() - serve the waiting requests if pages were freed (pool_mark_freed()); once per pass of the loop. */
void requests_pass(struct pool *pool);

/*
 * requests_answer() - end a request in state `word` in one step. False: the worker had cancelled it, and the agent owns
 * the slot until requests_give_back(), which ignores slots in other states.
 */
bool requests_answer(struct session *session, uint32_t slot, uint32_t word);
void requests_give_back(struct session *session, uint32_t slot);

/* requests_forget() - remove the waiting requests of a session that ends. */
void requests_forget(struct session *session);

#endif
