/*
 * front.h - the front process, which has the nanomsg sockets and no state that could be lost.
 *
 * nanomsg 1.1.5 aborts the listening process when a peer sends one wrong header, and keeps descriptors that a peer
 * attaches to a message. Its sockets are therefore in a process of their own, without privileges and with a seccomp
 * filter. The keeper restarts it when it ends, and clients repeat their requests. Its only state is the set of valid
 * session tokens, which the agent can send again. It checks size, envelope, type, token and rate of every request
 * before the agent sees it.
 *
 * On the socket to the agent (a connected SOCK_SEQPACKET pair, no descriptors) each packet is FRONT_ID_BYTES of request
 * id, little-endian, and one message:
 *
 *   front -> agent   id != 0: a control request that passed the checks; the id identifies its answer only
 *   agent -> front   id != 0: the answer to that request, any message; an unknown or expired id is dropped
 *                    id == 0: an `event`, which the front publishes unchanged, or a `front_token`
 *
 * A new front has no tokens. On each new socket the agent announces all of them before anything else, and it announces
 * a new token before it sends the attach_reply with that token; so the front has it before the first request that uses
 * it. During its first second the front does not answer requests with unknown tokens, since the agent may still be
 * announcing. Thousands of tokens fill the socket: the agent continues when it is writable again.
 *
 * The front itself answers with error_reply, the sequence of the request and a zero token:
 *
 *   -EACCES      token unknown              -EOPNOTSUPP  no such request in this version
 *   -EBUSY       over the token's rate, FRONT_FLIGHTS_MAX requests in flight, or the agent does not read
 *
 * It drops, without an answer, input that is not a message, and requests with unknown tokens above the rate of one
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
	FRONT_CONNECTIONS_MAX = 512,    /* of both sockets together, unless the options differ */
	FRONT_CONNECTIONS_MOST = 65536, /* upper bound of connections_max; the kernel's limits are usually lower */
	FRONT_LEAKED_MAX = 64,          /* unexplained descriptors at which the front ends */
};

enum { FRONT_TOKENS_TOLD = 2 }; /* front_token.valid: all tokens were announced */

struct front_options {
	uint32_t size;                /* sizeof(struct front_options) of the caller; the struct only grows */
	const char *control_url;      /* "ipc:///path" of the REP socket */
	const char *events_url;       /* "ipc:///path" of the PUB socket */
	int agent_socket;             /* SOCK_SEQPACKET to the agent; the front ends when it closes */
	pid_t parent;                 /* the keeper; 0: do not check that it is alive */
	uid_t uid;                    /* user to change to, (uid_t)-1: none */
	gid_t gid;                    /* group to change to, which then owns the sockets; (gid_t)-1: none */
	size_t message_bytes_max;     /* largest request; 0: MSG_BYTES_MAX */
	uint32_t requests_per_second; /* for each token, with a burst of one second; 0: no limit */
	uint32_t connections_max;     /* of both sockets together; 0: FRONT_CONNECTIONS_MAX */
	bool seccomp;                 /* false only for debugging */
};

/*
 * front_run() - run the front until the agent closes its socket.
 *
 * Call it in a single-threaded child that the keeper forked without exec, with no descriptors but agent_socket and the
 * standard ones. The keeper itself must never call nanomsg: the library starts a thread and does not survive fork().
 * Privileges are dropped before the sockets are created, so uid or gid needs write permission on their directory; other
 * users should not have it. Old socket files are replaced; new ones have mode 0770. Signals are reset to their
 * defaults.
 *
 * Return: the result, after which the caller must call _exit():
 *
 *   0           the agent closed its end
 *   -EMFILE     descriptors were leaked, or the number of connections exceeds the limit; restart the front
 *   -EAGAIN     nanomsg accepts no connections; restart the front
 *   -EINVAL     an option is out of range
 *   -ENAMETOOLONG, -EADDRINUSE, -EACCES and others: a socket could not be bound
 *   -EPERM, -ESRCH and others: privileges could not be dropped, or the keeper is dead
 */
int front_run(const struct front_options *options);

#endif
