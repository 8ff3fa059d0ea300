/*
 * attach_call.h - a question on the attach socket and its answer, also over a restart of the agent.
 */
#ifndef GPOOL_CLIENT_ATTACH_CALL_H
#define GPOOL_CLIENT_ATTACH_CALL_H

#include "client/pool.h"

/*
 * attach_call() - send one encoded request (this call writes token and sequence number into its envelope), wait for its answer.
 *
 * An agent that begins anew has lost what the last one had read and not answered: the request is sent again then, with the same
 * number. So it must be one that may take effect once and be answered twice. Answers to other numbers are passed over.
 *
 * @reply: [capacity] receives the whole answer, envelope included
 * @fds:   [fd_capacity] receives descriptors that came with it, which are the caller's; may be NULL with 0
 *
 * Return: length of the answer, or (no descriptor is kept)
 *   -EPIPE   the session is over, or the agent does not answer: the request may have taken effect, or take effect yet
 *   -EMFILE  the answer's descriptors could not be opened here
 */
int attach_call(struct gpool *pool, uint8_t *request, size_t request_bytes, uint8_t *reply, size_t capacity, int *fds,
	size_t fd_capacity, size_t *fd_count);

#endif
