#include "agent/session/session.h"

#include "agent/base/crash_point.h"
#include "agent/base/descriptors.h"
#include "agent/pages/event.h"
#include "agent/pages/flight.h"
#include "agent/keeper/channel.h"
#include "agent/session/asked.h"
#include "agent/pages/lease.h"
#include "agent/pages/object_records.h"
#include "agent/base/log.h"
#include "agent/pages/requests.h"
#include "agent/session/roles.h"
#include "agent/session/session_limits.h"
#include "agent/session/timelines.h"
#include "agent/session/tokens.h"
#include "agent/pages/trust.h"
#include "shm/doorbell.h"
#include "shm/session_totals.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
	/* an exiting process closes its files just before its pidfd fires: wait so long before marking pages */
	CLOSING_GRACE_MS = 2,
	DAMAGE_MAX = 16, /* fields that cannot be, before the session is ended */
};

#define session_of(source, member) ((struct session *)(void *)((char *)(source)-offsetof(struct session, member)))

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

bool session_is_operator(uid_t uid)
{
	return uid == 0 || uid == geteuid();
}

static bool is_operator(const struct attach_peer *peer)
{
	return session_is_operator(peer->uid);
}

static bool may_be(const struct config *config, uint32_t kind, const struct attach_peer *peer)
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

/* The tenant asked for, or the first that names this peer, or the first that is open to all. */
static struct tenant *tenant_for(
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
	/* Who takes no pages needs no tenant, and the operator must get in whatever the list says. */
	if (kind != SESSION_WORKER || is_operator(peer))
		return &pool->tenants[0];
	*error = -EACCES;
	return NULL;
}

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

/* Ids go round, so that a page word's owner is not soon somebody else. */
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

static void record_write(struct session *session, enum session_record_state state)
{
	struct session_record *record = &session->pool->segment.sessions[session->id];

	if (state == SESSION_RECORD_LIVE) {
		atomic_store_explicit(&record->state, SESSION_RECORD_NONE, memory_order_release);
		record->pid = (uint32_t)session->pid;
		record->uid = session->uid;
		record->kind = session->kind;
		record->attached_ms = wall_ms();
		snprintf(record->name, sizeof(record->name), "%s", session->name);
		snprintf(record->tenant, sizeof(record->tenant), "%s", session->tenant->config->name);
		record->domain = session->domain;
	}
	atomic_store_explicit(&record->state, state, memory_order_release);
}

/*
 * A descriptor is memory for good (no import can be revoked), so only of what is leased to the asker, or of an object
 * it reads.
 */
static bool handle_allowed(const struct session *session, uint32_t handle)
{
	uint32_t per_handle = session->pool->segment.header->pages_per_handle;

	for (uint32_t page = handle * per_handle; page < (handle + 1) * per_handle; page++) {
		uint64_t word = pool_word(session->pool, page);

		if (page_word_state(word) == PAGE_SHARED ? object_may_map(session->pool, session->id, word)
							 : page_word_owner(word) == session->id)
			return true;
	}
	return false;
}

static void send_handles(struct session *session, uint64_t sequence, uint32_t first, uint32_t count)
{
	static struct msg_handles_reply reply;
	static uint8_t buffer[MSG_BYTES_MAX];
	const struct physical *physical = &session->pool->physical;
	int fds[ATTACH_FDS_MAX], length, error = 0;
	size_t fd_count = 0;

	memset(&reply, 0, sizeof(reply));
	if (count < 1 || first >= physical->handle_count || count > physical->handle_count - first) {
		reply.error = -EINVAL;
	} else if (physical->arena) {
		fds[fd_count++] = physical->exports[0].fd;
		reply.entries[reply.entries_count++] = (struct msg_handle_entry){
			.first = 0,
			.count = physical->handle_count,
			.offset = physical->exports[0].offset,
			.length = physical->handle_bytes,
		};
	} else {
		for (uint32_t handle = first; handle < first + count && fd_count < ATTACH_FDS_MAX; handle++) {
			if (!handle_allowed(session, handle))
				continue;
			reply.entries[reply.entries_count++] = (struct msg_handle_entry){
				.first = handle,
				.count = 1,
				.fd_index = (uint32_t)fd_count,
				.offset = physical->exports[handle].offset,
				.length = physical->exports[handle].length,
			};
			trust_hand_out(session, handle);
			fds[fd_count++] = physical->exports[handle].fd;
		}
		if (!fd_count)
			reply.error = -EACCES;
	}
	length = msg_encode_handles_reply(&reply, sequence, NULL, buffer, sizeof(buffer));
	if (length > 0)
		error = attach_send(session->socket.fd, buffer, (size_t)length, fds, fd_count);
	if (length > 0 && !error)
		return;
	/* Too many descriptors in flight, most likely: the worker must hear of it rather than wait. */
	memset(&reply, 0, sizeof(reply));
	reply.error = error ? error : length;
	length = msg_encode_handles_reply(&reply, sequence, NULL, buffer, sizeof(buffer));
	if (length > 0)
		attach_send(session->socket.fd, buffer, (size_t)length, NULL, 0);
}

