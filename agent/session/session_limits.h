/*
 * session_limits.h - how many sessions one tenant, one user and one session kind may have of limits.sessions.
 *
 * Sessions of admins, and observers of root and of gpoold's own user, are limited by limits.sessions alone. All others
 * are *ordinary*:
 *   - the last limits.kept_sessions, but at most an eighth, are not for workers, and the last half of these not for
 *     observers either;
 *   - of the rest each tenant is guaranteed an equal part of limits.tenant_sessions percent; the others are first come,
 *     first served;
 *   - one user has at most limits.user_sessions percent of the rest. Root and gpoold's own user are exempt.
 * Nothing of this is stored: it follows from kind and user of each session, so it holds over a restart of the agent and
 * a reload.
 */
#ifndef GPOOL_AGENT_SESSION_LIMITS_H
#define GPOOL_AGENT_SESSION_LIMITS_H

#include "agent/session/session.h"

/*
 * session_limits_check() - whether one more session may attach. 0, or -EUSERS with the reason in `text`, which names
 * the limit.
 * Cost: a pass over the sessions of the pool.
 */
int session_limits_check(const struct pool *pool, const struct tenant *tenant, enum session_kind kind, uid_t uid,
	char *text, size_t text_bytes);

/*
 * descriptors_left() - whether `wanted` more descriptors can be opened, beside those that gpoold needs to accept, to
 * refuse and to restart.
 */
bool descriptors_left(const struct agent *agent, uint32_t wanted);

#endif
