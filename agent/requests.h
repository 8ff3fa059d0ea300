/*
 * requests.h - the workers' request rings: who asks for pages, who waits for some, and what they are told.
 */
#ifndef GPOOL_AGENT_REQUESTS_H
#define GPOOL_AGENT_REQUESTS_H

#include "agent/session.h"

/* requests_doorbell() - serve what the session's request ring holds. */
void requests_doorbell(struct session *session);

/*
 * requests_serve_waiters() - pages may have come free, or time is up. In order of the tenants' priority, then of arrival.
 * ringer: whose doorbell says so; NULL: the clock, or the agent itself.
 */
void requests_serve_waiters(struct pool *pool, const struct session *ringer);

/*
 * requests_answer() - the end of a request. False: the worker had cancelled it; then, as after each answer of a request that took
 * long, requests_release() gives the slot back. A slot that is answered stays as it is.
 */
bool requests_answer(struct session *session, uint32_t slot, int error);
void requests_release(struct session *session, uint32_t slot);

/* requests_forget() - a session ends: its waiters go. */
void requests_forget(struct session *session);

#endif
