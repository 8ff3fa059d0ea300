/*
 * channel.h - a nanomsg socket with one connection, for control.c and events.c. Internal to libgpool.
 *
 * nanomsg reconnects when the other side ends, but not always: if it ends just after the two have greeted each other,
 * nanomsg may miss the event, and stays connected through a closed descriptor. A SUB channel therefore has a maximum
 * time of silence; a caller that waits longer makes it reconnect. A request that is not answered in time is sent again
 * with channel_send().
 *
 * A REQ socket of nanomsg 1.1.5 leaks an answer that arrives while an earlier one to the same request is unread. A
 * socket therefore carries a second request only after the first was answered; otherwise channel_send() replaces the
 * socket.
 *
 * nanomsg runs a thread and is not fork-safe. After fork() a child may only call channel_close(), which then frees
 * memory and makes no call of nanomsg. Threads: one call on a struct channel at a time; different ones are independent.
 */
#ifndef GPOOL_CLIENT_CHANNEL_H
#define GPOOL_CLIENT_CHANNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct channel;

/*
 * nanomsg_claim() - claim nanomsg for this process, before the first socket: it does not survive a fork. Return: 0, or
 * -EOPNOTSUPP in a child whose parent had used it; the child can execute another program.
 */
int nanomsg_claim(void);

/*
 * channel_open() - open a socket of `protocol` (NN_REQ, NN_SUB) that keeps a connection to url ("ipc:///path"). The
 * other side need not be listening yet.
 *
 * @silence_ms: maximum time of silence while a caller waits; -1: no limit
 *
 * Return: 0, or -EINVAL or -ENAMETOOLONG (url), -ENOMEM, -EMFILE, -EOPNOTSUPP (see nanomsg_claim)
 */
int channel_open(int protocol, const char *url, int silence_ms, struct channel **channel);

/* Accepts NULL. */
void channel_close(struct channel *channel);

/* Return true if this process opened the channel; otherwise only channel_close() is permitted. */
bool channel_ours(const struct channel *channel);

/* Return nanomsg's number of the socket, for other calls of nanomsg. */
int channel_socket(const struct channel *channel);

/*
 * channel_send() - send a request over REQ. Never waits: the socket keeps the request until it is connected. Return: 0
 * or a negative errno.
 */
int channel_send(struct channel *channel, const void *request, size_t length);

/* Return the deadline `timeout_ms` from now, -1: never, for channel_receive(). */
int64_t channel_deadline(int timeout_ms);

/*
 * channel_receive() - wait for a message.
 *
 * @deadline: end of the wait; a deadline in the past: do not wait
 *
 * Return: its length, which may be above `capacity`, in which case it was truncated. Or -ETIMEDOUT, or another negative
 * errno.
 */
int channel_receive(struct channel *channel, void *buffer, size_t capacity, int64_t deadline);

#endif
