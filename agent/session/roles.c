#include "agent/session/roles.h"

#include "agent/base/crash_point.h"
#include "agent/pages/event.h"
#include "agent/base/log.h"
#include "agent/pages/share.h"
#include "shm/doorbell.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static struct role_record *record_of(const struct pool *pool, uint32_t index)
{
	return &pool->segment.roles[index];
}

static bool named(const struct role_record *record)
{
	return atomic_load_explicit(&record->state, memory_order_relaxed) == ROLE_NAMED;
}

static uint32_t holder_of(const struct role_record *record)
{
	return atomic_load_explicit(&record->holder, memory_order_relaxed);
}

static uint64_t token_of(const struct role_record *record)
{
	return atomic_load_explicit(&record->token, memory_order_relaxed);
}

/* ---- standbys ---- */

static bool waits(const struct pool *pool, uint32_t index, uint32_t session)
{
	return atomic_load_explicit(&pool->ledger.roles[index].standbys[session], memory_order_relaxed) != 0;
}

static void waiters_add(struct role_record *record, int more)
{
	atomic_store_explicit(&record->waiters,
		atomic_load_explicit(&record->waiters, memory_order_relaxed) + (uint32_t)more, memory_order_relaxed);
}

static void standby_join(struct pool *pool, uint32_t index, uint32_t session)
{
	struct ledger_role *row = &pool->ledger.roles[index];
	uint64_t arrival;

	if (waits(pool, index, session))
		return;
	arrival = atomic_load_explicit(&row->arrivals, memory_order_relaxed) + 1;
	atomic_store_explicit(&row->arrivals, arrival, memory_order_release);
	crash_point();
	atomic_store_explicit(&row->standbys[session], arrival, memory_order_release);
	crash_point();
	waiters_add(record_of(pool, index), 1);
}

static void standby_leave(struct pool *pool, uint32_t index, uint32_t session)
{
	if (!waits(pool, index, session))
		return;
	atomic_store_explicit(&pool->ledger.roles[index].standbys[session], 0, memory_order_release);
	crash_point();
	waiters_add(record_of(pool, index), -1);
}

/* Return the live standby that arrived first, or NULL. */
static struct session *standby_first(const struct pool *pool, uint32_t index)
{
	const struct ledger_role *row = &pool->ledger.roles[index];
	struct session *first = NULL;
	uint64_t least = UINT64_MAX;

	if (!atomic_load_explicit(&record_of(pool, index)->waiters, memory_order_relaxed))
		return NULL;
	for (uint32_t id = 1; id < POOL_SESSIONS; id++) {
		uint64_t arrival = atomic_load_explicit(&row->standbys[id], memory_order_relaxed);
		struct session *session = pool->sessions[id];

		if (arrival && arrival < least && session && session->state == SESSION_LIVE) {
			least = arrival;
			first = session;
		}
	}
	return first;
}

/* ---- holders ---- */

static void changed(struct role_record *record)
{
	atomic_store_explicit(&record->changed_ms, wall_ms(), memory_order_relaxed);
}

static void grant(struct pool *pool, uint32_t index, struct session *session)
{
	struct role_record *record = record_of(pool, index);

	/* seq_cst, because readers compare the token with other words, such as page words. Grants are rare. */
	atomic_store_explicit(&record->token, token_of(record) + 1, memory_order_seq_cst);
	crash_point();
	changed(record);
	atomic_store_explicit(&record->holder, session->id, memory_order_seq_cst);
	crash_point();
	standby_leave(pool, index, session->id);
	crash_point();
	futex_wake(&record->holder, INT_MAX);
}

static void tell(const struct pool *pool, enum event_kind kind, const struct session *session,
	const struct role_record *record, const char *what)
{
	if (session)
		event_publish(pool->agent, kind, pool, session->id, token_of(record), "role '%s' %s '%s', token %llu",
			record->name, what, session->name, (unsigned long long)token_of(record));
	else
		event_publish(pool->agent, kind, pool, 0, token_of(record), "role '%s' %s", record->name, what);
}

/* Grant a role without a holder to the next standby, if any. */
static void pass_on(struct pool *pool, uint32_t index, bool died)
{
	struct role_record *record = record_of(pool, index);
	struct session *next = standby_first(pool, index);

	if (!next) {
		tell(pool, EVENT_ROLE_FREED, NULL, record,
			died ? "has no holder, since the last one died" : "has no holder, since it was released");
		return;
	}
	grant(pool, index, next);
	if (died) {
		atomic_store_explicit(&record->takeovers,
			atomic_load_explicit(&record->takeovers, memory_order_relaxed) + 1, memory_order_relaxed);
		pool_count(pool, POOL_COUNT_TAKEOVERS, 1);
		log_info("role '%s' of pool '%s': session %u ('%s', pid %d) takes over, token %llu", record->name,
			pool->config->name, next->id, next->name, next->pid, (unsigned long long)token_of(record));
	}
	tell(pool, died ? EVENT_TAKEOVER : EVENT_ROLE_GRANTED, next, record,
		died ? "is taken over by" : "is granted to");
}

