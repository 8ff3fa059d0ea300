/*
 * notify.h - send messages to the service manager (sd_notify(3)), and receive descriptors from it (sd_listen_fds(3)).
 * Without a service manager, these functions do nothing.
 */
#ifndef GPOOL_AGENT_KEEPER_NOTIFY_H
#define GPOOL_AGENT_KEEPER_NOTIFY_H

#include <stdbool.h>

/* notify_there() - return true if a service manager expects messages ($NOTIFY_SOCKET is set). */
bool notify_there(void);

/*
 * notify_send() - send lines such as "READY=1", and the descriptor fd unless it is negative.
 *
 * Return: 0, -ENOENT (no service manager) or the errno of sendmsg(2).
 */
int notify_send(const char *text, int fd);

/*
 * notify_barrier() - wait, at most timeout_ms, until the manager has received all earlier messages. Their descriptors
 * then survive this process.
 *
 * Return: 0, -ENOENT, -ETIMEDOUT, or the errno of sendmsg(2).
 */
int notify_barrier(int timeout_ms);

/*
 * notify_watchdog_ms() - return the interval at which to send WATCHDOG=1: half of the manager's timeout; 0: no
 * watchdog.
 */
int notify_watchdog_ms(void);

/*
 * notify_listen_fds() - return the descriptors with this name that the service manager stored. They are set to
 * close-on-exec; all other descriptors that the manager passed are closed. Only the first call returns descriptors,
 * since it clears the environment.
 *
 * Return: the number of descriptors, at most `most`.
 */
int notify_listen_fds(const char *name, int *fds, int most);

#endif
