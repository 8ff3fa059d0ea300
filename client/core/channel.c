/*
 * channel.c - nanomsg sockets that stay connected.
 */
#include "client/core/channel.h"

#include "client/core/interrupt.h"
#include "client/core/last_error.h"
#include "proto/codec.h"
#include "shm/monotonic.h"

#include <errno.h>
#include <limits.h>
#include <nanomsg/nn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	RECONNECT_MS = 20,    /* chosen: shorter than a restart of the agent and the front */
	RECONNECT_MS_MAX = 0, /* constant: nanomsg would double it after each failure and never reduce it */
	RECEIVED_BYTES_MAX = MSG_BYTES_MAX + 64, /* includes nanomsg's header */
};

struct channel {
	int socket;   /* nanomsg's socket number */
	int endpoint; /* nanomsg's number of the connection; negative: not connected */
	int protocol;
	int silence_ms;
	pid_t owner;
	bool unanswered;  /* a request was sent, and its reply has not arrived */
	int64_t heard_ms; /* time of the last message, or of the start of the first wait for one */
	char url[];
};

/*
 * Claim nanomsg for this process, before its first socket is opened. nanomsg cannot be used after fork(). Return: 0, or
 * -EOPNOTSUPP in a forked child whose parent has used nanomsg; such a child can execute another program.
 */
static int nanomsg_claim(void)
{
	static _Atomic int owner;
	int before = 0;

	if (atomic_compare_exchange_strong(&owner, &before, (int)getpid()) || before == (int)getpid())
		return 0;
	return fail(-EOPNOTSUPP,
		"process %d has used nanomsg before fork(), so this child cannot; execute another program first",
		before);
}

static int set(int socket, int option, int value)
{
	return nn_setsockopt(socket, NN_SOL_SOCKET, option, &value, sizeof(value)) < 0 ? -nn_errno() : 0;
}

/* Open a socket and connect it. The channel is changed only if both succeed. */
static int open_socket(struct channel *channel)
{
	int socket = nn_socket(AF_SP, channel->protocol), endpoint = -1, result;

	if (socket < 0)
		return -nn_errno();
	result = set(socket, NN_RECONNECT_IVL, RECONNECT_MS);
	if (!result)
		result = set(socket, NN_RECONNECT_IVL_MAX, RECONNECT_MS_MAX);
	if (!result)
		result = set(socket, NN_RCVMAXSIZE, RECEIVED_BYTES_MAX);
	if (!result) {
		endpoint = nn_connect(socket, channel->url);
		result = endpoint < 0 ? -nn_errno() : 0;
	}
	if (result) {
		nn_close(socket);
		return result;
	}
	channel->socket = socket;
	channel->endpoint = endpoint;
	return 0;
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
	*made = (struct channel){
		.protocol = protocol, .silence_ms = silence_ms, .owner = getpid(), .heard_ms = (int64_t)monotonic_ms()};
	strcpy(made->url, url);
	result = open_socket(made);
	if (result < 0) {
		free(made);
		return result;
	}
	*channel = made;
	return 0;
}

void channel_close(struct channel *channel)
{
	if (!channel)
		return;
	/* A forked child has no nanomsg thread, so nn_close() would wait for it forever. */
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

int channel_send(struct channel *channel, const void *request, size_t length)
{
	if (channel->unanswered) {
		int old = channel->socket, result = open_socket(channel);

		if (result < 0)
			return result;
		nn_close(old);
		channel->unanswered = false;
	}
	if (nn_send(channel->socket, request, length, 0) < 0)
		return -nn_errno();
	channel->unanswered = true;
	return 0;
}

/* Replace a connection that was silent for too long. The socket keeps its descriptor and its subscriptions. */
static void connect_again(struct channel *channel)
{
	channel->heard_ms = (int64_t)monotonic_ms();
	if (channel->endpoint >= 0)
		nn_shutdown(channel->socket, channel->endpoint);
	channel->endpoint = nn_connect(channel->socket, channel->url); /* if this fails, the next silence retries */
}

int64_t channel_deadline(int timeout_ms)
{
	return timeout_ms < 0 ? INT64_MAX : (int64_t)monotonic_ms() + timeout_ms;
}

int channel_receive(struct channel *channel, void *buffer, size_t capacity, int64_t deadline)
{
	for (;;) {
		int64_t now = (int64_t)monotonic_ms(), left = deadline - now;
		int64_t patience = channel->silence_ms < 0 ? INT_MAX : channel->heard_ms + channel->silence_ms - now;
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
		result = set(channel->socket, NN_RCVTIMEO, (int)left);
		if (result < 0)
			return result;
		received = nn_recv(channel->socket, buffer, capacity, 0);
		if (received >= 0) {
			channel->heard_ms = (int64_t)monotonic_ms();
			channel->unanswered = false;
			return received;
		}
		if (nn_errno() == EINTR)
			continue;
		if (nn_errno() != EAGAIN && nn_errno() != ETIMEDOUT)
			return -nn_errno();
		if ((int64_t)monotonic_ms() >= deadline)
			return -ETIMEDOUT;
	}
}
