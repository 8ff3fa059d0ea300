/*
 * control.c - requests and answers over nanomsg REQ.
 */
#include "client/control.h"

#include <errno.h>
#include <nanomsg/nn.h>
#include <nanomsg/reqrep.h>
#include <stdatomic.h>

#include "proto/codec.h"

enum {
	REPLY_BYTES_MAX = MSG_BYTES_MAX + 64, /* with nanomsg's own header */
	SILENCE_MS = 4 * CONTROL_RESEND_MS,   /* chosen: a request that was sent so often over a connection that stands is answered */
};

/* One row of numbers for the process: a session may be used through several channels, one after the other or at once. */
static atomic_uint_fast64_t last_sequence;

int control_open(const char *url, struct channel **control)
{
	struct channel *made;
	int result = channel_open(NN_REQ, url, SILENCE_MS, &made);

	if (result < 0)
		return result;
	result = channel_set(made, NN_REQ, NN_REQ_RESEND_IVL, CONTROL_RESEND_MS);
	if (result == 0)
		result = channel_set(made, NN_SOL_SOCKET, NN_RCVMAXSIZE, REPLY_BYTES_MAX);
	if (result < 0) {
		channel_close(made);
		return result;
	}
	*control = made;
	return 0;
}

int control_call(struct channel *control, const uint8_t token[16], uint8_t *request, size_t request_length, uint8_t *reply,
	size_t reply_capacity, int timeout_ms)
{
	struct msg_envelope envelope;
	uint64_t sequence;
	int length;

	if (request_length < MSG_ENVELOPE_BYTES)
		return -EINVAL;
	if (request_length > MSG_BYTES_MAX)
		return -EMSGSIZE;
	if (!channel_ours(control))
		return -ECHILD;
	sequence = atomic_fetch_add(&last_sequence, 1) + 1;
	msg_envelope_stamp(request, sequence, token);

	/* Never waits: REQ keeps the request until somebody can take it, and forgets one that was not answered in time. */
	if (nn_send(channel_socket(control), request, request_length, 0) < 0)
		return -nn_errno();
	channel_expect(control);
	length = channel_receive(control, reply, reply_capacity, channel_deadline(timeout_ms));
	if (length < 0)
		return length;
	if ((size_t)length > reply_capacity)
		return -EMSGSIZE;
	if (msg_envelope_read(&envelope, reply, (size_t)length) < 0 || envelope.sequence != sequence)
		return -EBADMSG;
	return length;
}