static void send_detached(const struct session *session, uint64_t sequence)
{
	struct msg_detach_reply reply = {.error = 0};
	uint8_t buffer[128];
	int length = msg_encode_detach_reply(&reply, sequence, NULL, buffer, sizeof(buffer));

	if (length > 0)
		attach_send(session->socket.fd, buffer, (size_t)length, NULL, 0);
}

/* The asker takes the answer by the sequence number that it gave its question. */
static void send_role(struct session *session, const struct msg_role_request *request, uint64_t sequence)
{
	struct msg_role_reply reply;
	uint8_t buffer[MSG_LARGEST_role_reply];
	int length, error;

	role_serve(session, request, &reply);
	length = msg_encode_role_reply(&reply, sequence, NULL, buffer, sizeof(buffer));
	error = length < 0 ? length : attach_send(session->socket.fd, buffer, (size_t)length, NULL, 0);
	if (error)
		log_debug("session %u ('%s') does not take an answer: %s; it will ask again", session->id,
			session->name, strerror(-error));
}

static void session_unwatch(struct session *session)
{
	agent_unwatch(session->pool->agent, &session->socket);
	agent_unwatch(session->pool->agent, &session->pidfd);
	agent_unwatch(session->pool->agent, &session->doorbell);
}

static struct ledger_session *ledger_of(const struct session *session)
{
	return &session->pool->ledger.sessions[session->id];
}

static void ledger_state(const struct session *session, enum ledger_session_state state)
{
	atomic_store_explicit(&ledger_of(session)->state, state, memory_order_release);
	crash_point();
}

/* Its pages wait for its process. */
static void session_set_closed(struct session *session)
{
	session->state = SESSION_CLOSED;
	ledger_state(session, LEDGER_SESSION_CLOSED);
	pool_quarantine_of(session->pool, session->id);
	record_write(session, SESSION_RECORD_CLOSED);
}

static bool process_ended(const struct session *session)
{
	struct pollfd look = {.fd = session->pidfd.fd, .events = POLLIN};

	return poll(&look, 1, 0) == 1 && look.revents & POLLIN;
}

/*
 * The driver has let go before a pidfd says so; where that is not to be trusted, the pages are kept for a while. What
 * is left of it then is as one that has closed its connection, for a successor of the agent too, which begins anew to
 * count.
 */
static void process_died(struct session *session)
{
	struct pool *pool = session->pool;
	uint32_t grace_ms = pool->agent->config.trust.death_grace_ms;

	if (!grace_ms || session->kind != SESSION_WORKER) {
		session_end(session, SESSION_END_DEATH);
		return;
	}
	session_unwatch(session);
	requests_forget(session);
	session->died_ms = clock_ms();
	session_set_closed(session);
	log_info("session %u of pool '%s' ('%s', pid %d) died: %u pages wait for %u ms", session->id,
		pool->config->name, session->name, session->pid, session->leased, grace_ms);
	agent_need_tick(pool->agent, grace_ms);
}

/* The connection is over; whether the process is too decides what becomes of the pages. */
static void connection_closed(struct session *session)
{
	agent_unwatch(session->pool->agent, &session->socket);
	if (process_ended(session)) {
		process_died(session);
		return;
	}
	session->state = SESSION_CLOSING;
	session->closing_ms = clock_ms();
	requests_forget(session);
	roles_withdraw(session);
	agent_need_tick(session->pool->agent, CLOSING_GRACE_MS);
}

