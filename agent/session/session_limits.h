/*
 * session_limits.h - the share of limits.sessions that a tenant, a user and a session kind may have.
 *
 * Admin sessions, and observer sessions of root and of gpoold's own user, are limited by limits.sessions only. All
 * other sessions are *ordinary*:
 *
 *   - limits.kept_sessions sessions, at most an eighth of all, are not available to workers. Half of these are not
 *     available to observers either, and the observers of one user may have half of the others;
 *   - the tenants and users share the rest; see agent/pages/share.h.
 *
 * The numbers are counted from the kind and user of each session and not stored. Therefore the limits also apply after
 * a restart of the agent and after a reload.
 */
#ifndef GPOOL_AGENT_SESSION_LIMITS_H
#define GPOOL_AGENT_SESSION_LIMITS_H

#include "agent/session/session.h"

/*
 * session_limits_check() - check whether one more session may attach. Return: 0, or -EUSERS with the reason in `text`,
 * including the limit.
 *
 * Cost: a pass over the sessions of the pool.
 */
int session_limits_check(const struct pool *pool, const struct tenant *tenant, enum session_kind kind, uid_t uid,
	char *text, size_t text_bytes);

/*
 * descriptors_left() - return true if `wanted` more descriptors can be opened, beyond those that gpoold needs to accept
 * and refuse connections, to receive requests, and to restart. Cost: two system calls.
 */
bool descriptors_left(const struct agent *agent, uint32_t wanted);

#endif
