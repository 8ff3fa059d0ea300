#include "agent/session/asked.h"

#include "agent/base/crash_point.h"
#include "agent/base/log.h"

#include <errno.h>
#include <string.h>

static struct ledger_session *kept_of(const struct session *session)
{
	return &session->pool->ledger.sessions[session->id];
}

int asked_find(struct session *session, uint64_t sequence, uint8_t *answer)
{
	const struct ledger_session *kept = kept_of(session);
	uint64_t answered = atomic_load_explicit(&kept->answered, memory_order_acquire);

	if (!answered || sequence > answered)
		return 0;
	if (sequence < answered || kept->answer_bytes > LEDGER_ANSWER_BYTES)
		return -ESTALE;
	memcpy(answer, kept->answer, kept->answer_bytes);
	return (int)kept->answer_bytes;
}

int asked_keep(struct session *session, uint64_t sequence, const uint8_t *bytes, int length)
{
	struct ledger_session *kept = kept_of(session);

	if (length < 1 || length > LEDGER_ANSWER_BYTES)
		return -EMSGSIZE;
	/* Nothing is executed before the number is stored, so an agent that dies here has not executed the request. */
	atomic_store_explicit(&kept->answered, 0, memory_order_release);
	crash_point();
	memcpy(kept->answer, bytes, (size_t)length);
	kept->answer_bytes = (uint32_t)length;
	atomic_store_explicit(&kept->answered, sequence, memory_order_release);
	crash_point();
	return 0;
}

void asked_send(struct session *session, const uint8_t *bytes, int length, int fd)
{
	int error = length > 0 ? attach_send(session->socket.fd, bytes, (size_t)length, &fd, fd >= 0) : length;

	if (error && error != -EPIPE)
		log_debug("cannot send a reply to session %u: %s", session->id, strerror(-error));
}
