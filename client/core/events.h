/*
 * events.h - the client side of the event channel, over nanomsg SUB. Internal to libgpool.
 *
 * Events are hints: a subscriber that is slow, or connected while the front restarts, misses some. State is asked for
 * over the control channel. Ended with channel_close(); what channel.h says of forks and threads holds here too.
 */
#ifndef GPOOL_CLIENT_EVENTS_H
#define GPOOL_CLIENT_EVENTS_H

#include "client/core/channel.h"
#include "proto/messages.h"

/*
 * events_open() - subscribe to all events at url ("ipc:///path"). Nobody needs to listen there yet.
 *
 * Return: 0, or -EINVAL or -ENAMETOOLONG (url), -ENOMEM, -EMFILE
 */
int events_open(const char *url, struct channel **events);

/*
 * events_receive() - wait for the next event; what is none is passed over.
 *
 * @timeout_ms: longest wait, 0: do not wait, -1: no limit
 *
 * Return: 0, or (*event is as it was)
 *   -ETIMEDOUT  none came
 *   -ECHILD     called in a child of the process that opened it
 */
int events_receive(struct channel *events, int timeout_ms, struct msg_event *event);

/* A descriptor that is readable when events_receive() has something to look at; never read it. Or a negative errno. */
int events_fd(struct channel *events);

#endif
