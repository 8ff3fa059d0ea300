/*
 * access.c - determine the session kinds and tenants that a peer may have, by the section `access` of gpoold.conf.
 */
#include "agent/session/session_internal.h"

#include <errno.h>
#include <string.h>

const char *session_kind_name(uint32_t kind)
{
	static const char *const names[] = {"worker", "observer", "admin"};

	return kind < 3 ? names[kind] : "unknown";
}

static bool named(const struct config_names *names, uint32_t id)
{
	for (uint32_t i = 0; i < names->count; i++)
		if (names->ids[i] == id)
			return true;
	return false;
}

static bool member(const struct config_names *groups, const struct attach_peer *peer)
{
	if (named(groups, peer->gid))
		return true;
	for (size_t i = 0; i < peer->group_count; i++)
		if (named(groups, peer->groups[i]))
			return true;
	return false;
}

static bool is_operator(const struct attach_peer *peer)
{
	return session_is_operator(peer->uid);
}

bool access_may_be(const struct config *config, uint32_t kind, const struct attach_peer *peer)
{
	const struct config_names *users = &config->access.worker_users, *groups = &config->access.worker_groups;

	if (is_operator(peer))
		return true;
	if (kind == SESSION_OBSERVER) {
		users = &config->access.observer_users;
		groups = &config->access.observer_groups;
	} else if (kind == SESSION_ADMIN) {
		users = &config->access.admin_users;
		groups = &config->access.admin_groups;
		if (!users->count && !groups->count)
			return false;
	}
	if (!users->count && !groups->count)
		return true;
	return named(users, peer->uid) || member(groups, peer);
}

static bool may_join(const struct config_tenant *tenant, const struct attach_peer *peer)
{
	if (!tenant->users.count && !tenant->groups.count)
		return true;
	return named(&tenant->users, peer->uid) || member(&tenant->groups, peer);
}

struct tenant *access_tenant(
	struct pool *pool, const char *name, uint32_t kind, const struct attach_peer *peer, int *error)
{
	if (name[0]) {
		struct tenant *tenant = pool_tenant(pool, name);

		*error = !tenant ? -ENXIO : may_join(tenant->config, peer) || is_operator(peer) ? 0 : -EACCES;
		return *error ? NULL : tenant;
	}
	for (int open = 0; open <= 1; open++)
		for (uint32_t i = 0; i < pool->tenant_count; i++) {
			const struct config_tenant *config = pool->tenants[i].config;
			bool to_all = !config->users.count && !config->groups.count;

			if (to_all == (open == 1) && may_join(config, peer))
				return &pool->tenants[i];
		}
	/*
	 * A session that leases no pages needs no tenant. Root and the agent's own user must be able to attach even if
	 * they belong to none.
	 */
	if (kind != SESSION_WORKER || is_operator(peer))
		return &pool->tenants[0];
	*error = -EACCES;
	return NULL;
}
