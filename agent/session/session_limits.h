/*
 * session_limits.h - the number of sessions of limits.sessions that one tenant, one user and one session kind may have.
 *
 * Sessions of admins, and observers of root and of gpoold's own user, are limited only by limits.sessions. All others
 * are *ordinary*:
 *
 *   - the last limits.kept_sessions, but at most an eighth, are not for workers, and the last half of these not for
 *     observers either;
 *   - of the rest each tenant is guaranteed an equal part of limits.tenant_sessions percent; the others are first come,
 *     first served;
 *   - one user has at most limits.user_sessions percent of the rest. Root and gpoold's own user are exempt.
 *
 * No counters are stored: the numbers follow from kind and user of each session, so the limits hold over a restart of
 * the agent and a reload.
 */
#ifndef GPOOL_AGENT_SESSION_LIMITS_H
#define GPOOL_AGENT_SESSION_LIMITS_H

#include "agent/session/session.h"

/*
 * session_limits_check() - check whether one more session may attach. 0, or -EUSERS with the reason in `text`, which
 * names the limit.
 *
 * Cost: a pass over the sessions of the pool.
 */
int session_limits_check(const struct pool *pool, const struct tenant *tenant, enum session_kind kind, uid_t uid,
	char *text, size_t text_bytes);

/*
 * descriptors_left() - return true if `wanted` more descriptors can be opened, in addition to those that gpoold needs
 * to accept, to refuse and to restart.
 */
bool descriptors_left(const struct agent *agent, uint32_t wanted);

#endif
