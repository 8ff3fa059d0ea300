/* request.h - control requests to the agent, and functions for tools only. Not public. */
#ifndef GPOOL_CLIENT_REQUEST_H
#define GPOOL_CLIENT_REQUEST_H

#include "client/gpool.h"

#include <stddef.h>
#include <stdint.h>

struct gpu;
struct pool_segment;

/*
 * pool_request() - send one encoded control message (proto/codec.h; this call writes the session's token and the next
 * sequence number into its envelope) and wait for the answer.
 *
 * @reply: [capacity] receives the whole answer, envelope included; MSG_BYTES_MAX is always enough
 *
 * Return: length of the answer, or -ETIMEDOUT (no answer; it may have taken effect), -EPIPE (session over), -EMSGSIZE,
 * -ENOMEM, or the error that an error_reply carries, whose text is in error_text[512] (may be NULL).
 */
int pool_request(struct gpool *pool, uint8_t *request, size_t request_bytes, uint8_t *reply, size_t capacity,
	int timeout_ms, char *error_text);

/* pool_view() - the read-only pool segment of an attached pool. */
const struct pool_segment *pool_view(const struct gpool *pool);

/* pool_gpu() - return the device of an attached worker, to count its calls (gpu_calls()); NULL: it has none. */
const struct gpu *pool_gpu(const struct gpool *pool);

#endif