static void released(struct session *session, const uint8_t *packet, size_t length)
{
	static struct msg_handles_released message;

	if (msg_decode_handles_released(&message, packet, length) || session->kind != SESSION_WORKER) {
		session_damage(session, "a release of handles that cannot be");
		return;
	}
	/* In order, so that a message costs no more than a look at each page. */
	for (uint32_t i = 1; i < message.runs_count; i++)
		if (message.runs[i].first < (uint64_t)message.runs[i - 1].first + message.runs[i - 1].count) {
			session_damage(session, "a release of handles out of order");
			return;
		}
	for (uint32_t i = 0; i < message.runs_count; i++)
		trust_let_go(session, message.runs[i].first, message.runs[i].count);
}

/* NULL: agent/session serves the message itself, or it is unknown. */
static const struct session_part *part_that_serves(const struct pool *pool, uint32_t type)
{
	for (const struct session_part *const *part = pool->session_parts; *part; part++)
		if ((*part)->serves && (*part)->serves(type))
			return *part;
	return NULL;
}

static void damage_if(struct session *session, const char *damage)
{
	if (damage)
		session_damage(session, damage);
}

static void socket_ready(struct event_source *source, uint32_t events)
{
	struct session *session = session_of(source, socket);
	uint8_t buffer[1024];
	struct msg_envelope envelope;
	struct msg_handles_request handles;
	struct msg_role_request role;
	const struct session_part *part;
	size_t fd_count = 0;
	int length, fd = -1;

	(void)events;
	if (session->state != SESSION_LIVE)
		return;
	/* Out of descriptors is our trouble and not the sender's damage: it asks again. */
	length = attach_receive(source->fd, buffer, sizeof(buffer), &fd, 1, &fd_count, 0);
	if (length == -EAGAIN || length == -EMFILE)
		return;
	if (length == -EPIPE || length == -ECONNRESET) {
		connection_closed(session);
		return;
	}
	if (length < 0 || msg_envelope_read(&envelope, buffer, (size_t)length)) {
		if (fd >= 0)
			close(fd);
		session_damage(session, "a packet that is no message");
		return;
	}
	part = part_that_serves(session->pool, envelope.type);
	if (part) {
		damage_if(session, part->request(session, &envelope, buffer, (size_t)length, fd));
		return;
	}
	if (envelope.type == MSG_TYPE_timeline_share_request || envelope.type == MSG_TYPE_timeline_open_request) {
		damage_if(session, timelines_request(session, &envelope, buffer, (size_t)length, fd));
		return;
	}
	if (fd >= 0)
		close(fd);
	switch (envelope.type) {
	case MSG_TYPE_handles_request:
		if (msg_decode_handles_request(&handles, buffer, (size_t)length) || session->kind != SESSION_WORKER)
			session_damage(session, "a handles request that cannot be");
		else
			send_handles(session, envelope.sequence, handles.first, handles.count);
		return;
	case MSG_TYPE_role_request:
		if (msg_decode_role_request(&role, buffer, (size_t)length))
			session_damage(session, "a role request that cannot be");
		else
			send_role(session, &role, envelope.sequence);
		return;
	case MSG_TYPE_handles_released: released(session, buffer, (size_t)length); return;
	case MSG_TYPE_detach_request:
		if (trust_holds(session)) {
			send_detached(session, envelope.sequence);
			connection_closed(session);
			return;
		}
		/*
		 * Ended first: an agent that dies between the two must not have said it for nothing. The socket
		 * outlives this pass.
		 */
		session_end(session, SESSION_END_DETACH);
		send_detached(session, envelope.sequence);
		return;
	default: session_damage(session, "a message that does not belong here");
	}
}

static void pidfd_ready(struct event_source *source, uint32_t events)
{
	struct session *session = session_of(source, pidfd);

	(void)events;
	if (session->state != SESSION_DEAD)
		process_died(session);
}

static void requests_damage(struct session *session, uint32_t malformed)
{
	while (malformed--)
		session_damage(session, "a lease request of an unknown kind");
}

static void doorbell_ready(struct event_source *source, uint32_t events)
{
	struct session *session = session_of(source, doorbell);

	(void)events;
	requests_damage(session, requests_doorbell(session));
}

static int send_admission(struct session *session)
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

