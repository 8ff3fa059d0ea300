/*
 * control.c - requests that change state, the rights that they need, and repeated requests; see control.h.
 */
#include "agent/control/control.h"

#include "agent/base/crash_point.h"
#include "agent/pages/event.h"
#include "agent/control/exchange.h"
#include "agent/base/log.h"
#include "agent/config/kept_config.h"
#include "agent/keeper/channel.h"
#include "agent/session/session.h"
#include "agent/control/upgrade.h"
#include "shm/plural.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int answer_evict(struct exchange *x)
{
	struct msg_evict_request request;
	struct evict_request evict = {0};
	struct pool *pool;
	uint64_t begin;
	uint32_t pages, leaving;
	char text[200];

	if (DECODE(x, evict_request, &request))
		return exchange_malformed(x);
	pool = exchange_pool(x, request.pool);
	if (!pool)
		return exchange_no_pool(x, request.pool);
	if (!request.pages)
		return exchange_fail(x, -EINVAL, "cannot evict 0 pages; request at least 1");
	if (request.session) {
		evict.only = request.session < POOL_SESSIONS ? pool->sessions[request.session] : NULL;
		if (!evict.only)
			return exchange_fail(x, -ENXIO,
				"no session %u in pool '%s'; poolctl clients lists the sessions", request.session,
				pool->segment.header->name);
	}
	evict.by_operator = true;
	evict.usages = request.usages;
	evict.pages = request.pages;
	begin = clock_ns();
	leaving = pool->saving_pages;
	pages = evict_pages(pool, &evict);
	leaving = pool->saving_pages - leaving;
	pages -= leaving;
	snprintf(text, sizeof(text), "%u page%s evicted in %llu ns", pages, plural(pages),
		(unsigned long long)(clock_ns() - begin));
	if (leaving)
		snprintf(text + strlen(text), sizeof(text) - strlen(text), ", %u being spilled", leaving);
	pages += leaving;
	pool_mark_freed(pool);
	return exchange_done(x, pages, text);
}

static uint64_t minima_of(const struct pool *pool, const struct tenant *except)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < pool->tenant_count; i++)
		if (&pool->tenants[i] != except)
			sum += pool->tenants[i].minimum;
	return sum;
}

static int answer_limit(struct exchange *x)
{
	struct msg_limit_request request;
	struct tenant *tenant;
	struct pool *pool;
	uint32_t limit, minimum;

	if (DECODE(x, limit_request, &request))
		return exchange_malformed(x);
	pool = exchange_pool(x, request.pool);
	if (!pool)
		return exchange_no_pool(x, request.pool);
	if (!request.tenant[0]) {
		struct session *session = request.session < POOL_SESSIONS ? pool->sessions[request.session] : NULL;

		if (!session)
			return exchange_fail(x, -ENXIO,
				"no session %u in pool '%s'; poolctl clients lists the sessions", request.session,
				pool->segment.header->name);
		if (request.minimum_pages != UINT32_MAX)
			return exchange_fail(x, -EINVAL, "a session has no minimum; set the minimum of its tenant '%s'",
				session->tenant->config->name);
		if (request.limit_pages != UINT32_MAX) {
			session->limit = request.limit_pages;
			atomic_store_explicit(
				&pool->ledger.sessions[session->id].limit, session->limit, memory_order_relaxed);
		}
		return exchange_done(x, session->limit, "session limit changed");
	}
	tenant = pool_tenant(pool, request.tenant);
	if (!tenant)
		return exchange_fail(x, -ENXIO, "no tenant '%s' in pool '%s'; poolctl tenants lists the tenants",
			request.tenant, pool->segment.header->name);
	limit = request.limit_pages == UINT32_MAX ? tenant->limit : request.limit_pages;
	minimum = request.minimum_pages == UINT32_MAX ? tenant->minimum : request.minimum_pages;
	if (limit > pool->page_count)
		return exchange_fail(x, -ERANGE, "a limit of %u page%s exceeds the size of pool '%s', %u page%s", limit,
			plural(limit), pool->segment.header->name, pool->page_count, plural(pool->page_count));
	if (minimum > limit)
		return exchange_fail(x, -ERANGE, "a minimum of %u page%s exceeds the limit of %u page%s", minimum,
			plural(minimum), limit, plural(limit));
	if (minima_of(pool, tenant) + minimum > pool->segment.header->reserved_first)
		return exchange_fail(x, -ERANGE,
			"a minimum of %u page%s raises the sum of the minima of all tenants to %llu page%s; the pool "
			"can lease %u page%s",
			minimum, plural(minimum), (unsigned long long)(minima_of(pool, tenant) + minimum),
			plural(minima_of(pool, tenant) + minimum), pool->segment.header->reserved_first,
			plural(pool->segment.header->reserved_first));
	tenant->limit = limit;
	tenant->minimum = minimum;
	pool_limits_note(pool, tenant);
	event_publish(x->agent, EVENT_TENANT_LIMIT, pool, 0, limit, "tenant '%s': minimum %u, limit %u page%s",
		request.tenant, minimum, limit, plural(limit));
	pool_mark_freed(pool);
	return exchange_done(x, limit, "tenant limits changed, until the next reload");
}

