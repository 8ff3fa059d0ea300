/*
 * attach_call.h - one request on the attach socket and its reply. Internal to libgpool.
 *
 * An agent may have read a request and died before it replied. So each request has a number and is sent again with it
 * when the agent was restarted or no reply arrived for a while. Only the reply with its number is accepted. The agent
 * answers a repeated request without executing it twice.
 */
#ifndef GPOOL_CLIENT_ATTACH_CALL_H
#define GPOOL_CLIENT_ATTACH_CALL_H

#include "client/core/pool.h"

struct attach_call {
	uint8_t *request; /* encoded; token and number are put in here */
	int length;       /* as the encoder returned it */
	int fd;           /* that goes with it; -1: none */
	uint8_t *answer;  /* [capacity] */
	size_t capacity;
	int *fds; /* [fd_capacity] receives descriptors, the caller's */
	size_t fd_capacity, fd_count;
	int timeout_ms; /* -1: until it is answered or the session is over */
};

/*
 * attach_call() - waits for other threads' questions too, within timeout_ms.
 *
 * Return: bytes of the answer, or -ETIMEDOUT (it may yet take effect), -EPIPE (the session is over), -EMFILE
 * (no room for its descriptors; it may have taken effect), what the encoder said.
 */
int attach_call(struct gpool *pool, struct attach_call *call);

#endif
