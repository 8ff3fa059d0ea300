/*
 * control_roles.c - requests of tools about leadership roles: list the roles, and remove an unused role for an admin.
 */
#include "agent/control/exchange.h"
#include "agent/base/log.h"
#include "agent/pages/trust.h"
#include "agent/session/roles.h"
#include "proto/view.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* a position in the list consists of the pool's index, shifted by these bits, and the index in the pool's table */
enum { POOL_SHIFT = 12 };

static void role_entry_fill(const struct pool *pool, const struct role_record *record, struct msg_role_entry *entry)
{
	const struct session *holder;

	view_role(record, wall_ms(), entry);
	holder = pool->sessions[entry->session];
	snprintf(entry->pool, sizeof(entry->pool), "%s", pool->segment.header->name);
	snprintf(entry->name, sizeof(entry->name), "%s", record->name);
	snprintf(entry->domain_name, sizeof(entry->domain_name), "%s", trust_domain_name(pool, record->domain));
	snprintf(entry->tenant, sizeof(entry->tenant), "%s", record->tenant);
	if (holder) {
		entry->pid = (uint32_t)holder->pid;
		entry->state = holder->state != SESSION_LIVE;
		snprintf(entry->holder, sizeof(entry->holder), "%s", holder->name);
	}
}

int answer_roles(struct exchange *x)
{
	static struct msg_roles_reply reply;
	struct msg_roles_request request;
	const struct pool *only = NULL;

	if (DECODE(x, roles_request, &request))
		return exchange_malformed(x);
	if (request.pool[0] && !(only = exchange_pool(x, request.pool)))
		return exchange_no_pool(x, request.pool);
	memset(&reply, 0, sizeof(reply));
	for (uint32_t p = request.first >> POOL_SHIFT; p < x->agent->pool_count; p++) {
		const struct pool *pool = x->agent->pools[p];
		uint32_t index = p == request.first >> POOL_SHIFT ? request.first & ((1u << POOL_SHIFT) - 1) : 0;

		for (; (!only || pool == only) && index < POOL_ROLES; index++) {
			const struct role_record *record = &pool->segment.roles[index];

			if (atomic_load_explicit(&record->state, memory_order_relaxed) != ROLE_NAMED)
				continue;
			if (reply.roles_count == sizeof(reply.roles) / sizeof(*reply.roles)) {
				reply.next = p << POOL_SHIFT | index;
				return ENCODE(x, roles_reply, &reply);
			}
			role_entry_fill(pool, record, &reply.roles[reply.roles_count++]);
		}
	}
	return ENCODE(x, roles_reply, &reply);
}

/*
 * Return the index of the role with this name in the domain, or in any domain if this name is empty: -ENXIO: there is
 * none, -EINVAL: several domains have one.
 */
static int role_anywhere(const struct pool *pool, const char *name, const char *domain)
{
	int found = -ENXIO;

	for (uint32_t index = 0; index < POOL_ROLES; index++) {
		const struct role_record *record = &pool->segment.roles[index];

		if (role_find(pool, record->domain, name) != (int)index ||
			(domain[0] && strcmp(trust_domain_name(pool, record->domain), domain) != 0))
			continue;
		if (found >= 0)
			return -EINVAL;
		found = (int)index;
	}
	return found;
}

int answer_role_remove(struct exchange *x)
{
	struct msg_role_remove_request request;
	struct pool *pool;
	uint64_t token;
	int index;

	if (DECODE(x, role_remove_request, &request))
		return exchange_malformed(x);
	pool = exchange_pool(x, request.pool);
	if (!pool)
		return exchange_no_pool(x, request.pool);
	index = role_anywhere(pool, request.name, request.domain);
	if (index == -EINVAL)
		return exchange_fail(x, index, "several trust domains have a role '%s'; specify the domain (--domain)",
			request.name);
	if (index < 0)
		return exchange_fail(x, index, "no role '%s' in %s%s%spool '%s'; poolctl roles lists the roles",
			request.name, request.domain[0] ? "domain '" : "", request.domain,
			request.domain[0] ? "' of " : "", pool->segment.header->name);
	if (role_remove(pool, (uint32_t)index, &token))
		return exchange_fail(x, -EBUSY,
			"role '%s' is held; its holder must release it or die before it can be removed", request.name);
	log_info("role '%s' of pool '%s' removed; its last token was %llu", request.name, pool->segment.header->name,
		(unsigned long long)token);
	return exchange_done(x, token, "role removed; a new role with this name gets higher tokens");
}
