/*
 * session_internal.h - functions that only the files of agent/session call: session.c, access.c, admission.c,
 * messages.c and session_restore.c.
 */
#ifndef GPOOL_AGENT_SESSION_INTERNAL_H
#define GPOOL_AGENT_SESSION_INTERNAL_H

#include "agent/session/session.h"

#include <stddef.h>

#define session_of(source, member) ((struct session *)(void *)((char *)(source)-offsetof(struct session, member)))

/* ---- session.c ---- */

/* session_new() - allocate a session. It is in no table and has no descriptors. Return: NULL if out of memory. */
struct session *session_new(struct pool *pool, uint32_t id);
void session_free(struct session *session);
void session_enter(struct session *session);
/* session_watch() - have the event loop watch the descriptors of a session. Return: 0, or the error of epoll. */
int session_watch(struct session *session);
void session_unwatch(struct session *session);
/*
 * session_connection_closed() - process the end of a connection. The pages are returned, or wait for the end of the
 * process.
 */
void session_connection_closed(struct session *session);
void session_requests_damage(struct session *session, uint32_t malformed);

static inline struct ledger_session *session_ledger(const struct session *session)
{
	return &session->pool->ledger.sessions[session->id];
}

/* session_ledger_state() - store the state of a session for the next agent. */
void session_ledger_state(const struct session *session, enum ledger_session_state state);
/* session_record_write() - store the state of a session in the pool segment; if it is live, store its whole record. */
void session_record_write(struct session *session, enum session_record_state state);

/* ---- access.c ---- */

/* access_may_be() - return true if the configuration permits a peer to attach with this session kind. */
bool access_may_be(const struct config *config, uint32_t kind, const struct attach_peer *peer);
/*
 * access_tenant() - return the tenant with this name. For "", return the first tenant that names this peer, otherwise
 * the first one that is open to all; if there is none, observers, admins, root and gpoold's own user get the first
 * tenant. Return: NULL with the reason in *error if there is none.
 */
struct tenant *access_tenant(
	struct pool *pool, const char *name, uint32_t kind, const struct attach_peer *peer, int *error);

/* ---- admission.c ---- */

/*
 * session_send_admission() - answer an attach request, with the descriptors of the session. Return: 0, or the error of
 * the socket.
 */
int session_send_admission(struct session *session);

/* ---- messages.c ---- */

/* session_socket_ready() - receive one message and serve it. */
void session_socket_ready(struct event_source *source, uint32_t events);

#endif
