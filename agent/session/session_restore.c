/* session_restore.c - take over the sessions of an agent that has ended. */
#include "agent/session/session_internal.h"

#include "agent/base/log.h"
#include "agent/keeper/channel.h"
#include "agent/pages/requests.h"
#include "shm/doorbell.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/*
 * Take the descriptors that the keeper holds. If it holds none, because it was out of memory, open a pidfd, unless the
 * process has died. Return: 0, or the error of pidfd_open(): the process may be alive and use its pages.
 */
static int restore_descriptors(struct session *session, const struct held *held)
{
	if (held && held->fd_count == 4) {
		session->segment_fd = held->fds[0];
		session->socket.fd = held->fds[1];
		session->pidfd.fd = held->fds[2];
		session->doorbell.fd = held->fds[3];
		return 0;
	}
	session->pidfd.fd = (int)syscall(SYS_pidfd_open, session->pid, 0);
	return session->pidfd.fd < 0 && errno != ESRCH ? -errno : 0;
}

/*
 * End a session of an earlier run of gpoold. It has mapped the previous pool segment, which no process writes anymore,
 * and finds in its own segment that the session is closed. Its pages are quarantined until its process ends, because it
 * may still use them.
 */
static void session_leave_behind(struct session *session)
{
	atomic_store_explicit(&session->segment.header->close_error, -EPIPE, memory_order_relaxed);
	atomic_store_explicit(&session->segment.header->closed, 1, memory_order_release);
	for (uint32_t i = 0; i < SESSION_REQUESTS; i++)
		futex_wake(&session->segment.requests[i].state, 1);
	session_ledger_state(session, LEDGER_SESSION_CLOSED);
}

/* Replace a lost segment by an empty one, so that other functions need not handle a missing segment. */
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
	error = restore_descriptors(session, held);
	if (error) {
		log_error("pool '%s': cannot watch process %d of session %u: %s", pool->config->name, session->pid, id,
			strerror(-error));
		session_free(session);
		return error;
	}
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
	/* Sessions are restored in the order of their ids, so this continues after the last one. */
	pool->session_next = id % PAGE_SESSION_MAX + 1;
	if (session->pidfd.fd >= 0) {
		int watched = session_watch(session);

		error = error ? error : watched;
	}
	if (error && session->pidfd.fd >= 0) {
		/* Nothing can be sent to a session without its segment, so treat it as disconnected. */
		log_warning("session %u of pool '%s' ('%s', pid %d) cannot be continued: %s; its pages are quarantined",
			id, pool->config->name, session->name, session->pid, strerror(-error));
		agent_unwatch(pool->agent, &session->socket);
		agent_unwatch(pool->agent, &session->doorbell);
		session->state = SESSION_CLOSED;
	} else if (session->pidfd.fd < 0) {
		session->state = SESSION_CLOSED;
		return 0; /* session_resume() detects that it has died */
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
	const struct ledger_session *record = session_ledger(session);

	if (session->pidfd.fd < 0) {
		session_end(session, SESSION_END_DEATH);
		return;
	}
	if (session->state == SESSION_CLOSED) {
		pool_quarantine_of(session->pool, session->id);
		session_record_write(session, SESSION_RECORD_CLOSED);
		return;
	}
	/*
	 * The reply may already have been sent; the worker ignores a second one. If sending fails, the pages must be
	 * quarantined, because the worker may already use them.
	 */
	if (record->state == LEDGER_SESSION_SENDING && session_send_admission(session)) {
		session_connection_closed(session);
		return;
	}
	if (record->state == LEDGER_SESSION_SENDING)
		session_ledger_state(session, LEDGER_SESSION_LIVE);
	session_requests_damage(session, requests_restart(session));
}
