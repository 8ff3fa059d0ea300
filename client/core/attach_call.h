/*
 * attach_call.h - send one request on the attach socket and receive its reply. Internal to libgpool.
 *
 * An agent may read a request and die before it replies. Each request therefore has a number, and is sent again with
 * the same number when the agent was restarted or no reply arrived for a while. Only the reply with its number is
 * accepted. The agent answers a repeated request without executing it twice.
 */
#ifndef GPOOL_CLIENT_ATTACH_CALL_H
#define GPOOL_CLIENT_ATTACH_CALL_H

#include "client/core/pool.h"

struct attach_call {
	uint8_t *request; /* encoded; the call sets token and number */
	int length;       /* result of the encoder */
	int fd;           /* descriptor to send with it; -1: none */
	uint8_t *answer;  /* [capacity] */
	size_t capacity;
	int *fds; /* [fd_capacity] received descriptors, owned by the caller */
	size_t fd_capacity, fd_count;
	int timeout_ms; /* -1: until it is answered or the session has ended */
};

/*
 * attach_call() - send the request and wait for its reply, after requests of other threads, within timeout_ms.
 *
 * Return: bytes of the reply, or -ETIMEDOUT (it may still take effect), -EPIPE (the session has ended), -EMFILE (no
 * room for its descriptors; it may have taken effect), or the encoder's error.
 */
int attach_call(struct gpool *pool, struct attach_call *call);

#endif
