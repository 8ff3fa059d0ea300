/*
 * session.h - an attached process: its connection (the lease), its pidfd (the proof of death), its segment.
 *
 *   LIVE -> (detach request) pages FREE at once
 *        -> (pidfd fires)    pages FREE at once
 *        -> (connection closed, process alive) CLOSED: pages QUARANTINED until the pidfd fires
 *
 * No page is ever taken back on a timeout.
 */
#ifndef GPOOL_AGENT_SESSION_H
#define GPOOL_AGENT_SESSION_H

#include "agent/pages/session_state.h"
#include "proto/attach.h"
#include "proto/codec.h"

/* session_admit() - answer an attach request on `socket`, which the session owns on success. */
int session_admit(
	struct agent *agent, int socket, const struct attach_peer *peer, const struct msg_attach_request *request);

/*
 * session_restore() - restore a session that an earlier agent has admitted, with `leased` pages. The session gets no
 * answers before session_resume(). 0, or -ENOMEM.
 */
int session_restore(struct pool *pool, uint32_t id, const struct held *held, uint32_t leased);
/* session_resume() - serve the requests of a session once all of the pool is restored. This may end the session. */
void session_resume(struct session *session);

enum session_end { SESSION_END_DETACH, SESSION_END_DEATH, SESSION_END_STOP };
void session_end(struct session *session, enum session_end how);
/*
 * session_disconnect() - end a session because of damage or a leaked pin; its pages are quarantined until its process
 * dies.
 */
void session_disconnect(struct session *session, int error, const char *why);
/* session_damage() - count an invalid field; many of them end the session. */
void session_damage(struct session *session, const char *what);
/* session_tick() - check a session with a closed connection whose process is still running. */
void session_tick(struct session *session);

/* session_add_totals() - add its counters to `totals`. */
void session_add_totals(const struct session *session, struct session_totals *totals);

struct session *session_by_token(struct agent *agent, const uint8_t token[16]);
const char *session_kind_name(uint32_t role);
/* session_is_operator() - return true for root and the agent's own user, which have all rights. */
bool session_is_operator(uid_t uid);

/*
 * sessions_free_dead() - free ended sessions, at the end of a pass of the event loop, when no pending event refers to
 * them.
 */
void sessions_free_dead(struct agent *agent);

#endif
