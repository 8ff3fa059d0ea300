/*
 * attach_call.h - send one request on the attach socket and receive its reply. Internal to libgpool.
 *
 * The agent may read a request and die before it replies. Each request therefore has a number, and is sent again with
 * the same number if the agent was restarted or no reply arrived within AGAIN_MS. Replies with another number are
 * ignored. The agent answers a repeated request without executing it twice.
 */
#ifndef GPOOL_CLIENT_ATTACH_CALL_H
#define GPOOL_CLIENT_ATTACH_CALL_H

#include "client/core/pool.h"

struct attach_call {
	uint8_t *request; /* encoded request; attach_call() sets the token and the number */
	int length;       /* return value of the encoder */
	int fd;           /* descriptor to send with the request; -1: none */
	uint8_t *answer;  /* [capacity] */
	size_t capacity;
	int *fds; /* [fd_capacity] received descriptors, owned by the caller */
	size_t fd_capacity, fd_count;
	int timeout_ms;     /* -1: wait until the reply arrives or the session ends */
	bool may_interrupt; /* gpool_wait_check() may end the wait for the reply */
};

/*
 * attach_call() - send the request and wait for its reply. timeout_ms, which is measured as in patience.h, includes the
 * wait for requests of other threads.
 *
 * Return: length of the reply, or -ETIMEDOUT or -EINTR (the request may still take effect), -EPIPE (the session has
 * ended), -EMFILE (no room for the received descriptors; the request may have taken effect), or the encoder's error.
 */
int attach_call(struct gpool *pool, struct attach_call *call);

#endif
