/*
 * front.h - the front process: the nanomsg sockets, and nothing to lose.
 *
 * nanomsg 1.1.5 aborts the process that listens when a peer sends one wrong header, and keeps descriptors that a peer
 * attaches to a message. So its sockets live in a process of their own, without rights and behind a seccomp filter,
 * which the keeper starts again whenever it ends; clients re-send. It holds no state that the agent cannot tell it
 * again: only which session tokens are good. It checks every request before the agent sees it: size, envelope, type,
 * token, rate.
 *
 * To the agent (a connected SOCK_SEQPACKET pair, no descriptors) each packet is FRONT_ID_BYTES of request id,
 * little-endian, and one message:
 *   front -> agent   id != 0: a control request that passed the checks; the id is meant for the answer alone
 *   agent -> front   id != 0: the answer to that request, any message; an unknown or expired id is dropped
 *                    id == 0: an `event`, published as it is, or a `front_token`
 * A fresh front knows no token: the agent announces all of them on each new socket before anything else, and a new one
 * before it sends the attach_reply that carries it; then the front knows it before any request comes with it. Only
 * during its first second the front leaves requests with unknown tokens without an answer, as the agent may not be
 * through. Announcing thousands of tokens fills the socket: the agent goes on when it can be written again.
 *
 * The front answers by itself, with error_reply, the sequence of the request and a zero token:
 *   -EACCES      token unknown              -EOPNOTSUPP  no such request in this version
 *   -EBUSY       over the token's rate, FRONT_FLIGHTS_MAX requests in flight, or the agent does not read
 * What is no message at all it drops without an answer, also requests with unknown tokens beyond the rate of one
 * session.
 */
#ifndef GPOOL_AGENT_FRONT_FRONT_H
#define GPOOL_AGENT_FRONT_FRONT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
	FRONT_ID_BYTES = 8,
	FRONT_FLIGHTS_MAX = 256,        /* requests that the agent has not answered yet */
	FRONT_CONNECTIONS_MAX = 512,    /* chosen; both sockets together, unless the options say otherwise */
	FRONT_CONNECTIONS_MOST = 65536, /* what connections_max may be; the kernel's own limits come first */
	FRONT_LEAKED_MAX = 64, /* chosen: descriptors that belong to nothing known, before the front gives up */
};

enum { FRONT_TOKENS_TOLD = 2 }; /* front_token.valid: that was all of them */

struct front_options {
	uint32_t size;                /* sizeof(struct front_options) of who fills it; they only grow */
	const char *control_url;      /* "ipc:///path" of the REP socket */
	const char *events_url;       /* "ipc:///path" of the PUB socket */
	int agent_socket;             /* SOCK_SEQPACKET to the agent; the front ends when it closes */
	pid_t parent;                 /* the keeper; 0: do not check that it still lives */
	uid_t uid;                    /* user to become, (uid_t)-1: stay */
	gid_t gid;                    /* group to become, which owns the sockets then; (gid_t)-1: stay */
	size_t message_bytes_max;     /* largest request; 0: MSG_BYTES_MAX */
	uint32_t requests_per_second; /* for each token, with a burst of one second; 0: no limit */
	uint32_t connections_max;     /* to both sockets together; 0: FRONT_CONNECTIONS_MAX */
	bool seccomp;                 /* false only to debug */
};

/*
 * front_run() - be the front until the agent's socket closes.
 *
 * Called in a child forked from the keeper without exec, single-threaded, after it has closed every descriptor but
 * agent_socket and the standard ones. The keeper itself must never call nanomsg: the library starts a thread and does
 * not survive fork(). Rights are dropped before the sockets exist, so the directory of the sockets must let uid or gid
 * write; nobody else should be able to. Stale socket files are replaced, the new ones have mode 0770. Signals are set
 * to their defaults.
 *
 * Return: to be passed to _exit() as failure or not, for there is no way back into a keeper:
 *   0           the agent closed its end
 *   -EMFILE     descriptors have piled up, or there are more connections than allowed; start another front
 *   -EAGAIN     nanomsg does not work, which it does not tell; start another front
 *   -EINVAL     an option out of range
 *   -ENAMETOOLONG, -EADDRINUSE, -EACCES and others: a socket could not be bound
 *   -EPERM, -ESRCH and others: rights could not be dropped, or the keeper is gone already
 */
int front_run(const struct front_options *options);

#endif
