/*
 * channel.h - a nanomsg socket with one connection, for control.c and events.c. Internal to libgpool.
 *
 * nanomsg reconnects when the peer closes the connection. However, it may miss the event if the peer closes the
 * connection immediately after the handshake, and then keeps a dead connection. A SUB channel therefore has a maximum
 * time of silence, after which a waiting caller reconnects it. A REQ request that is not answered in time must be sent
 * again with channel_send().
 *
 * A REQ socket of nanomsg 1.1.5 leaks a reply that arrives while an earlier reply to the same request is unread. A
 * socket is therefore used for a second request only if the first one was answered; otherwise channel_send() replaces
 * the socket.
 *
 * nanomsg runs a thread and is not fork-safe. After fork() a child may only call channel_close(), which then frees
 * memory without calling nanomsg. Threads: one call on a struct channel at a time; different channels are independent.
 */
#ifndef GPOOL_CLIENT_CHANNEL_H
#define GPOOL_CLIENT_CHANNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct channel;

/*
 * channel_open() - open a socket of `protocol` (NN_REQ, NN_SUB) that keeps a connection to url ("ipc:///path"). The
 * peer need not be listening yet.
 *
 * @silence_ms: maximum time of silence while a caller waits; -1: no limit
 *
 * Return: 0, -EINVAL or -ENAMETOOLONG (url), -ENOMEM, -EMFILE, -EOPNOTSUPP (in a forked child whose parent has used
 * nanomsg)
 */
int channel_open(int protocol, const char *url, int silence_ms, struct channel **channel);

/* Close a channel, or do nothing if it is NULL. */
void channel_close(struct channel *channel);

/* Return true if this process opened the channel; otherwise only channel_close() is permitted. */
bool channel_ours(const struct channel *channel);

/* Return nanomsg's number of the socket, for direct calls of nanomsg. */
int channel_socket(const struct channel *channel);

/*
 * channel_send() - send a request over REQ. Never waits: if the socket is not connected, it queues the request. Return:
 * 0 or a negative errno.
 */
int channel_send(struct channel *channel, const void *request, size_t length);

/* Return the time `timeout_ms` from now, as a deadline for channel_receive(); -1: no deadline. */
int64_t channel_deadline(int timeout_ms);

/*
 * channel_receive() - wait for a message.
 *
 * @deadline: end of the wait; if it is in the past, the call does not wait
 *
 * Return: length of the message, or -ETIMEDOUT or another negative errno. If the length exceeds `capacity`, the message
 * was truncated.
 */
int channel_receive(struct channel *channel, void *buffer, size_t capacity, int64_t deadline);

#endif
