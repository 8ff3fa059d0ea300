/*
 * events.c - events over nanomsg SUB.
 */
#include "client/core/events.h"

#include <errno.h>
#include <nanomsg/nn.h>
#include <nanomsg/pubsub.h>
#include <stdint.h>

#include "proto/codec.h"

enum { SILENCE_MS = 3 * MSG_BEAT_MS };

int events_open(const char *url, struct channel **events)
{
	struct channel *made;
	int result = channel_open(NN_SUB, url, SILENCE_MS, &made);

	if (result < 0)
		return result;
	if (nn_setsockopt(channel_socket(made), NN_SUB, NN_SUB_SUBSCRIBE, "", 0) < 0) {
		result = -nn_errno();
		channel_close(made);
		return result;
	}
	*events = made;
	return 0;
}

int events_receive(struct channel *events, int timeout_ms, struct msg_event *event)
{
	int64_t deadline = channel_deadline(timeout_ms);
	uint8_t message[MSG_LARGEST_event];

	if (!channel_ours(events))
		return -ECHILD;
	for (;;) {
		int received = channel_receive(events, message, sizeof(message), deadline);

		if (received < 0)
			return received;
		/* nanomsg returns the full length even if the message was truncated. */
		if ((size_t)received <= sizeof(message) && msg_decode_event(event, message, (size_t)received) == 0)
			return 0;
	}
}