static uint32_t workers_of(const struct pool *pool)
{
	uint32_t count = 0;

	for (uint32_t id = 1, left = pool->session_count; left && id < POOL_SESSIONS; id++) {
		if (!pool->sessions[id])
			continue;
		left--;
		count += pool->sessions[id]->kind == SESSION_WORKER;
	}
	return count;
}

/*
 * Drain a pool, or put it back in service. No journal record is needed, because the pool's state is a single word in
 * its header.
 */
static int answer_drain(struct exchange *x)
{
	struct msg_drain_request request;
	struct pool *pool;
	const char *name;

	if (DECODE(x, drain_request, &request))
		return exchange_malformed(x);
	pool = exchange_pool(x, request.pool);
	if (!pool)
		return exchange_no_pool(x, request.pool);
	name = pool->segment.header->name;
	if (request.on > 1)
		return exchange_fail(x, -EINVAL,
			"drain %u: use 1 to take pool '%s' out of service, or 0 to put it back", request.on, name);
	if (atomic_exchange_explicit(&pool->segment.header->draining, request.on, memory_order_relaxed) == request.on)
		return exchange_done(x, workers_of(pool),
			request.on ? "the pool was already out of service" : "the pool was already in service");
	crash_point();
	log_info("pool '%s' is %s", name,
		request.on ? "out of service: workers are refused until poolctl drain --off" : "in service again");
	event_publish(x->agent, EVENT_DRAIN, pool, 0, request.on, "pool '%s' is %s", name,
		request.on ? "out of service" : "in service again");
	return exchange_done(
		x, workers_of(pool), request.on ? "the pool is out of service" : "the pool is in service again");
}

/* Send the current configuration to the keeper, for the next agent. */
static void config_keep(struct agent *agent)
{
	int fd = kept_config_write(&agent->config);
	int error = fd < 0 ? fd : agent_hold(agent, &(struct held){.kind = KEEP_CONFIG, .fd_count = 1, .fds = {fd}});

	if (error)
		log_warning("cannot store the configuration: %s; a restarted agent will use the previous configuration",
			strerror(-error));
	if (fd >= 0)
		close(fd);
}

