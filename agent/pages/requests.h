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
 * requests_serve_waiters() - serve waiting requests, ordered by the priority of their tenant and then by arrival.
 * Called when pages may be free or a deadline may have passed. ringer: the session that rang its doorbell; NULL: none.
 */
void requests_serve_waiters(struct pool *pool, const struct session *ringer);

/* requests_pass() - serve the waiting requests if pool_mark_freed() was called. Called in each pass of the loop. */
void requests_pass(struct pool *pool);

/*
 * requests_answer() - answer a request in state `word` with one compare-and-swap. Return false if the worker has
 * cancelled it; the agent then owns the slot until requests_give_back().
 * requests_give_back() - return a cancelled slot to the worker; ignores slots that are not cancelled.
 */
bool requests_answer(struct session *session, uint32_t slot, uint32_t word);
void requests_give_back(struct session *session, uint32_t slot);

/* requests_forget() - remove the waiting requests of a session that is ending or has disconnected. */
void requests_forget(struct session *session);

#endif
