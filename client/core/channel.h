/*
 * channel.h - a nanomsg socket with one connection, for control.c and events.c. Internal to libgpool.
 *
 * nanomsg connects again by itself when the other side ends, but not for certain: when it ends just as the two have
 * greeted each other, nanomsg now and then loses the news, and stays connected to nobody, with a descriptor that is
 * closed. So a SUB channel has a time within which something must be heard, and whoever waits for longer gets another
 * connection. A request that is not answered in time is sent again with channel_send().
 *
 * A REQ socket of nanomsg 1.1.5 leaks an answer that arrives while an earlier one to the same request lies there
 * unread. So a socket carries a second request only after the first was answered; channel_send() puts a new socket in
 * its place otherwise.
 *
 * nanomsg runs a thread and is not fork-safe. After fork() a child may only call channel_close(), which then frees
 * memory and leaves nanomsg alone. Threads: one call on a struct channel at a time; different ones are independent.
 */
#ifndef GPOOL_CLIENT_CHANNEL_H
#define GPOOL_CLIENT_CHANNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct channel;

/*
 * nanomsg_claim() - before the first socket: nanomsg does not survive a fork, so only the process that used it first
 * may go on. 0, or -EOPNOTSUPP in a child whose parent had used it: exec a program of its own there.
 */
int nanomsg_claim(void);

/*
 * channel_open() - a socket of `protocol` (NN_REQ, NN_SUB) that keeps a connection to url ("ipc:///path"). Nobody needs
 * to listen there yet.
 *
 * @silence_ms: how long nothing may be heard while somebody waits; -1: for ever
 *
 * Return: 0, or -EINVAL or -ENAMETOOLONG (url), -ENOMEM, -EMFILE, -EOPNOTSUPP (see nanomsg_claim)
 */
int channel_open(int protocol, const char *url, int silence_ms, struct channel **channel);

/* Accepts NULL. */
void channel_close(struct channel *channel);

/* Whether this process opened it; what follows is only for that one. */
bool channel_ours(const struct channel *channel);

/* nanomsg's number of the socket, for what this file does not do. */
int channel_socket(const struct channel *channel);

/*
 * channel_send() - send a request over REQ. Never waits: the socket keeps it until there is a connection. 0 or a
 * negative errno.
 */
int channel_send(struct channel *channel, const void *request, size_t length);

/* When `timeout_ms` from now is over, -1: never; for channel_receive(). */
int64_t channel_deadline(int timeout_ms);

/*
 * channel_receive() - wait for a message.
 *
 * @deadline: longest wait, one that is over already: do not wait
 *
 * Return: its length, which may be above `capacity`: then the rest was cut off. Or -ETIMEDOUT, or another negative
 * errno.
 */
int channel_receive(struct channel *channel, void *buffer, size_t capacity, int64_t deadline);

#endif
