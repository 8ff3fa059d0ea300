/*
 * roles.h - roles: names that one session holds at a time, so that of several engines one does the work and the next
 * takes over.
 *
 * All there is about a role stands in its record of the pool segment, which everybody reads, and in its row of the
 * ledger: who waits. Nothing is kept elsewhere, so a new agent goes on from there. The rules:
 *
 *   one holder      the holder changes by release, and by the end of its session: a detach, or the death of its process
 *   and never
 *                   less. Who merely closed its connection, or is stopped, may still write, and has the role until its
 *                   pidfd fires
 *   tokens          each grant has a higher one than every grant before of any role in this pool
 *   order           standbys come in order of their arrival. One whose connection is closed waits for nothing any more
 *   no empty chair  a role without a holder has no live standby
 *
 * The agent may die between any two stores:
 *   name a place: fields, then state   the row is empty but for what a dead agent left, which roles_recover() sweeps
 *   join:         arrivals, row        a number that nobody has; or a standby that waiters does not count: counted anew
 *   grant:        token, holder, row   a token that nobody got; or a holder that stands in the row too: swept
 *   free:         holder = 0, grant    a role without a holder: roles_recover() grants it
 *   remove:       state, then fields   the place is free; fields are written before the next state
 * And the asker asks again: every verb answers a repeat as it answered at first, or with what has become true since.
 */
#ifndef GPOOL_AGENT_ROLES_H
#define GPOOL_AGENT_ROLES_H

#include "agent/session/session.h"

enum role_verb {
	ROLE_TAKE,
	ROLE_WAIT,
	ROLE_WITHDRAW,
	ROLE_RELEASE,
	ROLE_FORGET, /* neither wait nor hold: of one who got no answer in time, and knows neither */
	ROLE_VERBS
};
enum role_standing { ROLE_NEITHER, ROLE_HOLDER, ROLE_STANDBY };

/* role_serve() - a request over the attach socket; anything may stand in it. */
void role_serve(struct session *session, const struct msg_role_request *request, struct msg_role_reply *reply);

/* roles_withdraw() - the session's connection is over: it waits for nothing, and keeps what it holds. */
void roles_withdraw(struct session *session);
/* roles_session_end() - its pages are back and it is no more in pool->sessions: what it held goes to the next. */
void roles_session_end(struct session *session, bool died);
/*
 * roles_recover() - a new agent, all sessions restored and before any is admitted: decides half-done steps, buries
 * holders.
 */
void roles_recover(struct pool *pool);

/* role_find() - place of a name, or -ENOENT. */
int role_find(const struct pool *pool, const char *name);
/* role_fence() - 0: the session holds the role of place `index` by this token; -ESTALE: it does not. */
int role_fence(const struct pool *pool, uint32_t index, uint64_t token, uint32_t session);
/* role_remove() - the place of a role that nobody holds is free: its last token, or -ENOENT, -EBUSY. */
int role_remove(struct pool *pool, const char *name, uint64_t *token);

#endif
