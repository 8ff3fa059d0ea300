/*
 * control.h - the client side of the control channel: requests and replies over nanomsg REQ. Internal to libgpool.
 *
 * A request may get no reply, for example because the front or the agent is restarting. It is then sent again over
 * another connection, until a reply arrives or the timeout expires. The interval starts at CONTROL_RESEND_MS and
 * doubles up to 16 times that value. A request may therefore arrive twice; the agent recognizes repeated requests by
 * their sequence numbers, which are unique in a process and never reused.
 *
 * Close the channel with channel_close(). The rules of channel.h for forks and threads apply.
 */
#ifndef GPOOL_CLIENT_CONTROL_H
#define GPOOL_CLIENT_CONTROL_H

#include <stddef.h>
#include <stdint.h>

#include "client/core/channel.h"

enum { CONTROL_RESEND_MS = 500 };

/*
 * control_open() - prepare requests to the agent at url ("ipc:///path"). The agent need not be listening yet.
 *
 * Return: 0, or as channel_open()
 */
int control_open(const char *url, struct channel **control);

/*
 * control_call() - send one request and wait for its reply.
 *
 * @token:      [16] token of the session, from attach_reply
 * @request:    an encoded message; its sequence number and token are overwritten here
 * @reply:      receives the reply, which may be an error_reply; only its envelope has been checked
 * @timeout_ms: longest wait, -1: no limit
 *
 * Return: length of the reply, or (reply is undefined)
 *   -ETIMEDOUT  no reply in time; the request may have taken effect
 *   -EMSGSIZE   the reply is longer than reply_capacity, or the request is longer than MSG_BYTES_MAX
 *   -EBADMSG    the reply is not a message, or belongs to another request
 *   -EINVAL     request is shorter than an envelope
 *   -EINTR      gpool_wait_check() ended the wait; the request may have taken effect
 *   -ECHILD     called in a child of the process that opened the channel
 *   another negative errno of channel_send() or channel_receive()
 */
int control_call(struct channel *control, const uint8_t token[16], uint8_t *request, size_t request_length,
	uint8_t *reply, size_t reply_capacity, int timeout_ms);

#endif
