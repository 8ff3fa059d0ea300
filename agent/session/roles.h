/*
 * roles.h - leadership roles: names that one session holds at a time, so that one of several engines works and the next
 * one takes over.
 *
 * The state of a role is stored in its record of the pool segment, which every process can read, and in its row of the
 * ledger, which has the standbys. No other copy exists, so a new agent can continue. The rules:
 *
 *   one holder      the holder changes by a release, and by the end of its session: a detach, or the death of its
 *                   process. A session that only closed its connection, or is stopped, may still write: it keeps the
 *                   role until its pidfd fires
 *   tokens          each grant has a higher token than every earlier grant of any role in this pool
 *   order           standbys are granted the role in order of arrival. A session with a closed connection is no standby
 *   no gap          a role without a holder has no live standby
 *
 * The agent may die between any two stores:
 *
 *   name a record: fields, then state   the row is empty but for entries of a dead agent, which roles_recover() clears
 *   join:          arrivals, row        an unused number; or a standby that waiters does not count: counted again
 *   grant:         token, holder, row   an unused token; or a holder that is also in the row: cleared
 *   free:          holder = 0, grant    a role without a holder: roles_recover() grants it
 *   remove:        state, then fields   the record is free; its fields are written before the next state
 *
 * The requester repeats its request: every verb answers a repetition as before, or with the current state.
 */
#ifndef GPOOL_AGENT_ROLES_H
#define GPOOL_AGENT_ROLES_H

#include "agent/session/session.h"

enum role_verb {
	ROLE_TAKE,
	ROLE_WAIT,
	ROLE_WITHDRAW,
	ROLE_RELEASE,
	ROLE_FORGET, /* neither wait for the role nor hold it: for a requester that got no answer in time */
	ROLE_VERBS
};
enum role_standing { ROLE_NEITHER, ROLE_HOLDER, ROLE_STANDBY };

/* role_serve() - answer a request on the attach socket, all of whose fields are untrusted. */
void role_serve(struct session *session, const struct msg_role_request *request, struct msg_role_reply *reply);

/*
 * roles_withdraw() - remove a session whose connection is closed from all standbys. It keeps the roles that it holds.
 */
void roles_withdraw(struct session *session);
/*
 * roles_session_end() - grant the roles of an ended session to the next standbys. Its pages are free, and it is no
 * longer in pool->sessions.
 */
void roles_session_end(struct session *session, bool died);
/*
 * roles_recover() - complete the steps of a dead agent and release the roles of dead holders, after all sessions are
 * restored and before one is admitted.
 */
void roles_recover(struct pool *pool);

/* role_find() - return the index of a name, or -ENOENT. */
int role_find(const struct pool *pool, const char *name);
/* role_fence() - return 0 if the session holds the role at `index` with this token, otherwise -ESTALE. */
int role_fence(const struct pool *pool, uint32_t index, uint64_t token, uint32_t session);
/*
 * role_remove() - free the record of a role that no session holds, and return its last token. Errors: -ENOENT, -EBUSY.
 */
int role_remove(struct pool *pool, const char *name, uint64_t *token);

#endif
