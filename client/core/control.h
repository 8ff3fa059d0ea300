/*
 * control.h - the client side of the control channel: one request, one answer, over nanomsg REQ. Internal to libgpool.
 *
 * A request that is not answered, as in the middle of a restart of front or agent, is sent again over another
 * connection: after CONTROL_RESEND_MS, then after twice as long, and so on up to 16 times as long, until it is answered
 * or its time is over. So it may arrive twice; the agent knows a repeated one by its sequence number, which is why
 * numbers are unique in a process and never used again.
 *
 * Ended with channel_close(); what channel.h says of forks and threads holds here too.
 */
#ifndef GPOOL_CLIENT_CONTROL_H
#define GPOOL_CLIENT_CONTROL_H

#include <stddef.h>
#include <stdint.h>

#include "client/core/channel.h"

enum { CONTROL_RESEND_MS = 500 };

/*
 * control_open() - prepare to talk to the agent at url ("ipc:///path"). Nobody needs to listen there yet.
 *
 * Return: 0, or -EINVAL or -ENAMETOOLONG (url), -ENOMEM, -EMFILE
 */
int control_open(const char *url, struct channel **control);

/*
 * control_call() - send one request and wait for its answer.
 *
 * @token:      [16] of the session, from attach_reply
 * @request:    an encoded message; its sequence number and token are overwritten here
 * @reply:      receives the answer: any message, an error_reply among them; only its envelope has been checked
 * @timeout_ms: longest wait, -1: no limit
 *
 * Return: length of the answer, or (what is in reply is undefined)
 *   -ETIMEDOUT  no answer in time; whether the request took effect is unknown
 *   -EMSGSIZE   the answer is longer than reply_capacity, or the request is longer than MSG_BYTES_MAX
 *   -EBADMSG    the answer is no message, or one for another request
 *   -EINVAL     request is shorter than an envelope
 *   -ECHILD     called in a child of the process that opened it
 */
int control_call(struct channel *control, const uint8_t token[16], uint8_t *request, size_t request_length,
	uint8_t *reply, size_t reply_capacity, int timeout_ms);

#endif
