/*
 * session.h - one attached process: its connection (the lease), its pidfd (the proof of death), its segment.
 *
 *   LIVE -> (detach request) pages FREE at once
 *        -> (pidfd fires)    pages FREE at once
 *        -> (connection closed, process lives) CLOSED: pages QUARANTINED until the pidfd fires
 * Nothing is ever taken back on a timeout.
 */
#ifndef GPOOL_AGENT_SESSION_H
#define GPOOL_AGENT_SESSION_H

#include "agent/pages/session_state.h"
#include "proto/attach.h"
#include "proto/codec.h"

/* session_admit() - an attach request that arrived; answers it on `socket`, which the session keeps on success. */
int session_admit(
	struct agent *agent, int socket, const struct attach_peer *peer, const struct msg_attach_request *request);

/*
 * session_restore() - a session that an agent before this one has admitted, with so many pages; it hears nothing of it
 * until session_resume(). 0, or -ENOMEM.
 */
int session_restore(struct pool *pool, uint32_t id, const struct held *held, uint32_t leased);
/* session_resume() - once all of the pool is restored: what it waits for is served. May end it. */
void session_resume(struct session *session);

enum session_end { SESSION_END_DETACH, SESSION_END_DEATH, SESSION_END_STOP };
void session_end(struct session *session, enum session_end how);
/*
 * session_disconnect() - a field that cannot be, or a leaked pin: the session ends, its pages wait for the process's
 * death.
 */
void session_disconnect(struct session *session, int error, const char *why);
/* session_damage() - note one; many of them end the session. */
void session_damage(struct session *session, const char *what);
/* session_tick() - a closed connection whose process still lives. */
void session_tick(struct session *session);

/* session_add_totals() - what it has done so far. */
void session_add_totals(const struct session *session, struct session_totals *totals);

struct session *session_by_token(struct agent *agent, const uint8_t token[16]);
const char *session_kind_name(uint32_t role);
/* session_is_operator() - root, or the agent's own user: may do everything. */
bool session_is_operator(uid_t uid);

/* sessions_free_dead() - at the end of a pass of the event loop, when no pending event can name them. */
void sessions_free_dead(struct agent *agent);

#endif
