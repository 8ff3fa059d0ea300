/* messages.c - serve the messages of a session's attach socket. */
#include "agent/session/session_internal.h"

#include "agent/base/log.h"
#include "agent/pages/object_records.h"
#include "agent/pages/trust.h"
#include "agent/session/roles.h"
#include "agent/session/timelines.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

/*
 * Return true if the session may receive a descriptor of this handle. Access cannot be revoked, since an import
 * persists. It is therefore limited to handles with a page that is leased to the session or belongs to an object that
 * it has open. Only a pool whose handles share one descriptor has no such limit.
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
	/* Probably too many descriptors are in flight. Report the error, so that the worker does not wait. */
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

/* Answer a role request. The worker recognizes the answer by the sequence number of its request. */
static void send_role(struct session *session, const struct msg_role_request *request, uint64_t sequence)
{
	struct msg_role_reply reply;
	uint8_t buffer[MSG_LARGEST_role_reply];
	int length, error;

	role_serve(session, request, &reply);
	length = msg_encode_role_reply(&reply, sequence, NULL, buffer, sizeof(buffer));
	error = length < 0 ? length : attach_send(session->socket.fd, buffer, (size_t)length, NULL, 0);
	if (error)
		log_debug("cannot send a reply to session %u ('%s'): %s; the session will repeat its request",
			session->id, session->name, strerror(-error));
}

static void released(struct session *session, const uint8_t *packet, size_t length)
{
	static struct msg_handles_released message;

	if (msg_decode_handles_released(&message, packet, length) || session->kind != SESSION_WORKER) {
		session_damage(session, "an invalid release of handles");
		return;
	}
	/* Runs must be sorted, so that checking a message costs at most one pass over the pages. */
	for (uint32_t i = 1; i < message.runs_count; i++)
		if (message.runs[i].first < (uint64_t)message.runs[i - 1].first + message.runs[i - 1].count) {
			session_damage(session, "a release of handles out of order");
			return;
		}
	for (uint32_t i = 0; i < message.runs_count; i++)
		trust_let_go(session, message.runs[i].first, message.runs[i].count);
}

/* Return the part of the agent that serves a message; NULL: agent/session serves it, or the type is unknown. */
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

void session_socket_ready(struct event_source *source, uint32_t events)
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
	/* A lack of descriptors is not an error of the worker, which repeats its request. */
	length = attach_receive(source->fd, buffer, sizeof(buffer), &fd, 1, &fd_count, 0);
	if (length == -EAGAIN || length == -EMFILE)
		return;
	if (length == -EPIPE || length == -ECONNRESET) {
		session_connection_closed(session);
		return;
	}
	if (length < 0 || msg_envelope_read(&envelope, buffer, (size_t)length)) {
		if (fd >= 0)
			close(fd);
		session_damage(session, "a packet that is not a message");
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
			session_damage(session, "an invalid handles request");
		else
			send_handles(session, envelope.sequence, handles.first, handles.count);
		return;
	case MSG_TYPE_role_request:
		if (msg_decode_role_request(&role, buffer, (size_t)length))
			session_damage(session, "an invalid role request");
		else
			send_role(session, &role, envelope.sequence);
		return;
	case MSG_TYPE_handles_released: released(session, buffer, (size_t)length); return;
	case MSG_TYPE_detach_request:
		if (trust_holds(session)) {
			send_detached(session, envelope.sequence);
			session_connection_closed(session);
			return;
		}
		/*
		 * End the session before the answer, because the agent may die between the two. The socket stays open
		 * until the end of this pass.
		 */
		session_end(session, SESSION_END_DETACH);
		send_detached(session, envelope.sequence);
		return;
	default: session_damage(session, "an unexpected message");
	}
}