static void vacate(struct pool *pool, uint32_t index, bool died)
{
	struct role_record *record = record_of(pool, index);

	atomic_store_explicit(&record->holder, 0, memory_order_seq_cst);
	crash_point();
	changed(record);
	pass_on(pool, index, died);
}

/* ---- names ---- */

int role_find(const struct pool *pool, uint32_t domain, const char *name)
{
	for (uint32_t index = 0; index < POOL_ROLES; index++)
		if (named(record_of(pool, index)) && record_of(pool, index)->domain == domain &&
			!strcmp(record_of(pool, index)->name, name))
			return (int)index;
	return -ENOENT;
}

/*
 * Return the index of an unused record, or -ENOSPC with the reason if the shares of the session's tenant or user are
 * used up.
 */
static int role_place(const struct session *session, char *text, size_t text_bytes)
{
	const struct pool *pool = session->pool;
	const struct tenant *tenant = session->tenant;
	const struct config *config = &pool->agent->config;
	struct share_use use = {0};
	int place = -ENOSPC;

	for (uint32_t index = 0; index < POOL_ROLES; index++) {
		const struct role_record *record = record_of(pool, index);

		if (!named(record)) {
			place = place < 0 ? (int)index : place;
			continue;
		}
		use.all++;
		use.of_user += record->uid == session->uid;
		for (uint32_t i = 0; i < pool->tenant_count; i++)
			use.of_tenant[i] += !strcmp(record->tenant, pool->tenants[i].config->name);
	}
	switch (share_check(pool, tenant, session->uid, &use, POOL_ROLES, POOL_ROLES)) {
	case SHARE_LEFT: return place;
	case SHARE_NONE_LEFT:
		snprintf(text, text_bytes, "pool '%s' has %d roles, the limit", pool->config->name, POOL_ROLES);
		break;
	case SHARE_OF_OTHER_TENANTS:
		snprintf(text, text_bytes,
			"tenant '%s' has %u of %d roles, and the rest is reserved for other tenants by "
			"limits.tenant_sessions (%u percent)",
			tenant->config->name, use.of_tenant[tenant - pool->tenants], POOL_ROLES,
			config->limits.tenant_percent);
		break;
	case SHARE_OF_USER_USED:
		snprintf(text, text_bytes,
			"user %u has %u of %d roles, the limit for one user by limits.user_sessions (%u percent)",
			session->uid, use.of_user, POOL_ROLES, config->limits.user_percent);
		break;
	}
	return -ENOSPC;
}

/*
 * Return a token above those of all roles: a name that is used again, perhaps in another record, must continue above
 * its earlier tokens.
 */
static uint64_t token_above_all(const struct pool *pool)
{
	uint64_t most = 0;

	for (uint32_t index = 0; index < POOL_ROLES; index++)
		if (token_of(record_of(pool, index)) > most)
			most = token_of(record_of(pool, index));
	return most + 1;
}

static void role_name(const struct session *session, uint32_t index, const char *name)
{
	struct role_record *record = record_of(session->pool, index);

	/* Raise the token here too, so that two names of one record never have the same token. */
	atomic_store_explicit(&record->token, token_above_all(session->pool), memory_order_seq_cst);
	atomic_store_explicit(&record->holder, 0, memory_order_relaxed);
	atomic_store_explicit(&record->waiters, 0, memory_order_relaxed);
	atomic_store_explicit(&record->takeovers, 0, memory_order_relaxed);
	snprintf(record->name, sizeof(record->name), "%s", name);
	snprintf(record->tenant, sizeof(record->tenant), "%s", session->tenant->config->name);
	record->domain = session->domain;
	record->uid = session->uid;
	changed(record);
	crash_point();
	atomic_store_explicit(&record->state, ROLE_NAMED, memory_order_release);
	crash_point();
}

int role_remove(struct pool *pool, uint32_t index, uint64_t *token)
{
	struct role_record *record = record_of(pool, index);

	if (holder_of(record))
		return -EBUSY;
	*token = token_of(record);
	atomic_store_explicit(&record->state, ROLE_NONE, memory_order_seq_cst);
	memset(record->name, 0, sizeof(record->name));
	memset(record->tenant, 0, sizeof(record->tenant));
	return 0;
}

int role_fence(const struct pool *pool, uint32_t index, uint64_t token, uint32_t session)
{
	const struct role_record *record;

	if (index >= POOL_ROLES || !session)
		return -ESTALE;
	record = record_of(pool, index);
	return holder_of(record) == session && token_of(record) == token ? 0 : -ESTALE;
}

/* ---- requests ---- */

