#include "agent/session/session_limits.h"

#include "agent/base/descriptors.h"
#include "agent/pages/share.h"
#include "shm/plural.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

static bool is_ordinary(enum session_kind kind, uid_t uid)
{
	return kind == SESSION_WORKER || (kind == SESSION_OBSERVER && !session_is_operator(uid));
}

/* Observers may have half of the kept sessions, and one user half of these. */
enum { KEPT_OBSERVERS_MAX = POOL_SESSIONS / 16 };

struct observers {
	uint32_t most, user_most; /* kept sessions that observers, and observers of one user, may have */
	uint32_t have, user_has;  /* those that they have, and all observers of the user who attaches */
	uint32_t users;
	struct {
		uid_t uid;
		uint32_t have;
	} of_user[KEPT_OBSERVERS_MAX];
};

/* Count an observer. Those beyond the numbers of kept sessions have other sessions. */
static void observer_count(struct observers *observers, uid_t uid)
{
	uint32_t i = 0;

	if (observers->have == observers->most)
		return;
	while (i < observers->users && observers->of_user[i].uid != uid)
		i++;
	if (i == observers->users) {
		observers->of_user[i].uid = uid;
		observers->of_user[i].have = 0;
		observers->users++;
	}
	if (observers->of_user[i].have == observers->user_most)
		return;
	observers->of_user[i].have++;
	observers->have++;
}

/* Count the attached ordinary sessions, and the observers among them. */
static void count(const struct pool *pool, uid_t uid, struct share_use *attached, struct observers *observers)
{
	for (uint32_t id = 1, left = pool->session_count; left && id < POOL_SESSIONS; id++) {
		const struct session *session = pool->sessions[id];

		if (!session)
			continue;
		left--;
		if (!is_ordinary(session->kind, session->uid))
			continue;
		attached->all++;
		attached->of_user += session->uid == uid;
		attached->of_tenant[session->tenant - pool->tenants]++;
		if (session->kind != SESSION_OBSERVER)
			continue;
		observers->user_has += session->uid == uid;
		observer_count(observers, session->uid);
	}
}

static int check_ordinary(const struct pool *pool, const struct tenant *tenant, enum session_kind kind, uid_t uid,
	char *text, size_t text_bytes)
{
	const struct config *config = &pool->agent->config;
	const uint32_t sessions = config->limits.sessions, eighth = sessions / 8;
	const uint32_t kept = config->limits.kept_sessions < eighth ? config->limits.kept_sessions : eighth;
	const uint32_t shared = sessions - kept;
	struct observers observers = {.most = kept / 2, .user_most = (kept / 2 + 1) / 2};
	struct share_use attached = {0};
	uint32_t not_for_it, aside;
	bool may_use_kept;

	count(pool, uid, &attached, &observers);
	may_use_kept = kind == SESSION_OBSERVER && observers.user_has < observers.user_most;
	not_for_it = may_use_kept ? (kept + 1) / 2 : kept;
	/* Observers take the kept sessions first. Otherwise they would take those that are guaranteed to tenants. */
	aside = may_use_kept ? 0 : observers.have;
	attached.all -= aside;
	switch (share_check(pool, tenant, uid, &attached, shared, sessions - not_for_it)) {
	case SHARE_LEFT: return 0;
	case SHARE_NONE_LEFT:
		snprintf(text, text_bytes,
			"%u session%s %s attached, and the other %u of limits.sessions (%u) are reserved for %s by "
			"limits.kept_sessions; raise limits.sessions",
			attached.all + aside, plural(attached.all + aside), be(attached.all + aside),
			not_for_it - aside, sessions,
			may_use_kept                     ? "admins and root"
				: kind == SESSION_WORKER ? "admins and observers"
							 : "admins and observers of other users");
		break;
	case SHARE_OF_OTHER_TENANTS:
		snprintf(text, text_bytes,
			"tenant '%s' has %u session%s, and the rest of limits.sessions (%u) is reserved for other "
			"tenants by limits.tenant_sessions (%u percent); raise limits.sessions",
			tenant->config->name, attached.of_tenant[tenant - pool->tenants],
			plural(attached.of_tenant[tenant - pool->tenants]), sessions, config->limits.tenant_percent);
		break;
	case SHARE_OF_USER_USED:
		snprintf(text, text_bytes,
			"user %u has %u session%s, the limit for one user; raise limits.user_sessions (%u percent of "
			"%u)",
			uid, attached.of_user, plural(attached.of_user), config->limits.user_percent, shared);
		break;
	}
	return -EUSERS;
}

int session_limits_check(const struct pool *pool, const struct tenant *tenant, enum session_kind kind, uid_t uid,
	char *text, size_t text_bytes)
{
	if (pool->session_count >= pool->agent->config.limits.sessions) {
		snprintf(text, text_bytes, "%u session%s %s attached, the limit; raise limits.sessions",
			pool->session_count, plural(pool->session_count), be(pool->session_count));
		return -EUSERS;
	}
	return is_ordinary(kind, uid) ? check_ordinary(pool, tenant, kind, uid, text, text_bytes) : 0;
}

bool descriptors_left(const struct agent *agent, uint32_t wanted)
{
	/* All descriptors below the lowest free one are in use, including those of libraries, which nothing counts. */
	int lowest = fcntl(agent->keeper.fd, F_DUPFD_CLOEXEC, 0);
	uint64_t used = DESCRIPTORS_OWN;

	if (lowest < 0)
		return false;
	close(lowest);
	if ((uint64_t)lowest + DESCRIPTORS_SPARE + wanted > descriptors_most())
		return false;
	for (uint32_t i = 0; i < agent->pool_count; i++)
		used += DESCRIPTORS_OF_POOL + agent->pools[i]->object_count + agent->pools[i]->physical.exported +
			agent->pools[i]->timeline_count +
			(uint64_t)DESCRIPTORS_OF_SESSION * agent->pools[i]->session_count;
	return used + wanted <= descriptors_most();
}
