/*
 * events.h - the client side of the event channel, over nanomsg SUB. Internal to libgpool.
 *
 * Events are hints: a subscriber that is slow, or connected while the front restarts, misses some. State is asked for over the
 * control channel. nanomsg is not fork-safe: the rules of control.h hold here too.
 */
#ifndef GPOOL_CLIENT_EVENTS_H
#define GPOOL_CLIENT_EVENTS_H

#include "proto/messages.h"

struct events;

/*
 * events_open() - subscribe to all events at url ("ipc:///path"). Nobody needs to listen there yet.
 *
 * Return: 0, or -EINVAL or -ENAMETOOLONG (url), -ENOMEM, -EMFILE
 */
int events_open(const char *url, struct events **events);

/*
 * events_receive() - wait for the next event; what is none is passed over.
 *
 * @timeout_ms: longest wait, 0: do not wait, -1: no limit
 *
 * Return: 0, or (*event is as it was)
 *   -ETIMEDOUT  none came
 *   -ECHILD     called in a child of the process that opened it
 */
int events_receive(struct events *events, int timeout_ms, struct msg_event *event);

/* A descriptor that is readable when events_receive() has something to look at; never read it. Or a negative errno. */
int events_fd(struct events *events);

/* Accepts NULL. */
void events_close(struct events *events);

#endif
