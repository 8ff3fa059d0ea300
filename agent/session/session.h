/*
 * session.h - an attached process: its connection, its pidfd (the proof of its death), and its segment.
 *
 *   LIVE -> (detach request)                       pages FREE immediately
 *        -> (pidfd signaled)                       pages FREE immediately
 *        -> (connection closed, process running)   CLOSED: pages QUARANTINED until the pidfd is signaled
 *
 * With trust.death_grace, the session is CLOSED for this time after the pidfd has been signaled. With trust.release =
 * "death", a session that detaches may be CLOSED until the pidfd is signaled. Quarantined pages of a running process
 * are never freed because of a timeout.
 */
#ifndef GPOOL_AGENT_SESSION_H
#define GPOOL_AGENT_SESSION_H

#include "agent/pages/session_state.h"
#include "proto/attach.h"
#include "proto/codec.h"

/* session_admit() - answer an attach request on `socket`. The session owns the socket on success. */
int session_admit(
	struct agent *agent, int socket, const struct attach_peer *peer, const struct msg_attach_request *request);

/*
 * session_restore() - restore a session that an earlier agent admitted and that has `leased` pages. Its requests are
 * served after session_resume(). Return: 0, -ENOMEM, or the error of pidfd_open().
 */
int session_restore(struct pool *pool, uint32_t id, const struct held *held, uint32_t leased);
/* session_resume() - serve the requests of a session after the whole pool was restored. This may end the session. */
void session_resume(struct session *session);

enum session_end { SESSION_END_DETACH, SESSION_END_DEATH, SESSION_END_STOP };
void session_end(struct session *session, enum session_end how);
/*
 * session_disconnect() - end a session because of damage or a leaked pin. Its pages are quarantined until its process
 * ends.
 */
void session_disconnect(struct session *session, int error, const char *why);
/* session_damage() - count an invalid field. The session is ended after DAMAGE_MAX of them. */
void session_damage(struct session *session, const char *what);
/*
 * session_tick() - quarantine the pages of a disconnected session whose process is still running, or end a session
 * whose trust.death_grace has passed.
 */
void session_tick(struct session *session);

void session_add_totals(const struct session *session, struct session_totals *totals);
/* tenant_usage_totals() - return the counters of all sessions of a tenant since the start of this agent. */
struct usage_totals tenant_usage_totals(const struct pool *pool, const struct tenant *tenant);

struct session *session_by_token(struct agent *agent, const uint8_t token[16]);
const char *session_kind_name(uint32_t role);

/*
 * sessions_free_dead() - free ended sessions. Call it at the end of a pass of the event loop, when no pending event
 * refers to them.
 */
void sessions_free_dead(struct agent *agent);

#endif
