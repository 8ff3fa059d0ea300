/*
 * requests.h - the workers' request rings: who asks for pages, who waits for some, and what they are told.
 */
#ifndef GPOOL_AGENT_REQUESTS_H
#define GPOOL_AGENT_REQUESTS_H

#include "agent/pages/session_state.h"

/*
 * requests_doorbell() - serve the requests that a worker has rung for.
 * Return: how many of them no library writes; each is damage of the session.
 */
uint32_t requests_doorbell(struct session *session);

/*
 * requests_restart() - serve every slot of a worker, after a restart of the agent: the doorbell does not ring again for
 * a request that the previous agent has read.
 * Return: as requests_doorbell().
 */
uint32_t requests_restart(struct session *session);

/*
 * requests_serve_waiters() - pages may have come free, or time is up. In order of the tenants' priority, then of
 * arrival. ringer: whose doorbell says so; NULL: the clock, or the agent itself.
 */
void requests_serve_waiters(struct pool *pool, const struct session *ringer);

/* requests_pass() - serve the waiting requests if pages were freed (pool_mark_freed()); once per pass of the loop. */
void requests_pass(struct pool *pool);

/*
 * requests_answer() - the end of a request, whose state was `word`, in one step. False: the worker had cancelled it,
 * and the slot is the agent's until requests_give_back(), which leaves others as they are.
 */
bool requests_answer(struct session *session, uint32_t slot, uint32_t word);
void requests_give_back(struct session *session, uint32_t slot);

/* requests_forget() - a session ends: its waiters go. */
void requests_forget(struct session *session);

#endif
