/*
 * channel.c - nanomsg sockets that stay connected.
 */
#include "client/channel.h"

#include "client/interrupt.h"

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
};

struct channel {
	int socket;   /* nanomsg's number */
	int endpoint; /* of the connection; negative: none could be made */
	int silence_ms;
	pid_t owner;
	int64_t heard_ms; /* when something came, or was first waited for */
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

int channel_open(int protocol, const char *url, int silence_ms, struct channel **channel)
{
	struct channel *made;
	int result = nanomsg_claim();

	if (result < 0)
		return result;
	made = malloc(sizeof(*made) + strlen(url) + 1);
	if (!made)
		return -ENOMEM;
	*made = (struct channel){.silence_ms = silence_ms, .owner = getpid(), .heard_ms = now_ms()};
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

void channel_expect(struct channel *channel)
{
	channel->heard_ms = now_ms();
}

/*
 * Another connection in place of one that is silent for too long. The socket stays, and with it its descriptor, its subscriptions, and
 * a request that waits for its answer.
 */
static void connect_again(struct channel *channel)
{
	channel->heard_ms = now_ms();
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
		int64_t now = now_ms(), left = deadline - now, patience = channel->heard_ms + channel->silence_ms - now;
		int received;
		int result;

		if (patience <= 0) {
			connect_again(channel);
			continue;
		}
		if (wait_interrupted())
			return -EINTR;
		if (left > patience)
			left = patience;
		left = wait_slice_ms((int)left);
		if (left < 0)
			left = 0;
		result = channel_set(channel, NN_SOL_SOCKET, NN_RCVTIMEO, (int)left);
		if (result < 0)
			return result;
		received = nn_recv(channel->socket, buffer, capacity, 0);
		if (received >= 0) {
			channel->heard_ms = now_ms();
			return received;
		}
		if (nn_errno() == EINTR)
			continue;
		if (nn_errno() != EAGAIN && nn_errno() != ETIMEDOUT)
			return -nn_errno();
		if (now_ms() >= deadline)
			return -ETIMEDOUT;
	}
}