static void session_free(struct session *session)
{
	if (session->socket.fd >= 0)
		close(session->socket.fd);
	if (session->pidfd.fd >= 0)
		close(session->pidfd.fd);
	if (session->doorbell.fd >= 0)
		close(session->doorbell.fd);
	if (session->segment_fd >= 0)
		close(session->segment_fd);
	session_segment_close(&session->segment);
	free(session->leaks);
	free(session);
}

/* What the next agent cannot find elsewhere. Without it, and the keeper's hold, there is no session. */
static int ledger_write(const struct session *session)
{
	struct ledger_session *record = ledger_of(session);

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
	ledger_state(session, LEDGER_SESSION_ADMITTING);
	return agent_hold(session->pool->agent,
		&(struct held){.kind = KEEP_SESSION,
			.pool = session->pool->index,
			.id = session->id,
			.fd_count = 4,
			.fds = {session->segment_fd, session->socket.fd, session->pidfd.fd, session->doorbell.fd}});
}

static int session_watch(struct session *session)
{
	struct agent *agent = session->pool->agent;
	int error = agent_watch(agent, &session->pidfd, EPOLLIN);

	if (!error && session->doorbell.fd >= 0)
		error = agent_watch(agent, &session->doorbell, EPOLLIN | EPOLLET);
	if (!error && session->socket.fd >= 0)
		error = agent_watch(agent, &session->socket, EPOLLIN);
	return error;
}

/* Descriptors, segment, registration. On failure the caller frees what there is. */
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

/* 0: none. Less than a page is one page; more than the pool is the pool. */
static uint32_t quota_pages(const struct pool *pool, uint64_t bytes)
{
	uint64_t pages = bytes / pool->segment.header->page_bytes;

	if (!bytes)
		return 0;
	return pages < 1 ? 1 : pages > pool->page_count ? pool->page_count : (uint32_t)pages;
}

static struct session *session_new(struct pool *pool, uint32_t id)
{
	struct session *session = calloc(1, sizeof(*session));

	if (!session)
		return NULL;
	session->pool = pool;
	session->id = id;
	LIST_INIT(&session->spilled);
	session->timeline_fd = -1;
	session->segment_fd = session->doorbell.fd = session->socket.fd = session->pidfd.fd = -1;
	session->socket.ready = socket_ready;
	session->pidfd.ready = pidfd_ready;
	session->doorbell.ready = doorbell_ready;
	return session;
}

static void session_enter(struct session *session)
{
	struct pool *pool = session->pool;

	pool->sessions[session->id] = session;
	pool->session_count++;
	session->tenant->sessions++;
	/* The coarse clock stood still while nobody was attached. */
	atomic_store_explicit(&pool->segment.header->clock_ms, (uint32_t)clock_ms(), memory_order_relaxed);
	atomic_store_explicit(&pool->segment.header->sessions, pool->session_count, memory_order_relaxed);
}

