/* session.c - the life of a session, from its entry into the pool to its end; see session.h. */
#include "agent/session/session_internal.h"
#include "shm/plural.h"

#include "agent/base/crash_point.h"
#include "agent/base/log.h"
#include "agent/keeper/channel.h"
#include "agent/pages/event.h"
#include "agent/pages/flight.h"
#include "agent/pages/requests.h"
#include "agent/pages/trust.h"
#include "agent/session/roles.h"
#include "agent/session/timelines.h"
#include "shm/doorbell.h"
#include "shm/session_totals.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
	/* delay before pages are marked: an exiting process closes its files just before its pidfd is signaled */
	CLOSING_GRACE_MS = 2,
	DAMAGE_MAX = 16, /* number of invalid fields after which the session is ended */
};

void session_record_write(struct session *session, enum session_record_state state)
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

void session_unwatch(struct session *session)
{
	agent_unwatch(session->pool->agent, &session->socket);
	agent_unwatch(session->pool->agent, &session->pidfd);
	agent_unwatch(session->pool->agent, &session->doorbell);
}

void session_ledger_state(const struct session *session, enum ledger_session_state state)
{
	atomic_store_explicit(&session_ledger(session)->state, state, memory_order_release);
	crash_point();
}

/* Quarantine the pages until the process ends. */
static void session_set_closed(struct session *session)
{
	session->state = SESSION_CLOSED;
	session_ledger_state(session, LEDGER_SESSION_CLOSED);
	pool_quarantine_of(session->pool, session->id);
	session_record_write(session, SESSION_RECORD_CLOSED);
}

static bool process_ended(const struct session *session)
{
	struct pollfd look = {.fd = session->pidfd.fd, .events = POLLIN};

	return poll(&look, 1, 0) == 1 && look.revents & POLLIN;
}

/*
 * Process the death of a session's process. Drivers release memory before the pidfd is signaled. If the configuration
 * does not rely on that (trust.death_grace), the pages are quarantined for some time, and the session is treated like a
 * disconnected one. After a restart of the agent, this time starts again.
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
	log_info("session %u of pool '%s' ('%s', pid %d) died: %u page%s %s quarantined for %u ms", session->id,
		pool->config->name, session->name, session->pid, session->leased, plural(session->leased),
		be(session->leased), grace_ms);
	agent_need_tick(pool->agent, grace_ms);
}

/*
 * Process a closed connection: as a death if the process has ended, too; otherwise session_tick() quarantines the
 * pages.
 */
void session_connection_closed(struct session *session)
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

static void pidfd_ready(struct event_source *source, uint32_t events)
{
	struct session *session = session_of(source, pidfd);

	(void)events;
	if (session->state != SESSION_DEAD)
		process_died(session);
}

void session_requests_damage(struct session *session, uint32_t malformed)
{
	while (malformed--)
		session_damage(session, "a lease request of an unknown kind");
}

static void doorbell_ready(struct event_source *source, uint32_t events)
{
	struct session *session = session_of(source, doorbell);

	(void)events;
	session_requests_damage(session, requests_doorbell(session));
}

void session_free(struct session *session)
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

int session_watch(struct session *session)
{
	struct agent *agent = session->pool->agent;
	int error = agent_watch(agent, &session->pidfd, EPOLLIN);

	if (!error && session->doorbell.fd >= 0)
		error = agent_watch(agent, &session->doorbell, EPOLLIN | EPOLLET);
	if (!error && session->socket.fd >= 0)
		error = agent_watch(agent, &session->socket, EPOLLIN);
	return error;
}

struct session *session_new(struct pool *pool, uint32_t id)
{
	struct session *session = calloc(1, sizeof(*session));

	if (!session)
		return NULL;
	session->pool = pool;
	session->id = id;
	LIST_INIT(&session->spilled);
	session->timeline_fd = -1;
	session->segment_fd = session->doorbell.fd = session->socket.fd = session->pidfd.fd = -1;
	session->socket.ready = session_socket_ready;
	session->pidfd.ready = pidfd_ready;
	session->doorbell.ready = doorbell_ready;
	return session;
}

/* Return an upper limit of the session's age. */
static uint64_t session_age_ns(const struct session *session)
{
	return (clock_ms() - session->attached_ms + 1) * UINT64_C(1000000);
}

static struct usage_totals session_usage_totals(const struct session *session)
{
	return usage_totals_of(session->segment.stats, session_age_ns(session));
}

struct usage_totals tenant_usage_totals(const struct pool *pool, const struct tenant *tenant)
{
	struct usage_totals totals = tenant->ended;

	for (uint32_t id = 1; id < POOL_SESSIONS; id++)
		if (pool->sessions[id] && pool->sessions[id]->tenant == tenant) {
			const struct usage_totals more = session_usage_totals(pool->sessions[id]);

			usage_totals_add(&totals, &more);
		}
	return totals;
}

void session_enter(struct session *session)
{
	const struct usage_totals counted = session_usage_totals(session);
	struct pool *pool = session->pool;

	pool->sessions[session->id] = session;
	pool->session_count++;
	session->tenant->sessions++;
	/* Exclude the events that the session counted before this agent's start. */
	usage_totals_subtract(&session->tenant->ended, &counted);
	/* The coarse clock did not advance while no session was attached. */
	atomic_store_explicit(&pool->segment.header->clock_ms, (uint32_t)clock_ms(), memory_order_relaxed);
	atomic_store_explicit(&pool->segment.header->sessions, pool->session_count, memory_order_relaxed);
}

void session_add_totals(const struct session *session, struct session_totals *totals)
{
	session_totals_add(totals, session->segment.stats, session_age_ns(session));
}

/* Copy the session's flight records while its segment is still mapped. */
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
	struct usage_totals counted;
	uint32_t pages;

	if (session->state == SESSION_DEAD)
		return;
	session->state = SESSION_DEAD;
	session_ledger_state(session, LEDGER_SESSION_ENDING);
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
	session_record_write(session, SESSION_RECORD_NONE);
	atomic_store_explicit(&pool->segment.header->sessions, pool->session_count, memory_order_relaxed);
	session_unwatch(session);
	/* If the agent dies between the next two calls, the session is ended and counted again. */
	session_add_totals(session, &pool->segment.header->ended);
	counted = session_usage_totals(session);
	usage_totals_add(&session->tenant->ended, &counted);
	session_ledger_state(session, LEDGER_SESSION_NONE);
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
		log_debug("session %u of pool '%s' ('%s', pid %d) ended%s, %u page%s returned", session->id,
			pool->config->name, session->name, session->pid,
			how == SESSION_END_DEATH ? " without a detach" : "", pages, plural(pages));
		event_publish(pool->agent, EVENT_SESSION_END, pool, session->id, pages,
			"'%s' ended, %u page%s returned", session->name, pages, plural(pages));
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
	/* Close the connection for the worker. The descriptor itself is closed with the session. */
	shutdown(session->socket.fd, SHUT_RDWR);
	session_connection_closed(session);
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
	if (session->leased == 0)
		return;
	log_info("session %u of pool '%s' ('%s', pid %d) disconnected but is still running: %u page%s %s quarantined",
		session->id, pool->config->name, session->name, session->pid, session->leased, plural(session->leased),
		be(session->leased));
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
