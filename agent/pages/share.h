/*
 * share.h - the share that one tenant and one user may have of a resource of which a pool has a fixed number, such as
 * sessions, names of roles and reservations:
 *
 *   - limits.tenant_sessions percent of the resource are guaranteed to the tenants in equal parts, at least one each if
 *     there are enough; the others are assigned in the order of arrival;
 *   - one user may have at most limits.user_sessions percent. Root and gpoold's own user are exempt.
 *
 * The caller counts the use in the tables that exist anyway. Therefore the limits also apply after a restart of the
 * agent and after a reload.
 */
#ifndef GPOOL_AGENT_SHARE_H
#define GPOOL_AGENT_SHARE_H

#include "agent/pages/pool.h"

#include <sys/types.h>

/* The number in use: of all tenants, of the user that asks for one more, and of each tenant of the pool. */
struct share_use {
	uint32_t all, of_user, of_tenant[CONFIG_TENANTS_MAX];
};

enum share { SHARE_LEFT, SHARE_NONE_LEFT, SHARE_OF_OTHER_TENANTS, SHARE_OF_USER_USED };

/*
 * share_check() - check whether a tenant and a user may have one more.
 *
 * @total: the number that tenants and users share
 * @most:  the number available to this request; may be higher than `total`
 *
 * Return: SHARE_LEFT, or the first limit that is reached: `most`, the guarantee of other tenants, or that of the user.
 */
enum share share_check(const struct pool *pool, const struct tenant *tenant, uid_t uid, const struct share_use *use,
	uint32_t total, uint32_t most);

#endif