/* The attach is answered. On failure it went away already, or cannot take descriptors: the session ends. */
static bool session_answer(struct session *session)
{
	int error = send_admission(session);

	if (!error) {
		ledger_state(session, LEDGER_SESSION_LIVE);
		return true;
	}
	/* It has got nothing, so nothing has to wait for its death. */
	log_warning("cannot answer '%s' (pid %d): %s; its session ends", session->name, session->pid, strerror(-error));
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
	session->privileged = is_operator(peer) || !strcmp(tenant->config->name, "system") ||
		(may_be(&agent->config, SESSION_ADMIN, peer));
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
		/* socket and pidfd stay the caller's until all is well */
		session->socket.fd = session->pidfd.fd = -1;
		session_free(session);
		return error;
	}
	error = ledger_write(session);
	if (error) {
		ledger_state(session, LEDGER_SESSION_NONE);
		session_unwatch(session);
		session->socket.fd = session->pidfd.fd = -1;
		session_free(session);
		return error;
	}
	session_enter(session);
	record_write(session, SESSION_RECORD_LIVE);
	pool_count(pool, POOL_COUNT_ATTACHES, 1);
	if (session->kind == SESSION_WORKER)
		lease_initial(session, agent->config.lease.initial_pages);
	ledger_state(session, LEDGER_SESSION_SENDING);
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
		return refuse(socket, -EPROTO, "layout %u, this agent has %d: install library and agent of one version",
			request->layout_version, POOL_LAYOUT_VERSION);
	if (request->flags || request->kind > SESSION_ADMIN)
		return refuse(socket, -EINVAL, "flags 0x%x or session kind %u are not known here", request->flags,
			request->kind);
	pool = pool_named(agent, request->pool);
	if (!pool)
		return refuse(socket, -ENXIO, "no pool '%s'; poolctl status lists them", request->pool);
	if (!may_be(&agent->config, request->kind, peer))
		return refuse(socket, -EACCES, "user %u may not attach as %s; see access in gpoold.conf", peer->uid,
			session_kind_name(request->kind));
	tenant = tenant_for(pool, request->tenant, request->kind, peer, &error);
	if (!tenant)
		return refuse(socket, error,
			error == -ENXIO ? "no tenant '%s'; poolctl tenants lists them"
					: "user may not join tenant '%s'; see tenants in gpoold.conf",
			request->tenant);
	if (pool->trust && !tenant->domain)
		return refuse(socket, -ENOSPC, "there is no room for trust domain '%s'; restart gpoold",
			tenant->config->domain);
	if (request->kind == SESSION_WORKER &&
		atomic_load_explicit(&pool->segment.header->draining, memory_order_relaxed))
		return refuse(socket, -ESHUTDOWN,
			"pool '%s' is out of service (poolctl drain); attach to another one, or after poolctl drain "
			"--off",
			pool->segment.header->name);
	error = session_limits_check(pool, tenant, (enum session_kind)request->kind, peer->uid, text, sizeof(text));
	if (error)
		return refuse(socket, error, "%s", text);
	if (!descriptors_left(agent, DESCRIPTORS_OF_SESSION))
		return refuse(socket, -EMFILE,
			"a session takes %d descriptors, and of the %u that gpoold may have (RLIMIT_NOFILE) too few "
			"are left; raise LimitNOFILE= of its unit",
			DESCRIPTORS_OF_SESSION, descriptors_most());
	error = session_start(agent, pool, socket, peer, request, tenant);
	/* Whatever the system said, it was no mistake of the asker: for him something is lacking here. */
	if (error)
		return refuse(socket, error == -EMFILE || error == -ENFILE ? -EMFILE : -ENOMEM,
			"the agent cannot make a session: %s", strerror(-error));
	return 0;
}

/* What the keeper holds of it; without (the keeper was out of memory) the process itself is asked for. */
static void restore_descriptors(struct session *session, const struct held *held)
{
	if (held && held->fd_count == 4) {
		session->segment_fd = held->fds[0];
		session->socket.fd = held->fds[1];
		session->pidfd.fd = held->fds[2];
		session->doorbell.fd = held->fds[3];
		return;
	}
	session->pidfd.fd = (int)syscall(SYS_pidfd_open, session->pid, 0);
}

/*
 * gpoold itself was started anew and has a new pool segment: who was attached looks at the old one, which nobody writes
 * any more. It is told that its session is over, and its pages wait for its death, since it may still use them.
 */
static void session_leave_behind(struct session *session)
{
	atomic_store_explicit(&session->segment.header->close_error, -EPIPE, memory_order_relaxed);
	atomic_store_explicit(&session->segment.header->closed, 1, memory_order_release);
	for (uint32_t i = 0; i < SESSION_REQUESTS; i++)
		futex_wake(&session->segment.requests[i].state, 1);
	ledger_state(session, LEDGER_SESSION_CLOSED);
}

/* What it says is lost: a blank one, which says nothing, so that nobody has to ask whether there is one. */
static int segment_replace(struct session *session)
{
	if (session->segment_fd >= 0)
		close(session->segment_fd);
	session->segment_fd = -1;
	return session_segment_create(session->kind == SESSION_WORKER ? session->pool->page_count : 0,
		session->pool->index, session->id, session->pool->agent->incarnation, &session->segment,
		&session->segment_fd);
}

