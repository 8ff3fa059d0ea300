/*
 * events.c - events over nanomsg SUB.
 */
#include "client/events.h"

#include "client/control.h"

#include <errno.h>
#include <nanomsg/nn.h>
#include <nanomsg/pubsub.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "proto/codec.h"

enum { RECONNECT_MS = 20, RECONNECT_MS_MAX = 0 }; /* as in control.c */

struct events {
	int socket; /* nanomsg's number */
	pid_t owner;
};

static int64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int set_option(int socket, int option, int value)
{
	return nn_setsockopt(socket, NN_SOL_SOCKET, option, &value, sizeof(value)) < 0 ? -nn_errno() : 0;
}

static int set_up(int socket, const char *url)
{
	int result = set_option(socket, NN_RECONNECT_IVL, RECONNECT_MS);

	if (result == 0)
		result = set_option(socket, NN_RECONNECT_IVL_MAX, RECONNECT_MS_MAX);
	if (result == 0 && nn_setsockopt(socket, NN_SUB, NN_SUB_SUBSCRIBE, "", 0) < 0)
		result = -nn_errno();
	if (result == 0 && nn_connect(socket, url) < 0)
		result = -nn_errno();
	return result;
}

int events_open(const char *url, struct events **events)
{
	struct events *made;
	int result = nanomsg_claim();

	if (result < 0)
		return result;
	made = malloc(sizeof(*made));
	if (!made)
		return -ENOMEM;
	made->owner = getpid();
	made->socket = nn_socket(AF_SP, NN_SUB);
	if (made->socket < 0) {
		result = -nn_errno();
		goto free_made;
	}
	result = set_up(made->socket, url);
	if (result < 0)
		goto close_socket;
	*events = made;
	return 0;

close_socket:
	nn_close(made->socket);
free_made:
	free(made);
	return result;
}

void events_close(struct events *events)
{
	if (!events)
		return;
	if (events->owner == getpid()) /* see control_close() */
		nn_close(events->socket);
	free(events);
}

int events_receive(struct events *events, int timeout_ms, struct msg_event *event)
{
	int64_t deadline = timeout_ms < 0 ? INT64_MAX : now_ms() + timeout_ms;
	uint8_t message[MSG_LARGEST_event];

	if (events->owner != getpid())
		return -ECHILD;
	for (;;) {
		int64_t left = deadline == INT64_MAX ? -1 : deadline - now_ms();
		int received;
		int result;

		if (left < 0 && deadline != INT64_MAX)
			left = 0;
		result = set_option(events->socket, NN_RCVTIMEO, (int)left);
		if (result < 0)
			return result;
		received = nn_recv(events->socket, message, sizeof(message), 0);
		if (received < 0 && nn_errno() == EINTR)
			continue;
		if (received < 0)
			return nn_errno() == EAGAIN || nn_errno() == ETIMEDOUT ? -ETIMEDOUT : -nn_errno();
		/* nanomsg tells the true length of what it cut. */
		if ((size_t)received <= sizeof(message) && msg_decode_event(event, message, (size_t)received) == 0)
			return 0;
	}
}

int events_fd(struct events *events)
{
	int fd;
	size_t size = sizeof(fd);

	if (events->owner != getpid())
		return -ECHILD;
	return nn_getsockopt(events->socket, NN_SOL_SOCKET, NN_RCVFD, &fd, &size) < 0 ? -nn_errno() : fd;
}
