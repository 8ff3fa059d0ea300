/*
 * requests.h - serve the request slots of workers: requests for pages, waiting requests, answers.
 */
#ifndef GPOOL_AGENT_REQUESTS_H
#define GPOOL_AGENT_REQUESTS_H

#include "agent/pages/session_state.h"

/*
 * requests_doorbell() - serve the requests of a worker that has rung its doorbell.
 *
 * Return: the number of malformed requests; the caller counts them as damage of the session.
 */
uint32_t requests_doorbell(struct session *session);

/*
 * requests_restart() - serve all slots of a worker after a restart of the agent. The worker does not ring again for a
 * request that the previous agent has read.
 * Return: as requests_doorbell().
 */
uint32_t requests_restart(struct session *session);

/*
 * requests_serve_waiters() - serve waiting requests, because pages may be free or a deadline may have passed. The order
 * is by priority of the tenant, then by arrival. ringer: the session that rang; NULL: called by the clock or by the
 * agent itself.
 */
void requests_serve_waiters(struct pool *pool, const struct session *ringer);

/* requests_pass() - serve the waiting requests if pool_mark_freed() was called. Called once per pass of the loop. */
void requests_pass(struct pool *pool);

/*
 * requests_answer() - answer a request in state `word` with a single store. Return: false if the worker had cancelled
 * it; the agent then owns the slot until requests_give_back(). requests_give_back() ignores slots that are not
 * cancelled.
 */
bool requests_answer(struct session *session, uint32_t slot, uint32_t word);
void requests_give_back(struct session *session, uint32_t slot);

/* requests_forget() - remove the waiting requests of a session that is ending. */
void requests_forget(struct session *session);

#endif
