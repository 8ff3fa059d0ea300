/*
 * roles.h - leadership roles: names that one session holds at a time. For example, one of several engines holds a role
 * and serves; when its process dies, another engine takes over.
 *
 * The state of a role is stored in its record in the pool segment, which every process can read. Its row in the ledger
 * contains the standbys. No other copy exists, so a new agent can continue. The rules:
 *
 *   names           a name belongs to a trust domain, and in the domain to the tenant that acquired it first. Sessions
 *                   of this tenant may hold the role. A name is kept until it is removed, and counts against the shares
 *                   of this tenant and of the user that acquired it first (agent/pages/share.h)
 *   one holder      a role is freed by a release, and by the end of the holder's session: a detach, or the death of the
 *                   process. A process that has only closed its connection, or is stopped, may still write, so it keeps
 *                   the role until its pidfd is signaled and trust.death_grace has passed
 *   tokens          each grant has a higher token than every earlier grant of this name in this pool
 *   order           standbys are granted the role in the order of arrival. A disconnected session is not a standby
 *   no gap          a role with a live standby has a holder
 *
 * The agent may die between any two stores:
 *
 *   name a record: fields, then state   the row may have entries of the dead agent: roles_recover() clears them
 *   join:          arrivals, row        an unused number; or a standby not counted in `waiters`: counted again
 *   grant:         token, holder, row   an unused token; or a holder that is still in the row: cleared
 *   free:          holder = 0, grant    a role without a holder: roles_recover() grants it
 *   remove:        state, then fields   the record is free; its fields are written before the next state
 *
 * The requester repeats an unanswered request. The answer to a repetition is the same as before, or the current state.
 */
#ifndef GPOOL_AGENT_ROLES_H
#define GPOOL_AGENT_ROLES_H

#include "agent/session/session.h"

enum role_verb {
	ROLE_TAKE,
	ROLE_WAIT,
	ROLE_WITHDRAW,
	ROLE_RELEASE,
	ROLE_FORGET, /* end waiting for the role or holding it; for a requester that got no answer in time */
	ROLE_VERBS
};
enum role_standing { ROLE_NEITHER, ROLE_HOLDER, ROLE_STANDBY };

/*
 * role_serve() - execute a request of the attach socket and fill in the reply. All fields of the request are untrusted.
 */
void role_serve(struct session *session, const struct msg_role_request *request, struct msg_role_reply *reply);

/* roles_withdraw() - remove a disconnected session from all standbys. It keeps the roles that it holds. */
void roles_withdraw(struct session *session);
/*
 * roles_session_end() - grant the roles of an ended session to the next standbys. Its pages must be free, and the
 * session must no longer be in pool->sessions.
 */
void roles_session_end(struct session *session, bool died);
/*
 * roles_recover() - complete the steps of a dead agent, and release the roles of dead holders. Call it after all
 * sessions were restored and before a new one is admitted.
 */
void roles_recover(struct pool *pool);

/* role_find() - return the index of the role with this name in a trust domain, or -ENOENT. */
int role_find(const struct pool *pool, uint32_t domain, const char *name);
/* role_fence() - return 0 if the session holds the role at `index` with this token, otherwise -ESTALE. */
int role_fence(const struct pool *pool, uint32_t index, uint64_t token, uint32_t session);
/*
 * role_remove() - free the record of the role at `index`, if no session holds it; *token receives its last token.
 * Return: 0, -EBUSY.
 */
int role_remove(struct pool *pool, uint32_t index, uint64_t *token);

#endif
