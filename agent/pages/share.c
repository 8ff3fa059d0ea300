#include "agent/pages/share.h"

#include "agent/pages/session_state.h"

static uint32_t guaranteed_to_each(const struct pool *pool, uint32_t total)
{
	const uint32_t percent = pool->agent->config.limits.tenant_percent,
		       part = total * percent / 100 / pool->tenant_count;

	return part || !percent || pool->tenant_count > total ? part : 1;
}

/* Return the number that is guaranteed to other tenants and not in use by them. */
static uint32_t kept_for_others(
	const struct pool *pool, const struct tenant *tenant, const struct share_use *use, uint32_t guaranteed)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < pool->tenant_count; i++)
		if (&pool->tenants[i] != tenant && use->of_tenant[i] < guaranteed)
			kept += guaranteed - use->of_tenant[i];
	return kept;
}

enum share share_check(const struct pool *pool, const struct tenant *tenant, uid_t uid, const struct share_use *use,
	uint32_t total, uint32_t most)
{
	const uint32_t guaranteed = guaranteed_to_each(pool, total),
		       user_most = (total * pool->agent->config.limits.user_percent + 99) / 100;

	if (use->all >= most)
		return SHARE_NONE_LEFT;
	if (use->of_tenant[tenant - pool->tenants] >= guaranteed &&
		most - use->all <= kept_for_others(pool, tenant, use, guaranteed))
		return SHARE_OF_OTHER_TENANTS;
	if (use->of_user >= user_most && !session_is_operator(uid))
		return SHARE_OF_USER_USED;
	return SHARE_LEFT;
}