static void refuse(struct msg_role_reply *reply, int error, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
static void refuse(struct msg_role_reply *reply, int error, const char *format, ...)
{
	char text[256];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	reply->error = error;
	msg_text_copy(reply->text, sizeof(reply->text), text);
}

static void say_state(const struct session *session, uint32_t index, struct msg_role_reply *reply)
{
	const struct role_record *record = record_of(session->pool, index);

	reply->index = index;
	if (holder_of(record) == session->id) {
		reply->state = ROLE_HOLDER;
		reply->token = token_of(record);
	} else {
		reply->state = waits(session->pool, index, session->id) ? ROLE_STANDBY : ROLE_NEITHER;
	}
}

static void take(struct session *session, const char *name, bool wait, struct msg_role_reply *reply)
{
	struct pool *pool = session->pool;
	const char *tenant = session->tenant->config->name;
	int index = role_find(pool, session->domain, name);
	struct role_record *record;
	char text[200];

	if (index < 0) {
		index = role_place(session, text, sizeof(text));
		if (index < 0) {
			refuse(reply, index, "%s; remove one with 'poolctl roles remove NAME'", text);
			return;
		}
		role_name(session, (uint32_t)index, name);
	}
	record = record_of(pool, (uint32_t)index);
	if (strcmp(record->tenant, tenant)) {
		refuse(reply, -EACCES, "role '%s' belongs to tenant '%s', not to '%s'", name, record->tenant, tenant);
		return;
	}
	if (!holder_of(record)) {
		grant(pool, (uint32_t)index, session);
		tell(pool, EVENT_ROLE_GRANTED, session, record, "is acquired by");
	} else if (holder_of(record) != session->id && wait) {
		standby_join(pool, (uint32_t)index, session->id);
	}
	say_state(session, (uint32_t)index, reply);
	crash_point();
}

static void let_go(struct session *session, const struct msg_role_request *request, struct msg_role_reply *reply)
{
	struct pool *pool = session->pool;
	int index = role_find(pool, session->domain, request->name);

	if (index < 0) {
		refuse(reply, -ENOENT, "pool '%s' has no role '%s'; poolctl roles lists the roles", pool->config->name,
			request->name);
		return;
	}
	if (request->verb == ROLE_WITHDRAW || request->verb == ROLE_FORGET)
		standby_leave(pool, (uint32_t)index, session->id);
	if (request->verb == ROLE_FORGET && holder_of(record_of(pool, (uint32_t)index)) == session->id)
		vacate(pool, (uint32_t)index, false);
	else if (request->verb == ROLE_RELEASE && role_fence(pool, (uint32_t)index, request->token, session->id))
		refuse(reply, -ESTALE, "session %u does not hold role '%s' with token %llu", session->id, request->name,
			(unsigned long long)request->token);
	else if (request->verb == ROLE_RELEASE)
		vacate(pool, (uint32_t)index, false);
	say_state(session, (uint32_t)index, reply);
	crash_point();
}

void role_serve(struct session *session, const struct msg_role_request *request, struct msg_role_reply *reply)
{
	memset(reply, 0, sizeof(*reply));
	if (session->kind != SESSION_WORKER)
		refuse(reply, -EPERM, "a role requires a worker session; this session is an %s",
			session_kind_name(session->kind));
	else if (!request->name[0] || request->verb >= ROLE_VERBS)
		refuse(reply, -EINVAL, "empty name or unknown verb %u", request->verb);
	else if (request->verb == ROLE_TAKE || request->verb == ROLE_WAIT)
		take(session, request->name, request->verb == ROLE_WAIT, reply);
	else
		let_go(session, request, reply);
}

/* ---- end of sessions, start of agents ---- */

void roles_withdraw(struct session *session)
{
	for (uint32_t index = 0; index < POOL_ROLES; index++)
		if (named(record_of(session->pool, index)) &&
			atomic_load_explicit(&record_of(session->pool, index)->waiters, memory_order_relaxed))
			standby_leave(session->pool, index, session->id);
}

void roles_session_end(struct session *session, bool died)
{
	struct pool *pool = session->pool;

	roles_withdraw(session);
	for (uint32_t index = 0; index < POOL_ROLES; index++)
		if (named(record_of(pool, index)) && holder_of(record_of(pool, index)) == session->id)
			vacate(pool, index, died);
}

/* Remove standbys that can no longer hold the role, and count the others. */
static void row_recover(struct pool *pool, uint32_t index)
{
	struct role_record *record = record_of(pool, index);
	struct ledger_role *row = &pool->ledger.roles[index];
	uint32_t count = 0;

	for (uint32_t id = 1; id < POOL_SESSIONS; id++) {
		const struct session *session = pool->sessions[id];

		if (!waits(pool, index, id))
			continue;
		if (!named(record) || holder_of(record) == id || !session || session->state != SESSION_LIVE)
			atomic_store_explicit(&row->standbys[id], 0, memory_order_release);
		else
			count++;
	}
	atomic_store_explicit(&record->waiters, count, memory_order_relaxed);
}

void roles_recover(struct pool *pool)
{
	for (uint32_t index = 0; index < POOL_ROLES; index++) {
		struct role_record *record = record_of(pool, index);
		uint32_t holder = holder_of(record);

		if (!atomic_load_explicit(&pool->ledger.roles[index].arrivals, memory_order_relaxed) && !named(record))
			continue;
		row_recover(pool, index);
		crash_point();
		if (!named(record))
			continue;
		if (holder && !pool->sessions[holder])
			vacate(pool, index, true);
		else if (!holder && standby_first(pool, index))
			pass_on(pool, index, false);
		/* The previous agent may have died between a grant and its wake-up. */
		futex_wake(&record->holder, INT_MAX);
	}
}
