/*
 * attach_call.h - one question on the attach socket and its answer. Internal to libgpool.
 *
 * An agent may have read a question and died over it. So each has a number, is asked again with it when the agent was
 * started anew or no answer came for a while, and only the answer with its number is taken; the agent answers a repeat
 * and does nothing twice.
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
