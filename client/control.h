/*
 * control.h - the client side of the control channel: one request, one answer, over nanomsg REQ. Internal to libgpool.
 *
 * A request that meets a front or an agent in the middle of a restart is sent again every CONTROL_RESEND_MS until it is
 * answered or its time is over. So it may arrive twice; the agent knows a repeated one by its sequence number, which is why
 * numbers are unique in a process and never used again.
 *
 * nanomsg runs a thread and is not fork-safe. After fork() a child may only call control_close(), which then frees memory and
 * leaves nanomsg alone; control_call() is refused there with -ECHILD.
 * Threads: one call on a struct control at a time; different ones are independent.
 */
#ifndef GPOOL_CLIENT_CONTROL_H
#define GPOOL_CLIENT_CONTROL_H

#include <stddef.h>
#include <stdint.h>

enum { CONTROL_RESEND_MS = 500 };

struct control;

/*
 * control_open() - prepare to talk to the agent at url ("ipc:///path"). Nobody needs to listen there yet.
 *
 * Return: 0, or -EINVAL or -ENAMETOOLONG (url), -ENOMEM, -EMFILE
 */
int control_open(const char *url, struct control **control);

/*
 * nanomsg_claim() - before the first socket: nanomsg does not survive a fork, so only the process that used it first may go on.
 * 0, or -EOPNOTSUPP in a child whose parent had used it: exec a program of its own there.
 */
int nanomsg_claim(void);

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
int control_call(struct control *control, const uint8_t token[16], uint8_t *request, size_t request_length, uint8_t *reply,
	size_t reply_capacity, int timeout_ms);

/* Accepts NULL. */
void control_close(struct control *control);

#endif
