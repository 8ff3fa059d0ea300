/*
 * session_internal.h - functions of a session that only the files of agent/session call: session.c (its life),
 * access.c, admission.c, messages.c and session_restore.c.
 */
#ifndef GPOOL_AGENT_SESSION_INTERNAL_H
#define GPOOL_AGENT_SESSION_INTERNAL_H

#include "agent/session/session.h"

#include <stddef.h>

#define session_of(source, member) ((struct session *)(void *)((char *)(source)-offsetof(struct session, member)))

/* ---- session.c ---- */

/* session_new() - allocate a session, which is in no table and has no descriptor. NULL: no memory. */
struct session *session_new(struct pool *pool, uint32_t id);
/* session_free() - close its descriptors and free it. */
void session_free(struct session *session);
/* session_enter() - enter it into the pool. */
void session_enter(struct session *session);
/* session_watch() - have the event loop watch its descriptors. Return 0, or the error of epoll. */
int session_watch(struct session *session);
/* session_unwatch() - end that. */
void session_unwatch(struct session *session);
/* session_connection_closed() - its connection has ended; its pages are returned or wait for its process. */
void session_connection_closed(struct session *session);
/* session_requests_damage() - note the damage of malformed lease requests. */
void session_requests_damage(struct session *session, uint32_t malformed);

static inline struct ledger_session *session_ledger(const struct session *session)
{
	return &session->pool->ledger.sessions[session->id];
}

/* session_ledger_state() - set its state for the next agent. */
void session_ledger_state(const struct session *session, enum ledger_session_state state);
/* session_record_write() - set its state in the pool segment, and, if it is live, its whole record. */
void session_record_write(struct session *session, enum session_record_state state);

/* ---- access.c ---- */

/* access_may_be() - Return whether the configuration permits a peer to attach with this kind of session. */
bool access_may_be(const struct config *config, uint32_t kind, const struct attach_peer *peer);
/*
 * access_tenant() - Return the tenant of that name; for "", the first that names this peer, or that is open to all.
 * NULL: *error is the reason.
 */
struct tenant *access_tenant(
	struct pool *pool, const char *name, uint32_t kind, const struct attach_peer *peer, int *error);

/* ---- admission.c ---- */

/* session_send_admission() - answer its attach request, with the descriptors. Return 0, or the error of the socket. */
int session_send_admission(struct session *session);

/* ---- messages.c ---- */

/* session_socket_ready() - receive and serve one message. */
void session_socket_ready(struct event_source *source, uint32_t events);

#endif
