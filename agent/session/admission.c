/* admission.c - answer an attach request: check it, create the session, send the answer. */
#include "agent/session/session_internal.h"
#include "shm/plural.h"

#include "agent/base/descriptors.h"
#include "agent/base/log.h"
#include "agent/keeper/channel.h"
#include "agent/pages/event.h"
#include "agent/pages/lease.h"
#include "agent/pages/trust.h"
#include "agent/session/session_limits.h"
#include "agent/session/tokens.h"
#include "shm/doorbell.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

static struct pool *pool_named(struct agent *agent, const char *name)
{
	if (!name[0])
		return agent->pool_count ? agent->pools[0] : NULL;
	for (uint32_t i = 0; i < agent->pool_count; i++)
		if (!strcmp(agent->pools[i]->segment.header->name, name))
			return agent->pools[i];
	return NULL;
}

static int refuse(int socket, int error, const char *format, ...) __attribute__((format(printf, 3, 4)));

static int refuse(int socket, int error, const char *format, ...)
{
	struct msg_attach_reply reply = {.error = error};
	uint8_t buffer[2048];
	char text[256];
	va_list arguments;
	int length;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	msg_text_copy(reply.text, sizeof(reply.text), text);
	log_info("attach refused: %s", text);
	length = msg_encode_attach_reply(&reply, 0, NULL, buffer, sizeof(buffer));
	if (length > 0)
		attach_send(socket, buffer, (size_t)length, NULL, 0);
	return error;
}

/* Use the ids in turn, so that an owner in a page word does not soon refer to another session. */
static uint32_t id_find(struct pool *pool)
{
	for (uint32_t i = 0; i < PAGE_SESSION_MAX; i++) {
		uint32_t id = (pool->session_next - 1 + i) % PAGE_SESSION_MAX + 1;

		if (!pool->sessions[id]) {
			pool->session_next = id % PAGE_SESSION_MAX + 1;
			return id;
		}
	}
	return 0;
}

int session_send_admission(struct session *session)
{
	const struct pool_header *header = session->pool->segment.header;
	const struct config *config = &session->pool->agent->config;
	struct msg_attach_reply reply = {
		.session = session->id,
		.incarnation = session->pool->agent->incarnation,
		.page_size = header->page_bytes,
		.page_count = header->page_count,
		.pages_per_handle = header->pages_per_handle,
	};
	int fds[] = {session->pool->segment_fd, session->segment_fd, session->doorbell.fd};
	uint8_t buffer[2048];
	int length;

	memcpy(reply.token, session->token, sizeof(reply.token));
	snprintf(reply.pool, sizeof(reply.pool), "%s", header->name);
	snprintf(reply.backend, sizeof(reply.backend), "%s", header->backend);
	snprintf(reply.device, sizeof(reply.device), "%s", header->device);
	snprintf(reply.control_url, sizeof(reply.control_url), "ipc://%s/nn/control", config->runtime_dir);
	snprintf(reply.events_url, sizeof(reply.events_url), "ipc://%s/nn/events", config->runtime_dir);
	length = msg_encode_attach_reply(&reply, 0, NULL, buffer, sizeof(buffer));
	return length < 0 ? length : attach_send(session->socket.fd, buffer, (size_t)length, fds, 3);
}

/*
 * Store the state that the next agent cannot get elsewhere. If this or the message to the keeper fails, the session is
 * refused.
 */
static int ledger_write(const struct session *session)
{
	struct ledger_session *record = session_ledger(session);

	trust_session_begin(session->pool, session->id);
	memset(record, 0, sizeof(*record));
	record->kind = session->kind;
	record->privileged = session->privileged;
	record->pid = (uint32_t)session->pid;
	record->uid = session->uid;
	record->domain = session->domain;
	record->quota = session->quota;
	record->limit = session->limit;
	record->attached_ms = session->attached_ms;
	memcpy(record->token, session->token, sizeof(record->token));
	snprintf(record->name, sizeof(record->name), "%s", session->name);
	snprintf(record->tenant, sizeof(record->tenant), "%s", session->tenant->config->name);
	session_ledger_state(session, LEDGER_SESSION_ADMITTING);
	return agent_hold(session->pool->agent,
		&(struct held){.kind = KEEP_SESSION,
			.pool = session->pool->index,
			.id = session->id,
			.fd_count = 4,
			.fds = {session->segment_fd, session->socket.fd, session->pidfd.fd, session->doorbell.fd}});
}

/*
 * Create the descriptors and the segment of a session, and register them. After an error, the caller frees the session.
 */
static int session_equip(struct session *session, struct agent *agent)
{
	struct pool *pool = session->pool;
	int error;

	if (getrandom(session->token, sizeof(session->token), 0) != (ssize_t)sizeof(session->token))
		return -EIO;
	error = session_segment_create(session->kind == SESSION_WORKER ? pool->page_count : 0, pool->index, session->id,
		agent->incarnation, &session->segment, &session->segment_fd);
	if (error)
		return error;
	session->doorbell.fd = doorbell_create();
	return session->doorbell.fd < 0 ? session->doorbell.fd : session_watch(session);
}

/* Return the quota in pages; 0: none. A quota is at most the size of the pool. */
static uint32_t quota_pages(const struct pool *pool, uint64_t bytes)
{
	uint64_t pages = bytes / pool->segment.header->page_bytes;

	if (!bytes)
		return 0;
	return pages > pool->page_count ? pool->page_count : (uint32_t)pages;
}

/*
 * Send the reply to an attach request. End the session if the process has closed its connection or cannot receive
 * descriptors.
 */
