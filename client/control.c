/*
 * control.c - requests and answers over nanomsg REQ.
 */
#include "client/control.h"

#include <errno.h>
#include <nanomsg/nn.h>
#include <nanomsg/reqrep.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "proto/codec.h"

enum {
	RECONNECT_MS = 20,    /* chosen: an agent and front that are restarted are back in less */
	RECONNECT_MS_MAX = 0, /* always the same: nanomsg would double it with each restart, and never take that back */
	REPLY_BYTES_MAX = MSG_BYTES_MAX + 64, /* with nanomsg's own header */
};

struct control {
	int socket; /* nanomsg's number */
	pid_t owner;
};

/* One row of numbers for the process: a session may be used through several struct control, one after the other or at once. */
static atomic_uint_fast64_t last_sequence;

static int64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int set_option(int socket, int level, int option, int value)
{
	return nn_setsockopt(socket, level, option, &value, sizeof(value)) < 0 ? -nn_errno() : 0;
}

static int set_up(int socket, const char *url)
{
	int result = set_option(socket, NN_REQ, NN_REQ_RESEND_IVL, CONTROL_RESEND_MS);

	if (result == 0)
		result = set_option(socket, NN_SOL_SOCKET, NN_RECONNECT_IVL, RECONNECT_MS);
	if (result == 0)
		result = set_option(socket, NN_SOL_SOCKET, NN_RECONNECT_IVL_MAX, RECONNECT_MS_MAX);
	if (result == 0)
		result = set_option(socket, NN_SOL_SOCKET, NN_RCVMAXSIZE, REPLY_BYTES_MAX);
	if (result == 0 && nn_connect(socket, url) < 0)
		result = -nn_errno();
	return result;
}

int nanomsg_claim(void)
{
	static _Atomic int owner;
	int nobody = 0;

	return atomic_compare_exchange_strong(&owner, &nobody, (int)getpid()) || nobody == (int)getpid() ? 0 : -EOPNOTSUPP;
}

int control_open(const char *url, struct control **control)
{
	struct control *made;
	int result = nanomsg_claim();

	if (result < 0)
		return result;
	made = malloc(sizeof(*made));
	if (!made)
		return -ENOMEM;
	made->owner = getpid();
	made->socket = nn_socket(AF_SP, NN_REQ);
	if (made->socket < 0) {
		result = -nn_errno();
		goto free_made;
	}
	result = set_up(made->socket, url);
	if (result < 0)
		goto close_socket;
	*control = made;
	return 0;

close_socket:
	nn_close(made->socket);
free_made:
	free(made);
	return result;
}

void control_close(struct control *control)
{
	if (!control)
		return;
	/* A child has no nanomsg thread that could close anything: nn_close() would wait for it for ever. */
	if (control->owner == getpid())
		nn_close(control->socket);
	free(control);
}

/* Wait for the answer to the request that was sent last; its length, which may be above capacity. */
static int receive(struct control *control, uint8_t *reply, size_t capacity, int timeout_ms)
{
	int64_t deadline = timeout_ms < 0 ? INT64_MAX : now_ms() + timeout_ms;

	for (;;) {
		int64_t left = deadline == INT64_MAX ? -1 : deadline - now_ms();
		int received;
		int result;

		if (left < 0 && deadline != INT64_MAX)
			left = 0;
		result = set_option(control->socket, NN_SOL_SOCKET, NN_RCVTIMEO, (int)left);
		if (result < 0)
			return result;
		received = nn_recv(control->socket, reply, capacity, 0);
		if (received >= 0)
			return received;
		if (nn_errno() == EINTR)
			continue;
		return nn_errno() == EAGAIN ? -ETIMEDOUT : -nn_errno();
	}
}

int control_call(struct control *control, const uint8_t token[16], uint8_t *request, size_t request_length, uint8_t *reply,
	size_t reply_capacity, int timeout_ms)
{
	struct msg_envelope envelope;
	uint64_t sequence;
	int length;

	if (request_length < MSG_ENVELOPE_BYTES)
		return -EINVAL;
	if (request_length > MSG_BYTES_MAX)
		return -EMSGSIZE;
	if (control->owner != getpid())
		return -ECHILD;
	sequence = atomic_fetch_add(&last_sequence, 1) + 1;
	msg_envelope_stamp(request, sequence, token);

	/* Never waits: REQ keeps the request until somebody can take it, and forgets one that was not answered in time. */
	if (nn_send(control->socket, request, request_length, 0) < 0)
		return -nn_errno();
	length = receive(control, reply, reply_capacity, timeout_ms);
	if (length < 0)
		return length;
	if ((size_t)length > reply_capacity)
		return -EMSGSIZE;
	if (msg_envelope_read(&envelope, reply, (size_t)length) < 0 || envelope.sequence != sequence)
		return -EBADMSG;
	return length;
}
