/*
 * requests.h - the workers' request rings: who asks for pages, who waits for some, and what they are told.
 */
#ifndef GPOOL_AGENT_REQUESTS_H
#define GPOOL_AGENT_REQUESTS_H

#include "agent/session/session.h"

/* requests_doorbell() - serve what the session's request ring holds. */
void requests_doorbell(struct session *session);

/* requests_restart() - look at every slot: what the agent before this one has seen and not answered rings no more. */
void requests_restart(struct session *session);

/*
 * requests_serve_waiters() - pages may have come free, or time is up. In order of the tenants' priority, then of
 * arrival. ringer: whose doorbell says so; NULL: the clock, or the agent itself.
 */
void requests_serve_waiters(struct pool *pool, const struct session *ringer);

/*
 * requests_answer() - the end of a request, whose state was `word`, in one step. False: the worker had cancelled it,
 * and the slot is the agent's until requests_give_back(), which leaves others as they are.
 */
bool requests_answer(struct session *session, uint32_t slot, uint32_t word);
void requests_give_back(struct session *session, uint32_t slot);

/* requests_forget() - a session ends: its waiters go. */
void requests_forget(struct session *session);

#endif