int control_reload(struct agent *agent, char *text, size_t text_bytes)
{
	struct config *next = malloc(sizeof(*next));
	struct config_error error;
	char applies[400], restart[500];
	const char *tenants = NULL;
	int status;

	if (!next)
		return -ENOMEM;
	status = recipe_load(agent->recipe, next, &error);
	if (status) {
		snprintf(text, text_bytes, "%s", error.text);
		log_error("reload: %s; the configuration is unchanged", error.text);
		free(next);
		return status;
	}
	if (!recipe_tenants_follow(&agent->config, next)) {
		next->tenant_count = agent->config.tenant_count;
		memcpy(next->tenants, agent->config.tenants, sizeof(next->tenants));
		tenants = "tenants (removed, reordered, or moved to other trust domains)";
	}
	status = pools_minima_fit(agent, next, text, text_bytes);
	if (status) {
		log_error("reload: %s; the configuration is unchanged", text);
		free(next);
		return status;
	}
	config_difference(&agent->config, next, applies, sizeof(applies), restart, sizeof(restart));
	if (tenants)
		snprintf(restart + strlen(restart), sizeof(restart) - strlen(restart), "%s%s", restart[0] ? ", " : "",
			tenants);
	snprintf(text, text_bytes, "changed: %s; requires a restart: %s", applies[0] ? applies : "nothing",
		restart[0] ? restart : "nothing");
	recipe_apply(&agent->config, next);
	free(next);
	log_setup("agent", agent->config.log_level, agent->config.log_target == CONFIG_LOG_JOURNAL);
	for (uint32_t i = 0; i < agent->pool_count; i++) {
		pool_limits_forget(agent->pools[i]);
		pool_configure(agent->pools[i]);
		pool_update_pressure(agent->pools[i]);
	}
	config_keep(agent);
	log_info("reload: %s", text);
	event_publish(agent, EVENT_RELOAD, NULL, 0, 0, "%s", text);
	return 0;
}

static int answer_reload(struct exchange *x)
{
	char text[1024];
	int error;

	text[0] = '\0';
	error = control_reload(x->agent, text, sizeof(text));
	return error ? exchange_fail(x, error, "%s", text) : exchange_done(x, 0, text);
}

struct verb {
	uint16_t type;
	enum session_kind kind; /* required by the request */
	bool changes;           /* the answer is stored; a repetition of the request returns it and is not executed */
	int (*answer)(struct exchange *x);
};

static const struct verb verbs[] = {
	{MSG_TYPE_version_request, SESSION_OBSERVER, false, answer_version},
	{MSG_TYPE_layout_request, SESSION_OBSERVER, false, answer_layout},
	{MSG_TYPE_status_request, SESSION_OBSERVER, false, answer_status},
	{MSG_TYPE_pages_request, SESSION_OBSERVER, false, answer_pages},
	{MSG_TYPE_page_kinds_request, SESSION_OBSERVER, false, answer_page_kinds},
	{MSG_TYPE_pins_request, SESSION_OBSERVER, false, answer_pins},
	{MSG_TYPE_clients_request, SESSION_OBSERVER, false, answer_clients},
	{MSG_TYPE_tenants_request, SESSION_OBSERVER, false, answer_tenants},
	{MSG_TYPE_shortage_request, SESSION_OBSERVER, false, answer_shortage},
	{MSG_TYPE_totals_request, SESSION_OBSERVER, false, answer_totals},
	{MSG_TYPE_tenant_totals_request, SESSION_OBSERVER, false, answer_tenant_totals},
	{MSG_TYPE_check_request, SESSION_OBSERVER, false, answer_check},
	{MSG_TYPE_transfers_request, SESSION_OBSERVER, false, answer_transfers},
	{MSG_TYPE_domains_request, SESSION_OBSERVER, false, answer_domains},
	{MSG_TYPE_regions_request, SESSION_OBSERVER, false, answer_regions},
	{MSG_TYPE_roles_request, SESSION_OBSERVER, false, answer_roles},
	{MSG_TYPE_evict_request, SESSION_ADMIN, true, answer_evict},
	{MSG_TYPE_limit_request, SESSION_ADMIN, true, answer_limit},
	{MSG_TYPE_drain_request, SESSION_ADMIN, true, answer_drain},
	{MSG_TYPE_reload_request, SESSION_ADMIN, true, answer_reload},
	{MSG_TYPE_upgrade_request, SESSION_ADMIN, true, answer_upgrade},
	{MSG_TYPE_role_remove_request, SESSION_ADMIN, true, answer_role_remove},
};

static const struct verb *verb_of(unsigned type)
{
	for (size_t i = 0; i < sizeof(verbs) / sizeof(*verbs); i++)
		if (verbs[i].type == type)
			return &verbs[i];
	return NULL;
}

/*
 * Return the length of the stored answer to this sequence number; 0: none. The answer is stored in the requester's own
 * segment, so a requester that modifies it affects only itself.
 */
