/*
 * channel.c - nanomsg sockets that stay connected.
 */
#include "client/channel.h"

#include <errno.h>
#include <nanomsg/nn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
	RECONNECT_MS = 20,    /* chosen: an agent and front that are restarted are back in less */
	RECONNECT_MS_MAX = 0, /* always the same: nanomsg would double it with each restart, and never take that back */
	LONELY_MS = 500,      /* chosen: that long without a connection, and nanomsg is helped; many times RECONNECT_MS */
};

struct channel {
	int socket;   /* nanomsg's number */
	int endpoint; /* of the connection; negative: none could be made */
	pid_t owner;
	int64_t lonely_since_ms; /* when it was first seen without a connection; 0: it was last seen with one */
	char url[];
};

static int64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

int nanomsg_claim(void)
{
	static _Atomic int owner;
	int nobody = 0;

	return atomic_compare_exchange_strong(&owner, &nobody, (int)getpid()) || nobody == (int)getpid() ? 0 : -EOPNOTSUPP;
}

int channel_set(struct channel *channel, int level, int option, int value)
{
	return nn_setsockopt(channel->socket, level, option, &value, sizeof(value)) < 0 ? -nn_errno() : 0;
}

static int set_up(struct channel *channel)
{
	int result = channel_set(channel, NN_SOL_SOCKET, NN_RECONNECT_IVL, RECONNECT_MS);

	if (result == 0)
		result = channel_set(channel, NN_SOL_SOCKET, NN_RECONNECT_IVL_MAX, RECONNECT_MS_MAX);
	if (result < 0)
		return result;
	channel->endpoint = nn_connect(channel->socket, channel->url);
	return channel->endpoint < 0 ? -nn_errno() : 0;
}

int channel_open(int protocol, const char *url, struct channel **channel)
{
	struct channel *made;
	int result = nanomsg_claim();

	if (result < 0)
		return result;
	made = malloc(sizeof(*made) + strlen(url) + 1);
	if (!made)
		return -ENOMEM;
	*made = (struct channel){.owner = getpid()};
	strcpy(made->url, url);
	made->socket = nn_socket(AF_SP, protocol);
	if (made->socket < 0) {
		result = -nn_errno();
		goto free_made;
	}
	result = set_up(made);
	if (result < 0)
		goto close_socket;
	*channel = made;
	return 0;

close_socket:
	nn_close(made->socket);
free_made:
	free(made);
	return result;
}

void channel_close(struct channel *channel)
{
	if (!channel)
		return;
	/* A child has no nanomsg thread that could close anything: nn_close() would wait for it for ever. */
	if (channel_ours(channel))
		nn_close(channel->socket);
	free(channel);
}

bool channel_ours(const struct channel *channel)
{
	return channel->owner == getpid();
}

int channel_socket(const struct channel *channel)
{
	return channel->socket;
}

/*
 * Without a connection for a while: let nanomsg make another, in place of the one that it may have given up. The socket stays, and
 * with it its descriptor, its subscriptions, and a request that waits for somebody to take it.
 */
static void keep_connected(struct channel *channel)
{
	int64_t now = now_ms();

	if (nn_get_statistic(channel->socket, NN_STAT_CURRENT_CONNECTIONS) > 0) {
		channel->lonely_since_ms = 0;
		return;
	}
	if (channel->lonely_since_ms == 0)
		channel->lonely_since_ms = now;
	if (now - channel->lonely_since_ms < LONELY_MS)
		return;
	channel->lonely_since_ms = now;
	if (channel->endpoint >= 0)
		nn_shutdown(channel->socket, channel->endpoint);
	channel->endpoint = nn_connect(channel->socket, channel->url); /* if it cannot be now, then in the next round */
}

int64_t channel_deadline(int timeout_ms)
{
	return timeout_ms < 0 ? INT64_MAX : now_ms() + timeout_ms;
}

int channel_receive(struct channel *channel, void *buffer, size_t capacity, int64_t deadline)
{
	for (;;) {
		int64_t left = deadline - now_ms();
		int received;
		int result;

		if (left < 0)
			left = 0;
		result = channel_set(channel, NN_SOL_SOCKET, NN_RCVTIMEO, (int)(left < LONELY_MS ? left : LONELY_MS));
		if (result < 0)
			return result;
		received = nn_recv(channel->socket, buffer, capacity, 0);
		if (received >= 0)
			return received;
		if (nn_errno() == EINTR)
			continue;
		if (nn_errno() != EAGAIN && nn_errno() != ETIMEDOUT)
			return -nn_errno();
		keep_connected(channel);
		if (left <= LONELY_MS)
			return -ETIMEDOUT;
	}
}
