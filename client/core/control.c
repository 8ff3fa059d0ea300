/* control.c - requests and replies over nanomsg REQ. */
#include "client/core/control.h"

#include <errno.h>
#include <nanomsg/reqrep.h>
#include <stdatomic.h>

#include "proto/codec.h"

enum { RESEND_MS_MAX = 16 * CONTROL_RESEND_MS };

/* Sequence numbers are unique in the process, because several threads may use a session through several channels. */
static atomic_uint_fast64_t last_sequence;

int control_open(const char *url, struct channel **control)
{
	return channel_open(NN_REQ, url, -1, control);
}

int control_call(struct channel *control, const uint8_t token[16], uint8_t *request, size_t request_length,
	uint8_t *reply, size_t reply_capacity, int timeout_ms)
{
	struct msg_envelope envelope;
	uint64_t sequence;
	int64_t deadline = channel_deadline(timeout_ms);
	int length, max_bypass_ms = CONTROL_RESEND_MS;

	if (request_length < MSG_ENVELOPE_BYTES)
		return -EINVAL;
	if (request_length > MSG_BYTES_MAX)
		return -EMSGSIZE;
	if (!channel_ours(control))
		return -ECHILD;
	sequence = atomic_fetch_add(&last_sequence, 1) + 1;
	msg_envelope_stamp(request, sequence, token);

	do {
		int64_t resend = channel_deadline(max_bypass_ms);

		length = channel_send(control, request, request_length);
		if (length < 0)
			return length;
		length = channel_receive(control, reply, reply_capacity, resend < deadline ? resend : deadline);
		if (max_bypass_ms < RESEND_MS_MAX)
			max_bypass_ms *= 2;
	} while (length == -ETIMEDOUT && channel_deadline(0) < deadline);
	if (length < 0)
		return length;
	if ((size_t)length > reply_capacity)
		return -EMSGSIZE;
	if (msg_envelope_read(&envelope, reply, (size_t)length) < 0 || envelope.sequence != sequence)
		return -EBADMSG;
	return length;
}
