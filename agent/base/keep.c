#include "agent/base/keep.h"

#include "agent/agent.h"
#include "agent/base/clock.h"
#include "agent/base/log.h"
#include "agent/keeper/channel.h"
#include "proto/attach.h"

#include <errno.h>
#include <poll.h>
#include <string.h>

enum { KEEPER_PATIENCE_MS = 1000 };

int agent_tell_keeper(struct agent *agent, const struct keep_message *message, const int *fds, uint32_t fd_count)
{
	uint64_t end = clock_ms() + KEEPER_PATIENCE_MS;
	int error;

	/*
	 * The keeper reads continuously, so a full queue empties soon. It fills at the start, when the agent sends one
	 * descriptor per handle.
	 */
	while ((error = attach_send(agent->keeper.fd, message, sizeof(*message), fds, fd_count)) == -EAGAIN ||
		error == -ETOOMANYREFS) {
		struct pollfd look = {agent->keeper.fd, POLLOUT, 0};

		/*
		 * poll() does not report ETOOMANYREFS: the limit of descriptors in flight is not a state of this
		 * socket.
		 */
		poll(&look, error == -EAGAIN ? 1 : 0, error == -EAGAIN ? KEEPER_PATIENCE_MS : 1);
		if (clock_ms() >= end)
			break;
	}
	if (error && !agent->stopping)
		log_warning("cannot send a message to the keeper (kind %u, pool %u, id %u): %s", message->what,
			message->pool, message->id, strerror(-error));
	return error;
}

int agent_hold(struct agent *agent, const struct held *item)
{
	struct keep_message message = {
		.what = KEEP_HOLD,
		.kind = item->kind,
		.pool = item->pool,
		.id = item->id,
		.value = item->value,
		.value2 = item->value2,
	};

	return agent_tell_keeper(agent, &message, item->fds, item->fd_count);
}

void agent_drop(struct agent *agent, uint32_t kind, uint32_t pool, uint32_t id)
{
	struct keep_message message = {.what = KEEP_DROP, .kind = kind, .pool = pool, .id = id};

	agent_tell_keeper(agent, &message, NULL, 0);
}