static int answer_repeated(struct exchange *x)
{
	struct session_answer *answers = x->session->segment.answers;

	for (int i = 0; i < SESSION_ANSWERS; i++) {
		uint32_t length = atomic_load_explicit(&answers[i].length, memory_order_relaxed);

		if (!length || length > SESSION_ANSWER_BYTES ||
			atomic_load_explicit(&answers[i].sequence, memory_order_acquire) != x->sequence)
			continue;
		memcpy(x->reply, answers[i].bytes, length);
		return (int)length;
	}
	return 0;
}

/* Record the request in progress, so that the next agent can report its progress if this one dies. */
static void verb_begin(const struct exchange *x, unsigned type)
{
	struct ledger_verb *verb = &x->session->pool->ledger.header->verb;

	verb->type = type;
	verb->sequence = x->sequence;
	atomic_store_explicit(&verb->progress, 0, memory_order_relaxed);
	atomic_store_explicit(&verb->session, x->session->id, memory_order_release);
	crash_point();
}

static void verb_end(struct pool *pool)
{
	atomic_store_explicit(&pool->ledger.header->verb.session, 0, memory_order_release);
	crash_point();
}

void control_recover(struct pool *pool)
{
	static uint8_t reply[MSG_BYTES_MAX];
	struct ledger_verb *verb = &pool->ledger.header->verb;
	uint32_t id = atomic_load_explicit(&verb->session, memory_order_acquire);
	struct exchange x = {.agent = pool->agent, .reply = reply, .sequence = verb->sequence};

	x.session = id < POOL_SESSIONS ? pool->sessions[id] : NULL;
	/*
	 * Answer an interrupted evict request. The other requests that change state may be executed again when they are
	 * repeated: they are idempotent, except that a repeated removal of a role may report that the role does not
	 * exist.
	 */
	if (x.session && x.session->segment.header && verb->type == MSG_TYPE_evict_request && !answer_repeated(&x)) {
		uint64_t pages = atomic_load_explicit(&verb->progress, memory_order_relaxed);
		char text[128];

		snprintf(text, sizeof(text), "%llu page%s evicted before the agent was restarted",
			(unsigned long long)pages, plural(pages));
		x.reply_bytes = exchange_done(&x, pages, text);
		exchange_keep(&x);
	}
	verb_end(pool);
}

static int answer(struct exchange *x, unsigned type)
{
	const struct verb *verb = verb_of(type);
	int length;

	if (!verb)
		return exchange_fail(x, -EOPNOTSUPP, "this agent does not support request %u", type);
	/* Workers may send the requests of observers. Requests that change state need an admin. */
	if (verb->kind == SESSION_ADMIN && x->session->kind != SESSION_ADMIN)
		return exchange_fail(
			x, -EPERM, "%s requires an admin session; see access.admins in gpoold.conf", msg_name(type));
	length = verb->changes ? answer_repeated(x) : 0;
	if (length)
		return length;
	if (verb->changes)
		verb_begin(x, type);
	x->reply_bytes = verb->answer(x);
	if (x->reply_bytes < 0)
		x->reply_bytes = exchange_fail(x, x->reply_bytes, "cannot encode the reply to %s", msg_name(type));
	if (verb->changes && x->reply_bytes > 0)
		exchange_keep(x);
	if (verb->changes)
		verb_end(x->session->pool);
	return x->reply_bytes;
}

void control_packet(struct agent *agent, const uint8_t *packet, size_t length)
{
	static uint8_t reply[MSG_BYTES_MAX];
	struct exchange x = {.agent = agent, .reply = reply};
	struct msg_envelope envelope;
	int bytes;

	if (length <= sizeof(x.id))
		return;
	memcpy(&x.id, packet, sizeof(x.id));
	x.request = packet + sizeof(x.id);
	x.request_bytes = length - sizeof(x.id);
	if (!x.id || msg_envelope_read(&envelope, x.request, x.request_bytes))
		return;
	x.sequence = envelope.sequence;
	/* The front has checked the token, but the front may be compromised. */
	x.session = session_by_token(agent, envelope.token);
	bytes = x.session ? answer(&x, envelope.type)
			  : exchange_fail(&x, -EACCES, "the token does not belong to a live session; attach again");
	if (bytes > 0)
		front_send(agent, x.id, reply, (uint32_t)bytes);
}
