#include "agent/session/timelines.h"

#include "agent/session/asked.h"
#include "agent/session/session_limits.h"
#include "agent/keeper/channel.h"
#include "agent/base/log.h"
#include "shm/timeline_page.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void answer(struct session *session, uint64_t sequence, int error, int fd)
{
	const struct msg_timeline_reply reply = {.error = error};
	uint8_t bytes[MSG_LARGEST_timeline_reply];

	asked_send(session, bytes, msg_encode_timeline_reply(&reply, sequence, NULL, bytes, sizeof(bytes)),
		error ? -1 : fd);
}

/* ---- sharing a page ---- */

static bool same_file(int one, int other)
{
	struct stat a, b;

	return fstat(one, &a) == 0 && fstat(other, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/*
 * Return 0 if the descriptor was kept, or refers to the page that is already kept (a repeated request); -EBADMSG: it is
 * not a sealed page; -EEXIST, -EMFILE, -ENOMEM.
 */
static int share(struct session *session, int fd)
{
	struct pool *pool = session->pool;
	int error = fd < 0 ? -EBADMSG : timeline_page_verify(fd);

	if (error)
		return -EBADMSG;
	if (session->timeline_fd >= 0)
		return same_file(session->timeline_fd, fd) ? 0 : -EEXIST;
	if (!descriptors_left(pool->agent, 1))
		return -EMFILE;
	/* The keeper must hold the page, because otherwise the next agent could not send it. */
	if (agent_hold(pool->agent,
		    &(struct held){
			    .kind = KEEP_TIMELINE, .pool = pool->index, .id = session->id, .fd_count = 1, .fds = {fd}}))
		return -ENOMEM;
	session->timeline_fd = fd;
	pool->timeline_count++;
	return 0;
}

/* ---- requesting a page of another session ---- */

static int may_look(const struct session *asker, uint32_t id, int *fd)
{
	const struct pool *pool = asker->pool;
	const struct session *session = id < POOL_SESSIONS ? pool->sessions[id] : NULL;

	if (!session || session->timeline_fd < 0)
		return -ESRCH;
	if (pool->trust && session->domain != asker->domain)
		return -EACCES;
	*fd = session->timeline_fd;
	return 0;
}

const char *timelines_request(
	struct session *session, const struct msg_envelope *envelope, const uint8_t *packet, size_t length, int fd)
{
	struct msg_timeline_share_request shared;
	struct msg_timeline_open_request asked;
	const char *damage = NULL;
	int page = -1, error;

	if (session->kind != SESSION_WORKER) {
		damage = "a timeline of a session without streams";
	} else if (envelope->type == MSG_TYPE_timeline_share_request &&
		!msg_decode_timeline_share_request(&shared, packet, length)) {
		error = share(session, fd);
		answer(session, envelope->sequence, error, -1);
		if (error == -EBADMSG)
			damage = "a timeline that is not a sealed page";
		else if (session->timeline_fd == fd)
			return NULL;
	} else if (envelope->type == MSG_TYPE_timeline_open_request &&
		!msg_decode_timeline_open_request(&asked, packet, length)) {
		error = may_look(session, asked.session, &page);
		answer(session, envelope->sequence, error, page);
	} else {
		damage = "an invalid timeline request";
	}
	if (fd >= 0)
		close(fd);
	return damage;
}

/* ---- end and recovery ---- */

void timelines_session_end(struct session *session)
{
	if (session->timeline_fd < 0)
		return;
	agent_drop(session->pool->agent, KEEP_TIMELINE, session->pool->index, session->id);
	close(session->timeline_fd);
	session->timeline_fd = -1;
	session->pool->timeline_count--;
}

void timelines_recover(struct pool *pool)
{
	const struct module_start *start = pool->agent->start;

	for (uint32_t i = 0; i < start->held_count; i++) {
		const struct held *held = &start->held[i];
		struct session *session;

		if (held->kind != KEEP_TIMELINE || held->pool != pool->index || held->fd_count != 1)
			continue;
		session = held->id < POOL_SESSIONS ? pool->sessions[held->id] : NULL;
		if (session && session->timeline_fd < 0) {
			session->timeline_fd = held->fds[0];
			pool->timeline_count++;
			continue;
		}
		/* The previous agent died before it reported the end of the session to the keeper. */
		agent_drop(pool->agent, KEEP_TIMELINE, pool->index, held->id);
		held_close(held);
	}
}