int session_restore(struct pool *pool, uint32_t id, const struct held *held, uint32_t leased)
{
	const struct ledger_session *record = &pool->ledger.sessions[id];
	struct session *session = session_new(pool, id);
	int error;

	if (!session)
		return -ENOMEM;
	session->kind = (enum session_kind)record->kind;
	session->privileged = record->privileged != 0;
	session->pid = (pid_t)record->pid;
	session->uid = record->uid;
	session->domain = pool->trust ? record->domain : 0;
	session->quota = record->quota;
	session->limit = record->limit;
	session->attached_ms = record->attached_ms;
	session->last_refill_ms = clock_ms();
	session->leased = leased;
	memcpy(session->token, record->token, sizeof(session->token));
	snprintf(session->name, sizeof(session->name), "%.63s", record->name);
	session->tenant = pool_tenant(pool, record->tenant);
	if (!session->tenant)
		session->tenant = &pool->tenants[0];
	restore_descriptors(session, held);
	error = session->segment_fd < 0
		? -EBADF
		: session_segment_open(session->segment_fd, session->kind == SESSION_WORKER ? pool->page_count : 0,
			  true, &session->segment);
	if (error && segment_replace(session)) {
		session_free(session);
		return -ENOMEM;
	}
	session->tenant->leased += leased;
	session_enter(session);
	/* They come in order: the next one is behind all of them, and not who died last. */
	pool->session_next = id % PAGE_SESSION_MAX + 1;
	if (!error && session->pidfd.fd >= 0)
		error = session_watch(session);
	if (error && session->pidfd.fd >= 0) {
		/* Without its segment nothing can be said to it: it is as one that has closed its connection. */
		log_warning("session %u of pool '%s' ('%s', pid %d) cannot go on: %s; its pages wait for its end", id,
			pool->config->name, session->name, session->pid, strerror(-error));
		agent_unwatch(pool->agent, &session->socket);
		agent_unwatch(pool->agent, &session->doorbell);
		session->state = SESSION_CLOSED;
	} else if (session->pidfd.fd < 0) {
		session->state = SESSION_CLOSED;
		return 0; /* session_resume() finds that it is dead */
	}
	if (pool->agent->start->adopted)
		session_leave_behind(session);
	if (record->state == LEDGER_SESSION_CLOSED) {
		session->state = SESSION_CLOSED;
		agent_unwatch(pool->agent, &session->socket);
	}
	return 0;
}

void session_resume(struct session *session)
{
	const struct ledger_session *record = ledger_of(session);

	if (session->pidfd.fd < 0) {
		session_end(session, SESSION_END_DEATH);
		return;
	}
	if (session->state == SESSION_CLOSED) {
		pool_quarantine_of(session->pool, session->id);
		record_write(session, SESSION_RECORD_CLOSED);
		return;
	}
	/*
	 * Perhaps told already: then it is told twice, and drops what it did not ask for. If not even that: it may use
	 * its pages.
	 */
	if (record->state == LEDGER_SESSION_SENDING && send_admission(session)) {
		connection_closed(session);
		return;
	}
	if (record->state == LEDGER_SESSION_SENDING)
		ledger_state(session, LEDGER_SESSION_LIVE);
	requests_damage(session, requests_restart(session));
}

void session_add_totals(const struct session *session, struct session_totals *totals)
{
	session_totals_add(totals, session->segment.stats, (clock_ms() - session->attached_ms + 1) * UINT64_C(1000000));
}

/* Keep what the session has recorded, while its segment is there. */
static void flight_session_ends(const struct session *session)
{
	flight_keep(&session->segment.flight, (uint16_t)session->id, &session->pool->segment.flight);
	crash_point();
}

static void parts_ending(struct session *session)
{
	for (const struct session_part *const *part = session->pool->session_parts; *part; part++)
		if ((*part)->ending)
			(*part)->ending(session);
}

static void parts_returned(struct session *session)
{
	for (const struct session_part *const *part = session->pool->session_parts; *part; part++)
		if ((*part)->returned)
			(*part)->returned(session);
}

