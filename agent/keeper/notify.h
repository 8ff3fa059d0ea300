/*
 * notify.h - telling the service manager (sd_notify(3)), and what it hands back (sd_listen_fds(3)). Nothing happens
 * where there is none.
 */
#ifndef GPOOL_AGENT_KEEPER_NOTIFY_H
#define GPOOL_AGENT_KEEPER_NOTIFY_H

#include <stdbool.h>

/* notify_there() - whether somebody wants to be told: $NOTIFY_SOCKET is set. */
bool notify_there(void);

/*
 * notify_send() - lines such as "READY=1", with a descriptor if fd is not below 0. 0, -ENOENT (nobody there) or what
 * sendmsg(2) says.
 */
int notify_send(const char *text, int fd);

/*
 * notify_barrier() - wait until all that was sent before has been taken, at most timeout_ms: so a descriptor is safe
 * before we end. 0, -ENOENT, -ETIMEDOUT, or what sendmsg(2) says.
 */
int notify_barrier(int timeout_ms);

/*
 * notify_watchdog_ms() - how often WATCHDOG=1 is to be sent: twice within the time after which the manager takes this
 * process for hanging. 0: it does not look.
 */
int notify_watchdog_ms(void);

/*
 * notify_listen_fds() - the descriptors with this name that the service manager has kept for us, close-on-exec from now
 * on; others that it gave are closed. Returns how many, at most `most`. Only the first call finds any: the environment
 * is cleared.
 */
int notify_listen_fds(const char *name, int *fds, int most);

#endif
