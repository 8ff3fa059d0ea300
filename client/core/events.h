/*
 * events.h - the client side of the event channel, over nanomsg SUB. Internal to libgpool.
 *
 * Events are hints: a subscriber misses some of them if it is slow or connects while the front restarts. The current
 * state can be requested over the control channel. Close the channel with channel_close(). The rules of channel.h for
 * forks and threads apply.
 */
#ifndef GPOOL_CLIENT_EVENTS_H
#define GPOOL_CLIENT_EVENTS_H

#include "client/core/channel.h"
#include "proto/messages.h"

/*
 * events_open() - subscribe to all events at url ("ipc:///path"). The front need not be listening yet.
 *
 * Return: 0, or as channel_open()
 */
int events_open(const char *url, struct channel **events);

/*
 * events_receive() - wait for the next event; skips messages that are not events.
 *
 * @timeout_ms: longest wait; 0: do not wait, -1: no limit
 *
 * Return: 0, or (*event is unchanged)
 *   -ETIMEDOUT  no event arrived
 *   -EINTR      gpool_wait_check() ended the wait
 *   -ECHILD     called in a child of the process that opened the channel
 */
int events_receive(struct channel *events, int timeout_ms, struct msg_event *event);

#endif