void session_end(struct session *session, enum session_end how)
{
	struct pool *pool = session->pool;
	uint32_t pages;

	if (session->state == SESSION_DEAD)
		return;
	session->state = SESSION_DEAD;
	ledger_state(session, LEDGER_SESSION_ENDING);
	requests_forget(session);
	parts_ending(session);
	flight_session_ends(session);
	pages = pool_take_back_of(pool, session->id);
	parts_returned(session);
	session->tenant->leased -= session->leased;
	session->tenant->sessions--;
	pool->sessions[session->id] = NULL;
	trust_session_end(session);
	timelines_session_end(session);
	pool->session_count--;
	evict_queue_drop(pool);
	record_write(session, SESSION_RECORD_NONE);
	atomic_store_explicit(&pool->segment.header->sessions, pool->session_count, memory_order_relaxed);
	session_unwatch(session);
	/* Should the agent die between these two, the session ends again and counts twice. */
	session_add_totals(session, &pool->segment.header->ended);
	ledger_state(session, LEDGER_SESSION_NONE);
	agent_drop(pool->agent, KEEP_SESSION, pool->index, session->id);
	event_token(pool->agent, session->token, 0);
	session->next_dead = pool->agent->graveyard;
	pool->agent->graveyard = session;
	if (how == SESSION_END_STOP)
		return;
	roles_session_end(session, how == SESSION_END_DEATH);
	if (how == SESSION_END_DEATH && session->kind == SESSION_WORKER)
		pool_count(pool, POOL_COUNT_DEATHS, 1);
	if (session->kind == SESSION_WORKER) {
		log_debug("session %u of pool '%s' ('%s', pid %d) ended%s, %u pages back", session->id,
			pool->config->name, session->name, session->pid,
			how == SESSION_END_DEATH ? " without a detach" : "", pages);
		event_publish(pool->agent, EVENT_SESSION_END, pool, session->id, pages, "'%s' ended, %u pages back",
			session->name, pages);
	}
	pool_mark_freed(pool);
}

void session_disconnect(struct session *session, int error, const char *why)
{
	if (session->state != SESSION_LIVE)
		return;
	log_warning("session %u of pool '%s' ('%s', pid %d) is disconnected: %s", session->id,
		session->pool->config->name, session->name, session->pid, why);
	event_publish(session->pool->agent, EVENT_DAMAGE, session->pool, session->id, (uint64_t)-error,
		"'%s' disconnected: %s", session->name, why);
	atomic_store_explicit(&session->segment.header->close_error, error, memory_order_relaxed);
	atomic_store_explicit(&session->segment.header->closed, 1, memory_order_release);
	for (uint32_t i = 0; i < SESSION_REQUESTS; i++)
		futex_wake(&session->segment.requests[i].state, 1);
	/* The worker sees the end of its connection; the descriptor itself is closed with the session. */
	shutdown(session->socket.fd, SHUT_RDWR);
	connection_closed(session);
}

void session_damage(struct session *session, const char *what)
{
	session->damage++;
	pool_count(session->pool, POOL_COUNT_DAMAGE, 1);
	log_debug("session %u ('%s'): %s", session->id, session->name, what);
	if (session->damage >= DAMAGE_MAX)
		session_disconnect(session, -EPROTO, what);
}

void session_tick(struct session *session)
{
	struct pool *pool = session->pool;

	if (session->died_ms && clock_ms() - session->died_ms >= pool->agent->config.trust.death_grace_ms) {
		session_end(session, SESSION_END_DEATH);
		return;
	}
	if (session->died_ms)
		agent_need_tick(pool->agent, pool->agent->config.trust.death_grace_ms);
	if (session->state != SESSION_CLOSING)
		return;
	if (clock_ms() - session->closing_ms < CLOSING_GRACE_MS) {
		agent_need_tick(pool->agent, CLOSING_GRACE_MS);
		return;
	}
	session_set_closed(session);
	log_info("session %u of pool '%s' ('%s', pid %d) disconnected but is still running: %u pages wait for its end",
		session->id, pool->config->name, session->name, session->pid, session->leased);
}

struct session *session_by_token(struct agent *agent, const uint8_t token[16])
{
	for (uint32_t p = 0; p < agent->pool_count; p++) {
		struct pool *pool = agent->pools[p];

		for (uint32_t id = 1, left = pool->session_count; left && id < POOL_SESSIONS; id++) {
			struct session *session = pool->sessions[id];

			if (!session)
				continue;
			left--;
			if (session->state == SESSION_LIVE && !memcmp(session->token, token, 16))
				return session;
		}
	}
	return NULL;
}

void sessions_free_dead(struct agent *agent)
{
	while (agent->graveyard) {
		struct session *session = agent->graveyard;

		agent->graveyard = session->next_dead;
		session_free(session);
	}
}
