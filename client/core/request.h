/* request.h - control requests to the agent, and functions for the tools. Not public. */
#ifndef GPOOL_CLIENT_REQUEST_H
#define GPOOL_CLIENT_REQUEST_H

#include "client/gpool.h"

#include <stddef.h>
#include <stdint.h>

struct gpu;
struct pool_segment;

/*
 * pool_request() - send one encoded control message (proto/codec.h) and wait for the reply. This call writes the
 * session's token and the next sequence number into the envelope.
 *
 * @reply: [capacity] receives the whole reply with its envelope; MSG_BYTES_MAX is always enough
 *
 * Return: length of the reply, or -ETIMEDOUT or -EINTR (no reply; the request may have taken effect), -EPIPE (the
 * session has ended), -EMSGSIZE, -ENOMEM, or the error in an error_reply, whose text is copied to error_text[512] (may
 * be NULL).
 */
int pool_request(struct gpool *pool, uint8_t *request, size_t request_bytes, uint8_t *reply, size_t capacity,
	int timeout_ms, char *error_text);

const struct pool_segment *pool_view(const struct gpool *pool);

/* pool_gpu() - return the device of an attached worker, whose calls can be counted (gpu_calls()), or NULL. */
const struct gpu *pool_gpu(const struct gpool *pool);

#endif