static bool session_answer(struct session *session)
{
	int error = session_send_admission(session);

	if (!error) {
		session_ledger_state(session, LEDGER_SESSION_LIVE);
		return true;
	}
	/*
	 * The process cannot use any page, because it has not received the descriptors. The session can therefore end
	 * before the process.
	 */
	log_warning(
		"cannot reply to '%s' (pid %d): %s; ending its session", session->name, session->pid, strerror(-error));
	session_end(session, SESSION_END_DETACH);
	return false;
}

static int session_start(struct agent *agent, struct pool *pool, int socket, const struct attach_peer *peer,
	const struct msg_attach_request *request, struct tenant *tenant)
{
	struct session *session = session_new(pool, id_find(pool));
	int error;

	if (!session)
		return -ENOMEM;
	session->kind = (enum session_kind)request->kind;
	session->privileged = session_is_operator(peer->uid) || !strcmp(tenant->config->name, "system") ||
		(access_may_be(&agent->config, SESSION_ADMIN, peer));
	session->tenant = tenant;
	session->domain = tenant->domain;
	session->pid = peer->pid;
	session->uid = peer->uid;
	snprintf(session->name, sizeof(session->name), "%s", request->name);
	session->quota = quota_pages(pool, request->quota_bytes);
	session->limit = session->quota;
	session->attached_ms = session->last_refill_ms = clock_ms();
	session->socket.fd = socket;
	session->pidfd.fd = peer->pidfd;
	error = session_equip(session, agent);
	if (error) {
		session_unwatch(session);
		/* the caller owns socket and pidfd until all steps have succeeded */
		session->socket.fd = session->pidfd.fd = -1;
		session_free(session);
		return error;
	}
	error = ledger_write(session);
	if (error) {
		session_ledger_state(session, LEDGER_SESSION_NONE);
		session_unwatch(session);
		session->socket.fd = session->pidfd.fd = -1;
		session_free(session);
		return error;
	}
	session_enter(session);
	session_record_write(session, SESSION_RECORD_LIVE);
	pool_count(pool, POOL_COUNT_ATTACHES, 1);
	if (session->kind == SESSION_WORKER)
		lease_initial(session, agent->config.lease.initial_pages);
	session_ledger_state(session, LEDGER_SESSION_SENDING);
	token_announce(agent, session);
	agent_need_tick(agent, 100);
	if (!session_answer(session))
		return 0;
	log_debug("session %u of pool '%s': %s '%s', pid %d, uid %u, tenant '%s'", session->id, pool->config->name,
		session_kind_name(session->kind), session->name, session->pid, session->uid, tenant->config->name);
	if (session->kind == SESSION_WORKER)
		event_publish(agent, EVENT_SESSION_START, pool, session->id, (uint64_t)session->pid, "'%s' attached",
			session->name);
	return 0;
}

int session_admit(
	struct agent *agent, int socket, const struct attach_peer *peer, const struct msg_attach_request *request)
{
	struct pool *pool;
	struct tenant *tenant;
	char text[256];
	int error = 0;

	if (request->layout_version != POOL_LAYOUT_VERSION)
		return refuse(socket, -EPROTO,
			"the layout is %u, but this agent has %d; install the same version of the library and the "
			"agent",
			request->layout_version, POOL_LAYOUT_VERSION);
	if (request->flags || request->kind > SESSION_ADMIN)
		return refuse(socket, -EINVAL, "unknown flags 0x%x or session kind %u", request->flags, request->kind);
	pool = pool_named(agent, request->pool);
	if (!pool)
		return refuse(socket, -ENXIO, "no pool '%s'; poolctl status lists the pools", request->pool);
	if (!access_may_be(&agent->config, request->kind, peer))
		return refuse(socket, -EACCES, "user %u may not attach as %s; see access in gpoold.conf", peer->uid,
			session_kind_name(request->kind));
	tenant = access_tenant(pool, request->tenant, request->kind, peer, &error);
	if (!tenant)
		return refuse(socket, error,
			error == -ENXIO ? "no tenant '%s'; poolctl tenants lists the tenants"
					: "the user does not belong to tenant '%s'; see tenants in gpoold.conf",
			request->tenant);
	if (pool->trust && !tenant->domain)
		return refuse(socket, -ENOSPC, "the pool cannot have another trust domain '%s'; restart gpoold",
			tenant->config->domain);
	if (request->kind == SESSION_WORKER &&
		atomic_load_explicit(&pool->segment.header->draining, memory_order_relaxed))
		return refuse(socket, -ESHUTDOWN,
			"pool '%s' is out of service (poolctl drain); attach to another pool, or try again after "
			"poolctl drain --off",
			pool->segment.header->name);
	if (request->quota_bytes && request->quota_bytes < pool->segment.header->page_bytes)
		return refuse(socket, -EINVAL, "quota_bytes is %llu; the minimum is a page, %llu bytes (0: no quota)",
			(unsigned long long)request->quota_bytes, (unsigned long long)pool->segment.header->page_bytes);
	error = session_limits_check(pool, tenant, (enum session_kind)request->kind, peer->uid, text, sizeof(text));
	if (error)
		return refuse(socket, error, "%s", text);
	if (!descriptors_left(agent, DESCRIPTORS_OF_SESSION))
		return refuse(socket, -EMFILE,
			"a session needs %d descriptors, but too few of the %u descriptors of gpoold (RLIMIT_NOFILE) "
			"are left; raise LimitNOFILE= of its unit",
			DESCRIPTORS_OF_SESSION, descriptors_most());
	error = session_start(agent, pool, socket, peer, request, tenant);
	/* Any system error here is caused by a lack of resources, not by the requester. */
	if (error)
		return refuse(socket, error == -EMFILE || error == -ENFILE ? -EMFILE : -ENOMEM,
			"the agent cannot create a session: %s", strerror(-error));
	return 0;
}
